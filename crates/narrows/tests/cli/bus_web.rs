//! A bus with HTTP listeners, authentication and resumable connections.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::{Resource, Rlimit, Signal, prlimit};
use serde_json::{Value, json};

use crate::bus_support::{Bus, Peer, command, write};
use crate::serve::asks;
use crate::stdio_client::StdioClient;
use crate::test_dir::TestDir;

const FILE: &str = r#"
[[listen]]
url = "http://127.0.0.1:0/acp"
auth = "token"
tokens = "tokens.toml"

[[listen]]
url = "tcp://127.0.0.1:0"

[[pool]]
command = ["[NARROWS]", "fake-agent", "echo"]
share = "all"
mix_identities = true
"#;

/// Runs `narrows token` with a file in this directory.
fn token(dir: &TestDir, args: &[&str]) -> (Option<i32>, String, String) {
    let file = dir.path().join("tokens.toml");
    let output = dir
        .narrows(["token"].iter().chain(args))
        .arg("--file")
        .arg(file)
        .output()
        .expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Starts a bus that stores session owners in this directory.
fn start(dir: &TestDir) -> Bus<'_> {
    start_with(dir, FILE)
}

fn start_with<'a>(dir: &'a TestDir, text: &str) -> Bus<'a> {
    let mut command = command(dir, &["--config", &write(dir, text)]);
    command.env("XDG_DATA_HOME", dir.path().join("data"));
    Bus::started(dir, command)
}

/// Sends a POST and returns head and body of the response.
fn post(url: &str, token: Option<&str>, body: &Value) -> (String, String) {
    let address = url.split_once("://").and_then(|(_, rest)| rest.split('/').next()).expect("an address");
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let proof = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let body = body.to_string();
    let head = format!(
        "POST /acp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n{proof}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).expect("the peer reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("UTF-8");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1, "clientCapabilities": {}}})
}

#[test]
fn a_token_is_created_once_in_its_own_file() {
    let dir = TestDir::new();
    let out = dir.path().join("new/dir/laptop.token");
    let path = out.to_str().expect("UTF-8");
    let (code, said, told) = token(&dir, &["new", "laptop", "--out", path]);
    assert_eq!((code, said.as_str(), told), (Some(0), "", format!("token of laptop written to {path}\n")));
    let mode = |path: &Path| path.metadata().expect("the file exists").permissions().mode() & 0o777;
    assert_eq!((mode(&dir.path().join("new")), mode(&dir.path().join("new/dir"))), (0o700, 0o700));
    assert_eq!(out.metadata().expect("the file exists").permissions().mode() & 0o777, 0o600);
    let secret = std::fs::read_to_string(&out).expect("a token");
    assert!(secret.starts_with("nrw_") && secret.ends_with('\n'), "{secret}");
    // An existing file is not overwritten, and then no token is created.
    let (code, _, told) = token(&dir, &["new", "desk", "--out", path]);
    assert!(
        code == Some(2) && told.contains("existing files are never overwritten, and no token was created"),
        "{told}"
    );
    assert_eq!(std::fs::read_to_string(&out).expect("a token"), secret);
    assert!(!token(&dir, &["list"]).1.contains("desk"));
    // A name has one token, and a failed command leaves no file.
    let other = dir.path().join("other.token");
    let (code, said, told) = token(&dir, &["new", "laptop", "--out", other.to_str().expect("UTF-8")]);
    assert_eq!((code, said.as_str()), (Some(2), ""));
    assert!(
        told.contains(
            "error: token \"laptop\" already exists\nhint: the existing token stays valid, and no new one was created"
        ),
        "{told}"
    );
    assert!(told.contains("`narrows token revoke laptop --file "), "{told}");
    assert!(!other.exists());
    // A token that could not be written to its file is not accepted.
    let (code, _, told) = token(&dir, &["new", "full", "--out", "tokens.toml/full.token"]);
    assert!(code == Some(2) && told.contains("no token was created"), "{told}");
    assert!(!token(&dir, &["list"]).1.contains("full"));
}

