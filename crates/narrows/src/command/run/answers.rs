//! Answers to permission requests from a program, as JSON lines on stdin.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use narrows_base::sync::lock;
use narrows_client::{
    Canceller, EventBody, Payload, Pending, PermissionHandler, PermissionReply, PermissionRequest,
    RuntimeEvent,
};
use serde::Deserialize;
use tokio::sync::oneshot;

use crate::text_input;

/// Maximum number of early answers that are kept. The oldest is dropped first.
const MAX_EARLY_ANSWERS: usize = 64;

#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
enum Line {
    /// An answer to a permission request: the id of an option, or `allow`.
    #[serde(rename = "permission.answer", rename_all = "camelCase")]
    Answer {
        request_id: String,
        #[serde(default)]
        option_id: Option<String>,
        #[serde(default)]
        allow: Option<bool>,
    },
    #[serde(rename = "run.cancel")]
    Cancel,
}

#[derive(Default)]
struct State {
    waiting: HashMap<String, oneshot::Sender<PermissionReply>>,
    /// Requests that were announced and are not settled, each with its answer if the answer arrived before
    /// the prompt.
    told: HashMap<String, Option<PermissionReply>>,
    /// Early answers: those to requests that were not announced yet, or are already settled.
    early: VecDeque<(String, PermissionReply)>,
    ended: bool,
}

impl State {
    fn take_early(&mut self, id: &str) -> Option<PermissionReply> {
        let at = self.early.iter().position(|(known, _)| known == id)?;
        self.early.remove(at).map(|(_, reply)| reply)
    }
}

#[derive(Default)]
pub(super) struct StdinAnswers {
    state: Mutex<State>,
    cancelled: AtomicBool,
}

impl StdinAnswers {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn has_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub(super) fn listen(self: &Arc<Self>, cancel: Canceller) -> std::io::Result<()> {
        let answers = Arc::clone(self);
        let read = move || {
            let mut stdin = std::io::stdin().lock();
            loop {
                match text_input::read_line(&mut stdin) {
                    Ok(Some(line)) => answers.handle_line(&line, &cancel),
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(%error, "cannot read stdin, ignoring further answers");
                        break;
                    }
                }
            }
            answers.end();
        };
        std::thread::Builder::new().name("answers".to_owned()).spawn(read).map(drop)
    }

    /// Records which requests are open. Must be called before the program sees the event and can answer it.
    /// Many requests are settled without a prompt, and a prompt may come some time after its request was
    /// announced.
    pub(super) fn record_event(&self, event: &RuntimeEvent) {
        let EventBody::Provider { payload, .. } = &event.body else { return };
        match payload {
            Payload::PermissionRequested(asked) => self.open_request(&asked.request_id),
            Payload::PermissionResolved(resolved) => self.settle_request(&resolved.request_id),
            _ => {}
        }
    }

    fn open_request(&self, id: &str) {
        let mut state = self.state();
        let reply = state.take_early(id);
        // If the prompt came before the announcement, the prompt has already taken the early answer.
        state.told.insert(id.to_owned(), reply);
    }

    fn settle_request(&self, id: &str) {
        self.state().told.remove(id);
    }

    /// Fails waiting and future requests, because no more answers can arrive.
    fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        state.waiting.clear();
    }

    fn handle_line(&self, line: &str, cancel: &Canceller) {
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
                    (Some(id), _) => PermissionReply::Select(id),
                    (None, Some(true)) => PermissionReply::Allow,
                    (None, _) => PermissionReply::Reject,
                };
                self.answer(request_id, reply);
            }
            Err(error) => tracing::warn!(%error, "invalid line on stdin"),
        }
    }

    fn answer(&self, id: String, reply: PermissionReply) {
        let mut state = self.state();
        if let Some(waiting) = state.waiting.remove(&id) {
            // If the prompt no longer waits, its request is settled.
            drop(waiting.send(reply));
        } else if let Some(told) = state.told.get_mut(&id) {
            *told = Some(reply);
        } else {
            state.early.retain(|(known, _)| *known != id);
            if state.early.len() >= MAX_EARLY_ANSWERS {
                state.early.pop_front();
            }
            state.early.push_back((id, reply));
        }
    }
}

impl StdinAnswers {
    fn reply_to(&self, id: &str) -> Pending {
        let mut state = self.state();
        let told = state.told.get_mut(id).and_then(Option::take);
        if let Some(reply) = told.or_else(|| state.take_early(id)) {
            return Box::pin(async move { reply });
        }
        if state.ended {
            return Box::pin(async { PermissionReply::NoApprover });
        }
        let (answer, waiting) = oneshot::channel();
        state.waiting.insert(id.to_owned(), answer);
        Box::pin(async move { waiting.await.unwrap_or(PermissionReply::NoApprover) })
    }
}

impl PermissionHandler for StdinAnswers {
    fn decide(&self, question: Arc<PermissionRequest>) -> Pending {
        self.reply_to(&question.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_to_requests_that_need_none_displace_no_other() {
        let answers = StdinAnswers::default();
        let name = |number: usize| format!("perm_{number}");
        for number in 0..1000 {
            answers.open_request(&name(number));
            answers.answer(name(number), PermissionReply::Allow);
        }
        for number in 1..1000 {
            answers.settle_request(&name(number));
            // The program may answer after the policy has decided.
            answers.answer(name(number), PermissionReply::Allow);
        }
        // The first answer is still there for the last prompt.
        assert_eq!(answers.reply_to(&name(0)).await, PermissionReply::Allow);
        answers.settle_request(&name(0));
        // An answer before its request is announced.
        answers.answer("next".to_owned(), PermissionReply::Allow);
        answers.open_request("next");
        assert_eq!(answers.reply_to("next").await, PermissionReply::Allow);
        let state = answers.state();
        assert!(state.early.len() <= MAX_EARLY_ANSWERS && state.told.len() == 1);
    }
}
