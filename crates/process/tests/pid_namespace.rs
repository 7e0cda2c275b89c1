//! Tests that a sandboxed tree with its own process ids ends, and is reported, like any other.
#![expect(clippy::unwrap_used, reason = "what goes wrong in a role or a helper fails the test")]
#![expect(clippy::print_stderr, reason = "a test that cannot be run here says so")]

#[path = "common/cage.rs"]
mod cage;
mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cage::{as_nobody, confined, copy_itself, directory, output, with_pid_namespace};
use common::{
    HOSTILE, HOSTILE_COUNT, Mark, QUICK, STEP_TIMEOUT, eventually, exists, read_all, read_until, state,
};
use narrows_process::{Child, Controller, Exit, ExitClass, Limits, Spec, Support, spawn};
use rustix::process::{DumpableBehavior, Pid, Signal, kill_process, set_dumpable_behavior};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const ROLE: &str = "NARROWS_TEST_ROLE";
const ROLE_MARK: &str = "NARROWS_TEST_ROLE_MARK";

/// Runs the role that the environment names; passes at once if there is none. A role prints lines that
/// begin with `@`.
#[test]
fn role() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match role.to_str().unwrap() {
        "supervisor" => runtime.block_on(supervise()),
        "nested" => runtime.block_on(nest()),
        "hidden" => hide(),
        other => panic!("unknown role {other}"),
    }
}

fn say(line: &str) {
    // The line is separate, because libtest also writes to stdout.
    std::io::stdout().write_all(format!("\n@{line}\n").as_bytes()).unwrap();
}

async fn supervise() {
    let mark = Mark::from_text(&std::env::var(ROLE_MARK).unwrap());
    let root = directory();
    let child = hostile(&Support::namespaces().await, &mark, root.path()).await;
    say(&child.guardian_pid().to_string());
    child.wait().await;
}

async fn nest() {
    let mut spec = itself(&std::env::current_exe().unwrap(), "hidden");
    spec.orphan_grace = Duration::from_millis(100);
    let mut child = spawn(spec).await.unwrap();
    read_until(&mut child.take_stdout().unwrap(), "@ready\n").await;
    child.kill();
    let exit = ended(&child).await;
    say(&format!("{:?} {:?} {}", exit.class, exit.signal, exit.survivors));
}

fn hide() {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap();
    say("ready");
    loop {
        std::thread::park();
    }
}

fn itself(program: &Path, role: &str) -> Spec {
    let mut spec = Spec::new(program);
    spec.args = ["--exact", "role", "--nocapture"].map(Into::into).to_vec();
    spec.env.set(ROLE, role);
    spec
}

async fn hostile(support: &Support, mark: &Mark, root: &Path) -> Child {
    let mut child = spawn(confined(support, mark, root, HOSTILE)).await.unwrap();
    read_until(&mut child.take_stdout().unwrap(), "ready\n").await;
    eventually("the tree is complete", || mark.sleeps(HOSTILE_COUNT));
    child
}

async fn ended(child: &Child) -> Exit {
    timeout(STEP_TIMEOUT, child.wait()).await.unwrap()
}

