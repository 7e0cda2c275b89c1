//! Methods without a rule of their own. They are refused unless the manifest lists them, and recorded either
//! way.
//!
//! A method that the gate does not know may start a turn, redirect the agent to another endpoint, or ask the
//! user for a secret. Passing it on would bypass every rule. Listing a known method does not change how the
//! gate handles it.

use narrows_acp::method::{self, Side};
use narrows_wire::{Code, Kind, RpcError, View, member, message};
use serde_json::{Value, json};

use super::api::{AuditSeq, GateOutput};
use super::approval::PendingApproval;
use super::outbox::{GateDirection, OnAuditFailure};
use super::session::{ApprovalOrigin, ClientRequestKind, PendingAtClient};
use super::session_open::{UNDECLARED, audit_unavailable};
use super::{GateCtx, REPLAYING, prompt_content};
use crate::audit_events::{ApprovalOutcome, MessageSender, secret_safe_digest};
use crate::call::Call;
use crate::config::Autonomy;
use crate::lookalike_keys::{LookalikeRule, has_lookalike};
use crate::request_ids::comparable_id;
use crate::unique_keys;

const UNLISTED: &str = "the manifest does not list this method";

/// Error code for a request of a listed method whose params are ambiguous about the session.
pub(super) const UNCLEAR: &str = "ambiguous_params";

/// Maximum number of distinct agent notifications that are recorded per connection.
const MAX_RECORDED_NAMES: usize = 256;

/// Returns `true` for client requests that log in, log out or stop a call. These requests are passed on and
/// recorded.
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

/// Returns an error code if the protocol has this method only in the other direction or form. No rule handles
/// such a message, so it would pass without a decision. Returns `None` for unknown methods.
fn misuse_code(sender: MessageSender, form: method::Kind, name: &str) -> Option<&'static str> {
    let receiver = match sender {
        MessageSender::Client => Side::Agent,
        MessageSender::Agent => Side::Client,
    };
    if is_envelope(name) {
        return Some("wrong_direction");
    }
    let mut rows = method::METHODS.iter().filter(|row| row.name == name).peekable();
    rows.peek()?;
    let Some(row) = rows.find(|row| row.is_received_by(receiver)) else { return Some("wrong_direction") };
    let is_tolerated = match sender {
        // Some clients send this notification as a request. It can only stop work.
        MessageSender::Client => name == method::SESSION_CANCEL,
        // This method carries both requests and notifications of MCP.
        MessageSender::Agent => name == method::MCP_MESSAGE,
    };
    (row.kind != form && !is_tolerated).then_some("wrong_form")
}

/// Returns `true` for methods between a conductor and its proxies. The client and the agent of a gate may not
/// use them.
fn is_envelope(name: &str) -> bool {
    matches!(name, method::PROXY_INITIALIZE | method::PROXY_SUCCESSOR)
}

/// Returns `true` for client notifications that are passed on unchanged.
pub(super) fn is_plain_notification(method: &str) -> bool {
    matches!(method, method::SESSION_CANCEL | method::CANCEL_REQUEST | method::MCP_MESSAGE)
}

/// Returns `true` for client methods with a rule of their own.
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

/// Returns `true` for agent requests that have a rule of their own.
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

