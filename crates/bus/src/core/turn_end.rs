//! Turns that are to end, and sessions that nobody comes back for.

use narrows_acp::method;
use narrows_wire::{RpcError, message};
use serde_json::{Value, json};

use super::Ctx;
use super::api::{CoreOutput, OwnedName};
use super::initialize::cancelled_answer;
use super::session::SessionKey;
use super::state::{InternalRequest, Pending, RequestKind, RequestOrigin};
use super::table::{ClientKey, WorkerKey};
use super::timer::Timer;

impl<O: CoreOutput> Ctx<'_, O> {
    /// A session was told to stop, and has its time to do so.
    pub(super) fn cancelling(&mut self, key: SessionKey) {
        let (now, grace) = (self.now, self.core.limits.cancel_grace);
        // Where nothing is known of the protocol, nothing is known of turns.
        let is_acp = self.core.sessions.get(key).is_some_and(|it| self.core.pool_of(it.pool).is_acp());
        let Some(session) = self.core.sessions.get_mut(key).filter(|_| is_acp) else { return };
        session.stopped = session.prompts.iter().copied().fold(session.stopped, u64::max);
        if session.is_busy() && session.cancelling.is_none() {
            session.cancelling = Some(now);
            self.core.timers.set(now + grace, Timer::Cancelled(key));
        }
    }

    /// A session has had its time to stop.
    pub(super) fn cancel_ignored(&mut self, key: SessionKey) {
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        let overdue = session.cancelling.is_some_and(|at| self.now >= at + self.core.limits.cancel_grace);
        if !overdue || !session.is_busy() {
            return;
        }
        session.cancelling = None;
        // A turn that was begun since was told nothing.
        let stopped = session.stopped;
        let (prompts, since) = std::mem::take(&mut session.prompts)
            .into_iter()
            .partition::<Vec<_>, _>(|prompt| *prompt <= stopped);
        session.running &= !since.is_empty();
        let idles = since.is_empty();
        session.prompts = since;
        let owner = session.owner;
        let Some(worker) = session.worker() else { return };
        let is_v2 = self.core.worker(worker).is_some_and(|state| state.is_v2);
        for number in prompts {
            self.cancel_for(worker, key, number);
        }
        if is_v2
            && idles
            && let Some(owner) = owner
        {
            self.say_idle(owner, key);
        }
        self.retire(worker, "went on with a turn that was cancelled");
    }

    /// Answers a prompt in its worker's place. The worker's own answer will be nobody's.
    fn cancel_for(&mut self, worker: WorkerKey, key: SessionKey, number: u64) {
        let Some(state) = self.core.worker(worker) else { return };
        let Some(pending) = state.pending.get_mut(&number) else { return };
        if pending.session != Some(key) {
            return;
        }
        let asker = std::mem::replace(&mut pending.asker, RequestOrigin::Gone);
        pending.session = None;
        let tag = pending.tag.take();
        self.say_cancelled(asker, tag.as_deref());
    }

    /// Tells whoever has asked for a turn that it was cancelled.
    pub(super) fn say_cancelled(&mut self, asker: RequestOrigin, tag: Option<&[u8]>) {
        let RequestOrigin::Client { client, id, batch } = asker else { return };
        if let Some(state) = self.core.client(client) {
            state.inflight.remove(&id);
        }
        if let Some(line) = cancelled_answer(&id) {
            self.reply(client, batch, tag, line);
        }
    }

    /// Says in a session's name that its turn is over (v2).
    fn say_idle(&mut self, client: ClientKey, key: SessionKey) {
        let update = json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": "cancelled"});
        self.send_update(client, key, &update);
    }

    /// The same of a turn that its worker cannot end any more.
    pub(super) fn say_failed(&mut self, client: ClientKey, key: SessionKey, error: &RpcError) {
        let update =
            json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": "error", "error": error});
        self.send_update(client, key, &update);
    }

    /// Sends a client an update about its session, made here. The client knows the session's name by then.
    pub(super) fn send_update(&mut self, client: ClientKey, key: SessionKey, update: &Value) {
        let Some(session) = self.core.sessions.get(key) else { return };
        let named_in = session.named_in;
        let params = json!({"sessionId": session.name, "update": update});
        if let Ok(line) = message::notification(method::SESSION_UPDATE, &params) {
            match named_in {
                Some(batch) => self.write_behind_batch(batch, client, line),
                None => self.write_client(client, &[&line]),
            }
        }
    }

    /// A turn begins that had to wait: its client may be gone by now.
    pub(super) fn abandon_late(&mut self, client: ClientKey, key: SessionKey) {
        let at = self.now + self.core.limits.disconnect_grace;
        if self.core.client(client).is_some_and(|client| client.eof) {
            self.core.timers.set(at, Timer::Abandoned(key));
        }
    }

    /// Ends the turn of a session whose client has been gone for long enough.
    pub(super) fn abandon(&mut self, key: SessionKey) {
        let Some(session) = self.core.sessions.get(key) else { return };
        let grace = self.core.limits.disconnect_grace;
        // One that left and came back has its time from when it left again.
        if session.ownerless.is_some_and(|since| self.now < since + grace) {
            return;
        }
        let owner = session.owner;
        let is_back = owner.and_then(|owner| self.core.client(owner)).is_some_and(|owner| !owner.eof);
        if !is_back && !self.promote(key) {
            self.cancel_turn(key);
        }
    }

    /// Tells a session to stop.
    fn cancel_turn(&mut self, key: SessionKey) {
        let Some(session) = self.core.sessions.get(key) else { return };
        // A turn that was begun since has not been told.
        let told =
            session.cancelling.is_some() && session.prompts.iter().all(|prompt| *prompt <= session.stopped);
        if !session.is_busy() || told || !self.core.pool_of(session.pool).is_acp() {
            return;
        }
        let (Some(worker), name) = (session.worker(), wire_name(session)) else { return };
        if let Ok(line) = message::notification(method::SESSION_CANCEL, &json!({"sessionId": name})) {
            self.write_worker(worker, &[&line]);
        }
        self.cancelling(key);
    }

    /// Drops a session that nobody has come back for.
    pub(super) fn expire(&mut self, key: SessionKey) {
        let Some(session) = self.core.sessions.get(key) else { return };
        let Some(since) = session.ownerless else { return };
        let abilities = self.core.abilities_of(session);
        let limits = &self.core.limits;
        let can_return = abilities.load || abilities.resume || !self.core.pool_of(session.pool).is_acp();
        let grace = if can_return { limits.session_grace } else { limits.disconnect_grace };
        let worker = session.worker();
        if self.now < since + grace {
            // What its agent can do was not known yet when it lost its client.
            self.core.timers.set(since + grace, Timer::Expired(key));
            return;
        }
        if session.is_busy() {
            // Its worker goes if it does not stop, and the session with it.
            let again = self.now + limits.cancel_grace;
            self.cancel_turn(key);
            self.core.timers.set(again, Timer::Expired(key));
            return;
        }
        let name = wire_name(session);
        if let Some(worker) = worker.filter(|_| abilities.close) {
            let params = json!({"sessionId": name}).to_string();
            self.run_errand(worker, InternalRequest::Close, method::SESSION_CLOSE, params.as_bytes(), None);
        }
        self.drop_session(key);
        self.stop_idle();
        if let Some(worker) = worker {
            self.if_retired(worker);
        }
    }

    /// What an answer means for its session.
    pub(super) fn settle_session(&mut self, pending: &Pending, number: u64, succeeded: bool) {
        let Some(key) = pending.session else { return };
        match pending.what {
            RequestKind::Prompt => {
                if let Some(session) = self.core.sessions.get_mut(key) {
                    session.prompts.retain(|prompt| *prompt != number);
                    if !session.is_busy() {
                        session.cancelling = None;
                    }
                }
            }
            RequestKind::Tell => self.history_told(key, succeeded),
            RequestKind::Close | RequestKind::Delete if succeeded => {
                // A turn that its worker has not ended by now will not end any more.
                if let Some(session) = self.core.sessions.get_mut(key)
                    && let Some(worker) = session.worker()
                {
                    for prompt in std::mem::take(&mut session.prompts) {
                        self.cancel_for(worker, key, prompt);
                    }
                }
                let name = self.core.sessions.get(key).map(|session| session.name.clone());
                if let Some(name) = name.filter(|_| pending.what == RequestKind::Delete) {
                    self.disown(OwnedName { pool: None, name });
                }
                self.drop_session(key);
                self.stop_idle();
            }
            _ => {}
        }
    }
}

/// How its worker calls a session.
pub(super) fn wire_name(session: &super::session::Session) -> Value {
    match &session.wire {
        Some(wire) => serde_json::from_slice(wire).unwrap_or(Value::Null),
        None => json!(session.name),
    }
}
