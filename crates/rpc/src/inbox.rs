//! What comes from the peer, in order.

use std::sync::Arc;

use narrows_link::{CloseReason, queue};
use narrows_wire::Frame;

use crate::call::Response;
use crate::error::CallError;
use crate::peer::Alive;
use crate::request::Request;

/// Something that came.
#[derive(Debug)]
pub enum Item {
    /// The peer asks; it wants an answer.
    Request(Request),
    /// The peer tells.
    Notification(Frame),
    /// The answer to a request made with [`crate::Peer::call_in`].
    Answer(Answer),
}

/// The answer to a request made with [`crate::Peer::call_in`], in its place among the messages of the session.
#[derive(Debug)]
pub struct Answer {
    /// What [`crate::Peer::call_in`] returned.
    pub id: u64,
    /// The answer.
    pub outcome: Result<Response, CallError>,
}

/// Everything that belongs to no claimed session.
///
/// Read it, or drop it: one that is kept and not read stops the whole conversation when it is full. Once dropped, what
/// would have come in it is passed over, and requests are answered with an error. Dropping it and every
/// [`crate::Peer`] and [`Session`] ends the conversation.
pub struct Inbox {
    queue: queue::Receiver<Item>,
    alive: Arc<Alive>,
}

impl Inbox {
    pub(crate) fn new(queue: queue::Receiver<Item>, alive: Arc<Alive>) -> Self {
        Self { queue, alive }
    }

    /// What comes next, or `None` when the conversation is over. Safe to cancel.
    pub async fn recv(&mut self) -> Option<Item> {
        self.queue.recv().await
    }

    /// Why the conversation is over.
    #[must_use]
    pub fn reason(&self) -> CloseReason {
        self.alive.shared.sender.reason()
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

/// Everything that belongs to one session, in the order in which the peer sent it.
///
/// When it is dropped the session counts as closed on this side: what still comes for it is passed over, and requests
/// that come for it are answered with -32002.
pub struct Session {
    id: Box<str>,
    queue: queue::Receiver<Item>,
    alive: Arc<Alive>,
}

impl Session {
    pub(crate) fn new(id: &str, queue: queue::Receiver<Item>, alive: Arc<Alive>) -> Self {
        Self { id: id.into(), queue, alive }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What comes next, or `None` when the conversation is over. Safe to cancel.
    pub async fn recv(&mut self) -> Option<Item> {
        self.queue.recv().await
    }

    /// What is there already.
    pub fn try_recv(&mut self) -> Option<Item> {
        self.queue.try_recv()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.alive.shared.tables().sessions.close(&self.id);
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("id", &self.id).finish_non_exhaustive()
    }
}
