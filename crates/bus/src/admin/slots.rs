//! The connections of an admin listener: if all are in use, one that has sent no request yet is closed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

/// How long to wait before it is looked again who could go.
const EVICTION_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// All places of a door.
pub(super) struct Seats {
    slots: Arc<Semaphore>,
    /// Those that are taken, the oldest first.
    taken: VecDeque<Taken>,
}

struct Taken {
    has_asked: Arc<AtomicBool>,
    leave: oneshot::Sender<()>,
}

/// The place of one visit.
pub(super) struct Seat {
    request: Request,
    has_asked: Arc<AtomicBool>,
    leave: Option<oneshot::Receiver<()>>,
    /// It is to be given up.
    is_told: bool,
    _slot: OwnedSemaphorePermit,
}

/// How much of a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Nothing,
    /// A part, and whether a line has just ended.
    Part(bool),
    /// Everything up to the empty line, and no more since.
    Whole,
}

impl Request {
    /// The same after this has come too.
    fn after(self, read: &[u8]) -> Self {
        read.iter().fold(self, |request, byte| match (request, byte) {
            (Self::Part(true), b'\n') => Self::Whole,
            (Self::Part(_), b'\n') => Self::Part(true),
            (Self::Part(ended), b'\r') => Self::Part(ended),
            // Empty lines before a request are none of it.
            (Self::Nothing | Self::Whole, b'\r' | b'\n') => request,
            _ => Self::Part(false),
        })
    }
}

impl Seats {
    pub(super) fn new(most: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(most)), taken: VecDeque::new() }
    }

    /// Takes a place, as soon as there is one.
    pub(super) async fn wait_for_seat(&mut self) -> Seat {
        let slot = loop {
            if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
                break slot;
            }
            self.make_room();
            if let Ok(Ok(slot)) =
                timeout(EVICTION_CHECK_INTERVAL, Arc::clone(&self.slots).acquire_owned()).await
            {
                break slot;
            }
        };
        self.taken.retain(|taken| !taken.leave.is_closed());
        let (tell, leave) = oneshot::channel();
        let has_asked = Arc::new(AtomicBool::new(false));
        self.taken.push_back(Taken { has_asked: Arc::clone(&has_asked), leave: tell });
        Seat { request: Request::Nothing, has_asked, leave: Some(leave), is_told: false, _slot: slot }
    }

    /// Sends away who has been there for the longest without having asked anything.
    fn make_room(&mut self) {
        let waits = |taken: &Taken| !taken.leave.is_closed() && !taken.has_asked.load(Ordering::Relaxed);
        if let Some(taken) = self.taken.iter().position(waits).and_then(|oldest| self.taken.remove(oldest)) {
            // Whoever has gone meanwhile has made room too.
            _ = taken.leave.send(());
        }
    }
}

impl Seat {
    /// Notes what was read. Tells how much of a request there was before, and is now.
    pub(super) fn record_read(&mut self, read: &[u8]) -> (Request, Request) {
        let before = self.request;
        self.request = before.after(read);
        self.has_asked.store(self.request == Request::Whole, Ordering::Relaxed);
        (before, self.request)
    }

    /// Ready when the place is to be given up.
    pub(super) fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(leave) = &mut self.leave
            && let Poll::Ready(told) = Pin::new(leave).poll(cx)
        {
            // Without anybody who could say so, nobody does.
            self.is_told = told.is_ok();
            self.leave = None;
        }
        // Whoever has asked meanwhile is answered first.
        if self.is_told && self.request != Request::Whole { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_with_an_empty_line() {
        #[track_caller]
        fn check(read: &str, expected: Request) {
            assert_eq!(Request::Nothing.after(read.as_bytes()), expected, "{read:?}");
        }
        check("", Request::Nothing);
        check("\r\n\n", Request::Nothing);
        check("GET / HTTP/1.1", Request::Part(false));
        check("GET / HTTP/1.1\r\n", Request::Part(true));
        check("GET / HTTP/1.1\r\nHost: x\r\n\r", Request::Part(true));
        check("GET / HTTP/1.1\r\nHost: x\r\n\r\n", Request::Whole);
        check("\r\nGET / HTTP/1.0\n\n", Request::Whole);
        check("GET / HTTP/1.1\r\n\r\nGET", Request::Part(false));
    }
}
