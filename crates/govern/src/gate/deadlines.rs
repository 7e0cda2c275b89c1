//! Deadlines of requests, approvals and turns, and the actions when a deadline passes.
//!
//! [`Gate::next_deadline`](super::Gate::next_deadline) is a lower bound: new work can only make it earlier.
//! The exact time is computed when the bound is reached, so that a message costs nothing.

use std::time::Duration;

use narrows_acp::method;
use narrows_wire::{Code, Effects, RpcError, message};
use serde_json::{Value, json};

use super::api::{GateOutput, GateTime};
use super::approval::approval_name;
use super::outbox::{GateDirection, OnAuditFailure};
use super::retained::ChargedMap;
use super::session::{ClientRequestKind, PendingAtAgent, PendingAtClient, TurnHalt};
use super::{Gate, GateCtx, RawRequestId};
use crate::audit_events::ApprovalOutcome;

impl Gate {
    /// Makes sure that `tick` is called at `at` or earlier.
    pub(super) fn arm_timer(&mut self, at: GateTime) {
        self.next_due = Some(self.next_due.map_or(at, |due| due.min(at)));
    }

    /// Returns `true` if the agent of this session waits for an approval or for the client. The silence
    /// timeout does not apply meanwhile.
    fn is_waiting_elsewhere(&self, name: &str) -> bool {
        let of_client = |served: &PendingAtClient| match served {
            PendingAtClient::Service { session, .. } | PendingAtClient::TerminalWait { session } => {
                self.is_in_subtree(session, name)
            }
            PendingAtClient::Approval(_)
            | PendingAtClient::AlreadyAnswered { .. }
            | PendingAtClient::McpConnect { .. }
            | PendingAtClient::McpList { .. }
            | PendingAtClient::PassThrough { .. } => false,
        };
        self.approvals.values().any(|approval| self.is_in_subtree(&approval.session(), name))
            || self.pending_at_client.values().any(of_client)
    }

    fn earliest_deadline(&self) -> Option<GateTime> {
        let approvals = self.approvals.values().map(|approval| approval.due);
        let pending = self.pending_at_agent.values().filter_map(|pending| pending.due);
        let served = self.pending_at_client.values().filter_map(|served| match served {
            PendingAtClient::Service { due, .. } => Some(*due),
            _ => None,
        });
        let stops = self.sessions.values().filter_map(|session| session.stop_deadline);
        let silence = self.config.timeouts.silence;
        let silences = self.sessions.iter().filter_map(|(name, session)| {
            let since = session.last_activity.filter(|_| session.halted.is_none())?;
            (!self.is_waiting_elsewhere(name)).then_some(since + silence)
        });
        approvals
            .chain(pending)
            .chain(served)
            .chain(stops)
            .chain(silences)
            .chain(self.refusals.next_due())
            .min()
    }
}

