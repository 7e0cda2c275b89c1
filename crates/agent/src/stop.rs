//! A signal that is given once and seen by all who wait for it.

use std::sync::Arc;

use tokio::sync::watch;

/// A signal that is given once. Clones are the same signal.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<watch::Sender<bool>>);

impl Stop {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Gives the signal; again does no harm.
    pub(crate) fn stop(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for the signal.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let mut seen = self.0.subscribe();
        // The sender is in here as well, so the channel cannot close before.
        let kept = self.clone();
        async move {
            let _ = seen.wait_for(|stopped| *stopped).await;
            drop(kept);
        }
    }
}
