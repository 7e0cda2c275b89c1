//! The log on stderr, by default at level warn.
//!
//! A thread writes it, so that an unread stderr blocks nothing but the log.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

use crate::cli::LogFormat;
use crate::failure::Failure;
use crate::output;
use crate::terminal::line;

const TARGET_PREFIX: &str = "narrows";

/// Maximum number of lines that wait for the log thread. Further lines are dropped and counted.
const MAX_QUEUED_LINES: usize = 1024;

const MAX_LINE_BYTES: usize = 16 << 10;

/// The time for the log thread to write the remaining lines at exit, if stderr blocks.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(300);

static LINES: OnceLock<SyncSender<Entry>> = OnceLock::new();

static LOST_LINES: AtomicU64 = AtomicU64::new(0);

enum Entry {
    Line(Vec<u8>),
    /// A mark for [`finish`]: its sender is dropped once all earlier lines were written.
    Mark(#[expect(dead_code, reason = "the receiver uses only its drop")] SyncSender<()>),
}

/// Starts logging with `filter`, if given.
pub(crate) fn start(filter: Option<&str>, format: LogFormat) -> Result<(), Failure> {
    if let Some(word) = filter.and_then(unknown_word) {
        return Err(Failure::log_filter_invalid(&format!(
            "`{}` is neither a level nor a module of narrows",
            line(word)
        )));
    }
    // A program that reads the log also gets the notices that users see elsewhere.
    let usual = if format == LogFormat::Json { "info" } else { "warn" };
    let filter = EnvFilter::try_new(filter.unwrap_or(usual))
        .map_err(|error| Failure::log_filter_invalid(&line(&error.to_string())))?;
    let (sender, lines) = sync_channel(MAX_QUEUED_LINES);
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || write(&lines))
        .map_err(|error| Failure::setup("start the log", &error))?;
    let _ = LINES.set(sender);
    // Only the targets of this project are known not to log keys and prompts.
    let ours = filter_fn(|event| event.target().starts_with(TARGET_PREFIX));
    let lines = fmt::layer().with_writer(|| LineWriter).with_ansi(false);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(ours).with(lines).init();
    Ok(())
}

/// Returns the first unknown word of a filter. Otherwise a misspelled level would be taken for a target, and
/// nothing would be logged.
fn unknown_word(filter: &str) -> Option<&str> {
    let mut words =
        filter.split(',').map(str::trim).filter(|word| !word.is_empty() && !word.starts_with('['));
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    words.find(|word| !is_level(word) && !word.starts_with(TARGET_PREFIX))
}

/// Waits for a bounded time until the log is written.
pub(crate) fn finish() {
    let (sender, written) = sync_channel(0);
    if let Some(lines) = LINES.get()
        && lines.try_send(Entry::Mark(sender)).is_ok()
    {
        // Either the mark is dropped or the time is over.
        let _ = written.recv_timeout(FLUSH_TIMEOUT);
    }
}

fn write(lines: &Receiver<Entry>) {
    for entry in lines {
        if let Entry::Line(line) = entry {
            let _ = io::stderr().write_all(&line);
        }
        match LOST_LINES.swap(0, Ordering::Relaxed) {
            0 => {}
            lost => output::write_stderr(&format!("({lost} log lines were lost)\n")),
        }
    }
}

struct LineWriter;

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // The subscriber writes whole lines.
        let taken = line.len() <= MAX_LINE_BYTES
            && LINES.get().is_some_and(|lines| lines.try_send(Entry::Line(line.to_vec())).is_ok());
        if !taken {
            LOST_LINES.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::unknown_word;

    #[test]
    fn a_misspelled_level_is_rejected() {
        for (filter, expected) in [
            ("debug", None),
            ("off", None),
            ("narrows_rpc=trace,warn", None),
            ("narrows_rpc", None),
            ("debgu", Some("debgu")),
            ("narrows_rpc=trace, wran", Some("wran")),
            ("hyper=trace", Some("hyper=trace")),
            ("", None),
        ] {
            assert_eq!(unknown_word(filter), expected, "{filter}");
        }
    }
}