impl<O: GateOutput> GateCtx<'_, O> {
    /// Handles a client request without a rule of its own.
    pub(super) fn handle_other_client_request(&mut self, id: &[u8], method: &str, message: View<'_>) {
        if is_recorded_request(method) {
            return self.record_and_forward(id, method, message);
        }
        if !self.gate.config.client_methods.iter().any(|listed| listed == method) {
            let seq = self.record_method(MessageSender::Client, method, message, Some("method_not_listed"));
            let error = RpcError::new(Code::PolicyDenied, UNLISTED).with("code", json!("method_not_listed"));
            return self.refuse_method(id, &error, seq);
        }
        let Some(params) = plain_params(message) else {
            let seq = self.record_method(MessageSender::Client, method, message, Some(UNCLEAR));
            return self.refuse_method(id, &unclear_params_error(), seq);
        };
        let session = match message.session() {
            Some(_) => match self.require_open_session(id, message) {
                Some(name) => Some(name),
                None => return,
            },
            None => None,
        };
        if let Some(kind) = prompt_content::undeclared_block(&params, self.gate.config.capabilities) {
            return self.refuse_block(id, &session.unwrap_or_default(), kind);
        }
        if self.gate.config.autonomy != Autonomy::Gated {
            return self.record_and_forward(id, method, message);
        }
        // The listed method may start a turn, and each turn of a gated operator needs an approval, which
        // needs a session.
        let Some(name) = session else {
            let seq = self.record_method(MessageSender::Client, method, message, Some("no_session"));
            let words = "method needs a session: the operator is gated";
            let error = RpcError::new(Code::PolicyDenied, words).with("code", json!("no_session"));
            return self.refuse_method(id, &error, seq);
        };
        let key = format!("change {}", String::from_utf8_lossy(id));
        let call = Call::session_change(&method.replacen('/', ".", 1), "other", without_envelope(params));
        let decision = self.turn_decision(&call);
        if !self.add_client_call(id, &name, &key, call) {
            return;
        }
        if let Some(record) = self.call_record(&name, &key) {
            record.decision = Some(decision);
        }
        let origin = ApprovalOrigin::SessionConfig { line: message.bytes().to_vec().into(), id: id.into() };
        self.request_approval(&name, &key, origin, None);
    }

    fn record_and_forward(&mut self, id: &[u8], method: &str, message: View<'_>) {
        if self.track_client_request(id, message, ClientRequestKind::Other) {
            let seq = self.record_method(MessageSender::Client, method, message, None);
            let on_failure = OnAuditFailure::FailClientRequest(audit_unavailable(id), id.into());
            self.send(GateDirection::ToAgent, &[message.bytes()], Some(seq), on_failure);
        }
    }

    fn refuse_method(&mut self, id: &[u8], error: &RpcError, after: AuditSeq) {
        let line = message::error(id, error);
        let on_failure = OnAuditFailure::SendInstead(GateDirection::ToClient, audit_unavailable(id));
        self.send(GateDirection::ToClient, &[&line], Some(after), on_failure);
    }

    /// Handles a client notification without a rule. It is dropped unless the manifest lists it.
    pub(super) fn handle_other_client_notification(&mut self, method: &str, message: View<'_>) {
        let is_listed = self.gate.config.client_methods.iter().any(|listed| listed == method);
        let is_undeclared = |params: &Value| {
            prompt_content::undeclared_block(params, self.gate.config.capabilities).is_some()
        };
        // A notification is not answered, so it cannot wait for an approval.
        let code = match is_listed {
            false => Some("method_not_listed"),
            true if self.gate.unmet_capabilities.is_some() => Some("unmet-capability"),
            true if self.gate.config.autonomy == Autonomy::Gated => Some("needs_approval"),
            true if plain_params(message).is_none() => Some(UNCLEAR),
            true if !message.session().is_none_or(|name| self.accepts_client_work(&name)) => {
                Some("unknown_session")
            }
            true if plain_params(message).is_some_and(|params| is_undeclared(&params)) => {
                Some("undeclared_capability")
            }
            true => None,
        };
        let seq = self.record_method(MessageSender::Client, method, message, code);
        if code.is_none() {
            self.send(GateDirection::ToAgent, &[message.bytes()], Some(seq), OnAuditFailure::Drop);
        }
    }

    /// Returns `true` for a client method without a rule that the manifest does not list.
    pub(super) fn is_unlisted_client_method(&self, method: &str) -> bool {
        !is_client_method(method) && !self.gate.config.client_methods.iter().any(|listed| listed == method)
    }

    /// Returns `true` if the client may use the session, and its history is not being replayed.
    fn accepts_client_work(&self, name: &str) -> bool {
        self.gate.sessions.get(name).is_some_and(|session| session.is_admitted && session.replays == 0)
    }

    fn lists_agent_method(&self, method: &str) -> bool {
        let listed = &self.gate.config.agent_methods;
        // If the manifest lists the request to open a form, the notification about its end is allowed too.
        let method = if method == method::ELICITATION_COMPLETE { method::ELICITATION_CREATE } else { method };
        listed.iter().any(|listed| listed == method)
    }

    pub(super) fn refuse_unlisted_agent_request(
        &mut self,
        id: &[u8],
        method: &str,
        message: View<'_>,
    ) -> bool {
        if is_agent_request(method) || self.lists_agent_method(method) {
            return false;
        }
        let seq = self.record_method(MessageSender::Agent, method, message, Some("method_not_listed"));
        let error = RpcError::new(Code::MethodNotFound, UNDECLARED).with("code", json!("method_not_listed"));
        let line = message::error(id, &error);
        self.send(
            GateDirection::ToAgent,
            &[&line],
            Some(seq),
            OnAuditFailure::SendInstead(GateDirection::ToAgent, audit_unavailable(id)),
        );
        true
    }

    pub(super) fn handle_other_agent_request(&mut self, id: &[u8], method: &str, message: View<'_>) {
        if self.is_replayed(message) {
            let name = message.session().unwrap_or_default();
            let event = self.parties(&name).refused("tool.refused", "replay", json!({"method": method}));
            let seq = self.record(event);
            let error = RpcError::new(Code::PolicyDenied, REPLAYING).with("code", json!("replay"));
            let line = message::error(id, &error);
            let on_failure = OnAuditFailure::SendInstead(GateDirection::ToAgent, audit_unavailable(id));
            return self.send(GateDirection::ToAgent, &[&line], Some(seq), on_failure);
        }
        if plain_params(message).is_none() {
            let seq = self.record_method(MessageSender::Agent, method, message, Some(UNCLEAR));
            let line = message::error(id, &unclear_params_error());
            let on_failure = OnAuditFailure::SendInstead(GateDirection::ToAgent, audit_unavailable(id));
            return self.send(GateDirection::ToAgent, &[&line], Some(seq), on_failure);
        }
        let served = PendingAtClient::PassThrough { method: method.into() };
        if !self.require_room_for_request(id, &served, message) {
            return;
        }
        self.gate.track_agent_request(id, served);
        let seq = self.record_method(MessageSender::Agent, method, message, None);
        let on_failure = OnAuditFailure::FailAgentRequest(audit_unavailable(id), id.into());
        self.send(GateDirection::ToClient, &[message.bytes()], Some(seq), on_failure);
    }

    /// Handles an agent notification without a rule. The notification is dropped unless the manifest lists
    /// its method. Each method is recorded once, because some agents send progress this way, many times a
    /// second.
    pub(super) fn handle_other_agent_notification(&mut self, method: &str, message: View<'_>) {
        if (method == method::CANCEL_REQUEST || self.lists_agent_method(method))
            && self.refuse_unknown_member_of_agent(method, message)
        {
            return;
        }
        if method == method::CANCEL_REQUEST {
            return self.handle_agent_cancel(message);
        }
        let code = match self.lists_agent_method(method) {
            false => Some("method_not_listed"),
            true => plain_params(message).is_none().then_some(UNCLEAR),
        };
        let seq = self.record_name_once(method, message, code);
        if code.is_none() {
            self.send(GateDirection::ToClient, &[message.bytes()], seq, OnAuditFailure::Drop);
        }
    }

    /// Handles a cancellation by the agent. The client gets no cancellation of a request that waits for an
    /// approval, because it never got the request.
    fn handle_agent_cancel(&mut self, message: View<'_>) {
        let params = message.params().unwrap_or_default();
        let named = member(params, "requestId").ok().flatten().map(|place| &params[place]);
        let id = named.and_then(comparable_id);
        let is_it = |approval: &PendingApproval| id.as_ref().is_some_and(|id| approval.holds_request(id));
        let waiting =
            self.gate.approvals.iter().find(|(_, approval)| is_it(approval)).map(|(number, _)| *number);
        match waiting {
            Some(number) => {
                self.settle_approval(
                    number,
                    ApprovalOutcome::Refused("the agent cancelled its request".to_owned()),
                );
            }
            None => self.forward_to_client(message),
        }
    }

    /// Records an agent notification, unless the connection has already recorded this method with the same
    /// result.
    pub(super) fn record_name_once(
        &mut self,
        method: &str,
        message: View<'_>,
        refused: Option<&'static str>,
    ) -> Option<AuditSeq> {
        let is_first = match refused {
            Some(_) => self.insert_recorded_name(&format!("refused {method}")),
            // There is no limit for listed methods, because a manifest lists few.
            None => self.gate.recorded_names.insert(format!("allowed {method}").into()),
        };
        is_first.then(|| self.record_method(MessageSender::Agent, method, message, refused))
    }

    /// Adds a name to the recorded ones. Returns `true` if the name is new and the limit is not reached.
    pub(super) fn insert_recorded_name(&mut self, name: &str) -> bool {
        let names = &mut self.gate.recorded_names;
        names.len() < MAX_RECORDED_NAMES && names.insert(name.chars().take(256).collect())
    }

    /// Refuses a client message with a lookalike key, and records the refusal. Returns `true` if it was
    /// refused.
    pub(super) fn refuse_unclear_client_message(&mut self, message: View<'_>) -> bool {
        if !is_unclear(message, LookalikeRule::CaseAndSeparators) {
            return false;
        }
        let method = message.method().unwrap_or_default();
        let seq = self.record_method(MessageSender::Client, &method, message, Some(UNCLEAR));
        if let Some(id) = message.id() {
            self.refuse_method(id, &lookalike_error(), seq);
        }
        true
    }

    /// Refuses an agent message with a lookalike key, and records the refusal. A refused update stops the
    /// turn, because it may report undecided work.
    pub(super) fn refuse_unclear_agent_message(&mut self, message: View<'_>) -> bool {
        if !is_unclear(message, LookalikeRule::Case) {
            return false;
        }
        let method = message.method().unwrap_or_default();
        match message.id() {
            Some(id) => {
                let seq = self.record_method(MessageSender::Agent, &method, message, Some(UNCLEAR));
                let line = message::error(id, &lookalike_error());
                let on_failure = OnAuditFailure::SendInstead(GateDirection::ToAgent, audit_unavailable(id));
                self.send(GateDirection::ToAgent, &[&line], Some(seq), on_failure);
            }
            None => {
                self.record_name_once(&method, message, Some(UNCLEAR));
            }
        }
        if let Some(name) = message.session().filter(|_| method == method::SESSION_UPDATE) {
            self.halt_turn(&name, "it sent an ambiguous update");
        }
        true
    }

    /// Refuses a client message whose form or direction does not fit its method, and records the refusal.
    /// Returns `true` if it was refused.
    pub(super) fn refuse_misused_client_message(&mut self, method: &str, message: View<'_>) -> bool {
        let Some(code) = misuse_code(MessageSender::Client, form_of(message), method) else { return false };
        let seq = self.record_method(MessageSender::Client, method, message, Some(code));
        if let Some(id) = message.id() {
            self.refuse_method(id, &misuse_error(method, code), seq);
        }
        true
    }

    /// Refuses an agent message whose form or direction does not fit its method, and records the refusal. An
    /// update sent as a request stops the turn, because it may report undecided work.
    pub(super) fn refuse_misused_agent_message(&mut self, method: &str, message: View<'_>) -> bool {
        let Some(code) = misuse_code(MessageSender::Agent, form_of(message), method) else { return false };
        let Some(id) = message.id() else {
            self.record_name_once(method, message, Some(code));
            return true;
        };
        let seq = self.record_method(MessageSender::Agent, method, message, Some(code));
        let line = message::error(id, &misuse_error(method, code));
        self.send(
            GateDirection::ToAgent,
            &[&line],
            Some(seq),
            OnAuditFailure::SendInstead(GateDirection::ToAgent, audit_unavailable(id)),
        );
        if let Some(name) = message.session().filter(|_| method == method::SESSION_UPDATE) {
            self.halt_turn(&name, "it sent an update as a request");
        }
        true
    }

    /// Records a message that causes no other audit event. `refused` is the error code of a refused message.
    /// The params are recorded by length and digest.
    pub(super) fn record_method(
        &mut self,
        sender: MessageSender,
        method: &str,
        message: View<'_>,
        refused: Option<&'static str>,
    ) -> AuditSeq {
        let params = message.params().unwrap_or_default();
        let method: String = method.chars().take(128).collect();
        let input = json!({"method": method, "bytes": params.len(), "sha256": secret_safe_digest(params)});
        let session = message.session().unwrap_or_default();
        let event = self.parties(&session).method(sender, refused, input);
        self.record(event)
    }
}

