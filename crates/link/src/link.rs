//! The sending and receiving ends of a link, and the state they share with the task that does the I/O.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use narrows_wire::{DEFAULT_MAX_LINE_BYTES, Frame};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep};

use crate::close::CloseReason;
use crate::input_budget::InputShare;
use crate::queue;

/// Limits of a link.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Limit of a line from the peer, in bytes.
    pub max_line: usize,
    /// Limit of each queue in bytes. A larger frame is admitted if the queue is empty.
    pub queue_bytes: usize,
    /// Disconnect a peer whose first line is not a JSON object or array. Such a peer may be a web page that
    /// guessed the port.
    pub guard_first_line: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_line: DEFAULT_MAX_LINE_BYTES, queue_bytes: 1 << 20, guard_first_line: false }
    }
}

/// Number of progress checks during the time given to [`Sender::standstill`].
const STANDSTILL_CHECKS: u32 = 10;

/// Error: the link has ended. [`Sender::reason`] returns the reason.
pub use crate::queue::Closed;

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub frames_in: u64,
    pub frames_out: u64,
    /// Bytes written, line ends included. Bytes count as soon as the operating system accepts them, so that
    /// slow reading of a long line is visible.
    pub bytes_out: u64,
    /// Received lines over the limit.
    pub too_long: u64,
    /// Unfinished lines at the end of the stream, which are dropped.
    pub partial: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Shared {
    reason: OnceLock<CloseReason>,
    /// `true` if the peer no longer reads. This becomes the close reason if no better one is found.
    not_reading: AtomicBool,
    pub(crate) writing: AtomicBool,
    /// `true` once the peer has closed its end. Data that the peer sent before may still arrive.
    peer_closed: watch::Sender<bool>,
    /// `true` once queued lines must not be written.
    abandoned: watch::Sender<bool>,
    pub(crate) frames_in: AtomicU64,
    pub(crate) frames_out: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) too_long: AtomicU64,
    pub(crate) partial: AtomicU64,
    input: OnceLock<InputShare>,
}

impl Shared {
    pub(crate) fn count_input(&self, bytes: usize) {
        if let Some(share) = self.input.get() {
            share.set(bytes);
        }
    }

    /// Waits until the unfinished line must be abandoned. Cancel-safe.
    pub(crate) async fn input_abandoned(&self) {
        match self.input.get() {
            Some(share) => share.abandon_requested().await,
            None => std::future::pending().await,
        }
    }

    /// Sets the close reason unless one is set.
    pub(crate) fn close(&self, reason: CloseReason) {
        // An earlier reason stays: the first one is the cause, later ones are consequences.
        let _ = self.reason.set(reason);
    }

    pub(crate) fn close_writing(&self, error: std::io::Error) {
        tracing::debug!(%error, "write to peer failed");
        match error.into() {
            CloseReason::NotReading | CloseReason::Eof => self.mark_not_reading(),
            reason => self.close(reason),
        }
    }

    /// Records that the peer stopped reading. The reading side may still find a better close reason.
    pub(crate) fn mark_not_reading(&self) {
        self.not_reading.store(true, Ordering::Relaxed);
    }

    pub(crate) fn mark_peer_closed(&self) {
        self.peer_closed.send_replace(true);
    }

    pub(crate) async fn abandoned(&self) {
        raised(&self.abandoned).await;
    }

    fn reason(&self) -> CloseReason {
        let not_reading = self.not_reading.load(Ordering::Relaxed);
        self.reason.get().cloned().unwrap_or(if not_reading {
            CloseReason::NotReading
        } else {
            CloseReason::Eof
        })
    }

    fn stats(&self) -> Stats {
        Stats {
            frames_in: self.frames_in.load(Ordering::Relaxed),
            frames_out: self.frames_out.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
            too_long: self.too_long.load(Ordering::Relaxed),
            partial: self.partial.load(Ordering::Relaxed),
        }
    }
}

async fn raised(flag: &watch::Sender<bool>) {
    // The channel stays open, because the caller borrows its sender.
    let _ = flag.subscribe().wait_for(|raised| *raised).await;
}

#[derive(Debug)]
pub(crate) enum Outgoing {
    Line(Bytes),
    /// Replies when everything before this item is written.
    Flush(oneshot::Sender<()>),
}

/// One side of a connection: the sending and the receiving end.
#[derive(Debug)]
pub struct Link {
    pub sender: Sender,
    pub receiver: Receiver,
}

impl Link {
    /// Creates a link, with the queues for its driver: lines to write, and frames that were read.
    pub(crate) fn new(
        options: &Options,
    ) -> (Self, queue::Receiver<Outgoing>, queue::Sender<Frame>, Arc<Shared>) {
        let (out, to_write) = queue::bounded(options.queue_bytes);
        let (was_read, incoming) = queue::bounded(options.queue_bytes);
        let shared = Arc::new(Shared::default());
        let link = Self {
            sender: Sender { queue: out, shared: Arc::clone(&shared) },
            receiver: Receiver { queue: incoming, front: None, shared: Arc::clone(&shared) },
        };
        (link, to_write, was_read, shared)
    }

