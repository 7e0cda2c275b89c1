//! Shutdown requests, shared by all tasks of a server.

use std::io;

use tokio::sync::watch;

use crate::failure::Failure;
use crate::interrupt::{Interrupts, Signal};

#[derive(Clone, Copy, Debug)]
struct ShutdownRequest {
    signal: Signal,
    /// `true` if the shutdown was requested because the work is done.
    is_over: bool,
    signals: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Shutdown {
    requests: watch::Sender<ShutdownRequest>,
}

impl Shutdown {
    /// Listens for SIGTERM, SIGHUP and SIGINT, which no longer end the program.
    pub(super) fn on_signals() -> io::Result<Self> {
        let mut interrupts = Interrupts::listen()?;
        let request = ShutdownRequest { signal: Signal::Terminate, is_over: false, signals: 0 };
        let shutdown = Self { requests: watch::Sender::new(request) };
        let requests = shutdown.requests.clone();
        tokio::spawn(async move {
            loop {
                let signal = interrupts.next().await;
                requests.send_modify(|request| {
                    if request.signals == 0 {
                        request.signal = signal;
                    }
                    request.signals += 1;
                });
            }
        });
        Ok(shutdown)
    }

    /// Returns a branch of this shutdown. A request to the branch affects nothing else. Requests to this
    /// shutdown reach the branch while [`Self::forward_to`] runs.
    pub(super) fn branch(&self) -> Self {
        Self { requests: watch::Sender::new(*self.requests.borrow()) }
    }

    /// Forwards requests to a branch. Never returns.
    pub(super) async fn forward_to(&self, branch: &Self) {
        let mut ours = self.requests.subscribe();
        loop {
            let ShutdownRequest { signal, is_over, signals } = *ours.borrow_and_update();
            branch.requests.send_modify(|request| {
                *request = ShutdownRequest { signal, is_over: is_over || request.is_over, signals }
            });
            if ours.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    pub(super) fn request(&self) {
        self.requests.send_modify(|request| request.is_over = true);
    }

    pub(super) async fn requested(&self) {
        let wanted = |request: &ShutdownRequest| request.is_over || request.signals > 0;
        // The channel cannot close while `self` exists.
        let _ = self.requests.subscribe().wait_for(wanted).await;
    }

    /// Waits for a second signal, which asks for an immediate exit.
    pub(super) async fn forced(&self) {
        let _ = self.requests.subscribe().wait_for(|request| request.signals > 1).await;
    }

    pub(super) fn is_forced(&self) -> bool {
        self.requests.borrow().signals > 1
    }

    pub(super) fn is_requested(&self) -> bool {
        self.requests.borrow().signals > 0
    }

    pub(super) fn failure(&self) -> Failure {
        Failure::forced_exit(self.requests.borrow().signal)
    }

    /// Runs `work` until the shutdown is requested.
    pub(super) async fn unless_requested<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.requested() => None,
            outcome = work => Some(outcome),
        }
    }
}
