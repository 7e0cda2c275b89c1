//! The body of one response, read into pieces.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use reqwest::Response;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, Sleep, sleep_until};

use crate::chunk::{Piece, Taken};
use crate::decode::Decoder;
use crate::http::causes;
use crate::problem::{Problem, request_id};
use crate::{Completion, Kind, Limits};

/// What a read gives: chunks as they came, or the end.
type Read = Result<Option<Vec<Bytes>>, Box<Problem>>;

/// How many pieces are taken before they are handed out, if so many are there. Few, for then the memory of one is still
/// at hand when it is needed for the next.
const AT_ONCE: usize = 8;

/// How much is read at once, if so much is there.
const GATHER: usize = 32 << 10;

/// What a chunk costs beside its bytes.
const OVERHEAD: usize = 64;

/// One response, as far as it has been read.
pub(super) struct Incoming {
    body: Body,
    /// What the provider can find the request by.
    pub(super) request_id: Option<String>,
    limits: Limits,
    clock: Clock,
    /// What has been read and is not decoded.
    unread: std::vec::IntoIter<Bytes>,
    decoder: Decoder,
}

/// What comes next.
pub(super) enum Step {
    /// Perhaps something to show.
    More,
    /// The answer has been read to its end.
    End,
}

impl Incoming {
    /// `started` is when the request was sent, `until` when the whole reply must have ended.
    pub(super) fn new(response: Response, limits: Limits, started: Instant, until: Instant) -> Self {
        Self {
            request_id: request_id(response.headers()),
            body: Body::new(Box::pin(response.bytes_stream())),
            limits,
            clock: Clock::new(started, limits.first_event, until),
            unread: Vec::new().into_iter(),
            decoder: Decoder::new(limits),
        }
    }

    /// Goes on until there is something to show, or the answer has ended. Safe to cancel.
    pub(super) async fn step(&mut self, out: &mut Vec<Piece>) -> Result<Step, Problem> {
        loop {
            while let Some(taken) = self.decoder.take(out)? {
                match taken {
                    Taken::Going => self.clock.event_came(self.limits.idle),
                    Taken::Finished => self.clock.end_by(Instant::now() + self.limits.grace),
                    Taken::Done => return Ok(Step::End),
                    Taken::Skipped => {}
                }
                if out.len() >= AT_ONCE {
                    return Ok(Step::More);
                }
            }
            if let Some(chunk) = self.unread.next() {
                self.decoder.feed(chunk)?;
                continue;
            }
            if !out.is_empty() {
                return Ok(Step::More);
            }
            match poll_fn(|cx| self.poll_read(cx)).await {
                Ok(Some(chunks)) => {
                    self.clock.read(self.limits.idle);
                    self.unread = chunks.into_iter();
                }
                Ok(None) => {
                    self.decoder.last(out)?;
                    return Ok(Step::End);
                }
                // The end had been told, and only the numbers are missing.
                Err(_) if self.clock.phase == Phase::Grace => return Ok(Step::End),
                Err(problem) => return Err(*problem),
            }
        }
    }

    /// The whole answer, and what had been held back of it.
    pub(super) fn finish(self, out: &mut Vec<Piece>) -> Result<Completion, Problem> {
        self.decoder.finish(out)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        if let Poll::Ready(read) = self.body.poll_read(cx) {
            return Poll::Ready(read);
        }
        let late = ready!(self.clock.poll(cx));
        Poll::Ready(Err(Box::new(Problem::new(Kind::Timeout, late, false))))
    }
}

/// A body as it comes over the network.
type Chunks = Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send>>;

