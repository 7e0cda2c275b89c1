//! A running agent and its sessions.

use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use narrows_acp::Version;
use narrows_acp::method::{
    AUTH_LOGIN, AUTHENTICATE, SESSION_DELETE, SESSION_FORK, SESSION_LIST, SESSION_LOAD, SESSION_NEW,
    SESSION_RESUME,
};
use narrows_base::sync::lock;
use narrows_link::Link;
use narrows_link::child::Process;
use narrows_process::{Ladder, Support};
use narrows_rpc::{CallError, Peer, Request};
use narrows_wire::{Code, RpcError};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use crate::agent::{self, Agent, AgentDescription, Offer, Running};
use crate::config::SessionConfig;
use crate::early_requests::{self, EarlyRequests};
use crate::error::{AgentOutput, ClientError, LoginKind, Problem, Stage, wants_login};
use crate::mcp::{Hosted, Limits as McpLimits};
use crate::message_loss::MessageLoss;
use crate::peer_json;
use crate::session::{self, Session};

/// A running agent and its sessions. Dropping the runtime ends the agent and its process tree.
#[derive(Debug)]
pub struct Runtime {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) agent: Agent,
    pub(crate) known: AgentDescription,
    pub(crate) offer: Offer,
    pub(crate) peer: Peer,
    pub(crate) early_requests: Arc<EarlyRequests>,
    pub(crate) mcp: Hosted,
    /// Sandbox support of this machine. Empty until the first probe.
    support: Arc<OnceCell<Support>>,
    process: StdMutex<Option<Process>>,
}

/// A session that an agent lists.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionSummary {
    pub session_id: String,
    pub cwd: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SessionStart {
    New,
    Resume(String),
    Fork(String),
}

/// Maximum number of pages of sessions that are read.
const MAX_LIST_PAGES: usize = 100;

impl Runtime {
    /// Starts and initializes `agent`. `offer` lists the client capabilities that the agent may use. Every
    /// request of the agent is still judged by the policy of its session.
    ///
    /// # Errors
    /// Returns an error if the agent cannot be started, does not answer, or has no protocol version in
    /// common.
    pub async fn start(agent: Agent, offer: Offer) -> Result<Self, ClientError> {
        let running = agent::start(&agent, offer).await?;
        Ok(Self::from_running(agent, offer, running))
    }

    /// Like [`start`](Self::start), for a running agent at the other end of `link`. Of its `spec`, only the
    /// environment is used.
    ///
    /// # Errors
    /// Returns an error if the agent does not answer, or has no protocol version in common.
    pub async fn connect(agent: Agent, link: Link, offer: Offer) -> Result<Self, ClientError> {
        let running = agent::initialize_over(link, &agent, offer).await?;
        Ok(Self::from_running(agent, offer, running))
    }

    fn from_running(agent: Agent, offer: Offer, running: Running) -> Self {
        let early_requests = Arc::new(EarlyRequests::default());
        let mcp = Hosted::new(McpLimits::default());
        let (peer, known) = (running.peer, running.known);
        let elsewhere = (mcp.clone(), peer.clone());
        let other = move |request: Request| other(&elsewhere.0, &elsewhere.1, request);
        tokio::spawn(early_requests::read(Arc::clone(&early_requests), running.inbox, other));
        let process = StdMutex::new(running.process);
        let support = Arc::default();
        Self { shared: Arc::new(Shared { agent, known, offer, peer, early_requests, mcp, support, process }) }
    }

    /// Returns the name that the user gave the agent.
    #[must_use]
    pub fn provider(&self) -> &str {
        &self.shared.agent.name
    }

    /// Returns the agent's answer to `initialize`.
    #[must_use]
    pub fn description(&self) -> &AgentDescription {
        &self.shared.known
    }

    /// Opens a session.
    ///
    /// # Errors
    /// Returns an error if the agent refuses, requires a login, does not answer in time or is lost.
    pub async fn open_session(&self, config: SessionConfig) -> Result<Session, ClientError> {
        session::begin(Arc::clone(&self.shared), config, SessionStart::New).await
    }

