//! A bus whose clients come over HTTP, prove who they are, and may come back.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::{Resource, Rlimit, Signal, prlimit};
use serde_json::{Value, json};

use crate::bus_support::{Bus, Peer, command, write};
use crate::serve::asks;
use crate::support::Place;
use crate::talk::Talk;

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

/// What `narrows token` does with a file of this place.
fn token(place: &Place, args: &[&str]) -> (Option<i32>, String, String) {
    let file = place.path().join("tokens.toml");
    let output =
        place.narrows(["token"].iter().chain(args)).arg("--file").arg(file).output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A bus that writes down whose sessions are, in a directory of this place.
fn start(place: &Place) -> Bus<'_> {
    start_with(place, FILE)
}

fn start_with<'a>(place: &'a Place, text: &str) -> Bus<'a> {
    let mut command = command(place, &["--config", &write(place, text)]);
    command.env("XDG_DATA_HOME", place.path().join("data"));
    Bus::started(place, command)
}

/// The head and the body of what a POST is answered with.
fn post(url: &str, token: Option<&str>, body: &Value) -> (String, String) {
    let address = url.split_once("://").and_then(|(_, rest)| rest.split('/').next()).expect("an address");
    let mut stream = TcpStream::connect(address).expect("it listens");
    let proof = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let body = body.to_string();
    let head = format!(
        "POST /acp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n{proof}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("UTF-8");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1, "clientCapabilities": {}}})
}

#[test]
fn a_token_is_written_to_a_file_of_its_own_and_made_once() {
    let place = Place::new();
    let out = place.path().join("new/dir/laptop.token");
    let path = out.to_str().expect("UTF-8");
    let (code, said, told) = token(&place, &["new", "laptop", "--out", path]);
    assert_eq!((code, said.as_str(), told), (Some(0), "", format!("the token of laptop is in {path}\n")));
    let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&place.path().join("new")), mode(&place.path().join("new/dir"))), (0o700, 0o700));
    assert_eq!(out.metadata().expect("it is there").permissions().mode() & 0o777, 0o600);
    let secret = std::fs::read_to_string(&out).expect("a token");
    assert!(secret.starts_with("nrw_") && secret.ends_with('\n'), "{secret}");
    // Nothing is written over, and then nothing is made.
    let (code, _, told) = token(&place, &["new", "desk", "--out", path]);
    assert!(code == Some(2) && told.contains("no token was made; name another file"), "{told}");
    assert_eq!(std::fs::read_to_string(&out).expect("a token"), secret);
    assert!(!token(&place, &["list"]).1.contains("desk"));
    // A name has one, and one that was not made leaves no file.
    let other = place.path().join("other.token");
    let (code, said, told) = token(&place, &["new", "laptop", "--out", other.to_str().expect("UTF-8")]);
    assert_eq!((code, said.as_str()), (Some(2), ""));
    assert!(
        told.contains(
            "error: there is a token of the name \"laptop\" already\nhint: it still holds, and none was made"
        ),
        "{told}"
    );
    assert!(told.contains("`narrows token revoke laptop --file "), "{told}");
    assert!(!other.exists());
    // What cannot be written lets nobody in.
    let (code, _, told) = token(&place, &["new", "full", "--out", "tokens.toml/full.token"]);
    assert!(code == Some(2) && told.contains("no token was made"), "{told}");
    assert!(!token(&place, &["list"]).1.contains("full"));
}

