//! A governed pool: workers behind a gate, to which the bus identifies the client.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::bus_support::{Bus, Peer, command, write};
use crate::serve::asks;
use crate::serve_support::{Governed, READ, acp};

/// Starts a bus with a unix socket, a port and a pool of this manifest.
fn bus<'a>(governed: &'a Governed, more: &str) -> Bus<'a> {
    let text = format!(
        "[[listen]]\nurl = \"unix:bus.sock\"\n[[listen]]\nurl = \"tcp://127.0.0.1:0\"\n[[pool]]\nname = \"tidy\"\n\
         manifest = \"ws/ACP.md\"\npass_env = [\"[MARK]\", \"NARROWS_*\", \"OPENAI_*\"]\n{more}"
    );
    let file = write(&governed.dir, &text);
    let mut command = command(&governed.dir, &["--config", &file]);
    command.env("NARROWS_DATA_DIR", governed.dir.path().join("data"));
    command.env("XDG_DATA_HOME", governed.dir.path().join("share"));
    command.env("OPENAI_BASE_URL", "builtin:demo").env("OPENAI_MODEL", "m");
    Bus::started(&governed.dir, command)
}

fn initialize(peer: &mut Peer) -> Value {
    let meta = json!({"narrows/identity": {"identity": "uid:0"}, "aip44": {"identity": "user:eve"}});
    let params = json!({"protocolVersion": 1, "clientCapabilities": {}, "_meta": meta});
    peer.send(&json!({"jsonrpc": "2.0", "method": "narrows/identity", "params": {"identity": "uid:12345"}}));
    peer.call(&json!(0), "initialize", &params)
}

fn new(peer: &mut Peer, governed: &Governed) -> Value {
    let cwd = governed.root().canonicalize().expect("the file exists");
    peer.call(&json!(1), "session/new", &json!({"cwd": cwd, "mcpServers": []}))
}

fn session(peer: &mut Peer, governed: &Governed) -> String {
    let answer = initialize(peer);
    assert_eq!(answer["result"]["_meta"]["aip44"]["operator"], "tidy", "{answer}");
    let answer = new(peer, governed);
    assert!(answer["result"]["sessionId"].is_string(), "{answer}");
    answer["result"]["sessionId"].as_str().expect("a text").to_owned()
}

/// Returns the identities in the log, each once.
fn identities(governed: &Governed) -> Vec<String> {
    let entries = governed.entries();
    let all = entries.iter().filter(|entry| entry["action"] != "manifest.pinned");
    let mut names: Vec<String> = all
        .map(|entry| &entry["metadata"]["aip44"])
        .map(|about| format!("{} {}", about["identity"].as_str().unwrap_or("-"), about["identity_method"]))
        .collect();
    names.sort();
    names.dedup();
    names
}

fn own_name() -> String {
    let id = std::process::Command::new("id").arg("-un").output().expect("there is a user");
    String::from_utf8(id.stdout).expect("a name").trim().to_owned()
}

#[test]
fn a_bus_client_is_identified_to_the_gate() {
    let governed = Governed::bridge(READ);
    let bus = bus(&governed, "");
    let mut peer = bus.client_at(0);
    let name = session(&mut peer, &governed);
    peer.prompt(&json!(2), &name, "go");
    assert_eq!(peer.answer(&json!(2))["result"]["stopReason"], "end_turn");
    assert_eq!(peer.agent_text(), "done");
    let mut unauthenticated_error = bus.client_at(1);
    let answer = initialize(&mut unauthenticated_error);
    assert_eq!(answer["result"]["authMethods"].as_array().map(Vec::len), Some(1), "{answer}");
    assert_eq!(new(&mut unauthenticated_error, &governed)["error"]["code"], -32000);
    let state = bus.state();
    assert!(
        state["pools"][0]["manifest"].as_str().is_some_and(|path| path.ends_with("ws/ACP.md")),
        "{state}"
    );
    assert!(bus.status(&[]).contains("pool tidy: governed by "));
    bus.stop();
    let actions = governed.actions();
    assert!(
        actions.contains(&"tool.call".to_owned()) && actions.contains(&"client.refused".to_owned()),
        "{actions:?}"
    );
    let expected = ["tcp:loopback \"none\"".to_owned(), format!("user:{} \"bus\"", own_name())];
    assert_eq!(identities(&governed), expected);
}

