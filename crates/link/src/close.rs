//! Why a link ended.

use std::io;

use narrows_process::Exit;

/// Why a link ended. The first reason stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer closed its end.
    #[error("the peer closed the connection")]
    Eof,
    /// The peer no longer reads what it is sent.
    #[error("the peer no longer reads")]
    Deaf,
    /// The child process that was the peer has ended.
    #[error("the process ended: {exit}")]
    Exited {
        /// How.
        exit: Exit,
        /// The last it wrote to stderr, made safe to show.
        stderr: String,
    },
    /// Reading or writing failed.
    #[error("the connection failed: {message}")]
    Io {
        /// What kind of failure.
        kind: io::ErrorKind,
        /// In the words of the system.
        message: String,
    },
    /// The first line was no JSON object or array: something else than one of us has connected.
    #[error("the peer does not speak JSON-RPC")]
    NotJson,
    /// We closed it.
    #[error("the connection was closed on this side")]
    Local,
}

impl From<io::Error> for CloseReason {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // Whoever goes away while we write to it has simply gone.
            io::ErrorKind::BrokenPipe => Self::Deaf,
            io::ErrorKind::ConnectionReset => Self::Eof,
            kind => Self::Io { kind, message: error.to_string() },
        }
    }
}
