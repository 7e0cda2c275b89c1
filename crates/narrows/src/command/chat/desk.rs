//! Where questions of the agent wait for the turn to put them to the user, behind what was said before them.

use std::sync::Arc;

use narrows_client::{Decide, Pending, Question, Reply};
use tokio::sync::{mpsc, oneshot};

/// How many questions wait; more are refused.
const ROOM: usize = 64;

/// A question, and where its answer goes.
pub(super) struct Asked {
    pub(super) question: Arc<Question>,
    pub(super) reply: oneshot::Sender<Reply>,
}

/// What the session asks.
pub(super) struct Desk {
    questions: mpsc::Sender<Asked>,
}

impl Desk {
    /// A desk, and what is put on it.
    pub(super) fn open() -> (Self, mpsc::Receiver<Asked>) {
        let (questions, asked) = mpsc::channel(ROOM);
        (Self { questions }, asked)
    }
}

impl Decide for Desk {
    fn decide(&self, question: Arc<Question>) -> Pending {
        let (reply, answer) = oneshot::channel();
        // One that finds no room is dropped, and so refused.
        let _ = self.questions.try_send(Asked { question, reply });
        Box::pin(async move { answer.await.unwrap_or(Reply::Reject) })
    }
}
