//! Starts a run, handles the agent's answer, and ends the run.

use std::sync::Arc;
use std::time::Duration;

use narrows_acp::Version;
use narrows_acp::capability::AUTHORIZES;
use narrows_acp::method::SESSION_PROMPT;
use narrows_acp::stop::StopReason;
use narrows_link::CloseReason;
use narrows_rpc::{CallError, Item, Response};
use narrows_wire::Code;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::active_run::{Abort, AbortReason, ActiveRun};
use super::actor::{Actor, now_ms};
use super::open::MAX_HELD_MESSAGES;
use crate::error::{ClientError, Problem, Stage, wants_login};
use crate::event::{Json, Payload};
use crate::event_queue::event_queue;
use crate::input::{self, Block};
use crate::map::{Fault, RunEnd, RunOutcome};
use crate::mcp::Hosting;
use crate::peer_json;
use crate::run::{Canceller, Events, RunHandle, RunRequest};
use crate::runtime::Shared;
use crate::structured::AnswerSchema;
use crate::turn::Turn;

/// Minimum duration without messages between opening the session and sending the first prompt.
const MIN_QUIET: Duration = Duration::from_millis(3);
const MAX_QUIET: Duration = Duration::from_millis(50);

const MAX_FIRST_PROMPT_DELAY: Duration = Duration::from_millis(150);

/// Delay of the first prompt. During the delay, the agent may send updates that belong to opening the
/// session.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstPromptDelay {
    opened: Instant,
    quiet: Duration,
}

impl FirstPromptDelay {
    /// Creates the delay for a session that took `took` to open. A slow agent or machine gets a longer delay.
    pub(super) fn new(took: Duration) -> Self {
        Self { opened: Instant::now(), quiet: (took / 4).clamp(MIN_QUIET, MAX_QUIET) }
    }

    pub(super) fn is_over(&self) -> bool {
        self.opened.elapsed() > MAX_FIRST_PROMPT_DELAY
    }
}

impl Actor {
    pub(super) async fn begin(
        &mut self,
        request: RunRequest,
        reply: oneshot::Sender<Result<RunHandle, ClientError>>,
    ) {
        let outcome = self.try_begin(request).await;
        let _ = reply.send(outcome);
    }

    async fn try_begin(&mut self, request: RunRequest) -> Result<RunHandle, ClientError> {
        let failed = |shared: &Shared, problem| Err(shared.failed(Stage::Turn, problem));
        if let Some(run) = &self.run {
            return failed(&self.shared, Problem::Busy { run_id: run.run_id.to_string() });
        }
        let answer_schema = match request.output_schema.as_ref().map(AnswerSchema::new).transpose() {
            Ok(answer_schema) => answer_schema,
            Err(error) => return failed(&self.shared, Problem::Invalid(error.to_string())),
        };
        let mut input = request.input;
        if let Some(answer_schema) = &answer_schema {
            input.push(answer_schema.instruction().into());
        }
        let blocks = input::blocks(&input, &self.services.cwd, self.shared.known.can.image);
        let blocks = match blocks {
            Ok(blocks) => blocks,
            Err(error) => return failed(&self.shared, Problem::Invalid(error.to_string())),
        };
        // Messages that arrived before the prompt is sent do not answer it.
        self.take_earlier().await;
        self.services.permissions.begin_turn();
        // Without this time limit, an agent that reads nothing would block all other commands of the session.
        let limit = self.shared.agent.deadlines.open;
        let prompt = match timeout(limit, self.prompt(&blocks)).await {
            Ok(Ok(prompt)) => prompt,
            Ok(Err(error)) => {
                self.services.permissions.cancel();
                return Err(self.shared.client_error(Stage::Turn, error));
            }
            Err(_) => {
                self.services.permissions.cancel();
                return failed(&self.shared, Problem::Deadline(limit));
            }
        };
        let run_id: Arc<str> = uuid::Uuid::now_v7().to_string().into();
        // Events from before the prompt belong to the session, not to the run.
        self.flush();
        self.mapper.start(&run_id, now_ms(), &mut self.events);
        self.meter.begin();
        self.report_failures();
        self.report_losses();
        let (event_queue, reader) = event_queue(true);
        let (settle, result) = oneshot::channel();
        let now = Instant::now();
        self.run = Some(ActiveRun {
            run_id: Arc::clone(&run_id),
            event_queue,
            result: Some(settle),
            turn: Turn::new(self.shared.known.version, prompt),
            answer_schema,
            repaired: false,
            problems: Vec::new(),
            started: now,
            deadline: request.timeout.and_then(|limit| Some((now.checked_add(limit)?, limit))),
            abort: None,
            interrupted: None,
            fault: None,
            stop_reason: None,
            data: None,
        });
        self.reset_silence_timer();
        self.mode_guard.begin_turn();
        self.check_mode();
        let cancel = Canceller { run_id: Arc::clone(&run_id), cancels: self.cancels.clone() };
        Ok(RunHandle { run_id, events: Events { reader }, result, cancel })
    }

