//! A run, from the caller's side.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::event::{EventBody, Json, Payload, RuntimeEvent, Status};
use crate::event_queue::{QueueItem, Reader};
use crate::input::Input;
use crate::map::Fault;
use crate::usage::Usage;

/// A prompt and its limits.
#[derive(Clone, Debug, Default)]
pub struct RunRequest {
    pub input: Vec<Input>,
    /// JSON Schema for the answer.
    pub output_schema: Option<Value>,
    pub timeout: Option<Duration>,
}

impl RunRequest {
    /// Creates a text prompt.
    pub fn text(prompt: impl Into<String>) -> Self {
        Self { input: vec![Input::Text(prompt.into())], ..Self::default() }
    }
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResult {
    pub status: Status,
    pub final_text: Option<Arc<str>>,
    /// The JSON value found in the answer, if it is valid under the schema.
    pub structured_output: Option<Value>,
    /// Violations of the schema, one sentence each. Empty if there are none, or no schema was given.
    pub schema_problems: Vec<String>,
    /// Number of prompts that were sent: two if the first answer violated the schema.
    pub prompts: u32,
    pub usage: Option<Usage>,
    pub stop_reason: Option<String>,
    pub error: Option<RunError>,
}

/// The failure of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunError {
    /// The stop reason, or the kind of failure.
    pub code: String,
    pub message: String,
    /// Failure of the model, if the agent reports one.
    pub fault: Option<Fault>,
    /// Further data about the failure: the JSON-RPC error, or the agent's last output.
    pub data: Option<Value>,
}

/// A run that has begun. The run continues even if its events are not read, and after the handle is dropped.
pub struct RunHandle {
    pub(crate) run_id: Arc<str>,
    pub(crate) events: Events,
    pub(crate) result: oneshot::Receiver<RunResult>,
    pub(crate) cancel: Canceller,
}

impl RunHandle {
    /// Returns the id of the run.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Returns the next event; `None` after `run.completed`. A slow reader slows the agent down.
    pub async fn next(&mut self) -> Option<RuntimeEvent> {
        self.events.next().await
    }

    /// Splits the handle, so that different tasks can read events, cancel, and wait for the result.
    #[must_use]
    pub fn split(self) -> (Events, Canceller, oneshot::Receiver<RunResult>) {
        (self.events, self.cancel, self.result)
    }

    /// Asks the agent to stop. The run ends when the agent stops, or when the cancellation deadline passes.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Waits for the result. Drops unread events.
    pub async fn result(self) -> RunResult {
        drop(self.events);
        settled(self.result).await
    }
}

/// Waits for the result. If the session was dropped without a result, returns a failed one.
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
    /// Returns the next event; `None` at the end. Cancel-safe.
    pub async fn next(&mut self) -> Option<RuntimeEvent> {
        self.reader.next().await
    }

    /// Moves all queued events to `events`. Returns `false` if there are none.
    pub fn take_all(&mut self, events: &mut Vec<RuntimeEvent>) -> bool {
        self.reader.take_all(events)
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

/// Cancels a run.
#[derive(Clone, Debug)]
pub struct Canceller {
    pub(crate) run_id: Arc<str>,
    pub(crate) cancels: mpsc::Sender<Arc<str>>,
}

impl Canceller {
    /// Asks the agent to stop.
    pub fn cancel(&self) {
        // A full queue already contains a cancellation.
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
