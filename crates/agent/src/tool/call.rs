//! One call of a tool: checked, announced, allowed, run, and told to client and model.

use std::time::Duration;

use narrows_model::{Call, Part, ToolResult};
use serde_json::{Map, Value, json};

use super::permission::Grant;
use super::{Action, Toolbox};
use crate::compact::middle_cut;
use crate::dialect::Field;
use crate::gate::{ToolRequest, Verdict};
use crate::session::CallGuard;
use crate::shown::{PlanEntry, Status, ToolCall, ToolContent, ToolKind};
use crate::turn::{Reason, Turn};
use crate::voice::new_id;

/// How much text of a result the model is given.
const MAX_RESULT: usize = 128 << 10;

/// What is to be done for a call.
pub(super) struct Job {
    pub(super) shown: ToolCall,
    /// What the user must allow first, if anything.
    pub(super) grant: Option<Grant>,
    pub(super) task: Task,
}

/// The doing itself.
pub(super) enum Task {
    Read {
        path: String,
        line: Option<u64>,
        limit: Option<u64>,
    },
    /// `seen` is what the user was shown as the content before, if the client could tell.
    Write {
        path: String,
        content: String,
        seen: Seen,
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

/// What was known of a file when the user was shown what is to become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Its content, or that it could not be read, which is mostly that there was none.
    Read(Option<String>),
    /// Nothing: the client does not offer to read.
    Unread,
}

/// What came of it.
pub(super) struct Done {
    /// What the client is shown; `None` leaves what it was shown before.
    pub(super) content: Option<Vec<ToolContent>>,
    /// What the model is given.
    pub(super) parts: Vec<Part>,
    pub(super) output: Value,
    pub(super) failed: bool,
}

impl Done {
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

/// Why a call is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupt {
    /// With the whole turn.
    Turn,
    /// By itself.
    Call,
    Deadline(Duration),
}

impl Interrupt {
    pub(super) fn words(self) -> String {
        match self {
            Self::Turn | Self::Call => "The user has cancelled the call.".to_owned(),
            Self::Deadline(limit) => {
                format!("The call did not end within {} s and was given up.", limit.as_secs())
            }
        }
    }
}

impl Turn {
    /// Runs a call that the model wants. Whatever goes wrong is told to the model; only a turn that is given up ends.
    pub(crate) async fn call(&mut self, toolbox: &Toolbox, call: &Call) -> Result<ToolResult, Reason> {
        let done = self.try_call(toolbox, call).await?;
        let content = done.parts.into_iter().map(bounded).collect();
        Ok(ToolResult { call: call.id.clone(), name: call.name.clone(), content, failed: done.failed })
    }

    /// Tells the client and the model that a call is not run.
    pub(crate) async fn refuse_call(
        &mut self,
        toolbox: &Toolbox,
        call: &Call,
        reason: &str,
    ) -> Result<ToolResult, Reason> {
        let done = self.show_failed(call, toolbox.action(&call.name), reason).await?;
        Ok(ToolResult { call: call.id.clone(), name: call.name.clone(), content: done.parts, failed: true })
    }

