//! The open HTTP sockets of a server. If there is no room for another one, some are closed, in this order: the oldest
//! unauthenticated one, those without a request for the longest time, and the oldest of the identity that has by far
//! the most. Of the last two kinds many are closed at once: closing takes a moment, and other clients may be ahead in
//! the accept queue.
//!
//! Unauthenticated sockets have a limit of their own: their memory belongs to no identity.
//!
//! The number of sockets per identity is limited. WebSockets do not count here: each is a connection, which has its own
//! limit.

use std::collections::{BTreeMap, HashMap};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use narrows_base::sync::lock;
use tokio::sync::{AcquireError, Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::authorize::Denied;
use super::refusal_stats::{RefusalReason, RefusalStats};
use crate::identity::Identity;

const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The share of idle sockets that is closed at once.
const IDLE_CLOSE_DIVISOR: usize = 16;

/// The share of all sockets, as a divisor, above which an identity must give up half of the excess busy
/// sockets.
const LARGE_SHARE_DIVISOR: usize = 8;

#[derive(Debug)]
pub(super) struct OpenSockets {
    max: usize,
    max_per_identity: usize,
    max_unauthenticated: usize,
    permits: Arc<Semaphore>,
    table: Mutex<Table>,
    /// Held by the one waiter for a permit, because two waiters must not rely on the same closed socket.
    turn: tokio::sync::Mutex<()>,
    /// Notified when a socket may have become closable.
    changed: Notify,
}

/// The open sockets. Each is in one of the maps, in the order of insertion, unless the socket is being
/// closed.
#[derive(Debug, Default)]
struct Table {
    next: u64,
    sockets: HashMap<u64, Entry>,
    unknown: BTreeMap<u64, u64>,
    idle: BTreeMap<u64, u64>,
    busy: BTreeMap<u64, u64>,
    counts: HashMap<Arc<str>, usize>,
    /// The number of sockets closed since the last log message, and the time of that message.
    closed: u64,
    logged: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    close: Arc<Notify>,
    identity: Option<Arc<str>>,
    requests: usize,
    order: Option<u64>,
}

impl OpenSockets {
    pub(super) fn new(max: usize, max_per_identity: usize, max_unauthenticated: usize) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(max));
        Arc::new(Self {
            max,
            max_per_identity,
            max_unauthenticated,
            permits,
            table: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Returns a permit for another socket. Without a free permit, closes other sockets, or waits if no
    /// socket can be closed. Also closes the oldest unauthenticated sockets if there are too many.
    pub(super) async fn acquire(
        &self,
        refusals: &RefusalStats,
    ) -> Result<OwnedSemaphorePermit, AcquireError> {
        let _turn = self.turn.lock().await;
        let excess = self.close_sockets(|table| table.close_unknown(self.max_unauthenticated));
        (0..excess).for_each(|_| refusals.add(RefusalReason::Evicted));
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return Ok(permit);
        }
        let mut permit = pin!(Arc::clone(&self.permits).acquire_owned());
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let closed = self.close_sockets(|table| table.close_some(self.max));
            if closed > 0 {
                (0..closed).for_each(|_| refusals.add(RefusalReason::Evicted));
                return permit.await;
            }
            tokio::select! {
                biased;
                acquired = &mut permit => return acquired,
                () = changed => {}
            }
        }
    }

    pub(super) async fn closed(&self) {
        // An error is impossible, because the semaphore is never closed.
        _ = self.permits.acquire_many(u32::try_from(self.max).unwrap_or(u32::MAX)).await;
    }

    pub(super) fn add(self: &Arc<Self>) -> OpenSocket {
        let close = Arc::new(Notify::new());
        let id = self.with(|table| {
            let id = table.next_id();
            table.sockets.insert(
                id,
                Entry { close: Arc::clone(&close), identity: None, requests: 0, order: Some(id) },
            );
            table.unknown.insert(id, id);
            id
        });
        self.changed.notify_waiters();
        OpenSocket { all: Arc::clone(self), id, close }
    }

    fn close_sockets(&self, close: impl FnOnce(&mut Table) -> usize) -> usize {
        let (closed, total) = self.with(|table| {
            let closed = close(table);
            table.closed += closed as u64;
            let now = Instant::now();
            let is_due = table.logged.is_none_or(|logged| now.duration_since(logged) >= LOG_INTERVAL);
            let total = (closed > 0 && is_due).then(|| {
                table.logged = Some(now);
                std::mem::take(&mut table.closed)
            });
            (closed, total)
        });
        if let Some(closed) = total {
            tracing::warn!(closed, limit = self.max, "too many sockets, closing some to make room");
        }
        closed
    }

    fn with<T>(&self, act: impl FnOnce(&mut Table) -> T) -> T {
        act(&mut lock(&self.table))
    }
}

