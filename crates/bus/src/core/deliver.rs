//! Writes to clients and workers, and pauses the sources of messages when a queue is full.

use bytes::Bytes;
use narrows_wire::{Code, Effects, RpcError, message};
use serde_json::json;

use super::Ctx;
use super::api::{ClientCloseReason, CoreAction, CoreOutput};
use super::batch::BatchKey;
use super::memory::RETRY_MS;
use super::splice::Parts;
use super::table::{ClientKey, WorkerKey};

impl<O: CoreOutput> Ctx<'_, O> {
    /// Queues a line that the bus itself made for a client. If the queue is full, reading from the client is
    /// paused: its own lines may have caused the answers.
    pub(super) fn write_client(&mut self, client: ClientKey, parts: &[&[u8]]) {
        if self.core.client(client).is_none_or(|state| state.closing) {
            return;
        }
        let waiting = self.out.to_client(client.into(), parts);
        if waiting > self.core.limits.queue_bytes
            && let Some(state) = self.core.client(client)
            && !state.self_paused
        {
            state.self_paused = true;
            self.pause_client(client);
        }
    }

    /// Returns `true` if a client does not read the bus's own answers. Requests of the client then get short
    /// errors.
    pub(super) fn is_self_paused(&self, client: ClientKey) -> bool {
        self.core.clients.get(client).is_some_and(|state| state.self_paused)
    }

    /// Queues a line of `worker` for a client. If the queue is full, a worker that only this client uses is
    /// paused. If other clients use the worker too, the client is closed instead.
    pub(super) fn deliver(&mut self, client: ClientKey, worker: WorkerKey, parts: &Parts<'_>) {
        let Some(state) = self.core.client(client) else { return };
        if state.closing {
            return;
        }
        self.core.counters.to_clients += 1;
        let waiting = self.out.to_client(client.into(), parts.as_slice());
        if waiting <= self.core.limits.queue_bytes {
            return;
        }
        let exclusive = self.core.is_exclusive(worker)
            && self.core.worker(worker).is_some_and(|state| state.client.is_none_or(|own| own == client));
        let limit = self.core.limits.queue_bytes;
        let Some(state) = self.core.client(client) else { return };
        state.full = true;
        if exclusive {
            if !state.pausing.contains(&worker) {
                state.pausing.push(worker);
                self.pause_worker(worker);
            }
        } else if parts.len() > limit && waiting.saturating_sub(parts.len()) <= limit {
            // A line longer than the limit is accepted into a queue that is not full. Otherwise it could
            // never be delivered.
            state.oversize = parts.len();
        } else if waiting > limit + state.oversize {
            self.close(client, ClientCloseReason::SlowReader);
        }
    }

    pub(super) fn client_drained(&mut self, client: ClientKey) {
        let Some(state) = self.core.client(client) else { return };
        state.full = false;
        state.oversize = 0;
        let self_paused = std::mem::take(&mut state.self_paused);
        for worker in std::mem::take(&mut state.pausing) {
            self.resume_worker(worker);
        }
        if self_paused {
            self.resume_client(client);
        }
    }

    pub(super) fn close(&mut self, client: ClientKey, reason: ClientCloseReason) {
        let Some(state) = self.core.client(client) else { return };
        if !state.closing {
            state.closing = true;
            if reason == ClientCloseReason::SlowReader {
                let words = "client reads too slowly for a shared worker";
                let line = message::error(b"null", &RpcError::new(Code::Backpressure, words));
                self.out.to_client(client.into(), &[&line]);
            }
            self.out.perform(CoreAction::Close { client: client.into(), reason });
        }
    }

    pub(super) fn refuse(
        &mut self,
        client: ClientKey,
        id: &[u8],
        batch: Option<BatchKey>,
        tag: Option<&[u8]>,
        error: &RpcError,
    ) {
        self.core.counters.refused += 1;
        let line = message::error(id, error);
        self.reply(client, batch, tag, line);
    }

    /// Answers a client's request with a line that the bus itself made.
    pub(super) fn reply(
        &mut self,
        client: ClientKey,
        batch: Option<BatchKey>,
        tag: Option<&[u8]>,
        line: Bytes,
    ) {
        let line = match tag {
            Some(tag) => message::with_session_tag(&line, tag),
            None => line,
        };
        match batch {
            Some(batch) => self.answer_in_batch(batch, line),
            None => self.write_client(client, &[&line]),
        }
        self.close_if_served(client);
    }

    pub(super) fn write_worker(&mut self, worker: WorkerKey, parts: &[&[u8]]) {
        let Some(state) = self.core.worker(worker) else { return };
        if !state.accepts_input() {
            return;
        }
        state.queued += parts.iter().map(|part| part.len() as u64).sum::<u64>() + 1;
        self.core.counters.to_workers += 1;
        let waiting = self.out.to_worker(worker.into(), parts);
        // Most lines that the bus itself sends to a worker are answers to requests of that worker. Pausing
        // the worker until it reads its input prevents further answers.
        if waiting > self.core.limits.queue_bytes
            && let Some(state) = self.core.worker(worker)
            && !std::mem::replace(&mut state.self_paused, true)
        {
            self.pause_worker(worker);
        }
    }

    /// Queues a line of `client` for a worker. If the queue of the worker is full, reading from the client is
    /// paused.
    pub(super) fn send_to_worker(&mut self, worker: WorkerKey, client: ClientKey, parts: &Parts<'_>) {
        let Some(state) = self.core.worker(worker) else { return };
        if !state.accepts_input() {
            return;
        }
        state.queued += parts.len() as u64;
        self.core.counters.to_workers += 1;
        let waiting = self.out.to_worker(worker.into(), parts.as_slice());
        if waiting <= self.core.limits.queue_bytes {
            return;
        }
        let charge = self.core.charge(client, parts.len());
        let Some(state) = self.core.worker(worker) else { return };
        state.full = true;
        state.charges.push(charge);
        if !state.pausing.contains(&client) {
            state.pausing.push(client);
            self.pause_client(client);
        }
    }

    pub(super) fn worker_drained(&mut self, worker: WorkerKey) {
        let Some(state) = self.core.worker(worker) else { return };
        state.full = false;
        state.charges.clear();
        if std::mem::take(&mut state.self_paused) {
            self.resume_worker(worker);
        }
        let Some(state) = self.core.worker(worker) else { return };
        for client in std::mem::take(&mut state.pausing) {
            self.resume_client(client);
        }
    }

    pub(super) fn pause_worker(&mut self, worker: WorkerKey) {
        let Some(state) = self.core.worker(worker) else { return };
        state.paused += 1;
        if state.paused == 1 {
            self.out.perform(CoreAction::PauseWorker(worker.into()));
        }
    }

    pub(super) fn resume_worker(&mut self, worker: WorkerKey) {
        let Some(state) = self.core.worker(worker) else { return };
        state.paused -= 1;
        if state.paused == 0 {
            self.out.perform(CoreAction::ResumeWorker(worker.into()));
        }
    }

    pub(super) fn pause_client(&mut self, client: ClientKey) {
        let Some(state) = self.core.client(client) else { return };
        state.paused += 1;
        if state.paused == 1 {
            self.out.perform(CoreAction::PauseClient(client.into()));
        }
    }

    pub(super) fn resume_client(&mut self, client: ClientKey) {
        let Some(state) = self.core.client(client) else { return };
        state.paused -= 1;
        if state.paused == 0 {
            self.out.perform(CoreAction::ResumeClient(client.into()));
        }
    }
}

/// Returns the error for a request with a long answer, if the client does not read the answers before it.
pub(super) fn too_slow() -> RpcError {
    let error = RpcError::new(Code::Backpressure, "client does not read its answers");
    error.effects(Effects::None).with("retryAfterMs", json!(RETRY_MS))
}
