//! One answer, event by event.

use std::time::Duration;

use crate::{Client, Completion, Dropped, Error, Request};

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
}

impl<'a> Reply<'a> {
    pub(crate) fn new(client: &'a Client, request: &'a Request) -> Self {
        Self { client, request }
    }
}

impl Reply<'_> {
    /// What happens next; `None` once the answer is complete.
    ///
    /// Safe to cancel: a call that is dropped loses nothing, the next one goes on where it was.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        let _ = (self.client, self.request);
        Err(Error::new(crate::Kind::Unconfigured, "", "not yet"))
    }

    /// The whole answer, as it goes into the conversation. Before the end: what has come of it.
    #[must_use]
    pub fn into_completion(self) -> Completion {
        Completion {
            message: crate::Assistant::default(),
            finish: crate::Finish::Stop,
            usage: None,
            broken_calls: Vec::new(),
        }
    }
}
