//! Decisions as pure functions: access presets, rules, parsed commands, and reasons.
//!
//! A [`Policy`] is a preset ([`Access`]), the permissions removed from it ([`Narrowing`]), and [`Rules`]
//! from a file. It judges an [`Action`] in a [`RequestContext`], and its [`Decision`] has a reason. The
//! strictest matching rule wins, in any order; the preset decides if none matches.
//!
//! A rule that permits must match exactly and with certainty; a rule that forbids matches everything that
//! may be meant. So no word added to a command makes its verdict milder, and a command of several parts
//! gets the verdict of its strictest part.
//!
//! A [`GovernanceRuleset`] adds the rules of a governance with their own decisions ([`Class`]), a level of
//! autonomy and budgets. [`Policy::decide_governed`] combines both, and again the strictest wins.
//!
//! Nothing here reads a disk, a clock or the environment, and paths are compared by name. Users find rule
//! files described in `docs/reference/rule-files.md`.

mod access;
mod action;
mod address;
mod command;
mod decision;
mod governance;
mod kind;
mod path;
mod policy;
mod preset;
mod protect;
mod repository;
mod request_context;
mod rules;
mod scope;
mod secret_reads;
mod target;
mod text_pattern;
mod unambiguous;
mod variable;

pub use access::{Access, Narrowing, UnknownAccess};
pub use action::{Action, Command, WordLink};
pub use decision::{Decision, DecisionReason, RuleName, Verdict};
pub use governance::{
    ACTIONS, Approval, Budget, BudgetLimit, BudgetUsage, Class, ConsideredRule, DefaultApproval,
    ExhaustedBudget, GovernanceDecision, GovernanceReason, GovernanceRule, GovernanceRuleError,
    GovernanceRuleset, RuleNote, RuleUsage, Severity, Signer, is_known_action,
};
pub use kind::Kind;
pub use policy::{Explanation, Offers, Policy, RuleMatch};
pub use protect::may_begin_protected;
pub use repository::{
    DiskEntry, RepositoryDisk, common_directory, git_file_target, has_repository_layout,
    is_unusual_repository,
};
pub use request_context::{Confined, Protection, RequestContext};
pub use rules::{Header, Rules};
pub use scope::{ScopeError, check_new_scope, check_scope};
pub use unambiguous::UnambiguousJson;
pub use variable::Variable;
