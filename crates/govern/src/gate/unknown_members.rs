//! Removes or refuses message members that the protocol does not have.
//!
//! The gate cannot judge an unknown member, and a receiver may act on it. So a message is passed on only with
//! the members of its protocol version, each with its type. A request with an unknown member is refused, and
//! a notification is dropped. Updates, answers and client capabilities only lose their unknown members, so
//! that newer agents and clients still work.

use std::ops::Range;

use narrows_acp::method::{self, Side};
use narrows_acp::shape::{self, Fit, Shape};
use narrows_acp::version::Version;
use narrows_wire::{Code, Effects, Kind, RpcError, View, member, members, message};
use serde_json::json;

use super::GateCtx;
use super::api::GateOutput;
use super::client_services::ambiguous_params;
use super::method_rules::UNCLEAR;
use super::outbox::{GateDirection, OnAuditFailure};
use super::session::PendingAtClient;
use super::session_open::audit_unavailable;
use crate::audit_events::MessageSender;
use crate::unique_keys;

const UNKNOWN_MEMBER: &str = "unknown_member";

const ENVELOPE: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];

/// Maximum number of removed members of one message that are recorded by name.
const MAX_RECORDED_MEMBERS: usize = 16;
const MAX_RECORDED_CHARS: usize = 64;

const VERSION: &str = "protocolVersion";

