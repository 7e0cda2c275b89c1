//! A test client at the other end of an in-memory link. Sends requests, answers those of the agent, and
//! records all messages.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::collections::VecDeque;
use std::time::Duration;

use narrows_agent::{ModelRoute, Settings};
use narrows_link::{Link, Options as LinkOptions, memory};
use narrows_model::{Endpoint, Limits};
use narrows_testkit::model::{ModelServer, Seen};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub const SOON: Duration = Duration::from_secs(20);

/// The client's answer to a request of the agent: a result, an error, or no answer.
pub type Host = Box<dyn FnMut(&str, &Value) -> Option<Result<Value, Value>> + Send>;

pub struct Client {
    link: Link,
    next_id: u64,
    /// Messages that no test has read yet.
    waiting: VecDeque<Value>,
    /// `params.update` of all updates so far.
    pub updates: Vec<Value>,
    /// All requests of the agent so far: method and params.
    pub requests: Vec<(String, Value)>,
    /// All messages so far, in the order of arrival.
    pub messages: Vec<Value>,
    host: Host,
    agent: JoinHandle<()>,
}

/// Returns settings with one route to `server` and sessions in memory.
pub fn settings(server: &ModelServer) -> Settings {
    Settings { routes: vec![route(&server.base_url())], ..Settings::default() }
}

pub fn chats(server: &ModelServer) -> Vec<Seen> {
    server.seen().into_iter().filter(|seen| seen.path.ends_with("/chat/completions")).collect()
}

/// Waits until the server has received `count` chat requests.
pub async fn chats_asked(server: &ModelServer, count: usize) {
    loop {
        let seen = server.seen();
        if seen.iter().filter(|seen| seen.path.ends_with("/chat/completions")).count() >= count {
            return;
        }
        server.seen_count(seen.len() + 1).await;
    }
}

pub fn last_messages(server: &ModelServer) -> Value {
    chats(server).last().expect("the model was asked").body["messages"].clone()
}

pub fn route(base_url: &str) -> ModelRoute {
    let limits = Limits { attempts: 1, ..Limits::default() };
    let endpoint = Endpoint { limits, ..Endpoint::new("test", base_url) };
    ModelRoute { endpoint, model: "test-model".to_owned(), max_tokens: None, temperature: None, effort: None }
}

pub fn demo() -> Settings {
    Settings {
        routes: vec![ModelRoute { model: "demo".to_owned(), ..route("builtin:demo") }],
        ..Settings::default()
    }
}

impl Client {
    pub fn start(settings: Settings) -> Self {
        let (near, far) = memory::pair(&LinkOptions::default());
        let (peer, inbox) = narrows_rpc::start(far, narrows_agent::options());
        let agent = tokio::spawn(async move {
            narrows_agent::run(peer.clone(), inbox, settings).await.expect("the settings are in order");
            peer.finish().await;
        });
        Self {
            link: near,
            next_id: 1,
            waiting: VecDeque::new(),
            updates: Vec::new(),
            requests: Vec::new(),
            messages: Vec::new(),
            host: Box::new(|_, _| Some(Err(json!({"code": -32601, "message": "not here"})))),
            agent,
        }
    }

