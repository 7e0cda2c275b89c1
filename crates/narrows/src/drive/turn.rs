//! One turn: from the prompt to the reason why the agent stopped.

use std::sync::Arc;

use narrows_acp::method::{SESSION_CANCEL, SESSION_PROMPT};
use narrows_acp::stop::StopReason;
use narrows_acp::{ReadError, Version};
use narrows_rpc::{Item, Peer, Response, Session};
use narrows_wire::{Code, Frame};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::agent::{Introduced, Login, login_needed};
use super::error::{Fault, Problem};
use super::outside::Outside;
use super::permission::{self, Refusal};
use super::{surrogate, v1, v2};
use crate::terminal::line;

/// What both versions take with `session/prompt`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PromptParams<'a> {
    session_id: &'a str,
    prompt: [TextBlock<'a>; 1],
}

#[derive(Serialize)]
struct TextBlock<'a> {
    r#type: &'a str,
    text: &'a str,
}

/// What both versions take with `session/cancel`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CancelParams<'a> {
    session_id: &'a str,
}

/// What happened that people may want to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// More text of the answer.
    Text {
        /// The message it belongs to, if the agent tells messages apart.
        message: Option<Arc<str>>,
        /// The text.
        text: String,
    },
    /// The whole text of one message so far, which may have been shown in part or be rewritten.
    Message {
        /// The message.
        message: Arc<str>,
        /// Its text.
        text: String,
    },
    /// A part of the answer that is no text.
    Unshown(&'static str),
    /// A piece of what the agent thinks.
    Thought(String),
    /// A tool is used, by its title.
    Tool(String),
    /// A request for permission was refused.
    Refused(Refusal),
}

/// How much of what the agent sent was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Losses {
    /// Lines that were too long.
    pub(crate) too_long: u64,
    /// What came for sessions that nobody had opened yet, and was too much to keep.
    pub(crate) unclaimed: u64,
    /// Updates that could not be read.
    pub(crate) unreadable: u64,
}

/// What comes next in a turn.
#[derive(Debug)]
pub(crate) enum Step {
    /// Something happened.
    Event(Event),
    /// The turn is over, for this reason if the agent gave one.
    Ended(Option<StopReason>),
}

/// What an update changes.
#[derive(Debug, PartialEq)]
pub(super) enum Change {
    /// Nothing that matters here.
    None,
    /// Something to show.
    Event(Event),
    /// What stands here is no answer, but a failure.
    Fault(Fault),
    /// The prompt is part of the session (v2).
    Inserted,
    /// The agent works (v2).
    Running,
    /// The agent has stopped (v2).
    Idle(Option<StopReason>),
    /// The agent has stopped, because it failed (v2).
    IdleWithFault(Fault),
}

impl From<Event> for Change {
    fn from(event: Event) -> Self {
        Self::Event(event)
    }
}

/// A turn that runs.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    peer: Peer,
    outside: &'a mut Outside,
    session: Session,
    version: Version,
    logins: Vec<Login>,
    /// The request with the prompt.
    prompt: u64,
    cancelled: bool,
    fault: Option<Fault>,
    /// Whether the prompt has been answered.
    answered: bool,
    /// Whether the prompt is part of the session (v2).
    inserted: bool,
    /// Whether the agent was seen to work on it (v2).
    worked: bool,
    /// The end, if it came before the answer to the prompt (v2).
    end: Option<Option<StopReason>>,
    /// How many updates could not be read.
    unreadable: u64,
}

