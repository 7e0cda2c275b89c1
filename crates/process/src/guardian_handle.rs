//! The supervisor's side of a guardian: receives its reports and reaps it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use narrows_base::sync::lock;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::limits::TreeCgroups;
use crate::record::{RECORD_BYTES, Record};
use crate::sandbox::scratch::Scratch;
use crate::tree::{Member, Tree};
use crate::{Exit, ExitClass, orphans, sys, tree};

/// Time to read the rest of stderr. The writers are gone with the tree, unless one has passed the pipe to
/// another process.
const STDERR_DRAIN_TIMEOUT: Duration = Duration::from_millis(250);
/// Maximum time that the result waits for the removal of temporary files. The removal continues after this
/// time.
const SCRATCH_REMOVAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of rounds in which a tree is killed in place of its unresponsive guardian.
const FORCED_KILL_ROUNDS: u32 = 8;
const FORCED_KILL_PAUSE: Duration = Duration::from_millis(50);
const FORCED_KILL_MEMBERS: usize = 32 << 10;

/// A forked guardian. It has no exit signal, so that other code of the program that waits for any child does
/// not reap it.
#[derive(Debug, Clone)]
pub(crate) struct Guardian {
    pub(crate) pid: i32,
    pidfd: Arc<OwnedFd>,
    state: Arc<Mutex<GuardianState>>,
}

/// State of the guardian. Locked while the guardian is reaped and while its pid is used.
#[derive(Debug, Default)]
struct GuardianState {
    reaped: bool,
    /// Number of processes that were still alive when an unresponsive guardian was killed.
    survivors: u32,
}

impl Guardian {
    pub(crate) fn new(pid: i32, pidfd: OwnedFd) -> Self {
        Self { pid, pidfd: Arc::new(pidfd), state: Arc::default() }
    }

    /// Continues the guardian with `SIGCONT`, in case its worker has stopped it.
    pub(crate) fn wake(&self) {
        _ = pidfd_send_signal(&self.pidfd, Signal::CONT);
    }

