//! A gate with nobody but the test around it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use narrows_audit::{Event, Log, Options, verify};
use narrows_govern::{
    ApprovalVote, AuditSeq, Gate, GateConfig, GateOutput, GateStart, GateTime, PathResolver, Principal,
    VoteError,
};
use narrows_manifest::Capabilities;
use narrows_policy::{Access, Charter, Class, Clause, DefaultApproval, Narrowing, Policy, Signer};
use narrows_wire::View;
use serde_json::{Value, json};

/// A disk on which everything is where it is said to be.
#[derive(Debug)]
struct Plain;

impl PathResolver for Plain {
    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_path_buf())
    }
}

#[derive(Default)]
pub(crate) struct Sight {
    pub(crate) client: Vec<Value>,
    pub(crate) agent: Vec<Value>,
    pub(crate) events: Vec<Event>,
    pub(crate) unsettled: Vec<AuditSeq>,
    pub(crate) ended: Option<String>,
}

impl GateOutput for Sight {
    fn to_client(&mut self, parts: &[&[u8]]) {
        self.client.push(serde_json::from_slice(&parts.concat()).unwrap());
    }

    fn to_agent(&mut self, parts: &[&[u8]]) {
        self.agent.push(serde_json::from_slice(&parts.concat()).unwrap());
    }

    fn record(&mut self, seq: AuditSeq, event: Event) {
        self.unsettled.push(seq);
        self.events.push(event);
    }

    fn answer_tool_check(&mut self, _: u64, _: Option<String>) {}

    fn end_agent(&mut self, why: &str) {
        self.ended = Some(why.to_owned());
    }
}

/// A gate and what came out of it.
pub(crate) struct Scene {
    pub(crate) gate: Gate,
    pub(crate) now: GateTime,
    pub(crate) sight: Sight,
    /// Whether what is to be recorded is at once.
    pub(crate) records: bool,
}

/// Reading is allowed, `Bash` needs a lead, `Rm` is denied, and of all else what changes something is asked for.
pub(crate) fn policy() -> Policy {
    let lead = vec![Signer { role: Some("lead".into()), user_id: None }];
    let clauses = vec![
        Clause::new("runs", "tool.call", Class::RequireApproval).on("Bash").unwrap().signed_by(lead, 1),
        Clause::new("never", "tool.call", Class::Deny).on("Rm").unwrap(),
    ];
    let charter = Charter::new(clauses).with_level(Some(2)).with_default(DefaultApproval::OnMutate);
    Policy::new(Access::High, Narrowing::default()).with_charter(charter)
}

