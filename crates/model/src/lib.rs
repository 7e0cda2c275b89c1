//! Client for Chat Completions endpoints of any provider: streams, repairs, retries, and a built-in demo
//! model.
//!
//! A [`Client`] is one endpoint. [`Client::chat`] returns a [`Reply`], which yields [`ReplyEvent`]s and then
//! the [`Completion`].
//!
//! ```
//! use narrows_model::{Client, Endpoint, ReplyEvent, Message, Request};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(Endpoint::demo())?;
//! let request =
//!     Request { model: "demo".to_owned(), messages: vec![Message::user("Hello")], ..Request::default() };
//! let mut reply = client.chat(&request);
//! let mut shown = String::new();
//! while let Some(event) = reply.next().await? {
//!     if let ReplyEvent::Text(text) = event {
//!         shown.push_str(&text);
//!     }
//! }
//! assert_eq!(shown, reply.into_completion().message.text);
//! # Ok(())
//! # }
//! ```
//!
//! What always holds, whatever the endpoint does:
//! - A request is never repeated after a part of its answer was shown, and never without a
//!   [`ReplyEvent::Note`].
//! - Every wait has a timeout, and everything that is read has a limit ([`Limits`]).
//! - Keys and header values never appear in errors, logs or debug output.

mod body;
mod chat;
mod chunk;
mod client;
mod decode;
mod demo;
mod endpoint;
mod error;
mod error_response;
mod http;
mod model_list;
mod provider;
mod repair;
mod reply;
mod retry;
mod sse;
mod target;
mod think_tags;
mod traits;
mod usage;

pub use chat::{
    Assistant, Call, Completion, Effort, Finish, Message, Part, Request, Tool, ToolResult, Usage,
};
pub use client::Client;
pub use decode::read_recorded;
pub use endpoint::{DEMO_URL, Endpoint, EndpointError, Limits};
pub use error::{ErrorKind, ModelError};
pub use model_list::ModelInfo;
pub use narrows_base::Secret;
pub use provider::Provider;
pub use repair::RequestPart;
pub use reply::{Reply, ReplyEvent, ReplyNote};
pub use traits::ModelTraits;
