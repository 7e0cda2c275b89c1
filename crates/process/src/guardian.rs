//! The forked side: the guardian, which outlives the tree, and the worker up to its exec. In a PID namespace an
//! [`init`](crate::init) is between them.
//!
//! This code runs in a copy of a multi-threaded program, most of whose memory has been released. So it does not
//! allocate, lock or panic, and touches only the plan.
#![expect(unsafe_code, reason = "descriptors and memory of the copied program are let go wholesale")]

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

/// How long the tree may resist `SIGKILL` before the supervisor is told.
const STUCK_AFTER_MS: u64 = 3_000;
/// The pause between two rounds of `SIGKILL` doubles from the first to the second.
const KILL_RETRY_MS: Range<u64> = 10..500;
/// Memory kept around the C library's per-thread state.
const THREAD_STATE_MARGIN_BYTES: usize = 64 << 10;

/// Everything the guardian needs. The plan and all it refers to are in the arena.
pub(crate) struct GuardPlan<'a> {
    /// Receives orders, sends records. Its end is the end of the child's handle or of the supervisor.
    pub(crate) control: BorrowedFd<'a>,
    /// Readable when the supervisor is dead, even if a copy of its end of `control` has leaked.
    pub(crate) supervisor: BorrowedFd<'a>,
    pub(crate) worker: &'a mut WorkerPlan<'a>,
    /// For the process that the guardian forks: the worker, or the first process of its PID namespace.
    pub(crate) worker_stack: Stack<'a>,
    /// For the worker in a PID namespace.
    pub(crate) program_stack: Stack<'a>,
    pub(crate) members: &'a mut [Member],
    pub(crate) arena: Range<usize>,
    pub(crate) grace_ms: u64,
}

/// Everything the worker needs before its exec.
pub(crate) struct WorkerPlan<'a> {
    pub(crate) stdin: BorrowedFd<'a>,
    pub(crate) stdout: BorrowedFd<'a>,
    pub(crate) stderr: BorrowedFd<'a>,
    /// Closes at exec; what is written before shows how far the worker got.
    pub(crate) report: BorrowedFd<'a>,
    pub(crate) program: &'a CStr,
    pub(crate) argv: StringArray<'a>,
    pub(crate) envp: StringArray<'a>,
    pub(crate) cwd: Option<&'a CStr>,
    pub(crate) cwd_links: CwdLinks,
    pub(crate) cage: SandboxPlan<'a>,
    /// The control groups of the tree. The process that writes a zero moves in.
    pub(crate) groups: [Option<BorrowedFd<'a>>; 2],
    /// The limit of its descriptors, if it differs from ours.
    pub(crate) descriptors: Option<u64>,
    /// The limit of processor time per process, in seconds.
    pub(crate) processor: Option<u64>,
    /// Set by the guardian, so that the worker can check that it is still its parent.
    pub(crate) guardian: i32,
    /// Set by the guardian. Unused in a PID namespace, from which the guardian cannot be stopped.
    pub(crate) guardian_ready: Option<ReadySignal>,
}

/// A pipe that the guardian closes when it holds no descriptor of the worker any more. The worker waits for that before
/// its exec: a program could stop its guardian, and the end of `report` would not be seen.
#[derive(Clone, Copy)]
pub(crate) struct ReadySignal {
    read: RawFd,
    write: RawFd,
}

impl ReadySignal {
    /// Waits for the guardian. If the guardian ends instead, its death kills the worker.
    fn wait(self) {
        // SAFETY: both are copies of the guardian's, made by the fork, and nothing else here uses them.
        unsafe {
            sys::close(self.write);
            let read_end = BorrowedFd::borrow_raw(self.read);
            while read(read_end, &mut [0; 1]).err() == Some(Errno::INTR) {}
            sys::close(self.read);
        }
    }
}

