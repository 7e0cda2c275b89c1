//! Tests of a supervisor that adopts orphans. In a separate file, because adopting affects the whole process.

#![expect(clippy::unwrap_used, reason = "what goes wrong in a helper fails the test")]
#![expect(clippy::print_stderr, reason = "a test that cannot be run here says so")]

#[path = "common/cage.rs"]
mod cage;
mod common;

use common::{HOSTILE, Mark, eventually, exists, hostile, read_until};
use narrows_process::{Environment, ExitClass, Spec, adopt_orphans, spawn};
use rustix::process::{Pid, Signal, kill_process};

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

fn children() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of =
        |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    tasks
        .flat_map(|task| of(task.unwrap()).split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

#[tokio::test]
async fn what_a_killed_guardian_leaves_is_ended_and_nothing_else() {
    adopt_orphans().unwrap();
    let (mark, other) = (Mark::new(), Mark::new());
    let child = hostile(&mark).await;
    let bystander = hostile(&other).await;
    let mut plain = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    kill(child.guardian_pid());
    let exit = child.wait().await;
    assert_eq!((exit.class, exit.survivors), (ExitClass::Lost, 0));
    assert_eq!(mark.alive(), [0; 0]);
    assert!(other.sleeps(common::HOSTILE_COUNT), "another tree is not touched");
    assert!(exists(plain.id()) && plain.try_wait().unwrap().is_none(), "nor is a child of another kind");
    // With a PID namespace, this process adopts init, and the other processes die with init.
    let root = cage::directory();
    if let Some(support) = cage::with_pid_namespace().await {
        let mut child = spawn(cage::confined(&support, &mark, root.path(), HOSTILE)).await.unwrap();
        read_until(&mut child.take_stdout().unwrap(), "ready\n").await;
        kill(child.guardian_pid());
        let exit = child.wait().await;
        assert_eq!((exit.class, exit.survivors), (ExitClass::Lost, 0));
        assert_eq!(mark.alive(), [0; 0]);
    }
    let mut expected = [plain.id(), bystander.guardian_pid()].map(|pid| pid.to_string());
    let mut found = children();
    expected.sort();
    found.sort();
    assert_eq!(found, expected, "nothing is left to be reaped");

    // A guardian that is started later is not an orphan.
    let mut spec = Spec::new("/bin/true");
    spec.env = Environment::empty();
    assert_eq!(spawn(spec).await.unwrap().wait().await.class, ExitClass::Clean);
    bystander.kill();
    eventually("the other tree ends too", || other.alive().is_empty());
    plain.kill().unwrap();
    plain.wait().unwrap();
}
