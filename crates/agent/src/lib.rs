//! The built-in agent: sessions, the turn loop, and tools of MCP servers and of the client.
//!
//! [`run`] serves one conversation. A single loop handles the client's messages and never waits: slow work
//! runs in separate tasks. So sessions run concurrently, and a cancellation always reaches its turn:
//!
//! ```text
//! inbox ─ agent ─┬─ session_lifecycle  new, load, resume, fork, list, close, delete  ── store
//!                ├─ config_options     the model, and its thinking effort           ── catalog
//!                └─ prompt ── turn ─┬─ stream_answer  one answer of the model       ── model
//!                                   ├─ tool           files, terminals, MCP servers ── client, mcp
//!                                   └─ compaction     what exceeds the window
//! ```
//!
//! What always holds, whatever an endpoint, a tool or the client does:
//! - A turn ends, its last update comes before its end, and then the next turn can begin.
//! - The history contains only complete turns: nothing is kept of a turn that failed, was refused or was
//!   cancelled.
//! - The agent sends only requests that the client offers, and every wait has a limit.
//! - The agent itself opens no file and runs no command, except the MCP servers that the client names.

mod agent;
mod catalog;
mod client_servers;
mod compaction;
mod config_options;
mod content;
mod encode_update;
mod failure;
mod gate;
mod memory;
mod params;
mod prompt;
mod request;
mod session;
mod session_lifecycle;
mod settings;
mod size_limits;
mod slash_command;
mod stop_signal;
mod tool;
mod transcript;
mod turn;
mod unstored;
mod update_writer;

pub use agent::{options, run};
pub use gate::{AllowAll, ToolDecision, ToolDecisionFuture, ToolGate, ToolRequest};
pub use memory::{Memory, MemoryFuture, MemoryUntrusted, NoMemory};
pub use narrows_model::EndpointError;
pub use settings::{FailureFormat, Limits, ModelRoute, Settings};
