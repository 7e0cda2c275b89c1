//! Admitted clients, their credentials, and limits of connections and requests per identity.

use std::collections::HashMap;
use std::future::pending;
use std::sync::{Arc, Mutex};

use narrows_base::sync::lock;
use tokio::sync::watch;
use tokio::time::Instant;

use super::certificate::ClientCertificate;
use crate::identity::Identity;
use crate::tokens::{Digest, Tokens};

/// The token and the certificate that a client was admitted with. Each can be revoked. A client without both
/// is on this machine or was authenticated by the component that handed the connection over.
#[derive(Clone, Debug, Default)]
pub(super) struct Credential {
    pub(super) token: Option<(Digest, watch::Receiver<Arc<Tokens>>)>,
    pub(super) certificate: Option<ClientCertificate>,
}

#[derive(Debug)]
pub(super) struct AdmittedClient {
    slot: QuotaSlot,
    credential: Credential,
    listener: usize,
}

impl AdmittedClient {
    pub(super) fn new(slot: QuotaSlot, credential: Credential, listener: usize) -> Self {
        Self { slot, credential, listener }
    }

    pub(super) fn listener(&self) -> usize {
        self.listener
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.slot.identity
    }

    /// Claims a new connection. Returns `false` if the identity has too many. Resumed connections are not
    /// claimed again.
    pub(super) fn claim(&mut self) -> bool {
        self.slot.claim()
    }

    /// Continues the connection with the credentials of `other`, a client of the same identity, and releases
    /// the slot of `other`.
    pub(super) fn resume_with(&mut self, other: Self) {
        self.credential = other.credential;
        self.listener = other.listener;
    }

    /// Marks the connection as detached until the returned guard is dropped. The client may resume the
    /// connection.
    pub(super) fn mark_detached(&self) -> DetachedSlot {
        let (quota, name) = (Arc::clone(&self.slot.quota), self.slot.identity.to_string());
        quota.with(&name, |usage| usage.detached += 1);
        DetachedSlot { quota, name }
    }

    pub(super) async fn revoked(&mut self) {
        let identity = &self.slot.identity;
        let Credential { token, certificate } = &mut self.credential;
        let token_revoked = async {
            if let Some((digest, tokens)) = token {
                // The channel also closes with the server, which is no revocation.
                while tokens.changed().await.is_ok() {
                    if tokens.borrow_and_update().find(digest).is_none_or(|now| now != identity) {
                        return;
                    }
                }
            }
            pending::<()>().await;
        };
        let certificate_revoked = async {
            match certificate {
                Some(certificate) => certificate.revoked().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            () = token_revoked => tracing::info!(%identity, "token revoked, closing connection"),
            () = certificate_revoked => tracing::info!(%identity, "certificate no longer accepted, closing connection"),
        }
    }
}

#[derive(Debug)]
pub(super) struct ConnectionQuota {
    max_connections: usize,
    rate: u32,
    by_identity: Mutex<HashMap<String, IdentityUse>>,
}

#[derive(Debug)]
struct IdentityUse {
    connections: usize,
    /// The number of detached connections. A client needs a second slot while it resumes one of them.
    detached: usize,
    /// The number of clients that wait to open or resume a connection.
    waiting: usize,
    requests_left: f64,
    at: Instant,
}

/// Maximum number of remembered identities that have no connection.
const MAX_REMEMBERED_IDENTITIES: usize = 1024;

impl ConnectionQuota {
    /// Allows `max_connections` connections and `rate` requests per second for each identity.
    pub(super) fn new(max_connections: usize, rate: u32) -> Arc<Self> {
        Arc::new(Self { max_connections, rate, by_identity: Mutex::default() })
    }

    /// Reserves a slot for a client that wants to open or resume a connection. Returns `None` if the identity
    /// has too many connections.
    pub(super) fn enter(self: &Arc<Self>, identity: Identity) -> Option<QuotaSlot> {
        self.with(&identity.to_string(), |usage| {
            let free = usage.connections + usage.waiting < self.max_connections + usage.detached;
            usage.waiting += usize::from(free);
            free
        })
        .then(|| QuotaSlot { quota: Arc::clone(self), identity, claimed: false })
    }

    /// Counts a request. Returns `false` if the identity makes too many.
    pub(super) fn count_request(&self, identity: &Identity) -> bool {
        self.with(&identity.to_string(), |usage| {
            let now = Instant::now();
            let rate = f64::from(self.rate);
            usage.requests_left =
                (usage.requests_left + now.duration_since(usage.at).as_secs_f64() * rate).min(rate);
            usage.at = now;
            let may = usage.requests_left >= 1.0;
            usage.requests_left -= f64::from(u8::from(may));
            may
        })
    }

