//! A shared budget for unfinished input lines of many links.
//!
//! Each link may buffer one long line. Without a shared limit, clients could start long lines on many links
//! and never end them, and each link would hold a line of the maximum length. If the budget is exceeded,
//! the longest unfinished line is abandoned. This affects the client that holds most, not the one that
//! sends next.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use narrows_base::sync::lock;
use tokio::sync::Notify;

/// Bytes per link that are not counted, so that short lines work even if the budget is used up.
const FREE_BYTES: usize = 16 << 10;

/// Limits of buffered unfinished input: for all links together, and for each identity.
#[derive(Debug)]
pub struct InputBudget {
    max: usize,
    max_per_identity: usize,
    held: Mutex<BudgetUse>,
}

#[derive(Debug, Default)]
struct BudgetUse {
    next: u64,
    bytes: usize,
    by_identity: HashMap<Arc<str>, usize>,
    links: HashMap<u64, HeldLine>,
}

#[derive(Debug)]
struct HeldLine {
    identity: Arc<str>,
    /// Bytes of the unfinished line that count towards the budget.
    bytes: usize,
    over: Arc<AbandonSignal>,
}

/// Wakes a link that must abandon its line.
#[derive(Debug, Default)]
struct AbandonSignal {
    is_set: AtomicBool,
    changed: Notify,
}

impl InputBudget {
    /// Creates a budget of `max` bytes in total and `max_per_identity` bytes per identity.
    #[must_use]
    pub fn new(max: usize, max_per_identity: usize) -> Arc<Self> {
        Arc::new(Self { max: max.max(max_per_identity), max_per_identity, held: Mutex::default() })
    }

    /// Returns the share of a new link of `identity`.
    #[must_use]
    pub fn share(self: &Arc<Self>, identity: &str) -> InputShare {
        let mut held = lock(&self.held);
        let number = held.next;
        held.next += 1;
        let over = Arc::new(AbandonSignal::default());
        let line = HeldLine { identity: identity.into(), bytes: 0, over: Arc::clone(&over) };
        held.links.insert(number, line);
        InputShare { budget: Arc::clone(self), number, over }
    }
}

impl BudgetUse {
    fn set(&mut self, number: u64, bytes: usize) {
        let Some(line) = self.links.get_mut(&number) else { return };
        let before = std::mem::replace(&mut line.bytes, bytes);
        self.bytes = self.bytes - before + bytes;
        let own = self.by_identity.entry(Arc::clone(&line.identity)).or_default();
        *own = *own - before + bytes;
        if *own == 0 {
            self.by_identity.remove(&line.identity);
        }
    }

    /// Abandons the longest line: of `identity` if given, otherwise of all links.
    fn abandon_longest(&mut self, identity: Option<&str>) {
        let is_meant = |line: &HeldLine| identity.is_none_or(|identity| *line.identity == *identity);
        let longest = self.links.iter().filter(|(_, line)| is_meant(line)).max_by_key(|(_, line)| line.bytes);
        let Some((number, line)) = longest else { return };
        let (number, over) = (*number, Arc::clone(&line.over));
        tracing::warn!(identity = &*line.identity, bytes = line.bytes, "unfinished input over the limit");
        self.set(number, 0);
        over.is_set.store(true, Ordering::Relaxed);
        over.changed.notify_one();
    }
}

/// The bytes of an [`InputBudget`] that one link uses. A drop returns them.
#[derive(Debug)]
pub struct InputShare {
    budget: Arc<InputBudget>,
    number: u64,
    over: Arc<AbandonSignal>,
}

impl InputShare {
    /// Sets the size of the unfinished line. If that exceeds the budget, the longest line of any link is
    /// abandoned.
    pub(crate) fn set(&self, bytes: usize) {
        let bytes = if bytes <= FREE_BYTES { 0 } else { bytes };
        if bytes == 0 {
            // The line to abandon has ended. The signal must not affect the next line.
            self.over.is_set.store(false, Ordering::Relaxed);
        }
        let InputBudget { max, max_per_identity, held } = &*self.budget;
        let mut held = lock(held);
        let Some(line) = held.links.get(&self.number).filter(|line| line.bytes != bytes) else { return };
        let identity = Arc::clone(&line.identity);
        held.set(self.number, bytes);
        while held.by_identity.get(&identity).is_some_and(|own| own > max_per_identity) {
            held.abandon_longest(Some(&identity));
        }
        while held.bytes > *max {
            held.abandon_longest(None);
        }
    }

    /// Waits until the unfinished line must be abandoned. Cancel-safe.
    pub(crate) async fn abandon_requested(&self) {
        while !self.over.is_set.swap(false, Ordering::Relaxed) {
            self.over.changed.notified().await;
        }
    }
}

impl Drop for InputShare {
    fn drop(&mut self) {
        let mut held = lock(&self.budget.held);
        held.set(self.number, 0);
        held.links.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::{Link, Options};

    const MIB: usize = 1 << 20;

    fn held(budget: &InputBudget) -> usize {
        lock(&budget.held).bytes
    }

    #[test]
    fn the_longest_line_is_abandoned_first() {
        let budget = InputBudget::new(4 * MIB, 2 * MIB);
        let (one, other) = (budget.share("a"), budget.share("a"));
        one.set(3 * MIB / 2);
        other.set(FREE_BYTES);
        assert_eq!(held(&budget), 3 * MIB / 2, "short lines are not counted");
        other.set(MIB);
        assert_eq!(held(&budget), MIB, "the longer line of the identity was abandoned");
        let others = ["b", "c", "d"].map(|name| budget.share(name));
        others[0].set(3 * MIB / 2);
        others[1].set(3 * MIB / 2);
        assert_eq!(held(&budget), 4 * MIB);
        others[2].set(MIB);
        assert!(held(&budget) <= 4 * MIB);
        drop((one, other, others));
        let held = lock(&budget.held);
        assert!(held.bytes == 0 && held.by_identity.is_empty() && held.links.is_empty(), "{held:?}");
    }

    fn link(share: InputShare) -> (Link, tokio::io::DuplexStream) {
        let (near, far) = tokio::io::duplex(64 << 10);
        let (reader, writer) = tokio::io::split(near);
        let link = crate::stream(reader, writer, &Options::default());
        link.limit_input(share);
        (link, far)
    }

    #[tokio::test]
    async fn unfinished_lines_stay_within_the_budget_and_their_links_work() {
        let budget = InputBudget::new(4 * MIB, 4 * MIB);
        let mut links: Vec<_> = (0..8).map(|_| link(budget.share("a"))).collect();
        for (_, far) in &mut links {
            far.write_all(br#"{"jsonrpc":"2.0","id":7,"method":"x","params":{"a":""#).await.unwrap();
            for _ in 0..16 {
                far.write_all(&[b'x'; 64 << 10]).await.unwrap();
            }
            assert!(held(&budget) <= 4 * MIB, "{}", held(&budget));
        }
        let mut refused = 0;
        for (link, far) in &mut links {
            far.write_all(b"\"}}\n{\"jsonrpc\":\"2.0\",\"method\":\"y\"}\n").await.unwrap();
            let first = link.receiver.recv().await.unwrap();
            if let Some(refusal) = first.refusal() {
                assert!(String::from_utf8_lossy(&refusal).contains("\"id\":7"), "{refusal:?}");
                refused += 1;
            }
            assert_eq!(link.receiver.recv().await.unwrap().method().as_deref(), Some("y"));
        }
        assert!((4..8).contains(&refused), "{refused}");
        assert_eq!(held(&budget), 0);
    }
}
