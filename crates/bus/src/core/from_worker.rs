//! Handles the messages of workers.

use narrows_acp::method;
use narrows_wire::{Code, Fault, Kind, Part, RpcError, View, message};

use super::Ctx;
use super::api::{CoreAction, CoreOutput, LogEvent};
use super::batch::{BatchKey, Sender};
use super::cancellation::LSP_CANCEL;
use super::children::{UpdateEvent, read_update};
use super::from_client::MCP_CANCELLED;
use super::mcp_servers::is_about_server;
use super::memory::ASKED_BYTES;
use super::open_timeout::Opener;
use super::request_id::{self, Digits};
use super::session::{Session, SessionKey, SessionState, quoted};
use super::splice::Parts;
use super::state::{Asked, MAX_OPEN_REQUESTS, RequestOrigin, Tenants, WorkerLifecycle};
use super::table::{ClientKey, WorkerKey};
use super::timer::Timer;

/// A worker with this many protocol violations within the restart window is replaced.
const MAX_STRIKES: usize = 3;

enum Target {
    Client(ClientKey, Option<SessionKey>),
    Gone,
    /// A session that is being opened, whose name is not known yet.
    Opening,
    /// No client gets the message, because it replays the history of a session.
    Replay,
    Undeliverable(&'static str),
    /// No client gets the message, because the worker may not use its session.
    Foreign,
}

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn worker_line(&mut self, worker: WorkerKey, message: View<'_>) {
        let Some(state) = self.core.worker(worker) else { return };
        if state.stage == WorkerLifecycle::Stopping {
            return;
        }
        self.core.counters.from_workers += 1;
        self.handle_worker_message(worker, message, None);
    }

    pub(super) fn handle_worker_message(
        &mut self,
        worker: WorkerKey,
        message: View<'_>,
        batch: Option<BatchKey>,
    ) {
        match message.kind() {
            Kind::Notification => self.worker_notification(worker, message),
            Kind::Response => self.worker_response(worker, message),
            Kind::Request => self.worker_request(worker, message, batch),
            Kind::Batch => self.handle_batch(Sender::Worker(worker), message),
            Kind::Invalid(fault) => self.worker_fault(worker, message, fault),
        }
    }

    fn worker_notification(&mut self, worker: WorkerKey, message: View<'_>) {
        if self.drop_unshown_child(worker, message) {
            return;
        }
        if let Some((client, session)) = self.recent_target(worker, message) {
            let child = self.track_update(worker, Some(session), message);
            self.forward_to_client(worker, client, Some(session), message, None);
            self.deliver_early_messages_of(worker, child);
            return;
        }
        if message.is_method(LSP_CANCEL) {
            self.forward_lsp_cancel(worker, message);
            return;
        }
        if self.forward_progress(worker, message) {
            return;
        }
        match self.target(worker, message) {
            Target::Client(client, session) => {
                let is_plain = |session: &Session| !session.name.contains('\\');
                let recent = session.filter(|session| self.core.sessions.get(*session).is_some_and(is_plain));
                if let Some(state) = self.core.worker(worker) {
                    state.recent = recent;
                }
                let child = self.track_update(worker, session, message);
                self.forward_to_client(worker, client, session, message, None);
                self.deliver_early_messages_of(worker, child);
                if self.core.is_observable {
                    self.withdraw_cancelled(worker, message);
                }
            }
            Target::Opening => {
                if let Some(name) = message.session() {
                    self.keep_early_message(worker, name, message, None);
                }
            }
            Target::Gone => {
                let known = |name: &str| self.session_of(worker, name).or_else(|| self.root_of(worker, name));
                let session = message.session().and_then(|name| known(&name));
                if session.is_none() {
                    self.record_former_child(worker, message);
                }
                let child = self.track_update(worker, session, message);
                self.deliver_early_messages_of(worker, child);
                self.core.counters.unseen += 1;
            }
            Target::Replay => self.track_replayed_update(worker, message),
            Target::Undeliverable(why) => {
                self.core.counters.dropped += 1;
                self.log(LogEvent::Dropped { worker: worker.into(), why });
            }
            Target::Foreign => self.strike(worker, "named an unknown session"),
        }
    }