pub(crate) fn config() -> GateConfig {
    let capabilities = Capabilities { load_session: true, read_text_file: true, ..Capabilities::default() };
    GateConfig {
        operator: "notes".into(),
        tier: "governance-aware".into(),
        revision: "abc1234".into(),
        capabilities,
        servers: Some(Vec::new()),
        roots: vec!["/w".into()],
        client_methods: vec!["_theirs/thing".into()],
        ..GateConfig::default()
    }
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::with(config(), &["lead"])
    }

    pub(crate) fn with(config: GateConfig, roles: &[&str]) -> Self {
        let roles = roles.iter().map(|role| (*role).to_owned()).collect();
        let who = Principal { id: "user:ada".into(), roles, ..Principal::default() };
        Self::of(config, who, policy())
    }

    pub(crate) fn of(config: GateConfig, who: Principal, policy: Policy) -> Self {
        let setting = GateStart { started_at: 1_000_000, nonce: "n".into() };
        let gate = Gate::new(config, who, policy, Box::new(Plain), setting);
        Self { gate, now: GateTime::ZERO, sight: Sight::default(), records: true }
    }

    /// With a session in which a turn runs.
    pub(crate) fn at_work(mut self) -> Self {
        self.ask(1, "session/new", &json!({"cwd": "/w/a", "mcpServers": []}));
        self.answer(1, &json!({"sessionId": "s"}));
        self.prompt(2);
        self.sight = Sight::default();
        self
    }

    pub(crate) fn prompt(&mut self, id: u64) {
        self.ask(id, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    }

    pub(crate) fn client(&mut self, value: &Value) {
        self.gate.handle_client_message(self.now, View::parse(value.to_string().as_bytes()), &mut self.sight);
        self.commit();
    }

    pub(crate) fn agent(&mut self, value: &Value) {
        self.agent_says(&value.to_string());
    }

    pub(crate) fn agent_says(&mut self, line: &str) {
        self.gate.handle_agent_message(self.now, View::parse(line.as_bytes()), &mut self.sight);
        self.commit();
    }

    pub(crate) fn commit(&mut self) {
        while self.records && !self.sight.unsettled.is_empty() {
            for seq in std::mem::take(&mut self.sight.unsettled) {
                self.gate.handle_audit_result(self.now, seq, true, &mut self.sight);
            }
        }
    }

    pub(crate) fn ask(&mut self, id: u64, method: &str, params: &Value) {
        self.client(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    pub(crate) fn answer(&mut self, id: u64, result: &Value) {
        self.agent(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    pub(crate) fn wants(&mut self, id: u64, method: &str, params: &Value) {
        self.agent(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    pub(crate) fn update(&mut self, update: &Value) {
        let params = json!({"sessionId": "s", "update": update});
        self.agent(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    }

    pub(crate) fn tool(&mut self, id: &str, name: &str, kind: &str, status: &str) {
        let input = json!({"path": format!("/w/a/{id}")});
        self.update(&json!({"sessionUpdate": "tool_call", "toolCallId": id, "name": name, "kind": kind,
            "status": status, "title": "Read", "rawInput": input}));
    }

    /// The agent asks whether it may, and offers to be allowed for ever.
    pub(crate) fn asks(&mut self, id: u64, call: &str, name: &str, kind: &str) {
        let input = json!({"path": format!("/w/a/{call}")});
        let options = json!([{"optionId": "always", "kind": "allow_always"}, {"optionId": "y", "kind": "allow_once"},
            {"optionId": "n", "kind": "reject_once"}]);
        self.wants(
            id,
            "session/request_permission",
            &json!({"sessionId": "s", "options": options,
            "toolCall": {"toolCallId": call, "name": name, "kind": kind, "rawInput": input}}),
        );
    }

    /// The client answers the gate's question of this number.
    pub(crate) fn says(&mut self, number: u64, option: &str) {
        self.client(&json!({"jsonrpc": "2.0", "id": format!("aip44:n:{number}"), "result":
            {"outcome": {"outcome": "selected", "optionId": option}}}));
    }

    /// What the agent was answered to its request.
    pub(crate) fn told_agent(&self, id: u64) -> Value {
        self.sight
            .agent
            .iter()
            .find(|line| line["id"] == id && line.get("method").is_none())
            .cloned()
            .unwrap_or_default()
    }

    /// What the client was answered to its request.
    pub(crate) fn told_client(&self, id: u64) -> Value {
        let found = self.sight.client.iter().find(|line| line["id"] == id && line.get("method").is_none());
        found.cloned().unwrap_or_default()
    }

    /// Whether the client was shown this call.
    pub(crate) fn shows(&self, call: &str) -> bool {
        self.sight.client.iter().any(|line| line["params"]["update"]["toolCallId"] == call)
    }

    pub(crate) fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.gate.tick(self.now, &mut self.sight);
        self.commit();
    }

    pub(crate) fn ballot(&mut self, id: &str, who: &str, role: &str) -> Result<(), VoteError> {
        let signer = Principal { id: who.into(), roles: vec![role.into()], ..Principal::default() };
        let vote = ApprovalVote { id: id.into(), signer, approves: true, reason: None, signature: None };
        let counted = self.gate.vote(self.now, vote, &mut self.sight);
        self.commit();
        counted
    }

    /// What was recorded: the actions, with what was decided, without those that precede every session and prompt.
    pub(crate) fn recorded(&self) -> Vec<String> {
        let told = |event: &Event| {
            let decision = event.policy.as_ref().and_then(|policy| Some(format!(" {}", policy.decision?)));
            format!("{}{}", event.action, decision.unwrap_or_default())
        };
        let is_told = |event: &&Event| !matches!(&*event.action, "session.requested" | "prompt.accepted");
        self.sight.events.iter().filter(is_told).map(told).collect()
    }

    /// The same in a real log, which must verify.
    pub(crate) fn log(&self) -> Vec<Value> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit-log.jsonl");
        let log = Log::open(&path, Options::default()).unwrap();
        for event in &self.sight.events {
            log.append(event.clone()).wait().unwrap();
        }
        log.close();
        let report = verify::log(&path, &verify::Options::default()).unwrap();
        assert_eq!((report.bad, report.entries), (None, self.sight.events.len() as u64));
        let text = std::fs::read_to_string(&path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}
