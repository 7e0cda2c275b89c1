//! Tests of stdin and stdout as a link, in a real process, with pipes, files, sockets and terminals.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const LINE: &str = r#"{"jsonrpc":"2.0","method":"x","params":{"text":"grüß"}}"#;

/// Returns the path of `examples/stdio_echo.rs`, which cargo builds for the tests.
fn example() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    let path = path.join("examples/stdio_echo");
    assert!(path.exists(), "`cargo build -p narrows-link --examples` builds the program of this test");
    path
}

fn start(stdin: impl Into<Stdio>, stdout: impl Into<Stdio>) -> Child {
    Command::new(example()).stdin(stdin).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap()
}

fn stderr_of(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn prints_go_to_stderr_and_only_frames_to_stdout() {
    let mut child = start(Stdio::piped(), Stdio::piped());
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    // Output printed before the link takes stdout cannot be redirected; a program must take stdout first.
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "printed before\n");
    for _ in 0..3 {
        writeln!(stdin, "{LINE}").unwrap();
        line.clear();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, format!("{LINE}\n"));
    }
    drop(stdin);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    let stderr = stderr_of(child);
    assert!(stderr.starts_with("printed after, 0 bytes to read\nprinted beside\n"), "{stderr}");
    assert!(stderr.ends_with("ended: the peer closed the connection\n"), "{stderr}");
}

#[test]
fn the_flags_of_a_shared_socket_are_restored() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let kept = theirs.try_clone().unwrap();
    let child = start(OwnedFd::from(theirs.try_clone().unwrap()), OwnedFd::from(theirs));
    let mut reader = BufReader::new(ours.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    writeln!(&ours, "{LINE}").unwrap();
    line.clear();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, format!("{LINE}\n"));
    let during = rustix::fs::fcntl_getfl(&kept).unwrap();
    assert!(during.contains(rustix::fs::OFlags::NONBLOCK), "a socket cannot be opened anew");
    ours.shutdown(Shutdown::Write).unwrap();
    stderr_of(child);
    let after = rustix::fs::fcntl_getfl(&kept).unwrap();
    assert!(!after.contains(rustix::fs::OFlags::NONBLOCK));
}

#[test]
fn a_shared_pipe_stays_blocking() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let kept = reader.try_clone().unwrap();
    let mut child = start(reader, Stdio::piped());
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    writeln!(writer, "{LINE}").unwrap();
    line.clear();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, format!("{LINE}\n"));
    assert!(!rustix::fs::fcntl_getfl(&kept).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
    drop((kept, writer));
    stderr_of(child);
}

#[test]
fn files_work_too() {
    let mut input = tempfile::tempfile().unwrap();
    let mut output = tempfile::tempfile().unwrap();
    writeln!(input, "{LINE}\n\n{LINE}").unwrap();
    input.rewind().unwrap();
    let child = start(input, output.try_clone().unwrap());
    stderr_of(child);
    output.rewind().unwrap();
    let mut written = String::new();
    output.read_to_string(&mut written).unwrap();
    assert_eq!(written, format!("printed before\n{LINE}\n{LINE}\n"));
}

#[test]
fn an_empty_input_ends_at_once() {
    let child = start(File::open("/dev/null").unwrap(), Stdio::null());
    assert!(stderr_of(child).ends_with("ended: the peer closed the connection\n"));
}

#[test]
fn a_reader_that_disconnects_causes_no_crash() {
    let mut child = start(Stdio::piped(), Stdio::piped());
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    drop(stdout);
    let mut stdin = child.stdin.take().unwrap();
    for _ in 0..100 {
        writeln!(stdin, "{LINE}").unwrap();
    }
    drop(stdin);
    stderr_of(child);
}
