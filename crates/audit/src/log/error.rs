//! Errors of a log.

use std::io;
use std::sync::Arc;

use crate::event::EventError;
use crate::verify::BadLine;

/// The reason why a log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the audit log cannot be used: {0}")]
    Io(#[from] io::Error),
    /// Another process held the lock until the timeout.
    #[error("the audit log is locked by another process")]
    Locked,
    #[error("the audit log is damaged: {0}")]
    Damaged(BadLine),
}

/// The reason why an event is not in the log. The action that the event would have permitted must not happen.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    #[error("the event cannot be logged: {0}")]
    Event(#[from] EventError),
    #[error("the audit log cannot be written: the disk is full")]
    Full(#[source] Arc<io::Error>),
    #[error("the audit log cannot be written: {0}")]
    Write(#[source] Arc<io::Error>),
    /// Syncing the file failed, so the event may be missing on disk.
    #[error("the audit log is possibly not on disk: {0}")]
    Sync(#[source] Arc<io::Error>),
    /// Another process held the lock until the timeout.
    #[error("the audit log is locked by another process")]
    Locked,
    /// Another program has changed the log.
    #[error("the audit log was damaged: {0}")]
    Damaged(Box<BadLine>),
    #[error("the audit log is closed")]
    Closed,
}

impl AppendError {
    /// Returns `true` if logging the same event again may succeed.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Self::Event(_) | Self::Closed)
    }
}

#[derive(Debug)]
pub(super) enum CommitError {
    Io(io::Error),
    /// Writing or syncing failed, and it is unknown what is on disk.
    Sync(io::Error),
    Locked,
    Damaged(BadLine),
}

impl From<io::Error> for CommitError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<CommitError> for AppendError {
    fn from(trouble: CommitError) -> Self {
        match trouble {
            CommitError::Io(error) if is_full(&error) => Self::Full(Arc::new(error)),
            CommitError::Io(error) => Self::Write(Arc::new(error)),
            CommitError::Sync(error) => Self::Sync(Arc::new(error)),
            CommitError::Locked => Self::Locked,
            CommitError::Damaged(bad) => Self::Damaged(Box::new(bad)),
        }
    }
}

impl From<CommitError> for OpenError {
    fn from(trouble: CommitError) -> Self {
        match trouble {
            CommitError::Io(error) | CommitError::Sync(error) => Self::Io(error),
            CommitError::Locked => Self::Locked,
            CommitError::Damaged(bad) => Self::Damaged(bad),
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}
