//! What is taken out of messages before anything else is read in them: marks that are ours to make.

use narrows_acp::{StrippedMeta, strip_client_meta};
use narrows_base::json::has_more_values_than;
use narrows_wire::{Code, Kind, RpcError, View, message};
use serde_json::json;

use super::Pass;
use super::api::Out;
use super::session_open::AMBIGUOUS;
use crate::audit_events::Sender;
use crate::meta::{Cleared, clear};

/// How many JSON values a message may have. In memory each takes many times as much as on the wire, and whatever judges a
/// message looks at each of them.
const MAX_MESSAGE_VALUES: usize = 100_000;

const TOO_MANY_VALUES: &str = "too many JSON values in one message";

impl<O: Out> Pass<'_, O> {
    pub(super) fn said_by_client(&mut self, message: View<'_>) {
        if has_more_values_than(message.bytes(), MAX_MESSAGE_VALUES) {
            return self.unreadable_of_client(message, TOO_MANY_VALUES);
        }
        let plain = self.plain_envelope(Sender::Client, message);
        let message = plain.as_deref().map_or(message, View::parse);
        match clear(message) {
            Cleared::Clean => self.without_foreign_meta(message),
            Cleared::Line(line) => self.without_foreign_meta(View::parse(&line)),
            Cleared::Doubled => self.unreadable_of_client(message, AMBIGUOUS),
        }
    }

    fn unreadable_of_client(&mut self, message: View<'_>, why: &'static str) {
        match (message.kind(), message.id()) {
            (Kind::Request, Some(id)) => self.refuse_client(id, &RpcError::new(Code::InvalidParams, why)),
            (Kind::Response, Some(id)) => self.client(View::parse(&no_answer(id, why))),
            _ => {}
        }
    }

    /// Handles a message without what the manifest does not let a client tell the agent in `_meta`.
    fn without_foreign_meta(&mut self, message: View<'_>) {
        let listed = &self.gate.mandate.client_meta;
        let Some(StrippedMeta { line, names }) = strip_client_meta(message, listed) else {
            return self.client(message);
        };
        let session = message.session().unwrap_or_default();
        let method: String = message.method().unwrap_or_default().chars().take(128).collect();
        let input = json!({"method": method, "keys": names});
        let event = self.parties(&session).refused("meta.refused", "meta_not_listed", input);
        self.record(event);
        self.client(View::parse(&line));
    }

    pub(super) fn said_by_agent(&mut self, message: View<'_>) {
        if has_more_values_than(message.bytes(), MAX_MESSAGE_VALUES) {
            return self.unreadable_of_agent(message, TOO_MANY_VALUES);
        }
        let plain = self.plain_envelope(Sender::Agent, message);
        let message = plain.as_deref().map_or(message, View::parse);
        match clear(message) {
            Cleared::Clean => self.agent(message),
            Cleared::Line(line) => self.agent(View::parse(&line)),
            Cleared::Doubled => self.unreadable_of_agent(message, AMBIGUOUS),
        }
    }

    fn unreadable_of_agent(&mut self, message: View<'_>, why: &'static str) {
        match (message.kind(), message.id()) {
            (Kind::Request, Some(id)) => self.refuse_agent(id, &RpcError::new(Code::InvalidParams, why)),
            (Kind::Response, Some(id)) => self.agent(View::parse(&no_answer(id, why))),
            _ => self.unreadable_update(message),
        }
    }

    /// Drops an update that cannot be judged, and ends the turn in which it was sent.
    fn unreadable_update(&mut self, message: View<'_>) {
        let Some(name) = message.session() else {
            let method = message.method().unwrap_or_default();
            self.record_name_once(&method, message, Some("no_session"));
            return;
        };
        if !self.gate.sessions.contains_key(&*name) {
            self.stray(&name, &message.method().unwrap_or_default());
        } else if !self.gate.is_replaying(&name) {
            self.halt(&name, "it sent an update that cannot be judged");
        }
    }
}

/// The response that an unreadable one counts as.
fn no_answer(id: &[u8], why: &'static str) -> bytes::Bytes {
    message::error(id, &RpcError::new(Code::Internal, why))
}
