//! The sending handle of a conversation.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use narrows_link::CloseReason;
use narrows_wire::message;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use crate::call::{self, Call};
use crate::error::CallError;
use crate::inbox::Session;
use crate::sessions::AlreadyClaimed;
use crate::shared::{Pending, Shared, Stats};

/// Shared by all handles of a conversation. Dropping the last handle ends the conversation.
pub(crate) struct EndOnDrop {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.shared.stop.raise();
    }
}

/// The sending handle of a conversation. Clones belong to the same conversation.
#[derive(Clone)]
pub struct Peer {
    alive: Arc<EndOnDrop>,
    /// The JSON string that this handle sends as top-level `sessionId`.
    tag: Option<Bytes>,
}

impl Peer {
    pub(crate) fn new(alive: Arc<EndOnDrop>) -> Self {
        Self { alive, tag: None }
    }

    /// Returns a handle whose messages carry `tag`, a JSON string with quotes, as top-level `sessionId`, for
    /// routers that read it. See [`narrows_wire::Frame::tag`].
    #[must_use]
    pub fn with_tag(&self, tag: Option<&[u8]>) -> Self {
        Self { alive: Arc::clone(&self.alive), tag: tag.map(Bytes::copy_from_slice) }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.alive.shared
    }

    /// Sends a notification, waiting for room.
    ///
    /// # Errors
    /// If the peer is lost.
    pub async fn notify<P: Serialize + ?Sized>(&self, method: &str, params: &P) -> Result<(), CallError> {
        let line = message::notification(method, params).map_err(unwritable)?;
        self.send(line).await
    }

    /// Sends a serialized notification, waiting for room. For streams of similar notifications.
    ///
    /// # Errors
    /// If the peer is lost.
    pub async fn notify_line(&self, line: Bytes) -> Result<(), CallError> {
        self.send(line).await
    }

    /// Sends a notification without waiting for room, in order. For cancellations, which must not wait for
    /// a slow peer. Callers must bound the number of calls.
    ///
    /// # Errors
    /// If the peer is lost.
    pub fn notify_now<P: Serialize + ?Sized>(&self, method: &str, params: &P) -> Result<(), CallError> {
        let line = message::notification(method, params).map_err(unwritable)?;
        self.shared().sender.push(self.add_tag(line)).map_err(|_| self.shared().lost_unsent())
    }

    /// Sends a request, waiting for room but not for the answer.
    ///
    /// # Errors
    /// If the peer is lost.
    pub async fn call<P: Serialize + ?Sized>(&self, method: &str, params: &P) -> Result<Call, CallError> {
        let (answer, waiting) = oneshot::channel();
        let id = self.shared().expect(Pending::Caller(answer))?;
        // From here on, dropping `call` forgets the request, even if this future is dropped while it waits
        // for room.
        let mut call = Call::new(Arc::clone(self.shared()), id, waiting);
        let line = message::request(id.to_string().as_bytes(), method, params).map_err(unwritable)?;
        self.send(line).await?;
        call.mark_sent();
        Ok(call)
    }

    /// Sends a request and waits at most `deadline` for the answer.
    ///
    /// # Errors
    /// If the answer is an error or has another type, the request times out, or the peer is lost.
    pub async fn request<P, R>(&self, method: &str, params: &P, deadline: Duration) -> Result<R, CallError>
    where
        P: Serialize + ?Sized,
        R: DeserializeOwned,
    {
        let asking = async { self.call(method, params).await?.response().await };
        match tokio::time::timeout(deadline, asking).await {
            Ok(outcome) => outcome?.read(),
            Err(_) => Err(CallError::Deadline(deadline)),
        }
    }

    /// Sends a request whose answer arrives in the inbox of `session` as [`crate::Item::Answer`] with the
    /// returned id. The answer comes after everything the peer sent before it, so the updates of a turn
    /// precede the end of the turn.
    ///
    /// There is no deadline: set one on [`Session::recv`], then [`Peer::cancel`] the id.
    ///
    /// # Errors
    /// If the peer is lost.
    pub async fn call_in<P: Serialize + ?Sized>(
        &self,
        session: &Session,
        method: &str,
        params: &P,
    ) -> Result<u64, CallError> {
        let Some(inbox) = self.shared().tables().sessions.queue(session.id()) else {
            return Err(self.shared().lost_unsent());
        };
        let id = self.shared().expect(Pending::Session(inbox))?;
        let forget = ForgetOnDrop { shared: self.shared(), id };
        let line = message::request(id.to_string().as_bytes(), method, params).map_err(unwritable)?;
        self.send(line).await?;
        std::mem::forget(forget);
        Ok(id)
    }

    /// Asks the peer to cancel a request made with [`Peer::call_in`]. The answer still arrives.
    pub fn cancel(&self, id: u64) {
        call::cancel(self.shared(), id);
    }

    /// Claims the inbox of a session, with the notifications held for the session.
    ///
    /// # Errors
    /// If it is already claimed.
    pub fn session(&self, id: &str) -> Result<Session, AlreadyClaimed> {
        let queue = self.shared().tables().sessions.claim(id)?;
        Ok(Session::new(id, queue, Arc::clone(&self.alive)))
    }

    /// Waits until everything sent so far is handed to the operating system.
    ///
    /// # Errors
    /// If the peer is lost first.
    pub async fn flush(&self) -> Result<(), CallError> {
        self.shared().sender.flush().await.map_err(|_| self.shared().lost_unsent())
    }

    /// Ends the conversation from this side: queued messages are written, then the peer sees the end of the
    /// stream.
    pub fn close(&self) {
        self.shared().stop.raise();
    }

    /// Ends the conversation and waits until everything sent is written or the peer stopped reading. A
    /// program that exits without this call may lose its last answers.
    pub async fn finish(&self) {
        self.close();
        self.shared().sender.written().await;
    }

    /// Waits until the conversation is over and every request is settled.
    pub async fn closed(&self) -> CloseReason {
        self.shared().ended.wait().await;
        self.shared().sender.reason()
    }

    /// Returns the counters of the conversation.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared().stats()
    }

    /// Returns the escaped beginnings of the first lines that were not JSON. These texts help to find the
    /// code that prints to stdout.
    #[must_use]
    pub fn stray_lines(&self) -> Vec<String> {
        self.shared().stray_lines()
    }

    /// Returns the counters of the link.
    #[must_use]
    pub fn link_stats(&self) -> narrows_link::Stats {
        self.shared().sender.stats()
    }

    async fn send(&self, line: Bytes) -> Result<(), CallError> {
        self.shared().sender.send(self.add_tag(line)).await.map_err(|_| self.shared().lost_unsent())
    }

    fn add_tag(&self, line: Bytes) -> Bytes {
        match &self.tag {
            Some(tag) => message::with_session_tag(&line, tag),
            None => line,
        }
    }
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Forgets a request if the future that sends it is dropped.
struct ForgetOnDrop<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        self.shared.forget(self.id);
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that map_err needs")]
fn unwritable(error: serde_json::Error) -> CallError {
    CallError::NotSerializable(error.to_string())
}
