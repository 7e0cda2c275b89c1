//! Tool calls in updates of the agent. A call is decided before it is shown. A call that runs without
//! permission stops its turn.

use std::borrow::Cow;

use bytes::Bytes;
use narrows_audit::Event;
use narrows_policy::{Action, Class};
use narrows_wire::{DuplicateKey, View, member};
use serde_json::{Value, json};

use super::GateCtx;
use super::api::{AuditSeq, GateOutput};
use super::deadlines::deadline_error;
use super::outbox::{GateDirection, OnAuditFailure};
use super::retained::NO_ROOM;
use super::session::{CallRecord, MAX_HELD_BYTES, Session, TurnHalt, call_key};
use super::session_open::parse_object;
use super::turn::{embedded_failure, failure_sentence};
use crate::audit_events::{self, ApprovalOutcome};
use crate::authorizer::{CallDecision, DecisionContext};
use crate::call::{Call, CallStatus, CallUpdate};
use crate::lifecycle::OperatorState;
use crate::path_resolver::{ResolvedAction, follow_links, is_too_large};
use crate::protected_files;
use crate::scope;
use crate::shared_budget::BudgetUse;

enum UpdateAction {
    Show,
    Hide,
    /// Stops the turn because the call runs without permission.
    Halt(String),
}

impl<O: GateOutput> GateCtx<'_, O> {
    pub(super) fn handle_update(&mut self, message: View<'_>) {
        // An update that names no session cannot be judged, so it is dropped.
        let Some(name) = message.session() else {
            self.record_name_once("session/update", message, Some("no_session"));
            return;
        };
        let Ok((kind, update)) = update_kind(message) else {
            return self.halt_unreadable(&name, message.params().unwrap_or_default(), "update");
        };
        if kind == "subagent_update" {
            return self.handle_subagent_update(&name, update, message);
        }
        if self.gate.is_stopping(&name) {
            // In version 1, only the answer to the prompt ends a turn.
            if self.gate.is_v2 && kind == "state_update" && is_state(update, "idle") {
                self.handle_idle(&name, update, message);
            }
            return;
        }
        if self.gate.is_replaying(&name) {
            return self.show_replayed(message);
        }
        match &*kind {
            "tool_call" | "tool_call_update" => self.handle_call_update(&name, update, message),
            "terminal_update" | "terminal_output_chunk" => {
                self.handle_terminal_update(&name, update, message);
            }
            // Additional content of a call needs no decision. The content is shown if the call is shown.
            "tool_call_content_chunk" => {
                let Ok(call_update) = serde_json::from_slice::<CallUpdate<'_>>(update) else {
                    return self.halt_unreadable(&name, update, "tool call");
                };
                // A file change needs a decision, even as additional content.
                if call_update.is_change() {
                    return self.apply_tool_update(&name, call_update, message);
                }
                self.join_shown_terminals(&name, &call_update);
                let id = call_update.tool_call_id;
                let record = self.call_record(&name, &call_key(id.as_deref().unwrap_or_default()));
                if record.is_some_and(|record| record.outcome.is_given()) {
                    self.send_marked(message, None, OnAuditFailure::Drop);
                }
            }
            "state_update" if is_state(update, "idle") => self.handle_idle(&name, update, message),
            // While an approval is pending, the client sees the state "waiting", whatever the agent reports.
            "state_update" if is_state(update, "running") && self.approvals_in_session(&name).is_empty() => {
                if let Some(session) = self.session(&name) {
                    session.is_running = true;
                }
                let seq = self.set_running(&name);
                self.send_marked(message, seq, OnAuditFailure::HaltTurn((&*name).into()));
            }
            "agent_message_chunk"
            | "agent_message"
            | "agent_thought_chunk"
            | "agent_thought"
            | "plan"
            | "plan_update" => {
                let seq = self.set_running(&name);
                self.send_marked(message, seq, OnAuditFailure::HaltTurn((&*name).into()));
            }
            // An update of an unknown kind that has a tool call id is decided like a tool call.
            _ if !matches!(member(update, "toolCallId"), Ok(None)) => {
                self.handle_call_update(&name, update, message);
            }
            kind if is_harmless(kind) => self.send_marked(message, None, OnAuditFailure::Drop),
            // An update of an unknown kind could report any effect, so it cannot be judged.
            kind => {
                let kind = format!("{} {kind}", narrows_acp::method::SESSION_UPDATE);
                self.record_name_once(&kind, message, Some("unknown_update"));
            }
        }
    }

    fn handle_call_update(&mut self, name: &str, update: &[u8], message: View<'_>) {
        match serde_json::from_slice::<CallUpdate<'_>>(update) {
            Ok(call_update) => self.apply_tool_update(name, call_update, message),
            Err(_) => self.halt_unreadable(name, update, "tool call"),
        }
    }

    /// Shows an update of a replay. A replayed update does not change the state of the gate.
    pub(super) fn show_replayed(&mut self, message: View<'_>) {
        let fitting = self.strip_update(message);
        let message = fitting.as_deref().map_or(message, View::parse);
        if let Some(marked) = self.gate.mark.insert_replayed(message).map(|marked| marked.concat()) {
            self.send(GateDirection::ToClient, &[&marked], None, OnAuditFailure::Drop);
        }
    }

    /// Handles the `idle` state, which ends a turn of version 2 or the work of a child session.
    fn handle_idle(&mut self, name: &str, update: &[u8], message: View<'_>) {
        if self.gate.is_child(name) {
            let was_stopping = self.gate.is_stopping(name);
            let update: Value = serde_json::from_slice(update).unwrap_or_default();
            let seq = self.end_child_turn(name, update["stopReason"].as_str());
            if !was_stopping {
                self.send_marked(message, seq, OnAuditFailure::Drop);
            }
            return;
        }
        let was_working = self.session(name).is_some_and(|session| {
            let was_working = session.is_working();
            session.is_running = false;
            was_working
        });
        self.stop_silence_timer(name);
        let Some((TurnHalt { reason, is_late }, seq)) = self.take_halt(name) else {
            let update: Value = serde_json::from_slice(update).unwrap_or_default();
            let error = &update["error"];
            let failed = failure_sentence(&error["data"]).filter(|_| error["data"]["kind"].is_string());
            let failed = failed.or_else(|| error["message"].as_str().map(str::to_owned));
            let failed = failed
                .or_else(|| embedded_failure(&update))
                .or_else(|| embedded_failure(&parse_object(message.params())));
            let seq = match (failed, update["stopReason"].as_str()) {
                _ if !was_working => None,
                (Some(failed), _) => self.set_operator_state(name, OperatorState::Interrupted, Some(&failed)),
                (None, Some(reason @ ("cancelled" | "refusal" | "error"))) => {
                    self.set_operator_state(name, OperatorState::Interrupted, Some(reason))
                }
                _ => self.set_operator_state(name, OperatorState::Completed, None),
            };
            return self.send_marked(message, seq, OnAuditFailure::Drop);
        };
        let mut update = json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": "refusal"});
        if is_late {
            update["stopReason"] = json!("error");
            update["error"] = json!(deadline_error(&reason));
        }
        let params =
            json!({"sessionId": name, "update": update, "_meta": {"aip44": {"interrupted": reason}}});
        if let Ok(line) = narrows_wire::message::notification(narrows_acp::method::SESSION_UPDATE, &params) {
            self.send(GateDirection::ToClient, &[&line], seq, OnAuditFailure::Drop);
        }
    }

    fn apply_tool_update(&mut self, name: &str, call_update: CallUpdate<'_>, message: View<'_>) {
        let id = call_key(call_update.tool_call_id.as_deref().unwrap_or_default());
        self.apply_call_update(name, &id, call_update, message);
    }

    /// Applies an update to a call, and decides about the call. Shows the update if the call is allowed.
    pub(super) fn apply_call_update(
        &mut self,
        name: &str,
        id: &str,
        call_update: CallUpdate<'_>,
        message: View<'_>,
    ) {
        let Some(session) = self.session(name) else { return };
        if !session.has_room_for(id) {
            return self.halt_turn(name, "it has too many open tool calls");
        }
        // If the call is not decided yet, the line is held with the call, so there must be room for the line.
        if !self.has_room_for_call(
            name,
            id,
            call_update.retained_bytes() + message.bytes().len().min(MAX_HELD_BYTES),
        ) {
            return self.halt_turn(name, NO_ROOM);
        }
        let Some(record) = self.gate.call_record_or_new(name, id) else { return };
        if record.is_recorded
            && let Some(call) = record.call.new_run(&call_update)
        {
            **record = CallRecord { call, ..CallRecord::default() };
        }
        // Shown terminals must join the call before the update can end the call.
        let Some(session) = self.gate.sessions.get_mut(name) else { return };
        for terminal in call_update.terminals() {
            session.join_terminal(&self.gate.retained, &terminal, id);
        }
        let Some(record) = session.calls.get_mut(id) else { return };
        // An output that arrives after the call has ended must be recorded as well.
        record.is_recorded &= !record.call.is_unrecorded_output(&call_update);
        let changed = record.call.apply_update(call_update);
        let mut seq = None;
        if record.decision.is_none() && record.call.is_bare() {
            let has_room = record.hold_line(message.bytes());
            self.charge_call(name, id);
            if !has_room {
                self.halt_turn(name, "it sent too many updates before the input of a tool call");
            }
            return;
        }
        let is_new = record.decision.is_none();
        self.charge_call(name, id);
        if is_new && self.adopt_decided_call(name, id) {
            // The decision was recorded with an earlier update.
        } else if changed || is_new {
            seq = self.decide_call(name, id);
        }
        self.excuse_refused_effect(name, id);
        let Some(record) = self.call_record(name, id) else { return };
        match update_action(record) {
            UpdateAction::Hide => {
                self.record_outcome(name, id);
            }
            UpdateAction::Halt(reason) => self.halt_turn(name, &reason),
            UpdateAction::Show => {
                if record.call.has_begun() {
                    record.mark_used();
                }
                let held = std::mem::take(&mut record.held_lines);
                seq = self.set_running(name).or(seq);
                seq = self.record_outcome(name, id).or(seq);
                self.show_held(name, &held, seq);
                self.send_marked(message, seq, OnAuditFailure::HaltTurn(name.into()));
            }
        }
    }

    /// Stops a turn because of an ambiguous or invalid message (`what`) about a tool call. Such a call cannot be
    /// judged, so it counts as a call that runs without permission.
    pub(super) fn halt_unreadable(&mut self, name: &str, update: &[u8], what: &str) {
        let input = json!({"bytes": update.len(), "sha256": audit_events::secret_safe_digest(update)});
        let event = self.parties(name).refused("tool.refused", "ambiguous_call", input);
        self.record(event);
        self.halt_turn(name, &format!("it sent an ambiguous {what}"));
    }

    /// Excuses a failed call if its client request was refused. Each refusal excuses one call. The built-in
    /// agent asks before each call, so its failed calls had no effect.
    fn excuse_refused_effect(&mut self, name: &str, id: &str) {
        let asks_first = self.gate.config.asks_first;
        let Some(session) = self.gate.sessions.get_mut(name) else { return };
        let Some(record) = session.calls.get_mut(id).filter(|record| record.was_tried_before_decision())
        else {
            return;
        };
        if asks_first {
            record.mark_known_to_agent();
        } else if session.refusals > 0 {
            session.refusals -= 1;
            record.mark_known_to_agent();
        }
    }

    /// Shows the messages about a call that were held until the decision.
    pub(super) fn show_held(&mut self, name: &str, held: &[Bytes], seq: Option<AuditSeq>) {
        for line in held {
            self.send_marked(View::parse(line), seq, OnAuditFailure::HaltTurn(name.into()));
        }
    }

    pub(super) fn call_record(&mut self, name: &str, id: &str) -> Option<&mut CallRecord> {
        self.gate.sessions.get_mut(name)?.calls.get_mut(id).map(Box::as_mut)
    }

    /// Decides about a call in its current state, and records the decision. An approval of another input does
    /// not count.
    pub(super) fn decide_call(&mut self, name: &str, id: &str) -> Option<AuditSeq> {
        let at = self.unix_seconds();
        self.gate.authorizer.refresh();
        let session = self.gate.sessions.get(name)?;
        let record = session.calls.get(id)?;
        let digest = record.call.digest();
        let context =
            DecisionContext { at, counted: record.counted.as_ref().map(|counted| (counted, digest)) };
        let ResolvedAction { action, resolved_digest } = self.resolve_call(session, &record.call);
        let mut decision = self.decide(session, &record.call, &action, context);
        if let Some(command) = record.call.asked_command() {
            let ResolvedAction { action, .. } = self.resolve_call(session, &command);
            decision = decision.stricter(self.decide(session, &command, &action, context));
        }
        let outcome = match decision.class() {
            Class::Allow => ApprovalOutcome::Auto,
            Class::RequireApproval | Class::Escalate => ApprovalOutcome::Pending,
            Class::Deny => ApprovalOutcome::Refused(decision.reason()),
        };
        self.refuse_outdated_approvals(name, id, &decision.ruling);
        let record = self.gate.sessions.get_mut(name)?.calls.get_mut(id)?;
        let spent = match outcome {
            ApprovalOutcome::Auto => {
                self.gate.authorizer.count_call(&decision, at, digest, &mut record.counted)
            }
            _ => None,
        };
        (record.decision, record.resolved_digest) = (Some(decision), Some(resolved_digest));
        // An approver has approved the call in exactly this state.
        let is_agreed = record.approved_digest.is_some_and(|agreed| agreed == record.call.digest());
        if outcome != ApprovalOutcome::Pending || !is_agreed {
            record.outcome = outcome;
        }
        record.call.set_allowed(record.outcome.is_given());
        let is_of_client = record.call.is_session_change();
        let event = self.decision_event(name, id, spent.as_ref())?;
        let seq = self.record(event);
        if self.gate.refusals.has_too_many_calls() && !is_of_client {
            self.halt_turn(name, "too many of its tool calls were not allowed");
        }
        Some(seq)
    }

    /// Returns the effects of a call. All links in its paths are resolved now.
    pub(super) fn resolve_call(&self, session: &Session, call: &Call) -> ResolvedAction {
        follow_links(call.action(), &session.roots, &*self.gate.resolver)
    }

    /// Returns `true` if a link has changed since the decision about a call, so that the decision was about
    /// other files. Also returns `true` for an unknown call.
    pub(super) fn has_moved(&self, name: &str, id: &str) -> bool {
        let Some(session) = self.gate.sessions.get(name) else { return true };
        let Some(record) = session.calls.get(id) else { return true };
        record
            .resolved_digest
            .is_some_and(|context| context != self.resolve_call(session, &record.call).resolved_digest)
    }

    /// Decides about the effects of a call by the policy and the gate settings.
    fn decide(
        &self,
        session: &Session,
        call: &Call,
        action: &Action,
        context: DecisionContext<'_>,
    ) -> CallDecision {
        let gate = &self.gate;
        let mut decision = gate.authorizer.decide_action(
            call,
            action,
            &gate.config,
            &gate.principal,
            &session.roots,
            context,
        );
        // An action that is too large is denied without being judged, so its paths are not resolved.
        let beyond = if is_too_large(action, &session.roots) {
            Some("the input is too large to judge".to_owned())
        } else {
            scope::scope_violation(call, &gate.config, &*gate.resolver).or_else(|| {
                protected_files::protected_violation(call, &gate.config, &session.roots, &*gate.resolver)
            })
        };
        if let Some(override_reason) = beyond {
            decision.ruling.class = Class::Deny;
            decision.override_reason.get_or_insert(override_reason);
        }
        decision
    }

    pub(super) fn decision_event(
        &mut self,
        name: &str,
        id: &str,
        spent: Option<&BudgetUse>,
    ) -> Option<Event> {
        let record = self.gate.sessions.get(name)?.calls.get(id)?;
        let decision = record.decision.as_ref()?;
        let (tool, input, kinds) = (record.call.tool(), record.call.input_for_log(), record.call.kinds());
        let named = audit_events::AuditedCall {
            tool: &tool,
            id,
            claimed: record.call.claimed_name(),
            input: &input,
            kinds: &kinds,
            call: Some(&record.call),
        };
        let event = self.parties(name).call_decided(&named, &decision.ruling, &record.outcome, spent);
        self.call_record(name, id)?.call.set_input_recorded();
        Some(event)
    }

    pub(super) fn outcome_event(
        &self,
        name: &str,
        id: &str,
        record: &CallRecord,
        output: Value,
    ) -> Option<Event> {
        let decision = record.decision.as_ref()?;
        let (tool, input, kinds) = (record.call.tool(), record.call.input_for_log(), record.call.kinds());
        let named = audit_events::AuditedCall {
            tool: &tool,
            id,
            claimed: record.call.claimed_name(),
            input: &input,
            kinds: &kinds,
            call: Some(&record.call),
        };
        Some(self.parties(name).call_finished(&named, &decision.ruling, &record.outcome, output))
    }

    fn record_outcome(&mut self, name: &str, id: &str) -> Option<AuditSeq> {
        let record = self.call_record(name, id)?;
        if record.is_recorded || !matches!(record.call.progress, CallStatus::Completed | CallStatus::Failed) {
            return None;
        }
        record.is_recorded = true;
        let output = record.call.take_output();
        let output =
            if record.call.progress == CallStatus::Failed { json!({"error": output}) } else { output };
        let record = self.gate.sessions.get(name)?.calls.get(id)?;
        let event = self.outcome_event(name, id, record, output)?;
        self.charge_call(name, id);
        Some(self.record(event))
    }
}

