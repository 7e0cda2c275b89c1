//! How long a gate waits, by a clock that need not tick.

use narrows_audit::Event;
use narrows_govern::{Gate, Out, Ticket, Time};
use narrows_wire::View;
use serde_json::{Value, json};

use super::point::{Outcome, fails, not_applicable, passes};
use super::wish::Wish;

/// What takes longer has no end, for whoever waits.
const LONGEST: Time = Time::from_secs(86_400);

/// Everything that comes out of a gate, with everything recorded at once.
#[derive(Default)]
struct Tray {
    to_client: Vec<Value>,
    to_agent: Vec<Value>,
    tickets: Vec<Ticket>,
    ended: bool,
}

impl Out for Tray {
    fn to_client(&mut self, parts: &[&[u8]]) {
        self.to_client.push(serde_json::from_slice(&parts.concat()).unwrap_or_default());
    }

    fn to_agent(&mut self, parts: &[&[u8]]) {
        self.to_agent.push(serde_json::from_slice(&parts.concat()).unwrap_or_default());
    }

    fn record(&mut self, ticket: Ticket, _: Event) {
        self.tickets.push(ticket);
    }

    fn advise(&mut self, _: u64, _: Option<String>) {}

    fn end_agent(&mut self, _: &str) {
        self.ended = true;
    }
}

/// A gate whose time is ours.
struct Watched {
    gate: Gate,
    now: Time,
    tray: Tray,
}

impl Watched {
    fn client(&mut self, value: &Value) {
        self.gate.client(self.now, View::parse(value.to_string().as_bytes()), &mut self.tray);
        self.commit();
    }

    fn agent(&mut self, value: &Value) {
        self.gate.agent(self.now, View::parse(value.to_string().as_bytes()), &mut self.tray);
        self.commit();
    }

    fn commit(&mut self) {
        while let Some(ticket) = self.tray.tickets.pop() {
            self.gate.settled(self.now, ticket, true, &mut self.tray);
        }
    }

    /// Lets the time pass until nothing is due any more, or something has come of it. How long that took.
    fn wait(&mut self, has_come: impl Fn(&Tray) -> bool) -> Option<Time> {
        for _ in 0..16 {
            if has_come(&self.tray) {
                return Some(self.now);
            }
            self.now = self.gate.deadline().filter(|due| *due <= LONGEST)?;
            self.gate.tick(self.now, &mut self.tray);
            self.commit();
        }
        None
    }
}

/// Point 29: an approval that nobody gives, and a turn that goes on although it was stopped.
pub(super) fn deadlines(gates: [Gate; 2], root: &str, wish: Option<&Wish>, denied: Option<&Wish>) -> Outcome {
    let [first, second] = gates;
    approval(first, root, wish).with(&stubborn(second, root, denied))
}

fn opened(gate: Gate, root: &str) -> Watched {
    let mut watched = Watched { gate, now: Time::ZERO, tray: Tray::default() };
    watched.client(&json!({"jsonrpc": "2.0", "id": 1, "method": "session/new",
        "params": {"cwd": root, "mcpServers": []}}));
    watched.agent(&json!({"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "s"}}));
    watched
}

fn told(wish: &Wish) -> Value {
    let mut call = json!({"toolCallId": "c", "kind": wish.kind.name(), "rawInput": wish.input});
    if let Some(name) = &wish.name {
        call["name"] = json!(name);
    }
    call
}

fn approval(gate: Gate, root: &str, wish: Option<&Wish>) -> Outcome {
    let Some(wish) = wish else { return not_applicable("nothing here needs an approval") };
    let mut watched = opened(gate, root);
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    watched.agent(&json!({"jsonrpc": "2.0", "id": 9, "method": "session/request_permission",
        "params": {"sessionId": "s", "toolCall": told(wish), "options": options}}));
    let answer = |tray: &Tray| tray.to_agent.iter().find(|line| line["id"] == 9).cloned();
    let took = watched.wait(|tray| answer(tray).is_some());
    match (took, answer(&watched.tray)) {
        (Some(took), Some(line)) if line["result"]["outcome"]["optionId"] != "y" => {
            passes(format!("an approval that nobody gives is refused after {} s", took.as_secs()))
        }
        (_, Some(_)) => fails("an approval that nobody gives is taken as given"),
        (_, None) => fails("an approval that nobody gives is waited for without an end"),
    }
}

fn stubborn(gate: Gate, root: &str, wish: Option<&Wish>) -> Outcome {
    let Some(wish) = wish else { return not_applicable("nothing here is denied") };
    let mut watched = opened(gate, root);
    let mut update = told(wish);
    update["sessionUpdate"] = json!("tool_call");
    update["status"] = json!("in_progress");
    watched.agent(&json!({"jsonrpc": "2.0", "method": "session/update",
        "params": {"sessionId": "s", "update": update}}));
    match watched.wait(|tray| tray.ended) {
        Some(took) => {
            passes(format!("an agent that goes on with a stopped turn is ended after {} s", took.as_secs()))
        }
        None => fails("an agent that goes on with a stopped turn is never ended"),
    }
}
