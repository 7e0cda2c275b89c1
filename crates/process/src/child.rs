//! The handle of a running worker.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::{SendFlags, Shutdown, send, shutdown};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::record::Order;
use crate::watch::Progress;
use crate::{Exit, Ladder, StderrTail};

/// A worker and the tree under it.
///
/// Dropping the handle ends the tree: `SIGTERM` to every process, the spec's `orphan_grace`, `SIGKILL`. This
/// goes on in the background and needs no runtime.
#[derive(Debug)]
pub struct Child {
    lifeline: Lifeline,
    progress: watch::Receiver<Progress>,
    asked: Arc<AtomicBool>,
    pid: u32,
    guardian_pid: u32,
    /// Behind a lock, so that [`stop`](Self::stop) needs no exclusive handle.
    stdin: Mutex<Option<pipe::Sender>>,
    stdout: Option<pipe::Receiver>,
    stderr: StderrTail,
}

impl Child {
    #[expect(clippy::too_many_arguments, reason = "it is called once, with the parts made there")]
    pub(crate) fn new(
        lifeline: Lifeline,
        progress: watch::Receiver<Progress>,
        asked: Arc<AtomicBool>,
        pid: Option<i32>,
        guardian_pid: i32,
        stdin: pipe::Sender,
        stdout: pipe::Receiver,
        stderr: StderrTail,
    ) -> Self {
        Self {
            lifeline,
            progress,
            asked,
            pid: pid.unwrap_or(0).cast_unsigned(),
            guardian_pid: guardian_pid.cast_unsigned(),
            stdin: Mutex::new(Some(stdin)),
            stdout: Some(stdout),
            stderr,
        }
    }

    /// The worker's process id, which is also its process group's.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The process id of the guardian, which is also the session id of the tree.
    pub fn guardian_pid(&self) -> u32 {
        self.guardian_pid
    }

    /// Our end of the worker's stdin. Dropping it is the end of the worker's input; its `shutdown` is not.
    pub fn take_stdin(&mut self) -> Option<pipe::Sender> {
        self.stdin.get_mut().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Our end of the worker's stdout.
    pub fn take_stdout(&mut self) -> Option<pipe::Receiver> {
        self.stdout.take()
    }

    /// The end of what the worker wrote to stderr, which is read all the time.
    pub fn stderr(&self) -> StderrTail {
        self.stderr.clone()
    }

    /// Waits until the worker has ended and nothing of its tree is left. Can be called any number of times,
    /// and a call can be abandoned.
    ///
    /// Processes that outlive the worker are ended as described for [`Child`].
    pub async fn wait(&self) -> Exit {
        self.until(|progress| progress.tree).await
    }

    /// Waits until the worker itself has ended. The rest of its tree is then being ended, and `swept` and
    /// `survivors` are not known yet.
    pub async fn worker_ended(&self) -> Exit {
        self.until(|progress| progress.worker).await
    }

    /// The result of [`wait`](Self::wait), if it is there already.
    pub fn try_wait(&self) -> Option<Exit> {
        self.progress.borrow().tree
    }

    async fn until(&self, reached: impl Fn(&Progress) -> Option<Exit>) -> Exit {
        let mut progress = self.progress.clone();
        match progress.wait_for(|progress| reached(progress).is_some()).await {
            Ok(progress) => reached(&progress).unwrap_or(Exit::LOST),
            // Nobody watches the guardian any more: there was not even a thread to be had.
            Err(_) => Exit::LOST,
        }
    }

    /// Ends the worker and its tree, gently at first: end of input, then `SIGTERM` to the worker's process
    /// group, then `SIGKILL` to everything. When it returns the tree is gone, unless the [`Exit`] counts
    /// survivors.
    ///
    /// The end of input needs the caller to drop the end it has taken with [`take_stdin`](Self::take_stdin).
    /// An abandoned call can be repeated.
    pub async fn stop(&self, ladder: Ladder) -> Exit {
        self.asked.store(true, Ordering::SeqCst);
        drop(self.stdin.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Ok(exit) = timeout(ladder.eof_grace, self.wait()).await {
            return exit;
        }
        self.terminate();
        if let Ok(exit) = timeout(ladder.term_grace, self.wait()).await {
            return exit;
        }
        self.kill();
        self.wait().await
    }

    /// Sends `SIGTERM` to the worker's process group.
    pub fn terminate(&self) {
        self.asked.store(true, Ordering::SeqCst);
        self.lifeline.send(Order::Terminate);
    }

    /// Sends `SIGKILL` to every process of the tree. [`wait`](Self::wait) tells when they are gone.
    pub fn kill(&self) {
        self.asked.store(true, Ordering::SeqCst);
        self.lifeline.send(Order::Kill);
    }
}

/// Our end of the control socket. Closing it, or dying, ends the tree.
#[derive(Debug)]
pub(crate) struct Lifeline {
    control: Arc<OwnedFd>,
}

impl Lifeline {
    pub(crate) fn new(control: Arc<OwnedFd>) -> Self {
        Self { control }
    }

    fn send(&self, order: Order) {
        // It fails only when the guardian is gone, and its tree with it.
        _ = send(&*self.control, &[order as u8], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        // Not merely closed: the watcher still reads from the same socket.
        _ = shutdown(&*self.control, Shutdown::Write);
    }
}
