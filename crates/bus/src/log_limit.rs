//! Limits how often one kind of event is logged, so that a refused peer cannot fill the log.

use std::time::{Duration, Instant};

const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Counts events of one kind between two log lines.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    logged: Option<Instant>,
    count: u64,
}

impl LogLimit {
    /// Counts an event. If a log line is due, returns the number of events since the last line, including
    /// this event.
    pub(crate) fn count(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        let is_due = self.logged.is_none_or(|logged| now.saturating_duration_since(logged) >= LOG_INTERVAL);
        is_due.then(|| {
            self.logged = Some(now);
            std::mem::take(&mut self.count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_line_per_interval_and_it_counts_the_events_without_one() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        assert_eq!(limit.count(start), Some(1));
        for second in 0..59 {
            assert_eq!(limit.count(start + Duration::from_secs(second)), None);
        }
        assert_eq!(limit.count(start + LOG_INTERVAL), Some(60));
        assert_eq!(limit.count(start + LOG_INTERVAL), None);
    }
}
