//! A client and an agent that mostly follow the protocol, and often violate it.

use narrows_audit::Event;
use narrows_govern::ToolCheck;
use serde_json::{Map, Value, json};

use crate::random::Random;

const SESSIONS: [&str; 3] = ["s1", "s2", "s3"];
const CALLS: [&str; 4] = ["c1", "c2", "c3", "c4"];
const TOOLS: [(&str, &str); 4] = [("Read", "read"), ("Bash", "execute"), ("Rm", "delete"), ("Edit", "edit")];
const PATHS: [&str; 5] = ["/w/a.txt", "/w/secret/key", "/etc/passwd", "/w/sub/b.txt", "/w/link/c.txt"];

/// Returns an event as JSON, without names of Rust types.
pub(crate) fn event_json(event: &Event) -> Value {
    let facts: Map<String, Value> =
        event.facts.iter().map(|(name, fact)| (name.to_owned(), fact.clone().into_value())).collect();
    json!({"action": event.action, "actor": event.actor, "subject": event.subject, "input": event.input,
        "output": event.output, "policy": event.policy, "facts": facts})
}

fn request(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

#[derive(Clone, Debug)]
struct PendingAtAgent {
    id: Value,
    method: String,
    params: Value,
}

fn owed_answer(message: &Value) -> Option<PendingAtAgent> {
    let method = message.get("method")?.as_str()?.to_owned();
    let id = message.get("id")?.clone();
    Some(PendingAtAgent { id, method, params: message.get("params").cloned().unwrap_or_default() })
}

pub(crate) struct Client {
    version: u8,
    next: u64,
    is_initialized: bool,
    owed: Vec<PendingAtAgent>,
}

impl Client {
    pub(crate) fn new(version: u8) -> Self {
        Self { version, next: 0, is_initialized: false, owed: Vec::new() }
    }

    pub(crate) fn receive(&mut self, message: &Value) {
        self.owed.extend(owed_answer(message));
        if message["result"]["protocolVersion"].is_u64() {
            self.is_initialized = true;
        }
    }

    pub(crate) fn act(&mut self, random: &mut Random) -> Option<Value> {
        self.next += 1;
        let id = self.next;
        if !self.is_initialized {
            let params = json!({"protocolVersion": self.version, "clientCapabilities":
                {"fs": {"readTextFile": true, "writeTextFile": true}, "subagents": {}}});
            return Some(request(id, "initialize", &params));
        }
        if !self.owed.is_empty() && random.one_in(2) {
            let owed = self.owed.swap_remove(random.below(self.owed.len()));
            return Some(answer_of_client(&owed, random));
        }
        let session = random.pick(&SESSIONS);
        let text = json!([{"type": "text", "text": "go"}]);
        let message = match random.below(14) {
            0 | 1 => request(id, "session/new", &json!({"cwd": "/w", "mcpServers": []})),
            2 => request(id, "session/load", &json!({"sessionId": session, "cwd": "/w", "mcpServers": []})),
            3..=7 => request(id, "session/prompt", &json!({"sessionId": session, "prompt": text})),
            8 => json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}),
            9 => request(id, "session/close", &json!({"sessionId": session})),
            10 => request(id, "session/set_mode", &json!({"sessionId": session, "modeId": "m"})),
            11 => request(id, random.pick(&["_x/listed", "_x/other"]), &json!({"sessionId": session})),
            12 => request(id, "session/new", &json!({"cwd": "/etc", "mcpServers": []})),
            // An id in use, or an unsolicited answer.
            _ if random.one_in(2) => request(id.saturating_sub(2), "session/list", &json!({})),
            _ => json!({"jsonrpc": "2.0", "id": 4_000, "result": {}}),
        };
        Some(message)
    }
}

fn answer_of_client(owed: &PendingAtAgent, random: &mut Random) -> Value {
    let result = match owed.method.as_str() {
        "session/request_permission" => {
            let options = owed.params["options"].as_array().cloned().unwrap_or_default();
            match options.is_empty() || random.one_in(4) {
                true => json!({"outcome": {"outcome": "cancelled"}}),
                false => {
                    let option = options[random.below(options.len())]["optionId"].clone();
                    json!({"outcome": {"outcome": "selected", "optionId": option}})
                }
            }
        }
        "fs/read_text_file" => json!({"content": "text"}),
        _ => json!({}),
    };
    if random.one_in(8) {
        return json!({"jsonrpc": "2.0", "id": owed.id, "error": {"code": -32603, "message": "no"}});
    }
    json!({"jsonrpc": "2.0", "id": owed.id, "result": result})
}

pub(crate) struct Agent {
    version: u8,
    next: u64,
    open_checks: u64,
    created: usize,
    owed: Vec<PendingAtAgent>,
    /// Names of the sessions that the agent was asked to open.
    sessions: Vec<String>,
    /// The latest update about a call; most updates continue it.
    told: Option<(String, &'static str, &'static str)>,
}

impl Agent {
    pub(crate) fn new(version: u8) -> Self {
        Self {
            version,
            next: 0,
            open_checks: 0,
            created: 0,
            owed: Vec::new(),
            sessions: Vec::new(),
            told: None,
        }
    }

