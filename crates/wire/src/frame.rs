//! An owned message: its bytes and the result of its scan.

use std::borrow::Cow;
use std::fmt;

use bytes::{Bytes, BytesMut};
use serde::de::DeserializeOwned;

use crate::envelope::{Envelope, Kind};
use crate::error::RpcError;
use crate::view::{Part, View};

#[cfg(test)]
mod tests;

/// The id of a request exactly as the peer wrote it: `1`, `"1"` and `1.0` are three ids.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RawId(Bytes);

impl RawId {
    /// Copies `raw`, so that an id that waits in a table does not keep the message in memory.
    #[must_use]
    pub fn copy(raw: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(raw))
    }

    /// Returns the bytes, including the quotes of a string.
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

/// One message as received, without its line end.
#[derive(Clone)]
pub struct Frame {
    bytes: Bytes,
    kind: Kind,
    envelope: Envelope,
}

impl Frame {
    /// Scans and checks a line. Never fails: a fault becomes [`Kind::Invalid`].
    #[must_use]
    pub fn parse(line: Bytes) -> Self {
        let (kind, envelope) = into_scan(View::parse(&line));
        Self { bytes: line, kind, envelope }
    }

    /// Scans the first bytes of a line over the limit for an id.
    #[must_use]
    pub fn too_long(head: Bytes) -> Self {
        let (kind, envelope) = into_scan(View::too_long(&head));
        Self { bytes: head, kind, envelope }
    }

    /// Scans a batch entry, whose grammar was checked with the batch.
    pub(crate) fn entry(bytes: Bytes) -> Self {
        let (kind, envelope) = into_scan(View::entry(&bytes));
        Self { bytes, kind, envelope }
    }

    /// Returns a borrowed view of the frame.
    #[must_use]
    #[inline]
    pub fn view(&self) -> View<'_> {
        View::from_parts(&self.bytes, self.kind, self.envelope)
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
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the bytes of the line.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// See [`View::id`].
    #[must_use]
    pub fn id(&self) -> Option<&[u8]> {
        self.view().id()
    }

    /// See [`View::method`].
    #[must_use]
    pub fn method(&self) -> Option<Cow<'_, str>> {
        self.view().method()
    }

    /// See [`View::session`].
    #[must_use]
    pub fn session(&self) -> Option<Cow<'_, str>> {
        self.view().session()
    }

    /// See [`View::request_id`].
    #[must_use]
    pub fn request_id(&self) -> Option<&[u8]> {
        self.view().request_id()
    }

    /// See [`View::top_session`].
    #[must_use]
    pub fn top_session(&self) -> Option<Cow<'_, str>> {
        self.view().top_session()
    }

    /// See [`View::tag`].
    #[must_use]
    pub fn tag(&self) -> Option<&[u8]> {
        self.view().tag()
    }

    /// See [`View::pool`].
    #[must_use]
    pub fn pool(&self) -> Option<Cow<'_, str>> {
        self.view().pool()
    }

    /// See [`View::params`].
    #[must_use]
    pub fn params(&self) -> Option<&[u8]> {
        self.view().params()
    }

    /// See [`View::result`].
    #[must_use]
    pub fn result(&self) -> Option<&[u8]> {
        self.view().result()
    }

    /// Deserializes `params`. Absent and `null` params count as `{}`, because many methods have only
    /// optional ones.
    ///
    /// # Errors
    /// If the params do not have that type.
    pub fn read_params<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(self.params().filter(|params| *params != b"null").unwrap_or(b"{}"))
    }

    /// See [`View::error`].
    #[must_use]
    pub fn error(&self) -> Option<RpcError> {
        self.view().error()
    }

    /// See [`View::refusal`].
    #[must_use]
    pub fn refusal(&self) -> Option<Bytes> {
        self.view().refusal()
    }

    /// Returns the line with the value of one field replaced by `raw`, which must be JSON. All other bytes
    /// stay.
    ///
    /// Returns `None` if the field is absent.
    #[must_use]
    pub fn splice(&self, part: Part, raw: &[u8]) -> Option<Bytes> {
        let (before, behind) = self.view().split_around(part)?;
        let mut spliced = BytesMut::with_capacity(before.len() + raw.len() + behind.len());
        for piece in [before, raw, behind] {
            spliced.extend_from_slice(piece);
        }
        Some(spliced.freeze())
    }
}

fn into_scan(view: View<'_>) -> (Kind, Envelope) {
    (view.kind(), *view.envelope())
}

impl fmt::Debug for Frame {
    /// Shows the envelope only: logs must not contain message content.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("kind", &self.kind)
            .field("method", &self.method())
            .field("id", &self.id().map(RawId::copy))
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}
