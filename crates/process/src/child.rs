//! The handle of a running worker.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use narrows_base::sync::lock;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::guardian_handle::{Guardian, Progress};
use crate::record::Order;
use crate::{Exit, Ladder, StderrTail};

/// Interval of sending `SIGCONT` to a guardian while a caller waits for it. Its worker may have stopped the
/// guardian.
const WAKE_INTERVAL: Duration = Duration::from_millis(500);
/// Time for a guardian to carry out an order. A running guardian reports unkillable processes well before
/// this timeout, so a guardian that exceeds it was stopped by its worker.
const GUARDIAN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time until the death of a killed guardian must be visible.
const FORCED_END_TIMEOUT: Duration = Duration::from_secs(2);

/// A worker and its process tree.
///
/// Dropping the handle ends the tree: `SIGTERM` to every process, the spec's `orphan_grace`, `SIGKILL`. This
/// continues in the background and needs no runtime.
#[derive(Debug)]
pub struct Child {
    lifeline: Lifeline,
    progress: watch::Receiver<Progress>,
    stop_requested: Arc<AtomicBool>,
    pid: u32,
    guardian: Guardian,
    patience: Duration,
    /// Locked, so that [`stop`](Self::stop) needs no exclusive access to the handle.
    stdin: Mutex<Option<pipe::Sender>>,
    stdout: Option<pipe::Receiver>,
    stderr: StderrTail,
    pub(crate) gateway: Option<TcpListener>,
}

impl Child {
    #[expect(clippy::too_many_arguments, reason = "called once, with parts that only the caller has")]
    pub(crate) fn new(
        lifeline: Lifeline,
        progress: watch::Receiver<Progress>,
        stop_requested: Arc<AtomicBool>,
        pid: Option<i32>,
        guardian: Guardian,
        stdin: pipe::Sender,
        stdout: pipe::Receiver,
        stderr: StderrTail,
    ) -> Self {
        Self {
            lifeline,
            progress,
            stop_requested,
            pid: pid.unwrap_or(0).cast_unsigned(),
            guardian,
            patience: GUARDIAN_TIMEOUT,
            stdin: Mutex::new(Some(stdin)),
            stdout: Some(stdout),
            stderr,
            gateway: None,
        }
    }

    /// Returns the worker's process id, which is also its process group id. Inside a PID namespace, the
    /// worker itself sees another id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the process id of the guardian, which is also the session id of the tree.
    pub fn guardian_pid(&self) -> u32 {
        self.guardian.pid.cast_unsigned()
    }

    /// Takes the writing end of the worker's stdin. Dropping it ends the worker's input. Calling `shutdown`
    /// on it does not.
    pub fn take_stdin(&mut self) -> Option<pipe::Sender> {
        self.stdin.get_mut().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Takes the reading end of the worker's stdout.
    pub fn take_stdout(&mut self) -> Option<pipe::Receiver> {
        self.stdout.take()
    }

    /// Takes the non-blocking listener in the worker's own network, if its sandbox has a gateway.
    pub fn take_gateway(&mut self) -> Option<TcpListener> {
        self.gateway.take()
    }

    /// Returns the end of the worker's stderr. It is read continuously.
    pub fn stderr(&self) -> StderrTail {
        self.stderr.clone()
    }

    /// Waits until the worker and its tree have ended. Can be called repeatedly. Cancel-safe.
    ///
    /// Processes that outlive the worker are ended as described for [`Child`].
    pub async fn wait(&self) -> Exit {
        self.wait_until(|progress| progress.tree).await
    }

    /// Waits until the worker itself has ended. Its tree may still be running then, so `swept` and
    /// `survivors` are not known.
    pub async fn worker_ended(&self) -> Exit {
        self.wait_until(|progress| progress.worker).await
    }

    /// Returns the result of [`wait`](Self::wait) if it is available.
    pub fn try_wait(&self) -> Option<Exit> {
        self.progress.borrow().tree
    }

    async fn wait_until(&self, reached: impl Fn(&Progress) -> Option<Exit>) -> Exit {
        let mut progress = self.progress.clone();
        loop {
            match timeout(WAKE_INTERVAL, progress.wait_for(|progress| reached(progress).is_some())).await {
                Ok(Ok(progress)) => return reached(&progress).unwrap_or(Exit::LOST),
                // The guardian is no longer watched, because not even a thread could be started.
                Ok(Err(_)) => return Exit::LOST,
                Err(_elapsed) => self.guardian.wake(),
            }
        }
    }

    /// Ends the worker and its tree, gently at first: end of input, then `SIGTERM` to the worker's process
    /// group, then `SIGKILL` to all. Afterwards the tree is gone, unless the [`Exit`] counts survivors.
    ///
    /// If a guardian does not respond within ten seconds, the tree is ended without it, as far as its
    /// processes can be found. The worker then counts as [`Lost`](crate::ExitClass::Lost).
    ///
    /// The caller must drop the stdin it has taken with [`take_stdin`](Self::take_stdin). A cancelled call
    /// can be repeated.
    pub async fn stop(&self, ladder: Ladder) -> Exit {
        self.stop_requested.store(true, Ordering::SeqCst);
        drop(lock(&self.stdin).take());
        if let Ok(exit) = timeout(ladder.eof_grace, self.wait()).await {
            return exit;
        }
        self.terminate();
        if let Ok(exit) = timeout(ladder.term_grace, self.wait()).await {
            return exit;
        }
        self.kill();
        if let Ok(exit) = timeout(self.patience, self.wait()).await {
            return exit;
        }
        let guardian = self.guardian.clone();
        _ = tokio::task::spawn_blocking(move || guardian.end_by_force()).await;
        match timeout(FORCED_END_TIMEOUT, self.wait()).await {
            Ok(exit) => exit,
            // The guardian is dying, but at least one process still holds the guardian's end of the socket.
            Err(_elapsed) => Exit { survivors: self.guardian.survivors().max(1), ..Exit::LOST },
        }
    }

    /// Sends `SIGTERM` to the worker's process group.
    pub fn terminate(&self) {
        self.stop_requested.store(true, Ordering::SeqCst);
        self.lifeline.send(Order::Terminate);
    }

    /// Sends `SIGKILL` to every process of the tree. To wait until the processes are gone, call
    /// [`wait`](Self::wait).
    pub fn kill(&self) {
        self.stop_requested.store(true, Ordering::SeqCst);
        self.lifeline.send(Order::Kill);
    }
}

/// The supervisor's end of the control socket. If it is closed, or the supervisor dies, the guardian ends
/// the tree.
#[derive(Debug)]
pub(crate) struct Lifeline {
    control: Arc<OwnedFd>,
}

impl Lifeline {
    pub(crate) fn new(control: Arc<OwnedFd>) -> Self {
        Self { control }
    }

