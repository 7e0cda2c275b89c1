//! Logs the stderr of running workers, if the log target is enabled.

use std::time::Duration;

use narrows_process::StderrTail;
use tokio::time::sleep;

/// The log target of worker stderr. `--log narrows_bus::worker=debug` enables it.
const TARGET: &str = "narrows_bus::worker";
/// Maximum number of lines that are logged per worker between two pauses.
const MAX_BURST_LINES: usize = 50;
const BURST_PAUSE: Duration = Duration::from_millis(250);
const MAX_LINE_CHARS: usize = 1000;

pub(super) fn is_wanted() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::DEBUG)
}

/// The stderr of a worker, and the offset up to which it was logged.
pub(super) struct StderrLog {
    pub(super) pool: String,
    pub(super) worker: u32,
    pub(super) stderr: StderrTail,
    told: u64,
}

impl StderrLog {
    pub(super) fn new(pool: String, worker: u32, stderr: StderrTail) -> Self {
        Self { pool, worker, stderr, told: 0 }
    }

    /// Logs each line of stderr as it arrives. Cancel-safe: [`Self::log_lines`] logs the rest.
    pub(super) async fn follow(&mut self) {
        let mut seen = 0;
        loop {
            self.stderr.grown(seen).await;
            seen = self.stderr.bytes_seen();
            self.log_lines();
            sleep(BURST_PAUSE).await;
        }
    }

    pub(super) fn log_lines(&mut self) {
        let (lines, next) = self.stderr.lines_after(self.told);
        self.told = next;
        let (pool, worker) = (&self.pool, self.worker);
        for line in lines.iter().take(MAX_BURST_LINES) {
            tracing::debug!(target: TARGET, pool, worker, "{}", short(line));
        }
        if lines.len() > MAX_BURST_LINES {
            let more = lines.len() - MAX_BURST_LINES;
            tracing::debug!(target: TARGET, pool, worker, more, "stderr lines skipped");
        }
    }
}

fn short(line: &str) -> &str {
    line.char_indices().nth(MAX_LINE_CHARS).map_or(line, |(at, _)| &line[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_between_characters() {
        assert_eq!(short("ä"), "ä");
        assert_eq!(short(&"ä".repeat(MAX_LINE_CHARS + 1)).chars().count(), MAX_LINE_CHARS);
    }
}
