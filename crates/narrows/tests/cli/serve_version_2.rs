//! `narrows serve` in protocol version 2, and history in both versions.

use serde_json::{Value, json};

use crate::serve::asks;
use crate::serve_operator::with_notes;
use crate::serve_support::{Governed, session};
use crate::stdio_client::StdioClient;
use narrows_testkit::model::{ModelServer, Plan, Reply};

fn tool(kind: &str, status: &str) -> String {
    let text = if kind == "execute" { "" } else { ", text = \"seen\"" };
    format!(
        "[[turn]]\nsteps = [\n  {{ tool = {{ id = \"c\", title = \"x\", kind = \"{kind}\", path = \"a.txt\" }} }},\n  \
         {{ tool_update = {{ id = \"c\", status = \"{status}\"{text} }} }},\n  {{ say = \"done\" }},\n]\n"
    )
}

/// Returns an initialized client of version 2.
fn second<'a>(governed: &'a Governed, args: &[&str]) -> StdioClient<'a> {
    let mut command = governed.serve(args);
    command.env("OPENAI_API_KEY", "sk-test");
    let mut stdio = StdioClient::start(&governed.dir, command);
    let info = json!({"name": "test", "version": "1"});
    let answer = stdio.call("initialize", &json!({"protocolVersion": 2, "info": info, "capabilities": {}}));
    assert_eq!(answer["result"]["protocolVersion"], 2, "{answer}");
    assert_eq!(answer["result"]["_meta"]["aip44"]["operator"], "tidy");
    stdio
}

struct Turn {
    asked: Vec<Value>,
    /// The state updates, and the stop reason.
    states: Vec<String>,
    stop: Value,
}

