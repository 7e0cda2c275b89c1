//! The two ends of a link, and what travels between them and their driver.

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

/// What a link may hold.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The longest line the peer may send.
    pub max_line: usize,
    /// How many bytes may wait in each direction; one longer frame is admitted when nothing waits.
    pub queue_bytes: usize,
    /// Hang up on a peer whose first line is no JSON object or array, such as a web page that guessed the port.
    pub guard_first_line: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_line: DEFAULT_MAX_LINE_BYTES, queue_bytes: 1 << 20, guard_first_line: false }
    }
}

/// How often it is looked for a standstill before it is one.
const LOOKS: u32 = 10;

/// The link has ended; [`Sender::reason`] says why.
pub use crate::queue::Closed;

/// What happened on a link so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames that came.
    pub frames_in: u64,
    /// Frames that were written, each counted once the whole of it was.
    pub frames_out: u64,
    /// Bytes that were written, the ends of lines included: counted as the system takes them, so that a long line
    /// which is read slowly shows that it is.
    pub bytes_out: u64,
    /// Lines longer than allowed.
    pub too_long: u64,
    /// Unfinished lines at the end of the stream: counted, never acted on.
    pub partial: u64,
}

/// What the ends and the driver of a link share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    reason: OnceLock<CloseReason>,
    /// The peer no longer reads: the reason while there is no better one.
    deaf: AtomicBool,
    /// Something is being written at the moment.
    pub(crate) writing: AtomicBool,
    /// The peer has closed its end, though what it said before may still be on the way.
    hung_up: watch::Sender<bool>,
    /// What waits is not to be written.
    abandoned: watch::Sender<bool>,
    pub(crate) frames_in: AtomicU64,
    pub(crate) frames_out: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) too_long: AtomicU64,
    pub(crate) partial: AtomicU64,
    /// What the unfinished line is counted in.
    input: OnceLock<InputShare>,
}

impl Shared {
    /// Counts what is held of an unfinished line.
    pub(crate) fn count_input(&self, bytes: usize) {
        if let Some(share) = self.input.get() {
            share.set(bytes);
        }
    }

    /// Waits until the unfinished line is to be given up. Cancel-safe.
    pub(crate) async fn input_over(&self) {
        match self.input.get() {
            Some(share) => share.over().await,
            None => std::future::pending().await,
        }
    }

    /// Notes why the link ended, unless that is known already.
    pub(crate) fn close(&self, reason: CloseReason) {
        // The first reason is the cause; what follows are its consequences.
        let _ = self.reason.set(reason);
    }

    /// Notes that writing failed.
    pub(crate) fn close_writing(&self, error: std::io::Error) {
        tracing::debug!(%error, "writing to the peer failed");
        match error.into() {
            CloseReason::Deaf | CloseReason::Eof => self.close_deaf(),
            reason => self.close(reason),
        }
    }

    /// Notes that the peer no longer reads. That is seldom the whole story: the reading side may still learn how the
    /// peer ended.
    pub(crate) fn close_deaf(&self) {
        self.deaf.store(true, Ordering::Relaxed);
    }

    /// Notes that nothing more is on the way than what has been sent already.
    pub(crate) fn hang_up(&self) {
        self.hung_up.send_replace(true);
    }

    /// Waits until what waits is not to be written.
    pub(crate) async fn abandoned(&self) {
        raised(&self.abandoned).await;
    }