#[test]
fn what_becomes_of_tokens_is_told() {
    let place = Place::new();
    let object = |args: &[&str]| serde_json::from_str::<Value>(&token(&place, args).1).expect("JSON");
    let made = object(&["new", "laptop", "--scope", "kind:read", "--json"]);
    assert!(made["token"].as_str().is_some_and(|token| token.starts_with("nrw_")), "{made}");
    assert_eq!((&made["name"], &made["scopes"]), (&json!("laptop"), &json!(["kind:read"])));
    let out = place.path().join("desk.token").display().to_string();
    assert_eq!(
        object(&["new", "desk", "--out", &out, "--json"]),
        json!({"name": "desk", "scopes": null, "pools": null, "out": out})
    );
    let (code, _, told) = token(&place, &["new", "other", "--scope", "foo bar"]);
    assert!(
        code == Some(2) && told.starts_with("error: `foo bar` names no tool; write the name of a tool"),
        "{told}"
    );
    let list = token(&place, &["list"]).1;
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((&rows[0][..], rows.len()), (&["NAME", "SCOPES", "POOLS", "CREATED"][..], 3), "{list}");
    assert!(rows[1][3].starts_with("20") && rows[1][3].ends_with('Z'), "{list}");
    assert_eq!(object(&["list", "--json"])[0]["created"], rows[1][3]);
    let gone = |name: &str| token(&place, &["revoke", name]).2;
    assert_eq!(gone("desk"), "the token of desk is revoked: whoever has it is let in no more\n");
    assert!(gone("laptop").contains("; none is left in "));
}

#[test]
fn who_is_driven_by_a_token_that_is_revoked_is_told_so() {
    let (place, away) = (Place::new(), Place::new());
    let secret = token(&place, &["new", "laptop"]).1;
    let bus = start_with(&place, &FILE.replace("\"echo\"", "\"slow\""));
    bus.wait_for_workers(1);
    let file = away.file("laptop.token", &secret);
    let url = bus.at[0].replace("http://", "ws://");
    let run = ["run", "--agent", &url, "--token-file", file.to_str().expect("UTF-8"), "Go"];
    let running = away.start(away.narrows(run));
    bus.wait_for(|state| state["sessions"] == 1);
    assert_eq!(token(&place, &["revoke", "laptop"]).0, Some(0));
    let told = running.told();
    assert!(
        told.contains(&format!(
            "error: the connection to {url} is lost\n  because: the server no longer takes our token (401)\n"
        )),
        "{told}"
    );
    assert!(
        told.contains("hint: it was revoked, or has run out") && told.ends_with("--- exit 1 ---\n"),
        "{told}"
    );
    bus.stop();
}

#[test]
fn an_editor_whose_token_is_revoked_loses_a_connection_that_it_had() {
    for scheme in ["ws://", "http://"] {
        let (place, away) = (Place::new(), Place::new());
        let secret = token(&place, &["new", "laptop"]).1;
        let bus = start(&place);
        let file = away.file("laptop.token", &secret);
        let url = bus.at[0].replace("http://", scheme);
        let connect = ["connect", &url, "--token-file", file.to_str().expect("UTF-8")];
        let talk = Talk::initialized(&away, away.narrows(connect));
        assert_eq!(token(&place, &["revoke", "laptop"]).0, Some(0));
        let ended = talk.wait();
        assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains("the server no longer takes our token (401)"), "{}", ended.stderr);
        bus.stop();
    }
}

#[test]
fn a_token_that_a_variable_names_is_shown_and_no_path_is_the_usual_one() {
    let (place, away) = (Place::new(), Place::new());
    away.file("laptop.token", &token(&place, &["new", "laptop"]).1);
    let bus = start(&place);
    let bare = bus.at[0].strip_suffix("/acp").expect("the usual path");
    for url in [bare.to_owned(), bare.replace("http://", "ws://")] {
        let run = || away.narrows(["run", "--agent", &url, "hello there"]);
        let mut shown = run();
        shown.env("NARROWS_TOKEN_FILE", "laptop.token");
        let told = away.told_of(shown);
        assert!(told.contains("hello there") && told.contains("--- exit 0 ---"), "{told}");
        let told = away.told_of(run());
        assert!(told.contains("wants to see a token") && told.contains("--- exit 5 ---"), "{told}");
        let mut missing = run();
        missing.env("NARROWS_TOKEN_FILE", "none");
        let told = away.told_of(missing);
        assert!(told.contains("error: NARROWS_TOKEN_FILE: \"none\" cannot be read"), "{told}");
    }
    bus.stop();
}