    /// Handles messages that arrived before the prompt, which belong to the session and not to the new run.
    async fn take_earlier(&mut self) {
        // Each received line passes through two tasks. Yielding lets these tasks run.
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        self.wait_before_first_prompt().await;
        let now = now_ms();
        let mut items: Vec<Item> =
            std::iter::from_fn(|| self.inbox.try_recv()).take(MAX_HELD_MESSAGES).collect();
        items.extend(std::iter::from_fn(|| self.inputs.strays.try_recv().ok()).take(MAX_HELD_MESSAGES));
        for item in items {
            match item {
                Item::Notification(frame) => self.notification(&frame, now),
                Item::Request(request) => self.request(request),
                Item::Answer(_) => {}
            }
        }
        self.first_prompt_delay = None;
        self.flush();
        // Yielding lets calls of MCP servers, which are separate tasks, begin before the turn.
        tokio::task::yield_now().await;
    }

    /// Waits for updates that the agent sends right after opening the session and that may still be in
    /// transit. The built-in agent sends no such updates.
    async fn wait_before_first_prompt(&mut self) {
        let Some(FirstPromptDelay { opened, quiet }) = self.first_prompt_delay else { return };
        if self.shared.known.is_built_in_agent() {
            return;
        }
        let latest = opened + MAX_FIRST_PROMPT_DELAY;
        let mut until = opened + quiet;
        while let Ok(Some(item)) = timeout_at(until.min(latest), self.inbox.recv()).await {
            match item {
                Item::Notification(frame) => self.notification(&frame, now_ms()),
                Item::Request(request) => self.request(request),
                Item::Answer(_) => {}
            }
            until = Instant::now() + quiet;
        }
    }

    fn report_failures(&mut self) {
        for failure in self.hosting.as_ref().map(Hosting::failures).unwrap_or_default() {
            let data = Json::write(&json!({"problem": failure.to_string()}));
            let payload = Payload::Other { name: "mcp.failed".to_owned(), data };
            self.mapper.provider_event(payload, now_ms(), &mut self.events);
        }
    }

    /// Reports messages that were dropped since the last report.
    fn report_losses(&mut self) {
        let message_loss = self.shared.message_loss();
        if let Some(payload) = message_loss.since(self.message_loss).to_payload() {
            self.mapper.provider_event(payload, now_ms(), &mut self.events);
        }
        self.message_loss = message_loss;
    }

    fn prompt_params(&self, blocks: &[Block]) -> Value {
        let mut params = json!({"sessionId": &*self.id, "prompt": blocks});
        if self.shared.known.version == Version::V1 && self.shared.offer.run_commands {
            params["_meta"] = json!({AUTHORIZES: true});
        }
        params
    }

    async fn prompt(&self, blocks: &[Block]) -> Result<u64, CallError> {
        let params = self.prompt_params(blocks);
        self.shared.peer.call_in(&self.inbox, SESSION_PROMPT, &params).await
    }

    /// Handles the answer to the prompt: in version 1 the end of the turn, in version 2 its beginning.
    pub(super) fn answered(&mut self, outcome: Result<Response, CallError>) {
        let Some(run) = &mut self.run else { return };
        let response = match outcome {
            Ok(response) => response,
            Err(error) => return self.refused(&error),
        };
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Answer {
            usage: Option<Value>,
            #[serde(rename = "_meta")]
            meta: Option<Value>,
        }
        if let Err(error) = peer_json::check_count(response.raw()) {
            let message = format!("the agent's answer to the prompt cannot be read: {error}");
            return self.finish(RunEnd::Failed { message, code: Some("malformed".to_owned()) }, None);
        }
        let Answer { usage, meta } = response.read().unwrap_or_default();
        if let Some(usage) = usage {
            self.meter.end(&usage);
        }
        let mut meta = meta.unwrap_or_default();
        if let Some(why) = meta["aip44"]["interrupted"].as_str() {
            run.interrupted = Some(why.to_owned());
        }
        let fault = meta.get_mut("narrows/error").map(Value::take);
        if let Some(fault) = fault.filter(|fault| !fault.is_null()) {
            // A failure that cannot be parsed still counts as a failure, with default values.
            let fault: Fault = serde_json::from_value(fault).unwrap_or_default();
            run.fault = Some(fault.clone());
            self.mapper.note_fault(fault);
        }
        let reason = match self.shared.known.version {
            Version::V1 => {
                let result = serde_json::from_slice::<&RawValue>(response.raw());
                let reason = result
                    .map_err(|error| error.to_string())
                    .and_then(|result| StopReason::from_v1_result(result).map_err(|error| error.to_string()));
                match reason {
                    Ok(reason) => Some(reason),
                    Err(problem) => {
                        let message = format!("invalid answer to the prompt: {problem}");
                        return self
                            .finish(RunEnd::Failed { message, code: Some("malformed".to_owned()) }, None);
                    }
                }
            }
            Version::V2 => None,
        };
        if let Some(reason) = run.turn.answered(reason) {
            self.stopped(reason);
        }
    }

