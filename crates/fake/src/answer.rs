//! The duty to answer, which a script may neglect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use narrows_rpc::Responder;
use narrows_wire::{RawId, RpcError, message};
use serde_json::Value;

/// Whether the agent has fallen silent: it hangs, or is about to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Silence(Arc<AtomicBool>);

impl Silence {
    pub(crate) fn fall(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn has_fallen(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The duty to answer one request, unless the agent has fallen silent.
pub(crate) struct Owed {
    responder: Option<Responder>,
    silence: Silence,
}

impl Owed {
    pub(crate) fn new(responder: Responder, silence: &Silence) -> Self {
        Self { responder: Some(responder), silence: silence.clone() }
    }

    /// Answers with a result, and returns the line that does it.
    pub(crate) fn respond(mut self, result: &Value) -> Option<Bytes> {
        let responder = self.take()?;
        let line = message::response(responder.id().as_bytes(), result).ok();
        responder.respond(result);
        line
    }

    /// Answers with an error, and returns the line that does it.
    pub(crate) fn fail(mut self, error: &RpcError) -> Option<Bytes> {
        let responder = self.take()?;
        let line = message::error(responder.id().as_bytes(), error);
        responder.fail(error);
        Some(line)
    }

    /// Waits until the client asks to give up on the request, or goes.
    pub(crate) fn given_up(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let cancelled = self.responder.as_ref().map(Responder::cancelled);
        async move {
            match cancelled {
                Some(cancelled) => cancelled.await,
                None => std::future::pending().await,
            }
        }
    }

    /// The responder, if there is anything to be said.
    fn take(&mut self) -> Option<Responder> {
        let responder = self.responder.take()?;
        if self.silence.has_fallen() {
            forget(responder);
            return None;
        }
        Some(responder)
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(responder) = self.responder.take()
            && self.silence.has_fallen()
        {
            forget(responder);
        }
    }
}

/// Never answers: a responder that is dropped would answer by itself.
fn forget(responder: Responder) {
    tracing::debug!(id = ?RawId::copy(responder.id().as_bytes()), "never answered, as the script says");
    std::mem::forget(responder);
}