#[test]
fn changes_of_tokens_are_reported() {
    let dir = TestDir::new();
    let object = |args: &[&str]| serde_json::from_str::<Value>(&token(&dir, args).1).expect("JSON");
    let made = object(&["new", "laptop", "--scope", "kind:read", "--json"]);
    assert!(made["token"].as_str().is_some_and(|token| token.starts_with("nrw_")), "{made}");
    assert_eq!((&made["name"], &made["scopes"]), (&json!("laptop"), &json!(["kind:read"])));
    let out = dir.path().join("desk.token").display().to_string();
    assert_eq!(
        object(&["new", "desk", "--out", &out, "--json"]),
        json!({"name": "desk", "scopes": null, "pools": null, "out": out})
    );
    let (code, _, told) = token(&dir, &["new", "other", "--scope", "foo bar"]);
    assert!(
        code == Some(2) && told.starts_with("error: `foo bar` names no tool; write the name of a tool"),
        "{told}"
    );
    let list = token(&dir, &["list"]).1;
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((&rows[0][..], rows.len()), (&["NAME", "SCOPES", "POOLS", "CREATED"][..], 3), "{list}");
    assert!(rows[1][3].starts_with("20") && rows[1][3].ends_with('Z'), "{list}");
    assert_eq!(object(&["list", "--json"])[0]["created"], rows[1][3]);
    let gone = |name: &str| token(&dir, &["revoke", name]).2;
    assert_eq!(gone("desk"), "token of desk revoked; its connections are closed within seconds\n");
    assert!(gone("laptop").contains("; no tokens left in "));
}

#[test]
fn a_client_with_a_revoked_token_gets_the_reason() {
    let (dir, away) = (TestDir::new(), TestDir::new());
    let secret = token(&dir, &["new", "laptop"]).1;
    let bus = start_with(&dir, &FILE.replace("\"echo\"", "\"slow\""));
    bus.wait_for_workers(1);
    let file = away.file("laptop.token", &secret);
    let url = bus.at[0].replace("http://", "ws://");
    let run = ["run", "--agent", &url, "--token-file", file.to_str().expect("UTF-8"), "Go"];
    let running = away.start(away.narrows(run));
    bus.wait_for(|state| state["sessions"] == 1);
    assert_eq!(token(&dir, &["revoke", "laptop"]).0, Some(0));
    let told = running.finish();
    assert!(
        told.contains(&format!(
            "error: connection to {url} lost\n  because: the server no longer accepts the token (401)\n"
        )),
        "{told}"
    );
    assert!(
        told.contains("hint: create a new token on the server") && told.ends_with("--- exit 1 ---\n"),
        "{told}"
    );
    bus.stop();
}

#[test]
fn a_revoked_token_disconnects_an_editor() {
    for scheme in ["ws://", "http://"] {
        let (dir, away) = (TestDir::new(), TestDir::new());
        let secret = token(&dir, &["new", "laptop"]).1;
        let bus = start(&dir);
        let file = away.file("laptop.token", &secret);
        let url = bus.at[0].replace("http://", scheme);
        let connect = ["connect", &url, "--token-file", file.to_str().expect("UTF-8")];
        let stdio = StdioClient::initialized(&away, away.narrows(connect));
        assert_eq!(token(&dir, &["revoke", "laptop"]).0, Some(0));
        let ended = stdio.wait();
        assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains("the server no longer accepts the token (401)"), "{}", ended.stderr);
        bus.stop();
    }
}

#[test]
fn a_token_file_from_a_variable_is_used_with_the_default_path() {
    let (dir, away) = (TestDir::new(), TestDir::new());
    away.file("laptop.token", &token(&dir, &["new", "laptop"]).1);
    let bus = start(&dir);
    let bare = bus.at[0].strip_suffix("/acp").expect("the usual path");
    for url in [bare.to_owned(), bare.replace("http://", "ws://")] {
        let run = || away.narrows(["run", "--agent", &url, "hello there"]);
        let mut shown = run();
        shown.env("NARROWS_TOKEN_FILE", "laptop.token");
        let told = away.output_beside_others(shown);
        assert!(told.contains("hello there") && told.contains("--- exit 0 ---"), "{told}");
        let told = away.output_beside_others(run());
        assert!(told.contains("requires a token") && told.contains("--- exit 5 ---"), "{told}");
        let mut missing = run();
        missing.env("NARROWS_TOKEN_FILE", "none");
        let told = away.output_beside_others(missing);
        assert!(told.contains("error: NARROWS_TOKEN_FILE: cannot read \"none\""), "{told}");
    }
    bus.stop();
}

