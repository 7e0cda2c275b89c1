//! The body of one response, read into pieces.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use reqwest::Response;
use tokio::time::{Duration, Instant, Sleep, sleep_until};

use crate::chunk::{Piece, Taken};
use crate::decode::Decoder;
use crate::http::causes;
use crate::problem::{Problem, request_id};
use crate::{Completion, Kind, Limits};

/// What a read gives: bytes, or the end.
type Read = Result<Option<Bytes>, Problem>;

/// One response, as far as it has been read.
pub(super) struct Incoming {
    body: Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send>>,
    /// What the provider can find the request by.
    pub(super) request_id: Option<String>,
    limits: Limits,
    clock: Clock,
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
            body: Box::pin(response.bytes_stream()),
            limits,
            clock: Clock::new(started + limits.first_event, until),
            decoder: Decoder::new(limits),
        }
    }

    /// Goes on until there is something to show, or the answer has ended. Safe to cancel.
    pub(super) async fn step(&mut self, out: &mut Vec<Piece>) -> Result<Step, Problem> {
        loop {
            while let Some(taken) = self.decoder.take(out)? {
                match taken {
                    Taken::Going => self.clock.first_came(self.limits.idle),
                    Taken::Finished => self.clock.end_by(Instant::now() + self.limits.grace),
                    Taken::Done => return Ok(Step::End),
                    Taken::Skipped => {}
                }
                if !out.is_empty() {
                    return Ok(Step::More);
                }
            }
            match poll_fn(|cx| self.poll_read(cx)).await {
                Ok(Some(bytes)) => {
                    self.clock.read(self.limits.idle);
                    self.decoder.feed(bytes)?;
                }
                Ok(None) => {
                    self.decoder.last(out)?;
                    return Ok(Step::End);
                }
                // The end had been told, and only the numbers are missing.
                Err(_) if self.clock.phase == Phase::Grace => return Ok(Step::End),
                Err(problem) => return Err(problem),
            }
        }
    }

    /// The whole answer, and what had been held back of it.
    pub(super) fn finish(self, out: &mut Vec<Piece>) -> Result<Completion, Problem> {
        self.decoder.finish(out)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        if let Poll::Ready(read) = self.body.as_mut().poll_next(cx) {
            return Poll::Ready(match read {
                Some(Ok(bytes)) => Ok(Some(bytes)),
                None => Ok(None),
                Some(Err(error)) => {
                    let cause = causes(&error.without_url());
                    Err(Problem::new(Kind::Cut, &format!("the connection broke: {cause}"), true))
                }
            });
        }
        let late = ready!(self.clock.poll(cx));
        Poll::Ready(Err(Problem::new(Kind::Timeout, late, false)))
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
}

impl Clock {
    fn new(first: Instant, until: Instant) -> Self {
        let deadline = first.min(until);
        Self { phase: Phase::First, deadline, until, timer: Box::pin(sleep_until(deadline)) }
    }

    /// The first event has come: from here on the time between reads counts.
    fn first_came(&mut self, idle: Duration) {
        if self.phase == Phase::First {
            self.phase = Phase::Going;
            self.set(Instant::now() + idle);
        }
    }

    /// Something has been read. Before the first event that is no answer yet, and changes nothing.
    fn read(&mut self, idle: Duration) {
        if self.phase == Phase::Going {
            self.set(Instant::now() + idle);
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
                Phase::Going | Phase::Grace => "the answer stopped coming",
            });
        }
    }
}
