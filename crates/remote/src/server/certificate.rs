//! A client certificate, re-checked against the authorities that its listener accepts now.
//!
//! The certificate was verified in the handshake, but sockets and connections may outlive it. Once it expires, or its
//! authority is removed from `client_ca`, their requests are refused like those of a new client.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::server_tls::{ServerTls, expiry};

/// Interval at which expiry is checked. A timer for the whole time would not follow changes of the wall
/// clock, and may stop while the machine sleeps.
const CLOCK_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(super) struct ClientCertificate {
    chain: Arc<[CertificateDer<'static>]>,
    tls: watch::Receiver<Arc<ServerTls>>,
    /// The TLS configuration that last verified the certificate.
    verified_with: Arc<ServerTls>,
    is_accepted: bool,
    /// The earliest expiry time in the chain that has not passed, in seconds since 1970. `None` if all have
    /// passed.
    next_expiry: Option<u64>,
}

impl ClientCertificate {
    /// `verified_by` is the TLS configuration of the handshake. It must be the last value that the receiver
    /// `tls` has seen.
    pub(super) fn new(
        chain: &[CertificateDer<'static>],
        tls: watch::Receiver<Arc<ServerTls>>,
        verified_by: Arc<ServerTls>,
    ) -> Self {
        let next_expiry = chain.iter().filter_map(|certificate| expiry(certificate)).min();
        Self { chain: chain.into(), tls, verified_with: verified_by, is_accepted: true, next_expiry }
    }

    pub(super) fn is_accepted(&mut self) -> bool {
        // The channel is closed if the listener has ended, which is no reason to refuse the certificate.
        if self.has_expired() || self.tls.has_changed().unwrap_or(false) {
            self.reverify();
        }
        self.is_accepted
    }

    /// Waits until the certificate is no longer accepted. Cancel-safe.
    pub(super) async fn revoked(&mut self) {
        while self.is_accepted() {
            let expiring = self.until_expiry();
            let expired = async {
                match expiring {
                    Some(time) => sleep(time.min(CLOCK_INTERVAL)).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                changed = self.tls.changed() => {
                    if changed.is_err() {
                        return pending().await;
                    }
                }
                () = expired => {}
            }
            self.reverify();
        }
    }

    fn reverify(&mut self) {
        let now = Arc::clone(&self.tls.borrow_and_update());
        // The chain is verified again only if needed: verifying takes long, and most reloads change nothing.
        if self.has_expired() || !now.has_authorities_of(&self.verified_with) {
            self.is_accepted = now.accepts(&self.chain);
            let time = now.now().as_secs();
            // A certificate of the chain that is not needed to reach the authority may have expired already.
            let expiries = self.chain.iter().filter_map(|certificate| expiry(certificate));
            self.next_expiry = expiries.filter(|until| *until >= time).min();
        }
        self.verified_with = now;
    }

    fn has_expired(&self) -> bool {
        self.until_expiry().is_some_and(|time| time.is_zero())
    }

    fn until_expiry(&self) -> Option<Duration> {
        let now = self.verified_with.now().as_secs();
        self.next_expiry.map(|until| Duration::from_secs((until + 1).saturating_sub(now)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use rustls::pki_types::UnixTime;
    use rustls::time_provider::TimeProvider;
    use tokio::time::{Instant, advance};

    use super::super::tests::secure::{authority, files};
    use super::*;
    use crate::server_tls::certificates;

    /// A wall clock that advances with tokio's paused clock.
    #[derive(Debug)]
    struct PausedClock(Duration, Instant);

    impl TimeProvider for PausedClock {
        fn current_time(&self) -> Option<UnixTime> {
            Some(UnixTime::since_unix_epoch(self.0 + self.1.elapsed()))
        }
    }

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    /// Returns a client certificate that is valid for two days; `None` without openssl.
    fn certificate() -> Option<(ClientCertificate, watch::Sender<Arc<ServerTls>>)> {
        let directory = authority()?;
        let mut tls = ServerTls::read(&files(directory.path(), true)).unwrap();
        let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let clock = Arc::new(PausedClock(began, Instant::now()));
        Arc::get_mut(&mut tls.config).unwrap().time_provider = clock;
        let tls = Arc::new(tls);
        let sender = watch::Sender::new(Arc::clone(&tls));
        let chain = certificates(&directory.path().join("client.pem")).unwrap();
        Some((ClientCertificate::new(&chain, sender.subscribe(), tls), sender))
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_is_refused_once_it_has_expired() {
        let Some((mut certificate, _sender)) = certificate() else { return };
        assert!(certificate.is_accepted());
        advance(DAY).await;
        assert!(certificate.is_accepted());
        advance(2 * DAY).await;
        assert!(!certificate.is_accepted());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_when_its_certificate_expires() {
        let Some((mut certificate, _sender)) = certificate() else { return };
        let began = Instant::now();
        certificate.revoked().await;
        assert!(began.elapsed() > DAY && began.elapsed() < 3 * DAY, "{:?}", began.elapsed());
        assert!(!certificate.is_accepted());
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_that_had_expired_before_is_not_accepted() {
        let Some((certificate, sender)) = certificate() else { return };
        advance(3 * DAY).await;
        let verified_by = Arc::clone(&sender.borrow());
        let mut late = ClientCertificate::new(&certificate.chain, sender.subscribe(), verified_by);
        assert!(!late.is_accepted());
    }
}
