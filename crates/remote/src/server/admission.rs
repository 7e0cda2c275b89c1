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

/// The credentials that a client was admitted with. Each can be revoked. Without any, the client is on this machine or
/// was authenticated by the component that handed it over.
#[derive(Clone, Debug, Default)]
pub(super) struct Credential {
    pub(super) token: Option<(Digest, watch::Receiver<Arc<Tokens>>)>,
    pub(super) certificate: Option<ClientCertificate>,
}

/// A client that has a connection.
#[derive(Debug)]
pub(super) struct AdmittedClient {
    seat: Seat,
    credential: Credential,
    /// The number of its listener.
    listener: usize,
}

impl AdmittedClient {
    pub(super) fn new(seat: Seat, credential: Credential, listener: usize) -> Self {
        Self { seat, credential, listener }
    }

    /// Returns the number of its listener.
    pub(super) fn listener(&self) -> usize {
        self.listener
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.seat.identity
    }

    /// Claims a new connection. Returns `false` if the identity has too many. Not needed to resume a connection.
    pub(super) fn settle(&mut self) -> bool {
        self.seat.settle()
    }

    /// Continues the connection with the credentials of another client of the same identity, whose seat is released.
    pub(super) fn goes_on_as(&mut self, other: Self) {
        self.credential = other.credential;
        self.listener = other.listener;
    }

    /// Marks the connection as detached until the returned guard is dropped: its client may return with a new socket.
    pub(super) fn absent(&self) -> Absence {
        let (seats, name) = (Arc::clone(&self.seat.seats), self.seat.identity.to_string());
        seats.with(&name, |of| of.absent += 1);
        Absence { seats, name }
    }

