//! `narrows bus` between clients and agents: listeners, share modes, and the official SDK at both ends.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use narrows_testkit::sdk;
use serde_json::{Value, json};

use crate::bus_support::{Bus, NARROWS, Peer, command, write};
use crate::stdio_client::StdioClient;
use crate::test_dir::{MARK, TestDir};

/// Two clients use the same request ids at the same time.
fn collide(dir: &TestDir, mut one: Peer, mut other: Peer) {
    let sessions = [one.session(dir), other.session(dir)];
    for round in 2..5 {
        one.prompt(&json!(round), &sessions[0], &format!("first {round}"));
        other.prompt(&json!(round), &sessions[1], &format!("second {round}"));
        let answers = [one.answer(&json!(round)), other.answer(&json!(round))];
        for answer in answers {
            assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        }
    }
    assert_eq!(one.agent_text(), "first 2first 3first 4");
    assert_eq!(other.agent_text(), "second 2second 3second 4");
    for (peer, session) in [(&one, &sessions[0]), (&other, &sessions[1])] {
        assert!(peer.others.iter().all(|message| message["params"]["sessionId"] == **session));
    }
}

#[test]
fn clients_with_equal_ids_do_not_interfere() {
    for share in ["connection", "session", "all"] {
        let dir = TestDir::new();
        let args = ["--tcp", "127.0.0.1:0", "--instances", "2", "--share", share, "--"];
        let bus = Bus::start(&dir, &[&args[..], &["narrows", "fake-agent", "echo"]].concat());
        collide(&dir, bus.client(), bus.client());
        bus.stop();
    }
}

#[test]
fn the_built_in_agent_serves_several_clients() {
    let dir = TestDir::new();
    let agent = ["--", "narrows", "acp", "--no-store", "--base-url", "builtin:demo"];
    let args = ["--listen", "tcp://127.0.0.1:0", "--instances", "2", "--share", "all"];
    let bus = Bus::start(&dir, &[&args[..], &agent].concat());
    bus.wait_for_workers(2);
    let mut peers: Vec<Peer> = (0..8).map(|_| bus.client()).collect();
    let sessions: Vec<String> = peers.iter_mut().map(|peer| peer.session(&dir)).collect();
    for (peer, session) in peers.iter_mut().zip(&sessions) {
        peer.prompt(&json!("a"), session, "who are you?");
    }
    for peer in &mut peers {
        let answer = peer.answer(&json!("a"));
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        assert!(peer.agent_text().starts_with("I am the demo model of Narrows."), "{}", peer.agent_text());
    }
    let state = bus.state();
    let sessions = state["pools"][0]["workers"].as_array().expect("workers").iter();
    let sessions: Vec<&Value> = sessions.map(|worker| &worker["sessions"]).collect();
    assert_eq!(sessions, [4, 4], "least load first: {state}");
    bus.stop();
}

#[test]
fn a_socket_is_for_its_user_and_a_stale_one_is_replaced() {
    let dir = TestDir::new();
    let path = dir.path().join("in").join("bus.sock");
    let url = format!("unix:{}", path.display());
    let args = ["--listen", &url, "--", "narrows", "fake-agent", "echo"];
    let bus = Bus::start(&dir, &args);
    let mode = |path: &Path| std::fs::metadata(path).expect("the file exists").permissions().mode() & 0o777;
    for socket in [&path, &bus.admin] {
        assert_eq!((mode(socket), mode(socket.parent().expect("a directory"))), (0o600, 0o700));
    }
    collide(&dir, bus.client(), bus.client());
    // A second bus must not replace it.
    let told = dir.output_beside_others(command(&dir, &args));
    assert!(told.contains("bus.sock is in use by another process"), "{told}");
    assert!(
        told.ends_with("hint: check if another bus is running: narrows bus status\n--- exit 2 ---\n"),
        "{told}"
    );
    // A killed bus leaves its sockets behind.
    bus.signal(rustix::process::Signal::KILL);
    bus.wait();
    assert!(path.exists());
    let bus = Bus::start(&dir, &args);
    collide(&dir, bus.client(), bus.client());
    let admin = bus.admin.clone();
    bus.stop();
    assert!(!path.exists() && !admin.exists(), "the bus removes its sockets");
    // A file that is not a socket belongs to another program.
    std::fs::write(&path, "precious").expect("a file");
    let told = dir.output_of(command(&dir, &args));
    assert!(told.contains("exists and is not a socket"), "{told}");
    assert_eq!(std::fs::read_to_string(&path).expect("the file exists"), "precious");
}

