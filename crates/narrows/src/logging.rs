//! What narrows says about its own work: to stderr, warnings unless more is asked for.
//!
//! A thread of its own writes it, so that a stderr nobody reads holds up nothing but the log.

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

/// What the names of our own parts begin with.
const PARTS: &str = "narrows";

/// How many lines may wait to be written; more are lost, and counted.
const WAITING: usize = 1024;

/// How long a line may be.
const LONGEST: usize = 16 << 10;

/// How long the end waits for a stderr that does not take what is left.
const PATIENCE: Duration = Duration::from_millis(300);

static LINES: OnceLock<SyncSender<Entry>> = OnceLock::new();

/// How many lines were lost.
static LOST: AtomicU64 = AtomicU64::new(0);

enum Entry {
    Line(Vec<u8>),
    /// Everything before it has been written when this is dropped.
    Mark(#[expect(dead_code, reason = "it is there to be dropped")] SyncSender<()>),
}

/// Starts logging, by `filter` if there is one.
pub(crate) fn start(filter: Option<&str>, format: LogFormat) -> Result<(), Failure> {
    if let Some(word) = filter.and_then(unknown_word) {
        return Err(Failure::log_filter(&format!("`{}` is no level and no part of narrows", line(word))));
    }
    // A program that reads the log gets there what people are told beside it.
    let usual = if format == LogFormat::Json { "info" } else { "warn" };
    let filter = EnvFilter::try_new(filter.unwrap_or(usual))
        .map_err(|error| Failure::log_filter(&line(&error.to_string())))?;
    let (sender, lines) = sync_channel(WAITING);
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || write(&lines))
        .map_err(|error| Failure::setup("start the log", &error))?;
    // It is started once.
    let _ = LINES.set(sender);
    // Only our own parts are known to keep keys and prompts to themselves.
    let ours = filter_fn(|event| event.target().starts_with(PARTS));
    let lines = fmt::layer().with_writer(|| Log).with_ansi(false);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(ours).with(lines).init();
    Ok(())
}

/// The first word of a filter that means nothing here, with which others would be meant or nobody. The filter itself would take a misspelt level
/// for the name of a part, and log nothing.
fn unknown_word(filter: &str) -> Option<&str> {
    let mut words =
        filter.split(',').map(str::trim).filter(|word| !word.is_empty() && !word.starts_with('['));
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    words.find(|word| !is_level(word) && !word.starts_with(PARTS))
}

/// Waits until what was logged is written, but not for long.
pub(crate) fn finish() {
    let (sender, written) = sync_channel(0);
    if let Some(lines) = LINES.get()
        && lines.try_send(Entry::Mark(sender)).is_ok()
    {
        // It is dropped, or the time is over.
        let _ = written.recv_timeout(PATIENCE);
    }
}

fn write(lines: &Receiver<Entry>) {
    for entry in lines {
        if let Entry::Line(line) = entry {
            // There is nobody to tell if it fails.
            let _ = io::stderr().write_all(&line);
        }
        match LOST.swap(0, Ordering::Relaxed) {
            0 => {}
            lost => output::complain(&format!("({lost} lines of the log are lost)\n")),
        }
    }
}

/// Hands each line to the thread.
struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // It is given whole lines.
        let taken = line.len() <= LONGEST
            && LINES.get().is_some_and(|lines| lines.try_send(Entry::Line(line.to_vec())).is_ok());
        if !taken {
            LOST.fetch_add(1, Ordering::Relaxed);
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
    fn a_misspelt_level_is_found() {
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
