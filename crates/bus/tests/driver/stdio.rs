//! A bus on stdin and stdout, in a separate process.

use std::process::{Command, Stdio};

use super::*;

/// Two lines. The last one has no line end.
const INPUT: &str = "[1]\n{\"jsonrpc\":\"2.0\",\"method\":\"last\"}";

/// Runs in another process, which the next test starts. Ignored otherwise.
#[test]
#[ignore = "takes stdin and stdout"]
fn serve() {
    let stdio = ListenerSettings::new(ListenAddr::Stdio);
    let rig = Rig::new(Mode::Mirror, Config { listen: vec![stdio], ..config("") });
    println!("a stray print");
    rig.until(|event| *event == Event::Gone(0));
    rig.finish();
}

#[track_caller]
fn check(input: Stdio, write: bool) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stdio::serve", "--ignored", "--nocapture"])
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    if write {
        child.stdin.take().unwrap().write_all(INPUT.as_bytes()).unwrap();
    }
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(child.wait().unwrap().success());
    // The output of the test harness comes first.
    let (_, after) = output.split_once("[1]").unwrap();
    assert_eq!(after, "\n{\"jsonrpc\":\"2.0\",\"method\":\"last\"}\n");
}

#[test]
fn pipes_are_served() {
    check(Stdio::piped(), true);
}

#[test]
fn a_file_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("requests");
    std::fs::write(&path, INPUT).unwrap();
    check(std::fs::File::open(path).unwrap().into(), false);
}
