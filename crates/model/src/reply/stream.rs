//! Reads the body of one response and decodes it into pieces.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use reqwest::Response;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, Sleep, sleep_until};

use crate::chunk::{ChunkOutcome, Piece};
use crate::decode::Decoder;
use crate::error_response::{ErrorResponse, request_id};
use crate::http::error_chain;
use crate::{Completion, ErrorKind, Limits};

/// Result of a read: a batch of HTTP chunks, or `None` at the end of the body.
type Read = Result<Option<Vec<Bytes>>, Box<ErrorResponse>>;

/// Maximum number of pieces that are decoded in a row before they are returned. Small, so that the memory of
/// a batch can be reused.
const MAX_BATCH_PIECES: usize = 8;

/// Maximum number of bytes per read.
const MAX_READ_BYTES: usize = 32 << 10;

/// Memory cost of a chunk in addition to its bytes.
const CHUNK_OVERHEAD_BYTES: usize = 64;

pub(super) struct Incoming {
    body: Body,
    /// Id by which the provider can find the request.
    pub(super) request_id: Option<String>,
    limits: Limits,
    read_deadline: ReadDeadline,
    unread: std::vec::IntoIter<Bytes>,
    decoder: Decoder,
}

pub(super) enum ReadStep {
    /// The body may continue. `out` may contain pieces to show.
    More,
    /// The answer was read to its end.
    End,
}

impl Incoming {
    /// Creates a reader. `started` is the start time of the request, `until` the deadline of the whole reply.
    pub(super) fn new(response: Response, limits: Limits, started: Instant, until: Instant) -> Self {
        Self {
            request_id: request_id(response.headers()),
            body: Body::new(Box::pin(response.bytes_stream())),
            limits,
            read_deadline: ReadDeadline::new(started, limits.first_event, until),
            unread: Vec::new().into_iter(),
            decoder: Decoder::new(limits),
        }
    }

    /// Reads until a piece can be shown or the answer has ended. Cancel-safe.
    pub(super) async fn step(&mut self, out: &mut Vec<Piece>) -> Result<ReadStep, ErrorResponse> {
        loop {
            while let Some(taken) = self.decoder.next_event(out)? {
                match taken {
                    ChunkOutcome::Going => self.read_deadline.event_came(self.limits.idle),
                    ChunkOutcome::Finished => self.read_deadline.end_by(Instant::now() + self.limits.grace),
                    ChunkOutcome::Done => return Ok(ReadStep::End),
                    ChunkOutcome::Skipped => {}
                }
                if out.len() >= MAX_BATCH_PIECES {
                    return Ok(ReadStep::More);
                }
            }
            if let Some(chunk) = self.unread.next() {
                self.decoder.feed(chunk)?;
                continue;
            }
            if !out.is_empty() {
                return Ok(ReadStep::More);
            }
            match poll_fn(|cx| self.poll_read(cx)).await {
                Ok(Some(chunks)) => {
                    self.read_deadline.read(self.limits.idle);
                    self.unread = chunks.into_iter();
                }
                Ok(None) => {
                    self.decoder.last(out)?;
                    return Ok(ReadStep::End);
                }
                // The answer itself is complete: only its usage did not arrive in time.
                Err(_) if self.read_deadline.phase == Phase::Grace => return Ok(ReadStep::End),
                Err(problem) => return Err(*problem),
            }
        }
    }

    /// Returns the complete answer. Adds text that was held back to `out`.
    pub(super) fn finish(self, out: &mut Vec<Piece>) -> Result<Completion, ErrorResponse> {
        self.decoder.finish(out)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        if let Poll::Ready(read) = self.body.poll_read(cx) {
            return Poll::Ready(read);
        }
        let late = ready!(self.read_deadline.poll(cx));
        Poll::Ready(Err(Box::new(ErrorResponse::new(ErrorKind::Timeout, late, false))))
    }
}

type Chunks = Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send>>;

/// The body of a response, in batches of HTTP chunks.
///
/// The connection's task hands over one HTTP chunk at a time, and a chunk often contains one event.
/// Forwarding each chunk separately would wake the turn and write to the client once per word of a fast
/// model. So a separate task gathers the chunks.
struct Body {
    reads: mpsc::Receiver<Read>,
    /// Aborts the gathering task, and so closes the connection, when the body is dropped.
    _gathering: JoinSet<()>,
}