    /// Kills the tree in place of an unresponsive guardian, and then the guardian. The guardian is the
    /// subreaper while it lives, so no process of the tree escapes the search before.
    ///
    /// Takes a few seconds if processes resist. The watcher sees the end of the guardian as usual.
    pub(crate) fn end_by_force(&self) {
        let mut state = lock(&self.state);
        if state.reaped {
            return;
        }
        tracing::warn!(guardian = self.pid, "guardian unresponsive, killing it and its tree");
        if let Ok(proc) = tree::open_proc() {
            let mut members = vec![Member { pid: 0, parent: 0 }; FORCED_KILL_MEMBERS];
            let mut tree = Tree::new(proc.as_fd(), self.pid, &mut members);
            for _ in 0..FORCED_KILL_ROUNDS {
                state.survivors = tree.kill().alive;
                if state.survivors == 0 {
                    break;
                }
                std::thread::sleep(FORCED_KILL_PAUSE); // sleep: these are not child processes, so this polls
            }
        }
        _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Returns the number of processes that were alive after [`end_by_force`](Self::end_by_force).
    pub(crate) fn survivors(&self) -> u32 {
        lock(&self.state).survivors
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Result for the worker alone, set once it has ended. Its tree may still run.
    pub(crate) worker: Option<Exit>,
    /// Result for the tree, set once the whole tree has ended.
    pub(crate) tree: Option<Exit>,
}

/// Follows a guardian to its end, and always reaps it. If the runtime ends first, a thread continues.
///
/// With a second fork, the guardian would be a child of init instead, but in containers init often does not
/// reap.
#[derive(Debug)]
pub(crate) struct Watcher {
    inner: Option<WatcherState>,
}

#[derive(Debug)]
struct WatcherState {
    control: Arc<OwnedFd>,
    guardian: Guardian,
    progress: watch::Sender<Progress>,
    stop_requested: Arc<AtomicBool>,
    /// Temporary directory, removed when the tree is gone.
    scratch: Option<Scratch>,
    /// Control groups, removed when the tree is gone.
    group: Option<TreeCgroups>,
    /// Result in the guardian's last record. The guardian exits after sending that record.
    finished: Option<Exit>,
    /// Result after the guardian was reaped. Its pid may be reused from then on.
    ended: Option<Exit>,
}

impl Watcher {
    pub(crate) fn new(
        control: Arc<OwnedFd>,
        guardian: Guardian,
        scratch: Option<Scratch>,
        group: Option<TreeCgroups>,
    ) -> Self {
        let progress = watch::Sender::new(Progress::default());
        let stop_requested = Arc::default();
        let (finished, ended) = (None, None);
        let inner =
            WatcherState { control, guardian, progress, stop_requested, scratch, group, finished, ended };
        Self { inner: Some(inner) }
    }

    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.inner
            .as_ref()
            .map_or_else(|| watch::channel(Progress::default()).1, |inner| inner.progress.subscribe())
    }

    /// Returns the flag that the child's handle sets when it asks the worker to end.
    pub(crate) fn stop_requested(&self) -> Arc<AtomicBool> {
        self.inner.as_ref().map_or_else(Arc::default, |inner| inner.stop_requested.clone())
    }

    pub(crate) async fn run(mut self, drain: JoinHandle<()>) {
        let Some(inner) = &mut self.inner else { return };
        if let Err(error) = inner.follow().await {
            // Dropping this future starts a thread that continues the work.
            tracing::debug!(%error, "watching a guardian with a thread");
            return;
        }
        let exit = inner.reap();
        _ = tokio::time::timeout(STDERR_DRAIN_TIMEOUT, drain).await;
        let left = (inner.scratch.take(), inner.group.take());
        if left.0.is_some() || left.1.is_some() {
            let removal = tokio::task::spawn_blocking(move || drop(left));
            _ = tokio::time::timeout(SCRATCH_REMOVAL_TIMEOUT, removal).await;
        }
        inner.publish(exit);
        self.inner = None;
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let Some(mut inner) = self.inner.take() else { return };
        let thread = std::thread::Builder::new().name("narrows-reaper".into()).stack_size(256 << 10);
        let started = thread.spawn(move || {
            let exit = inner.ended.unwrap_or_else(|| {
                inner.follow_blocking();
                inner.reap()
            });
            inner.scratch = None;
            inner.group = None;
            inner.publish(exit);
        });
        if let Err(error) = started {
            tracing::warn!(%error, "starting a thread to reap a guardian failed");
        }
    }
}

impl WatcherState {
    /// Handles records until the guardian is dead. Does not reap it.
    async fn follow(&mut self) -> io::Result<()> {
        let control = sys::readable(self.control.clone())?;
        loop {
            let mut ready = control.readable().await?;
            match ready.try_io(|control| receive(control.get_ref())) {
                Ok(Ok(Some(record))) => self.handle_record(record),
                Ok(Ok(None)) => break,
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
        let pidfd = sys::readable(self.guardian.pidfd.clone())?;
        _ = pidfd.readable().await?;
        Ok(())
    }

    fn follow_blocking(&mut self) {
        loop {
            let mut fds = [PollFd::new(&*self.control, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            match receive(&self.control) {
                Ok(Some(record)) => self.handle_record(record),
                Ok(None) => return,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    fn handle_record(&mut self, record: Record) {
        let stop_requested = self.stop_requested.load(Ordering::SeqCst);
        match record {
            Record::Exited { code } => self.worker_ended(Exit::exited(code, stop_requested)),
            Record::Signaled { signal } => self.worker_ended(Exit::signaled(signal, stop_requested)),
            Record::Stuck { swept, alive } => {
                let worker =
                    self.progress.borrow().worker.unwrap_or(Exit { class: ExitClass::Stopped, ..Exit::LOST });
                tracing::warn!(alive, guardian = self.guardian.pid, "processes of a worker did not exit");
                self.publish(Exit { swept, survivors: alive, ..worker });
            }
            Record::Finished { swept } => {
                let worker = self.progress.borrow().worker.unwrap_or(Exit::LOST);
                self.finished = Some(Exit { swept, ..worker });
            }
            Record::Started { .. } | Record::Failed { .. } => {}
        }
    }

    fn worker_ended(&self, mut exit: Exit) {
        exit.oom = exit.may_be_oom() && self.group.as_ref().is_some_and(TreeCgroups::oom);
        self.progress.send_modify(|progress| progress.worker = Some(exit));
    }

    /// Reaps the guardian, which is dead or about to die.
    fn reap(&mut self) -> Exit {
        let pidfd = self.guardian.pidfd.as_fd();
        let wait = |options: WaitIdOptions| {
            // Without `__WALL`, a child that has no exit signal is skipped.
            let options = options
                | WaitIdOptions::EXITED
                | WaitIdOptions::from_bits_retain(libc::__WALL.cast_unsigned());
            while waitid(WaitId::PidFd(pidfd), options).err() == Some(Errno::INTR) {}
        };
        let exit = self.finished.take().unwrap_or_else(|| {
            // While the guardian is a zombie, its pid, which is the id of the tree's session, cannot be
            // reused.
            wait(WaitIdOptions::NOWAIT);
            tracing::warn!(guardian = self.guardian.pid, "guardian died, killing the rest of its session");
            tree::kill_session(self.guardian.pid);
            let orphans = orphans::end_orphans();
            let worker = self.progress.borrow().worker.unwrap_or(Exit::LOST);
            let survivors = self.guardian.survivors().max(orphans);
            Exit { class: ExitClass::Lost, survivors, ..worker }
        });
        let mut state = lock(&self.guardian.state);
        wait(WaitIdOptions::empty());
        state.reaped = true;
        self.ended = Some(exit);
        exit
    }

    fn publish(&self, exit: Exit) {
        self.progress.send_modify(|progress| {
            progress.worker.get_or_insert(exit);
            progress.tree = Some(exit);
        });
    }
}

/// Receives the next record. Returns `None` if the guardian has closed its end.
///
/// If the guardian has left orders unread, the socket reports a reset once, before the waiting records.
fn receive(control: &OwnedFd) -> io::Result<Option<Record>> {
    let mut buffer = [0; RECORD_BYTES];
    loop {
        return match recv(control, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Ok(None),
            Ok(_) => match Record::decode(&buffer) {
                Some(record) => Ok(Some(record)),
                None => continue,
            },
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            Err(errno) => Err(errno.into()),
        };
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    /// The runtime ends after the guardian but before the guardian's stderr. No process must be killed.
    #[tokio::test]
    #[expect(clippy::zombie_processes, reason = "the watcher reaps it")]
    async fn a_reaped_guardian_is_not_searched_again() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let stand_in = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&stand_in);
        let guardian = Guardian::new(pid.as_raw_pid(), pidfd_open(pid, PidfdFlags::empty()).unwrap());
        let state = guardian.state.clone();
        let watcher = Watcher::new(Arc::new(ours), guardian, None, None);
        let mut progress = watcher.progress();
        let watching = tokio::spawn(watcher.run(tokio::spawn(std::future::pending())));
        for record in [Record::Exited { code: 4 }, Record::Finished { swept: 0 }] {
            send(&theirs, &record.encode(), SendFlags::empty()).unwrap();
        }
        drop(theirs);
        while !state.lock().unwrap().reaped {
            tokio::task::yield_now().await;
        }
        watching.abort();
        let ended = progress.wait_for(|progress| progress.tree.is_some()).await.unwrap().tree;
        assert_eq!(ended, Some(Exit::exited(4, false)));
    }

    /// A process that cannot be ended must not delay the result. If it ends later, the final result counts
    /// that.
    #[tokio::test]
    #[expect(clippy::zombie_processes, reason = "the watcher reaps it")]
    async fn survivors_are_reported_before_the_guardian_exits() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut stand_in =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&stand_in);
        let guardian = Guardian::new(pid.as_raw_pid(), pidfd_open(pid, PidfdFlags::empty()).unwrap());
        let watcher = Watcher::new(Arc::new(ours), guardian, None, None);
        let mut progress = watcher.progress();
        let watching = tokio::spawn(watcher.run(tokio::spawn(async {})));

        let say = |record: Record| send(&theirs, &record.encode(), SendFlags::empty()).unwrap();
        say(Record::Exited { code: 4 });
        say(Record::Stuck { swept: 1, alive: 2 });
        let expected = Exit { swept: 1, survivors: 2, ..Exit::exited(4, false) };
        assert_eq!(progress.wait_for(|progress| progress.tree.is_some()).await.unwrap().tree, Some(expected));
        assert!(!watching.is_finished());

        say(Record::Finished { swept: 3 });
        drop(theirs);
        drop(stand_in.stdin.take());
        watching.await.unwrap();
        assert_eq!(progress.borrow().tree, Some(Exit { swept: 3, ..Exit::exited(4, false) }));
    }

    /// A guardian that exits with an unread order resets the connection, but its last records are received.
    #[test]
    fn unread_orders_lose_no_record() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        send(&ours, b"order", SendFlags::empty()).unwrap();
        let said = [Record::Exited { code: 4 }, Record::Finished { swept: 3 }];
        for record in said {
            send(&theirs, &record.encode(), SendFlags::empty()).unwrap();
        }
        drop(theirs);
        let heard: Vec<_> = std::iter::from_fn(|| receive(&ours).unwrap()).collect();
        assert_eq!(heard, said);
    }
}
