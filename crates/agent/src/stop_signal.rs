//! A signal that is set once. Every task that waits for it sees it.

use std::sync::Arc;

use tokio::sync::watch;

/// A signal that is set once. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct StopSignal(Arc<watch::Sender<bool>>);

impl StopSignal {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    pub(crate) fn stop(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut seen = self.0.subscribe();
        // This clone keeps the channel open during the wait.
        let kept = self.clone();
        async move {
            let _ = seen.wait_for(|stopped| *stopped).await;
            drop(kept);
        }
    }
}
