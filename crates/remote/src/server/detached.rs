//! Detached connections, which are kept for their clients to resume. They are ended to make room for connected clients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use narrows_base::sync::lock;
use tokio::sync::Notify;
use tokio::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Detached(Mutex<Vec<DetachedConnection>>);

#[derive(Clone, Debug)]
pub(super) struct DetachedConnection {
    pub(super) identity: String,
    pub(super) since: Instant,
    /// Notified to end the connection.
    pub(super) end_signal: Arc<Notify>,
}

/// Registration of a detached connection, removed on drop.
#[derive(Debug)]
pub(super) struct Detachment {
    all: Arc<Detached>,
    end_signal: Arc<Notify>,
}

impl Detached {
    pub(super) fn add(self: &Arc<Self>, identity: String) -> Detachment {
        let end = Arc::new(Notify::new());
        let kept = DetachedConnection { identity, since: Instant::now(), end_signal: Arc::clone(&end) };
        self.with(|all| all.push(kept));
        Detachment { all: Arc::clone(self), end_signal: end }
    }

    /// Ends one connection to make room: the oldest of the identity `only`, or the oldest of the identity
    /// that has the most. `others` may be chosen too. Returns `false` if there is no connection to end.
    pub(super) fn end_one(&self, only: Option<&str>, others: &[DetachedConnection]) -> bool {
        self.with(|all| {
            let candidates = || all.iter().chain(others);
            let Some(end) = choose(candidates(), only) else { return false };
            end.notify_one();
            all.retain(|kept| !Arc::ptr_eq(&kept.end_signal, &end));
            true
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Vec<DetachedConnection>) -> T) -> T {
        act(&mut lock(&self.0))
    }
}

/// Chooses the oldest connection of the identity `only`, or of the identity that has the most connections.
fn choose<'a>(
    kept: impl Iterator<Item = &'a DetachedConnection> + Clone,
    only: Option<&str>,
) -> Option<Arc<Notify>> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for one in kept.clone() {
        *counts.entry(&one.identity).or_default() += 1;
    }
    let meant = kept.filter(|one| only.is_none_or(|only| one.identity == only));
    let first = meant.min_by_key(|one| {
        let count = counts.get(&*one.identity).copied().unwrap_or_default();
        (std::cmp::Reverse(count), one.since)
    });
    first.map(|one| Arc::clone(&one.end_signal))
}

impl Detachment {
    pub(super) async fn ended(&self) {
        self.end_signal.notified().await;
    }
}

impl Drop for Detachment {
    fn drop(&mut self) {
        self.all.with(|all| all.retain(|kept| !Arc::ptr_eq(&kept.end_signal, &self.end_signal)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_oldest_connection_of_the_largest_identity_makes_room_first() {
        let all = Arc::new(Detached::default());
        let mut kept = Vec::new();
        for name in ["b", "a", "a", "a"] {
            kept.push(all.add(name.to_owned()));
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
        }
        assert!(!all.end_one(Some("c"), &[]), "it has none");
        assert!(all.end_one(None, &[]));
        kept[1].ended().await;
        assert!(all.end_one(Some("b"), &[]));
        kept[0].ended().await;
        drop(kept);
        assert!(!all.end_one(None, &[]), "all connections were removed");
    }
}
