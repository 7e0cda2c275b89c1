//! The body of one response, read into pieces.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use reqwest::Response;
use tokio::time::{Duration, Instant, Sleep, sleep_until};

use crate::chunk::{Assembly, Piece, Taken};
use crate::http::causes;
use crate::problem::{Problem, request_id};
use crate::sse::{Shape, Sse};
use crate::{Completion, Kind, Limits};

/// The length of the mark that some servers put before UTF-8, and that may come in parts.
const MARK: usize = 3;

/// What a read gives: bytes, or the end.
type Read = Result<Option<Bytes>, Problem>;

/// One response, as far as it has been read.
pub(super) struct Incoming {
    body: Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send>>,
    /// What the provider can find the request by.
    pub(super) request_id: Option<String>,
    limits: Limits,
    clock: Clock,
    form: Form,
    assembly: Assembly,
    /// How many bytes have come.
    count: usize,
}

/// What the body turns out to be.
enum Form {
    /// Too early to tell: nothing but white space.
    Unknown(Vec<u8>),
    /// Events.
    Events(Sse),
    /// A whole answer, or the error in its place.
    Whole(Vec<u8>),
    /// A web page.
    Page(Vec<u8>),
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
            form: Form::Unknown(Vec::new()),
            assembly: Assembly::new(),
            count: 0,
        }
    }

    /// Goes on until there is something to show, or the answer has ended. Safe to cancel.
    pub(super) async fn step(&mut self, out: &mut Vec<Piece>) -> Result<Step, Problem> {
        loop {
            if let Form::Events(events) = &mut self.form {
                let too_long =
                    |error: crate::sse::TooLong| Problem::new(Kind::Garbage, &error.to_string(), false);
                while let Some(data) = events.next().map_err(too_long)? {
                    match self.assembly.take(&data, out)? {
                        Taken::Going => self.clock.first_came(self.limits.idle),
                        Taken::Finished => self.clock.end_by(Instant::now() + self.limits.grace),
                        Taken::Done => return Ok(Step::End),
                        // What it says may be a part of the conversation, which no log shall have.
                        Taken::Skipped => {
                            tracing::warn!(
                                bytes = data.len(),
                                "skipped a line of the answer that is no chunk"
                            );
                        }
                    }
                    if !out.is_empty() {
                        return Ok(Step::More);
                    }
                }
            }
            match poll_fn(|cx| self.poll_read(cx)).await {
                Ok(Some(bytes)) => self.feed(bytes)?,
                Ok(None) => {
                    self.last(out)?;
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
        self.assembly.finish(out)
    }

    fn feed(&mut self, bytes: Bytes) -> Result<(), Problem> {
        self.count = self.count.saturating_add(bytes.len());
        if self.count > self.limits.max_reply {
            let message = format!("an answer of more than {} bytes", self.limits.max_reply);
            return Err(Problem::new(Kind::Garbage, &message, false));
        }
        self.clock.read(self.limits.idle);
        match &mut self.form {
            Form::Events(events) => events.feed(bytes),
            Form::Whole(whole) | Form::Page(whole) => whole.extend_from_slice(&bytes),
            Form::Unknown(start) => {
                start.extend_from_slice(&bytes);
                if let Some(shape) = Shape::of(start) {
                    let start = mem::take(start);
                    self.form = self.formed(shape, start);
                } else if start.len() > MARK {
                    // White space means nothing in any form, and some servers send it for minutes.
                    start.clear();
                }
            }
        }
        Ok(())
    }

    fn formed(&self, shape: Shape, start: Vec<u8>) -> Form {
        match shape {
            Shape::Json => Form::Whole(start),
            Shape::Page => Form::Page(start),
            Shape::Events => {
                let mut events = Sse::new(self.limits.max_line);
                events.feed(start.into());
                Form::Events(events)
            }
        }
    }

    /// Takes what only the end of the body completes.
    fn last(&mut self, out: &mut Vec<Piece>) -> Result<(), Problem> {
        match &mut self.form {
            Form::Events(events) => {
                if let Some(data) = events.finish() {
                    self.assembly.take(&data, out)?;
                }
                Ok(())
            }
            Form::Whole(body) => {
                let body = mem::take(body);
                self.assembly.take_whole(&body, out)
            }
            Form::Page(body) => Err(Problem::of_page(body)),
            Form::Unknown(_) => Ok(()),
        }
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
