//! A recorded conversation with the fake agent, checked against the schema.

#![allow(dead_code, reason = "each test file uses its own part")]

use narrows_acp::{Raw, VariantReading, v1, v2};
use narrows_fake::{Ended, Script, options, run};
use narrows_testkit::peer::{Peer, stage};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub(crate) struct Talk {
    pub(crate) client: Peer,
    pub(crate) log: String,
    agent: JoinHandle<Ended>,
    version: u16,
    session: String,
}

pub(crate) fn able() -> Value {
    json!({
        "fs": {"readTextFile": true, "writeTextFile": true},
        "terminal": true,
        "session": {"notices": {}},
    })
}

impl Talk {
    pub(crate) fn start(script: &str) -> Self {
        let script = Script::builtin(script).unwrap_or_else(|| Script::parse(script).expect("a script"));
        let stage = stage();
        let (peer, inbox) = narrows_rpc::start(stage.link, options());
        let agent = tokio::spawn(run(peer, inbox, stage.raw, script));
        Self { client: stage.client, log: String::new(), agent, version: 1, session: String::new() }
    }

    pub(crate) async fn open(version: u16, capabilities: Value, script: &str) -> Self {
        let mut talk = Self::start(script);
        talk.initialize(version, capabilities).await;
        talk.new_session().await;
        talk.log.clear();
        talk
    }

    pub(crate) async fn initialize(&mut self, version: u16, capabilities: Value) -> Value {
        self.version = version;
        let params = match version {
            1 => json!({"protocolVersion": 1, "clientCapabilities": capabilities}),
            _ => json!({"protocolVersion": 2, "info": {"name": "test", "version": "1"}}),
        };
        let answer = self.ask("initialize", params).await;
        match version {
            1 => conforms::<v1::InitializeResponse>(&answer["result"]),
            _ => conforms::<v2::InitializeResponse>(&answer["result"]),
        }
        answer
    }

    pub(crate) async fn new_session(&mut self) -> Value {
        let answer = self.ask("session/new", json!({"cwd": "/project", "mcpServers": []})).await;
        match self.version {
            1 => conforms::<v1::NewSessionResponse>(&answer["result"]),
            _ => conforms::<v2::NewSessionResponse>(&answer["result"]),
        }
        self.session = answer["result"]["sessionId"].as_str().unwrap_or_default().to_owned();
        answer
    }

    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params).await;
        self.answer_to(id, |_| None).await
    }

    pub(crate) async fn request(&mut self, method: &str, params: Value) -> u64 {
        self.log.push_str(&format!("→ {method} {}\n", sorted(&params)));
        self.client.request(method, &params).await
    }

    pub(crate) async fn notify(&mut self, method: &str, params: Value) {
        self.log.push_str(&format!("→ {method} {}\n", sorted(&params)));
        self.client.notify(method, &params).await;
    }

    /// Receives everything up to the response to request `id`. `serve` answers the agent's requests.
    pub(crate) async fn answer_to(
        &mut self,
        id: u64,
        mut serve: impl FnMut(&Value) -> Option<Value>,
    ) -> Value {
        loop {
            let message = self.next().await.expect("the agent answers before it goes");
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
            self.serve(&message, &mut serve).await;
        }
    }

    pub(crate) async fn until_idle(&mut self, mut serve: impl FnMut(&Value) -> Option<Value>) {
        loop {
            let message = self.next().await.expect("the agent ends its turn before it goes");
            if message["params"]["update"]["state"] == "idle" {
                return;
            }
            self.serve(&message, &mut serve).await;
        }
    }

    async fn serve(&mut self, message: &Value, serve: &mut impl FnMut(&Value) -> Option<Value>) {
        if message.get("id").is_some()
            && message.get("method").is_some()
            && let Some(result) = serve(message)
        {
            self.log.push_str(&format!("→ ok {}\n", sorted(&result)));
            self.client.answer(message, &result).await;
        }
    }

    pub(crate) async fn turn(&mut self, prompt: &str, serve: impl FnMut(&Value) -> Option<Value>) {
        let id = self.prompt(prompt).await;
        match self.version {
            1 => drop(self.answer_to(id, serve).await),
            _ => self.until_idle(serve).await,
        }
    }

    pub(crate) async fn prompt(&mut self, prompt: &str) -> u64 {
        let params = self.about(json!({"prompt": [{"type": "text", "text": prompt}]}));
        self.request("session/prompt", params).await
    }

    /// Adds the session id to `params`.
    pub(crate) fn about(&self, mut params: Value) -> Value {
        params["sessionId"] = json!(self.session);
        params
    }

    pub(crate) async fn next(&mut self) -> Option<Value> {
        let message = self.client.next().await?;
        let told = match (message.get("method").and_then(Value::as_str), &message) {
            (Some("session/update"), message) => {
                self.check(&message["params"]["update"]);
                format!("← {}", sorted(&message["params"]["update"]))
            }
            (Some(method), message) => format!("← {method} {}", sorted(&message["params"])),
            (None, message) if message.get("error").is_some() => {
                format!("← error {} {}", message["error"]["code"], message["error"]["message"])
            }
            (None, message) => format!("← ok {}", sorted(&message["result"])),
        };
        self.log.push_str(&told);
        self.log.push('\n');
        Some(message)
    }

    fn check(&self, update: &Value) {
        let text = update.to_string();
        let known = match self.version {
            1 => matches!(
                Raw::<v1::SessionUpdate>::parse(&text).map(|raw| raw.read_variant()),
                Ok(Ok(VariantReading::Known(_)))
            ),
            _ => matches!(
                Raw::<v2::SessionUpdate>::parse(&text).map(|raw| raw.read_variant()),
                Ok(Ok(VariantReading::Known(_)))
            ),
        };
        assert!(known, "not an update of v{}: {text}", self.version);
    }

    pub(crate) fn agent_text(&self) -> String {
        let updates = self.log.lines().filter_map(|line| line.strip_prefix("← {"));
        let updates = updates.filter_map(|line| serde_json::from_str::<Value>(&format!("{{{line}")).ok());
        updates
            .filter(|update| update["sessionUpdate"] == "agent_message_chunk")
            .filter_map(|update| update["content"]["text"].as_str().map(str::to_owned))
            .collect()
    }

    pub(crate) async fn leave(mut self) -> Ended {
        self.client.hang_up();
        self.agent.await.expect("the agent does not panic")
    }

    pub(crate) async fn ended(self) -> Ended {
        self.agent.await.expect("the agent does not panic")
    }

    /// Returns `true` if the agent has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.agent.is_finished()
    }
}

#[track_caller]
fn conforms<T: serde::de::DeserializeOwned>(result: &Value) {
    let read = serde_json::from_value::<T>(result.clone());
    assert!(read.is_ok(), "not what the schema says: {:?}: {result}", read.err());
}

/// Returns JSON with the members of every object in alphabetical order, for any features of the build.
fn sorted(value: &Value) -> String {
    let entries: Vec<String> = match value {
        Value::Array(entries) => entries.iter().map(sorted).collect(),
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(key, _)| *key);
            members.iter().map(|(key, value)| format!("{}:{}", json!(key), sorted(value))).collect()
        }
        _ => return value.to_string(),
    };
    if value.is_array() { format!("[{}]", entries.join(",")) } else { format!("{{{}}}", entries.join(",")) }
}
