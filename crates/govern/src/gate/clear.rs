//! What is taken out of messages before anything else is read in them: marks that are ours to make.

use narrows_wire::{Code, Kind, RpcError, View, message};

use super::Pass;
use super::api::Out;
use super::opening::AMBIGUOUS;
use super::service::ambiguous;
use crate::meta::{Cleared, clear};

impl<O: Out> Pass<'_, O> {
    pub(super) fn said_by_client(&mut self, message: View<'_>) {
        match clear(message) {
            Cleared::Clean => self.client(message),
            Cleared::Line(line) => self.client(View::parse(&line)),
            Cleared::Doubled => match (message.kind(), message.id()) {
                (Kind::Request, Some(id)) => self.refuse_client(id, &ambiguous()),
                (Kind::Response, Some(id)) => self.client(View::parse(&no_answer(id))),
                _ => {}
            },
        }
    }

    pub(super) fn said_by_agent(&mut self, message: View<'_>) {
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
        let Some(name) = message.session() else { return };
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
