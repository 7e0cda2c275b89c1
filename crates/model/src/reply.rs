//! The answer to one request, event by event.

mod stream;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use reqwest::Response;
use tokio::time::{Instant, Sleep, sleep};

use crate::body::{self, Profile};
use crate::chunk::Piece;
use crate::demo::DemoReply;
use crate::error_response::ErrorResponse;
use crate::http::SendError;
use crate::repair::{self, RequestParts};
use crate::{
    Assistant, Client, Completion, ErrorKind, Finish, Limits, ModelError, Provider, Request, RequestPart,
    http, retry,
};
use stream::{Incoming, ReadStep};

/// An event of an arriving answer.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplyEvent {
    /// A piece of the answer's text.
    Text(String),
    /// A piece of the reasoning before the answer.
    Thought(String),
    /// The model has begun a tool call.
    Calling { name: String },
    /// A notice that the request is sent again.
    Note(ReplyNote),
}

impl From<Piece> for ReplyEvent {
    fn from(piece: Piece) -> Self {
        match piece {
            Piece::Text(text) => Self::Text(text),
            Piece::Thought(text) => Self::Thought(text),
            Piece::Calling { name } => Self::Calling { name },
        }
    }
}

/// The reason why a request is sent again.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplyNote {
    /// The request failed and is sent again after a delay.
    Retrying {
        attempt: u32,
        /// Delay before the next attempt.
        wait: Duration,
        error: ModelError,
    },
    /// The endpoint refused a part of the request. The request is sent again without that part, or with the
    /// part in another form.
    Without { what: RequestPart, error: ModelError },
}

/// An answer in progress. The request is sent by the first call of [`next`](Self::next). Dropping the reply
/// aborts the request.
#[must_use = "nothing is asked before `next` is called"]
pub struct Reply<'a> {
    client: &'a Client,
    request: &'a Request,
    state: State,
    /// Events that [`Reply::next`] returns, oldest first.
    ready: VecDeque<ReplyEvent>,
    /// Reusable buffer for decoded pieces, to save allocations.
    pieces: Vec<Piece>,
    /// Number of attempts so far. Repaired requests do not count.
    attempt: u32,
    /// Parts omitted from the request, in addition to those that the endpoint is known to refuse.
    without: RequestParts,
    /// `true` once a part of the answer was returned to the caller.
    shown: bool,
    /// Start of the first of several failed connection attempts, and duration of the last one.
    unconnected: Option<(Instant, Duration)>,
    /// Deadline of the whole answer. Set by the first call of [`Reply::next`].
    until: Option<Instant>,
}

type PendingResponse = Pin<Box<dyn Future<Output = Result<Response, SendError>> + Send>>;

enum State {
    Fresh,
    /// The request will be sent after this delay.
    Waiting(Pin<Box<Sleep>>),
    Asking {
        response: PendingResponse,
        started: Instant,
    },
    /// The answer of an endpoint is being received.
    Reading(Box<Incoming>),
    /// The answer of the demo model is being received.
    Playing(Box<DemoReply>, Option<Pin<Box<Sleep>>>),
    Complete(Box<Completion>),
    Failed(Box<ModelError>),
}

impl<'a> Reply<'a> {
    pub(crate) fn new(client: &'a Client, request: &'a Request) -> Self {
        Self {
            client,
            request,
            state: State::Fresh,
            ready: VecDeque::new(),
            pieces: Vec::new(),
            attempt: 0,
            without: RequestParts::default(),
            shown: false,
            unconnected: None,
            until: None,
        }
    }
}

