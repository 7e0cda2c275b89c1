//! Runs a tool call: checks it, announces it, asks for permission, and reports its result to client and
//! model.

use std::time::Duration;

use narrows_model::{Call, Part, ToolResult};
use serde_json::{Map, Value, json};

use super::permission::PermissionScope;
use super::{ToolAction, Toolbox};
use crate::compaction::cut_middle;
use crate::encode_update::CallField;
use crate::gate::{ToolDecision, ToolRequest};
use crate::session::CallGuard;
use crate::transcript::{PlanEntry, ToolCall, ToolContent, ToolKind, ToolStatus};
use crate::turn::{StopReason, Turn};
use crate::update_writer::new_id;

/// Maximum number of bytes of a tool result for the model.
const MAX_RESULT_BYTES: usize = 128 << 10;

pub(super) struct ToolJob {
    pub(super) shown: ToolCall,
    /// Permission that the user must give before the call runs; `None` if no permission is needed.
    pub(super) grant: Option<PermissionScope>,
    pub(super) task: ToolTask,
}

pub(super) enum ToolTask {
    Read {
        path: String,
        line: Option<u64>,
        limit: Option<u64>,
    },
    /// Writes a file. `seen` is the old content that the user was shown.
    Write {
        path: String,
        content: String,
        seen: PriorContent,
    },
    Run {
        program: String,
        args: Vec<String>,
        cwd: String,
    },
    Server {
        server: String,
        tool: String,
        arguments: Map<String, Value>,
    },
}

/// Content of a file before a change, as shown to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PriorContent {
    /// The file's content. `None` if the file could not be read, usually because it did not exist.
    Read(Option<String>),
    /// The client does not offer to read files, so the content is unknown.
    Unread,
}

pub(super) struct ToolOutcome {
    /// New content for the client. `None` keeps the content shown so far.
    pub(super) content: Option<Vec<ToolContent>>,
    pub(super) parts: Vec<Part>,
    pub(super) output: Value,
    pub(super) failed: bool,
}