    fn worker_request(&mut self, worker: WorkerKey, message: View<'_>, batch: Option<BatchKey>) {
        let Some(id) = message.id() else { return };
        let Some(state) = self.core.worker(worker) else { return };
        let unanswered = |pass: &mut Self, error: RpcError| {
            let line = message::error(id, &error);
            match batch {
                Some(batch) => pass.answer_in_batch(batch, line),
                None => pass.write_worker(worker, &[&line]),
            }
        };
        if message.is_method(LSP_CANCEL) {
            unanswered(self, RpcError::new(Code::InvalidRequest, "cancellation is a notification"));
            return;
        }
        if state.asking.contains_key(id) {
            let error = RpcError::new(Code::DuplicateId, "duplicate request id");
            unanswered(self, error);
            self.strike(worker, "reused a pending request id");
            return;
        }
        let is_permission =
            message.method().is_some_and(|method| method == method::SESSION_REQUEST_PERMISSION);
        match self.target(worker, message) {
            Target::Client(client, session) => {
                let server = self.asked_server(worker, message);
                let is_late = self.is_asked_late(worker, client, session, is_permission);
                let Some(state) = self.core.client(client) else { return };
                state.next_ask += 1;
                let number = state.next_ask;
                let bytes = ASKED_BYTES + 2 * id.len() + server.as_ref().map_or(0, |server| server.bytes());
                let mut asked =
                    Asked { worker, id: id.into(), batch, is_permission, session, server, charge: None };
                if is_late {
                    self.answer_cancelled(&asked);
                    return;
                }
                if state.eof || state.closing {
                    self.answer_without_client(&asked);
                    return;
                }
                let is_full = state.asked.len() >= MAX_OPEN_REQUESTS;
                if is_full || self.core.is_asked_too_much(client, bytes) {
                    let error =
                        RpcError::new(Code::Backpressure, "too many unanswered requests at this client");
                    self.fail_asked(&asked, &error);
                    return;
                }
                let Some(state) = self.core.client(client) else { return };
                asked.charge = Some(state.account.charge(bytes));
                state.asked.insert(number, asked);
                if let Some(state) = self.core.worker(worker) {
                    state.asking.insert(id.into(), (client, number));
                }
                self.forward_to_client(worker, client, session, message, Some(number));
                if let Some(key) = session.filter(|_| is_permission && self.core.is_observable) {
                    self.ask_observers(worker, key, message, batch);
                }
            }
            Target::Gone => {
                let (id, session, server, charge) = (id.into(), None, None, None);
                let asked = Asked { worker, id, batch, is_permission, session, server, charge };
                self.answer_without_client(&asked);
            }
            Target::Opening => {
                if let Some(name) = message.session()
                    && !self.keep_early_message(worker, name, message, batch)
                {
                    unanswered(
                        self,
                        RpcError::new(Code::Backpressure, "too many messages before the session opened"),
                    );
                }
            }
            Target::Replay => {
                unanswered(self, RpcError::new(Code::Cancelled, "session is being restored"));
            }
            Target::Undeliverable(why) => unanswered(self, RpcError::new(Code::MethodNotFound, why)),
            Target::Foreign => {
                unanswered(self, RpcError::new(Code::InvalidParams, "not a session of this agent"));
                self.strike(worker, "named an unknown session");
            }
        }
    }

