//! Rules that hold in every run, whatever the peers send and whether the log can be written.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use narrows_audit::{Event, LoggedDecision};
use serde_json::Value;

use crate::world::{LinkDisk, Output};

/// Checks the output of the gate against its input.
pub(crate) struct Oracle {
    disk: LinkDisk,
    pub(crate) violations: Vec<String>,
    pub(crate) allowed: usize,
    pub(crate) refused: usize,
    /// Pending requests of the client by id: how many have this id, and the method of the last one.
    asked: HashMap<String, (usize, String)>,
    /// Pending requests of the agent: method and params.
    agent_asked: HashMap<String, (String, Value)>,
    /// Requests of the agent that were sent to the client.
    shown: HashSet<String>,
    /// Sessions that the client asked to open, or that the agent created for it.
    known: HashSet<String>,
    open_checks: HashMap<u64, String>,
    written: Vec<Event>,
    unsettled: HashMap<u64, Event>,
}

impl Oracle {
    pub(crate) fn new(disk: LinkDisk) -> Self {
        Self {
            disk,
            violations: Vec::new(),
            allowed: 0,
            refused: 0,
            asked: HashMap::new(),
            agent_asked: HashMap::new(),
            shown: HashSet::new(),
            known: HashSet::new(),
            open_checks: HashMap::new(),
            written: Vec::new(),
            unsettled: HashMap::new(),
        }
    }

    fn violation(&mut self, what: String) {
        self.violations.push(what);
    }

    pub(crate) fn record_client_message(&mut self, message: &Value) {
        let Some(method) = message["method"].as_str() else { return };
        if message["id"].is_null() {
            return;
        }
        // A client that uses an id twice gets two answers with this id.
        let asked = self.asked.entry(message["id"].to_string()).or_default();
        *asked = (asked.0 + 1, method.to_owned());
        if method == "session/load"
            && let Some(session) = message["params"]["sessionId"].as_str()
        {
            self.known.insert(session.to_owned());
        }
    }

    pub(crate) fn record_agent_message(&mut self, message: &Value) {
        match (message["method"].as_str(), message["id"].is_null()) {
            (Some(method), false) => {
                let asked = (method.to_owned(), message["params"].clone());
                self.agent_asked.insert(message["id"].to_string(), asked);
            }
            (None, false) => {
                if let Some(session) = message["result"]["sessionId"].as_str() {
                    self.known.insert(session.to_owned());
                }
            }
            _ => {}
        }
    }

    pub(crate) fn record_tool_check(&mut self, number: u64, tool: &str) {
        self.open_checks.insert(number, tool.to_owned());
    }

    pub(crate) fn record_audit_result(&mut self, seq: u64, is_written: bool) {
        let event = self.unsettled.remove(&seq);
        self.written.extend(event.filter(|_| is_written));
    }

    pub(crate) fn check_output(&mut self, output: &Output) {
        match output {
            Output::Recorded(seq, event) => {
                self.unsettled.insert(*seq, (**event).clone());
            }
            Output::ToolCheckAnswered(number, refusal) => self.check_tool_answer(*number, refusal.as_deref()),
            Output::ToClient(message) => self.check_sent_to_client(message),
            Output::ToAgent(message) => self.check_sent_to_agent(message),
            Output::AgentEnded(_) => {}
        }
    }

    fn check_tool_answer(&mut self, number: u64, refusal: Option<&str>) {
        let Some(tool) = self.open_checks.remove(&number) else {
            return self.violation(format!("an answer to the tool check {number}, which is not pending"));
        };
        match refusal {
            Some(_) => self.refused += 1,
            None if tool == "Rm" => self.violation("a denied tool of the built-in agent may run".to_owned()),
            None if !self.has_written(is_allow) => {
                self.violation("a tool may run before its decision is on disk".to_owned());
            }
            None => self.allowed += 1,
        }
    }

