//! A scripted agent for tests: runs the steps of a [`Script`], faults included.
//!
//! A script is TOML; `docs/reference/fake-agent-scripts.md` describes it for users. [`run`] speaks both
//! versions of the protocol and keeps its sessions in memory. Unless the script says otherwise, each session
//! runs one turn at a time, and a turn stops when it is cancelled.
//!
//! This crate never exits, prints to stdout or reads the environment: [`run`] returns the end of the agent as
//! [`Ended`], and its caller acts on it. Only text that a script writes to stderr goes there directly.

mod agent;
mod client_requests;
mod encode;
mod fault;
mod history;
mod permission;
mod placeholders;
mod raw_output;
mod request;
mod script;
mod scripted_response;
mod session;
mod step_runner;
mod turn;

pub use agent::{Ended, options, run};
pub use script::{Script, ScriptError};
