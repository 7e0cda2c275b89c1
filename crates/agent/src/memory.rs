//! Memory across sessions. Its content is given to later sessions as data, never as instructions.

use std::fmt::Debug;
use std::pin::Pin;

/// Future that the methods of [`Memory`] return.
pub type MemoryFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Error for a memory that was tampered with or cannot be verified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory file failed verification: {0}")]
pub struct MemoryUntrusted(pub String);

/// Stores knowledge that outlives a session.
pub trait Memory: Debug + Send + Sync {
    /// Returns the knowledge from earlier sessions for a new session. It is put before the first user
    /// message.
    fn recall(&self) -> MemoryFuture<'_, Result<Option<String>, MemoryUntrusted>>;
    /// Records the texts of the user and of the model, for a turn that was stored.
    fn record_turn(&self, session: &str, user_text: &str, model_text: &str);
    /// Records the end of a session.
    fn close_session<'a>(&'a self, session: &'a str) -> MemoryFuture<'a, ()>;
}

/// A memory that stores nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMemory;

impl Memory for NoMemory {
    fn recall(&self) -> MemoryFuture<'_, Result<Option<String>, MemoryUntrusted>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn record_turn(&self, _: &str, _: &str, _: &str) {}

    fn close_session<'a>(&'a self, _: &'a str) -> MemoryFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}
