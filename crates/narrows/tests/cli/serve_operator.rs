//! `narrows serve` of an operator: the built-in agent behind the gate, with the demo model.

use narrows_testkit::model::{ModelServer, Plan, Reply};
use serde_json::{Value, json};

use crate::serve_support::{Governed, acp, session};
use crate::stdio_client::StdioClient;

/// Returns a server whose client may offer its files and its terminal.
fn server() -> Governed {
    let governed = Governed::with_kind("server");
    let more = "    operator: ./OPERATOR.md\n    capabilities: {client: {fs: {readTextFile: true, writeTextFile: true}, \
        terminal: true}}\n";
    governed.file("ACP.md", &acp("server", "governance-aware", more));
    governed
}

/// Runs one turn with the demo model. Returns the text, the requests to the client, and the updates.
fn turn(governed: &Governed, prompt: &str) -> (String, Vec<Value>, Vec<Value>) {
    turn_with(governed, "builtin:demo", prompt, &json!({"content": "what is in it"}))
}

/// Runs one turn like [`turn`], with the model at `url`. `reply` answers the requests.
fn turn_with(
    governed: &Governed,
    url: &str,
    prompt: &str,
    reply: &Value,
) -> (String, Vec<Value>, Vec<Value>) {
    let mut command = governed.serve(&["--base-url", url, "--model", "m"]);
    command.env("OPENAI_API_KEY", "sk-test");
    let mut stdio = StdioClient::start(&governed.dir, command);
    let offers = json!({"fs": {"readTextFile": true, "writeTextFile": true}, "terminal": true});
    let answer = stdio.call("initialize", &json!({"protocolVersion": 1, "clientCapabilities": offers}));
    assert_eq!(answer["result"]["_meta"]["aip44"]["tier"], "governance-aware", "{answer}");
    let session = session(&mut stdio, governed);
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": prompt}]});
    let mut asked = Vec::new();
    let answer = stdio.call_answering("session/prompt", &prompt, |request| {
        asked.push(request.clone());
        reply.clone()
    });
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    let said = stdio.agent_text();
    let updates = stdio.updates.clone();
    let ended = stdio.end();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.stderr);
    (said, asked, updates)
}

fn calls(updates: &[Value]) -> usize {
    updates.iter().filter(|update| update["params"]["update"]["sessionUpdate"] == "tool_call").count()
}

#[test]
fn an_operator_answers_and_reads_allowed_files() {
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
fn a_change_is_approved_before_it_is_announced() {
    let governed = server();
    let (_, asked, updates) = turn(&governed, "write a.txt");
    // The answer allows nothing.
    assert_eq!((asked.len(), calls(&updates)), (1, 0), "{asked:?} {updates:?}");
    assert_eq!(asked[0]["method"], "session/request_permission");
    assert_eq!(asked[0]["params"]["toolCall"]["title"], "write_file");
    let actions = governed.actions();
    assert!(actions.contains(&"operator.suspended".to_owned()), "{actions:?}");
}

#[test]
fn an_approved_write_needs_no_second_approval() {
    let governed = server();
    let arguments = json!({"path": "a.txt", "content": "hello"});
    let call = Reply::tool_call("write_file", arguments);
    let model = ModelServer::start(Plan::new([call, Reply::text("written")]).models(Reply::models(&["m"])));
    let url = model.base_url();
    let mut command = governed.serve(&["--base-url", &url, "--model", "m"]);
    command.env("OPENAI_API_KEY", "sk-test");
    let mut stdio = StdioClient::start(&governed.dir, command);
    let offers = json!({"fs": {"readTextFile": true, "writeTextFile": true}});
    stdio.call("initialize", &json!({"protocolVersion": 1, "clientCapabilities": offers}));
    let session = session(&mut stdio, &governed);
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "go"}]});
    let mut asked = Vec::new();
    stdio.call_answering("session/prompt", &prompt, |request| {
        asked.push(request.clone());
        match request["method"].as_str() {
            Some("session/request_permission") => {
                json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}})
            }
            Some("fs/read_text_file") => json!({"content": "before"}),
            _ => json!({}),
        }
    });
    let of = |method: &str| asked.iter().filter(|request| request["method"] == method).collect::<Vec<_>>();
    assert_eq!(
        (of("session/request_permission").len(), stdio.agent_text().as_str()),
        (1, "written"),
        "{asked:?}"
    );
    let written = of("fs/write_text_file");
    assert_eq!((written.len(), &written[0]["params"]["content"]), (1, &json!("hello")));
    stdio.end();
    governed.actions();
    let entries = governed.entries();
    let calls = entries.iter().filter(|entry| entry["action"] == "tool.call");
    let by: Vec<&Value> = calls
        .filter(|entry| {
            [&entry["input"], &entry["input"]["rawInput"]].iter().any(|input| input["content"] == "hello")
        })
        .map(|entry| &entry["metadata"]["aip44"]["approval"])
        .collect();
    assert_eq!(by.len(), 2, "{entries:?}");
    assert!(by.iter().all(|approval| approval.to_string().contains("user:")), "{by:?}");
}

