//! One turn, as its caller sees it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::event::{EventBody, Json, Payload, RuntimeEvent, Status};
use crate::event_queue::{QueueItem, Reader};
use crate::input::Input;
use crate::map::Fault;
use crate::usage::Usage;

/// What is asked of a session.
#[derive(Clone, Debug, Default)]
pub struct RunRequest {
    /// What is said, in order.
    pub input: Vec<Input>,
    /// The JSON Schema that the answer is to follow.
    pub output_schema: Option<Value>,
    /// How long the turn may take.
    pub timeout: Option<Duration>,
}

impl RunRequest {
    /// A prompt of text.
    pub fn text(prompt: impl Into<String>) -> Self {
        Self { input: vec![Input::Text(prompt.into())], ..Self::default() }
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResult {
    /// In one word.
    pub status: Status,
    /// The last message of the agent.
    pub final_text: Option<Arc<str>>,
    /// The answer in the form that was asked for; absent if it has none.
    pub structured_output: Option<Value>,
    /// Why the answer does not match the schema, a sentence each; empty if it does or none was given.
    pub schema_problems: Vec<String>,
    /// How often the agent was prompted: a second time if its first answer did not match the schema.
    pub prompts: u32,
    /// What it took.
    pub usage: Option<Usage>,
    /// The agent's word for why it stopped.
    pub stop_reason: Option<String>,
    /// What went wrong.
    pub error: Option<RunError>,
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq)]
pub struct RunError {
    /// In one word: a stop reason, or what happened to the agent.
    pub code: String,
    /// In a sentence.
    pub message: String,
    /// What the agent says about the model that failed, if that is what happened.
    pub fault: Option<Fault>,
    /// What else is known: the JSON-RPC error, or what was seen of the agent.
    pub data: Option<Value>,
}

/// A run that has begun. It goes on whether or not anybody reads its events; dropping the handle does not end it.
pub struct RunHandle {
    pub(crate) run_id: Arc<str>,
    pub(crate) events: Events,
    pub(crate) result: oneshot::Receiver<RunResult>,
    pub(crate) cancel: Canceller,
}

impl RunHandle {
    /// Its id.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Returns the next event; `None` after `run.completed`. A slow reader slows the agent down.
    pub async fn next(&mut self) -> Option<RuntimeEvent> {
        self.events.next().await
    }

    /// Takes it apart, for those who read events and wait for the result in different places.
    #[must_use]
    pub fn split(self) -> (Events, Canceller, oneshot::Receiver<RunResult>) {
        (self.events, self.cancel, self.result)
    }

    /// Asks the agent to stop. The run ends when it does, or when its patience is over.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// How it ended. Events that were not read are dropped.
    pub async fn result(self) -> RunResult {
        drop(self.events);
        settled(self.result).await
    }
}

/// The result of a run, also if its session has gone.
pub(crate) async fn settled(result: oneshot::Receiver<RunResult>) -> RunResult {
    result.await.unwrap_or_else(|_| RunResult {
        status: Status::Error,
        final_text: None,
        structured_output: None,
        schema_problems: Vec::new(),
        prompts: 0,
        usage: None,
        stop_reason: None,
        error: Some(RunError {
            code: "closed".to_owned(),
            message: "the session was closed".to_owned(),
            fault: None,
            data: None,
        }),
    })
}

impl std::fmt::Debug for RunHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunHandle").field("run_id", &self.run_id).finish_non_exhaustive()
    }
}

/// The events of a run, or of a session outside of runs.
pub struct Events {
    pub(crate) reader: Reader<RuntimeEvent>,
}

impl Events {
    /// What happens next; `None` at the end. Safe to cancel.
    pub async fn next(&mut self) -> Option<RuntimeEvent> {
        self.reader.next().await
    }

    /// Moves what has happened already to `events`; `false` if that is nothing.
    pub fn take_all(&mut self, events: &mut Vec<RuntimeEvent>) -> bool {
        self.reader.take_all(events)
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

/// Stops a run.
#[derive(Clone, Debug)]
pub struct Canceller {
    pub(crate) run_id: Arc<str>,
    pub(crate) cancels: mpsc::Sender<Arc<str>>,
}

impl Canceller {
    /// Asks the agent to stop.
    pub fn cancel(&self) {
        // A queue that is full holds a cancellation already.
        let _ = self.cancels.try_send(Arc::clone(&self.run_id));
    }
}

impl QueueItem for RuntimeEvent {
    fn is_vital(&self) -> bool {
        matches!(
            self.body,
            EventBody::RunStarted { .. } | EventBody::Error { .. } | EventBody::RunCompleted(_)
        )
    }

    fn weight(&self) -> usize {
        Self::weight(self)
    }

    fn missing(count: u64, next: &Self) -> Self {
        let data = Json::write(&serde_json::json!({"count": count}));
        let payload = Payload::Other { name: "events.dropped".to_owned(), data };
        Self { body: EventBody::Provider { provider: "narrows".into(), payload }, raw: None, ..next.clone() }
    }
}