#[test]
fn the_status_has_a_hint_about_a_changed_manifest() {
    let governed = Governed::bridge(READ);
    let bus = bus(&governed, "");
    let mut peer = bus.client_at(0);
    session(&mut peer, &governed);
    drop(peer);
    governed.file("agent.toml", "[[turn]]\nsteps = []\n");
    let mut next = bus.client_at(0);
    next.request(&json!(0), "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
    governed.dir.wait_for(|| bus.status(&[]).contains("`narrows serve --approve "));
    bus.stop();
}

#[test]
fn two_users_of_a_governed_pool_do_not_see_each_other() {
    let governed = Governed::with_kind("server");
    governed.file("ACP.md", &acp("server", "governance-aware", "    operator: ./OPERATOR.md\n"));
    governed.dir.file("who.toml", "[[identity]]\nwho = \"tcp:loopback\"\nscopes = [\"kind:read\"]\n");
    let bus = bus(&governed, "identities = \"who.toml\"\n[limits]\nsession_grace = \"0s\"\n");
    let (mut ours, mut anyone) = (bus.client_at(0), bus.client_at(1));
    let name = session(&mut ours, &governed);
    ours.prompt(&json!(2), &name, "hello");
    assert_eq!(ours.answer(&json!(2))["result"]["stopReason"], "end_turn");
    session(&mut anyone, &governed);
    let load = json!({"sessionId": name, "cwd": governed.root(), "mcpServers": []});
    drop(ours);
    bus.wait_for(|state| state["clients"] == 1);
    let refused = anyone.call(&json!(3), "session/load", &load);
    assert_eq!(refused["error"]["code"], -32002, "{refused}");
    let listed = anyone.call(&json!(4), "session/list", &json!({}));
    assert!(!listed.to_string().contains(&name), "{listed}");
    let mut again = bus.client_at(0);
    initialize(&mut again);
    let loaded = again.call(&json!(3), "session/load", &load);
    assert!(loaded.get("result").is_some(), "{loaded}");
    bus.stop();
    governed.actions();
}

/// A client over HTTP with a token.
struct Far {
    address: String,
    token: String,
    connection: String,
}

impl Far {
    /// Sends a request, and reads until a line contains `until`.
    fn exchange(&self, head: &str, body: &str, until: &str) -> (TcpStream, String) {
        let Self { address, token, connection } = self;
        let mut stream = TcpStream::connect(address).expect("the server listens");
        let length = body.len();
        let request = format!(
            "{head} /acp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n{connection}\
             Accept: {accept}\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n{body}",
            accept = if head == "GET" { "text/event-stream" } else { "application/json, text/event-stream" },
        );
        stream.write_all(request.as_bytes()).expect("the peer reads");
        let read = read_until(&mut stream, until);
        (stream, read)
    }
}

fn read_until(stream: &mut TcpStream, until: &str) -> String {
    let mut read = String::new();
    let mut lines = BufReader::with_capacity(1, stream);
    while !read.contains(until) {
        assert_ne!(lines.read_line(&mut read).expect("UTF-8"), 0, "{until}: {read}");
    }
    read
}

#[test]
fn the_gate_enforces_the_scopes_of_a_token() {
    for (scope, allowed) in [("kind:read", true), ("kind:edit", false)] {
        let governed = Governed::bridge(READ);
        governed.dir.file("who.toml", "[[identity]]\nwho = \"bus:token:laptop\"\nscopes = [\"kind:read\"]\n");
        let file = governed.dir.path().join("tokens.toml");
        let made =
            governed.dir.narrows(["token", "new", "laptop", "--scope", scope, "--file"]).arg(file).output();
        let token =
            String::from_utf8(made.expect("the program starts").stdout).expect("UTF-8").trim().to_owned();
        let web =
            "[[listen]]\nurl = \"http://127.0.0.1:0/acp\"\nauth = \"token\"\ntokens = \"tokens.toml\"\n";
        let bus = bus(&governed, &format!("identities = \"who.toml\"\n{web}"));
        let url = bus.at[2].clone();
        let address = url.trim_start_matches("http://").split('/').next().expect("an address").to_owned();
        let mut far = Far { address, token, connection: String::new() };
        let message = |id: u64, method: &str, params: &Value| {
            json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
        };
        let params = json!({"protocolVersion": 1, "clientCapabilities": {}});
        let (stream, head) = far.exchange("POST", &message(0, "initialize", &params), "\r\n\r\n");
        drop(stream);
        let name = head.lines().find(|line| line.to_lowercase().starts_with("acp-connection-id"));
        far.connection = format!("{}\r\n", name.expect(&head));
        let (mut events, _) = far.exchange("GET", "", "\r\n\r\n");
        let cwd = governed.root().canonicalize().expect("the file exists");
        far.exchange("POST", &message(1, "session/new", &json!({"cwd": cwd, "mcpServers": []})), " 202");
        let seen = read_until(&mut events, "\"sessionId\"");
        let session =
            seen.split("\"sessionId\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect(&seen);
        let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "go"}]});
        far.connection += &format!("Acp-Session-Id: {session}\r\n");
        let (mut events, _) = far.exchange("GET", "", "\r\n\r\n");
        far.exchange("POST", &message(2, "session/prompt", &prompt), " 202");
        let seen = read_until(&mut events, "\"stopReason\"");
        assert_eq!(seen.contains("end_turn"), allowed, "{scope}: {seen}");
        bus.stop();
        governed.actions();
        assert_eq!(identities(&governed), ["bus:token:laptop \"bus\""]);
        let entries = governed.entries();
        let decided = entries.iter().find(|entry| entry["action"] == "policy.resolved").expect("a decision");
        assert_eq!(decided["policy"]["decision"] == "allow", allowed, "{decided}");
    }
}