    pub(super) fn forward_to_client(
        &mut self,
        worker: WorkerKey,
        client: ClientKey,
        session: Option<SessionKey>,
        message: View<'_>,
        number: Option<u64>,
    ) {
        let digits = number.map(Digits::new);
        let mut edits: [(Part, &[u8]); 3] = [(Part::Id, b""); 3];
        let mut count = 0;
        if let Some(digits) = &digits {
            edits[count] = (Part::Id, digits.as_bytes());
            count += 1;
        }
        let (mut alias, mut tag, mut rewritten) = (None, None, None);
        if let Some(key) = session
            && let Some(session) = self.core.sessions.get(key)
        {
            if session.agent_name_json.is_some() {
                alias = Some(quoted(&session.name));
            }
            tag = session.tag.as_deref().map(Box::<[u8]>::from);
            if session.child_set.is_some() {
                alias = self.child_alias(worker, message).unwrap_or(alias);
                rewritten = self.rename_children(worker, key, message);
            }
        }
        // Only requests, and notifications that name no session, can be for MCP servers in clients.
        if number.is_some() || session.is_none() {
            rewritten = rewritten.or_else(|| self.with_client_server_id(worker, client, message));
        }
        let message = rewritten.as_deref().map_or(message, View::parse);
        if let Some(alias) = &alias {
            edits[count] = (Part::Session, alias);
            count += 1;
        }
        let scope = self.scope_for(worker, message);
        if let Some(scope) = &scope {
            edits[count] = (Part::RequestId, scope);
            count += 1;
        }
        let parts = match &tag {
            Some(tag) => Parts::with_tag(message, &edits[..count], tag),
            None => Parts::new(message, &edits[..count]),
        };
        self.deliver(client, worker, &parts);
        // Observers get no messages about a request that only one client was asked.
        if self.core.is_observable
            && number.is_none()
            && scope.is_none()
            && let Some(key) = session
        {
            self.record(key, worker, &parts);
        }
    }

    /// Returns the id by which the client knows the request that `params.requestId` of a worker's message
    /// names. `None`: the message names no such request.
    #[inline]
    fn scope_for(&self, worker: WorkerKey, message: View<'_>) -> Option<Box<[u8]>> {
        message.request_id()?;
        self.scope_of_request(worker, message)
    }

