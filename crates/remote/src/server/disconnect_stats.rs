//! How often connections were broken, and what became of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// What can become of a connection that goes on over one socket or stream after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DisconnectOutcome {
    /// Its socket was lost, or a stream of its events was cut off.
    Broken,
    /// It goes on over another socket, or a stream behind the event that came last.
    Resumed,
    /// It could not, or not without saying so: something of it is no longer kept.
    Gap,
    /// Nobody has come back for it in time.
    Expired,
}

/// All of them, and how people call them.
const OUTCOMES: [(DisconnectOutcome, &str); 4] = [
    (DisconnectOutcome::Broken, "broken"),
    (DisconnectOutcome::Resumed, "resumed"),
    (DisconnectOutcome::Gap, "cursor_gap"),
    (DisconnectOutcome::Expired, "expired"),
];

/// How often each has.
#[derive(Debug, Default)]
pub(super) struct DisconnectStats([AtomicU64; OUTCOMES.len()]);

impl DisconnectStats {
    /// It has happened once more.
    pub(super) fn add(&self, fate: DisconnectOutcome) {
        self.0[fate as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// All of them, in an order that stays.
    pub(super) fn all(&self) -> Vec<(&'static str, u64)> {
        OUTCOMES.iter().map(|(fate, name)| (*name, self.0[*fate as usize].load(Ordering::Relaxed))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fate_has_its_own_place() {
        let disconnects = DisconnectStats::default();
        for (number, (fate, _)) in OUTCOMES.iter().enumerate() {
            assert_eq!(*fate as usize, number);
            (0..=number).for_each(|_| disconnects.add(*fate));
        }
        assert!(disconnects.all().iter().map(|(_, count)| *count).eq(1..=OUTCOMES.len() as u64));
    }
}
