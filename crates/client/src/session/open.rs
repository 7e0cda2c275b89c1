//! Opens a new, resumed or forked session, and applies its settings.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use narrows_acp::Version;
use narrows_acp::method::{SESSION_LOAD, SESSION_RESUME, SESSION_UPDATE};
use narrows_policy::Access;
use narrows_rpc::{CallError, Item, Request, Response};
use narrows_wire::{Code, RpcError};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::actor::Actor;
use super::mode_guard::ModeGuard;
use super::restrict::restrict;
use super::run_lifecycle::FirstPromptDelay;
use super::{Rejection, Session};
use crate::config::SessionConfig;
use crate::early_requests::EARLY_REQUEST_TIMEOUT;
use crate::error::{ClientError, Problem, Stage, wants_login};
use crate::event::RuntimeEvent;
use crate::event_queue::event_queue;
use crate::host::command_sandbox::CommandSandbox;
use crate::host::files::{Files, Limits as FileLimits, Roots};
use crate::host::protected::ProtectedFiles;
use crate::host::terminal::{Limits as TerminalLimits, Terminals};
use crate::map::{Mapper, Settings};
use crate::mcp::{self, Gate, HostServer, HostedServerKind, Hosting};
use crate::peer_json;
use crate::permissions::PermissionService;
use crate::runtime::{SessionStart, Shared};
use crate::services::{HostedCallAuthorizer, McpServices, RequestBudget, Services};
use crate::snapshot::Snapshot;

const MAX_QUEUED_REQUESTS: usize = 16;

