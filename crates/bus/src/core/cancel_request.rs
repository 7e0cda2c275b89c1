//! Cancels a client's request, whether it is queued, in flight or fanned out.

use narrows_acp::method;
use narrows_wire::{Code, Effects, Part, RpcError, View, message};
use serde_json::json;

use super::Ctx;
use super::api::CoreOutput;
use super::batch::BatchKey;
use super::cancellation::{cancelled_id, names_one_request};
use super::fan_out::FanKey;
use super::progress::with_range_replaced;
use super::request_id::Digits;
use super::session::{Waiting, take_first};
use super::splice::Parts;
use super::state::{HeldLine, RequestKind, RequestLocation};
use super::table::ClientKey;

/// Maximum number of a client's queued lines that are searched for the request to cancel. A request further
/// back is cancelled when its turn comes.
const MAX_SEARCHED_LINES: usize = 256;

impl<O: CoreOutput> Ctx<'_, O> {
    /// Handles `$/cancel_request` of a client. The worker knows the request to cancel by another id.
    pub(super) fn cancel_request(&mut self, client: ClientKey, message: View<'_>) {
        let Some(state) = self.core.client(client) else { return };
        let Some(place) = cancelled_id(message) else { return };
        let Some(raw) = message.bytes().get(place.clone()) else { return };
        match state.inflight.get(raw).copied() {
            Some(RequestLocation::At(worker, id)) => {
                // The cancelled prompt gets as much time to end as a turn that `session/cancel` cancels.
                let pending = self.core.workers.get(worker).and_then(|state| state.pending.get(&id));
                let is_turn = pending.is_some_and(|pending| pending.what == RequestKind::Prompt);
                let key = pending.and_then(|pending| self.core.session_of_pending(pending));
                let session = key.and_then(|key| self.core.sessions.get(key));
                // Any other session that the cancellation names could belong to another client.
                let is_named =
                    message.session().is_none_or(|name| session.is_some_and(|it| *it.name == *name));
                let wire = session.and_then(|session| session.agent_name_json.clone());
                if !(self.core.is_exclusive(worker) || is_named && names_one_request(message)) {
                    self.core.counters.dropped += 1;
                    return;
                }
                if let Some(key) = key.filter(|_| is_turn) {
                    self.start_cancelling(key);
                }
                let line = with_range_replaced(message.bytes(), place, Digits::new(id).as_bytes());
                let edit = wire.as_deref().map(|wire| (Part::Session, wire));
                self.send_to_worker(worker, client, &Parts::new(View::parse(&line), edit.as_slice()));
            }
            Some(RequestLocation::Fanned(key)) => self.cancel_fan_out(key),
            Some(location) => self.cancel_unsent(client, raw, location),
            None => self.cancel_held(client, raw),
        }
    }

    /// Returns `true` if the request that a client cancels is already sent, or is found within the searched
    /// lines.
    pub(super) fn can_cancel(&mut self, client: ClientKey, message: View<'_>) -> bool {
        let Some(raw) = cancelled_id(message).and_then(|place| message.bytes().get(place)) else {
            return false;
        };
        let is_open = self.core.client(client).is_some_and(|state| state.inflight.contains_key(raw));
        is_open || self.place_among_held(client, raw).is_some()
    }

    /// Cancels a request that waits for its session or for one worker. Only that queue is searched, because a
    /// client may send any number of cancellations.
    fn cancel_unsent(&mut self, client: ClientKey, id: &[u8], location: RequestLocation) {
        let is_it = |waiting: &Waiting| waiting.client == client && waiting.line.id() == Some(id);
        let lines = match location {
            RequestLocation::AtSession(key) => self.core.sessions.get_mut(key).map(|it| &mut it.waiting),
            RequestLocation::InBacklog(worker) => self.core.worker(worker).map(|it| &mut it.backlog),
            RequestLocation::Refused(worker) => self.core.worker(worker).map(|it| &mut it.refused),
            _ => None,
        };
        let found = match location {
            RequestLocation::BehindCreations => self.core.awaited_creations.take_waiting(is_it),
            _ => lines.and_then(|lines| take_first(lines, is_it)),
        };
        match found {
            Some(waiting) => {
                self.release_request_id(client, &waiting.line);
                self.send_cancellation(client, &waiting.line, waiting.batch);
            }
            None => self.core.counters.dropped += 1,
        }
    }

    fn cancel_held(&mut self, client: ClientKey, id: &[u8]) {
        let place = self.place_among_held(client, id);
        let held = self.core.client(client).and_then(|state| state.held.as_mut());
        let Some(HeldLine { line, batch, .. }) = held.zip(place).and_then(|(held, place)| {
            let taken = held.lines.remove(place)?;
            held.bytes -= taken.line.len();
            held.recharge();
            Some(taken)
        }) else {
            self.core.counters.dropped += 1;
            return;
        };
        self.send_cancellation(client, &line, batch);
        if place == Some(0) {
            // The lines behind the cancelled request may no longer have to wait.
            self.release_after_cancel(client);
        }
    }

    fn place_among_held(&mut self, client: ClientKey, id: &[u8]) -> Option<usize> {
        let held = self.core.client(client)?.held.as_ref()?;
        held.lines.iter().take(MAX_SEARCHED_LINES).position(|held| held.line.id() == Some(id))
    }

    /// Cancels a request that was sent to several workers, in each of those workers.
    fn cancel_fan_out(&mut self, key: FanKey) {
        for (worker, number) in self.forget_fan_parts(key) {
            let params = json!({"requestId": number});
            if let Ok(line) = message::notification(method::CANCEL_REQUEST, &params) {
                self.write_worker(worker, &[&line]);
            }
        }
        let error = RpcError::new(Code::Cancelled, "cancelled before all agents responded");
        self.fail_fan(key, error);
    }

    fn send_cancellation(&mut self, client: ClientKey, line: &[u8], batch: Option<BatchKey>) {
        let message = View::parse(line);
        let error =
            RpcError::new(Code::Cancelled, "cancelled before reaching an agent").effects(Effects::None);
        if let Some(id) = message.id() {
            self.refuse(client, id, batch, message.tag(), &error);
        }
    }
}
