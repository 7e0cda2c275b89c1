//! `narrows serve --listen`: identities and isolation of clients on real sockets.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bus_support::{Bus, Peer};
use crate::serve::asks;
use crate::serve_support::{DEMO, Governed, READ, acp, server};

/// A user id that no process has. The system need not know it.
const NOBODY_UID: u32 = 65_534;

/// Starts a server with a unix socket and a port.
fn listening<'a>(governed: &'a Governed, args: &[&str]) -> Bus<'a> {
    let socket = format!("unix:{}/s", governed.dir.path().display());
    let places = ["--listen", &socket, "--listen", "tcp://127.0.0.1:0"];
    Bus::started(&governed.dir, governed.serve(&[&places[..], args].concat()))
}

fn initialize(peer: &mut Peer) -> Value {
    peer.call(&json!(0), "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}))
}

fn open(peer: &mut Peer, governed: &Governed) -> Value {
    let cwd = governed.root().canonicalize().expect("the file exists");
    peer.call(&json!(1), "session/new", &json!({"cwd": cwd, "mcpServers": []}))
}

/// Returns a client with a session.
fn client(bus: &Bus<'_>, governed: &Governed, dir: usize) -> (Peer, String) {
    let mut peer = bus.client_at(dir);
    let answer = initialize(&mut peer);
    assert_eq!(answer["result"]["_meta"]["aip44"]["operator"], "tidy", "{answer}");
    let answer = open(&mut peer, governed);
    assert!(answer["result"]["sessionId"].is_string(), "{answer}");
    let session = answer["result"]["sessionId"].as_str().expect("a text").to_owned();
    (peer, session)
}

/// Returns the responses to a client of another user. `SESSION` in a request stands for the last session that
/// the client got. `None` if this process is not root, and so cannot become another user.
fn exchange_as_other_user(bus: &Bus<'_>, requests: &[Value]) -> Option<Vec<Value>> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let address = bus.at[1].strip_prefix("tcp://127.0.0.1:").expect("a port");
    let script = r#"exec 3<>"/dev/tcp/127.0.0.1/$0" || exit 1
for line in "$@"; do
  printf '%s\n' "${line//SESSION/$session}" >&3
  while read -r answer <&3; do
    case "$answer" in *'"method":'*) continue;; esac
    case "$answer" in *'"sessionId":"'*) session=${answer#*\"sessionId\":\"}; session=${session%%\"*};; esac
    printf '%s\n' "$answer"; break
  done
done"#;
    let mut command = Command::new("bash");
    command.args(["-c", script, address]).uid(NOBODY_UID).current_dir("/");
    for (id, request) in requests.iter().enumerate() {
        let mut request = request.clone();
        (request["jsonrpc"], request["id"]) = (json!("2.0"), json!(id));
        command.arg(request.to_string());
    }
    let output = command.output().expect("bash starts");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    Some(text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
}

fn unauthenticated_error() -> Value {
    json!({"method": "initialize", "params": {"protocolVersion": 1}})
}

#[test]
fn each_client_has_an_agent_and_all_are_in_one_log() {
    let governed = Governed::bridge(READ);
    let bus = listening(&governed, &[]);
    let socket = governed.dir.path().join("s");
    assert!(socket.exists() && !bus.at[1].ends_with(":0"), "{:?}", bus.at);
    let mut clients: Vec<_> = (0..4).map(|number| client(&bus, &governed, number % 2)).collect();
    for (peer, session) in &mut clients {
        peer.prompt(&json!(2), session, "go");
    }
    for (peer, _) in &mut clients {
        let answer = peer.answer(&json!(2));
        assert_eq!(
            (&answer["result"]["stopReason"], peer.agent_text()),
            (&json!("end_turn"), "done".to_owned())
        );
    }
    // Some clients disconnect themselves, and some are connected at the end.
    clients.truncate(2);
    bus.stop();
    assert!(!socket.exists(), "the socket is removed with its process");
    let actions = governed.actions();
    let count = |wanted: &str| actions.iter().filter(|action| *action == wanted).count();
    assert_eq!(
        (count("operator.invoked"), count("tool.call"), count("session.closed")),
        (4, 4, 4),
        "{actions:?}"
    );
    let entries = governed.entries();
    let about = |entry: &Value, key: &str| entry["metadata"]["aip44"][key].as_str().unwrap_or("-").to_owned();
    assert!(entries.iter().all(|entry| about(entry, "identity").starts_with("user:")), "{entries:?}");
    for method in ["unix-peer", "socket-owner"] {
        assert!(
            entries.iter().any(|entry| about(entry, "identity_method") == method),
            "{method}: {entries:?}"
        );
    }
}

#[test]
fn a_client_of_a_listener_cannot_be_its_own_agent() {
    let governed = Governed::bridge(READ);
    let bus = listening(&governed, &[]);
    for dir in 0..2 {
        let mut peer = bus.client_at(dir);
        let params = json!({"protocolVersion": 1, "clientCapabilities": {}});
        let answer = peer.call(&json!(0), "proxy/initialize", &params);
        assert!(answer["error"]["code"].is_i64(), "{answer}");
    }
    bus.stop();
}

#[test]
fn a_silent_client_starts_no_agent() {
    let governed = Governed::bridge(READ);
    let bus = listening(&governed, &[]);
    // Processes that tested the sandbox at the start may still be ending. Once they have, only the server is
    // left.
    let before = 1;
    governed.dir.wait_for(|| governed.dir.alive().len() == before);
    let (mut silent, mut odd) = (bus.client_at(0), bus.client_at(0));
    odd.send_line("{\"jsonrpc\":");
    assert_eq!(odd.next().expect("an answer")["error"]["code"], -32700);
    let mut page = bus.client_at(1);
    page.send_line("GET / HTTP/1.1");
    assert!(page.next().is_some_and(|answer| answer["error"]["code"] == -32700));
    assert_eq!(page.next(), None, "hung up on");
    assert_eq!(governed.dir.alive().len(), before);
    initialize(&mut odd);
    assert!(governed.dir.alive().len() > before);
    drop(odd);
    governed.dir.wait_for(|| governed.dir.alive().len() == before);
    bus.stop();
    assert_eq!(silent.next(), None);
}

#[test]
fn the_number_of_clients_is_limited() {
    let governed = Governed::bridge(READ);
    let bus = listening(&governed, &["--max-connections", "1"]);
    let (mut first, session) = client(&bus, &governed, 0);
    for dir in [0, 1] {
        let mut second = bus.client_at(dir);
        let refused = initialize(&mut second);
        assert_eq!(refused["error"]["data"]["condition"], "backpressure", "{refused}");
        assert_eq!(second.next(), None);
    }
    let refused = bus.client_at(0).next().expect("a refusal of who says nothing");
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(null), &json!(-32012)), "{refused}");
    first.prompt(&json!(2), &session, "go");
    assert_eq!(first.answer(&json!(2))["result"]["stopReason"], "end_turn");
    drop(first);
    // The slot is free once its agent has ended.
    governed.dir.wait_for(|| {
        let mut next = bus.client_at(0);
        next.request(&json!(0), "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
        next.next().is_some_and(|answer| answer.get("result").is_some())
    });
    bus.stop();
}