    fn with<T>(&self, name: &str, act: impl FnOnce(&mut IdentityUse) -> T) -> T {
        let mut by_identity = lock(&self.by_identity);
        if !by_identity.contains_key(name) && by_identity.len() >= MAX_REMEMBERED_IDENTITIES {
            by_identity.retain(|_, usage| usage.connections + usage.waiting > 0);
        }
        let (left, at) = (f64::from(self.rate), Instant::now());
        let fresh = || IdentityUse { connections: 0, detached: 0, waiting: 0, requests_left: left, at };
        act(by_identity.entry(name.to_owned()).or_insert_with(fresh))
    }
}

/// A slot for one of the connections that an identity may have, released on drop.
#[derive(Debug)]
pub(super) struct QuotaSlot {
    quota: Arc<ConnectionQuota>,
    identity: Identity,
    claimed: bool,
}

impl QuotaSlot {
    /// Counts the slot as a connection. Returns `false` if the identity has too many.
    fn claim(&mut self) -> bool {
        let (max_connections, claimed) = (self.quota.max_connections, self.claimed);
        self.claimed = self.quota.with(&self.identity.to_string(), |usage| {
            if !claimed && usage.connections < max_connections {
                usage.waiting = usage.waiting.saturating_sub(1);
                usage.connections += 1;
                return true;
            }
            claimed
        });
        self.claimed
    }
}

impl Drop for QuotaSlot {
    fn drop(&mut self) {
        self.quota.with(&self.identity.to_string(), |usage| {
            let count = if self.claimed { &mut usage.connections } else { &mut usage.waiting };
            *count = count.saturating_sub(1);
        });
    }
}

/// A detached connection of an identity. Dropping it ends the detached state.
#[derive(Debug)]
pub(super) struct DetachedSlot {
    quota: Arc<ConnectionQuota>,
    name: String,
}

impl Drop for DetachedSlot {
    fn drop(&mut self) {
        self.quota.with(&self.name, |usage| usage.detached = usage.detached.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;
    use crate::identity::Proof;

    fn named(name: &str) -> Identity {
        Identity::new(Proof::Token, name)
    }

    fn claimed_client(quota: &Arc<ConnectionQuota>, identity: Identity) -> Option<AdmittedClient> {
        let mut client = AdmittedClient::new(quota.enter(identity)?, Credential::default(), 0);
        client.claim().then_some(client)
    }

    #[tokio::test(start_paused = true)]
    async fn slots_are_released() {
        let quota = ConnectionQuota::new(2, 1);
        let one = claimed_client(&quota, named("a")).unwrap();
        let _two = claimed_client(&quota, named("a")).unwrap();
        assert!(claimed_client(&quota, named("a")).is_none());
        assert!(claimed_client(&quota, named("b")).is_some(), "each identity has its own limit");
        let other = Identity { proof: Proof::Certificate, ..named("a") };
        assert!(claimed_client(&quota, other).is_some(), "another proof is another identity");
        drop(one);
        assert!(claimed_client(&quota, named("a")).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_detached_client_can_return() {
        let quota = ConnectionQuota::new(1, 1);
        let mut client = claimed_client(&quota, named("a")).unwrap();
        assert!(quota.enter(named("a")).is_none());
        let detached_slot = client.mark_detached();
        let back = quota.enter(named("a")).unwrap();
        assert!(quota.enter(named("a")).is_none());
        drop(detached_slot);
        client.resume_with(AdmittedClient::new(back, Credential::default(), 3));
        assert_eq!(client.listener(), 3);
        assert!(quota.enter(named("a")).is_none());
        drop(client);
        assert!(claimed_client(&quota, named("a")).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn detached_connections_are_counted() {
        let quota = ConnectionQuota::new(2, 1);
        let held = [(); 2].map(|()| claimed_client(&quota, named("a")).unwrap());
        let detached = [held[0].mark_detached(), held[1].mark_detached()];
        for _ in 0..5 {
            assert!(claimed_client(&quota, named("a")).is_none(), "a detached connection frees no slot");
        }
        let both = [(); 2].map(|()| quota.enter(named("a")).unwrap());
        assert!(quota.enter(named("a")).is_none(), "only detached clients can return");
        drop((detached, held));
        let mut both = both.map(|slot| AdmittedClient::new(slot, Credential::default(), 0));
        assert!(both.iter_mut().all(AdmittedClient::claim), "the slots are free");
        assert!(both[0].claim() && quota.enter(named("a")).is_none(), "a second claim changes nothing");
        drop(both);
        assert!(claimed_client(&quota, named("a")).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_counted_by_the_second() {
        let quota = ConnectionQuota::new(1, 3);
        assert_eq!([(); 5].map(|()| quota.count_request(&named("a"))), [true, true, true, false, false]);
        assert!(quota.count_request(&named("b")));
        advance(Duration::from_millis(400)).await;
        assert_eq!([quota.count_request(&named("a")), quota.count_request(&named("a"))], [true, false]);
        advance(Duration::from_secs(60)).await;
        assert_eq!([(); 5].map(|()| quota.count_request(&named("a"))), [true, true, true, false, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_remembered_identities_is_bounded() {
        let quota = ConnectionQuota::new(1, 3);
        let _kept = claimed_client(&quota, named("kept")).unwrap();
        for number in 0..10 * MAX_REMEMBERED_IDENTITIES {
            quota.count_request(&named(&number.to_string()));
        }
        assert!(quota.by_identity.lock().unwrap().len() <= MAX_REMEMBERED_IDENTITIES);
        assert!(claimed_client(&quota, named("kept")).is_none());
    }
}
