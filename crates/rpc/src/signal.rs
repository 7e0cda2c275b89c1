//! A flag that is raised once and that many tasks can wait for.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct Signal {
    raised: AtomicBool,
    waiters: Notify,
}

impl Signal {
    pub(crate) fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        self.waiters.notify_waiters();
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    pub(crate) async fn wait(&self) {
        let notified = self.waiters.notified();
        tokio::pin!(notified);
        // Registered before the check; otherwise a signal between the two would be lost.
        notified.as_mut().enable();
        if !self.is_raised() {
            notified.await;
        }
    }
}
