//! Which inbox the messages of a session go to.

use std::collections::{HashMap, HashSet, VecDeque};

use narrows_link::queue;

use crate::inbox::Item;

/// The longest id of a session that is kept: longer ones would fill the tables, and no agent has them.
const MAX_ID: usize = 4096;

/// What holding a message costs beside its bytes.
const OVERHEAD: usize = 256;

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
    /// Nowhere: what is held for sessions that nobody has claimed has reached its bound.
    Full,
    /// To the inbox of the conversation.
    Main,
    /// Nowhere: its session is closed.
    Closed,
}

/// An open session.
struct Slot {
    queue: queue::Sender<Item>,
    /// The other end, until somebody claims it. Until then only notifications are put in, so that dropping it
    /// answers nothing, which would lock the tables that this lives in.
    unclaimed: Option<queue::Receiver<Item>>,
    /// What is held for it until then.
    held_bytes: usize,
}

pub(crate) struct Sessions {
    open: HashMap<Box<str>, Slot>,
    /// Unclaimed sessions, oldest first.
    held: VecDeque<Box<str>>,
    max_held: usize,
    /// What is held for all of them together: as much as one inbox may have.
    held_bytes: usize,
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
            held_bytes: 0,
            closed: HashSet::new(),
            closed_order: VecDeque::new(),
            inbox_bytes,
        }
    }

    /// Where a notification of `session` of `size` bytes goes.
    pub(crate) fn route(&mut self, session: &str, size: usize) -> Route {
        match self.route_request(session) {
            Route::Main if self.max_held > 0 && session.len() <= MAX_ID => self.hold(session, size),
            route => route,
        }
    }

    /// Where requests of `session` go. They are never held: whoever asks waits for the answer, and nobody may ever
    /// claim the session.
    pub(crate) fn route_request(&self, session: &str) -> Route {
        match self.open.get(session) {
            Some(Slot { queue, unclaimed: None, .. }) => Route::Session(queue.clone()),
            None if self.closed.contains(session) => Route::Closed,
            _ => Route::Main,
        }
    }

    fn hold(&mut self, session: &str, size: usize) -> Route {
        let known = self.open.contains_key(session);
        if !known
            && self.held.len() == self.max_held
            && let Some(oldest) = self.held.pop_front()
            && let Some(slot) = self.open.remove(&oldest)
        {
            self.held_bytes -= slot.held_bytes;
        }
        let cost = size + OVERHEAD + if known { 0 } else { 2 * session.len() };
        if self.held_bytes + cost > self.inbox_bytes {
            return Route::Full;
        }
        if !known {
            let (queue, receiver) = queue::bounded(self.inbox_bytes);
            self.held.push_back(session.into());
            self.open.insert(session.into(), Slot { queue, unclaimed: Some(receiver), held_bytes: 0 });
        }
        match self.open.get_mut(session) {
            Some(slot) => {
                slot.held_bytes += cost;
                self.held_bytes += cost;
                Route::Held(slot.queue.clone())
            }
            None => Route::Full,
        }
    }

    /// The inbox of `session`, with what was held for it.
    pub(crate) fn claim(&mut self, session: &str) -> Result<queue::Receiver<Item>, AlreadyClaimed> {
        if self.closed.remove(session) {
            self.closed_order.retain(|closed| &**closed != session);
        }
        if let Some(slot) = self.open.get_mut(session) {
            self.held.retain(|held| &**held != session);
            self.held_bytes -= std::mem::take(&mut slot.held_bytes);
            return slot.unclaimed.take().ok_or(AlreadyClaimed);
        }
        let (queue, receiver) = queue::bounded(self.inbox_bytes);
        self.open.insert(session.into(), Slot { queue, unclaimed: None, held_bytes: 0 });
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
    pub(crate) fn clear(&mut self) {
        self.held.clear();
        self.held_bytes = 0;
        self.open.clear();
    }
}
