//! Methods that the gate has no rule for: refused unless the manifest lists them, and recorded either way.
//!
//! A method the gate does not know may start a turn, point the agent at another endpoint or ask the user for a secret, so
//! passing it on would be a way around every rule. A listed name never replaces the handling of a method the gate knows.

use narrows_acp::method::{self, Side};
use narrows_wire::{Code, Kind, RpcError, View, member, message};
use serde_json::{Value, json};

use super::api::{Out, Ticket};
use super::approval::Hearing;
use super::outbox::{Otherwise, Way};
use super::session::{Asked, Origin, Served};
use super::session_open::{UNDECLARED, unrecorded};
use super::{Pass, REPLAYING, prompt_content};
use crate::audit_events::{Approved, Sender, digest};
use crate::call::Call;
use crate::config::Autonomy;
use crate::lookalike_keys::{Spelling, has_lookalike};
use crate::request_ids::comparable_id;
use crate::unique_keys;

/// Why a request is refused.
const UNLISTED: &str = "the manifest does not list this method";

/// The code of a listed method whose parameters do not show, or show twice, which session it means.
pub(super) const UNCLEAR: &str = "ambiguous_params";

/// Distinct names of agent notifications that are recorded per connection.
const MAX_RECORDED_NAMES: usize = 256;

/// Returns `true` for requests of the client that log in or out, or stop a call: passed on, and recorded.
fn is_recorded_request(method: &str) -> bool {
    matches!(
        method,
        method::AUTHENTICATE
            | method::LOGOUT
            | method::AUTH_LOGIN
            | method::AUTH_LOGOUT
            | method::TOOL_CALL_CANCEL
            | method::TERMINAL_CANCEL
    )
}

/// Why a message cannot be one of its method: the protocol sends that the other way, or in the other form. No rule looks at
/// such a message, so it would pass undecided. Returns the code of the refusal; methods that no table has are in order.
fn misuse(sender: Sender, form: method::Kind, name: &str) -> Option<&'static str> {
    let receiver = match sender {
        Sender::Client => Side::Agent,
        Sender::Agent => Side::Client,
    };
    if is_envelope(name) {
        return Some("wrong_direction");
    }
    let mut rows = method::METHODS.iter().filter(|row| row.name == name).peekable();
    rows.peek()?;
    let Some(row) = rows.find(|row| row.is_received_by(receiver)) else { return Some("wrong_direction") };
    let is_tolerated = match sender {
        // Some clients send it with an id. It only ever stops something.
        Sender::Client => name == method::SESSION_CANCEL,
        // It carries the requests and the notifications of another protocol.
        Sender::Agent => name == method::MCP_MESSAGE,
    };
    (row.kind != form && !is_tolerated).then_some("wrong_form")
}

/// Returns `true` for the methods between a conductor and its proxies, which neither end says to the other.
fn is_envelope(name: &str) -> bool {
    matches!(name, method::PROXY_INITIALIZE | method::PROXY_SUCCESSOR)
}

/// Returns `true` for notifications of the client that are passed on as they are.
pub(super) fn is_plain_notification(method: &str) -> bool {
    matches!(method, method::SESSION_CANCEL | method::CANCEL_REQUEST | method::MCP_MESSAGE)
}

/// Returns `true` for methods of the client that the gate has a rule for.
fn is_client_method(method: &str) -> bool {
    let is_session = matches!(
        method,
        method::SESSION_NEW
            | method::SESSION_FORK
            | method::SESSION_LOAD
            | method::SESSION_RESUME
            | method::SESSION_PROMPT
            | method::SESSION_SET_MODE
            | method::SESSION_SET_MODEL
            | method::SESSION_SET_CONFIG_OPTION
            | method::SESSION_CLOSE
            | method::SESSION_DELETE
            | method::SESSION_LIST
    );
    is_session || method == method::INITIALIZE || is_recorded_request(method) || is_plain_notification(method)
}

