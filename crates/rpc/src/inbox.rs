//! Incoming messages in the order in which the peer sent them.

use std::sync::Arc;

use narrows_link::{CloseReason, queue};
use narrows_wire::Frame;

use crate::call::Response;
use crate::error::CallError;
use crate::peer::EndOnDrop;
use crate::request::Request;

/// An incoming item.
#[derive(Debug)]
pub enum Item {
    /// A request; it must be answered.
    Request(Request),
    Notification(Frame),
    Answer(Answer),
}

/// The answer to a request made with [`crate::Peer::call_in`], in the order in which the peer sent it among
/// the messages of the session.
#[derive(Debug)]
pub struct Answer {
    pub id: u64,
    pub outcome: Result<Response, CallError>,
}

/// Incoming items that belong to no claimed session.
///
/// Must be read or dropped: an inbox that is kept but not read stops the conversation when it is full. After
/// a drop, its notifications are ignored and its requests are answered with an error. The conversation ends
/// when the inbox, every [`crate::Peer`] and every [`Session`] are dropped.
pub struct Inbox {
    queue: queue::Receiver<Item>,
    alive: Arc<EndOnDrop>,
}

impl Inbox {
    pub(crate) fn new(queue: queue::Receiver<Item>, alive: Arc<EndOnDrop>) -> Self {
        Self { queue, alive }
    }

    /// Receives the next item, or `None` when the conversation is over. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Item> {
        self.queue.recv().await
    }

    /// Returns the reason why the conversation is over.
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

/// Incoming items of one session, in the order in which the peer sent them.
///
/// Dropping it closes the session on this side: later notifications for it are ignored, and requests are
/// answered with -32002.
pub struct Session {
    id: Box<str>,
    queue: queue::Receiver<Item>,
    alive: Arc<EndOnDrop>,
}

impl Session {
    pub(crate) fn new(id: &str, queue: queue::Receiver<Item>, alive: Arc<EndOnDrop>) -> Self {
        Self { id: id.into(), queue, alive }
    }

    /// Returns the id that the session was claimed with.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Receives the next item, or `None` when the conversation is over. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Item> {
        self.queue.recv().await
    }

    /// Receives the next item if one is queued.
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