#[test]
fn the_end_of_a_stdio_client_stops_the_bus() {
    let dir = TestDir::new();
    let args = ["--log", "trace", "--stdio", "--", "narrows", "fake-agent", "noisy"];
    let mut stdio = StdioClient::initialized(&dir, command(&dir, &args));
    let session = stdio.session(&json!([]));
    let answer = stdio.prompt(&session, "a prompt nobody logs");
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    let ended = stdio.end();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("listening on stdio:, pool default\n"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("nobody logs"), "{}", ended.stderr);
}

#[tokio::test]
async fn the_official_sdk_works_as_client_and_agent() {
    let agent = Path::new(NARROWS).with_file_name("examples").join("sdk_agent");
    assert!(agent.exists(), "build it first: cargo build -p narrows --examples");
    let agent = agent.to_str().expect("UTF-8");
    for share in ["connection", "session", "all"] {
        for version in ["1", "2"] {
            let words = [NARROWS, "bus", "--stdio", "--share", share, "--protocol", version, "--", agent];
            let words = words.map(str::to_owned).to_vec();
            let transcript = match version {
                "1" => sdk::drive(words, "one two").await,
                _ => sdk::drive_v2(words, "one two").await,
            };
            let what = format!("{share} {version}: {transcript:?}");
            assert_eq!(transcript.text, "Hello from the SDK: one two", "{what}");
            assert_eq!(transcript.stop_reason.as_deref(), Some("end_turn"), "{what}");
            assert_eq!(transcript.error, None, "{what}");
        }
    }
}

#[test]
fn requests_of_agents_reach_the_client_of_the_session() {
    let dir = TestDir::new();
    let args = ["--tcp", "127.0.0.1:0", "--share", "all", "--", "narrows", "fake-agent", "ask"];
    let bus = Bus::start(&dir, &args);
    let (mut one, mut other) = (bus.client(), bus.client());
    let sessions = [one.session(&dir), other.session(&dir)];
    for (peer, session) in [(&mut one, &sessions[0]), (&mut other, &sessions[1])] {
        peer.prompt(&json!(7), session, "clean up");
    }
    for (peer, session, option, end) in [
        (&mut one, &sessions[0], "allow_once", "Done, with your leave"),
        (&mut other, &sessions[1], "reject_once", "Then I will leave it as it is"),
    ] {
        let question = loop {
            let message = peer.next().expect("a question");
            if message["method"] == "session/request_permission" {
                break message;
            }
            peer.others.push(message);
        };
        assert_eq!(question["params"]["sessionId"], **session);
        let options = question["params"]["options"].as_array().expect("options");
        let chosen = options.iter().find(|offered| offered["kind"] == option).expect("it is offered");
        let outcome = json!({"outcome": {"outcome": "selected", "optionId": chosen["optionId"]}});
        peer.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": outcome}));
        assert_eq!(peer.answer(&json!(7))["result"]["stopReason"], "end_turn");
        assert!(peer.agent_text().contains(end), "{}", peer.agent_text());
    }
    bus.stop();
}

#[test]
fn pools_are_chosen_by_listener_and_by_name() {
    let dir = TestDir::new();
    let bus = Bus::from_file(
        &dir,
        r#"
        [[listen]]
        url = "tcp://127.0.0.1:0"
        [[listen]]
        url = "tcp://127.0.0.1:0/hello"
        [[pool]]
        name = "echo"
        command = ["narrows", "fake-agent", "echo"]
        pass_env = ["[MARK]"]
        [[pool]]
        name = "hello"
        command = ["[NARROWS]", "fake-agent", "hello"]
        pass_env = ["[MARK]"]
        "#,
    );
    let named = |at: usize, meta: Value| {
        let mut peer = bus.client_at(at);
        let params = json!({"protocolVersion": 1, "clientCapabilities": {}, "_meta": meta});
        peer.call(&json!(0), "initialize", &params)
    };
    assert_eq!(named(0, json!({}))["result"]["agentInfo"]["name"], "echo");
    assert_eq!(named(1, json!({}))["result"]["agentInfo"]["name"], "hello");
    assert_eq!(named(0, json!({"narrows/pool": "hello"}))["result"]["agentInfo"]["name"], "hello");
    let refused = named(0, json!({"narrows/pool": "none"}));
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    bus.stop();
}