impl Reply<'_> {
    /// Returns the next event, or `None` once the answer is complete. After an error, returns the same error
    /// again.
    ///
    /// Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<ReplyEvent>, ModelError> {
        loop {
            if let Some(event) = self.next_now() {
                return Ok(Some(event));
            }
            match &mut self.state {
                State::Complete(_) => return Ok(None),
                State::Failed(error) => return Err((**error).clone()),
                State::Fresh => self.start(),
                State::Waiting(wait) => {
                    wait.as_mut().await;
                    self.start();
                }
                State::Asking { response, started } => {
                    let started = *started;
                    match response.as_mut().await {
                        Ok(response) => self.receive(response, started),
                        Err(unanswered) => self.handle_send_error(unanswered, started),
                    }
                }
                State::Reading(incoming) => {
                    let step = incoming.step(&mut self.pieces).await;
                    // Pieces that arrived before a failure are returned before the error.
                    self.ready.extend(self.pieces.drain(..).map(ReplyEvent::from));
                    match step {
                        Ok(ReadStep::More) => {}
                        Ok(ReadStep::End) => self.finish(),
                        Err(problem) => self.stop(problem),
                    }
                }
                State::Playing(play, pause) => {
                    if let Some(pause) = pause {
                        pause.as_mut().await;
                    }
                    match play.next() {
                        Some(event) => {
                            let pace = self.client.endpoint().pace;
                            *pause = (!pace.is_zero()).then(|| Box::pin(sleep(pace)));
                            self.ready.push_back(event);
                        }
                        None => self.finish_demo(),
                    }
                }
            }
        }
    }

    /// Returns the event that [`next`](Self::next) would return without waiting. Pieces arrive in groups, so
    /// the caller need not wait for each.
    pub fn next_now(&mut self) -> Option<ReplyEvent> {
        let event = self.ready.pop_front()?;
        self.shown |= !matches!(event, ReplyEvent::Note(_));
        Some(event)
    }

    /// Returns the complete answer. The message is empty unless [`next`](Self::next) has returned `None`,
    /// because half an answer must not become part of a conversation.
    #[must_use]
    pub fn into_completion(self) -> Completion {
        match self.state {
            State::Complete(completion) => *completion,
            _ => Completion {
                message: Assistant::default(),
                finish: Finish::Stop,
                usage: None,
                broken_calls: Vec::new(),
            },
        }
    }

    fn limits(&self) -> Limits {
        self.client.endpoint().limits
    }

    fn profile(&self) -> Profile {
        let profile = self.client.profile(&self.request.model);
        Profile { refused: profile.refused.with(self.without), ..profile }
    }

    fn start(&mut self) {
        let limits = self.limits();
        let started = Instant::now();
        let until = *self.until.get_or_insert(started + limits.total);
        self.attempt = self.attempt.max(1);
        if self.client.provider() == Provider::Demo {
            self.state = State::Playing(Box::new(DemoReply::new(self.request)), None);
            return;
        }
        let outgoing = body::build(self.request, &self.profile()).map(|body| self.client.outgoing(body));
        let outgoing = match outgoing {
            Ok(outgoing) if self.request.model.is_empty() && !self.is_model_optional() => {
                let error =
                    ModelError::new(ErrorKind::Unconfigured, outgoing.url.as_str(), "no model is set");
                return self.fail(error);
            }
            Ok(outgoing) => outgoing,
            Err(error) => return self.fail(ModelError::new(ErrorKind::Garbage, "", &error.to_string())),
        };
        let client = match self.client.http() {
            Ok(client) => client,
            Err(error) => return self.fail(error),
        };
        tracing::debug!(
            endpoint = self.client.endpoint().name,
            model = self.request.model,
            attempt = self.attempt,
            bytes = outgoing.body.as_ref().map(bytes::Bytes::len),
            "asking"
        );
        let deadline = until.min(started + limits.first_event);
        let response = http::send(client, outgoing, deadline, limits.idle);
        self.state = State::Asking { response: Box::pin(response), started };
    }

    /// Returns `true` if the URL or the server determines the model, so that a request need not name one.
    fn is_model_optional(&self) -> bool {
        matches!(self.client.provider(), Provider::AzureDated | Provider::LlamaCpp)
    }

    /// Handles a failure before a response arrived.
    fn handle_send_error(&mut self, unanswered: SendError, started: Instant) {
        let SendError { error, is_unconnected } = unanswered;
        self.unconnected = is_unconnected.then(|| {
            let since = self.unconnected.map_or(started, |(since, _)| since);
            (since, started.elapsed())
        });
        self.fail(error);
    }

    fn receive(&mut self, response: Response, started: Instant) {
        self.unconnected = None;
        let until = self.until.unwrap_or(started + self.limits().total);
        self.state = State::Reading(Box::new(Incoming::new(response, self.limits(), started, until)));
    }

    /// Handles the end of the response body.
    fn finish(&mut self) {
        let State::Reading(incoming) = std::mem::replace(&mut self.state, State::Fresh) else { return };
        let request_id = incoming.request_id.clone();
        let result = incoming.finish(&mut self.pieces);
        self.ready.extend(self.pieces.drain(..).map(ReplyEvent::from));
        match result {
            Ok(completion) => self.state = State::Complete(Box::new(completion)),
            Err(problem) => self.fail(self.error(problem, request_id)),
        }
    }

    /// Handles a failure while the response body was read.
    fn stop(&mut self, problem: ErrorResponse) {
        let request_id = match &self.state {
            State::Reading(incoming) => incoming.request_id.clone(),
            _ => None,
        };
        self.fail(self.error(problem, request_id));
    }

    fn error(&self, problem: ErrorResponse, request_id: Option<String>) -> ModelError {
        problem.into_error(self.client.chat_url().as_str(), request_id)
    }

    fn finish_demo(&mut self) {
        if let State::Playing(play, _) = std::mem::replace(&mut self.state, State::Fresh) {
            self.state = State::Complete(Box::new(play.into_completion()));
        }
    }

    /// Handles a failed request: repairs it, retries it, or reports the failure.
    fn fail(&mut self, error: ModelError) {
        let mut error = self.client.without_secrets(error);
        // The caller gets pending pieces before the error, so these pieces count as shown.
        error.shown = self.shown || self.ready.iter().any(|event| !matches!(event, ReplyEvent::Note(_)));
        tracing::debug!(
            endpoint = self.client.endpoint().name,
            model = self.request.model,
            %error,
            "model request failed"
        );
        if let Some(window) = error.window {
            self.client.remember_window(&self.request.model, window);
        }
        let sent = body::sent(self.request, &self.profile());
        if let Some(repair) = repair::find(&error, &sent) {
            self.without.insert(repair.what);
            if repair.lasting {
                self.client.remember_refused(&self.request.model, repair.what);
            }
            self.ready.push_back(ReplyEvent::Note(ReplyNote::Without { what: repair.what, error }));
            self.state = State::Fresh;
            return;
        }
        let in_time = |wait: &Duration| {
            let next = Instant::now() + *wait;
            // The next connection attempt is assumed to take as long as the last one.
            let ends_soon =
                |(since, took): (Instant, Duration)| next + took < since + retry::CONNECT_RETRY_TIMEOUT;
            self.until.is_none_or(|until| next < until) && self.unconnected.is_none_or(ends_soon)
        };
        let wait = retry::delay(&error, self.attempt, &self.limits(), fastrand::f64()).filter(in_time);
        if let Some(wait) = wait {
            self.attempt += 1;
            self.ready.push_back(ReplyEvent::Note(ReplyNote::Retrying {
                attempt: self.attempt,
                wait,
                error,
            }));
            self.state = State::Waiting(Box::pin(sleep(wait)));
            return;
        }
        self.state = State::Failed(Box::new(error));
    }
}

impl fmt::Debug for Reply<'_> {
    /// The content of the conversation is omitted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("endpoint", &self.client.endpoint().name)
            .field("model", &self.request.model)
            .field("attempt", &self.attempt)
            .field("shown", &self.shown)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "reply/tests.rs"]
mod tests;
