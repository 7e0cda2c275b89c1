//! A Chat Completions endpoint, whichever it is: streams, repairs, retries, and a built-in model for demonstration.

mod chat;
mod error;

pub use chat::{
    Assistant, Call, Completion, Effort, Finish, Message, Part, Request, Tool, ToolResult, Usage,
};
pub use error::{Error, Kind};
