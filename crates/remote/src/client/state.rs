//! Whether a connection stands, or is lost and tried to be had again.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

/// A time without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Since when it is lost.
    pub since: Instant,
    /// Until when it is tried to have it again.
    pub until: Instant,
}

/// Whether a connection stands, for whoever wants to tell of it.
#[derive(Clone, Debug)]
pub struct ConnectionState(watch::Receiver<State>);

impl ConnectionState {
    /// The time without a connection, if it is lost now.
    #[must_use]
    pub fn gap(&self) -> Option<Outage> {
        self.0.borrow().gap
    }
}

/// How many parts of a connection are lost, and since when one is.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    lost: usize,
    gap: Option<Outage>,
}

/// Where the parts of a connection say that they are lost.
#[derive(Clone, Debug)]
pub(super) struct Watch(Arc<watch::Sender<State>>);

impl Watch {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(State::default())))
    }

    pub(super) fn standing(&self) -> ConnectionState {
        ConnectionState(self.0.subscribe())
    }

    /// A part is lost for as long as the answer is held.
    pub(super) fn lost(&self, since: Instant, until: Instant) -> WaitTimeout {
        self.0.send_modify(|state| {
            state.lost += 1;
            // The first to give up ends all of it.
            let gap = state.gap.get_or_insert(Outage { since, until });
            gap.until = gap.until.min(until);
        });
        WaitTimeout(self.clone())
    }
}

/// One part that is lost.
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
