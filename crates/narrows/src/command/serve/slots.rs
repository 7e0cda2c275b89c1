//! How many clients there may be at once, and how many of them may be of one identity.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use narrows_base::sync::lock;
use tokio::sync::Notify;
use tokio::time::timeout;

/// How long the end of another client is waited for.
const ROOM_TIMEOUT: Duration = Duration::from_secs(10);

/// The slots of all clients.
#[derive(Debug)]
pub(super) struct Slots {
    max: usize,
    max_per_identity: usize,
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_identity: HashMap<String, usize>,
}

/// The reason why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// All are taken.
    All,
    /// The identity has its share.
    Identity,
}

/// The slot of a client, until this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    identity: String,
}

impl Slots {
    /// `max` slots. Where others may come as well, one identity never has all of them.
    pub(super) fn new(max: usize, has_others: bool) -> Arc<Self> {
        let kept = if has_others && max > 1 { (max / 4).max(1) } else { 0 };
        Arc::new(Self { max, max_per_identity: max - kept, taken: Mutex::default(), freed: Notify::new() })
    }

    /// The number of all slots.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// A slot for a client of this identity.
    pub(super) fn take_for(self: &Arc<Self>, identity: &str) -> Result<Slot, Full> {
        let mut taken = self.taken();
        // Whoever has its share is told so, whether there is room for others or not.
        if taken.by_identity.get(identity).is_some_and(|count| *count >= self.max_per_identity) {
            return Err(Full::Identity);
        }
        if taken.all >= self.max {
            return Err(Full::All);
        }
        taken.all += 1;
        *taken.by_identity.entry(identity.to_owned()).or_default() += 1;
        Ok(Slot { slots: Arc::clone(self), identity: identity.to_owned() })
    }

    /// The same, waiting for one that is about to be free.
    pub(super) async fn take_later(self: &Arc<Self>, identity: &str) -> Result<Slot, Full> {
        let wait = async {
            loop {
                let freed = self.freed.notified();
                tokio::pin!(freed);
                freed.as_mut().enable();
                if let Ok(slot) = self.take_for(identity) {
                    return slot;
                }
                freed.await;
            }
        };
        timeout(ROOM_TIMEOUT, wait).await.map_err(|_| Full::All)
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        lock(&self.taken)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken();
        taken.all -= 1;
        if let Some(count) = taken.by_identity.get_mut(&self.identity) {
            *count -= 1;
            if *count == 0 {
                taken.by_identity.remove(&self.identity);
            }
        }
        drop(taken);
        self.slots.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_identity_leaves_slots_for_others() {
        let slots = Slots::new(8, true);
        let of_one: Vec<Slot> = (0..6).map(|_| slots.take_for("token:mal").expect("free")).collect();
        assert_eq!(slots.take_for("token:mal").err(), Some(Full::Identity));
        let alice = slots.take_for("token:alice").expect("free");
        let _bob = slots.take_for("token:bob").expect("free");
        assert_eq!(slots.take_for("token:carol").err(), Some(Full::All));
        drop(alice);
        assert!(slots.take_for("token:carol").is_ok());
        drop(of_one);
        assert!(slots.taken().by_identity.keys().eq(["token:bob"]));
        assert_eq!(slots.taken().all, 1);
    }

    #[test]
    fn who_is_alone_has_all_slots() {
        for (max, has_others, expected) in [(4, false, 4), (1, true, 1), (2, true, 1), (64, true, 48)] {
            assert_eq!(Slots::new(max, has_others).max_per_identity, expected, "{max}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_that_becomes_free_is_waited_for() {
        let slots = Slots::new(1, false);
        let first = slots.take_for("a").expect("free");
        let waiting = tokio::spawn({
            let slots = Arc::clone(&slots);
            async move { slots.take_later("b").await.is_ok() }
        });
        tokio::task::yield_now().await;
        drop(first);
        assert!(waiting.await.expect("no panic"));
        let _held = slots.take_for("c").expect("free again");
        assert!(slots.take_later("d").await.is_err(), "not for ever");
    }
}
