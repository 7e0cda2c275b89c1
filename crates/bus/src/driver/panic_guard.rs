//! Contains panics of the router: the peer that caused a panic is disconnected, and other peers are not
//! affected.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use narrows_wire::{Code, RpcError};

use crate::core::{CoreAction, CoreOutput, Time, WorkerId};

use super::connections::Connections;
use super::{Driver, Router};

/// Pause of the router's timers after a panic, because the next timer may panic again.
const DEADLINE_PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    Client(u32),
    Worker(u32),
    All,
}

impl<B: Router> Driver<B> {
    /// Calls the router. Returns `None` if it panicked.
    #[inline]
    pub(super) fn call_router<R>(
        &mut self,
        about: About,
        question: impl FnOnce(&mut B, &mut Connections) -> R,
    ) -> Option<R> {
        let (router, conns) = (&mut self.router, &mut self.conns);
        let answer = catch_unwind(AssertUnwindSafe(|| question(router, conns)));
        answer.map_err(|_| self.on_panic(about)).ok()
    }

    /// Handles a panic of the router: closes the client or kills the worker that the call was about.
    #[cold]
    pub(super) fn on_panic(&mut self, about: About) {
        self.panics += 1;
        tracing::error!(?about, panics = self.panics, "router panicked");
        match about {
            About::Client(slot) => {
                let error = RpcError::new(Code::Internal, "internal error, closing connection");
                self.conns.disconnect(slot, &error);
            }
            About::Worker(slot) => {
                // The rest of the last read is lost, so the worker's next line would begin in the middle.
                if let Some(conn) = self.conns.worker(slot) {
                    conn.intake.ended = true;
                }
                self.conns.perform(CoreAction::Stop { worker: WorkerId(slot), kill: true });
            }
            About::All => {}
        }
    }

    pub(super) fn tick(&mut self, now: Time) {
        if self.deadline().is_some_and(|deadline| deadline <= now)
            && self.call_router(About::All, |router, conns| router.tick(now, conns)).is_none()
        {
            self.tick_after = now + DEADLINE_PAUSE;
        }
    }

    #[inline]
    pub(super) fn deadline(&self) -> Option<Time> {
        let deadline = catch_unwind(AssertUnwindSafe(|| self.router.deadline())).unwrap_or_default()?;
        Some(deadline.max(self.tick_after))
    }
}
