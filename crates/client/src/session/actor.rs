//! The task of a session: reads the agent's messages, answers its requests, and converts the rest to events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use narrows_acp::method::{SESSION_CLOSE, SESSION_UPDATE};
use narrows_rpc::{CallError, Item, Request};
use narrows_wire::Frame;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::active_run::{AbortReason, ActiveRun};
use super::client_run_commands::ClientRunCommands;
use super::mode_guard::ModeGuard;
use super::permission::{HeldRequest, SettledRequest};
use super::run_lifecycle::FirstPromptDelay;
use super::{Command, locked};
use crate::event::{Payload, RuntimeEvent};
use crate::event_queue::EventQueue;
use crate::map::{AgentState, Effects, Mapper, RunEnd, SessionChange, UsageReport};
use crate::mcp::Hosting;
use crate::message_loss::MessageLoss;
use crate::peer_json;
use crate::permissions::PermissionNotice;
use crate::runtime::Shared;
use crate::services::Services;
use crate::snapshot::Snapshot;
use crate::usage::Meter;

/// Maximum number of messages handled in a row before other inputs are checked.
const MAX_MESSAGE_BATCH: usize = 256;

/// Inputs of the session's task other than the agent's messages.
pub(super) struct ActorInputs {
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) cancels: mpsc::Receiver<Arc<str>>,
    pub(super) notices: mpsc::Receiver<PermissionNotice>,
    /// Requests that arrived before the session was open, and unknown requests without a session id.
    pub(super) strays: mpsc::Receiver<Item>,
}

pub(super) struct Actor {
    pub(super) shared: Arc<Shared>,
    pub(super) id: Arc<str>,
    pub(super) inbox: narrows_rpc::Session,
    pub(super) mapper: Mapper,
    pub(super) meter: Meter,
    pub(super) services: Arc<Services>,
    pub(super) snapshot: Arc<Mutex<Snapshot>>,
    pub(super) mode_guard: Arc<ModeGuard>,
    listener: EventQueue<RuntimeEvent>,
    pub(super) inputs: ActorInputs,
    pub(super) cancels: mpsc::Sender<Arc<str>>,
    pub(super) hosting: Option<Hosting>,
    /// Numbers of dropped messages that were already reported.
    pub(super) message_loss: MessageLoss,
    pub(super) run: Option<ActiveRun>,
    /// Delay before the first prompt. `None` once that prompt was sent.
    pub(super) first_prompt_delay: Option<FirstPromptDelay>,
    pub(super) tasks: JoinSet<Option<TaskOutcome>>,
    /// Permission requests of the agent that wait for a decision, by id.
    pub(super) held: BTreeMap<String, HeldRequest>,
    /// Ids of undecided requests for files, commands and MCP calls.
    pub(super) undecided: BTreeSet<String>,
    /// Commands that were allowed because the client will run them.
    pub(super) client_run_commands: ClientRunCommands,
    pub(super) children: BTreeSet<String>,
    pub(super) events: Vec<RuntimeEvent>,
    /// Number of messages at the last check for silence, and the deadline for the next message.
    pub(super) silence: (u64, Instant),
}

/// Maximum number of known child sessions of one session.
const MAX_CHILDREN: usize = 1000;

/// Result of a task that the session has started.
pub(super) enum TaskOutcome {
    /// A permission request was settled.
    SettledRequest(SettledRequest),
    /// The agent was asked to return to the mode that low access selected.
    ModeRestored { mode: String, restored: Result<(), String> },
}

enum ActorEvent {
    Item(Option<Item>),
    Command(Option<Command>),
    Cancel(Arc<str>),
    PermissionNotice(PermissionNotice),
    Answered(Option<TaskOutcome>),
    Deadline,
    Room,
}

