//! Dispatches messages of the agent.

use narrows_acp::method;
use narrows_wire::{Code, Kind, RpcError, View, message};
use serde_json::{Value, json};

use super::api::GateOutput;
use super::client_services::ambiguous_params;
use super::outbox::{GateDirection, OnAuditFailure};
use super::session::{PendingAtClient, call_key, request_key};
use super::session_open::{UNDECLARED, audit_unavailable};
use super::{Gate, GateCtx};
use crate::request_ids::comparable_id;
use crate::unique_keys;

impl<O: GateOutput> GateCtx<'_, O> {
    pub(super) fn dispatch_agent_message(&mut self, message: View<'_>) {
        if !self.admit_agent_message(message) || self.refuse_unclear_agent_message(message) {
            return;
        }
        match message.kind() {
            Kind::Notification => self.handle_agent_notification(message),
            Kind::Request => self.handle_agent_request(message),
            Kind::Response => self.handle_agent_response(message),
            Kind::Batch | Kind::Invalid(_) => {
                if let Some(line) = message.refusal() {
                    self.send(GateDirection::ToAgent, &[&line], None, OnAuditFailure::Drop);
                }
            }
        }
    }

    fn handle_agent_notification(&mut self, message: View<'_>) {
        let Some(method) = message.method() else { return };
        if self.refuse_misused_agent_message(&method, message) {
            return;
        }
        match &*method {
            method::SESSION_UPDATE => self.handle_update(message),
            method::MCP_MESSAGE => self.handle_mcp_notification(message),
            method => self.handle_other_agent_notification(method, message),
        }
    }

    fn handle_agent_request(&mut self, message: View<'_>) {
        let (Some(id), Some(method)) = (message.id(), message.method()) else { return };
        let Some(compared) = comparable_id(id) else { return self.refuse_agent(id, &unclear_id_error()) };
        let id = &*compared;
        let is_held = self.gate.approvals.values().any(|approval| approval.holds_request(id));
        if is_held || self.gate.pending_at_client.contains_key(id) || self.is_gate_request_id(id) {
            let error = RpcError::new(Code::DuplicateId, "a request with this id is still unanswered");
            return self.refuse_agent(id, &error);
        }
        if self.refuse_misused_agent_message(&method, message) {
            return;
        }
        let offers = self.gate.client_capabilities();
        let is_offered = match &*method {
            method::FS_READ_TEXT_FILE => offers.read_text_file,
            method::FS_WRITE_TEXT_FILE => offers.write_text_file,
            method::TERMINAL_CREATE
            | method::TERMINAL_OUTPUT
            | method::TERMINAL_WAIT_FOR_EXIT
            | method::TERMINAL_KILL
            | method::TERMINAL_RELEASE => offers.terminal,
            method::MCP_MESSAGE | method::MCP_CONNECT | method::MCP_DISCONNECT => offers.mcp_acp,
            _ => true,
        };
        if !is_offered {
            let error = RpcError::new(Code::MethodNotFound, UNDECLARED);
            return self.refuse_agent(id, &error);
        }
        if self.refuse_unlisted_agent_request(id, &method, message) {
            return;
        }
        if self.refuse_unknown_member_of_agent(&method, message) {
            if is_service(&method) {
                self.count_refusal(id, message);
            }
            return;
        }
        // A permission request may be decided by the policy or another approver, so a client that has ended
        // its input is no obstacle.
        if method != method::SESSION_REQUEST_PERMISSION && self.refuse_if_client_closed(id) {
            return;
        }
        match &*method {
            method::SESSION_REQUEST_PERMISSION => match unique_keys::read(message.params()) {
                Some(params) => {
                    self.handle_permission_request(id, message);
                    self.mark_call_told(&params, message);
                }
                None => self.refuse_unreadable_permission(id, message),
            },
            service if is_service(service) => {
                self.handle_service_request(id, &method, message);
                self.count_refusal(id, message);
            }
            method::MCP_MESSAGE | method::MCP_CONNECT | method::MCP_DISCONNECT => {
                self.handle_mcp_request(id, &method, message);
            }
            method::TERMINAL_WAIT_FOR_EXIT => {
                let served = match message.session() {
                    Some(name) => PendingAtClient::TerminalWait { session: (&*name).into() },
                    None => PendingAtClient::PassThrough { method: (&*method).into() },
                };
                self.forward_agent_request(id, served, message);
            }
            method::TERMINAL_OUTPUT | method::TERMINAL_KILL | method::TERMINAL_RELEASE => {
                self.forward_agent_request(
                    id,
                    PendingAtClient::PassThrough { method: (&*method).into() },
                    message,
                );
            }
            _ => self.handle_other_agent_request(id, &method, message),
        }
    }

    pub(super) fn forward_agent_request(&mut self, id: &[u8], served: PendingAtClient, message: View<'_>) {
        if self.require_room_for_request(id, &served, message) {
            self.gate.track_agent_request(id, served);
            self.forward_to_client(message);
        }
    }

    /// Returns `true` if one more request may be pending at the client. Otherwise refuses the request.
    pub(super) fn require_room_for_request(
        &mut self,
        id: &[u8],
        served: &PendingAtClient,
        message: View<'_>,
    ) -> bool {
        let session = message.session().unwrap_or_default();
        let bytes = id.len() + served.retained_bytes();
        let has_room =
            self.gate.pending_at_client.len() < super::MAX_OPEN && self.has_room_for(&session, bytes);
        if !has_room {
            let error = RpcError::new(Code::Backpressure, "too many unanswered requests");
            self.refuse_agent(id, &error);
        }
        has_room
    }

    /// Returns `true` if a message is part of a replay. A message without a session counts as replayed if any
    /// session is being replayed.
    pub(super) fn is_replayed(&self, message: View<'_>) -> bool {
        match message.session() {
            Some(name) => self.gate.is_replaying(&name),
            None => self.gate.sessions.values().any(|session| session.replays > 0),
        }
    }

    /// Records that the agent learns the decision about a call from the answer to this permission request.
    fn mark_call_told(&mut self, params: &Value, message: View<'_>) {
        let Some(name) = message.session() else { return };
        let places = ["/toolCall/toolCallId", "/subject/toolCall/toolCallId", "/subject/toolCallId"];
        let call = places.iter().find_map(|place| params.pointer(place)?.as_str());
        if let Some(record) = call.and_then(|call| self.call_record(&name, &call_key(call))) {
            record.mark_known_to_agent();
        }
    }

    /// Refuses a permission request whose params are ambiguous.
    fn refuse_unreadable_permission(&mut self, id: &[u8], message: View<'_>) {
        let name = message.session().unwrap_or_default();
        let input = json!({"method": method::SESSION_REQUEST_PERMISSION});
        let event = self.parties(&name).refused("tool.refused", "ambiguous_call", input);
        let seq = self.record(event);
        let line = message::error(id, &ambiguous_params());
        self.send(
            GateDirection::ToAgent,
            &[&line],
            Some(seq),
            OnAuditFailure::SendInstead(GateDirection::ToAgent, audit_unavailable(id)),
        );
    }

    /// Counts a refused client request of the agent. A request that is already pending is not counted.
    fn count_refusal(&mut self, id: &[u8], message: View<'_>) {
        let Some(name) = message.session() else { return };
        if let Some(session) = self.gate.sessions.get_mut(&*name)
            && !session.calls.contains_key(&request_key(id))
        {
            session.refusals = session.refusals.saturating_add(1);
        }
    }

    pub(super) fn refuse_agent(&mut self, id: &[u8], error: &RpcError) {
        let line = message::error(id, error);
        self.send(GateDirection::ToAgent, &[&line], None, OnAuditFailure::Drop);
    }

    pub(super) fn forward_to_client(&mut self, message: View<'_>) {
        self.send(GateDirection::ToClient, &[message.bytes()], None, OnAuditFailure::Drop);
    }
}

impl Gate {
    pub(super) fn track_agent_request(&mut self, id: &[u8], served: PendingAtClient) {
        let bytes = id.len() + served.retained_bytes();
        self.pending_at_client.insert(&self.retained, id.into(), served, bytes);
    }
}

fn is_service(method: &str) -> bool {
    matches!(method, method::FS_READ_TEXT_FILE | method::FS_WRITE_TEXT_FILE | method::TERMINAL_CREATE)
}

pub(super) fn unclear_id_error() -> RpcError {
    RpcError::new(Code::InvalidRequest, "the id must be a string or a whole number")
}
