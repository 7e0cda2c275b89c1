//! The log as callers see it: events go in, and receipts come when they are on the disk.

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

/// Called by the thread that writes, after each commit, with the error if it failed.
pub type CommitObserver = Arc<dyn Fn(Option<&AppendError>) + Send + Sync>;

/// How a log is kept.
#[derive(Clone)]
pub struct Options {
    /// How far apart group commits begin at least. One that comes alone does not wait.
    pub window: Duration,
    /// How many bytes of events may wait to be written.
    pub queue_bytes: usize,
    /// How long a line may be.
    pub max_line: usize,
    /// How much is written at once, unless a line is longer.
    pub max_commit: usize,
    /// How long a file becomes before it is sealed.
    pub segment_bytes: u64,
    /// How long to wait for other processes that write.
    pub lock_patience: Duration,
    /// How entries are hashed.
    pub algorithm: Algorithm,
    /// What is kept out.
    pub redaction: Redaction,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Learns whether the log can be written.
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

/// Says where an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Its number.
    pub seq: u64,
    /// Its hash.
    pub hash: String,
}

/// A log that is open. Clones are the same log; it is closed when the last of them goes.
#[derive(Clone)]
pub struct Log(Arc<Shared>);

struct Shared {
    queue: Arc<Queue>,
    redaction: Redaction,
    max_line: usize,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    /// Opens the log whose growing file has this path, after verifying all of it, and starts the thread that writes.
    /// What a crash left of a line that was never acknowledged is cut, and that is noted; anything else that is
    /// wrong is an error.
    pub fn open(path: &Path, options: Options) -> Result<Self, OpenError> {
        let (directory, names) = files::resolve(path)?;
        let disk = Directory::open(&directory, &names.lock())?;
        Self::start(Box::new(disk), names, options)
    }

    /// The same on any disk, with a growing file of this name.
    pub fn on(disk: Box<dyn Disk>, name: &str, options: Options) -> Result<Self, OpenError> {
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
            // Whatever ends this thread, nobody waits for it any more.
            let jobs = queue::CloseOnDrop(jobs);
            while let Some(batch) = jobs.0.take(window) {
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

    /// Logs an event. It has its place in the order at once if there is room for it, and otherwise when the future is
    /// awaited; dropping the future takes nothing back.
    pub fn append(&self, event: Event) -> Append {
        match Draft::with_buffer(self.0.queue.take_buffer(), event, &self.0.redaction, self.0.max_line) {
            Ok(draft) => self.0.queue.append(draft),
            Err(error) => Append::failed(error.into()),
        }
    }

    /// The last entry that is on the disk, as far as this process knows.
    pub fn tip(&self) -> Option<Receipt> {
        self.0.queue.tip()
    }

    /// Writes what waits, takes nothing more, and returns when that is done.
    pub fn close(self) {
        self.0.queue.close();
        let thread = lock(&self.0.thread).take();
        if let Some(thread) = thread {
            // It ends when there is nothing left to write; a panic there has been told to whoever waited.
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
