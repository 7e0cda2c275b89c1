//! Where bytes go that are no messages, written by a thread of its own.
//!
//! Writing blocks for as long as nobody reads, and neither the agent's other sessions nor the end of the process shall
//! wait for that: not one of the runtime's threads, which it waits for when it is shut down.

use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use bytes::{Buf, Bytes};
use narrows_base::sync::lock;
use tokio::sync::oneshot;

/// How long to wait before trying again where the thread must not wait itself.
const RETRY: Duration = Duration::from_millis(1);

/// Bytes to write, and where to tell how many were written.
type Job = (Bytes, oneshot::Sender<io::Result<usize>>);

/// Where bytes go that are no messages.
pub(crate) struct Raw {
    state: Mutex<State>,
}

enum State {
    /// Nothing has been written yet, so there is no thread yet.
    Fresh(Box<dyn Write + Send>),
    /// The thread takes jobs.
    Writing(SyncSender<Job>),
    Closed,
}

impl Raw {
    pub(crate) fn new(out: Box<dyn Write + Send>) -> Self {
        Self { state: Mutex::new(State::Fresh(out)) }
    }

    /// Lets go of it.
    pub(crate) fn close(&self) {
        *lock(&self.state) = State::Closed;
    }

    /// Writes all of `bytes`, unless nobody can be written to any more.
    pub(crate) async fn write(&self, mut bytes: Bytes) {
        while !bytes.is_empty() {
            match self.try_write(bytes.clone()).await {
                Ok(0) => return,
                Ok(written) => bytes.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(RETRY).await,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return tracing::debug!(%error, "writing what is no message failed"),
            }
        }
    }

    /// Has the thread write as much of `bytes` as it can at once.
    async fn try_write(&self, bytes: Bytes) -> io::Result<usize> {
        let (done, written) = oneshot::channel();
        self.thread()?.try_send((bytes, done)).map_err(|error| match error {
            TrySendError::Full(_) => io::ErrorKind::WouldBlock,
            TrySendError::Disconnected(_) => io::ErrorKind::BrokenPipe,
        })?;
        written.await.map_err(|_| io::ErrorKind::BrokenPipe)?
    }

    /// The way to the thread, which is started when it is first needed.
    fn thread(&self) -> io::Result<SyncSender<Job>> {
        let mut state = lock(&self.state);
        if let State::Writing(jobs) = &*state {
            return Ok(jobs.clone());
        }
        let State::Fresh(out) = std::mem::replace(&mut *state, State::Closed) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let (jobs, waiting) = sync_channel(16);
        thread::Builder::new().name("raw".to_owned()).spawn(|| work(out, waiting))?;
        *state = State::Writing(jobs.clone());
        Ok(jobs)
    }
}

/// Does the jobs that come, until nobody can send any more.
#[expect(clippy::needless_pass_by_value, reason = "the thread owns what it works with")]
fn work(mut out: Box<dyn Write + Send>, jobs: Receiver<Job>) {
    while let Ok((bytes, done)) = jobs.recv() {
        let written = out.write(&bytes);
        // What is written is to be seen now; if it cannot be, the next write will say so.
        let _ = out.flush();
        // Whoever asked may have been cancelled.
        let _ = done.send(written);
    }
}