impl ToolOutcome {
    pub(super) fn failed(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self {
            content: Some(vec![ToolContent::text(reason.clone())]),
            output: json!({"error": reason}),
            parts: vec![Part::text(reason)],
            failed: true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupt {
    Turn,
    Call,
    Deadline(Duration),
}

impl Interrupt {
    pub(super) fn message(self) -> String {
        match self {
            Self::Turn | Self::Call => "The user has cancelled the call.".to_owned(),
            Self::Deadline(limit) => {
                format!("The call did not end within {} s and was cancelled.", limit.as_secs())
            }
        }
    }
}

impl Turn {
    /// Runs a tool call of the model. A failed call gives a result for the model. Returns an error only if
    /// the turn is cancelled.
    pub(crate) async fn run_call(
        &mut self,
        toolbox: &Toolbox,
        call: &Call,
    ) -> Result<ToolResult, StopReason> {
        let done = self.try_call(toolbox, call).await?;
        let content = done.parts.into_iter().map(limit_part).collect();
        Ok(ToolResult { call: call.id.clone(), name: call.name.clone(), content, failed: done.failed })
    }

    /// Reports to client and model that a tool call was refused.
    pub(crate) async fn refuse_call(
        &mut self,
        toolbox: &Toolbox,
        call: &Call,
        reason: &str,
    ) -> Result<ToolResult, StopReason> {
        let done = self.show_failed(call, toolbox.action(&call.name), reason).await?;
        Ok(ToolResult { call: call.id.clone(), name: call.name.clone(), content: done.parts, failed: true })
    }

    async fn try_call(&mut self, toolbox: &Toolbox, call: &Call) -> Result<ToolOutcome, StopReason> {
        let Some(action) = toolbox.action(&call.name) else {
            return self.show_failed(call, None, "There is no tool of this name.").await;
        };
        let arguments = match serde_json::from_str::<Value>(&call.arguments) {
            Ok(Value::Object(arguments)) => arguments,
            Ok(_) => {
                return self.show_failed(call, Some(action), "The arguments must be a JSON object.").await;
            }
            Err(error) => {
                return self
                    .show_failed(call, Some(action), &format!("The arguments are not valid JSON: {error}."))
                    .await;
            }
        };
        if *action == ToolAction::UpdatePlan {
            return self.update_plan(&arguments).await;
        }
        let (server, tool) = match action {
            ToolAction::Server { server, tool, .. } => (Some(server.clone()), tool.clone()),
            _ => (None, call.name.clone()),
        };
        let id = new_id();
        let request = ToolRequest {
            session: self.session.id.to_string(),
            id: id.clone(),
            server,
            tool,
            name: call.name.clone(),
            arguments: Value::Object(arguments.clone()),
        };
        let gate = std::sync::Arc::clone(&self.agent.gate);
        if let ToolDecision::Deny(reason) = self.unless_cancelled(gate.check(&request)).await? {
            // A denied call was never announced to the client, so the client is shown nothing.
            return Ok(ToolOutcome::failed(format!("The call is not allowed: {reason}")));
        }
        match self.unless_cancelled(self.prepare(action, call, &arguments)).await? {
            Ok(mut job) => {
                // The announced id must be the one that the gate has checked.
                job.shown.id = id;
                self.run_job(job).await
            }
            Err(reason) => self.show_failed_as(id, call, Some(action), &reason).await,
        }
    }

    /// Announces a call and reports it as failed at once.
    async fn show_failed(
        &mut self,
        call: &Call,
        action: Option<&ToolAction>,
        reason: &str,
    ) -> Result<ToolOutcome, StopReason> {
        self.show_failed_as(new_id(), call, action, reason).await
    }

    async fn show_failed_as(
        &mut self,
        id: String,
        call: &Call,
        action: Option<&ToolAction>,
        reason: &str,
    ) -> Result<ToolOutcome, StopReason> {
        let done = ToolOutcome::failed(reason);
        let shown = ToolCall {
            id,
            title: call.name.clone(),
            name: call.name.clone(),
            kind: action.map_or(ToolKind::Other, ToolAction::kind),
            status: ToolStatus::Failed,
            content: done.content.clone().unwrap_or_default(),
            locations: Vec::new(),
            input: serde_json::from_str(&call.arguments).unwrap_or_else(|_| call.arguments.as_str().into()),
            output: Some(done.output.clone()),
        };
        self.updates.announce_call(&shown).await?;
        self.updates.record_call(shown);
        Ok(done)
    }

    async fn update_plan(&mut self, arguments: &Map<String, Value>) -> Result<ToolOutcome, StopReason> {
        let entries = arguments.get("entries").cloned().unwrap_or(Value::Null);
        match serde_json::from_value::<Vec<PlanEntry>>(entries) {
            Ok(entries) => {
                self.updates.send_plan(entries).await?;
                let parts = vec![Part::text("The plan is shown.")];
                Ok(ToolOutcome { content: None, parts, output: Value::Null, failed: false })
            }
            Err(error) => Ok(ToolOutcome::failed(format!("The plan is invalid: {error}"))),
        }
    }

    /// Prepares a call. Returns an error message for the model if it is invalid.
    async fn prepare(
        &self,
        action: &ToolAction,
        call: &Call,
        arguments: &Map<String, Value>,
    ) -> Result<ToolJob, String> {
        let dirs = self.session.state().dirs.clone();
        match action {
            ToolAction::ReadFile => super::files::prepare_read(&dirs, arguments),
            ToolAction::WriteFile => super::files::prepare_write(self, &dirs, arguments).await,
            ToolAction::EditFile => super::files::prepare_edit(self, &dirs, arguments).await,
            ToolAction::RunCommand => super::terminal::prepare(&dirs, arguments),
            ToolAction::Server { server, tool, title, read_only } => Ok(super::mcp_tools::prepare(
                call,
                (server.as_str(), tool.as_str(), title.as_deref()),
                *read_only,
                arguments,
            )),
            // Plans are handled earlier, by `try_call`.
            ToolAction::UpdatePlan => Err("A plan cannot be executed.".to_owned()),
        }
    }

    /// Announces a call, asks for permission, runs it, and reports the outcome.
    async fn run_job(&mut self, job: ToolJob) -> Result<ToolOutcome, StopReason> {
        let ToolJob { mut shown, grant, task } = job;
        self.updates.announce_call(&shown).await?;
        let guard = self.session.begin_call(&shown.id);
        if let Some(grant) = grant.as_ref().filter(|_| !self.is_decided_by_client(&task)) {
            let allowed = tokio::select! {
                biased;
                () = self.stop.stopped() => Err(Interrupt::Turn),
                () = guard.stop.stopped() => Err(Interrupt::Call),
                allowed = self.ask_permission(&shown, grant) => Ok(allowed),
            };
            match allowed {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => {
                    let done = ToolOutcome::failed(
                        "This call was not allowed, by the user or by a policy of the client.",
                    );
                    return self.finish_call(shown, done, ToolStatus::Failed).await;
                }
                Ok(Err(gone)) => return Err(gone.into()),
                Err(interrupt) => {
                    if interrupt == Interrupt::Call {
                        // The turn continues if only the call is cancelled.
                        self.updates.send_state("running").await?;
                    }
                    return self.finish_interrupted(shown, interrupt).await;
                }
            }
        }
        shown.status = ToolStatus::InProgress;
        self.updates.send_call_change(&shown, &[CallField::Status]).await?;
        match self.perform(&mut shown, task, &guard).await {
            Ok(done) => {
                let status = if done.failed { ToolStatus::Failed } else { ToolStatus::Completed };
                self.finish_call(shown, done, status).await
            }
            Err(interrupt) => self.finish_interrupted(shown, interrupt).await,
        }
    }

    /// Returns `true` if the client itself decides about the request for `task`. In this case the agent does
    /// not ask for permission: the user would be asked twice.
    fn is_decided_by_client(&self, task: &ToolTask) -> bool {
        match task {
            ToolTask::Run { .. } => self.authorizes,
            // The client that provides the server decides, even if another client sent the prompt.
            ToolTask::Server { server, .. } => {
                self.agent.client().can.authorizes
                    && self.session.state().servers.is_authorized_by_client(server)
            }
            ToolTask::Read { .. } | ToolTask::Write { .. } => false,
        }
    }

    async fn perform(
        &mut self,
        shown: &mut ToolCall,
        task: ToolTask,
        guard: &CallGuard,
    ) -> Result<ToolOutcome, Interrupt> {
        let limit = self.agent.limits.tool_timeout;
        let (turn, call) = (self.stop.stopped(), guard.stop.stopped());
        let stopped = async move {
            tokio::select! {
                biased;
                () = turn => Interrupt::Turn,
                () = call => Interrupt::Call,
            }
        };
        if let ToolTask::Run { program, args, cwd } = task {
            // Cancelling a command takes requests to its terminal, so the command is not simply dropped.
            return super::terminal::run(self, shown, (&program, &args, &cwd), stopped, limit).await;
        }
        let interrupt = async move {
            tokio::select! {
                biased;
                interrupt = stopped => interrupt,
                () = tokio::time::sleep(limit) => Interrupt::Deadline(limit),
            }
        };
        let work = async {
            match task {
                ToolTask::Read { path, line, limit } => {
                    super::files::perform_read(self, &path, line, limit).await
                }
                ToolTask::Write { path, content, seen } => {
                    super::files::perform_write(self, &path, &content, &seen).await
                }
                ToolTask::Server { server, tool, arguments } => {
                    super::mcp_tools::perform(self, &server, &tool, arguments).await
                }
                ToolTask::Run { .. } => ToolOutcome::failed("It is run in a terminal."),
            }
        };
        tokio::select! {
            biased;
            interrupt = interrupt => Err(interrupt),
            done = work => Ok(done),
        }
    }

    /// Reports a cancelled call. If the whole turn was cancelled, returns that as the error.
    async fn finish_interrupted(
        &mut self,
        shown: ToolCall,
        interrupt: Interrupt,
    ) -> Result<ToolOutcome, StopReason> {
        let mut done = ToolOutcome::failed(interrupt.message());
        if interrupt == Interrupt::Turn {
            // `None` keeps the content visible that the client has shown so far.
            done.content = None;
        }
        let status = if matches!(interrupt, Interrupt::Deadline(_)) {
            ToolStatus::Failed
        } else {
            ToolStatus::Cancelled
        };
        let done = self.finish_call(shown, done, status).await?;
        if interrupt == Interrupt::Turn { Err(StopReason::Cancelled) } else { Ok(done) }
    }

    async fn finish_call(
        &mut self,
        mut shown: ToolCall,
        done: ToolOutcome,
        status: ToolStatus,
    ) -> Result<ToolOutcome, StopReason> {
        shown.status = status;
        shown.output = Some(done.output.clone());
        let mut changed = vec![CallField::Status, CallField::Output];
        if let Some(content) = &done.content {
            shown.content.clone_from(content);
            changed.push(CallField::Content);
        }
        self.updates.send_call_change(&shown, &changed).await?;
        self.updates.record_call(shown);
        Ok(done)
    }
}

fn limit_part(part: Part) -> Part {
    match part {
        Part::Text { text } => Part::text(cut_middle(&text, MAX_RESULT_BYTES)),
        part => part,
    }
}

/// Returns a text argument, or an error message for the model.
pub(super) fn text_argument<'a>(arguments: &'a Map<String, Value>, name: &str) -> Result<&'a str, String> {
    match arguments.get(name) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("The argument `{name}` must be a string.")),
        None => Err(format!("The argument `{name}` is missing.")),
    }
}

/// Returns an optional positive number, or an error message for the model.
pub(super) fn number_argument(arguments: &Map<String, Value>, name: &str) -> Result<Option<u64>, String> {
    match arguments.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number @ 1..=0xffff_ffff) => Ok(Some(number)),
            _ => Err(format!("The argument `{name}` must be a positive integer.")),
        },
    }
}