    /// Counts the unfinished input of the peer in a budget. A line that is abandoned for the budget is
    /// received like a line over the limit. Only the first call has an effect.
    pub fn limit_input(&self, share: InputShare) {
        let _ = self.sender.shared.input.set(share);
    }
}

/// The sending end. After the drop of the last clone, queued lines are written and the peer sees the end of
/// the stream.
#[derive(Clone)]
pub struct Sender {
    queue: queue::Sender<Outgoing>,
    shared: Arc<Shared>,
}

impl Sender {
    /// Sends a line, waiting for room.
    ///
    /// # Errors
    /// If the link has ended.
    pub async fn send(&self, line: Bytes) -> Result<(), Closed> {
        let size = line.len();
        self.queue.send(Outgoing::Line(line), size).await
    }

    /// Sends a line in order without waiting, for answers and cancellations. [`crate::queue`] describes how
    /// callers limit pushed lines.
    ///
    /// # Errors
    /// If the link has ended.
    pub fn push(&self, line: Bytes) -> Result<(), Closed> {
        let size = line.len();
        self.queue.push(Outgoing::Line(line), size)
    }

    /// Waits until pushed lines are within their limit (see [`crate::queue`]), or the link has ended.
    pub async fn room(&self) {
        self.queue.room().await;
    }

    /// Waits until everything sent so far is handed to the operating system.
    ///
    /// # Errors
    /// If the link ends first.
    pub async fn flush(&self) -> Result<(), Closed> {
        let (done, written) = oneshot::channel();
        self.queue.push(Outgoing::Flush(done), 0)?;
        written.await.map_err(|_| Closed)
    }

    /// Ends the link from this side: queued lines are written, then the peer sees the end of the stream.
    pub fn close(&self) {
        self.shared.close(CloseReason::Local);
        self.queue.close();
    }

    /// Ends the link from this side without writing queued lines. Meant for a peer that does not read.
    pub fn abandon(&self) {
        self.shared.mark_not_reading();
        self.shared.abandoned.send_replace(true);
        self.queue.close();
    }

    /// Waits until the peer has closed its end. Data sent before may still arrive. On stdio and in memory,
    /// the close is noticed even while a full queue stops reading. On other transports all input must be read
    /// first.
    pub async fn peer_closed(&self) {
        raised(&self.shared.peer_closed).await;
    }

    /// Waits until lines are queued and no byte could be written for `patience`.
    pub async fn standstill(&self, patience: Duration) {
        let (mut before, mut since) = (self.stats().bytes_out, Instant::now());
        loop {
            sleep(patience / STANDSTILL_CHECKS).await;
            let now = self.stats().bytes_out;
            if now != before || !self.shared.writing.load(Ordering::Relaxed) {
                (before, since) = (now, Instant::now());
            } else if since.elapsed() >= patience {
                return;
            }
        }
    }

    /// Waits until nothing more will be written: the link was closed and all lines are written, or the peer
    /// no longer reads.
    pub async fn written(&self) {
        self.queue.receiver_dropped().await;
    }

    /// Returns `true` if nothing can be sent any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Returns the reason why the link ended.
    #[must_use]
    pub fn reason(&self) -> CloseReason {
        self.shared.reason()
    }

    /// Returns the counters of the link.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// The receiving end of a link.
pub struct Receiver {
    queue: queue::Receiver<Frame>,
    /// A frame that was peeked but not received.
    front: Option<Frame>,
    shared: Arc<Shared>,
}

impl Receiver {
    /// Receives the next frame, invalid ones included, or `None` at the end. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Frame> {
        match self.front.take() {
            Some(frame) => Some(frame),
            None => self.queue.recv().await,
        }
    }

    /// Returns the next frame without removing it. Cancel-safe.
    pub async fn peek(&mut self) -> Option<&Frame> {
        if self.front.is_none() {
            self.front = self.queue.recv().await;
        }
        self.front.as_ref()
    }

    /// Moves all available frames to `frames`, waiting for the first. Returns `false` at the end.
    /// Cancel-safe.
    pub async fn recv_all(&mut self, frames: &mut Vec<Frame>) -> bool {
        if let Some(frame) = self.front.take() {
            frames.push(frame);
            return true;
        }
        self.queue.recv_all(frames).await
    }

    /// Returns the reason why the link ended.
    #[must_use]
    pub fn reason(&self) -> CloseReason {
        self.shared.reason()
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("stats", &self.shared.stats()).finish_non_exhaustive()
    }
}
