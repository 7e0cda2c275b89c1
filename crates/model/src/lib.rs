//! A Chat Completions endpoint, whichever it is: streams, repairs, retries, and a built-in model for demonstration.
//!
//! A [`Client`] is one endpoint. [`Client::chat`] gives a [`Reply`], from which [`Event`]s are taken until there are
//! none, and then the whole [`Completion`].
//!
//! ```
//! use narrows_model::{Client, Endpoint, Event, Message, Request};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(Endpoint::demo())?;
//! let request =
//!     Request { model: "demo".to_owned(), messages: vec![Message::user("Hello")], ..Request::default() };
//! let mut reply = client.chat(&request);
//! let mut shown = String::new();
//! while let Some(event) = reply.next().await? {
//!     if let Event::Text(text) = event {
//!         shown.push_str(&text);
//!     }
//! }
//! assert_eq!(shown, reply.into_completion().message.text);
//! # Ok(())
//! # }
//! ```
//!
//! What holds, whatever the endpoint does:
//! - Nothing is asked again once a part of the answer was shown, and nothing without an [`Event::Note`] that says so.
//! - Every wait has an end, and everything that is read has a limit ([`Limits`]).
//! - Keys and the values of headers stand in no error, no log and no debug form.

mod body;
mod chat;
mod chunk;
mod client;
mod decode;
mod demo;
mod discover;
mod endpoint;
mod error;
mod http;
mod problem;
mod provider;
mod repair;
mod reply;
mod retry;
mod sse;
mod target;
mod think;
mod traits;
mod usage;

pub use chat::{
    Assistant, Call, Completion, Effort, Finish, Message, Part, Request, Tool, ToolResult, Usage,
};
pub use client::Client;
pub use decode::read_recorded;
pub use discover::ModelInfo;
pub use endpoint::{DEMO_URL, Endpoint, EndpointError, Limits};
pub use error::{Error, Kind};
pub use narrows_base::Secret;
pub use provider::Provider;
pub use repair::Dropped;
pub use reply::{Event, Note, Reply};
pub use traits::ModelTraits;
