//! The task of a session: reads what the agent sends, answers what it asks, and turns the rest into events.

use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use narrows_acp::Version;
use narrows_acp::method::{SESSION_CLOSE, SESSION_PROMPT, SESSION_UPDATE};
use narrows_acp::stop::StopReason;
use narrows_link::CloseReason;
use narrows_rpc::{CallError, Item, Request, Response};
use narrows_wire::{Code, Frame};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::active::{Active, GivingUp, Why};
use super::{Command, locked};
use crate::authority::Note;
use crate::error::{ClientError, Problem, Stage, wants_login};
use crate::event::{Json, Payload, PermissionResolved, RuntimeEvent};
use crate::feed::{Feed, feed};
use crate::input::{self, Block};
use crate::map::{AgentState, Effects, End, Fault, Mapper, Outcome, UsageReport};
use crate::mcp::Hosting;
use crate::run::{Canceller, Events, RunHandle, RunRequest};
use crate::runtime::Shared;
use crate::services::Services;
use crate::snapshot::Snapshot;
use crate::structured::Form;
use crate::turn::Turn;
use crate::usage::Meter;

/// How many messages are taken before anything else is looked at.
const AT_ONCE: usize = 256;

/// What the task hears beside the agent.
pub(super) struct Ears {
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) cancels: mpsc::Receiver<Arc<str>>,
    pub(super) notes: mpsc::Receiver<Note>,
    /// Requests that came before the session was known.
    pub(super) strays: mpsc::Receiver<Request>,
}

/// The task of a session.
pub(super) struct Actor {
    pub(super) shared: Arc<Shared>,
    pub(super) id: Arc<str>,
    inbox: narrows_rpc::Session,
    pub(super) mapper: Mapper,
    meter: Meter,
    pub(super) services: Arc<Services>,
    snapshot: Arc<Mutex<Snapshot>>,
    /// Where events go that belong to no run.
    listener: Feed<RuntimeEvent>,
    ears: Ears,
    cancels: mpsc::Sender<Arc<str>>,
    hosting: Option<Hosting>,
    pub(super) run: Option<Active>,
    /// Requests that are being answered.
    pub(super) tasks: JoinSet<Option<PermissionResolved>>,
    /// Events that are to be put into the feed.
    pub(super) events: Vec<RuntimeEvent>,
    /// How many frames had come when silence was looked at last, and when it ends.
    pub(super) silence: (u64, Instant),
}