impl Table {
    fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Closes the oldest unauthenticated sockets until there is room for another one.
    fn close_unknown(&mut self, max: usize) -> usize {
        let excess = (self.unknown.len() + 1).saturating_sub(max.max(1));
        for _ in 0..excess {
            let Some((_, id)) = self.unknown.pop_first() else { break };
            self.close(id);
        }
        excess
    }

    fn close_some(&mut self, max: usize) -> usize {
        if let Some((_, id)) = self.unknown.pop_first() {
            self.close(id);
            return 1;
        }
        if !self.idle.is_empty() {
            let count = 1 + self.idle.len() / IDLE_CLOSE_DIVISOR;
            for _ in 0..count {
                let Some((_, id)) = self.idle.pop_first() else { break };
                self.close(id);
            }
            return count;
        }
        let excess = self.largest_excess(max);
        for order in &excess {
            if let Some(id) = self.busy.remove(order) {
                self.close(id);
            }
        }
        excess.len()
    }

    /// Returns busy sockets of the identity that has the most, the oldest first: half of the sockets beyond
    /// the share of `max` that one identity may have.
    fn largest_excess(&self, max: usize) -> Vec<u64> {
        let mut by_identity: HashMap<&str, Vec<u64>> = HashMap::new();
        for (order, id) in &self.busy {
            let Some(identity) = self.sockets.get(id).and_then(|entry| entry.identity.as_deref()) else {
                continue;
            };
            by_identity.entry(identity).or_default().push(*order);
        }
        let mut most = by_identity.into_values().max_by_key(Vec::len).unwrap_or_default();
        most.truncate(most.len().saturating_sub(max / LARGE_SHARE_DIVISOR).div_ceil(2));
        most
    }

    /// Counts another socket of an identity. Returns the name of the identity, or `None` if it already has
    /// `max` sockets.
    fn count(&mut self, identity: &Identity, max: usize) -> Option<Arc<str>> {
        let identity: Arc<str> = identity.to_string().into();
        let count = self.counts.entry(Arc::clone(&identity)).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(identity)
    }

    fn uncount(&mut self, identity: &str) {
        if let Some(count) = self.counts.get_mut(identity) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(identity);
            }
        }
    }

    fn close(&mut self, id: u64) {
        if let Some(entry) = self.sockets.get_mut(&id) {
            entry.order = None;
            entry.close.notify_one();
        }
    }

    /// Moves a socket to the map for its state, unless the socket is being closed.
    fn sort(&mut self, id: u64) {
        let next = self.next_id();
        let Some(entry) = self.sockets.get_mut(&id) else { return };
        let Some(order) = entry.order.as_mut() else { return };
        for map in [&mut self.unknown, &mut self.idle, &mut self.busy] {
            map.remove(order);
        }
        *order = next;
        let map = if entry.requests > 0 { &mut self.busy } else { &mut self.idle };
        map.insert(next, id);
    }
}

/// An open socket, removed from the table on drop.
#[derive(Debug)]
pub(super) struct OpenSocket {
    all: Arc<OpenSockets>,
    id: u64,
    close: Arc<Notify>,
}

