//! What can be wrong with a line, and how each wrong is answered.

use crate::error::Code;

/// Why a line is not a message that may be acted on or forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Fault {
    /// Not JSON. A byte order mark and a NUL are this, too.
    #[error("not valid JSON")]
    Syntax,
    /// Not UTF-8.
    #[error("not valid UTF-8")]
    Utf8,
    /// More than [`crate::MAX_DEPTH`] levels.
    #[error("nested too deeply")]
    TooDeep,
    /// Longer than the limit of the peer it came from.
    #[error("line too long")]
    TooLong,
    /// Neither an object nor an array.
    #[error("not a JSON-RPC message")]
    NotAMessage,
    /// A key that decides where a message goes stands there twice, or in another case: some readers ignore case.
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
    /// The id of a request is neither a string nor a number, or absurdly long.
    #[error("id must be a string or a number, of at most 4096 bytes")]
    BadId,
    /// `params` is neither an object nor an array.
    #[error("params must be an object or an array")]
    BadParams,
    /// A request and a response in one.
    #[error("a message cannot have both a method and a result or error")]
    Mixed,
    /// Looks like a response but is not a valid one. Never answered: its id belongs to our requests.
    #[error("malformed response")]
    BadResponse,
    /// A response longer than the limit of the peer it came from. Never answered, like [`Fault::BadResponse`].
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
    /// The JSON-RPC code this is answered with.
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

    /// Whether the peer is told. What looks like a response is not: its id belongs to our requests.
    #[must_use]
    pub fn is_answered(self) -> bool {
        !matches!(self, Self::BadResponse | Self::LongResponse)
    }

    /// Whether nothing that stands in the line can be relied on.
    pub(crate) fn is_unreadable(self) -> bool {
        matches!(self, Self::Syntax | Self::Utf8 | Self::TooDeep | Self::TooLong)
    }

    /// Whether the line was readable enough for its id to be trusted in the answer.
    #[must_use]
    pub(crate) fn echoes_id(self) -> bool {
        matches!(
            self,
            Self::TooLong | Self::Version | Self::NoMethod | Self::BadMethod | Self::BadParams | Self::Mixed
        )
    }
}
