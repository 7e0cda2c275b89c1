//! The scripted agent, alone and with `narrows run`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::time::Duration;

use insta::assert_snapshot;

use crate::test_dir::TestDir;

/// Runs a turn with a built-in script, and checks that both protocol versions give the same output.
#[track_caller]
fn output(script: &str) -> String {
    let [one, two] = ["1", "2"].map(|protocol| {
        let dir = TestDir::new();
        let agent = format!("narrows fake-agent {script}");
        dir.output_of(dir.run(&agent, &["--protocol", protocol, "Hello, who are you?"]))
    });
    assert_eq!(one, two);
    one
}

#[test]
fn hello() {
    assert_snapshot!(output("hello"), @"
    Hello! I am the fake agent of Narrows. You said: “Hello, who are you?”. There is no model behind me, only a script of a few lines, so I always answer the same, and nothing I say costs anything.
    --- exit 0 ---
    ");
}

#[test]
fn echo() {
    assert_snapshot!(output("echo"), @"
    Hello, who are you?
    --- exit 0 ---
    ");
}

#[test]
fn ask() {
    assert_snapshot!(output("ask"), @"
    I would like to clean up. 
    Done, with your leave (allow_once).
    --- exit 0 ---
    ");
}

#[test]
fn crash() {
    assert_snapshot!(output("crash"), @"
    I am about to…
    --- stderr ---
    error: the agent exited during the turn: killed by SIGABRT
      last lines on stderr:
      | crash: assertion failed, as the script says
    --- exit 1 ---
    ");
}

#[test]
fn noisy() {
    assert_snapshot!(output("noisy"), @"
    Before the noise. After the noise.
    --- stderr ---
    error: the answer is incomplete: 1 message was too long, 2 messages were unreadable
    --- exit 4 ---
    ");
}

#[test]
fn flood() {
    let dir = TestDir::new();
    // Shorter than the built-in script of this name, which is slow in a debug build.
    dir.file(
        "flood.toml",
        "name = \"flood\"\n[[turn]]\nsteps = [{ flood = { updates = 20_000, bytes = 100 } }]\n",
    );
    let told = dir.output_of(dir.run("narrows fake-agent flood.toml", &["Hi"]));
    let (text, rest) = told.split_once("\n---").expect("an exit code after the output");
    assert_eq!((text.len(), rest), (2_000_000, " exit 0 ---\n"));
}

#[test]
fn as_json() {
    let dir = TestDir::new();
    let command = dir.run("narrows fake-agent echo", &["--protocol", "2", "--output", "json", "one two"]);
    assert_snapshot!(dir.output_of(command), @r#"
    {"text":"one two","stopReason":"end_turn","sessionId":"session-1","agent":{"name":"echo","version":"[VERSION]"},"protocol":2}
    --- exit 0 ---
    "#);
}

#[test]
fn a_script_in_a_file() {
    let dir = TestDir::new();
    let printed = dir.narrows(["fake-agent", "--print", "echo"]).output().unwrap();
    assert!(printed.status.success());
    dir.file("mine.toml", std::str::from_utf8(&printed.stdout).unwrap());
    assert_snapshot!(dir.output_of(dir.run("narrows fake-agent mine.toml", &["Hi"])), @"
    Hi
    --- exit 0 ---
    ");
}

#[test]
fn every_script_is_listed_and_can_be_printed() {
    let dir = TestDir::new();
    let list = dir.narrows(["fake-agent", "--list"]).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let names: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    for name in ["hello", "echo", "ask", "crash", "hang", "noisy", "stubborn", "flood"] {
        assert!(names.contains(&name), "{name} is not in the list");
    }
    for name in names {
        let printed = dir.narrows(["fake-agent", "--print", name]).output().unwrap();
        assert!(printed.status.success() && !printed.stdout.is_empty(), "{name} cannot be printed");
    }
}

#[test]
fn invalid_scripts() {
    let dir = TestDir::new();
    assert_snapshot!(dir.output_of(dir.narrows(["fake-agent", "helo"])), @r#"
    --- stderr ---
    error: "helo" is neither a built-in script nor a file
    hint: did you mean "hello"?
    --- exit 2 ---
    "#);
    assert_snapshot!(dir.output_of(dir.narrows(["fake-agent", "--print", "nothing-like-it"])), @r#"
    --- stderr ---
    error: unknown built-in script "nothing-like-it"
    hint: list the built-in scripts: narrows fake-agent --list
    --- exit 2 ---
    "#);
    dir.file("bad.toml", "name = \"bad\"\nturns = 7\n");
    assert_snapshot!(dir.output_of(dir.narrows(["fake-agent", "bad.toml"])), @"
    --- stderr ---
    error: bad.toml:2: unknown setting `turns`; did you mean `turn`?
    hint: see a working script with: narrows fake-agent --print hello
    --- exit 2 ---
    ");
    assert_snapshot!(dir.output_of(dir.narrows(["fake-agent", "."])), @r#"
    --- stderr ---
    error: cannot read the script "."
      because: Is a directory (os error 21)
    --- exit 2 ---
    "#);
}

#[test]
fn the_exit_code_is_that_of_the_script() {
    let dir = TestDir::new();
    dir.file("exit.toml", "name = \"exit\"\n[on]\nstart = [{ exit = 9 }]\n");
    assert_snapshot!(dir.output_of(dir.run("narrows fake-agent exit.toml", &["Hi"])), @"
    --- stderr ---
    error: the agent exited before it answered `initialize`: exited with status 9
    --- exit 5 ---
    ");
}

#[test]
fn stdout_has_only_messages() {
    let dir = TestDir::new();
    let mut command = dir.narrows(["--log", "trace", "fake-agent", "hello"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut ask = |id: u32, message: &str| {
        writeln!(stdin, "{}", message.replace("ID", &id.to_string())).unwrap();
        for line in lines.by_ref() {
            let line = line.unwrap();
            let read: serde_json::Value =
                serde_json::from_str(&line).unwrap_or_else(|_| panic!("no message: {line}"));
            assert_eq!(read["jsonrpc"], "2.0", "{line}");
            if read["id"] == id {
                return read["result"].clone();
            }
        }
        panic!("no answer to {message}");
    };
    ask(1, r#"{"jsonrpc":"2.0","id":ID,"method":"initialize","params":{"protocolVersion":1}}"#);
    let session =
        ask(2, r#"{"jsonrpc":"2.0","id":ID,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}"#);
    let prompt = r#"{"jsonrpc":"2.0","id":ID,"method":"session/prompt","params":{"sessionId":SESSION,"prompt":[{"type":"text","text":"Hi"}]}}"#;
    let result = ask(3, &prompt.replace("SESSION", &session["sessionId"].to_string()));
    assert_eq!(result["stopReason"], "end_turn");
    drop(stdin);
    assert!(child.wait().unwrap().success());
    assert_eq!(lines.count(), 0);
    dir.assert_no_process_left();
}

/// Writes requests to a file, one per line.
fn requests(dir: &TestDir, count: usize) -> File {
    let lines: String = (0..count)
        .map(|id| format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"session/list\"}}\n"))
        .collect();
    File::open(dir.file("requests", &lines)).expect("a file")
}

#[test]
fn every_request_is_answered_before_the_end() {
    let dir = TestDir::new();
    let answers = dir.path().join("answers");
    let mut command = dir.narrows(["fake-agent", "hello"]);
    command.stdin(requests(&dir, 5000)).stdout(File::create(&answers).unwrap());
    assert!(command.status().unwrap().success());
    assert_eq!(std::fs::read_to_string(answers).unwrap().lines().count(), 5000);

    let mut command = dir.narrows(["fake-agent", "hello"]);
    let mut child = command.stdin(requests(&dir, 5000)).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (mut answers, mut piece) = (0, [0; 4096]);
    loop {
        let length = stdout.read(&mut piece).unwrap();
        if length == 0 {
            break;
        }
        answers += piece[..length].iter().filter(|byte| **byte == b'\n').count();
        // sleep: the reader must be slower than the agent
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(answers, 5000);
    dir.assert_no_process_left();
}

#[test]
fn a_connection_lost_during_a_script() {
    let dir = TestDir::new();
    let mut command = dir.narrows(["fake-agent", "hello"]);
    command.stdin(File::open("/").unwrap());
    assert_snapshot!(dir.output_of(command), @"
    --- stderr ---
    error: connection to the client lost
      because: the connection failed: Is a directory (os error 21)
    --- exit 70 ---
    ");

    let mut command = dir.narrows(["fake-agent", "hello"]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    command.stdout(File::options().write(true).open("/dev/full").unwrap());
    let mut child = command.spawn().unwrap();
    // Stdin stays open, so the agent does not end because its input does.
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/list\"}}").unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(70));
    assert_snapshot!(stderr, @"
    error: connection to the client lost
      because: the connection failed: No space left on device (os error 28)
    ");
    dir.assert_no_process_left();
}
