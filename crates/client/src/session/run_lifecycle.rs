//! The lifecycle of a run: its start, the answer of the agent, and its end.

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

use super::active::{Abort, AbortReason, Active};
use super::actor::{Actor, now_ms};
use super::open::MAX_HELD_MESSAGES;
use crate::error::{ClientError, Problem, Stage, wants_login};
use crate::event::{Json, Payload};
use crate::event_queue::event_queue;
use crate::input::{self, Block};
use crate::map::{End, Fault, Outcome};
use crate::mcp::Hosting;
use crate::peer_json;
use crate::run::{Canceller, Events, RunHandle, RunRequest};
use crate::runtime::Shared;
use crate::structured::Form;
use crate::turn::Turn;

/// How long an agent must be silent after it has opened a session before its first prompt is sent: the least, and the most.
const MIN_QUIET: Duration = Duration::from_millis(3);
const MAX_QUIET: Duration = Duration::from_millis(50);

/// How long the first prompt waits for that at most.
const MAX_FIRST_PROMPT_DELAY: Duration = Duration::from_millis(150);

/// The time after a session was opened in which the agent may still tell what belongs to its beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstPromptDelay {
    opened: Instant,
    quiet: Duration,
}

impl FirstPromptDelay {
    /// A session was opened, which `took` this long: an agent that is slow, or on a busy machine, is waited for longer.
    pub(super) fn new(took: Duration) -> Self {
        Self { opened: Instant::now(), quiet: (took / 4).clamp(MIN_QUIET, MAX_QUIET) }
    }

    pub(super) fn is_over(&self) -> bool {
        self.opened.elapsed() > MAX_FIRST_PROMPT_DELAY
    }
}

impl Actor {
    /// Starts a run.
    pub(super) async fn begin(
        &mut self,
        request: RunRequest,
        reply: oneshot::Sender<Result<RunHandle, ClientError>>,
    ) {
        let outcome = self.try_begin(request).await;
        // The caller may have gone; the run goes on all the same.
        let _ = reply.send(outcome);
    }

    async fn try_begin(&mut self, request: RunRequest) -> Result<RunHandle, ClientError> {
        let failed = |shared: &Shared, problem| Err(shared.failed(Stage::Turn, problem));
        if let Some(run) = &self.run {
            return failed(&self.shared, Problem::Busy { run_id: run.run_id.to_string() });
        }
        let form = match request.output_schema.as_ref().map(Form::new).transpose() {
            Ok(form) => form,
            Err(error) => return failed(&self.shared, Problem::Invalid(error.to_string())),
        };
        let mut input = request.input;
        if let Some(form) = &form {
            input.push(form.instruction().into());
        }
        let blocks = input::blocks(&input, &self.services.cwd, self.shared.known.can.image);
        let blocks = match blocks {
            Ok(blocks) => blocks,
            Err(error) => return failed(&self.shared, Problem::Invalid(error.to_string())),
        };
        // What the agent has sent by now is no answer to this prompt.
        self.take_earlier().await;
        self.services.permissions.begin_turn();
        // An agent that reads nothing would hold up everything else that is wanted of the session.
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
        // What came before belongs to the session.
        self.flush();
        self.mapper.start(&run_id, now_ms(), &mut self.events);
        self.meter.begin();
        self.report_failures();
        self.report_losses();
        let (event_queue, reader) = event_queue(true);
        let (settle, result) = oneshot::channel();
        let now = Instant::now();
        self.run = Some(Active {
            run_id: Arc::clone(&run_id),
            event_queue,
            result: Some(settle),
            turn: Turn::new(self.shared.known.version, prompt),
            form,
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

    /// Takes what has come before the prompt: it belongs to the session, not to the run that begins.
    async fn take_earlier(&mut self) {
        // A line that has arrived is read by one task and handed on by another.
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
        // Calls of MCP servers are tasks of their own, which begin outside of the turn.
        tokio::task::yield_now().await;
    }

    /// Takes what the agent says right behind the answer that opened the session, which may still be on its way when the
    /// first prompt is to be sent. Our own agent says nothing there.
    async fn wait_before_first_prompt(&mut self) {
        let Some(FirstPromptDelay { opened, quiet }) = self.first_prompt_delay else { return };
        if self.shared.known.is_ours() {
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

    /// Tells which MCP servers that run here have failed, each once.
    fn report_failures(&mut self) {
        for failure in self.hosting.as_ref().map(Hosting::failures).unwrap_or_default() {
            let data = Json::write(&json!({"problem": failure.to_string()}));
            let payload = Payload::Other { name: "mcp.failed".to_owned(), data };
            self.mapper.provider_event(payload, now_ms(), &mut self.events);
        }
    }

    /// Tells what was lost of the agent's messages since it was told last.
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

    /// The prompt was answered: the end of the turn in version 1, its beginning in version 2.
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
            return self.finish(End::Failed { message, code: Some("malformed".to_owned()) }, None);
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
            // However it is written: what is marked as a failure is one.
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
                        let message = format!("the agent's answer to the prompt makes no sense: {problem}");
                        return self
                            .finish(End::Failed { message, code: Some("malformed".to_owned()) }, None);
                    }
                }
            }
            Version::V2 => None,
        };
        if let Some(reason) = run.turn.answered(reason) {
            self.stopped(reason);
        }
    }

