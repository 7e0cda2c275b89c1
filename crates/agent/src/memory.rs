//! What outlives a session: told to the next ones as data, and never as what they have to do.

use std::fmt::Debug;
use std::pin::Pin;

/// Something that takes a while.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What is remembered cannot be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what is remembered cannot be trusted: {0}")]
pub struct Unsound(pub String);

/// Keeps what outlives a session.
pub trait Memory: Debug + Send + Sync {
    /// What a session that is opened is to know of earlier ones. It is put before what the person says first.
    fn recall(&self) -> Doing<'_, Result<Option<String>, Unsound>>;
    /// A turn is over and kept: what the person said, and what the answer was.
    fn note(&self, session: &str, said: &str, answered: &str);
    /// A session was closed.
    fn close<'a>(&'a self, session: &'a str) -> Doing<'a, ()>;
}

/// Remembers nothing but what is in a session itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forgetful;

impl Memory for Forgetful {
    fn recall(&self) -> Doing<'_, Result<Option<String>, Unsound>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn note(&self, _: &str, _: &str, _: &str) {}

    fn close<'a>(&'a self, _: &'a str) -> Doing<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}
