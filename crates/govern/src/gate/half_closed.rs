//! A client that has ended its input, but still reads. Its requests are answered. The gate sends it no
//! further requests.

use narrows_wire::{Code, Effects, RpcError, message};
use serde_json::json;

use super::api::GateOutput;
use super::outbox::{GateDirection, OnAuditFailure};
use super::session::{ClientRequestKind, PendingAtAgent, PendingAtClient, Session};
use super::session_open::audit_unavailable;
use super::{Gate, GateCtx, RawRequestId};
use crate::audit_events::ApprovalOutcome;

const CLIENT_INPUT_CLOSED: &str = "the client has ended its input, so it cannot answer";

impl Gate {
    /// Returns `true` if no client request is unanswered, no turn is active, and no line waits for the audit
    /// log.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.pending_at_agent.values().all(|pending| pending.is_late)
            && !self.sessions.values().any(Session::is_working)
            && self.approvals.is_empty()
            && self.to_client.is_empty()
            && self.to_agent.is_empty()
    }
}

impl<O: GateOutput> GateCtx<'_, O> {
    /// Handles the end of the client's input. Refuses every agent request that only the client could answer.
    pub(super) fn close_client_input(&mut self) {
        self.gate.is_client_input_closed = true;
        let approvals = self
            .gate
            .approvals
            .iter()
            .filter(|(_, approval)| approval.can_be_approved_by(&self.gate.principal));
        let approvals: Vec<u64> = approvals.map(|(number, _)| *number).collect();
        for number in approvals {
            self.settle_approval(number, ApprovalOutcome::Refused(CLIENT_INPUT_CLOSED.to_owned()));
        }
        let mut served: Vec<(RawRequestId, PendingAtClient)> = self.gate.pending_at_client.drain().collect();
        served.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (id, served) in served {
            match served {
                PendingAtClient::Service { session: name, call, .. } => {
                    let record =
                        self.gate.sessions.get_mut(&*name).and_then(|session| session.calls.remove(&*call));
                    let event = record.and_then(|record| {
                        self.outcome_event(&name, &call, &record, json!({"error": CLIENT_INPUT_CLOSED}))
                    });
                    let seq = event.map(|event| self.record(event));
                    let line = message::error(&id, &client_closed_error());
                    self.send(
                        GateDirection::ToAgent,
                        &[&line],
                        seq,
                        OnAuditFailure::fail_unrecorded(&id, &name),
                    );
                    self.restart_silence_timer(&name);
                }
                PendingAtClient::TerminalWait { session } => {
                    self.refuse_agent(&id, &client_closed_error());
                    self.restart_silence_timer(&session);
                }
                PendingAtClient::McpConnect { .. }
                | PendingAtClient::McpList { .. }
                | PendingAtClient::PassThrough { .. } => {
                    self.refuse_agent(&id, &client_closed_error());
                }
                // An expired request is already answered. An approval may be decided by another approver.
                PendingAtClient::AlreadyAnswered { .. } | PendingAtClient::Approval(_) => {}
            }
        }
    }

    /// Refuses the agent request if the client has ended its input. Returns `true` if the request was
    /// refused.
    pub(super) fn refuse_if_client_closed(&mut self, id: &[u8]) -> bool {
        if self.gate.is_client_input_closed {
            self.refuse_agent(id, &client_closed_error());
        }
        self.gate.is_client_input_closed
    }

    /// Returns a refusal for an approval that only the client could give, if the client has ended its input.
    pub(super) fn client_closed_refusal(&self) -> Option<ApprovalOutcome> {
        self.gate.is_client_input_closed.then(|| ApprovalOutcome::Refused(CLIENT_INPUT_CLOSED.to_owned()))
    }

    /// Closes all sessions. Once this is recorded, answers the pending client requests.
    pub(super) fn answer_pending_and_close(&mut self, why: &str) {
        let mut pending: Vec<(RawRequestId, PendingAtAgent)> =
            self.gate.pending_at_agent.drain().filter(|(_, pending)| !pending.is_late).collect();
        pending.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let seq = self.close_all_sessions("client disconnected");
        for (id, pending) in pending {
            let is_turn = matches!(pending.kind, ClientRequestKind::Prompt { .. }) && !self.gate.is_v2;
            let meta = json!({"aip44": {"interrupted": why}});
            let line = match is_turn {
                true => message::response(&id, &json!({"stopReason": "cancelled", "_meta": meta})).ok(),
                false => {
                    let error = RpcError::new(Code::Cancelled, why.to_owned()).effects(Effects::Possible);
                    Some(message::error(&id, &error))
                }
            };
            if let Some(line) = line {
                let on_failure = OnAuditFailure::SendInstead(GateDirection::ToClient, audit_unavailable(&id));
                self.send(GateDirection::ToClient, &[&line], seq, on_failure);
            }
        }
    }
}

/// Returns the error for agent requests to a client that has ended its input.
fn client_closed_error() -> RpcError {
    RpcError::new(Code::Cancelled, CLIENT_INPUT_CLOSED)
}
