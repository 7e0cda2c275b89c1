//! Measures the deadlines of a gate with a simulated clock.

use narrows_audit::Event;
use narrows_govern::{AuditSeq, Gate, GateOutput, GateTime, GateTimeouts};
use narrows_wire::View;
use serde_json::{Value, json};

use super::point::{PointResult, fails, passes};
use super::sample_calls::SampleCall;

/// Maximum simulated wait. A deadline that has not passed by then counts as missing.
const MAX_WAIT: GateTime = GateTime::from_secs(86_400);

/// Collects the output of a gate, and commits its log entries at once.
#[derive(Default)]
struct OutputRecorder {
    to_client: Vec<Value>,
    to_agent: Vec<Value>,
    tickets: Vec<AuditSeq>,
    ended: bool,
}

impl GateOutput for OutputRecorder {
    fn to_client(&mut self, parts: &[&[u8]]) {
        self.to_client.push(serde_json::from_slice(&parts.concat()).unwrap_or_default());
    }

    fn to_agent(&mut self, parts: &[&[u8]]) {
        self.to_agent.push(serde_json::from_slice(&parts.concat()).unwrap_or_default());
    }

    fn record(&mut self, ticket: AuditSeq, _: Event) {
        self.tickets.push(ticket);
    }

    fn answer_tool_check(&mut self, _: u64, _: Option<String>) {}

    fn end_agent(&mut self, _: &str) {
        self.ended = true;
    }

    fn end_agent_gracefully(&mut self, _: &str) {
        self.ended = true;
    }
}

struct TimedGate {
    gate: Gate,
    now: GateTime,
    output: OutputRecorder,
}

impl TimedGate {
    fn client(&mut self, value: &Value) {
        self.gate.handle_client_message(
            self.now,
            View::parse(value.to_string().as_bytes()),
            &mut self.output,
        );
        self.commit();
    }

    fn agent(&mut self, value: &Value) {
        self.gate.handle_agent_message(self.now, View::parse(value.to_string().as_bytes()), &mut self.output);
        self.commit();
    }

    fn commit(&mut self) {
        while let Some(ticket) = self.output.tickets.pop() {
            self.gate.handle_audit_result(self.now, ticket, true, &mut self.output);
        }
    }

    /// Advances the clock until `has_come` holds or no deadline is left. Returns the elapsed time.
    fn wait(&mut self, has_come: impl Fn(&OutputRecorder) -> bool) -> Option<GateTime> {
        for _ in 0..16 {
            if has_come(&self.output) {
                return Some(self.now);
            }
            self.now = self.gate.next_deadline().filter(|due| *due <= MAX_WAIT)?;
            self.gate.tick(self.now, &mut self.output);
            self.commit();
        }
        None
    }
}

pub(super) struct DeadlineSetup<'a> {
    pub(super) root: &'a str,
    pub(super) patience: GateTimeouts,
    /// A call that needs an approval.
    pub(super) approved: Option<&'a SampleCall>,
    pub(super) denied: Option<&'a SampleCall>,
}

/// The number of gates that a full measurement needs.
pub(super) const GATE_COUNT: usize = 11;