    fn send(&self, order: Order) {
        _ = send(&*self.control, &[order as u8], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        // Closing would not suffice: the watcher still reads from the socket.
        _ = shutdown(&*self.control, Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Command, Stdio};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::pipe::{PipeFlags, pipe_with};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;
    use crate::ExitClass;
    use crate::guardian_handle::Watcher;

    const IMMEDIATE: Ladder = Ladder { eof_grace: Duration::ZERO, term_grace: Duration::ZERO };

    fn is_dead(pid: &str) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
    }

    /// Starts a guardian that ignores orders, with two children, one of which has left its session. Also
    /// returns the guardian's end of the control socket and the pids of the children.
    async fn unresponsive_guardian() -> (Child, OwnedFd, Vec<String>) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut stand_in = Command::new("sh");
        stand_in
            .args(["-c", "setsid sleep 1000 & sleep 1000 & exec tail -f /dev/null"])
            .stdout(Stdio::null());
        let pid = Pid::from_child(&stand_in.spawn().unwrap()).as_raw_pid();
        let pidfd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        let guardian = Guardian::new(pid, pidfd);
        let control = Arc::new(ours);
        let watcher = Watcher::new(control.clone(), guardian.clone(), None, None);
        let (progress, stop_requested) = (watcher.progress(), watcher.stop_requested());
        tokio::spawn(watcher.run(tokio::spawn(async {})));
        let (stdout, stdin) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut child = Child::new(
            Lifeline::new(control),
            progress,
            stop_requested,
            None,
            guardian,
            pipe::Sender::from_owned_fd(stdin).unwrap(),
            pipe::Receiver::from_owned_fd(stdout).unwrap(),
            StderrTail::new(0),
        );
        child.patience = Duration::from_millis(50);
        let children = || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        while children().split_whitespace().count() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await; // sleep: polls the process table
        }
        (child, theirs, children().split_whitespace().map(str::to_owned).collect())
    }

    #[tokio::test]
    async fn a_tree_is_ended_without_its_unresponsive_guardian() {
        let (child, theirs, children) = unresponsive_guardian().await;
        drop(theirs);
        let exit = timeout(3 * GUARDIAN_TIMEOUT, child.stop(IMMEDIATE)).await.unwrap();
        assert_eq!(exit, Exit::LOST);
        assert!(children.iter().all(|pid| is_dead(pid)), "{children:?}");
        assert!(!fs::exists(format!("/proc/{}", child.guardian_pid())).unwrap(), "it is reaped");
    }

    /// The test holds the guardian's end of the socket open, like a process that hangs in the kernel between
    /// fork and exec.
    #[tokio::test]
    async fn a_stop_does_not_wait_for_an_invisible_end() {
        let (child, theirs, children) = unresponsive_guardian().await;
        let exit = timeout(3 * GUARDIAN_TIMEOUT, child.stop(IMMEDIATE)).await.unwrap();
        assert_eq!((exit.class, exit.survivors), (ExitClass::Lost, 1));
        assert!(children.iter().all(|pid| is_dead(pid)), "{children:?}");
        drop(theirs);
        assert_eq!(timeout(3 * GUARDIAN_TIMEOUT, child.wait()).await.unwrap(), Exit::LOST);
    }
}
