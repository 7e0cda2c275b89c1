//! The faults a line can have, and how each is answered.

use crate::error::Code;

/// Why a line must be neither handled nor forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Fault {
    /// Not JSON. A byte order mark and a NUL are syntax errors too.
    #[error("not valid JSON")]
    Syntax,
    /// Not UTF-8.
    #[error("not valid UTF-8")]
    Utf8,
    /// More than [`crate::MAX_DEPTH`] levels.
    #[error("nested too deeply")]
    TooDeep,
    /// Longer than the limit of the peer that sent it.
    #[error("line too long")]
    TooLong,
    /// Neither an object nor an array.
    #[error("not a JSON-RPC message")]
    NotAMessage,
    /// A key that decides where a message goes occurs twice, or in another case: some readers ignore case.
    #[error("a routing key is repeated")]
    RepeatedKey,
    /// `jsonrpc` is missing or not `"2.0"`.
    #[error("jsonrpc must be \"2.0\"")]
    Version,
    /// No `method`, and no `result` or `error` either.
    #[error("method is missing")]
    NoMethod,
    /// `method` is not a string.
    #[error("method must be a string")]
    BadMethod,
    /// The id of a request is neither a string nor a number, or too long.
    #[error("id must be a string or a number, of at most 4096 bytes")]
    BadId,
    /// `params` is neither an object nor an array.
    #[error("params must be an object or an array")]
    BadParams,
    /// Both a request and a response.
    #[error("a message cannot have both a method and a result or error")]
    Mixed,
    /// A malformed response. Never answered: its id belongs to a request of the receiver.
    #[error("malformed response")]
    BadResponse,
    /// A response over the limit of the peer that sent it. Never answered, like [`Fault::BadResponse`].
    #[error("response too long")]
    LongResponse,
    /// A batch without entries.
    #[error("empty batch")]
    EmptyBatch,
    /// A batch with more entries than allowed.
    #[error("too many entries in one batch")]
    TooManyEntries,
}

impl Fault {
    /// The JSON-RPC error code for this fault.
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

    /// Returns `true` if the fault is answered. A malformed response is not: its id belongs to a request of the
    /// receiver.
    #[must_use]
    pub fn is_answered(self) -> bool {
        !matches!(self, Self::BadResponse | Self::LongResponse)
    }

    /// Returns `true` if no field of the line can be relied on.
    pub(crate) fn is_unreadable(self) -> bool {
        matches!(self, Self::Syntax | Self::Utf8 | Self::TooDeep | Self::TooLong)
    }

    /// Returns `true` if the answer carries the id of the line.
    #[must_use]
    pub(crate) fn echoes_id(self) -> bool {
        matches!(
            self,
            Self::TooLong | Self::Version | Self::NoMethod | Self::BadMethod | Self::BadParams | Self::Mixed
        )
    }
}
