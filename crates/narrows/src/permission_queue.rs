//! Permission requests of the agent. They wait until earlier output is on the screen.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use narrows_client::{
    EventBody, Payload, Pending, PermissionHandler, PermissionReply, PermissionRequest, RuntimeEvent,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::permission_prompt::{ApprovalSource, PermissionPrompt};
use crate::terminal::Color;

/// Maximum number of requests that wait. Further requests are denied.
const MAX_QUEUED_REQUESTS: usize = 64;

/// Maximum number of remembered requests whose event was shown and whose prompt was not.
const MAX_ANNOUNCED_REQUESTS: usize = 4096;

/// The time for which a request waits for the event that announces it.
const MAX_EVENT_DELAY: Duration = Duration::from_secs(1);

/// The pause after a withdrawn prompt. A user who is about to answer it sees that it is gone before the next
/// prompt appears.
const WITHDRAWAL_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct QueuedRequest {
    pub(crate) question: Arc<PermissionRequest>,
    source: ApprovalSource,
    pub(crate) reply: oneshot::Sender<PermissionReply>,
}

pub(crate) struct PermissionQueue {
    questions: mpsc::Sender<QueuedRequest>,
    source: ApprovalSource,
}

impl PermissionQueue {
    /// Creates a queue for a session. `source` tells where approvals of this session come from.
    pub(crate) fn open(source: ApprovalSource) -> (Self, mpsc::Receiver<QueuedRequest>) {
        let (questions, request) = mpsc::channel(MAX_QUEUED_REQUESTS);
        (Self { questions, source }, request)
    }
}

impl PermissionHandler for PermissionQueue {
    fn decide(&self, question: Arc<PermissionRequest>) -> Pending {
        let (reply, answer) = oneshot::channel();
        // A full queue drops the request, and thereby denies it.
        let _ = self.questions.try_send(QueuedRequest { question, source: self.source, reply });
        Box::pin(async move { answer.await.unwrap_or(PermissionReply::NoApprover) })
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PromptProgress {
    Advanced,
    /// The agent no longer needs the answer to the current request, so the prompt must be withdrawn.
    Withdrawn,
}

/// The permission requests of one turn. One prompt is shown at a time. Requests that are never shown are
/// denied.
pub(crate) struct PromptQueue<'a> {
    incoming: &'a mut mpsc::Receiver<QueuedRequest>,
    color: Color,
    /// Waiting requests, each with the time of its arrival.
    waiting: VecDeque<(QueuedRequest, Instant)>,
    announced: HashSet<String>,
    prompt: Option<(QueuedRequest, PermissionPrompt)>,
    /// The earliest time for the next prompt, set when a prompt is withdrawn.
    not_before: Option<Instant>,
}

impl<'a> PromptQueue<'a> {
    pub(crate) fn new(incoming: &'a mut mpsc::Receiver<QueuedRequest>) -> Self {
        let color = Color::for_stderr();
        Self {
            incoming,
            color,
            waiting: VecDeque::new(),
            announced: HashSet::new(),
            prompt: None,
            not_before: None,
        }
    }

    /// Records the request that `event` announces, if any. All output before the announcement is shown by
    /// then.
    pub(crate) fn record_event(&mut self, event: &RuntimeEvent) {
        if let EventBody::Provider { payload: Payload::PermissionRequested(request), .. } = &event.body
            && self.announced.len() < MAX_ANNOUNCED_REQUESTS
        {
            self.announced.insert(request.request_id.clone());
        }
    }

    /// Returns `true` while a prompt is shown. Nothing else may be written meanwhile.
    pub(crate) fn is_prompting(&self) -> bool {
        self.prompt.is_some()
    }

    /// Returns `true` if the next prompt can be shown as soon as all queued output is written.
    pub(crate) fn is_ready(&mut self) -> bool {
        while self.waiting.front().is_some_and(|(request, _)| request.reply.is_closed()) {
            self.waiting.pop_front();
        }
        let Some((request, since)) = self.waiting.front().filter(|_| self.prompt.is_none()) else {
            return false;
        };
        let is_told = self.announced.contains(&request.question.id) || since.elapsed() >= MAX_EVENT_DELAY;
        is_told && self.not_before.is_none_or(|until| Instant::now() >= until)
    }

    /// Shows the next prompt. All earlier output must have been written.
    pub(crate) fn show_next(&mut self) {
        let Some((request, _)) = self.waiting.pop_front() else { return };
        self.announced.remove(&request.question.id);
        match PermissionPrompt::start(Arc::clone(&request.question), request.source, self.color) {
            Ok(prompt) => self.prompt = Some((request, prompt)),
            // Dropping the request denies it.
            Err(error) => tracing::warn!(%error, "cannot show a permission prompt"),
        }
    }

    /// Withdraws the prompt and all waiting requests. They are neither allowed nor denied.
    pub(crate) async fn withdraw_all(&mut self) {
        for (request, _) in self.waiting.drain(..) {
            let _ = request.reply.send(PermissionReply::Cancel);
        }
        self.withdraw().await;
    }

    /// Withdraws the prompt, and waits until the terminal is no longer used.
    pub(crate) async fn withdraw(&mut self) {
        let Some((request, prompt)) = self.prompt.take() else { return };
        let _ = request.reply.send(PermissionReply::Cancel);
        self.not_before = Some(Instant::now() + WITHDRAWAL_PAUSE);
        prompt.withdraw().await;
    }

