//! One message: its bytes, and what the scan found in them.

use std::borrow::Cow;
use std::fmt;

use bytes::{Bytes, BytesMut};
use serde::de::DeserializeOwned;

use crate::envelope::{Envelope, Kind, Span, is_id};
use crate::error::RpcError;
use crate::fault::Fault;
use crate::message;
use crate::scan::{self, Check, scan};

#[cfg(test)]
mod tests;

/// The id of a request exactly as it stood on the wire: `1`, `"1"` and `1.0` are three ids.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RawId(Bytes);

impl RawId {
    /// A copy of `raw`, so that an id that waits in a table does not keep its message alive.
    #[must_use]
    pub fn copy(raw: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(raw))
    }

    /// The bytes, with quotes if it is a string.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for RawId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// A field that [`Frame::splice`] can replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `id`.
    Id,
    /// `params.requestId`.
    RequestId,
    /// `params.sessionId` or `result.sessionId`.
    Session,
}

/// One message as it came, without its line end.
#[derive(Clone)]
pub struct Frame {
    bytes: Bytes,
    kind: Kind,
    envelope: Envelope,
}

impl Frame {
    /// Scans a line and checks all of it. Never fails: what is wrong becomes [`Kind::Invalid`].
    #[must_use]
    pub fn parse(line: Bytes) -> Self {
        if std::str::from_utf8(&line).is_err() {
            return Self { bytes: line, kind: Kind::Invalid(Fault::Utf8), envelope: Envelope::default() };
        }
        let (kind, envelope) = scan(&line, Check::Grammar);
        Self { bytes: line, kind, envelope }
    }

    /// What is left of a line that was longer than allowed: its first bytes, scanned for its id.
    #[must_use]
    pub fn too_long(head: Bytes) -> Self {
        let envelope = scan::scan_head(&head);
        // Keys seen in the head tell a response, whose id is one of ours, from a request, whose id is the peer's.
        let answers = envelope.result.is_some() || envelope.error.is_some();
        let fault = if answers && !envelope.method.is_some() { Fault::LongResponse } else { Fault::TooLong };
        Self { bytes: head, kind: Kind::Invalid(fault), envelope }
    }

    /// An entry of a batch, whose grammar was checked with the whole.
    pub(crate) fn entry(bytes: Bytes) -> Self {
        let (kind, envelope) = scan(&bytes, Check::Envelope);
        let kind = if kind == Kind::Batch { Kind::Invalid(Fault::NotAMessage) } else { kind };
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
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The line, given up.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Its id, if it has one that may be answered: a string or a number.
    #[must_use]
    pub fn id(&self) -> Option<&[u8]> {
        self.envelope.id.of(&self.bytes).filter(|id| is_id(id))
    }

    /// Its method, without escapes.
    #[must_use]
    pub fn method(&self) -> Option<Cow<'_, str>> {
        self.text(self.envelope.method)
    }

    /// The session it belongs to, without escapes: `params.sessionId` or `result.sessionId`.
    #[must_use]
    pub fn session(&self) -> Option<Cow<'_, str>> {
        self.text(self.envelope.session)
    }

    /// `params.requestId` as it stands there.
    #[must_use]
    pub fn request_id(&self) -> Option<&[u8]> {
        self.envelope.request_id.of(&self.bytes)
    }

    /// `sessionId` at the top level, without escapes.
    #[must_use]
    pub fn top_session(&self) -> Option<Cow<'_, str>> {
        self.text(self.envelope.top_session)
    }

    /// `sessionId` at the top level as it stands there, if it is a string that is worth keeping: a tag waits in tables
    /// as an id does.
    #[must_use]
    pub fn tag(&self) -> Option<&[u8]> {
        self.envelope.top_session.of(&self.bytes).filter(|tag| tag[0] == b'"' && is_id(tag))
    }

    /// `pool` at the top level, without escapes.
    #[must_use]
    pub fn pool(&self) -> Option<Cow<'_, str>> {
        self.text(self.envelope.pool)
    }

    /// `params` as they stand there.
    #[must_use]
    pub fn params(&self) -> Option<&[u8]> {
        self.envelope.params.of(&self.bytes)
    }

    /// `result` as it stands there.
    #[must_use]
    pub fn result(&self) -> Option<&[u8]> {
        self.envelope.result.of(&self.bytes)
    }

    /// `params` as a type; absent and `null` are read as `{}`, since many methods have only optional ones.
    ///
    /// # Errors
    /// When they are not of that type.
    pub fn read_params<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(self.params().filter(|params| *params != b"null").unwrap_or(b"{}"))
    }

    /// `error` as an object; what is no such object becomes one that says so.
    #[must_use]
    pub fn error(&self) -> Option<RpcError> {
        let raw = self.envelope.error.of(&self.bytes)?;
        Some(serde_json::from_slice(raw).unwrap_or_else(|_| RpcError {
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

    /// The line with one field replaced by `raw`, which must be JSON, and nothing else touched.
    ///
    /// `None` if the field is not there.
    #[must_use]
    pub fn splice(&self, part: Part, raw: &[u8]) -> Option<Bytes> {
        let span = match part {
            Part::Id => self.envelope.id,
            Part::RequestId => self.envelope.request_id,
            Part::Session => self.envelope.session,
        };
        span.of(&self.bytes)?;
        let hole = span.range();
        let mut spliced = BytesMut::with_capacity(self.bytes.len() - hole.len() + raw.len());
        spliced.extend_from_slice(&self.bytes[..hole.start]);
        spliced.extend_from_slice(raw);
        spliced.extend_from_slice(&self.bytes[hole.end..]);
        Some(spliced.freeze())
    }

    /// The string at `span`, without escapes; `None` if there is none or it is no string.
    fn text(&self, span: Span) -> Option<Cow<'_, str>> {
        let raw = span.of(&self.bytes)?;
        let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        if inner.contains(&b'\\') {
            serde_json::from_slice(raw).ok().map(Cow::Owned)
        } else {
            std::str::from_utf8(inner).ok().map(Cow::Borrowed)
        }
    }
}

impl fmt::Debug for Frame {
    /// The envelope, never the content: a log must not hold what people said.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("kind", &self.kind)
            .field("method", &self.method())
            .field("id", &self.id().map(RawId::copy))
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}