    fn refused(&mut self, error: &CallError) {
        let Some(run) = &mut self.run else { return };
        let end = match error {
            // Any error in answer to a cancelled prompt counts as the confirmation.
            CallError::Refused(refused) if run.abort.is_some() || refused.is(Code::Cancelled) => {
                return self.stopped(Some(StopReason::Cancelled));
            }
            error if wants_login(error) => {
                let error = self.shared.client_error(Stage::Turn, error.clone());
                RunEnd::Failed { message: error.problem.to_string(), code: Some(error.code().to_owned()) }
            }
            CallError::Refused(refused) => {
                run.data = Some(json!({"code": refused.code, "data": refused.data}));
                RunEnd::Failed { message: refused.message.to_string(), code: Some("agent_error".to_owned()) }
            }
            // The connection is lost. The cause is reported once the end of the connection is read.
            CallError::Lost { .. } => return,
            error => RunEnd::Failed { message: error.to_string(), code: Some("malformed".to_owned()) },
        };
        self.finish(end, None);
    }

    /// Handles the end of the turn. If the answer violates the schema, prompts the agent once more.
    pub(super) fn stopped(&mut self, reason: Option<StopReason>) {
        let Some(run) = &mut self.run else { return };
        run.stop_reason = reason.as_ref().map(|reason| reason.name().to_owned());
        let is_done = matches!(reason, None | Some(StopReason::EndTurn)) && run.fault.is_none();
        let mut structured = None;
        if let Some(answer_schema) = run.answer_schema.as_ref().filter(|_| is_done && run.abort.is_none()) {
            match answer_schema.read(self.mapper.final_text().unwrap_or_default()) {
                Ok(value) => {
                    structured = Some(value);
                    run.problems.clear();
                }
                Err(problems) if !run.repaired => {
                    let blocks = [Block::Text { text: answer_schema.repair(&problems) }];
                    run.problems = problems;
                    return self.repair(&blocks);
                }
                Err(problems) => {
                    tracing::info!(?problems, "answer violates the requested schema");
                    run.problems = problems;
                }
            }
        }
        let end = match run.abort {
            // The cause of the cancellation is reported, regardless of the agent's answer.
            Some(Abort {
                why: why @ (AbortReason::Timeout(_) | AbortReason::Silence(_) | AbortReason::ModeLeft),
                ..
            }) => why.end(),
            _ => match run.interrupted.take().filter(|_| reason == Some(StopReason::Refusal)) {
                // The stop reason is a refusal because the gate stopped the turn, not because the agent
                // refused.
                Some(why) => RunEnd::Failed {
                    message: format!("the gate stopped the turn: {why}"),
                    code: Some("refusal".to_owned()),
                },
                None => RunEnd::Stopped(reason),
            },
        };
        self.finish(end, structured);
    }

    /// Prompts the agent again in the same run, because its answer violated the schema.
    fn repair(&mut self, blocks: &[Block]) {
        self.mapper.end_messages(now_ms(), &mut self.events);
        self.meter.next_prompt();
        let params = self.prompt_params(blocks);
        // The agent has just answered, so the output queue has room. If it has none, the agent is not
        // prompted again.
        let asking = self.shared.peer.call_in(&self.inbox, SESSION_PROMPT, &params);
        let Some(Ok(prompt)) = futures_now(asking) else {
            return self.finish(RunEnd::Stopped(Some(StopReason::EndTurn)), None);
        };
        if let Some(run) = &mut self.run {
            run.repaired = true;
            run.turn = Turn::new(self.shared.known.version, prompt);
        }
    }

    pub(super) fn finish(&mut self, end: RunEnd, structured: Option<Value>) {
        if self.run.is_none() {
            return;
        }
        self.settle_all();
        self.check_unfinished_commands();
        self.report_failures();
        self.report_losses();
        let Some(run) = self.run.take() else { return };
        let outcome = RunOutcome {
            end,
            cancelling: run.abort.is_some(),
            usage: self.meter.finish(run.started.elapsed()),
            structured,
        };
        self.mapper.finish(outcome, now_ms(), &mut self.events);
        run.settle(&mut self.events);
    }

    /// Ends the run and the services after the agent was lost.
    pub(super) async fn lost(&mut self) {
        let reason = self.shared.peer.closed().await;
        let agent_output = self.shared.agent_output();
        if let Some(run) = &mut self.run {
            run.data = Some(
                json!({"stderr": agent_output.stderr, "strayLines": agent_output.stray_lines, "strays": agent_output.strays}),
            );
            let end = match run.abort {
                Some(Abort { why, .. }) => why.end(),
                None => RunEnd::Failed { message: gone(&reason), code: Some("agent_exited".to_owned()) },
            };
            self.finish(end, None);
        }
    }
}

fn gone(reason: &CloseReason) -> String {
    match reason {
        CloseReason::Exited { exit, .. } => format!("the agent exited during the turn: {exit}"),
        CloseReason::Eof => "the agent closed its output during the turn".to_owned(),
        CloseReason::NotReading => "the agent closed its input during the turn".to_owned(),
        reason => format!("the agent was lost during the turn: {reason}"),
    }
}

fn futures_now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}
