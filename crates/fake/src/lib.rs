//! A scripted agent: says and does what a [`Script`] tells it, faults included.
//!
//! A script is TOML, described for users in `docs/fake-agent.md`. [`run`] plays it on a conversation: it speaks both
//! versions of the protocol, keeps its sessions in memory, runs one turn at a time in each, and stops when asked to,
//! unless the script says otherwise.
//!
//! Nothing here exits, prints to stdout or reads the environment: how the agent ends is returned as [`Ended`], and
//! whoever called [`run`] makes it so. What a script has to say on stderr is the one exception.

mod agent;
mod answer;
mod ask;
mod dialect;
mod fault;
mod fill;
mod history;
mod player;
mod raw;
mod request;
mod script;
mod service;
mod session;
mod turn;

pub use agent::{Ended, options, run};
pub use script::{Script, ScriptError};