/// The bytes of a body, as many as have come.
///
/// The connection is a task of its own, which hands over a chunk of HTTP at a time, and a chunk often has one event.
/// Whoever took each to the client by itself would wake the whole turn and write once for every word of a model that
/// talks fast. So they are gathered, as they are, by a task that does nothing else.
struct Body {
    reads: mpsc::Receiver<Read>,
    /// Ends with the body, and with it the connection that nobody reads from.
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

/// Hands on what comes until the end, or until nobody wants it.
async fn gather(mut gather: Gather, reads: mpsc::Sender<Read>) {
    loop {
        let read = poll_fn(|cx| gather.poll_read(cx)).await;
        let is_last = !matches!(read, Ok(Some(_)));
        if reads.send(read).await.is_err() || is_last {
            return;
        }
    }
}

/// What has come of a body, gathered as long as more comes at once.
struct Gather {
    chunks: Chunks,
    /// What has come and was not handed out.
    come: Vec<Bytes>,
    /// What that costs.
    held: usize,
    /// What comes behind that: the end.
    end: Option<Read>,
}

impl Gather {
    fn new(chunks: Chunks) -> Self {
        Self { chunks, come: Vec::new(), held: 0, end: None }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        while self.end.is_none() && self.held < GATHER {
            match self.chunks.as_mut().poll_next(cx) {
                Poll::Ready(Some(Ok(chunk))) => {
                    self.held += chunk.len() + OVERHEAD;
                    self.come.push(chunk);
                    if self.held < GATHER {
                        // Behind the connection, which this has woken: it has one chunk ready at a time.
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    let cause = causes(&error.without_url());
                    let problem = Problem::new(Kind::Cut, &format!("the connection broke: {cause}"), true);
                    self.end = Some(Err(Box::new(problem)));
                }
                Poll::Ready(None) => self.end = Some(Ok(None)),
                Poll::Pending if self.come.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        self.held = 0;
        Poll::Ready(if self.come.is_empty() {
            self.end.take().unwrap_or(Ok(None))
        } else {
            Ok(Some(std::mem::take(&mut self.come)))
        })
    }
}

/// What is being waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    First,
    Going,
    Grace,
}

/// The deadline of the next read.
///
/// Every read moves it, so the timer is not set anew each time: when it fires too early, it is set to the rest.
struct Clock {
    phase: Phase,
    deadline: Instant,
    until: Instant,
    timer: Pin<Box<Sleep>>,
    /// How long there may be reads without an event: what gateways send to keep a connection open shows that they live,
    /// and not that an answer comes.
    patience: Duration,
    event_by: Instant,
    /// When something was read last.
    read_at: Instant,
}

impl Clock {
    fn new(started: Instant, patience: Duration, until: Instant) -> Self {
        let first = started + patience;
        let deadline = first.min(until);
        let timer = Box::pin(sleep_until(deadline));
        Self { phase: Phase::First, deadline, until, timer, patience, event_by: first, read_at: started }
    }

    /// An event has come: from here on the time between reads counts, and that until the next event.
    fn event_came(&mut self, idle: Duration) {
        if self.phase != Phase::Grace {
            self.phase = Phase::Going;
            // There are many events, so the time is looked at once for all in a read.
            self.event_by = self.read_at + self.patience;
            self.set(self.read_at + idle);
        }
    }

    /// Something has been read. Before the first event that is no answer yet, and moves nothing.
    fn read(&mut self, idle: Duration) {
        self.read_at = Instant::now();
        if self.phase == Phase::Going {
            // An event in it will move this.
            self.set((self.read_at + idle).min(self.event_by));
        }
    }

    /// The answer has ended; what else comes must come soon.
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

    /// Ready when the deadline has passed, with what was missed.
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
                Phase::Going if now >= self.event_by => "nothing came but signs of life",
                Phase::Going | Phase::Grace => "the answer stopped coming",
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A connection: `None` is a moment in which nothing has come.
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
    fn what_comes_in_a_row_is_one_read() {
        check(&[Some("a"), Some("b")], &["ab"]);
        check(&[Some("a"), None, Some("b"), Some("c")], &["a", "bc"]);
        check(&[Some("a"), None, None, Some("b"), None, None], &["a", "b"]);
        check(&[None, None, Some("a")], &["a"]);
        check(&[], &[]);
    }

    #[test]
    fn a_read_has_an_end() {
        let long: &str = "x".repeat(GATHER - OVERHEAD).leak();
        check(&[Some(long), Some("b")], &[long, "b"]);
        // However little is in each.
        let most = GATHER.div_ceil(1 + OVERHEAD);
        let first: &str = "x".repeat(most).leak();
        check(&vec![Some("x"); most + 1], &[first, "x"]);
    }

    /// Moves the time on, and tells whether the clock has run out.
    async fn is_late_after(clock: &mut Clock, seconds: u64) -> bool {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        poll_fn(|cx| Poll::Ready(clock.poll(cx).is_ready())).await
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_after_signs_of_life_has_the_whole_silence_before_it() {
        let (idle, patience) = (Duration::from_secs(15), Duration::from_secs(20));
        let now = Instant::now();
        let mut clock = Clock::new(now, patience, now + Duration::from_secs(3600));
        clock.read(idle);
        clock.event_came(idle);
        // Two comments, and an event just before patience ends.
        for pause in [1, 14] {
            assert!(!is_late_after(&mut clock, pause).await);
            clock.read(idle);
        }
        assert!(!is_late_after(&mut clock, 4).await);
        clock.read(idle);
        clock.event_came(idle);
        assert!(!is_late_after(&mut clock, 14).await, "an event has just come");
        assert!(is_late_after(&mut clock, 2).await, "and then nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn signs_of_life_do_not_shorten_a_silence_that_may_be_longer() {
        let (idle, patience) = (Duration::from_secs(30), Duration::from_secs(10));
        let now = Instant::now();
        let mut clock = Clock::new(now, patience, now + Duration::from_secs(3600));
        clock.read(idle);
        clock.event_came(idle);
        assert!(!is_late_after(&mut clock, 29).await, "only silence");
        clock.read(idle);
        clock.event_came(idle);
        assert!(!is_late_after(&mut clock, 29).await, "an event has ended it");
        clock.read(idle);
        assert!(is_late_after(&mut clock, 0).await, "a comment is none");
    }
}