#[test]
fn a_configuration_of_stdio_bus_works_unchanged() {
    let dir = TestDir::new();
    let worker = r#"exec sed -u -n 's/"method":"echo","params":/"result":/p'"#;
    let config = json!({
        "pools": [{"id": "echo", "command": "/bin/sh", "args": ["-c", worker], "instances": 2}],
        "limits": {"max_input_buffer": 1_048_576, "drain_timeout_sec": 5},
    });
    let file = dir.file("config.json", &config.to_string());
    let bus = Bus::start(&dir, &["--config", file.to_str().expect("UTF-8"), "--tcp", "127.0.0.1:0"]);
    let (mut one, mut other) = (bus.client(), bus.client());
    for number in 0..20 {
        for (peer, name) in [(&mut one, "a"), (&mut other, "b")] {
            let line = json!({"jsonrpc": "2.0", "id": number, "method": "echo", "params": {"to": name}, "sessionId": name});
            peer.send(&line);
        }
        for (peer, name) in [(&mut one, "a"), (&mut other, "b")] {
            let answer = peer.answer(&json!(number));
            assert_eq!(answer["result"]["to"], name, "{answer}");
            assert_eq!(answer["sessionId"], name, "{answer}");
        }
    }
    bus.stop();
}

#[test]
fn a_half_closed_client_gets_its_pending_responses() {
    let dir = TestDir::new();
    let file = "\
        [[listen]]\nurl = 'tcp://127.0.0.1:0'\n\
        [[pool]]\ncommand = ['narrows', 'fake-agent', 'echo']\npass_env = ['[MARK]']\n\
        [limits]\ndisconnect_grace = '30s'\n";
    let bus = Bus::from_file(&dir, file);
    let mut peer = bus.client();
    let session = peer.session(&dir);
    peer.prompt(&json!("last"), &session, "one two three");
    peer.half_close();
    assert_eq!(peer.answer(&json!("last"))["result"]["stopReason"], "end_turn");
    assert_eq!(peer.agent_text(), "one two three");
    assert_eq!(peer.next(), None, "then the bus closes the connection");
    bus.stop();
}

#[test]
fn workers_of_a_file_get_a_clean_environment_and_those_of_a_command_do_not() {
    let dir = TestDir::new();
    let script = "env > \"$0.env\"; while read -r line; do :; done";
    let pool = format!(
        "[[listen]]\nurl = 'tcp://127.0.0.1:0'\n[[pool]]\ncommand = ['sh', '-c', '{script}', 'file']\n\
         pass_env = ['[MARK]', 'OPENAI_*']\nenv = {{ ADDED = 'yes' }}\n"
    );
    let file = write(&dir, &pool);
    for (args, name, expected) in [
        (&["--config", file.as_str()][..], "file", ["ADDED=yes", "OPENAI_MODEL=m", MARK].as_slice()),
        (
            &["--tcp", "127.0.0.1:0", "--", "sh", "-c", script, "shell"],
            "shell",
            &["OTHER=1", "OPENAI_MODEL=m", MARK],
        ),
    ] {
        let mut command = command(&dir, args);
        command.env("OTHER", "1").env("OPENAI_MODEL", "m");
        let bus = Bus::started(&dir, command);
        let seen = || std::fs::read_to_string(dir.path().join(format!("{name}.env"))).unwrap_or_default();
        dir.wait_for(|| seen().contains(MARK) && seen().contains("OPENAI_MODEL"));
        bus.stop();
        let seen = seen();
        for variable in expected {
            assert!(seen.contains(variable), "{variable} is not in {seen}");
        }
        assert_eq!(seen.contains("OTHER=1"), name == "shell", "{seen}");
    }
}