impl OpenSocket {
    /// Records the start of a request. The socket belongs to the identity of its first request. Fails if the
    /// socket is being closed before its first request, or the identity has too many sockets.
    pub(super) fn begin(&self, identity: &Identity) -> Result<RequestGuard, Denied> {
        self.all.with(|table| {
            let entry = table.sockets.get(&self.id).ok_or(Denied::Evicted)?;
            let counted = match entry.identity {
                Some(_) => None,
                None if entry.order.is_none() => return Err(Denied::Evicted),
                None => Some(table.count(identity, self.all.max_per_identity).ok_or(Denied::TooManySockets)?),
            };
            let entry = table.sockets.get_mut(&self.id).ok_or(Denied::Evicted)?;
            if counted.is_some() {
                entry.identity = counted;
            }
            entry.requests += 1;
            if entry.requests == 1 {
                table.sort(self.id);
            }
            Ok(())
        })?;
        self.all.changed.notify_waiters();
        Ok(RequestGuard { all: Arc::clone(&self.all), id: self.id })
    }

    pub(super) fn is_known(&self) -> bool {
        self.all.with(|table| table.sockets.get(&self.id).is_some_and(|entry| entry.identity.is_some()))
    }

    /// Waits until the socket must be closed to make room.
    pub(super) async fn close_requested(&self) {
        self.close.notified().await;
    }
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        self.all.with(|table| {
            let Some(entry) = table.sockets.remove(&self.id) else { return };
            if let Some(order) = entry.order {
                for map in [&mut table.unknown, &mut table.idle, &mut table.busy] {
                    map.remove(&order);
                }
            }
            if let Some(identity) = entry.identity {
                table.uncount(&identity);
            }
        });
    }
}

/// A running request, until the HTTP library has read all of the response.
#[derive(Debug)]
pub(super) struct RequestGuard {
    all: Arc<OpenSockets>,
    id: u64,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.all.with(|table| {
            let Some(entry) = table.sockets.get_mut(&self.id) else { return };
            entry.requests -= 1;
            if entry.requests == 0 {
                table.sort(self.id);
            }
        });
        self.all.changed.notify_waiters();
    }
}

#[derive(Debug)]
pub(super) struct Guarded<B> {
    pub(super) body: B,
    pub(super) _request: Option<RequestGuard>,
}

