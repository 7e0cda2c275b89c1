//! The processes that are forked without an exec: the guardian, which outlives the tree, and the worker up to
//! its exec. In a PID namespace, an [`init`](crate::init) process is between guardian and worker.
//!
//! This code runs in a copy of a multi-threaded program, most of whose memory has been released. So it does
//! not allocate, lock or panic, and uses only the memory of its plan.
#![expect(unsafe_code, reason = "the copied program's descriptors and memory are released")]

use core::ffi::{CStr, c_int};
use core::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, read, write};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus, chdir, getpid, getppid,
    getrlimit, kill_process, kill_process_group, set_child_subreaper, set_dumpable_behavior,
    set_parent_process_death_signal, setpgid, setrlimit, setsid, wait,
};
use rustix::thread::UnshareFlags;

use crate::CwdLinks;
use crate::enter_sandbox::SandboxPlan;
use crate::init::InitPlan;
use crate::memory_map::MapsParser;
use crate::record::{Order, RECORD_BYTES, Record, Stage};
use crate::sys::{self, Stack, StringArray};
use crate::tree::{Member, Tree, open_proc};

/// Time that a process may survive `SIGKILL` before the guardian reports that the tree is stuck.
const STUCK_AFTER_MS: u64 = 3_000;
/// Pause between two rounds of `SIGKILL`. The pause doubles from the start of this range to its end.
const KILL_RETRY_MS: Range<u64> = 10..500;
/// Number of bytes kept around the C library's per-thread state.
const THREAD_STATE_MARGIN_BYTES: usize = 64 << 10;

pub(crate) struct GuardPlan<'a> {
    /// Socket from which the guardian receives orders, and to which it sends records. The end of the stream
    /// means that the child's handle was dropped or the supervisor died.
    pub(crate) control: BorrowedFd<'a>,
    /// Descriptor that becomes readable when the supervisor dies, even if a copy of the supervisor's end of
    /// `control` has leaked.
    pub(crate) supervisor: BorrowedFd<'a>,
    pub(crate) worker: &'a mut WorkerPlan<'a>,
    /// Stack of the process that the guardian forks: the worker, or the first process of its PID namespace.
    pub(crate) worker_stack: Stack<'a>,
    /// Stack of the worker, if the worker is forked in a PID namespace.
    pub(crate) program_stack: Stack<'a>,
    pub(crate) members: &'a mut [Member],
    pub(crate) arena: Range<usize>,
    pub(crate) grace_ms: u64,
}

pub(crate) struct WorkerPlan<'a> {
    pub(crate) stdin: BorrowedFd<'a>,
    pub(crate) stdout: BorrowedFd<'a>,
    pub(crate) stderr: BorrowedFd<'a>,
    /// Pipe that closes at the worker's exec. If a step before the exec fails, a record in the pipe names the
    /// step.
    pub(crate) report: BorrowedFd<'a>,
    pub(crate) program: &'a CStr,
    pub(crate) argv: StringArray<'a>,
    pub(crate) envp: StringArray<'a>,
    pub(crate) cwd: Option<&'a CStr>,
    pub(crate) cwd_links: CwdLinks,
    pub(crate) cage: SandboxPlan<'a>,
    /// Files of the tree's control groups. A process that writes a zero to such a file moves into the group.
    pub(crate) groups: [Option<BorrowedFd<'a>>; 2],
    /// Limit of open descriptors for the worker. `None` keeps the limit of this program.
    pub(crate) descriptors: Option<u64>,
    /// Limit of processor time for each process, in seconds.
    pub(crate) processor: Option<u64>,
    /// Pid of the guardian, set by the guardian itself. The worker checks that its parent is still the
    /// guardian.
    pub(crate) guardian: i32,
    /// Signal that the guardian is ready, set by the guardian. Unused in a PID namespace, from which no
    /// process can stop the guardian.
    pub(crate) guardian_ready: Option<ReadySignal>,
}

/// A pipe that the guardian closes after it has closed its copies of the worker's descriptors. The worker
/// waits for that before its exec. Otherwise a program could stop its guardian first, and the supervisor
/// would never see the end of `report`.
#[derive(Clone, Copy)]
pub(crate) struct ReadySignal {
    read: RawFd,
    write: RawFd,
}

