//! Writes bytes that are not messages, on a separate thread.
//!
//! A write blocks while the client does not read. Neither other sessions nor the exit of the process may wait
//! for that. The thread does not belong to the runtime, because the shutdown of the runtime waits for its
//! threads.

use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use bytes::{Buf, Bytes};
use narrows_base::sync::lock;
use tokio::sync::oneshot;

/// Delay before a write is retried while the thread is busy.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Bytes to write, and a channel for the number of written bytes.
type Job = (Bytes, oneshot::Sender<io::Result<usize>>);

pub(crate) struct RawOutput {
    state: Mutex<State>,
}

enum State {
    Fresh(Box<dyn Write + Send>),
    Writing(SyncSender<Job>),
    Closed,
}

impl RawOutput {
    pub(crate) fn new(out: Box<dyn Write + Send>) -> Self {
        Self { state: Mutex::new(State::Fresh(out)) }
    }

    pub(crate) fn close(&self) {
        *lock(&self.state) = State::Closed;
    }

    /// Writes all of `bytes`. A closed output is not an error.
    pub(crate) async fn write(&self, mut bytes: Bytes) {
        while !bytes.is_empty() {
            match self.try_write(bytes.clone()).await {
                Ok(0) => return,
                Ok(written) => bytes.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return tracing::debug!(%error, "writing raw output failed"),
            }
        }
    }

    /// Passes one write to the thread. Returns the number of bytes that were written.
    async fn try_write(&self, bytes: Bytes) -> io::Result<usize> {
        let (done, written) = oneshot::channel();
        self.thread()?.try_send((bytes, done)).map_err(|error| match error {
            TrySendError::Full(_) => io::ErrorKind::WouldBlock,
            TrySendError::Disconnected(_) => io::ErrorKind::BrokenPipe,
        })?;
        written.await.map_err(|_| io::ErrorKind::BrokenPipe)?
    }

    /// Returns the queue of the thread. The first call starts the thread.
    fn thread(&self) -> io::Result<SyncSender<Job>> {
        let mut state = lock(&self.state);
        if let State::Writing(jobs) = &*state {
            return Ok(jobs.clone());
        }
        let State::Fresh(out) = std::mem::replace(&mut *state, State::Closed) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let (jobs, waiting) = sync_channel(16);
        thread::Builder::new().name("raw".to_owned()).spawn(|| write_jobs(out, waiting))?;
        *state = State::Writing(jobs.clone());
        Ok(jobs)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the thread owns what it works with")]
fn write_jobs(mut out: Box<dyn Write + Send>, jobs: Receiver<Job>) {
    while let Ok((bytes, done)) = jobs.recv() {
        let written = out.write(&bytes);
        // Flushing makes the bytes arrive now. If flushing fails, the next write reports the error.
        let _ = out.flush();
        let _ = done.send(written);
    }
}
