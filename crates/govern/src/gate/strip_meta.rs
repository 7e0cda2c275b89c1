//! Removes `_meta` members that only the gate may set. Runs on every message of a peer before other modules
//! read it.

use narrows_acp::{StrippedMeta, strip_client_meta};
use narrows_base::json::has_more_values_than;
use narrows_wire::{Code, Kind, RpcError, View, message};
use serde_json::json;

use super::GateCtx;
use super::api::GateOutput;
use super::session_open::AMBIGUOUS;
use crate::audit_events::MessageSender;
use crate::meta::{StrippedMark, strip_mark};

/// Maximum number of JSON values in a message. In memory, each value takes far more space than on the wire,
/// and every rule inspects each value.
const MAX_MESSAGE_VALUES: usize = 100_000;

const TOO_MANY_VALUES: &str = "too many JSON values in one message";

impl<O: GateOutput> GateCtx<'_, O> {
    pub(super) fn screen_client_message(&mut self, message: View<'_>) {
        if has_more_values_than(message.bytes(), MAX_MESSAGE_VALUES) {
            return self.refuse_unreadable_client_message(message, TOO_MANY_VALUES);
        }
        let plain = self.strip_envelope(MessageSender::Client, message);
        let message = plain.as_deref().map_or(message, View::parse);
        match strip_mark(message) {
            StrippedMark::Unmarked => self.strip_unlisted_meta(message),
            StrippedMark::Line(line) => self.strip_unlisted_meta(View::parse(&line)),
            StrippedMark::Ambiguous => self.refuse_unreadable_client_message(message, AMBIGUOUS),
        }
    }

    fn refuse_unreadable_client_message(&mut self, message: View<'_>, why: &'static str) {
        match (message.kind(), message.id()) {
            (Kind::Request, Some(id)) => self.refuse_client(id, &RpcError::new(Code::InvalidParams, why)),
            (Kind::Response, Some(id)) => {
                self.dispatch_client_message(View::parse(&unreadable_response(id, why)));
            }
            _ => {}
        }
    }

    /// Removes the `_meta` members that the manifest does not list from a client message, records the
    /// removal, and handles the message.
    fn strip_unlisted_meta(&mut self, message: View<'_>) {
        let listed = &self.gate.config.client_meta;
        let Some(StrippedMeta { line, names }) = strip_client_meta(message, listed) else {
            return self.dispatch_client_message(message);
        };
        let session = message.session().unwrap_or_default();
        let method: String = message.method().unwrap_or_default().chars().take(128).collect();
        let input = json!({"method": method, "keys": names});
        let event = self.parties(&session).refused("meta.refused", "meta_not_listed", input);
        self.record(event);
        self.dispatch_client_message(View::parse(&line));
    }

    pub(super) fn screen_agent_message(&mut self, message: View<'_>) {
        if has_more_values_than(message.bytes(), MAX_MESSAGE_VALUES) {
            return self.refuse_unreadable_agent_message(message, TOO_MANY_VALUES);
        }
        let plain = self.strip_envelope(MessageSender::Agent, message);
        let message = plain.as_deref().map_or(message, View::parse);
        match strip_mark(message) {
            StrippedMark::Unmarked => self.dispatch_agent_message(message),
            StrippedMark::Line(line) => self.dispatch_agent_message(View::parse(&line)),
            StrippedMark::Ambiguous => self.refuse_unreadable_agent_message(message, AMBIGUOUS),
        }
    }

    fn refuse_unreadable_agent_message(&mut self, message: View<'_>, why: &'static str) {
        match (message.kind(), message.id()) {
            (Kind::Request, Some(id)) => self.refuse_agent(id, &RpcError::new(Code::InvalidParams, why)),
            (Kind::Response, Some(id)) => {
                self.dispatch_agent_message(View::parse(&unreadable_response(id, why)));
            }
            _ => self.halt_unreadable_update(message),
        }
    }

    /// Drops an update that is too large or ambiguous to be judged, and stops its turn.
    fn halt_unreadable_update(&mut self, message: View<'_>) {
        let Some(name) = message.session() else {
            let method = message.method().unwrap_or_default();
            self.record_name_once(&method, message, Some("no_session"));
            return;
        };
        if !self.gate.sessions.contains_key(&*name) {
            self.stop_stray_agent(&name, &message.method().unwrap_or_default());
        } else if !self.gate.is_replaying(&name) {
            // Without a digest: the message may have too many values to read it.
            let input = json!({"bytes": message.bytes().len()});
            let event = self.parties(&name).refused("tool.refused", "ambiguous_call", input);
            self.record(event);
            self.halt_turn(&name, "it sent an update that cannot be judged");
        }
    }
}

/// Returns the error that replaces a response which cannot be judged.
fn unreadable_response(id: &[u8], why: &'static str) -> bytes::Bytes {
    message::error(id, &RpcError::new(Code::Internal, why))
}
