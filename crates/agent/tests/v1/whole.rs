//! Snapshots of whole conversations. Ids that change with every run are replaced.

use std::collections::HashMap;

use narrows_agent::Settings;
use narrows_testkit::model::{ModelServer, Plan, Reply, Step};
use serde_json::{Map, Value, json};

use crate::common::{Client, settings};

struct Record {
    client: Client,
    lines: Vec<String>,
    names: HashMap<String, String>,
    base_url: String,
    /// Number of messages already written to the snapshot.
    written: usize,
}

impl Record {
    fn new(settings: Settings, server: &ModelServer) -> Self {
        let base_url = server.base_url();
        Self {
            client: Client::start(settings),
            lines: Vec::new(),
            names: HashMap::new(),
            base_url,
            written: 0,
        }
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params).await;
        self.end(id).await
    }

    async fn begin(&mut self, method: &str, params: Value) -> u64 {
        let params_line = self.plain(&params);
        self.lines.push(format!("→ {method} {params_line}"));
        self.client.begin(method, params).await
    }

    async fn end(&mut self, id: u64) -> Value {
        let outcome = self.client.answer(id).await;
        self.write_heard();
        outcome.unwrap_or_else(|error| error)
    }

    fn write_heard(&mut self) {
        let heard = joined(self.client.messages.split_off(self.written));
        self.written = self.client.messages.len();
        for message in heard {
            let line = match (&message["method"], message.get("result")) {
                (Value::String(method), _) if method == "session/update" => {
                    format!("← update {}", self.plain(&message["params"]["update"]))
                }
                (Value::String(method), _) => format!("← {method} {}", self.plain(&message["params"])),
                (_, Some(result)) => format!("← result {}", self.plain(result)),
                (_, None) => format!("← error {}", self.plain(&message["error"])),
            };
            self.lines.push(line);
        }
    }

    fn plain(&mut self, value: &Value) -> String {
        self.normal("", value).to_string()
    }

    fn normal(&mut self, key: &str, value: &Value) -> Value {
        match value {
            // Other tests check these values.
            Value::Array(_) if key == "configOptions" => json!("[options]"),
            Value::Object(_) if key == "models" => json!("[models]"),
            Value::Object(_) if key == "agentCapabilities" => json!("[capabilities]"),
            Value::Object(members) => {
                let mut sorted: Vec<(&String, &Value)> = members.iter().collect();
                sorted.sort_unstable_by_key(|(name, _)| *name);
                let members =
                    sorted.into_iter().map(|(name, value)| (name.clone(), self.normal(name, value)));
                Value::Object(members.collect::<Map<String, Value>>())
            }
            Value::Array(items) => items.iter().map(|item| self.normal(key, item)).collect(),
            Value::String(id) if matches!(key, "sessionId" | "messageId") => {
                let next = format!("{key}-{}", self.names.len() + 1);
                Value::from(self.names.entry(id.clone()).or_insert(next).as_str())
            }
            Value::String(_) if key == "updatedAt" => json!("[time]"),
            Value::String(version) if version == env!("CARGO_PKG_VERSION") => json!("[version]"),
            Value::String(text) => {
                let mut text = text.replace(&self.base_url, "[base]");
                for (id, name) in &self.names {
                    text = text.replace(id, name);
                }
                json!(text)
            }
            value => value.clone(),
        }
    }

    async fn finish(self) -> String {
        self.client.leave().await;
        self.lines.join("\n")
    }
}

/// Joins chunks, because their boundaries depend on the network. Removes the update with the commands,
/// because its time depends on the clock.
fn joined(heard: Vec<Value>) -> Vec<Value> {
    let mut joined: Vec<Value> = Vec::new();
    for message in heard {
        let update = &message["params"]["update"];
        if update["sessionUpdate"] == "available_commands_update" {
            continue;
        }
        let id = update["messageId"].clone();
        match joined.last_mut().and_then(|last| last.pointer_mut("/params/update")) {
            Some(last) if id.is_string() && last["messageId"] == id => {
                let text = |update: &Value| update["content"]["text"].as_str().unwrap_or_default().to_owned();
                last["content"]["text"] = json!(text(last) + &text(update));
            }
            _ => joined.push(message),
        }
    }
    joined
}

