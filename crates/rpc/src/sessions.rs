//! The table of sessions and their inboxes.

use std::collections::{HashMap, HashSet, VecDeque};

use narrows_link::queue;

use crate::inbox::Item;

/// Limit of a session id. Messages with longer ids are not held for a session, because they would fill the
/// tables. No agent uses longer ids.
const MAX_SESSION_ID_BYTES: usize = 4096;

const HELD_MESSAGE_OVERHEAD_BYTES: usize = 256;

/// Number of closed sessions that are remembered, so that late messages for them are ignored.
const MAX_CLOSED_SESSIONS: usize = 1024;

/// Error: the inbox of this session is already claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the session is already claimed")]
pub struct AlreadyClaimed;

pub(crate) enum InboxRoute {
    Session(queue::Sender<Item>),
    /// An unclaimed inbox. Sending must not wait for room, because the inbox may never be read.
    Held(queue::Sender<Item>),
    /// The message is dropped because the limit of messages for unclaimed sessions is reached.
    Full,
    /// The inbox of the conversation ([`crate::Inbox`]).
    Main,
    /// The message is dropped because its session is closed. A request is answered with an error.
    Closed,
}

struct SessionSlot {
    queue: queue::Sender<Item>,
    /// The receiving end until the session is claimed. Until then the queue holds only notifications, so
    /// dropping the queue sends no answers. An answer would lock the tables that contain this slot.
    unclaimed: Option<queue::Receiver<Item>>,
    held_bytes: usize,
}

pub(crate) struct Sessions {
    open: HashMap<Box<str>, SessionSlot>,
    held: VecDeque<Box<str>>,
    max_held: usize,
    /// Bytes held for all unclaimed sessions together. The limit is that of a single inbox.
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

    /// Returns the destination of a notification of `session` with `size` bytes.
    pub(crate) fn route(&mut self, session: &str, size: usize) -> InboxRoute {
        match self.route_request(session) {
            InboxRoute::Main if self.max_held > 0 && session.len() <= MAX_SESSION_ID_BYTES => {
                self.hold(session, size)
            }
            route => route,
        }
    }

    /// Returns the destination of requests of `session`. Requests are never held: the peer waits for the
    /// answer, and the session may never be claimed.
    pub(crate) fn route_request(&self, session: &str) -> InboxRoute {
        match self.open.get(session) {
            Some(SessionSlot { queue, unclaimed: None, .. }) => InboxRoute::Session(queue.clone()),
            None if self.closed.contains(session) => InboxRoute::Closed,
            _ => InboxRoute::Main,
        }
    }

    fn hold(&mut self, session: &str, size: usize) -> InboxRoute {
        let known = self.open.contains_key(session);
        if !known
            && self.held.len() == self.max_held
            && let Some(oldest) = self.held.pop_front()
            && let Some(slot) = self.open.remove(&oldest)
        {
            self.held_bytes -= slot.held_bytes;
        }
        let cost = size + HELD_MESSAGE_OVERHEAD_BYTES + if known { 0 } else { 2 * session.len() };
        if self.held_bytes + cost > self.inbox_bytes {
            return InboxRoute::Full;
        }
        if !known {
            let (queue, receiver) = queue::bounded(self.inbox_bytes);
            self.held.push_back(session.into());
            self.open.insert(session.into(), SessionSlot { queue, unclaimed: Some(receiver), held_bytes: 0 });
        }
        match self.open.get_mut(session) {
            Some(slot) => {
                slot.held_bytes += cost;
                self.held_bytes += cost;
                InboxRoute::Held(slot.queue.clone())
            }
            None => InboxRoute::Full,
        }
    }

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
        self.open.insert(session.into(), SessionSlot { queue, unclaimed: None, held_bytes: 0 });
        Ok(receiver)
    }

    pub(crate) fn queue(&self, session: &str) -> Option<queue::Sender<Item>> {
        self.open.get(session).map(|slot| slot.queue.clone())
    }

    /// Closes a claimed session. Later messages for it are ignored.
    pub(crate) fn close(&mut self, session: &str) {
        self.open.remove(session);
        if self.closed_order.len() == MAX_CLOSED_SESSIONS
            && let Some(oldest) = self.closed_order.pop_front()
        {
            self.closed.remove(&oldest);
        }
        if self.closed.insert(session.into()) {
            self.closed_order.push_back(session.into());
        }
    }

    /// Closes every inbox. Receivers still get the queued items.
    pub(crate) fn clear(&mut self) {
        self.held.clear();
        self.held_bytes = 0;
        self.open.clear();
    }
}
