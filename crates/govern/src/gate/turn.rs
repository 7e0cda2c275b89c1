//! Start and end of turns, and the end of sessions.

use std::borrow::Cow;

use narrows_acp::method;
use narrows_wire::{Code, Effects, RpcError, View, message};
use serde_json::{Value, json};

use super::api::{AuditSeq, GateOutput};
use super::client_services::ambiguous_params;
use super::deadlines::deadline_error;
use super::outbox::{GateDirection, OnAuditFailure};
use super::session::{ApprovalOrigin, CallRecord, ClientRequestKind, PendingAtAgent, Session, TurnHalt};
use super::session_open::{
    UNDECLARED, audit_unavailable, missing_session_id, outcome_unrecorded, too_many_sessions,
};
use super::{GateCtx, RawRequestId, UNRECORDED, prompt_content};
use crate::audit_events::{self, MessageSender};
use crate::call::Call;
use crate::config::Autonomy;
use crate::lifecycle::OperatorState;
use crate::unique_keys;

/// Reason for refusing approvals: the client has cancelled the turn.
pub(super) const CANCELLED: &str = "the turn was cancelled";

impl<O: GateOutput> GateCtx<'_, O> {
    pub(super) fn handle_prompt(&mut self, id: &[u8], message: View<'_>) {
        let Some(name) = self.require_open_session(id, message) else { return };
        let Some(params) = unique_keys::read(message.params()) else {
            return self.refuse_client(id, &ambiguous_params());
        };
        // A prompt that is not a list can be neither checked nor shown to an approver.
        if params.get("prompt").is_some_and(|prompt| !prompt.is_array()) {
            let error = RpcError::new(Code::InvalidParams, "prompt is not an array");
            return self.refuse_client(id, &error);
        }
        if let Some(kind) = prompt_content::undeclared_block(&params, self.gate.config.capabilities) {
            return self.refuse_block(id, &name, kind);
        }
        if self.gate.config.autonomy != Autonomy::Gated {
            return self.begin_turn(id, &name, message, None);
        }
        let key = format!("turn {}", String::from_utf8_lossy(id));
        let call =
            Call::new(None, "turn", "other", prompt_content::approval_input(&params, message.params()));
        let decision = self.turn_decision(&call);
        if !self.add_client_call(id, &name, &key, call) {
            return;
        }
        if let Some(record) = self.call_record(&name, &key) {
            record.decision = Some(decision);
        }
        let origin = ApprovalOrigin::Turn { line: message.bytes().to_vec().into(), id: id.into() };
        self.request_approval(&name, &key, origin, None);
    }

    /// Refuses a prompt that has a content block whose capability the manifest does not declare.
    pub(super) fn refuse_block(&mut self, id: &[u8], name: &str, kind: &str) {
        let event =
            self.parties(name).refused("prompt.refused", "undeclared_capability", json!({"type": kind}));
        let seq = self.record(event);
        let error =
            RpcError::new(Code::InvalidParams, UNDECLARED).with("code", json!("undeclared_capability"));
        let line = message::error(id, &error);
        let on_failure = OnAuditFailure::SendInstead(GateDirection::ToClient, audit_unavailable(id));
        self.send(GateDirection::ToClient, &[&line], Some(seq), on_failure);
    }

    /// Returns the session of a client request. If the session is not open, or is being replayed, refuses the
    /// request and returns `None`.
    pub(super) fn require_open_session<'a>(&mut self, id: &[u8], message: View<'a>) -> Option<Cow<'a, str>> {
        let Some(name) = message.session() else {
            self.refuse_client(id, &missing_session_id());
            return None;
        };
        match self.gate.sessions.get(&*name) {
            Some(session) if session.replays > 0 => {
                // During a replay, updates of new work would be taken for history.
                let error = RpcError::new(Code::InvalidRequest, "the session is still being opened")
                    .with("condition", json!("session_busy"))
                    .with("retryable", json!(true));
                self.refuse_client(id, &error);
            }
            Some(session) if session.is_admitted => return Some(name),
            None if self.gate.sessions.len() >= super::MAX_OPEN => {
                self.refuse_client(id, &too_many_sessions());
            }
            _ => self.refuse_unknown_session(id, &message.method().unwrap_or_default(), message),
        }
        None
    }

    /// Creates a call that stands for a client request. If the request id is in use or there is no room,
    /// refuses the request and returns `false`.
    pub(super) fn add_client_call(&mut self, id: &[u8], name: &str, key: &str, call: Call) -> bool {
        let is_asked = self.gate.pending_at_agent.contains_key(id);
        let Some(session) = self.gate.sessions.get(name) else { return false };
        let error = if is_asked || session.calls.contains_key(key) {
            RpcError::new(Code::DuplicateId, "a request with this id is still unanswered")
        } else if !self.has_room_for_call(name, key, call.retained_bytes()) {
            RpcError::new(Code::Backpressure, "too many unanswered requests")
        } else {
            if let Some(session) = self.gate.sessions.get_mut(name) {
                session.add_call(&self.gate.retained, key, CallRecord { call, ..CallRecord::default() });
            }
            return true;
        };
        self.refuse_client(id, &error);
        false
    }

    pub(super) fn begin_turn(&mut self, id: &[u8], name: &str, message: View<'_>, after: Option<AuditSeq>) {
        if !self.track_client_request(id, message, ClientRequestKind::Prompt { session: name.into() }) {
            return;
        }
        let is_v2 = self.gate.is_v2;
        if let Some(session) = self.session(name) {
            if !session.is_working() {
                session.forget_terminals();
                session.operator_state.begin_turn();
            }
            session.prompts.push(id.into());
            session.is_running = is_v2;
        }
        self.start_silence_timer(name);
        // If the turn was approved, the approval records its start.
        let after = after.unwrap_or_else(|| {
            let params = message.params().unwrap_or_default();
            let event =
                self.parties(name).request_accepted("prompt.accepted", method::SESSION_PROMPT, params);
            self.record(event)
        });
        let on_failure = OnAuditFailure::FailClientRequest(audit_unavailable(id), id.into());
        self.send(GateDirection::ToAgent, &[message.bytes()], Some(after), on_failure);
    }

    /// Handles a cancellation by the client. Pending approvals of the turn are refused.
    pub(super) fn handle_client_cancel(&mut self, name: &str) {
        for number in self.approvals_in_tree(name) {
            self.settle_approval(number, audit_events::ApprovalOutcome::Refused(CANCELLED.to_owned()));
        }
        let goes_on = |session: &Session| session.last_activity.is_some() && session.stop_deadline.is_none();
        if self.gate.sessions.get(name).is_some_and(goes_on) {
            self.start_stop_timer(name);
        }
    }

    /// Handles a request to close a session. An active turn of the session is cancelled first.
    pub(super) fn handle_close(&mut self, id: &[u8], message: View<'_>) {
        let Some(name) = message.session() else { return self.refuse_client(id, &missing_session_id()) };
        if !self.track_client_request(id, message, ClientRequestKind::Close { session: (&*name).into() }) {
            return;
        }
        for number in self.approvals_in_tree(&name) {
            self.settle_approval(
                number,
                audit_events::ApprovalOutcome::Refused("the session is being closed".to_owned()),
            );
        }
        if self.gate.sessions.get(&*name).is_some_and(|session| session.last_activity.is_some()) {
            self.cancel_agent_turn(&name);
        }
        let is_delete = message.method().is_some_and(|method| method == method::SESSION_DELETE);
        if !is_delete && self.gate.sessions.contains_key(&*name) {
            // The end of the session is recorded when the agent answers.
            return self.forward_to_agent(message);
        }
        let seq =
            self.record_method(MessageSender::Client, &message.method().unwrap_or_default(), message, None);
        let on_failure = OnAuditFailure::FailClientRequest(audit_unavailable(id), id.into());
        self.send(GateDirection::ToAgent, &[message.bytes()], Some(seq), on_failure);
    }

    fn cancel_agent_turn(&mut self, name: &str) {
        if let Ok(line) = message::notification(method::SESSION_CANCEL, &json!({"sessionId": name})) {
            self.send(GateDirection::ToAgent, &[&line], None, OnAuditFailure::Drop);
        }
    }

    pub(super) fn answer_open_prompts(&mut self, name: &str) {
        let prompts = self.gate.sessions.get_mut(name).map(|session| std::mem::take(&mut session.prompts));
        for id in prompts.unwrap_or_default() {
            if let Some(pending) = self.gate.pending_at_agent.get_mut(&id) {
                pending.is_late = true;
            }
            let seq = self.set_operator_state(name, OperatorState::Interrupted, Some("it was closed"));
            if let Ok(line) = message::response(&id, &json!({"stopReason": "cancelled"})) {
                let on_failure =
                    OnAuditFailure::SendInstead(GateDirection::ToClient, outcome_unrecorded(&id));
                self.send(GateDirection::ToClient, &[&line], seq, on_failure);
            }
        }
    }

    pub(super) fn stop_silence_timer(&mut self, name: &str) {
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.last_activity = None;
        }
    }

    /// Handles the answer to a prompt. In version 1 it ends the turn.
    pub(super) fn handle_prompt_answer(&mut self, id: &[u8], name: &str, message: View<'_>) {
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.prompts.retain(|prompt| **prompt != *id);
            let is_over = session.prompts.is_empty() && (!self.gate.is_v2 || message.result().is_none());
            session.last_activity = session.last_activity.filter(|_| !is_over);
        }
        if self.gate.is_v2 {
            return self.handle_prompt_accepted(id, name, message);
        }
        if let Some((TurnHalt { reason, is_late }, seq)) = self.take_halt(name) {
            if is_late {
                let line = message::error(id, &deadline_error(&reason));
                let on_failure = OnAuditFailure::SendInstead(GateDirection::ToClient, line.clone());
                return self.send(GateDirection::ToClient, &[&line], seq, on_failure);
            }
            let meta = json!({"aip44": {"interrupted": reason}});
            let Ok(line) = message::response(id, &json!({"stopReason": "refusal", "_meta": meta})) else {
                return;
            };
            let on_failure = OnAuditFailure::SendInstead(GateDirection::ToClient, outcome_unrecorded(id));
            return self.send(GateDirection::ToClient, &[&line], seq, on_failure);
        }
        let result: Value =
            message.result().and_then(|it| serde_json::from_slice(it).ok()).unwrap_or_default();
        let seq = match (message.error(), embedded_failure(&result), result["stopReason"].as_str()) {
            (Some(error), ..) => {
                self.set_operator_state(name, OperatorState::Interrupted, Some(&error.message))
            }
            (None, Some(failed), _) => {
                self.set_operator_state(name, OperatorState::Interrupted, Some(&failed))
            }
            (None, None, Some(reason @ ("cancelled" | "refusal"))) => {
                self.set_operator_state(name, OperatorState::Interrupted, Some(reason))
            }
            _ => self.set_operator_state(name, OperatorState::Completed, None),
        };
        self.send_marked(
            message,
            seq,
            OnAuditFailure::SendInstead(GateDirection::ToClient, outcome_unrecorded(id)),
        );
    }

    /// Handles the answer to a prompt in version 2. A result means that the agent has accepted the prompt.
    fn handle_prompt_accepted(&mut self, id: &[u8], name: &str, message: View<'_>) {
        let Some(error) = message.error() else {
            return self.send_marked(message, None, OnAuditFailure::Drop);
        };
        self.take_halt(name);
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.is_running = false;
        }
        let seq = self.set_operator_state(name, OperatorState::Interrupted, Some(&error.message));
        self.send_marked(
            message,
            seq,
            OnAuditFailure::SendInstead(GateDirection::ToClient, outcome_unrecorded(id)),
        );
    }

    /// Removes and returns the halt of a session whose turn has stopped. The second value is the audit event
    /// of the halt, if the event is not yet durable.
    pub(super) fn take_halt(&mut self, name: &str) -> Option<(TurnHalt, Option<AuditSeq>)> {
        let settled = self.gate.last_settled;
        for child in self.gate.descendants(name) {
            if let Some(child) = self.gate.sessions.get_mut(&child) {
                (child.halted, child.stop_deadline) = (None, None);
            }
        }
        let session = self.gate.sessions.get_mut(name)?;
        session.stop_deadline = None;
        let seq = session.halt_seq.take().filter(|seq| *seq > settled);
        Some((session.halted.take()?, seq))
    }

    /// Sets the state of the operator in a session, and records the transition.
    pub(super) fn set_operator_state(
        &mut self,
        name: &str,
        next: OperatorState,
        reason: Option<&str>,
    ) -> Option<AuditSeq> {
        let session = self.gate.sessions.get_mut(name)?;
        if !session.operator_state.advance(next) {
            return None;
        }
        let event = self.parties(name).state_changed(next, reason);
        Some(self.record(event))
    }

    /// Records that the operator runs, if the session has an active turn. Messages after a turn or in a
    /// stopped turn do not count, because the end of such a run would never be recorded.
    pub(super) fn set_running(&mut self, name: &str) -> Option<AuditSeq> {
        let session = self.gate.sessions.get(name)?;
        let is_turn = session.lineage.is_some() || session.last_activity.is_some() || session.is_working();
        if !is_turn || self.gate.is_stopping(name) {
            return None;
        }
        self.set_operator_state(name, OperatorState::Running, None)
    }

    pub(super) fn halt_turn(&mut self, name: &str, reason: &str) {
        self.stop_turn(name, TurnHalt { reason: reason.to_owned(), is_late: false });
    }

    /// Stops a turn because an action could not be recorded. If the turn is over, only sends a cancellation
    /// to the agent.
    pub(super) fn halt_unaudited_turn(&mut self, name: &str) {
        let root = self.gate.sessions.get(self.gate.root_session(name));
        if root.is_some_and(|session| session.last_activity.is_some()) {
            self.halt_turn(name, UNRECORDED);
        } else {
            self.cancel_agent_turn(name);
        }
    }

    /// Stops a turn. If a child session violates a rule, stops the turn of its topmost ancestor. If the turn
    /// does not end in time, the agent is ended.
    pub(super) fn stop_turn(&mut self, name: &str, halt: TurnHalt) {
        if self.gate.is_stopping(name) {
            return;
        }
        let root: Box<str> = self.gate.root_session(name).into();
        let is_turn = |session: &Session| session.last_activity.is_some() || session.is_working();
        if *root != *name && self.gate.sessions.get(&root).is_some_and(is_turn) {
            if let Some(session) = self.session(name) {
                session.halted = Some(halt.clone());
            }
            self.set_operator_state(name, OperatorState::Interrupted, Some(&halt.reason));
            self.cancel_agent_turn(name);
            return self.stop_turn(&root, halt);
        }
        let Some(session) = self.session(name) else { return };
        let reason = halt.reason.clone();
        session.halted = Some(halt);
        self.start_stop_timer(name);
        let seq = self.set_operator_state(name, OperatorState::Interrupted, Some(&reason));
        if let Some(session) = self.session(name) {
            session.halt_seq = seq;
        }
        for number in self.approvals_in_tree(name) {
            self.settle_approval(number, audit_events::ApprovalOutcome::Refused(reason.clone()));
        }
        self.cancel_agent_turn(name);
    }

    /// Closes a session. Unfinished calls are recorded as interrupted. Returns the last event.
    pub(super) fn close_session(&mut self, name: &str, reason: &str) -> Option<AuditSeq> {
        for number in self.approvals_in_tree(name) {
            self.settle_approval(number, audit_events::ApprovalOutcome::Refused(reason.to_owned()));
        }
        for child in self.gate.descendants(name) {
            self.close_one_session(&child, reason);
        }
        self.close_one_session(name, reason)
    }

    fn close_one_session(&mut self, name: &str, reason: &str) -> Option<AuditSeq> {
        let session = self.gate.sessions.get_mut(name)?;
        let is_interrupted =
            session.is_working() && session.operator_state.advance(OperatorState::Interrupted);
        let mut open: Vec<(Box<str>, Box<CallRecord>)> = session
            .calls
            .drain()
            .filter(|(_, record)| !record.is_recorded && record.outcome.is_given())
            .collect();
        open.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (id, record) in open {
            let event = self.outcome_event(name, &id, &record, json!({"error": "interrupted"}));
            self.record_if_some(event);
        }
        if is_interrupted {
            let event = self.parties(name).state_changed(OperatorState::Interrupted, Some(reason));
            self.record(event);
        }
        let event = self.parties(name).session_closed(reason);
        let is_child = self.gate.is_child(name);
        self.gate.sessions.remove(name);
        self.gate.remember_closed(name, is_child);
        self.forget_connections();
        Some(self.record(event))
    }

    fn record_if_some(&mut self, event: Option<narrows_audit::Event>) {
        if let Some(event) = event {
            self.record(event);
        }
    }

    pub(super) fn close_all_sessions(&mut self, reason: &str) -> Option<AuditSeq> {
        let mut names: Vec<Box<str>> = self.gate.sessions.keys().cloned().collect();
        names.sort_unstable();
        let mut last = None;
        for name in names {
            last = self.close_session(&name, reason).or(last);
        }
        last
    }

    /// Answers all pending client requests, and closes all sessions.
    pub(super) fn handle_agent_lost(&mut self, how: Option<&str>) {
        let mut pending: Vec<(RawRequestId, PendingAtAgent)> =
            self.gate.pending_at_agent.drain().filter(|(_, pending)| !pending.is_late).collect();
        pending.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let words = how.map_or("agent lost".to_owned(), |how| format!("agent lost: {how}"));
        let gone = RpcError::new(Code::WorkerLost, words).effects(Effects::Possible);
        for (id, pending) in pending {
            let halted =
                pending.kind.session().and_then(|name| self.gate.sessions.get(name)?.halted.as_ref());
            let line = match halted.filter(|halt| halt.is_late) {
                Some(halt) => message::error(&id, &deadline_error(&halt.reason)),
                None => message::error(&id, &gone),
            };
            self.send(GateDirection::ToClient, &[&line], None, OnAuditFailure::Drop);
        }
        self.close_all_sessions("agent lost");
    }
}

/// Returns the error of a turn that failed although the agent answered with a result. The built-in agent
/// describes such a failure in `_meta` of the result.
pub(super) fn embedded_failure(holder: &Value) -> Option<String> {
    let error = holder["_meta"].get("narrows/error").filter(|error| !error.is_null())?;
    Some(failure_sentence(error).unwrap_or_else(|| "the turn failed".to_owned()))
}

/// Returns a sentence about a failed model call: its kind, HTTP status, endpoint and message. Returns `None`
/// if both kind and message are missing.
pub(super) fn failure_sentence(fields: &Value) -> Option<String> {
    let text = |key: &str| fields[key].as_str().filter(|text| !text.is_empty());
    let Some(kind) = text("kind") else { return text("message").map(str::to_owned) };
    let mut sentence = kind.to_owned();
    if let Some(status) = fields["status"].as_u64() {
        sentence.push_str(&format!(" (HTTP {status})"));
    }
    if let Some(url) = text("url") {
        sentence.push_str(&format!(" from {url}"));
    }
    if let Some(message) = text("message") {
        sentence.push_str(&format!(": {message}"));
    }
    Some(sentence)
}
