//! The MCP servers of a session: started, listed, called, and gone with it.
//!
//! [`Servers::start`] takes the descriptors of a session and returns at once. Every server has a task of its own that
//! connects, lists the tools, lists them again when they change, and ends the server. What one server does or fails
//! to do is therefore seen by nobody else:
//!
//! ```text
//! Servers ── task ── rmcp ── Guard ── Pipe      a process of ours, its tree included
//!         └─ task ── rmcp ── Guard ── HTTP      streamable HTTP
//!         └─ task ── rmcp ── Guard ── Courier   the ACP client, through a Bridge
//! ```
//!
//! What holds, whatever a server does:
//! - A call settles: with an outcome, at its limit, or when the server is gone. A call that is dropped is cancelled.
//! - What is kept of a server is bounded: a message, the tools and their pages, the text of a result, the answers
//!   that it does not read.
//! - After [`Servers::close`] no process of a server is alive. Dropping does the same without waiting.
//! - Nothing a server wants of its client (sampling, roots, elicitation) is granted, and each wish is answered.

mod bridge;
mod call;
mod confinement;
mod connection;
mod courier;
mod entry;
mod error;
mod guard;
mod http;
mod news;
mod options;
mod outcome;
mod pipe;
mod relay;
mod server;
mod servers;
mod slot;
mod text;
mod tool;
mod verbatim;

pub use bridge::{Answer, Bridge, BridgeError};
pub use confinement::{Confinement, WayOut};
pub use error::{CallError, Failure};
pub use news::News;
pub use options::Options;
pub use outcome::{Body, Content, Outcome};
pub use relay::{About, Answered};
pub use server::Server;
pub use servers::Servers;
pub use tool::Tool;
