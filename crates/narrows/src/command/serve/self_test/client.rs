//! The scripted client in front of the gate. It records everything that it receives.

use std::path::PathBuf;
use std::time::Duration;

use narrows_govern::{ApprovalVote, GateRequest, Principal};
use narrows_link::Link;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

/// Time after which an expected message counts as missing.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The interval of checks for pending approvals.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApprovalReply {
    Approve,
    Reject,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub(super) answer: Value,
    pub(super) updates: Vec<Value>,
    pub(super) requests: Vec<Value>,
    /// Calls that were shown before their decision was logged.
    pub(super) early: Vec<String>,
    /// The number of votes that counted.
    pub(super) approvals: usize,
    /// The number of votes by people who are not signers.
    pub(super) rejected_approvers: usize,
    pub(super) lines: (usize, usize),
}

impl Step {
    pub(super) fn agent_text(&self) -> String {
        let said = self.updates.iter().filter(|update| update["sessionUpdate"] == "agent_message_chunk");
        said.filter_map(|update| update["content"]["text"].as_str()).collect()
    }

    /// Returns `true` if a call with this id was shown.
    pub(super) fn shows_call(&self, id: &str) -> bool {
        self.updates.iter().any(|update| update["toolCallId"] == id)
    }

    pub(super) fn stop_reason(&self) -> &str {
        self.answer["result"]["stopReason"].as_str().unwrap_or("no answer")
    }
}

pub(super) struct ScriptedClient {
    link: Link,
    ask: mpsc::Sender<GateRequest>,
    log: PathBuf,
    signers: Vec<Principal>,
    last: u64,
    pub(super) received_lines: usize,
    /// The number of received lines that were not messages.
    pub(super) invalid_lines: usize,
}

impl ScriptedClient {
    pub(super) fn new(
        link: Link,
        ask: mpsc::Sender<GateRequest>,
        log: PathBuf,
        signers: Vec<Principal>,
    ) -> Self {
        Self { link, ask, log, signers, last: 0, received_lines: 0, invalid_lines: 0 }
    }

    pub(super) fn lines(&self) -> usize {
        std::fs::read_to_string(&self.log).map_or(0, |text| text.lines().count())
    }

    async fn send(&self, value: &Value) {
        // A gate that has ended answers nothing, which the test reports.
        let _ = self.link.sender.send(value.to_string().into()).await;
    }

    pub(super) async fn notify(&self, method: &str, params: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params})).await;
    }

    pub(super) async fn request(&mut self, method: &str, params: &Value, decision: ApprovalReply) -> Step {
        self.request_then(method, params, decision, None).await
    }

    /// Sends a request, and a notification after the first update.
    pub(super) async fn request_then(
        &mut self,
        method: &str,
        params: &Value,
        decision: ApprovalReply,
        mut then: Option<(&str, Value)>,
    ) -> Step {
        self.last += 1;
        let id = self.last;
        let mut step = Step { lines: (self.lines(), 0), ..Step::default() };
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        let until = Instant::now() + RESPONSE_TIMEOUT;
        while Instant::now() < until {
            let Ok(frame) = timeout(POLL_INTERVAL, self.link.receiver.recv()).await else {
                self.send_approvals(&mut step, decision).await;
                continue;
            };
            let Some(frame) = frame else { break };
            self.received_lines += 1;
            let Ok(message) = serde_json::from_slice::<Value>(frame.bytes()) else {
                self.invalid_lines += 1;
                continue;
            };
            if message["jsonrpc"] != "2.0" {
                self.invalid_lines += 1;
            }
            match (message.get("method"), message.get("id")) {
                (Some(method), Some(id)) => {
                    step.requests.push(message.clone());
                    let answer = reply(method.as_str().unwrap_or_default(), decision);
                    self.send(&json!({"jsonrpc": "2.0", "id": id, "result": answer})).await;
                }
                (Some(_), None) => {
                    let mut update = message["params"]["update"].clone();
                    self.check_logged_first(&update, &mut step);
                    // The `aip44` metadata of the update is kept in a member that no agent uses.
                    if let Some(members) = update.as_object_mut() {
                        members.insert("_mark".to_owned(), message["params"]["_meta"]["aip44"].clone());
                    }
                    step.updates.push(update);
                    if let Some((method, params)) = then.take() {
                        self.notify(method, &params).await;
                    }
                }
                (None, Some(answered)) if *answered == id => {
                    step.answer = message;
                    break;
                }
                _ => {}
            }
        }
        step.lines.1 = self.lines();
        step
    }

    /// Records a call that is shown before its decision is in the log.
    fn check_logged_first(&self, update: &Value, step: &mut Step) {
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
            step.early.push(id.to_owned());
        }
    }

    /// Sends approvals of the scripted approvers, after one of an unlisted user.
    async fn send_approvals(&self, step: &mut Step, decision: ApprovalReply) {
        let (answer, open) = oneshot::channel();
        let _ = self.ask.send(GateRequest::ListApprovals(answer)).await;
        let Some(waiting) = open.await.unwrap_or_default().into_iter().next() else { return };
        if waiting.is_client_asked {
            // The gate asks the client before other approvers, and that request has not arrived yet.
            return;
        }
        let unlisted = Principal { id: "user:narrows-self-test-stranger".to_owned(), ..Principal::default() };
        for signer in std::iter::once(&unlisted).chain(&self.signers) {
            let ballot = ApprovalVote {
                id: waiting.id.clone(),
                signer: signer.clone(),
                approves: decision == ApprovalReply::Approve,
                reason: (decision == ApprovalReply::Reject).then(|| "self-test".to_owned()),
                signature: None,
            };
            let (answer, counted) = oneshot::channel();
            let _ = self.ask.send(GateRequest::Vote(ballot, answer)).await;
            match counted.await {
                Ok(Ok(())) => step.approvals += 1,
                Ok(Err(narrows_govern::VoteError::NotASigner)) => step.rejected_approvers += 1,
                Ok(Err(narrows_govern::VoteError::AlreadyApproved)) => {}
                Ok(Err(
                    narrows_govern::VoteError::NotFound | narrows_govern::VoteError::SignatureInvalid(_),
                ))
                | Err(_) => return,
            }
        }
    }
}

fn reply(method: &str, decision: ApprovalReply) -> Value {
    match (method, decision) {
        ("session/request_permission", ApprovalReply::Approve) => {
            json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}})
        }
        ("session/request_permission", ApprovalReply::Reject) => {
            json!({"outcome": {"outcome": "selected", "optionId": "reject_once"}})
        }
        ("fs/read_text_file", _) => json!({"content": "a secret of the client"}),
        ("terminal/create", _) => json!({"terminalId": "self-test"}),
        ("mcp/message", _) => json!({"tools": [], "content": []}),
        _ => json!({}),
    }
}