/// Repeats the messages of an existing client: one process per turn, a link without a name, and a path
/// instead of its URI.
#[tokio::test]
async fn a_daemon_runs_one_turn() {
    let plan = Plan::new([Reply::text("A long enough answer.").at_once()])
        .models(Reply::models(&["test-model", "other"]));
    let server = ModelServer::start(plan);
    let mut record = Record::new(settings(&server), &server);
    let introduction = json!({
        "protocolVersion": 1,
        "clientCapabilities": {"terminal": false},
        "clientInfo": {"name": "open-design", "version": "runtime-adapter"},
    });
    record.ask("initialize", introduction).await;
    let opened = record.ask("session/new", json!({"cwd": "/project", "mcpServers": []})).await;
    let session = opened["sessionId"].clone();
    record
        .ask(
            "session/set_config_option",
            json!({"sessionId": session, "configId": "model", "value": "other"}),
        )
        .await;
    let prompt =
        json!([{"type": "text", "text": "Make it blue"}, {"type": "resource_link", "uri": "/project/a.css"}]);
    record.ask("session/prompt", json!({"sessionId": session, "prompt": prompt})).await;
    insta::assert_snapshot!(record.finish().await, @r#"
    → initialize {"clientCapabilities":{"terminal":false},"clientInfo":{"name":"open-design","version":"runtime-adapter"},"protocolVersion":1}
    ← result {"agentCapabilities":"[capabilities]","agentInfo":{"name":"narrows","title":"Narrows","version":"[version]"},"authMethods":[],"protocolVersion":1}
    → session/new {"cwd":"/project","mcpServers":[]}
    ← result {"configOptions":"[options]","models":"[models]","sessionId":"sessionId-1"}
    → session/set_config_option {"configId":"model","sessionId":"sessionId-1","value":"other"}
    ← result {"configOptions":"[options]"}
    → session/prompt {"prompt":[{"text":"Make it blue","type":"text"},{"type":"resource_link","uri":"/project/a.css"}],"sessionId":"sessionId-1"}
    ← update {"sessionUpdate":"session_info_update","title":"Make it blue","updatedAt":"[time]"}
    ← update {"content":{"text":"A long enough answer.","type":"text"},"messageId":"messageId-2","sessionUpdate":"agent_message_chunk"}
    ← result {"stopReason":"end_turn","usage":{"inputTokens":10,"outputTokens":4,"totalTokens":14}}
    "#);
}

/// A failing endpoint, then a cancelled prompt, then a turn that works.
#[tokio::test]
async fn a_session_continues_after_a_failure_and_a_cancellation() {
    let server = ModelServer::start(Plan::new([
        Reply::refused(401, "Incorrect API key provided"),
        Reply::text("An answer nobody waits for").after(4, Step::Hang),
        Reply::text("A long enough answer.").at_once(),
    ]));
    let mut record = Record::new(settings(&server), &server);
    record.ask("initialize", json!({"protocolVersion": 1})).await;
    let opened = record.ask("session/new", json!({"cwd": "/project"})).await;
    let session = opened["sessionId"].clone();
    let prompt = |text: &str| json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]});
    record.ask("session/prompt", prompt("One")).await;
    let turn = record.begin("session/prompt", prompt("Two")).await;
    record.client.update(|update| update["content"]["text"] == "An answer nobody ").await;
    record.ask("session/prompt", prompt("Too early")).await;
    record.lines.push("→ session/cancel".to_owned());
    record.client.notify("session/cancel", json!({"sessionId": session})).await;
    record.end(turn).await;
    record.ask("session/prompt", json!({"sessionId": session, "prompt": [{"type": "hologram"}]})).await;
    record.ask("session/prompt", prompt("Three")).await;
    record.ask("session/close", json!({"sessionId": session})).await;
    record.ask("session/prompt", prompt("Four")).await;
    record.ask("session/load", json!({"sessionId": session, "cwd": "/project"})).await;
    insta::assert_snapshot!(record.finish().await, @r#"
    → initialize {"protocolVersion":1}
    ← result {"agentCapabilities":"[capabilities]","agentInfo":{"name":"narrows","title":"Narrows","version":"[version]"},"authMethods":[],"protocolVersion":1}
    → session/new {"cwd":"/project"}
    ← result {"configOptions":"[options]","models":"[models]","sessionId":"sessionId-1"}
    → session/prompt {"prompt":[{"text":"One","type":"text"}],"sessionId":"sessionId-1"}
    ← update {"sessionUpdate":"session_info_update","title":"One","updatedAt":"[time]"}
    ← update {"_meta":{"narrows/error":{"kind":"auth","message":"Incorrect API key provided","retryable":false,"status":401,"url":"[base]/chat/completions"}},"content":{"text":"Authentication error (HTTP 401) calling [base]/chat/completions. Check your OPENAI_API_KEY.","type":"text"},"messageId":"messageId-2","sessionUpdate":"agent_message_chunk"}
    ← result {"_meta":{"narrows/error":{"kind":"auth","message":"Incorrect API key provided","retryable":false,"status":401,"url":"[base]/chat/completions"}},"stopReason":"end_turn"}
    → session/prompt {"prompt":[{"text":"Two","type":"text"}],"sessionId":"sessionId-1"}
    → session/prompt {"prompt":[{"text":"Too early","type":"text"}],"sessionId":"sessionId-1"}
    ← update {"sessionUpdate":"session_info_update","title":"Two","updatedAt":"[time]"}
    ← update {"content":{"text":"An answer nobody ","type":"text"},"messageId":"messageId-3","sessionUpdate":"agent_message_chunk"}
    ← error {"code":-32600,"data":{"condition":"session_busy","effects":"none","retryable":true,"sessionId":"sessionId-1"},"message":"a turn is running in this session: wait for its end, or cancel it"}
    → session/cancel
    ← result {"stopReason":"cancelled"}
    → session/prompt {"prompt":[{"type":"hologram"}],"sessionId":"sessionId-1"}
    ← error {"code":-32602,"data":{"condition":"invalid_params","effects":"none","field":"prompt[0].type","retryable":false},"message":"`prompt[0].type` is an unsupported block type: \"hologram\""}
    → session/prompt {"prompt":[{"text":"Three","type":"text"}],"sessionId":"sessionId-1"}
    ← update {"sessionUpdate":"session_info_update","title":"Three","updatedAt":"[time]"}
    ← update {"content":{"text":"A long enough answer.","type":"text"},"messageId":"messageId-4","sessionUpdate":"agent_message_chunk"}
    ← result {"stopReason":"end_turn","usage":{"inputTokens":10,"outputTokens":4,"totalTokens":14}}
    → session/close {"sessionId":"sessionId-1"}
    ← result {}
    → session/prompt {"prompt":[{"text":"Four","type":"text"}],"sessionId":"sessionId-1"}
    ← error {"code":-32002,"data":{"condition":"not_found","effects":"none","retryable":false,"sessionId":"sessionId-1"},"message":"there is no session \"sessionId-1\""}
    → session/load {"cwd":"/project","sessionId":"sessionId-1"}
    ← update {"content":{"text":"Three","type":"text"},"messageId":"messageId-5","sessionUpdate":"user_message_chunk"}
    ← update {"content":{"text":"A long enough answer.","type":"text"},"messageId":"messageId-4","sessionUpdate":"agent_message_chunk"}
    ← result {"configOptions":"[options]","models":"[models]","sessionId":"sessionId-1"}
    "#);
}