// SAFETY: `run_plan` and all it calls make system calls on memory of the plan and of the stack, nothing else.
unsafe impl sys::Program for GuardPlan<'_> {
    fn run(&mut self) -> c_int {
        match self.run_plan() {
            Ok(()) => 0,
            Err((stage, errno)) => {
                report(self.worker.report, Record::Failed { stage, errno: errno.raw_os_error() });
                // The fork is the last step that can fail, so there is no tree.
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

/// A failed write means that the reader is gone.
pub(crate) fn report(to: BorrowedFd<'_>, record: Record) {
    _ = write(to, &record.encode());
}

/// Names the step that failed.
pub(crate) fn at<T>(stage: Stage, result: Result<T, Errno>) -> Result<T, (Stage, Errno)> {
    result.map_err(|errno| (stage, errno))
}

impl WorkerPlan<'_> {
    fn prepare(&mut self) -> Result<(), (Stage, Errno)> {
        at(Stage::Isolate, setpgid(None, None))?;
        // The guardian has one thread and outlives this process, so the signal reports the guardian's death.
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
        // First, so that nothing runs without limits. The descriptors close at exec.
        for group in self.groups.into_iter().flatten() {
            at(Stage::Limit, write(group, b"0"))?;
        }
        for (fd, target) in [(self.stdin, 0), (self.stdout, 1), (self.stderr, 2)] {
            // SAFETY: the plan's descriptors are all above 2, and this process uses no others.
            at(Stage::Attach, unsafe { sys::duplicate_onto(fd, target) })?;
        }
        Ok(())
    }

    /// Enters the mounts of the sandbox and the working directory.
    pub(crate) fn enter_mounts(&self) -> Result<(), (Stage, Errno)> {
        if let Some(cwd) = self.cwd {
            at(Stage::Chdir, chdir(cwd).and_then(|()| self.check_directory(cwd)))?;
        }
        at(Stage::Confine, self.cage.make_mounts(self.cwd))?;
        // The mounts were entered by the same path again.
        self.cwd.map_or(Ok(()), |cwd| at(Stage::Chdir, self.check_directory(cwd)))
    }

    /// Fails if the working directory was reached by forbidden links. Checked from inside: from here on it cannot be
    /// replaced.
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
            // Last, because earlier steps may need more. Fails only where less is allowed anyway.
            let limit = Rlimit { current: Some(descriptors), maximum: getrlimit(Resource::Nofile).maximum };
            _ = setrlimit(Resource::Nofile, limit);
        }
        if let Some(seconds) = self.processor {
            // A signal that can be handled, followed a second later by one that cannot.
            let limit = Rlimit { current: Some(seconds), maximum: Some(seconds.saturating_add(1)) };
            at(Stage::Limit, setrlimit(Resource::Cpu, limit))?;
        }
        sys::unblock_signals();
        Ok(())
    }

    /// Executes the program. Returns only on failure.
    pub(crate) fn execute(&self) -> (Stage, Errno) {
        (Stage::Exec, sys::execute(self.program, self.argv, self.envp))
    }
}

impl GuardPlan<'_> {
    fn run_plan(&mut self) -> Result<(), (Stage, Errno)> {
        sys::default_signals();
        let me = at(Stage::Isolate, setsid())?;
        at(Stage::Isolate, set_child_subreaper(Some(me)))?;
        // The copy may hold secrets of the supervisor: no core files, no debugger.
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
            // Setting it twice does no harm.
            one.unwrap_or(self.control),
            two.unwrap_or(self.control),
            three.unwrap_or(self.control),
            four.unwrap_or(self.control),
        ];
        // SAFETY: this process uses the descriptors of its plan and those it opens from here on.
        at(Stage::CloseDescriptors, unsafe { sys::close_all_but(&mut fds.map(|fd| fd.as_raw_fd())) })?;
        // A worker can stop its guardian. An order and the end of the supervisor continue it automatically.
        sys::continue_when_readable(self.control, me.as_raw_pid());
        let proc = at(Stage::OpenProc, open_proc())?;
        let signals = at(Stage::WatchChildren, sys::child_signals())?;
        // Before the fork, so that the worker does not copy it.
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
            // SAFETY: these were the worker's, and nothing below uses them.
            unsafe { sys::close(fd.as_raw_fd()) };
        }
        drop(ready);
        // The root directory, because our working directory would keep a file system busy.
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
        // Created here, so that no other process has either end, and each of the two sees the end of the other.
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
            // SAFETY: the arena holds the stack, the plan and all it refers to, and the per-thread state is
            // kept; libraries' own data is file-backed or smaller than what the parser reports.
            parser.feed(text, &mut |range| unsafe { sys::discard(&range) });
        }
    }
}

