//! Starts a worker under its guardian.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::thread::capabilities;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::child::{Child, Lifeline};
use crate::enter_sandbox::SandboxPlan;
use crate::guardian::{GuardPlan, WorkerPlan};
use crate::guardian_handle::{Guardian, Watcher};
use crate::limits::TreeCgroups;
use crate::record::{RECORD_BYTES, Record, Stage};
use crate::sandbox::{Gateway, PreparedSandbox};
use crate::sys::{self, Arena};
use crate::tree::Member;
use crate::{Environment, SpawnError, Spec, StderrTail, lookup};

const GUARDIAN_STACK_BYTES: usize = 256 << 10;
const WORKER_STACK_BYTES: usize = 64 << 10;
/// Size of the stack of a worker that init forks in a PID namespace.
const PROGRAM_STACK_BYTES: usize = WORKER_STACK_BYTES;
/// Maximum number of processes handled at once. A larger tree is ended in portions.
const MAX_TREE_MEMBERS: usize = 32 << 10;

/// Starts a worker. Returns when its program runs.
///
/// The fork runs on a blocking thread of the runtime, because its duration grows with the memory of this
/// program. The worker does not depend on that thread.
///
/// Dropping the future or the [`Child`] ends everything that was started.
pub async fn spawn(spec: Spec) -> Result<Child, SpawnError> {
    let program = spec.program.clone();
    let stderr_limit = spec.stderr_limit;
    let launched = tokio::task::spawn_blocking(move || launch(&spec))
        .await
        .map_err(|error| SpawnError::setup("run the fork")(io::Error::other(error)))??;

    let setup = SpawnError::setup("watch the worker's pipes");
    let mut report = pipe::Receiver::from_owned_fd(launched.report).map_err(&setup)?;
    let stdin = pipe::Sender::from_owned_fd(launched.stdin).map_err(&setup)?;
    let stdout = pipe::Receiver::from_owned_fd(launched.stdout).map_err(&setup)?;
    let stderr = launched.stderr.map(pipe::Receiver::from_owned_fd).transpose().map_err(&setup)?;

    let tail = StderrTail::new(stderr_limit);
    let drain = tokio::spawn(tail.clone().drain(stderr));
    let (progress, stop_requested) = (launched.watcher.progress(), launched.watcher.stop_requested());
    tokio::spawn(launched.watcher.run(drain));

    // The pipe ends when the worker dies or executes its program, because the worker's end closes at exec.
    let mut records = Vec::with_capacity(2 * RECORD_BYTES);
    report.read_to_end(&mut records).await.map_err(SpawnError::setup("receive the result of the start"))?;
    let (chunks, _) = records.as_chunks::<RECORD_BYTES>();
    let mut pid = None;
    let mut failure = None;
    for record in chunks.iter().filter_map(|chunk| Record::decode(chunk)) {
        match record {
            Record::Started { pid: started } => pid = Some(started),
            Record::Failed { stage, errno } => failure = Some((stage, errno)),
            _ => {}
        }
    }
    let guardian = launched.guardian;
    let guardian_pid = guardian.pid;
    let mut child =
        Child::new(launched.lifeline, progress, stop_requested, pid, guardian, stdin, stdout, tail);
    let error = match failure {
        None if pid.is_some() => {
            if let Some(gateway) = launched.gateway {
                // The worker has sent the listener before its program runs.
                child.gateway = Some(take_listener(&gateway).map_err(SpawnError::setup("take the gateway"))?);
            }
            tracing::debug!(?program, pid, guardian = guardian_pid, "worker started");
            return Ok(child);
        }
        None => SpawnError::Guardian,
        Some((stage, errno)) => {
            let source = io::Error::from_raw_os_error(errno);
            match stage {
                Stage::Exec => SpawnError::Exec { path: launched.path, source },
                Stage::Chdir => SpawnError::Cwd { path: launched.cwd.unwrap_or_default(), source },
                Stage::Confine => SpawnError::Sandbox { action: stage.action(), source },
                _ => SpawnError::Setup { action: stage.action(), source },
            }
        }
    };
    // The failed worker is removed completely before the caller gets the error.
    child.kill();
    child.wait().await;
    Err(error)
}

/// A guardian that was just forked, with the supervisor's ends of its pipes and sockets.
struct Launched {
    // Fields are dropped in order. The lifeline must be dropped before the watcher, which waits for the
    // guardian's end.
    lifeline: Lifeline,
    guardian: Guardian,
    watcher: Watcher,
    report: OwnedFd,
    stdin: OwnedFd,
    stdout: OwnedFd,
    /// Stderr of the worker; `None` if it is merged with stdout.
    stderr: Option<OwnedFd>,
    gateway: Option<OwnedFd>,
    path: PathBuf,
    cwd: Option<PathBuf>,
}