    /// The prompt was answered with an error.
    fn refused(&mut self, error: &CallError) {
        let Some(run) = &mut self.run else { return };
        let end = match error {
            // A cancelled agent may answer in any way.
            CallError::Refused(refused) if run.abort.is_some() || refused.is(Code::Cancelled) => {
                return self.stopped(Some(StopReason::Cancelled));
            }
            error if wants_login(error) => {
                let error = self.shared.client_error(Stage::Turn, error.clone());
                End::Failed { message: error.problem.to_string(), code: Some(error.code().to_owned()) }
            }
            CallError::Refused(refused) => {
                run.data = Some(json!({"code": refused.code, "data": refused.data}));
                End::Failed { message: refused.message.to_string(), code: Some("agent_error".to_owned()) }
            }
            // The conversation is over; how is told when its end is read.
            CallError::Lost { .. } => return,
            error => End::Failed { message: error.to_string(), code: Some("malformed".to_owned()) },
        };
        self.finish(end, None);
    }

    /// The agent has stopped. If its answer does not have the form it should, it is asked once more.
    pub(super) fn stopped(&mut self, reason: Option<StopReason>) {
        let Some(run) = &mut self.run else { return };
        run.stop_reason = reason.as_ref().map(|reason| reason.name().to_owned());
        let is_done = matches!(reason, None | Some(StopReason::EndTurn)) && run.fault.is_none();
        let mut structured = None;
        if let Some(form) = run.form.as_ref().filter(|_| is_done && run.abort.is_none()) {
            match form.read(self.mapper.final_text().unwrap_or_default()) {
                Ok(value) => {
                    structured = Some(value);
                    run.problems.clear();
                }
                Err(problems) if !run.repaired => {
                    let blocks = [Block::Text { text: form.repair(&problems) }];
                    run.problems = problems;
                    return self.repair(&blocks);
                }
                Err(problems) => {
                    tracing::info!(?problems, "the answer does not have the form that was asked for");
                    run.problems = problems;
                }
            }
        }
        let end = match run.abort {
            // The reason of the cancellation is reported, whatever the agent answers.
            Some(Abort {
                why: why @ (AbortReason::Timeout(_) | AbortReason::Silence(_) | AbortReason::ModeLeft),
                ..
            }) => why.end(),
            _ => match run.interrupted.take().filter(|_| reason == Some(StopReason::Refusal)) {
                // It was not the agent who refused.
                Some(why) => End::Failed {
                    message: format!("the gate stopped the turn: {why}"),
                    code: Some("refusal".to_owned()),
                },
                None => End::Stopped(reason),
            },
        };
        self.finish(end, structured);
    }

    /// Asks for the answer once more, in the same run.
    fn repair(&mut self, blocks: &[Block]) {
        self.mapper.end_messages(now_ms(), &mut self.events);
        self.meter.next_prompt();
        let params = self.prompt_params(blocks);
        // The agent has just answered, so there is room; if there is none, it is not asked again.
        let asking = self.shared.peer.call_in(&self.inbox, SESSION_PROMPT, &params);
        let Some(Ok(prompt)) = futures_now(asking) else {
            return self.finish(End::Stopped(Some(StopReason::EndTurn)), None);
        };
        if let Some(run) = &mut self.run {
            run.repaired = true;
            run.turn = Turn::new(self.shared.known.version, prompt);
        }
    }

    /// Ends the run.
    pub(super) fn finish(&mut self, end: End, structured: Option<Value>) {
        if self.run.is_none() {
            return;
        }
        self.settle_all();
        self.check_unfinished_commands();
        self.report_failures();
        self.report_losses();
        let Some(run) = self.run.take() else { return };
        let outcome = Outcome {
            end,
            cancelling: run.abort.is_some(),
            usage: self.meter.finish(run.started.elapsed()),
            structured,
        };
        self.mapper.finish(outcome, now_ms(), &mut self.events);
        run.settle(&mut self.events);
    }

    /// The agent is gone.
    pub(super) async fn lost(&mut self) {
        let reason = self.shared.peer.closed().await;
        let seen = self.shared.seen();
        if let Some(run) = &mut self.run {
            run.data =
                Some(json!({"stderr": seen.stderr, "strayLines": seen.stray_lines, "strays": seen.strays}));
            let end = match run.abort {
                Some(Abort { why, .. }) => why.end(),
                None => End::Failed { message: gone(&reason), code: Some("agent_exited".to_owned()) },
            };
            self.finish(end, None);
        }
    }
}

/// How an agent was lost.
fn gone(reason: &CloseReason) -> String {
    match reason {
        CloseReason::Exited { exit, .. } => format!("the agent ended in the middle of the turn: {exit}"),
        CloseReason::Eof => "the agent closed its output in the middle of the turn".to_owned(),
        CloseReason::NotReading => "the agent closed its input in the middle of the turn".to_owned(),
        reason => format!("the agent was lost in the middle of the turn: {reason}"),
    }
}

/// What `future` comes to at once, if it does.
fn futures_now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}
