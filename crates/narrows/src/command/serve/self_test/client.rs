//! The scripted client in front of the gate: says what it is told, and remembers all it hears.

use std::path::PathBuf;
use std::time::Duration;

use narrows_govern::{Ballot, Inquiry, Principal};
use narrows_link::Link;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

/// How long anything may take before it counts as not having happened.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often it is looked whether something waits for those who approve from elsewhere.
const LOOK: Duration = Duration::from_millis(20);

/// What is answered to questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    Approve,
    Reject,
}

/// One thing that was tried, and what came of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Act {
    /// The answer, or nothing if none came.
    pub(super) answer: Value,
    /// The updates before it.
    pub(super) updates: Vec<Value>,
    /// What was asked of the client.
    pub(super) asked: Vec<Value>,
    /// The calls that were shown before their decisions were in the log.
    pub(super) early: Vec<String>,
    /// How many approved from elsewhere, and how many were told that they may not.
    pub(super) ballots: usize,
    pub(super) strangers: usize,
    /// The first and behind the last line of the log that belongs to it.
    pub(super) lines: (usize, usize),
}

impl Act {
    /// Everything the agent said in it.
    pub(super) fn said(&self) -> String {
        let said = self.updates.iter().filter(|update| update["sessionUpdate"] == "agent_message_chunk");
        said.filter_map(|update| update["content"]["text"].as_str()).collect()
    }

    /// Whether a call of this id was shown.
    pub(super) fn shows(&self, id: &str) -> bool {
        self.updates.iter().any(|update| update["toolCallId"] == id)
    }

    /// How the turn ended.
    pub(super) fn stop(&self) -> &str {
        self.answer["result"]["stopReason"].as_str().unwrap_or("no answer")
    }
}

/// The client.
pub(super) struct Client {
    link: Link,
    ask: mpsc::Sender<Inquiry>,
    log: PathBuf,
    /// Who approves from elsewhere, as far as policies name them.
    signers: Vec<Principal>,
    last: u64,
    /// Every line that came, and how many of them were no messages.
    pub(super) heard: usize,
    pub(super) garbled: usize,
}

impl Client {
    pub(super) fn new(link: Link, ask: mpsc::Sender<Inquiry>, log: PathBuf, signers: Vec<Principal>) -> Self {
        Self { link, ask, log, signers, last: 0, heard: 0, garbled: 0 }
    }

    /// How many lines the log has.
    pub(super) fn lines(&self) -> usize {
        std::fs::read_to_string(&self.log).map_or(0, |text| text.lines().count())
    }

    async fn send(&self, value: &Value) {
        // Whoever does not hear it does not answer it either.
        let _ = self.link.sender.send(value.to_string().into()).await;
    }

    /// Sends a notification.
    pub(super) async fn tell(&self, method: &str, params: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    /// Sends a request and waits for its answer. `nudge` is told once something was said in it.
    pub(super) async fn ask(&mut self, method: &str, params: &Value, manner: Manner) -> Act {
        self.ask_and(method, params, manner, None).await
    }

    /// The same, and sends a notification as soon as the agent has said something.
    pub(super) async fn ask_and(
        &mut self,
        method: &str,
        params: &Value,
        manner: Manner,
        mut then: Option<(&str, Value)>,
    ) -> Act {
        self.last += 1;
        let id = self.last;
        let mut act = Act { lines: (self.lines(), 0), ..Act::default() };
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let Ok(frame) = timeout(LOOK, self.link.receiver.recv()).await else {
                self.vote(&mut act, manner).await;
                continue;
            };
            let Some(frame) = frame else { break };
            self.heard += 1;
            let Ok(message) = serde_json::from_slice::<Value>(frame.bytes()) else {
                self.garbled += 1;
                continue;
            };
            if message["jsonrpc"] != "2.0" {
                self.garbled += 1;
            }
            match (message.get("method"), message.get("id")) {
                (Some(method), Some(id)) => {
                    act.asked.push(message.clone());
                    let answer = reply(method.as_str().unwrap_or_default(), manner);
                    self.send(&json!({"jsonrpc": "2.0", "id": id, "result": answer})).await;
                }
                (Some(_), None) => {
                    let mut update = message["params"]["update"].clone();
                    self.compare(&update, &mut act);
                    // Beside the update, where no agent puts it.
                    if let Some(members) = update.as_object_mut() {
                        members.insert("_mark".to_owned(), message["params"]["_meta"]["aip44"].clone());
                    }
                    act.updates.push(update);
                    if let Some((method, params)) = then.take() {
                        self.tell(method, &params).await;
                    }
                }
                (None, Some(answered)) if *answered == id => {
                    act.answer = message;
                    break;
                }
                _ => {}
            }
        }
        act.lines.1 = self.lines();
        act
    }

    /// A call that is shown must have been decided in the log.
    fn compare(&self, update: &Value, act: &mut Act) {
        if update["sessionUpdate"] != "tool_call" {
            return;
        }
        let Some(id) = update["toolCallId"].as_str() else { return };
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let is_decided = |line: &str| {
            let entry: Value = serde_json::from_str(line).unwrap_or_default();
            entry["action"] == "policy.resolved" && entry["metadata"]["aip44"]["toolCallId"] == id
        };
        if !text.lines().any(is_decided) {
            act.early.push(id.to_owned());
        }
    }

    /// Says for those who approve from elsewhere what they say, after somebody who may not has tried.
    async fn vote(&self, act: &mut Act, manner: Manner) {
        let (answer, open) = oneshot::channel();
        let _ = self.ask.send(Inquiry::Open(answer)).await;
        let Some(waiting) = open.await.unwrap_or_default().into_iter().next() else { return };
        if waiting.asked {
            // Whoever may say so here is asked first, and the question is on its way.
            return;
        }
        let nobody = Principal { id: "user:narrows-self-test-stranger".to_owned(), ..Principal::default() };
        for signer in std::iter::once(&nobody).chain(&self.signers) {
            let ballot = Ballot {
                id: waiting.id.clone(),
                signer: signer.clone(),
                approves: manner == Manner::Approve,
                reason: (manner == Manner::Reject).then(|| "self-test".to_owned()),
                signature: None,
            };
            let (answer, counted) = oneshot::channel();
            let _ = self.ask.send(Inquiry::Ballot(ballot, answer)).await;
            match counted.await {
                Ok(Ok(())) => act.ballots += 1,
                Ok(Err(narrows_govern::BallotError::NotASigner)) => act.strangers += 1,
                Ok(Err(narrows_govern::BallotError::Twice)) => {}
                Ok(Err(
                    narrows_govern::BallotError::Unknown | narrows_govern::BallotError::SignatureInvalid(_),
                ))
                | Err(_) => return,
            }
        }
    }
}

/// What the client answers to what is asked of it.
fn reply(method: &str, manner: Manner) -> Value {
    match (method, manner) {
        ("session/request_permission", Manner::Approve) => {
            json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}})
        }
        ("session/request_permission", Manner::Reject) => {
            json!({"outcome": {"outcome": "selected", "optionId": "reject_once"}})
        }
        ("fs/read_text_file", _) => json!({"content": "a secret of the client"}),
        ("terminal/create", _) => json!({"terminalId": "self-test"}),
        ("mcp/message", _) => json!({"tools": [], "content": []}),
        _ => json!({}),
    }
}
