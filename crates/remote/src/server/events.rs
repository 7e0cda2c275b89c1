//! Response bodies: complete ones, and event streams.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use super::http_session::HttpSession;
use super::streams::Next;

#[derive(Debug)]
pub(super) enum Body {
    Whole(Bytes),
    Events(Box<Events>),
}

/// The body that streams events to one reader.
#[derive(Debug)]
pub(super) struct Events {
    http_session: Arc<HttpSession>,
    session: Option<String>,
    reader: u64,
    /// Sent before the events of the stream: a comment, and a gap event if some are lost.
    first: Option<Bytes>,
    every: Duration,
    alive: Pin<Box<Sleep>>,
    ended: bool,
}

/// A comment that keeps an event stream alive. Every stream begins with this comment, because proxies may
/// hold back the head of a response until some of the body arrives.
const KEEP_ALIVE_COMMENT: Bytes = Bytes::from_static(b": \n\n");

impl Events {
    /// Creates the body of an event stream. `HttpSession::subscribe` returns the reader and the first event.
    /// A keep-alive is sent at the interval `every`.
    pub(super) fn new(
        http_session: Arc<HttpSession>,
        session: Option<String>,
        (reader, first): (u64, Option<Bytes>),
        every: Duration,
    ) -> Self {
        let first =
            Some(first.map_or(KEEP_ALIVE_COMMENT, |event| [KEEP_ALIVE_COMMENT, event].concat().into()));
        Self { http_session, session, reader, first, every, alive: Box::pin(sleep(every)), ended: false }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        let next = match self.http_session.next(self.session.as_deref(), self.reader, cx.waker()) {
            Next::Events(events) => events,
            Next::Ended => {
                self.ended = true;
                return Poll::Ready(None);
            }
            Next::Replaced => return Poll::Ready(None),
            Next::Wait => {
                if self.alive.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                KEEP_ALIVE_COMMENT
            }
        };
        self.alive.as_mut().reset(Instant::now() + self.every);
        Poll::Ready(Some(next))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.http_session.unsubscribe(self.session.as_deref(), self.reader, !self.ended);
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match &mut *self {
            Self::Whole(bytes) if bytes.is_empty() => None,
            Self::Whole(bytes) => Some(std::mem::take(bytes)),
            Self::Events(events) => match events.poll_next(cx) {
                Poll::Ready(data) => data,
                Poll::Pending => return Poll::Pending,
            },
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Events(_) => SizeHint::default(),
        }
    }
}
