//! Questions of the agent: they wait for the turn to put them to the user, behind what was said before them.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use narrows_client::{Decide, EventBody, Payload, Pending, Question, Reply, RuntimeEvent};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::ask::{ApprovalSource, Asking};
use crate::terminal::Colour;

/// How many questions wait; more are refused.
const ROOM: usize = 64;

/// How many questions are remembered that have been told and not asked.
const DUE: usize = 4096;

/// How long a question waits for what was said before it.
const BEHIND: Duration = Duration::from_secs(1);

/// How long no question is asked after one was taken back: a person who is about to answer it sees that it is gone before
/// the next one is in its place.
const AFTER_WITHDRAWAL: Duration = Duration::from_secs(1);

/// A question, and where its answer goes.
pub(crate) struct Asked {
    pub(crate) question: Arc<Question>,
    source: ApprovalSource,
    pub(crate) reply: oneshot::Sender<Reply>,
}

/// What the session asks.
pub(crate) struct Desk {
    questions: mpsc::Sender<Asked>,
    source: ApprovalSource,
}

impl Desk {
    /// Opens the questions of a session, whose approvals are known in this way, and returns where they arrive.
    pub(crate) fn open(source: ApprovalSource) -> (Self, mpsc::Receiver<Asked>) {
        let (questions, asked) = mpsc::channel(ROOM);
        (Self { questions, source }, asked)
    }
}

impl Decide for Desk {
    fn decide(&self, question: Arc<Question>) -> Pending {
        let (reply, answer) = oneshot::channel();
        // One that finds no room is dropped, and so refused.
        let _ = self.questions.try_send(Asked { question, source: self.source, reply });
        Box::pin(async move { answer.await.unwrap_or(Reply::Nobody) })
    }
}

/// What became of the questions of a turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// One has come, was answered, or has waited long enough.
    Moved,
    /// Nobody wants to know any more what is being asked: it is to be withdrawn.
    Withdrawn,
}

/// The questions of one turn. One is asked at a time, and what is not asked in the end is refused.
pub(crate) struct Questions<'a> {
    incoming: &'a mut mpsc::Receiver<Asked>,
    colour: Colour,
    /// Those that wait for their turn, and since when.
    held: VecDeque<(Asked, Instant)>,
    /// Those that stand where what was shown ends.
    due: HashSet<String>,
    asking: Option<(Asked, Asking)>,
    /// No question is asked before, because one was taken back.
    not_before: Option<Instant>,
}

impl<'a> Questions<'a> {
    /// What is put on a desk from now on.
    pub(crate) fn new(incoming: &'a mut mpsc::Receiver<Asked>) -> Self {
        let colour = Colour::of_stderr();
        Self { incoming, colour, held: VecDeque::new(), due: HashSet::new(), asking: None, not_before: None }
    }

    /// Remembers that everything before the question of `event`, if it tells of one, has been told.
    pub(crate) fn note(&mut self, event: &RuntimeEvent) {
        if let EventBody::Provider { payload: Payload::PermissionRequested(asked), .. } = &event.body
            && self.due.len() < DUE
        {
            self.due.insert(asked.request_id.clone());
        }
    }

    /// Whether somebody is being asked, so that nothing else may be shown.
    pub(crate) fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    /// Whether the next question can be asked, if nothing waits to be shown.
    pub(crate) fn is_due(&mut self) -> bool {
        while self.held.front().is_some_and(|(asked, _)| asked.reply.is_closed()) {
            self.held.pop_front();
        }
        let Some((asked, since)) = self.held.front().filter(|_| self.asking.is_none()) else { return false };
        let is_told = self.due.contains(&asked.question.id) || since.elapsed() >= BEHIND;
        is_told && self.not_before.is_none_or(|until| Instant::now() >= until)
    }

    /// Asks the next question. Whatever was shown before must be on the screen by now.
    pub(crate) fn ask(&mut self) {
        let Some((asked, _)) = self.held.pop_front() else { return };
        self.due.remove(&asked.question.id);
        match Asking::begin(Arc::clone(&asked.question), asked.source, self.colour) {
            Ok(asking) => self.asking = Some((asked, asking)),
            // Dropped, which is a refusal.
            Err(error) => tracing::warn!(%error, "a question cannot be asked"),
        }
    }

    /// Takes back what is being asked, and whatever waits: it is neither allowed nor refused.
    pub(crate) async fn withdraw_all(&mut self) {
        for (asked, _) in self.held.drain(..) {
            // Whoever no longer waits has decided otherwise.
            let _ = asked.reply.send(Reply::Cancel);
        }
        self.withdraw().await;
    }

    /// Takes back what is being asked, and waits until nothing more is read or written for it.
    pub(crate) async fn withdraw(&mut self) {
        let Some((asked, asking)) = self.asking.take() else { return };
        // Whoever no longer waits has decided otherwise.
        let _ = asked.reply.send(Reply::Cancel);
        self.not_before = Some(Instant::now() + AFTER_WITHDRAWAL);
        asking.withdraw().await;
    }

