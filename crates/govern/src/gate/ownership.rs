//! Session ownership. A client cannot distinguish the session of another identity from a missing one.

use std::collections::VecDeque;
use std::io;

use narrows_wire::{Code, Effects, RpcError, View, message};
use serde_json::{Value, json};

use super::GateCtx;
use super::api::GateOutput;
use super::client_services::{ambiguous_params, with_text_member};
use super::outbox::{GateDirection, OnAuditFailure};
use super::session::ClientRequestKind;
use super::session_open::{audit_unavailable, parse_object};
use crate::unique_keys;

/// Maximum length of a session name. Each name stays in memory and on disk while its session can be resumed.
const MAX_SESSION_NAME_BYTES: usize = 1024;

/// Maximum number of stored session list cursors per connection. The oldest cursors are dropped.
const MAX_CURSORS: usize = 64;

/// Maximum length of a cursor of the agent. A list with a longer cursor ends without a cursor for its next
/// page.
const MAX_CURSOR_BYTES: usize = 4096;

/// Session list cursors of the agent. A cursor may contain a session id of another identity, so the client
/// gets a generated name for each cursor, and can use no other cursors.
#[derive(Debug, Default)]
pub(super) struct Cursors {
    serial: u64,
    /// Generated names, each with the agent's cursor.
    known: VecDeque<(String, String)>,
}

impl Cursors {
    fn issue(&mut self, cursor: &str) -> Option<String> {
        if cursor.len() > MAX_CURSOR_BYTES {
            return None;
        }
        if self.known.len() >= MAX_CURSORS {
            self.known.pop_front();
        }
        self.serial += 1;
        let name = format!("page-{}", self.serial);
        self.known.push_back((name.clone(), cursor.to_owned()));
        Some(name)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.known.iter().find(|(known, _)| known == name).map(|(_, cursor)| cursor.as_str())
    }
}

impl<O: GateOutput> GateCtx<'_, O> {
    pub(super) fn handle_list(&mut self, id: &[u8], message: View<'_>) {
        let Some(params) = unique_keys::read(message.params()) else {
            return self.refuse_client(id, &ambiguous_params());
        };
        let named = params.get("cursor").filter(|named| self.gate.owners.is_some() && !named.is_null());
        let known = named.and_then(Value::as_str).and_then(|name| self.gate.cursors.get(name));
        let line = known.and_then(|cursor| with_text_member(message, "cursor", cursor));
        if named.is_some() && line.is_none() {
            let error =
                RpcError::new(Code::InvalidParams, "unknown cursor").with("code", json!("unknown_cursor"));
            return self.refuse_client(id, &error);
        }
        if self.track_client_request(id, message, ClientRequestKind::List) {
            self.forward_to_agent(line.as_deref().map_or(message, View::parse));
        }
    }

    /// Returns `true` if the message names no session, or one that the client owns.
    pub(super) fn may_access_session(&self, message: View<'_>) -> bool {
        if self.gate.owners.is_none() {
            return true;
        }
        message.session().is_none_or(|name| self.is_own_session(&name))
    }

    fn is_own_session(&self, name: &str) -> bool {
        let Some(owners) = &self.gate.owners else { return true };
        // A child session belongs to the owner of its parent.
        self.gate.sessions.get(name).is_some_and(|session| session.is_admitted || session.lineage.is_some())
            || owners.is_owner(&self.gate.principal.id, name)
    }

    /// Answers that a session does not exist, whether it exists or not.
    pub(super) fn refuse_unknown_session(&mut self, id: &[u8], method: &str, message: View<'_>) {
        let name = message.session().unwrap_or_default();
        let event =
            self.parties(&name).refused("session.refused", "unknown_session", json!({"method": method}));
        let seq = self.record(event);
        let error = RpcError::new(Code::NotFound, format!("session {name:?} not found"))
            .with("sessionId", json!(name));
        let line = message::error(id, &error);
        self.send(
            GateDirection::ToClient,
            &[&line],
            Some(seq),
            OnAuditFailure::SendInstead(GateDirection::ToClient, audit_unavailable(id)),
        );
    }

    pub(super) fn store_owner(&self, name: &str) -> io::Result<()> {
        self.gate.owners.as_ref().map_or(Ok(()), |owners| owners.set_owner(&self.gate.principal.id, name))
    }

    /// Closes a new session whose id is too long. Returns `true` if the session was closed.
    pub(super) fn refuse_long_name(&mut self, id: &[u8], name: &str) -> bool {
        let is_long = name.len() > MAX_SESSION_NAME_BYTES;
        if is_long {
            self.close_unusable_session(name, "its id is too long");
            let words = "the agent's session id is too long";
            let error = RpcError::new(Code::Internal, words).effects(Effects::Possible);
            let line = message::error(id, &error);
            self.send(GateDirection::ToClient, &[&line], None, OnAuditFailure::Drop);
        }
        is_long
    }

    /// Closes a new session whose owner could not be stored. A session without an owner could never be opened
    /// again.
    pub(super) fn handle_owner_failure(&mut self, id: &[u8], name: &str, error: &io::Error) {
        self.close_unusable_session(name, "its owner could not be stored");
        let words = format!("cannot store the session owner: {error}");
        let error = RpcError::new(Code::AuditUnavailable, words).effects(Effects::Possible);
        let line = message::error(id, &error);
        self.send(GateDirection::ToClient, &[&line], None, OnAuditFailure::Drop);
    }

    /// Removes the sessions of other identities from a list of sessions.
    pub(super) fn handle_list_answer(&mut self, id: &[u8], message: View<'_>) {
        if self.gate.owners.is_none() || message.result().is_none() {
            return self.forward_to_client(message);
        }
        let mut result = parse_object(message.result());
        let mut sessions = match result["sessions"].take() {
            Value::Array(sessions) => sessions,
            _ => Vec::new(),
        };
        sessions
            .retain(|session| session["sessionId"].as_str().is_some_and(|name| self.is_own_session(name)));
        result["sessions"] = Value::Array(sessions);
        if let Some(result) = result.as_object_mut()
            && let Some(cursor) = result.remove("nextCursor")
            && let Some(name) = cursor.as_str().and_then(|cursor| self.gate.cursors.issue(cursor))
        {
            result.insert("nextCursor".to_owned(), name.into());
        }
        if let Ok(line) = message::response(id, &result) {
            self.send(GateDirection::ToClient, &[&line], None, OnAuditFailure::Drop);
        }
    }
}
