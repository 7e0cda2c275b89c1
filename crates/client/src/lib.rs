//! Drives agents under a policy, and reports their messages as events of one format.
//!
//! A [`Runtime`] is one running agent. A [`Session`] is one conversation with it, under a policy. A
//! [`RunHandle`] is one turn: its events, its result, and its cancellation.

mod agent;
mod allowed;
mod config;
mod created_report;
mod deadline;
mod early_requests;
mod error;
mod event;
mod event_queue;
mod host;
mod input;
pub mod map;
mod mcp;
mod message_loss;
mod option_choice;
mod peer_json;
mod pending_permissions;
mod permission_request;
mod permissions;
mod run;
mod runtime;
mod services;
mod session;
mod snapshot;
mod structured;
mod turn;
mod usage;

pub use agent::{Agent, AgentDescription, CommandRunner, Info, Offer};
pub use config::SessionConfig;
pub use deadline::Deadlines;
pub use error::{AgentOutput, ClientError, Login, LoginKind, Problem, Stage};
pub use event::{
    Completed, EventBody, Json, Message, Payload, PermissionRequested, PermissionResolved, Role,
    RuntimeEvent, Status, ToolOutput,
};
pub use host::command_sandbox::CommandSandbox;
pub use host::links::{Unfollowed, follow_links};
pub use host::protected::ProtectedFiles;
pub use input::Input;
pub use map::Fault;
pub use mcp::{ConfigError, ServerConfig, Transport};
pub use message_loss::MessageLoss;
pub use option_choice::PermissionOption;
pub use permission_request::{
    Approval, FileChange, Pending, PermissionHandler, PermissionReply, PermissionRequest, RequestProblem,
};
pub use run::{Canceller, Events, RunError, RunHandle, RunRequest, RunResult};
pub use runtime::{Runtime, SessionSummary};
pub use session::{Rejection, Session};
pub use snapshot::{Command, ConfigOption, OptionValue, Selection, Snapshot};
pub use usage::{Usage, UsageScope};
