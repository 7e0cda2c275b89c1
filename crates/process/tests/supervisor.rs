//! Tests with supervisors in separate processes: this test binary starts itself in a role.
#![expect(clippy::unwrap_used, reason = "what goes wrong in a role or a helper fails the test")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::{HOSTILE_COUNT, Mark, QUICK, eventually, exists, hostile, read_all, state};
use narrows_process::spawn;
use rustix::process::{ForeignRawFd, Pid, PidfdFlags, PidfdGetfdFlags, Signal};
use tokio::io::AsyncWriteExt;

const ROLE: &str = "NARROWS_TEST_ROLE";
const ROLE_MARK: &str = "NARROWS_TEST_ROLE_MARK";

/// Runs the role that the environment names; passes at once if there is none. A role prints lines that
/// begin with `@`.
#[test]
fn role() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match role.to_str().unwrap() {
        "supervisor" => runtime.block_on(supervise()),
        "churn" => runtime.block_on(churn()),
        "large" => runtime.block_on(large()),
        "abandon" => abandon(runtime),
        "closed" => runtime.block_on(closed()),
        other => panic!("unknown role {other}"),
    }
}

fn say(line: &str) {
    // The line is separate, because libtest also writes to stdout.
    std::io::stdout().write_all(format!("\n@{line}\n").as_bytes()).unwrap();
}

async fn supervise() {
    let mark = Mark::from_text(&std::env::var(ROLE_MARK).unwrap());
    let child = hostile(&mark).await;
    say(&format!("guardian {} worker {}", child.guardian_pid(), child.pid()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let exit = child.stop(QUICK).await;
    say(&format!("{:?}", exit.class));
}

async fn churn() {
    let descriptor_count = || fs::read_dir("/proc/self/fd").unwrap().count();
    let mark = Mark::new();
    // The first start opens descriptors that the runtime keeps.
    spawn(mark.shell("exec cat")).await.unwrap().stop(QUICK).await;
    let descriptors = descriptor_count();
    for round in 0..200 {
        match round % 4 {
            0 => drop(spawn(mark.shell("exec cat")).await.unwrap()),
            1 => _ = spawn(mark.shell("exec sleep 1000")).await.unwrap().stop(QUICK_KILL).await,
            2 => _ = spawn(narrows_process::Spec::new("/proc/self/environ")).await.unwrap_err(),
            _ => _ = spawn(mark.shell("exec cat")).await.unwrap().stop(QUICK).await,
        }
    }
    eventually("no process is left", || mark.alive().is_empty());
    eventually("no child is left, not even a zombie", || children().is_empty());
    eventually("descriptors are back at the baseline", || descriptor_count() <= descriptors);
    say("done");
}

fn children() -> String {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("children")).ok()).collect()
}

fn abandon(runtime: tokio::runtime::Runtime) {
    let mark = Mark::new();
    runtime.block_on(async {
        for _ in 0..50 {
            // Polling the future once is enough to start the fork.
            _ = tokio::time::timeout(Duration::ZERO, spawn(mark.shell("exec sleep 1000"))).await;
        }
    });
    // After the runtime was dropped, no further fork happens.
    drop(runtime);
    eventually("no process is left", || mark.alive().is_empty());
    eventually("no child is left, not even a zombie", || children().is_empty());
    say("done");
}

