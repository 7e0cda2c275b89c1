//! The universal agent: sessions, the turn loop, and tools of MCP servers and of the client.
//!
//! [`run`] serves one conversation. What a client asks for is taken by one loop that waits for nothing; what needs time
//! is a task of its own, so many sessions run side by side and a cancellation always finds its turn:
//!
//! ```text
//! inbox ─ agent ─┬─ open      new, load, resume, fork, list, close, delete    ── store
//!                ├─ config    the model, and how much it thinks               ── catalog
//!                └─ prompt ── turn ─┬─ listen   one answer of the model       ── model
//!                                   ├─ tool     files, terminals, MCP servers ── client, mcp
//!                                   └─ compact  what no longer fits
//! ```
//!
//! What holds, whatever an endpoint, a tool or the client does:
//! - A turn ends, with its last update before its end, and the next one can begin.
//! - The history holds whole turns only: of a turn that failed, was refused or was given up, nothing is kept.
//! - Nothing is asked of the client that it did not offer, and nothing is waited for without end.
//! - The agent itself touches no file and runs no command, except the MCP servers that the client names.

mod agent;
mod bridge;
mod catalog;
mod command;
mod compact;
mod config;
mod content;
mod dialect;
mod failure;
mod gate;
mod memory;
mod open;
mod prompt;
mod read;
mod request;
mod session;
mod settings;
mod shown;
mod size;
mod stop;
mod tool;
mod turn;
mod unstored;
mod voice;

pub use agent::{options, run};
pub use gate::{Checking, Open, ToolGate, ToolRequest, Verdict};
pub use memory::{Doing, Forgetful, Memory, Unsound};
pub use narrows_model::EndpointError;
pub use settings::{Errors, Limits, Route, Settings};