impl<'a> Turn<'a> {
    /// Sends the prompt.
    pub(super) async fn begin(
        peer: &Peer,
        outside: &'a mut Outside,
        known: &Introduced,
        session: &str,
        prompt: &str,
    ) -> Result<Self, Problem> {
        let inbox = peer.session(session).map_err(|error| Problem::Malformed(error.to_string()))?;
        let params =
            PromptParams { session_id: session, prompt: [TextBlock { r#type: "text", text: prompt }] };
        let prompt = outside.beside(peer.call_in(&inbox, SESSION_PROMPT, &params)).await?;
        Ok(Self {
            peer: peer.clone(),
            outside,
            session: inbox,
            version: known.version,
            logins: known.logins.clone(),
            prompt,
            cancelled: false,
            fault: None,
            answered: false,
            inserted: false,
            worked: false,
            end: None,
            unreadable: 0,
        })
    }

    /// Asks the agent to stop. The turn goes on until it does.
    pub(crate) fn cancel(&mut self) {
        self.cancelled = true;
        let params = CancelParams { session_id: self.session.id() };
        if let Err(error) = self.peer.notify_now(SESSION_CANCEL, &params) {
            tracing::debug!(%error, "the turn could not be cancelled");
        }
    }

    /// What comes next. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Result<Step, Problem> {
        loop {
            // What came outside before the end of the turn is to be known at its end.
            let item = tokio::select! {
                biased;
                refusal = self.outside.next(self.cancelled) => return Ok(Step::Event(Event::Refused(refusal))),
                item = self.session.recv() => item,
            };
            let Some(item) = item else {
                return Err(Problem::Lost(self.peer.closed().await));
            };
            if let Some(step) = self.take(item)? {
                return Ok(step);
            }
        }
    }

    /// What has come already.
    pub(crate) async fn try_next(&mut self) -> Option<Result<Step, Problem>> {
        tokio::select! {
            biased;
            step = self.next() => Some(step),
            () = std::future::ready(()) => None,
        }
    }

    /// What was lost until now.
    pub(crate) fn losses(&self) -> Losses {
        Losses {
            too_long: self.peer.link_stats().too_long,
            unclaimed: self.peer.stats().unclaimed,
            unreadable: self.unreadable + self.outside.nameless(),
        }
    }

    fn take(&mut self, item: Item) -> Result<Option<Step>, Problem> {
        match item {
            Item::Notification(update) => self.update(&update),
            Item::Request(request) => {
                let params = request.frame.params().unwrap_or(b"{}");
                let refusal = permission::refuse(params, self.cancelled);
                request.responder.respond(&refusal.answer);
                Ok(Some(Step::Event(Event::Refused(refusal))))
            }
            Item::Answer(answer) if answer.id == self.prompt => match answer.outcome {
                Ok(response) => self.answer(&response),
                Err(error) => self.refused(login_needed(error, &self.logins)).map(Some),
            },
            Item::Answer(_) => Ok(None),
        }
    }

    /// The prompt was answered with an error.
    fn refused(&self, problem: Problem) -> Result<Step, Problem> {
        match problem {
            // Whoever was told to stop may say so in any way.
            Problem::Refused(error) if self.cancelled || error.is(Code::Cancelled) => {
                Ok(Step::Ended(Some(StopReason::Cancelled)))
            }
            problem => Err(problem),
        }
    }

    fn answer(&mut self, response: &Response) -> Result<Option<Step>, Problem> {
        #[derive(Deserialize)]
        struct Marked {
            #[serde(rename = "_meta")]
            meta: Option<Map<String, Value>>,
        }
        self.answered = true;
        if let Ok(Marked { meta }) = response.read()
            && let Some(fault) = Fault::of(meta.as_ref())
        {
            self.fault = Some(fault);
        }
        match self.version {
            Version::V1 => {
                let result: &RawValue = serde_json::from_slice(response.raw()).map_err(unreadable)?;
                let reason = StopReason::of_v1_result(result).map_err(unreadable)?;
                self.ended(Some(reason)).map(Some)
            }
            Version::V2 => {
                // Its end may have come already.
                let end = self.end.take();
                end.map(|reason| self.ended(reason)).transpose()
            }
        }
    }

    fn update(&mut self, update: &Frame) -> Result<Option<Step>, Problem> {
        let change = match self.read(update) {
            Ok(change) => change,
            Err(error) => {
                // One update that cannot be read is no reason to lose the rest. How many there were is told at the
                // end: a line for each could be any number of lines.
                if self.unreadable == 0 {
                    tracing::warn!(%error, "an update of the agent cannot be read");
                }
                self.unreadable += 1;
                Change::None
            }
        };
        match change {
            Change::None => {}
            Change::Event(event) => return Ok(Some(Step::Event(event))),
            Change::Fault(fault) => self.fault = Some(fault),
            Change::Inserted => self.inserted = true,
            Change::Running => {
                self.worked = true;
                self.end = None;
            }
            Change::IdleWithFault(fault) => {
                self.fault = Some(fault);
                return self.idle(Some(StopReason::Error(None)));
            }
            Change::Idle(reason) => return self.idle(reason),
        }
        Ok(None)
    }

    fn read(&self, update: &Frame) -> Result<Change, ReadError> {
        let params = update.params().unwrap_or(b"null");
        let read = |params: &[u8]| {
            let params: &RawValue = serde_json::from_slice(params)
                .map_err(|error| ReadError::Json { reason: line(&error.to_string()) })?;
            match self.version {
                Version::V1 => v1::read(params),
                Version::V2 => v2::read(params),
            }
        };
        read(params).or_else(|error| match surrogate::mended(params) {
            Some(mended) => read(&mended),
            None => Err(error),
        })
    }

    /// The agent is idle. That is the end of the turn only if the turn has begun: before that it is the state the
    /// session was in anyway.
    fn idle(&mut self, reason: Option<StopReason>) -> Result<Option<Step>, Problem> {
        let ours = self.worked || reason.is_some() && (self.answered || self.inserted);
        if ours && self.answered {
            return self.ended(reason).map(Some);
        }
        if ours {
            self.end = Some(reason);
        }
        Ok(None)
    }

    fn ended(&mut self, reason: Option<StopReason>) -> Result<Step, Problem> {
        match self.fault.take() {
            Some(fault) if !self.cancelled => Err(Problem::Fault(fault)),
            _ => Ok(Step::Ended(reason)),
        }
    }
}

fn unreadable(error: impl std::fmt::Display) -> Problem {
    Problem::Malformed(line(&error.to_string()))
}