    /// Waits for the next step. Safe to cancel.
    pub(crate) async fn next(&mut self) -> Step {
        let next = self.held.front().filter(|_| self.asking.is_none());
        let waits = next.map(|(asked, since)| {
            // One that has been told waits for the end of the pause alone.
            let told = if self.due.contains(&asked.question.id) { *since } else { *since + BEHIND };
            self.not_before.map_or(*since + BEHIND, |until| told.max(until))
        });
        tokio::select! {
            biased;
            reply = answer(&mut self.asking) => match reply {
                None => Step::Withdrawn,
                Some(reply) => {
                    if let Some((asked, _)) = self.asking.take() {
                        // Whoever no longer waits has decided otherwise.
                        let _ = asked.reply.send(reply);
                    }
                    Step::Moved
                }
            },
            asked = incoming(self.incoming) => {
                self.held.push_back((asked, Instant::now()));
                Step::Moved
            }
            () = sleep_until(waits.unwrap_or_else(Instant::now)), if waits.is_some() => Step::Moved,
        }
    }
}

/// The answer to what is being asked; `None` if nobody wants to know it any more.
async fn answer(asking: &mut Option<(Asked, Asking)>) -> Option<Reply> {
    let Some((asked, asking)) = asking else { return std::future::pending().await };
    tokio::select! {
        biased;
        () = asked.reply.closed() => None,
        reply = asking.reply() => Some(reply),
    }
}

/// The next that is put on the desk, if there is one.
async fn incoming(questions: &mut mpsc::Receiver<Asked>) -> Asked {
    match questions.recv().await {
        Some(asked) => asked,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use narrows_policy::{Access, Because, Decision, Kind, Verdict};
    use serde_json::json;
    use tokio::time::advance;

    use super::*;

    fn question(id: &str) -> Arc<Question> {
        let because = Because::Preset { access: Access::Medium, kind: Kind::Other, why: "asks" };
        Arc::new(Question {
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

    fn told(id: &str) -> RuntimeEvent {
        let payload = json!({"type": "permission.requested", "requestId": id, "method": "m"});
        let event = json!({"type": "provider.event", "atMs": 0, "provider": "p", "payload": payload});
        serde_json::from_value(event).expect("an event")
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_waits_for_what_was_said_before_it() {
        let (desk, mut asked) = Desk::open(ApprovalSource::Unproven);
        let mut questions = Questions::new(&mut asked);
        let _pending = desk.decide(question("1"));
        assert_eq!(questions.next().await, Step::Moved);
        assert!(!questions.is_due());
        questions.note(&told("2"));
        assert!(!questions.is_due());
        questions.note(&told("1"));
        assert!(questions.is_due());
    }

    #[tokio::test(start_paused = true)]
    async fn it_does_not_wait_for_ever() {
        let (desk, mut asked) = Desk::open(ApprovalSource::Unproven);
        let mut questions = Questions::new(&mut asked);
        let _pending = desk.decide(question("1"));
        questions.next().await;
        advance(BEHIND / 2).await;
        assert!(!questions.is_due());
        assert_eq!(questions.next().await, Step::Moved);
        assert!(questions.is_due());
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_does_not_take_the_place_of_one_that_was_taken_back() {
        let (desk, mut asked) = Desk::open(ApprovalSource::Unproven);
        let mut questions = Questions::new(&mut asked);
        drop(desk.decide(question("1")));
        let _second = desk.decide(question("2"));
        questions.next().await;
        questions.next().await;
        questions.note(&told("1"));
        questions.note(&told("2"));
        let (first, _) = questions.held.pop_front().expect("a question");
        let no_terminal = || Err(std::io::Error::other("no terminal"));
        let asking = Asking::begin_at(no_terminal, Arc::clone(&first.question), first.source, Colour::off());
        questions.asking = Some((first, asking.expect("a thread")));
        assert_eq!(questions.next().await, Step::Withdrawn);
        questions.withdraw().await;
        assert!(!questions.is_due());
        advance(AFTER_WITHDRAWAL - Duration::from_millis(1)).await;
        assert!(!questions.is_due());
        assert_eq!(questions.next().await, Step::Moved);
        assert!(questions.is_due());
    }

    #[tokio::test(start_paused = true)]
    async fn who_no_longer_waits_is_not_answered_and_who_does_is() {
        let (desk, mut asked) = Desk::open(ApprovalSource::Unproven);
        let mut questions = Questions::new(&mut asked);
        drop(desk.decide(question("1")));
        let second = desk.decide(question("2"));
        questions.next().await;
        questions.next().await;
        questions.note(&told("1"));
        assert!(!questions.is_due());
        questions.note(&told("2"));
        assert!(questions.is_due());
        questions.withdraw_all().await;
        assert_eq!(second.await, Reply::Cancel);
        drop(questions);
        let third = desk.decide(question("3"));
        drop(asked);
        assert_eq!(third.await, Reply::Nobody);
    }
}
