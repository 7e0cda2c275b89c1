//! Changes of a session by the client: mode, model and options. Each is decided and recorded before the agent
//! receives it.

use narrows_wire::{Code, RpcError, View, message};
use serde_json::json;

use super::GateCtx;
use super::api::{AuditSeq, GateOutput};
use super::client_services::ambiguous_params;
use super::method_rules::without_envelope;
use super::outbox::{GateDirection, OnAuditFailure};
use super::session::{ApprovalOrigin, ClientRequestKind};
use super::session_open::audit_unavailable;
use crate::audit_events::ApprovalOutcome;
use crate::call::Call;
use crate::unique_keys;

impl<O: GateOutput> GateCtx<'_, O> {
    pub(super) fn handle_session_config(&mut self, id: &[u8], method: &str, message: View<'_>) {
        let Some(name) = self.require_open_session(id, message) else { return };
        let Some(params) = unique_keys::read(message.params()) else {
            return self.refuse_client(id, &ambiguous_params());
        };
        let key = format!("change {}", String::from_utf8_lossy(id));
        let call =
            Call::session_change(&method.replacen('/', ".", 1), "switch_mode", without_envelope(params));
        if !self.add_client_call(id, &name, &key, call) {
            return;
        }
        let seq = self.decide_call(&name, &key);
        let Some(record) = self.call_record(&name, &key) else { return };
        match record.outcome.clone() {
            ApprovalOutcome::Pending => {
                let origin =
                    ApprovalOrigin::SessionConfig { line: message.bytes().to_vec().into(), id: id.into() };
                self.request_approval(&name, &key, origin, seq);
            }
            outcome => self.finish_session_config(id, (&name, &key), message, &outcome, seq),
        }
    }

    pub(super) fn finish_session_config(
        &mut self,
        id: &[u8],
        (name, key): (&str, &str),
        message: View<'_>,
        outcome: &ApprovalOutcome,
        after: Option<AuditSeq>,
    ) {
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.calls.remove(key);
        }
        if let ApprovalOutcome::Refused(why) = outcome {
            let error = RpcError::new(Code::PolicyDenied, why.clone()).with("code", json!("policy-denied"));
            let line = message::error(id, &error);
            return self.send(
                GateDirection::ToClient,
                &[&line],
                after,
                OnAuditFailure::SendInstead(GateDirection::ToClient, audit_unavailable(id)),
            );
        }
        if self.track_client_request(id, message, ClientRequestKind::Other) {
            let on_failure = OnAuditFailure::FailClientRequest(audit_unavailable(id), id.into());
            self.send(GateDirection::ToAgent, &[message.bytes()], after, on_failure);
        }
    }
}
