//! Tests that nothing of a worker's tree survives, in all cases of its end.
#![expect(clippy::unwrap_used, reason = "what goes wrong in a helper fails the test")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use common::{Mark, QUICK, STEP_TIMEOUT, eventually, exists, hostile, read_all, read_until, state};
use narrows_process::{ExitClass, spawn};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

#[tokio::test]
async fn when_stop_returns_the_tree_is_gone() {
    let mark = Mark::new();
    let child = hostile(&mark).await;
    let exit = timeout(STEP_TIMEOUT, child.stop(QUICK)).await.unwrap();
    // No process is left, even without waiting.
    assert_eq!(mark.alive(), []);
    assert!(!exists(child.guardian_pid()), "the guardian is reaped");
    assert_eq!((exit.class, exit.signal, exit.survivors), (ExitClass::Stopped, Some(9), 0));
    assert_eq!(exit.swept, 4);
}

#[tokio::test]
async fn kill_ends_the_whole_tree() {
    let mark = Mark::new();
    let child = hostile(&mark).await;
    child.kill();
    let exit = timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
    assert_eq!(mark.alive(), []);
    assert_eq!((exit.class, exit.swept), (ExitClass::Stopped, 4));
}

#[tokio::test]
async fn the_daemons_of_a_worker_end_with_it() {
    let mark = Mark::new();
    let script = "trap '' TERM; (setsid sleep 1000 &); setsid sleep 1000 & exit 5";
    let child = spawn(mark.shell(script)).await.unwrap();
    assert_eq!(timeout(STEP_TIMEOUT, child.worker_ended()).await.unwrap().code, Some(5));
    let exit = timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
    assert_eq!(mark.alive(), []);
    assert_eq!((exit.class, exit.code, exit.swept), (ExitClass::Failed, Some(5), 2));
}

#[tokio::test]
async fn an_orphan_can_handle_sigterm_first() {
    let dir = tempfile::tempdir().unwrap();
    let farewell = dir.path().join("farewell");
    let script = "
        setsid sh -c 'trap \"echo bye > farewell; exit\" TERM; echo ready; while :; do sleep 0.01; done' &
        read line";
    let mut spec = Mark::new().shell(script);
    spec.cwd = Some(dir.path().to_owned());
    spec.orphan_grace = STEP_TIMEOUT;
    let mut child = spawn(spec).await.unwrap();
    read_until(&mut child.take_stdout().unwrap(), "ready\n").await;
    drop(child.take_stdin());
    timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
    assert_eq!(fs::read_to_string(farewell).unwrap(), "bye\n");
}

/// A stopped process does not handle a signal, so it must be continued as well.
#[tokio::test]
async fn a_stopped_orphan_can_handle_sigterm() {
    let dir = tempfile::tempdir().unwrap();
    let farewell = dir.path().join("farewell");
    let script = "
        setsid sh -c 'trap \"echo bye > farewell; exit\" TERM; echo $$; while :; do sleep 0.01; done' &
        read line";
    let mut spec = Mark::new().shell(script);
    spec.cwd = Some(dir.path().to_owned());
    spec.orphan_grace = Duration::from_secs(10);
    let mut child = spawn(spec).await.unwrap();
    let orphan: u32 = read_until(&mut child.take_stdout().unwrap(), "\n").await.trim().parse().unwrap();
    signal(orphan, Signal::STOP);
    eventually("the orphan is stopped", || state(orphan) == Some('T'));
    drop(child.take_stdin());
    timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
    assert_eq!(fs::read_to_string(farewell).unwrap(), "bye\n");
}

#[tokio::test]
async fn a_worker_that_stops_its_guardian_is_still_ended() {
    let mark = Mark::new();
    let script = "trap '' TERM; setsid sleep 1000 & kill -STOP $PPID; exec sleep 1000";
    let child = spawn(mark.shell(script)).await.unwrap();
    eventually("the guardian is stopped", || state(child.guardian_pid()) == Some('T'));
    eventually("the tree is complete", || mark.sleeps(2));
    let exit = timeout(STEP_TIMEOUT, child.stop(QUICK)).await.unwrap();
    assert_eq!(mark.alive(), []);
    // The class would be `Lost` if the tree had been ended without the guardian.
    assert_eq!((exit.class, exit.signal, exit.swept), (ExitClass::Stopped, Some(9), 1));
}