fn launch(spec: &Spec) -> Result<Launched, SpawnError> {
    let mut start = WorkerCommand::new(spec)?;
    // Strings with NUL are refused before a launcher receives them: in the launcher's options, a NUL would
    // begin another option.
    let mut text = WorkerStrings::new(&start)?;
    let mut cage = None;
    if let Some(sandbox) = &spec.sandbox {
        cage = Some(sandbox.prepare(&mut start)?);
        text = WorkerStrings::new(&start)?;
    }

    let group = TreeCgroups::new(&spec.limits)?;

    let pipes = SpawnError::setup("create pipes");
    let (worker_stdin, stdin) = pipe_above_stdio().map_err(&pipes)?;
    let (stdout, worker_stdout) = pipe_above_stdio().map_err(&pipes)?;
    let (stderr, worker_stderr) = if spec.merge_stderr {
        (None, above_stdio(worker_stdout.try_clone().map_err(&pipes)?).map_err(&pipes)?)
    } else {
        let (ours, theirs) = pipe_above_stdio().map_err(&pipes)?;
        (Some(ours), theirs)
    };
    let (report, worker_report) = pipe_above_stdio().map_err(&pipes)?;
    // A socket is used instead of a pipe, because an order to a dead guardian must be an error, not a SIGPIPE
    // that the embedding program may not handle. It transfers packets, so that records need no reassembly.
    let (control, guardian_control) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|errno| pipes(errno.into()))?;
    let control = above_stdio(control).map_err(&pipes)?;
    let guardian_control = above_stdio(guardian_control).map_err(&pipes)?;
    let supervisor = pidfd_open(getpid(), PidfdFlags::empty())
        .map_err(io::Error::from)
        .and_then(above_stdio)
        .map_err(SpawnError::setup("watch over processes (Linux 5.9 or later is needed)"))?;

    let memory = SpawnError::setup("reserve memory for the guardian");
    let strings = text.size() + cage.as_ref().map_or(0, PreparedSandbox::size);
    let stacks = GUARDIAN_STACK_BYTES + WORKER_STACK_BYTES + PROGRAM_STACK_BYTES;
    let arena = Arena::new(strings + stacks + MAX_TREE_MEMBERS * size_of::<Member>() + ARENA_SLACK_BYTES)
        .map_err(&memory)?;
    let plan = || -> io::Result<_> {
        let guardian_stack = arena.stack(GUARDIAN_STACK_BYTES)?;
        let (worker_stack, program_stack) =
            (arena.stack(WORKER_STACK_BYTES)?, arena.stack(PROGRAM_STACK_BYTES)?);
        let worker = arena.value(WorkerPlan {
            stdin: worker_stdin.as_fd(),
            stdout: worker_stdout.as_fd(),
            stderr: worker_stderr.as_fd(),
            report: worker_report.as_fd(),
            program: arena.string(&text.program)?,
            argv: arena.strings(&text.argv)?,
            envp: arena.strings(&text.envp)?,
            cwd: text.cwd.as_ref().map(|cwd| arena.string(cwd)).transpose()?,
            cwd_links: spec.cwd_links,
            cage: plan_sandbox(&arena, cage.as_ref())?,
            groups: group.entries(),
            descriptors: spec.descriptors,
            processor: spec
                .processor
                .map(|time| time.as_millis().div_ceil(1000))
                .map(|seconds| u64::try_from(seconds).unwrap_or(u64::MAX)),
            guardian: 0,
            guardian_ready: None,
        })?;
        let guard = arena.value(GuardPlan {
            control: guardian_control.as_fd(),
            supervisor: supervisor.as_fd(),
            worker,
            worker_stack,
            program_stack,
            members: arena.zeroed(MAX_TREE_MEMBERS)?,
            arena: arena.range(),
            grace_ms: u64::try_from(spec.orphan_grace.as_millis()).unwrap_or(u64::MAX),
        })?;
        Ok((guardian_stack, guard))
    };
    let (stack, guard) = plan().map_err(&memory)?;
    let (pid, pidfd) = sys::fork_guardian(stack, guard).map_err(SpawnError::setup("fork the guardian"))?;

    let (scratch, gateway) = match cage {
        Some(PreparedSandbox::Landlock { scratch, gateway, .. }) => (Some(scratch), gateway),
        Some(PreparedSandbox::Launcher { .. }) | None => (None, None),
    };
    let group = (!group.is_empty()).then_some(group);
    let control = Arc::new(control);
    let guardian = Guardian::new(pid, pidfd);
    Ok(Launched {
        lifeline: Lifeline::new(control.clone()),
        watcher: Watcher::new(control, guardian.clone(), scratch, group),
        guardian,
        report,
        stdin,
        stdout,
        stderr,
        gateway: gateway.map(|Gateway { ours, .. }| ours),
        path: start.program,
        cwd: start.cwd,
    })
}