    /// Waits for the next progress. Cancel-safe.
    pub(crate) async fn next(&mut self) -> PromptProgress {
        let next = self.waiting.front().filter(|_| self.prompt.is_none());
        let waits = next.map(|(request, since)| {
            // An announced request waits only for the pause to end.
            let told =
                if self.announced.contains(&request.question.id) { *since } else { *since + MAX_EVENT_DELAY };
            self.not_before.map_or(*since + MAX_EVENT_DELAY, |until| told.max(until))
        });
        tokio::select! {
            biased;
            reply = prompt_reply(&mut self.prompt) => match reply {
                None => PromptProgress::Withdrawn,
                Some(reply) => {
                    if let Some((request, _)) = self.prompt.take() {
                        let _ = request.reply.send(reply);
                    }
                    PromptProgress::Advanced
                }
            },
            request = next_request(self.incoming) => {
                self.waiting.push_back((request, Instant::now()));
                PromptProgress::Advanced
            }
            () = sleep_until(waits.unwrap_or_else(Instant::now)), if waits.is_some() => PromptProgress::Advanced,
        }
    }
}

/// Waits for the answer to the prompt. Returns `None` if the agent no longer waits for it.
async fn prompt_reply(prompt: &mut Option<(QueuedRequest, PermissionPrompt)>) -> Option<PermissionReply> {
    let Some((request, prompt)) = prompt else { return std::future::pending().await };
    tokio::select! {
        biased;
        () = request.reply.closed() => None,
        reply = prompt.reply() => Some(reply),
    }
}

/// Waits for the next request. Never returns if there are no more.
async fn next_request(questions: &mut mpsc::Receiver<QueuedRequest>) -> QueuedRequest {
    match questions.recv().await {
        Some(request) => request,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use narrows_policy::{Access, Decision, DecisionReason, Kind, Verdict};
    use serde_json::json;
    use tokio::time::advance;

    use super::*;

    fn question(id: &str) -> Arc<PermissionRequest> {
        let because = DecisionReason::Preset { access: Access::Medium, kind: Kind::Other, why: "asks" };
        Arc::new(PermissionRequest {
            id: id.to_owned(),
            session_id: "s".to_owned(),
            run_id: None,
            title: "Do it".to_owned(),
            description: None,
            tool_call_id: None,
            tool: None,
            kind: "other".to_owned(),
            input: serde_json::Value::Null,
            locations: Vec::new(),
            subjects: Vec::new(),
            changes: Vec::new(),
            options: Vec::new(),
            decision: Decision { verdict: Verdict::Ask, because, about: None },
            approval: None,
            problem: None,
        })
    }

    fn announcement(id: &str) -> RuntimeEvent {
        let payload = json!({"type": "permission.requested", "requestId": id, "method": "m"});
        let event = json!({"type": "provider.event", "atMs": 0, "provider": "p", "payload": payload});
        serde_json::from_value(event).expect("an event")
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_the_event_that_announces_it() {
        let (queue, mut request) = PermissionQueue::open(ApprovalSource::Unproven);
        let mut questions = PromptQueue::new(&mut request);
        let _pending = queue.decide(question("1"));
        assert_eq!(questions.next().await, PromptProgress::Advanced);
        assert!(!questions.is_ready());
        questions.record_event(&announcement("2"));
        assert!(!questions.is_ready());
        questions.record_event(&announcement("1"));
        assert!(questions.is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_its_event_waits_a_bounded_time() {
        let (queue, mut request) = PermissionQueue::open(ApprovalSource::Unproven);
        let mut questions = PromptQueue::new(&mut request);
        let _pending = queue.decide(question("1"));
        questions.next().await;
        advance(MAX_EVENT_DELAY / 2).await;
        assert!(!questions.is_ready());
        assert_eq!(questions.next().await, PromptProgress::Advanced);
        assert!(questions.is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_not_shown_right_after_a_withdrawn_one() {
        let (queue, mut request) = PermissionQueue::open(ApprovalSource::Unproven);
        let mut questions = PromptQueue::new(&mut request);
        drop(queue.decide(question("1")));
        let _second = queue.decide(question("2"));
        questions.next().await;
        questions.next().await;
        questions.record_event(&announcement("1"));
        questions.record_event(&announcement("2"));
        let (first, _) = questions.waiting.pop_front().expect("a question");
        let no_terminal = || Err(std::io::Error::other("no terminal"));
        let prompt =
            PermissionPrompt::start_at(no_terminal, Arc::clone(&first.question), first.source, Color::off());
        questions.prompt = Some((first, prompt.expect("a thread")));
        assert_eq!(questions.next().await, PromptProgress::Withdrawn);
        questions.withdraw().await;
        assert!(!questions.is_ready());
        advance(WITHDRAWAL_PAUSE - Duration::from_millis(1)).await;
        assert!(!questions.is_ready());
        assert_eq!(questions.next().await, PromptProgress::Advanced);
        assert!(questions.is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn only_requests_that_still_wait_are_answered() {
        let (queue, mut request) = PermissionQueue::open(ApprovalSource::Unproven);
        let mut questions = PromptQueue::new(&mut request);
        drop(queue.decide(question("1")));
        let second = queue.decide(question("2"));
        questions.next().await;
        questions.next().await;
        questions.record_event(&announcement("1"));
        assert!(!questions.is_ready());
        questions.record_event(&announcement("2"));
        assert!(questions.is_ready());
        questions.withdraw_all().await;
        assert_eq!(second.await, PermissionReply::Cancel);
        drop(questions);
        let third = queue.decide(question("3"));
        drop(request);
        assert_eq!(third.await, PermissionReply::NoApprover);
    }
}
