//! How long a gate waits, by a clock that need not tick.

use narrows_audit::Event;
use narrows_govern::{Gate, Out, Patience, Ticket, Time};
use narrows_wire::View;
use serde_json::{Value, json};

use super::point::{Outcome, fails, passes};
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

    fn release_agent(&mut self, _: &str) {
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

/// What is tried with, and what is set.
pub(super) struct Setup<'a> {
    pub(super) root: &'a str,
    pub(super) patience: Patience,
    /// A call that needs an approval, and one that is denied.
    pub(super) approved: Option<&'a Wish>,
    pub(super) denied: Option<&'a Wish>,
}

/// How many gates it takes to try everything.
pub(super) const GATES: usize = 11;

/// What came of waiting.
enum Tried {
    /// It was over after this time.
    After(Time),
    /// It was not, or not as it should be.
    Wrong(&'static str),
    /// It could not be tried, and why.
    Not(&'static str),
}

/// Point 29: every deadline with its value, and what a gate did when it had passed.
pub(super) fn deadlines(gates: Vec<Gate>, setup: &Setup<'_>) -> Outcome {
    let (mut gates, mut patience) = (gates.into_iter(), setup.patience);
    let (mut kept, mut not) = (Vec::new(), Vec::new());
    for name in Patience::NAMES {
        let Some(value) = patience.named(name).copied() else { continue };
        let tried = match name {
            "terminate" => Tried::Not("it takes an agent that does not go"),
            "write" => Tried::Not("it takes an agent that does not read"),
            _ => match gates.next() {
                Some(gate) => try_one(name, gate, setup),
                None => Tried::Not("there is no gate for it"),
            },
        };
        match tried {
            Tried::After(took) if took == value => kept.push(format!("{name} {}", span(value))),
            Tried::After(took) => {
                return fails(format!("{name}: {} are set, and {} were waited", span(value), span(took)));
            }
            Tried::Wrong(what) => return fails(format!("{name} ({}): {what}", span(value))),
            Tried::Not(why) => not.push(format!("{name} {} ({why})", span(value))),
        }
    }
    let mut words = format!("kept: {}", kept.join(", "));
    if !not.is_empty() {
        words.push_str(&format!("; not tried: {}", not.join(", ")));
    }
    passes(words)
}

/// A time as people say it.
fn span(time: Time) -> String {
    match time.subsec_millis() {
        0 => format!("{} s", time.as_secs()),
        _ => format!("{} ms", time.as_millis()),
    }
}

fn try_one(name: &str, gate: Gate, setup: &Setup<'_>) -> Tried {
    let root = setup.root;
    match name {
        "initialize" => {
            unanswered(gate, None, "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}))
        }
        "authenticate" => unanswered(gate, None, "authenticate", &json!({"methodId": "self-test"})),
        "new" => unanswered(gate, None, "session/new", &json!({"cwd": root, "mcpServers": []})),
        "load" => {
            let params = json!({"sessionId": "s", "cwd": root, "mcpServers": []});
            unanswered(gate, Some(root), "session/load", &params)
        }
        "set" => unanswered(
            gate,
            Some(root),
            "session/set_mode",
            &json!({"sessionId": "s", "modeId": "self-test"}),
        ),
        "other" => unanswered(gate, Some(root), "session/list", &json!({})),
        "silence" => {
            let prompt = json!([{"type": "text", "text": "self-test"}]);
            unanswered(gate, Some(root), "session/prompt", &json!({"sessionId": "s", "prompt": prompt}))
        }
        "close" => unanswered(gate, Some(root), "session/close", &json!({"sessionId": "s"})),
        "cancel" => stubborn(gate, root, setup.denied),
        "permission" => approval(gate, root, setup.approved),
        _ => service(gate, root),
    }
}

fn opened(gate: Gate, root: &str) -> Watched {
    let mut watched = Watched { gate, now: Time::ZERO, tray: Tray::default() };
    watched.client(&json!({"jsonrpc": "2.0", "id": 1, "method": "session/new",
        "params": {"cwd": root, "mcpServers": []}}));
    watched.agent(&json!({"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "s"}}));
    watched
}

/// A request of the client that the agent does not answer, in a session of this place or in none.
fn unanswered(gate: Gate, root: Option<&str>, method: &str, params: &Value) -> Tried {
    let mut watched = match root {
        Some(root) => opened(gate, root),
        None => Watched { gate, now: Time::ZERO, tray: Tray::default() },
    };
    watched.client(&json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}));
    if !watched.tray.to_agent.iter().any(|line| line["id"] == 7) {
        return Tried::Not("here it is refused or needs an approval");
    }
    let is_over = |tray: &Tray| {
        let late = |line: &Value| line["id"] == 7 && line["error"]["code"] == -32011;
        // A silent turn is stopped first, and answered when that is over.
        let stopped = tray.to_agent.iter().any(|line| line["method"] == "session/cancel");
        tray.ended || stopped || tray.to_client.iter().any(late)
    };
    watched.wait(is_over).map_or(Tried::Wrong("an answer is waited for without an end"), Tried::After)
}

fn told(wish: &Wish) -> Value {
    let mut call = json!({"toolCallId": "c", "kind": wish.kind.name(), "rawInput": wish.input});
    if let Some(name) = &wish.name {
        call["name"] = json!(name);
    }
    call
}

fn approval(gate: Gate, root: &str, wish: Option<&Wish>) -> Tried {
    let Some(wish) = wish else { return Tried::Not("nothing here needs an approval") };
    let mut watched = opened(gate, root);
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    watched.agent(&json!({"jsonrpc": "2.0", "id": 9, "method": "session/request_permission",
        "params": {"sessionId": "s", "toolCall": told(wish), "options": options}}));
    let answer = |tray: &Tray| tray.to_agent.iter().find(|line| line["id"] == 9).cloned();
    let took = watched.wait(|tray| answer(tray).is_some());
    match (took, answer(&watched.tray)) {
        (Some(took), Some(line)) if line["result"]["outcome"]["optionId"] != "y" => Tried::After(took),
        (_, Some(_)) => Tried::Wrong("an approval that nobody gives is taken as given"),
        (_, None) => Tried::Wrong("an approval that nobody gives is waited for without an end"),
    }
}

fn stubborn(gate: Gate, root: &str, wish: Option<&Wish>) -> Tried {
    let Some(wish) = wish else { return Tried::Not("nothing here is denied") };
    let mut watched = opened(gate, root);
    let mut update = told(wish);
    update["sessionUpdate"] = json!("tool_call");
    update["status"] = json!("in_progress");
    watched.agent(&json!({"jsonrpc": "2.0", "method": "session/update",
        "params": {"sessionId": "s", "update": update}}));
    let ended = watched.wait(|tray| tray.ended);
    ended.map_or(Tried::Wrong("an agent that goes on with a stopped turn is never ended"), Tried::After)
}

/// Something that the client is to do for the agent, and does not.
fn service(gate: Gate, root: &str) -> Tried {
    let mut watched = opened(gate, root);
    watched.agent(&json!({"jsonrpc": "2.0", "id": 9, "method": "fs/read_text_file",
        "params": {"sessionId": "s", "path": format!("{root}/self-test.txt")}}));
    if !watched.tray.to_client.iter().any(|line| line["method"] == "fs/read_text_file") {
        return Tried::Not("here the client reads no file for an agent unasked");
    }
    let told = watched.wait(|tray| tray.to_agent.iter().any(|line| line["id"] == 9));
    told.map_or(Tried::Wrong("the client is waited for without an end"), Tried::After)
}