#[test]
fn whoever_has_a_token_is_let_in_until_it_is_revoked() {
    let place = Place::new();
    let secret = token(&place, &["new", "laptop"]).1.trim().to_owned();
    let bus = start(&place);
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
    assert_eq!(token(&place, &["revoke", "laptop"]).0, Some(0));
    bus.wait_for(|state| state["clients"] == 0);
    let (head, _) = post(&bus.at[0], Some(&secret), &initialize());
    assert!(head.starts_with("HTTP/1.1 401"), "{head}");
    let said = bus.stop();
    assert!(!said.contains(&secret), "{said}");
}

#[test]
fn what_the_doors_refuse_is_told_by_why() {
    let place = Place::new();
    token(&place, &["new", "laptop"]);
    let bus = start(&place);
    for wrong in [None, Some("nrw_wrong")] {
        post(&bus.at[0], wrong, &initialize());
    }
    let page = [("origin", "https://evil.example")];
    assert_eq!(Peer::web(&bus.at[0], &page).err(), Some(403));
    let state = bus.state();
    assert_eq!(state["network_refused"]["token"], 2, "{state}");
    assert_eq!(state["network_refused"]["host"], 0, "{state}");
    let table = bus.status(&[]);
    assert!(table.contains("refused by the doors of the network: 1 origin, 2 token\n"), "{table}");
    let figures = bus.page("/metrics");
    assert!(figures.contains("narrows_bus_network_refused_total{reason=\"origin\"} 1"), "{figures}");
    bus.stop();
}

#[test]
fn a_bus_outlives_files_that_may_not_grow() {
    let place = Place::new();
    let secret = token(&place, &["new", "laptop"]).1.trim().to_owned();
    let bus = start(&place);
    let limit = Rlimit { current: Some(0), maximum: None };
    prlimit(Some(bus.pid()), Resource::Fsize, limit).expect("it is ours");
    let proof = format!("Bearer {secret}");
    let mut peer = Peer::web(&bus.at[0], &[("authorization", &*proof)]).expect("let in");
    // Its owner cannot be written down, which costs the session at most.
    peer.session(&place);
    assert_eq!(bus.state()["sessions"], 1);
    bus.signal(Signal::TERM);
    assert_eq!(bus.wait().code, Some(0));
}

#[test]
fn what_one_may_have_counts_over_all_listeners() {
    let place = Place::new();
    let secret = token(&place, &["new", "laptop"]).1.trim().to_owned();
    let second = "[[listen]]\nurl = \"ws://127.0.0.1:0/acp\"\nauth = \"token\"\ntokens = \"tokens.toml\"\n";
    let text = format!("{FILE}\n{second}\n[limits]\nmax_connections_per_identity = 1\n");
    let bus = start_with(&place, &text);
    let known = format!("Bearer {secret}");
    let proof = [("authorization", &*known)];
    let mut first = Peer::web(&bus.at[0], &proof).expect("let in");
    first.session(&place);
    assert_eq!(Peer::web(&bus.at[2], &proof).err(), Some(429));
    drop(first);
    let again = RefCell::new(None);
    place.wait_for(|| {
        *again.borrow_mut() = Peer::web(&bus.at[2], &proof).ok();
        again.borrow().is_some()
    });
    let mut again = again.into_inner().expect("let in");
    again.session(&place);
    let state = bus.state();
    assert_eq!(state["listeners"], json!([0, 0, 1]), "{state}");
    bus.stop();
}

