//! MCP over ACP behind `narrows serve`: the test is the client with the MCP server.

use narrows_testkit::model::{ModelServer, Plan, Reply};
use serde_json::{Value, json};

use crate::serve_operator::with_notes;
use crate::serve_support::{Governed, acp};
use crate::stdio_client::StdioClient;

const TOOLS: &str = "{kind: mcp, server: notes, allow: [add]}";

/// Returns an operator whose client provides the server `notes`.
fn operator(tools: &str, capabilities: &str) -> Governed {
    let governed = Governed::with_kind("server");
    governed.tools(tools);
    let more = format!(
        "    operator: ./OPERATOR.md\n    mcp_servers: [{{name: notes, transport: http}}]\n    \
         capabilities: {{agent: {{mcpCapabilities: {{{capabilities}}}}}}}\n"
    );
    governed.file("ACP.md", &acp("server", "governance-aware", &more));
    governed
}

fn model() -> ModelServer {
    let call = Reply::tool_call("notes__add", json!({"text": "milk"}));
    ModelServer::start(Plan::new([call, Reply::text("noted")]).models(Reply::models(&["m"])))
}

fn start<'a>(governed: &'a Governed, model: &ModelServer) -> StdioClient<'a> {
    let url = model.base_url();
    let mut command = governed.serve(&["--base-url", &url, "--model", "m"]);
    command.env("OPENAI_API_KEY", "sk-test");
    StdioClient::initialized(&governed.dir, command)
}

/// Returns the response of the client's MCP server to a message; `None` for other messages.
fn notes(request: &Value) -> Option<Value> {
    assert_eq!(request["params"]["serverId"], "n-1", "{request}");
    let result = match request["params"]["method"].as_str()? {
        "tools/list" => {
            json!({"tools": [{"name": "add", "description": "Adds.", "inputSchema": {"type": "object"}}]})
        }
        "tools/call" => json!({"content": [{"type": "text", "text": "added"}]}),
        "initialize" => json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "n", "version": "1"}}),
        _ => return None,
    };
    (request["method"] == "mcp/message").then(|| json!({"result": result}))
}

/// Runs one turn with the MCP server `n-1` in the client. Returns the requests to the client by method, and the text.
fn turn(stdio: &mut StdioClient<'_>, governed: &Governed, option: &str) -> (Vec<String>, String) {
    let cwd = governed.root().canonicalize().expect("the file exists");
    let mut asked = Vec::new();
    let mut answer = |request: &Value| {
        if request["method"] == "session/request_permission" {
            asked.push("permission".to_owned());
            return json!({"outcome": {"outcome": "selected", "optionId": option}});
        }
        let method = request["params"]["method"].as_str().unwrap_or_default().to_owned();
        asked.push(method);
        notes(request).unwrap_or_else(|| json!({"error": {"code": -32601, "message": "not here"}}))
    };
    let server = json!({"type": "acp", "name": "notes", "serverId": "n-1"});
    let opened =
        stdio.call_answering("session/new", &json!({"cwd": cwd, "mcpServers": [server]}), &mut answer);
    assert!(opened["result"]["sessionId"].is_string(), "{opened}");
    let session = opened["result"]["sessionId"].clone();
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "note milk"}]});
    let answered = stdio.call_answering("session/prompt", &prompt, &mut answer);
    assert_eq!(answered["result"]["stopReason"], "end_turn", "{answered}");
    (asked, stdio.agent_text())
}

fn offered(model: &ModelServer) -> Value {
    model.seen().iter().find(|seen| seen.has("tools")).expect("it was asked").body["tools"].clone()
}

#[test]
fn a_server_in_the_client_behaves_like_a_direct_one_behind_the_gate() {
    let governed = operator(TOOLS, "http: true");
    let through = model();
    let mut stdio = start(&governed, &through);
    let (asked, said) = turn(&mut stdio, &governed, "allow_once");
    assert_eq!(said, "noted");
    assert_eq!(asked.iter().filter(|method| *method == "permission").count(), 1, "{asked:?}");
    assert_eq!(asked.iter().filter(|method| *method == "tools/call").count(), 1, "{asked:?}");
    stdio.end();
    governed.actions();
    let call = governed.entries().into_iter().rfind(|entry| entry["action"] == "tool.call").expect("a call");
    assert_eq!(call["subject"]["ref"], "notes/add");
    // The agent behaves the same with the server as a process.
    let (bare, calls_made) = with_notes(TOOLS);
    let directly = model();
    let mut stdio = start(&bare, &directly);
    let session = crate::serve_support::session(&mut stdio, &bare);
    let prompt = json!({"sessionId": session, "prompt": [{"type": "text", "text": "note milk"}]});
    let allow = json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}});
    stdio.call_answering("session/prompt", &prompt, |_| allow.clone());
    stdio.end();
    assert_eq!(calls_made(), 1);
    assert_eq!(offered(&through), offered(&directly));
}

#[test]
fn a_rejected_or_unlisted_tool_does_not_reach_the_client() {
    for (tools, option, questions) in
        [(TOOLS, "reject_once", 1), ("{kind: mcp, server: notes, allow: [remove]}", "allow_once", 0)]
    {
        let governed = operator(tools, "http: true");
        let model = model();
        let mut stdio = start(&governed, &model);
        let (asked, _) = turn(&mut stdio, &governed, option);
        assert_eq!(asked.iter().filter(|method| *method == "permission").count(), questions, "{asked:?}");
        assert!(!asked.contains(&"tools/call".to_owned()), "{asked:?}");
        stdio.end();
        governed.actions();
    }
}

#[test]
fn unlisted_servers_of_any_kind_are_refused() {
    let governed = operator(TOOLS, "http: true");
    let model = model();
    let mut stdio = start(&governed, &model);
    let cwd = governed.root().canonicalize().expect("the file exists");
    for (server, code) in [
        (json!({"type": "acp", "name": "other", "serverId": "x"}), -32015),
        // Only the manifest names servers to start or reach.
        (json!({"name": "notes", "command": "sh", "args": [], "env": []}), -32015),
        (json!({"type": "http", "name": "notes", "url": "http://127.0.0.1:9/", "headers": []}), -32015),
        (json!({"type": "sse", "name": "notes", "url": "http://127.0.0.1:9/", "headers": []}), -32602),
    ] {
        let answer = stdio.call("session/new", &json!({"cwd": cwd, "mcpServers": [server]}));
        assert_eq!(answer["error"]["code"], code, "{server} {answer}");
    }
    stdio.end();
    let refused = governed.actions().into_iter().filter(|action| action == "session.refused").count();
    assert_eq!(refused, 4);
}

#[test]
fn undeclared_tools_are_not_offered() {
    let governed = operator(TOOLS, "http: false");
    let model = model();
    let url = model.base_url();
    let mut command = governed.serve(&["--base-url", &url, "--model", "m"]);
    command.env("OPENAI_API_KEY", "sk-test");
    let mut stdio = StdioClient::start(&governed.dir, command);
    let answer = stdio.call("initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
    assert_eq!(answer["result"]["agentCapabilities"]["mcpCapabilities"]["acp"], false, "{answer}");
    let cwd = governed.root().canonicalize().expect("the file exists");
    let server = json!({"type": "acp", "name": "notes", "serverId": "x"});
    let answer = stdio.call("session/new", &json!({"cwd": cwd, "mcpServers": [server]}));
    assert_eq!(answer["error"]["data"]["code"], "undeclared_capability", "{answer}");
    stdio.end();
}
