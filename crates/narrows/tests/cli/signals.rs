//! Turns that are ended by the user, a timeout, or the reader of stdout.

use std::fs::File;
use std::io::Read;

use insta::assert_snapshot;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use crate::test_dir::{MARK, TestDir};

#[test]
fn ctrl_c_cancels_the_turn() {
    for protocol in ["1", "2"] {
        let dir = TestDir::new();
        let mut running = dir.start(dir.run("narrows fake-agent slow", &["--protocol", protocol, "Hi"]));
        running.expect_stdout("One moment. ");
        running.signal(Signal::INT);
        running.expect_stderr("cancelling; press Ctrl-C again to exit immediately\n");
        let told = running.finish();
        assert!(told.ends_with("--- stderr ---\nerror: cancelled\n--- exit 130 ---\n"), "{told}");
    }
}

#[test]
fn a_cancelled_turn_as_json() {
    let dir = TestDir::new();
    let began = fifo(&dir);
    let script = dir.file(
        "waits.toml",
        "name = \"waits\"\n[[turn]]\nsteps = [{ say = \"So\" }, { stderr = \"it has begun\" }, { pause = \"10m\" }]\n",
    );
    // The answer comes only at the end, so the agent's stderr shows that the turn has begun.
    let agent =
        format!("sh -c 'exec {} fake-agent {} 2> began'", env!("CARGO_BIN_EXE_narrows"), script.display());
    let running = dir.start(dir.run(&agent, &["--output", "json", "Hi"]));
    assert_eq!(began(), "it has begun\n");
    running.signal(Signal::INT);
    assert_snapshot!(running.finish(), @r#"
    {"text":"So","stopReason":"cancelled","sessionId":"session-1","agent":{"name":"waits","version":"[VERSION]"},"protocol":1,"error":{"kind":"interrupted","message":"cancelled","exitCode":130}}
    --- stderr ---
    cancelling; press Ctrl-C again to exit immediately
    error: cancelled
    --- exit 130 ---
    "#);
}

#[test]
fn sigterm_cancels_the_turn() {
    let dir = TestDir::new();
    let mut running = dir.start(dir.run("narrows fake-agent slow", &["Hi"]));
    running.expect_stdout("One moment. ");
    running.signal(Signal::TERM);
    let told = running.finish();
    assert!(told.ends_with("--- stderr ---\nerror: cancelled by SIGTERM\n--- exit 143 ---\n"), "{told}");
}

#[test]
fn sighup_cancels_the_turn() {
    let dir = TestDir::new();
    let mut running = dir.start(dir.run("narrows fake-agent slow", &["Hi"]));
    running.expect_stdout("One moment. ");
    running.signal(Signal::HUP);
    let told = running.finish();
    assert!(told.ends_with("--- stderr ---\nerror: cancelled by SIGHUP\n--- exit 129 ---\n"), "{told}");
}

#[test]
fn a_run_under_nohup_outlives_the_terminal() {
    let dir = TestDir::new();
    let script = "name = \"short\"\n[[turn]]\nsteps = [{ say = \"So\" }, { stderr = \"it has begun\" }, { pause = \"300ms\" }, { say = \" it is\" }]\n";
    dir.file("short.toml", script);
    // Like `nohup`, which would also redirect stdout if that were a terminal.
    let run = format!(
        "trap '' HUP; exec {} run --agent 'narrows fake-agent short.toml' Hi",
        env!("CARGO_BIN_EXE_narrows")
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &run]).env(MARK, dir.mark()).current_dir(dir.path());
    command.stdin(std::process::Stdio::null());
    let mut running = dir.start(command);
    running.expect_stdout("So");
    running.signal(Signal::HUP);
    let told = running.finish();
    assert!(told.starts_with(" it is\n") && told.ends_with("--- exit 0 ---\n"), "{told}");
}

#[test]
fn a_second_ctrl_c_exits_immediately() {
    let dir = TestDir::new();
    // Waiting for this agent to stop by itself would take longer than the timeout of the test.
    let mut running = dir.start(dir.run("narrows fake-agent stubborn", &["--cancel-grace", "1h", "Hi"]));
    running.expect_stdout("I will not stop. ");
    running.signal(Signal::INT);
    running.expect_stderr("cancelling; press Ctrl-C again to exit immediately\n");
    running.signal(Signal::INT);
    let told = running.finish();
    assert!(told.ends_with("--- stderr ---\nerror: cancelled\n--- exit 130 ---\n"), "{told}");
}

#[test]
fn an_agent_that_does_not_stop_is_ended() {
    let dir = TestDir::new();
    let mut running = dir.start(dir.run("narrows fake-agent stubborn", &["--cancel-grace", "200ms", "Hi"]));
    running.expect_stdout("I will not stop. ");
    running.signal(Signal::TERM);
    let told = running.finish();
    let expected = "--- stderr ---\nerror: cancelled by SIGTERM; the agent did not stop within 200ms and was killed\n--- exit 143 ---\n";
    assert!(told.ends_with(expected), "{told}");
}

#[test]
fn a_killed_run_leaves_no_process() {
    let dir = TestDir::new();
    let mut running = dir.start(dir.run("narrows fake-agent stubborn", &["Hi"]));
    running.expect_stdout("I will not stop. ");
    running.signal(Signal::KILL);
    let told = running.finish();
    assert!(told.contains("SIGKILL"), "{told}");
}