#[tokio::test]
async fn a_worker_that_keeps_stopping_its_guardian_is_still_ended() {
    let mark = Mark::new();
    let script = "trap '' TERM; while :; do kill -STOP $PPID; done";
    let child = spawn(mark.shell(script)).await.unwrap();
    eventually("the guardian is stopped", || state(child.guardian_pid()) == Some('T'));
    // Depending on timing, the tree is ended by its guardian or without it.
    timeout(STEP_TIMEOUT, child.stop(QUICK)).await.unwrap();
    eventually("the tree is gone", || mark.alive().is_empty());
    assert!(!exists(child.guardian_pid()));
}

#[tokio::test]
async fn a_stopped_guardian_does_not_hide_the_end_of_its_worker() {
    let child = spawn(Mark::new().shell("kill -STOP $PPID; exit 3")).await.unwrap();
    let exit = timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
    assert_eq!((exit.class, exit.code), (ExitClass::Failed, Some(3)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn dropping_the_handle_of_a_stopped_guardian_ends_the_tree() {
    let mark = Mark::new();
    let child = hostile(&mark).await;
    let guardian = child.guardian_pid();
    signal(guardian, Signal::STOP);
    eventually("the guardian is stopped", || state(guardian) == Some('T'));
    drop(child);
    eventually("the tree is gone", || mark.alive().is_empty());
    eventually("the guardian is reaped", || !exists(guardian));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn dropping_the_handle_ends_the_tree() {
    let mark = Mark::new();
    let child = hostile(&mark).await;
    let guardian = child.guardian_pid();
    drop(child);
    eventually("the tree is gone", || mark.alive().is_empty());
    eventually("the guardian is reaped", || !exists(guardian));
}

#[test]
fn dropping_the_handle_works_without_a_runtime() {
    let mark = Mark::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let child = runtime.block_on(hostile(&mark));
    let guardian = child.guardian_pid();
    drop(runtime);
    assert!(mark.sleeps(common::HOSTILE_COUNT));
    drop(child);
    eventually("the tree is gone", || mark.alive().is_empty());
    eventually("the guardian is reaped", || !exists(guardian));
}

#[test]
fn a_handle_that_outlives_its_runtime_still_reports_the_end() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let child = first.block_on(spawn(Mark::new().shell("exec sleep 1000"))).unwrap();
    drop(first);
    child.kill();
    let exit = runtime().block_on(async { timeout(STEP_TIMEOUT, child.wait()).await.unwrap() });
    assert_eq!((exit.class, exit.signal), (ExitClass::Stopped, Some(9)));
    assert!(!exists(child.guardian_pid()));
}

#[tokio::test]
async fn a_process_that_forks_on_sigterm_does_not_escape() {
    let mark = Mark::new();
    let script = "
        trap 'setsid sleep 1000 & exit' TERM
        echo ready
        while :; do sleep 0.01; done";
    let mut child = spawn(mark.shell(script)).await.unwrap();
    read_until(&mut child.take_stdout().unwrap(), "ready\n").await;
    timeout(STEP_TIMEOUT, child.stop(QUICK)).await.unwrap();
    assert_eq!(mark.alive(), []);
}

/// Every generation starts the next one in a new session and exits, so no pid lives long enough to be
/// killed by number.
#[tokio::test]
async fn a_process_that_hops_from_pid_to_pid_is_caught() {
    let dir = tempfile::tempdir().unwrap();
    let hop = dir.path().join("hop");
    fs::write(&hop, "#!/bin/sh\nsetsid \"$0\" &\nsetsid true &\n").unwrap();
    fs::set_permissions(&hop, fs::Permissions::from_mode(0o755)).unwrap();
    let mark = Mark::new();
    let mut spec = mark.shell("./hop & ./hop & echo ready; exec sleep 1000");
    spec.cwd = Some(dir.path().to_owned());
    let mut child = spawn(spec).await.unwrap();
    read_until(&mut child.take_stdout().unwrap(), "ready\n").await;
    child.kill();
    let exit = timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
    assert_eq!((exit.class, exit.survivors), (ExitClass::Stopped, 0));
    assert_eq!(mark.alive(), []);
}

/// The end of stdout arrives while worker and guardian live, because the guardian holds no copy of the pipe.
#[tokio::test]
async fn the_guardian_does_not_keep_pipes_open() {
    let mut child = spawn(Mark::new().shell("exec >&- 2>&- <&-; exec sleep 1000")).await.unwrap();
    assert_eq!(read_all(&mut child).await, "");
    let mut stdin = child.take_stdin().unwrap();
    eventually("the worker's stdin is closed", || {
        stdin.try_write(b"x").is_err_and(|error| error.raw_os_error() == Some(32))
    });
    assert!(stdin.write_all(b"x").await.is_err());
    assert!(child.try_wait().is_none() && exists(child.guardian_pid()));
    child.stop(QUICK).await;
}

/// A second guardian is forked while this process has the pipes of the first worker open.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn guardians_do_not_hold_each_others_descriptors() {
    let (first_mark, second_mark) = (Mark::new(), Mark::new());
    let mut first = spawn(first_mark.shell("exec cat")).await.unwrap();
    let second = spawn(second_mark.shell("exec cat")).await.unwrap();
    drop(first.take_stdin());
    assert_eq!(timeout(STEP_TIMEOUT, first.wait()).await.unwrap().class, ExitClass::Clean);
    let third_mark = Mark::new();
    let third = hostile(&third_mark).await;
    let fourth = spawn(second_mark.shell("exec cat")).await.unwrap();
    drop(third);
    eventually("the third tree is gone", || third_mark.alive().is_empty());
    assert!(second.try_wait().is_none() && fourth.try_wait().is_none());
}

/// If `PR_SET_PDEATHSIG` referred to the spawning thread, the kernel would kill the worker here.
#[test]
fn the_worker_outlives_the_thread_that_forked_it() {
    let name = "short-lived";
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_name(name)
        .thread_keep_alive(Duration::from_millis(1))
        .build()
        .unwrap();
    let threads = || {
        let names = fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|comm| comm.trim() == name).count()
    };
    runtime.block_on(async {
        let mut child = spawn(Mark::new().shell("exec cat")).await.unwrap();
        eventually("the thread has ended", || threads() == 0);
        let (mut stdin, mut stdout) = (child.take_stdin().unwrap(), child.take_stdout().unwrap());
        stdin.write_all(b"still here\n").await.unwrap();
        read_until(&mut stdout, "still here\n").await;
        drop(stdin);
        assert_eq!(child.wait().await.class, ExitClass::Clean);
    });
}

/// The worker and the processes in its session are ended. A process that has left the session survives,
/// because only the guardian knew that it belonged to the tree.
#[tokio::test]
async fn a_killed_guardian_is_noticed_and_its_session_ended() {
    let mark = Mark::new();
    let script = "
        trap '' TERM HUP
        sleep 1000 & (sleep 1000 &)
        setsid sh -c 'echo $$; exec sleep 1000' &
        exec sleep 1000";
    let mut child = spawn(mark.shell(script)).await.unwrap();
    let mut stdout = child.take_stdout().unwrap();
    let elsewhere: u32 = read_until(&mut stdout, "\n").await.trim().parse().unwrap();
    eventually("the tree is complete", || mark.sleeps(4));
    signal(child.guardian_pid(), Signal::KILL);
    let exit = timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
    assert_eq!((exit.class, exit.code, exit.signal), (ExitClass::Lost, None, None));
    assert!(!exists(child.guardian_pid()));
    eventually("the session is gone", || mark.alive() == [elsewhere]);
    // No other code ends this process.
    signal(elsewhere, Signal::KILL);
    let mut rest = String::new();
    timeout(STEP_TIMEOUT, stdout.read_to_string(&mut rest)).await.unwrap().unwrap();
    // Stopping is harmless if the guardian is gone.
    assert_eq!(child.stop(QUICK).await, exit);
}

#[tokio::test]
async fn the_guardian_keeps_no_directory_busy() {
    let child = spawn(Mark::new().shell("exec cat")).await.unwrap();
    assert_ne!(std::env::current_dir().unwrap(), Path::new("/"));
    let cwd = format!("/proc/{}/cwd", child.guardian_pid());
    eventually("the guardian is in the root directory", || fs::read_link(&cwd).unwrap() == Path::new("/"));
    child.stop(QUICK).await;
}

#[tokio::test]
async fn the_guardian_ignores_sigterm_and_similar_signals() {
    let mut child = spawn(Mark::new().shell("exec cat")).await.unwrap();
    for each in [Signal::TERM, Signal::INT, Signal::HUP, Signal::PIPE, Signal::USR1] {
        signal(child.guardian_pid(), each);
    }
    let (mut stdin, mut stdout) = (child.take_stdin().unwrap(), child.take_stdout().unwrap());
    stdin.write_all(b"x\n").await.unwrap();
    read_until(&mut stdout, "x\n").await;
    drop(stdin);
    assert_eq!(child.wait().await.class, ExitClass::Clean);
}
