//! State shared by the handles and the dispatch loop.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use narrows_base::sync::lock;
use narrows_link::{CloseReason, Sender, queue};
use narrows_wire::{Effects, Frame, RawId};
use tokio::sync::oneshot;

use crate::call::Response;
use crate::error::CallError;
use crate::inbox::{Answer, Item};
use crate::options::Options;
use crate::request::Progress;
use crate::sessions::Sessions;
use crate::signal::Signal;

/// Counters of a conversation. The link has separate ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub noise: u64,
    /// Part of `noise`: lines that look like a message, so that a message was probably lost.
    pub unreadable: u64,
    /// JSON lines that were not valid messages, not counting batch entries.
    pub invalid: u64,
    pub unasked: u64,
    /// Answers to requests that were cancelled or timed out.
    pub late: u64,
    /// Ignored messages: notifications that are not served, or for a closed session.
    pub ignored: u64,
    /// Messages dropped because too much was held for unclaimed sessions.
    pub unclaimed: u64,
    /// Updates that name no session.
    pub nameless: u64,
    /// Part of `nameless`: updates that may be part of an agent's answer.
    pub nameless_answers: u64,
}

const MAX_STRAY_LINES: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) noise: AtomicU64,
    pub(crate) unreadable: AtomicU64,
    pub(crate) invalid: AtomicU64,
    pub(crate) unasked: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) ignored: AtomicU64,
    pub(crate) unclaimed: AtomicU64,
    pub(crate) nameless: AtomicU64,
    pub(crate) nameless_answers: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The destination of an answer to a request of this side.
pub(crate) enum Pending {
    Caller(oneshot::Sender<Result<Response, CallError>>),
    /// The inbox of a session: the answer is queued after everything received before.
    Session(queue::Sender<Item>),
}

pub(crate) struct Tables {
    next_id: u64,
    pending: HashMap<u64, Pending>,
    /// Requests of the peer that are not answered yet.
    pub(crate) answering: HashMap<RawId, Arc<Progress>>,
    pub(crate) sessions: Sessions,
    /// `Some` when the conversation is over.
    over: Option<CloseReason>,
}

pub(crate) struct Shared {
    pub(crate) sender: Sender,
    pub(crate) options: Options,
    pub(crate) counters: Counters,
    stray_lines: Mutex<Vec<String>>,
    /// Number of batches that wait for the answer to one of their entries.
    pub(crate) waiting_batches: AtomicUsize,
    /// Raised to make the dispatch loop end.
    pub(crate) stop: Signal,
    /// Raised after the dispatch loop has ended and every request has its outcome.
    pub(crate) ended: Signal,
    tables: Mutex<Tables>,
}

impl Shared {
    pub(crate) fn new(sender: Sender, options: Options) -> Self {
        let tables = Tables {
            next_id: 1,
            pending: HashMap::new(),
            answering: HashMap::new(),
            sessions: Sessions::new(options.held_sessions, options.inbox_bytes),
            over: None,
        };
        Self {
            sender,
            options,
            counters: Counters::default(),
            stray_lines: Mutex::default(),
            waiting_batches: AtomicUsize::new(0),
            stop: Signal::default(),
            ended: Signal::default(),
            tables: Mutex::new(tables),
        }
    }

    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        // No code panics while it holds the lock. Even after a panic the tables would be consistent.
        lock(&self.tables)
    }

    /// Keeps a line that is not JSON, up to [`MAX_STRAY_LINES`].
    pub(crate) fn keep_stray_line(&self, line: impl fmt::Display) {
        let mut stray_lines = lock(&self.stray_lines);
        if stray_lines.len() < MAX_STRAY_LINES {
            stray_lines.push(line.to_string());
        }
    }

    pub(crate) fn stray_lines(&self) -> Vec<String> {
        lock(&self.stray_lines).clone()
    }

    pub(crate) fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            noise: read(&self.counters.noise),
            unreadable: read(&self.counters.unreadable),
            invalid: read(&self.counters.invalid),
            unasked: read(&self.counters.unasked),
            late: read(&self.counters.late),
            ignored: read(&self.counters.ignored),
            unclaimed: read(&self.counters.unclaimed),
            nameless: read(&self.counters.nameless),
            nameless_answers: read(&self.counters.nameless_answers),
        }
    }

    /// Returns the error of a request that was not sent and so had no effects.
    pub(crate) fn lost_unsent(&self) -> CallError {
        let reason = self.tables().over.clone().unwrap_or_else(|| self.sender.reason());
        CallError::Lost { reason, effects: Effects::None }
    }

    /// Allocates an id for a request and registers the destination of its answer.
    pub(crate) fn expect(&self, pending: Pending) -> Result<u64, CallError> {
        let mut tables = self.tables();
        if tables.over.is_some() {
            drop(tables);
            return Err(self.lost_unsent());
        }
        let id = tables.next_id;
        tables.next_id += 1;
        tables.pending.insert(id, pending);
        Ok(id)
    }

    /// Removes a request. Returns `false` if it already has an outcome.
    pub(crate) fn forget(&self, id: u64) -> bool {
        self.tables().pending.remove(&id).is_some()
    }

    /// Passes `outcome` to the request that `frame` answers. Returns `None` if there is no such request.
    pub(crate) fn settle(&self, frame: &Frame, outcome: Result<Response, CallError>) -> Option<()> {
        let id: u64 = std::str::from_utf8(frame.id()?).ok()?.parse().ok()?;
        let (pending, minted) = {
            let mut tables = self.tables();
            (tables.pending.remove(&id), id != 0 && id < tables.next_id)
        };
        match pending {
            Some(pending) => deliver(id, pending, outcome),
            None if minted => count(&self.counters.late),
            None => return None,
        }
        Some(())
    }

    /// Ends the conversation: fails every pending request and closes every inbox.
    pub(crate) fn end(&self, reason: &CloseReason) {
        let (pending, answering) = {
            let mut tables = self.tables();
            tables.over.get_or_insert_with(|| reason.clone());
            tables.sessions.clear();
            (std::mem::take(&mut tables.pending), std::mem::take(&mut tables.answering))
        };
        for (id, pending) in pending {
            let lost = CallError::Lost { reason: reason.clone(), effects: Effects::Possible };
            deliver(id, pending, Err(lost));
        }
        // The results for a lost peer are useless, so the work on its requests is cancelled.
        for progress in answering.into_values() {
            progress.cancelled.raise();
        }
        self.ended.raise();
    }
}

fn deliver(id: u64, pending: Pending, outcome: Result<Response, CallError>) {
    match pending {
        // A caller that was dropped needs no answer, so a failed send is ignored.
        Pending::Caller(caller) => drop(caller.send(outcome)),
        Pending::Session(inbox) => {
            let size = outcome.as_ref().map_or(0, |response| response.frame().bytes().len());
            // A session that was dropped needs no answer.
            let _ = inbox.push(Item::Answer(Answer { id, outcome }), size);
        }
    }
}
