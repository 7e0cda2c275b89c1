//! A simulated user: files, a terminal, and answers to permission requests.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use narrows_agent::Settings;
use serde_json::{Value, json};

use crate::common::Client;

/// Answer to a request: a result, an error, or no answer.
pub(crate) type Reply = Option<Result<Value, Value>>;

#[derive(Clone, Default)]
pub(crate) struct SimulatedUser(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    files: BTreeMap<String, String>,
    /// Answers that override the default ones.
    replies: HashMap<String, Reply>,
}

impl SimulatedUser {
    /// Creates a user with these files. The user allows everything, and commands end at once.
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let user = Self::default();
        let owned = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        user.state().files = files.iter().map(owned).collect();
        user.choose("allow_once");
        user
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn reply(&self, method: &str, reply: Reply) {
        self.state().replies.insert(method.to_owned(), reply);
    }

    pub(crate) fn choose(&self, option: &str) {
        let answer = json!({"outcome": {"outcome": "selected", "optionId": option}});
        self.reply("session/request_permission", Some(Ok(answer)));
    }

    pub(crate) fn file(&self, path: &str) -> Option<String> {
        self.state().files.get(path).cloned()
    }

    pub(crate) async fn client(&self, settings: Settings) -> Client {
        let fs = json!({"readTextFile": true, "writeTextFile": true});
        self.client_with(settings, json!({"fs": fs, "terminal": true})).await
    }

    pub(crate) async fn client_with(&self, settings: Settings, capabilities: Value) -> Client {
        let mut client = Client::v1(settings, capabilities).await;
        let user = self.clone();
        client.host(move |method, params| user.answer(method, params));
        client
    }

    /// Starts a turn in which the agent sends `method` and never gets an answer. Returns the client, the
    /// session and the prompt.
    pub(crate) async fn stuck(&self, method: &str, settings: Settings) -> (Client, String, u64) {
        self.reply(method, None);
        let mut client = self.client(settings).await;
        let session = client.session().await;
        let prompt = client.begin_prompt(&session, "Go").await;
        client.question(method).await;
        (client, session, prompt)
    }

    fn answer(&self, method: &str, params: &Value) -> Reply {
        let mut state = self.state();
        if let Some(reply) = state.replies.get(method) {
            return reply.clone();
        }
        let text = |name: &str| params[name].as_str().unwrap_or_default().to_owned();
        Some(match method {
            "fs/read_text_file" => match state.files.get(&text("path")) {
                Some(content) => Ok(json!({"content": content})),
                None => Err(json!({"code": -32002, "message": "no such file"})),
            },
            "fs/write_text_file" => {
                state.files.insert(text("path"), text("content"));
                Ok(json!({}))
            }
            "terminal/create" => Ok(json!({"terminalId": "t1"})),
            "terminal/wait_for_exit" => Ok(json!({"exitCode": 0, "signal": null})),
            "terminal/output" => Ok(json!({"output": "hello\n", "truncated": false})),
            "terminal/kill" | "terminal/release" => Ok(json!({})),
            _ => Err(json!({"code": -32601, "message": "not here"})),
        })
    }
}

/// Answers the first unanswered request of `method`.
pub(crate) async fn answer_late(client: &Client, method: &str, result: Value) {
    let asked = client.messages.iter().find(|message| message["method"] == method).unwrap();
    client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": result})).await;
}

pub(crate) fn methods(client: &Client) -> Vec<&str> {
    client.requests.iter().map(|(method, _)| method.as_str()).collect()
}

pub(crate) async fn ended(client: &mut Client) -> Value {
    client
        .update(|update| matches!(update["status"].as_str(), Some("completed" | "failed" | "cancelled")))
        .await;
    calls(client).pop().unwrap()
}

/// Returns the calls so far, in the order of announcement, each in its current state.
pub(crate) fn calls(client: &Client) -> Vec<Value> {
    let mut calls: Vec<Value> = Vec::new();
    for update in &client.updates {
        if !update["toolCallId"].is_string() {
            continue;
        }
        let known = calls.iter_mut().find(|call| call["toolCallId"] == update["toolCallId"]);
        match known {
            Some(call) => {
                for (name, value) in update.as_object().unwrap() {
                    call[name] = value.clone();
                }
            }
            None => calls.push(update.clone()),
        }
    }
    calls
}

pub(crate) fn statuses(client: &Client) -> Vec<&str> {
    let told = client.updates.iter().filter(|update| update["toolCallId"].is_string());
    told.filter_map(|update| update["status"].as_str()).collect()
}