/// Returns the params of a listed method if every JSON reader finds the same session in them: no params, or
/// an object without duplicate keys whose `sessionId` is a string or missing.
fn plain_params(message: View<'_>) -> Option<Value> {
    if message.params().is_none() {
        return Some(json!({}));
    }
    let params = unique_keys::read(message.params())?;
    let session = params.as_object()?.get("sessionId");
    session.is_none_or(|session| session.is_string() || session.is_null()).then_some(params)
}

fn is_unclear(message: View<'_>, rule: LookalikeRule) -> bool {
    matches!(message.kind(), Kind::Request | Kind::Notification)
        && message.params().is_some_and(|params| has_lookalike(params, rule))
}

fn lookalike_error() -> RpcError {
    let words = "params contain a lookalike of a protocol key";
    RpcError::new(Code::InvalidParams, words).with("code", json!(UNCLEAR))
}

fn unclear_params_error() -> RpcError {
    let words = "params must be an object with a plain `sessionId`";
    RpcError::new(Code::InvalidParams, words).with("code", json!(UNCLEAR))
}

fn form_of(message: View<'_>) -> method::Kind {
    match message.kind() {
        Kind::Notification => method::Kind::Notification,
        _ => method::Kind::Request,
    }
}

fn misuse_error(method: &str, code: &'static str) -> RpcError {
    let words = match code {
        "wrong_form" => "this method is a notification",
        _ if is_envelope(method) => "method reserved for conductors and proxies",
        _ => "method not valid in this direction",
    };
    RpcError::new(Code::InvalidRequest, words).with("code", json!(code))
}

/// Returns params without `sessionId` and `_meta`, which every message may have. An approver sees the rest.
pub(super) fn without_envelope(mut params: Value) -> Value {
    if let Some(members) = params.as_object_mut() {
        members.remove("sessionId");
        members.remove("_meta");
    }
    params
}