#[test]
fn ctrl_c_before_the_turn() {
    let dir = TestDir::new();
    let began = fifo(&dir);
    let running = dir.start(dir.run("sh -c 'echo started > began; sleep 1000'", &["Hi"]));
    assert_eq!(began(), "started\n");
    running.signal(Signal::INT);
    assert_snapshot!(running.finish(), @"
    --- stderr ---
    error: cancelled
    --- exit 130 ---
    ");
}

#[test]
fn a_turn_that_takes_too_long() {
    for protocol in ["1", "2"] {
        let dir = TestDir::new();
        // Long enough for the agent to start on a loaded machine.
        let args = ["--protocol", protocol, "--timeout", "3s", "Hi"];
        let told = dir.output_of(dir.run("narrows fake-agent slow", &args));
        let (_, told) = told.split_once("--- stderr ---\n").expect("an error");
        insta::allow_duplicates! {
            assert_snapshot!(told, @"
            error: the turn exceeded --timeout of 3s and was cancelled
            hint: allow more time with --timeout, or omit it
            --- exit 7 ---
            ");
        }
    }
}

#[test]
fn a_turn_that_takes_too_long_and_cannot_be_cancelled() {
    for protocol in ["1", "2"] {
        let dir = TestDir::new();
        let args = ["--protocol", protocol, "--timeout", "3s", "--cancel-grace", "200ms", "Hi"];
        let told = dir.output_of(dir.run("narrows fake-agent hang", &args));
        let (_, told) = told.split_once("--- stderr ---\n").expect("an error");
        insta::allow_duplicates! {
            assert_snapshot!(told, @"
            error: the turn exceeded --timeout of 3s and was cancelled; the agent did not stop within 200ms and was killed
            hint: allow more time with --timeout, or omit it
            --- exit 7 ---
            ");
        }
    }
}

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1}}"#;

/// The message names the value of `--timeout`, because all other timeouts are at least 10 s.
#[test]
fn the_time_limit_of_a_run_includes_the_start_of_its_agent() {
    let dir = TestDir::new();
    let expected = "--- stderr ---\nerror: the agent was not ready within --timeout of 3s\n  last lines on stderr:\n  \
                    | please log in\nhint: allow more time with --timeout, or omit it\n--- exit 7 ---\n";
    let silent = "sh -c 'echo please log in >&2; exec sleep 1000'";
    assert_eq!(dir.output_of(dir.run(silent, &["--timeout", "3s", "Hi"])), expected);
    dir.file(
        "agent.sh",
        &format!("echo please log in >&2\nread -r first\necho '{INITIALIZED}'\nexec sleep 1000\n"),
    );
    assert_eq!(dir.output_of(dir.run("sh agent.sh", &["--timeout", "3s", "Hi"])), expected);
    let told = dir.output_of(dir.run("sh agent.sh", &["--timeout", "3s", "--output", "events", "Hi"]));
    let event = r#""message":"the agent was not ready within --timeout of 3s","code":"timeout"}"#;
    assert!(told.contains(event) && told.ends_with(expected), "{told}");
}

#[test]
fn the_time_limit_of_a_run_includes_the_check_of_its_model() {
    let dir = TestDir::new();
    // A server that accepts connections, but never responds.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let args = ["run", "--base-url", &url, "--model", "m", "--require-model", "--timeout", "500ms", "Hi"];
    assert_snapshot!(dir.output_of(dir.narrows(args)), @"
    --- stderr ---
    error: the agent was not ready within --timeout of 500ms
    hint: allow more time with --timeout, or omit it
    --- exit 7 ---
    ");
}

/// The prompt does not fit into the pipe of an agent that stopped reading.
#[test]
fn the_time_limit_of_a_run_includes_sending_its_prompt() {
    let dir = TestDir::new();
    dir.file("prompt", &"x".repeat(4 << 20));
    let opened = r#"{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s"}}"#;
    let script = format!("read -r a\necho '{INITIALIZED}'\nread -r a\necho '{opened}'\nexec sleep 1000\n");
    dir.file("agent.sh", &script);
    let told =
        dir.output_of(dir.run("sh agent.sh", &["--timeout", "3s", "--cancel-grace", "200ms", "@prompt"]));
    assert!(told.ends_with("--- exit 7 ---\n") && told.contains("--timeout of 3s"), "{told}");
}

#[test]
fn a_closed_stdout_ends_the_run() {
    for protocol in ["1", "2"] {
        let dir = TestDir::new();
        let args = ["--protocol", protocol, "Hi"];
        let script = "name = \"lines\"\n[[turn]]\nsteps = [{ repeat = { times = 1_000_000, steps = [{ say = \"y\\n\" }] } }]\n";
        let script = dir.file("lines.toml", script);
        let agent = format!("narrows fake-agent {}", script.display());
        let mut running = dir.start(dir.run(&agent, &args));
        running.expect_stdout("y\ny\n");
        running.close_stdout();
        assert_eq!(running.finish(), "--- exit 141 ---\n");
    }
}

#[test]
fn a_sleeping_reader_does_not_block_the_exit() {
    let dir = TestDir::new();
    let mut running = dir.start(dir.run("narrows fake-agent flood", &["--cancel-grace", "200ms", "Hi"]));
    // One byte shows that the turn has begun; the rest is not read until narrows has ended.
    let mut stdout = running.take_stdout();
    stdout.read_exact(&mut [0]).unwrap();
    running.signal(Signal::TERM);
    let told = running.finish();
    assert!(told.starts_with("--- stderr ---\nerror: cancelled by SIGTERM"), "{told}");
    assert!(told.ends_with("--- exit 143 ---\n"), "{told}");
}

/// Creates the named pipe `began`, and returns a function that waits until something is written to it.
fn fifo(dir: &TestDir) -> impl FnOnce() -> String + use<> {
    let path = dir.path().join("began");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    move || {
        let mut file = File::open(path).expect("a pipe");
        let mut first = [0; 64];
        let length = file.read(&mut first).expect("a pipe");
        String::from_utf8_lossy(&first[..length]).into_owned()
    }
}