/// The state of the guardian.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The worker is running.
    Running,
    /// Everything got `SIGTERM` and will be killed at this time.
    Terminating { until: u64 },
    /// Everything gets `SIGKILL`, again at `next`.
    Killing { since: u64, next: u64, pause: u64, told: bool },
}

/// The first process of the tree's PID namespace, forked in place of the worker. When it ends, the kernel kills all
/// others.
struct Init {
    pid: Pid,
    /// Where the worker's start and end are reported. `None` after its end.
    status: Option<OwnedFd>,
    /// The swept processes were counted. They are reaped in the namespace, so they are counted in advance.
    is_counted: bool,
}

struct GuardianLoop<'a> {
    control: BorrowedFd<'a>,
    /// The worker; `None` until init has forked it.
    leader: Option<Pid>,
    leader_ended: bool,
    init: Option<Init>,
    /// Used without init.
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
                // Setting it twice does no harm.
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
                // Only the fact counts: `reap` collects every child.
                _ = read(signals, &mut [0; 1024]);
            }
            // Before orders: the supervisor gives them when it knows that the worker has started.
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

    /// Reaps dead children. Returns `true` if there are others.
    fn reap(&mut self) -> bool {
        let ending = self.phase != Phase::Running;
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if self.init.as_ref().is_some_and(|init| init.pid == pid) => {
                    // It died without a report, and the worker died with it.
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

    /// Handles records from the PID namespace.
    fn receive_status(&mut self) {
        let mut bytes = [0; RECORD_BYTES];
        while let Some(status) = self.init.as_ref().and_then(|init| init.status.as_ref()) {
            match recv(status, &mut bytes, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Ok((0, _)) | Err(_) => {
                    // It stays readable, while the end of init may take time.
                    if let Some(init) = &mut self.init {
                        init.status = None;
                    }
                }
                Ok(_) => match Record::decode(&bytes) {
                    Some(Record::Started { pid }) => self.leader = Pid::from_raw(pid),
                    Some(record) => {
                        // From here on the worker's pid is not used any more, so the worker may be reaped.
                        _ = send(status, &[0], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                        self.end_leader(record);
                    }
                    None => {}
                },
            }
        }
    }

    /// Counts the processes that end with the worker, once, when their end begins.
    fn count_swept(&mut self, alive: u32) {
        if let Some(init) = self.init.as_mut().filter(|init| !init.is_counted) {
            init.is_counted = true;
            self.swept = alive.saturating_sub(u32::from(!self.leader_ended));
        }
    }

    /// Does what is due. Returns when to continue.
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
                    // The kernel also kills processes that the search has missed.
                    _ = kill_process(init.pid, Signal::KILL);
                    // It is still there, or this code would not run.
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

    /// Handles the supervisor's orders. Returns `false` when there will be no more.
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

    /// Asks the worker's group to end. A stopped process would not notice it, so it is continued too.
    fn terminate_group(&self) {
        if let (false, Some(leader)) = (self.leader_ended, self.leader) {
            _ = kill_process_group(leader, Signal::TERM);
            _ = kill_process_group(leader, Signal::CONT);
        }
    }

    fn terminate_all(&mut self) {
        if self.leader.is_none() {
            // No program is running yet that could end itself.
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
