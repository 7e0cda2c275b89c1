//! `narrows serve` of a bridge in a proxy chain. The test is the conductor and both neighbors.

use serde_json::{Value, json};

use crate::serve_support::{Governed, session};
use crate::stdio_client::StdioClient;

/// Returns a bridge whose own agent cannot be started.
fn bridge() -> Governed {
    let governed = Governed::bridge("[[turn]]\nsteps = [{ say = \"never\" }]\n");
    governed.demand(">=99.0.0");
    governed
}

/// Returns an initialized conductor, and the message of the proxy to its successor.
fn conduct(governed: &Governed) -> (StdioClient<'_>, Value, Value) {
    let mut stdio = StdioClient::start(&governed.dir, governed.serve(&[]));
    let mut forwarded = Value::Null;
    let params = json!({"protocolVersion": 1, "clientCapabilities": {"terminal": true}});
    let answer = stdio.call_answering("proxy/initialize", &params, |request| {
        forwarded = request.clone();
        json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}})
    });
    (stdio, forwarded, answer)
}

/// Opens a session in the workspace, to which the successor gives the id `s`.
fn opened(stdio: &mut StdioClient<'_>, governed: &Governed) {
    let cwd = governed.root().canonicalize().expect("the file exists");
    let params = json!({"cwd": cwd, "mcpServers": []});
    let answer = stdio.call_answering("session/new", &params, |request| {
        assert_eq!(
            (&request["method"], &request["params"]["method"]),
            (&json!("proxy/successor"), &json!("session/new"))
        );
        json!({"sessionId": "s"})
    });
    assert_eq!(answer["result"]["sessionId"], "s", "{answer}");
}

fn wrapped(id: Option<&str>, method: &str, params: &Value) -> Value {
    let mut message = json!({"jsonrpc": "2.0", "method": "proxy/successor", "params": {"method": method, "params": params}});
    if let Some(id) = id {
        message["id"] = id.into();
    }
    message
}

fn update(update: &Value) -> Value {
    wrapped(None, "session/update", &json!({"sessionId": "s", "update": update}))
}

#[test]
fn a_proxy_represents_its_successor() {
    let governed = bridge();
    let (stdio, forwarded, answer) = conduct(&governed);
    assert_eq!(forwarded["method"], "proxy/successor");
    assert_eq!(forwarded["params"]["method"], "initialize");
    // The manifest declares no terminal.
    assert_eq!(forwarded["params"]["params"]["clientCapabilities"]["terminal"], false);
    assert_eq!(answer["result"]["protocolVersion"], 1, "{answer}");
    assert_eq!(answer["result"]["_meta"]["aip44"]["operator"], "tidy");
    let ended = stdio.end();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    assert!(!ended.stderr.contains("not started"), "{}", ended.stderr);
}

