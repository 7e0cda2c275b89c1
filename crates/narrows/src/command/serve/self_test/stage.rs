//! The manifest at work: a scripted client, its gate, a scripted agent, and a log that is thrown away.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use narrows_audit::{Log, verify};
use narrows_fake::Script;
use narrows_govern::{Gate, Inquiry, Mandate, Principal};
use narrows_link::{Link, memory};
use narrows_manifest::types::governance::Approver;
use narrows_policy::Signer;
use serde_json::{Value, json};
use tokio::io::{duplex, split};
use tokio::sync::mpsc;

use super::client::{Act, Client, Manner};
use super::script;
use super::wish::Wishes;

/// How many may have to approve one thing.
const MOST_SIGNERS: u32 = 16;

/// How much fits between the client and the gate.
const PIPE: usize = 64 << 10;

/// Everything that was seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) acts: BTreeMap<&'static str, Act>,
    /// The lines of the log.
    pub(super) entries: Vec<Value>,
    /// What the verifier says of it.
    pub(super) chain: verify::Report,
    /// How many lines the client got, and how many of them were no messages.
    pub(super) heard: usize,
    pub(super) garbled: usize,
}

/// Where it happens.
pub(super) struct Stage<'a> {
    pub(super) gate: Gate,
    pub(super) log: Option<Log>,
    pub(super) path: &'a Path,
    pub(super) root: &'a Path,
    pub(super) script: Script,
    pub(super) signers: Vec<Principal>,
    /// The MCP server that the client brings.
    pub(super) brought: Option<String>,
}

/// Those whom a manifest lets approve from elsewhere: everybody it names, and as many of each role as it may want.
pub(super) fn signers(wishes: &Wishes, mandate: &Mandate) -> Vec<Principal> {
    let approvals = wishes.approved.iter().flat_map(|wish| &wish.ruling.approvals);
    let named: Vec<&Signer> = approvals.clone().flat_map(|approval| &approval.signers).collect();
    let mut roles: Vec<String> = named.iter().filter_map(|signer| signer.role.clone()).collect();
    for approver in &mandate.approvers {
        roles.push(approver.id.clone());
        roles.extend(approver.role.clone());
    }
    let needed = approvals.map(|approval| approval.quorum);
    let most = needed.chain(mandate.approvers.iter().map(Approver::needed)).max().unwrap_or(1);
    let person = |id: String| Principal { id, roles: roles.clone(), ..Principal::default() };
    let known = named.iter().filter_map(|signer| signer.user_id.clone()).map(person);
    let others = (1..=most.min(MOST_SIGNERS)).map(|number| person(format!("user:self-test-{number}")));
    known.chain(others).collect()
}

impl Stage<'_> {
    /// Tries everything once.
    pub(super) async fn play(self) -> io::Result<Seen> {
        let options = narrows_link::Options::default();
        // Real bytes between client and gate, as on stdin and stdout.
        let (near, far) = duplex(PIPE);
        let ((near_in, near_out), (far_in, far_out)) = (split(near), split(far));
        let client = narrows_link::stream(near_in, near_out, &options);
        let outer = narrows_link::stream(far_in, far_out, &options);
        let (inner, agent) = memory::pair(&options);
        let (ask, asked) = mpsc::channel(super::super::stand::QUESTIONS);
        let log = self.log.clone();
        let standing = tokio::spawn(narrows_govern::stand(self.gate, outer, inner, self.log, asked));
        let playing = tokio::spawn(play(agent, self.script));
        let mut client = Client::new(client, ask.clone(), self.path.to_owned(), self.signers);
        let acts = acts(&mut client, self.root, self.brought.as_deref()).await;
        // It has ended already if the agent has.
        let _ = ask.send(Inquiry::End).await;
        let _ = standing.await;
        playing.abort();
        if let Some(log) = log {
            log.close();
        }
        let (heard, garbled) = (client.heard, client.garbled);
        Seen { acts, heard, garbled, ..Seen::default() }.with_log(self.path)
    }
}

impl Seen {
    /// With what the log has in it, and what the verifier says to that.
    pub(super) fn with_log(self, path: &Path) -> io::Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(self),
            text => text?,
        };
        let entries = text.lines().map(|line| serde_json::from_str(line).unwrap_or_default()).collect();
        let chain = verify::log(path, &verify::Options::default())?;
        Ok(Self { entries, chain, ..self })
    }

    /// What came of something that was tried.
    pub(super) fn act(&self, name: &str) -> Option<&Act> {
        self.acts.get(name)
    }

    /// The lines of the log that belong to something that was tried.
    pub(super) fn lines(&self, act: &Act) -> &[Value] {
        let end = act.lines.1.min(self.entries.len());
        &self.entries[act.lines.0.min(end)..end]
    }

    /// The first line of an action about a call.
    pub(super) fn line(&self, action: &str, call: &str) -> Option<&Value> {
        let is_it =
            |entry: &&Value| entry["action"] == action && entry["metadata"]["aip44"]["toolCallId"] == call;
        self.entries.iter().find(is_it)
    }
}

async fn play(link: Link, script: Script) {
    let (peer, inbox) = narrows_rpc::start(link, narrows_fake::options());
    narrows_fake::run(peer, inbox, Box::new(io::sink()), script).await;
}

async fn acts(client: &mut Client, root: &Path, brought: Option<&str>) -> BTreeMap<&'static str, Act> {
    let mut acts = BTreeMap::new();
    let everything = json!({"fs": {"readTextFile": true, "writeTextFile": true}, "terminal": true});
    let hello = json!({"protocolVersion": 1, "clientCapabilities": everything, "_meta": {"theirs": 1}});
    acts.insert("initialize", client.ask("initialize", &hello, Manner::Approve).await);
    let elsewhere: [(&str, PathBuf); 3] =
        [("outside", "/".into()), ("above", root.join("..")), ("relative", PathBuf::from("here"))];
    for (name, cwd) in elsewhere {
        let params = json!({"cwd": cwd, "mcpServers": []});
        acts.insert(name, client.ask("session/new", &params, Manner::Approve).await);
    }
    let server = json!({"name": "narrows-self-test", "command": "true", "args": [], "env": []});
    let params = json!({"cwd": root, "mcpServers": [server]});
    acts.insert("server", client.ask("session/new", &params, Manner::Approve).await);
    let servers: Vec<Value> = brought
        .map(|name| json!({"type": "acp", "name": name, "serverId": script::SERVER}))
        .into_iter()
        .collect();
    let params = json!({"cwd": root, "mcpServers": servers});
    let new = client.ask("session/new", &params, Manner::Approve).await;
    let session = new.answer["result"]["sessionId"].clone();
    acts.insert("new", new);
    if !session.is_string() {
        return acts;
    }
    let prompt = |words: &str| json!({"sessionId": session, "prompt": [{"type": "text", "text": words}]});
    for name in TURNS {
        let manner = if name == "rejected" { Manner::Reject } else { Manner::Approve };
        let stop = (name == "cancel").then(|| ("session/cancel", json!({"sessionId": session})));
        let act = client.ask_and("session/prompt", &prompt(&format!("probe {name}")), manner, stop).await;
        acts.insert(name, act);
    }
    let params = json!({"sessionId": session, "cwd": root, "mcpServers": servers});
    acts.insert("load", client.ask("session/load", &params, Manner::Approve).await);
    acts.insert("close", client.ask("session/close", &json!({"sessionId": session}), Manner::Approve).await);
    acts
}

/// What is tried in turns. The script has only what the manifest has something for; all else it answers as "silence".
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