#[test]
fn a_token_admits_a_client_until_it_is_revoked() {
    let dir = TestDir::new();
    let secret = token(&dir, &["new", "laptop"]).1.trim().to_owned();
    let bus = start(&dir);
    bus.wait_for_workers(1);
    for wrong in [None, Some("nrw_wrong"), Some("laptop")] {
        let (head, _) = post(&bus.at[0], wrong, &initialize());
        assert!(head.starts_with("HTTP/1.1 401"), "{head}");
    }
    assert_eq!(bus.state()["clients"], 0);
    let (head, body) = post(&bus.at[0], Some(&secret), &initialize());
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.to_ascii_lowercase().contains("acp-connection-id"), "{head}");
    assert!(body.contains("\"protocolVersion\":1"), "{body}");
    let state = bus.state();
    assert_eq!(state["identities"]["token:laptop"]["clients"], 1, "{state}");
    assert_eq!(state["listeners"], json!([1, 0]), "{state}");
    let table = bus.status(&[]);
    assert!(table.contains("token:laptop  1"), "{table}");
    assert!(bus.page("/metrics").contains("narrows_bus_identity_clients{identity=\"token:laptop\"} 1"));
    assert_eq!(token(&dir, &["revoke", "laptop"]).0, Some(0));
    bus.wait_for(|state| state["clients"] == 0);
    let (head, _) = post(&bus.at[0], Some(&secret), &initialize());
    assert!(head.starts_with("HTTP/1.1 401"), "{head}");
    let said = bus.stop();
    assert!(!said.contains(&secret), "{said}");
}

#[test]
fn refused_connections_are_counted_by_reason() {
    let dir = TestDir::new();
    token(&dir, &["new", "laptop"]);
    let bus = start(&dir);
    for wrong in [None, Some("nrw_wrong")] {
        post(&bus.at[0], wrong, &initialize());
    }
    let page = [("origin", "https://evil.example")];
    assert_eq!(Peer::web(&bus.at[0], &page).err(), Some(403));
    let state = bus.state();
    assert_eq!(state["network_refused"]["token"], 2, "{state}");
    assert_eq!(state["network_refused"]["host"], 0, "{state}");
    let table = bus.status(&[]);
    assert!(table.contains("network requests refused: 1 origin, 2 token\n"), "{table}");
    let figures = bus.page("/metrics");
    assert!(figures.contains("narrows_bus_network_refused_total{reason=\"origin\"} 1"), "{figures}");
    bus.stop();
}

#[test]
fn a_bus_survives_a_file_size_limit() {
    let dir = TestDir::new();
    let secret = token(&dir, &["new", "laptop"]).1.trim().to_owned();
    let bus = start(&dir);
    let limit = Rlimit { current: Some(0), maximum: None };
    prlimit(Some(bus.pid()), Resource::Fsize, limit).expect("an own process");
    let proof = format!("Bearer {secret}");
    let mut peer = Peer::web(&bus.at[0], &[("authorization", &*proof)]).expect("the connection is accepted");
    // The owner cannot be stored. At most the session may fail then.
    peer.session(&dir);
    assert_eq!(bus.state()["sessions"], 1);
    bus.signal(Signal::TERM);
    assert_eq!(bus.wait().code, Some(0));
}

#[test]
fn identity_limits_apply_across_listeners() {
    let dir = TestDir::new();
    let secret = token(&dir, &["new", "laptop"]).1.trim().to_owned();
    let second = "[[listen]]\nurl = \"ws://127.0.0.1:0/acp\"\nauth = \"token\"\ntokens = \"tokens.toml\"\n";
    let text = format!("{FILE}\n{second}\n[limits]\nmax_connections_per_identity = 1\n");
    let bus = start_with(&dir, &text);
    let known = format!("Bearer {secret}");
    let proof = [("authorization", &*known)];
    let mut first = Peer::web(&bus.at[0], &proof).expect("the connection is accepted");
    first.session(&dir);
    assert_eq!(Peer::web(&bus.at[2], &proof).err(), Some(429));
    drop(first);
    let again = RefCell::new(None);
    dir.wait_for(|| {
        *again.borrow_mut() = Peer::web(&bus.at[2], &proof).ok();
        again.borrow().is_some()
    });
    let mut again = again.into_inner().expect("the connection is accepted");
    again.session(&dir);
    let state = bus.state();
    assert_eq!(state["listeners"], json!([0, 0, 1]), "{state}");
    bus.stop();
}

