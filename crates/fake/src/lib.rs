//! A scripted agent for tests: runs the steps of a [`Script`], faults included.
//!
//! A script is TOML, described for users in `docs/reference/fake-agent-scripts.md`. [`run`] speaks both versions of the
//! protocol, keeps its sessions in memory, runs one turn at a time in each, and stops when asked to, unless the script
//! says otherwise.
//!
//! Nothing here exits, prints to stdout or reads the environment: [`run`] returns how the agent ended as [`Ended`], and
//! its caller acts on it. Only text that a script writes to stderr goes there directly.

mod agent;
mod client_requests;
mod encode;
mod fault;
mod history;
mod owed_response;
mod permission;
mod placeholders;
mod raw_output;
mod request;
mod script;
mod session;
mod step_runner;
mod turn;

pub use agent::{Ended, options, run};
pub use script::{Script, ScriptError};
