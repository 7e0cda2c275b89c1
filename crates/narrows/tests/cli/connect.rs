//! Remote agents: bridged to stdio, and driven.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::json;

use crate::bus_support::{Bus, NARROWS};
use crate::stdio_client::StdioClient;
use crate::terminal_user::{CTRL_C, CTRL_D, TerminalUser};
use crate::test_dir::TestDir;

/// Starts a bus with an agent that echoes prompts.
fn echo(dir: &TestDir) -> Bus<'_> {
    Bus::start(dir, &["--listen", "tcp://127.0.0.1:0", "--", NARROWS, "fake-agent", "echo"])
}

#[track_caller]
fn talks(dir: &TestDir, command: Command) {
    let mut stdio = StdioClient::initialized(dir, command);
    let session = stdio.session(&json!([]));
    let answer = stdio.prompt(&session, "hello there");
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    assert_eq!(stdio.agent_text(), "hello there");
    let ended = stdio.end();
    assert_eq!((ended.status.code(), ended.stderr.as_str()), (Some(0), ""));
}

#[test]
fn an_editor_uses_a_remote_agent() {
    let (dir, home) = (TestDir::new(), TestDir::new());
    let bus = echo(&home);
    talks(&dir, dir.narrows(["connect", &bus.at[0]]));
    let mut bare = dir.narrows(["acp"]);
    bare.env("NARROWS_CONNECT", &bus.at[0]);
    talks(&dir, bare);
    let file = dir.file("narrows.toml", &format!("[acp]\nconnect = \"{}\"\n", bus.at[0]));
    let mut bare = dir.narrows(["acp"]);
    bare.env("NARROWS_CONFIG", file);
    talks(&dir, bare);
    bus.stop();
}

#[test]
fn the_built_in_agent_ignores_the_connect_variable() {
    let dir = TestDir::new();
    for args in [["acp", "--local"].as_slice(), &["acp", "--no-store"]] {
        let mut command = dir.narrows(args);
        command.env("NARROWS_CONNECT", "tcp://127.0.0.1:1").env("OPENAI_BASE_URL", "builtin:demo");
        command.env("XDG_DATA_HOME", dir.path());
        let stdio = StdioClient::initialized(&dir, command);
        assert_eq!(stdio.end().status.code(), Some(0));
    }
}

#[test]
fn a_remote_agent_runs_a_turn() {
    let (dir, home) = (TestDir::new(), TestDir::new());
    let bus = echo(&home);
    let told = dir.output_beside_others(dir.narrows(["run", "--agent", &bus.at[0], "hello there"]));
    assert!(told.contains("hello there") && told.contains("--- exit 0 ---"), "{told}");
    let told = dir.output_beside_others(dir.narrows([
        "run",
        "--agent",
        &bus.at[0],
        "--cwd",
        "/not/here",
        "hello there",
    ]));
    assert!(told.contains("hello there") && told.contains("--- exit 0 ---"), "{told}");
    bus.stop();
}

#[test]
fn a_signal_ends_it() {
    let (dir, home) = (TestDir::new(), TestDir::new());
    let bus = echo(&home);
    let stdio = StdioClient::initialized(&dir, dir.narrows(["connect", &bus.at[0]]));
    stdio.signal(Signal::TERM);
    let ended = stdio.end();
    assert_eq!(ended.status.code(), Some(143), "{}", ended.stderr);
    bus.stop();
}

#[test]
fn a_lost_bus_is_reported() {
    let (dir, home) = (TestDir::new(), TestDir::new());
    let bus = echo(&home);
    let stdio = StdioClient::initialized(&dir, dir.narrows(["connect", &bus.at[0], "--grace", "200ms"]));
    bus.stop();
    let ended = stdio.wait();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.starts_with("error: connection to tcp://"), "{}", ended.stderr);
}

#[test]
fn a_connection_lost_during_a_turn_is_reported_as_such() {
    let (dir, home) = (TestDir::new(), TestDir::new());
    let bus = Bus::start(&home, &["--listen", "ws://127.0.0.1:0/acp", "--", NARROWS, "fake-agent", "slow"]);
    let args = ["run", "--agent", &bus.at[0], "--grace", "200ms", "go"];
    let running = dir.start(dir.narrows(args));
    bus.wait_for(|state| state["sessions"] == 1);
    bus.signal(Signal::KILL);
    bus.wait();
    let told = running.finish();
    assert!(
        told.contains("error: connection to ws://127.0.0.1:") && told.contains(" lost\n  because: "),
        "{told}"
    );
    assert!(!told.contains("the agent answered") && told.ends_with("--- exit 1 ---\n"), "{told}");
}