    pub(crate) fn receive(&mut self, message: &Value) {
        self.owed.extend(owed_answer(message));
    }

    fn session(&self, random: &mut Random) -> String {
        // An agent that uses a foreign session is ended, and the run is over.
        match self.sessions.is_empty() || random.one_in(80) {
            true => random.pick(&SESSIONS).to_owned(),
            false => self.sessions[random.below(self.sessions.len())].clone(),
        }
    }

    pub(crate) fn check_tool(&mut self, random: &mut Random) -> (u64, ToolCheck) {
        self.open_checks += 1;
        let tool = random.pick(&["read_file", "write_file", "run_command", "Rm"]).to_owned();
        let request = ToolCheck {
            session: self.session(random),
            call: random.pick(&CALLS).to_owned(),
            server: None,
            name: tool.clone(),
            arguments: json!({"path": random.pick(&PATHS), "command": "ls"}),
            tool,
        };
        (self.open_checks, request)
    }

    pub(crate) fn act(&mut self, random: &mut Random) -> Option<Value> {
        if !self.owed.is_empty() && random.one_in(3) {
            let owed = self.owed.swap_remove(random.below(self.owed.len()));
            return Some(self.answer(&owed, random));
        }
        if self.sessions.is_empty() && !random.one_in(40) {
            return None;
        }
        self.next += 1;
        let id = self.next;
        let session = self.session(random);
        let path = random.pick(&PATHS);
        Some(match random.below(12) {
            0..=5 => {
                let params = json!({"sessionId": session, "update": self.update(random)});
                json!({"jsonrpc": "2.0", "method": "session/update", "params": params})
            }
            6 | 7 => {
                let (name, kind) = random.pick(&TOOLS);
                let call = json!({"toolCallId": random.pick(&CALLS), "title": name, "name": name, "kind": kind,
                    "status": "pending", "rawInput": {"path": path}});
                let options = json!([{"optionId": "y", "name": "yes", "kind": "allow_once"},
                    {"optionId": "n", "name": "no", "kind": "reject_once"}]);
                let params = match self.version {
                    2 => json!({"sessionId": session, "title": "May it?", "options": options,
                        "subject": {"type": "tool_call", "toolCall": call}}),
                    _ => json!({"sessionId": session, "toolCall": call, "options": options}),
                };
                request(id, "session/request_permission", &params)
            }
            8 => request(id, "fs/read_text_file", &json!({"sessionId": session, "path": path})),
            9 => {
                let params = json!({"sessionId": session, "path": path, "content": "x"});
                request(id, "fs/write_text_file", &params)
            }
            10 => request(id, "terminal/create", &json!({"sessionId": session, "command": "ls"})),
            _ => request(id, random.pick(&["_x/listed", "_x/other"]), &json!({"sessionId": session})),
        })
    }

    fn update(&mut self, random: &mut Random) -> Value {
        let text = json!({"type": "text", "text": "hello"});
        if random.one_in(4) {
            return json!({"sessionUpdate": "agent_message_chunk", "messageId": "m1", "content": text});
        }
        if self.version == 2 && random.one_in(5) {
            return json!({"sessionUpdate": "state_update", "state": random.pick(&["running", "idle"])});
        }
        let status = random.pick(&["pending", "in_progress", "completed", "failed"]);
        if let Some((call, _, _)) = self.told.as_ref().filter(|_| random.one_in(2)) {
            return json!({"sessionUpdate": "tool_call_update", "toolCallId": call, "status": status});
        }
        let (name, kind) = random.pick(&TOOLS);
        let call = random.pick(&CALLS);
        self.told = Some((call.to_owned(), name, kind));
        let verb = if self.version == 2 { "tool_call_update" } else { "tool_call" };
        json!({"sessionUpdate": verb, "toolCallId": call, "title": name, "name": name, "kind": kind,
            "status": status, "rawInput": {"path": random.pick(&PATHS)}})
    }

    fn answer(&mut self, owed: &PendingAtAgent, random: &mut Random) -> Value {
        let session = owed.params["sessionId"].as_str().unwrap_or_default().to_owned();
        let result = match owed.method.as_str() {
            "initialize" if self.version == 2 => {
                let session = json!({"prompt": {}, "mcp": {"acp": {}}});
                json!({"protocolVersion": 2, "capabilities": {"session": session}})
            }
            "initialize" => json!({"protocolVersion": 1, "agentCapabilities":
                {"loadSession": true, "mcpCapabilities": {"acp": true}}}),
            "session/new" => {
                self.created += 1;
                let name = SESSIONS[self.created % SESSIONS.len()].to_owned();
                self.sessions.push(name.clone());
                json!({"sessionId": name})
            }
            "session/load" => {
                self.sessions.push(session);
                json!({})
            }
            "session/prompt" => json!({"stopReason": "end_turn"}),
            "session/list" => json!({"sessions": [{"sessionId": "s1", "cwd": "/w"}]}),
            _ => json!({}),
        };
        if random.one_in(10) && owed.method != "initialize" {
            return json!({"jsonrpc": "2.0", "id": owed.id, "error": {"code": -32603, "message": "no"}});
        }
        json!({"jsonrpc": "2.0", "id": owed.id, "result": result})
    }
}