fn update_action(record: &CallRecord) -> UpdateAction {
    let begun = record.call.has_begun();
    let tool = || narrows_base::text::quoted(&record.call.tool(), 200);
    match &record.outcome {
        ApprovalOutcome::Auto | ApprovalOutcome::By { .. } => UpdateAction::Show,
        ApprovalOutcome::Pending if begun => {
            let why = record.decision.as_ref().map(CallDecision::reason).unwrap_or_default();
            UpdateAction::Halt(format!("it ran `{}` without an approval ({why})", tool()))
        }
        ApprovalOutcome::Refused(why) if begun => {
            UpdateAction::Halt(format!("it ran `{}`, which was refused ({why})", tool()))
        }
        ApprovalOutcome::Refused(why) if record.was_tried_before_decision() => {
            UpdateAction::Halt(format!("it tried `{}`, which was refused ({why})", tool()))
        }
        ApprovalOutcome::Pending if record.was_tried_before_decision() => {
            UpdateAction::Halt(format!("it tried `{}` without an approval", tool()))
        }
        ApprovalOutcome::Pending => UpdateAction::Show,
        ApprovalOutcome::Refused(_) => UpdateAction::Hide,
    }
}

fn update_kind<'a>(message: View<'a>) -> Result<(Cow<'a, str>, &'a [u8]), DuplicateKey> {
    let params = message.params().unwrap_or_default();
    let Some(update) = member(params, "update")? else { return Ok((Cow::Borrowed(""), b"{}")) };
    let update = &params[update];
    let Some(kind) = member(update, "sessionUpdate")? else { return Ok((Cow::Borrowed(""), update)) };
    let raw = &update[kind];
    let plain = raw.strip_prefix(b"\"").and_then(|raw| raw.strip_suffix(b"\""));
    match plain.filter(|text| !text.contains(&b'\\')).and_then(|text| std::str::from_utf8(text).ok()) {
        Some(kind) => Ok((Cow::Borrowed(kind), update)),
        None => Ok((Cow::Owned(serde_json::from_slice(raw).unwrap_or_default()), update)),
    }
}

/// Returns `true` for kinds of updates that report no effect on this machine.
fn is_harmless(kind: &str) -> bool {
    matches!(
        kind,
        "user_message_chunk"
            | "user_message"
            | "state_update"
            | "plan_removed"
            | "available_commands_update"
            | "current_mode_update"
            | "config_option_update"
            | "session_info_update"
            | "usage_update"
            | "notice"
            | "compaction_update"
            | "compaction_summary_chunk"
            | "session_message"
            | "session_message_chunk"
    )
}

fn is_state(update: &[u8], state: &str) -> bool {
    serde_json::from_slice::<Value>(update).is_ok_and(|update| update["state"] == state)
}
