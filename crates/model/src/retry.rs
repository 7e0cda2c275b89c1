//! Decides when a failed request is sent again.

use std::time::Duration;

use crate::{ErrorKind, Limits, ModelError};

/// Delay before the first retry. Doubled with every attempt.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay before a retry, unless the endpoint demands a longer one.
const MAX_DELAY: Duration = Duration::from_secs(30);
/// Time limit for repeated connection attempts, counted from the start of the first. An attempt that would
/// end later is not made.
pub(crate) const CONNECT_RETRY_TIMEOUT: Duration = Duration::from_secs(10);
/// Relative random variation of a delay. Clients that failed together should not retry together.
const JITTER: f64 = 0.2;

/// Returns the delay before the retry after attempt number `attempt` (from 1); `None` if the failure must be
/// reported.
///
/// `chance` is between 0 and 1. A delay that the endpoint demands is kept exactly. If that delay exceeds the
/// limit, the failure is reported, so that the user can decide.
pub(crate) fn delay(error: &ModelError, attempt: u32, limits: &Limits, chance: f64) -> Option<Duration> {
    // A timeout may take minutes, and a retry would make the user wait several times as long.
    if !error.retryable || error.shown || error.kind == ErrorKind::Timeout || attempt >= limits.attempts {
        return None;
    }
    match error.retry_after {
        Some(asked) => (asked <= limits.max_wait).then_some(asked),
        None => {
            let doublings = attempt.saturating_sub(1).min(5);
            let wait = FIRST_DELAY.saturating_mul(1 << doublings).min(MAX_DELAY);
            Some(wait.mul_f64(1.0 + JITTER * (2.0 * chance.clamp(0.0, 1.0) - 1.0)).min(limits.max_wait))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn failure(kind: ErrorKind, retryable: bool, retry_after: Option<u64>) -> ModelError {
        let mut error = ModelError::new(kind, "http://localhost/v1/chat/completions", "busy");
        error.retryable = retryable;
        error.retry_after = retry_after.map(Duration::from_millis);
        error
    }

    #[test]
    fn delays_double_up_to_a_limit() {
        let limits = Limits { attempts: 9, ..Limits::default() };
        let error = failure(ErrorKind::Server, true, None);
        let waits: Vec<_> =
            (1..=9).map(|attempt| delay(&error, attempt, &limits, 0.5).map(|wait| wait.as_secs())).collect();
        assert_eq!(
            waits,
            [Some(1), Some(2), Some(4), Some(8), Some(16), Some(30), Some(30), Some(30), None],
            "the ninth of nine attempts was the last"
        );
    }

    #[test]
    fn a_delay_requested_by_the_endpoint_takes_precedence() {
        let check = |error: &ModelError, attempt: u32, expected: Option<u64>| {
            let found = delay(error, attempt, &Limits::default(), 0.0);
            assert_eq!(found, expected.map(Duration::from_millis), "{error} at {attempt}");
        };
        check(&failure(ErrorKind::RateLimit, true, Some(300)), 1, Some(300));
        check(&failure(ErrorKind::RateLimit, true, Some(0)), 3, Some(0));
        check(&failure(ErrorKind::RateLimit, true, Some(60_000)), 1, Some(60_000));
        check(&failure(ErrorKind::RateLimit, true, Some(60_001)), 1, None);
        check(&failure(ErrorKind::RateLimit, true, Some(300)), 4, None);
        check(&failure(ErrorKind::Server, true, None), 1, Some(800));
        check(&failure(ErrorKind::Quota, false, Some(300)), 1, None);
        check(&failure(ErrorKind::Auth, false, None), 1, None);
        check(&failure(ErrorKind::Timeout, true, None), 1, None);
        check(&ModelError { shown: true, ..failure(ErrorKind::Cut, true, None) }, 1, None);
    }

    proptest! {
        #[test]
        fn a_delay_stays_within_its_bounds(attempt in 1u32..100, chance in -1.0f64..2.0, max in 0u64..100) {
            let limits = Limits { attempts: 100, max_wait: Duration::from_secs(max), ..Limits::default() };
            let wait = delay(&failure(ErrorKind::Server, true, None), attempt, &limits, chance).unwrap();
            prop_assert!(wait <= limits.max_wait);
            prop_assert!(wait <= MAX_DELAY.mul_f64(1.0 + JITTER));
            prop_assert!(wait >= FIRST_DELAY.mul_f64(1.0 - JITTER).min(limits.max_wait));
        }
    }
}
