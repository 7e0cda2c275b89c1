//! The result of a scan: the kind of a message and the positions of its fields.

use crate::fault::Fault;

/// The longest id of a message. Ids are stored in tables, so a longer id would cost memory.
const MAX_ID_BYTES: usize = 4096;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Has a method and an id.
    Request,
    /// Has a method and no id.
    Notification,
    /// Has an id, and a result or an error.
    Response,
    /// An array. Each entry has its own kind.
    Batch,
    /// An invalid message, which must be neither handled nor forwarded.
    Invalid(Fault),
}

/// A byte range of a message. The default value means that the field is absent.
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

    /// Returns the span with each position at or after `from` moved by `to - from`.
    #[inline(always)]
    pub(crate) fn shifted(self, from: u32, to: u32) -> Self {
        // The subtraction wraps, so that one wrapping addition moves positions in either direction.
        let shift = to.wrapping_sub(from);
        let at = |position: u32| position.wrapping_add(if position >= from { shift } else { 0 });
        Self { start: at(self.start), end: at(self.end) }
    }

    /// Returns `true` if the field is present. In the head of an overlong message, the value of a present
    /// field may be incomplete.
    #[must_use]
    #[inline]
    pub fn is_some(self) -> bool {
        self.end != 0
    }

    /// Returns the bytes of the span, if `text` contains all of them.
    #[must_use]
    #[inline]
    pub fn slice(self, text: &[u8]) -> Option<&[u8]> {
        (self.start < self.end).then(|| &text[self.range()])
    }

    /// Returns the byte range. Empty if the field is absent.
    #[must_use]
    #[inline]
    pub fn range(self) -> core::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Positions of the fields of a message. Values include their quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    pub version: Span,
    pub id: Span,
    pub method: Span,
    pub params: Span,
    pub result: Span,
    pub error: Span,
    /// `params.sessionId` or `result.sessionId`.
    pub session: Span,
    /// `params.requestId`.
    pub request_id: Span,
    /// `sessionId` at the top level.
    pub top_session: Span,
    /// `pool` at the top level.
    pub pool: Span,
    /// `true` if the message, its `params` or its `result` has a key that some readers take for `sessionId`
    /// or `requestId`: spelled with other case, or with `_` or `-`.
    pub ambiguous: bool,
    /// `true` if the message has a member other than those of JSON-RPC, `sessionId` and `pool`.
    pub has_other_members: bool,
}

#[inline(always)]
pub(crate) fn is_id(raw: &[u8]) -> bool {
    matches!(raw, [b'"' | b'-' | b'0'..=b'9', ..]) && raw.len() <= MAX_ID_BYTES
}
