//! Dispatches messages of the client.

use narrows_acp::method;
use narrows_wire::{Code, Kind, RpcError, View, message};
use serde_json::json;

use super::GateCtx;
use super::api::GateOutput;
use super::approval::PendingApproval;
use super::from_agent::unclear_id_error;
use super::method_rules::is_plain_notification;
use super::outbox::{GateDirection, OnAuditFailure};
use super::session::{ClientRequestKind, PendingAtAgent, PendingAtClient};
use super::session_open::parse_object;
use crate::audit_events::MessageSender;
use crate::request_ids::comparable_id;

/// Maximum size of a close request that is accepted without room in the byte budget, because closing a
/// session frees memory.
const MAX_CLOSE_BYTES: usize = 4096;

impl<O: GateOutput> GateCtx<'_, O> {
    pub(super) fn dispatch_client_message(&mut self, message: View<'_>) {
        if self.refuse_unclear_client_message(message) {
            return;
        }
        match message.kind() {
            Kind::Request => self.handle_client_request(message),
            Kind::Notification => self.handle_client_notification(message),
            Kind::Response => self.handle_client_response(message),
            Kind::Batch | Kind::Invalid(_) => {
                if let Some(line) = message.refusal() {
                    self.send(GateDirection::ToClient, &[&line], None, OnAuditFailure::Drop);
                }
            }
        }
    }

    fn handle_client_request(&mut self, message: View<'_>) {
        let (Some(id), Some(method)) = (message.id(), message.method()) else { return };
        let Some(compared) = comparable_id(id) else { return self.refuse_client(id, &unclear_id_error()) };
        let id = &*compared;
        if !self.may_access_session(message) {
            return self.refuse_unknown_session(id, &method, message);
        }
        if self.refuse_misused_client_message(&method, message) {
            return;
        }
        let may_name_child =
            matches!(&*method, method::SESSION_CANCEL | method::TOOL_CALL_CANCEL | method::TERMINAL_CANCEL);
        if !may_name_child && message.session().is_some_and(|name| self.gate.is_child(&name)) {
            return self.refuse_unknown_session(id, &method, message);
        }
        // A client may continue although `initialize` failed. All its requests are refused.
        if method != method::INITIALIZE
            && let Some(error) = self.unmet_error()
        {
            return self.refuse_client(id, &error);
        }
        if self.refuse_unknown_member_of_client(&method, message) {
            return;
        }
        match &*method {
            method::INITIALIZE => self.handle_initialize(id, message),
            method::SESSION_NEW => self.create_session(id, message),
            method::SESSION_FORK => self.create_session(id, message),
            method::SESSION_LOAD | method::SESSION_RESUME => self.open_existing_session(id, message),
            method::SESSION_PROMPT => self.handle_prompt(id, message),
            method::SESSION_SET_MODE | method::SESSION_SET_MODEL | method::SESSION_SET_CONFIG_OPTION => {
                self.handle_session_config(id, &method, message);
            }
            method::SESSION_CLOSE | method::SESSION_DELETE => self.handle_close(id, message),
            method::SESSION_LIST => self.handle_list(id, message),
            // Some clients send this notification as a request.
            method::SESSION_CANCEL => {
                self.handle_client_cancel(&message.session().unwrap_or_default());
                self.forward_client_request(id, message);
            }
            _ => self.handle_other_client_request(id, &method, message),
        }
    }

    pub(super) fn unmet_error(&self) -> Option<RpcError> {
        let words =
            format!("the agent lacks declared capabilities: {}", self.gate.unmet_capabilities.as_ref()?);
        Some(RpcError::new(Code::Internal, words).with("code", json!("unmet-capability")))
    }

    /// Passes a client request to the agent. The request does not change the state of the gate.
    pub(super) fn forward_client_request(&mut self, id: &[u8], message: View<'_>) {
        if self.track_client_request(id, message, ClientRequestKind::Other) {
            self.forward_to_agent(message);
        }
    }

    /// Stores a client request that the agent has to answer. Refuses the request and returns `false` if too
    /// many are pending, or its id is in use.
    pub(super) fn track_client_request(
        &mut self,
        id: &[u8],
        message: View<'_>,
        kind: ClientRequestKind,
    ) -> bool {
        let method = message.method().unwrap_or_default();
        let session = message.session().unwrap_or_default();
        // The id of a prompt is stored twice: here and in its session.
        let bytes = 2 * id.len() + method.len() + kind.retained_bytes();
        // A close request is accepted without room, because it frees memory.
        let is_close = matches!(kind, ClientRequestKind::Close { .. }) && bytes <= MAX_CLOSE_BYTES;
        let error = if self.gate.pending_at_agent.contains_key(id) {
            RpcError::new(Code::DuplicateId, "a request with this id is still unanswered")
        } else if self.gate.pending_at_agent.len() >= super::MAX_OPEN
            || !is_close && !self.has_room_for(&session, bytes)
        {
            RpcError::new(Code::Backpressure, "too many unanswered requests")
        } else {
            let due = self.gate.config.timeouts.for_method(&method).map(|timeouts| self.now + timeouts);
            if let Some(due) = due {
                self.gate.arm_timer(due);
            }
            let pending = PendingAtAgent { kind, method: (&*method).into(), due, is_late: false };
            self.gate.pending_at_agent.insert(&self.gate.retained, id.into(), pending, bytes);
            return true;
        };
        self.refuse_client(id, &error);
        false
    }

    pub(super) fn refuse_client(&mut self, id: &[u8], error: &RpcError) {
        let line = message::error(id, error);
        self.send(GateDirection::ToClient, &[&line], None, OnAuditFailure::Drop);
    }

    fn handle_client_notification(&mut self, message: View<'_>) {
        let Some(method) = message.method() else { return };
        if !self.may_access_session(message) {
            self.record_method(MessageSender::Client, &method, message, Some("unknown_session"));
            return;
        }
        if self.refuse_misused_client_message(&method, message) {
            return;
        }
        if self.refuse_unknown_member_of_client(&method, message) {
            return;
        }
        if method == method::MCP_MESSAGE {
            let is_offered = self.gate.client_capabilities().mcp_acp;
            let refused = if is_offered { "unmet-capability" } else { "method_not_listed" };
            if !is_offered || self.gate.unmet_capabilities.is_some() {
                self.record_method(MessageSender::Client, &method, message, Some(refused));
                return;
            }
        }
        if !is_plain_notification(&method) {
            return self.handle_other_client_notification(&method, message);
        }
        if method == method::SESSION_CANCEL
            && let Some(name) = message.session()
        {
            self.handle_client_cancel(&name);
        }
        self.forward_to_agent(message);
    }

    fn handle_client_response(&mut self, message: View<'_>) {
        let Some(compared) = message.id().and_then(comparable_id) else { return };
        let id = &*compared;
        let served = self.gate.pending_at_client.remove(id);
        let fitting = served.as_ref().and_then(|served| self.strip_client_answer(served, message));
        let message = fitting.as_deref().map_or(message, View::parse);
        match served {
            Some(PendingAtClient::Service { session, call, .. }) => {
                self.restart_silence_timer(&session);
                self.handle_service_answer(&session, &call, message);
            }
            Some(PendingAtClient::TerminalWait { session }) => {
                self.restart_silence_timer(&session);
                self.forward_to_agent(message);
            }
            Some(PendingAtClient::AlreadyAnswered { session }) => self.drop_late_client_answer(&session),
            Some(PendingAtClient::Approval(number)) => self.handle_client_vote(number, message),
            Some(PendingAtClient::McpConnect { server }) => self.handle_mcp_connected(server, message),
            Some(PendingAtClient::McpList { session, server, list }) => {
                self.handle_mcp_list(session.as_deref(), &server, list, message);
            }
            Some(PendingAtClient::PassThrough { .. }) => self.forward_to_agent(message),
            // An answer to a request that was never sent to the client is dropped. It must not count as a
            // permission.
            None => self.record_unasked_answer(id),
        }
    }

    /// Records an unexpected answer of the client: the request has this id, but waits for an approval and was
    /// never sent to the client.
    fn record_unasked_answer(&mut self, id: &[u8]) {
        let held = self.gate.approvals.values().find(|approval| approval.holds_request(id));
        let Some(name) = held.map(PendingApproval::session) else { return };
        let event = self.parties(&name).refused(
            "tool.refused",
            "unasked_answer",
            json!({"id": parse_object(Some(id))}),
        );
        self.record(event);
    }

    pub(super) fn forward_to_agent(&mut self, message: View<'_>) {
        self.send(GateDirection::ToAgent, &[message.bytes()], None, OnAuditFailure::Drop);
    }
}
