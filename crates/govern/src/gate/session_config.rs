//! Changes of how a session is run: its mode, its model, its options. Decided and recorded before the agent hears of them.

use narrows_wire::{Code, RpcError, View, message};
use serde_json::json;

use super::Pass;
use super::api::{Out, Ticket};
use super::client_services::ambiguous;
use super::method_rules::without_envelope;
use super::outbox::{Otherwise, Way};
use super::session::{Asked, Origin};
use super::session_open::unrecorded;
use crate::audit_events::Approved;
use crate::call::Call;
use crate::unique_keys;

impl<O: Out> Pass<'_, O> {
    /// The client wants its session run in another way.
    pub(super) fn change(&mut self, id: &[u8], method: &str, message: View<'_>) {
        let Some(name) = self.ready(id, message) else { return };
        let Some(params) = unique_keys::read(message.params()) else {
            return self.refuse_client(id, &ambiguous());
        };
        let key = format!("change {}", String::from_utf8_lossy(id));
        let call = Call::wish(&method.replacen('/', ".", 1), "switch_mode", without_envelope(params));
        if !self.open_wish(id, &name, &key, call) {
            return;
        }
        let ticket = self.judge(&name, &key);
        let Some(case) = self.case(&name, &key) else { return };
        match case.approved.clone() {
            Approved::Pending => {
                let origin = Origin::Change { line: message.bytes().to_vec().into(), id: id.into() };
                self.hear(&name, &key, origin, ticket);
            }
            approved => self.changed(id, (&name, &key), message, &approved, ticket),
        }
    }

    /// It is decided whether a session is run in another way.
    pub(super) fn changed(
        &mut self,
        id: &[u8],
        (name, key): (&str, &str),
        message: View<'_>,
        approved: &Approved,
        after: Option<Ticket>,
    ) {
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.calls.remove(key);
        }
        if let Approved::Refused(why) = approved {
            let error = RpcError::new(Code::PolicyDenied, why.clone()).with("code", json!("policy-denied"));
            let line = message::error(id, &error);
            return self.send(Way::ToClient, &[&line], after, Otherwise::Say(Way::ToClient, unrecorded(id)));
        }
        if self.await_answer(id, message, Asked::Other) {
            let otherwise = Otherwise::Unbegun(unrecorded(id), id.into());
            self.send(Way::ToAgent, &[message.bytes()], after, otherwise);
        }
    }
}
