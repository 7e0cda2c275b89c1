//! How long to wait before the next attempt.

use std::time::Duration;

use super::DialError;

/// The first wait.
const FIRST_DELAY: Duration = Duration::from_millis(100);

/// The longest.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// Waits that double, each up to half shorter by chance: many clients of one server must not come back at once.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { next: FIRST_DELAY }
    }

    /// The next wait.
    pub(super) fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(MAX_DELAY);
        wait.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// The wait before the first attempt to have something again: none, unless what was lost was of no use.
    pub(super) fn first(&mut self, was_of_use: bool) -> Duration {
        if !was_of_use {
            return self.next();
        }
        *self = Self::new();
        Duration::ZERO
    }

    /// The next wait after an attempt that came to nothing: as long as the server wants to be left alone, if it says so, and a little
    /// longer by chance. There are `left` for all attempts; where it wants more, the last is made while there is time for one, which may
    /// take `attempt`.
    pub(super) fn after(&mut self, failed: &DialError, left: Duration, attempt: Duration) -> Duration {
        let wait = self.next();
        match failed.after() {
            Some(asked) => wait.max(asked.saturating_add(wait).min(left.saturating_sub(attempt))),
            None => wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_of_use_is_had_again_at_once() {
        let mut backoff = Backoff::new();
        assert_eq!(backoff.first(true), Duration::ZERO);
        let waits = [(); 3].map(|()| backoff.first(false));
        assert!(waits[0] >= FIRST_DELAY / 2 && waits[2] >= FIRST_DELAY * 2, "{waits:?}");
        assert_eq!(backoff.first(true), Duration::ZERO);
        assert!(backoff.first(false) <= FIRST_DELAY);
    }

    #[test]
    fn who_wants_to_be_left_alone_is() {
        let seconds = Duration::from_secs;
        let check = |after: Option<u64>, left: u64, least: Duration, most: Duration| {
            let failed = DialError::Status { status: 429, words: None, after: after.map(seconds) };
            let wait = Backoff::new().after(&failed, seconds(left), seconds(10));
            assert!(wait >= least && wait <= most, "{after:?} {left}: {wait:?}");
        };
        check(Some(7), 300, seconds(7), seconds(7) + FIRST_DELAY);
        check(Some(0), 300, FIRST_DELAY / 2, FIRST_DELAY);
        check(None, 300, FIRST_DELAY / 2, FIRST_DELAY);
        check(Some(1000), 300, seconds(290), seconds(290));
        check(Some(u64::MAX), 5, FIRST_DELAY / 2, FIRST_DELAY);
    }

    #[test]
    fn waits_grow_to_a_bound() {
        let mut backoff = Backoff::new();
        let waits: Vec<Duration> = (0..10).map(|_| backoff.next()).collect();
        for (wait, most) in waits.iter().zip([100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000, 5000]) {
            let most = Duration::from_millis(most);
            assert!(*wait >= most / 2 && *wait <= most, "{wait:?} {most:?}");
        }
    }
}
