//! Tool checks: before the built-in agent announces or makes a call, it asks the gate if it may.

use super::api::{AuditSeq, GateOutput, ToolCheck};
use super::retained::ByteCharge;
use super::session::{ApprovalOrigin, CallRecord, call_key};
use super::{GateCtx, REPLAYING, UNRECORDED};
use crate::audit_events::ApprovalOutcome;
use crate::call::Call;

/// Maximum number of decided calls per session that the agent has not announced yet.
const MAX_DECIDED_CALLS: usize = 256;

fn tool_kind(tool: &str) -> &'static str {
    match tool {
        "read_file" => "read",
        "write_file" | "edit_file" => "edit",
        "run_command" => "execute",
        _ => "other",
    }
}

/// Result of a tool check, held until its audit event is durable.
#[derive(Debug)]
pub(super) struct HeldCheckResult {
    after: AuditSeq,
    number: u64,
    refusal: Option<String>,
}

impl<O: GateOutput> GateCtx<'_, O> {
    pub(super) fn check_tool(&mut self, number: u64, request: ToolCheck) {
        let ToolCheck { session: name, call: id, server, tool, name: told_as, arguments } = request;
        let key = call_key(&id);
        let kind = if server.is_none() { tool_kind(&tool) } else { "other" };
        let call = Call::new(server, &tool, kind, arguments).with_reported_name(told_as);
        let bytes = call.retained_bytes();
        let (is_stopping, is_replaying) = (self.gate.is_stopping(&name), self.gate.is_replaying(&name));
        let Some(session) = self.session(&name) else {
            return self.out.answer_tool_check(number, Some("session not found".to_owned()));
        };
        if is_replaying {
            return self.out.answer_tool_check(number, Some(REPLAYING.to_owned()));
        }
        if session.calls.contains_key(&key) {
            return self.out.answer_tool_check(number, Some("duplicate call id".to_owned()));
        }
        if is_stopping || !self.has_room_for_call(&name, &key, bytes) {
            return self.out.answer_tool_check(number, Some("the turn is being stopped".to_owned()));
        }
        if let Some(session) = self.gate.sessions.get_mut(&*name) {
            session.add_call(&self.gate.retained, &key, CallRecord { call, ..CallRecord::default() });
        }
        let seq = self.decide_call(&name, &key);
        let (Some(seq), Some(record)) = (seq, self.call_record(&name, &key)) else { return };
        match record.outcome.clone() {
            ApprovalOutcome::Pending => {
                self.request_approval(&name, &key, ApprovalOrigin::ToolCheck { number }, Some(seq));
            }
            outcome => self.settle_tool_check(&name, &key, number, &outcome, seq),
        }
    }

    /// Answers a tool check once the decision is recorded. Keeps the decision for the announcement of the
    /// call.
    pub(super) fn settle_tool_check(
        &mut self,
        name: &str,
        key: &str,
        number: u64,
        outcome: &ApprovalOutcome,
        after: AuditSeq,
    ) {
        let refusal = match outcome {
            ApprovalOutcome::Refused(why) => Some(why.clone()),
            _ => None,
        };
        if let Some(session) = self.gate.sessions.get_mut(name)
            && let Some((mut record, charge)) = session.calls.remove_charged(key)
            && refusal.is_none()
        {
            record.covers_effects = true;
            session.decided_calls.push((key.into(), *record, charge));
            if session.decided_calls.len() > MAX_DECIDED_CALLS {
                session.decided_calls.remove(0);
            }
        }
        // A refusal that is counted but not recorded has no audit event to wait for.
        if after == AuditSeq::UNRECORDED && refusal.is_some() {
            return self.out.answer_tool_check(number, refusal);
        }
        self.gate.held_check_results.push_back(HeldCheckResult { after, number, refusal });
    }

    /// Applies the decision of an earlier tool check to the announced call. Returns `true` if there was such
    /// a check.
    pub(super) fn adopt_decided_call(&mut self, name: &str, id: &str) -> bool {
        let Some(session) = self.gate.sessions.get_mut(name) else { return false };
        let Some(record) = session.calls.get(id) else { return false };
        let is_it = |(decided_id, decided, _): &(Box<str>, CallRecord, ByteCharge)| {
            **decided_id == *id
                && decided.call.input == record.call.input
                && decided.call.is_named_like(&record.call)
        };
        let Some(at) = session.decided_calls.iter().position(is_it) else { return false };
        let (_, decided, _) = session.decided_calls.remove(at);
        let Some(session) = self.gate.sessions.get(name) else { return false };
        let is_unmoved =
            decided.resolved_digest == Some(self.resolve_call(session, &decided.call).resolved_digest);
        let Some(session) = self.gate.sessions.get_mut(name) else { return false };
        let Some(record) = session.calls.get_mut(id) else { return false };
        let (held, told) = (std::mem::take(&mut record.held_lines), std::mem::take(&mut record.call));
        let terminal = record.terminal.take();
        **record = CallRecord { held_lines: held, terminal, ..decided };
        record.call.continue_decided(told);
        record.set_outcome(record.outcome.clone());
        let digest = record.call.digest();
        if let Some(counted) = &mut record.counted {
            counted.set_digest(digest);
        }
        // The announcement may name more paths than the tool check, so the paths are resolved again.
        if is_unmoved
            && let Some(session) = self.gate.sessions.get(name)
            && let Some(record) = session.calls.get(id)
        {
            let resolved_digest = Some(self.resolve_call(session, &record.call).resolved_digest);
            if let Some(record) = self.call_record(name, id) {
                record.resolved_digest = resolved_digest;
            }
        }
        true
    }

    /// Answers the tool checks whose audit events are durable or have failed.
    pub(super) fn release_check_results(&mut self, seq: AuditSeq, written: bool) {
        let (due, rest) = std::mem::take(&mut self.gate.held_check_results)
            .into_iter()
            .partition(|advice| if written { advice.after <= seq } else { advice.after >= seq });
        self.gate.held_check_results = rest;
        for HeldCheckResult { number, refusal, .. } in due {
            let refusal = if written { refusal } else { Some(UNRECORDED.to_owned()) };
            self.out.answer_tool_check(number, refusal);
        }
    }
}
