//! What the client says.

use narrows_acp::method;
use narrows_wire::{Code, Kind, RpcError, View, message};
use serde_json::json;

use super::Pass;
use super::api::Out;
use super::approval::Hearing;
use super::from_agent::unclear_id;
use super::method_rules::is_plain_notification;
use super::outbox::{Otherwise, Way};
use super::session::{Asked, Owed, Served};
use super::session_open::read;
use crate::audit_events::Sender;
use crate::request_ids::comparable_id;

/// Memory of a request that is accepted although the byte budget is used up.
const MAX_CLOSE_BYTES: usize = 4096;

impl<O: Out> Pass<'_, O> {
    pub(super) fn client(&mut self, message: View<'_>) {
        if self.is_unclear_of_client(message) {
            return;
        }
        match message.kind() {
            Kind::Request => self.client_request(message),
            Kind::Notification => self.client_notification(message),
            Kind::Response => self.client_response(message),
            Kind::Batch | Kind::Invalid(_) => {
                if let Some(line) = message.refusal() {
                    self.send(Way::ToClient, &[&line], None, Otherwise::Nothing);
                }
            }
        }
    }

    fn client_request(&mut self, message: View<'_>) {
        let (Some(id), Some(method)) = (message.id(), message.method()) else { return };
        let Some(compared) = comparable_id(id) else { return self.refuse_client(id, &unclear_id()) };
        let id = &*compared;
        if !self.is_ours(message) {
            return self.refuse_unknown(id, &method, message);
        }
        if self.is_misused_by_client(&method, message) {
            return;
        }
        let may_name_child =
            matches!(&*method, method::SESSION_CANCEL | method::TOOL_CALL_CANCEL | method::TERMINAL_CANCEL);
        if !may_name_child && message.session().is_some_and(|name| self.gate.is_child(&name)) {
            return self.refuse_unknown(id, &method, message);
        }
        // Whoever goes on all the same is not served by half of what was promised.
        if method != method::INITIALIZE
            && let Some(error) = self.unmet()
        {
            return self.refuse_client(id, &error);
        }
        if self.is_unfit_of_client(&method, message) {
            return;
        }
        match &*method {
            method::INITIALIZE => self.initialize(id, message),
            method::SESSION_NEW => self.create(id, message),
            method::SESSION_FORK => self.create(id, message),
            method::SESSION_LOAD | method::SESSION_RESUME => self.reopen(id, message),
            method::SESSION_PROMPT => self.prompt(id, message),
            method::SESSION_SET_MODE | method::SESSION_SET_MODEL | method::SESSION_SET_CONFIG_OPTION => {
                self.change(id, &method, message);
            }
            method::SESSION_CLOSE | method::SESSION_DELETE => self.close(id, message),
            method::SESSION_LIST => self.list(id, message),
            // Some clients send it with an id.
            method::SESSION_CANCEL => {
                self.cancelled_by_client(&message.session().unwrap_or_default());
                self.ask(id, message);
            }
            _ => self.other_request(id, &method, message),
        }
    }

    /// Why nothing is begun, if the agent is not what the manifest says.
    pub(super) fn unmet(&self) -> Option<RpcError> {
        let words = format!("the agent lacks what the manifest declares: {}", self.gate.unmet.as_ref()?);
        Some(RpcError::new(Code::Internal, words).with("code", json!("unmet-capability")))
    }

    /// Asks something of the agent that changes nothing here.
    pub(super) fn ask(&mut self, id: &[u8], message: View<'_>) {
        if self.await_answer(id, message, Asked::Other) {
            self.forward(message);
        }
    }

    /// Remembers what an answer will be about. Not if there are too many, or another of this id is open.
    pub(super) fn await_answer(&mut self, id: &[u8], message: View<'_>, what: Asked) -> bool {
        let method = message.method().unwrap_or_default();
        let session = message.session().unwrap_or_default();
        // A prompt has its id in its session, too.
        let bytes = 2 * id.len() + method.len() + what.retained_bytes();
        // Closing a session releases what it retains.
        let is_close = matches!(what, Asked::Close { .. }) && bytes <= MAX_CLOSE_BYTES;
        let error = if self.gate.asked.contains_key(id) {
            RpcError::new(Code::DuplicateId, "a request with this id is still unanswered")
        } else if self.gate.asked.len() >= super::MOST_OPEN
            || !is_close && !self.has_room_for(&session, bytes)
        {
            RpcError::new(Code::Backpressure, "too many requests are unanswered")
        } else {
            let due = self.gate.mandate.patience.of(&method).map(|patience| self.now + patience);
            if let Some(due) = due {
                self.gate.arm(due);
            }
            let owed = Owed { what, method: (&*method).into(), due, is_late: false };
            self.gate.asked.insert(&self.gate.retained, id.into(), owed, bytes);
            return true;
        };
        self.refuse_client(id, &error);
        false
    }

    /// Answers the client with an error.
    pub(super) fn refuse_client(&mut self, id: &[u8], error: &RpcError) {
        let line = message::error(id, error);
        self.send(Way::ToClient, &[&line], None, Otherwise::Nothing);
    }

    fn client_notification(&mut self, message: View<'_>) {
        let Some(method) = message.method() else { return };
        if !self.is_ours(message) {
            self.record_method(Sender::Client, &method, message, Some("unknown_session"));
            return;
        }
        if self.is_misused_by_client(&method, message) {
            return;
        }
        if self.is_unfit_of_client(&method, message) {
            return;
        }
        if method == method::MCP_MESSAGE {
            let is_offered = self.gate.offers().mcp_acp;
            let refused = if is_offered { "unmet-capability" } else { "method_not_listed" };
            if !is_offered || self.gate.unmet.is_some() {
                self.record_method(Sender::Client, &method, message, Some(refused));
                return;
            }
        }
        if !is_plain_notification(&method) {
            return self.other_notification(&method, message);
        }
        if method == method::SESSION_CANCEL
            && let Some(name) = message.session()
        {
            self.cancelled_by_client(&name);
        }
        self.forward(message);
    }

    fn client_response(&mut self, message: View<'_>) {
        let Some(compared) = message.id().and_then(comparable_id) else { return };
        let id = &*compared;
        let served = self.gate.served.remove(id);
        let fitting = served.as_ref().and_then(|served| self.fitting_client_answer(served, message));
        let message = fitting.as_deref().map_or(message, View::parse);
        match served {
            Some(Served::Service { session, call, .. }) => {
                self.resume(&session);
                self.service_done(&session, &call, message);
            }
            Some(Served::Wait { session }) => {
                self.resume(&session);
                self.forward(message);
            }
            Some(Served::Late { session }) => self.client_too_late(&session),
            Some(Served::Question(number)) => self.answered(number, message),
            Some(Served::Connect { server }) => self.mcp_connected(server, message),
            Some(Served::Listed { session, server, list }) => {
                self.mcp_listed(session.as_deref(), &server, list, message);
            }
            Some(Served::Shown { .. }) => self.forward(message),
            // What nobody asked is nobody's answer, least of all one to a permission.
            None => self.unasked(id),
        }
    }

    /// The client answers what it was not asked. If the agent did ask, that waits for somebody else, and it is recorded.
    fn unasked(&mut self, id: &[u8]) {
        let held = self.gate.hearings.values().find(|hearing| hearing.holds(id));
        let Some(name) = held.map(Hearing::session) else { return };
        let event =
            self.parties(&name).refused("tool.refused", "unasked_answer", json!({"id": read(Some(id))}));
        self.record(event);
    }

    /// Passes a message on as it is.
    pub(super) fn forward(&mut self, message: View<'_>) {
        self.send(Way::ToAgent, &[message.bytes()], None, Otherwise::Nothing);
    }
}
