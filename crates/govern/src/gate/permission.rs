//! Handles permission requests of the agent: the policy or an approver answers them.

use narrows_acp::method;
use narrows_wire::{View, message};
use serde_json::{Value, json};

use super::GateCtx;
use super::api::{AuditSeq, GateOutput};
use super::outbox::{GateDirection, OnAuditFailure};
use super::retained::value_bytes;
use super::session::{ApprovalOrigin, CallRecord, PermissionOptions, call_key, request_key};
use super::session_open::parse_object;
use crate::audit_events::{ApprovalOutcome, secret_safe_digest};
use crate::call::{CallStatus, CallUpdate};

impl<O: GateOutput> GateCtx<'_, O> {
    pub(super) fn handle_permission_request(&mut self, id: &[u8], message: View<'_>) {
        let name = message.session().unwrap_or_default();
        let params = parse_object(message.params());
        let options = PermissionOptions::from_offered(&params["options"]);
        let subject = if self.gate.is_v2 {
            self.permission_subject(&name, &params["subject"])
        } else {
            Ok((params["toolCall"].clone(), None))
        };
        let (told, command) = match subject {
            Ok(subject) => subject,
            Err(code) => return self.refuse_subject(id, &name, &options, code, message),
        };
        let told = told.to_string();
        let Ok(mut call_update) = serde_json::from_str::<CallUpdate<'_>>(&told) else {
            return self.refuse_subject(id, &name, &options, "unreadable_subject", message);
        };
        let call = call_update.tool_call_id.as_deref().map_or_else(|| request_key(id), call_key);
        // No permission is granted during a replay or in a stopped turn.
        let is_over = self.gate.is_stopping(&name) || self.gate.is_replaying(&name);
        let bytes = call_update.retained_bytes() + command.as_ref().map_or(0, value_bytes);
        if is_over || !self.has_room_for_call(&name, &call, bytes) {
            return self.answer_permission(id, &name, None, None);
        }
        let Some(record) = self.gate.call_record_or_new(&name, &call) else { return };
        if call_update.tool_call_id.is_none() {
            // The call has no id, so only this request describes it.
            **record = CallRecord::default();
        } else if record.is_recorded {
            // The call with this id has ended, so the request is about another run of the call.
            if !matches!(call_update.status, Some(CallStatus::Pending | CallStatus::Running)) {
                call_update.status = Some(CallStatus::Pending);
            }
            if let Some(call) = record.call.new_run(&call_update) {
                **record = CallRecord { call, ..CallRecord::default() };
            }
        }
        let needs_judging = record.set_asked();
        let mut changed = record.call.apply_update(call_update);
        changed |= command.is_some_and(|command| record.call.set_asked_command(command));
        let is_new = record.decision.is_none();
        self.charge_call(&name, &call);
        let seq = match is_new && self.adopt_decided_call(&name, &call) {
            false if changed || is_new || needs_judging => self.decide_call(&name, &call),
            // The call was decided before and has not changed. An answer that is already known is recorded
            // now; an approver's answer is recorded when it is given.
            _ => {
                match self
                    .call_record(&name, &call)
                    .is_some_and(|record| record.outcome != ApprovalOutcome::Pending)
                {
                    true => self.decision_event(&name, &call, None).map(|event| self.record(event)),
                    false => None,
                }
            }
        };
        let Some(record) = self.call_record(&name, &call) else { return };
        match &record.outcome {
            ApprovalOutcome::Auto | ApprovalOutcome::By { .. } => {
                record.mark_used();
                let held = std::mem::take(&mut record.held_lines);
                self.show_held(&name, &held, seq);
                self.answer_permission(
                    id,
                    &name,
                    options.allow.as_deref().or(options.reject.as_deref()),
                    seq,
                );
            }
            ApprovalOutcome::Refused(why) => {
                let why = why.clone();
                self.reject_permission(id, &name, &options, &why, seq);
            }
            ApprovalOutcome::Pending => {
                let held = std::mem::take(&mut record.held_lines);
                self.show_held(&name, &held, seq);
                self.request_approval(
                    &name,
                    &call,
                    ApprovalOrigin::Permission { id: id.into(), options },
                    seq,
                );
            }
        }
    }

    /// Returns the tool call that a version 2 request asks about. If the request is about a command within a
    /// known call, also returns the command.
    ///
    /// # Errors
    /// The code of a refusal.
    ///
    /// The code of a refusal.
    fn permission_subject(
        &self,
        name: &str,
        subject: &Value,
    ) -> Result<(Value, Option<Value>), &'static str> {
        match subject["type"].as_str() {
            // Some receivers may act on an unknown member instead of the call.
            Some("tool_call") if has_other_members(subject, &["type", "toolCall", "_meta"]) => {
                return Err("unreadable_subject");
            }
            Some("tool_call") => return Ok((subject["toolCall"].clone(), None)),
            Some("command") if subject["command"].is_string() => {}
            Some("command") => return Err("unreadable_subject"),
            Some(_) => return Err("unknown_subject"),
            None => return Err("no_subject"),
        }
        let id = &subject["toolCallId"];
        let session = self.gate.sessions.get(name);
        let known = id.as_str().and_then(|id| session?.calls.get(&call_key(id)));
        let mut command = json!({"command": subject["command"], "cwd": subject["cwd"]});
        for (key, value) in other_members(subject, &["type", "toolCallId", "terminalId", "_meta"]) {
            command[key] = value.clone();
        }
        Ok(match known.is_some_and(|record| record.decision.is_some()) {
            true => (json!({"toolCallId": id}), Some(command)),
            false => (json!({"toolCallId": id, "kind": "execute", "rawInput": command}), None),
        })
    }

    /// Rejects and records a permission request whose subject cannot be judged.
    fn refuse_subject(
        &mut self,
        id: &[u8],
        name: &str,
        options: &PermissionOptions,
        code: &'static str,
        message: View<'_>,
    ) {
        let params = message.params().unwrap_or_default();
        let method = method::SESSION_REQUEST_PERMISSION;
        let input = json!({"method": method, "bytes": params.len(), "sha256": secret_safe_digest(params)});
        let event = self.parties(name).refused("tool.refused", code, input);
        let seq = self.record(event);
        self.reject_permission(id, name, options, "its subject cannot be judged", Some(seq));
    }

    pub(super) fn reject_permission(
        &mut self,
        id: &[u8],
        name: &str,
        options: &PermissionOptions,
        why: &str,
        after: Option<AuditSeq>,
    ) {
        let mut outcome = selected_outcome(options.reject.as_deref());
        outcome["_meta"] = json!({"aip44": {"refused": why}});
        self.send_permission_outcome(id, name, &outcome, after);
    }

    /// Answers a permission request with one of its options. `None` cancels the request.
    pub(super) fn answer_permission(
        &mut self,
        id: &[u8],
        name: &str,
        option: Option<&str>,
        after: Option<AuditSeq>,
    ) {
        self.send_permission_outcome(id, name, &selected_outcome(option), after);
    }

    fn send_permission_outcome(&mut self, id: &[u8], name: &str, outcome: &Value, after: Option<AuditSeq>) {
        let Ok(line) = message::response(id, outcome) else { return };
        self.send(GateDirection::ToAgent, &[&line], after, OnAuditFailure::fail_unrecorded(id, name));
    }
}

/// Returns the result that selects an option. `None` stands for a cancelled request.
fn selected_outcome(option: Option<&str>) -> Value {
    match option {
        Some(option) => json!({"outcome": {"outcome": "selected", "optionId": option}}),
        None => json!({"outcome": {"outcome": "cancelled"}}),
    }
}

fn other_members<'a>(subject: &'a Value, known: &[&str]) -> impl Iterator<Item = (&'a str, &'a Value)> {
    let members = subject.as_object().into_iter().flatten();
    members
        .map(|(key, value)| (key.as_str(), value))
        .filter(|(key, value)| !known.contains(key) && !value.is_null())
}

fn has_other_members(subject: &Value, known: &[&str]) -> bool {
    other_members(subject, known).next().is_some()
}
