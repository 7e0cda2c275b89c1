//! Which inbox the messages of a session go to.

use std::collections::{HashMap, HashSet, VecDeque};

use narrows_link::queue;

use crate::inbox::Item;

/// How many closed sessions are remembered, so that what still comes for them is passed over.
const REMEMBERED: usize = 1024;

/// Somebody else holds the inbox of this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the session has been claimed already")]
pub struct AlreadyClaimed;

/// Where a message goes.
pub(crate) enum Route {
    /// To the inbox of its session.
    Session(queue::Sender<Item>),
    /// To an inbox nobody has claimed yet: nobody makes room there, so it must not be waited for.
    Held(queue::Sender<Item>),
    /// To the inbox of the conversation.
    Main,
    /// Nowhere: its session is closed.
    Closed,
}

/// An open session.
///
/// A slot may hold requests, whose dropping answers them and so locks the tables this lives in: whoever removes a
/// slot hands it out, to be dropped outside the lock.
pub(crate) struct Slot {
    queue: queue::Sender<Item>,
    /// The other end, until somebody claims it.
    unclaimed: Option<queue::Receiver<Item>>,
}

pub(crate) struct Sessions {
    open: HashMap<Box<str>, Slot>,
    /// Unclaimed sessions, oldest first.
    held: VecDeque<Box<str>>,
    max_held: usize,
    closed: HashSet<Box<str>>,
    closed_order: VecDeque<Box<str>>,
    inbox_bytes: usize,
}

impl Sessions {
    pub(crate) fn new(max_held: usize, inbox_bytes: usize) -> Self {
        Self {
            open: HashMap::new(),
            held: VecDeque::new(),
            max_held,
            closed: HashSet::new(),
            closed_order: VecDeque::new(),
            inbox_bytes,
        }
    }

    /// Where messages of `session` go, and the session that was given up to make room for it.
    pub(crate) fn route(&mut self, session: &str) -> (Route, Option<Slot>) {
        if let Some(slot) = self.open.get(session) {
            let queue = slot.queue.clone();
            return (if slot.unclaimed.is_some() { Route::Held(queue) } else { Route::Session(queue) }, None);
        }
        if self.closed.contains(session) {
            return (Route::Closed, None);
        }
        if self.max_held == 0 {
            return (Route::Main, None);
        }
        let oldest = if self.held.len() == self.max_held { self.held.pop_front() } else { None };
        let given_up = oldest.and_then(|oldest| self.open.remove(&oldest));
        let (queue, receiver) = queue::bounded(self.inbox_bytes);
        self.held.push_back(session.into());
        self.open.insert(session.into(), Slot { queue: queue.clone(), unclaimed: Some(receiver) });
        (Route::Held(queue), given_up)
    }

    /// The inbox of `session`, with what was held for it.
    pub(crate) fn claim(&mut self, session: &str) -> Result<queue::Receiver<Item>, AlreadyClaimed> {
        self.closed.remove(session);
        if let Some(slot) = self.open.get_mut(session) {
            self.held.retain(|held| &**held != session);
            return slot.unclaimed.take().ok_or(AlreadyClaimed);
        }
        let (queue, receiver) = queue::bounded(self.inbox_bytes);
        self.open.insert(session.into(), Slot { queue, unclaimed: None });
        Ok(receiver)
    }

    /// The queue into the inbox of `session`, if it is claimed.
    pub(crate) fn queue(&self, session: &str) -> Option<queue::Sender<Item>> {
        self.open.get(session).map(|slot| slot.queue.clone())
    }

    /// Forgets `session`, which has been claimed; what still comes for it is passed over.
    pub(crate) fn close(&mut self, session: &str) {
        self.open.remove(session);
        if self.closed_order.len() == REMEMBERED
            && let Some(oldest) = self.closed_order.pop_front()
        {
            self.closed.remove(&oldest);
        }
        if self.closed.insert(session.into()) {
            self.closed_order.push_back(session.into());
        }
    }

    /// Lets go of every inbox: their holders see the end after what is in them.
    #[must_use]
    pub(crate) fn clear(&mut self) -> HashMap<Box<str>, Slot> {
        self.held.clear();
        std::mem::take(&mut self.open)
    }
}
