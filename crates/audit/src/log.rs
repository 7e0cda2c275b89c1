//! The log for writers. They append events, and get a receipt once an entry is on disk.

mod append;
mod commit;
mod error;
mod follow;
mod note;
mod queue;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use commit::Committer;
use narrows_base::sync::lock;
use queue::Queue;

use crate::clock::{Clock, SystemClock};
use crate::disk::{LogDirectory, SystemDirectory};
use crate::draft::Draft;
use crate::entry::Algorithm;
use crate::event::Event;
use crate::files;
use crate::redact::Redaction;
use crate::segment::LogFileNames;

pub use append::Append;
pub use error::{AppendError, OpenError};

/// Function that the writer thread calls after each commit. The argument is `None` after a success, and the
/// error after a failure.
pub type CommitObserver = Arc<dyn Fn(Option<&AppendError>) + Send + Sync>;

/// Options of a log.
#[derive(Clone)]
pub struct LogOptions {
    /// Minimum interval between two group commits. An event after a longer pause is written immediately.
    pub window: Duration,
    /// Maximum size of all events that wait to be written.
    pub queue_bytes: usize,
    pub max_line: usize,
    /// Maximum size of one write. A longer line is written alone.
    pub max_commit: usize,
    /// Size at which the active file is sealed, in bytes.
    pub segment_bytes: u64,
    /// Maximum time to wait while other processes write.
    pub lock_timeout: Duration,
    pub algorithm: Algorithm,
    pub redaction: Redaction,
    pub clock: Arc<dyn Clock>,
    pub observer: Option<CommitObserver>,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            window: Duration::from_millis(1),
            queue_bytes: 16 << 20,
            max_line: 4 << 20,
            max_commit: 4 << 20,
            segment_bytes: 64 << 20,
            lock_timeout: Duration::from_secs(5),
            algorithm: Algorithm::Sha256,
            redaction: Redaction::default(),
            clock: Arc::new(SystemClock::default()),
            observer: None,
        }
    }
}

/// The position of a written entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub seq: u64,
    pub hash: String,
}

/// An open log. Clones share it. Dropping the last clone closes it.
#[derive(Clone)]
pub struct Log(Arc<Shared>);

struct Shared {
    queue: Arc<Queue>,
    redaction: Redaction,
    max_line: usize,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    /// Verifies and opens the log whose active file has this path, and starts the writer thread. If a crash
    /// left part of an unacknowledged line, removes that part and logs a note. Any other damage is an error.
    pub fn open(path: &Path, options: LogOptions) -> Result<Self, OpenError> {
        let (directory, names) = files::resolve(path)?;
        let disk = SystemDirectory::open(&directory, &names.lock())?;
        Self::start(Box::new(disk), names, options)
    }

    /// Like [`Log::open`], on any [`LogDirectory`]. `name` is the name of the active file.
    pub fn open_on(disk: Box<dyn LogDirectory>, name: &str, options: LogOptions) -> Result<Self, OpenError> {
        let (_, names) = files::resolve(Path::new(name))?;
        Self::start(disk, names, options)
    }

    fn start(
        disk: Box<dyn LogDirectory>,
        names: LogFileNames,
        options: LogOptions,
    ) -> Result<Self, OpenError> {
        let redaction = options.redaction.clone();
        let max_line = options.max_line.min(u32::MAX as usize);
        let queue = Arc::new(Queue::new(options.queue_bytes.max(max_line), options.max_commit));
        let window = options.window;
        let observer = options.observer.clone();
        let mut committer = Committer::open(disk, names, options)?;
        queue.set_tip(committer.tip());
        let jobs = Arc::clone(&queue);
        let thread = std::thread::Builder::new().name("narrows-audit".into()).spawn(move || {
            // When the writer thread ends for any reason, callers that wait get an error.
            let jobs = queue::CloseOnDrop(jobs);
            while let Some(batch) = jobs.0.next_batch(window) {
                jobs.0.settle(batch, |drafts| {
                    let outcome = committer.commit(drafts);
                    if let Some(observe) = &observer {
                        observe(outcome.as_ref().err());
                    }
                    outcome
                });
            }
        })?;
        let thread = Mutex::new(Some(thread));
        Ok(Self(Arc::new(Shared { queue, redaction, max_line, thread })))
    }

    /// Logs an event. Fixes the position of the event in the log at once if the queue has room, otherwise
    /// when the future is awaited. Dropping the future does not cancel a queued event.
    pub fn append(&self, event: Event) -> Append {
        match Draft::with_buffer(self.0.queue.take_buffer(), event, &self.0.redaction, self.0.max_line) {
            Ok(draft) => self.0.queue.append(draft),
            Err(error) => Append::failed(error.into()),
        }
    }

    /// Returns the last entry that this process knows to be on disk.
    pub fn tip(&self) -> Option<Receipt> {
        self.0.queue.tip()
    }

    /// Accepts no more events, and returns when all queued events are written.
    pub fn close(self) {
        self.0.queue.close();
        let thread = lock(&self.0.thread).take();
        if let Some(thread) = thread {
            // The writer thread ends when no event is left. If it panicked, its callers got an error.
            let _ = thread.join();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("tip", &self.tip()).finish_non_exhaustive()
    }
}