    fn reason(&self) -> CloseReason {
        let deaf = self.deaf.load(Ordering::Relaxed);
        self.reason.get().cloned().unwrap_or(if deaf { CloseReason::Deaf } else { CloseReason::Eof })
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

/// Waits until a flag is raised, which happens once.
async fn raised(flag: &watch::Sender<bool>) {
    // It cannot close before: whoever waits borrows the other end.
    let _ = flag.subscribe().wait_for(|raised| *raised).await;
}

/// What waits to be written.
#[derive(Debug)]
pub(crate) enum Outgoing {
    /// One line.
    Line(Bytes),
    /// Tell when everything before this has been written.
    Flush(oneshot::Sender<()>),
}

/// One end of a conversation: frames out, frames in.
#[derive(Debug)]
pub struct Link {
    /// Where frames go out.
    pub sender: Sender,
    /// Where frames come in.
    pub receiver: Receiver,
}

impl Link {
    /// A link and the ends that its driver holds: what to write, where to put what was read.
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

    /// Counts the unfinished input of the peer in a budget from now on. A line that is given up comes as one that is too long.
    /// Only the first share counts.
    pub fn limit_input(&self, share: InputShare) {
        let _ = self.sender.shared.input.set(share);
    }
}

/// Where frames go out. When the last clone goes, what waits is written and the peer sees the end of the stream.
#[derive(Clone)]
pub struct Sender {
    queue: queue::Sender<Outgoing>,
    shared: Arc<Shared>,
}

impl Sender {
    /// Sends one line as soon as there is room.
    ///
    /// # Errors
    /// When the link has ended.
    pub async fn send(&self, line: Bytes) -> Result<(), Closed> {
        let size = line.len();
        self.queue.send(Outgoing::Line(line), size).await
    }

    /// Sends one line without waiting, behind what was sent before: for answers and cancellations.
    /// See [`crate::queue`] for what keeps this bounded.
    ///
    /// # Errors
    /// When the link has ended.
    pub fn push(&self, line: Bytes) -> Result<(), Closed> {
        let size = line.len();
        self.queue.push(Outgoing::Line(line), size)
    }

    /// Waits until what was pushed is within its bound (see [`crate::queue`]), or the link has ended.
    pub async fn room(&self) {
        self.queue.room().await;
    }

    /// Waits until everything sent so far has been handed to the system.
    ///
    /// # Errors
    /// When the link ended before that.
    pub async fn flush(&self) -> Result<(), Closed> {
        let (done, written) = oneshot::channel();
        self.queue.push(Outgoing::Flush(done), 0)?;
        written.await.map_err(|_| Closed)
    }

    /// Ends the link from this side: what waits is written, then the peer sees the end of the stream.
    pub fn close(&self) {
        self.shared.close(CloseReason::Local);
        self.queue.close();
    }

    /// Ends the link from this side without writing what waits, for a peer that takes nothing of it.
    pub fn abandon(&self) {
        self.shared.close_deaf();
        self.shared.abandoned.send_replace(true);
        self.queue.close();
    }

    /// Waits until the peer has closed its end. What it said before may still be on the way: this shows also while a
    /// full queue stops the reading, on stdio and in memory; elsewhere once it has been read to the end.
    pub async fn hung_up(&self) {
        raised(&self.shared.hung_up).await;
    }

    /// Waits until something waits to be written and for `patience` no byte of it could be.
    pub async fn standstill(&self, patience: Duration) {
        let (mut before, mut since) = (self.stats().bytes_out, Instant::now());
        loop {
            sleep(patience / LOOKS).await;
            let now = self.stats().bytes_out;
            if now != before || !self.shared.writing.load(Ordering::Relaxed) {
                (before, since) = (now, Instant::now());
            } else if since.elapsed() >= patience {
                return;
            }
        }
    }

    /// Waits until nothing will be written any more: the link was closed and everything is out, or the peer no longer
    /// reads.
    pub async fn written(&self) {
        self.queue.gone().await;
    }

    /// Whether nothing can be sent any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Why the link ended.
    #[must_use]
    pub fn reason(&self) -> CloseReason {
        self.shared.reason()
    }

    /// What happened so far.
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

/// Where frames come in.
pub struct Receiver {
    queue: queue::Receiver<Frame>,
    /// What was looked at and not taken yet.
    front: Option<Frame>,
    shared: Arc<Shared>,
}

impl Receiver {
    /// The next frame, invalid ones included, or `None` at the end. Safe to cancel.
    pub async fn recv(&mut self) -> Option<Frame> {
        match self.front.take() {
            Some(frame) => Some(frame),
            None => self.queue.recv().await,
        }
    }

    /// The frame that comes next, which stays where it is. Safe to cancel.
    pub async fn peek(&mut self) -> Option<&Frame> {
        if self.front.is_none() {
            self.front = self.queue.recv().await;
        }
        self.front.as_ref()
    }

    /// Moves every frame there is to `frames`, waiting for the first; `false` at the end. Safe to cancel.
    pub async fn recv_all(&mut self, frames: &mut Vec<Frame>) -> bool {
        if let Some(frame) = self.front.take() {
            frames.push(frame);
            return true;
        }
        self.queue.recv_all(frames).await
    }

    /// Why the link ended.
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