#[test]
fn a_client_of_a_resumable_port_can_reconnect() {
    let dir = TestDir::new();
    token(&dir, &["new", "laptop"]);
    let bus = start(&dir);
    bus.wait_for_workers(1);
    let marked = json!({"protocolVersion": 1, "clientCapabilities": {}, "_meta": {"narrows": {"resume": 1}}});
    let mut first = bus.client_at(1);
    let answer = first.call(&json!(0), "initialize", &marked);
    let connection = &answer["result"]["_meta"]["narrows"]["resume"]["connection"];
    assert!(connection.is_string(), "{answer}");
    // The resumed connection sends the data again.
    let mut second = Peer::connect(&bus.at[1]);
    let resumed =
        second.call(&json!(1), "_narrows/resume", &json!({"connection": connection, "received": 1}));
    assert_eq!(resumed["result"]["received"], 1, "{resumed}");
    assert_eq!(bus.state()["network_connections"]["resumed"], 1);
    let made = second.call(&json!(2), "session/new", &json!({"cwd": dir.path(), "mcpServers": []}));
    assert!(made["result"]["sessionId"].is_string(), "{made}");
    // All other clients are served as before.
    bus.client_at(1).session(&dir);
    bus.stop();
}

/// Starts a bus whose agent asks for permission in each turn.
fn asking<'a>(dir: &'a TestDir, limits: &str) -> Bus<'a> {
    dir.file("asks.toml", &asks("delete"));
    let agent = "command = [\"[NARROWS]\", \"fake-agent\", \"asks.toml\"]\nshare = \"all\"\n";
    let listen = "[[listen]]\nurl = \"ws://127.0.0.1:0/acp\"\n";
    start_with(dir, &format!("{listen}[[pool]]\n{agent}{limits}"))
}

/// Returns a client that waits for the end of a turn with a permission request, the id of its resumable connection,
/// and the number of messages it received.
fn client_with_request(bus: &Bus<'_>, dir: &TestDir, meta: &Value) -> (Peer, Value, usize) {
    let mut peer = Peer::web(&bus.at[0], &[]).expect("the connection is accepted");
    let params = json!({"protocolVersion": 1, "clientCapabilities": {}, "_meta": meta});
    let answer = peer.call(&json!(0), "initialize", &params);
    let connection = answer["result"]["_meta"]["narrows"]["resume"]["connection"].clone();
    let made = peer.call(&json!(1), "session/new", &json!({"cwd": dir.path(), "mcpServers": []}));
    let session = made["result"]["sessionId"].as_str().expect("a session").to_owned();
    peer.prompt(&json!(2), &session, "go");
    peer.expect_request("session/request_permission");
    let heard = 2 + peer.others.len();
    (peer, connection, heard)
}

#[test]
fn a_client_lost_during_a_request_has_its_turn_cancelled_and_its_session_kept() {
    let dir = TestDir::new();
    let bus = asking(&dir, "");
    bus.wait_for_workers(1);
    let (peer, connection, _) = client_with_request(&bus, &dir, &json!({}));
    assert!(connection.is_null());
    drop(peer);
    bus.wait_for(|state| state["clients"] == 0 && state["pending"] == 0);
    assert_eq!(bus.state()["sessions"], 1);
    bus.stop();
}

#[test]
fn a_resumable_client_gets_the_request_again_and_its_turn_continues() {
    let dir = TestDir::new();
    let bus = asking(&dir, "");
    bus.wait_for_workers(1);
    let (peer, connection, heard) = client_with_request(&bus, &dir, &json!({"narrows": {"resume": 1}}));
    drop(peer);
    // As if the request of the agent had been lost on the way.
    let mut again = Peer::web(&bus.at[0], &[]).expect("the connection is accepted");
    let resume = json!({"connection": connection, "received": heard - 1});
    assert_eq!(again.call(&json!("r"), "_narrows/resume", &resume)["result"]["received"], 3);
    again.expect_request("session/request_permission");
    let question = again.others.last().expect("a question").clone();
    assert_eq!(bus.state()["pending"], 1, "the turn continues");
    let outcome = json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}});
    again.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": outcome}));
    let answer = again.answer(&json!(2));
    assert_eq!(
        (&answer["result"]["stopReason"], again.agent_text()),
        (&json!("end_turn"), "allowed".to_owned())
    );
    bus.stop();
}

