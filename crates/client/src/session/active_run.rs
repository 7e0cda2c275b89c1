//! The active run: its deadlines, and its result.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::event::{EventBody, RuntimeEvent, Status};
use crate::event_queue::EventQueue;
use crate::map::{Fault, RunEnd};
use crate::run::{RunError, RunResult};
use crate::structured::AnswerSchema;
use crate::turn::Turn;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AbortReason {
    Requested,
    Timeout(Duration),
    /// The agent sent nothing for this duration.
    Silence(Duration),
    /// The agent left the read-only mode that low access selected.
    ModeLeft,
}

impl AbortReason {
    /// Returns the end of a run that was aborted for this reason.
    pub(super) fn end(self) -> RunEnd {
        let failed = |code: &str, message: String| RunEnd::Failed { message, code: Some(code.to_owned()) };
        match self {
            Self::Requested => RunEnd::Cancelled,
            Self::Timeout(limit) => failed("timeout", format!("the turn took longer than {limit:?}")),
            Self::ModeLeft => {
                failed("mode_left", "the agent left the read-only mode that low access selected".to_owned())
            }
            Self::Silence(limit) => failed("silence", format!("the agent said nothing for {limit:?}")),
        }
    }
}

/// Stage of aborting a run. If the agent does not stop, the next stage begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AbortStage {
    /// The agent was asked to stop. The next stage kills the terminals of the session.
    Requested,
    /// The terminals of the session were killed. The next stage ends the agent.
    Killed,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Abort {
    pub(super) why: AbortReason,
    pub(super) stage: AbortStage,
    /// Time at which the next stage of the abort begins.
    pub(super) until: Instant,
}

pub(super) struct ActiveRun {
    pub(super) run_id: Arc<str>,
    pub(super) event_queue: EventQueue<RuntimeEvent>,
    pub(super) result: Option<oneshot::Sender<RunResult>>,
    pub(super) turn: Turn,
    pub(super) answer_schema: Option<AnswerSchema>,
    /// `true` once the agent was prompted again because its first answer violated the schema.
    pub(super) repaired: bool,
    pub(super) problems: Vec<String>,
    pub(super) started: Instant,
    /// Time at which the run is cancelled, and the time limit of the run.
    pub(super) deadline: Option<(Instant, Duration)>,
    pub(super) abort: Option<Abort>,
    /// Reason for which a gate in front of the agent has stopped the run.
    pub(super) interrupted: Option<String>,
    pub(super) fault: Option<Fault>,
    pub(super) stop_reason: Option<String>,
    pub(super) data: Option<Value>,
}

impl ActiveRun {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self.abort {
            Some(abort) => Some(abort.until),
            None => self.deadline.map(|(at, _)| at),
        }
    }

    /// Builds the result of the run, adding its last `events`, and sends the result to the caller.
    pub(super) fn settle(mut self, events: &mut Vec<RuntimeEvent>) {
        let mut result = RunResult {
            status: Status::Error,
            final_text: None,
            structured_output: None,
            schema_problems: std::mem::take(&mut self.problems),
            prompts: 1 + u32::from(self.repaired),
            usage: None,
            stop_reason: self.stop_reason.take(),
            error: None,
        };
        for event in events.iter() {
            match &event.body {
                EventBody::Error { message, code } => {
                    result.error = Some(RunError {
                        code: code.clone().unwrap_or_else(|| "error".to_owned()),
                        message: message.clone(),
                        fault: self.fault.take(),
                        data: self.data.take(),
                    });
                }
                EventBody::RunCompleted(completed) => {
                    result.status = completed.status;
                    result.final_text.clone_from(&completed.final_text);
                    result.structured_output.clone_from(&completed.structured_output);
                    result.usage.clone_from(&completed.usage);
                }
                _ => {}
            }
        }
        self.event_queue.push_all(events);
        if let Some(waiting) = self.result.take() {
            let _ = waiting.send(result);
        }
    }
}
