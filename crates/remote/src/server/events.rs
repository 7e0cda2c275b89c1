//! Bodies of responses: at once, or a stream of events that is read for as long as it lasts.

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

/// What a response says.
#[derive(Debug)]
pub(super) enum Body {
    /// All of it.
    Whole(Bytes),
    /// One stream.
    Events(Box<Events>),
}

/// A reader of a stream of a connection.
#[derive(Debug)]
pub(super) struct Events {
    channel: Arc<HttpSession>,
    session: Option<String>,
    reader: u64,
    /// What comes before the events of the stream: a comment, and an event if some are lost.
    first: Option<Bytes>,
    every: Duration,
    alive: Pin<Box<Sleep>>,
    /// All was said.
    ended: bool,
}

/// A comment: it shows both sides that the other is there, and every stream begins with it, because proxies may hold the head of a
/// response back until some of its body comes.
const KEEP_ALIVE_COMMENT: Bytes = Bytes::from_static(b": \n\n");

impl Events {
    /// A reader that was given `reader`; something is sent at least `every` so often.
    pub(super) fn new(
        channel: Arc<HttpSession>,
        session: Option<String>,
        (reader, first): (u64, Option<Bytes>),
        every: Duration,
    ) -> Self {
        let first =
            Some(first.map_or(KEEP_ALIVE_COMMENT, |event| [KEEP_ALIVE_COMMENT, event].concat().into()));
        Self { channel, session, reader, first, every, alive: Box::pin(sleep(every)), ended: false }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        let next = match self.channel.next(self.session.as_deref(), self.reader, cx.waker()) {
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
        self.channel.unsubscribe(self.session.as_deref(), self.reader, !self.ended);
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