fn parent(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap()
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

#[tokio::test]
async fn the_end_of_the_program_is_reported_exactly() {
    let Some(support) = with_pid_namespace().await else { return };
    let root = directory();
    for script in [
        "exit 0",
        "exit 7",
        "exit 255",
        "kill -KILL $$",
        "kill -TERM $$",
        "ulimit -c 0; kill -SEGV $$",
        "exec /no/such/program",
        "(sleep 0; exit 3); exit $?",
    ] {
        let plain = spawn(Mark::new().shell(script)).await.unwrap();
        let inside = spawn(confined(&support, &Mark::new(), root.path(), script)).await.unwrap();
        assert_eq!(ended(&inside).await, ended(&plain).await, "{script}");
        assert!(!exists(inside.guardian_pid()), "{script}");
    }
    let broken = root.path().join("broken");
    fs::write(&broken, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    let mut spec = confined(&support, &Mark::new(), root.path(), "");
    spec.program = broken.clone().into();
    let error = spawn(spec).await.unwrap_err();
    assert!(matches!(&error, narrows_process::SpawnError::Exec { path, .. } if *path == broken), "{error:?}");
}

#[tokio::test]
async fn only_processes_of_the_tree_are_shown() {
    let Some(support) = with_pid_namespace().await else { return };
    let (root, mark) = (directory(), Mark::new());
    // The script forks no process, so that no other process is listed.
    let script = "echo $$ $PPID /proc/[0-9]*; exec readlink /proc/self";
    assert_eq!(output(confined(&support, &mark, root.path(), script)).await, "2 1 /proc/1 /proc/2\n2\n");
    if Path::new("/usr/bin/ps").exists() {
        let script = "ps -e -o pid= | tr -d ' ' | sort -n | tail -1";
        let last: u32 = output(confined(&support, &mark, root.path(), script)).await.trim().parse().unwrap();
        assert!(last < 10, "{last}");
    }
    // The program cannot learn how its supervisor was started, inspect init, or change anything there.
    let script = "tr -d '\\0' < /proc/1/cmdline; echo; cat /proc/1/comm
        for file in environ maps root/etc/passwd; do cat /proc/1/$file >/dev/null 2>&1 && echo $file; done
        (echo 5 > /proc/self/oom_score_adj) 2>/dev/null && echo written
        grep ' /proc ' /proc/self/mounts | tail -1 | cut -d ' ' -f 4";
    let text = output(confined(&support, &mark, root.path(), script)).await;
    let options = text.strip_prefix("narrows-init\nnarrows-init\n").unwrap_or_else(|| panic!("{text}"));
    let options: Vec<&str> = options.trim().split(',').collect();
    assert!(["ro", "nosuid", "nodev", "noexec"].iter().all(|option| options.contains(option)), "{text}");
}

#[tokio::test]
async fn the_reported_pid_is_the_outer_one() {
    let Some(support) = with_pid_namespace().await else { return };
    let (root, mark) = (directory(), Mark::new());
    let mut child =
        spawn(confined(&support, &mark, root.path(), "echo ready; exec sleep 1000")).await.unwrap();
    read_until(&mut child.take_stdout().unwrap(), "ready\n").await;
    eventually("the program runs", || mark.sleeps(1));
    assert_eq!(mark.alive(), [child.pid()]);
    let init = parent(child.pid());
    assert_eq!(parent(init), child.guardian_pid());
    // The files in `/proc` of a process that cannot be debugged or dumped belong to root.
    assert_eq!(fs::metadata(format!("/proc/{init}/stat")).unwrap().uid(), 0);
    child.stop(QUICK).await;
    assert!(![child.pid(), init, child.guardian_pid()].into_iter().any(exists));
}

/// The sandbox lacks Landlock's rule for signals, as in kernels before Linux 6.12.
#[tokio::test]
async fn a_process_outside_cannot_be_signalled_whatever_landlock_can_do() {
    let Some(support) = with_pid_namespace().await else { return };
    let support = support.with_older_landlock(5);
    let root = directory();
    let mut victim = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
    let script = |signal: &str| format!("kill -{signal} {} || exit 1", victim.id());
    let shared = support.clone().without_pid_namespace();
    assert!(support.confined().guardian && !shared.confined().guardian, "{support}, {shared}");
    // Without a PID namespace the signal works, so the check below is significant.
    assert_eq!(output(confined(&shared, &Mark::new(), root.path(), &script("0"))).await, "");
    for signal in ["0", "CONT", "9"] {
        let text = output(confined(&support, &Mark::new(), root.path(), &script(signal))).await;
        assert!(text.contains("No such process"), "{signal}: {text}");
    }
    assert!(victim.try_wait().unwrap().is_none(), "the process still runs");
    victim.kill().unwrap();
    victim.wait().unwrap();
}

#[tokio::test]
async fn a_daemon_gets_sigterm_then_time_then_sigkill() {
    let Some(support) = with_pid_namespace().await else { return };
    let (root, mark) = (directory(), Mark::new());
    let script = "
        (setsid sh -c 'trap \"echo asked >> log\" TERM; echo ready; while :; do sleep 0.01; echo lives >> log; done' &)
        read line; exit 5";
    let mut spec = confined(&support, &mark, root.path(), script);
    spec.orphan_grace = Duration::from_secs(1);
    let mut child = spawn(spec).await.unwrap();
    // Stdout stays open: the shell reports the end of its `sleep`, and a closed pipe would kill the shell.
    let mut stdout = child.take_stdout().unwrap();
    read_until(&mut stdout, "ready\n").await;
    drop(child.take_stdin());
    assert_eq!(timeout(STEP_TIMEOUT, child.worker_ended()).await.unwrap().code, Some(5));
    let exit = ended(&child).await;
    assert_eq!(mark.alive(), []);
    assert_eq!((exit.class, exit.code, exit.survivors), (ExitClass::Failed, Some(5), 0));
    let log = fs::read_to_string(root.path().join("log")).unwrap();
    let after = log.split_once("asked\n").unwrap().1;
    assert!(after.contains("lives\n") && !after.contains("asked\n"), "{log}");
}

#[tokio::test]
async fn a_stopped_daemon_can_handle_sigterm() {
    let Some(support) = with_pid_namespace().await else { return };
    let (root, mark) = (directory(), Mark::new());
    let script = "
        (setsid sh -c 'trap \"echo bye > farewell; exit\" TERM; echo ready; while :; do sleep 0.01; done' &)
        read line; kill -STOP -1; exit 0";
    let mut spec = confined(&support, &mark, root.path(), script);
    spec.orphan_grace = STEP_TIMEOUT;
    let mut child = spawn(spec).await.unwrap();
    // Stdout stays open: the shell reports the end of its `sleep`, and a closed pipe would kill the shell.
    let mut stdout = child.take_stdout().unwrap();
    read_until(&mut stdout, "ready\n").await;
    drop(child.take_stdin());
    assert_eq!(ended(&child).await.class, ExitClass::Clean);
    assert_eq!(fs::read_to_string(root.path().join("farewell")).unwrap(), "bye\n");
}

#[tokio::test]
async fn swept_processes_are_counted_without_init() {
    let Some(support) = with_pid_namespace().await else { return };
    let (root, mark) = (directory(), Mark::new());
    let child = hostile(&support, &mark, root.path()).await;
    child.kill();
    let exit = ended(&child).await;
    assert_eq!((exit.class, exit.signal, exit.survivors), (ExitClass::Stopped, Some(9), 0));
    assert_eq!((exit.swept as usize, mark.alive().len()), (HOSTILE_COUNT - 1, 0));

    let script = "trap '' TERM; setsid sleep 1000 & setsid sleep 1000 & read line; exit 5";
    let mut child = spawn(confined(&support, &mark, root.path(), script)).await.unwrap();
    eventually("the tree is complete", || mark.alive().len() == 3);
    drop(child.take_stdin());
    let exit = ended(&child).await;
    assert_eq!((exit.class, exit.code, exit.swept), (ExitClass::Failed, Some(5), 2));
    let alone = spawn(confined(&support, &mark, root.path(), "exit 0")).await.unwrap();
    assert_eq!(ended(&alone).await.swept, 0);
}

#[tokio::test]
async fn nothing_inside_ends_or_stops_init() {
    let Some(support) = with_pid_namespace().await else { return };
    let (root, mark) = (directory(), Mark::new());
    let script = "
        setsid sleep 1000 &
        for signal in KILL TERM STOP INT HUP SEGV USR1 CHLD; do kill -$signal 1; done
        kill -STOP -1; kill -TERM -1
        echo here; read line; exit 5";
    let mut child = spawn(confined(&support, &mark, root.path(), script)).await.unwrap();
    read_until(&mut child.take_stdout().unwrap(), "here\n").await;
    let init = parent(child.pid());
    assert!(matches!(state(init), Some('S' | 'R')), "{:?}", state(init));
    drop(child.take_stdin());
    let exit = ended(&child).await;
    assert_eq!((exit.class, exit.code, exit.survivors), (ExitClass::Failed, Some(5), 0));
    assert_eq!(mark.alive(), []);
}

#[tokio::test]
async fn a_killed_init_ends_the_tree_and_is_reported() {
    let Some(support) = with_pid_namespace().await else { return };
    let (root, mark) = (directory(), Mark::new());
    let child = hostile(&support, &mark, root.path()).await;
    kill(parent(child.pid()));
    let exit = ended(&child).await;
    assert_eq!((exit.class, exit.signal, exit.survivors), (ExitClass::Crashed, Some(9), 0));
    assert_eq!(mark.alive(), []);
}

#[tokio::test]
async fn stdout_ends_with_the_last_process_that_has_it_open() {
    let Some(support) = with_pid_namespace().await else { return };
    let (root, mark) = (directory(), Mark::new());
    let script = "{ read line; echo late; } <&0 & exec >&- 2>&-; exec sleep 1000";
    let mut child = spawn(confined(&support, &mark, root.path(), script)).await.unwrap();
    child.take_stdin().unwrap().write_all(b"go\n").await.unwrap();
    assert_eq!(read_all(&mut child).await, "late\n");
    assert!(child.try_wait().is_none(), "the program still runs");
    // Init holds only its connection to the guardian.
    let held = fs::read_dir(format!("/proc/{}/fd", parent(child.pid())));
    if rustix::process::geteuid().is_root() {
        assert_eq!(held.unwrap().count(), 1);
    }
    child.stop(QUICK).await;
    let mut spec = confined(&support, &mark, root.path(), "exec >&- 2>&- <&-; exec sleep 1000");
    spec.merge_stderr = false;
    let mut child = spawn(spec).await.unwrap();
    let mut stdin = child.take_stdin().unwrap();
    let mut text = String::new();
    timeout(STEP_TIMEOUT, child.take_stdout().unwrap().read_to_string(&mut text)).await.unwrap().unwrap();
    eventually("the program's stdin is closed", || stdin.try_write(b"x").is_err());
    assert!(stdin.write_all(b"x").await.is_err());
    child.stop(QUICK).await;
}

/// Starts a supervisor of the hostile tree in a separate process. Returns the supervisor and the pid of the
/// guardian.
fn supervisor(mark: &Mark) -> (std::process::Child, u32) {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture", "--test-threads=1"])
        .env(ROLE, "supervisor")
        .env(ROLE_MARK, mark.text())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let said = lines.map_while(Result::ok).find_map(|line| line.strip_prefix('@').map(str::to_owned));
    (process, said.unwrap().parse().unwrap())
}

#[tokio::test]
async fn the_tree_ends_with_its_supervisor() {
    if with_pid_namespace().await.is_none() {
        return;
    }
    let mark = Mark::new();
    let (mut process, guardian) = supervisor(&mark);
    assert!(mark.sleeps(HOSTILE_COUNT));
    process.kill().unwrap();
    process.wait().unwrap();
    eventually("the tree is gone", || mark.alive().is_empty());
    // Orphaned guardians are reaped by init, which may take a while.
    eventually("the guardian is gone", || matches!(state(guardian), None | Some('Z')));
}

/// Processes that have left the session end too, even if the supervisor does nothing.
#[tokio::test]
async fn the_tree_ends_with_its_guardian() {
    if with_pid_namespace().await.is_none() {
        return;
    }
    let mark = Mark::new();
    let (mut process, guardian) = supervisor(&mark);
    kill_process(Pid::from_child(&process), Signal::STOP).unwrap();
    eventually("the supervisor is stopped", || state(process.id()) == Some('T'));
    assert!(mark.sleeps(HOSTILE_COUNT));
    kill(guardian);
    eventually("the tree is gone", || mark.alive().is_empty());
    process.kill().unwrap();
    process.wait().unwrap();
}

#[tokio::test]
async fn a_request_to_end_reaches_the_program_and_its_group() {
    let Some(support) = with_pid_namespace().await else { return };
    let (root, mark) = (directory(), Mark::new());
    let script = "
        trap 'wait; echo program; exit 4' TERM
        sh -c 'trap \"echo child; exit\" TERM; echo ready; while :; do sleep 0.01; done' &
        while :; do sleep 0.01; done";
    let mut child = spawn(confined(&support, &mark, root.path(), script)).await.unwrap();
    let mut stdout = child.take_stdout().unwrap();
    read_until(&mut stdout, "ready\n").await;
    child.terminate();
    read_until(&mut stdout, "program\n").await;
    let exit = ended(&child).await;
    assert_eq!((exit.class, exit.code), (ExitClass::Stopped, Some(4)));
    // The program leads its group inside too, so scripts can end it with everything they have started.
    // The trap comes last: a child that a shell has just forked inherits it, and would survive.
    let script = "sleep 1000 & trap 'wait; exit 6' TERM; kill -TERM -$$; exit 1";
    let child = spawn(confined(&support, &mark, root.path(), script)).await.unwrap();
    assert_eq!(ended(&child).await.code, Some(6));
}

#[tokio::test]
async fn orphans_are_reaped() {
    let Some(support) = with_pid_namespace().await else { return };
    let root = directory();
    // The last orphans may still be arriving, so the script checks repeatedly.
    let script = "
        number=0; while [ $number -lt 200 ]; do (true &); number=$((number + 1)); done
        for look in $(seq 1000); do
            left=$(grep -l ') Z ' /proc/[0-9]*/stat 2>/dev/null | wc -l)
            [ $left = 0 ] && break
        done
        echo $left";
    assert_eq!(output(confined(&support, &Mark::new(), root.path(), script)).await, "0\n");
}

/// A guardian in the namespace finds every process of its tree, as it does outside.
#[tokio::test]
async fn a_guardian_inside_ends_what_cannot_be_traced() {
    let Some(support) = with_pid_namespace().await else { return };
    let root = directory();
    let program = copy_itself(root.path());
    let sandbox = confined(&support, &Mark::new(), root.path(), "").sandbox;
    let cwd = Some(root.path().to_owned());
    let text = output(Spec { sandbox, cwd, ..itself(&program, "nested") }).await;
    assert!(text.contains("\n@Stopped Some(9) 0\n"), "{text}");
}

#[tokio::test]
async fn an_abandoned_start_leaves_nothing() {
    let Some(support) = with_pid_namespace().await else { return };
    let (root, mark) = (directory(), Mark::new());
    for _ in 0..20 {
        let spec = confined(&support, &mark, root.path(), "exec sleep 1000");
        // Polling the future once is enough to start the fork.
        _ = timeout(Duration::ZERO, spawn(spec)).await;
    }
    let children = || {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        tasks
            .filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok())
            .collect::<String>()
    };
    while !children().is_empty() || !mark.alive().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await; // sleep: polls the process table
    }
}