/// Runs one turn of version 2 to its end; requests are answered with `answer`.
fn turn(stdio: &mut StdioClient<'_>, session: &str, mut answer: impl FnMut(&Value) -> Value) -> Turn {
    let prompt = json!([{"type": "text", "text": "go"}]);
    stdio.send("session/prompt", &json!({"sessionId": session, "prompt": prompt}));
    let (mut accepted, mut turn) = (false, Turn { asked: Vec::new(), states: Vec::new(), stop: Value::Null });
    while !accepted || turn.stop.is_null() {
        let message = stdio.read();
        if message["method"].is_null() {
            assert!(message["result"]["messageId"].is_string(), "{message}");
            accepted = true;
        } else if let Some(id) = message.get("id") {
            let result = answer(&message);
            stdio.send_message(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
            turn.asked.push(message);
        } else {
            let update = &message["params"]["update"];
            if let Some(state) = update["state"].as_str() {
                turn.states.push(state.to_owned());
            }
            if update["state"] == "idle" {
                turn.stop = update["stopReason"].clone();
            }
            stdio.updates.push(message);
        }
    }
    turn
}

fn chooses(option: &str) -> impl FnMut(&Value) -> Value + use<> {
    let option = option.to_owned();
    move |_| json!({"outcome": {"outcome": "selected", "optionId": option}})
}

/// Returns the kinds of the updates.
fn kinds(stdio: &StdioClient<'_>) -> Vec<String> {
    let kinds = stdio.updates.iter().map(|update| update["params"]["update"]["sessionUpdate"].as_str());
    kinds.map(|kind| kind.unwrap_or_default().to_owned()).collect()
}

#[test]
fn tools_are_allowed_denied_and_fail_as_in_the_first_version() {
    for (kind, status, decision, shown) in [
        ("read", "completed", "allow", true),
        ("read", "failed", "allow", true),
        ("execute", "failed", "deny", false),
    ] {
        let governed = Governed::bridge(&tool(kind, status));
        let mut stdio = second(&governed, &[]);
        let session = session(&mut stdio, &governed);
        let turn = turn(&mut stdio, &session, |request| panic!("{request}"));
        assert_eq!((turn.asked.len(), &turn.stop), (0, &json!("end_turn")), "{kind} {status}");
        assert_eq!(kinds(&stdio).contains(&"tool_call_update".to_owned()), shown, "{:?}", stdio.updates);
        stdio.end();
        let actions = governed.actions();
        let entries = governed.entries();
        let calls = entries.iter().filter(|entry| entry["action"] == "tool.call");
        let decisions: Vec<&Value> = calls.map(|entry| &entry["policy"]["decision"]).collect();
        assert_eq!(decisions, [decision], "{actions:?}");
        assert_eq!(actions[2..4], ["operator.invoked", "operator.running"], "{actions:?}");
        assert_eq!(actions[actions.len() - 2..], ["operator.completed", "session.closed"], "{actions:?}");
    }
}

#[test]
fn an_approval_suspends_and_resumes_the_state() {
    for (option, said) in [("allow_once", "allowed"), ("reject_once", "rejected")] {
        let governed = Governed::bridge(&asks("delete"));
        let mut stdio = second(&governed, &[]);
        let session = session(&mut stdio, &governed);
        let turn = turn(&mut stdio, &session, chooses(option));
        assert_eq!(turn.asked.len(), 1, "{:?}", turn.asked);
        let question = &turn.asked[0]["params"];
        assert_eq!(question["subject"]["toolCall"]["toolCallId"], "c", "{question}");
        assert!(question["title"].is_string() && question["_meta"]["aip44"]["approval"].is_string());
        assert_eq!(turn.states, ["running", "requires_action", "running", "idle"]);
        assert_eq!(stdio.agent_text(), said);
        stdio.end();
        let actions = governed.actions();
        for action in ["operator.suspended", "operator.resumed", "operator.completed"] {
            assert!(actions.contains(&action.to_owned()), "{actions:?}");
        }
    }
}

#[test]
fn a_tool_that_runs_although_it_is_denied_ends_the_turn_with_a_refusal() {
    let governed = Governed::bridge(
        "[[turn]]\nsteps = [\n  { tool = { id = \"c\", title = \"x\", kind = \"execute\", status = \"in_progress\", \
         input = { command = \"rm\" } } },\n  { wait_cancel = true },\n]\n",
    );
    let mut stdio = second(&governed, &[]);
    let session = session(&mut stdio, &governed);
    let turn = turn(&mut stdio, &session, |request| panic!("{request}"));
    assert_eq!(turn.stop, "refusal");
    assert_eq!(stdio.call("session/close", &json!({"sessionId": session}))["result"], json!({}));
    stdio.end();
    let actions = governed.actions();
    assert!(actions.contains(&"operator.interrupted".to_owned()), "{actions:?}");
    assert_eq!(actions.last().map(String::as_str), Some("session.closed"));
}

/// Loads the session with its history. Returns the updates.
fn reopen(stdio: &mut StdioClient<'_>, governed: &Governed, session: &str, method: &str) -> Vec<Value> {
    stdio.updates.clear();
    let cwd = governed.root().canonicalize().expect("the file exists");
    let mut params = json!({"sessionId": session, "cwd": cwd, "mcpServers": []});
    if method == "session/resume" {
        params["replayFrom"] = json!({"type": "start"});
    }
    let answer = stdio.call(method, &params);
    assert!(answer["result"].is_object(), "{answer}");
    std::mem::take(&mut stdio.updates)
}

/// Checks that the updates are marked as history, and that the log has no new entries.
#[track_caller]
fn is_history(updates: &[Value]) {
    let is_call = |update: &&Value| {
        let kind = update["params"]["update"]["sessionUpdate"].as_str().unwrap_or_default();
        kind.starts_with("tool_call")
    };
    assert!(updates.iter().any(|update| is_call(&update)), "{updates:?}");
    for update in updates {
        assert_eq!(update["params"]["_meta"]["aip44"]["replay"], true, "{update}");
    }
}

#[test]
fn history_of_a_bridge_is_flagged_and_not_new() {
    for (version, method) in [(1, "session/load"), (2, "session/resume")] {
        let governed = Governed::bridge(&tool("read", "completed"));
        let mut stdio = if version == 1 { governed.stdio() } else { second(&governed, &[]) };
        let session = session(&mut stdio, &governed);
        if version == 1 {
            stdio.prompt(&session, "go");
        } else {
            turn(&mut stdio, &session, |request| panic!("{request}"));
        }
        let flagged =
            stdio.updates.iter().filter(|update| !update["params"]["_meta"]["aip44"]["replay"].is_null());
        assert_eq!(flagged.count(), 0);
        is_history(&reopen(&mut stdio, &governed, &session, method));
        stdio.end();
        let actions = governed.actions();
        assert_eq!(actions.iter().filter(|action| *action == "tool.call").count(), 1, "{actions:?}");
        assert_eq!(actions.iter().filter(|action| *action == "operator.invoked").count(), 2, "{actions:?}");
    }
}

#[test]
fn an_operator_history_replays_in_both_versions() {
    for (version, method) in [(1, "session/load"), (2, "session/resume")] {
        let (governed, calls_made) = with_notes("{kind: mcp, server: notes, allow: [add]}");
        let call = Reply::tool_call("notes__add", json!({"text": "milk"}));
        let model = ModelServer::start(Plan::new([call, Reply::text("noted")]).models(Reply::models(&["m"])));
        let url = model.base_url();
        let args = ["--base-url", url.as_str(), "--model", "m"];
        let start = || {
            if version == 2 {
                return second(&governed, &args);
            }
            let mut command = governed.serve(&args);
            command.env("OPENAI_API_KEY", "sk-test");
            StdioClient::initialized(&governed.dir, command)
        };
        let mut stdio = start();
        let session = session(&mut stdio, &governed);
        if version == 1 {
            let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "go"}]});
            stdio.call_answering("session/prompt", &prompt, chooses("allow_once"));
        } else {
            let turn = turn(&mut stdio, &session, chooses("allow_once"));
            assert_eq!((turn.asked.len(), &turn.stop), (1, &json!("end_turn")), "{:?}", turn.asked);
            let asks = turn
                .states
                .iter()
                .position(|state| state == "requires_action")
                .expect("a state that requires action");
            assert_eq!(turn.states[asks + 1], "running", "{:?}", turn.states);
        }
        assert_eq!((stdio.agent_text().as_str(), calls_made()), ("noted", 1), "{:?}", stdio.updates);
        stdio.end();
        let before = governed.actions();
        // Another process replays what the first one stored.
        let mut stdio = start();
        is_history(&reopen(&mut stdio, &governed, &session, method));
        stdio.end();
        let actions = governed.actions();
        assert_eq!(actions[before.len()..], ["operator.invoked", "session.closed"], "{actions:?}");
        assert_eq!(calls_made(), 1);
    }
}
