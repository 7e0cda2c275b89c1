//! Snapshots of whole conversations with tools. Ids that change with every run are replaced.

use narrows_testkit::model::{ModelServer, Reply};
use serde_json::{Value, json};

use crate::common::{Client, settings};
use crate::simulated_user::SimulatedUser;

fn script(client: &Client) -> String {
    let mut names = Vec::new();
    // The time of the update with the commands depends on the duration of the turn.
    let told = |message: &&Value| message["params"]["update"]["sessionUpdate"] != "available_commands_update";
    let lines = client.messages.iter().filter(told).map(|message| {
        let (head, value) = match (message["method"].as_str(), message.get("result")) {
            (Some("session/update"), _) => ("update", &message["params"]["update"]),
            (Some(method), _) => (method, &message["params"]),
            (None, Some(result)) => ("result", result),
            (None, None) => ("error", &message["error"]),
        };
        format!("{head} {}\n", plain("", value, &mut names))
    });
    lines.collect()
}

fn plain(key: &str, value: &Value, names: &mut Vec<String>) -> String {
    match value {
        Value::Object(members) if !matches!(key, "capabilities" | "agentCapabilities" | "models") => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_unstable_by_key(|(name, _)| *name);
            let members: Vec<String> =
                sorted.iter().map(|(name, value)| format!("{name}: {}", plain(name, value, names))).collect();
            format!("{{{}}}", members.join(", "))
        }
        Value::Array(items) if !matches!(key, "configOptions" | "availableCommands" | "options") => {
            let items: Vec<String> = items.iter().map(|item| plain("", item, names)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(_) | Value::Array(_) => "…".to_owned(),
        Value::String(_) if matches!(key, "updatedAt" | "version") => "…".to_owned(),
        Value::String(text) if text.len() == 36 && text.matches('-').count() == 4 => {
            let at = names.iter().position(|name| name == text).unwrap_or_else(|| {
                names.push(text.clone());
                names.len() - 1
            });
            format!("#{}", at + 1)
        }
        value => value.to_string(),
    }
}

fn done() -> Reply {
    Reply::text("That is all I wanted to do.").at_once()
}

#[tokio::test]
async fn version_1_edits_a_file_and_runs_a_command() {
    let edit = ("edit_file", json!({"path": "a.txt", "old": "b", "new": "x"}));
    let run = ("run_command", json!({"command": "make", "args": ["all"]}));
    let server = ModelServer::start([Reply::tool_calls(&[edit, run]), done()]);
    let mut client = SimulatedUser::new(&[("/project/a.txt", "a b c")]).client(settings(&server)).await;
    let session = client.session().await;
    client.prompt(&session, "Go").await.unwrap();
    insta::assert_snapshot!(script(&client), @r##"
    result {agentCapabilities: …, agentInfo: {name: "narrows", title: "Narrows", version: …}, authMethods: [], protocolVersion: 1}
    result {configOptions: …, models: …, sessionId: #1}
    update {sessionUpdate: "session_info_update", title: "Go", updatedAt: …}
    fs/read_text_file {path: "/project/a.txt", sessionId: #1}
    update {content: [{newText: "a x c", oldText: "a b c", path: "/project/a.txt", type: "diff"}], kind: "edit", locations: [{path: "/project/a.txt"}], name: "edit_file", rawInput: {new: "x", old: "b", path: "a.txt"}, sessionUpdate: "tool_call", status: "pending", title: "Edit a.txt", toolCallId: #2}
    session/request_permission {options: …, sessionId: #1, toolCall: {content: [{newText: "a x c", oldText: "a b c", path: "/project/a.txt", type: "diff"}], kind: "edit", locations: [{path: "/project/a.txt"}], name: "edit_file", rawInput: {new: "x", old: "b", path: "a.txt"}, status: "pending", title: "Edit a.txt", toolCallId: #2}}
    update {sessionUpdate: "tool_call_update", status: "in_progress", toolCallId: #2}
    fs/read_text_file {path: "/project/a.txt", sessionId: #1}
    fs/write_text_file {content: "a x c", path: "/project/a.txt", sessionId: #1}
    update {rawOutput: {bytes: 5}, sessionUpdate: "tool_call_update", status: "completed", toolCallId: #2}
    update {kind: "execute", name: "run_command", rawInput: {args: ["all"], command: "make"}, sessionUpdate: "tool_call", status: "pending", title: "`make all`", toolCallId: #3}
    session/request_permission {options: …, sessionId: #1, toolCall: {kind: "execute", name: "run_command", rawInput: {args: ["all"], command: "make"}, status: "pending", title: "`make all`", toolCallId: #3}}
    update {sessionUpdate: "tool_call_update", status: "in_progress", toolCallId: #3}
    terminal/create {args: ["all"], command: "make", cwd: "/project", outputByteLimit: 65536, sessionId: #1}
    update {content: [{terminalId: "t1", type: "terminal"}], sessionUpdate: "tool_call_update", toolCallId: #3}
    terminal/wait_for_exit {sessionId: #1, terminalId: "t1"}
    terminal/output {sessionId: #1, terminalId: "t1"}
    terminal/release {sessionId: #1, terminalId: "t1"}
    update {rawOutput: {exitCode: 0, signal: null, truncated: false}, sessionUpdate: "tool_call_update", status: "completed", toolCallId: #3}
    update {content: {text: "That is all I wanted ", type: "text"}, messageId: #4, sessionUpdate: "agent_message_chunk"}
    update {content: {text: "to ", type: "text"}, messageId: #4, sessionUpdate: "agent_message_chunk"}
    update {content: {text: "do.", type: "text"}, messageId: #4, sessionUpdate: "agent_message_chunk"}
    result {stopReason: "end_turn", usage: {inputTokens: 20, outputTokens: 13, totalTokens: 33}}
    "##);
    client.leave().await;
}

#[tokio::test]
async fn version_2_asks_and_calls_a_tool() {
    let server = crate::bridge::calling("act");
    let mut client = Client::v2(settings(&server)).await;
    client.host(crate::bridge::host(Some("allow_once")));
    let session = crate::bridge::open(&mut client).await;
    // Other tests check the messages to the client's server.
    client.messages.clear();
    crate::v2_prompts::prompt(&mut client, &session, "Go").await;
    crate::v2_prompts::idle(&mut client).await;
    client.messages.retain(|message| message["method"] != "mcp/message");
    insta::assert_snapshot!(script(&client), @r##"
    result {messageId: #1}
    update {content: [{text: "Go", type: "text"}], messageId: #1, sessionUpdate: "user_message"}
    update {sessionUpdate: "state_update", state: "running"}
    update {sessionUpdate: "session_info_update", title: "Go", updatedAt: …}
    update {capabilities: …, kind: "other", name: "mine__act", rawInput: {at: "it"}, sessionUpdate: "tool_call_update", status: "pending", title: "act (mine)", toolCallId: #2}
    update {sessionUpdate: "state_update", state: "requires_action"}
    session/request_permission {options: …, sessionId: #3, subject: {toolCall: {capabilities: …, kind: "other", name: "mine__act", rawInput: {at: "it"}, status: "pending", title: "act (mine)", toolCallId: #2}, type: "tool_call"}, title: "act (mine)"}
    update {sessionUpdate: "state_update", state: "running"}
    update {capabilities: …, sessionUpdate: "tool_call_update", status: "in_progress", toolCallId: #2}
    update {capabilities: null, content: [{content: {text: "act {\"at\":\"it\"}", type: "text"}, type: "content"}], rawOutput: null, sessionUpdate: "tool_call_update", status: "completed", toolCallId: #2}
    update {content: {text: "That is all I wanted ", type: "text"}, messageId: #4, sessionUpdate: "agent_message_chunk"}
    update {content: {text: "to ", type: "text"}, messageId: #4, sessionUpdate: "agent_message_chunk"}
    update {content: {text: "do.", type: "text"}, messageId: #4, sessionUpdate: "agent_message_chunk"}
    update {sessionUpdate: "state_update", state: "idle", stopReason: "end_turn", usage: {inputTokens: 20, outputTokens: 10, totalTokens: 30}}
    "##);
    client.leave().await;
}
