//! One end of a JSON-RPC conversation over a link.
//!
//! [`start`] starts a conversation on a [`Link`](narrows_link::Link) and returns its two handles: a [`Peer`]
//! that sends, and an [`Inbox`] that receives. Messages of a session claimed with [`Peer::session`] go to
//! the [`Session`] inbox instead, in the order in which the peer sent them. With [`Peer::call_in`], the
//! answer that ends a turn arrives there, too.
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
//! Guarantees, whatever the peer does:
//! - Every incoming request gets exactly one answer: from its [`Responder`], or automatically when the
//!   responder is dropped.
//! - Every outgoing request ends: with the answer, at its deadline, or when the peer is lost.
//! - The dispatch loop waits only for room in an inbox: a full inbox stops the reading, and nothing else
//!   does.
//! - Lines that are not JSON, and messages that are invalid, unknown or duplicates, are answered as JSON-RPC
//!   requires, without further effect.

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
