//! A scripted Chat Completions server: it says what the plan says, faults included, and remembers what it was asked.
//!
//! The HTTP is written by hand, so that a reply can stop in the middle of a chunk, of a header or of a character. The
//! server has a thread and a clock of its own: a test may pause its time, and the server's pauses stay real.
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
