//! Runs the scripted conversation: client, gate, agent and a temporary log.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use narrows_audit::{Log, verify};
use narrows_fake::Script;
use narrows_govern::{Gate, GateConfig, GateRequest, Principal};
use narrows_link::{Link, memory};
use narrows_manifest::types::governance::Approver;
use narrows_policy::Signer;
use serde_json::{Value, json};
use tokio::io::{duplex, split};
use tokio::sync::mpsc;

use super::client::{ApprovalReply, ScriptedClient, Step};
use super::sample_calls::SampleCalls;
use super::script;

const MAX_SIGNERS: u32 = 16;

const PIPE_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Observations {
    pub(super) steps: BTreeMap<&'static str, Step>,
    pub(super) entries: Vec<Value>,
    pub(super) chain: verify::Report,
    pub(super) received_lines: usize,
    /// The number of lines to the client that were not messages.
    pub(super) invalid_lines: usize,
}

pub(super) struct Harness<'a> {
    pub(super) gate: Gate,
    pub(super) log: Option<Log>,
    pub(super) path: &'a Path,
    pub(super) root: &'a Path,
    pub(super) script: Script,
    pub(super) signers: Vec<Principal>,
    /// The name of the MCP server that the client provides.
    pub(super) client_server: Option<String>,
}

/// Returns approvers for the sample calls: everyone that the manifest names, and enough of each role.
pub(super) fn signers(samples: &SampleCalls, mandate: &GateConfig) -> Vec<Principal> {
    let approvals = samples.approved.iter().flat_map(|sample| &sample.ruling.approvals);
    let named: Vec<&Signer> = approvals.clone().flat_map(|approval| &approval.signers).collect();
    let mut roles: Vec<String> = named.iter().filter_map(|signer| signer.role.clone()).collect();
    for approver in &mandate.approvers {
        roles.push(approver.id.clone());
        roles.extend(approver.role.clone());
    }
    let needed = approvals.map(|approval| approval.quorum);
    let most = needed.chain(mandate.approvers.iter().map(Approver::needed)).max().unwrap_or(1);
    let approver = |id: String| Principal { id, roles: roles.clone(), ..Principal::default() };
    let known = named.iter().filter_map(|signer| signer.user_id.clone()).map(approver);
    let others = (1..=most.min(MAX_SIGNERS)).map(|number| approver(format!("user:self-test-{number}")));
    known.chain(others).collect()
}

impl Harness<'_> {
    pub(super) async fn run(self) -> io::Result<Observations> {
        let options = narrows_link::Options::default();
        // A byte stream connects client and gate, as on stdio.
        let (near, far) = duplex(PIPE_BYTES);
        let ((near_in, near_out), (far_in, far_out)) = (split(near), split(far));
        let client = narrows_link::stream(near_in, near_out, &options);
        let outer = narrows_link::stream(far_in, far_out, &options);
        let (inner, agent) = memory::pair(&options);
        let (ask, asked) = mpsc::channel(super::super::run_gate::MAX_QUEUED_REQUESTS);
        let log = self.log.clone();
        let standing = tokio::spawn(narrows_govern::run_gate(self.gate, outer, inner, self.log, asked));
        let playing = tokio::spawn(run_agent(agent, self.script));
        let mut client = ScriptedClient::new(client, ask.clone(), self.path.to_owned(), self.signers);
        let steps = run_steps(&mut client, self.root, self.client_server.as_deref()).await;
        // If the agent has ended, the gate has already ended too, and this request fails.
        let _ = ask.send(GateRequest::Stop).await;
        let _ = standing.await;
        playing.abort();
        if let Some(log) = log {
            log.close();
        }
        let (received_lines, invalid_lines) = (client.received_lines, client.invalid_lines);
        Observations { steps, received_lines, invalid_lines, ..Observations::default() }.with_log(self.path)
    }
}

