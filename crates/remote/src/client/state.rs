//! The state of a connection: up, or lost and reconnecting.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

/// A period in which the connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    pub since: Instant,
    /// The deadline for reconnecting.
    pub until: Instant,
}

/// Shows whether a connection is up, for progress notices.
#[derive(Clone, Debug)]
pub struct ConnectionState(watch::Receiver<State>);

impl ConnectionState {
    /// Returns the current outage, if there is one.
    #[must_use]
    pub fn outage(&self) -> Option<Outage> {
        self.0.borrow().outage
    }
}

/// The number of lost parts of a connection, and the outage since the first loss.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    lost: usize,
    outage: Option<Outage>,
}

/// Records which parts of a connection are lost.
#[derive(Clone, Debug)]
pub(super) struct OutageTracker(Arc<watch::Sender<State>>);

impl OutageTracker {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(State::default())))
    }

    pub(super) fn state(&self) -> ConnectionState {
        ConnectionState(self.0.subscribe())
    }

    /// Records a lost part until the returned guard is dropped.
    pub(super) fn record_loss(&self, since: Instant, until: Instant) -> LossGuard {
        self.0.send_modify(|state| {
            state.lost += 1;
            // When several parts are lost, the earliest deadline ends the whole connection.
            let outage = state.outage.get_or_insert(Outage { since, until });
            outage.until = outage.until.min(until);
        });
        LossGuard(self.clone())
    }
}

/// One lost part of a connection. Dropping the guard records that this part is no longer lost.
#[derive(Debug)]
pub(super) struct LossGuard(OutageTracker);

impl Drop for LossGuard {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| {
            state.lost = state.lost.saturating_sub(1);
            if state.lost == 0 {
                state.outage = None;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_connection_is_lost_until_all_of_it_is_back() {
        let (tracker, now) = (OutageTracker::new(), Instant::now());
        let (state, second) = (tracker.state(), Duration::from_secs(1));
        assert_eq!(state.outage(), None);
        let first = tracker.record_loss(now, now + 9 * second);
        let other = tracker.record_loss(now + second, now + 7 * second);
        let outage = Some(Outage { since: now, until: now + 7 * second });
        assert_eq!(state.outage(), outage);
        drop(first);
        assert_eq!(state.outage(), outage);
        drop(other);
        assert_eq!(state.outage(), None);
    }
}
