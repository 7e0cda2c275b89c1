//! Data that is kept as long as a session, besides its params: the tag of the session's client, and the
//! response to the request that opened the session.
//!
//! A client or an agent determines the size, so the bytes are charged to the identity of the session. The
//! data may use half of the memory for params, because params are needed to restore a session. Data that does
//! not fit is not kept.

use std::ops::Deref;
use std::sync::Arc;

use super::Core;
use super::memory::Charge;
use super::session::SessionKey;

/// Bytes that are charged to an identity until this value is dropped.
#[derive(Debug)]
pub(super) struct KeptBytes {
    bytes: Box<[u8]>,
    _charge: Charge,
}

impl Deref for KeptBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Core {
    fn keep(&mut self, key: SessionKey, bytes: &[u8]) -> Option<KeptBytes> {
        let identity = self.sessions.get(key)?.identity;
        let (all, one) = self.limits.session_params();
        let charge = self.sessions.charge_kept(identity, bytes.len(), (all / 2, one / 2))?;
        Some(KeptBytes { bytes: bytes.into(), _charge: charge })
    }

    pub(super) fn keep_tag(&mut self, key: SessionKey, tag: Option<&[u8]>) {
        // The former tag is dropped first, so that its memory is free for the new one.
        if let Some(session) = self.sessions.get_mut(key) {
            session.tag = None;
        }
        let kept = tag.and_then(|tag| self.keep(key, tag));
        if let Some(session) = self.sessions.get_mut(key) {
            session.tag = kept;
        }
    }

    /// Keeps the response to the request that opened a session. Most sessions of an identity got equal
    /// responses, which share one copy.
    pub(super) fn keep_result(&mut self, key: SessionKey, result: &[u8]) -> Option<Arc<KeptBytes>> {
        let identity = self.sessions.get(key)?.identity;
        let last = self.sessions.last_results.get(&identity).and_then(std::sync::Weak::upgrade);
        if let Some(last) = last.filter(|last| ***last == *result) {
            return Some(last);
        }
        let kept = Arc::new(self.keep(key, result)?);
        self.sessions.last_results.insert(identity, Arc::downgrade(&kept));
        Some(kept)
    }
}
