//! A message in memory that belongs to somebody else: a router looks at each for a moment and keeps none.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use narrows_base::json::{MAX_PEER_VALUES, has_more_values_than};
use serde::Deserialize;

use crate::envelope::{Envelope, Kind, Span, is_id};
use crate::error::RpcError;
use crate::fault::Fault;
use crate::frame::RawId;
use crate::message;
use crate::scan::{self, Check, scan};
use crate::utf8::is_utf8;

/// One message as it came, without its line end, and what the scan found in it.
#[derive(Clone, Copy)]
pub struct View<'a> {
    bytes: &'a [u8],
    kind: Kind,
    envelope: Envelope,
}

impl<'a> View<'a> {
    /// Scans a line and checks all of it. Never fails: what is wrong becomes [`Kind::Invalid`].
    #[must_use]
    pub fn parse(line: &'a [u8]) -> Self {
        let (kind, envelope) = scan(line, Check::Grammar);
        if matches!(kind, Kind::Invalid(_)) {
            return Self::invalid(line, kind, envelope);
        }
        Self { bytes: line, kind, envelope }
    }

    /// A line with something wrong, and the worst if that is not all.
    #[cold]
    fn invalid(bytes: &'a [u8], kind: Kind, envelope: Envelope) -> Self {
        match is_utf8(bytes) {
            true => Self { bytes, kind, envelope },
            false => Self { bytes, kind: Kind::Invalid(Fault::Utf8), envelope: Envelope::default() },
        }
    }

    /// What is left of a line that was longer than allowed: its first bytes, scanned for its id.
    #[must_use]
    pub fn too_long(head: &'a [u8]) -> Self {
        let envelope = scan::scan_head(head);
        // Keys seen in the head tell a response, whose id is one of ours, from a request, whose id is the peer's.
        let answers = envelope.result.is_some() || envelope.error.is_some();
        let fault = if answers && !envelope.method.is_some() { Fault::LongResponse } else { Fault::TooLong };
        Self { bytes: head, kind: Kind::Invalid(fault), envelope }
    }

    /// An entry of a batch, whose grammar was checked with the whole.
    pub(crate) fn entry(bytes: &'a [u8]) -> Self {
        let (kind, envelope) = scan(bytes, Check::Envelope);
        let kind = if kind == Kind::Batch { Kind::Invalid(Fault::NotAMessage) } else { kind };
        Self { bytes, kind, envelope }
    }

    pub(crate) fn known(bytes: &'a [u8], kind: Kind, envelope: Envelope) -> Self {
        Self { bytes, kind, envelope }
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where its fields stand.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// The line.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Its id, if it has one that may be answered: a string or a number.
    #[must_use]
    pub fn id(&self) -> Option<&'a [u8]> {
        self.envelope.id.of(self.bytes).filter(|id| is_id(id))
    }

