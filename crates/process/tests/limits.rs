//! Tests of the limits of a tree, as the kernel enforces them.
#![expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]
#![expect(clippy::print_stderr, reason = "a test that cannot be run here says so")]

mod common;

use std::fs;

use common::{Mark, STEP_TIMEOUT, read_all};
use narrows_process::{Controller, Limits, SpawnError, Spec, spawn};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

/// Guards a harmful script: exits if the process is not in a group of this program.
const GUARD: &str = "grep -q narrows- /proc/self/cgroup || exit 9;";

/// Returns `true` if the limit can be enforced here. Otherwise, also checks that no worker starts with the
/// limit.
async fn available(controller: Controller, limits: Limits) -> bool {
    let Err(why) = Limits::check(controller) else { return true };
    eprintln!("not tried: {why}");
    assert_eq!(limits.try_out().unwrap_err().controller, controller);
    let spec = Spec { limits, ..Mark::new().shell("echo started") };
    assert!(
        matches!(spawn(spec).await.unwrap_err(), SpawnError::Limit(error) if error.controller == controller)
    );
    false
}

fn groups(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap()
}

fn left_behind() -> Vec<String> {
    let ours = format!("narrows-{}-", std::process::id());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points =
        mounts.lines().filter(|line| line.contains(" - cgroup")).filter_map(|line| line.split(' ').nth(4));
    points
        .flat_map(|point| fs::read_dir(point).into_iter().flatten().flatten())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(&ours) && !name.ends_with("-self"))
        .collect()
}

#[tokio::test]
async fn a_fork_bomb_stops_at_its_limit() {
    let limits = Limits { pids: Some(20), ..Limits::default() };
    if !available(Controller::Pids, limits).await {
        return;
    }
    let mark = Mark::new();
    let script = format!("{GUARD} bomb() {{ bomb & bomb & sleep 1000; }}; bomb & echo ready; read word");
    let mut child = spawn(Spec { limits, merge_stderr: true, ..mark.shell(&script) }).await.unwrap();
    let mut stdout = child.take_stdout().unwrap();
    let mut said = Vec::new();
    while !["ready", "fork"].iter().all(|word| String::from_utf8_lossy(&said).to_lowercase().contains(word)) {
        let read = timeout(STEP_TIMEOUT, stdout.read_buf(&mut said)).await;
        assert_ne!(read.unwrap().unwrap(), 0, "the worker survives its children");
    }
    assert!(groups(child.pid()).contains("narrows-"), "{}", groups(child.pid()));
    assert!(!groups(child.guardian_pid()).contains("narrows-"), "the guardian must be able to act");
    let alive = mark.alive().len();
    assert!((2..=20).contains(&alive), "{alive} processes");
    // A worker without limits is not affected.
    let free = spawn(mark.shell("for i in 1 2 3 4 5; do sleep 0 & done; wait; exit 7")).await.unwrap();
    assert_eq!(timeout(STEP_TIMEOUT, free.wait()).await.unwrap().code, Some(7));
    child.kill();
    let exit = timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
    assert_eq!((exit.survivors, exit.oom), (0, false));
    assert_eq!(mark.alive(), [0; 0]);
    assert_eq!(left_behind(), [""; 0]);
}

/// The worker learns nothing about its group, and gets no descriptor to enter or leave it.
#[tokio::test]
async fn a_worker_gets_no_descriptor_of_its_group() {
    let limits = Limits { pids: Some(20), ..Limits::default() };
    if !available(Controller::Pids, limits).await {
        return;
    }
    let script = format!("{GUARD} for fd in /proc/self/fd/*; do readlink $fd; done; env");
    let mut child = spawn(Spec { limits, ..Mark::new().shell(&script) }).await.unwrap();
    let said = read_all(&mut child).await;
    assert!(said.contains("pipe:") && !said.contains("cgroup"), "{said}");
    timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
    assert_eq!(left_behind(), [""; 0]);
}

#[tokio::test]
async fn a_worker_over_its_memory_limit_is_killed_and_reported() {
    let limits = Limits { memory: Some(32 << 20), ..Limits::default() };
    if !available(Controller::Memory, limits).await {
        return;
    }
    let hog = Spec { limits, ..Mark::new().shell(&format!("{GUARD} exec tail /dev/zero")) };
    let child = spawn(hog).await.unwrap();
    let exit = timeout(STEP_TIMEOUT, child.worker_ended()).await.unwrap();
    assert!(exit.oom, "{exit}");
    assert_eq!(exit.signal_name(), Some("SIGKILL"));
    assert!(timeout(STEP_TIMEOUT, child.wait()).await.unwrap().oom);
    // A kill for another reason does not count as `oom`.
    let child = spawn(Spec { limits, ..Mark::new().shell("kill -9 $$") }).await.unwrap();
    let exit = timeout(STEP_TIMEOUT, child.wait()).await.unwrap();
    assert_eq!((exit.signal_name(), exit.oom), (Some("SIGKILL"), false));
    assert_eq!(left_behind(), [""; 0]);
}
