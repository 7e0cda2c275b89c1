//! The certificate of a client, judged by the authorities that its listener accepts now.
//!
//! It was verified when the socket was opened. A socket and what runs over it outlive that: when an authority is removed from
//! `client_ca`, requests and connections of its certificates are refused as if they came anew.

use std::future::pending;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use crate::tls::ServerTls;

/// The certificate that a client has shown, with those that lead to its authority.
#[derive(Clone, Debug)]
pub(super) struct ClientCertificate {
    chain: Arc<[CertificateDer<'static>]>,
    tls: watch::Receiver<Arc<ServerTls>>,
    /// What it was judged by last.
    judged_by: Arc<ServerTls>,
    is_accepted: bool,
}

impl ClientCertificate {
    /// `tls` has been seen up to `verified_by`, with which the handshake was made.
    pub(super) fn new(
        chain: &[CertificateDer<'static>],
        tls: watch::Receiver<Arc<ServerTls>>,
        verified_by: Arc<ServerTls>,
    ) -> Self {
        Self { chain: chain.into(), tls, judged_by: verified_by, is_accepted: true }
    }

    /// Returns `true` if the listener accepts the certificate now.
    pub(super) fn is_accepted(&mut self) -> bool {
        // The sender is gone with the listener, which is no reason to refuse.
        if self.tls.has_changed().unwrap_or(false) {
            self.judge();
        }
        self.is_accepted
    }

    /// Waits until the listener does not accept the certificate any more. Cancel-safe.
    pub(super) async fn revoked(&mut self) {
        while self.is_accepted() {
            if self.tls.changed().await.is_err() {
                return pending().await;
            }
            self.judge();
        }
    }

    fn judge(&mut self) {
        let now = Arc::clone(&self.tls.borrow_and_update());
        // A signature takes long to verify, and most reloads change nothing.
        if !now.has_authorities_of(&self.judged_by) {
            self.is_accepted = now.accepts(&self.chain);
        }
        self.judged_by = now;
    }
}