    fn scope_of_request(&self, worker: WorkerKey, message: View<'_>) -> Option<Box<[u8]>> {
        let raw = message.request_id()?;
        let state = self.core.workers.get(worker)?;
        match &*message.method()? {
            method::CANCEL_REQUEST | MCP_CANCELLED => {
                let (_, number) = state.asking.get(raw)?;
                Some(Digits::new(*number).as_bytes().into())
            }
            method::ELICITATION_CREATE => match &state.pending.get(&request_id::parse(raw)?)?.asker {
                RequestOrigin::Client { id, .. } => Some(id.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the client of the session that the worker's last message was about, if this message is about
    /// the same session. Comparing the bytes of the name recognizes most of these messages.
    #[inline]
    fn recent_target(&self, worker: WorkerKey, message: View<'_>) -> Option<(ClientKey, SessionKey)> {
        let state = self.core.workers.get(worker)?;
        let key = state.recent?;
        let session = self.core.sessions.get(key)?;
        let raw = message.bytes().get(message.part_range(Part::Session)?)?;
        let named = match &session.agent_name_json {
            Some(wire) => **wire == *raw,
            // A name with a backslash is escaped in the line, and is not compared with the recent session.
            None => raw.strip_prefix(b"\"")?.strip_suffix(b"\"")? == session.name.as_bytes(),
        };
        let lives = matches!(session.place, SessionState::On(at) if at == worker);
        let plain = message.request_id().is_none()
            && !message.is_method(LSP_CANCEL)
            && self.core.pool_of(session.pool).is_acp();
        (named && lives && plain).then_some((session.recipient()?, key))
    }

    fn target(&self, worker: WorkerKey, message: View<'_>) -> Target {
        // A client would take the worker's own id for the id of another request, so such a message is not
        // delivered.
        if message.request_id().is_some()
            && message.method().is_some_and(|method| {
                matches!(&*method, method::CANCEL_REQUEST | MCP_CANCELLED | method::ELICITATION_CREATE)
            })
            && self.scope_for(worker, message).is_none()
        {
            return Target::Undeliverable("unknown requestId");
        }
        let at_the_top = || {
            let state = self.core.workers.get(worker)?;
            message.top_session().filter(|_| !self.core.pool_of(state.pool).is_acp())
        };
        match message.session().or_else(at_the_top) {
            Some(name) => self.target_of_session(worker, &name, message),
            None => self.target_of_connection(worker, message),
        }
    }

    fn target_of_session(&self, worker: WorkerKey, name: &str, message: View<'_>) -> Target {
        let Some(state) = self.core.workers.get(worker) else { return Target::Gone };
        let known = self.session_of(worker, name).or_else(|| self.root_of(worker, name));
        let Some(key) = known else {
            if state.client.is_none() && state.former.contains(name) {
                return Target::Gone;
            }
            // The worker may wait for this request before it answers the request that opens the session. The
            // client gets it if no other client can be meant.
            if message.kind() == Kind::Request {
                match state.opener() {
                    // A worker that has served several identities may mean a forgotten session.
                    Opener::One(client) if state.tenants != Tenants::Several => {
                        return Target::Client(client, None);
                    }
                    Opener::Gone if state.client.is_none() => return Target::Gone,
                    Opener::One(_) | Opener::Gone | Opener::Unknown => {}
                }
            }
            return match (state.pending.creates(), state.client) {
                // Only this client uses the worker, so it gets all messages. If the session's name is in use,
                // the session will get another name for clients, which is not known yet.
                (false, Some(client)) => Target::Client(client, None),
                (_, Some(client)) if self.core.sessions.find(name).is_none() => Target::Client(client, None),
                (true, _) => Target::Opening,
                (false, None) if state.claimed && !self.core.pool_of(state.pool).is_shared() => Target::Gone,
                (false, None) => Target::Foreign,
            };
        };
        let Some(session) = self.core.sessions.get(key) else { return Target::Gone };
        match (&session.place, session.recipient()) {
            (SessionState::Restoring(_), _) => Target::Replay,
            (_, Some(recipient)) => Target::Client(recipient, Some(key)),
            (_, None) if session.is_replaying() => Target::Replay,
            (_, None) => Target::Gone,
        }
    }

    fn target_of_connection(&self, worker: WorkerKey, message: View<'_>) -> Target {
        let Some(state) = self.core.workers.get(worker) else { return Target::Gone };
        let method = message.method();
        let scoped = message.request_id().and_then(|raw| match method.as_deref()? {
            method::CANCEL_REQUEST | MCP_CANCELLED => state.asking.get(raw).map(|(client, _)| *client),
            method::ELICITATION_CREATE => state.pending.get(&request_id::parse(raw)?)?.client(),
            _ => None,
        });
        if let Some(client) = scoped {
            return Target::Client(client, None);
        }
        if is_about_server(message) {
            match self.owner_of_server(worker, message) {
                Some(client) if self.core.clients.get(client).is_none() => return Target::Gone,
                Some(client) => return Target::Client(client, None),
                // The server belonged to the worker's former client, so the present one must not get the
                // message.
                None if state.inherited => return Target::Gone,
                None => {}
            }
        }
        if !self.core.pool_of(state.pool).is_shared() {
            return state.client.map_or(Target::Gone, |client| Target::Client(client, None));
        }
        Target::Undeliverable("message names no session at a shared worker")
    }

    /// Handles an update of a session. Returns the name of the child session that the update announces. In
    /// version 2, an update can also end a turn.
    #[inline]
    fn track_update(
        &mut self,
        worker: WorkerKey,
        session: Option<SessionKey>,
        message: View<'_>,
    ) -> Option<Box<str>> {
        let key = session?;
        if !self.core.workers.get(worker)?.announces {
            return None;
        }
        match read_update(message)? {
            UpdateEvent::Running(running) => {
                self.track_turn(worker, key, running, message);
                None
            }
            UpdateEvent::Child(name) => self.add_child(worker, key, &name).then_some(name),
        }
    }

    #[inline]
    fn deliver_early_messages_of(&mut self, worker: WorkerKey, child: Option<Box<str>>) {
        if let Some(child) = child {
            self.deliver_early_messages(worker, &child);
        }
    }

    fn track_replayed_update(&mut self, worker: WorkerKey, message: View<'_>) {
        if self.core.workers.get(worker).is_some_and(|state| state.announces)
            && let Some(UpdateEvent::Child(child)) = read_update(message)
            && let Some(name) = message.session()
            && let Some(key) = self.session_of(worker, &name).or_else(|| self.root_of(worker, &name))
        {
            self.add_child(worker, key, &child);
        }
    }

    fn track_turn(&mut self, worker: WorkerKey, key: SessionKey, running: bool, message: View<'_>) {
        let is_v2 = self.core.workers.get(worker).is_some_and(|state| state.is_v2);
        // A state update of a child session does not change the turn of its parent.
        let is_childs = message.session().is_some_and(|name| self.child_of(worker, &name).is_some());
        if !is_v2 || is_childs {
            return;
        }
        if let Some(session) = self.core.sessions.get_mut(key) {
            session.running = running;
            session.end_cancelling();
        }
        if !running {
            self.end_if_retired(worker);
            if self.has_forbidden_control(key) {
                // After the controller has this update.
                self.core.timers.set(self.now, Timer::Abandoned(key));
            }
        }
    }

    fn worker_fault(&mut self, worker: WorkerKey, message: View<'_>, fault: Fault) {
        match fault {
            Fault::LongResponse => {
                self.fail_answered(worker, message, Code::MessageTooLarge, "agent response too long");
                self.retire(worker, "sent too long a message");
            }
            Fault::TooLong => {
                if message.id().is_some()
                    && let Some(line) = message.refusal()
                {
                    self.write_worker(worker, &[&line]);
                }
                self.retire(worker, "sent too long a message");
            }
            _ => {
                if !self.fail_misdelivered(worker, message)
                    && message.id().is_some()
                    && let Some(line) = message.refusal()
                {
                    self.write_worker(worker, &[&line]);
                }
            }
        }
    }

    /// Handles a worker's line that is not a valid message. If the line was meant as a response, its request
    /// fails, so that the client does not wait. Returns `true` in that case.
    pub(super) fn fail_misdelivered(&mut self, worker: WorkerKey, message: View<'_>) -> bool {
        let is_answer = message.kind() == Kind::Invalid(Fault::BadResponse)
            || message.id().is_some() && !message.envelope().method.is_some();
        if is_answer {
            self.fail_answered(worker, message, Code::Internal, "invalid agent response");
            self.strike(worker, "sent an invalid response");
        } else {
            self.strike(worker, "sent an invalid message");
        }
        is_answer
    }

    /// Counts a protocol violation of a worker. After too many within the restart window, the worker is
    /// replaced.
    pub(super) fn strike(&mut self, worker: WorkerKey, what: &'static str) {
        self.core.counters.strikes += 1;
        let since = self.now.saturating_sub(self.core.limits.restart_window);
        let now = self.now;
        let Some(state) = self.core.worker(worker) else { return };
        state.strikes.retain(|at| *at >= since);
        if state.strikes.len() >= MAX_STRIKES {
            return;
        }
        state.strikes.push(now);
        let is_out = state.strikes.len() >= MAX_STRIKES;
        self.log(LogEvent::Strike { worker: worker.into(), what });
        if is_out {
            self.retire(worker, what);
        }
    }

    pub(super) fn log(&mut self, note: LogEvent) {
        self.out.perform(CoreAction::Log(note));
    }
}