    async fn try_call(&mut self, toolbox: &Toolbox, call: &Call) -> Result<Done, Reason> {
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
        if *action == Action::UpdatePlan {
            return self.update_plan(&arguments).await;
        }
        let (server, tool) = match action {
            Action::Server { server, tool, .. } => (Some(server.clone()), tool.clone()),
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
        if let Verdict::Deny(reason) = self.unless_stopped(gate.check(&request)).await? {
            // It never happened, so the client is shown nothing.
            return Ok(Done::failed(format!("The call is not allowed: {reason}")));
        }
        match self.unless_stopped(self.prepare(action, call, &arguments)).await? {
            Ok(mut job) => {
                // Whoever was asked about it knows it by this id.
                job.shown.id = id;
                self.carry_out(job).await
            }
            Err(reason) => self.show_failed_as(id, call, Some(action), &reason).await,
        }
    }

    /// Shows a call that cannot even begin.
    async fn show_failed(
        &mut self,
        call: &Call,
        action: Option<&Action>,
        reason: &str,
    ) -> Result<Done, Reason> {
        self.show_failed_as(new_id(), call, action, reason).await
    }

    async fn show_failed_as(
        &mut self,
        id: String,
        call: &Call,
        action: Option<&Action>,
        reason: &str,
    ) -> Result<Done, Reason> {
        let done = Done::failed(reason);
        let shown = ToolCall {
            id,
            title: call.name.clone(),
            name: call.name.clone(),
            kind: action.map_or(ToolKind::Other, Action::kind),
            status: Status::Failed,
            content: done.content.clone().unwrap_or_default(),
            locations: Vec::new(),
            input: serde_json::from_str(&call.arguments).unwrap_or_else(|_| call.arguments.as_str().into()),
            output: Some(done.output.clone()),
        };
        self.voice.announce(&shown).await?;
        self.voice.keep(shown);
        Ok(done)
    }

    async fn update_plan(&mut self, arguments: &Map<String, Value>) -> Result<Done, Reason> {
        let entries = arguments.get("entries").cloned().unwrap_or(Value::Null);
        match serde_json::from_value::<Vec<PlanEntry>>(entries) {
            Ok(entries) => {
                self.voice.plan(entries).await?;
                let parts = vec![Part::text("The plan is shown.")];
                Ok(Done { content: None, parts, output: Value::Null, failed: false })
            }
            Err(error) => Ok(Done::failed(format!("The plan cannot be read: {error}"))),
        }
    }

    /// What a call comes to, or what the model is told is wrong with it.
    async fn prepare(
        &self,
        action: &Action,
        call: &Call,
        arguments: &Map<String, Value>,
    ) -> Result<Job, String> {
        let place = self.session.state().place.clone();
        match action {
            Action::ReadFile => super::files::read(&place, arguments),
            Action::WriteFile => super::files::write(self, &place, arguments).await,
            Action::EditFile => super::files::edit(self, &place, arguments).await,
            Action::RunCommand => super::terminal::prepare(&place, arguments),
            Action::Server { server, tool, title, read_only } => Ok(super::servers::prepare(
                call,
                (server.as_str(), tool.as_str(), title.as_deref()),
                *read_only,
                arguments,
            )),
            // It is no job; see `try_call`.
            Action::UpdatePlan => Err("A plan is not run.".to_owned()),
        }
    }

    /// Announces a job, asks for it, runs it, and tells what came of it.
    async fn carry_out(&mut self, job: Job) -> Result<Done, Reason> {
        let Job { mut shown, grant, task } = job;
        self.voice.announce(&shown).await?;
        let guard = self.session.begin_call(&shown.id);
        if let Some(grant) = grant.as_ref().filter(|_| !self.is_decided_by_client(&task)) {
            let allowed = tokio::select! {
                biased;
                () = self.stop.stopped() => Err(Interrupt::Turn),
                () = guard.stop.stopped() => Err(Interrupt::Call),
                allowed = self.allowed(&shown, grant) => Ok(allowed),
            };
            match allowed {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => {
                    let done =
                        Done::failed("This call was not allowed, by the user or by a policy of the client.");
                    return self.conclude(shown, done, Status::Failed).await;
                }
                Ok(Err(gone)) => return Err(gone.into()),
                Err(interrupt) => {
                    if interrupt == Interrupt::Call {
                        // Nobody is waited for any more, and the turn goes on.
                        self.voice.state("running").await?;
                    }
                    return self.interrupted(shown, interrupt).await;
                }
            }
        }
        shown.status = Status::InProgress;
        self.voice.change(&shown, &[Field::Status]).await?;
        match self.perform(&mut shown, task, &guard).await {
            Ok(done) => {
                let status = if done.failed { Status::Failed } else { Status::Completed };
                self.conclude(shown, done, status).await
            }
            Err(interrupt) => self.interrupted(shown, interrupt).await,
        }
    }

    /// Returns `true` if the client decides about the request that carries out `task`. Asking before it would ask
    /// the user twice, and without the knowledge of the sandbox that the client runs the command in.
    fn is_decided_by_client(&self, task: &Task) -> bool {
        match task {
            Task::Run { .. } => self.authorizes,
            // Whichever client has sent the prompt: the call goes to the one that has the server.
            Task::Server { server, .. } => {
                self.agent.client().can.authorizes
                    && self.session.state().servers.is_authorized_by_client(server)
            }
            Task::Read { .. } | Task::Write { .. } => false,
        }
    }

    async fn perform(
        &mut self,
        shown: &mut ToolCall,
        task: Task,
        guard: &CallGuard,
    ) -> Result<Done, Interrupt> {
        let limit = self.agent.limits.tool;
        let (turn, call) = (self.stop.stopped(), guard.stop.stopped());
        let stopped = async move {
            tokio::select! {
                biased;
                () = turn => Interrupt::Turn,
                () = call => Interrupt::Call,
            }
        };
        if let Task::Run { program, args, cwd } = task {
            // What runs in a terminal is ended there, which takes more than to stop listening.
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
                Task::Read { path, line, limit } => {
                    super::files::perform_read(self, &path, line, limit).await
                }
                Task::Write { path, content, seen } => {
                    super::files::perform_write(self, &path, &content, &seen).await
                }
                Task::Server { server, tool, arguments } => {
                    super::servers::perform(self, &server, &tool, arguments).await
                }
                Task::Run { .. } => Done::failed("It is run in a terminal."),
            }
        };
        tokio::select! {
            biased;
            interrupt = interrupt => Err(interrupt),
            done = work => Ok(done),
        }
    }

