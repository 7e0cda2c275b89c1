//! Queue of events that wait to be written, bounded in bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use narrows_base::sync::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, oneshot};

use super::append::{Append, AppendResult};
use super::{AppendError, Receipt};
use crate::draft::Draft;

/// Bounds for the number and size of reused buffers. Reuse is cheaper than allocating memory in one thread
/// and freeing it in another.
const MAX_SPARE_BUFFERS: usize = 64;
const MAX_SPARE_BUFFER_BYTES: usize = 4096;

/// An event, and the channel to the caller that waits for it.
pub(super) struct Job {
    draft: Draft,
    answer: oneshot::Sender<AppendResult>,
    /// Permit for the bytes of the event. Dropping the permit makes room in the queue.
    _room: OwnedSemaphorePermit,
}

pub(super) struct Queue {
    state: Mutex<State>,
    /// Signaled when the writer thread has work.
    wakeup: Condvar,
    room: Arc<Semaphore>,
    max_commit: usize,
}

struct State {
    jobs: VecDeque<Job>,
    bytes: usize,
    closed: bool,
    began: Option<Instant>,
    tip: Option<Receipt>,
    spare_buffers: Vec<Vec<u8>>,
}

impl Queue {
    pub(super) fn new(bytes: usize, max_commit: usize) -> Self {
        let (jobs, spare_buffers) = (VecDeque::new(), Vec::new());
        let state = State { jobs, bytes: 0, closed: false, began: None, tip: None, spare_buffers };
        let room = Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS)));
        Self { state: Mutex::new(state), wakeup: Condvar::new(), room, max_commit }
    }

    pub(super) fn take_buffer(&self) -> Vec<u8> {
        self.state().spare_buffers.pop().unwrap_or_default()
    }

    /// Queues an event. If the queue is full, the returned future waits for room.
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

    /// Queues a job. A closed queue drops the job, and its caller gets an error.
    fn push(&self, job: Job) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        let before = state.bytes;
        state.bytes += job.draft.len();
        state.jobs.push_back(job);
        // While the writer thread waits for the end of the commit window, most jobs do not wake it.
        let wakeup = before == 0 || (before < self.max_commit && state.bytes >= self.max_commit);
        drop(state);
        if wakeup {
            self.wakeup.notify_one();
        }
    }

    /// Waits for jobs, and until the commit window since the last commit has passed. Returns `None` if the
    /// queue is closed and empty.
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

    pub(super) fn settle(
        &self,
        batch: Vec<Job>,
        commit: impl FnOnce(&[&Draft]) -> Result<Vec<Receipt>, AppendError>,
    ) {
        let drafts: Vec<&Draft> = batch.iter().map(|job| &job.draft).collect();
        // Sending fails if the caller has dropped its future, and needs no receipt.
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

    pub(super) fn close(&self) {
        self.room.close();
        self.state().closed = true;
        self.wakeup.notify_all();
    }

    /// Returns the last entry on disk.
    pub(super) fn tip(&self) -> Option<Receipt> {
        self.state().tip.clone()
    }

    pub(super) fn set_tip(&self, tip: Option<Receipt>) {
        if tip.is_some() {
            self.state().tip = tip;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Closes the queue when dropped, because the thread that empties the queue has ended.
pub(super) struct CloseOnDrop(pub(super) Arc<Queue>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
        let left = std::mem::take(&mut self.0.state().jobs);
        drop(left);
    }
}
