//! Limits the memory of messages that the backend does not have yet, most of them incomplete: of all clients, and of
//! each identity.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use narrows_base::sync::lock;
use tokio::sync::Notify;

use super::HttpLimits;
use crate::identity::Identity;

/// Uncounted bytes for one message of each socket, so that short messages get through when there is no room.
pub(super) const FREE_BYTES: usize = 16 << 10;

/// Average rate at which a counted message must arrive.
const MIN_BYTES_PER_SECOND: u64 = 64 << 10;

/// Returns the time for a message of this size, in addition to the timeout for each part of the message.
pub(super) fn time_for(bytes: usize) -> Duration {
    Duration::from_millis(bytes as u64 * 1000 / MIN_BYTES_PER_SECOND)
}

#[derive(Debug)]
pub(super) struct Unfinished {
    all: usize,
    each: usize,
    held: Mutex<Held>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    by_identity: HashMap<String, usize>,
}

impl Unfinished {
    pub(super) fn new(limits: &HttpLimits) -> Arc<Self> {
        let each = limits.unfinished_per_identity.max(limits.max_message);
        let all = limits.unfinished.max(each);
        Arc::new(Self { all, each, held: Mutex::default(), freed: Notify::new() })
    }

    pub(super) fn part(self: &Arc<Self>, identity: &Identity) -> MessageMemory {
        self.part_on(identity, &FreeAllowance::default())
    }

    /// Returns a memory counter for a message of `identity`. The socket of the message has this allowance.
    pub(super) fn part_on(self: &Arc<Self>, identity: &Identity, allowance: &FreeAllowance) -> MessageMemory {
        let free = allowance.acquire();
        MessageMemory { of: Arc::clone(self), identity: identity.to_string(), bytes: 0, free }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Held) -> T) -> T {
        act(&mut lock(&self.held))
    }
}

/// The right of one socket to [`FREE_BYTES`]. One message has it at a time, because an HTTP/2 socket carries
/// hundreds of messages.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeAllowance(Arc<AtomicBool>);

impl FreeAllowance {
    fn acquire(&self) -> Option<FreeGuard> {
        (!self.0.swap(true, Ordering::Relaxed)).then(|| FreeGuard(Arc::clone(&self.0)))
    }
}

#[derive(Debug)]
struct FreeGuard(Arc<AtomicBool>);

impl Drop for FreeGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The memory that one message uses, released on drop.
#[derive(Debug)]
pub(super) struct MessageMemory {
    of: Arc<Unfinished>,
    identity: String,
    bytes: usize,
    /// `None` if another message on the socket has the allowance.
    free: Option<FreeGuard>,
}

impl MessageMemory {
    /// Changes the size. Returns `false` and changes nothing if there is no room.
    pub(super) fn resize(&mut self, bytes: usize) -> bool {
        self.change(bytes, false)
    }

    /// Changes the size even if there is no room, for bytes that are in memory already.
    pub(super) fn set(&mut self, bytes: usize) {
        self.change(bytes, true);
    }

    fn change(&mut self, bytes: usize, may_exceed: bool) -> bool {
        let bytes = if bytes <= FREE_BYTES && self.free.is_some() { 0 } else { bytes };
        if bytes == self.bytes {
            return true;
        }
        let Self { of, identity, bytes: before, .. } = self;
        let done = of.with(|held| {
            let own = held.by_identity.get(identity.as_str()).copied().unwrap_or_default();
            let (all, own) = (held.bytes - *before + bytes, own - *before + bytes);
            if !may_exceed && bytes > *before && (all > of.all || own > of.each) {
                return false;
            }
            held.bytes = all;
            match own {
                0 => drop(held.by_identity.remove(identity.as_str())),
                _ => drop(held.by_identity.insert(identity.clone(), own)),
            }
            true
        });
        if done {
            let is_less = bytes < *before;
            *before = bytes;
            if is_less {
                of.freed.notify_waiters();
            }
        }
        done
    }

    /// Waits until there is room, and changes the size.
    pub(super) async fn grow(&mut self, bytes: usize) {
        let of = Arc::clone(&self.of);
        loop {
            let mut freed = std::pin::pin!(of.freed.notified());
            freed.as_mut().enable();
            if self.resize(bytes) {
                return;
            }
            freed.await;
        }
    }
}

#[cfg(test)]
impl MessageMemory {
    pub(super) fn held(&self) -> usize {
        self.of.with(|held| held.by_identity.get(&self.identity).copied().unwrap_or_default())
    }
}

impl Drop for MessageMemory {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::identity::Proof;

    fn named(name: &str) -> Identity {
        Identity::new(Proof::Token, name)
    }

    const MIB: usize = 1 << 20;

    fn with_max_message(max_message: usize) -> Arc<Unfinished> {
        Unfinished::new(&HttpLimits { max_message, ..HttpLimits::default() })
    }

    #[test]
    fn each_identity_has_its_own_bound_and_all_have_one() {
        let all = with_max_message(16 * MIB);
        let (mut one, mut other) = (all.part(&named("a")), all.part(&named("a")));
        assert!(one.resize(60 * MIB) && other.resize(4 * MIB));
        assert!(!other.resize(5 * MIB) && !one.resize(61 * MIB));
        assert!(other.resize(FREE_BYTES), "a short message always fits");
        assert!(one.resize(64 * MIB));
        let mut others = ["b", "c", "d"].map(|name| all.part(&named(name)));
        assert!(others.iter_mut().all(|part| part.resize(64 * MIB)));
        let mut last = all.part(&named("e"));
        assert!(!last.resize(MIB) && last.resize(FREE_BYTES));
        drop(others);
        assert!(last.resize(MIB));
        drop((one, other, last));
        all.with(|held| assert!(held.bytes == 0 && held.by_identity.is_empty(), "{held:?}"));
    }

    #[test]
    fn only_one_message_of_a_socket_is_not_counted() {
        let all = with_max_message(MIB);
        let allowance = FreeAllowance::default();
        let mut parts: Vec<MessageMemory> = (0..200).map(|_| all.part_on(&named("a"), &allowance)).collect();
        assert!(parts.iter_mut().all(|part| part.resize(FREE_BYTES)));
        assert_eq!(parts[0].held(), 199 * FREE_BYTES);
        drop(parts.remove(0));
        let mut next = all.part_on(&named("a"), &allowance);
        assert!(next.resize(FREE_BYTES));
        assert_eq!(next.held(), 199 * FREE_BYTES, "the allowance is free again");
        parts.clear();
        assert_eq!(next.held(), 0);
    }

    #[test]
    fn the_longest_message_always_fits() {
        let all = with_max_message(300 * MIB);
        assert!(all.part(&named("a")).resize(300 * MIB));
    }

    #[tokio::test]
    async fn a_waiting_message_continues_when_memory_is_free() {
        let all = with_max_message(MIB);
        let mut one = all.part(&named("a"));
        assert!(one.resize(64 * MIB));
        let mut other = all.part(&named("a"));
        let mut waiting = Box::pin(other.grow(MIB));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(one.resize(63 * MIB));
        waiting.await;
    }
}