impl ReadySignal {
    /// Waits until the guardian is ready. If the guardian dies instead, the kernel kills the worker.
    fn wait(self) {
        // SAFETY: both descriptors are the fork's copies of the guardian's, and no other code of this process
        // uses them.
        unsafe {
            sys::close(self.write);
            let read_end = BorrowedFd::borrow_raw(self.read);
            while read(read_end, &mut [0; 1]).err() == Some(Errno::INTR) {}
            sys::close(self.read);
        }
    }
}

// SAFETY: `run_plan` and all it calls only make system calls on memory of the plan and of the stack.
unsafe impl sys::Program for GuardPlan<'_> {
    fn run(&mut self) -> c_int {
        match self.run_plan() {
            Ok(()) => 0,
            Err((stage, errno)) => {
                report(self.worker.report, Record::Failed { stage, errno: errno.raw_os_error() });
                // Forking is the last step that can fail. If it fails, no tree exists.
                report(self.control, Record::Finished { swept: 0 });
                1
            }
        }
    }
}

// SAFETY: as for the guardian.
unsafe impl sys::Program for WorkerPlan<'_> {
    fn run(&mut self) -> c_int {
        let failure = self.prepare().err();
        let (stage, errno) = failure.unwrap_or_else(|| self.execute());
        report(self.report, Record::Failed { stage, errno: errno.raw_os_error() });
        127
    }
}

/// Sends a record. An error is ignored, because it means that the reader is gone.
pub(crate) fn report(to: BorrowedFd<'_>, record: Record) {
    _ = write(to, &record.encode());
}

pub(crate) fn at<T>(stage: Stage, result: Result<T, Errno>) -> Result<T, (Stage, Errno)> {
    result.map_err(|errno| (stage, errno))
}

impl WorkerPlan<'_> {
    fn prepare(&mut self) -> Result<(), (Stage, Errno)> {
        at(Stage::Isolate, setpgid(None, None))?;
        // The parent-death signal follows a thread. The guardian has only one thread and outlives the worker,
        // so the signal comes only if the guardian dies.
        at(Stage::Isolate, set_parent_process_death_signal(Some(Signal::KILL)))?;
        if getppid().map_or(0, Pid::as_raw_pid) != self.guardian {
            return Err((Stage::Isolate, Errno::SRCH));
        }
        if let Some(ready) = self.guardian_ready {
            ready.wait();
        }
        report(self.report, Record::Started { pid: getpid().as_raw_pid() });
        self.attach()?;
        self.enter_mounts()?;
        self.confine()
    }

    /// Applies the limits and moves the pipes to the standard descriptors.
    pub(crate) fn attach(&self) -> Result<(), (Stage, Errno)> {
        // The control groups are entered first, so that no code runs without limits. Their descriptors close
        // at exec.
        for group in self.groups.into_iter().flatten() {
            at(Stage::Limit, write(group, b"0"))?;
        }
        for (fd, target) in [(self.stdin, 0), (self.stdout, 1), (self.stderr, 2)] {
            // SAFETY: the plan's descriptors are all above 2, and this process uses no others.
            at(Stage::Attach, unsafe { sys::duplicate_onto(fd, target) })?;
        }
        Ok(())
    }

    pub(crate) fn enter_mounts(&self) -> Result<(), (Stage, Errno)> {
        if let Some(cwd) = self.cwd {
            at(Stage::Chdir, chdir(cwd).and_then(|()| self.check_directory(cwd)))?;
        }
        at(Stage::Confine, self.cage.make_mounts(self.cwd))?;
        // The directory is entered again by its path, which now leads through the new mounts.
        self.cwd.map_or(Ok(()), |cwd| at(Stage::Chdir, self.check_directory(cwd)))
    }

    /// Fails if the path of the working directory contained a forbidden link. Checked after entering, because
    /// the entered directory can no longer be replaced.
    fn check_directory(&self, cwd: &CStr) -> Result<(), Errno> {
        match self.cwd_links {
            CwdLinks::Follow => Ok(()),
            CwdLinks::Refuse if sys::is_working_directory(cwd)? => Ok(()),
            CwdLinks::Refuse => Err(Errno::LOOP),
        }
    }

    /// Drops the privileges that the program must not have.
    pub(crate) fn confine(&self) -> Result<(), (Stage, Errno)> {
        at(Stage::Confine, self.cage.enter())?;
        if let Some(descriptors) = self.descriptors {
            // The limit of descriptors is set last, because earlier steps may need more. Setting fails only
            // if the current limit is lower anyway.
            let limit = Rlimit { current: Some(descriptors), maximum: getrlimit(Resource::Nofile).maximum };
            _ = setrlimit(Resource::Nofile, limit);
        }
        if let Some(seconds) = self.processor {
            // At the first limit the kernel sends a signal that a program can handle, and a second later one
            // that it cannot.
            let limit = Rlimit { current: Some(seconds), maximum: Some(seconds.saturating_add(1)) };
            at(Stage::Limit, setrlimit(Resource::Cpu, limit))?;
        }
        sys::unblock_signals();
        Ok(())
    }

    pub(crate) fn execute(&self) -> (Stage, Errno) {
        (Stage::Exec, sys::execute(self.program, self.argv, self.envp))
    }
}

