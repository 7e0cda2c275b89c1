//! Cancels turns, and ends turns and sessions whose clients have disconnected for too long.

use narrows_acp::method;
use narrows_wire::{Code, RpcError, message};
use serde_json::{Value, json};

use super::Ctx;
use super::api::{CoreOutput, OwnedName, Time};
use super::initialize::cancelled_answer;
use super::session::SessionKey;
use super::state::{Asked, InternalRequest, Pending, RequestKind, RequestOrigin};
use super::table::{ClientKey, WorkerKey};
use super::timer::Timer;

/// Timeout for a client to answer the permission requests of a cancelled turn. ACP requires the client to
/// answer at once.
const PERMISSION_TIMEOUT: Time = Time::from_secs(2);

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn start_cancelling(&mut self, key: SessionKey) {
        let (now, grace) = (self.now, self.core.limits.cancel_grace);
        // In a pool without a known protocol, the bus knows of no turns.
        let is_acp = self.core.sessions.get(key).is_some_and(|it| self.core.pool_of(it.pool).is_acp());
        let Some(session) = self.core.sessions.get_mut(key).filter(|_| is_acp) else { return };
        session.last_cancelled_prompt =
            session.prompts.iter().copied().fold(session.last_cancelled_prompt, u64::max);
        if session.is_busy() && session.cancelling.is_none() {
            session.cancelling = Some(now);
            self.core.timers.set(now + grace, Timer::Cancelled(key));
            for is_permission in [true, false] {
                self.core.timers.set(now + self.answer_timeout(is_permission), Timer::CancelAsked(key));
            }
        }
    }

    /// Returns the timeout for a client to answer an agent's requests in a cancelled turn. It is shorter than
    /// the agent's own timeout, because the agent may wait for the answer before it ends the turn.
    fn answer_timeout(&self, is_permission: bool) -> Time {
        let grace = self.core.limits.cancel_grace;
        if is_permission { PERMISSION_TIMEOUT.min(grace / 4) } else { grace / 2 }
    }

    /// Returns `true` if a turn of a session is cancelled and its client has not answered in time.
    pub(super) fn has_cancelled(&self, key: SessionKey, is_permission: bool) -> bool {
        let Some(session) = self.core.sessions.get(key).filter(|session| session.is_stopping()) else {
            return false;
        };
        session.cancelling.is_some_and(|at| self.now >= at + self.answer_timeout(is_permission))
    }

    /// Answers the agent's requests in a cancelled turn in place of the client. An agent that waits for a
    /// client that never answers would seem to ignore the cancellation, and would be stopped together with
    /// turns of other clients.
    pub(super) fn answer_cancelled_requests(&mut self, key: SessionKey) {
        let worker = self.core.sessions.get(key).and_then(super::session::Session::worker);
        let Some((worker, state)) = worker.and_then(|worker| Some((worker, self.core.workers.get(worker)?)))
        else {
            return;
        };
        let mut open: Vec<(ClientKey, u64, Asked)> = Vec::new();
        for (id, (client, number)) in &state.asking {
            let asked = self.core.clients.get(*client).and_then(|state| state.asked.get(number));
            let Some(asked) = asked.filter(|asked| self.may_belong_to(key, *client, asked.session)) else {
                continue;
            };
            if self.has_cancelled(key, asked.is_permission) {
                let (id, batch, is_permission) = (id.clone(), asked.batch, asked.is_permission);
                let session = asked.session;
                let asked = Asked { worker, id, batch, is_permission, session, server: None, charge: None };
                open.push((*client, *number, asked));
            }
        }
        open.sort_unstable_by_key(|(client, number, _)| (*client, *number));
        if self.has_cancelled(key, false)
            && let Some(state) = self.core.worker(worker)
            && !state.overdue_turns.contains(&key)
        {
            state.overdue_turns.push(key);
        }
        for (client, number, asked) in open {
            self.withdraw_others(worker, &asked.id, (client, number));
            self.withdraw([(client, number)].into_iter());
            self.answer_cancelled(&asked);
        }
    }

    /// Returns `true` if an agent's request to a client may belong to a turn of session `key`. `named` is the
    /// session in the request. Requests to an MCP server of the client, and those about a request of the
    /// client, name none.
    fn may_belong_to(&self, key: SessionKey, client: ClientKey, named: Option<SessionKey>) -> bool {
        let Some(session) = self.core.sessions.get(key) else { return false };
        let asks_in_turn = || {
            let worker = session.worker().and_then(|worker| self.core.workers.get(worker));
            let mut prompts = session.prompts.iter().filter_map(|prompt| worker?.pending.get(prompt));
            prompts.any(|pending| pending.client() == Some(client))
        };
        match named {
            Some(named) => named == key,
            None => session.owner == Some(client) || session.servers.has_of(client) || asks_in_turn(),
        }
    }

    /// Returns `true` if an agent's request to a client may belong to a cancelled turn whose client has not
    /// answered in time.
    pub(super) fn is_asked_late(
        &mut self,
        worker: WorkerKey,
        client: ClientKey,
        named: Option<SessionKey>,
        is_permission: bool,
    ) -> bool {
        if let Some(key) = named {
            return self.has_cancelled(key, is_permission);
        }
        let Some(state) = self.core.worker(worker) else { return false };
        let mut turns = std::mem::take(&mut state.overdue_turns);
        turns.retain(|key| self.has_cancelled(*key, false));
        let is_late = turns.iter().any(|key| self.may_belong_to(*key, client, None));
        if let Some(state) = self.core.worker(worker) {
            state.overdue_turns = turns;
        }
        is_late
    }

    pub(super) fn answer_cancelled(&mut self, asked: &Asked) {
        if asked.is_permission {
            self.answer_without_client(asked);
        } else {
            self.fail_asked(asked, &RpcError::new(Code::Cancelled, "turn cancelled"));
        }
    }

    /// Handles that a worker has not ended a cancelled turn in time.
    pub(super) fn cancel_ignored(&mut self, key: SessionKey) {
        let Some(session) = self.core.sessions.get_mut(key) else { return };
        let overdue = session.cancelling.is_some_and(|at| self.now >= at + self.core.limits.cancel_grace);
        if !overdue || !session.is_stopping() {
            return;
        }
        session.cancelling = None;
        // Turns that began after the cancellation are not cancelled.
        let stopped = session.last_cancelled_prompt;
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
            self.send_idle(owner, key);
        }
        self.retire(worker, "did not end a cancelled turn");
    }

    /// Answers a prompt in place of its worker. The worker's own response will be dropped.
    fn cancel_for(&mut self, worker: WorkerKey, key: SessionKey, number: u64) {
        let pending = self.core.workers.get(worker).and_then(|state| state.pending.get(&number));
        if pending.and_then(|pending| self.core.session_of_pending(pending)) != Some(key) {
            return;
        }
        let Some(pending) = self.core.worker(worker).and_then(|state| state.pending.get_mut(number)) else {
            return;
        };
        let asker = std::mem::replace(&mut pending.asker, RequestOrigin::Gone);
        pending.session = None;
        let tag = pending.tag.take();
        self.send_cancelled(asker, tag.as_deref());
    }

    pub(super) fn send_cancelled(&mut self, asker: RequestOrigin, tag: Option<&[u8]>) {
        let RequestOrigin::Client { client, id, batch } = asker else { return };
        if let Some(state) = self.core.client(client) {
            state.inflight.remove(&id);
        }
        if let Some(line) = cancelled_answer(&id) {
            self.reply(client, batch, tag, line);
        }
    }

    /// Sends a client the update that the turn of its session is cancelled, in version 2.
    fn send_idle(&mut self, client: ClientKey, key: SessionKey) {
        let update = json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": "cancelled"});
        self.send_update(client, key, &update);
    }

    /// Sends a client the update that the turn of its session has failed, in version 2.
    pub(super) fn send_failed(&mut self, client: ClientKey, key: SessionKey, error: &RpcError) {
        let update =
            json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": "error", "error": error});
        self.send_update(client, key, &update);
    }

    /// Sends a client an update of its session. If the client does not know the session's name yet, the
    /// update follows the response that has the name.
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

    /// Starts the grace period of a turn that had to wait, if its client has ended its input meanwhile.
    pub(super) fn abandon_if_closed(&mut self, client: ClientKey, key: SessionKey) {
        let at = self.now + self.core.limits.disconnect_grace;
        if self.core.client(client).is_some_and(|client| client.eof) {
            self.core.timers.set(at, Timer::Abandoned(key));
        }
    }

    /// Cancels the turn of a session whose client has been disconnected for the grace period, and ends the control of a
    /// client without the right to it.
    pub(super) fn abandon(&mut self, key: SessionKey) {
        self.end_forbidden_control(key);
        let Some(session) = self.core.sessions.get(key) else { return };
        let grace = self.core.limits.disconnect_grace;
        // A client that disconnects, returns and disconnects again has a new grace period.
        if session.ownerless.is_some_and(|since| self.now < since + grace) {
            return;
        }
        let owner = session.owner;
        let is_back = owner.and_then(|owner| self.core.client(owner)).is_some_and(|owner| !owner.eof);
        if !is_back && !self.promote(key) {
            self.cancel_turn(key);
        }
    }

    fn cancel_turn(&mut self, key: SessionKey) {
        let Some(session) = self.core.sessions.get(key) else { return };
        // A cancellation does not apply to a turn that began after it.
        let told = session.cancelling.is_some()
            && session.prompts.iter().all(|prompt| *prompt <= session.last_cancelled_prompt);
        if !session.is_busy() || told || !self.core.pool_of(session.pool).is_acp() {
            return;
        }
        let (Some(worker), name) = (session.worker(), wire_name(session)) else { return };
        if let Ok(line) = message::notification(method::SESSION_CANCEL, &json!({"sessionId": name})) {
            self.write_worker(worker, &[&line]);
        }
        self.start_cancelling(key);
    }

    /// Drops a session to which no client has returned within the grace period.
    pub(super) fn expire(&mut self, key: SessionKey) {
        let Some(session) = self.core.sessions.get(key) else { return };
        let Some(since) = session.ownerless else { return };
        let abilities = self.core.abilities_of(session);
        let limits = &self.core.limits;
        let can_return = abilities.load || abilities.resume || !self.core.pool_of(session.pool).is_acp();
        let grace = if can_return { limits.session_grace } else { limits.disconnect_grace };
        let worker = session.worker();
        if self.now < since + grace {
            self.core.timers.set(since + grace, Timer::Expired(key));
            return;
        }
        if session.is_busy() {
            // If the worker does not end the turn, it is stopped, and the session ends with it.
            let again = self.now + limits.cancel_grace;
            self.cancel_turn(key);
            self.core.timers.set(again, Timer::Expired(key));
            return;
        }
        let name = wire_name(session);
        if let Some(worker) = worker.filter(|_| abilities.close) {
            let params = json!({"sessionId": name}).to_string();
            self.send_internal_request(
                worker,
                InternalRequest::Close,
                method::SESSION_CLOSE,
                params.as_bytes(),
                None,
            );
        }
        self.drop_session(key);
        self.stop_idle();
        if let Some(worker) = worker {
            self.end_if_retired(worker);
        }
    }

    /// Updates a session after the worker has answered a request about it.
    pub(super) fn settle_session(&mut self, pending: &Pending, number: u64, succeeded: bool) {
        let Some(key) = pending.session else { return };
        match pending.what {
            RequestKind::Prompt => {
                if let Some(session) = self.core.sessions.get_mut(key) {
                    session.prompts.retain(|prompt| *prompt != number);
                    session.end_cancelling();
                }
                self.end_forbidden_control(key);
            }
            RequestKind::Replay => self.finish_replay(key, succeeded),
            RequestKind::Close | RequestKind::Delete if succeeded => {
                // If the worker has not ended a turn by now, the turn will not end.
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

pub(super) fn wire_name(session: &super::session::Session) -> Value {
    match &session.agent_name_json {
        Some(wire) => serde_json::from_slice(wire).unwrap_or(Value::Null),
        None => json!(session.name),
    }
}
