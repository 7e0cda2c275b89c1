//! One run: the gate, its unsettled events, and both peers.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use narrows_audit::Event;
use narrows_govern::{
    ApprovalVote, AuditSeq, Autonomy, Gate, GateConfig, GateOutput, GateStart, GateTime, IdentityMethod,
    PathResolver, Principal,
};
use narrows_manifest::Capabilities;
use narrows_policy::{
    Access, Class, DefaultApproval, GovernanceRule, GovernanceRuleset, Narrowing, Policy, Signer,
};
use narrows_wire::View;
use serde_json::{Value, json};

use crate::oracle::Oracle;
use crate::peers::{self, Agent, Client};
use crate::random::Random;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) version: u8,
    pub(crate) autonomy: Autonomy,
    pub(crate) log_fails: bool,
    pub(crate) asks_first: bool,
}

pub(crate) struct RunOutcome {
    pub(crate) digest: u64,
    pub(crate) violations: Vec<String>,
    pub(crate) trace: Vec<String>,
    pub(crate) allowed: usize,
    pub(crate) refused: usize,
}

/// Targets to which the one link of the disk may lead.
const LINK_TARGETS: [&str; 4] = ["/w/sub", "/w/secret", "/w/link-to-nothing", "/etc"];

/// A disk with one link, `/w/link`, whose target changes at any time.
#[derive(Clone, Debug)]
pub(crate) struct LinkDisk(Arc<Mutex<&'static str>>);

impl LinkDisk {
    pub(crate) fn resolve(&self, path: &Path) -> PathBuf {
        let target = *self.0.lock().expect("the lock");
        path.strip_prefix("/w/link").map_or_else(|_| path.to_path_buf(), |rest| Path::new(target).join(rest))
    }
}

impl PathResolver for LinkDisk {
    fn canonicalize(&self, path: &Path) -> std::io::Result<PathBuf> {
        Ok(self.resolve(path))
    }
}

#[derive(Default)]
struct Outputs {
    to_client: VecDeque<Value>,
    to_agent: VecDeque<Value>,
    events: VecDeque<(AuditSeq, Event)>,
    advice: VecDeque<(u64, Option<String>)>,
    agent_ended: bool,
    order: Vec<Output>,
}

/// One output of the gate. The oracle sees all outputs in order.
pub(crate) enum Output {
    ToClient(Value),
    ToAgent(Value),
    Recorded(u64, Box<Event>),
    ToolCheckAnswered(u64, Option<String>),
    AgentEnded(String),
}

fn value_of(parts: &[&[u8]]) -> Value {
    serde_json::from_slice(&parts.concat()).expect("the gate writes JSON")
}

impl GateOutput for Outputs {
    fn to_client(&mut self, parts: &[&[u8]]) {
        self.to_client.push_back(value_of(parts));
        self.order.push(Output::ToClient(value_of(parts)));
    }

    fn to_agent(&mut self, parts: &[&[u8]]) {
        self.to_agent.push_back(value_of(parts));
        self.order.push(Output::ToAgent(value_of(parts)));
    }

    fn record(&mut self, seq: AuditSeq, event: Event) {
        self.order.push(Output::Recorded(seq.0, Box::new(event.clone())));
        self.events.push_back((seq, event));
    }

    fn answer_tool_check(&mut self, number: u64, refusal: Option<String>) {
        self.order.push(Output::ToolCheckAnswered(number, refusal.clone()));
        self.advice.push_back((number, refusal));
    }

    fn end_agent(&mut self, why: &str) {
        self.agent_ended = true;
        self.order.push(Output::AgentEnded(why.to_owned()));
    }
}

/// Policy of the runs: reading is allowed except for secrets, `Bash` needs a lead, and `Rm` is denied. Any
/// other change needs an approval.
fn policy() -> Policy {
    let lead = vec![Signer { role: Some("lead".into()), user_id: None }];
    let rule = |name, class| GovernanceRule::new(name, "tool.call", class);
    let rules = vec![
        rule("runs", Class::RequireApproval).with_subject("Bash").expect("a pattern").with_signers(lead, 1),
        rule("never", Class::Deny).with_subject("Rm").expect("a pattern"),
        GovernanceRule::new("keys", "workspace.read", Class::Deny)
            .with_subject("workspace:/secret/**")
            .expect("a pattern"),
    ];
    let ruleset = GovernanceRuleset::new(rules).with_level(Some(2)).with_default(DefaultApproval::OnMutate);
    Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset)
}

fn gate(family: Family, disk: LinkDisk) -> Gate {
    let config = GateConfig {
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
        client_methods: vec!["_x/listed".into()],
        agent_methods: vec!["_x/listed".into()],
        autonomy: family.autonomy,
        asks_first: family.asks_first,
        ..GateConfig::default()
    };
    let client = Principal {
        id: "user:ada".into(),
        method: IdentityMethod::Process,
        roles: vec!["lead".to_owned()],
        ..Principal::default()
    };
    let setting = GateStart { started_at: 1_000_000, nonce: "n".into() };
    Gate::new(config, client, policy(), Box::new(disk), setting)
}

pub(crate) struct World {
    family: Family,
    random: Random,
    gate: Gate,
    disk: LinkDisk,
    now: GateTime,
    outputs: Outputs,
    client: Client,
    agent: Agent,
    /// Recorded events whose result the gate does not know, the oldest first.
    unsettled: VecDeque<AuditSeq>,
    oracle: Oracle,
    hasher: DefaultHasher,
    trace: Vec<String>,
}

