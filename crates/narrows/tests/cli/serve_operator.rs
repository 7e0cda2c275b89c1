//! `narrows serve` of an operator: the built-in agent behind the gate, with the demo model.

use serde_json::{Value, json};

use crate::serve_support::{Governed, acp, session};
use crate::talk::Talk;

/// A server whose client may offer its files, and its terminal.
fn server() -> Governed {
    let governed = Governed::of("server");
    let more = "    operator: ./OPERATOR.md\n    capabilities: {client: {fs: {readTextFile: true, writeTextFile: true}, \
        terminal: true}}\n";
    governed.file("ACP.md", &acp("server", "governance-aware", more));
    governed
}

/// One turn with the demo model. What it said, what it asked of the client, and the updates.
fn turn(governed: &Governed, prompt: &str) -> (String, Vec<Value>, Vec<Value>) {
    let mut talk = Talk::start(&governed.place, governed.serve(&["--base-url", "builtin:demo"]));
    let offers = json!({"fs": {"readTextFile": true, "writeTextFile": true}, "terminal": true});
    let answer = talk.ask("initialize", &json!({"protocolVersion": 1, "clientCapabilities": offers}));
    assert_eq!(answer["result"]["_meta"]["aip44"]["tier"], "governance-aware", "{answer}");
    let session = session(&mut talk, governed);
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": prompt}]});
    let mut asked = Vec::new();
    let answer = talk.ask_and_answer("session/prompt", &prompt, |request| {
        asked.push(request.clone());
        json!({"content": "what is in it"})
    });
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    let said = talk.said();
    let updates = talk.updates.clone();
    let ended = talk.end();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    (said, asked, updates)
}

fn calls(updates: &[Value]) -> usize {
    updates.iter().filter(|update| update["params"]["update"]["sessionUpdate"] == "tool_call").count()
}

#[test]
fn an_operator_answers_and_reads_what_it_may() {
    let governed = server();
    let (said, asked, updates) = turn(&governed, "read a.txt");
    assert!(!said.is_empty());
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0]["method"], "fs/read_text_file");
    assert_eq!(calls(&updates), 1, "{updates:?}");
    let actions = governed.actions();
    assert_eq!(actions.iter().filter(|action| *action == "tool.call").count(), 2, "{actions:?}");
}

#[test]
fn a_tool_that_is_denied_is_neither_announced_nor_run() {
    let governed = server();
    let (said, asked, updates) = turn(&governed, "run ls");
    assert_eq!((asked.len(), calls(&updates)), (0, 0), "{said} {asked:?} {updates:?}");
    governed.actions();
    let entries = governed.entries();
    let denied = entries.iter().find(|entry| entry["action"] == "policy.resolved").expect("it was decided");
    assert_eq!(denied["policy"]["decision"], "deny", "{denied}");
}

#[test]
fn a_tool_that_the_operator_does_not_have_is_not_used() {
    let governed = server();
    governed.tools("{id: read_file}");
    let (_, asked, updates) = turn(&governed, "write a.txt");
    assert_eq!((asked.len(), calls(&updates)), (0, 0), "{asked:?} {updates:?}");
    governed.actions();
}

#[test]
fn what_changes_something_is_asked_for_before_it_is_announced() {
    let governed = server();
    let (_, asked, updates) = turn(&governed, "write a.txt");
    // The answer is none that allows.
    assert_eq!((asked.len(), calls(&updates)), (1, 0), "{asked:?} {updates:?}");
    assert_eq!(asked[0]["method"], "session/request_permission");
    assert_eq!(asked[0]["params"]["toolCall"]["title"], "write_file");
    let actions = governed.actions();
    assert!(actions.contains(&"operator.suspended".to_owned()), "{actions:?}");
}