impl Observations {
    /// Adds the lines of the log and the report of the verifier.
    pub(super) fn with_log(self, path: &Path) -> io::Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(self),
            text => text?,
        };
        let entries = text.lines().map(|line| serde_json::from_str(line).unwrap_or_default()).collect();
        let chain = verify::log(path, &verify::VerifyOptions::default())?;
        Ok(Self { entries, chain, ..self })
    }

    pub(super) fn step(&self, name: &str) -> Option<&Step> {
        self.steps.get(name)
    }

    pub(super) fn lines(&self, step: &Step) -> &[Value] {
        let end = step.lines.1.min(self.entries.len());
        &self.entries[step.lines.0.min(end)..end]
    }

    /// Returns the first log line with an action about a call.
    pub(super) fn line(&self, action: &str, call: &str) -> Option<&Value> {
        let is_it =
            |entry: &&Value| entry["action"] == action && entry["metadata"]["aip44"]["toolCallId"] == call;
        self.entries.iter().find(is_it)
    }
}

async fn run_agent(link: Link, script: Script) {
    let (peer, inbox) = narrows_rpc::start(link, narrows_fake::options());
    narrows_fake::run(peer, inbox, Box::new(io::sink()), script).await;
}

async fn run_steps(
    client: &mut ScriptedClient,
    root: &Path,
    client_server: Option<&str>,
) -> BTreeMap<&'static str, Step> {
    let mut steps = BTreeMap::new();
    let everything = json!({"fs": {"readTextFile": true, "writeTextFile": true}, "terminal": true});
    let hello = json!({"protocolVersion": 1, "clientCapabilities": everything, "_meta": {"theirs": 1}});
    steps.insert("initialize", client.request("initialize", &hello, ApprovalReply::Approve).await);
    let elsewhere: [(&str, PathBuf); 3] =
        [("outside", "/".into()), ("above", root.join("..")), ("relative", PathBuf::from("here"))];
    for (name, cwd) in elsewhere {
        let params = json!({"cwd": cwd, "mcpServers": []});
        steps.insert(name, client.request("session/new", &params, ApprovalReply::Approve).await);
    }
    let server = json!({"name": "narrows-self-test", "command": "true", "args": [], "env": []});
    let params = json!({"cwd": root, "mcpServers": [server]});
    steps.insert("server", client.request("session/new", &params, ApprovalReply::Approve).await);
    let servers: Vec<Value> = client_server
        .map(|name| json!({"type": "acp", "name": name, "serverId": script::CLIENT_SERVER_ID}))
        .into_iter()
        .collect();
    let params = json!({"cwd": root, "mcpServers": servers});
    let new = client.request("session/new", &params, ApprovalReply::Approve).await;
    let session = new.answer["result"]["sessionId"].clone();
    steps.insert("new", new);
    if !session.is_string() {
        return steps;
    }
    let prompt = |words: &str| json!({"sessionId": session, "prompt": [{"type": "text", "text": words}]});
    for name in TURNS {
        let decision = if name == "rejected" { ApprovalReply::Reject } else { ApprovalReply::Approve };
        let stop = (name == "cancel").then(|| ("session/cancel", json!({"sessionId": session})));
        let step =
            client.request_then("session/prompt", &prompt(&format!("probe {name}")), decision, stop).await;
        steps.insert(name, step);
    }
    let params = json!({"sessionId": session, "cwd": root, "mcpServers": servers});
    steps.insert("load", client.request("session/load", &params, ApprovalReply::Approve).await);
    steps.insert(
        "close",
        client.request("session/close", &json!({"sessionId": session}), ApprovalReply::Approve).await,
    );
    steps
}

/// All turns of the conversation. The script has only the turns for which the manifest has rules. For all
/// others, the turn "silence" is used.
const TURNS: [&str; 14] = [
    "silence",
    "meta",
    "allowed",
    "denied",
    "approved",
    "rejected",
    "failed",
    "stranger",
    "undeclared",
    "mcp",
    "poison",
    "unruly",
    "cancel",
    "left",
];