impl World {
    pub(crate) fn new(family: Family, seed: u64) -> Self {
        let disk = LinkDisk(Arc::new(Mutex::new(LINK_TARGETS[0])));
        Self {
            family,
            random: Random::new(seed),
            gate: gate(family, disk.clone()),
            oracle: Oracle::new(disk.clone()),
            disk,
            now: GateTime::ZERO,
            outputs: Outputs::default(),
            client: Client::new(family.version),
            agent: Agent::new(family.version),
            unsettled: VecDeque::new(),
            hasher: DefaultHasher::new(),
            trace: Vec::new(),
        }
    }

    pub(crate) fn run(mut self, steps: usize) -> RunOutcome {
        for _ in 0..steps {
            self.step();
            if self.outputs.agent_ended {
                break;
            }
        }
        self.log("end", "agent lost");
        self.gate.handle_agent_lost(self.now, Some("killed"), &mut self.outputs);
        self.collect();
        while !self.unsettled.is_empty() {
            self.settle(true);
        }
        self.oracle.finish();
        RunOutcome {
            digest: self.hasher.finish(),
            allowed: self.oracle.allowed,
            refused: self.oracle.refused,
            violations: self.oracle.violations,
            trace: self.trace,
        }
    }

    fn step(&mut self) {
        if self.random.one_in(4) {
            let target = self.random.pick(&LINK_TARGETS);
            self.log("link", target);
            *self.disk.0.lock().expect("the lock") = target;
        }
        match self.random.below(20) {
            0..=6 => {
                if let Some(message) = self.client.act(&mut self.random) {
                    self.send_from_client(&message);
                }
            }
            7..=14 => {
                if let Some(message) = self.agent.act(&mut self.random) {
                    self.send_from_agent(&message);
                }
            }
            15..=17 => {
                let fails = self.family.log_fails && self.random.one_in(12);
                self.settle(!fails);
            }
            18 => self.pass_time(),
            _ => self.vote_or_check_tool(),
        }
        // A disk is faster than a user, so most events are settled at once.
        while self.random.one_in(2) && !self.unsettled.is_empty() {
            self.settle(true);
        }
    }

    fn send_from_client(&mut self, message: &Value) {
        self.log("client", &message.to_string());
        self.oracle.record_client_message(message);
        self.gate.handle_client_message(
            self.now,
            View::parse(message.to_string().as_bytes()),
            &mut self.outputs,
        );
        self.collect();
    }

    fn send_from_agent(&mut self, message: &Value) {
        self.log("agent", &message.to_string());
        self.oracle.record_agent_message(message);
        self.gate.handle_agent_message(
            self.now,
            View::parse(message.to_string().as_bytes()),
            &mut self.outputs,
        );
        self.collect();
    }

    fn settle(&mut self, is_written: bool) {
        let Some(seq) = self.unsettled.pop_front() else { return };
        self.log("disk", if is_written { "written" } else { "failed" });
        self.oracle.record_audit_result(seq.0, is_written);
        self.gate.handle_audit_result(self.now, seq, is_written, &mut self.outputs);
        self.collect();
    }

    fn pass_time(&mut self) {
        let seconds = self.random.pick(&[0, 1, 5, 30, 120, 900]);
        self.now += Duration::from_secs(seconds);
        self.log("clock", &self.now.as_secs().to_string());
        self.gate.tick(self.now, &mut self.outputs);
        self.collect();
    }

    fn vote_or_check_tool(&mut self) {
        if self.family.asks_first && self.random.one_in(2) {
            let (number, request) = self.agent.check_tool(&mut self.random);
            self.log("consult", &format!("{number} {} {}", request.tool, request.arguments));
            self.oracle.record_tool_check(number, &request.tool);
            self.gate.check_tool(self.now, number, request, &mut self.outputs);
            return self.collect();
        }
        let open = self.gate.pending_approvals();
        if open.is_empty() {
            return;
        }
        let chosen = &open[self.random.below(open.len())];
        let roles = if self.random.one_in(3) { vec![] } else { vec!["lead".to_owned()] };
        let signer = Principal {
            id: "user:bob".into(),
            method: IdentityMethod::Process,
            roles,
            ..Principal::default()
        };
        let approves = self.random.one_in(2);
        let vote = ApprovalVote { id: chosen.id.clone(), signer, approves, reason: None, signature: None };
        self.log("vote", &format!("{} {approves}", vote.id));
        let counted = self.gate.vote(self.now, vote, &mut self.outputs);
        self.log("vote", if counted.is_ok() { "counted" } else { "not counted" });
        self.collect();
    }

    fn collect(&mut self) {
        for output in std::mem::take(&mut self.outputs.order) {
            let line = match &output {
                Output::ToClient(value) => format!("to client {value}"),
                Output::ToAgent(value) => format!("to agent {value}"),
                Output::Recorded(seq, event) => format!("record {seq} {}", peers::event_json(event)),
                Output::ToolCheckAnswered(number, refusal) => format!("advice {number} {}", json!(refusal)),
                Output::AgentEnded(why) => format!("end agent {why}"),
            };
            line.hash(&mut self.hasher);
            self.trace.push(format!("    {line}"));
            self.oracle.check_output(&output);
        }
        for (seq, _) in self.outputs.events.drain(..) {
            self.unsettled.push_back(seq);
        }
        for value in self.outputs.to_client.drain(..) {
            self.client.receive(&value);
        }
        for value in self.outputs.to_agent.drain(..) {
            self.agent.receive(&value);
        }
        self.outputs.advice.clear();
    }

    fn log(&mut self, who: &str, what: &str) {
        who.hash(&mut self.hasher);
        what.hash(&mut self.hasher);
        self.trace.push(format!("{who}: {what}"));
    }
}
