//! Reasons for the end of a link.

use std::io;

use narrows_process::Exit;

/// Reason for the end of a link. The first reason is kept, because later ones are consequences.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    #[error("the peer closed the connection")]
    Eof,
    #[error("the peer stopped reading")]
    NotReading,
    #[error("the process ended: {exit}")]
    Exited {
        exit: Exit,
        /// Last lines of stderr, escaped.
        stderr: String,
    },
    #[error("the connection failed: {message}")]
    Io { kind: io::ErrorKind, message: String },
    /// The first line was not a JSON object or array, so the peer is probably not an ACP program.
    #[error("the peer does not speak JSON-RPC")]
    NotJson,
    #[error("the connection was closed on this side")]
    Local,
}

impl From<io::Error> for CloseReason {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // Writing to a peer that has left is an expected end, not an I/O failure.
            io::ErrorKind::BrokenPipe => Self::NotReading,
            io::ErrorKind::ConnectionReset => Self::Eof,
            kind => Self::Io { kind, message: error.to_string() },
        }
    }
}
