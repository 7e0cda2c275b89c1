//! Whose sessions are: of those that somebody else has made the client learns as much as of those that there are not.

use std::io;

use narrows_wire::{Code, Effects, RpcError, View, message};
use serde_json::{Value, json};

use super::Pass;
use super::api::Out;
use super::lane::{Otherwise, Way};
use super::opening::{read, unrecorded};

/// Longer names of sessions are not kept: each is in memory and on disk for as long as anybody may come back to it.
const MAX_SESSION_NAME_BYTES: usize = 1024;

impl<O: Out> Pass<'_, O> {
    /// Whether the session that a message of the client's names is its own. One that names none is about none.
    pub(super) fn is_ours(&self, message: View<'_>) -> bool {
        if self.gate.owners.is_none() {
            return true;
        }
        message.session().is_none_or(|name| self.is_own_session(&name))
    }

    fn is_own_session(&self, name: &str) -> bool {
        let Some(owners) = &self.gate.owners else { return true };
        // A child belongs to whom its parent belongs to.
        self.gate.sessions.get(name).is_some_and(|session| session.is_admitted || session.lineage.is_some())
            || owners.has(&self.gate.who.id, name)
    }

    /// Says that there is no such session, whether there is or not.
    pub(super) fn refuse_unknown(&mut self, id: &[u8], method: &str, message: View<'_>) {
        let name = message.session().unwrap_or_default();
        let event =
            self.parties(&name).refused("session.refused", "unknown_session", json!({"method": method}));
        let ticket = self.record(event);
        let error = RpcError::new(Code::NotFound, format!("there is no session {name:?}"))
            .with("sessionId", json!(name));
        let line = message::error(id, &error);
        self.send(Way::ToClient, &[&line], Some(ticket), Otherwise::Say(Way::ToClient, unrecorded(id)));
    }

    /// Notes that the client has made a session.
    pub(super) fn enter(&self, name: &str) -> io::Result<()> {
        if name.len() > MAX_SESSION_NAME_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the agent's name for it is too long"));
        }
        self.gate.owners.as_ref().map_or(Ok(()), |owners| owners.enter(&self.gate.who.id, name))
    }

    /// A session was made, and nobody would know later whose it is: then it is nobody's.
    pub(super) fn unowned(&mut self, id: &[u8], name: &str, error: &io::Error) {
        self.close_unkept(name, "whose it is could not be kept");
        let words = format!("whose the session is could not be kept: {error}");
        let error = RpcError::new(Code::AuditUnavailable, words).effects(Effects::Possible);
        let line = message::error(id, &error);
        self.send(Way::ToClient, &[&line], None, Otherwise::Nothing);
    }

    /// The agent has told which sessions there are: the client is told of its own.
    pub(super) fn listed(&mut self, id: &[u8], message: View<'_>) {
        if self.gate.owners.is_none() || message.result().is_none() {
            return self.show(message);
        }
        let mut result = read(message.result());
        let mut sessions = match result["sessions"].take() {
            Value::Array(sessions) => sessions,
            _ => Vec::new(),
        };
        sessions
            .retain(|session| session["sessionId"].as_str().is_some_and(|name| self.is_own_session(name)));
        result["sessions"] = Value::Array(sessions);
        if let Ok(line) = message::response(id, &result) {
            self.send(Way::ToClient, &[&line], None, Otherwise::Nothing);
        }
    }
}