/// Returns `true` for requests of the agent that other modules decide about.
fn is_agent_request(method: &str) -> bool {
    matches!(
        method,
        method::SESSION_REQUEST_PERMISSION
            | method::FS_READ_TEXT_FILE
            | method::FS_WRITE_TEXT_FILE
            | method::TERMINAL_CREATE
            | method::TERMINAL_OUTPUT
            | method::TERMINAL_WAIT_FOR_EXIT
            | method::TERMINAL_KILL
            | method::TERMINAL_RELEASE
            | method::MCP_MESSAGE
            | method::MCP_CONNECT
            | method::MCP_DISCONNECT
    )
}

impl<O: Out> Pass<'_, O> {
    /// Handles a request of the client for which there is no rule of its own.
    pub(super) fn other_request(&mut self, id: &[u8], method: &str, message: View<'_>) {
        if is_recorded_request(method) {
            return self.pass_request(id, method, message);
        }
        if !self.gate.mandate.client_methods.iter().any(|listed| listed == method) {
            let ticket = self.record_method(Sender::Client, method, message, Some("method_not_listed"));
            let error = RpcError::new(Code::PolicyDenied, UNLISTED).with("code", json!("method_not_listed"));
            return self.refuse_method(id, &error, ticket);
        }
        let Some(params) = plain_params(message) else {
            let ticket = self.record_method(Sender::Client, method, message, Some(UNCLEAR));
            return self.refuse_method(id, &unclear(), ticket);
        };
        let session = match message.session() {
            Some(_) => match self.ready(id, message) {
                Some(name) => Some(name),
                None => return,
            },
            None => None,
        };
        if let Some(kind) = prompt_content::undeclared(&params, self.gate.mandate.capabilities) {
            return self.refuse_block(id, &session.unwrap_or_default(), kind);
        }
        if self.gate.mandate.autonomy != Autonomy::Gated {
            return self.pass_request(id, method, message);
        }
        // It may start a turn, and of a gated operator each turn is approved.
        let Some(name) = session else {
            let ticket = self.record_method(Sender::Client, method, message, Some("no_session"));
            let words = "a gated operator needs a session here";
            let error = RpcError::new(Code::PolicyDenied, words).with("code", json!("no_session"));
            return self.refuse_method(id, &error, ticket);
        };
        let key = format!("change {}", String::from_utf8_lossy(id));
        let call = Call::wish(&method.replacen('/', ".", 1), "other", without_envelope(params));
        let verdict = self.turn_verdict(&call);
        if !self.open_wish(id, &name, &key, call) {
            return;
        }
        if let Some(case) = self.case(&name, &key) {
            case.verdict = Some(verdict);
        }
        let origin = Origin::Change { line: message.bytes().to_vec().into(), id: id.into() };
        self.hear(&name, &key, origin, None);
    }

    /// Records a request of the client and passes it on.
    fn pass_request(&mut self, id: &[u8], method: &str, message: View<'_>) {
        if self.await_answer(id, message, Asked::Other) {
            let ticket = self.record_method(Sender::Client, method, message, None);
            let otherwise = Otherwise::Unbegun(unrecorded(id), id.into());
            self.send(Way::ToAgent, &[message.bytes()], Some(ticket), otherwise);
        }
    }

    fn refuse_method(&mut self, id: &[u8], error: &RpcError, after: Ticket) {
        let line = message::error(id, error);
        let otherwise = Otherwise::Say(Way::ToClient, unrecorded(id));
        self.send(Way::ToClient, &[&line], Some(after), otherwise);
    }

    /// Handles a notification of the client for which there is no rule: dropped unless it is listed.
    pub(super) fn other_notification(&mut self, method: &str, message: View<'_>) {
        let is_listed = self.gate.mandate.client_methods.iter().any(|listed| listed == method);
        let is_undeclared =
            |params: &Value| prompt_content::undeclared(params, self.gate.mandate.capabilities).is_some();
        // Nobody could be told that it needs an approval.
        let code = match is_listed {
            false => Some("method_not_listed"),
            true if self.gate.unmet.is_some() => Some("unmet-capability"),
            true if self.gate.mandate.autonomy == Autonomy::Gated => Some("needs_approval"),
            true if plain_params(message).is_none() => Some(UNCLEAR),
            true if !message.session().is_none_or(|name| self.is_open(&name)) => Some("unknown_session"),
            true if plain_params(message).is_some_and(|params| is_undeclared(&params)) => {
                Some("undeclared_capability")
            }
            true => None,
        };
        let ticket = self.record_method(Sender::Client, method, message, code);
        if code.is_none() {
            self.send(Way::ToAgent, &[message.bytes()], Some(ticket), Otherwise::Nothing);
        }
    }

    /// Returns `true` for a method of the client that the gate has no rule for and the manifest does not list.
    pub(super) fn is_unlisted_of_client(&self, method: &str) -> bool {
        !is_client_method(method) && !self.gate.mandate.client_methods.iter().any(|listed| listed == method)
    }

    /// Returns `true` if the client may begin something in this session now.
    fn is_open(&self, name: &str) -> bool {
        self.gate.sessions.get(name).is_some_and(|session| session.is_admitted && session.replays == 0)
    }

    /// Returns `true` if the agent may send a method that the gate has no rule for.
    fn lists_agent_method(&self, method: &str) -> bool {
        let listed = &self.gate.mandate.agent_methods;
        // Who may open a form may say that it is done.
        let method = if method == method::ELICITATION_COMPLETE { method::ELICITATION_CREATE } else { method };
        listed.iter().any(|listed| listed == method)
    }

    /// Refuses a request of the agent whose method is not listed. Returns `true` if it was refused.
    pub(super) fn is_unlisted_request(&mut self, id: &[u8], method: &str, message: View<'_>) -> bool {
        if is_agent_request(method) || self.lists_agent_method(method) {
            return false;
        }
        let ticket = self.record_method(Sender::Agent, method, message, Some("method_not_listed"));
        let error = RpcError::new(Code::MethodNotFound, UNDECLARED).with("code", json!("method_not_listed"));
        let line = message::error(id, &error);
        self.send(Way::ToAgent, &[&line], Some(ticket), Otherwise::Say(Way::ToAgent, unrecorded(id)));
        true
    }

    /// Passes a listed request of the agent on, unless history is being replayed.
    pub(super) fn other_agent_request(&mut self, id: &[u8], method: &str, message: View<'_>) {
        if self.is_replayed(message) {
            let name = message.session().unwrap_or_default();
            let event = self.parties(&name).refused("tool.refused", "replay", json!({"method": method}));
            let ticket = self.record(event);
            let error = RpcError::new(Code::PolicyDenied, REPLAYING).with("code", json!("replay"));
            let line = message::error(id, &error);
            let otherwise = Otherwise::Say(Way::ToAgent, unrecorded(id));
            return self.send(Way::ToAgent, &[&line], Some(ticket), otherwise);
        }
        if plain_params(message).is_none() {
            let ticket = self.record_method(Sender::Agent, method, message, Some(UNCLEAR));
            let line = message::error(id, &unclear());
            let otherwise = Otherwise::Say(Way::ToAgent, unrecorded(id));
            return self.send(Way::ToAgent, &[&line], Some(ticket), otherwise);
        }
        let served = Served::Shown { method: method.into() };
        if !self.has_room_to_serve(id, &served, message) {
            return;
        }
        self.gate.add_served(id, served);
        let ticket = self.record_method(Sender::Agent, method, message, None);
        let otherwise = Otherwise::Unserved(unrecorded(id), id.into());
        self.send(Way::ToClient, &[message.bytes()], Some(ticket), otherwise);
    }

    /// Handles a notification of the agent for which there is no rule: dropped unless it is listed. The log has each name
    /// once: some agents report progress this way, many times a second.
    pub(super) fn other_agent_notification(&mut self, method: &str, message: View<'_>) {
        if (method == method::CANCEL_REQUEST || self.lists_agent_method(method))
            && self.is_unfit_of_agent(method, message)
        {
            return;
        }
        if method == method::CANCEL_REQUEST {
            return self.cancelled_by_agent(message);
        }
        let code = match self.lists_agent_method(method) {
            false => Some("method_not_listed"),
            true => plain_params(message).is_none().then_some(UNCLEAR),
        };
        let ticket = self.record_name_once(method, message, code);
        if code.is_none() {
            self.send(Way::ToClient, &[message.bytes()], ticket, Otherwise::Nothing);
        }
    }

    /// The agent wants no answer any more. Of a request that waits for an approval the client knows nothing.
    fn cancelled_by_agent(&mut self, message: View<'_>) {
        let params = message.params().unwrap_or_default();
        let named = member(params, "requestId").ok().flatten().map(|place| &params[place]);
        let id = named.and_then(comparable_id);
        let is_it = |hearing: &Hearing| id.as_ref().is_some_and(|id| hearing.holds(id));
        let waiting =
            self.gate.hearings.iter().find(|(_, hearing)| is_it(hearing)).map(|(number, _)| *number);
        match waiting {
            Some(number) => {
                self.decide(number, Approved::Refused("the agent cancelled its request".to_owned()));
            }
            None => self.show(message),
        }
    }

    /// Records a notification of the agent, unless the log of this connection has its name with this outcome already.
    pub(super) fn record_name_once(
        &mut self,
        method: &str,
        message: View<'_>,
        refused: Option<&'static str>,
    ) -> Option<Ticket> {
        let is_first = match refused {
            Some(_) => self.is_first_of_name(&format!("refused {method}")),
            // Listed methods are few, so all of them are recorded.
            None => self.gate.recorded_names.insert(format!("allowed {method}").into()),
        };
        is_first.then(|| self.record_method(Sender::Agent, method, message, refused))
    }

    /// Returns `true` if the log of this connection does not have this name, and takes it down.
    pub(super) fn is_first_of_name(&mut self, name: &str) -> bool {
        let names = &mut self.gate.recorded_names;
        names.len() < MAX_RECORDED_NAMES && names.insert(name.chars().take(256).collect())
    }

    /// Refuses and records a message of the client that has a key of the protocol in another case. Returns `true` if it was
    /// refused.
    pub(super) fn is_unclear_of_client(&mut self, message: View<'_>) -> bool {
        if !is_unclear(message, Spelling::CaseAndSeparators) {
            return false;
        }
        let method = message.method().unwrap_or_default();
        let ticket = self.record_method(Sender::Client, &method, message, Some(UNCLEAR));
        if let Some(id) = message.id() {
            self.refuse_method(id, &misspelled(), ticket);
        }
        true
    }

    /// Does the same for the agent. An update like that may tell of what nobody has decided about, so it stops the turn.
    pub(super) fn is_unclear_of_agent(&mut self, message: View<'_>) -> bool {
        if !is_unclear(message, Spelling::Case) {
            return false;
        }
        let method = message.method().unwrap_or_default();
        match message.id() {
            Some(id) => {
                let ticket = self.record_method(Sender::Agent, &method, message, Some(UNCLEAR));
                let line = message::error(id, &misspelled());
                let otherwise = Otherwise::Say(Way::ToAgent, unrecorded(id));
                self.send(Way::ToAgent, &[&line], Some(ticket), otherwise);
            }
            None => {
                self.record_name_once(&method, message, Some(UNCLEAR));
            }
        }
        if let Some(name) = message.session().filter(|_| method == method::SESSION_UPDATE) {
            self.halt(&name, "it sent an update that can be read in two ways");
        }
        true
    }

    /// Refuses and records a message of the client in a form or direction that its method does not have. Returns `true` if
    /// it was refused.
    pub(super) fn is_misused_by_client(&mut self, method: &str, message: View<'_>) -> bool {
        let Some(code) = misuse(Sender::Client, form_of(message), method) else { return false };
        let ticket = self.record_method(Sender::Client, method, message, Some(code));
        if let Some(id) = message.id() {
            self.refuse_method(id, &misused(method, code), ticket);
        }
        true
    }

    /// Does the same for the agent. An update that comes as a request tells of what nobody has decided about, so it stops
    /// the turn.
    pub(super) fn is_misused_by_agent(&mut self, method: &str, message: View<'_>) -> bool {
        let Some(code) = misuse(Sender::Agent, form_of(message), method) else { return false };
        let Some(id) = message.id() else {
            self.record_name_once(method, message, Some(code));
            return true;
        };
        let ticket = self.record_method(Sender::Agent, method, message, Some(code));
        let line = message::error(id, &misused(method, code));
        self.send(Way::ToAgent, &[&line], Some(ticket), Otherwise::Say(Way::ToAgent, unrecorded(id)));
        if let Some(name) = message.session().filter(|_| method == method::SESSION_UPDATE) {
            self.halt(&name, "it sent an update as a request");
        }
        true
    }

    /// Records a method for which there is no other event: passed on, or refused with this code. The parameters are known
    /// by a digest, as those of a prompt are.
    pub(super) fn record_method(
        &mut self,
        sender: Sender,
        method: &str,
        message: View<'_>,
        refused: Option<&'static str>,
    ) -> Ticket {
        let params = message.params().unwrap_or_default();
        let method: String = method.chars().take(128).collect();
        let input = json!({"method": method, "bytes": params.len(), "sha256": digest(params)});
        let session = message.session().unwrap_or_default();
        let event = self.parties(&session).method(sender, refused, input);
        self.record(event)
    }
}

