//! The faults of a line, and the answer to each.

use crate::error::Code;

/// Reason why a line must be neither handled nor forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Fault {
    /// The line is not JSON. A byte order mark and a NUL are syntax errors, too.
    #[error("not valid JSON")]
    Syntax,
    #[error("not valid UTF-8")]
    Utf8,
    /// The line has more than [`crate::MAX_DEPTH`] levels.
    #[error("nested too deeply")]
    TooDeep,
    #[error("line too long")]
    TooLong,
    /// The line is JSON, but neither an object nor an array.
    #[error("not a JSON-RPC message")]
    NotAMessage,
    /// A routing key occurs twice, or in another case, which some readers ignore.
    #[error("a routing key is repeated")]
    RepeatedKey,
    #[error("jsonrpc must be \"2.0\"")]
    Version,
    /// There is no `method`, and no `result` or `error` either.
    #[error("method is missing")]
    NoMethod,
    #[error("method must be a string")]
    BadMethod,
    /// The id of a request is too long, or neither a string nor a number.
    #[error("id must be a string or a number, of at most 4096 bytes")]
    BadId,
    #[error("params must be an object or an array")]
    BadParams,
    #[error("a message cannot have both a method and a result or error")]
    Mixed,
    /// A malformed response. Never answered, because its id belongs to a request of the receiver.
    #[error("malformed response")]
    BadResponse,
    /// A response over the limit of the peer that sent it. Never answered, like [`Fault::BadResponse`].
    #[error("response too long")]
    LongResponse,
    #[error("empty batch")]
    EmptyBatch,
    #[error("too many entries in one batch")]
    TooManyEntries,
}

impl Fault {
    /// Returns the JSON-RPC error code for this fault.
    #[must_use]
    pub fn code(self) -> Code {
        match self {
            Self::Syntax | Self::Utf8 | Self::TooDeep => Code::ParseError,
            Self::TooLong | Self::LongResponse => Code::MessageTooLarge,
            Self::NotAMessage
            | Self::RepeatedKey
            | Self::Version
            | Self::NoMethod
            | Self::BadMethod
            | Self::BadId
            | Self::BadParams
            | Self::Mixed
            | Self::BadResponse
            | Self::EmptyBatch
            | Self::TooManyEntries => Code::InvalidRequest,
        }
    }

    /// Returns `true` if the fault is answered. A malformed response is not, because its id belongs to a
    /// request of the receiver.
    #[must_use]
    pub fn is_answered(self) -> bool {
        !matches!(self, Self::BadResponse | Self::LongResponse)
    }

    /// Returns `true` if no field of the line is reliable.
    pub(crate) fn is_unreadable(self) -> bool {
        matches!(self, Self::Syntax | Self::Utf8 | Self::TooDeep | Self::TooLong)
    }

    /// Returns `true` if the answer has the id of the line.
    #[must_use]
    pub(crate) fn echoes_id(self) -> bool {
        matches!(
            self,
            Self::TooLong | Self::Version | Self::NoMethod | Self::BadMethod | Self::BadParams | Self::Mixed
        )
    }
}