/// What happened next.
enum Happened {
    Item(Option<Item>),
    Stray(Request),
    Command(Option<Command>),
    Cancel(Arc<str>),
    Note(Note),
    Answered(Option<PermissionResolved>),
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
        listener: Feed<RuntimeEvent>,
        ears: Ears,
        cancels: mpsc::Sender<Arc<str>>,
        hosting: Option<Hosting>,
    ) -> Self {
        let meter = Meter::new(shared.agent.counted);
        Self {
            shared,
            id,
            inbox,
            mapper,
            meter,
            services,
            snapshot,
            listener,
            ears,
            cancels,
            hosting,
            run: None,
            tasks: JoinSet::new(),
            events: Vec::new(),
            silence: (0, Instant::now()),
        }
    }

    /// Works until the session is closed or the agent is lost. `requests` came while it was being opened.
    pub(super) async fn run(mut self, requests: Vec<Request>) {
        for request in requests {
            self.request(request);
        }
        let closing = loop {
            self.flush();
            match self.happens().await {
                Happened::Room => {}
                Happened::Item(None) => {
                    self.lost().await;
                    break None;
                }
                Happened::Item(Some(item)) => self.take(item),
                Happened::Stray(request) => self.request(request),
                Happened::Note(note) => self.note(note),
                Happened::Answered(resolved) => self.resolved(resolved),
                Happened::Cancel(run_id) => {
                    if self.run.as_ref().is_some_and(|run| run_id.is_empty() || run.run_id == run_id) {
                        self.give_up(Why::Asked);
                    }
                }
                Happened::Deadline => {
                    if self.late().await {
                        break None;
                    }
                }
                Happened::Command(Some(Command::Run { request, reply })) => self.begin(*request, reply).await,
                Happened::Command(Some(Command::Rejected { option, value, reason, told })) => {
                    let payload = Payload::ConfigRejected { option, value, reason };
                    self.mapper.provider_event(payload, now_ms(), &mut self.events);
                    self.flush();
                    // Whoever has gone need not know.
                    let _ = told.send(());
                }
                Happened::Command(Some(Command::Close { reply })) => break Some(reply),
                // Nobody holds the session any more. What runs still comes to its end.
                Happened::Command(None) if self.run.is_none() => break None,
                Happened::Command(None) => {}
            }
        };
        self.close(closing).await;
    }

    /// What happens next. Nothing is read from the agent while nobody takes its events.
    async fn happens(&mut self) -> Happened {
        let deadline = self.deadline();
        let feed = self.run.as_ref().map_or(&self.listener, |run| &run.feed);
        let has_room = feed.has_room();
        let commands_end = self.ears.commands.is_closed() && self.run.is_some();
        tokio::select! {
            biased;
            command = self.ears.commands.recv(), if !commands_end => Happened::Command(command),
            Some(run_id) = self.ears.cancels.recv() => Happened::Cancel(run_id),
            Some(note) = self.ears.notes.recv() => Happened::Note(note),
            Some(answered) = self.tasks.join_next() => Happened::Answered(answered.unwrap_or_default()),
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => Happened::Deadline,
            () = feed.room(), if !has_room => Happened::Room,
            Some(request) = self.ears.strays.recv(), if has_room => Happened::Stray(request),
            item = self.inbox.recv(), if has_room => Happened::Item(item),
        }
    }

    /// The run that is active.
    pub(super) fn run_id(&self) -> Option<String> {
        self.run.as_ref().map(|run| run.run_id.to_string())
    }

    /// Hands out the events there are.
    fn flush(&mut self) {
        let feed = self.run.as_ref().map_or(&self.listener, |run| &run.feed);
        feed.put(&mut self.events);
    }

    /// Takes a message and those that have come behind it.
    fn take(&mut self, item: Item) {
        let now = now_ms();
        let mut next = Some(item);
        let mut left = AT_ONCE;
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

    fn notification(&mut self, frame: &Frame, now: u64) {
        let params = frame.params().unwrap_or(b"{}");
        if frame.method().as_deref() != Some(SESSION_UPDATE) {
            let method = frame.method().unwrap_or_default().into_owned();
            self.mapper.notification(&method, params, now, &mut self.events);
            return;
        }
        let Effects { state, fault, usage, session, call: _ } =
            self.mapper.update(params, now, &mut self.events);
        if session.is_some() {
            note_change(&mut locked(&self.snapshot), params);
        }
        match usage {
            Some(UsageReport::Update(update)) => self.meter.update(&update.value()),
            Some(UsageReport::End(usage)) => self.meter.end(&usage.value()),
            None => {}
        }
        let Some(run) = &mut self.run else { return };
        if let Some(fault) = fault {
            run.fault = Some(*fault);
        }
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

    /// Starts a run.
    async fn begin(&mut self, request: RunRequest, reply: oneshot::Sender<Result<RunHandle, ClientError>>) {
        let outcome = self.try_begin(request).await;
        // Whoever has gone has no use for it; the run goes on all the same.
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
        self.services.authority.renew();
        let prompt = match self.prompt(&blocks).await {
            Ok(prompt) => prompt,
            Err(error) => return Err(self.shared.explained(Stage::Turn, error)),
        };
        let run_id: Arc<str> = uuid::Uuid::now_v7().to_string().into();
        // What came before belongs to the session.
        self.flush();
        self.mapper.start(&run_id, now_ms(), &mut self.events);
        self.meter.begin();
        self.tell_failures();
        let (feed, reader) = feed(true);
        let (settle, result) = oneshot::channel();
        let now = Instant::now();
        self.run = Some(Active {
            run_id: Arc::clone(&run_id),
            feed,
            result: Some(settle),
            turn: Turn::new(self.shared.known.version, prompt),
            form,
            repaired: false,
            started: now,
            deadline: request.timeout.and_then(|limit| Some((now.checked_add(limit)?, limit))),
            giving_up: None,
            fault: None,
            stop_reason: None,
            data: None,
        });
        self.hear();
        let cancel = Canceller { run_id: Arc::clone(&run_id), cancels: self.cancels.clone() };
        Ok(RunHandle { run_id, events: Events { reader }, result, cancel })
    }

    /// Tells which MCP servers that run here have failed, each once.
    fn tell_failures(&mut self) {
        for failure in self.hosting.as_ref().map(Hosting::failures).unwrap_or_default() {
            let data = Json::write(&json!({"problem": failure.to_string()}));
            let payload = Payload::Other { name: "mcp.failed".to_owned(), data };
            self.mapper.provider_event(payload, now_ms(), &mut self.events);
        }
    }

    async fn prompt(&self, blocks: &[Block]) -> Result<u64, CallError> {
        let params = json!({"sessionId": &*self.id, "prompt": blocks});
        self.shared.peer.call_in(&self.inbox, SESSION_PROMPT, &params).await
    }

    /// The prompt was answered: the end of the turn in version 1, its beginning in version 2.
    fn answered(&mut self, outcome: Result<Response, CallError>) {
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
        let Answer { usage, meta } = response.read().unwrap_or_default();
        if let Some(usage) = usage {
            self.meter.end(&usage);
        }
        let fault = meta.and_then(|mut meta| meta.get_mut("narrows/error").map(Value::take));
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
                    .and_then(|result| StopReason::of_v1_result(result).map_err(|error| error.to_string()));
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
            // Whoever was told to stop may say so in any way.
            CallError::Refused(refused) if run.giving_up.is_some() || refused.is(Code::Cancelled) => {
                return self.stopped(Some(StopReason::Cancelled));
            }
            error if wants_login(error) => {
                let error = self.shared.explained(Stage::Turn, error.clone());
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
    fn stopped(&mut self, reason: Option<StopReason>) {
        let Some(run) = &mut self.run else { return };
        run.stop_reason = reason.as_ref().map(|reason| reason.name().to_owned());
        let is_done = matches!(reason, None | Some(StopReason::EndTurn)) && run.fault.is_none();
        let mut structured = None;
        if let Some(form) = run.form.as_ref().filter(|_| is_done && run.giving_up.is_none()) {
            match form.read(self.mapper.final_text().unwrap_or_default()) {
                Ok(value) => structured = Some(value),
                Err(problems) if !run.repaired => {
                    run.repaired = true;
                    let blocks = [Block::Text { text: form.repair(&problems) }];
                    return self.repair(&blocks);
                }
                Err(problems) => {
                    tracing::info!(?problems, "the answer does not have the form that was asked for");
                }
            }
        }
        let end = match run.giving_up {
            // Whoever gave up for a reason of ours hears that reason, unless the agent was done all the same.
            Some(GivingUp { why: why @ (Why::Timeout(_) | Why::Silence(_)), .. }) => why.end(),
            _ => End::Stopped(reason),
        };
        self.finish(end, structured);
    }

    /// Asks for the answer once more, in the same run.
    fn repair(&mut self, blocks: &[Block]) {
        self.mapper.end_messages(now_ms(), &mut self.events);
        let params = json!({"sessionId": &*self.id, "prompt": blocks});
        // The agent has just answered, so there is room; if there is none, it is not asked again.
        let asking = self.shared.peer.call_in(&self.inbox, SESSION_PROMPT, &params);
        let Some(Ok(prompt)) = futures_now(asking) else {
            return self.finish(End::Stopped(Some(StopReason::EndTurn)), None);
        };
        if let Some(run) = &mut self.run {
            run.turn = Turn::new(self.shared.known.version, prompt);
        }
    }

    /// Ends the run.
    pub(super) fn finish(&mut self, end: End, structured: Option<Value>) {
        let Some(run) = self.run.take() else { return };
        let outcome = Outcome {
            end,
            cancelling: run.giving_up.is_some(),
            usage: self.meter.finish(run.started.elapsed()),
            structured,
        };
        self.mapper.finish(outcome, now_ms(), &mut self.events);
        // Questions that nobody waits for any more.
        self.services.authority.cancel();
        run.settle(&mut self.events);
    }

    /// The agent is gone.
    async fn lost(&mut self) {
        let reason = self.shared.peer.closed().await;
        let seen = self.shared.seen();
        if let Some(run) = &mut self.run {
            run.data =
                Some(json!({"stderr": seen.stderr, "strayLines": seen.stray_lines, "strays": seen.strays}));
            let end = match run.giving_up {
                Some(GivingUp { why, .. }) => why.end(),
                None => End::Failed { message: gone(&reason), code: Some("agent_exited".to_owned()) },
            };
            self.finish(end, None);
        }
    }

    fn note(&mut self, note: Note) {
        let now = now_ms();
        match note {
            Note::Requested(requested) => {
                let payload = Payload::PermissionRequested(Box::new(requested));
                self.mapper.provider_event(payload, now, &mut self.events);
            }
            Note::Resolved(resolved) => {
                self.mapper.permission_resolved(resolved, now, &mut self.events);
                self.hear();
            }
        }
    }

    fn resolved(&mut self, resolved: Option<PermissionResolved>) {
        if let Some(resolved) = resolved {
            self.mapper.permission_resolved(resolved, now_ms(), &mut self.events);
            // The time in which somebody thought is not the agent's.
            self.hear();
        }
    }

    /// Ends what belongs to the session, and tells the agent if it can be told.
    async fn close(mut self, closing: Option<oneshot::Sender<()>>) {
        if self.run.is_some() {
            self.give_up(Why::Asked);
            self.finish(End::Cancelled, None);
        }
        self.services.authority.cancel();
        self.flush();
        self.shared.lobby.leave(&self.id);
        self.tasks.shutdown().await;
        self.services.terminals.release_all().await;
        if let Some(hosting) = self.hosting.take() {
            hosting.close().await;
        }
        if self.shared.known.can.close {
            let params = json!({"sessionId": &*self.id});
            let limit = self.shared.agent.deadlines.close;
            let closed: Result<Value, CallError> =
                self.shared.peer.request(SESSION_CLOSE, &params, limit).await;
            if let Err(error) = closed {
                tracing::debug!(%error, "the agent did not close the session");
            }
        }
        if let Some(closing) = closing {
            // Whoever has gone does not wait.
            let _ = closing.send(());
        }
    }
}

/// How an agent was lost.
fn gone(reason: &CloseReason) -> String {
    match reason {
        CloseReason::Exited { exit, .. } => format!("the agent ended in the middle of the turn: {exit}"),
        CloseReason::Eof => "the agent closed its output in the middle of the turn".to_owned(),
        CloseReason::Deaf => "the agent closed its input in the middle of the turn".to_owned(),
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

/// Notes what is different about a session.
pub(super) fn note_change(snapshot: &mut Snapshot, params: &[u8]) {
    #[derive(Deserialize)]
    struct Params {
        update: Value,
    }
    if let Ok(Params { update }) = serde_json::from_slice(params) {
        snapshot.updated(&update);
    }
}

/// The time, in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
