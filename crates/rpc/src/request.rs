//! An incoming request and its responder, which guarantees one answer.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use narrows_base::sync::lock;
use narrows_wire::{Batch, Code, Frame, RawId, RpcError, message};
use serde::Serialize;

use crate::shared::Shared;
use crate::signal::Signal;

#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Raised when the peer has cancelled the request or is lost.
    pub(crate) cancelled: Signal,
    pub(crate) answered: Signal,
}

#[derive(Clone, Default)]
pub(crate) struct ReplyTo {
    /// The batch that contained the request. The answer becomes part of the batch's answer.
    batch: Option<Arc<Mutex<Batch>>>,
    /// The top-level `sessionId` of the request. A router added it and expects the same value in the answer.
    tag: Option<Bytes>,
}

impl ReplyTo {
    pub(crate) fn batch(batch: Batch) -> Self {
        Self { batch: Some(Arc::new(Mutex::new(batch))), tag: None }
    }

    /// Returns the destination of the answer to `frame`.
    pub(crate) fn to(&self, frame: &Frame) -> Self {
        Self { batch: self.batch.clone(), tag: frame.tag().map(Bytes::copy_from_slice) }
    }

    pub(crate) fn send(&self, shared: &Shared, line: Bytes) {
        let line = match &self.tag {
            Some(tag) => message::with_session_tag(&line, tag),
            None => line,
        };
        let line = match &self.batch {
            None => Some(line),
            Some(batch) => lock(batch).answer(line),
        };
        if let Some(line) = line {
            // A lost peer gets no answer.
            let _ = shared.sender.push(line);
        }
    }
}

/// A request of the peer, with the responder for its only answer.
#[derive(Debug)]
pub struct Request {
    pub frame: Frame,
    pub responder: Responder,
}

/// The obligation to answer one request. Dropping the responder answers with -32603.
pub struct Responder {
    shared: Arc<Shared>,
    id: RawId,
    progress: Arc<Progress>,
    reply: ReplyTo,
    answered: bool,
}

impl Responder {
    pub(crate) fn new(shared: Arc<Shared>, id: RawId, progress: Arc<Progress>, reply: ReplyTo) -> Self {
        Self { shared, id, progress, reply, answered: false }
    }

    /// Returns the id of the request exactly as the peer wrote it.
    #[must_use]
    pub fn id(&self) -> &RawId {
        &self.id
    }

    /// Answers the request with a result.
    pub fn respond<R: Serialize + ?Sized>(self, result: &R) {
        let line = message::response(self.id.as_bytes(), result).unwrap_or_else(|error| {
            tracing::error!(%error, "result cannot be serialized");
            message::error(
                self.id.as_bytes(),
                &RpcError::new(Code::Internal, "the result cannot be serialized"),
            )
        });
        self.finish(line);
    }

    /// Answers the request with an error.
    pub fn fail(self, error: &RpcError) {
        let line = message::error(self.id.as_bytes(), error);
        self.finish(line);
    }

    /// Returns `true` if the peer has cancelled the request or is lost. The request must still be answered.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.progress.cancelled.is_raised()
    }

    /// Waits until the peer cancels the request or is lost.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let progress = Arc::clone(&self.progress);
        async move { progress.cancelled.wait().await }
    }

    /// Waits until the queued answers are within their limit, or the peer is lost. Answers are queued
    /// without waiting, so a caller that sends many large answers must wait here first.
    pub fn room(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let sender = self.shared.sender.clone();
        async move { sender.room().await }
    }

    fn finish(mut self, line: Bytes) {
        self.answer(line);
    }

    fn answer(&mut self, line: Bytes) {
        self.answered = true;
        // The id is freed before the peer can see the answer, because the peer may reuse it at once.
        self.shared.tables().answering.remove(&self.id);
        self.reply.send(&self.shared, line);
        self.progress.answered.raise();
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.answered {
            let error = RpcError::new(Code::Internal, "the request was dropped without a response");
            self.answer(message::error(self.id.as_bytes(), &error));
        }
    }
}

impl std::fmt::Debug for Responder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Responder").field("id", &self.id).finish_non_exhaustive()
    }
}