#[tokio::test]
async fn limits_are_for_the_program_and_not_for_init() {
    let Some(support) = with_pid_namespace().await else { return };
    if let Err(why) = Limits::check(Controller::Pids) {
        eprintln!("not tried: {why}");
        return;
    }
    let (root, mark) = (directory(), Mark::new());
    let limited = |pids: u64, script: &str| {
        let limits = Limits { pids: Some(pids), ..Limits::default() };
        Spec { limits, ..confined(&support, &mark, root.path(), script) }
    };
    let alone = spawn(limited(1, "exit 7")).await.unwrap();
    assert_eq!(ended(&alone).await.code, Some(7));

    let script = "grep -q narrows- /proc/self/cgroup || exit 9
        bomb() { bomb & bomb & sleep 1000; }; bomb & echo ready; read word";
    let mut child = spawn(limited(20, script)).await.unwrap();
    let mut stdout = child.take_stdout().unwrap();
    let mut said = Vec::new();
    while !["ready", "fork"].iter().all(|word| String::from_utf8_lossy(&said).to_lowercase().contains(word)) {
        let read = timeout(STEP_TIMEOUT, stdout.read_buf(&mut said)).await;
        assert_ne!(read.unwrap().unwrap(), 0, "the program survives its children");
    }
    assert!((2..=20).contains(&mark.alive().len()), "{:?}", mark.alive());
    child.kill();
    assert_eq!(ended(&child).await.survivors, 0);
    assert_eq!(mark.alive(), []);
}

#[tokio::test]
async fn an_unprivileged_user_has_a_pid_namespace() {
    let tests = [
        "the_end_of_the_program_is_reported_exactly",
        "only_processes_of_the_tree_are_shown",
        "the_reported_pid_is_the_outer_one",
        "a_process_outside_cannot_be_signalled_whatever_landlock_can_do",
        "a_daemon_gets_sigterm_then_time_then_sigkill",
        "swept_processes_are_counted_without_init",
        "nothing_inside_ends_or_stops_init",
        "a_killed_init_ends_the_tree_and_is_reported",
        "stdout_ends_with_the_last_process_that_has_it_open",
        "the_tree_ends_with_its_supervisor",
        "the_tree_ends_with_its_guardian",
        "a_request_to_end_reaches_the_program_and_its_group",
        "orphans_are_reaped",
        "a_guardian_inside_ends_what_cannot_be_traced",
    ];
    let Some(text) = as_nobody(&tests, &[]).await else { return };
    assert!(text.contains("14 passed"), "{text}");
}
