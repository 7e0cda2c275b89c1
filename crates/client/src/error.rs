//! Errors of the client, with the last output of the agent.

use std::fmt;
use std::time::Duration;

use narrows_acp::offer::NegotiationError;
use narrows_link::CloseReason;
use narrows_process::SpawnError;
use narrows_rpc::CallError;
use narrows_wire::{Code, RpcError};

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Start,
    Initialize,
    /// The client waited for the answer to `authenticate` or `auth/login`.
    Login,
    Open,
    Resume,
    Fork,
    List,
    Delete,
    Set,
    Turn,
}

/// A login method that an agent offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    pub id: String,
    pub name: String,
    pub description: Option<String>,
    pub how: LoginKind,
}

/// Procedure of a login method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginKind {
    /// The agent logs in itself, for example with a browser.
    Agent,
    /// The user sets environment variables of the agent.
    Environment {
        variables: Vec<String>,
        missing: Vec<String>,
    },
    /// The user starts the agent in a terminal with these arguments.
    Terminal {
        arguments: Vec<String>,
    },
    Other,
}

/// The cause of a failure.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    Spawn {
        agent: String,
        source: SpawnError,
    },
    Lost(CloseReason),
    /// The agent did not answer within this time.
    Deadline(Duration),
    /// The agent answered with an error.
    Refused(RpcError),
    /// The agent requires a login by one of these methods.
    LoginNeeded(Vec<Login>),
    Malformed(String),
    /// Client and agent have no common protocol version.
    NoCommonVersion(NegotiationError),
    NotSerializable(String),
    Unsupported(String),
    /// The caller passed an invalid parameter.
    Invalid(String),
    Busy {
        run_id: String,
    },
    /// The client has closed the session or the runtime.
    Closed,
}

/// Last output of an agent, to explain a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentOutput {
    /// Number of stdout lines that were not messages.
    pub stray_lines: u64,
    /// Beginnings of the first stdout lines that were not messages, escaped.
    pub strays: Vec<String>,
    /// Last stderr lines of the agent, escaped.
    pub stderr: String,
}

/// A failed request to the runtime or the agent: the step, the cause, and the agent's last output.
#[derive(Debug)]
pub struct ClientError {
    pub stage: Stage,
    pub problem: Box<Problem>,
    pub agent_output: AgentOutput,
}

impl ClientError {
    pub(crate) fn new(stage: Stage, problem: impl Into<Problem>) -> Self {
        Self { stage, problem: Box::new(problem.into()), agent_output: AgentOutput::default() }
    }

    /// Returns a stable code for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match &*self.problem {
            Problem::Spawn { .. } => "cannot_start",
            Problem::Lost(_) => "agent_exited",
            Problem::Deadline(_) => "deadline",
            Problem::Refused(_) => "agent_error",
            Problem::LoginNeeded(_) => "login_needed",
            Problem::Malformed(_) => "malformed",
            Problem::NoCommonVersion(_) => "protocol_version",
            Problem::NotSerializable(_) => "internal",
            Problem::Unsupported(_) => "unsupported",
            Problem::Invalid(_) => "invalid_input",
            Problem::Busy { .. } => "SESSION_BUSY",
            Problem::Closed => "closed",
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let doing = match self.stage {
            Stage::Start => "starting the agent",
            Stage::Initialize => "initialize",
            Stage::Login => "logging in",
            Stage::Open => "opening a session",
            Stage::Resume => "resuming a session",
            Stage::Fork => "forking a session",
            Stage::List => "listing sessions",
            Stage::Delete => "deleting a session",
            Stage::Set => "setting an option",
            Stage::Turn => "the turn",
        };
        write!(f, "{doing}: {}", self.problem)
    }
}

impl std::error::Error for ClientError {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spawn { agent, source } => write!(f, "{agent}: {source}"),
            Self::Lost(reason) => reason.fmt(f),
            Self::Deadline(limit) => write!(f, "no answer within {limit:?}"),
            Self::Refused(error) => error.fmt(f),
            Self::LoginNeeded(logins) => {
                f.write_str("the agent requires a login")?;
                let names: Vec<&str> = logins.iter().map(|login| login.name.as_str()).collect();
                if names.is_empty() { Ok(()) } else { write!(f, ": {}", names.join(", ")) }
            }
            Self::Malformed(reason) => write!(f, "invalid answer from the agent: {reason}"),
            Self::NoCommonVersion(unfit) => unfit.fmt(f),
            Self::NotSerializable(reason) => write!(f, "cannot be written as JSON: {reason}"),
            Self::Unsupported(what) | Self::Invalid(what) => f.write_str(what),
            Self::Busy { run_id } => write!(f, "a run is already active in this session ({run_id})"),
            Self::Closed => f.write_str("it has been closed"),
        }
    }
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(error) => Self::Refused(error),
            CallError::Deadline(limit) => Self::Deadline(limit),
            CallError::Lost { reason, .. } => Self::Lost(reason),
            CallError::NotSerializable(reason) => Self::NotSerializable(reason),
            CallError::Malformed(reason) => Self::Malformed(reason),
            other => Self::Malformed(other.to_string()),
        }
    }
}

/// Returns `true` if `error` means that a login is required.
pub(crate) fn wants_login(error: &CallError) -> bool {
    matches!(error, CallError::Refused(error) if error.is(Code::AuthRequired))
}