#[test]
fn a_client_of_a_port_that_says_so_can_come_back() {
    let place = Place::new();
    token(&place, &["new", "laptop"]);
    let bus = start(&place);
    bus.wait_for_workers(1);
    let marked = json!({"protocolVersion": 1, "clientCapabilities": {}, "_meta": {"narrows": {"resume": 1}}});
    let mut first = bus.client_at(1);
    let answer = first.ask(&json!(0), "initialize", &marked);
    let connection = &answer["result"]["_meta"]["narrows"]["resume"]["connection"];
    assert!(connection.is_string(), "{answer}");
    // By the same way, with what was taken before.
    let mut second = Peer::connect(&bus.at[1]);
    let resumed = second.ask(&json!(1), "_narrows/resume", &json!({"connection": connection, "received": 1}));
    assert_eq!(resumed["result"]["received"], 1, "{resumed}");
    assert_eq!(bus.state()["network_connections"]["resumed"], 1);
    let made = second.ask(&json!(2), "session/new", &json!({"cwd": place.path(), "mcpServers": []}));
    assert!(made["result"]["sessionId"].is_string(), "{made}");
    // Everybody else is served as ever.
    bus.client_at(1).session(&place);
    bus.stop();
}

/// A bus whose agent asks for a permission in each turn.
fn asking<'a>(place: &'a Place, limits: &str) -> Bus<'a> {
    place.file("asks.toml", &asks("delete"));
    let agent = "command = [\"[NARROWS]\", \"fake-agent\", \"asks.toml\"]\nshare = \"all\"\n";
    let listen = "[[listen]]\nurl = \"ws://127.0.0.1:0/acp\"\n";
    start_with(place, &format!("{listen}[[pool]]\n{agent}{limits}"))
}

/// A client that waits for the end of a turn in which it was asked; what its connection is called, if it can be taken up again,
/// and how much it has heard.
fn asked(bus: &Bus<'_>, place: &Place, meta: &Value) -> (Peer, Value, usize) {
    let mut peer = Peer::web(&bus.at[0], &[]).expect("let in");
    let params = json!({"protocolVersion": 1, "clientCapabilities": {}, "_meta": meta});
    let answer = peer.ask(&json!(0), "initialize", &params);
    let connection = answer["result"]["_meta"]["narrows"]["resume"]["connection"].clone();
    let made = peer.ask(&json!(1), "session/new", &json!({"cwd": place.path(), "mcpServers": []}));
    let session = made["result"]["sessionId"].as_str().expect("a session").to_owned();
    peer.prompt(&json!(2), &session, "go");
    peer.hears_request("session/request_permission");
    let heard = 2 + peer.others.len();
    (peer, connection, heard)
}

#[test]
fn who_vanishes_while_it_is_asked_has_its_turn_cancelled_and_its_session_kept() {
    let place = Place::new();
    let bus = asking(&place, "");
    bus.wait_for_workers(1);
    let (peer, connection, _) = asked(&bus, &place, &json!({}));
    assert!(connection.is_null());
    drop(peer);
    bus.wait_for(|state| state["clients"] == 0 && state["pending"] == 0);
    assert_eq!(bus.state()["sessions"], 1);
    bus.stop();
}

#[test]
fn who_can_come_back_finds_what_it_was_asked_and_its_turn_goes_on() {
    let place = Place::new();
    let bus = asking(&place, "");
    bus.wait_for_workers(1);
    let (peer, connection, heard) = asked(&bus, &place, &json!({"narrows": {"resume": 1}}));
    drop(peer);
    // As if the question had been lost on the way.
    let mut again = Peer::web(&bus.at[0], &[]).expect("let in");
    let resume = json!({"connection": connection, "received": heard - 1});
    assert_eq!(again.ask(&json!("r"), "_narrows/resume", &resume)["result"]["received"], 3);
    again.hears_request("session/request_permission");
    let question = again.others.last().expect("a question").clone();
    assert_eq!(bus.state()["pending"], 1, "the turn has not noticed");
    let outcome = json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}});
    again.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": outcome}));
    let answer = again.answer(&json!(2));
    assert_eq!((&answer["result"]["stopReason"], again.said()), (&json!("end_turn"), "allowed".to_owned()));
    bus.stop();
}

