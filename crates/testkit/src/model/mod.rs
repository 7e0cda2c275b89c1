//! A scripted Chat Completions server: sends the planned replies, including faults, and records all
//! requests.
//!
//! The HTTP is written by hand, so that a reply can stop inside a chunk, a header or a character. The
//! server has its own thread and clock: if a test pauses its time, the server's pauses stay real.
//!
//! ```
//! use narrows_testkit::model::{ModelServer, Reply};
//!
//! let server = ModelServer::start(Reply::text("Hello world"));
//! assert!(server.base_url().starts_with("http://127.0.0.1:"));
//! assert!(server.seen().is_empty());
//! ```

mod event;
mod http;
mod plan;
mod play;
pub mod preset;
mod reply;
mod seen;
mod server;

pub use event::{chunk, data, delta, finish, usage};
pub use plan::Plan;
pub use reply::{Framing, Reply, Step};
pub use seen::Seen;
pub use server::{ModelServer, nobody};
