//! Writes posted messages to the backend, in order: immediately while there is room, otherwise from a queue.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};

use bytes::{Buf, Bytes};
use narrows_base::sync::lock;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc;

use super::unfinished::Part;

/// Messages in the queue. Requests with more messages wait.
const MAX_WAITING_MESSAGES: usize = 4;

/// The write half of a backend connection.
#[derive(Debug)]
pub(super) struct BackendWriter {
    state: Mutex<State>,
    queue: mpsc::Sender<Waiting>,
}

#[derive(Debug)]
struct State {
    /// `None` after [`BackendWriter::shut`].
    to: Option<Arc<OwnedWriteHalf>>,
    /// Messages that are queued or being written from the queue.
    waiting: usize,
}

/// A queued message and the memory that it is counted with.
pub(super) type Waiting = (Bytes, Option<Part>);

/// The backend connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shut;

/// A reserved slot in the queue.
pub(super) struct Turn<'a> {
    mouth: &'a BackendWriter,
    place: mpsc::Permit<'a, Waiting>,
}

impl BackendWriter {
    /// Creates a writer. Queued messages are written while [`BackendWriter::speak`] is polled.
    pub(super) fn new(to: OwnedWriteHalf) -> (Self, mpsc::Receiver<Waiting>) {
        let (queue, messages) = mpsc::channel(MAX_WAITING_MESSAGES);
        (Self { state: Mutex::new(State { to: Some(Arc::new(to)), waiting: 0 }), queue }, messages)
    }

    /// Waits for a slot in the queue.
    pub(super) async fn turn(&self) -> Result<Turn<'_>, Shut> {
        let place = self.queue.reserve().await.map_err(|_| Shut)?;
        Ok(Turn { mouth: self, place })
    }

    /// Writes queued messages. Never returns, because the output of the agents is still to be read.
    pub(super) async fn speak(&self, mut messages: mpsc::Receiver<Waiting>) {
        let to = self.with(|state| state.to.clone());
        while let (Some(to), Some((mut message, _part))) = (&to, messages.recv().await) {
            while !message.is_empty() {
                match to.writable().await.and_then(|()| to.try_write(&message)) {
                    Ok(count) => message.advance(count),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    // The backend has closed its read half.
                    Err(_) => break,
                }
            }
            self.with(|state| state.waiting -= 1);
        }
        std::future::pending::<()>().await;
    }

    /// Closes the write half, even if this writer is still referenced.
    pub(super) fn shut(&self) {
        self.with(|state| state.to = None);
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut lock(&self.state))
    }
}

impl Turn<'_> {
    /// Sends a complete message, even if the request that posted it is gone by then. `part` is the memory that it is
    /// counted with.
    pub(super) fn say(self, mut message: Bytes, part: Option<Part>) {
        self.mouth.with(|state| {
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
            self.place.send((message, part));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;
    use tokio::time::timeout;

    use super::super::Limits;
    use super::super::unfinished::Unfinished;
    use super::*;
    use crate::identity::{Identity, Proof};

    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn what_does_not_fit_comes_whole_and_in_order() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (_from, to) = ours.into_split();
        let (mouth, messages) = BackendWriter::new(to);
        // The first ones fit immediately, one fits in part, and the others are queued.
        let sizes = [3, 40_000, 400_000, 5, 1_000_000, 7];
        let say = async {
            for (number, size) in (b'a'..).zip(sizes) {
                mouth.turn().await.unwrap().say(vec![number; size].into(), None);
            }
        };
        let mut heard = vec![0; sizes.iter().sum()];
        let hear = async { timeout(TEST_TIMEOUT, theirs.read_exact(&mut heard)).await.unwrap().unwrap() };
        tokio::select! {
            () = mouth.speak(messages) => {}
            _ = async { tokio::join!(say, hear) } => {}
        }
        let expected: Vec<u8> = (b'a'..).zip(sizes).flat_map(|(number, size)| vec![number; size]).collect();
        assert!(heard == expected);
        assert_eq!(mouth.with(|state| state.waiting), 0);
    }

    #[tokio::test]
    async fn a_message_is_counted_until_the_backend_has_it() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (_from, to) = ours.into_split();
        let (mouth, messages) = BackendWriter::new(to);
        let counts = Unfinished::new(&Limits::default());
        let size = 4 << 20;
        let mut part = counts.part(&Identity::new(Proof::Token, "a"));
        assert!(part.resize(size));
        mouth.turn().await.unwrap().say(vec![b'x'; size].into(), Some(part));
        let probe = counts.part(&Identity::new(Proof::Token, "a"));
        assert_eq!(probe.held(), size);
        let mut heard = vec![0; size];
        tokio::select! {
            () = mouth.speak(messages) => {}
            read = timeout(TEST_TIMEOUT, theirs.read_exact(&mut heard)) => drop(read.unwrap().unwrap()),
        }
        // Cancelled or done, the queue is dropped.
        assert_eq!(probe.held(), 0);
    }

    #[tokio::test]
    async fn who_does_not_listen_keeps_nobody_waiting() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (_from, to) = ours.into_split();
        let (mouth, messages) = BackendWriter::new(to);
        drop(theirs);
        let mut speak = std::pin::pin!(mouth.speak(messages));
        for _ in 0..3 * MAX_WAITING_MESSAGES {
            let turn = tokio::select! {
                () = &mut speak => unreachable!("it never ends"),
                turn = timeout(TEST_TIMEOUT, mouth.turn()) => turn.unwrap(),
            };
            turn.unwrap().say(Bytes::from_static(b"[1]\n"), None);
        }
    }

    #[tokio::test]
    async fn the_backend_is_let_go_of() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (from, to) = ours.into_split();
        let (mouth, messages) = BackendWriter::new(to);
        drop((from, messages));
        mouth.shut();
        assert_eq!(mouth.turn().await.err(), Some(Shut));
        assert_eq!(timeout(TEST_TIMEOUT, theirs.read(&mut [0; 64])).await.unwrap().unwrap(), 0);
    }
}