    /// Its method, without escapes.
    #[must_use]
    pub fn method(&self) -> Option<Cow<'a, str>> {
        self.text(self.envelope.method)
    }

    /// Returns `true` if its method is `name`, which is ASCII that JSON needs no escapes for.
    #[must_use]
    #[inline]
    pub fn is_method(&self, name: &str) -> bool {
        let Some(raw) = self.envelope.method.of(self.bytes) else { return false };
        // Escapes only make it longer, by more than the two quotes.
        match raw.len().cmp(&(name.len() + 2)) {
            Ordering::Less => false,
            Ordering::Equal => raw[1..].starts_with(name.as_bytes()),
            Ordering::Greater => raw.contains(&b'\\') && self.method().is_some_and(|method| method == name),
        }
    }

    /// The session it belongs to, without escapes: `params.sessionId` or `result.sessionId`.
    #[must_use]
    pub fn session(&self) -> Option<Cow<'a, str>> {
        self.text(self.envelope.session)
    }

    /// `params.requestId` as it stands there.
    #[must_use]
    pub fn request_id(&self) -> Option<&'a [u8]> {
        self.envelope.request_id.of(self.bytes)
    }

    /// `sessionId` at the top level, without escapes.
    #[must_use]
    pub fn top_session(&self) -> Option<Cow<'a, str>> {
        self.text(self.envelope.top_session)
    }

    /// `sessionId` at the top level as it stands there, if it is a string that is worth keeping: a tag waits in tables
    /// as an id does.
    #[must_use]
    pub fn tag(&self) -> Option<&'a [u8]> {
        self.envelope.top_session.of(self.bytes).filter(|tag| tag[0] == b'"' && is_id(tag))
    }

    /// `pool` at the top level, without escapes.
    #[must_use]
    pub fn pool(&self) -> Option<Cow<'a, str>> {
        self.text(self.envelope.pool)
    }

    /// `params` as they stand there.
    #[must_use]
    pub fn params(&self) -> Option<&'a [u8]> {
        self.envelope.params.of(self.bytes)
    }

    /// `result` as it stands there.
    #[must_use]
    pub fn result(&self) -> Option<&'a [u8]> {
        self.envelope.result.of(self.bytes)
    }

    /// `error` as an object; what is no such object becomes one that says so. `data` with more than [`MAX_PEER_VALUES`]
    /// values is left out.
    #[must_use]
    pub fn error(&self) -> Option<RpcError> {
        #[derive(Deserialize)]
        struct Bare {
            code: i64,
            message: String,
        }
        let raw = self.envelope.error.of(self.bytes)?;
        let error = match has_more_values_than(raw, MAX_PEER_VALUES) {
            true => serde_json::from_slice(raw).map(|Bare { code, message }| RpcError {
                code,
                message: message.into(),
                data: None,
            }),
            false => serde_json::from_slice(raw),
        };
        Some(error.unwrap_or_else(|_| RpcError {
            code: crate::Code::Internal.number().into(),
            message: Cow::Borrowed("the peer sent an error that is no error object"),
            data: None,
        }))
    }

    /// The answer that a fault demands, or `None` if this line must not be answered.
    #[must_use]
    pub fn refusal(&self) -> Option<Bytes> {
        let Kind::Invalid(fault) = self.kind else { return None };
        if !fault.is_answered() {
            return None;
        }
        let id = self.id().filter(|_| fault.echoes_id()).unwrap_or(b"null");
        Some(message::error(id, &fault.into()))
    }

    /// The line before the value of `part` and the line behind it, to be put together with another value between.
    ///
    /// `None` if the field is not there.
    #[must_use]
    pub fn around(&self, part: Part) -> Option<(&'a [u8], &'a [u8])> {
        let hole = self.place(part)?;
        Some((&self.bytes[..hole.start], &self.bytes[hole.end..]))
    }

    /// Where the value of `part` stands, if it is there.
    #[must_use]
    #[inline]
    pub fn place(&self, part: Part) -> Option<Range<usize>> {
        let span = match part {
            Part::Id => self.envelope.id,
            Part::RequestId => self.envelope.request_id,
            Part::Session => self.envelope.session,
        };
        span.of(self.bytes)?;
        Some(span.range())
    }

    /// The string at `span`, without escapes; `None` if there is none or it is no string.
    fn text(&self, span: Span) -> Option<Cow<'a, str>> {
        let raw = span.of(self.bytes)?;
        let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        if memchr::memchr(b'\\', inner).is_some() {
            serde_json::from_slice(raw).ok().map(Cow::Owned)
        } else {
            std::str::from_utf8(inner).ok().map(Cow::Borrowed)
        }
    }
}

/// A field that can be replaced by another value: [`View::around`], [`View::place`], [`Frame::splice`](crate::Frame::splice).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `id`.
    Id,
    /// `params.requestId`.
    RequestId,
    /// `params.sessionId` or `result.sessionId`.
    Session,
}

impl fmt::Debug for View<'_> {
    /// The envelope, never the content: a log must not hold what people said.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("kind", &self.kind)
            .field("method", &self.method())
            .field("id", &self.id().map(RawId::copy))
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_compared_as_it_is_meant() {
        for (written, is_it) in [
            ("mcp/message", true),
            (r"mcp\/message", true),
            (r"\u006dcp/message", true),
            ("mcp/messages", false),
            ("mcp/messag", false),
            (r"mcp\/messages", false),
            ("MCP/message", false),
        ] {
            let line = format!(r#"{{"jsonrpc":"2.0","method":"{written}"}}"#);
            let view = View::parse(line.as_bytes());
            assert_eq!(view.is_method("mcp/message"), is_it, "{written}");
            assert_eq!(view.method().as_deref() == Some("mcp/message"), is_it, "{written}");
        }
        assert!(!View::parse(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#).is_method("mcp/message"));
    }
}