impl Body {
    fn new(chunks: Chunks) -> Self {
        let (sender, reads) = mpsc::channel(1);
        let mut gathering = JoinSet::new();
        gathering.spawn(gather(Gather::new(chunks), sender));
        Self { reads, _gathering: gathering }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        self.reads.poll_recv(cx).map(|read| read.unwrap_or(Ok(None)))
    }
}

/// Forwards batches of chunks until the body ends or the receiver is dropped.
async fn gather(mut gather: Gather, reads: mpsc::Sender<Read>) {
    loop {
        let read = poll_fn(|cx| gather.poll_read(cx)).await;
        let is_last = !matches!(read, Ok(Some(_)));
        if reads.send(read).await.is_err() || is_last {
            return;
        }
    }
}

/// Collects the chunks of a body that are ready.
struct Gather {
    chunks: Chunks,
    ready_chunks: Vec<Bytes>,
    /// Cost of `ready_chunks` in bytes.
    ready_cost: usize,
    /// End of the body, or error, that follows the collected chunks.
    end: Option<Read>,
}

impl Gather {
    fn new(chunks: Chunks) -> Self {
        Self { chunks, ready_chunks: Vec::new(), ready_cost: 0, end: None }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        while self.end.is_none() && self.ready_cost < MAX_READ_BYTES {
            match self.chunks.as_mut().poll_next(cx) {
                Poll::Ready(Some(Ok(chunk))) => {
                    self.ready_cost += chunk.len() + CHUNK_OVERHEAD_BYTES;
                    self.ready_chunks.push(chunk);
                    if self.ready_cost < MAX_READ_BYTES {
                        // The connection's task, which the last poll woke, provides one chunk at a time.
                        // Yielding lets that task continue.
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    let cause = error_chain(&error.without_url());
                    let problem =
                        ErrorResponse::new(ErrorKind::Cut, &format!("the connection broke: {cause}"), true);
                    self.end = Some(Err(Box::new(problem)));
                }
                Poll::Ready(None) => self.end = Some(Ok(None)),
                Poll::Pending if self.ready_chunks.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        self.ready_cost = 0;
        Poll::Ready(if self.ready_chunks.is_empty() {
            self.end.take().unwrap_or(Ok(None))
        } else {
            Ok(Some(std::mem::take(&mut self.ready_chunks)))
        })
    }
}

/// Phase of an answer. Each phase has its own timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    First,
    Going,
    Grace,
}

/// Deadline of the next read.
///
/// Every read moves the deadline, but resetting the timer each time would be slow. A timer that fires too
/// early is set to the remaining time.
struct ReadDeadline {
    phase: Phase,
    deadline: Instant,
    until: Instant,
    timer: Pin<Box<Sleep>>,
    /// Maximum time without an event. Gateways send comments to keep a connection open, but a comment does
    /// not mean that an answer follows.
    patience: Duration,
    event_by: Instant,
    read_at: Instant,
}

impl ReadDeadline {
    fn new(started: Instant, patience: Duration, until: Instant) -> Self {
        let first = started + patience;
        let deadline = first.min(until);
        let timer = Box::pin(sleep_until(deadline));
        Self { phase: Phase::First, deadline, until, timer, patience, event_by: first, read_at: started }
    }

    /// Records an event: moves the deadlines for the next read and the next event.
    fn event_came(&mut self, idle: Duration) {
        if self.phase != Phase::Grace {
            self.phase = Phase::Going;
            // The time of the read is used, because one read may contain many events.
            self.event_by = self.read_at + self.patience;
            self.set(self.read_at + idle);
        }
    }

    /// Records a read. A read before the first event does not extend the timeout.
    fn read(&mut self, idle: Duration) {
        self.read_at = Instant::now();
        if self.phase == Phase::Going {
            // If the read contains an event, the event moves the deadline again.
            self.set((self.read_at + idle).min(self.event_by));
        }
    }

    /// Sets the deadline for the usage after the end of the answer.
    fn end_by(&mut self, by: Instant) {
        if self.phase != Phase::Grace {
            self.phase = Phase::Grace;
            self.set(by);
        }
    }

    fn set(&mut self, deadline: Instant) {
        self.deadline = deadline.min(self.until);
        if self.deadline < self.timer.deadline() {
            self.timer.as_mut().reset(self.deadline);
        }
    }

    /// Is ready once the deadline has passed. Returns a description of the data that did not arrive.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<&'static str> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let now = Instant::now();
            if now < self.deadline {
                self.timer.as_mut().reset(self.deadline);
                continue;
            }
            return Poll::Ready(match self.phase {
                _ if now >= self.until => "the answer took too long",
                Phase::First => "the answer did not begin in time",
                Phase::Going if now >= self.event_by => "the server sent only comments",
                Phase::Going | Phase::Grace => "the answer paused for too long",
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Chunks that a test connection provides. `None` stands for a moment without data.
    struct Script(VecDeque<Option<&'static str>>);

    impl Stream for Script {
        type Item = reqwest::Result<Bytes>;

        fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            match self.0.pop_front() {
                Some(Some(chunk)) => Poll::Ready(Some(Ok(chunk.into()))),
                Some(None) => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                None => Poll::Ready(None),
            }
        }
    }

    #[track_caller]
    fn check(chunks: &[Option<&'static str>], expected: &[&str]) {
        let mut body = Gather::new(Box::pin(Script(chunks.iter().copied().collect())));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut reads = Vec::new();
        for _ in 0..1000 {
            match body.poll_read(&mut cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(Some(chunks))) => {
                    reads.push(String::from_utf8_lossy(&chunks.concat()).into_owned());
                }
                Poll::Ready(Ok(None)) => break,
                Poll::Ready(Err(problem)) => panic!("{problem:?}"),
            }
        }
        assert_eq!(reads, expected);
    }

    #[test]
    fn ready_chunks_are_one_read() {
        check(&[Some("a"), Some("b")], &["ab"]);
        check(&[Some("a"), None, Some("b"), Some("c")], &["a", "bc"]);
        check(&[Some("a"), None, None, Some("b"), None, None], &["a", "b"]);
        check(&[None, None, Some("a")], &["a"]);
        check(&[], &[]);
    }

    #[test]
    fn the_size_of_a_read_is_limited() {
        let long: &str = "x".repeat(MAX_READ_BYTES - CHUNK_OVERHEAD_BYTES).leak();
        check(&[Some(long), Some("b")], &[long, "b"]);
        // The limit of bytes per read holds for chunks of any size.
        let most = MAX_READ_BYTES.div_ceil(1 + CHUNK_OVERHEAD_BYTES);
        let first: &str = "x".repeat(most).leak();
        check(&vec![Some("x"); most + 1], &[first, "x"]);
    }

    /// Advances the time. Returns `true` if the deadline has passed.
    async fn is_late_after(read_deadline: &mut ReadDeadline, seconds: u64) -> bool {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        poll_fn(|cx| Poll::Ready(read_deadline.poll(cx).is_ready())).await
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_after_comments_restarts_the_timeouts() {
        let (idle, patience) = (Duration::from_secs(15), Duration::from_secs(20));
        let now = Instant::now();
        let mut read_deadline = ReadDeadline::new(now, patience, now + Duration::from_secs(3600));
        read_deadline.read(idle);
        read_deadline.event_came(idle);
        // Two comments arrive, and then an event just before the timeout.
        for pause in [1, 14] {
            assert!(!is_late_after(&mut read_deadline, pause).await);
            read_deadline.read(idle);
        }
        assert!(!is_late_after(&mut read_deadline, 4).await);
        read_deadline.read(idle);
        read_deadline.event_came(idle);
        assert!(!is_late_after(&mut read_deadline, 14).await, "an event has just come");
        assert!(is_late_after(&mut read_deadline, 2).await, "nothing follows");
    }

    #[tokio::test(start_paused = true)]
    async fn comments_do_not_shorten_a_longer_idle_timeout() {
        let (idle, patience) = (Duration::from_secs(30), Duration::from_secs(10));
        let now = Instant::now();
        let mut read_deadline = ReadDeadline::new(now, patience, now + Duration::from_secs(3600));
        read_deadline.read(idle);
        read_deadline.event_came(idle);
        assert!(!is_late_after(&mut read_deadline, 29).await, "only silence");
        read_deadline.read(idle);
        read_deadline.event_came(idle);
        assert!(!is_late_after(&mut read_deadline, 29).await, "an event ends the silence");
        read_deadline.read(idle);
        assert!(is_late_after(&mut read_deadline, 0).await, "a comment does not end the silence");
    }
}
