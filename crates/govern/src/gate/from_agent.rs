//! What the agent says.

use narrows_acp::method;
use narrows_wire::{Code, Kind, RpcError, View, message};
use serde_json::{Value, json};

use super::api::Out;
use super::client_services::ambiguous;
use super::outbox::{Otherwise, Way};
use super::session::{Served, key_of, request_key};
use super::session_open::{UNDECLARED, unrecorded};
use super::{Gate, Pass};
use crate::request_ids::comparable_id;
use crate::unique_keys;

impl<O: Out> Pass<'_, O> {
    pub(super) fn agent(&mut self, message: View<'_>) {
        if !self.admits(message) || self.is_unclear_of_agent(message) {
            return;
        }
        match message.kind() {
            Kind::Notification => self.agent_notification(message),
            Kind::Request => self.agent_request(message),
            Kind::Response => self.agent_response(message),
            Kind::Batch | Kind::Invalid(_) => {
                if let Some(line) = message.refusal() {
                    self.send(Way::ToAgent, &[&line], None, Otherwise::Nothing);
                }
            }
        }
    }

    fn agent_notification(&mut self, message: View<'_>) {
        let Some(method) = message.method() else { return };
        if self.is_misused_by_agent(&method, message) {
            return;
        }
        match &*method {
            method::SESSION_UPDATE => self.update(message),
            method::MCP_MESSAGE => self.mcp_news(message),
            method => self.other_agent_notification(method, message),
        }
    }

    fn agent_request(&mut self, message: View<'_>) {
        let (Some(id), Some(method)) = (message.id(), message.method()) else { return };
        let Some(compared) = comparable_id(id) else { return self.refuse_agent(id, &unclear_id()) };
        let id = &*compared;
        let is_held = self.gate.hearings.values().any(|hearing| hearing.holds(id));
        if is_held || self.gate.served.contains_key(id) || self.is_own(id) {
            let error = RpcError::new(Code::DuplicateId, "a request with this id is still unanswered");
            return self.refuse_agent(id, &error);
        }
        if self.is_misused_by_agent(&method, message) {
            return;
        }
        let offers = self.gate.offers();
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
        if self.is_unlisted_request(id, &method, message) {
            return;
        }
        if self.is_unfit_of_agent(&method, message) {
            if is_service(&method) {
                self.note_refused(id, message);
            }
            return;
        }
        // What is decided here needs no client.
        if method != method::SESSION_REQUEST_PERMISSION && self.is_beyond_asking(id) {
            return;
        }
        match &*method {
            method::SESSION_REQUEST_PERMISSION => match unique_keys::read(message.params()) {
                Some(params) => {
                    self.permission(id, message);
                    self.note_asked(&params, message);
                }
                None => self.refuse_unread(id, message),
            },
            service if is_service(service) => {
                self.service(id, &method, message);
                self.note_refused(id, message);
            }
            method::MCP_MESSAGE | method::MCP_CONNECT | method::MCP_DISCONNECT => {
                self.mcp(id, &method, message);
            }
            method::TERMINAL_WAIT_FOR_EXIT => {
                let served = match message.session() {
                    Some(name) => Served::Wait { session: (&*name).into() },
                    None => Served::Shown { method: (&*method).into() },
                };
                self.show_request(id, served, message);
            }
            method::TERMINAL_OUTPUT | method::TERMINAL_KILL | method::TERMINAL_RELEASE => {
                self.show_request(id, Served::Shown { method: (&*method).into() }, message);
            }
            _ => self.other_agent_request(id, &method, message),
        }
    }

    /// Passes a request on as it is, and remembers that it may be answered. Not if there are too many.
    pub(super) fn show_request(&mut self, id: &[u8], served: Served, message: View<'_>) {
        if self.has_room_to_serve(id, &served, message) {
            self.gate.add_served(id, served);
            self.show(message);
        }
    }

    /// Returns `true` if another request may wait for the client. Else the agent is told.
    pub(super) fn has_room_to_serve(&mut self, id: &[u8], served: &Served, message: View<'_>) -> bool {
        let session = message.session().unwrap_or_default();
        let bytes = id.len() + served.retained_bytes();
        let has_room = self.gate.served.len() < super::MOST_OPEN && self.has_room_for(&session, bytes);
        if !has_room {
            let error = RpcError::new(Code::Backpressure, "too many requests are unanswered");
            self.refuse_agent(id, &error);
        }
        has_room
    }

    /// Whether a request is one of a session that is being opened. One that names no session may be of any.
    pub(super) fn is_replayed(&self, message: View<'_>) -> bool {
        match message.session() {
            Some(name) => self.gate.is_replaying(&name),
            None => self.gate.sessions.values().any(|session| session.replays > 0),
        }
    }

    /// The agent has asked about a call: so it is told what is decided of it.
    fn note_asked(&mut self, params: &Value, message: View<'_>) {
        let Some(name) = message.session() else { return };
        let places = ["/toolCall/toolCallId", "/subject/toolCall/toolCallId", "/subject/toolCallId"];
        let call = places.iter().find_map(|place| params.pointer(place)?.as_str());
        if let Some(case) = call.and_then(|call| self.case(&name, &key_of(call))) {
            case.tell();
        }
    }

    /// Refuses to ask about what can be read in two ways, or not at all.
    fn refuse_unread(&mut self, id: &[u8], message: View<'_>) {
        let name = message.session().unwrap_or_default();
        let input = json!({"method": method::SESSION_REQUEST_PERMISSION});
        let event = self.parties(&name).refused("tool.refused", "ambiguous_call", input);
        let ticket = self.record(event);
        let line = message::error(id, &ambiguous());
        self.send(Way::ToAgent, &[&line], Some(ticket), Otherwise::Say(Way::ToAgent, unrecorded(id)));
    }

    /// Notes that the agent was refused what it wanted of the client, if it was: nothing waits for it then.
    fn note_refused(&mut self, id: &[u8], message: View<'_>) {
        let Some(name) = message.session() else { return };
        if let Some(session) = self.gate.sessions.get_mut(&*name)
            && !session.calls.contains_key(&request_key(id))
        {
            session.refusals = session.refusals.saturating_add(1);
        }
    }

    /// Answers the agent with an error.
    pub(super) fn refuse_agent(&mut self, id: &[u8], error: &RpcError) {
        let line = message::error(id, error);
        self.send(Way::ToAgent, &[&line], None, Otherwise::Nothing);
    }

    /// Passes a message on as it is.
    pub(super) fn show(&mut self, message: View<'_>) {
        self.send(Way::ToClient, &[message.bytes()], None, Otherwise::Nothing);
    }
}

impl Gate {
    /// Remembers a request at the client.
    pub(super) fn add_served(&mut self, id: &[u8], served: Served) {
        let bytes = id.len() + served.retained_bytes();
        self.served.insert(&self.retained, id.into(), served, bytes);
    }
}

/// Returns `true` for files and commands that the agent wants of the client.
fn is_service(method: &str) -> bool {
    matches!(method, method::FS_READ_TEXT_FILE | method::FS_WRITE_TEXT_FILE | method::TERMINAL_CREATE)
}

pub(super) fn unclear_id() -> RpcError {
    RpcError::new(Code::InvalidRequest, "the id must be a string or a whole number")
}