    pub async fn v1(settings: Settings, capabilities: Value) -> Self {
        let mut client = Self::start(settings);
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": capabilities,
            "clientInfo": {"name": "test", "version": "1"},
        });
        client.ask("initialize", params).await.expect("initialize");
        client
    }

    pub async fn v2(settings: Settings) -> Self {
        Self::v2_with(settings, json!({})).await
    }

    pub async fn v2_with(settings: Settings, capabilities: Value) -> Self {
        let mut client = Self::start(settings);
        let info = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": 2, "info": info, "capabilities": capabilities});
        client.ask("initialize", params).await.expect("initialize");
        client
    }

    pub fn host(&mut self, host: impl FnMut(&str, &Value) -> Option<Result<Value, Value>> + Send + 'static) {
        self.host = Box::new(host);
    }

    /// Opens a session in `/project` and returns its id.
    pub async fn session(&mut self) -> String {
        let opened =
            self.ask("session/new", json!({"cwd": "/project", "mcpServers": []})).await.expect("session/new");
        opened["sessionId"].as_str().expect("a session id").to_owned()
    }

    pub async fn send(&self, message: &Value) {
        self.link.sender.send(message.to_string().into()).await.expect("the agent listens");
    }

    pub async fn notify(&self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    pub async fn begin(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        id
    }

    /// Sends a request and waits for the response. Records the messages before it, and answers requests.
    pub async fn ask(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.begin(method, params).await;
        self.answer(id).await
    }

    /// Waits for the response to request `id`.
    pub async fn answer(&mut self, id: u64) -> Result<Value, Value> {
        loop {
            if let Some(at) = self.waiting.iter().position(|message| message["id"] == id) {
                let mut message = self.waiting.remove(at).expect("it was found");
                return match message.get_mut("error") {
                    Some(error) => Err(error.take()),
                    None => Ok(message["result"].take()),
                };
            }
            self.receive_message().await;
        }
    }

    /// Sends a text prompt and waits for the end of its turn, version 1.
    pub async fn prompt(&mut self, session: &str, text: &str) -> Result<Value, Value> {
        let prompt = json!([{"type": "text", "text": text}]);
        self.ask("session/prompt", json!({"sessionId": session, "prompt": prompt})).await
    }

    /// Sends a prompt with these blocks and waits for the end of its turn.
    pub async fn prompt_with(&mut self, session: &str, blocks: Value) -> Result<Value, Value> {
        self.ask("session/prompt", json!({"sessionId": session, "prompt": blocks})).await
    }

    pub async fn begin_prompt(&mut self, session: &str, text: &str) -> u64 {
        let prompt = json!([{"type": "text", "text": text}]);
        self.begin("session/prompt", json!({"sessionId": session, "prompt": prompt})).await
    }

    pub fn forget(&mut self) {
        self.updates.clear();
    }

    /// Waits until any update so far matches `wanted`, and returns it.
    pub async fn update(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            if let Some(update) = self.updates.iter().find(|update| wanted(update)) {
                return update.clone();
            }
            self.receive_message().await;
        }
    }

    pub async fn question(&mut self, method: &str) -> Value {
        loop {
            if let Some((_, params)) = self.requests.iter().find(|(asked, _)| asked == method) {
                return params.clone();
            }
            self.receive_message().await;
        }
    }

    pub async fn receive_message(&mut self) {
        let frame = timeout(SOON, self.link.receiver.recv()).await.expect("the agent says something in time");
        let message: Value =
            serde_json::from_slice(frame.expect("the agent is there").bytes()).expect("JSON");
        self.messages.push(message.clone());
        match (message.get("method").and_then(Value::as_str), message.get("id")) {
            (Some("session/update"), None) => self.updates.push(message["params"]["update"].clone()),
            (Some(_), None) => {}
            (Some(method), Some(id)) => {
                self.requests.push((method.to_owned(), message["params"].clone()));
                let answer = (self.host)(method, &message["params"]);
                if let Some(answer) = answer {
                    let mut line = json!({"jsonrpc": "2.0", "id": id});
                    match answer {
                        Ok(result) => line["result"] = result,
                        Err(error) => line["error"] = error,
                    }
                    self.send(&line).await;
                }
            }
            (None, _) => self.waiting.push_back(message),
        }
    }

    /// Returns all text of the answer so far. Joins chunks of one kind.
    pub fn text(&self) -> String {
        self.joined("agent_message_chunk")
    }

    pub fn thoughts(&self) -> String {
        self.joined("agent_thought_chunk")
    }

    fn joined(&self, kind: &str) -> String {
        let chunks = self.updates.iter().filter(|update| update["sessionUpdate"] == kind);
        chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
    }

    /// Returns the kinds of all updates so far, in order, without adjacent repetitions.
    pub fn kinds(&self) -> Vec<String> {
        let mut kinds: Vec<String> = Vec::new();
        for update in &self.updates {
            let kind = update["sessionUpdate"].as_str().unwrap_or("?");
            if kinds.last().map(String::as_str) != Some(kind) {
                kinds.push(kind.to_owned());
            }
        }
        kinds
    }

    /// Closes the client's output and waits for the agent to end. Returns the last messages.
    pub async fn finish(self) -> Vec<Value> {
        let Self { link: Link { sender, mut receiver }, agent, .. } = self;
        drop(sender);
        let mut last = Vec::new();
        let listening = async {
            while let Some(frame) = receiver.recv().await {
                last.push(serde_json::from_slice(frame.bytes()).expect("JSON"));
            }
        };
        timeout(SOON, listening).await.expect("the agent hangs up");
        timeout(SOON, agent).await.expect("the agent ends").expect("without a panic");
        last
    }

    pub async fn leave(self) {
        let Self { link, agent, .. } = self;
        drop(link);
        timeout(SOON, agent).await.expect("the agent ends").expect("without a panic");
    }
}
