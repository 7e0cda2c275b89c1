//! The MCP servers of a session: starts them, lists and calls their tools, and ends them with the session.
//!
//! [`Servers::start`] takes the server descriptors of a session and returns at once. Every server has its own
//! task, which connects, lists the tools, lists them again after changes, and ends the server. So no server
//! delays another:
//!
//! ```text
//! Servers ── task ── rmcp ── BoundedTransport ── StdioTransport  a process and its tree
//!         └─ task ── rmcp ── BoundedTransport ── HttpClient      Streamable HTTP
//!         └─ task ── rmcp ── BoundedTransport ── AcpTransport    the ACP client, through a Bridge
//! ```
//!
//! What always holds, whatever a server does:
//! - Every call ends: with an outcome, at its deadline, or when the server has ended. Dropping a call cancels
//!   it.
//! - Everything that is stored for a server is bounded: a message, its tools and their pages, the text of a
//!   result, and unread answers.
//! - After [`Servers::close`] no process of a server is alive. Dropping does the same without waiting.
//! - Every request of a server to its client (sampling, roots, elicitation) is answered with a refusal.

mod acp_transport;
mod bounded_transport;
mod bridge;
mod call;
mod call_progress;
mod confinement;
mod connection;
mod error;
mod http;
mod options;
mod outcome;
mod process_slot;
mod relay;
mod server;
mod server_entry;
mod servers;
mod stdio_transport;
mod text;
mod tool;
mod verbatim;

pub use bridge::{Bridge, BridgeError, BridgeFuture};
pub use call_progress::CallProgress;
pub use confinement::{Confinement, EgressGuard};
pub use error::{CallError, ServerFailure};
pub use options::Options;
pub use outcome::{CallOutcome, Content, ResourceBody};
pub use relay::{RawAnswer, ServerInfo};
pub use server::Server;
pub use servers::Servers;
pub use tool::Tool;
