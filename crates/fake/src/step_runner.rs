//! Runs steps one after the other, and sends the response at the end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use narrows_acp::method;
use narrows_rpc::CallError;
use narrows_wire::RpcError;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::agent::Agent;
use crate::encode;
use crate::placeholders::PlaceholderValues;
use crate::script::step::{Speaker, Step};
use crate::scripted_response::ScriptedResponse;
use crate::session::Session;

/// Reason why a list of steps has ended.
#[derive(Debug, PartialEq)]
pub(crate) enum RunEnd {
    Done,
    Stop(String),
    Cancelled,
    Error(RpcError),
    /// No more messages can be sent, because the agent hangs or ends, or the client has disconnected.
    Silent,
}

/// Result of a step. An error ends the list of steps.
pub(crate) type StepResult<T = ()> = Result<T, RunEnd>;

/// The response that must be sent after the last step.
enum PendingResponse {
    /// No response is needed, or the response was sent already.
    Nothing,
    Result(ScriptedResponse, Value),
    /// In version 1, the stop reason is the response to the prompt.
    Reason(ScriptedResponse),
    /// In version 2, a state update ends the turn. The line is the response that has acknowledged the prompt.
    State(Option<Bytes>),
}

pub(crate) struct StepRunner {
    pub(crate) agent: Arc<Agent>,
    pub(crate) session: Option<Arc<Session>>,
    pub(crate) values: PlaceholderValues,
    pub(crate) delay: Duration,
    pub(crate) terminals: Vec<String>,
    pending_response: PendingResponse,
    /// `true` if the response must be sent twice.
    responds_twice: bool,
    /// Channels that become `true` when the client cancels the turn or the prompt request. `None` if the
    /// steps cannot be cancelled.
    cancels: Option<[watch::Receiver<bool>; 2]>,
    /// `true` after a cancellation, while the script's own final steps run.
    is_ending_turn: bool,
    /// Speaker and id of the message to which the next chunk may belong.
    message: Option<(Speaker, String)>,
}

impl StepRunner {
    pub(crate) fn new(agent: Arc<Agent>, session: Option<Arc<Session>>) -> Self {
        let mut values = PlaceholderValues::default();
        if let Some(session) = &session {
            values.session.clone_from(&session.id);
            values.cwd.clone_from(&session.cwd);
            values.mode = session.mode();
            values.turn = session.turns();
        }
        Self {
            delay: agent.script.delay,
            agent,
            session,
            values,
            terminals: Vec::new(),
            pending_response: PendingResponse::Nothing,
            responds_twice: false,
            cancels: None,
            is_ending_turn: false,
            message: None,
        }
    }

    pub(crate) fn with_response(self, response: ScriptedResponse, result: Value) -> Self {
        Self { pending_response: PendingResponse::Result(response, result), ..self }
    }

    /// Makes the runner respond with the stop reason after the last step.
    pub(crate) fn respond_with_reason(&mut self, response: ScriptedResponse) {
        self.pending_response = PendingResponse::Reason(response);
    }

    /// Makes the runner send a state update after the last step. `response_line` has acknowledged the prompt.
    pub(crate) fn respond_with_state(&mut self, response_line: Option<Bytes>) {
        self.pending_response = PendingResponse::State(response_line);
    }

    /// Makes the steps stop when the turn or its request is cancelled.
    pub(crate) fn cancellable(&mut self, turn: watch::Receiver<bool>, request: watch::Receiver<bool>) {
        self.cancels = Some([turn, request]);
    }

