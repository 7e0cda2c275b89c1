//! The state of a connection: up, or lost and reconnecting.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

/// A period without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When the connection was lost.
    pub since: Instant,
    /// When reconnecting is given up.
    pub until: Instant,
}

/// Shows whether a connection is up, for progress notices.
#[derive(Clone, Debug)]
pub struct ConnectionState(watch::Receiver<State>);

impl ConnectionState {
    /// Returns the current outage, if there is one.
    #[must_use]
    pub fn gap(&self) -> Option<Outage> {
        self.0.borrow().gap
    }
}

/// The number of lost parts of a connection, and the outage since the first loss.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    lost: usize,
    gap: Option<Outage>,
}

/// Records which parts of a connection are lost.
#[derive(Clone, Debug)]
pub(super) struct Watch(Arc<watch::Sender<State>>);

impl Watch {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(State::default())))
    }

    pub(super) fn standing(&self) -> ConnectionState {
        ConnectionState(self.0.subscribe())
    }

    /// Records a lost part until the returned guard is dropped.
    pub(super) fn lost(&self, since: Instant, until: Instant) -> WaitTimeout {
        self.0.send_modify(|state| {
            state.lost += 1;
            // The earliest deadline ends the whole connection.
            let gap = state.gap.get_or_insert(Outage { since, until });
            gap.until = gap.until.min(until);
        });
        WaitTimeout(self.clone())
    }
}

/// A lost part of a connection.
#[derive(Debug)]
pub(super) struct WaitTimeout(Watch);

impl Drop for WaitTimeout {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| {
            state.lost = state.lost.saturating_sub(1);
            if state.lost == 0 {
                state.gap = None;
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
        let (watch, now) = (Watch::new(), Instant::now());
        let (standing, second) = (watch.standing(), Duration::from_secs(1));
        assert_eq!(standing.gap(), None);
        let first = watch.lost(now, now + 9 * second);
        let other = watch.lost(now + second, now + 7 * second);
        let gap = Some(Outage { since: now, until: now + 7 * second });
        assert_eq!(standing.gap(), gap);
        drop(first);
        assert_eq!(standing.gap(), gap);
        drop(other);
        assert_eq!(standing.gap(), None);
    }
}
