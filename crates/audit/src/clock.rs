//! The wall clock, which may jump, and the monotonic clock.

use std::time::{Duration, Instant};

use jiff::Timestamp;

/// A wall clock and a monotonic clock.
pub trait Clock: Send + Sync {
    /// Returns the time of day.
    fn now(&self) -> Timestamp;
    /// Returns the time since the clock was created. The time never decreases.
    fn running(&self) -> Duration;
}

/// The wall clock and the monotonic clock of the system.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn running(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Minimum size of a reported jump. A drift of one thousandth of the passed time is tolerated in addition.
const MIN_JUMP_MS: i128 = 2_000;

/// Detects jumps of the wall clock by comparing it with the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct JumpDetector {
    last: Option<(i64, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockJump {
    /// Time that the monotonic clock predicts, in milliseconds since 1970.
    pub(crate) expected: i64,
    pub(crate) found: i64,
}

impl JumpDetector {
    /// Returns the wall clock time in milliseconds, and a jump since the last call. On the first call,
    /// reports a jump if `written`, the time of the last line in the log, is in the future.
    pub(crate) fn observe(&mut self, clock: &dyn Clock, written: Option<i64>) -> (i64, Option<ClockJump>) {
        let (found, running) = (clock.now().as_millisecond(), clock.running());
        let jump = match self.last {
            Some((then, since)) => {
                let passed = running.saturating_sub(since).as_millis();
                let expected = then.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX));
                let tolerance = MIN_JUMP_MS + i128::try_from(passed / 1000).unwrap_or(i128::MAX);
                let apart = (i128::from(found) - i128::from(expected)).abs();
                (apart > tolerance).then_some(ClockJump { expected, found })
            }
            None => written
                .filter(|&written| i128::from(written) - i128::from(found) > MIN_JUMP_MS)
                .map(|expected| ClockJump { expected, found }),
        };
        self.last = Some((found, running));
        (found, jump)
    }
}

/// Formats milliseconds since 1970 as an audit entry does.
pub(crate) fn format_timestamp(milliseconds: i64) -> String {
    let time = Timestamp::from_millisecond(milliseconds).unwrap_or(Timestamp::MAX);
    format!("{time:.3}")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    struct Fake(Mutex<(i64, u64)>);

    impl Clock for Fake {
        fn now(&self) -> Timestamp {
            Timestamp::from_millisecond(self.0.lock().expect("alive").0).expect("in range")
        }

        fn running(&self) -> Duration {
            Duration::from_millis(self.0.lock().expect("alive").1)
        }
    }

    #[test]
    fn a_jump_is_distinguished_from_elapsed_time() {
        const DAY: i64 = 86_400_000;
        let clock = Fake(Mutex::new((DAY, 0)));
        let mut watch = JumpDetector::default();
        let mut look = |wall: i64, running: u64| {
            *clock.0.lock().expect("alive") = (wall, running);
            watch.observe(&clock, Some(DAY)).1
        };
        assert_eq!(look(DAY, 0), None);
        assert_eq!(look(DAY + 1000, 1000), None);
        assert_eq!(look(DAY + 2500, 1000), None);
        assert_eq!(look(3 * DAY, 2000), Some(ClockJump { expected: DAY + 3500, found: 3 * DAY }));
        assert_eq!(look(3 * DAY + 1000, 3000), None);
        assert_eq!(look(2 * DAY, 3000), Some(ClockJump { expected: 3 * DAY + 1000, found: 2 * DAY }));
        // The wall clock is too slow by 30 seconds a day.
        assert_eq!(look(3 * DAY - 30_000, 3000 + DAY.unsigned_abs()), None);
    }

    #[test]
    fn a_log_from_the_future_is_a_jump() {
        let clock = Fake(Mutex::new((5_000, 0)));
        assert_eq!(JumpDetector::default().observe(&clock, Some(7_000)).1, None);
        let jump = Some(ClockJump { expected: 7_001, found: 5_000 });
        assert_eq!(JumpDetector::default().observe(&clock, Some(7_001)).1, jump);
        assert_eq!(JumpDetector::default().observe(&clock, None), (5_000, None));
    }

    #[test]
    fn times_have_milliseconds() {
        assert_eq!(format_timestamp(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(format_timestamp(1_731_693_600_120), "2024-11-15T18:00:00.120Z");
    }
}