#[test]
fn a_resumable_client_is_closed_after_its_grace_period() {
    let dir = TestDir::new();
    let bus = asking(&dir, "[limits]\nreplay_time = \"1s\"\n");
    bus.wait_for_workers(1);
    let (peer, connection, heard) = client_with_request(&bus, &dir, &json!({"narrows": {"resume": 1}}));
    drop(peer);
    bus.wait_for(|state| state["clients"] == 0 && state["pending"] == 0);
    let mut late = Peer::web(&bus.at[0], &[]).expect("the connection is accepted");
    let resume = json!({"connection": connection, "received": heard});
    assert_eq!(late.call(&json!("r"), "_narrows/resume", &resume)["error"]["code"], -32002);
    let fates = json!({"broken": 1, "cursor_gap": 0, "expired": 1, "resumed": 0});
    assert_eq!(bus.state()["network_connections"], fates);
    let table = bus.status(&[]);
    assert!(table.contains("network disconnects: 1 broken, 1 expired\n"), "{table}");
    let figures = bus.page("/metrics");
    assert!(figures.contains("narrows_bus_network_connections_total{event=\"broken\"} 1\n"), "{figures}");
    bus.stop();
}

#[test]
fn two_clients_share_one_session() {
    let dir = TestDir::new();
    token(&dir, &["new", "laptop"]);
    let bus = start(&dir);
    bus.wait_for_workers(1);
    let (mut first, mut second) = (bus.client_at(1), bus.client_at(1));
    let session = first.session(&dir);
    second.call(&json!(0), "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
    let params = json!({"sessionId": session, "cwd": dir.path(), "mcpServers": []});
    let opened = second.call(&json!(1), "session/resume", &params);
    assert_eq!(opened["result"]["_meta"]["narrows"]["replay"]["complete"], true, "{opened}");
    first.prompt(&json!(2), &session, "one two");
    first.answer(&json!(2));
    second.expect_text("two");
    // Then with the roles reversed.
    second.prompt(&json!(2), &session, "three four");
    second.answer(&json!(2));
    first.expect_text("four");
    bus.stop();
}

#[test]
fn tokens_are_created_listed_and_revoked() {
    let dir = TestDir::new();
    let (code, made, _) = token(&dir, &["new", "laptop"]);
    assert_eq!((code, made.starts_with("nrw_"), made.lines().count()), (Some(0), true, 1));
    assert_eq!(
        token(&dir, &["new", "ci", "--scope", "read", "--scope", "write", "--pool", "echo"]).0,
        Some(0)
    );
    let text = std::fs::read_to_string(dir.path().join("tokens.toml")).expect("the file exists");
    assert!(!text.contains(made.trim()), "{text}");
    let mode =
        std::fs::metadata(dir.path().join("tokens.toml")).expect("the file exists").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (_, table, _) = token(&dir, &["list"]);
    let names: Vec<&str> =
        table.lines().map(|line| line.rsplit_once(' ').expect("columns").0.trim()).collect();
    assert_eq!(names, ["NAME    SCOPES      POOLS", "laptop  everything  all", "ci      read write  echo"]);
    let (_, listed, _) = token(&dir, &["list", "--json"]);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!((&listed[0]["name"], &listed[0]["scopes"]), (&json!("laptop"), &Value::Null));
    assert_eq!(listed[1]["scopes"], json!(["read", "write"]));
    for (args, words) in [
        (&["new", "laptop"][..], "token \"laptop\" already exists"),
        (&["new", "a b"], "invalid token name"),
        (&["revoke", "nobody"], "does not exist"),
        (&["revoke", "nobody"], "hint: list the tokens: `narrows token list --file /"),
    ] {
        let (code, _, said) = token(&dir, args);
        assert!(code == Some(2) && said.contains(words), "{args:?}: {said}");
    }
    assert_eq!(token(&dir, &["revoke", "laptop"]).0, Some(0));
    let left = token(&dir, &["list"]).1;
    assert!(
        left.starts_with("NAME  SCOPES      POOLS  CREATED\nci    read write  echo   20")
            && left.lines().count() == 2,
        "{left}"
    );
}

#[test]
fn a_network_listener_needs_authentication() {
    let dir = TestDir::new();
    for (settings, words) in [
        ("url = \"http://0.0.0.0:0/acp\"", "can be reached from other machines"),
        ("url = \"https://127.0.0.1:0/acp\"", "needs a certificate"),
        (
            "url = \"http://127.0.0.1:0/acp\"\nauth = \"token\"\ntokens = \"none.toml\"",
            "hint: `narrows token new NAME --file FILE` creates a token file",
        ),
    ] {
        let text = format!(
            "[[listen]]\n{settings}\n[[pool]]\ncommand = [\"[NARROWS]\", \"fake-agent\", \"echo\"]\n"
        );
        let file = write(&dir, &text);
        for args in [&["bus", "--config", &file][..], &["check", &file]] {
            let output = dir.narrows(args).output().expect("the program starts");
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert!(output.status.code() == Some(2) && said.contains(words), "{args:?}: {said}");
        }
    }
}

/// Checks the errors of a bus and of `narrows check` about the same invalid files.
#[track_caller]
fn refused(dir: &TestDir, settings: &str, words: &[&str]) {
    let pool = "[[pool]]\ncommand = [\"[NARROWS]\", \"fake-agent\", \"echo\"]\n";
    write(dir, &format!("[[listen]]\n{settings}\n{pool}"));
    for args in [["bus", "--config", "bus.toml"].as_slice(), &["check", "bus.toml"]] {
        let told = dir.output_of(dir.narrows(args));
        assert!(told.ends_with("--- exit 2 ---\n"), "{args:?}: {told}");
        assert!(words.iter().all(|words| told.contains(words)), "{args:?}: {told}");
    }
}

#[test]
fn unusable_files_are_reported_by_kind() {
    let dir = TestDir::new();
    token(&dir, &["new", "laptop"]);
    let tokens = dir.path().join("tokens.toml");
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o666)).expect("it is ours");
    let settings = "url = \"http://127.0.0.1:0/acp\"\nauth = \"token\"\ntokens = \"tokens.toml\"";
    refused(
        &dir,
        settings,
        &["tokens.toml:", " writable by every user\nhint: remove the permission: chmod go-w "],
    );
    let told = dir.output_of(dir.narrows(["check", "bus.toml"]));
    assert!(!told.contains("tokens.toml: "), "{told}");

    let make = "for name in one two; do openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
        -subj /CN=localhost -keyout $name.key -out $name.pem; done; \
        openssl pkcs8 -topk8 -in one.key -out locked.key -passout pass:x; \
        openssl ec -in one.key -aes128 -out old.key -passout pass:x";
    let made = std::process::Command::new("sh").args(["-euc", make]).current_dir(dir.path()).output();
    if !made.is_ok_and(|made| made.status.success()) {
        println!("skipped: there is no openssl");
        return;
    }
    let of = |cert: &str, key: &str| {
        format!("url = \"wss://127.0.0.1:0/acp\"\ntls = {{ cert = \"{cert}\", key = \"{key}\" }}")
    };
    let strangers = [" does not match certificate ", "hint: use the private key of the certificate"];
    refused(&dir, &of("one.pem", "two.key"), &strangers);
    let told = dir.output_of(dir.narrows(["check", "bus.toml"]));
    assert!(told.contains("error: bus.toml:3:33: "), "where it is named: {told}");
    for key in ["locked.key", "old.key"] {
        let words = ["encrypted private keys are not supported\n", "openssl pkey -in "];
        refused(&dir, &of("one.pem", key), &words);
    }
    refused(
        &dir,
        &of("one.pem", "one.pem"),
        &["contains no private key\n", "hint: use the private key of the certificate in `cert`"],
    );
    refused(&dir, &of("one.key", "one.key"), &["contains no certificate\n", "both in PEM form"]);
}