pub(crate) async fn begin(
    shared: Arc<Shared>,
    config: SessionConfig,
    beginning: SessionStart,
) -> Result<Session, ClientError> {
    let (stage, method) = shared.method(&beginning, config.replay)?;
    let failed = |problem: Problem| shared.failed(stage, problem);
    if !config.additional_dirs.is_empty() && !shared.known.can.additional_directories {
        let words = "the agent does not support additional directories";
        return Err(failed(Problem::Unsupported(words.to_owned())));
    }
    let roots = Roots::open(&config.roots()).map_err(|error| failed(Problem::Invalid(error.to_string())))?;
    let mut paths: Vec<_> = roots.paths().map(std::path::Path::to_owned).collect();
    // Relative paths start in the first root.
    let first = config.cwd.canonicalize().unwrap_or_else(|_| config.cwd.clone());
    paths.sort_by_key(|path| *path != first);
    let files = ProtectedFiles::new(Arc::clone(&config.policy), &paths, &config.git_settings);
    let command_sandbox = match config.sandbox {
        true => CommandSandbox::new(files.clone(), shared.support()),
        false => CommandSandbox::none(files.clone()),
    };
    // The sandbox is determined while the agent opens the session. Only the built-in tools of version 2 need
    // it that early. For other requests, it is determined before each command.
    let confining = command_sandbox.clone();
    let looking = (shared.known.version == Version::V2)
        .then(|| tokio::spawn(async move { confining.prepare().await.1 }));
    let (notes, told) = mpsc::channel(MAX_QUEUED_REQUESTS);
    let permissions = Arc::new(PermissionService::new(
        Arc::clone(&config.policy),
        paths,
        files,
        config.on_permission.clone(),
        shared.agent.deadlines.permission,
        notes,
    ));
    let services = Arc::new(Services {
        permissions: Arc::clone(&permissions),
        files: Files::new(Arc::new(roots), FileLimits::default()),
        terminals: Terminals::new(TerminalLimits::default()),
        environment: config.environment.clone(),
        command_sandbox,
        cwd: config.cwd.clone(),
        budget: RequestBudget::new(),
        commands_wanted: AtomicU64::new(0),
    });
    let SessionServers { descriptors, names, hosting } =
        servers(&shared, &config, &services).map_err(failed)?;
    let params = params(&config, &beginning, descriptors, &shared);
    let opening = shared.early_requests.begin_opening();
    let message_loss = shared.message_loss();
    let mut mapper = Mapper::new(
        shared.known.version,
        &shared.agent.name,
        Settings { raw: config.raw, ..Settings::default() },
    );
    mapper.set_servers(names);
    let mut early = Vec::new();
    let mut requests = Vec::new();
    let mut snapshot = Snapshot::default();
    let mut replay = Replay {
        shared: &shared,
        mapper: &mut mapper,
        events: &mut early,
        requests: &mut requests,
        snapshot: &mut snapshot,
        log_in: config.log_in,
    };
    let asked_at = Instant::now();
    let (id, inbox) = match &beginning {
        SessionStart::Resume(id) => {
            let mut inbox =
                shared.peer.session(id).map_err(|error| failed(Problem::Invalid(error.to_string())))?;
            replay.mapper.set_session(id);
            replay.mapper.set_replay(true);
            let mut answer = replay.resume(&mut inbox, stage, method, &params).await;
            // Some agents announce `session/resume` without having it, so loading is tried as well.
            if method == SESSION_RESUME && shared.known.can.load && answer.as_ref().is_err_and(is_unknown) {
                answer = replay.resume(&mut inbox, stage, SESSION_LOAD, &params).await;
            }
            replay.snapshot.opened(&answer?);
            (id.clone(), inbox)
        }
        SessionStart::New | SessionStart::Fork(_) => {
            let answer = send_open_request(&shared, stage, method, &params, config.log_in).await?;
            let id = answer.get("sessionId").and_then(Value::as_str);
            let id =
                id.ok_or_else(|| failed(Problem::Malformed("it names no session".to_owned())))?.to_owned();
            let mut inbox = shared
                .peer
                .session(&id)
                .map_err(|_| failed(Problem::Malformed(format!("session {id:?} is already open"))))?;
            replay.mapper.set_session(&id);
            match &beginning {
                // The replayed history may contain outdated settings, and the answer has the current ones.
                SessionStart::Fork(_) => {
                    replay.mapper.set_replay(true);
                    replay.take_held(&mut inbox);
                    replay.snapshot.opened(&answer);
                }
                _ => {
                    replay.snapshot.opened(&answer);
                    replay.take_held(&mut inbox);
                }
            }
            (id, inbox)
        }
    };
    // History may follow the answer. The session's task detects where the history ends.
    let first_prompt_delay = FirstPromptDelay::new(asked_at.elapsed());
    let strays = shared.early_requests.open_session(&id);
    drop(opening);
    let id: Arc<str> = id.into();
    permissions.set_session(&id);
    if let Some(looking) = looking {
        permissions.set_confined(looking.await.unwrap_or_default());
    }
    let snapshot = Arc::new(Mutex::new(snapshot));
    let mode_guard = Arc::new(ModeGuard::default());
    let (commands, commanded) = mpsc::channel(MAX_QUEUED_REQUESTS);
    let (cancels, cancelled) = mpsc::channel(MAX_QUEUED_REQUESTS);
    let (listener, events) = event_queue::<RuntimeEvent>(false);
    listener.push_all(&mut early);
    let actor = Actor::new(
        Arc::clone(&shared),
        Arc::clone(&id),
        inbox,
        mapper,
        Arc::clone(&services),
        Arc::clone(&snapshot),
        Arc::clone(&mode_guard),
        listener,
        super::actor::ActorInputs { commands: commanded, cancels: cancelled, notices: told, strays },
        cancels.clone(),
        hosting,
        message_loss,
        first_prompt_delay,
    );
    tokio::spawn(actor.run(requests));
    let session = Session { id, shared, commands, cancels, snapshot, mode_guard, events: Some(events) };
    set_up(&session, &config).await?;
    Ok(session)
}

struct SessionServers {
    descriptors: Vec<Value>,
    /// Names of the user's servers that the client hosts.
    names: Vec<String>,
    hosting: Option<Hosting>,
}

/// Assigns the MCP servers of a session, and starts the hosted ones.
fn servers(
    shared: &Arc<Shared>,
    config: &SessionConfig,
    services: &Arc<Services>,
) -> Result<SessionServers, Problem> {
    let offer = shared.offer;
    let offer = mcp::Offer { read: offer.read_files, write: offer.write_files, run: offer.run_commands };
    let through = Arc::new(McpServices(Arc::clone(services)));
    let offers_any = offer.read || offer.write || offer.run;
    let host = (shared.known.version == Version::V2 && offers_any)
        .then(|| HostServer::new(offer, Arc::clone(&through) as Arc<_>, through as Arc<_>));
    let plan = mcp::plan(shared.known.version, &shared.known.can, &config.mcp_servers, host)
        .map_err(|error| Problem::Unsupported(error.to_string()))?;
    let descriptors = plan.descriptors;
    if plan.hosted.is_empty() {
        return Ok(SessionServers { descriptors, names: Vec::new(), hosting: None });
    }
    let names = plan.hosted.iter().filter_map(|hosted| match &hosted.kind {
        HostedServerKind::Server(server) => Some(server.name.clone()),
        HostedServerKind::Host(_) => None,
    });
    let names = names.collect();
    let gate: Arc<dyn Gate> = Arc::new(HostedCallAuthorizer(Arc::clone(&services.permissions)));
    let options = narrows_mcp::Options::new(&config.cwd, config.environment.clone());
    Ok(SessionServers { descriptors, names, hosting: Some(shared.mcp.host(plan.hosted, options, &gate)) })
}