impl<B: Body + Unpin> Body for Guarded<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::identity::Proof;

    impl OpenSockets {
        fn make_room(&self) -> usize {
            self.close_sockets(|table| table.close_some(self.max))
        }
    }

    fn named(name: &str) -> Identity {
        Identity::new(Proof::Token, name)
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_unauthenticated_socket_is_closed_first() {
        let all = OpenSockets::new(3, 3, 3);
        let [known, oldest, youngest] = [(); 3].map(|()| all.add());
        let request = known.begin(&named("a")).unwrap();
        assert_eq!(all.make_room(), 1);
        oldest.close_requested().await;
        assert_eq!(oldest.begin(&named("a")).err(), Some(Denied::Evicted), "the socket is being closed");
        assert_eq!(all.make_room(), 1);
        youngest.close_requested().await;
        drop((oldest, youngest));
        assert!(known.is_known() && known.close_requested().now_or_never().is_none());
        drop((request, known));
        all.with(|table| assert!(table.sockets.is_empty() && table.busy.is_empty() && table.idle.is_empty()));
    }

    #[tokio::test(start_paused = true)]
    async fn unauthenticated_sockets_have_a_limit_of_their_own() {
        let all = OpenSockets::new(100, 100, 3);
        let refusals = RefusalStats::default();
        let known = all.add();
        let request = known.begin(&named("a")).unwrap();
        let mut sockets = Vec::new();
        for _ in 0..5 {
            drop(all.acquire(&refusals).await.unwrap());
            sockets.push(all.add());
        }
        sockets[0].close_requested().await;
        sockets[1].close_requested().await;
        assert!(sockets[2..].iter().all(|socket| socket.close_requested().now_or_never().is_none()));
        assert!(known.close_requested().now_or_never().is_none());
        assert_eq!(refusals.all().into_iter().find(|(name, _)| *name == "crowd"), Some(("crowd", 2)));
        drop(request);
    }

    #[tokio::test(start_paused = true)]
    async fn then_sockets_idle_for_the_longest_time_are_closed() {
        let all = OpenSockets::new(100, 100, 100);
        let sockets: Vec<_> = (0..32).map(|_| all.add()).collect();
        let requests: Vec<_> = sockets.iter().map(|socket| socket.begin(&named("a")).unwrap()).collect();
        let mut requests = requests.into_iter();
        let (first, second) = (requests.next().unwrap(), requests.next().unwrap());
        drop((second, first));
        assert_eq!(all.make_room(), 1);
        assert!(sockets[0].close_requested().now_or_never().is_none());
        sockets[1].close_requested().await;
        // A request that starts on this socket now is still served.
        drop(sockets[1].begin(&named("a")).unwrap());
        assert_eq!(all.make_room(), 1);
        sockets[0].close_requested().await;
        drop(requests);
        assert_eq!(all.make_room(), 2, "of 30");
    }

    #[tokio::test(start_paused = true)]
    async fn then_the_oldest_socket_of_the_largest_identity_is_closed() {
        let all = OpenSockets::new(16, 16, 16);
        let sockets: Vec<_> = (0..16).map(|_| all.add()).collect();
        let (few, many) = (named("few"), named("many"));
        let who = |number: usize| if number < 2 { &few } else { &many };
        let mut requests: Vec<_> =
            sockets.iter().enumerate().map(|(number, socket)| socket.begin(who(number)).unwrap()).collect();
        let mut closed = 2;
        for count in [6, 3, 2, 1] {
            assert_eq!(all.make_room(), count, "half of the excess over two");
            for socket in &sockets[closed..closed + count] {
                socket.close_requested().await;
            }
            closed += count;
        }
        assert_eq!(all.make_room(), 0, "no identity has a large share");
        requests.clear();
        assert_eq!(all.make_room(), 1, "the sockets are idle");
        sockets[0].close_requested().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_identity_has_a_limited_number_of_sockets() {
        let all = OpenSockets::new(10, 2, 10);
        let [first, second, third] = [(); 3].map(|()| all.add());
        let (one, other) = (named("one"), named("other"));
        drop(first.begin(&one).unwrap());
        // Further requests on a socket count no further socket, and a socket stays with the identity of its
        // first request.
        let requests = [first.begin(&one), first.begin(&other), second.begin(&one)].map(Result::unwrap);
        assert_eq!(third.begin(&one).err(), Some(Denied::TooManySockets));
        assert!(!third.is_known());
        drop((requests, first));
        drop(third.begin(&one).unwrap());
        let fourth = all.add();
        assert_eq!(fourth.begin(&one).err(), Some(Denied::TooManySockets));
        drop(fourth.begin(&other).unwrap());
        drop((second, third, fourth));
        all.with(|table| assert!(table.counts.is_empty()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_becomes_free_when_a_socket_can_be_closed() {
        let all = OpenSockets::new(1, 1, 1);
        let refusals = RefusalStats::default();
        let taken = all.acquire(&refusals).await.unwrap();
        let mut waiting = pin!(all.acquire(&refusals));
        assert!(waiting.as_mut().now_or_never().is_none());
        let socket = all.add();
        assert!(waiting.as_mut().now_or_never().is_none());
        socket.close_requested().await;
        drop(taken);
        drop(waiting.await.unwrap());
        assert_eq!(refusals.all().into_iter().find(|(name, _)| *name == "crowd"), Some(("crowd", 1)));
    }

    #[tokio::test(start_paused = true)]
    async fn closed_sockets_are_logged_at_an_interval() {
        let all = OpenSockets::new(100, 100, 100);
        let sockets: Vec<_> = (0..100).map(|_| all.add()).collect();
        (0..50).for_each(|_| assert_eq!(all.make_room(), 1));
        assert_eq!(all.with(|table| table.closed), 49, "the first is logged, the others are counted");
        tokio::time::advance(LOG_INTERVAL).await;
        assert_eq!(all.make_room(), 1);
        assert_eq!(all.with(|table| table.closed), 0);
        drop(sockets);
        assert_eq!(all.make_room(), 0);
    }
}
