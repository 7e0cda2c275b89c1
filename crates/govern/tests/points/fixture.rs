//! A gate with both peers, whose messages a test sends.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use narrows_audit::{Event, Log, LogOptions, verify};
use narrows_govern::{
    ApprovalVote, AuditSeq, Gate, GateConfig, GateOutput, GateStart, GateTime, PathResolver, Principal,
    VoteError,
};
use narrows_manifest::Capabilities;
use narrows_policy::{
    Access, Class, DefaultApproval, GovernanceRule, GovernanceRuleset, Narrowing, Policy, Signer,
};
use narrows_wire::View;
use serde_json::{Value, json};

/// A disk without symbolic links.
#[derive(Debug)]
struct PlainPaths;

impl PathResolver for PlainPaths {
    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_path_buf())
    }
}

#[derive(Default)]
pub(crate) struct RecordedOutput {
    pub(crate) client: Vec<Value>,
    pub(crate) agent: Vec<Value>,
    pub(crate) events: Vec<Event>,
    pub(crate) unsettled: Vec<AuditSeq>,
    pub(crate) ended: Option<String>,
}

impl GateOutput for RecordedOutput {
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

pub(crate) struct Fixture {
    pub(crate) gate: Gate,
    pub(crate) now: GateTime,
    pub(crate) output: RecordedOutput,
    pub(crate) settles_at_once: bool,
}

/// Policy of the tests: reading is allowed, `Bash` needs a lead, and `Rm` is denied. Any other change needs
/// an approval.
pub(crate) fn policy() -> Policy {
    let lead = vec![Signer { role: Some("lead".into()), user_id: None }];
    let clauses = vec![
        GovernanceRule::new("runs", "tool.call", Class::RequireApproval)
            .with_subject("Bash")
            .unwrap()
            .with_signers(lead, 1),
        GovernanceRule::new("never", "tool.call", Class::Deny).with_subject("Rm").unwrap(),
    ];
    let ruleset = GovernanceRuleset::new(clauses).with_level(Some(2)).with_default(DefaultApproval::OnMutate);
    Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset)
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

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with_config(config(), &["lead"])
    }

    pub(crate) fn with_config(config: GateConfig, roles: &[&str]) -> Self {
        let roles = roles.iter().map(|role| (*role).to_owned()).collect();
        let who = Principal { id: "user:ada".into(), roles, ..Principal::default() };
        Self::with_policy(config, who, policy())
    }

    pub(crate) fn with_policy(config: GateConfig, who: Principal, policy: Policy) -> Self {
        let start = GateStart { started_at: 1_000_000, nonce: "n".into() };
        let gate = Gate::new(config, who, policy, Box::new(PlainPaths), start);
        Self { gate, now: GateTime::ZERO, output: RecordedOutput::default(), settles_at_once: true }
    }

    pub(crate) fn with_turn(mut self) -> Self {
        self.client_requests(1, "session/new", &json!({"cwd": "/w/a", "mcpServers": []}));
        self.agent_answers(1, &json!({"sessionId": "s"}));
        self.client_prompts(2);
        self.output = RecordedOutput::default();
        self
    }

    pub(crate) fn client_prompts(&mut self, id: u64) {
        self.client_requests(id, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    }

    pub(crate) fn send_client(&mut self, value: &Value) {
        self.gate.handle_client_message(
            self.now,
            View::parse(value.to_string().as_bytes()),
            &mut self.output,
        );
        self.settle_events();
    }

    pub(crate) fn send_agent(&mut self, value: &Value) {
        self.send_agent_line(&value.to_string());
    }

    pub(crate) fn send_agent_line(&mut self, line: &str) {
        self.gate.handle_agent_message(self.now, View::parse(line.as_bytes()), &mut self.output);
        self.settle_events();
    }

    pub(crate) fn settle_events(&mut self) {
        while self.settles_at_once && !self.output.unsettled.is_empty() {
            for seq in std::mem::take(&mut self.output.unsettled) {
                self.gate.handle_audit_result(self.now, seq, true, &mut self.output);
            }
        }
    }

    pub(crate) fn client_requests(&mut self, id: u64, method: &str, params: &Value) {
        self.send_client(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    pub(crate) fn agent_answers(&mut self, id: u64, result: &Value) {
        self.send_agent(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    pub(crate) fn agent_requests(&mut self, id: u64, method: &str, params: &Value) {
        self.send_agent(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    pub(crate) fn agent_updates(&mut self, update: &Value) {
        let params = json!({"sessionId": "s", "update": update});
        self.send_agent(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    }

    pub(crate) fn agent_calls(&mut self, id: &str, name: &str, kind: &str, status: &str) {
        let input = json!({"path": format!("/w/a/{id}")});
        self.agent_updates(
            &json!({"sessionUpdate": "tool_call", "toolCallId": id, "name": name, "kind": kind,
            "status": status, "title": "Read", "rawInput": input}),
        );
    }

    /// The agent asks for permission, and also offers the option to always allow.
    pub(crate) fn agent_asks_permission(&mut self, id: u64, call: &str, name: &str, kind: &str) {
        let input = json!({"path": format!("/w/a/{call}")});
        let options = json!([{"optionId": "always", "kind": "allow_always"}, {"optionId": "y", "kind": "allow_once"},
            {"optionId": "n", "kind": "reject_once"}]);
        self.agent_requests(
            id,
            "session/request_permission",
            &json!({"sessionId": "s", "options": options,
            "toolCall": {"toolCallId": call, "name": name, "kind": kind, "rawInput": input}}),
        );
    }

    /// The client answers the permission request of the gate with this number.
    pub(crate) fn client_answers(&mut self, number: u64, option: &str) {
        self.send_client(&json!({"jsonrpc": "2.0", "id": format!("aip44:n:{number}"), "result":
            {"outcome": {"outcome": "selected", "optionId": option}}}));
    }

    pub(crate) fn answer_to_agent(&self, id: u64) -> Value {
        self.output
            .agent
            .iter()
            .find(|line| line["id"] == id && line.get("method").is_none())
            .cloned()
            .unwrap_or_default()
    }

    pub(crate) fn answer_to_client(&self, id: u64) -> Value {
        let found = self.output.client.iter().find(|line| line["id"] == id && line.get("method").is_none());
        found.cloned().unwrap_or_default()
    }

    /// Returns `true` if the client was shown this call.
    pub(crate) fn shows_call(&self, call: &str) -> bool {
        self.output.client.iter().any(|line| line["params"]["update"]["toolCallId"] == call)
    }

    pub(crate) fn advance_clock(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.gate.tick(self.now, &mut self.output);
        self.settle_events();
    }

    pub(crate) fn vote(&mut self, id: &str, who: &str, role: &str) -> Result<(), VoteError> {
        let signer = Principal { id: who.into(), roles: vec![role.into()], ..Principal::default() };
        let vote = ApprovalVote { id: id.into(), signer, approves: true, reason: None, signature: None };
        let counted = self.gate.vote(self.now, vote, &mut self.output);
        self.settle_events();
        counted
    }

    /// Returns the recorded actions with their decisions, without those that precede every session and
    /// prompt.
    pub(crate) fn recorded_actions(&self) -> Vec<String> {
        let told = |event: &Event| {
            let decision = event.policy.as_ref().and_then(|policy| Some(format!(" {}", policy.decision?)));
            format!("{}{}", event.action, decision.unwrap_or_default())
        };
        let is_told = |event: &&Event| !matches!(&*event.action, "session.requested" | "prompt.accepted");
        self.output.events.iter().filter(is_told).map(told).collect()
    }

    /// Writes the events to a real log, which must verify, and returns its entries.
    pub(crate) fn verified_log(&self) -> Vec<Value> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit-log.jsonl");
        let log = Log::open(&path, LogOptions::default()).unwrap();
        for event in &self.output.events {
            log.append(event.clone()).wait().unwrap();
        }
        log.close();
        let report = verify::log(&path, &verify::VerifyOptions::default()).unwrap();
        assert_eq!((report.bad, report.entries), (None, self.output.events.len() as u64));
        let text = std::fs::read_to_string(&path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}