    fn check_sent_to_client(&mut self, message: &Value) {
        let id = message["id"].to_string();
        let Some(method) = message["method"].as_str() else {
            match self.asked.get_mut(&id) {
                Some((open @ 1.., _)) => *open -= 1,
                _ if message["id"].is_null() => {}
                _ => self.violation(format!("the client gets an answer to {id}, which it did not ask")),
            }
            return;
        };
        if let Some(session) = message["params"]["sessionId"].as_str()
            && !self.known.contains(session)
        {
            self.violation(format!("the client is shown session {session}, which it did not open"));
        }
        let path = message["params"]["path"].as_str().unwrap_or_default();
        if matches!(method, "fs/read_text_file" | "fs/write_text_file") {
            // The path that is opened is the one that was judged, even if the link was changed and restored.
            let named = self.agent_asked.get(&id).and_then(|(_, params)| params["path"].as_str());
            let leads = named.map(|named| self.disk.resolve(Path::new(named)));
            if leads.as_deref() != Some(Path::new(path))
                || message["params"]["_meta"]["narrows"]["noLinks"] != true
            {
                self.violation(format!(
                    "{method} reaches the client for {path}, and the agent named {named:?}"
                ));
            }
        }
        match method {
            "fs/read_text_file" if path.starts_with("/w/secret") || !path.starts_with("/w") => {
                self.violation(format!("the client is asked to read {path}"));
            }
            "fs/write_text_file" if !path.starts_with("/w") => {
                self.violation(format!("the client is asked to write {path}"));
            }
            "fs/read_text_file" | "fs/write_text_file" => {
                self.allowed += 1;
                if !self.has_written(is_allow) {
                    self.violation(format!("{method} reaches the client before a decision is on disk"));
                }
            }
            "terminal/create" => self.violation("a terminal, which the manifest does not declare".to_owned()),
            "_x/other" => self.violation("a method that the manifest does not list".to_owned()),
            "session/update" => self.update(message),
            _ => {}
        }
        if !message["id"].is_null() {
            self.shown.insert(id);
        }
    }

    /// A denied call is never shown as running or completed, except in history, which is marked.
    fn update(&mut self, message: &Value) {
        let update = &message["params"]["update"];
        if message["params"]["_meta"]["aip44"]["replay"] == true {
            return;
        }
        if update["name"] == "Rm" && matches!(update["status"].as_str(), Some("in_progress" | "completed")) {
            self.violation(format!("a denied call is shown as {}", update["status"]));
        }
    }

    fn check_sent_to_agent(&mut self, message: &Value) {
        let id = message["id"].to_string();
        let Some(method) = message["method"].as_str() else {
            return self.answer_to_agent(&id, message);
        };
        match method {
            "_x/other" => self.violation("a method of the client that the manifest does not list".to_owned()),
            "session/new" if message["params"]["cwd"] != "/w" => {
                self.violation("a session outside the workspace reaches the agent".to_owned());
            }
            "session/prompt" => {
                let session = message["params"]["sessionId"].as_str().unwrap_or_default().to_owned();
                // The approval of a turn records the start of the turn.
                let is_accepted = |event: &Event| {
                    event.action == "prompt.accepted"
                        || (is_allow(event) && event.subject.reference.as_deref() == Some("turn"))
                };
                let is_of =
                    |event: &Event| is_accepted(event) && fact(event, "session").as_str() == Some(&session);
                if !self.has_written(is_of) {
                    self.violation("a prompt reaches the agent before it is on disk".to_owned());
                }
            }
            _ => {}
        }
    }

    fn answer_to_agent(&mut self, id: &str, message: &Value) {
        // The gate itself asks to close sessions. Every other answer belongs to a request of the client.
        let Some((method, params)) = self.agent_asked.remove(id) else {
            if message["id"].is_u64() {
                self.violation(format!("the agent gets an answer to {id}, which it did not ask"));
            }
            return;
        };
        let is_permitted = message["result"]["outcome"]["optionId"] == "y";
        if method != "session/request_permission" {
            return;
        }
        let call = match params.get("subject") {
            Some(subject) => &subject["toolCall"],
            None => &params["toolCall"],
        };
        if !is_permitted {
            self.refused += 1;
            return;
        }
        self.allowed += 1;
        if call["name"] == "Rm" {
            self.violation("a denied call is permitted".to_owned());
        }
        let call_id = call["toolCallId"].as_str().unwrap_or_default().to_owned();
        let is_of = |event: &Event| is_allow(event) && fact(event, "toolCallId").as_str() == Some(&call_id);
        if !self.has_written(is_of) {
            self.violation(format!("call {call_id} is permitted before the decision is on disk"));
        }
    }

    fn has_written(&self, test: impl Fn(&Event) -> bool) -> bool {
        self.written.iter().any(test)
    }

    /// After the agent is gone, every request of the client has an answer.
    pub(crate) fn finish(&mut self) {
        let open = self.asked.iter().filter(|(_, (open, _))| *open > 0);
        let mut left: Vec<String> =
            open.map(|(id, (_, method))| format!("request {id} ({method}) was never answered")).collect();
        left.sort();
        self.violations.append(&mut left);
        let advice: Vec<u64> = self.open_checks.keys().copied().collect();
        for number in advice {
            self.violation(format!("question {number} of the built-in agent was never answered"));
        }
    }
}

fn is_allow(event: &Event) -> bool {
    event.policy.as_ref().is_some_and(|policy| policy.decision == Some(LoggedDecision::Allow))
}

fn fact(event: &Event, name: &str) -> Value {
    event.facts.get(name).map_or(Value::Null, |fact| fact.clone().into_value())
}