    /// Waits until a credential is revoked.
    pub(super) async fn revoked(&mut self) {
        let identity = &self.seat.identity;
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

/// Counts connections and requests per identity.
#[derive(Debug)]
pub(super) struct Seats {
    most: usize,
    /// Requests per second.
    rate: u32,
    taken: Mutex<HashMap<String, Use>>,
}

#[derive(Debug)]
struct Use {
    /// Open connections, detached ones included.
    connections: usize,
    /// Detached connections. A client that returns for one needs another seat in the meantime.
    absent: usize,
    /// Clients that have entered, but have neither opened nor resumed a connection yet.
    entered: usize,
    /// Requests that may be made now.
    left: f64,
    at: Instant,
}

/// Identities without a connection that are remembered.
const MAX_REMEMBERED_IDENTITIES: usize = 1024;

impl Seats {
    /// Allows `most` connections and `rate` requests per second for each identity.
    pub(super) fn new(most: usize, rate: u32) -> Arc<Self> {
        Arc::new(Self { most, rate, taken: Mutex::default() })
    }

    /// Reserves a seat for a client that wants to open or resume a connection. Returns `None` if the identity has too
    /// many.
    pub(super) fn enter(self: &Arc<Self>, identity: Identity) -> Option<Seat> {
        self.with(&identity.to_string(), |of| {
            let free = of.connections + of.entered < self.most + of.absent;
            of.entered += usize::from(free);
            free
        })
        .then(|| Seat { seats: Arc::clone(self), identity, settled: false })
    }

    /// Counts a request. Returns `false` if the identity makes too many.
    pub(super) fn ask(&self, who: &Identity) -> bool {
        self.with(&who.to_string(), |of| {
            let now = Instant::now();
            let rate = f64::from(self.rate);
            of.left = (of.left + now.duration_since(of.at).as_secs_f64() * rate).min(rate);
            of.at = now;
            let may = of.left >= 1.0;
            of.left -= f64::from(u8::from(may));
            may
        })
    }

    fn with<T>(&self, name: &str, act: impl FnOnce(&mut Use) -> T) -> T {
        let mut taken = lock(&self.taken);
        if !taken.contains_key(name) && taken.len() >= MAX_REMEMBERED_IDENTITIES {
            taken.retain(|_, of| of.connections + of.entered > 0);
        }
        let (left, at) = (f64::from(self.rate), Instant::now());
        let fresh = || Use { connections: 0, absent: 0, entered: 0, left, at };
        act(taken.entry(name.to_owned()).or_insert_with(fresh))
    }
}

/// One of the seats of an identity, released on drop.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Arc<Seats>,
    identity: Identity,
    /// It counts as a connection.
    settled: bool,
}

impl Seat {
    /// Converts the seat to a connection. Returns `false` if the identity has too many.
    fn settle(&mut self) -> bool {
        let (most, settled) = (self.seats.most, self.settled);
        self.settled = self.seats.with(&self.identity.to_string(), |of| {
            if !settled && of.connections < most {
                of.entered = of.entered.saturating_sub(1);
                of.connections += 1;
                return true;
            }
            settled
        });
        self.settled
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.with(&self.identity.to_string(), |of| {
            let count = if self.settled { &mut of.connections } else { &mut of.entered };
            *count = count.saturating_sub(1);
        });
    }
}

/// A detached connection, until this is dropped.
#[derive(Debug)]
pub(super) struct Absence {
    seats: Arc<Seats>,
    name: String,
}

impl Drop for Absence {
    fn drop(&mut self) {
        self.seats.with(&self.name, |of| of.absent = of.absent.saturating_sub(1));
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

    /// Returns a client with a connection.
    fn settled(seats: &Arc<Seats>, identity: Identity) -> Option<AdmittedClient> {
        let mut guest = AdmittedClient::new(seats.enter(identity)?, Credential::default(), 0);
        guest.settle().then_some(guest)
    }

    #[tokio::test(start_paused = true)]
    async fn seats_are_given_back() {
        let seats = Seats::new(2, 1);
        let one = settled(&seats, named("a")).unwrap();
        let _two = settled(&seats, named("a")).unwrap();
        assert!(settled(&seats, named("a")).is_none());
        assert!(settled(&seats, named("b")).is_some(), "others have their own");
        let other = Identity { proof: Proof::Certificate, ..named("a") };
        assert!(settled(&seats, other).is_some(), "and so has who is called so by another proof");
        drop(one);
        assert!(settled(&seats, named("a")).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_absent_can_come_back() {
        let seats = Seats::new(1, 1);
        let mut guest = settled(&seats, named("a")).unwrap();
        assert!(seats.enter(named("a")).is_none());
        let absence = guest.absent();
        let back = seats.enter(named("a")).unwrap();
        assert!(seats.enter(named("a")).is_none());
        drop(absence);
        guest.goes_on_as(AdmittedClient::new(back, Credential::default(), 3));
        assert_eq!(guest.listener(), 3);
        assert!(seats.enter(named("a")).is_none());
        drop(guest);
        assert!(settled(&seats, named("a")).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_is_counted() {
        let seats = Seats::new(2, 1);
        let held = [(); 2].map(|()| settled(&seats, named("a")).unwrap());
        let absences = [held[0].absent(), held[1].absent()];
        for _ in 0..5 {
            assert!(settled(&seats, named("a")).is_none(), "it is no place for a new one");
        }
        let both = [(); 2].map(|()| seats.enter(named("a")).unwrap());
        assert!(seats.enter(named("a")).is_none(), "no more can come back than are away");
        drop((absences, held));
        let mut both = both.map(|seat| AdmittedClient::new(seat, Credential::default(), 0));
        assert!(both.iter_mut().all(AdmittedClient::settle), "there is room by now");
        assert!(both[0].settle() && seats.enter(named("a")).is_none(), "once is enough");
        drop(both);
        assert!(settled(&seats, named("a")).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_counted_by_the_second() {
        let seats = Seats::new(1, 3);
        assert_eq!([(); 5].map(|()| seats.ask(&named("a"))), [true, true, true, false, false]);
        assert!(seats.ask(&named("b")));
        advance(Duration::from_millis(400)).await;
        assert_eq!([seats.ask(&named("a")), seats.ask(&named("a"))], [true, false]);
        advance(Duration::from_secs(60)).await;
        assert_eq!([(); 5].map(|()| seats.ask(&named("a"))), [true, true, true, false, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn many_names_are_not_remembered_for_ever() {
        let seats = Seats::new(1, 3);
        let _kept = settled(&seats, named("kept")).unwrap();
        for number in 0..10 * MAX_REMEMBERED_IDENTITIES {
            seats.ask(&named(&number.to_string()));
        }
        assert!(seats.taken.lock().unwrap().len() <= MAX_REMEMBERED_IDENTITIES);
        assert!(settled(&seats, named("kept")).is_none());
    }
}