fn params(config: &SessionConfig, beginning: &SessionStart, servers: Vec<Value>, shared: &Shared) -> Value {
    let mut params = Map::new();
    if let SessionStart::Resume(id) | SessionStart::Fork(id) = beginning {
        params.insert("sessionId".to_owned(), id.as_str().into());
    }
    params.insert("cwd".to_owned(), json!(config.cwd));
    // In version 1, `mcpServers` is required even if it is empty.
    params.insert("mcpServers".to_owned(), servers.into());
    if !config.additional_dirs.is_empty() {
        params.insert("additionalDirectories".to_owned(), json!(config.additional_dirs));
    }
    if config.replay && matches!(beginning, SessionStart::Resume(_)) && shared.known.version == Version::V2 {
        params.insert("replayFrom".to_owned(), json!({"type": "start"}));
    }
    params.into()
}

/// Sends the request that opens a session. If the agent requires a login that needs no user, logs in and
/// repeats the request once.
async fn send_open_request(
    shared: &Shared,
    stage: Stage,
    method: &str,
    params: &Value,
    log_in: bool,
) -> Result<Value, ClientError> {
    let limit = shared.agent.deadlines.open;
    match shared.peer.request(method, params, limit).await {
        Err(error) if log_in && wants_login(&error) && shared.log_in().await? => {
            shared.request(stage, method, params, limit).await
        }
        answer => answer.map_err(|error| shared.client_error(stage, error)),
    }
}

/// A session that is being resumed, with its messages so far.
struct Replay<'a> {
    shared: &'a Shared,
    mapper: &'a mut Mapper,
    events: &'a mut Vec<RuntimeEvent>,
    requests: &'a mut Vec<Request>,
    snapshot: &'a mut Snapshot,
    /// `true` if the request may be repeated once after a login.
    log_in: bool,
}

/// Maximum number of messages that are handled in a row before a prompt. Without this limit, an agent that
/// never stops sending could block the prompt.
pub(super) const MAX_HELD_MESSAGES: usize = 65_536;

/// Maximum number of replayed events that are kept for the caller.
const MAX_REPLAYED_EVENTS: usize = 2048;

