//! Why a link ended.

use std::io;

use narrows_process::Exit;

/// Why a link ended. The first reason counts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer closed its end.
    #[error("the peer closed the connection")]
    Eof,
    /// The peer no longer reads.
    #[error("the peer stopped reading")]
    NotReading,
    /// The child process exited.
    #[error("the process ended: {exit}")]
    Exited {
        /// How it ended.
        exit: Exit,
        /// The last lines of its stderr, escaped.
        stderr: String,
    },
    /// Reading or writing failed.
    #[error("the connection failed: {message}")]
    Io {
        /// The kind of failure.
        kind: io::ErrorKind,
        /// The system's message.
        message: String,
    },
    /// The first line was not a JSON object or array, so the peer is not an ACP program.
    #[error("the peer does not speak JSON-RPC")]
    NotJson,
    /// This side closed it.
    #[error("the connection was closed on this side")]
    Local,
}

impl From<io::Error> for CloseReason {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // A write to a peer that has left is not a failure.
            io::ErrorKind::BrokenPipe => Self::NotReading,
            io::ErrorKind::ConnectionReset => Self::Eof,
            kind => Self::Io { kind, message: error.to_string() },
        }
    }
}
