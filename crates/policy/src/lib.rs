//! Decisions as pure functions: access presets, rules, commands as argv, and why.
//!
//! A [`Policy`] is a preset ([`Access`]), what is taken away from it ([`Narrowing`]), and [`Rules`] from a file. It
//! judges an [`Action`] in a [`Scene`], and its [`Decision`] says what it follows from. The strictest rule that matches
//! wins, wherever it stands; the preset decides when none matches.
//!
//! What permits must match exactly and with certainty; what forbids matches whatever can be meant. So no word added to
//! a command makes its verdict milder, and a command of several parts gets the verdict of its strictest.
//!
//! A [`Charter`] is what a governance adds: clauses with decisions of their own ([`Class`]), a level of autonomy and
//! budgets. [`Policy::rule`] asks both, and again the strictest wins.
//!
//! Nothing here reads a disk, a clock or the environment, and paths are compared by name. Rule files are described for
//! users in `docs/policy.md`.

mod access;
mod action;
mod address;
mod charter;
mod command;
mod decision;
mod kind;
mod path;
mod policy;
mod preset;
mod protect;
mod reach;
mod repository;
mod rules;
mod scene;
mod scope;
mod shape;
mod target;
mod unambiguous;
mod variable;

pub use access::{Access, Narrowing, UnknownAccess};
pub use action::{Action, Command, WordLink};
pub use charter::{
    ACTIONS, Approval, Budget, Charter, Class, Clause, ClauseError, Considered, DefaultApproval, Excess,
    Exhausted, Ledger, Note, Reason, Ruling, Severity, Signer, Usage, is_asked,
};
pub use decision::{Because, Decision, RuleName, Verdict};
pub use kind::Kind;
pub use policy::{Explanation, Looked, Offers, Policy};
pub use protect::may_begin_protected;
pub use repository::{
    DiskEntry, RepositoryDisk, git_file_target, has_repository_layout, is_unusual_repository,
};
pub use rules::{Header, Rules};
pub use scene::{Confined, Protection, Scene};
pub use scope::{ScopeError, check_new_scope, check_scope};
pub use unambiguous::UnambiguousJson;
pub use variable::Variable;
