//! `narrows serve` of a bridge: real processes on both sides of the gate, and their log.

use serde_json::{Value, json};

use crate::serve_support::{Governed, READ, open, session};

const FAIL: &str = r#"
[[turn]]
steps = [
  { tool = { id = "c", title = "Look", kind = "read", path = "a.txt" } },
  { tool_update = { id = "c", status = "failed", text = "gone" } },
  { say = "done" },
]
"#;

/// Returns a script that asks before it acts, and prints the answer.
pub(crate) fn asks(kind: &str) -> String {
    format!(
        r#"
[[turn]]
steps = [
  {{ tool = {{ id = "c", title = "Do it", kind = "{kind}", path = "a.txt" }} }},
  {{ ask = {{ tool = "c", title = "Do it?", options = ["allow_once", "reject_once"], on_allow = [
    {{ tool_update = {{ id = "c", status = "completed", text = "did" }} }},
    {{ say = "allowed" }},
  ], on_reject = [
    {{ tool_update = {{ id = "c", status = "failed", text = "no" }} }},
    {{ say = "rejected" }},
  ] }} }},
]
"#
    )
}

/// Runs one turn and answers requests to the client with `choice`. Returns the text, the requests, and the response
/// to the prompt.
fn turn(governed: &Governed, choice: &str) -> (String, Vec<Value>, Value) {
    let mut stdio = governed.stdio();
    let session = session(&mut stdio, governed);
    let mut asked = Vec::new();
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "go"}]});
    let answer = stdio.call_answering("session/prompt", &prompt, |request| {
        asked.push(request.clone());
        json!({"outcome": {"outcome": "selected", "optionId": choice}})
    });
    let said = stdio.agent_text();
    let ended = stdio.end();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    (said, asked, answer)
}

/// Returns the last log entry about a call.
fn call(governed: &Governed) -> Value {
    let entries = governed.entries();
    entries.into_iter().rfind(|entry| entry["action"] == "tool.call").unwrap_or_default()
}

#[test]
fn an_allowed_tool_runs_and_is_recorded() {
    let governed = Governed::bridge(READ);
    let (said, asked, answer) = turn(&governed, "");
    assert_eq!((said.as_str(), asked.len()), ("done", 0));
    assert_eq!(answer["result"]["stopReason"], "end_turn");
    assert_eq!(answer["result"]["_meta"]["aip44"]["operator"], "tidy");
    assert_eq!(
        governed.actions(),
        [
            "manifest.pinned",
            "sandbox.applied",
            "operator.invoked",
            "policy.resolved",
            "operator.running",
            "tool.call",
            "operator.completed",
            "session.closed"
        ]
    );
    let call = call(&governed);
    assert_eq!(call["policy"], json!({"ref": "looking", "decision": "allow"}));
    assert_eq!(call["metadata"]["aip44"]["approval"], "auto");
    let who = call["metadata"]["aip44"]["identity"].as_str().expect("an identity");
    assert!(who.starts_with("user:"), "{who}");
}

#[test]
fn a_denied_tool_is_neither_asked_for_nor_shown() {
    let governed = Governed::bridge(&asks("execute"));
    let mut stdio = governed.stdio();
    let session = session(&mut stdio, &governed);
    let answer = stdio.prompt(&session, "go");
    assert_eq!(answer["result"]["stopReason"], "end_turn");
    assert_eq!(stdio.agent_text(), "rejected");
    let kinds = stdio.updates.iter().map(|update| &update["params"]["update"]["sessionUpdate"]);
    assert!(kinds.clone().all(|kind| kind == "agent_message_chunk"), "{:?}", stdio.updates);
    stdio.end();
    let actions = governed.actions();
    assert!(actions.contains(&"policy.resolved".to_owned()), "{actions:?}");
    let resolved = governed.entries().into_iter().find(|entry| entry["action"] == "policy.resolved");
    assert_eq!(resolved.expect("a resolved entry")["policy"], json!({"ref": "shell", "decision": "deny"}));
}

#[test]
fn a_tool_that_runs_although_it_is_denied_ends_the_turn() {
    let governed = Governed::bridge(
        "[[turn]]\nsteps = [\n  { tool = { id = \"c\", title = \"x\", kind = \"execute\", status = \"in_progress\", \
         input = { command = \"rm\" } } },\n  { wait_cancel = true },\n]\n",
    );
    let (_, asked, answer) = turn(&governed, "");
    assert_eq!((asked.len(), &answer["result"]["stopReason"]), (0, &json!("refusal")));
    let actions = governed.actions();
    assert!(actions.contains(&"operator.interrupted".to_owned()), "{actions:?}");
}

