//! What is taken out of messages before anything else is read in them: marks that are ours to make.

use narrows_acp::{StrippedMeta, strip_client_meta};
use narrows_wire::{Code, Kind, RpcError, View, message};
use serde_json::json;

use super::Pass;
use super::api::Out;
use super::opening::AMBIGUOUS;
use super::service::ambiguous;
use crate::meta::{Cleared, clear};
use crate::record::Sender;

impl<O: Out> Pass<'_, O> {
    pub(super) fn said_by_client(&mut self, message: View<'_>) {
        let plain = self.plain_envelope(Sender::Client, message);
        let message = plain.as_deref().map_or(message, View::parse);
        match clear(message) {
            Cleared::Clean => self.without_foreign_meta(message),
            Cleared::Line(line) => self.without_foreign_meta(View::parse(&line)),
            Cleared::Doubled => match (message.kind(), message.id()) {
                (Kind::Request, Some(id)) => self.refuse_client(id, &ambiguous()),
                (Kind::Response, Some(id)) => self.client(View::parse(&no_answer(id))),
                _ => {}
            },
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
        let plain = self.plain_envelope(Sender::Agent, message);
        let message = plain.as_deref().map_or(message, View::parse);
        match clear(message) {
            Cleared::Clean => self.agent(message),
            Cleared::Line(line) => self.agent(View::parse(&line)),
            Cleared::Doubled => match (message.kind(), message.id()) {
                (Kind::Request, Some(id)) => self.refuse_agent(id, &ambiguous()),
                (Kind::Response, Some(id)) => self.agent(View::parse(&no_answer(id))),
                _ => self.doubled_update(message),
            },
        }
    }

    /// What the agent tells can be read in two ways: it is shown to nobody, and a turn in which it is told ends.
    fn doubled_update(&mut self, message: View<'_>) {
        let Some(name) = message.session() else {
            let method = message.method().unwrap_or_default();
            self.record_name_once(&method, message, Some("no_session"));
            return;
        };
        if !self.gate.sessions.contains_key(&*name) {
            self.stray(&name, &message.method().unwrap_or_default());
        } else if !self.gate.is_replaying(&name) {
            self.halt(&name, "it sent an update that can be read in two ways");
        }
    }
}

/// What an answer counts as that can be read in two ways.
fn no_answer(id: &[u8]) -> bytes::Bytes {
    message::error(id, &RpcError::new(Code::Internal, AMBIGUOUS))
}
