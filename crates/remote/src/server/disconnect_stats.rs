//! Counts of lost sockets by outcome.

use std::sync::atomic::{AtomicU64, Ordering};

/// The outcome of a resumable connection or event stream that lost its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DisconnectOutcome {
    /// A socket was lost, or an event stream was cut.
    Broken,
    Resumed,
    /// The connection or stream could not be resumed without loss, because some messages are no longer kept.
    Gap,
    /// The grace period ended before the client returned.
    Expired,
}

const OUTCOMES: [(DisconnectOutcome, &str); 4] = [
    (DisconnectOutcome::Broken, "broken"),
    (DisconnectOutcome::Resumed, "resumed"),
    (DisconnectOutcome::Gap, "cursor_gap"),
    (DisconnectOutcome::Expired, "expired"),
];

#[derive(Debug, Default)]
pub(super) struct DisconnectStats([AtomicU64; OUTCOMES.len()]);

impl DisconnectStats {
    pub(super) fn add(&self, outcome: DisconnectOutcome) {
        self.0[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn all(&self) -> Vec<(&'static str, u64)> {
        OUTCOMES
            .iter()
            .map(|(outcome, name)| (*name, self.0[*outcome as usize].load(Ordering::Relaxed)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_its_own_counter() {
        let disconnects = DisconnectStats::default();
        for (number, (outcome, _)) in OUTCOMES.iter().enumerate() {
            assert_eq!(*outcome as usize, number);
            (0..=number).for_each(|_| disconnects.add(*outcome));
        }
        assert!(disconnects.all().iter().map(|(_, count)| *count).eq(1..=OUTCOMES.len() as u64));
    }
}
