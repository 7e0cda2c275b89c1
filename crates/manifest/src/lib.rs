//! ACP.md and the files it leads to: read, checked, resolved.
//!
//! [`check`] looks at one file by itself and finds everything that is wrong with it; each [`Finding`] says where, what,
//! and what to write. [`read`] also returns what stands in it, as plain data of [`types`]. The schemas that files are
//! checked by are made from those types, and [`schema`] shows them. [`check_directory`] does it for all of them, and follows
//! each ACP.md.
//!
//! [`load`] starts at an ACP.md and follows it to the operator, the governance with everything it inherits, policies,
//! sandbox, runner, agent and skills. What comes of it is a [`Bundle`]: data for whoever runs the manifest, the
//! [`Charter`](narrows_policy::Charter) that decides, and the digest of every file that was read.
//!
//! Nothing here runs anything, and nothing reaches the network.

mod argv;
mod capabilities;
mod code;
mod document;
mod files;
mod finding;
mod kind;
mod lint;
mod near;
mod resolve;
mod revision;
mod schema;
mod survey;
pub mod types;
pub mod version;
mod yaml;

pub use argv::{Launch, LaunchError};
pub use capabilities::Capabilities;
pub use code::Code;
pub use document::{Document, FrontMatter, LONGEST, Read, check, front_matter, read};
pub use files::{Files, FilesError, Memory, Workspace};
pub use finding::{Finding, Findings, Severity};
pub use kind::{Kind, UnknownKind};
pub use resolve::{
    Agent, AuditTarget, BoundPolicy, Bundle, EffectiveGovernance, Loaded, McpBinding, Pin, PlannedMount,
    RunnerPlan, SandboxPlan, Skill, ToolSet, load, resolve,
};
pub use revision::protocol_version;
pub use schema::schema;
pub use survey::{Checked, check_directory};
