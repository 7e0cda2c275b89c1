//! One end of one conversation.
//!
//! [`start`] puts a conversation on a [`Link`](narrows_link::Link) and returns its two handles: a [`Peer`] to speak
//! with, and an [`Inbox`] of what the peer asks and tells. Messages of a session that has been claimed with
//! [`Peer::session`] come in that session's own [`Session`] inbox instead, in the order in which they were sent, the
//! answer that ends a turn included ([`Peer::call_in`]).
//!
//! What holds, whatever the peer does:
//! - Every request that comes in gets exactly one answer: from its [`Responder`], or for it when that is dropped.
//! - Every request that goes out settles: with the answer, at its deadline, or when the peer is lost.
//! - The dispatch loop waits for nothing but room: a full inbox stops the reading, and that is all it can do.
//! - What is not JSON, not a message, not known or sent twice is answered as JSON-RPC demands, and nothing breaks.

mod call;
mod dispatch;
mod error;
mod inbox;
mod options;
mod peer;
mod request;
mod sessions;
mod shared;
mod signal;

pub use call::{Call, Response};
pub use dispatch::start;
pub use error::CallError;
pub use inbox::{Answer, Inbox, Item, Session};
pub use options::{Noise, Options};
pub use peer::Peer;
pub use request::{Request, Responder};
pub use sessions::AlreadyClaimed;
pub use shared::Stats;
