//! One message: its bytes, and what the scan found in them.

use std::borrow::Cow;
use std::fmt;

use bytes::{Bytes, BytesMut};
use serde::de::DeserializeOwned;

use crate::envelope::{Envelope, Kind};
use crate::error::RpcError;
use crate::view::{Part, View};

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
        let (kind, envelope) = found(View::parse(&line));
        Self { bytes: line, kind, envelope }
    }

    /// What is left of a line that was longer than allowed: its first bytes, scanned for its id.
    #[must_use]
    pub fn too_long(head: Bytes) -> Self {
        let (kind, envelope) = found(View::too_long(&head));
        Self { bytes: head, kind, envelope }
    }

    /// An entry of a batch, whose grammar was checked with the whole.
    pub(crate) fn entry(bytes: Bytes) -> Self {
        let (kind, envelope) = found(View::entry(&bytes));
        Self { bytes, kind, envelope }
    }

    /// The same, borrowed.
    #[must_use]
    #[inline]
    pub fn view(&self) -> View<'_> {
        View::known(&self.bytes, self.kind, self.envelope)
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

    /// As [`View::id`].
    #[must_use]
    pub fn id(&self) -> Option<&[u8]> {
        self.view().id()
    }

    /// As [`View::method`].
    #[must_use]
    pub fn method(&self) -> Option<Cow<'_, str>> {
        self.view().method()
    }

    /// As [`View::session`].
    #[must_use]
    pub fn session(&self) -> Option<Cow<'_, str>> {
        self.view().session()
    }

    /// As [`View::request_id`].
    #[must_use]
    pub fn request_id(&self) -> Option<&[u8]> {
        self.view().request_id()
    }

    /// As [`View::top_session`].
    #[must_use]
    pub fn top_session(&self) -> Option<Cow<'_, str>> {
        self.view().top_session()
    }

    /// As [`View::tag`].
    #[must_use]
    pub fn tag(&self) -> Option<&[u8]> {
        self.view().tag()
    }

    /// As [`View::pool`].
    #[must_use]
    pub fn pool(&self) -> Option<Cow<'_, str>> {
        self.view().pool()
    }

    /// As [`View::params`].
    #[must_use]
    pub fn params(&self) -> Option<&[u8]> {
        self.view().params()
    }

    /// As [`View::result`].
    #[must_use]
    pub fn result(&self) -> Option<&[u8]> {
        self.view().result()
    }

    /// `params` as a type; absent and `null` are read as `{}`, since many methods have only optional ones.
    ///
    /// # Errors
    /// When they are not of that type.
    pub fn read_params<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(self.params().filter(|params| *params != b"null").unwrap_or(b"{}"))
    }

    /// As [`View::error`].
    #[must_use]
    pub fn error(&self) -> Option<RpcError> {
        self.view().error()
    }

    /// As [`View::refusal`].
    #[must_use]
    pub fn refusal(&self) -> Option<Bytes> {
        self.view().refusal()
    }

    /// The line with one field replaced by `raw`, which must be JSON, and nothing else touched.
    ///
    /// `None` if the field is not there.
    #[must_use]
    pub fn splice(&self, part: Part, raw: &[u8]) -> Option<Bytes> {
        let (before, behind) = self.view().around(part)?;
        let mut spliced = BytesMut::with_capacity(before.len() + raw.len() + behind.len());
        for piece in [before, raw, behind] {
            spliced.extend_from_slice(piece);
        }
        Some(spliced.freeze())
    }
}

fn found(view: View<'_>) -> (Kind, Envelope) {
    (view.kind(), *view.envelope())
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