    pub(crate) fn run_steps<'p>(
        &'p mut self,
        steps: &'p [Step],
    ) -> Pin<Box<dyn Future<Output = StepResult> + Send + 'p>> {
        Box::pin(async move {
            for (index, step) in steps.iter().enumerate() {
                if index > 0 && !self.delay.is_zero() {
                    self.unless_cancelled(tokio::time::sleep(self.delay)).await?;
                }
                self.run_step(step).await?;
            }
            Ok(())
        })
    }

    async fn run_step(&mut self, step: &Step) -> StepResult {
        let version = self.agent.version();
        // Chunks form one message only if no other update is between them.
        if !matches!(step, Step::Speak { .. } | Step::Pause(_) | Step::Repeat { .. } | Step::Fault(_)) {
            self.message = None;
        }
        match step {
            Step::Speak { speaker, text, words, every } => {
                self.send_text(*speaker, text, *words, *every).await
            }
            Step::Tool(call) => self.send_update(encode::tool_call(version, call, &self.values)).await,
            Step::ToolUpdate(call) => {
                self.send_update(encode::tool_update(version, call, &self.values)).await
            }
            Step::Plan(entries) => self.send_update(encode::plan(version, entries, &self.values)).await,
            Step::Ask(ask) => self.ask_permission(ask).await,
            Step::Read { path, line, limit } => self.read(path, *line, *limit).await,
            Step::Write { path, content } => self.write(path, content).await,
            Step::Terminal { command, cwd, tool } => {
                self.terminal(command, cwd.as_deref(), tool.as_deref()).await
            }
            Step::Usage { used, size, cost } => {
                let mut update = json!({"sessionUpdate": "usage_update", "used": used, "size": size});
                if let Some(cost) = cost {
                    update["cost"] = json!({"amount": cost.amount, "currency": cost.currency});
                }
                self.send_update(update).await
            }
            Step::Notice { severity, title, description } => {
                self.notice(severity, title, description.as_deref()).await
            }
            Step::Commands(commands) => self.send_update(encode::commands(version, commands)).await,
            Step::Title(title) => {
                let title = self.values.fill(title);
                if let Some(session) = &self.session {
                    session.set_title(&title);
                }
                self.send_update(json!({"sessionUpdate": "session_info_update", "title": title})).await
            }
            Step::Mode(mode) => self.switch_mode(mode).await,
            Step::Update(update) => self.send_update(self.values.fill_json(update)).await,
            Step::Notify { method, params } => self.notify(method, &self.values.fill_json(params)).await,
            Step::Request { method, params } => self.request(method, params).await,
            Step::Pause(duration) => self.unless_cancelled(tokio::time::sleep(*duration)).await,
            Step::WaitCancel => {
                self.cancelled().await;
                self.is_ending_turn = true;
                Ok(())
            }
            Step::Stop(reason) => Err(RunEnd::Stop(reason.clone())),
            Step::Error(error) => {
                let message = self.values.fill(&error.message).into();
                Err(RunEnd::Error(RpcError { message, ..error.clone() }))
            }
            Step::Repeat { times, steps } => self.repeat(*times, steps).await,
            Step::Reorder => {
                let end = if self.is_ending_turn { RunEnd::Cancelled } else { RunEnd::Done };
                self.finish(end).await;
                Ok(())
            }
            Step::DuplicateResponse => {
                self.responds_twice = true;
                Ok(())
            }
            Step::Fault(fault) => self.fault(fault).await,
        }
    }

    async fn repeat(&mut self, times: u64, steps: &[Step]) -> StepResult {
        let outer = self.values.round;
        for round in 1..=times {
            self.values.round = round;
            self.run_steps(steps).await?;
            // A round of the loop may contain no wait, so the loop must yield to other tasks.
            self.unless_cancelled(tokio::task::yield_now()).await?;
        }
        self.values.round = outer;
        Ok(())
    }

    /// Sends `text`, either at once or word by word.
    pub(crate) async fn send_text(
        &mut self,
        speaker: Speaker,
        text: &str,
        words: bool,
        every: Option<Duration>,
    ) -> StepResult {
        let text = self.values.fill(text);
        let pieces: Vec<&str> =
            if words { text.split_inclusive(char::is_whitespace).collect() } else { vec![&text] };
        for (index, piece) in pieces.into_iter().enumerate() {
            if let Some(every) = every.filter(|_| index > 0) {
                self.unless_cancelled(tokio::time::sleep(every)).await?;
            }
            let update = self.chunk(speaker, piece);
            self.send_update(update).await?;
        }
        Ok(())
    }

    /// Returns a chunk that continues the speaker's message, or begins another message.
    pub(crate) fn chunk(&mut self, speaker: Speaker, text: &str) -> Value {
        let message = match self.message.take() {
            Some((last, message)) if last == speaker => message,
            _ => self.agent.message_id(),
        };
        let update = encode::chunk(self.agent.version(), speaker, text, &message);
        self.message = Some((speaker, message));
        update
    }

    async fn notice(&mut self, severity: &str, title: &str, description: Option<&str>) -> StepResult {
        let title = self.values.fill(title);
        let description = description.map(|text| self.values.fill(text));
        if !self.agent.client().notices {
            let more = description.map_or(String::new(), |text| format!(": {text}"));
            let update = self.chunk(Speaker::Message, &format!("[{severity}] {title}{more}\n"));
            return self.send_update(update).await;
        }
        let mut update = json!({"sessionUpdate": "notice", "severity": severity, "title": title});
        if let Some(description) = description {
            update["description"] = json!(description);
        }
        self.send_update(update).await
    }

    async fn switch_mode(&mut self, mode: &str) -> StepResult {
        if let Some(session) = &self.session {
            session.set_mode(mode);
        }
        mode.clone_into(&mut self.values.mode);
        for update in encode::mode_changed(self.agent.version(), &self.agent.script.modes, mode) {
            self.send_update(update).await?;
        }
        Ok(())
    }

    pub(crate) async fn send_update(&self, update: Value) -> StepResult {
        if let Some(session) = &self.session {
            session.record(&update);
        }
        self.unless_cancelled(self.replay(update)).await?
    }

    pub(crate) async fn replay(&self, update: Value) -> StepResult {
        let params = json!({"sessionId": self.values.session, "update": update});
        to_step_result(self.agent.peer.notify(method::SESSION_UPDATE, &params).await)
    }

    async fn notify(&self, method: &str, params: &Value) -> StepResult {
        to_step_result(self.unless_cancelled(self.agent.peer.notify(method, params)).await?)
    }

    /// Runs `work` until it completes or the turn is cancelled.
    pub(crate) async fn unless_cancelled<T>(&self, work: impl Future<Output = T>) -> StepResult<T> {
        if self.is_ending_turn || self.cancels.is_none() {
            return Ok(work.await);
        }
        let heeded = async {
            self.cancelled().await;
            if self.agent.ignores_cancel.load(Ordering::Acquire) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = heeded => Err(RunEnd::Cancelled),
            done = work => Ok(done),
        }
    }

    /// Waits until the client cancels the turn or its request.
    async fn cancelled(&self) {
        let Some([turn, request]) = &self.cancels else { return std::future::pending().await };
        let (mut turn, mut request) = (turn.clone(), request.clone());
        // A receiver without a sender must not count as a cancellation.
        let either = async |cancel: &mut watch::Receiver<bool>| {
            if cancel.wait_for(|cancelled| *cancelled).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = either(&mut turn) => {}
            () = either(&mut request) => {}
        }
    }

    pub(crate) async fn finish(&mut self, end: RunEnd) {
        let end = if end == RunEnd::Done && self.is_ending_turn { RunEnd::Cancelled } else { end };
        if end == RunEnd::Silent {
            return;
        }
        let response_line = match std::mem::replace(&mut self.pending_response, PendingResponse::Nothing) {
            PendingResponse::Nothing => None,
            PendingResponse::Result(response, result) => match end {
                RunEnd::Error(error) => response.fail(&error),
                _ => response.respond(&result),
            },
            PendingResponse::Reason(response) => match end {
                RunEnd::Error(error) => response.fail(&error),
                end => response.respond(&json!({"stopReason": reason(&end)})),
            },
            PendingResponse::State(response_line) => {
                let mut update = encode::state("idle");
                update["stopReason"] = json!(reason(&end));
                if let RunEnd::Error(error) = &end {
                    update["error"] = json!(error);
                }
                let _ = self.replay(update).await;
                response_line
            }
        };
        if let Some(line) = response_line.filter(|_| self.responds_twice) {
            self.write_line(line).await;
        }
    }
}

/// Returns the stop reason for the end of a turn.
fn reason(end: &RunEnd) -> &str {
    match end {
        RunEnd::Done => "end_turn",
        RunEnd::Stop(reason) => reason,
        RunEnd::Cancelled => "cancelled",
        RunEnd::Error(_) | RunEnd::Silent => "error",
    }
}

/// Converts a failed send to the end of the steps, because the client has disconnected.
fn to_step_result(outcome: Result<(), CallError>) -> StepResult {
    outcome.map_err(|_| RunEnd::Silent)
}