impl Actor {
    #[expect(clippy::too_many_arguments, reason = "everything a session consists of")]
    pub(super) fn new(
        shared: Arc<Shared>,
        id: Arc<str>,
        inbox: narrows_rpc::Session,
        mapper: Mapper,
        services: Arc<Services>,
        snapshot: Arc<Mutex<Snapshot>>,
        mode_guard: Arc<ModeGuard>,
        listener: EventQueue<RuntimeEvent>,
        inputs: ActorInputs,
        cancels: mpsc::Sender<Arc<str>>,
        hosting: Option<Hosting>,
        message_loss: MessageLoss,
        first_prompt_delay: FirstPromptDelay,
    ) -> Self {
        let name = shared.known.info.as_ref().map_or("", |info| info.name.as_str());
        let meter = Meter::new(shared.agent.usage_scope.or_known(name));
        Self {
            shared,
            id,
            inbox,
            mapper,
            meter,
            services,
            snapshot,
            mode_guard,
            listener,
            inputs,
            cancels,
            hosting,
            message_loss,
            run: None,
            first_prompt_delay: Some(first_prompt_delay),
            tasks: JoinSet::new(),
            held: BTreeMap::new(),
            undecided: BTreeSet::new(),
            client_run_commands: ClientRunCommands::default(),
            children: BTreeSet::new(),
            events: Vec::new(),
            silence: (0, Instant::now()),
        }
    }

    /// Runs until the session is closed or the agent is lost. `requests` are those that arrived while the
    /// session was being opened.
    pub(super) async fn run(mut self, requests: Vec<Request>) {
        for request in requests {
            self.request(request);
        }
        let closing = loop {
            self.flush();
            match self.next_event().await {
                ActorEvent::Room => self.reset_silence_timer(),
                ActorEvent::Item(None) => {
                    self.lost().await;
                    break None;
                }
                ActorEvent::Item(Some(item)) => self.handle_item(item),
                ActorEvent::PermissionNotice(notice) => self.handle_notice(notice),
                ActorEvent::Answered(None) => {}
                ActorEvent::Answered(Some(outcome)) => self.task_ended(outcome),
                ActorEvent::Cancel(run_id) => {
                    if self.run.as_ref().is_some_and(|run| run_id.is_empty() || run.run_id == run_id) {
                        self.abort_run(AbortReason::Requested);
                    }
                }
                ActorEvent::Deadline => {
                    if self.handle_deadline().await {
                        break None;
                    }
                }
                ActorEvent::Command(Some(Command::Run { request, reply })) => {
                    self.begin(*request, reply).await;
                }
                ActorEvent::Command(Some(Command::Rejected { option, value, reason, told })) => {
                    let payload = Payload::ConfigRejected { option, value, reason };
                    self.mapper.provider_event(payload, now_ms(), &mut self.events);
                    self.flush();
                    let _ = told.send(());
                }
                ActorEvent::Command(Some(Command::Close { reply })) => break Some(reply),
                // The caller has dropped the session. An active run is still completed first.
                ActorEvent::Command(None) if self.run.is_none() => break None,
                ActorEvent::Command(None) => {}
            }
        };
        self.close(closing).await;
    }

    /// Waits for the next input. Reads nothing from the agent while the caller does not read events.
    async fn next_event(&mut self) -> ActorEvent {
        let event_queue = self.run.as_ref().map_or(&self.listener, |run| &run.event_queue);
        let has_room = event_queue.has_room();
        let deadline = self.deadline(has_room);
        let commands_end = self.inputs.commands.is_closed() && self.run.is_some();
        tokio::select! {
            biased;
            command = self.inputs.commands.recv(), if !commands_end => ActorEvent::Command(command),
            Some(run_id) = self.inputs.cancels.recv() => ActorEvent::Cancel(run_id),
            Some(note) = self.inputs.notices.recv() => ActorEvent::PermissionNotice(note),
            Some(answered) = self.tasks.join_next() => ActorEvent::Answered(answered.unwrap_or_default()),
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => ActorEvent::Deadline,
            () = event_queue.wait_for_room(), if !has_room => ActorEvent::Room,
            Some(stray) = self.inputs.strays.recv(), if has_room => ActorEvent::Item(Some(stray)),
            item = self.inbox.recv(), if has_room => ActorEvent::Item(item),
        }
    }

    pub(super) fn task_ended(&mut self, outcome: TaskOutcome) {
        match outcome {
            TaskOutcome::SettledRequest(settled) => self.settled(settled),
            TaskOutcome::ModeRestored { mode, restored } => self.mode_restored(&mode, restored),
        }
    }

    pub(super) fn run_id(&self) -> Option<String> {
        self.run.as_ref().map(|run| run.run_id.to_string())
    }

    pub(super) fn flush(&mut self) {
        let event_queue = self.run.as_ref().map_or(&self.listener, |run| &run.event_queue);
        event_queue.push_all(&mut self.events);
    }

