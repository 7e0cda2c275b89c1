//! One answer, event by event.

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
use crate::demo::Play;
use crate::http::Unanswered;
use crate::problem::Problem;
use crate::repair::{self, Parts};
use crate::{
    Assistant, Client, Completion, Dropped, Error, Finish, Kind, Limits, Provider, Request, http, retry,
};
use stream::{Incoming, Step};

/// What happens while an answer comes.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A piece of the answer.
    Text(String),
    /// A piece of what the model thinks before it answers.
    Thought(String),
    /// The model has begun to write a call of this tool.
    Calling {
        /// The tool.
        name: String,
    },
    /// Something about the request rather than the answer.
    Note(Note),
}

impl From<Piece> for Event {
    fn from(piece: Piece) -> Self {
        match piece {
            Piece::Text(text) => Self::Text(text),
            Piece::Thought(text) => Self::Thought(text),
            Piece::Calling { name } => Self::Calling { name },
        }
    }
}

/// What was done so that there may be an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// The request failed and will be sent again.
    Retrying {
        /// Which attempt comes next; the first was 1.
        attempt: u32,
        /// How long until then.
        wait: Duration,
        /// Why it failed.
        error: Error,
    },
    /// The endpoint refused a part of the request, which is now sent without it, or in another form.
    Without {
        /// Which part.
        what: Dropped,
        /// The refusal.
        error: Error,
    },
}

/// One answer under way. Nothing is sent before the first [`next`](Self::next); dropping it aborts the request.
#[must_use = "nothing is asked before `next` is called"]
pub struct Reply<'a> {
    client: &'a Client,
    request: &'a Request,
    state: State,
    /// What is to be handed out, oldest first.
    ready: VecDeque<Event>,
    /// Where the decoder puts pieces; kept for its memory.
    pieces: Vec<Piece>,
    /// How often the request has been sent, repairs not counted.
    attempt: u32,
    /// What this request is sent without, beyond what the endpoint is known to refuse.
    without: Parts,
    /// Whether a part of the answer has been handed out.
    shown: bool,
    /// Since when no connection comes about, and how long the last try took.
    unconnected: Option<(Instant, Duration)>,
    /// When it must have ended; set by the first call.
    until: Option<Instant>,
}

/// A request on its way, and what it was sent with.
type Asking = Pin<Box<dyn Future<Output = Result<Response, Unanswered>> + Send>>;

enum State {
    /// To be sent.
    Fresh,
    /// To be sent when this has passed.
    Waiting(Pin<Box<Sleep>>),
    /// On its way.
    Asking { response: Asking, started: Instant },
    /// Its answer comes.
    Reading(Box<Incoming>),
    /// The demo model answers.
    Playing(Box<Play>, Option<Pin<Box<Sleep>>>),
    /// The answer is complete.
    Complete(Box<Completion>),
    /// There will be none.
    Failed(Box<Error>),
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
            without: Parts::default(),
            shown: false,
            unconnected: None,
            until: None,
        }
    }
}

