//! Tests of links to real child processes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use bytes::Bytes;
use narrows_link::child::{Process, spawn};
use narrows_link::{CloseReason, Link, Options};
use narrows_process::{AllowList, Environment, ExitClass, Ladder, SpawnError, Spec};

async fn shell(script: &str) -> (Link, Process) {
    let mut spec = Spec::new("/bin/sh");
    spec.args = vec!["-c".into(), script.into()];
    spec.env = Environment::filtered(std::env::vars_os(), &AllowList::default());
    spawn(spec, &Options::default()).await.unwrap()
}

#[tokio::test]
async fn frames_pass_a_process_and_its_exit_is_the_close_reason() {
    let (mut link, process) = shell("cat; echo it was nice >&2; exit 3").await;
    let line = Bytes::from_static(br#"{"jsonrpc":"2.0","method":"x"}"#);
    for _ in 0..10 {
        link.sender.send(line.clone()).await.unwrap();
        assert_eq!(link.receiver.recv().await.unwrap().bytes(), &line);
    }
    link.sender.close();
    assert!(link.receiver.recv().await.is_none());
    assert_eq!(process.wait().await.code, Some(3));
}

#[tokio::test]
async fn the_close_reason_of_a_crashed_process_has_its_stderr() {
    let (mut link, _process) = shell("echo first >&2; echo no key given >&2; exit 9").await;
    assert!(link.receiver.recv().await.is_none());
    let CloseReason::Exited { exit, stderr } = link.receiver.reason() else {
        panic!("{:?}", link.receiver.reason())
    };
    assert_eq!((exit.class, exit.code), (ExitClass::Failed, Some(9)));
    assert!(stderr.ends_with("no key given"), "{stderr:?}");
}

#[tokio::test]
async fn a_process_that_only_closes_stdout_is_a_lost_peer() {
    let (mut link, process) = shell("exec >&-; while :; do sleep 1; done").await;
    assert!(link.receiver.recv().await.is_none());
    assert_eq!(link.receiver.reason(), CloseReason::Eof);
    let ladder = Ladder { eof_grace: std::time::Duration::ZERO, ..Ladder::default() };
    assert_eq!(process.stop(ladder).await.class, ExitClass::Stopped);
}

#[tokio::test]
async fn a_process_that_closes_stdin_is_noticed_without_a_write() {
    let (mut link, process) = shell("exec <&-; echo '{}'; while :; do sleep 1; done").await;
    assert!(link.receiver.recv().await.is_some());
    link.sender.written().await;
    assert!(link.sender.is_closed());
    assert_eq!(link.sender.reason(), CloseReason::NotReading);
    let ladder = Ladder { eof_grace: std::time::Duration::ZERO, ..Ladder::default() };
    process.stop(ladder).await;
}

#[tokio::test]
async fn dropping_the_process_ends_it() {
    let (mut link, process) = shell("trap '' TERM; echo '{}'; while :; do sleep 1; done").await;
    assert!(link.receiver.recv().await.is_some());
    drop(process);
    assert!(link.receiver.recv().await.is_none());
}

#[tokio::test]
async fn a_program_that_cannot_start_is_an_error() {
    let missing = spawn(Spec::new("/no/such/program"), &Options::default()).await;
    assert!(matches!(missing, Err(SpawnError::NotFound { .. })));
}
