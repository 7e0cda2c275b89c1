//! The future of an appended event. It can be awaited, or waited for without an async runtime.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread::Thread;

use tokio::sync::oneshot;

use super::{AppendError, Receipt};

pub(super) type AppendResult = Result<Receipt, AppendError>;

/// An event on its way to disk. The value can be awaited on any runtime; [`Append::wait`] needs none.
#[must_use = "an event counts only when it is on the disk"]
pub struct Append(State);

enum State {
    Failed(Option<AppendError>),
    /// The event is in the queue, so its position in the log is fixed.
    Queued(oneshot::Receiver<AppendResult>),
    Waiting(Pin<Box<dyn Future<Output = AppendResult> + Send>>),
}

impl Append {
    pub(super) fn failed(error: AppendError) -> Self {
        Self(State::Failed(Some(error)))
    }

    pub(super) fn queued(answer: oneshot::Receiver<AppendResult>) -> Self {
        Self(State::Queued(answer))
    }

    pub(super) fn waiting(work: impl Future<Output = AppendResult> + Send + 'static) -> Self {
        Self(State::Waiting(Box::pin(work)))
    }

    /// Returns `true` if the position of the event in the log is not fixed yet. To keep the order of events,
    /// a caller must wait before it logs another event.
    pub fn is_waiting(&self) -> bool {
        matches!(self.0, State::Waiting(_))
    }

    /// Blocks the current thread until the event is on disk.
    pub fn wait(self) -> Result<Receipt, AppendError> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut work = pin!(self);
        loop {
            match work.as_mut().poll(&mut context) {
                Poll::Ready(answer) => return answer,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

impl Future for Append {
    type Output = Result<Receipt, AppendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match &mut self.0 {
            State::Failed(error) => Err(error.take().unwrap_or(AppendError::Closed)),
            State::Queued(answer) => {
                ready!(Pin::new(answer).poll(context)).unwrap_or(Err(AppendError::Closed))
            }
            State::Waiting(work) => ready!(work.as_mut().poll(context)),
        })
    }
}

impl std::fmt::Debug for Append {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Append(…)")
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