impl Reply<'_> {
    /// What happens next; `None` once the answer is complete. After an error, the same error again.
    ///
    /// Safe to cancel: a call that is dropped loses nothing, the next one goes on where it was.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
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
                        Err(unanswered) => self.miss(unanswered, started),
                    }
                }
                State::Reading(incoming) => {
                    let step = incoming.step(&mut self.pieces).await;
                    // What came before a failure is shown before it.
                    self.ready.extend(self.pieces.drain(..).map(Event::from));
                    match step {
                        Ok(Step::More) => {}
                        Ok(Step::End) => self.finish(),
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
                        None => self.end_play(),
                    }
                }
            }
        }
    }

    /// What [`next`](Self::next) would return without waiting; `None` if it would have to do more than that. Pieces come
    /// by the dozen, and this spares all but the first of them the wait.
    pub fn next_now(&mut self) -> Option<Event> {
        let event = self.ready.pop_front()?;
        self.shown |= !matches!(event, Event::Note(_));
        Some(event)
    }

    /// The whole answer, as it goes into the conversation. Without one, because [`next`](Self::next) has not yet
    /// returned `None` or has failed, an empty message: half an answer is no part of a conversation.
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

    /// Sends the request.
    fn start(&mut self) {
        let limits = self.limits();
        let started = Instant::now();
        let until = *self.until.get_or_insert(started + limits.total);
        self.attempt = self.attempt.max(1);
        if self.client.provider() == Provider::Demo {
            self.state = State::Playing(Box::new(Play::of(self.request)), None);
            return;
        }
        let outgoing = body::build(self.request, &self.profile()).map(|body| self.client.outgoing(body));
        let outgoing = match outgoing {
            Ok(outgoing) if self.request.model.is_empty() && !self.is_model_optional() => {
                let error = Error::new(Kind::Unconfigured, outgoing.url.as_str(), "no model is set");
                return self.fail(error);
            }
            Ok(outgoing) => outgoing,
            Err(error) => return self.fail(Error::new(Kind::Garbage, "", &error.to_string())),
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

    /// Whether the endpoint knows which model is meant.
    fn is_model_optional(&self) -> bool {
        matches!(self.client.provider(), Provider::AzureDated | Provider::LlamaCpp)
    }

    /// There is no answer to read.
    fn miss(&mut self, unanswered: Unanswered, started: Instant) {
        let Unanswered { error, is_unconnected } = unanswered;
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

    /// The answer has been read to its end.
    fn finish(&mut self) {
        let State::Reading(incoming) = std::mem::replace(&mut self.state, State::Fresh) else { return };
        let request_id = incoming.request_id.clone();
        let result = incoming.finish(&mut self.pieces);
        self.ready.extend(self.pieces.drain(..).map(Event::from));
        match result {
            Ok(completion) => self.state = State::Complete(Box::new(completion)),
            Err(problem) => self.fail(self.error(problem, request_id)),
        }
    }

    /// The answer has broken off.
    fn stop(&mut self, problem: Problem) {
        let request_id = match &self.state {
            State::Reading(incoming) => incoming.request_id.clone(),
            _ => None,
        };
        self.fail(self.error(problem, request_id));
    }

    fn error(&self, problem: Problem, request_id: Option<String>) -> Error {
        problem.into_error(self.client.chat_url().as_str(), request_id)
    }

    fn end_play(&mut self) {
        if let State::Playing(play, _) = std::mem::replace(&mut self.state, State::Fresh) {
            self.state = State::Complete(Box::new(play.into_completion()));
        }
    }

    /// Repairs the request, or tries again, or gives up.
    fn fail(&mut self, error: Error) {
        let mut error = self.client.hidden(error);
        // Pieces that wait to be handed out will have been shown by the time of the error.
        error.shown = self.shown || self.ready.iter().any(|event| !matches!(event, Event::Note(_)));
        tracing::debug!(endpoint = self.client.endpoint().name, model = self.request.model, %error, "failed");
        if let Some(window) = error.window {
            self.client.note_window(&self.request.model, window);
        }
        let sent = body::sent(self.request, &self.profile());
        if let Some(repair) = repair::find(&error, &sent) {
            self.without.insert(repair.what);
            if repair.lasting {
                self.client.refuse(&self.request.model, repair.what);
            }
            self.ready.push_back(Event::Note(Note::Without { what: repair.what, error }));
            self.state = State::Fresh;
            return;
        }
        let in_time = |wait: &Duration| {
            let next = Instant::now() + *wait;
            // The next try may take as long as the last.
            let ends_soon = |(since, took): (Instant, Duration)| next + took < since + retry::CONNECTING;
            self.until.is_none_or(|until| next < until) && self.unconnected.is_none_or(ends_soon)
        };
        let wait = retry::wait(&error, self.attempt, &self.limits(), fastrand::f64()).filter(in_time);
        if let Some(wait) = wait {
            self.attempt += 1;
            self.ready.push_back(Event::Note(Note::Retrying { attempt: self.attempt, wait, error }));
            self.state = State::Waiting(Box::pin(sleep(wait)));
            return;
        }
        self.state = State::Failed(Box::new(error));
    }
}

impl fmt::Debug for Reply<'_> {
    /// Without what is said in it.
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
