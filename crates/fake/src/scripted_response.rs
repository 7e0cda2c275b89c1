//! Responses that a script may withhold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use narrows_rpc::Responder;
use narrows_wire::{RawId, RpcError, message};
use serde_json::Value;

/// Flag that is set when the agent hangs or is about to end. No response is sent after that.
#[derive(Clone, Debug, Default)]
pub(crate) struct SilenceFlag(Arc<AtomicBool>);

impl SilenceFlag {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A response that is sent to the client, unless the agent is silent.
pub(crate) struct ScriptedResponse {
    responder: Option<Responder>,
    silence: SilenceFlag,
}

impl ScriptedResponse {
    pub(crate) fn new(responder: Responder, silence: &SilenceFlag) -> Self {
        Self { responder: Some(responder), silence: silence.clone() }
    }

    /// Responds with a result, and returns the line that was sent.
    pub(crate) fn respond(mut self, result: &Value) -> Option<Bytes> {
        let responder = self.take()?;
        let line = message::response(responder.id().as_bytes(), result).ok();
        responder.respond(result);
        line
    }

    /// Responds with an error, and returns the line that was sent.
    pub(crate) fn fail(mut self, error: &RpcError) -> Option<Bytes> {
        let responder = self.take()?;
        let line = message::error(responder.id().as_bytes(), error);
        responder.fail(error);
        Some(line)
    }

    /// Waits until the client cancels the request or disconnects.
    pub(crate) fn cancelled_by_client(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let cancelled = self.responder.as_ref().map(Responder::cancelled);
        async move {
            match cancelled {
                Some(cancelled) => cancelled.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Takes the responder. Returns `None` if the agent is silent.
    fn take(&mut self) -> Option<Responder> {
        let responder = self.responder.take()?;
        if self.silence.is_set() {
            forget(responder);
            return None;
        }
        Some(responder)
    }
}

impl Drop for ScriptedResponse {
    fn drop(&mut self) {
        if let Some(responder) = self.responder.take()
            && self.silence.is_set()
        {
            forget(responder);
        }
    }
}

/// Leaves a request without a response for ever. Dropping the responder would send an error.
fn forget(responder: Responder) {
    tracing::debug!(id = ?RawId::copy(responder.id().as_bytes()), "request left unanswered by the script");
    std::mem::forget(responder);
}