#[test]
fn a_killed_worker_loses_no_log_entry() {
    let governed = Governed::bridge(&asks("delete"));
    let bus = bus(&governed, "");
    let mut peer = bus.client_at(0);
    let name = session(&mut peer, &governed);
    peer.prompt(&json!(2), &name, "go");
    // The gate has asked, so its decision is on disk.
    peer.expect_request("session/request_permission");
    let state = bus.state();
    let workers = state["pools"][0]["workers"].as_array().expect("workers").clone();
    let busy = workers.iter().find(|worker| worker["pending"] == 1).expect("a busy worker");
    let pid =
        Pid::from_raw(i32::try_from(busy["pid"].as_u64().expect("a pid")).expect("a pid")).expect("not 0");
    kill_process(pid, Signal::KILL).expect("the process runs");
    assert!(peer.answer(&json!(2)).get("error").is_some());
    let actions = governed.actions();
    let last = ["operator.invoked", "operator.running", "policy.resolved", "operator.suspended"];
    assert!(last.iter().all(|wanted| actions.iter().any(|action| action == wanted)), "{actions:?}");
    // The next client is served.
    let mut next = bus.client_at(0);
    session(&mut next, &governed);
    bus.stop();
    governed.actions();
}

#[test]
fn an_unservable_manifest_is_reported_at_start() {
    let governed = Governed::bridge(READ);
    let file = |more: &str| {
        write(
            &governed.dir,
            &format!("[[listen]]\nurl = \"stdio:\"\n[[pool]]\nmanifest = \"ws/ACP.md\"\n{more}"),
        )
    };
    let check = |more: &str| governed.dir.output_beside_others(governed.dir.narrows(["check", &file(more)]));
    assert!(check("").contains("--- exit 0 ---"), "{}", check(""));
    for (more, words) in [
        ("command = [\"a\"]\n", "`manifest` and `command` exclude each other"),
        ("share = \"all\"\n", "a gate serves one connection"),
        ("protocol = \"jsonrpc\"\n", "a gate speaks ACP"),
    ] {
        let said = check(more);
        assert!(said.contains(words) && said.contains("--- exit 2 ---"), "{said}");
    }
    let shown = governed.dir.output_beside_others(governed.dir.narrows(["check", "--verbose", &file("")]));
    assert!(shown.contains("manifest = ") && !shown.contains("command = "), "{shown}");
    governed.file("policies/shell/POLICY.md", "---\nslug: shell\n---\n");
    let said = check("");
    assert!(said.contains("POLICY.md:") && said.contains("--- exit 2 ---"), "{said}");
    let said = governed.dir.output_of(command(&governed.dir, &["--config", &file("")]));
    assert!(said.contains("cannot serve the manifest") && said.contains("--- exit 2 ---"), "{said}");
}