#[test]
fn no_process_is_left_after_any_signal() {
    for signal in [Signal::INT, Signal::HUP] {
        let governed = Governed::bridge("[[turn]]\nsteps = [{ wait_cancel = true }]\n");
        let bus = listening(&governed, &[]);
        let (mut peer, session) = client(&bus, &governed, 0);
        peer.prompt(&json!(2), &session, "go");
        bus.signal(signal);
        let ended = bus.wait();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let actions = governed.actions();
        assert_eq!(actions.last().map(String::as_str), Some("session.closed"), "{actions:?}");
    }
}

#[test]
fn an_exited_agent_closes_only_its_connection() {
    let governed = Governed::bridge("[[turn]]\nsteps = [{ exit = 3 }]\n");
    let bus = listening(&governed, &[]);
    let (mut first, session) = client(&bus, &governed, 0);
    let (mut second, _) = client(&bus, &governed, 1);
    first.prompt(&json!(2), &session, "go");
    assert!(first.answer(&json!(2)).get("error").is_some());
    assert_eq!(first.next(), None);
    assert!(open(&mut second, &governed)["result"]["sessionId"].is_string());
    bus.stop();
    governed.actions();
}

#[test]
fn a_changed_program_is_not_run_for_the_next_client() {
    let governed = Governed::bridge(READ);
    let bus = listening(&governed, &[]);
    let (_first, _) = client(&bus, &governed, 0);
    governed.file("agent.toml", &format!("{READ}# more\n"));
    let answer = initialize(&mut bus.client_at(0));
    assert_eq!(answer["error"]["message"], "agent not started", "{answer}");
    let is_told = |entry: &Value| {
        entry["action"] == "agent.refused" && entry["metadata"]["aip44"]["code"] == "pin_changed"
    };
    assert!(governed.entries().iter().any(is_told));
    governed.file("agent.toml", READ);
    client(&bus, &governed, 0);
}

