//! The log as callers see it: append events, await receipts for entries on disk.

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
use crate::disk::{Directory, Disk};
use crate::draft::Draft;
use crate::entry::Algorithm;
use crate::event::Event;
use crate::files;
use crate::redact::Redaction;
use crate::segment::Names;

pub use append::Append;
pub use error::{AppendError, OpenError};

/// Called by the writer thread after each commit, with the error if it failed.
pub type CommitObserver = Arc<dyn Fn(Option<&AppendError>) + Send + Sync>;

/// Options of a log.
#[derive(Clone)]
pub struct Options {
    /// Minimum interval between group commits. An event that comes alone does not wait.
    pub window: Duration,
    /// Limit of events that wait to be written, in bytes.
    pub queue_bytes: usize,
    /// Limit of a line, in bytes.
    pub max_line: usize,
    /// Limit of one write, in bytes, unless a line is longer.
    pub max_commit: usize,
    /// Length at which a file is sealed.
    pub segment_bytes: u64,
    /// Maximum wait for other writing processes.
    pub lock_patience: Duration,
    /// The hash algorithm.
    pub algorithm: Algorithm,
    /// The redaction rules.
    pub redaction: Redaction,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Called after each commit.
    pub observer: Option<CommitObserver>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window: Duration::from_millis(1),
            queue_bytes: 16 << 20,
            max_line: 4 << 20,
            max_commit: 4 << 20,
            segment_bytes: 64 << 20,
            lock_patience: Duration::from_secs(5),
            algorithm: Algorithm::Sha256,
            redaction: Redaction::default(),
            clock: Arc::new(SystemClock::default()),
            observer: None,
        }
    }
}

/// The position of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Its number.
    pub seq: u64,
    /// Its hash.
    pub hash: String,
}

/// An open log. Clones share it; it is closed when the last one is dropped.
#[derive(Clone)]
pub struct Log(Arc<Shared>);

struct Shared {
    queue: Arc<Queue>,
    redaction: Redaction,
    max_line: usize,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    /// Verifies and opens the log whose active file has this path, and starts the writer thread. The rest of an
    /// unacknowledged line that a crash left is removed and noted; any other damage is an error.
    pub fn open(path: &Path, options: Options) -> Result<Self, OpenError> {
        let (directory, names) = files::resolve(path)?;
        let disk = Directory::open(&directory, &names.lock())?;
        Self::start(Box::new(disk), names, options)
    }

    /// Like [`Log::open`], on any disk, with an active file of this name.
    pub fn open_on(disk: Box<dyn Disk>, name: &str, options: Options) -> Result<Self, OpenError> {
        let (_, names) = files::resolve(Path::new(name))?;
        Self::start(disk, names, options)
    }

    fn start(disk: Box<dyn Disk>, names: Names, options: Options) -> Result<Self, OpenError> {
        let redaction = options.redaction.clone();
        let max_line = options.max_line.min(u32::MAX as usize);
        let queue = Arc::new(Queue::new(options.queue_bytes.max(max_line), options.max_commit));
        let window = options.window;
        let observer = options.observer.clone();
        let mut committer = Committer::open(disk, names, options)?;
        queue.set_tip(committer.tip());
        let jobs = Arc::clone(&queue);
        let thread = std::thread::Builder::new().name("narrows-audit".into()).spawn(move || {
            // However this thread ends, no caller may wait forever.
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

    /// Logs an event. If there is room, its position in the order is fixed at once, otherwise when the future is
    /// awaited. Dropping the future does not cancel a queued event.
    pub fn append(&self, event: Event) -> Append {
        match Draft::with_buffer(self.0.queue.take_buffer(), event, &self.0.redaction, self.0.max_line) {
            Ok(draft) => self.0.queue.append(draft),
            Err(error) => Append::failed(error.into()),
        }
    }

    /// The last entry on disk that this process knows.
    pub fn tip(&self) -> Option<Receipt> {
        self.0.queue.tip()
    }

    /// Writes queued events, accepts no more, and returns when they are written.
    pub fn close(self) {
        self.0.queue.close();
        let thread = lock(&self.0.thread).take();
        if let Some(thread) = thread {
            // The thread ends when nothing is left to write; callers have learned of a panic there.
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