impl<O: GateOutput> GateCtx<'_, O> {
    /// Restarts the silence timeout of a session's turn. Activity of a child session counts for the turn of
    /// its topmost ancestor. Returns `true` if the session is open.
    pub(super) fn record_activity(&mut self, name: &str) -> bool {
        let now = self.now;
        let Some(mut session) = self.gate.sessions.get_mut(name) else { return false };
        if let Some(lineage) = &session.lineage {
            let root = std::sync::Arc::clone(&lineage.root);
            let Some(above) = self.gate.sessions.get_mut(&*root) else { return true };
            session = above;
        }
        if let Some(heard) = &mut session.last_activity {
            *heard = now;
        }
        true
    }

    /// Restarts the silence timeout when an approval or the client no longer blocks the agent.
    pub(super) fn restart_silence_timer(&mut self, name: &str) {
        self.record_activity(name);
        self.gate.arm_timer(self.now + self.gate.config.timeouts.silence);
    }

    pub(super) fn start_silence_timer(&mut self, name: &str) {
        if let Some(session) = self.session(name) {
            session.last_activity = Some(GateTime::ZERO);
        }
        self.restart_silence_timer(name);
    }

    pub(super) fn start_stop_timer(&mut self, name: &str) {
        let by = self.now + self.gate.config.timeouts.cancel;
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.stop_deadline = Some(by);
            self.gate.arm_timer(by);
        }
    }

    pub(super) fn tick(&mut self) {
        let now = self.now;
        let due: Vec<u64> =
            self.gate.approvals.iter().filter(|(_, it)| it.due <= now).map(|(number, _)| *number).collect();
        for number in due {
            self.expire_approval(number);
        }
        for id in matching_ids(&self.gate.pending_at_agent, |pending: &PendingAtAgent| {
            pending.due.is_some_and(|due| due <= now)
        }) {
            self.expire_client_request(&id);
        }
        for id in matching_ids(
            &self.gate.pending_at_client,
            |served: &PendingAtClient| matches!(served, PendingAtClient::Service { due, .. } if *due <= now),
        ) {
            self.expire_agent_request(&id);
        }
        if self.gate.refusals.next_due().is_some_and(|due| due <= now) {
            self.record_omitted();
        }
        self.stop_silent_turns();
        self.end_unstoppable_agent();
        self.gate.next_due = self.gate.earliest_deadline();
    }

    fn expire_approval(&mut self, number: u64) {
        let Some(approval) = self.gate.approvals.get_mut(&number) else { return };
        // A client that was asked gets a notice that its answer would be too late.
        approval.notifies_client = true;
        let name = approval.session();
        let id = approval_name(&self.gate.start, number);
        let why =
            format!("{id} was not approved within {}", format_duration(self.gate.config.timeouts.approval));
        let event =
            self.parties(&name).deadline_passed("request.expired", method::SESSION_REQUEST_PERMISSION, &why);
        self.record(event);
        self.settle_approval(number, ApprovalOutcome::Refused("not approved in time".to_owned()));
    }

    /// Answers a client request that the agent has not answered in time. A later answer of the agent is
    /// dropped.
    fn expire_client_request(&mut self, id: &[u8]) {
        let Some(pending) = self.gate.pending_at_agent.get_mut(id) else { return };
        pending.due = None;
        pending.is_late = true;
        let method = pending.method.clone();
        let closes = match &pending.kind {
            ClientRequestKind::Close { session } => Some(session.clone()),
            _ => None,
        };
        let session = pending.kind.session().unwrap_or_default().to_owned();
        let waited = self.gate.config.timeouts.for_method(&method).unwrap_or_default();
        let why =
            format!("the agent did not answer {} within {}", short_method(&method), format_duration(waited));
        let event = self.parties(&session).deadline_passed("request.expired", &method, &why);
        let seq = self.record(event);
        let line = message::error(id, &deadline_error(&why));
        // The client gets an answer even if the expiry cannot be recorded.
        let on_failure = OnAuditFailure::SendInstead(GateDirection::ToClient, line.clone());
        self.send(GateDirection::ToClient, &[&line], Some(seq), on_failure);
        if let Some(name) = closes {
            self.answer_open_prompts(&name);
            self.close_session(&name, "the agent did not close it in time");
            return self.out.end_agent_gracefully("it did not close a session in time");
        }
        self.cancel_request(GateDirection::ToAgent, id);
    }

    /// Records and drops an answer of the agent that came after the deadline.
    pub(super) fn drop_late_agent_answer(&mut self, pending: &PendingAtAgent) {
        if let ClientRequestKind::Open { session: name, replays: true } = &pending.kind
            && let Some(session) = self.gate.sessions.get_mut(&**name)
        {
            // A replay ends only when the agent answers the request for it, even if the answer is late.
            session.replays = session.replays.saturating_sub(1);
        }
        let session = pending.kind.session().unwrap_or_default();
        let why = "the agent answered after the deadline, and the answer was dropped";
        let event = self.parties(session).deadline_passed("request.late", &pending.method, why);
        self.record(event);
    }

    fn expire_agent_request(&mut self, id: &[u8]) {
        let Some(PendingAtClient::Service { session: name, call, .. }) =
            self.gate.pending_at_client.remove(id)
        else {
            return;
        };
        self.gate.track_agent_request(id, PendingAtClient::AlreadyAnswered { session: name.clone() });
        let record = self.gate.sessions.get_mut(&*name).and_then(|session| session.calls.remove(&*call));
        let waited = format_duration(self.gate.config.timeouts.service);
        let why = format!("the client did not answer within {waited}");
        let asked = record.as_ref().map(|record| record.call.tool()).unwrap_or_default();
        let event = self.parties(&name).deadline_passed("request.expired", &asked, &why);
        self.record(event);
        let event =
            record.and_then(|record| self.outcome_event(&name, &call, &record, json!({"error": why})));
        let seq = event.map(|event| self.record(event));
        let line = message::error(id, &deadline_error(&why));
        self.send(GateDirection::ToAgent, &[&line], seq, OnAuditFailure::fail_outcome(id, &name));
        self.cancel_request(GateDirection::ToClient, id);
        self.restart_silence_timer(&name);
    }

    /// Records and drops an answer of the client that came after the deadline.
    pub(super) fn drop_late_client_answer(&mut self, name: &str) {
        let why = "the client answered after the deadline, and the answer was dropped";
        let event = self.parties(name).deadline_passed("request.late", "", why);
        self.record(event);
    }

    fn stop_silent_turns(&mut self) {
        let silence = self.gate.config.timeouts.silence;
        let gate = &self.gate;
        let is_silent = |name: &str| {
            let session = gate.sessions.get(name)?;
            let since = session.last_activity.filter(|_| session.halted.is_none())?;
            (since + silence <= self.now && !gate.is_waiting_elsewhere(name)).then_some(())
        };
        let mut names: Vec<Box<str>> =
            gate.sessions.keys().filter(|name| is_silent(name).is_some()).cloned().collect();
        names.sort_unstable();
        for name in names {
            let reason = format!("the agent was silent for {}", format_duration(silence));
            let event =
                self.parties(&name).deadline_passed("request.expired", method::SESSION_PROMPT, &reason);
            self.record(event);
            self.stop_turn(&name, TurnHalt { reason, is_late: true });
        }
    }

    /// Ends the agent if a stopped turn has not ended before the cancel timeout.
    fn end_unstoppable_agent(&mut self) {
        let now = self.now;
        let late = self
            .gate
            .sessions
            .values_mut()
            .filter(|session| session.stop_deadline.is_some_and(|by| by <= now));
        let mut any = false;
        for session in late {
            session.stop_deadline = None;
            any = true;
        }
        if any {
            self.out.end_agent("it continued a stopped turn");
        }
    }

    /// Sends `$/cancel_request` for a request whose answer is no longer needed.
    pub(super) fn cancel_request(&mut self, direction: GateDirection, id: &[u8]) {
        let id: Value = serde_json::from_slice(id).unwrap_or_default();
        if let Ok(line) = message::notification(method::CANCEL_REQUEST, &json!({"requestId": id})) {
            self.send(direction, &[&line], None, OnAuditFailure::Drop);
        }
    }
}

