//! An outgoing request, from sending to its answer.

use std::sync::Arc;

use narrows_wire::{Frame, message};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use crate::error::CallError;
use crate::shared::Shared;

/// A successful response to a request.
#[derive(Clone, Debug)]
pub struct Response {
    frame: Frame,
}

impl Response {
    /// Reads a response frame. An error and a malformed response become a [`CallError`].
    pub(crate) fn read_from(frame: Frame) -> Result<Self, CallError> {
        match (frame.result(), frame.error()) {
            (Some(_), None) => Ok(Self { frame }),
            (None, Some(error)) => Err(CallError::Refused(error)),
            (Some(_), Some(_)) => Err(CallError::Malformed("found both a result and an error".to_owned())),
            (None, None) => Err(CallError::Malformed("found neither a result nor an error".to_owned())),
        }
    }

    /// Returns the whole message.
    #[must_use]
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Returns the result exactly as the peer wrote it.
    #[must_use]
    pub fn raw(&self) -> &[u8] {
        self.frame.result().unwrap_or(b"null")
    }

    /// Deserializes the result. `null` counts as an empty object, because many agents send it.
    ///
    /// # Errors
    /// If the result does not have that type.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, CallError> {
        let raw = self.raw();
        serde_json::from_slice(raw)
            .or_else(|error| if raw == b"null" { serde_json::from_slice(b"{}") } else { Err(error) })
            .map_err(|error| CallError::Malformed(error.to_string()))
    }
}

/// A pending request to the peer. Dropping the call before the answer cancels the request
/// (`$/cancel_request`).
pub struct Call {
    shared: Arc<Shared>,
    id: u64,
    answer: oneshot::Receiver<Result<Response, CallError>>,
    /// `true` once the request was handed to the link. Dropping an unsent call cancels nothing.
    sent: bool,
}

impl Call {
    pub(crate) fn new(
        shared: Arc<Shared>,
        id: u64,
        answer: oneshot::Receiver<Result<Response, CallError>>,
    ) -> Self {
        Self { shared, id, answer, sent: false }
    }

    pub(crate) fn mark_sent(&mut self) {
        self.sent = true;
    }

    /// Returns the id of the request in the protocol.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Asks the peer to cancel. The answer still arrives, and may still be a result.
    pub fn cancel(&self) {
        cancel(&self.shared, self.id);
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// If the answer is an error, or the peer is lost first.
    pub async fn response(mut self) -> Result<Response, CallError> {
        match (&mut self.answer).await {
            Ok(outcome) => outcome,
            // The sender is dropped only by `forget`, which runs only when this `Call` is dropped.
            Err(_) => Err(self.shared.lost_unsent()),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.shared.forget(self.id) && self.sent {
            self.cancel();
        }
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("id", &self.id).finish_non_exhaustive()
    }
}

pub(crate) fn cancel(shared: &Shared, id: u64) {
    #[derive(serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        request_id: u64,
    }
    if let Ok(line) = message::notification(narrows_acp::method::CANCEL_REQUEST, &Params { request_id: id }) {
        // A lost peer needs no cancellation.
        let _ = shared.sender.push(line);
    }
}