#[test]
fn a_chat_reports_a_lost_connection_once() {
    for (script, text) in [("echo", None), ("slow", Some("go\r"))] {
        let (dir, home) = (TestDir::new(), TestDir::new());
        let bus =
            Bus::start(&home, &["--listen", "ws://127.0.0.1:0/acp", "--", NARROWS, "fake-agent", script]);
        let user = TerminalUser::connect(&dir, &["chat", "--agent", &bus.at[0], "--grace", "200ms"]);
        user.expect_prompt();
        if let Some(text) = text {
            user.type_text(text);
            user.expect("One moment.");
        }
        bus.signal(Signal::KILL);
        bus.wait();
        user.expect("hint: allow more time with --grace");
        user.expect("/restart starts it again");
        user.expect_prompt();
        let screen = user.screen();
        assert_eq!(screen.matches("error: ").count(), 1, "{screen}");
        assert!(screen.contains("error: connection to ws://127.0.0.1:"), "{screen}");
        user.quit();
    }
}

#[test]
fn a_stopping_bus_refuses_new_clients_with_a_reason() {
    let (dir, home) = (TestDir::new(), TestDir::new());
    let listeners = ["--listen", "ws://127.0.0.1:0/acp", "--listen", "tcp://127.0.0.1:0"];
    let bus = Bus::start(&home, &[&listeners[..], &["--", NARROWS, "fake-agent", "slow"]].concat());
    let running = dir.start(dir.narrows(["run", "--agent", &bus.at[0], "--grace", "200ms", "go"]));
    // The bus waits for this turn.
    bus.wait_for(|state| state["sessions"] == 1 && state["pending"] == 1);
    bus.signal(Signal::TERM);
    home.wait_for(|| bus.page("/ready").contains("bus is shutting down"));
    let web = bus.at[0].clone();
    for (url, why) in [
        (web.replace("ws://", "http://"), "the server responded with status 503: bus is shutting down"),
        (web, "the server refused the connection: bus is shutting down"),
        (bus.at[1].clone(), "the server refused the connection: bus is shutting down"),
    ] {
        let told = dir.output_beside_others(dir.narrows(["run", "--agent", &url, "Hi"]));
        assert!(told.contains(&format!("cannot connect to {url}\n  because: {why}\n")), "{told}");
        assert!(told.ends_with("--- exit 5 ---\n"), "{told}");
    }
    bus.signal(Signal::KILL);
    bus.wait();
    running.finish();
}

#[test]
fn a_port_without_tls_is_reported_as_such() {
    let (dir, home) = (TestDir::new(), TestDir::new());
    let bus = Bus::start(&home, &["--listen", "ws://127.0.0.1:0/acp", "--", NARROWS, "fake-agent", "echo"]);
    for scheme in ["wss://", "https://"] {
        let url = bus.at[0].replace("ws://", scheme);
        let told = dir.output_beside_others(dir.narrows(["run", "--agent", &url, "Hi"]));
        assert!(
            told.contains("because: the server does not speak TLS\nhint: use ws:// or http://"),
            "{told}"
        );
        assert!(told.contains("--- exit 5 ---"), "{told}");
    }
    bus.stop();
}

#[test]
fn a_port_with_another_protocol_is_reported_as_such() {
    let (dir, home) = (TestDir::new(), TestDir::new());
    let bus = echo(&home);
    for scheme in ["ws://", "http://"] {
        let url = bus.at[0].replace("tcp://", scheme);
        let told = dir.output_beside_others(dir.narrows(["run", "--agent", &url, "--grace", "1s", "Hi"]));
        assert!(told.contains("because: the server does not speak HTTP\n"), "{told}");
        assert!(told.contains("hint: use tcp:// for JSON lines"), "{told}");
    }
    bus.stop();
    let bus = Bus::start(&home, &["--listen", "ws://127.0.0.1:0/acp", "--", NARROWS, "fake-agent", "echo"]);
    let url = bus.at[0].replace("ws://", "tcp://").replace("http://", "tcp://").replace("/acp", "");
    let told = dir.output_beside_others(dir.narrows(["run", "--agent", &url, "Hi"]));
    assert!(told.contains("\n  because: the server speaks HTTP\n"), "{told}");
    assert!(told.ends_with("hint: use ws:// or http:// for this port\n--- exit 5 ---\n"), "{told}");
    bus.stop();
}