    /// Resumes a session of the agent. Its replayed history is sent to [`Session::events`].
    ///
    /// # Errors
    /// Returns an error if the agent cannot resume sessions, and the errors of [`Runtime::open_session`].
    pub async fn resume_session(&self, id: &str, config: SessionConfig) -> Result<Session, ClientError> {
        session::begin(Arc::clone(&self.shared), config, SessionStart::Resume(id.to_owned())).await
    }

    /// Opens a session with the history of another.
    ///
    /// # Errors
    /// Returns an error if the agent cannot fork sessions, and the errors of [`Runtime::open_session`].
    pub async fn fork_session(&self, id: &str, config: SessionConfig) -> Result<Session, ClientError> {
        session::begin(Arc::clone(&self.shared), config, SessionStart::Fork(id.to_owned())).await
    }

    /// Lists the agent's sessions. With `cwd`, lists only sessions in this directory. Sorts the sessions by
    /// last use, newest first, if the agent reports times.
    ///
    /// # Errors
    /// Returns an error if the agent cannot list sessions, and the errors of [`Runtime::open_session`].
    pub async fn list_sessions(&self, cwd: Option<&str>) -> Result<Vec<SessionSummary>, ClientError> {
        let shared = &self.shared;
        if !shared.known.can.list {
            let problem = Problem::Unsupported("the agent cannot list its sessions".to_owned());
            return Err(shared.failed(Stage::List, problem));
        }
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..MAX_LIST_PAGES {
            let mut params = Map::new();
            params.extend(cwd.map(|cwd| ("cwd".to_owned(), cwd.into())));
            params.extend(cursor.take().map(|cursor| ("cursor".to_owned(), cursor.into())));
            let limit = shared.agent.deadlines.small;
            let page: Value = shared.request(Stage::List, SESSION_LIST, &params.into(), limit).await?;
            all.extend(page["sessions"].as_array().into_iter().flatten().filter_map(listed));
            cursor = page.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
            if cursor.is_none() {
                break;
            }
        }
        // RFC 3339 times in one time zone sort as text. Without times the agent's order is kept.
        all.sort_by(|a, b| b.updated_at.cmp(&a.updated_at));
        Ok(all)
    }

    /// Deletes a session.
    ///
    /// # Errors
    /// Returns an error if the agent cannot delete sessions, and the errors of [`Runtime::open_session`].
    pub async fn delete_session(&self, id: &str) -> Result<(), ClientError> {
        let shared = &self.shared;
        if !shared.known.can.delete {
            let problem = Problem::Unsupported("the agent cannot delete sessions".to_owned());
            return Err(shared.failed(Stage::Delete, problem));
        }
        let limit = shared.agent.deadlines.small;
        shared.request(Stage::Delete, SESSION_DELETE, &json!({"sessionId": id}), limit).await?;
        Ok(())
    }

    /// Ends the agent and its process tree, with the default grace periods.
    pub async fn close(self) -> AgentOutput {
        self.close_with(Ladder::default()).await
    }

    /// Ends the agent and its process tree, with these grace periods.
    pub async fn close_with(self, ladder: Ladder) -> AgentOutput {
        self.shared.end(ladder).await
    }

    /// Returns the numbers of messages that were dropped so far.
    #[must_use]
    pub fn message_loss(&self) -> MessageLoss {
        self.shared.message_loss()
    }
}

/// Handles a request of the agent that has no session id.
fn other(mcp: &Hosted, peer: &Peer, request: Request) {
    let method = request.frame.method().unwrap_or_default();
    if Hosted::takes(&method) {
        return mcp.serve(request, peer, None);
    }
    request.responder.fail(&RpcError::new(Code::InvalidParams, "`sessionId` is missing"));
}

fn listed(value: &Value) -> Option<SessionSummary> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    Some(SessionSummary {
        session_id: text("sessionId")?,
        cwd: text("cwd").unwrap_or_default(),
        title: text("title"),
        updated_at: text("updatedAt"),
    })
}

