//! Handles the answers of the agent.

use narrows_acp::method;
use narrows_wire::{View, message};
use serde_json::{Map, Value, json};

use super::GateCtx;
use super::api::{AuditSeq, GateOutput};
use super::outbox::{GateDirection, OnAuditFailure};
use super::session::{ClientRequestKind, Session};
use super::session_open::{audit_unavailable, outcome_unrecorded, parse_object, too_many_sessions};
use crate::lifecycle::OperatorState;
use crate::meta::mark_initialize_answer;
use crate::request_ids::comparable_id;

impl<O: GateOutput> GateCtx<'_, O> {
    pub(super) fn handle_agent_response(&mut self, message: View<'_>) {
        // An error with the id `null` is about a line that the agent could not parse.
        if message.id() == Some(b"null") {
            return self.forward_to_client(message);
        }
        let Some(compared) = message.id().and_then(comparable_id) else { return };
        let id = &*compared;
        // A response without a pending request is dropped. So is a second response to the same request.
        let Some(pending) = self.gate.pending_at_agent.remove(id) else { return };
        if pending.is_late {
            if matches!(pending.kind, ClientRequestKind::Create { .. })
                && let Some(name) = message.session().filter(|_| message.result().is_some())
                && !self.gate.sessions.get(&*name).is_some_and(|session| session.is_admitted)
            {
                self.close_unusable_session(&name, "it was opened after the deadline");
            }
            self.drop_early();
            return self.drop_late_agent_answer(&pending);
        }
        let fitting = self.strip_answer(&pending.method, message);
        let message = fitting.as_deref().map_or(message, View::parse);
        match pending.kind {
            ClientRequestKind::Other => self.forward_to_client(message),
            ClientRequestKind::Initialize => self.handle_initialize_answer(id, message),
            ClientRequestKind::Create { setup } => {
                let name = message.session().filter(|_| message.result().is_some());
                let Some(name) = name else {
                    self.drop_early();
                    return self.forward_to_client(message);
                };
                let Some(session) = self.ensure_session(&name) else {
                    return self.refuse_surplus_session(id, &name);
                };
                session.set_up(setup);
                session.is_admitted = true;
                session.lineage = None;
                self.gate.charge_session(&name);
                if self.refuse_long_name(id, &name) {
                    return;
                }
                if let Err(error) = self.store_owner(&name) {
                    return self.handle_owner_failure(id, &name, &error);
                }
                let seq = self.record_session_open(&name);
                // The agent sent messages in the session before it answered. They are shown before the
                // answer.
                self.release_early();
                self.send_marked(
                    message,
                    Some(seq),
                    OnAuditFailure::SendInstead(GateDirection::ToClient, outcome_unrecorded(id)),
                );
            }
            ClientRequestKind::Open { session: name, replays } => {
                if message.result().is_none() {
                    self.handle_open_failure(&name, replays);
                    return self.forward_to_client(message);
                }
                if let Some(session) = self.gate.sessions.get_mut(&*name) {
                    session.replays = session.replays.saturating_sub(u32::from(replays));
                    let seq = self.record_session_open(&name);
                    self.send_marked(
                        message,
                        Some(seq),
                        OnAuditFailure::SendInstead(GateDirection::ToClient, outcome_unrecorded(id)),
                    );
                } else {
                    self.forward_to_client(message);
                }
            }
            ClientRequestKind::List => self.handle_list_answer(id, message),
            ClientRequestKind::Prompt { session } => self.handle_prompt_answer(id, &session, message),
            ClientRequestKind::Close { session } => {
                let seq = message.result().and_then(|_| {
                    self.answer_open_prompts(&session);
                    self.close_session(&session, "it was closed")
                });
                let on_failure = OnAuditFailure::SendInstead(GateDirection::ToClient, outcome_unrecorded(id));
                self.send(GateDirection::ToClient, &[message.bytes()], seq, on_failure);
            }
        }
    }

    fn refuse_surplus_session(&mut self, id: &[u8], name: &str) {
        let event = self.parties(name).refused("session.refused", "too_many_sessions", json!({}));
        let seq = self.record(event);
        self.close_unusable_session(name, "too many sessions are open");
        let line = message::error(id, &too_many_sessions());
        let on_failure = OnAuditFailure::SendInstead(GateDirection::ToClient, audit_unavailable(id));
        self.send(GateDirection::ToClient, &[&line], Some(seq), on_failure);
    }

    /// Asks the agent to close an unusable session. The agent's answer to the close request is dropped.
    pub(super) fn close_unusable_session(&mut self, name: &str, reason: &str) {
        self.gate.serial += 1;
        let id = format!("\"aip44:{}:{}\"", self.gate.start.nonce, self.gate.serial);
        if let Ok(line) = message::request(id.as_bytes(), method::SESSION_CLOSE, &json!({"sessionId": name}))
        {
            self.send(GateDirection::ToAgent, &[&line], None, OnAuditFailure::Drop);
        }
        if self.close_session(name, reason).is_none() {
            self.gate.remember_closed(name, false);
        }
        self.drop_early();
    }

    fn record_session_open(&mut self, name: &str) -> AuditSeq {
        if let Some(session) = self.session(name) {
            session.operator_state = OperatorState::Invoked;
        }
        let event = self.parties(name).state_changed(OperatorState::Invoked, None);
        self.record(event)
    }

    /// Sends a message to the client, with `_meta.aip44` set.
    pub(super) fn send_marked(
        &mut self,
        message: View<'_>,
        after: Option<AuditSeq>,
        on_failure: OnAuditFailure,
    ) {
        let fitting = self.strip_update(message);
        let message = fitting.as_deref().map_or(message, View::parse);
        // Ambiguous messages were refused earlier.
        let Some(marked) = self.gate.mark.insert(message) else { return };
        if after.is_none() && self.gate.to_client.is_empty() {
            return self.out.to_client(&marked);
        }
        let line = marked.concat();
        self.send(GateDirection::ToClient, &[&line], after, on_failure);
    }

    /// Handles the answer to `initialize`. Undeclared capabilities are removed from the answer. If a declared
    /// capability is missing, no session can be opened.
    fn handle_initialize_answer(&mut self, id: &[u8], message: View<'_>) {
        if message.result().is_none() {
            return self.forward_to_client(message);
        }
        let mut result = parse_object(message.result());
        self.gate.is_v2 = result["protocolVersion"] == 2;
        let mut missing = self.restrict_agent_capabilities(&mut result);
        // A manifest declares MCP over ACP (`acp`) only implicitly, so an agent may lack this capability.
        missing.retain(|name| *name != "acp");
        self.gate.unmet_capabilities = (!missing.is_empty()).then(|| missing.join(", "));
        if let Some(error) = self.unmet_error() {
            let event =
                self.parties("").refused("session.refused", "unmet-capability", json!({"missing": missing}));
            let seq = self.record(event);
            let line = message::error(id, &error);
            let on_failure = OnAuditFailure::SendInstead(GateDirection::ToClient, audit_unavailable(id));
            return self.send(GateDirection::ToClient, &[&line], Some(seq), on_failure);
        }
        self.gate.is_initialized = true;
        mark_initialize_answer(&mut result, &self.gate.config, &self.gate.principal);
        let Ok(line) = message::response(id, &result) else { return };
        self.send(GateDirection::ToClient, &[&line], None, OnAuditFailure::Drop);
    }

    /// Removes undeclared capabilities from an answer. Returns the declared capabilities that the agent
    /// lacks.
    fn restrict_agent_capabilities(&self, result: &mut Value) -> Vec<&'static str> {
        let declared = self.gate.config.capabilities;
        let mut missing = Vec::new();
        if self.gate.is_v2 {
            // In version 2, all agents have the same session capabilities.
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
        restrict_flag(offers, "loadSession", declared.load_session, &mut missing);
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
                restrict_flag(group, name, is_declared, &mut missing);
            }
        }
        missing
    }
}

fn restrict_flag(
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
    /// Returns `true` if the session has no turn, no call and no replay.
    pub(super) fn is_unused(&self) -> bool {
        self.prompts.is_empty() && self.calls.is_empty() && self.replays == 0
    }
}
