//! Slots of clients: bounds their number in total and for each identity.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use narrows_base::sync::lock;
use tokio::sync::Notify;
use tokio::time::timeout;

/// The time that a client waits for a slot, until another client disconnects.
const SLOT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Slots {
    max: usize,
    max_per_identity: usize,
    taken: Mutex<SlotUse>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct SlotUse {
    all: usize,
    by_identity: HashMap<String, usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSlot {
    All,
    Identity,
}

/// The slot of a client. Released when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    identity: String,
}

impl Slots {
    /// Creates `max` slots. With `has_others`, no identity can take all slots.
    pub(super) fn new(max: usize, has_others: bool) -> Arc<Self> {
        let kept = if has_others && max > 1 { (max / 4).max(1) } else { 0 };
        Arc::new(Self { max, max_per_identity: max - kept, taken: Mutex::default(), freed: Notify::new() })
    }

    pub(super) fn max(&self) -> usize {
        self.max
    }

    pub(super) fn acquire(self: &Arc<Self>, identity: &str) -> Result<Slot, NoSlot> {
        let mut taken = self.usage();
        // Checked first, so that an identity over its limit learns nothing about the other identities.
        if taken.by_identity.get(identity).is_some_and(|count| *count >= self.max_per_identity) {
            return Err(NoSlot::Identity);
        }
        if taken.all >= self.max {
            return Err(NoSlot::All);
        }
        taken.all += 1;
        *taken.by_identity.entry(identity.to_owned()).or_default() += 1;
        Ok(Slot { slots: Arc::clone(self), identity: identity.to_owned() })
    }

    /// Waits a limited time for a slot.
    pub(super) async fn wait_for_slot(self: &Arc<Self>, identity: &str) -> Result<Slot, NoSlot> {
        let wait = async {
            loop {
                let freed = self.freed.notified();
                tokio::pin!(freed);
                freed.as_mut().enable();
                if let Ok(slot) = self.acquire(identity) {
                    return slot;
                }
                freed.await;
            }
        };
        timeout(SLOT_TIMEOUT, wait).await.map_err(|_| NoSlot::All)
    }

    fn usage(&self) -> MutexGuard<'_, SlotUse> {
        lock(&self.taken)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.usage();
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
        let of_one: Vec<Slot> = (0..6).map(|_| slots.acquire("token:mal").expect("a free slot")).collect();
        assert_eq!(slots.acquire("token:mal").err(), Some(NoSlot::Identity));
        let alice = slots.acquire("token:alice").expect("a free slot");
        let _bob = slots.acquire("token:bob").expect("a free slot");
        assert_eq!(slots.acquire("token:carol").err(), Some(NoSlot::All));
        drop(alice);
        assert!(slots.acquire("token:carol").is_ok());
        drop(of_one);
        assert!(slots.usage().by_identity.keys().eq(["token:bob"]));
        assert_eq!(slots.usage().all, 1);
    }

    #[test]
    fn without_other_identities_one_may_use_all_slots() {
        for (max, has_others, expected) in [(4, false, 4), (1, true, 1), (2, true, 1), (64, true, 48)] {
            assert_eq!(Slots::new(max, has_others).max_per_identity, expected, "{max}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_when_a_slot_is_free() {
        let slots = Slots::new(1, false);
        let first = slots.acquire("a").expect("a free slot");
        let waiting = tokio::spawn({
            let slots = Arc::clone(&slots);
            async move { slots.wait_for_slot("b").await.is_ok() }
        });
        tokio::task::yield_now().await;
        drop(first);
        assert!(waiting.await.expect("no panic"));
        let _held = slots.acquire("c").expect("the slot is free again");
        assert!(slots.wait_for_slot("d").await.is_err(), "not for ever");
    }
}