impl<O: GateOutput> GateCtx<'_, O> {
    fn version(&self) -> Version {
        if self.gate.is_v2 { Version::V2 } else { Version::V1 }
    }

    /// Returns the message without members that JSON-RPC does not have, and records the removed names. A
    /// response with both a result and an error becomes an error, because readers would choose differently.
    /// Returns `None` if no member was removed.
    pub(super) fn strip_envelope(&mut self, sender: MessageSender, message: View<'_>) -> Option<Vec<u8>> {
        let envelope = message.envelope();
        if matches!(message.kind(), Kind::Batch | Kind::Invalid(_)) {
            return None;
        }
        if message.kind() == Kind::Response && envelope.result.is_some() && envelope.error.is_some() {
            return Some(invalid_answer_error(message));
        }
        let has_more =
            envelope.has_other_members || envelope.top_session.is_some() || envelope.pool.is_some();
        if !has_more {
            return None;
        }
        let bytes = message.bytes();
        let (mut kept, mut names) = (Vec::new(), Vec::new());
        for (key, value) in members(bytes) {
            let name = serde_json::from_slice::<String>(&bytes[key.clone()]).unwrap_or_default();
            if ENVELOPE.contains(&name.as_str()) {
                kept.push(&bytes[key.start..value.end]);
            } else if names.len() < MAX_RECORDED_MEMBERS {
                names.push(name.chars().take(MAX_RECORDED_CHARS).collect());
            }
        }
        let method = message.method().unwrap_or_default();
        self.record_members_once(sender, &method, &names, message);
        Some([b"{", &*kept.join(&b","[..]), b"}"].concat())
    }

    /// Refuses a client message with an unknown member, and records the refusal. Returns `true` if it was
    /// refused.
    pub(super) fn refuse_unknown_member_of_client(&mut self, method: &str, message: View<'_>) -> bool {
        // Unknown capabilities in `initialize` are removed, and do not refuse the request. An unlisted method
        // is refused by its own rule.
        if method == method::INITIALIZE || self.is_unlisted_client_method(method) {
            return false;
        }
        let Some(name) = self.unknown_member(Side::Agent, method, message) else { return false };
        self.refuse_member(MessageSender::Client, GateDirection::ToClient, method, &name, message);
        true
    }

    /// Refuses an agent message with an unknown member, and records the refusal. Updates are handled by
    /// [`Self::strip_update`] instead.
    pub(super) fn refuse_unknown_member_of_agent(&mut self, method: &str, message: View<'_>) -> bool {
        let Some(name) = self.unknown_member(Side::Client, method, message) else { return false };
        if message.id().is_none() {
            self.record_members_once(MessageSender::Agent, method, &[name], message);
        } else {
            self.refuse_member(MessageSender::Agent, GateDirection::ToAgent, method, &name, message);
        }
        true
    }

    /// Returns the name of the first member that the method does not have, or has with another type.
    fn unknown_member(&self, receiver: Side, method: &str, message: View<'_>) -> Option<String> {
        let shape = shape::params(self.version(), receiver, method)?;
        match shape.fit(message.params()?) {
            Fit::Whole => None,
            Fit::Part { names, .. } => Some(names.into_iter().next().unwrap_or_default()),
            Fit::Nothing => Some("params".to_owned()),
        }
    }

    fn refuse_member(
        &mut self,
        sender: MessageSender,
        back: GateDirection,
        method: &str,
        name: &str,
        message: View<'_>,
    ) {
        let session = message.session().unwrap_or_default();
        let input = json!({"method": method, "member": name});
        let (code, error) = match unique_keys::read(message.params()) {
            Some(_) => (UNKNOWN_MEMBER, unknown_member_error(name)),
            None => (UNCLEAR, ambiguous_params().with("code", json!(UNCLEAR))),
        };
        let event = self.parties(&session).method(sender, Some(code), input);
        let seq = self.record(event);
        if let Some(id) = message.id() {
            let line = message::error(id, &error);
            self.send(back, &[&line], Some(seq), OnAuditFailure::SendInstead(back, audit_unavailable(id)));
        }
    }

    /// Returns `initialize` without unknown members, and records the removed names. Returns `None` if the
    /// request was refused: its params are not an object, or their version is ambiguous.
    pub(super) fn strip_initialize(&mut self, message: View<'_>) -> Option<Vec<u8>> {
        let raw = message.params().unwrap_or(b"{}");
        let shape = shape::params(self.version(), Side::Agent, method::INITIALIZE)?;
        let fit = if has_plain_version(raw) { shape.fit(raw) } else { Fit::Nothing };
        match fit {
            Fit::Whole => Some(raw.to_vec()),
            Fit::Part { text, names } => {
                let event =
                    self.parties("").members_removed(MessageSender::Client, method::INITIALIZE, &names);
                self.record(event);
                Some(text)
            }
            Fit::Nothing => {
                let name = if has_plain_version(raw) { "params" } else { VERSION };
                self.refuse_member(
                    MessageSender::Client,
                    GateDirection::ToClient,
                    method::INITIALIZE,
                    name,
                    message,
                );
                None
            }
        }
    }

    /// Returns an update without its unknown members. Returns `None` if no member was removed.
    ///
    /// The gate judges the update with all members. The client gets only those that the protocol has.
    pub(super) fn strip_update(&mut self, message: View<'_>) -> Option<Vec<u8>> {
        let shape = shape::params(self.version(), Side::Client, method::SESSION_UPDATE)?;
        let params = message.params().filter(|_| message.kind() == Kind::Notification)?;
        let (text, names) = match shape.fit(params) {
            Fit::Whole => return None,
            Fit::Part { text, names } => (text, names),
            Fit::Nothing => (b"{}".to_vec(), vec!["params".to_owned()]),
        };
        self.record_members_once(MessageSender::Agent, method::SESSION_UPDATE, &names, message);
        Some(replace_range(message, message.envelope().params.range(), &text))
    }

    /// Returns an answer of the agent without unknown members, and records the removed names. An answer of
    /// the wrong form becomes an error. Returns `None` if nothing was removed.
    pub(super) fn strip_answer(&mut self, method: &str, message: View<'_>) -> Option<Vec<u8>> {
        let result = message.result()?;
        let mut version = self.version();
        if method == method::INITIALIZE {
            if !has_plain_version(result) {
                return Some(invalid_answer_error(message));
            }
            let is_v2 = member(result, VERSION).ok().flatten().is_some_and(|place| &result[place] == b"2");
            version = if is_v2 { Version::V2 } else { Version::V1 };
        }
        let shape = shape::result(version, Side::Agent, method)?;
        self.strip_result(MessageSender::Agent, method, shape, message)
    }

    /// Returns an answer of the client without unknown members, as [`Self::strip_answer`] does for the agent.
    pub(super) fn strip_client_answer(
        &mut self,
        served: &PendingAtClient,
        message: View<'_>,
    ) -> Option<Vec<u8>> {
        let method = match served {
            PendingAtClient::Service { method, .. } | PendingAtClient::PassThrough { method } => {
                method.clone()
            }
            PendingAtClient::TerminalWait { .. } => method::TERMINAL_WAIT_FOR_EXIT.into(),
            PendingAtClient::McpConnect { .. } => method::MCP_CONNECT.into(),
            // The gate handles answers to approvals itself. The lists of MCP servers are defined by MCP, not
            // by ACP.
            PendingAtClient::Approval(_)
            | PendingAtClient::AlreadyAnswered { .. }
            | PendingAtClient::McpList { .. } => return None,
        };
        let shape = shape::result(self.version(), Side::Client, &method)?;
        self.strip_result(MessageSender::Client, &method, shape, message)
    }

    fn strip_result(
        &mut self,
        sender: MessageSender,
        method: &str,
        shape: &'static Shape,
        message: View<'_>,
    ) -> Option<Vec<u8>> {
        match shape.fit(message.result()?) {
            Fit::Whole => None,
            Fit::Part { text, names } => {
                self.record_members_once(sender, method, &names, message);
                Some(replace_range(message, message.envelope().result.range(), &text))
            }
            Fit::Nothing => {
                self.record_members_once(sender, method, &["result".to_owned()], message);
                Some(invalid_answer_error(message))
            }
        }
    }

    /// Records the names of removed members once per connection, because an agent that is newer than the gate
    /// sends them in every message.
    fn record_members_once(
        &mut self,
        sender: MessageSender,
        method: &str,
        names: &[String],
        message: View<'_>,
    ) {
        let key = format!("{method} {}", names.join(" "));
        if self.insert_recorded_name(&key) {
            let session = message.session().unwrap_or_default();
            let event = self.parties(&session).members_removed(sender, method, names);
            self.record(event);
        }
    }
}

/// Returns `true` if every JSON reader finds the same `protocolVersion`: an integer, `null`, or no such
/// member.
fn has_plain_version(object: &[u8]) -> bool {
    match member(object, VERSION) {
        Ok(Some(place)) => {
            let value = &object[place];
            value == b"null" || value.iter().all(u8::is_ascii_digit)
        }
        Ok(None) => true,
        Err(_) => false,
    }
}

fn replace_range(message: View<'_>, place: Range<usize>, text: &[u8]) -> Vec<u8> {
    let bytes = message.bytes();
    [&bytes[..place.start], text, &bytes[place.end..]].concat()
}

/// Returns the error that replaces an answer whose result has the wrong form.
fn invalid_answer_error(message: View<'_>) -> Vec<u8> {
    let error = RpcError::new(Code::Internal, "the result does not fit its method");
    let error = error.effects(Effects::Possible).with("code", json!("unfit_result"));
    message::error(message.id().unwrap_or(b"null"), &error).to_vec()
}

fn unknown_member_error(name: &str) -> RpcError {
    let error = RpcError::new(Code::InvalidParams, "unknown or mistyped member in params");
    error.with("code", json!(UNKNOWN_MEMBER)).with("member", json!(name))
}