#[test]
fn an_approver_sees_pending_actions_of_every_connection() {
    let governed = Governed::bridge(&asks("delete"));
    governed.with_lead_quorum(1);
    governed.keys(&["ada"]);
    let bus = listening(&governed, &[]);
    let (mut first, one) = client(&bus, &governed, 0);
    let (mut second, other) = client(&bus, &governed, 1);
    first.prompt(&json!(2), &one, "go");
    second.prompt(&json!(2), &other, "go");
    let list = || governed.dir.output_beside_others(governed.approve(&["--list"]));
    governed.dir.wait_for(|| list().matches("kind:delete").count() == 2);
    let ids: Vec<String> =
        list().lines().take(2).filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect();
    let said = governed.dir.output_beside_others(governed.approve(&[&ids[0], "--key", "ada.key"]));
    assert!(said.contains("--- exit 0 ---"), "{said}");
    let said =
        governed.dir.output_beside_others(governed.approve(&[&ids[1], "--reject", "no", "--key", "ada.key"]));
    assert!(said.contains("--- exit 0 ---"), "{said}");
    let mut told = Vec::new();
    for peer in [&mut first, &mut second] {
        assert_eq!(peer.answer(&json!(2))["result"]["stopReason"], "end_turn");
        told.push(peer.agent_text());
    }
    told.sort();
    assert_eq!(told, ["allowed", "rejected"]);
    bus.stop();
    governed.actions();
}

#[test]
fn another_user_only_learns_how_to_authenticate() {
    let governed = Governed::bridge(READ);
    let bus = listening(&governed, &[]);
    let new = json!({"method": "session/new", "params": {"cwd": governed.root(), "mcpServers": []}});
    let list = json!({"method": "session/list", "params": {}});
    let Some(answers) = exchange_as_other_user(&bus, &[unauthenticated_error(), new, list]) else { return };
    assert_eq!(answers[0]["result"]["authMethods"].as_array().map(Vec::len), Some(1), "{answers:?}");
    assert_eq!(
        (&answers[1]["error"]["code"], &answers[2]["error"]["code"]),
        (&json!(-32000), &json!(-32000))
    );
    bus.stop();
    assert_eq!(governed.actions(), ["manifest.pinned", "client.refused"]);
    let refused = governed.entries().pop().expect("an entry");
    assert_eq!(refused["policy"]["decision"], "deny");
}

#[test]
fn many_refused_connections_of_one_identity_are_two_entries_with_a_count() {
    const CONNECTIONS: usize = 40;
    let governed = Governed::bridge(READ);
    let bus = listening(&governed, &[]);
    for _ in 0..CONNECTIONS {
        let Some(answers) = exchange_as_other_user(&bus, &[unauthenticated_error()]) else { return };
        assert_eq!(answers[0]["result"]["authMethods"].as_array().map(Vec::len), Some(1), "{answers:?}");
    }
    bus.stop();
    assert_eq!(governed.actions(), ["manifest.pinned", "client.refused", "client.refused"]);
    let entries = governed.entries();
    let counts: Vec<&Value> = entries[1..].iter().map(|entry| &entry["metadata"]["count"]).collect();
    assert_eq!(counts, [&Value::Null, &json!(CONNECTIONS - 1)], "all are counted when the process ends");
    let about = |entry: &Value| entry["metadata"]["aip44"]["identity"].clone();
    assert_eq!(about(&entries[1]), about(&entries[2]));
}

