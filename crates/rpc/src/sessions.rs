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
struct Slot {
    queue: queue::Sender<Item>,
    /// The other end, until somebody claims it. Until then only notifications are put in, so that dropping it
    /// answers nothing, which would lock the tables that this lives in.
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

    /// Where notifications of `session` go.
    pub(crate) fn route(&mut self, session: &str) -> Route {
        match self.route_request(session) {
            Route::Main if self.max_held > 0 => self.hold(session),
            route => route,
        }
    }

    /// Where requests of `session` go. They are never held: whoever asks waits for the answer, and nobody may ever
    /// claim the session.
    pub(crate) fn route_request(&self, session: &str) -> Route {
        match self.open.get(session) {
            Some(Slot { queue, unclaimed: None }) => Route::Session(queue.clone()),
            None if self.closed.contains(session) => Route::Closed,
            _ => Route::Main,
        }
    }

    fn hold(&mut self, session: &str) -> Route {
        if let Some(slot) = self.open.get(session) {
            return Route::Held(slot.queue.clone());
        }
        if self.held.len() == self.max_held
            && let Some(oldest) = self.held.pop_front()
        {
            self.open.remove(&oldest);
        }
        let (queue, receiver) = queue::bounded(self.inbox_bytes);
        self.held.push_back(session.into());
        self.open.insert(session.into(), Slot { queue: queue.clone(), unclaimed: Some(receiver) });
        Route::Held(queue)
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
    pub(crate) fn clear(&mut self) {
        self.held.clear();
        self.open.clear();
    }
}