#[test]
fn the_gate_filters_between_its_neighbors() {
    let governed = bridge();
    let (mut stdio, ..) = conduct(&governed);
    opened(&mut stdio, &governed);
    stdio.send("session/prompt", &json!({"sessionId": "s", "prompt": []}));
    let prompt = stdio.read();
    assert_eq!(prompt["params"]["method"], "session/prompt", "{prompt}");
    let call = |id: &str, kind: &str, status: &str| {
        update(
            &json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": "x", "kind": kind, "status": status,
            "rawInput": {"path": "a.txt"}}),
        )
    };
    stdio.send_message(&call("one", "execute", "pending"));
    stdio.send_message(&call("two", "read", "completed"));
    let shown = stdio.read();
    assert_eq!(
        (&shown["method"], &shown["params"]["update"]["toolCallId"]),
        (&json!("session/update"), &json!("two"))
    );
    let options = json!([{"optionId": "y", "name": "y", "kind": "allow_once"}, {"optionId": "n", "name": "n", "kind": "reject_once"}]);
    let asks = json!({"sessionId": "s", "toolCall": {"toolCallId": "three", "kind": "delete", "rawInput": {"path": "a.txt"}},
        "options": options});
    stdio.send_message(&wrapped(Some("from behind"), "session/request_permission", &asks));
    let question = stdio.read();
    assert_eq!(question["method"], "session/request_permission", "{question}");
    let yes = json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}});
    stdio.send_message(&json!({"jsonrpc": "2.0", "id": question["id"], "result": yes}));
    let answer = stdio.read();
    assert_eq!(
        (&answer["id"], &answer["result"]["outcome"]["optionId"]),
        (&json!("from behind"), &json!("y"))
    );
    // An undeclared request, and a message that an agent must not send.
    stdio.send_message(&wrapped(
        Some("file"),
        "fs/read_text_file",
        &json!({"sessionId": "s", "path": "/etc/passwd"}),
    ));
    assert_eq!(stdio.read()["error"]["code"], -32601);
    stdio.send_message(&wrapped(Some("nested"), "proxy/successor", &json!({"method": "x"})));
    let refused = stdio.read();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("nested"), &json!(-32600)));
    stdio.send_message(&json!({"jsonrpc": "2.0", "id": prompt["id"], "result": {"stopReason": "end_turn"}}));
    let ended = stdio.wait_for_response(|request| panic!("{request}"));
    assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
    assert_eq!(stdio.end().status.code(), Some(0));
    let actions = governed.actions();
    for action in
        ["operator.suspended", "operator.resumed", "tool.call", "operator.completed", "session.closed"]
    {
        assert!(actions.contains(&action.to_owned()), "{actions:?}");
    }
}

#[test]
fn a_chain_whose_agent_does_not_stop_is_left() {
    let governed = bridge();
    let (mut stdio, ..) = conduct(&governed);
    opened(&mut stdio, &governed);
    stdio.send("session/prompt", &json!({"sessionId": "s", "prompt": []}));
    stdio.read();
    stdio.send_message(&update(
        &json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "x", "kind": "execute",
        "status": "in_progress", "rawInput": {"command": "rm"}}),
    ));
    assert_eq!(stdio.read()["params"]["method"], "session/cancel");
    let answer = stdio.wait_for_response(|request| panic!("{request}"));
    assert_eq!(answer["error"]["code"], -32010, "{answer}");
    let ended = stdio.wait();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("left the proxy chain because of the agent"), "{}", ended.stderr);
    assert!(governed.actions().contains(&"operator.interrupted".to_owned()));
}

#[test]
fn a_disconnected_conductor_leaves_a_closed_log() {
    let governed = bridge();
    let (mut stdio, ..) = conduct(&governed);
    opened(&mut stdio, &governed);
    stdio.send("session/prompt", &json!({"sessionId": "s", "prompt": []}));
    stdio.read();
    assert_eq!(stdio.end().status.code(), Some(0));
    assert_eq!(
        governed.actions(),
        ["manifest.pinned", "operator.invoked", "operator.interrupted", "session.closed"]
    );
}

#[test]
fn only_the_first_message_makes_a_proxy_and_only_of_a_bridge() {
    let governed = Governed::bridge("[[turn]]\nsteps = [{ say = \"mine\" }]\n");
    let mut stdio = governed.stdio();
    for method in ["proxy/initialize", "proxy/successor"] {
        let answer = stdio.call(method, &json!({"protocolVersion": 1, "method": "x"}));
        assert_eq!(answer["error"]["code"], -32600, "{answer}");
    }
    // A client that is not a conductor gets the bridge's own agent.
    let session = session(&mut stdio, &governed);
    stdio.prompt(&session, "go");
    assert_eq!(stdio.agent_text(), "mine");
    stdio.end();
    let server = Governed::with_agent("server", "[[turn]]\nsteps = [{ say = \"mine\" }]\n");
    let mut stdio = StdioClient::start(&server.dir, server.serve(&[]));
    let answer = stdio.call("proxy/initialize", &json!({"protocolVersion": 1}));
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    stdio.end();
}