impl GuardPlan<'_> {
    fn run_plan(&mut self) -> Result<(), (Stage, Errno)> {
        sys::default_signals();
        let me = at(Stage::Isolate, setsid())?;
        at(Stage::Isolate, set_child_subreaper(Some(me)))?;
        // The guardian's copy of the memory may hold secrets of the supervisor, so core files and debuggers
        // are forbidden.
        at(Stage::Isolate, set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
        _ = rustix::thread::set_name(c"narrows-guard");
        let ([one, two], [three, four]) = (self.worker.cage.descriptors(), self.worker.groups);
        let fds = [
            self.worker.stdin,
            self.worker.stdout,
            self.worker.stderr,
            self.worker.report,
            self.control,
            self.supervisor,
            // Without `one`, a descriptor is listed twice, which is harmless.
            one.unwrap_or(self.control),
            two.unwrap_or(self.control),
            three.unwrap_or(self.control),
            four.unwrap_or(self.control),
        ];
        // SAFETY: the process uses only descriptors of its plan and those that it opens from here on.
        at(Stage::CloseDescriptors, unsafe { sys::close_all_but(&mut fds.map(|fd| fd.as_raw_fd())) })?;
        // A worker can stop its guardian. The kernel then continues the guardian when an order arrives or the
        // supervisor ends.
        sys::continue_when_readable(self.control, me.as_raw_pid());
        let proc = at(Stage::OpenProc, open_proc())?;
        let signals = at(Stage::WatchChildren, sys::child_signals())?;
        // Memory is released before the fork, so that the worker does not copy it.
        self.release_memory();

        self.worker.guardian = me.as_raw_pid();
        let mut ready = None;
        let (leader, init) = match self.worker.cage.init_namespaces() {
            None => {
                let (read, write) = at(Stage::WatchChildren, pipe_with(PipeFlags::CLOEXEC))?;
                let signal = ReadySignal { read: read.as_raw_fd(), write: write.as_raw_fd() };
                self.worker.guardian_ready = Some(signal);
                let leader = sys::fork_child(self.worker_stack, self.worker, UnshareFlags::empty());
                ready = Some(write);
                (Some(at(Stage::Fork, leader)?), None)
            }
            Some(namespaces) => (None, Some(self.fork_init(namespaces, proc.as_fd())?)),
        };
        let pipes = [self.worker.stdin, self.worker.stdout, self.worker.stderr, self.worker.report];
        for fd in pipes.into_iter().chain([one, two, three, four].into_iter().flatten()) {
            // SAFETY: these descriptors were the worker's, and no code below uses them.
            unsafe { sys::close(fd.as_raw_fd()) };
        }
        drop(ready);
        // The guardian moves to the root directory, because its current directory would keep a file system
        // busy.
        _ = chdir(c"/");

        let root = init.as_ref().map_or(me, |init| init.pid);
        let tree = Tree::new(proc.as_fd(), root.as_raw_pid(), self.members);
        let mut watch = GuardianLoop {
            control: self.control,
            leader,
            leader_ended: false,
            init,
            tree,
            grace_ms: self.grace_ms,
            phase: Phase::Running,
            swept: 0,
        };
        watch.run(self.supervisor, signals.as_fd());
        Ok(())
    }

    fn fork_init(&mut self, namespaces: UnshareFlags, proc: BorrowedFd<'_>) -> Result<Init, (Stage, Errno)> {
        // The socket pair is created by the guardian, so that no other process has either end. Guardian and
        // init each see when the other's end closes.
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = at(Stage::WatchChildren, pair)?;
        let mut init = InitPlan {
            worker: &mut *self.worker,
            program_stack: self.program_stack,
            proc,
            status: theirs.as_fd(),
            guardian_status: ours.as_raw_fd(),
        };
        let pid = at(Stage::Fork, sys::fork_child(self.worker_stack, &mut init, namespaces))?;
        Ok(Init { pid, status: Some(ours), is_counted: false })
    }

    fn release_memory(&self) {
        let [errno, thread] = sys::thread_state().map(|address| {
            address.saturating_sub(THREAD_STATE_MARGIN_BYTES)
                ..address.saturating_add(THREAD_STATE_MARGIN_BYTES)
        });
        let keep = [self.arena.clone(), errno, thread];
        let mut parser = MapsParser::new(&keep);
        let Ok(maps) =
            openat(rustix::fs::CWD, c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        else {
            return;
        };
        let mut chunk = [0; 4096];
        while let Some(text) =
            read(&maps, &mut chunk).ok().and_then(|len| chunk.get(..len)).filter(|text| !text.is_empty())
        {
            // SAFETY: the arena holds the stack, the plan and everything it refers to, and the per-thread
            // state is kept; libraries' own data is file-backed or smaller than the ranges that the parser
            // reports.
            parser.feed(text, &mut |range| unsafe { sys::discard(&range) });
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// All processes got `SIGTERM`, and will be killed at time `until`.
    Terminating {
        until: u64,
    },
    /// All processes get `SIGKILL`, and again at time `next`.
    Killing {
        since: u64,
        next: u64,
        pause: u64,
        told: bool,
    },
}

/// The first process of the tree's PID namespace, which the guardian forks instead of the worker. When it
/// ends, the kernel kills all other processes of the namespace.
struct Init {
    pid: Pid,
    /// Socket with the reports about the start and end of the worker. `None` after the end of init.
    status: Option<OwnedFd>,
    /// `true` once the other processes of the tree were counted. Init reaps them, so the guardian counts them
    /// before their end.
    is_counted: bool,
}

struct GuardianLoop<'a> {
    control: BorrowedFd<'a>,
    /// Process id of the worker. `None` until init has forked the worker.
    leader: Option<Pid>,
    leader_ended: bool,
    init: Option<Init>,
    /// Search for the tree's processes. Unused with init.
    tree: Tree<'a>,
    grace_ms: u64,
    phase: Phase,
    swept: u32,
}

impl GuardianLoop<'_> {
    /// Runs until no process of the tree is left.
    fn run(&mut self, supervisor: BorrowedFd<'_>, signals: BorrowedFd<'_>) {
        let mut supervised = true;
        while self.reap() {
            if self.leader_ended && self.phase == Phase::Running {
                self.terminate_all();
            }
            let wake = self.advance();
            let timeout = wake.map(|at| {
                let left = at.saturating_sub(sys::now_ms());
                Timespec { tv_sec: (left / 1000) as i64, tv_nsec: (left % 1000 * 1_000_000) as i64 }
            });
            let status = self.init.as_ref().and_then(|init| init.status.as_ref());
            let mut fds = [
                PollFd::from_borrowed_fd(signals, PollFlags::IN),
                // Without init, `signals` is polled twice, which is harmless.
                PollFd::from_borrowed_fd(status.map_or(signals, AsFd::as_fd), PollFlags::IN),
                PollFd::from_borrowed_fd(self.control, PollFlags::IN),
                PollFd::from_borrowed_fd(supervisor, PollFlags::IN),
            ];
            let watched = if supervised { &mut fds[..] } else { &mut fds[..2] };
            if poll(watched, timeout.as_ref()).is_err() {
                continue;
            }
            let [child, _, order, death] = fds.map(|fd| !fd.revents().is_empty());
            if child {
                // The content of the signals does not matter, because `reap` collects every dead child.
                _ = read(signals, &mut [0; 1024]);
            }
            // The status is handled before orders: the supervisor gives orders only after it knows that the
            // worker has started.
            self.receive_status();
            if supervised && (order || death) {
                supervised = self.handle_orders() && !death;
                if !supervised && self.phase == Phase::Running {
                    self.terminate_all();
                }
            }
        }
        report(self.control, Record::Finished { swept: self.swept });
    }

    /// Reaps dead children. Returns `true` if other children are alive.
    fn reap(&mut self) -> bool {
        let ending = self.phase != Phase::Running;
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if self.init.as_ref().is_some_and(|init| init.pid == pid) => {
                    // Init died without a report, and the kernel killed the worker with it.
                    self.receive_status();
                    self.end_leader(ended(status));
                }
                Ok(Some((pid, status))) if self.leader == Some(pid) && !self.leader_ended => {
                    self.end_leader(ended(status));
                }
                Ok(Some(_)) if ending => self.swept = self.swept.saturating_add(1),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    fn end_leader(&mut self, record: Record) {
        if !self.leader_ended {
            self.leader_ended = true;
            report(self.control, record);
        }
    }

    fn receive_status(&mut self) {
        let mut bytes = [0; RECORD_BYTES];
        while let Some(status) = self.init.as_ref().and_then(|init| init.status.as_ref()) {
            match recv(status, &mut bytes, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Ok((0, _)) | Err(_) => {
                    // The socket stays readable until init has ended, which may take time, so it is not
                    // polled any more.
                    if let Some(init) = &mut self.init {
                        init.status = None;
                    }
                }
                Ok(_) => match Record::decode(&bytes) {
                    Some(Record::Started { pid }) => self.leader = Pid::from_raw(pid),
                    Some(record) => {
                        // The guardian does not use the worker's pid any more, so init may reap the worker.
                        _ = send(status, &[0], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                        self.end_leader(record);
                    }
                    None => {}
                },
            }
        }
    }

    /// Counts the processes that end together with the worker. Only the first call, when ending begins, has
    /// an effect.
    fn count_swept(&mut self, alive: u32) {
        if let Some(init) = self.init.as_mut().filter(|init| !init.is_counted) {
            init.is_counted = true;
            self.swept = alive.saturating_sub(u32::from(!self.leader_ended));
        }
    }

    /// Takes the next step of ending the tree if it is due. Returns the time of the step after it.
    fn advance(&mut self) -> Option<u64> {
        let now = sys::now_ms();
        match self.phase {
            Phase::Running => None,
            Phase::Terminating { until } if now < until => Some(until),
            Phase::Terminating { .. } => {
                self.start_killing();
                Some(now)
            }
            Phase::Killing { next, .. } if now < next => Some(next),
            Phase::Killing { since, pause, mut told, .. } => {
                let mut alive = self.tree.kill().alive;
                self.count_swept(alive);
                if let Some(init) = &self.init {
                    // Killing init makes the kernel kill processes that the search has missed.
                    _ = kill_process(init.pid, Signal::KILL);
                    // Init must still exist, because this code runs only until its end.
                    alive = alive.max(1);
                }
                if alive > 0 && !told && now.saturating_sub(since) >= STUCK_AFTER_MS {
                    report(self.control, Record::Stuck { swept: self.swept, alive });
                    told = true;
                }
                let next = sys::now_ms().saturating_add(pause);
                let pause = pause.saturating_mul(2).min(KILL_RETRY_MS.end);
                self.phase = Phase::Killing { since, next, pause, told };
                Some(next)
            }
        }
    }

    /// Handles the supervisor's orders. Returns `false` if no more orders can come.
    fn handle_orders(&mut self) -> bool {
        let mut order = [0; 1];
        match recv(self.control, &mut order, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return false,
            Ok(_) if order == [Order::Terminate as u8] => self.terminate_group(),
            Ok(_) if order == [Order::Kill as u8] => self.start_killing(),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return false,
        }
        true
    }

    /// Sends `SIGTERM` to the worker's group. Stopped processes are continued, because they would not handle
    /// the signal.
    fn terminate_group(&self) {
        if let (false, Some(leader)) = (self.leader_ended, self.leader) {
            _ = kill_process_group(leader, Signal::TERM);
            _ = kill_process_group(leader, Signal::CONT);
        }
    }

    fn terminate_all(&mut self) {
        if self.leader.is_none() {
            // No program runs yet that could end itself.
            return self.start_killing();
        }
        let alive = self.tree.signal(Signal::TERM).alive;
        self.count_swept(alive);
        self.tree.signal(Signal::CONT);
        self.phase = Phase::Terminating { until: sys::now_ms().saturating_add(self.grace_ms) };
    }

    fn start_killing(&mut self) {
        if !matches!(self.phase, Phase::Killing { .. }) {
            let now = sys::now_ms();
            self.phase = Phase::Killing { since: now, next: now, pause: KILL_RETRY_MS.start, told: false };
        }
    }
}

fn ended(status: WaitStatus) -> Record {
    Record::ended(status.exit_status(), status.terminating_signal())
}