impl Replay<'_> {
    /// Sends the request that resumes a session, and reads the replayed history, which has no effects.
    async fn resume(
        &mut self,
        inbox: &mut narrows_rpc::Session,
        stage: Stage,
        method: &str,
        params: &Value,
    ) -> Result<Value, ClientError> {
        loop {
            let outcome = self.answer(inbox, stage, method, params).await?;
            match outcome {
                Err(error) if self.log_in && wants_login(&error) && self.shared.log_in().await? => {
                    self.log_in = false;
                }
                outcome => return outcome.map_err(|error| self.shared.client_error(stage, error)),
            }
        }
    }

    async fn answer(
        &mut self,
        inbox: &mut narrows_rpc::Session,
        stage: Stage,
        method: &str,
        params: &Value,
    ) -> Result<Result<Value, CallError>, ClientError> {
        let limit = self.shared.agent.deadlines.resume;
        let until = Instant::now() + limit;
        let late = || self.shared.failed(stage, Problem::Deadline(limit));
        let asking = timeout_at(until, self.shared.peer.call_in(inbox, method, params)).await;
        let id = asking.map_err(|_| late())?.map_err(|error| self.shared.failed(stage, error))?;
        // Requests of the agent are refused meanwhile, because the agent may wait for the answers.
        let mut early_deadline = None;
        loop {
            let Ok(item) = timeout_at(early_deadline.unwrap_or(until).min(until), inbox.recv()).await else {
                if early_deadline.take().is_some_and(|early_deadline| early_deadline < until) {
                    self.refuse();
                    continue;
                }
                self.shared.peer.cancel(id);
                return Err(late());
            };
            match item {
                Some(Item::Notification(frame)) => self.update(&frame),
                Some(Item::Request(request)) => {
                    self.requests.push(request);
                    early_deadline.get_or_insert_with(|| Instant::now() + EARLY_REQUEST_TIMEOUT);
                }
                Some(Item::Answer(answer)) if answer.id == id => {
                    let read = |response: Response| {
                        let raw = Some(response.raw()).filter(|raw| *raw != b"null").unwrap_or(b"{}");
                        peer_json::read(raw).map_err(|error| CallError::Malformed(error.to_string()))
                    };
                    return Ok(answer.outcome.and_then(read));
                }
                Some(Item::Answer(_)) => {}
                None => {
                    let reason = self.shared.peer.closed().await;
                    return Err(self.shared.failed(stage, Problem::Lost(reason)));
                }
            }
        }
    }

    /// Reads messages that arrived before the client knew the session id: initial updates, or the history of
    /// a forked session.
    fn take_held(&mut self, inbox: &mut narrows_rpc::Session) {
        for item in std::iter::from_fn(|| inbox.try_recv()).take(MAX_HELD_MESSAGES) {
            match item {
                Item::Notification(frame) => self.update(&frame),
                Item::Request(request) => self.requests.push(request),
                Item::Answer(_) => {}
            }
        }
    }

    /// Refuses the requests that the agent has sent: no session exists yet that could judge them.
    fn refuse(&mut self) {
        for request in self.requests.drain(..) {
            request.responder.fail(&RpcError::new(Code::NotFound, "the session is not open yet"));
        }
    }

    fn update(&mut self, frame: &narrows_wire::Frame) {
        let params = frame.params().unwrap_or(b"{}");
        if frame.method().as_deref() != Some(SESSION_UPDATE) {
            let method = frame.method().unwrap_or_default();
            return self.mapper.notification(&method, params, super::actor::now_ms(), self.events);
        }
        let effects = self.mapper.update(params, super::actor::now_ms(), self.events);
        if effects.session.is_some() {
            super::actor::record_change(self.snapshot, params);
        }
        // The oldest events are dropped, because a history can be long.
        if self.events.len() > 2 * MAX_REPLAYED_EVENTS {
            self.events.drain(..self.events.len() - MAX_REPLAYED_EVENTS);
        }
    }
}

/// Returns `true` if the agent answered that the method is unknown.
fn is_unknown(error: &ClientError) -> bool {
    matches!(&*error.problem, Problem::Refused(error) if error.is(Code::MethodNotFound))
}

/// Sets the model, then the mode, then the reasoning effort, because a model may change the available
/// options.
async fn set_up(session: &Session, config: &SessionConfig) -> Result<(), ClientError> {
    if let Some(model) = &config.model
        && let Err(rejection) = session.set_model(model).await
    {
        session.report_rejection(&rejection).await;
        if config.require_model {
            let Rejection { value, reason, .. } = rejection;
            let words = format!("model {value:?} is not available: {reason}");
            return Err(session.shared.failed(Stage::Set, Problem::Unsupported(words)));
        }
    }
    if let Some(mode) = &config.mode
        && let Err(rejection) = session.set_mode(mode).await
    {
        session.report_rejection(&rejection).await;
    }
    let is_low = config.policy.access() == Access::Low;
    let is_free = config.restrict_mode && config.mode.is_none();
    if is_free && is_low && !session.shared.agent.acts_through_client {
        restrict(session).await;
    }
    if let Some(effort) = &config.reasoning_effort
        && session.snapshot().option("thought_level").is_some()
        && let Err(rejection) = session.set("thought_level", &effort_of(&session.snapshot(), effort)).await
    {
        session.report_rejection(&rejection).await;
    }
    Ok(())
}

/// Returns the available level nearest to `wanted`.
fn effort_of(snapshot: &Snapshot, wanted: &str) -> String {
    let has =
        |level: &str| snapshot.option("thought_level").is_some_and(|option| option.value(level).is_some());
    match wanted {
        "xhigh" if !has("xhigh") => "high".to_owned(),
        "none" if !has("none") => {
            let lowest = ["minimal", "low"].into_iter().find(|level| has(level));
            lowest.unwrap_or("none").to_owned()
        }
        wanted => wanted.to_owned(),
    }
}