#[test]
fn invalid_settings_are_reported_to_the_editor() {
    let dir = TestDir::new();
    let question = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{}}\n";
    let output = |text: &str| {
        let file = dir.file("narrows.toml", text);
        let mut acp = dir.narrows(["acp"]);
        acp.env("NARROWS_CONFIG", file);
        dir.output_with_input(acp, question)
    };
    for (text, why) in [
        ("[acp]\nconnect = \"ws://127.0.0.1:1/acp\"\ntoken_file = \"none\"\n", "cannot read"),
        ("[acp]\nconect = \"ws://127.0.0.1:1/acp\"\n", "conect"),
    ] {
        let told = output(text);
        let (answer, rest) = told.split_once("--- stderr ---").expect("stdout and stderr");
        assert!(answer.starts_with("{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32010,"), "{told}");
        assert!(answer.contains(why) && answer.contains("\"retryable\":false"), "{told}");
        assert!(rest.contains(why) && rest.ends_with("--- exit 2 ---\n"), "{told}");
    }
}

#[test]
fn an_unreachable_agent_is_reported_to_the_editor() {
    let dir = TestDir::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("ws://127.0.0.1:{port}/acp");
    let question = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{}}\n";
    let told = dir.output_with_input(dir.narrows(["connect", &url]), question);
    let told = told.replace(&port.to_string(), "[PORT]");
    assert_snapshot!(told, @r#"
    {"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"cannot connect to ws://127.0.0.1:[PORT]/acp: no process listens at 127.0.0.1:[PORT]","data":{"condition":"worker_lost","retryable":true,"effects":"none"}}}
    --- stderr ---
    error: cannot connect to ws://127.0.0.1:[PORT]/acp
      because: no process listens at 127.0.0.1:[PORT]
    hint: check that the server is running and listening on this address
    --- exit 5 ---
    "#);
}

#[test]
fn invalid_arguments_are_refused() {
    let dir = TestDir::new();
    let output = |args: &[&str]| dir.output_of(dir.narrows(args));
    let token = dir.file("token", "t0k3n\n");
    let token = token.to_str().unwrap();
    assert_snapshot!(output(&["connect", "bus.example"]), @r#"
    --- stderr ---
    error: invalid value 'bus.example' for '<URL>': unknown scheme: expected ws://, wss://, http://, https://, tcp:// or unix:

    For more information, try '--help'.
    --- exit 2 ---
    "#);
    assert!(output(&["connect", "127.0.0.1:9000"]).contains("; did you mean tcp://127.0.0.1:9000?\n"));
    assert_snapshot!(output(&["run", "--agent", "tcp://127.0.0.1:9000/die", "Hi"]), @r#"
    --- stderr ---
    error: --agent "tcp://127.0.0.1:9000/die": the URL must end with its port: the listener selects the pool
    hint: did you mean tcp://127.0.0.1:9000?
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&["run", "--agent", "127.0.0.1:9000", "Hi"]), @r#"
    --- stderr ---
    error: cannot start the agent "127.0.0.1:9000"
      because: program "127.0.0.1:9000" not found in PATH
    hint: did you mean "tcp://127.0.0.1:9000"?
    --- exit 5 ---
    "#);
    assert_snapshot!(output(&["connect", "ws://me:secret@bus.example/acp"]), @"
    --- stderr ---
    error: invalid value 'ws://me:secret@bus.example/acp' for '<URL>': the URL contains a user name or a password

    For more information, try '--help'.
    --- exit 2 ---
    ");
    assert_snapshot!(output(&["connect", "tcp://127.0.0.1:9000/default"]), @r#"
    --- stderr ---
    error: invalid value 'tcp://127.0.0.1:9000/default' for '<URL>': the URL must end with its port: the listener selects the pool; did you mean tcp://127.0.0.1:9000?

    For more information, try '--help'.
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&["connect", "ws://bus.example/acp", "--token-file", token]), @"
    --- stderr ---
    error: cannot connect to ws://bus.example/acp
      because: refusing to send the token over an unencrypted connection
    hint: use wss:// or https://, or a tunnel to this machine (ssh -L)
    --- exit 2 ---
    ");
    assert_snapshot!(output(&["connect", "unix:/x", "--token-file", "none"]), @r#"
    --- stderr ---
    error: --token-file: cannot read "none"
      because: No such file or directory (os error 2)
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&["connect", "wss://bus.example/acp", "--ca", "none.pem"]), @"
    --- stderr ---
    error: --ca: cannot use the CA certificates
      because: none.pem: cannot be read: No such file or directory (os error 2)
    hint: use certificates in PEM format; --ca is only needed for a private CA
    --- exit 2 ---
    ");
    assert_snapshot!(output(&["connect", "unix:/x/y"]), @"
    --- stderr ---
    error: cannot connect to unix:/x/y
      because: no process listens at /x/y: no such file
    hint: check that the server is running and listening on this address
    --- exit 5 ---
    ");
    assert_snapshot!(output(&["run", "--agent", "narrows acp", "--token-file", "x", "Hi"]), @r#"
    --- stderr ---
    error: --token-file applies to remote agents, but "narrows acp" is started locally
    hint: use a URL for a remote agent: --agent wss://HOST/acp
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&["run", "--agent", "ws://127.0.0.1:1/acp", "--env", "X=1", "Hi"]), @"
    --- stderr ---
    error: --env applies to agents that are started locally, but ws://127.0.0.1:1/acp is remote
    hint: set the environment of the agent on its host
    --- exit 2 ---
    ");
    assert_snapshot!(output(&["run", "--agent", "ws://127.0.0.1:1/acp", "--cwd", "not/here", "Hi"]), @r#"
    --- stderr ---
    error: --cwd "not/here" is neither a local directory nor an absolute path
    hint: for a remote agent, use an absolute path on its host
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&["run", "--agent", "ws://127.0.0.1:1/acp", "Hi"]), @"
    --- stderr ---
    error: cannot connect to ws://127.0.0.1:1/acp
      because: no process listens at 127.0.0.1:1
    hint: check that the server is running and listening on this address
    --- exit 5 ---
    ");
    assert_snapshot!(output(&["run", "--agent", "http://127.0.0.1:1/acp", "Hi"]), @"
    --- stderr ---
    error: cannot connect to http://127.0.0.1:1/acp
      because: no process listens at 127.0.0.1:1
    hint: check that the server is running and listening on this address
    --- exit 5 ---
    ");
}

/// A network path to a server, which can be cut and restored.
struct Way {
    at: String,
    is_cut: Arc<AtomicBool>,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Way {
    fn to(url: &str) -> Self {
        let server = url.trim_start_matches("ws://").trim_end_matches("/acp").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let at = format!("ws://{}/acp", listener.local_addr().expect("a socket"));
        let way = Self { at, is_cut: Arc::default(), sockets: Arc::default() };
        let (is_cut, sockets) = (Arc::clone(&way.is_cut), Arc::clone(&way.sockets));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&server) else { continue };
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                for (mut from, mut to) in [
                    (client.try_clone().expect("a socket"), server.try_clone().expect("a socket")),
                    (server.try_clone().expect("a socket"), client.try_clone().expect("a socket")),
                ] {
                    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                }
                sockets.lock().expect("a socket").extend([client, server]);
            }
        });
        way
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        for socket in self.sockets.lock().expect("a socket").drain(..) {
            // Also cuts connections that have ended.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn restore(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

const LOST: &str = "connection lost, reconnecting (";

/// Cuts the path to an agent during a turn, restores it, cuts it again and cancels the turn. `begin` gets the
/// address of the path.
fn cuts<'a>(begin: impl FnOnce(&str) -> TerminalUser<'a>) -> TerminalUser<'a> {
    let home = TestDir::new();
    let bus = Bus::start(&home, &["--listen", "ws://127.0.0.1:0/acp", "--", NARROWS, "fake-agent", "slow"]);
    let way = Way::to(&bus.at[0]);
    let user = begin(&way.at);
    user.expect("One moment.");
    way.cut();
    user.expect(LOST);
    way.restore();
    user.wait_until_gone(LOST);
    way.cut();
    user.expect(LOST);
    user.type_text(CTRL_C);
    user.expect("cancelled; the connection is lost, so the agent may still be working");
    user
}

#[test]
fn a_lost_connection_is_shown_until_it_is_restored() {
    let dir = TestDir::new();
    let user =
        cuts(|url| TerminalUser::connect(&dir, &["run", "--agent", url, "--cancel-grace", "500ms", "go"]));
    assert_eq!(user.wait_exit(), Some(130));
}

#[test]
fn a_lost_connection_is_shown_in_a_chat() {
    let dir = TestDir::new();
    let user = cuts(|url| {
        let user = TerminalUser::connect(&dir, &["chat", "--agent", url, "--cancel-grace", "500ms"]);
        user.expect_prompt();
        user.type_text("go\r");
        user
    });
    user.expect_prompt();
    user.type_text(CTRL_D);
    assert_eq!(user.wait_exit(), Some(0));
}

#[test]
fn a_lost_connection_is_reported_to_programs_in_lines() {
    let (dir, home) = (TestDir::new(), TestDir::new());
    let bus = Bus::start(&home, &["--listen", "ws://127.0.0.1:0/acp", "--", NARROWS, "fake-agent", "slow"]);
    let args = ["run", "--agent", &bus.at[0], "--grace", "5s", "--output", "events", "go"];
    let running = dir.start(dir.narrows(args));
    bus.wait_for(|state| state["sessions"] == 1);
    bus.signal(Signal::KILL);
    bus.wait();
    let told = running.finish();
    assert_eq!(told.matches(LOST).count(), 1, "{told}");
    assert!(told.ends_with("--- exit 1 ---\n"), "{told}");
}