#[test]
fn a_client_that_is_not_admitted_cannot_send_long_messages() {
    let governed = Governed::bridge(READ);
    let bus = listening(&governed, &[]);
    let long = json!({"method": "session/new", "params": {"cwd": "/", "x": "x".repeat(100_000)}});
    let list = json!({"method": "session/list", "params": {}});
    let Some(answers) = exchange_as_other_user(&bus, &[unauthenticated_error(), long.clone(), list.clone()])
    else {
        return;
    };
    let codes: Vec<&Value> = answers.iter().map(|answer| &answer["error"]["code"]).collect();
    assert_eq!(codes, [&Value::Null, &json!(-32013), &json!(-32000)], "{answers:?}");
    // The first message must not be long either.
    let answers = exchange_as_other_user(&bus, &[long.clone(), list]).expect("answers");
    assert_eq!(answers[0]["error"]["code"], -32013, "{answers:?}");
    // An admitted client can send long messages.
    let mut peer = bus.client_at(1);
    initialize(&mut peer);
    let answer = peer.call(&json!(1), "session/new", &long["params"]);
    assert_ne!(answer["error"]["code"], -32013, "{answer}");
    bus.stop();
}

#[test]
fn silent_connections_without_admission_take_no_slots() {
    let governed = Governed::bridge(READ);
    // One slot more than clients, because the first client may still be ending when the second connects.
    let bus = listening(&governed, &["--max-connections", "2"]);
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    let address = bus.at[1].strip_prefix("tcp://127.0.0.1:").expect("a port");
    let script =
        r#"for i in {1..80}; do exec {fd}<>"/dev/tcp/127.0.0.1/$0" || exit 1; done; echo ready; read -r"#;
    let mut command = Command::new("bash");
    command.args(["-c", script, address]).uid(NOBODY_UID).current_dir("/");
    let mut crowd = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("bash starts");
    let mut ready = String::new();
    let stdout = crowd.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut ready).expect("a line");
    assert_eq!(ready, "ready\n");
    for dir in [0, 1] {
        drop(client(&bus, &governed, dir));
    }
    drop(crowd.stdin.take());
    crowd.wait().expect("bash ends");
    bus.stop();
}

#[test]
fn a_connection_closes_when_its_client_loses_rights() {
    let governed = Governed::bridge(READ);
    let uid = rustix::process::geteuid().as_raw();
    let named = governed.dir.file("who.toml", &format!("[[identity]]\nwho = \"uid:{uid}\"\n"));
    let bus = listening(&governed, &["--identities", named.to_str().expect("UTF-8")]);
    let (mut peer, _) = client(&bus, &governed, 0);
    governed.dir.file("who.toml", &format!("[[identity]]\nwho = \"uid:{uid}\"\nscopes = []\n"));
    assert_eq!(peer.next(), None);
    let (peer, _) = client(&bus, &governed, 0);
    drop(peer);
    bus.stop();
    let actions = governed.actions();
    assert_eq!(actions.iter().filter(|action| *action == "session.closed").count(), 2, "{actions:?}");
}

#[test]
fn a_session_belongs_to_its_creator_after_a_restart() {
    let governed = server();
    let named = governed.dir.file("who.toml", "[[identity]]\nwho = \"uid:65534\"\n");
    let args = [&DEMO[..], &["--identities", named.to_str().expect("UTF-8")]].concat();
    let bus = listening(&governed, &args);
    let (mut peer, session) = client(&bus, &governed, 0);
    peer.prompt(&json!(2), &session, "hello");
    assert_eq!(peer.answer(&json!(2))["result"]["stopReason"], "end_turn");
    drop(peer);
    bus.stop();
    let bus = listening(&governed, &args);
    let load = |name: &str| json!({"sessionId": name, "cwd": governed.root(), "mcpServers": []});
    let request = |method: &str, name: &str| json!({"method": method, "params": load(name)});
    let asked = [
        unauthenticated_error(),
        request("session/load", &session),
        request("session/load", "sess_none"),
        request("session/prompt", &session),
        json!({"method": "session/list", "params": {}}),
        json!({"method": "session/new", "params": load("x")}),
    ];
    if let Some(answers) = exchange_as_other_user(&bus, &asked) {
        let without = |answer: &Value, name: &str| answer["error"].to_string().replace(name, "NAME");
        assert_eq!(answers[1]["error"]["code"], -32002, "{answers:?}");
        assert_eq!(without(&answers[1], &session), without(&answers[2], "sess_none"));
        assert_eq!(without(&answers[1], &session), without(&answers[3], &session));
        assert_eq!(answers[4]["result"]["sessions"], json!([]), "{answers:?}");
    }
    let mut peer = bus.client_at(1);
    initialize(&mut peer);
    let listed = peer.call(&json!(1), "session/list", &json!({}));
    let names: Vec<&Value> =
        listed["result"]["sessions"].as_array().expect("a list").iter().map(|it| &it["sessionId"]).collect();
    assert_eq!(names, [&json!(session)], "{listed}");
    let answer = peer.call(&json!(2), "session/load", &load(&session));
    assert!(answer.get("result").is_some(), "{answer}");
    drop(peer);
    bus.stop();
    governed.actions();
}