impl Shared {
    pub(crate) fn failed(&self, stage: Stage, problem: impl Into<Problem>) -> ClientError {
        ClientError { agent_output: self.agent_output(), ..ClientError::new(stage, problem) }
    }

    pub(crate) fn agent_output(&self) -> AgentOutput {
        let process = lock(&self.process);
        agent::agent_output(&self.peer, process.as_ref())
    }

    pub(crate) fn message_loss(&self) -> MessageLoss {
        let (stats, link) = (self.peer.stats(), self.peer.link_stats());
        MessageLoss {
            too_long: link.too_long,
            unclaimed: stats.unclaimed,
            unreadable: stats.unreadable,
            nameless: stats.nameless,
            nameless_answers: stats.nameless_answers,
        }
    }

    /// Returns the cell with the sandbox support of this machine. The cell is empty until the first probe.
    pub(crate) fn support(&self) -> Arc<OnceCell<Support>> {
        Arc::clone(&self.support)
    }

    pub(crate) async fn end(&self, ladder: Ladder) -> AgentOutput {
        let process = lock(&self.process).take();
        match process {
            Some(process) => agent::end(&self.peer, process, ladder).await,
            None => {
                self.peer.close();
                agent::agent_output(&self.peer, None)
            }
        }
    }

    pub(crate) async fn request(
        &self,
        stage: Stage,
        method: &str,
        params: &Value,
        limit: Duration,
    ) -> Result<Value, ClientError> {
        let answer: Result<Box<RawValue>, CallError> = self.peer.request(method, params, limit).await;
        let read = |answer: Box<RawValue>| {
            peer_json::read(answer.get().as_bytes()).map_err(|error| CallError::Malformed(error.to_string()))
        };
        answer.and_then(read).map_err(|error| self.client_error(stage, error))
    }

    /// Converts the error of a request to the agent. If a login is required, the result lists the login
    /// methods.
    pub(crate) fn client_error(&self, stage: Stage, error: CallError) -> ClientError {
        let problem = match error {
            error if wants_login(&error) => Problem::LoginNeeded(self.known.logins.clone()),
            error => error.into(),
        };
        self.failed(stage, problem)
    }

    /// Logs in by the first login method that needs no user, because its environment variables are set.
    /// Returns `false` if there is no such method.
    pub(crate) async fn log_in(&self) -> Result<bool, ClientError> {
        let is_set = |how: &LoginKind| matches!(how, LoginKind::Environment { variables, missing } if missing.is_empty() && !variables.is_empty());
        let Some(login) = self.known.logins.iter().find(|login| is_set(&login.how)) else { return Ok(false) };
        tracing::info!(login = login.name, "logging in with environment variables");
        let method = match self.known.version {
            Version::V1 => AUTHENTICATE,
            Version::V2 => AUTH_LOGIN,
        };
        let params = json!({"methodId": login.id});
        self.request(Stage::Login, method, &params, self.agent.deadlines.login).await?;
        Ok(true)
    }

    /// Returns the protocol method that opens a session in the way of `start`. Fails if the agent does not
    /// support the method.
    pub(crate) fn method(
        &self,
        beginning: &SessionStart,
        replay: bool,
    ) -> Result<(Stage, &'static str), ClientError> {
        let can = &self.known.can;
        let unsupported = |stage, what: &str| {
            Err(self.failed(stage, Problem::Unsupported(format!("the agent cannot {what} sessions"))))
        };
        match beginning {
            SessionStart::New => Ok((Stage::Open, SESSION_NEW)),
            // In version 1, only loading replays the history.
            SessionStart::Resume(_) if can.load && (replay || !can.resume) => {
                Ok((Stage::Resume, SESSION_LOAD))
            }
            SessionStart::Resume(_) if can.resume => Ok((Stage::Resume, SESSION_RESUME)),
            SessionStart::Resume(_) => unsupported(Stage::Resume, "resume"),
            SessionStart::Fork(_) if can.fork => Ok((Stage::Fork, SESSION_FORK)),
            SessionStart::Fork(_) => unsupported(Stage::Fork, "fork"),
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("agent", &self.agent.name).finish_non_exhaustive()
    }
}
