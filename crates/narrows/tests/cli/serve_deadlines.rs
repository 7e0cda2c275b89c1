//! `narrows serve` with an agent that does not answer, or that is interrupted.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::asks;
use crate::serve_support::{Governed, open, session};
use crate::stdio_client::StdioClient;

/// Sends a word, and then nothing until it is cancelled.
const SILENT: &str = "[[turn]]\nsteps = [{ say = \"hm\" }, { wait_cancel = true }]\n";

fn stdio<'a>(governed: &'a Governed, args: &[&str]) -> StdioClient<'a> {
    StdioClient::initialized(&governed.dir, governed.serve(args))
}

/// Returns the reasons of all entries with this action.
fn reasons(governed: &Governed, action: &str) -> Vec<String> {
    let entries = governed.entries();
    let found = entries.iter().filter(|entry| entry["action"] == action);
    found.map(|entry| entry["metadata"]["aip44"]["reason"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_silent_turn_ends_with_an_error() {
    let governed = Governed::bridge(SILENT);
    let mut stdio = stdio(&governed, &["--deadline", "silence=700ms"]);
    let id = session(&mut stdio, &governed);
    let answer = stdio.prompt(&id, "go");
    assert_eq!(answer["error"]["code"], -32011, "{answer}");
    assert_eq!(answer["error"]["message"], "the agent was silent for 700 ms");
    // The agent has stopped, and the next turn is normal.
    let answer = stdio.prompt(&id, "again");
    assert_eq!(answer["error"]["code"], -32011, "{answer}");
    assert_eq!(stdio.end().status.code(), Some(0));
    governed.actions();
    assert_eq!(reasons(&governed, "operator.interrupted"), ["the agent was silent for 700 ms"; 2]);
}

#[test]
fn a_silent_agent_that_does_not_stop_is_ended() {
    let governed = Governed::bridge("[[turn]]\nsteps = [{ ignore_cancel = true }, { hang = true }]\n");
    let mut stdio = stdio(&governed, &["--deadline", "silence=500ms", "--deadline", "cancel=500ms"]);
    let id = session(&mut stdio, &governed);
    let answer = stdio.prompt(&id, "go");
    assert_eq!(answer["error"]["message"], "the agent was silent for 500 ms", "{answer}");
    let ended = stdio.wait();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("it continued a stopped turn"), "{}", ended.stderr);
    governed.actions();
}

#[test]
fn deadlines_come_from_the_file_and_the_flags() {
    let governed = Governed::bridge("[on]\nsession_new = [{ hang = true }]\n[[turn]]\nsteps = []\n");
    governed
        .dir
        .file("narrows.toml", "[deadlines]\nnew = \"600ms\"\nclose = \"30s\"\nterminate = \"100ms\"\n");
    let config = governed.dir.path().join("narrows.toml");
    let args = ["--config", config.to_str().expect("UTF-8"), "--deadline", "close=200ms"];
    let mut stdio = stdio(&governed, &args);
    let answer = open(&mut stdio, &governed.root().canonicalize().expect("the file exists"));
    assert_eq!(answer["error"]["code"], -32011, "{answer}");
    assert_eq!(answer["error"]["message"], "the agent did not answer session/new within 600 ms");
    // The agent does not react to the end of its input, so it gets a signal.
    assert_eq!(stdio.end().status.code(), Some(0));
    assert_eq!(governed.actions(), ["manifest.pinned", "sandbox.applied", "request.expired"]);
}

#[test]
fn an_agent_that_does_not_close_is_ended() {
    let governed = Governed::bridge("[on]\nsession_close = [{ hang = true }]\n[[turn]]\nsteps = []\n");
    let mut stdio = stdio(&governed, &["--deadline", "close=500ms", "--deadline", "terminate=200ms"]);
    let id = session(&mut stdio, &governed);
    let answer = stdio.call("session/close", &json!({"sessionId": id}));
    assert_eq!(answer["error"]["code"], -32011, "{answer}");
    let ended = stdio.wait();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("it did not close a session in time"), "{}", ended.stderr);
    assert_eq!(
        governed.actions(),
        ["manifest.pinned", "sandbox.applied", "operator.invoked", "request.expired", "session.closed"]
    );
}

#[test]
fn an_invalid_deadline_is_reported() {
    let governed = Governed::bridge(SILENT);
    for (flag, said) in [
        ("silence", "must be a name and a duration, such as `silence=20m`"),
        ("slience=2m", "unknown name; valid names are initialize, authenticate"),
        ("silence=soon", "a duration is a number and a unit"),
    ] {
        let told = governed.dir.output_of(governed.serve(&["--deadline", flag]));
        assert!(told.contains(said) && told.ends_with("--- exit 2 ---\n"), "{flag}: {told}");
    }
}

/// Waits until the last update is of this kind.
fn wait_for_update(stdio: &mut StdioClient<'_>, kind: &str) {
    while stdio.next_message()["params"]["update"]["sessionUpdate"] != kind {}
}

fn prompt(stdio: &mut StdioClient<'_>, id: &str) {
    stdio.send("session/prompt", &json!({"sessionId": id, "prompt": [{"type": "text", "text": "go"}]}));
}

/// Returns the log entries after the session began.
fn after_invoked(governed: &Governed) -> Vec<String> {
    governed.actions().split_off(3)
}

#[test]
fn a_signal_in_the_middle_of_a_turn_closes_its_session() {
    let governed = Governed::bridge(SILENT);
    let mut stdio = governed.stdio();
    let id = session(&mut stdio, &governed);
    prompt(&mut stdio, &id);
    wait_for_update(&mut stdio, "agent_message_chunk");
    stdio.signal(Signal::TERM);
    assert_eq!(stdio.wait().status.code(), Some(143));
    assert_eq!(after_invoked(&governed), ["operator.running", "operator.interrupted", "session.closed"]);
}

#[test]
fn a_signal_denies_a_pending_approval() {
    let governed = Governed::bridge(&asks("delete"));
    let mut stdio = governed.stdio();
    let id = session(&mut stdio, &governed);
    prompt(&mut stdio, &id);
    while stdio.next_message()["method"] != "session/request_permission" {}
    stdio.signal(Signal::TERM);
    assert_eq!(stdio.wait().status.code(), Some(143));
    let actions = after_invoked(&governed);
    let end = [
        "operator.suspended",
        "policy.resolved",
        "operator.resumed",
        "operator.interrupted",
        "session.closed",
    ];
    assert_eq!(actions[actions.len() - end.len()..], end, "{actions:?}");
    let entries = governed.entries();
    let last = entries.iter().rfind(|entry| entry["action"] == "policy.resolved").expect("a decision");
    assert_eq!(last["policy"]["decision"], "deny", "{last}");
}

/// A call that begins and does not end.
const WORKING: &str = "[[turn]]\nsteps = [{ tool = { id = \"c\", title = \"x\", kind = \"read\", status = \"in_progress\", \
    input = { path = \"a.txt\" } } }, { wait_cancel = true }]\n";

fn interrupted(governed: &Governed) -> usize {
    let is_it =
        |entry: &&Value| entry["action"] == "tool.call" && entry["output"] == json!({"error": "interrupted"});
    governed.entries().iter().filter(is_it).count()
}

#[test]
fn signals_and_disconnects_leave_no_call_open_in_the_log() {
    for by_signal in [true, false] {
        let governed = Governed::bridge(WORKING);
        let mut stdio = governed.stdio();
        let id = session(&mut stdio, &governed);
        prompt(&mut stdio, &id);
        wait_for_update(&mut stdio, "tool_call");
        let ended = if by_signal {
            stdio.signal(Signal::TERM);
            stdio.wait()
        } else {
            stdio.end()
        };
        assert_eq!(ended.status.code(), Some(if by_signal { 143 } else { 0 }), "{}", ended.stderr);
        assert_eq!(
            after_invoked(&governed),
            ["policy.resolved", "operator.running", "tool.call", "operator.interrupted", "session.closed"]
        );
        assert_eq!(interrupted(&governed), 1);
    }
}

#[test]
fn closing_a_session_ends_its_turn_first() {
    let governed = Governed::bridge(WORKING);
    let mut stdio = governed.stdio();
    let id = session(&mut stdio, &governed);
    prompt(&mut stdio, &id);
    wait_for_update(&mut stdio, "tool_call");
    stdio.send("session/close", &json!({"sessionId": id}));
    let mut answers = Vec::new();
    while answers.len() < 2 {
        let message = stdio.next_message();
        if message["method"].is_null() {
            answers.push(message);
        }
    }
    assert_eq!(answers[0]["result"]["stopReason"], "cancelled", "{answers:?}");
    assert!(answers[1]["result"].is_object(), "{answers:?}");
    assert_eq!(stdio.end().status.code(), Some(0));
    assert_eq!(interrupted(&governed), 1);
    assert_eq!(reasons(&governed, "session.closed"), ["it was closed"]);
}

#[test]
fn calls_left_open_by_a_killed_gate_are_closed_by_the_next() {
    let governed = Governed::bridge(WORKING);
    let actions = || -> Vec<String> {
        governed.actions().into_iter().filter(|action| action != "sandbox.applied").collect()
    };
    let mut killed = stdio(&governed, &[]);
    let id = session(&mut killed, &governed);
    prompt(&mut killed, &id);
    wait_for_update(&mut killed, "tool_call");
    let before = actions().len();
    killed.signal(Signal::KILL);
    killed.wait();
    assert_eq!(actions().len(), before);
    // The second run finds no open calls.
    for _ in 0..2 {
        assert_eq!(stdio(&governed, &[]).end().status.code(), Some(0));
        assert_eq!(actions()[before..], ["tool.call", "operator.interrupted", "session.closed"]);
    }
    assert_eq!(interrupted(&governed), 1);
    assert_eq!(reasons(&governed, "session.closed"), ["the gate was killed"]);
}
