//! Connection slots of an admin listener. If all slots are in use, the oldest connection without a complete
//! request is closed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

const EVICTION_CHECK_INTERVAL: Duration = Duration::from_millis(200);

pub(super) struct Slots {
    slots: Arc<Semaphore>,
    taken: VecDeque<UsedSlot>,
}

struct UsedSlot {
    has_asked: Arc<AtomicBool>,
    leave: oneshot::Sender<()>,
}

pub(super) struct Slot {
    request: Request,
    has_asked: Arc<AtomicBool>,
    leave: Option<oneshot::Receiver<()>>,
    is_evicted: bool,
    _slot: OwnedSemaphorePermit,
}

/// The part of an HTTP request that has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Nothing,
    /// A part of a request was read. `true`: that part ends with a line end.
    Part(bool),
    /// The request was read up to the empty line that ends it.
    Whole,
}

impl Request {
    fn after(self, read: &[u8]) -> Self {
        read.iter().fold(self, |request, byte| match (request, byte) {
            (Self::Part(true), b'\n') => Self::Whole,
            (Self::Part(_), b'\n') => Self::Part(true),
            (Self::Part(ended), b'\r') => Self::Part(ended),
            // Empty lines before an HTTP request are ignored.
            (Self::Nothing | Self::Whole, b'\r' | b'\n') => request,
            _ => Self::Part(false),
        })
    }
}

impl Slots {
    pub(super) fn new(most: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(most)), taken: VecDeque::new() }
    }

    pub(super) async fn acquire(&mut self) -> Slot {
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
        self.taken.push_back(UsedSlot { has_asked: Arc::clone(&has_asked), leave: tell });
        Slot { request: Request::Nothing, has_asked, leave: Some(leave), is_evicted: false, _slot: slot }
    }

    /// Evicts the oldest connection that has sent no complete request.
    fn make_room(&mut self) {
        let waits = |taken: &UsedSlot| !taken.leave.is_closed() && !taken.has_asked.load(Ordering::Relaxed);
        if let Some(taken) = self.taken.iter().position(waits).and_then(|oldest| self.taken.remove(oldest)) {
            // A failed send does not matter: the evicted connection has ended, so its slot is free.
            _ = taken.leave.send(());
        }
    }
}

impl Slot {
    /// Records bytes that were read from a connection. Returns the state of its request before and after.
    pub(super) fn record_read(&mut self, read: &[u8]) -> (Request, Request) {
        let before = self.request;
        self.request = before.after(read);
        self.has_asked.store(self.request == Request::Whole, Ordering::Relaxed);
        (before, self.request)
    }

    pub(super) fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(leave) = &mut self.leave
            && let Poll::Ready(told) = Pin::new(leave).poll(cx)
        {
            // A sender that was dropped without a message does not evict the connection.
            self.is_evicted = told.is_ok();
            self.leave = None;
        }
        // A connection whose request is complete is not closed before it has its answer.
        if self.is_evicted && self.request != Request::Whole { Poll::Ready(()) } else { Poll::Pending }
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
