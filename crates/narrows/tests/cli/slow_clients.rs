//! The built-in agent with clients that read slowly or are half closed.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde_json::json;

use crate::test_dir::TestDir;

/// Narrows promises half a second; the rest is for slow machines. The failures that this detects take five
/// seconds or more.
const SOON: Duration = Duration::from_secs(3);

/// More responses than a pipe holds.
const MANY: usize = 4000;

/// A request that is answered at once.
const QUESTION: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"no/such\"}\n";

/// Starts `narrows acp` with pipes.
fn start(dir: &TestDir) -> (Child, ChildStdin, ChildStdout) {
    let mut command = dir.narrows(["--log", "off", "acp", "--no-store"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("narrows starts");
    let (input, output) = (child.stdin.take(), child.stdout.take());
    (child, input.expect("piped"), output.expect("piped"))
}

/// Sends requests that are answered at once.
fn ask(input: &mut ChildStdin, count: usize) {
    input.write_all(QUESTION.repeat(count).as_bytes()).expect("the peer reads");
}

/// Sends requests until the agent stops reading. Returns their number.
fn ask_until_full(input: &mut ChildStdin) -> usize {
    let flags = fcntl_getfl(&*input).expect("flags");
    fcntl_setfl(&*input, flags | OFlags::NONBLOCK).expect("the flag can be set");
    let (questions, mut sent) = (QUESTION.repeat(1000), 0);
    let mut since = Instant::now();
    // If the agent was only slow to read, the test still passes.
    while since.elapsed() < Duration::from_millis(300) {
        match input.write(&questions.as_bytes()[sent % questions.len()..]) {
            Ok(length) => {
                sent += length;
                since = Instant::now();
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                // sleep: other processes can only be polled
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        assert!(sent < 64 << 20, "it reads on and on");
    }
    sent / QUESTION.len()
}

/// Reads everything, in pieces every 20 ms.
fn read_slowly(output: &mut ChildStdout, piece: usize) -> Vec<u8> {
    let (mut got, mut piece) = (Vec::new(), vec![0; piece]);
    loop {
        let length = output.read(&mut piece).expect("it can be read");
        if length == 0 {
            return got;
        }
        got.extend_from_slice(&piece[..length]);
        // sleep: this is the slowness
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that the process exits successfully, soon after `since`.
#[track_caller]
fn ends_soon(dir: &TestDir, mut child: Child, since: Instant) {
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child process") {
            break status;
        }
        let late = since.elapsed() > SOON;
        if late {
            child.kill().expect("a child process");
            child.wait().expect("the process ends");
        }
        assert!(!late, "it is still there");
        // sleep: other processes can only be polled
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(0));
    dir.assert_no_process_left();
}

#[test]
fn a_client_that_does_not_read_does_not_delay_the_exit() {
    let dir = TestDir::new();
    let (child, mut input, output) = start(&dir);
    ask(&mut input, MANY);
    drop(input);
    ends_soon(&dir, child, Instant::now());
    drop(output);
}

#[test]
fn a_client_that_reads_slowly_gets_everything() {
    let dir = TestDir::new();
    let (mut child, mut input, mut output) = start(&dir);
    ask(&mut input, MANY);
    drop(input);
    let began = Instant::now();
    let got = read_slowly(&mut output, 16 << 10);
    assert!(began.elapsed() > Duration::from_millis(400), "the client read too fast for this test");
    assert_eq!(got.iter().filter(|byte| **byte == b'\n').count(), MANY);
    assert_eq!(child.wait().expect("the process ends").code(), Some(0));
    dir.assert_no_process_left();
}

#[test]
fn a_client_that_reads_one_long_line_slowly_gets_all_of_it() {
    let dir = TestDir::new();
    let (mut child, mut input, mut output) = start(&dir);
    // A batch is answered in one line, and every response repeats its id.
    let question =
        |n| json!({"jsonrpc": "2.0", "id": format!("{n}{}", "x".repeat(4000)), "method": "no/such"});
    let batch = json!((0..100).map(question).collect::<Vec<_>>());
    writeln!(input, "{batch}").expect("the peer reads");
    drop(input);
    let began = Instant::now();
    let got = read_slowly(&mut output, 8 << 10);
    let answers: Vec<serde_json::Value> = serde_json::from_slice(&got).expect("the whole line");
    assert_eq!(answers.len(), 100);
    assert!(began.elapsed() > Duration::from_millis(800), "the client read too fast for this test");
    assert_eq!(child.wait().expect("the process ends").code(), Some(0));
    dir.assert_no_process_left();
}

#[test]
fn a_busy_client_that_does_not_read_is_not_waited_for() {
    let dir = TestDir::new();
    let (child, mut input, output) = start(&dir);
    assert!(ask_until_full(&mut input) > MANY);
    drop(input);
    ends_soon(&dir, child, Instant::now());
    drop(output);
}

#[test]
fn a_busy_client_that_reads_later_gets_everything() {
    let dir = TestDir::new();
    let (mut child, mut input, mut output) = start(&dir);
    let asked = ask_until_full(&mut input);
    drop(input);
    // Unlike in the test above, a client reads the output, so the agent waits for it.
    let got = read_slowly(&mut output, 256 << 10);
    assert_eq!(got.iter().filter(|byte| **byte == b'\n').count(), asked);
    assert_eq!(child.wait().expect("the process ends").code(), Some(0));
    dir.assert_no_process_left();
}

#[test]
fn closing_stdout_ends_an_idle_agent() {
    let dir = TestDir::new();
    let (child, mut input, output) = start(&dir);
    ask(&mut input, 1);
    let mut output = BufReader::new(output);
    output.read_line(&mut String::new()).expect("an answer");
    drop(output);
    ends_soon(&dir, child, Instant::now());
    drop(input);
    // Some clients start the agent with a socket for each direction instead of pipes.
    let (ours, theirs) = UnixStream::pair().expect("a socket");
    let mut command = dir.narrows(["--log", "off", "acp", "--no-store"]);
    let command = command.stdin(Stdio::piped()).stdout(OwnedFd::from(theirs));
    let mut child = command.spawn().expect("narrows starts");
    let mut input = child.stdin.take().expect("piped");
    ask(&mut input, 1);
    let mut output = BufReader::new(ours);
    output.read_line(&mut String::new()).expect("an answer");
    drop(output);
    ends_soon(&dir, child, Instant::now());
    drop(input);
}

#[test]
fn closing_stdout_ends_an_agent_with_open_stdin() {
    let dir = TestDir::new();
    let (child, mut input, output) = start(&dir);
    ask(&mut input, 1);
    let mut output = BufReader::new(output);
    output.read_line(&mut String::new()).expect("an answer");
    drop(output);
    let since = Instant::now();
    ask(&mut input, 1);
    ends_soon(&dir, child, since);
    drop(input);
}
