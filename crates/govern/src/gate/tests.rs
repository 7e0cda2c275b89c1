//! Tests of whole conversations through the gate. They check what both peers and the audit log receive.

mod approval_bypass;
mod approvals;
mod bounds;
mod budgets;
mod call_effects;
mod child_sessions;
mod client_files;
mod deadlines;
mod derived_approvals;
mod durable;
mod identity;
mod mcp_servers;
mod method_rules;
mod ownership;
mod replay;
mod retained;
mod session_end;
mod session_open;
mod terminals;
mod tool_updates;
mod unknown_members;
mod version_2;

use std::time::Duration;

use narrows_audit::Event;
use narrows_manifest::{Capabilities, ToolSet};
use narrows_policy::{
    Access, Class, DefaultApproval, GovernanceRule, GovernanceRuleset, Narrowing, Policy, Signer,
};
use narrows_wire::View;
use serde_json::{Value, json};

use super::{AuditSeq, Gate, GateOutput, GateStart, GateTime, ToolCheck};
use crate::config::GateConfig;
use crate::identity::{IdentityMethod, Principal};
use crate::path_resolver::PathResolver;

/// A disk without symbolic links.
#[derive(Debug)]
struct PlainPaths;

impl PathResolver for PlainPaths {
    fn canonicalize(&self, path: &std::path::Path) -> std::io::Result<std::path::PathBuf> {
        Ok(path.to_path_buf())
    }
}

/// A gate with both peers, whose messages a test sends.
struct Fixture {
    gate: Gate,
    now: GateTime,
    output: RecordedOutput,
    /// `true` if events are durable as soon as they are recorded.
    settles_at_once: bool,
}

#[derive(Default)]
struct RecordedOutput {
    seen: Vec<String>,
    /// Messages to the client, with `_meta.aip44`.
    raw: Vec<String>,
    events: Vec<Event>,
    /// Audit events that precede every session and prompt. Few tests check them.
    accepted: Vec<Event>,
    unsettled: Vec<AuditSeq>,
}

impl GateOutput for RecordedOutput {
    fn to_client(&mut self, parts: &[&[u8]]) {
        self.seen.push(format!("c < {}", plain(parts)));
        self.raw.push(String::from_utf8(parts.concat()).unwrap());
    }

    fn to_agent(&mut self, parts: &[&[u8]]) {
        self.seen.push(format!("a < {}", plain(parts)));
    }

    fn record(&mut self, seq: AuditSeq, event: Event) {
        if matches!(&*event.action, "prompt.accepted" | "session.requested") {
            self.unsettled.push(seq);
            return self.accepted.push(event);
        }
        let decision = event.policy.as_ref().and_then(|policy| Some(format!(" {}", policy.decision?)));
        let more: Vec<String> = ["tool", "approval", "reason", "code"]
            .iter()
            .filter_map(|key| Some(format!(" {key}={}", event.facts.get(key)?.clone().into_value())))
            .collect();
        self.seen.push(format!("log {}{}{}", event.action, decision.unwrap_or_default(), more.concat()));
        self.unsettled.push(seq);
        self.events.push(event);
    }

    fn answer_tool_check(&mut self, number: u64, refusal: Option<String>) {
        self.seen.push(format!("advice {number}: {}", refusal.unwrap_or_else(|| "go on".to_owned())));
    }

    fn end_agent(&mut self, why: &str) {
        self.seen.push(format!("end the agent: {why}"));
    }

    fn end_agent_gracefully(&mut self, why: &str) {
        self.seen.push(format!("release the agent: {why}"));
    }
}

/// Returns a line without `_meta.aip44`, which is the same in all lines.
fn plain(parts: &[&[u8]]) -> String {
    let line = String::from_utf8(parts.concat()).unwrap();
    let mut value: Value = serde_json::from_str(&line).unwrap();
    for place in ["/params", "/result"] {
        let Some(holder) = value.pointer_mut(place).and_then(Value::as_object_mut) else { continue };
        let Some(meta) = holder.get_mut("_meta").and_then(Value::as_object_mut) else { continue };
        if meta.get("aip44").is_some_and(|mark| mark.get("tier").is_some()) {
            meta.remove("aip44");
        }
        if meta.is_empty() {
            holder.remove("_meta");
        } else if *meta == *json!({"narrows": {"noLinks": true}}).as_object().unwrap() {
            holder.retain(|name, _| name != "_meta");
        }
    }
    value.to_string()
}

