//! A Chat Completions endpoint, whichever it is: streams, repairs, retries, and a built-in model for demonstration.

mod body;
mod chat;
mod chunk;
mod client;
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
mod secret;
mod sse;
mod target;
mod think;
mod traits;
mod usage;

pub use chat::{
    Assistant, Call, Completion, Effort, Finish, Message, Part, Request, Tool, ToolResult, Usage,
};
pub use client::Client;
pub use discover::ModelInfo;
pub use endpoint::{DEMO_URL, Endpoint, EndpointError, Limits};
pub use error::{Error, Kind};
pub use provider::Provider;
pub use repair::Dropped;
pub use reply::{Event, Note, Reply};
pub use secret::Secret;
pub use traits::ModelTraits;