enum WaitResult {
    After(GateTime),
    Wrong(&'static str),
    NotTried(&'static str),
}

/// Measures point 29: every deadline passes after its configured value, and has its effect.
pub(super) fn deadlines(gates: Vec<Gate>, setup: &DeadlineSetup<'_>) -> PointResult {
    let (mut gates, mut patience) = (gates.into_iter(), setup.patience);
    let (mut kept, mut not) = (Vec::new(), Vec::new());
    for name in GateTimeouts::NAMES {
        let Some(value) = patience.by_name_mut(name).copied() else { continue };
        let tried = match name {
            "terminate" => WaitResult::NotTried("needs an agent that does not exit"),
            "write" => WaitResult::NotTried("needs an agent that does not read"),
            _ => match gates.next() {
                Some(gate) => measure(name, gate, setup),
                None => WaitResult::NotTried("needs a gate"),
            },
        };
        match tried {
            WaitResult::After(took) if took == value => {
                kept.push(format!("{name} {}", format_duration(value)));
            }
            WaitResult::After(took) => {
                return fails(format!(
                    "{name}: {} configured, {} measured",
                    format_duration(value),
                    format_duration(took)
                ));
            }
            WaitResult::Wrong(what) => return fails(format!("{name} ({}): {what}", format_duration(value))),
            WaitResult::NotTried(why) => not.push(format!("{name} {} ({why})", format_duration(value))),
        }
    }
    let mut words = format!("kept: {}", kept.join(", "));
    if !not.is_empty() {
        words.push_str(&format!("; not tested: {}", not.join(", ")));
    }
    passes(words)
}

fn format_duration(time: GateTime) -> String {
    match time.subsec_millis() {
        0 => format!("{} s", time.as_secs()),
        _ => format!("{} ms", time.as_millis()),
    }
}

fn measure(name: &str, gate: Gate, setup: &DeadlineSetup<'_>) -> WaitResult {
    let root = setup.root;
    match name {
        "initialize" => response_timeout(
            gate,
            None,
            "initialize",
            &json!({"protocolVersion": 1, "clientCapabilities": {}}),
        ),
        "authenticate" => response_timeout(gate, None, "authenticate", &json!({"methodId": "self-test"})),
        "new" => response_timeout(gate, None, "session/new", &json!({"cwd": root, "mcpServers": []})),
        "load" => {
            let params = json!({"sessionId": "s", "cwd": root, "mcpServers": []});
            response_timeout(gate, Some(root), "session/load", &params)
        }
        "set" => response_timeout(
            gate,
            Some(root),
            "session/set_mode",
            &json!({"sessionId": "s", "modeId": "self-test"}),
        ),
        "other" => response_timeout(gate, Some(root), "session/list", &json!({})),
        "silence" => {
            let prompt = json!([{"type": "text", "text": "self-test"}]);
            response_timeout(gate, Some(root), "session/prompt", &json!({"sessionId": "s", "prompt": prompt}))
        }
        "close" => response_timeout(gate, Some(root), "session/close", &json!({"sessionId": "s"})),
        "cancel" => cancel_timeout(gate, root, setup.denied),
        "permission" => approval_timeout(gate, root, setup.approved),
        _ => client_service_timeout(gate, root),
    }
}

fn with_open_session(gate: Gate, root: &str) -> TimedGate {
    let mut gate = TimedGate { gate, now: GateTime::ZERO, output: OutputRecorder::default() };
    gate.client(&json!({"jsonrpc": "2.0", "id": 1, "method": "session/new",
        "params": {"cwd": root, "mcpServers": []}}));
    gate.agent(&json!({"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "s"}}));
    gate
}

/// Measures a request that the agent does not answer. With a `root`, the request is sent within a session.
fn response_timeout(gate: Gate, root: Option<&str>, method: &str, params: &Value) -> WaitResult {
    let mut gate = match root {
        Some(root) => with_open_session(gate, root),
        None => TimedGate { gate, now: GateTime::ZERO, output: OutputRecorder::default() },
    };
    gate.client(&json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}));
    if !gate.output.to_agent.iter().any(|line| line["id"] == 7) {
        return WaitResult::NotTried("it is denied or needs an approval here");
    }
    let is_over = |output: &OutputRecorder| {
        let late = |line: &Value| line["id"] == 7 && line["error"]["code"] == -32011;
        // After silence the gate first cancels the turn, and then answers the prompt.
        let stopped = output.to_agent.iter().any(|line| line["method"] == "session/cancel");
        output.ended || stopped || output.to_client.iter().any(late)
    };
    gate.wait(is_over).map_or(WaitResult::Wrong("no time limit for the response"), WaitResult::After)
}

fn tool_call(sample: &SampleCall) -> Value {
    let mut call = json!({"toolCallId": "c", "kind": sample.kind.name(), "rawInput": sample.input});
    if let Some(name) = &sample.name {
        call["name"] = json!(name);
    }
    call
}

fn approval_timeout(gate: Gate, root: &str, sample: Option<&SampleCall>) -> WaitResult {
    let Some(sample) = sample else { return WaitResult::NotTried("no tool needs an approval") };
    let mut gate = with_open_session(gate, root);
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    gate.agent(&json!({"jsonrpc": "2.0", "id": 9, "method": "session/request_permission",
        "params": {"sessionId": "s", "toolCall": tool_call(sample), "options": options}}));
    let answer = |output: &OutputRecorder| output.to_agent.iter().find(|line| line["id"] == 9).cloned();
    let took = gate.wait(|output| answer(output).is_some());
    match (took, answer(&gate.output)) {
        (Some(took), Some(line)) if line["result"]["outcome"]["optionId"] != "y" => WaitResult::After(took),
        (_, Some(_)) => WaitResult::Wrong("an unanswered approval counts as given"),
        (_, None) => WaitResult::Wrong("no time limit for an approval"),
    }
}

fn cancel_timeout(gate: Gate, root: &str, sample: Option<&SampleCall>) -> WaitResult {
    let Some(sample) = sample else { return WaitResult::NotTried("no tool is denied") };
    let mut gate = with_open_session(gate, root);
    let mut update = tool_call(sample);
    update["sessionUpdate"] = json!("tool_call");
    update["status"] = json!("in_progress");
    gate.agent(&json!({"jsonrpc": "2.0", "method": "session/update",
        "params": {"sessionId": "s", "update": update}}));
    let ended = gate.wait(|output| output.ended);
    ended
        .map_or(WaitResult::Wrong("an agent that continues a stopped turn is never ended"), WaitResult::After)
}

/// Measures a request to the client that stays unanswered.
fn client_service_timeout(gate: Gate, root: &str) -> WaitResult {
    let mut gate = with_open_session(gate, root);
    gate.agent(&json!({"jsonrpc": "2.0", "id": 9, "method": "fs/read_text_file",
        "params": {"sessionId": "s", "path": format!("{root}/self-test.txt")}}));
    if !gate.output.to_client.iter().any(|line| line["method"] == "fs/read_text_file") {
        return WaitResult::NotTried("the client reads no files for an agent without a request");
    }
    let told = gate.wait(|output| output.to_agent.iter().any(|line| line["id"] == 9));
    told.map_or(WaitResult::Wrong("no time limit for the client"), WaitResult::After)
}