fn take_listener(from: &OwnedFd) -> io::Result<TcpListener> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    recvmsg(from, &mut [io::IoSliceMut::new(&mut byte)], &mut message, flags)?;
    let mut descriptors = message.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let listener = descriptors.next().and_then(|mut descriptors| descriptors.next());
    let listener = TcpListener::from(above_stdio(listener.ok_or(io::ErrorKind::UnexpectedEof)?)?);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Additional size of the arena for plans, alignment and guard pages, even with pages of 64 KiB.
const ARENA_SLACK_BYTES: usize = 512 << 10;

fn plan_sandbox<'a>(arena: &'a Arena, cage: Option<&'a PreparedSandbox>) -> io::Result<SandboxPlan<'a>> {
    Ok(match cage {
        None => SandboxPlan::None,
        Some(PreparedSandbox::Landlock { ruleset, filters, mounts, gateway, .. }) => {
            let copied = |filter: &[sys::Instruction]| -> io::Result<&'a [sys::Instruction]> {
                let copy = arena.zeroed(filter.len())?;
                copy.copy_from_slice(filter);
                Ok(copy)
            };
            let view = mounts.as_ref().map(|mounts| mounts.plan(arena)).transpose()?;
            let gateway = gateway.as_ref().map(|gateway| gateway.worker.as_fd());
            let (filter, without_ipc) = (copied(&filters.main)?, copied(&filters.without_ipc)?);
            let powers = capabilities(None)?.permitted;
            SandboxPlan::Landlock { ruleset: ruleset.as_fd(), filter, without_ipc, view, gateway, powers }
        }
        Some(PreparedSandbox::Launcher { options, filter }) => {
            SandboxPlan::Launcher { options: options.as_fd(), filter: filter.as_fd() }
        }
    })
}

/// The command that the worker executes: the program of the spec, or a launcher.
pub(crate) struct WorkerCommand {
    pub(crate) program: PathBuf,
    pub(crate) argv: Vec<OsString>,
    pub(crate) env: Environment,
    pub(crate) cwd: Option<PathBuf>,
}

impl WorkerCommand {
    fn new(spec: &Spec) -> Result<Self, SpawnError> {
        let program = lookup::program(spec)?;
        let argv = [&spec.program].into_iter().chain(&spec.args).cloned().collect();
        Ok(Self { program, argv, env: spec.env.clone(), cwd: spec.cwd.clone() })
    }
}

/// The worker's strings in the form that the kernel requires.
struct WorkerStrings {
    program: CString,
    argv: Vec<CString>,
    envp: Vec<CString>,
    cwd: Option<CString>,
}

impl WorkerStrings {
    fn new(start: &WorkerCommand) -> Result<Self, SpawnError> {
        let string =
            |what, text: &OsStr| CString::new(text.as_bytes()).map_err(|_| SpawnError::Invalid { what });
        let mut argv = Vec::with_capacity(start.argv.len());
        for (index, arg) in start.argv.iter().enumerate() {
            argv.push(string(if index == 0 { "the program's name" } else { "an argument" }, arg)?);
        }
        let mut envp = Vec::new();
        for (name, value) in start.env.iter() {
            let what = "an environment variable";
            if name.is_empty() || name.as_bytes().contains(&b'=') {
                return Err(SpawnError::Invalid { what });
            }
            let mut entry = name.to_owned();
            entry.push("=");
            entry.push(value);
            envp.push(CString::new(entry.into_vec()).map_err(|_| SpawnError::Invalid { what })?);
        }
        let cwd =
            start.cwd.as_ref().map(|cwd| string("the working directory", cwd.as_os_str())).transpose()?;
        Ok(Self { program: string("the program's path", start.program.as_os_str())?, argv, envp, cwd })
    }

    fn size(&self) -> usize {
        let strings = self.argv.iter().chain(&self.envp).chain(&self.cwd).chain([&self.program]);
        strings.map(|string| string.count_bytes() + 1 + 2 * size_of::<usize>()).sum()
    }
}

/// Creates a pipe with blocking ends that close on exec. The runtime makes this program's end non-blocking,
/// which does not affect the other end of a pipe.
fn pipe_above_stdio() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((above_stdio(read)?, above_stdio(write)?))
}

/// Moves a descriptor above 2. In a program without stdin, a new descriptor gets the number 0, and the
/// worker's own 0, 1 and 2 must not overwrite a descriptor that is still needed.
pub(crate) fn above_stdio(fd: OwnedFd) -> io::Result<OwnedFd> {
    debug_assert!(fcntl_getfd(&fd).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC)));
    if fd.as_raw_fd() > 2 { Ok(fd) } else { Ok(fcntl_dupfd_cloexec(&fd, 3)?) }
}
