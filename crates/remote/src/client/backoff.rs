//! Delays between connection attempts.

use std::time::Duration;

use super::DialError;

const FIRST_DELAY: Duration = Duration::from_millis(100);

const MAX_DELAY: Duration = Duration::from_secs(5);

/// Exponential delays, each randomly shortened by up to half, so that the clients of one server do not reconnect in
/// step.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { next: FIRST_DELAY }
    }

    /// Returns the current delay, and doubles the delay for the next call.
    pub(super) fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(MAX_DELAY);
        wait.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// Returns the delay before the first reconnect: zero, unless the lost connection had carried nothing.
    pub(super) fn after_loss(&mut self, was_of_use: bool) -> Duration {
        if !was_of_use {
            return self.next();
        }
        *self = Self::new();
        Duration::ZERO
    }

    /// Returns the delay after a failed attempt: a little more than the server's `Retry-After`, or the next
    /// delay. `left` is the time left for all attempts, and `attempt` the timeout of one attempt. A longer
    /// `Retry-After` is shortened, so that one last attempt fits into `left`.
    pub(super) fn after_failure(
        &mut self,
        failed: &DialError,
        left: Duration,
        attempt: Duration,
    ) -> Duration {
        let wait = self.next();
        match failed.retry_after() {
            Some(asked) => wait.max(asked.saturating_add(wait).min(left.saturating_sub(attempt))),
            None => wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_useful_connection_is_reopened_without_delay() {
        let mut backoff = Backoff::new();
        assert_eq!(backoff.after_loss(true), Duration::ZERO);
        let waits = [(); 3].map(|()| backoff.after_loss(false));
        assert!(waits[0] >= FIRST_DELAY / 2 && waits[2] >= FIRST_DELAY * 2, "{waits:?}");
        assert_eq!(backoff.after_loss(true), Duration::ZERO);
        assert!(backoff.after_loss(false) <= FIRST_DELAY);
    }

    #[test]
    fn retry_after_is_honored() {
        let seconds = Duration::from_secs;
        let check = |after: Option<u64>, left: u64, least: Duration, most: Duration| {
            let failed = DialError::Status { status: 429, words: None, after: after.map(seconds) };
            let wait = Backoff::new().after_failure(&failed, seconds(left), seconds(10));
            assert!(wait >= least && wait <= most, "{after:?} {left}: {wait:?}");
        };
        check(Some(7), 300, seconds(7), seconds(7) + FIRST_DELAY);
        check(Some(0), 300, FIRST_DELAY / 2, FIRST_DELAY);
        check(None, 300, FIRST_DELAY / 2, FIRST_DELAY);
        check(Some(1000), 300, seconds(290), seconds(290));
        check(Some(u64::MAX), 5, FIRST_DELAY / 2, FIRST_DELAY);
    }

    #[test]
    fn delays_grow_to_a_maximum() {
        let mut backoff = Backoff::new();
        let waits: Vec<Duration> = (0..10).map(|_| backoff.next()).collect();
        for (wait, most) in waits.iter().zip([100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000, 5000]) {
            let most = Duration::from_millis(most);
            assert!(*wait >= most / 2 && *wait <= most, "{wait:?} {most:?}");
        }
    }
}