#[test]
fn scopes_narrow_what_the_operator_may_do() {
    let governed = Governed::bridge(READ);
    let prompt = json!({"method": "session/prompt", "params": {"sessionId": "SESSION", "prompt": [{"type": "text", "text": "go"}]}});
    for (scopes, expected) in
        [("[\"kind:read\"]", "allow"), ("[\"kind:search\", \"kind:delete\"]", "deny"), ("[]", "deny")]
    {
        let file = format!("[[identity]]\nwho = \"uid:{NOBODY_UID}\"\nscopes = {scopes}\n");
        let named = governed.dir.file("who.toml", &file);
        let bus = listening(&governed, &["--identities", named.to_str().expect("UTF-8")]);
        let cwd = governed.root().canonicalize().expect("the file exists");
        let new = json!({"method": "session/new", "params": {"cwd": cwd, "mcpServers": []}});
        if exchange_as_other_user(&bus, &[unauthenticated_error(), new, prompt.clone()]).is_none() {
            return;
        }
        bus.stop();
        governed.actions();
        let entries = governed.entries();
        let decided = entries.iter().rfind(|entry| entry["action"] == "policy.resolved").expect("a decision");
        assert_eq!(decided["policy"]["decision"], expected, "{scopes}: {decided}");
        assert!(decided["metadata"]["aip44"]["identity"].as_str().is_some_and(|who| !who.contains("root")));
    }
}

#[test]
fn an_unusable_listener_is_reported() {
    let governed = Governed::bridge(READ);
    let output = |args: &[&str]| governed.dir.output_of(governed.serve(args));
    for (args, words) in [
        (&["--listen", "https://127.0.0.1:1"][..], "needs a certificate"),
        (&["--listen", "ws://0.0.0.0:1"], "is reachable from other machines"),
        (&["--listen", "ws://127.0.0.1:0", "--tokens", "ws/ACP.md"], "is in the workspace"),
        (&["--listen", "ws://127.0.0.1:0", "--tokens", "nowhere.toml"], "nowhere.toml"),
        (&["--listen", "ws://127.0.0.1:0", "--cert", "c"], "--key"),
        (
            &["--listen", "wss://127.0.0.1:0", "--cert", "c.pem", "--key", "k.pem"],
            "cannot use the certificate",
        ),
        (&["--listen", "ws://127.0.0.1:0", "--limit", "x=1"], "unknown name; valid names are "),
        (&["--tokens", "tokens.toml"], "need an HTTP or WebSocket listener"),
        (
            &["--listen", "tcp://127.0.0.1:0", "--origin", "https://app.example"],
            "need an HTTP or WebSocket listener",
        ),
        (&["--listen", "tcp://0.0.0.0:1"], "only 127.0.0.1"),
        (&["--listen", "tcp://127.0.0.1:0/coder"], "only a bus has pools"),
        (&["--listen", "stdio:", "--approve"], "cannot be used with"),
        (&["--identities", "ws/ACP.md"], "is in the workspace"),
        (&["--identities", "nowhere.toml"], "nowhere.toml"),
    ] {
        let said = output(args);
        assert!(said.contains(words) && said.ends_with("--- exit 2 ---\n"), "{args:?}: {said}");
    }
    let text = acp("bridge", "governance-aware", "    operator: ./OPERATOR.md\n");
    governed.file("ACP.md", &text.replace("transport: stdio", "transport: websocket"));
    let said = output(&["--listen", "tcp://127.0.0.1:0"]);
    assert!(said.contains("requires WebSocket") && said.ends_with("--- exit 2 ---\n"), "{said}");
    governed.file("ACP.md", &text.replace("transport: stdio", "transport: [stdio, websocket]"));
    assert!(output(&["--listen", "stdio:"]).ends_with("--- exit 0 ---\n"));
}
