//! Timeouts of requests that open a session, and of an agent's requests in a session that is not known yet.
//!
//! Before an agent answers `session/new`, it may send its client a request, for example for a file, and wait
//! for the answer. If several clients have asked for a session, the bus cannot know the recipient until a
//! response names the session. The agent and the bus would wait for each other, so the agent's request fails
//! after a while.

use narrows_acp::method;
use narrows_wire::{Code, Effects, Kind, RpcError, View};

use super::Ctx;
use super::api::{CoreOutput, Time};
use super::state::{Asked, EarlyMessage, Pending, RequestOrigin, WorkerState};
use super::table::{ClientKey, WorkerKey};

/// Timeout of an agent's request in a session that no response has named yet.
pub(super) const EARLY_REQUEST_TIMEOUT: Time = Time::from_secs(2);

/// The client for which a worker opens a session whose name is not known yet.
pub(super) enum Opener {
    /// Only this client has asked for a session.
    One(ClientKey),
    /// All clients that have asked for a session have disconnected.
    Gone,
    /// Several clients have asked for a session, or none.
    Unknown,
}

impl WorkerState {
    /// Returns the client to which a session belongs whose name is not known yet.
    pub(super) fn opener(&self) -> Opener {
        if !self.pending.creates() {
            return Opener::Unknown;
        }
        let mut openers = self.pending.values().filter(|pending| pending.what.creates()).map(Pending::client);
        let Some(first) = openers.next() else { return Opener::Unknown };
        match (openers.all(|other| other == first), first) {
            (true, Some(client)) => Opener::One(client),
            (true, None) => Opener::Gone,
            (false, _) => Opener::Unknown,
        }
    }
}

impl<O: CoreOutput> Ctx<'_, O> {
    /// Fails requests that a worker sent in sessions that are not known yet, if they have waited too long.
    pub(super) fn fail_early_requests(&mut self, worker: WorkerKey) {
        let now = self.now;
        let Some(state) = self.core.worker(worker) else { return };
        let is_due = |early: &mut EarlyMessage| {
            let is_late = now >= early.since + EARLY_REQUEST_TIMEOUT;
            is_late && View::parse(&early.line).kind() == Kind::Request
        };
        let due: Vec<EarlyMessage> = state.early_messages.extract_if(.., is_due).collect();
        state.early_bytes -= due.iter().map(|early| early.line.len()).sum::<usize>();
        for EarlyMessage { line, batch, .. } in due {
            let message = View::parse(&line);
            let Some(id) = message.id() else { continue };
            let is_permission = message.method().as_deref() == Some(method::SESSION_REQUEST_PERMISSION);
            let (id, session, server, charge) = (id.into(), None, None, None);
            let asked = Asked { worker, id, batch, is_permission, session, server, charge };
            if is_permission {
                self.answer_without_client(&asked);
            } else {
                self.fail_asked(&asked, &RpcError::new(Code::Deadline, "session is not open yet"));
            }
        }
    }

    /// Fails a request for a new session that its worker has not answered in time. The worker is not stopped:
    /// a client may have made it wait, and other clients use it. A session that it still creates has no
    /// client.
    pub(super) fn open_overdue(&mut self, worker: WorkerKey, number: u64) {
        let pending = self.core.worker(worker).and_then(|state| state.pending.set_overdue(number));
        let Some(pending) = pending else { return };
        if let Some(opening) = &mut pending.opening {
            opening.line = Box::default();
            opening.charge.set(0);
        }
        let tag = pending.tag.take();
        let asker = std::mem::replace(&mut pending.asker, RequestOrigin::Gone);
        if let RequestOrigin::Client { client, id, batch } = asker {
            if let Some(state) = self.core.client(client) {
                state.inflight.remove(&id);
            }
            let error = RpcError::new(Code::Deadline, "agent did not open the session in time");
            self.refuse(client, &id, batch, tag.as_deref(), &error.effects(Effects::Possible));
        }
        self.schedule_opening_retry();
        self.stop_idle();
    }
}
