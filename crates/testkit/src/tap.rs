//! An in-memory stream with two writers: a link, and a program that prints.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use narrows_base::sync::lock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Limit of unread bytes at which the first writer waits.
const MAX_QUEUED_BYTES: usize = 256 << 10;

#[derive(Default)]
struct State {
    bytes: VecDeque<u8>,
    writers: usize,
    reading: Option<Waker>,
    writing: Option<Waker>,
    gone: bool,
}

#[derive(Default)]
struct Shared(Mutex<State>);

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// Creates a stream with two writers: the first waits for room, the second does not. The stream ends when
/// both are dropped.
#[must_use]
pub fn tap() -> (Writer, Writer, Reader) {
    let shared = Arc::new(Shared::default());
    shared.state().writers = 2;
    (Writer(Arc::clone(&shared)), Writer(Arc::clone(&shared)), Reader(shared))
}

/// A writing end: [`AsyncWrite`] waits for room, [`io::Write`] does not.
pub struct Writer(Arc<Shared>);

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.state();
        if state.gone {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        state.bytes.extend(bytes);
        wake(&mut state.reading);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncWrite for Writer {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        {
            let mut state = self.0.state();
            if state.bytes.len() >= MAX_QUEUED_BYTES && !state.gone {
                state.writing = Some(cx.waker().clone());
                return Poll::Pending;
            }
        }
        Poll::Ready(io::Write::write(&mut *self, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.writers -= 1;
        wake(&mut state.reading);
    }
}

/// The reading end.
pub struct Reader(Arc<Shared>);

impl AsyncRead for Reader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.0.state();
        if state.bytes.is_empty() && state.writers > 0 {
            state.reading = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let (front, _) = state.bytes.as_slices();
        let taken = front.len().min(buffer.remaining());
        buffer.put_slice(&front[..taken]);
        state.bytes.drain(..taken);
        wake(&mut state.writing);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.gone = true;
        wake(&mut state.writing);
    }
}
