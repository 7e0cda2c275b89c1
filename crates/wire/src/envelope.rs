//! What a scan finds: the kind of a message, and where its fields stand.

use crate::fault::Fault;

/// The longest id that is kept: ids wait in tables, so they must not be as long as a line may be.
const MAX_ID: usize = 4096;

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A method and an id.
    Request,
    /// A method and no id.
    Notification,
    /// A result or an error, and an id.
    Response,
    /// An array; its entries have their own kinds.
    Batch,
    /// Something that may neither be acted on nor forwarded.
    Invalid(Fault),
}

/// A stretch of a message. The default means absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    #[inline(always)]
    pub(crate) fn new(start: usize, end: usize) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "scan() refuses longer texts")]
        Self { start: start as u32, end: end as u32 }
    }

    /// The same with each end that is at `from` or behind it moved as far as `from` is from `to`.
    #[inline(always)]
    pub(crate) fn moved(self, from: usize, to: usize) -> Self {
        let at = |position: u32| {
            let position = position as usize;
            if position >= from { position - from + to } else { position }
        };
        Self::new(at(self.start), at(self.end))
    }

    /// Whether the field is there. Where only the head of a message is known, its value may be cut off.
    #[must_use]
    #[inline]
    pub fn is_some(self) -> bool {
        self.end != 0
    }

    /// Its bytes in `text`, if all of it is there.
    #[must_use]
    #[inline]
    pub fn of(self, text: &[u8]) -> Option<&[u8]> {
        (self.start < self.end).then(|| &text[self.range()])
    }

    /// Where it stands; where it is absent, an empty range.
    #[must_use]
    #[inline]
    pub fn range(self) -> core::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Where the fields of a message stand, values with their quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// `jsonrpc`.
    pub version: Span,
    /// `id`.
    pub id: Span,
    /// `method`.
    pub method: Span,
    /// `params`.
    pub params: Span,
    /// `result`.
    pub result: Span,
    /// `error`.
    pub error: Span,
    /// `params.sessionId` or `result.sessionId`.
    pub session: Span,
    /// `params.requestId`.
    pub request_id: Span,
    /// `sessionId` at the top level.
    pub top_session: Span,
    /// `pool` at the top level.
    pub pool: Span,
    /// The message, its `params` or its `result` has a key that some readers take for `sessionId` or `requestId`: in
    /// another case, or with `_` or `-` in it.
    pub ambiguous: bool,
    /// The message has a member other than those of JSON-RPC, `sessionId` and `pool`.
    pub has_other_members: bool,
}

/// Whether `raw` may be the id of a request.
#[inline(always)]
pub(crate) fn is_id(raw: &[u8]) -> bool {
    matches!(raw, [b'"' | b'-' | b'0'..=b'9', ..]) && raw.len() <= MAX_ID
}
