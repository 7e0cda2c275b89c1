//! A borrowed message and the result of its scan, for routers that keep no messages.

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

/// One message as received, without its line end.
#[derive(Clone, Copy)]
pub struct View<'a> {
    bytes: &'a [u8],
    kind: Kind,
    envelope: Envelope,
}

impl<'a> View<'a> {
    /// Scans and checks a line. Never fails: a fault becomes [`Kind::Invalid`].
    #[must_use]
    pub fn parse(line: &'a [u8]) -> Self {
        let (kind, envelope) = scan(line, Check::Grammar);
        if matches!(kind, Kind::Invalid(_)) {
            return Self::invalid(line, kind, envelope);
        }
        Self { bytes: line, kind, envelope }
    }

    /// Returns a line with a fault. If there are several faults, the worst one counts.
    #[cold]
    fn invalid(bytes: &'a [u8], kind: Kind, envelope: Envelope) -> Self {
        match is_utf8(bytes) {
            true => Self { bytes, kind, envelope },
            false => Self { bytes, kind: Kind::Invalid(Fault::Utf8), envelope: Envelope::default() },
        }
    }

    /// Scans the first bytes of a line over the limit for an id.
    #[must_use]
    pub fn too_long(head: &'a [u8]) -> Self {
        let envelope = scan::scan_head(head);
        // The id of a response belongs to a request of this side, the id of a request to the peer. The keys
        // in the head show the kind.
        let answers = envelope.result.is_some() || envelope.error.is_some();
        let fault = if answers && !envelope.method.is_some() { Fault::LongResponse } else { Fault::TooLong };
        Self { bytes: head, kind: Kind::Invalid(fault), envelope }
    }

    /// Scans a batch entry, whose grammar was checked with the batch.
    pub(crate) fn entry(bytes: &'a [u8]) -> Self {
        let (kind, envelope) = scan(bytes, Check::Envelope);
        let kind = if kind == Kind::Batch { Kind::Invalid(Fault::NotAMessage) } else { kind };
        Self { bytes, kind, envelope }
    }

    pub(crate) fn from_parts(bytes: &'a [u8], kind: Kind, envelope: Envelope) -> Self {
        Self { bytes, kind, envelope }
    }

    /// Returns the kind of the message.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the positions of the fields.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// Returns the bytes of the line.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the id, if it is valid: a string or a number.
    #[must_use]
    pub fn id(&self) -> Option<&'a [u8]> {
        self.envelope.id.slice(self.bytes).filter(|id| is_id(id))
    }

    /// Returns the method, unescaped.
    #[must_use]
    pub fn method(&self) -> Option<Cow<'a, str>> {
        self.text(self.envelope.method)
    }

    /// Returns `true` if the method is `name`, which must be ASCII without characters that JSON escapes.
    #[must_use]
    #[inline]
    pub fn is_method(&self, name: &str) -> bool {
        let Some(raw) = self.envelope.method.slice(self.bytes) else { return false };
        // Escapes only make the written method longer.
        match raw.len().cmp(&(name.len() + 2)) {
            Ordering::Less => false,
            Ordering::Equal => raw[1..].starts_with(name.as_bytes()),
            Ordering::Greater => {
                // Where the written method and `name` first differ, they can be equal only if an escape
                // begins there.
                let first_difference = raw[1..].iter().zip(name.as_bytes()).find(|(raw, name)| raw != name);
                first_difference.is_some_and(|(raw, _)| *raw == b'\\')
                    && self.method().is_some_and(|method| method == name)
            }
        }
    }

    /// Returns the unescaped `params.sessionId` or `result.sessionId`.
    #[must_use]
    pub fn session(&self) -> Option<Cow<'a, str>> {
        self.text(self.envelope.session)
    }

    /// Returns `params.requestId` as written.
    #[must_use]
    pub fn request_id(&self) -> Option<&'a [u8]> {
        self.envelope.request_id.slice(self.bytes)
    }

    /// Returns the unescaped `sessionId` at the top level.
    #[must_use]
    pub fn top_session(&self) -> Option<Cow<'a, str>> {
        self.text(self.envelope.top_session)
    }

    /// Returns `sessionId` at the top level as written, if it is a string and short enough to store.
    #[must_use]
    pub fn tag(&self) -> Option<&'a [u8]> {
        self.envelope.top_session.slice(self.bytes).filter(|tag| tag[0] == b'"' && is_id(tag))
    }

    /// Returns the unescaped `pool` at the top level.
    #[must_use]
    pub fn pool(&self) -> Option<Cow<'a, str>> {
        self.text(self.envelope.pool)
    }

    /// Returns `params` as written.
    #[must_use]
    pub fn params(&self) -> Option<&'a [u8]> {
        self.envelope.params.slice(self.bytes)
    }

    /// Returns `result` as written.
    #[must_use]
    pub fn result(&self) -> Option<&'a [u8]> {
        self.envelope.result.slice(self.bytes)
    }

    /// Returns the error object. Replaces a malformed error object by an error that says so. Drops `data`
    /// with more than [`MAX_PEER_VALUES`] values.
    #[must_use]
    pub fn error(&self) -> Option<RpcError> {
        #[derive(Deserialize)]
        struct Bare {
            code: i64,
            message: String,
        }
        let raw = self.envelope.error.slice(self.bytes)?;
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
            message: Cow::Borrowed("the peer sent a malformed error object"),
            data: None,
        }))
    }

    /// Returns the error response that the fault requires, or `None` if the line must not be answered.
    #[must_use]
    pub fn refusal(&self) -> Option<Bytes> {
        let Kind::Invalid(fault) = self.kind else { return None };
        if !fault.is_answered() {
            return None;
        }
        let id = self.id().filter(|_| fault.echoes_id()).unwrap_or(b"null");
        Some(message::error(id, &fault.into()))
    }

    /// Returns the line before and after the value of `part`, to insert another value.
    ///
    /// Returns `None` if the field is absent.
    #[must_use]
    pub fn split_around(&self, part: Part) -> Option<(&'a [u8], &'a [u8])> {
        let hole = self.part_range(part)?;
        Some((&self.bytes[..hole.start], &self.bytes[hole.end..]))
    }

    /// Returns the range of the value of `part`, if it is present.
    #[must_use]
    #[inline]
    pub fn part_range(&self, part: Part) -> Option<Range<usize>> {
        let span = match part {
            Part::Id => self.envelope.id,
            Part::RequestId => self.envelope.request_id,
            Part::Session => self.envelope.session,
        };
        span.slice(self.bytes)?;
        Some(span.range())
    }

    /// Returns the string at `span`, unescaped, or `None` if it is absent or not a string.
    fn text(&self, span: Span) -> Option<Cow<'a, str>> {
        let raw = span.slice(self.bytes)?;
        let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        if memchr::memchr(b'\\', inner).is_some() {
            serde_json::from_slice(raw).ok().map(Cow::Owned)
        } else {
            std::str::from_utf8(inner).ok().map(Cow::Borrowed)
        }
    }
}

/// A field whose value can be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Id,
    RequestId,
    /// `params.sessionId` or `result.sessionId`.
    Session,
}

impl fmt::Debug for View<'_> {
    /// Shows the envelope only: logs must not contain message content.
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
    fn a_method_is_compared_without_its_escapes() {
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