/// An MCP server with one tool.
const SERVER: &str = r#"while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"n","version":"1"}}' ;;
    *'"tools/list"'*) result='{"tools":[{"name":"add","description":"Adds.","inputSchema":{"type":"object"}}]}' ;;
    *'"tools/call"'*) echo called >> "$0.calls"; result='{"content":[{"type":"text","text":"added"}]}' ;;
    *) continue ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;

/// Returns a server whose manifest has an MCP server, and a counter of its tool calls.
pub(crate) fn with_notes(tools: &str) -> (Governed, impl Fn() -> usize) {
    let governed = server();
    let script = governed.dir.file("notes.sh", SERVER);
    governed.tools(tools);
    let more =
        "    operator: ./OPERATOR.md\n    mcp_servers: [{name: notes, transport: stdio, ref: ./NOTES.md}]\n";
    governed.file("ACP.md", &acp("server", "governance-aware", more));
    governed.file("NOTES.md", &format!("---\ncommand: sh\nargs: ['{}']\n---\n", script.display()));
    let calls = script.with_file_name("notes.sh.calls");
    (governed, move || std::fs::read_to_string(&calls).map_or(0, |text| text.lines().count()))
}

fn model() -> ModelServer {
    let call = Reply::tool_call("notes__add", json!({"text": "milk"}));
    ModelServer::start(Plan::new([call, Reply::text("noted")]).models(Reply::models(&["m"])))
}

#[test]
fn tools_of_a_manifest_server_pass_the_gate() {
    let (governed, calls_made) = with_notes("{kind: mcp, server: notes, allow: [add]}");
    let allow = json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}});
    let model = model();
    let (said, asked, updates) = turn_with(&governed, &model.base_url(), "note milk", &allow);
    assert_eq!((said.as_str(), calls_made()), ("noted", 1), "{updates:?}");
    // Only the gate asked, and only once.
    assert_eq!((asked.len(), calls(&updates)), (1, 1), "{asked:?}");
    assert_eq!(asked[0]["params"]["toolCall"]["title"], "notes/add");
    governed.actions();
    let call = governed.entries().into_iter().rfind(|entry| entry["action"] == "tool.call").expect("a call");
    assert_eq!((&call["subject"]["ref"], &call["input"]["text"]), (&json!("notes/add"), &json!("milk")));
    assert!(call["metadata"]["aip44"]["approval"].to_string().contains("user:"), "{call}");
}

#[test]
fn a_tool_of_a_server_that_the_operator_does_not_have_is_not_called() {
    let (governed, calls_made) = with_notes("{kind: mcp, server: notes, allow: [remove]}");
    let model = model();
    let (said, asked, updates) = turn_with(&governed, &model.base_url(), "note milk", &json!({}));
    assert_eq!(
        (said.as_str(), calls_made(), asked.len(), calls(&updates)),
        ("noted", 0, 0, 0),
        "{updates:?}"
    );
    governed.actions();
}
