//! The agent's answers, as far as they change what is known.

use narrows_acp::method;
use narrows_wire::{View, message};
use serde_json::{Map, Value, json};

use super::Pass;
use super::api::{Out, Ticket};
use super::outbox::{Otherwise, Way};
use super::session::{Asked, Session};
use super::session_open::{crowded, read, unrecorded, unrecorded_outcome};
use crate::lifecycle::Life;
use crate::meta::introduce;
use crate::request_ids::comparable_id;

impl<O: Out> Pass<'_, O> {
    pub(super) fn agent_response(&mut self, message: View<'_>) {
        // An error with the id `null` is about a line that the agent could not read.
        if message.id() == Some(b"null") {
            return self.show(message);
        }
        let Some(compared) = message.id().and_then(comparable_id) else { return };
        let id = &*compared;
        // A response to no request, or a second one to the same, is dropped.
        let Some(owed) = self.gate.asked.remove(id) else { return };
        if owed.is_late {
            if matches!(owed.what, Asked::Create { .. })
                && let Some(name) = message.session().filter(|_| message.result().is_some())
                && !self.gate.sessions.get(&*name).is_some_and(|session| session.is_admitted)
            {
                self.close_unkept(&name, "it was opened too late");
            }
            self.drop_early();
            return self.too_late(&owed);
        }
        let fitting = self.fitting_answer(&owed.method, message);
        let message = fitting.as_deref().map_or(message, View::parse);
        match owed.what {
            Asked::Other => self.show(message),
            Asked::Initialize => self.initialized(id, message),
            Asked::Create { place } => {
                let name = message.session().filter(|_| message.result().is_some());
                let Some(name) = name else {
                    self.drop_early();
                    return self.show(message);
                };
                let Some(session) = self.open_session(&name) else { return self.unkept(id, &name) };
                session.settle(place);
                session.is_admitted = true;
                session.lineage = None;
                self.gate.charge_session(&name);
                if let Err(error) = self.enter(&name) {
                    return self.unowned(id, &name, &error);
                }
                let ticket = self.invoke(&name);
                // What was said before the answer is shown before it.
                self.release_early();
                self.send_marked(
                    message,
                    Some(ticket),
                    Otherwise::Say(Way::ToClient, unrecorded_outcome(id)),
                );
            }
            Asked::Open { session: name, replays } => {
                if message.result().is_none() {
                    self.unopened(&name, replays);
                    return self.show(message);
                }
                if let Some(session) = self.gate.sessions.get_mut(&*name) {
                    session.replays = session.replays.saturating_sub(u32::from(replays));
                    let ticket = self.invoke(&name);
                    self.send_marked(
                        message,
                        Some(ticket),
                        Otherwise::Say(Way::ToClient, unrecorded_outcome(id)),
                    );
                } else {
                    self.show(message);
                }
            }
            Asked::List => self.listed(id, message),
            Asked::Prompt { session } => self.turn_answered(id, &session, message),
            Asked::Close { session } => {
                let ticket = message.result().and_then(|_| {
                    self.settle_prompts(&session);
                    self.over(&session, "it was closed")
                });
                let otherwise = Otherwise::Say(Way::ToClient, unrecorded_outcome(id));
                self.send(Way::ToClient, &[message.bytes()], ticket, otherwise);
            }
        }
    }

    /// A session was made for which there is no room: then there is none.
    fn unkept(&mut self, id: &[u8], name: &str) {
        let event = self.parties(name).refused("session.refused", "too_many_sessions", json!({}));
        let ticket = self.record(event);
        self.close_unkept(name, "too many sessions are open");
        let line = message::error(id, &crowded());
        let otherwise = Otherwise::Say(Way::ToClient, unrecorded(id));
        self.send(Way::ToClient, &[&line], Some(ticket), otherwise);
    }

    /// Has the agent close a session that nobody will use. What it answers is nobody's answer.
    pub(super) fn close_unkept(&mut self, name: &str, reason: &str) {
        self.gate.serial += 1;
        let id = format!("\"aip44:{}:{}\"", self.gate.setting.nonce, self.gate.serial);
        if let Ok(line) = message::request(id.as_bytes(), method::SESSION_CLOSE, &json!({"sessionId": name}))
        {
            self.send(Way::ToAgent, &[&line], None, Otherwise::Nothing);
        }
        if self.over(name, reason).is_none() {
            self.gate.note_closed(name, false);
        }
        self.drop_early();
    }

    /// Records that a session is open.
    fn invoke(&mut self, name: &str) -> Ticket {
        if let Some(session) = self.session(name) {
            session.life = Life::Invoked;
        }
        let event = self.parties(name).step(Life::Invoked, None);
        self.record(event)
    }

    /// Sends a message to the client with our mark.
    pub(super) fn send_marked(&mut self, message: View<'_>, after: Option<Ticket>, otherwise: Otherwise) {
        let fitting = self.fitting_update(message);
        let message = fitting.as_deref().map_or(message, View::parse);
        // What can be read in two ways has not come this far.
        let Some(marked) = self.gate.mark.put(message) else { return };
        if after.is_none() && self.gate.to_client.is_empty() {
            return self.out.to_client(&marked);
        }
        let line = marked.concat();
        self.send(Way::ToClient, &[&line], after, otherwise);
    }

    /// The agent has introduced itself: what the manifest does not declare it does not offer, and what is declared must
    /// be there.
    fn initialized(&mut self, id: &[u8], message: View<'_>) {
        if message.result().is_none() {
            return self.show(message);
        }
        let mut result = read(message.result());
        self.gate.is_v2 = result["protocolVersion"] == 2;
        let mut missing = self.compare(&mut result);
        // No manifest can declare it: it comes with the others, and is offered where the agent has it.
        missing.retain(|name| *name != "acp");
        self.gate.unmet = (!missing.is_empty()).then(|| missing.join(", "));
        if let Some(error) = self.unmet() {
            let event =
                self.parties("").refused("session.refused", "unmet-capability", json!({"missing": missing}));
            let ticket = self.record(event);
            let line = message::error(id, &error);
            let otherwise = Otherwise::Say(Way::ToClient, unrecorded(id));
            return self.send(Way::ToClient, &[&line], Some(ticket), otherwise);
        }
        self.gate.is_introduced = true;
        introduce(&mut result, &self.gate.mandate, &self.gate.who);
        let Ok(line) = message::response(id, &result) else { return };
        self.send(Way::ToClient, &[&line], None, Otherwise::Nothing);
    }

    /// Takes out of an answer what is not declared, and names what is declared and not there.
    fn compare(&self, result: &mut Value) -> Vec<&'static str> {
        let declared = self.gate.mandate.capabilities;
        let mut missing = Vec::new();
        if self.gate.is_v2 {
            // What can be done with sessions is the same for all agents there.
            let mut none = Map::new();
            let session = result.pointer_mut("/capabilities/session").and_then(Value::as_object_mut);
            let session = session.unwrap_or(&mut none);
            for (group, name, is_declared) in [
                ("prompt", "image", declared.image),
                ("prompt", "audio", declared.audio),
                ("prompt", "embeddedContext", declared.embedded_context),
                ("mcp", "http", declared.mcp_http),
                ("mcp", "acp", declared.mcp_acp),
            ] {
                let group = session.get_mut(group).and_then(Value::as_object_mut);
                let is_there =
                    group.as_ref().is_some_and(|group| group.get(name).is_some_and(|it| !it.is_null()));
                match (is_declared, is_there) {
                    (true, false) => missing.push(name),
                    (false, true) => {
                        group.map(|group| group.remove(name));
                    }
                    _ => {}
                }
            }
            return missing;
        }
        let Some(offers) = result.as_object_mut().and_then(|result| {
            let offers = result.entry("agentCapabilities").or_insert_with(|| json!({}));
            offers.as_object_mut()
        }) else {
            return missing;
        };
        flag(offers, "loadSession", declared.load_session, &mut missing);
        for (group, flags) in [
            (
                "promptCapabilities",
                [
                    ("image", declared.image),
                    ("audio", declared.audio),
                    ("embeddedContext", declared.embedded_context),
                ],
            ),
            (
                "mcpCapabilities",
                [("http", declared.mcp_http), ("sse", declared.mcp_sse), ("acp", declared.mcp_acp)],
            ),
        ] {
            let mut none = Map::new();
            let group = offers.get_mut(group).and_then(Value::as_object_mut).unwrap_or(&mut none);
            for (name, is_declared) in flags {
                flag(group, name, is_declared, &mut missing);
            }
        }
        missing
    }
}

fn flag(
    offers: &mut Map<String, Value>,
    name: &'static str,
    declared: bool,
    missing: &mut Vec<&'static str>,
) {
    let is_there = offers.get(name) == Some(&Value::Bool(true));
    if declared && !is_there {
        missing.push(name);
    } else if is_there && !declared {
        offers.insert(name.to_owned(), json!(false));
    }
}

impl Session {
    /// Whether nothing ever happened in it.
    pub(super) fn is_fresh(&self) -> bool {
        self.prompts.is_empty() && self.calls.is_empty() && self.replays == 0
    }
}
