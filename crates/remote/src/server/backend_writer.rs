//! Writes posted messages to the backend, in order: immediately while there is room, otherwise from a queue.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};

use bytes::{Buf, Bytes};
use narrows_base::sync::lock;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc;

use super::unfinished::MessageMemory;

/// Limit of messages in the queue. Requests with further messages wait.
const MAX_WAITING_MESSAGES: usize = 4;

#[derive(Debug)]
pub(super) struct BackendWriter {
    state: Mutex<State>,
    queue: mpsc::Sender<Waiting>,
}

#[derive(Debug)]
struct State {
    /// `None` after [`BackendWriter::close`].
    to: Option<Arc<OwnedWriteHalf>>,
    /// The number of messages in the queue, including the one that is being written.
    waiting: usize,
}

pub(super) type Waiting = (Bytes, Option<MessageMemory>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closed;

pub(super) struct QueueSlot<'a> {
    writer: &'a BackendWriter,
    permit: mpsc::Permit<'a, Waiting>,
}

impl BackendWriter {
    /// Creates a writer. Queued messages are written while [`BackendWriter::write_queued`] is polled.
    pub(super) fn new(to: OwnedWriteHalf) -> (Self, mpsc::Receiver<Waiting>) {
        let (queue, messages) = mpsc::channel(MAX_WAITING_MESSAGES);
        (Self { state: Mutex::new(State { to: Some(Arc::new(to)), waiting: 0 }), queue }, messages)
    }

    pub(super) async fn reserve(&self) -> Result<QueueSlot<'_>, Closed> {
        let permit = self.queue.reserve().await.map_err(|_| Closed)?;
        Ok(QueueSlot { writer: self, permit })
    }

    /// Writes queued messages. Never returns: even if the backend reads no more, its output must still be
    /// read.
    pub(super) async fn write_queued(&self, mut messages: mpsc::Receiver<Waiting>) {
        let to = self.with(|state| state.to.clone());
        while let (Some(to), Some((mut message, _part))) = (&to, messages.recv().await) {
            while !message.is_empty() {
                match to.writable().await.and_then(|()| to.try_write(&message)) {
                    Ok(count) => message.advance(count),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    // The backend reads no more, so nothing more is written.
                    Err(_) => break,
                }
            }
            self.with(|state| state.waiting -= 1);
        }
        std::future::pending::<()>().await;
    }

    /// Closes the write half, even if this writer is still referenced.
    pub(super) fn close(&self) {
        self.with(|state| state.to = None);
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut lock(&self.state))
    }
}

impl QueueSlot<'_> {
    /// Sends a complete message, even if the request that posted the message is dropped meanwhile. `part`
    /// counts the memory of the message.
    pub(super) fn send(self, mut message: Bytes, part: Option<MessageMemory>) {
        self.writer.with(|state| {
            if state.waiting == 0
                && let Some(to) = &state.to
                && let Ok(count) = to.try_write(&message)
            {
                message.advance(count);
                if message.is_empty() {
                    return;
                }
            }
            state.waiting += 1;
            self.permit.send((message, part));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;
    use tokio::time::timeout;

    use super::super::HttpLimits;
    use super::super::unfinished::Unfinished;
    use super::*;
    use crate::identity::{Identity, Proof};

    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn messages_that_do_not_fit_are_written_completely_and_in_order() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (_from, to) = ours.into_split();
        let (writer, messages) = BackendWriter::new(to);
        // The first messages fit immediately, one fits in part, and the others are queued.
        let sizes = [3, 40_000, 400_000, 5, 1_000_000, 7];
        let send = async {
            for (number, size) in (b'a'..).zip(sizes) {
                writer.reserve().await.unwrap().send(vec![number; size].into(), None);
            }
        };
        let mut received = vec![0; sizes.iter().sum()];
        let receive =
            async { timeout(TEST_TIMEOUT, theirs.read_exact(&mut received)).await.unwrap().unwrap() };
        tokio::select! {
            () = writer.write_queued(messages) => {}
            _ = async { tokio::join!(send, receive) } => {}
        }
        let expected: Vec<u8> = (b'a'..).zip(sizes).flat_map(|(number, size)| vec![number; size]).collect();
        assert!(received == expected);
        assert_eq!(writer.with(|state| state.waiting), 0);
    }

    #[tokio::test]
    async fn a_message_is_counted_until_the_backend_has_it() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (_from, to) = ours.into_split();
        let (writer, messages) = BackendWriter::new(to);
        let counts = Unfinished::new(&HttpLimits::default());
        let size = 4 << 20;
        let mut part = counts.part(&Identity::new(Proof::Token, "a"));
        assert!(part.resize(size));
        writer.reserve().await.unwrap().send(vec![b'x'; size].into(), Some(part));
        let probe = counts.part(&Identity::new(Proof::Token, "a"));
        assert_eq!(probe.held(), size);
        let mut received = vec![0; size];
        tokio::select! {
            () = writer.write_queued(messages) => {}
            read = timeout(TEST_TIMEOUT, theirs.read_exact(&mut received)) => drop(read.unwrap().unwrap()),
        }
        // The queue is dropped, whether writing was cancelled or has completed.
        assert_eq!(probe.held(), 0);
    }

    #[tokio::test]
    async fn a_backend_that_does_not_read_blocks_no_sender() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_from, to) = ours.into_split();
        let (writer, messages) = BackendWriter::new(to);
        drop(theirs);
        let mut write_queued = std::pin::pin!(writer.write_queued(messages));
        for _ in 0..3 * MAX_WAITING_MESSAGES {
            let slot = tokio::select! {
                () = &mut write_queued => unreachable!("write_queued never ends"),
                slot = timeout(TEST_TIMEOUT, writer.reserve()) => slot.unwrap(),
            };
            slot.unwrap().send(Bytes::from_static(b"[1]\n"), None);
        }
    }

    #[tokio::test]
    async fn the_backend_is_closed() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (from, to) = ours.into_split();
        let (writer, messages) = BackendWriter::new(to);
        drop((from, messages));
        writer.close();
        assert_eq!(writer.reserve().await.err(), Some(Closed));
        assert_eq!(timeout(TEST_TIMEOUT, theirs.read(&mut [0; 64])).await.unwrap().unwrap(), 0);
    }
}