#[test]
fn who_could_come_back_and_does_not_is_given_up_after_its_grace() {
    let place = Place::new();
    let bus = asking(&place, "[limits]\nreplay_time = \"1s\"\n");
    bus.wait_for_workers(1);
    let (peer, connection, heard) = asked(&bus, &place, &json!({"narrows": {"resume": 1}}));
    drop(peer);
    bus.wait_for(|state| state["clients"] == 0 && state["pending"] == 0);
    let mut late = Peer::web(&bus.at[0], &[]).expect("let in");
    let resume = json!({"connection": connection, "received": heard});
    assert_eq!(late.ask(&json!("r"), "_narrows/resume", &resume)["error"]["code"], -32002);
    let fates = json!({"broken": 1, "cursor_gap": 0, "expired": 1, "resumed": 0});
    assert_eq!(bus.state()["network_connections"], fates);
    let table = bus.status(&[]);
    assert!(table.contains("connections over the network: 1 broken, 1 expired\n"), "{table}");
    let figures = bus.page("/metrics");
    assert!(figures.contains("narrows_bus_network_connections_total{event=\"broken\"} 1\n"), "{figures}");
    bus.stop();
}

#[test]
fn two_clients_are_on_one_session() {
    let place = Place::new();
    token(&place, &["new", "laptop"]);
    let bus = start(&place);
    bus.wait_for_workers(1);
    let (mut first, mut second) = (bus.client_at(1), bus.client_at(1));
    let session = first.session(&place);
    second.ask(&json!(0), "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
    let params = json!({"sessionId": session, "cwd": place.path(), "mcpServers": []});
    let opened = second.ask(&json!(1), "session/resume", &params);
    assert_eq!(opened["result"]["_meta"]["narrows"]["replay"]["complete"], true, "{opened}");
    first.prompt(&json!(2), &session, "one two");
    first.answer(&json!(2));
    second.hears("two");
    // Now the other way round.
    second.prompt(&json!(2), &session, "three four");
    second.answer(&json!(2));
    first.hears("four");
    bus.stop();
}

#[test]
fn tokens_are_made_listed_and_revoked() {
    let place = Place::new();
    let (code, made, _) = token(&place, &["new", "laptop"]);
    assert_eq!((code, made.starts_with("nrw_"), made.lines().count()), (Some(0), true, 1));
    assert_eq!(
        token(&place, &["new", "ci", "--scope", "read", "--scope", "write", "--pool", "echo"]).0,
        Some(0)
    );
    let text = std::fs::read_to_string(place.path().join("tokens.toml")).expect("it is there");
    assert!(!text.contains(made.trim()), "{text}");
    let mode = std::fs::metadata(place.path().join("tokens.toml")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (_, table, _) = token(&place, &["list"]);
    let names: Vec<&str> =
        table.lines().map(|line| line.rsplit_once(' ').expect("columns").0.trim()).collect();
    assert_eq!(names, ["NAME    SCOPES      POOLS", "laptop  everything  all", "ci      read write  echo"]);
    let (_, listed, _) = token(&place, &["list", "--json"]);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!((&listed[0]["name"], &listed[0]["scopes"]), (&json!("laptop"), &Value::Null));
    assert_eq!(listed[1]["scopes"], json!(["read", "write"]));
    for (args, words) in [
        (&["new", "laptop"][..], "there is a token of the name \"laptop\" already"),
        (&["new", "a b"], "is not a name"),
        (&["revoke", "nobody"], "there is no token of the name"),
        (&["revoke", "nobody"], "hint: `narrows token list --file /"),
    ] {
        let (code, _, said) = token(&place, args);
        assert!(code == Some(2) && said.contains(words), "{args:?}: {said}");
    }
    assert_eq!(token(&place, &["revoke", "laptop"]).0, Some(0));
    let left = token(&place, &["list"]).1;
    assert!(
        left.starts_with("NAME  SCOPES      POOLS  CREATED\nci    read write  echo   20")
            && left.lines().count() == 2,
        "{left}"
    );
}

#[test]
fn nobody_listens_to_a_network_without_a_guard() {
    let place = Place::new();
    for (settings, words) in [
        ("url = \"http://0.0.0.0:0/acp\"", "can be reached from other machines"),
        ("url = \"https://127.0.0.1:0/acp\"", "needs a certificate"),
        (
            "url = \"http://127.0.0.1:0/acp\"\nauth = \"token\"\ntokens = \"none.toml\"",
            "hint: `narrows token new NAME --file FILE` makes a file of tokens",
        ),
    ] {
        let text = format!(
            "[[listen]]\n{settings}\n[[pool]]\ncommand = [\"[NARROWS]\", \"fake-agent\", \"echo\"]\n"
        );
        let file = write(&place, &text);
        for args in [&["bus", "--config", &file][..], &["check", &file]] {
            let output = place.narrows(args).output().expect("it starts");
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert!(output.status.code() == Some(2) && said.contains(words), "{args:?}: {said}");
        }
    }
}

/// What a bus with these files and `narrows check` say of them, when neither can use them.
#[track_caller]
fn refused(place: &Place, settings: &str, words: &[&str]) {
    let pool = "[[pool]]\ncommand = [\"[NARROWS]\", \"fake-agent\", \"echo\"]\n";
    write(place, &format!("[[listen]]\n{settings}\n{pool}"));
    for args in [["bus", "--config", "bus.toml"].as_slice(), &["check", "bus.toml"]] {
        let told = place.told(place.narrows(args));
        assert!(told.ends_with("--- exit 2 ---\n"), "{args:?}: {told}");
        assert!(words.iter().all(|words| told.contains(words)), "{args:?}: {told}");
    }
}

#[test]
fn files_that_cannot_be_used_are_told_by_what_they_are() {
    let place = Place::new();
    token(&place, &["new", "laptop"]);
    let tokens = place.path().join("tokens.toml");
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o666)).expect("it is ours");
    let settings = "url = \"http://127.0.0.1:0/acp\"\nauth = \"token\"\ntokens = \"tokens.toml\"";
    refused(
        &place,
        settings,
        &["tokens.toml:", " can be written by everybody\nhint: take that right away: chmod go-w "],
    );
    let told = place.told(place.narrows(["check", "bus.toml"]));
    assert!(!told.contains("tokens.toml: "), "{told}");

    let make = "for name in one two; do openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
        -subj /CN=localhost -keyout $name.key -out $name.pem; done; \
        openssl pkcs8 -topk8 -in one.key -out locked.key -passout pass:x; \
        openssl ec -in one.key -aes128 -out old.key -passout pass:x";
    let made = std::process::Command::new("sh").args(["-euc", make]).current_dir(place.path()).output();
    if !made.is_ok_and(|made| made.status.success()) {
        println!("skipped: there is no openssl");
        return;
    }
    let of = |cert: &str, key: &str| {
        format!("url = \"wss://127.0.0.1:0/acp\"\ntls = {{ cert = \"{cert}\", key = \"{key}\" }}")
    };
    let strangers = [" is not that of the certificate ", "hint: the key must be the one"];
    refused(&place, &of("one.pem", "two.key"), &strangers);
    let told = place.told(place.narrows(["check", "bus.toml"]));
    assert!(told.contains("error: bus.toml:3:33: "), "where it is named: {told}");
    for key in ["locked.key", "old.key"] {
        let words = ["a private key with a password cannot be used\n", "openssl pkey -in "];
        refused(&place, &of("one.pem", key), &words);
    }
    refused(
        &place,
        &of("one.pem", "one.pem"),
        &["there is no private key in it\n", "hint: `key` is the private key"],
    );
    refused(&place, &of("one.key", "one.key"), &["there is no certificate in it\n", "both in PEM form"]);
}
