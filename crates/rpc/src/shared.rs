//! What the handles of a conversation and its dispatch loop share.

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

/// What happened in a conversation so far beside what its link counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Lines that were not JSON.
    pub noise: u64,
    /// JSON that was no valid message, entries of batches not counted.
    pub invalid: u64,
    /// Answers to requests we never made.
    pub unasked: u64,
    /// Answers to requests we had given up on.
    pub late: u64,
    /// Messages passed over: notifications nobody serves, or for a session that is closed.
    pub ignored: u64,
    /// Messages dropped because too much was held for sessions that nobody claimed.
    pub unclaimed: u64,
    /// Updates that named no session, so that they belong to nobody.
    pub nameless: u64,
    /// Those of them that may be a piece of an agent's answer.
    pub nameless_answers: u64,
}

/// How many lines that are no messages are kept to be shown.
const STRAYS: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) noise: AtomicU64,
    pub(crate) invalid: AtomicU64,
    pub(crate) unasked: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) ignored: AtomicU64,
    pub(crate) unclaimed: AtomicU64,
    pub(crate) nameless: AtomicU64,
    pub(crate) nameless_answers: AtomicU64,
}

/// Counts one more.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Where the answer to a request of ours goes.
pub(crate) enum Pending {
    /// To whoever waits for it.
    Caller(oneshot::Sender<Result<Response, CallError>>),
    /// Into the inbox of a session, behind everything that came before it.
    Session(queue::Sender<Item>),
}

pub(crate) struct Tables {
    next_id: u64,
    pending: HashMap<u64, Pending>,
    /// The requests of the peer that are being answered.
    pub(crate) answering: HashMap<RawId, Arc<Progress>>,
    pub(crate) sessions: Sessions,
    /// Set when the conversation is over.
    over: Option<CloseReason>,
}

pub(crate) struct Shared {
    pub(crate) sender: Sender,
    pub(crate) options: Options,
    pub(crate) counters: Counters,
    /// The beginnings of the first lines that were no messages.
    strays: Mutex<Vec<String>>,
    /// Batches that wait for one of their entries.
    pub(crate) waiting_batches: AtomicUsize,
    /// Raised to end the dispatch loop from this side.
    pub(crate) stop: Signal,
    /// Raised when the dispatch loop has ended and everything is settled.
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
            strays: Mutex::default(),
            waiting_batches: AtomicUsize::new(0),
            stop: Signal::default(),
            ended: Signal::default(),
            tables: Mutex::new(tables),
        }
    }

    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        // No code panics while it holds the lock; were it so, the tables would still be consistent.
        lock(&self.tables)
    }

    /// Keeps a line that is no message, if few have been.
    pub(crate) fn keep_stray(&self, line: impl fmt::Display) {
        let mut strays = lock(&self.strays);
        if strays.len() < STRAYS {
            strays.push(line.to_string());
        }
    }

    pub(crate) fn strays(&self) -> Vec<String> {
        lock(&self.strays).clone()
    }

    pub(crate) fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            noise: read(&self.counters.noise),
            invalid: read(&self.counters.invalid),
            unasked: read(&self.counters.unasked),
            late: read(&self.counters.late),
            ignored: read(&self.counters.ignored),
            unclaimed: read(&self.counters.unclaimed),
            nameless: read(&self.counters.nameless),
            nameless_answers: read(&self.counters.nameless_answers),
        }
    }

    /// The error of a request that cannot be sent, with nothing done.
    pub(crate) fn lost_unsent(&self) -> CallError {
        let reason = self.tables().over.clone().unwrap_or_else(|| self.sender.reason());
        CallError::Lost { reason, effects: Effects::None }
    }

    /// Takes an id for a request of ours, and notes where its answer goes.
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

    /// Gives up on a request of ours; `false` if it was settled already.
    pub(crate) fn forget(&self, id: u64) -> bool {
        self.tables().pending.remove(&id).is_some()
    }

    /// Settles the request that `frame` answers, if it is one of ours; `None` if it is not.
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

    /// Ends the conversation: settles everything that waits for the peer and closes every inbox.
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
        // Whoever still works on a request of a peer that has gone works for nobody.
        for progress in answering.into_values() {
            progress.cancelled.raise();
        }
        self.ended.raise();
    }
}

fn deliver(id: u64, pending: Pending, outcome: Result<Response, CallError>) {
    match pending {
        // A caller that has gone needs no answer.
        Pending::Caller(caller) => drop(caller.send(outcome)),
        Pending::Session(inbox) => {
            let size = outcome.as_ref().map_or(0, |response| response.frame().bytes().len());
            // A session that has been given up needs no answer.
            let _ = inbox.push(Item::Answer(Answer { id, outcome }), size);
        }
    }
}
