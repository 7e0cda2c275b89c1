//! Limits the memory for replay: of all connections, and of each identity.
//!
//! A connection that exceeds the limit first drops messages that its client has probably received, then slows
//! its agent down. So the limit costs the ability to resume, but no message. When more than half of the
//! memory is in use, that half is divided equally among the identities: one that keeps more than its part
//! must free the excess, so that a few identities cannot use all of the memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use narrows_base::sync::lock;

use super::HttpLimits;
use crate::identity::Identity;

/// Bytes of each connection that do not count towards the limit.
const FREE_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct ReplayMemory {
    max: usize,
    max_per_identity: usize,
    all: AtomicUsize,
    by_identity: Mutex<HashMap<String, Arc<AtomicUsize>>>,
}

impl ReplayMemory {
    pub(super) fn new(limits: &HttpLimits) -> Arc<Self> {
        Arc::new(Self {
            max: limits.replay_memory,
            max_per_identity: limits.replay_memory_per_identity,
            all: AtomicUsize::new(0),
            by_identity: Mutex::default(),
        })
    }

    /// Returns the share of a new connection of `identity`.
    pub(super) fn share(self: &Arc<Self>, identity: &Identity) -> ReplayShare {
        let identity = identity.to_string();
        let one = self.with(|all| Arc::clone(all.entry(identity.clone()).or_default()));
        ReplayShare { of: Arc::clone(self), identity, one, bytes: 0 }
    }

    fn with<T>(&self, act: impl FnOnce(&mut HashMap<String, Arc<AtomicUsize>>) -> T) -> T {
        act(&mut lock(&self.by_identity))
    }
}

/// Bytes kept by one connection, released on drop.
#[derive(Debug)]
pub(super) struct ReplayShare {
    of: Arc<ReplayMemory>,
    identity: String,
    one: Arc<AtomicUsize>,
    bytes: usize,
}

impl ReplayShare {
    /// Sets the bytes of the connection. Returns by how much the limits are exceeded, at most `bytes`.
    pub(super) fn set(&mut self, bytes: usize) -> usize {
        let counted = bytes.saturating_sub(FREE_BYTES);
        let change = |held: &AtomicUsize| {
            held.fetch_add(counted, Ordering::Relaxed);
            held.fetch_sub(self.bytes, Ordering::Relaxed).wrapping_sub(self.bytes)
        };
        let (all, one) = (change(&self.of.all), change(&self.one));
        self.bytes = counted;
        let over = all.saturating_sub(self.of.max).max(one.saturating_sub(self.of.max_per_identity));
        over.max(self.over_equal_part(all, one)).min(counted)
    }

    /// Returns how many of its `one` bytes an identity must give up. Nothing if `all` bytes fill less than
    /// half of the memory.
    fn over_equal_part(&self, all: usize, one: usize) -> usize {
        let half = self.of.max / 2;
        let above_half = all.saturating_sub(half);
        if above_half == 0 {
            return 0;
        }
        match self.of.with(|all| all.len()) {
            0 | 1 => 0,
            identities => above_half.min(one.saturating_sub(half / identities)),
        }
    }
}

impl Drop for ReplayShare {
    fn drop(&mut self) {
        self.set(0);
        self.of.with(|all| {
            // One reference is in the map and one in this share, so the identity has no other connection.
            if Arc::strong_count(&self.one) == 2 {
                all.remove(&self.identity);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Proof;

    const MIB: usize = 1 << 20;

    fn named(name: &str) -> Identity {
        Identity::new(Proof::Token, name)
    }

    fn limited(max: usize, max_per_identity: usize) -> Arc<ReplayMemory> {
        let limits = HttpLimits {
            replay_memory: max,
            replay_memory_per_identity: max_per_identity,
            ..HttpLimits::default()
        };
        ReplayMemory::new(&limits)
    }

    #[test]
    fn identities_that_keep_much_give_memory_up_for_others() {
        let all = limited(8 * MIB, 2 * MIB);
        let mut many: Vec<_> = ["a", "b", "c"].map(|name| all.share(&named(name))).into();
        assert!(many[..2].iter_mut().all(|share| share.set(2 * MIB) == 0));
        let third = &mut many[2];
        assert_eq!(third.set(MIB), 0, "a third of the half is left");
        assert_eq!(third.set(2 * MIB), 2 * MIB - FREE_BYTES - 4 * MIB / 3);
        assert_eq!(third.set(MIB), 0);
        let mut few = all.share(&named("d"));
        assert_eq!(few.set(MIB), 0);
        // An identity is told to give up memory when it next changes its number of bytes.
        let given_up = many[0].set(2 * MIB);
        assert_eq!(given_up, MIB - FREE_BYTES);
        assert_eq!(many[0].set(2 * MIB - given_up), 0);
    }

    #[test]
    fn each_identity_has_its_own_limit_and_all_have_one() {
        let all = limited(6 * MIB, 4 * MIB);
        let (mut one, mut other) = (all.share(&named("a")), all.share(&named("a")));
        assert_eq!(one.set(3 * MIB + FREE_BYTES), 0);
        assert_eq!(other.set(FREE_BYTES), 0, "the free bytes are not counted");
        assert_eq!(other.set(2 * MIB + FREE_BYTES), MIB);
        assert_eq!(other.set(MIB + FREE_BYTES), 0);
        let mut third = all.share(&named("b"));
        assert_eq!(third.set(3 * MIB + FREE_BYTES), 3 * MIB / 2);
        drop((one, other));
        assert_eq!(third.set(3 * MIB + FREE_BYTES), 0);
        assert_eq!(all.with(|all| all.len()), 1);
        drop(third);
        assert_eq!((all.all.load(Ordering::Relaxed), all.with(|all| all.len())), (0, 0));
    }
}
