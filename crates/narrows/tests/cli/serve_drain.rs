//! Clients that have closed their output but still read: their requests are answered.

use serde_json::{Value, json};

use crate::bus_support::{Bus, Peer};
use crate::serve::asks;
use crate::serve_support::{Governed, session};

/// Sends text only after a pause.
const SLOW: &str = "[[turn]]\nsteps = [{ pause = \"300ms\" }, { say = \"done\" }]\n";

/// Long enough for a loaded machine.
const PATIENT: [&str; 2] = ["--deadline", "close=30s"];

fn request(id: u32, method: &str, params: &Value) -> String {
    format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

/// Returns the output of `narrows serve` for a file with three requests as stdin.
fn file(governed: &Governed) -> Vec<Value> {
    let cwd = governed.root().canonicalize().expect("the file exists");
    let input = [
        request(1, "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}})),
        request(2, "session/new", &json!({"cwd": cwd, "mcpServers": []})),
        request(3, "session/new", &json!({"cwd": "/", "mcpServers": []})),
    ];
    let told = governed.dir.output_with_input(governed.serve(&PATIENT), input.concat().as_bytes());
    assert!(told.ends_with("--- exit 0 ---\n"), "{told}");
    told.lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

#[test]
fn a_file_of_requests_is_answered_to_its_end() {
    let server = Governed::with_kind("server");
    for governed in [Governed::bridge(SLOW), server] {
        let mut answers = file(&governed);
        answers.retain(|answer| answer.get("id").is_some());
        answers.sort_by_key(|answer| answer["id"].as_u64());
        let ids: Vec<&Value> = answers.iter().map(|answer| &answer["id"]).collect();
        assert_eq!(ids, [1, 2, 3], "{answers:?}");
        assert!(answers[1]["result"]["sessionId"].is_string(), "{answers:?}");
        assert_eq!(answers[2]["error"]["data"]["code"], "cwd_outside_root");
        assert_eq!(governed.actions().last().map(String::as_str), Some("session.closed"));
    }
}

#[test]
fn a_turn_ends_before_its_half_closed_client_is_disconnected() {
    let governed = Governed::bridge(SLOW);
    let socket = format!("unix:{}/s", governed.dir.path().display());
    let places = ["--listen", &socket, "--listen", "tcp://127.0.0.1:0"];
    let bus = Bus::started(&governed.dir, governed.serve(&[&places[..], &PATIENT].concat()));
    let cwd = governed.root().canonicalize().expect("the file exists");
    for dir in [0, 1] {
        let mut peer: Peer = bus.client_at(dir);
        peer.call(&json!(0), "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
        let answer = peer.call(&json!(1), "session/new", &json!({"cwd": cwd, "mcpServers": []}));
        peer.prompt(&json!(2), answer["result"]["sessionId"].as_str().expect("an id"), "go");
        peer.half_close();
        let answer = peer.answer(&json!(2));
        assert_eq!(
            (&answer["result"]["stopReason"], peer.agent_text()),
            (&json!("end_turn"), "done".to_owned())
        );
        assert_eq!(peer.next(), None, "and is then hung up on");
    }
    bus.stop();
    let closed = governed.actions().into_iter().filter(|action| action == "session.closed").count();
    assert_eq!(closed, 2);
}

#[test]
fn unanswered_requests_are_reported_as_cancelled() {
    let governed = Governed::bridge("[[turn]]\nsteps = [{ wait_cancel = true }]\n");
    let mut stdio = crate::stdio_client::StdioClient::initialized(
        &governed.dir,
        governed.serve(&["--deadline", "close=200ms"]),
    );
    let id = session(&mut stdio, &governed);
    stdio.send("session/prompt", &json!({"sessionId": id, "prompt": [{"type": "text", "text": "go"}]}));
    stdio.close_input();
    let answer = stdio.wait_for_response(|_| json!({}));
    assert_eq!(answer["result"]["stopReason"], "cancelled", "{answer}");
    assert!(answer["result"]["_meta"]["aip44"]["interrupted"].is_string(), "{answer}");
    assert_eq!(stdio.wait().status.code(), Some(0));
    governed.actions();
}

#[test]
fn a_client_at_end_of_input_is_not_asked() {
    let governed = Governed::bridge(&asks("delete"));
    let mut stdio = crate::stdio_client::StdioClient::initialized(&governed.dir, governed.serve(&PATIENT));
    let id = session(&mut stdio, &governed);
    stdio.send("session/prompt", &json!({"sessionId": id, "prompt": [{"type": "text", "text": "go"}]}));
    stdio.close_input();
    let answer = loop {
        let message = stdio.next_message();
        if message["method"].is_null() {
            break message;
        }
    };
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    assert_eq!(stdio.agent_text(), "rejected");
    assert_eq!(stdio.wait().status.code(), Some(0));
    governed.actions();
}

#[test]
fn a_disconnected_client_is_not_waited_for() {
    let governed = Governed::bridge("[[turn]]\nsteps = [{ wait_cancel = true }]\n");
    let socket = format!("unix:{}/s", governed.dir.path().display());
    let args = ["--listen", &socket, "--deadline", "close=10m"];
    let bus = Bus::started(&governed.dir, governed.serve(&args));
    let mut peer: Peer = bus.client_at(0);
    peer.call(&json!(0), "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
    let cwd = governed.root().canonicalize().expect("the file exists");
    let answer = peer.call(&json!(1), "session/new", &json!({"cwd": cwd, "mcpServers": []}));
    peer.prompt(&json!(2), answer["result"]["sessionId"].as_str().expect("an id"), "go");
    drop(peer);
    let log = || std::fs::read_to_string(governed.log()).unwrap_or_default();
    governed.dir.wait_for(|| log().contains("session.closed"));
    bus.stop();
    governed.actions();
}