    /// Handles a message and the messages queued after it.
    pub(super) fn handle_item(&mut self, item: Item) {
        let now = now_ms();
        let mut next = Some(item);
        let mut left = MAX_MESSAGE_BATCH;
        while let Some(item) = next {
            match item {
                Item::Notification(frame) => self.notification(&frame, now),
                Item::Request(request) => self.request(request),
                Item::Answer(answer) => {
                    if self.run.as_ref().is_some_and(|run| run.turn.prompt == answer.id) {
                        self.answered(answer.outcome);
                    }
                }
            }
            left -= 1;
            next = if left > 0 { self.inbox.try_recv() } else { None };
        }
    }

    pub(super) fn notification(&mut self, frame: &Frame, now: u64) {
        let params = frame.params().unwrap_or(b"{}");
        if frame.method().as_deref() != Some(SESSION_UPDATE) {
            let method = frame.method().unwrap_or_default().into_owned();
            self.mapper.notification(&method, params, now, &mut self.events);
            return;
        }
        if self.first_prompt_delay.as_ref().is_none_or(FirstPromptDelay::is_over) {
            // The replayed history ends before the first other message.
            self.mapper.set_replay(false);
        }
        let Effects { state, fault, usage, session, interrupted, child, call } =
            self.mapper.update(params, now, &mut self.events);
        if session.is_some() {
            record_change(&mut locked(&self.snapshot), params);
        }
        if matches!(session, Some(SessionChange::Mode(_) | SessionChange::Options(_))) {
            self.check_mode();
        }
        if let Some(call) = call {
            self.check_own_command(&call, now);
        }
        if let Some(child) = child.filter(|_| self.children.len() < MAX_CHILDREN) {
            self.children.insert(child);
        }
        if let Some(report) = usage {
            self.count_usage(&report);
        }
        let Some(run) = &mut self.run else { return };
        if let Some(fault) = fault {
            run.fault = Some(*fault);
        }
        run.interrupted = interrupted.or(run.interrupted.take());
        let end = match state {
            Some(AgentState::Accepted { .. }) => {
                run.turn.inserted();
                None
            }
            Some(AgentState::Running | AgentState::RequiresAction | AgentState::Other(_)) => {
                run.turn.running();
                None
            }
            Some(AgentState::Idle(reason)) => run.turn.idle(reason),
            None => None,
        };
        if let Some(reason) = end {
            self.stopped(reason);
        }
    }

    /// Counts a usage report. Ignores one with too many values.
    fn count_usage(&mut self, report: &UsageReport) {
        let (UsageReport::Update(json) | UsageReport::End(json) | UsageReport::Call(json)) = report;
        let Some(value) = json.bounded_value() else { return };
        match report {
            UsageReport::Update(_) => self.meter.update(&value),
            UsageReport::End(_) => self.meter.end(&value),
            UsageReport::Call(_) => self.meter.call(&value),
        }
    }

    /// Ends the services of the session, and notifies the agent that the session is closed if it supports
    /// that.
    async fn close(mut self, closing: Option<oneshot::Sender<()>>) {
        if self.run.is_some() {
            self.abort_run(AbortReason::Requested);
            self.finish(RunEnd::Cancelled, None);
        }
        self.settle_all();
        self.flush();
        self.shared.early_requests.close_session(&self.id);
        self.tasks.shutdown().await;
        self.services.terminals.release_all().await;
        if let Some(hosting) = self.hosting.take() {
            hosting.close().await;
        }
        if self.shared.known.can.close {
            let params = json!({"sessionId": &*self.id});
            let limit = self.shared.agent.deadlines.close;
            let closed: Result<IgnoredAny, CallError> =
                self.shared.peer.request(SESSION_CLOSE, &params, limit).await;
            if let Err(error) = closed {
                tracing::debug!(%error, "session not closed by the agent");
            }
        }
        if let Some(closing) = closing {
            let _ = closing.send(());
        }
    }
}

/// Applies a change of the session to the snapshot.
pub(super) fn record_change(snapshot: &mut Snapshot, params: &[u8]) {
    #[derive(Deserialize)]
    struct Params {
        update: Value,
    }
    if let Ok(Params { update }) = peer_json::read(params) {
        snapshot.updated(&update);
    }
}

pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