    /// Tells that a call was given up, and gives up the turn if that was the reason.
    async fn interrupted(&mut self, shown: ToolCall, interrupt: Interrupt) -> Result<Done, Reason> {
        let mut done = Done::failed(interrupt.words());
        if interrupt == Interrupt::Turn {
            // What it has to show of its work so far stays.
            done.content = None;
        }
        let status =
            if matches!(interrupt, Interrupt::Deadline(_)) { Status::Failed } else { Status::Cancelled };
        let done = self.conclude(shown, done, status).await?;
        if interrupt == Interrupt::Turn { Err(Reason::Cancelled) } else { Ok(done) }
    }

    /// Tells how a call ended.
    async fn conclude(&mut self, mut shown: ToolCall, done: Done, status: Status) -> Result<Done, Reason> {
        shown.status = status;
        shown.output = Some(done.output.clone());
        let mut changed = vec![Field::Status, Field::Output];
        if let Some(content) = &done.content {
            shown.content.clone_from(content);
            changed.push(Field::Content);
        }
        self.voice.change(&shown, &changed).await?;
        self.voice.keep(shown);
        Ok(done)
    }
}

fn bounded(part: Part) -> Part {
    match part {
        Part::Text { text } => Part::text(middle_cut(&text, MAX_RESULT)),
        part => part,
    }
}

/// A text among the arguments of a call, or what the model is told.
pub(super) fn text<'a>(arguments: &'a Map<String, Value>, name: &str) -> Result<&'a str, String> {
    match arguments.get(name) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("The argument `{name}` must be a string.")),
        None => Err(format!("The argument `{name}` is missing.")),
    }
}

/// A number from 1 on among the arguments of a call, if it is there.
pub(super) fn number(arguments: &Map<String, Value>, name: &str) -> Result<Option<u64>, String> {
    match arguments.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number @ 1..=0xffff_ffff) => Ok(Some(number)),
            _ => Err(format!("The argument `{name}` must be a whole number from 1 on.")),
        },
    }
}
