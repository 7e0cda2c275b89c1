//! Draining of the bus: running turns end, then all workers and connections.

use narrows_wire::{Code, Effects, Kind, RpcError, View};

use super::Ctx;
use super::api::{ClientCloseReason, CoreAction, CoreOutput};
use super::state::RequestOrigin;
use super::table::{ClientKey, WorkerKey};
use super::timer::Timer;

impl<O: CoreOutput> Ctx<'_, O> {
    pub(super) fn drain(&mut self) {
        if self.core.draining {
            return;
        }
        self.core.draining = true;
        let at = self.now + self.core.limits.drain_timeout;
        self.core.timers.set(at, Timer::Drained);
        let error = RpcError::new(Code::Draining, "bus is shutting down");
        for client in self.all_clients() {
            self.refuse_held(client, &error);
        }
        self.finish_if_drained();
    }

    fn all_clients(&self) -> Vec<ClientKey> {
        self.core.clients.iter().map(|(key, _)| key).collect()
    }

    fn all_workers(&self) -> Vec<WorkerKey> {
        self.core.workers.iter().map(|(key, _)| key).collect()
    }

    /// Stops all workers and closes all clients once no request is pending and no turn runs.
    pub(super) fn finish_if_drained(&mut self) {
        if !self.core.draining || self.core.finished {
            return;
        }
        let waits = self.core.clients.iter().any(|(_, client)| !client.inflight.is_empty());
        let runs = self.core.sessions.iter().any(|(_, session)| session.running && session.owner.is_some());
        if waits || runs {
            return;
        }
        for worker in self.all_workers() {
            self.stop_worker(worker, false);
        }
        for client in self.all_clients() {
            self.close(client, ClientCloseReason::Draining);
        }
        if self.core.workers.is_empty() && self.core.clients.is_empty() {
            self.core.finished = true;
            self.out.perform(CoreAction::Finished);
        }
    }

    /// Ends the drain because the time limit for active turns has passed.
    pub(super) fn stop_waiting(&mut self) {
        self.drain();
        let error = RpcError::new(Code::Draining, "bus stopped").effects(Effects::Possible);
        for worker in self.all_workers() {
            self.fail_all(worker, &error);
        }
        // The remaining lines were never sent to a worker.
        let error = RpcError::new(Code::Draining, "bus stopped");
        let mut lines = Vec::new();
        for worker in self.core.workers.values_mut() {
            lines.append(&mut worker.backlog);
            lines.append(&mut worker.refused);
        }
        lines.extend(self.core.awaited_creations.lines.drain(..).map(|(_, waiting)| waiting));
        let keys: Vec<_> = self.core.sessions.iter().map(|(key, _)| key).collect();
        for key in keys {
            lines.extend(
                self.core.sessions.get_mut(key).into_iter().flat_map(|it| std::mem::take(&mut it.waiting)),
            );
        }
        for line in lines {
            self.release_request_id(line.client, &line.line);
            let message = View::parse(&line.line);
            if let (Kind::Request, Some(id)) = (message.kind(), message.id()) {
                self.refuse(line.client, id, line.batch, message.tag(), &error);
            }
        }
        for client in self.all_clients() {
            self.refuse_held(client, &error);
            let Some(state) = self.core.client(client) else { continue };
            let mut ids: Vec<_> = state.inflight.keys().cloned().collect();
            ids.sort_unstable();
            for id in ids {
                if let Some(state) = self.core.client(client) {
                    state.inflight.remove(&id);
                }
                self.refuse(client, &id, None, None, &error);
            }
        }
        for worker in self.core.workers.values_mut() {
            for pending in worker.pending.values_mut() {
                pending.asker = RequestOrigin::Gone;
            }
        }
        let error = error.effects(Effects::Possible);
        let keys: Vec<_> = self.core.sessions.iter().map(|(key, _)| key).collect();
        for key in keys {
            let Some(session) = self.core.sessions.get_mut(key) else { continue };
            if std::mem::take(&mut session.running)
                && let Some(owner) = session.owner
            {
                self.send_failed(owner, key, &error);
            }
        }
        self.finish_if_drained();
    }
}