#[test]
fn an_approved_tool_runs_after_its_approval() {
    let governed = Governed::bridge(&asks("delete"));
    let (said, asked, _) = turn(&governed, "allow_once");
    assert_eq!((said.as_str(), asked.len()), ("allowed", 1));
    assert!(asked[0]["params"]["_meta"]["aip44"]["approval"].is_string(), "{asked:?}");
    let actions = governed.actions();
    for action in ["operator.suspended", "operator.resumed", "tool.call"] {
        assert!(actions.contains(&action.to_owned()), "{actions:?}");
    }
    let approval = &call(&governed)["metadata"]["aip44"]["approval"];
    assert!(approval.to_string().contains("user:"), "{approval}");
}

#[test]
fn a_rejected_tool_does_not_run() {
    let governed = Governed::bridge(&asks("delete"));
    let (said, asked, _) = turn(&governed, "reject_once");
    assert_eq!((said.as_str(), asked.len()), ("rejected", 1));
    governed.actions();
}

#[test]
fn a_failed_tool_is_recorded_with_its_error() {
    let governed = Governed::bridge(FAIL);
    turn(&governed, "");
    governed.actions();
    assert!(call(&governed)["output"]["error"].to_string().contains("gone"));
}

#[test]
fn a_session_outside_the_workspace_is_refused() {
    let governed = Governed::bridge(READ);
    let mut stdio = governed.stdio();
    for outside in [governed.dir.path().to_owned(), "/".into(), governed.root().join("../data")] {
        let answer = open(&mut stdio, &outside);
        assert_eq!(answer["error"]["data"]["code"], "cwd_outside_root", "{answer}");
        assert_eq!(answer["error"]["code"], -32602);
    }
    std::os::unix::fs::symlink("/", governed.root().join("out")).expect("a link");
    let answer = open(&mut stdio, &governed.root().canonicalize().expect("the file exists").join("out"));
    assert_eq!(answer["error"]["data"]["code"], "cwd_outside_root", "{answer}");
    stdio.end();
    let refused = governed.actions().into_iter().filter(|action| action == "session.refused").count();
    assert_eq!(refused, 4);
}

#[test]
fn undeclared_capabilities_are_not_offered() {
    // The tier does not let the agent use client files, but the agent asks for one.
    let governed = Governed::bridge("[[turn]]\nsteps = [{ read = \"a.txt\" }, { say = \"got {last}\" }]\n");
    let mut stdio = crate::stdio_client::StdioClient::start(&governed.dir, governed.serve(&[]));
    let offers = json!({"fs": {"readTextFile": true, "writeTextFile": true}, "terminal": true});
    stdio.call("initialize", &json!({"protocolVersion": 1, "clientCapabilities": offers}));
    let session = session(&mut stdio, &governed);
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "go"}]});
    let mut asked = 0;
    stdio.call_answering("session/prompt", &prompt, |_| {
        asked += 1;
        json!({"content": "secret"})
    });
    assert_eq!(asked, 0, "it never reaches the client");
    assert!(!stdio.agent_text().contains("secret"));
    stdio.end();
    governed.actions();
}

#[test]
fn a_log_continues_after_a_restart() {
    let governed = Governed::bridge(READ);
    turn(&governed, "");
    turn(&governed, "");
    let actions = governed.actions();
    assert_eq!(actions.iter().filter(|action| *action == "manifest.pinned").count(), 1);
    assert_eq!(actions.iter().filter(|action| *action == "session.closed").count(), 2);
}

#[test]
fn a_client_runs_one_turn_through_the_gate() {
    let governed = Governed::with_agent("client", READ);
    let told = governed.dir.output_of(governed.serve(&["--", "go", "on"]));
    assert!(told.starts_with("done") && told.contains("--- exit 0 ---"), "{told}");
    let actions = governed.actions();
    assert_eq!(actions[2..4], ["operator.invoked", "policy.resolved"], "{actions:?}");
    assert_eq!(actions.last().map(String::as_str), Some("session.closed"));
}

#[test]
fn a_client_without_a_user_denies_what_needs_approval() {
    let governed = Governed::with_agent("client", &asks("delete"));
    let told = governed.dir.output_of(governed.serve(&["--", "go"]));
    assert!(told.starts_with("rejected"), "{told}");
    governed.actions();
    let denied = Governed::with_agent("client", &asks("execute"));
    let told = denied.dir.output_of(denied.serve(&["--", "go"]));
    assert!(told.starts_with("rejected"), "{told}");
}

#[test]
fn only_a_client_takes_a_prompt() {
    let governed = Governed::bridge(READ);
    let told = governed.dir.output_of(governed.serve(&["--", "go"]));
    assert!(told.contains("takes no prompt") && told.contains("--- exit 2 ---"), "{told}");
    let client = Governed::with_agent("client", READ);
    let told = client.dir.output_of(client.serve(&[]));
    assert!(told.contains("needs a prompt") && told.contains("--- exit 2 ---"), "{told}");
}
