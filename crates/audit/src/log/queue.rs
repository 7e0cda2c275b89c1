//! Events that wait to be written, bounded in bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use narrows_base::sync::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot};

use super::append::{Append, AppendResult};
use super::{AppendError, Receipt};
use crate::draft::Draft;

/// Limits of spare buffers in number and size. Reusing them is cheaper than memory that one thread allocates and
/// another frees.
const MAX_SPARE_BUFFERS: usize = 64;
const MAX_SPARE_BUFFER_BYTES: usize = 4096;

/// An event and its waiting caller.
pub(super) struct Job {
    draft: Draft,
    answer: oneshot::Sender<AppendResult>,
    /// Its share of the budget.
    _room: OwnedSemaphorePermit,
}

/// The queue of events.
pub(super) struct Queue {
    state: Mutex<State>,
    /// There is new work.
    wakeup: Condvar,
    room: Arc<Semaphore>,
    max_commit: usize,
}

struct State {
    jobs: VecDeque<Job>,
    bytes: usize,
    closed: bool,
    /// When the last commit began.
    began: Option<Instant>,
    tip: Option<Receipt>,
    /// Buffers of drafts that are on disk.
    spare_buffers: Vec<Vec<u8>>,
}

impl Queue {
    pub(super) fn new(bytes: usize, max_commit: usize) -> Self {
        let (jobs, spare_buffers) = (VecDeque::new(), Vec::new());
        let state = State { jobs, bytes: 0, closed: false, began: None, tip: None, spare_buffers };
        let room = Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS)));
        Self { state: Mutex::new(state), wakeup: Condvar::new(), room, max_commit }
    }

    /// Returns a buffer for a draft.
    pub(super) fn take_buffer(&self) -> Vec<u8> {
        self.state().spare_buffers.pop().unwrap_or_default()
    }

    /// Queues an event, or waits for room.
    pub(super) fn append(self: &Arc<Self>, draft: Draft) -> Append {
        let Ok(bytes) = u32::try_from(draft.len()) else { return Append::failed(AppendError::Closed) };
        let (answer, receiver) = oneshot::channel();
        match Arc::clone(&self.room).try_acquire_many_owned(bytes) {
            Ok(room) => {
                self.push(Job { draft, answer, _room: room });
                Append::queued(receiver)
            }
            Err(TryAcquireError::Closed) => Append::failed(AppendError::Closed),
            Err(TryAcquireError::NoPermits) => {
                let queue = Arc::clone(self);
                Append::waiting(async move {
                    let room = Arc::clone(&queue.room).acquire_many_owned(bytes).await;
                    let room = room.map_err(|_| AppendError::Closed)?;
                    queue.push(Job { draft, answer, _room: room });
                    drop(queue);
                    receiver.await.unwrap_or(Err(AppendError::Closed))
                })
            }
        }
    }

    /// A job that comes too late is dropped, which its caller notices.
    fn push(&self, job: Job) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        let before = state.bytes;
        state.bytes += job.draft.len();
        state.jobs.push_back(job);
        // A thread that waits for the end of the window must not be woken for each job.
        let wakeup = before == 0 || (before < self.max_commit && state.bytes >= self.max_commit);
        drop(state);
        if wakeup {
            self.wakeup.notify_one();
        }
    }

    /// Waits for jobs, and then until the last commit is a window ago. Returns `None` when everything is done.
    pub(super) fn next_batch(&self, window: Duration) -> Option<Vec<Job>> {
        let mut state = self.state();
        while state.jobs.is_empty() {
            if state.closed {
                return None;
            }
            state = self.wakeup.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        while !state.closed && state.bytes < self.max_commit {
            let left = state.began.map_or(Duration::ZERO, |began| window.saturating_sub(began.elapsed()));
            if left.is_zero() {
                break;
            }
            state = self.wakeup.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.began = Some(Instant::now());
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(job) = state.jobs.pop_front() {
            bytes += job.draft.len();
            if bytes > self.max_commit && !batch.is_empty() {
                bytes -= job.draft.len();
                state.jobs.push_front(job);
                break;
            }
            batch.push(job);
        }
        state.bytes -= bytes;
        Some(batch)
    }

    /// Executes the jobs and answers their callers.
    pub(super) fn settle(
        &self,
        batch: Vec<Job>,
        commit: impl FnOnce(&[&Draft]) -> Result<Vec<Receipt>, AppendError>,
    ) {
        let drafts: Vec<&Draft> = batch.iter().map(|job| &job.draft).collect();
        // A caller that was dropped needs no answer.
        match commit(&drafts) {
            Ok(receipts) => {
                self.set_tip(receipts.last().cloned());
                let mut spare_buffers = Vec::with_capacity(batch.len().min(MAX_SPARE_BUFFERS));
                for (Job { draft, answer, .. }, receipt) in batch.into_iter().zip(receipts) {
                    let _ = answer.send(Ok(receipt));
                    let sheet = draft.into_buffer();
                    if spare_buffers.len() < MAX_SPARE_BUFFERS && sheet.capacity() <= MAX_SPARE_BUFFER_BYTES {
                        spare_buffers.push(sheet);
                    }
                }
                let mut state = self.state();
                let room = MAX_SPARE_BUFFERS.saturating_sub(state.spare_buffers.len());
                state.spare_buffers.extend(spare_buffers.into_iter().take(room));
            }
            Err(error) => {
                for job in batch {
                    let _ = job.answer.send(Err(error.clone()));
                }
            }
        }
    }

    /// Accepts no more jobs.
    pub(super) fn close(&self) {
        self.room.close();
        self.state().closed = true;
        self.wakeup.notify_all();
    }

    /// The last entry on disk.
    pub(super) fn tip(&self) -> Option<Receipt> {
        self.state().tip.clone()
    }

    /// Sets the last entry on disk.
    pub(super) fn set_tip(&self, tip: Option<Receipt>) {
        if tip.is_some() {
            self.state().tip = tip;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Closes the queue on drop, because it is not emptied any more.
pub(super) struct CloseOnDrop(pub(super) Arc<Queue>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
        let left = std::mem::take(&mut self.0.state().jobs);
        drop(left);
    }
}