/// Policy of the tests: reading is allowed except for secrets, `Bash` needs the approval of a lead, and `Rm`
/// is denied. Any other change needs an approval.
fn policy() -> Policy {
    let lead = vec![Signer { role: Some("lead".into()), user_id: None }];
    let clauses = vec![
        GovernanceRule::new("runs", "tool.call", Class::RequireApproval)
            .with_subject("Bash")
            .unwrap()
            .with_signers(lead, 1),
        GovernanceRule::new("never", "tool.call", Class::Deny).with_subject("Rm").unwrap(),
        GovernanceRule::new("keys", "workspace.read", Class::Deny)
            .with_subject("workspace:/secret/**")
            .unwrap(),
    ];
    let ruleset = GovernanceRuleset::new(clauses).with_level(Some(2)).with_default(DefaultApproval::OnMutate);
    Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset)
}

fn config() -> GateConfig {
    GateConfig {
        operator: "notes".into(),
        tier: "governance-aware".into(),
        revision: "abc1234".into(),
        capabilities: Capabilities {
            read_text_file: true,
            write_text_file: true,
            load_session: true,
            mcp_acp: true,
            ..Capabilities::default()
        },
        roots: vec!["/w".into()],
        client_methods: ["_x/y", "_vendor/thing"].map(str::to_owned).to_vec(),
        agent_methods: ["_ask", "_x/y", "_x/z"].map(str::to_owned).to_vec(),
        ..GateConfig::default()
    }
}

impl Fixture {
    fn new() -> Self {
        Self::with_config(config(), &["lead"])
    }

    fn with_config(config: GateConfig, roles: &[&str]) -> Self {
        let who = Principal {
            id: "user:ada".into(),
            method: IdentityMethod::Process,
            roles: roles.iter().map(|role| (*role).to_owned()).collect(),
            ..Principal::default()
        };
        let start = GateStart { started_at: 1_000_000, nonce: "n".into() };
        let gate = Gate::new(config, who, policy(), Box::new(PlainPaths), start);
        Self { gate, now: GateTime::ZERO, output: RecordedOutput::default(), settles_at_once: true }
    }

    fn with_turn() -> Self {
        let mut fixture = Self::new();
        fixture.open_turn();
        fixture
    }

    fn open_turn(&mut self) {
        self.client_requests(1, "session/new", &json!({"cwd": "/w/a", "mcpServers": []}));
        self.agent_answers(1, &json!({"sessionId": "s"}));
        self.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
        self.output.seen.clear();
    }

    fn send_client(&mut self, value: &Value) {
        self.gate.handle_client_message(
            self.now,
            View::parse(value.to_string().as_bytes()),
            &mut self.output,
        );
        self.settle_events();
    }

    fn send_agent(&mut self, value: &Value) {
        self.gate.handle_agent_message(self.now, View::parse(value.to_string().as_bytes()), &mut self.output);
        self.settle_events();
    }

    fn settle_events(&mut self) {
        while self.settles_at_once && !self.output.unsettled.is_empty() {
            for seq in std::mem::take(&mut self.output.unsettled) {
                self.gate.handle_audit_result(self.now, seq, true, &mut self.output);
            }
        }
    }

    fn client_requests(&mut self, id: u64, method: &str, params: &Value) {
        self.send_client(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    fn agent_answers(&mut self, id: u64, result: &Value) {
        self.send_agent(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    fn agent_requests(&mut self, id: u64, method: &str, params: &Value) {
        self.send_agent(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    fn agent_updates(&mut self, update: &Value) {
        let params = json!({"sessionId": "s", "update": update});
        self.send_agent(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    }

    fn agent_calls(&mut self, id: &str, name: &str, status: &str, input: &Value) {
        let kind = match name {
            "Read" => "read",
            "Bash" => "execute",
            "Rm" => "delete",
            _ => "edit",
        };
        self.agent_updates(
            &json!({"sessionUpdate": "tool_call", "toolCallId": id, "name": name, "kind": kind,
            "status": status, "title": "harmless", "rawInput": input}),
        );
    }

    fn advance_clock(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.gate.tick(self.now, &mut self.output);
        self.settle_events();
    }

    fn take_seen(&mut self) -> String {
        std::mem::take(&mut self.output.seen).join("\n")
    }
}