pub(super) fn deadline_error(why: &str) -> RpcError {
    RpcError::new(Code::Deadline, why.to_owned()).effects(Effects::Possible)
}

/// Returns the ids of matching entries, sorted so that simulated runs are reproducible.
fn matching_ids<T>(table: &ChargedMap<RawRequestId, T>, so: impl Fn(&T) -> bool) -> Vec<RawRequestId> {
    let mut found: Vec<RawRequestId> =
        table.iter().filter(|(_, it)| so(it)).map(|(id, _)| id.clone()).collect();
    found.sort_unstable();
    found
}

fn short_method(method: &str) -> String {
    narrows_base::text::quoted(method, 64)
}

pub(super) fn format_duration(time: Duration) -> String {
    match (time.as_secs(), time.subsec_millis()) {
        (0, millis) => format!("{millis} ms"),
        (seconds, 0) if seconds > 60 && seconds % 60 == 0 => format!("{} min", seconds / 60),
        (_, 0) => format!("{} s", time.as_secs()),
        _ => format!("{} s", time.as_secs_f32()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_briefly() {
        for (millis, said) in
            [(250, "250 ms"), (10_000, "10 s"), (60_000, "60 s"), (600_000, "10 min"), (1_500, "1.5 s")]
        {
            assert_eq!(format_duration(Duration::from_millis(millis)), said);
        }
    }
}
