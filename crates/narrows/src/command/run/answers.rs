//! Answers of a program that decides for itself, read from stdin as JSON lines.

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use narrows_base::sync::lock;
use narrows_client::{Canceller, Decide, Pending, Question, Reply};
use serde::Deserialize;
use tokio::sync::oneshot;

/// How many answers are kept for questions that have not come yet.
const EARLY: usize = 64;

/// A line on stdin.
#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
enum Line {
    /// The answer to a question: an option by its id, or yes or no.
    #[serde(rename = "permission.answer", rename_all = "camelCase")]
    Answer {
        request_id: String,
        #[serde(default)]
        option_id: Option<String>,
        #[serde(default)]
        allow: Option<bool>,
    },
    /// The turn is to be given up.
    #[serde(rename = "run.cancel")]
    Cancel,
}

#[derive(Default)]
struct State {
    waiting: HashMap<String, oneshot::Sender<Reply>>,
    early: HashMap<String, Reply>,
    /// Nothing more will come.
    ended: bool,
}

/// The answers that have come, and the questions that wait for one.
#[derive(Default)]
pub(super) struct Answers {
    state: Mutex<State>,
    /// The turn was given up.
    cancelled: AtomicBool,
}

impl Answers {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Whether the turn was given up.
    pub(super) fn has_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Reads stdin in a thread of its own, until it ends.
    pub(super) fn listen(self: &Arc<Self>, cancel: Canceller) -> std::io::Result<()> {
        let answers = Arc::clone(self);
        let read = move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                answers.take(&line, &cancel);
            }
            answers.end();
        };
        std::thread::Builder::new().name("answers".to_owned()).spawn(read).map(drop)
    }

    /// Whoever waits, and whoever asks from now on, has nobody to ask.
    fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        state.waiting.clear();
    }

    fn take(&self, line: &str, cancel: &Canceller) {
        if line.trim().is_empty() {
            return;
        }
        match serde_json::from_str(line) {
            Ok(Line::Cancel) => {
                self.cancelled.store(true, Ordering::Relaxed);
                cancel.cancel();
            }
            Ok(Line::Answer { request_id, option_id, allow }) => {
                let reply = match (option_id, allow) {
                    (Some(id), _) => Reply::Select(id),
                    (None, Some(true)) => Reply::Allow,
                    (None, _) => Reply::Reject,
                };
                self.answer(request_id, reply);
            }
            Err(error) => tracing::warn!(%error, "a line on stdin is no answer"),
        }
    }

    fn answer(&self, id: String, reply: Reply) {
        let mut state = self.state();
        match state.waiting.remove(&id) {
            // Whoever no longer waits has had its answer.
            Some(waiting) => drop(waiting.send(reply)),
            None if state.early.len() < EARLY => drop(state.early.insert(id, reply)),
            None => tracing::warn!("too many answers to questions that nobody has asked"),
        }
    }
}

impl Decide for Answers {
    fn decide(&self, question: Arc<Question>) -> Pending {
        let mut state = self.state();
        if let Some(reply) = state.early.remove(&question.id) {
            return Box::pin(async move { reply });
        }
        if state.ended {
            return Box::pin(async { Reply::Nobody });
        }
        let (answer, waiting) = oneshot::channel();
        state.waiting.insert(question.id.clone(), answer);
        Box::pin(async move { waiting.await.unwrap_or(Reply::Nobody) })
    }
}