async fn closed() {
    let mut out = fs::File::from(rustix::io::dup(std::io::stdout()).unwrap());
    for fd in 0..3 {
        #[expect(unsafe_code, reason = "there is no safe way to close what belongs to everybody")]
        // SAFETY: nothing here uses these descriptors from now on; the process ends below.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let mut child = spawn(Mark::new().shell("cat; echo err >&2")).await.unwrap();
    child.take_stdin().unwrap().write_all(b"in and out\n").await.unwrap();
    let text = read_all(&mut child).await;
    let exit = child.wait().await;
    out.write_all(format!("\n@{text:?} {:?} {:?}\n", child.stderr().tail(1), exit.code).as_bytes()).unwrap();
    #[expect(clippy::exit, reason = "the test harness would write to descriptors that are gone")]
    std::process::exit(0);
}

const QUICK_KILL: narrows_process::Ladder =
    narrows_process::Ladder { eof_grace: Duration::ZERO, term_grace: Duration::ZERO };

async fn large() {
    let memory = std::hint::black_box(vec![1u8; 256 << 20]);
    let child = spawn(Mark::new().shell("exec cat")).await.unwrap();
    let own = private_kib(std::process::id());
    let guardian = private_kib(child.guardian_pid());
    assert_eq!(child.stop(QUICK).await.code, Some(0), "a guardian without memory still works");
    say(&format!("{own} {guardian}"));
    drop(std::hint::black_box(memory));
}

fn private_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

struct Supervisor {
    process: std::process::Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    mark: Mark,
}

impl Supervisor {
    /// Starts a supervisor in a separate process group, with SIGINT and SIGTERM ignored.
    fn start(role: &str) -> Self {
        Self::start_as(role, &std::env::current_exe().unwrap(), None)
    }

    fn start_as(role: &str, program: &Path, user: Option<u32>) -> Self {
        let mark = Mark::new();
        let mut command = Command::new("sh");
        if let Some(user) = user {
            command.uid(user);
        }
        let mut process = command
            .args(["-c", r#"trap '' INT TERM; exec "$0" "$@""#])
            .arg(program)
            .args(["--exact", "role", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(ROLE_MARK, mark.text())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let stdin = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, stdin, lines, mark }
    }

    fn hear(&mut self) -> String {
        let said = self.lines.by_ref().find_map(|line| line.unwrap().strip_prefix('@').map(str::to_owned));
        said.expect("the supervisor exited without output")
    }

    fn guardian_and_worker(&mut self) -> (u32, u32) {
        let said = self.hear();
        let (guardian, worker) = said.strip_prefix("guardian ").unwrap().split_once(" worker ").unwrap();
        (guardian.parse().unwrap(), worker.parse().unwrap())
    }

    fn guardian(&mut self) -> u32 {
        self.guardian_and_worker().0
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Kills the supervisor, and checks that no process is left ten seconds later.
    fn kill_and_expect_the_end(&mut self, guardian: u32) {
        assert!(self.mark.sleeps(HOSTILE_COUNT));
        self.process.kill().unwrap();
        let killed = Instant::now();
        eventually("the tree is gone", || self.mark.alive().is_empty());
        // Orphaned guardians are reaped by init, which may take a while.
        eventually("the guardian is gone", || state(guardian).is_none_or(|state| state == 'Z'));
        assert!(killed.elapsed() < Duration::from_secs(10), "it took {:?}", killed.elapsed());
        self.process.wait().unwrap();
    }
}

#[test]
fn nothing_survives_a_supervisor_killed_with_sigkill() {
    let mut supervisor = Supervisor::start("supervisor");
    let guardian = supervisor.guardian();
    supervisor.kill_and_expect_the_end(guardian);
}

/// Only the kernel can continue the guardian here.
#[test]
fn nothing_survives_a_dead_supervisor_with_a_stopped_guardian() {
    let mut supervisor = Supervisor::start("supervisor");
    let guardian = supervisor.guardian();
    rustix::process::kill_process(Pid::from_raw(guardian.cast_signed()).unwrap(), Signal::STOP).unwrap();
    eventually("the guardian is stopped", || state(guardian) == Some('T'));
    supervisor.kill_and_expect_the_end(guardian);
}

/// In `/proc`, the files of a process that may be debugged or dumped belong to its user, otherwise to root.
#[test]
fn a_guardian_cannot_be_debugged_by_its_user() {
    const NOBODY: u32 = 65534;
    let dir = tempfile::tempdir().unwrap();
    let mut program = std::env::current_exe().unwrap();
    let mut user = rustix::process::geteuid().as_raw();
    if user == 0 {
        // `nobody` may lack access to the directory of the program.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        program = dir.path().join("program");
        // Copied by another process: a fork for another test would inherit the descriptor that is open for
        // writing, and the program could not be executed.
        let copy = Command::new("cp").args([&std::env::current_exe().unwrap(), &program]).status().unwrap();
        assert!(copy.success());
        user = NOBODY;
    }
    let mut supervisor =
        Supervisor::start_as("supervisor", &program, Some(user).filter(|user| *user == NOBODY));
    let (guardian, worker) = supervisor.guardian_and_worker();
    let owner = |pid| fs::metadata(format!("/proc/{pid}/stat")).unwrap().uid();
    assert_eq!((owner(worker), owner(guardian)), (user, 0));
    supervisor.stdin.write_all(b"stop\n").unwrap();
    assert_eq!(supervisor.hear(), "Stopped");
    assert!(supervisor.process.wait().unwrap().success());
}

#[test]
fn a_supervisor_without_standard_descriptors_has_workers_with_them() {
    let mut supervisor = Supervisor::start("closed");
    assert_eq!(supervisor.hear(), r#""in and out\n" "err" Some(0)"#);
    assert!(supervisor.process.wait().unwrap().success());
}

/// A copy of the control socket in another process hides that the socket is closed, but not that the
/// supervisor died.
#[test]
fn a_leaked_control_socket_does_not_keep_the_tree_alive() {
    let mut supervisor = Supervisor::start("supervisor");
    let guardian = supervisor.guardian();
    let pidfd = rustix::process::pidfd_open(supervisor.pid(), PidfdFlags::empty()).unwrap();
    let mut sockets = Vec::new();
    for entry in fs::read_dir(format!("/proc/{}/fd", supervisor.process.id())).unwrap() {
        let path = entry.unwrap().path();
        if fs::read_link(&path).is_ok_and(|target| target.to_string_lossy().starts_with("socket:")) {
            let number: ForeignRawFd = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
            sockets.push(rustix::process::pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()).unwrap());
        }
    }
    assert!(!sockets.is_empty());
    supervisor.kill_and_expect_the_end(guardian);
}

/// A worker without its guardian ends at once, because the supervisor may never react.
#[test]
fn a_worker_does_not_outlive_its_guardian() {
    let mut supervisor = Supervisor::start("supervisor");
    let (guardian, worker) = supervisor.guardian_and_worker();
    rustix::process::kill_process(supervisor.pid(), Signal::STOP).unwrap();
    let threads = format!("/proc/{}/task", supervisor.process.id());
    eventually("the supervisor is stopped", || {
        let threads = fs::read_dir(&threads).unwrap().map(|thread| thread.unwrap().file_name());
        threads.into_iter().all(|thread| state(thread.to_str().unwrap().parse().unwrap()) == Some('T'))
    });
    rustix::process::kill_process(Pid::from_raw(guardian.cast_signed()).unwrap(), Signal::KILL).unwrap();
    eventually("the worker is gone", || state(worker).is_none_or(|state| state == 'Z'));
    supervisor.process.kill().unwrap();
    supervisor.process.wait().unwrap();
    // The other processes, in the session or not, can only be ended by this test.
    assert!(supervisor.mark.sleeps(HOSTILE_COUNT - 1));
    for pid in supervisor.mark.alive() {
        _ = rustix::process::kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
    }
}

#[test]
fn signals_to_the_supervisors_group_do_not_reach_the_guardian() {
    let mut supervisor = Supervisor::start("supervisor");
    let guardian = supervisor.guardian();
    for signal in [Signal::INT, Signal::TERM] {
        rustix::process::kill_process_group(supervisor.pid(), signal).unwrap();
    }
    assert!(exists(guardian));
    assert!(supervisor.mark.sleeps(HOSTILE_COUNT));
    supervisor.stdin.write_all(b"stop\n").unwrap();
    // The class would be `Lost` if a signal had reached the guardian.
    assert_eq!(supervisor.hear(), "Stopped");
    assert!(supervisor.process.wait().unwrap().success());
    assert_eq!(supervisor.mark.alive(), []);
}

#[test]
fn two_hundred_workers_leave_no_descriptor_and_no_process() {
    let mut supervisor = Supervisor::start("churn");
    assert_eq!(supervisor.hear(), "done");
    assert!(supervisor.process.wait().unwrap().success());
}

#[test]
fn an_abandoned_start_leaves_nothing() {
    let mut supervisor = Supervisor::start("abandon");
    assert_eq!(supervisor.hear(), "done");
    assert!(supervisor.process.wait().unwrap().success());
}

#[test]
fn a_guardian_releases_the_supervisors_memory() {
    let mut supervisor = Supervisor::start("large");
    let said = supervisor.hear();
    let (own, guardian) = said.split_once(' ').unwrap();
    let (own, guardian): (u64, u64) = (own.parse().unwrap(), guardian.parse().unwrap());
    assert!(own > 256 << 10, "the supervisor has {own} KiB");
    assert!(guardian < 2 << 10, "the guardian has {guardian} KiB");
    assert!(supervisor.process.wait().unwrap().success());
}
