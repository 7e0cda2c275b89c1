//! One end of one conversation.
//!
//! [`start`] puts a conversation on a [`Link`](narrows_link::Link) and returns its two handles: a [`Peer`] to speak
//! with, and an [`Inbox`] of what the peer asks and tells. Messages of a session that has been claimed with
//! [`Peer::session`] come in that session's own [`Session`] inbox instead, in the order in which they were sent, the
//! answer that ends a turn included ([`Peer::call_in`]).
//!
//! ```
//! use std::time::Duration;
//!
//! use narrows_link::{Options as LinkOptions, memory};
//! use narrows_rpc::{Item, Options, start};
//! use serde_json::{Value, json};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), narrows_rpc::CallError> {
//! let (near, far) = memory::pair(&LinkOptions::default());
//! let (client, _) = start(near, Options::client(|_| false));
//! let (_agent, mut inbox) = start(far, Options::agent(|method| method == "greet"));
//! tokio::spawn(async move {
//!     while let Some(Item::Request(request)) = inbox.recv().await {
//!         request.responder.respond(&json!({"text": "hello"}));
//!     }
//! });
//! let answer: Value = client.request("greet", &json!({}), Duration::from_secs(5)).await?;
//! assert_eq!(answer["text"], "hello");
//! # Ok(())
//! # }
//! ```
//!
//! `examples/one_turn.rs` drives a real agent.
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
