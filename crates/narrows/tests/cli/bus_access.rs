//! Access to a bus, and what clients may make its agents start.

use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::bus_support::{Bus, Peer, http};
use crate::test_dir::TestDir;

/// A user that the tests do not run as.
const OTHER: u32 = 65_534;

/// Connects as another user and returns what it receives; `None` if this test cannot become another user.
#[expect(clippy::print_stdout, reason = "a test that cannot be run here says so")]
fn exchange_as_other_user(address: &str, sent: &str) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can start a process of another user");
        return None;
    }
    let (host, port) = address.rsplit_once(':').expect("a port");
    let script = format!("exec 3<>/dev/tcp/{host}/{port} && printf '{sent}' >&3; cat <&3");
    let mut bash = Command::new("bash");
    let bash = bash.args(["-c", &script]).current_dir("/").uid(OTHER).gid(OTHER).stderr(Stdio::null());
    match bash.output() {
        Ok(done) => Some(String::from_utf8(done.stdout).expect("UTF-8")),
        Err(_) => {
            println!("skipped: there is no bash");
            None
        }
    }
}

/// Opens a session with an MCP server that makes a file, and returns the answer.
fn open_with_server(peer: &mut Peer, dir: &TestDir, file: &str) -> Value {
    peer.call(&json!(0), "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
    let script = format!("echo started > {}", dir.path().join(file).display());
    let server = json!({"name": "x", "command": "/bin/sh", "args": ["-c", script], "env": []});
    peer.call(&json!(1), "session/new", &json!({"cwd": dir.path(), "mcpServers": [server]}))
}

#[test]
fn a_client_over_tcp_or_websocket_starts_no_command_and_the_user_on_a_unix_socket_does() {
    let dir = TestDir::new();
    let socket = dir.path().join("s");
    let file = format!(
        "[[listen]]\nurl = 'tcp://127.0.0.1:0'\n[[listen]]\nurl = 'ws://127.0.0.1:0'\n[[listen]]\nurl = 'unix:{}'\n\
         [[pool]]\ncommand = ['narrows', 'acp', '--no-store']\nenv = {{ OPENAI_BASE_URL = 'builtin:demo' }}\npass_env = ['[MARK]']\n",
        socket.display()
    );
    let bus = Bus::from_file(&dir, &file);
    let web = Peer::web(&bus.at[1], &[]).expect("it is the user of the bus");
    for mut peer in [bus.client_at(0), web] {
        let answer = open_with_server(&mut peer, &dir, "remote");
        assert_eq!(answer["error"]["code"], -32015, "{answer}");
    }
    let answer = open_with_server(&mut bus.client_at(2), &dir, "local");
    assert!(answer["result"]["sessionId"].is_string(), "{answer}");
    let is_there = |file: &str| dir.path().join(file).exists();
    dir.wait_for(|| is_there("local"));
    assert!(!is_there("remote"));
    assert_eq!(bus.state()["counters"]["refused_mcp"], 2);
    bus.stop();
}

#[test]
fn another_user_is_refused_on_every_port_of_a_bus() {
    let dir = TestDir::new();
    let file = "[[listen]]\nurl = 'tcp://127.0.0.1:0'\n[[listen]]\nurl = 'ws://127.0.0.1:0/acp'\n\
        [[pool]]\ncommand = ['narrows', 'fake-agent', 'echo']\npass_env = ['[MARK]']\n[admin]\nport = 0\n";
    let mut bus = Bus::from_file(&dir, file);
    let admin = bus.expect_text("admin API listening on http://");
    let address = |url: &str| url.split('/').nth(2).expect("an address").to_owned();
    let (tcp, web) = (address(&bus.at[0]), address(&bus.at[1]));
    let Some(heard) =
        exchange_as_other_user(&tcp, r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}\n"#)
    else {
        return;
    };
    assert!(heard.contains("only the user of this bus may connect"), "{heard}");
    let upgrade = r"GET /acp HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    let heard = exchange_as_other_user(&web, upgrade).expect("this process could become the user before");
    assert!(heard.starts_with("HTTP/1.1 403 ") && heard.contains("only the user of this bus"), "{heard}");
    let status = r"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let heard = exchange_as_other_user(&admin, status).expect("this process could become the user before");
    assert!(heard.starts_with("HTTP/1.1 403 ") && heard.contains("only the user of this bus"), "{heard}");
    // The user of the bus is served on all of them.
    bus.client_at(0).session(&dir);
    Peer::web(&bus.at[1], &[]).expect("it is admitted").session(&dir);
    let mut stream = TcpStream::connect(&admin).expect("the server listens");
    let answer = http(&mut stream, "localhost", "/status");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"refused_users\":2"), "{answer}");
    assert!(bus.page("/metrics").contains("narrows_bus_users_refused_total 2\n"));
    let mut stream = TcpStream::connect(&admin).expect("the server listens");
    let foreign = http(&mut stream, "localhost\r\nOrigin: https://evil.example", "/status");
    assert!(foreign.starts_with("HTTP/1.1 403 "), "{foreign}");
    bus.stop();
}

/// Version 1 has the id of the server under two keys, version 2 under one.
#[test]
fn a_server_that_runs_in_the_client_is_used_through_a_bus() {
    for protocol in ["1", "2"] {
        let (dir, home) = (TestDir::new(), TestDir::new());
        dir.mcp_server("notes", "poke");
        dir.file("p.toml", "[[rule]]\neffect = 'allow'\nserver = 'notes'\ntool = 'poke'\n");
        let agent = ["--", "narrows", "acp", "--no-store", "--base-url", "builtin:demo"];
        let listen = ["--listen", "tcp://127.0.0.1:0", "--share", "all", "--protocol", protocol];
        let bus = Bus::start(&home, &[&listen[..], &agent].concat());
        let own = format!("narrows bus --protocol {protocol} --listen stdio: {}", agent.join(" "));
        for url in [&bus.at[0], &own] {
            let args =
                ["run", "--agent", url, "--protocol", protocol, "--mcp", "mcp.json", "--policy", "p.toml"];
            let mut command = dir.narrows(args.iter().chain(&["call notes__poke {}"]));
            command.env("XDG_RUNTIME_DIR", dir.path().join("run"));
            let told = dir.output_of(command);
            assert!(told.contains("POKED") && told.ends_with("--- exit 0 ---\n"), "{protocol} {url}: {told}");
        }
        bus.stop();
    }
}