/// The parameters of a listed method, if every reader finds the same session in them, or none: an object in which no key comes
/// twice and whose `sessionId` is a text, or no parameters at all.
fn plain_params(message: View<'_>) -> Option<Value> {
    if message.params().is_none() {
        return Some(json!({}));
    }
    let params = unique_keys::read(message.params())?;
    let session = params.as_object()?.get("sessionId");
    session.is_none_or(|session| session.is_string() || session.is_null()).then_some(params)
}

/// Returns `true` if a request or a notification has a key of the protocol in another case.
fn is_unclear(message: View<'_>, spelling: Spelling) -> bool {
    matches!(message.kind(), Kind::Request | Kind::Notification)
        && message.params().is_some_and(|params| has_lookalike(params, spelling))
}

fn misspelled() -> RpcError {
    let words = "params have a key of the protocol in another case";
    RpcError::new(Code::InvalidParams, words).with("code", json!(UNCLEAR))
}

/// The error of a request that [`plain_params`] finds unclear.
fn unclear() -> RpcError {
    let words = "params must be an object with a plain `sessionId`";
    RpcError::new(Code::InvalidParams, words).with("code", json!(UNCLEAR))
}

fn form_of(message: View<'_>) -> method::Kind {
    match message.kind() {
        Kind::Notification => method::Kind::Notification,
        _ => method::Kind::Request,
    }
}

/// The error of a request that [`misuse`] is about.
fn misused(method: &str, code: &'static str) -> RpcError {
    let words = match code {
        "wrong_form" => "this method is a notification",
        _ if is_envelope(method) => "only a conductor and its proxies say this",
        _ => "this method goes the other way",
    };
    RpcError::new(Code::InvalidRequest, words).with("code", json!(code))
}

/// Parameters without what every message has: the rest is what somebody approves.
pub(super) fn without_envelope(mut params: Value) -> Value {
    if let Some(members) = params.as_object_mut() {
        members.remove("sessionId");
        members.remove("_meta");
    }
    params
}
