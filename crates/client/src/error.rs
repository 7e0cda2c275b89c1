//! How driving an agent can fail, and what was seen of it.

use std::fmt;
use std::time::Duration;

use narrows_acp::offer::NegotiationError;
use narrows_link::CloseReason;
use narrows_process::SpawnError;
use narrows_rpc::CallError;
use narrows_wire::{Code, RpcError};

/// How far it had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The agent was being started.
    Start,
    /// `initialize` was to be answered.
    Initialize,
    /// `authenticate` or `auth/login` was to be answered.
    Login,
    /// A session was being opened.
    Open,
    /// A session was being loaded or resumed.
    Resume,
    /// A session was being forked.
    Fork,
    /// The sessions were being listed.
    List,
    /// A session was being deleted.
    Delete,
    /// A model, a mode or another option was being set.
    Set,
    /// A turn was to begin, or was running.
    Turn,
}

/// A way to log in that an agent offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What it is.
    pub description: Option<String>,
    /// How it is done.
    pub how: LoginKind,
}

/// How to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginKind {
    /// The agent does it, with a browser perhaps.
    Agent,
    /// By setting variables in the agent's environment.
    Environment {
        /// Their names.
        variables: Vec<String>,
        /// Those that must be set and are not.
        missing: Vec<String>,
    },
    /// By starting the agent in a terminal, with these arguments.
    Terminal {
        /// The arguments.
        arguments: Vec<String>,
    },
    /// In a way that is not known here.
    Other,
}

/// What went wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum Problem {
    /// The process could not be started.
    Spawn {
        /// The agent in the words of the user.
        agent: String,
        /// Why.
        source: SpawnError,
    },
    /// The agent went away.
    Lost(CloseReason),
    /// The agent did not answer in time.
    Deadline(Duration),
    /// The agent answered with an error.
    Refused(RpcError),
    /// The agent wants the user to log in, in one of these ways.
    LoginNeeded(Vec<Login>),
    /// The agent's answer makes no sense.
    Malformed(String),
    /// There is no version both speak.
    Unfit(NegotiationError),
    /// Our own message could not be written.
    Unwritable(String),
    /// The agent cannot do what was asked for.
    Unsupported(String),
    /// What was given cannot be used.
    Invalid(String),
    /// A turn runs in the session already.
    Busy {
        /// Its id.
        run_id: String,
    },
    /// The session or the runtime has been closed from this side.
    Closed,
}

/// What was seen of an agent until it failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// How many lines came that were no messages.
    pub stray_lines: u64,
    /// The beginnings of the first of them, escaped.
    pub strays: Vec<String>,
    /// The last that the agent wrote to stderr, made safe to show.
    pub stderr: String,
}

/// What went wrong, when, and what was seen until then.
#[derive(Debug)]
pub struct ClientError {
    /// How far it had come.
    pub stage: Stage,
    /// What went wrong.
    pub problem: Box<Problem>,
    /// What was seen of the agent.
    pub seen: Seen,
}

impl ClientError {
    /// A problem at `stage`.
    pub(crate) fn new(stage: Stage, problem: impl Into<Problem>) -> Self {
        Self { stage, problem: Box::new(problem.into()), seen: Seen::default() }
    }

    /// A word for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match &*self.problem {
            Problem::Spawn { .. } => "cannot_start",
            Problem::Lost(_) => "agent_exited",
            Problem::Deadline(_) => "deadline",
            Problem::Refused(_) => "agent_error",
            Problem::LoginNeeded(_) => "login_needed",
            Problem::Malformed(_) => "malformed",
            Problem::Unfit(_) => "protocol_version",
            Problem::Unwritable(_) => "internal",
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
                f.write_str("the agent wants you to log in")?;
                let names: Vec<&str> = logins.iter().map(|login| login.name.as_str()).collect();
                if names.is_empty() { Ok(()) } else { write!(f, ": {}", names.join(", ")) }
            }
            Self::Malformed(reason) => write!(f, "the agent's answer makes no sense: {reason}"),
            Self::Unfit(unfit) => unfit.fmt(f),
            Self::Unwritable(reason) => write!(f, "cannot be written as JSON: {reason}"),
            Self::Unsupported(what) | Self::Invalid(what) => f.write_str(what),
            Self::Busy { run_id } => write!(f, "a turn is running in this session already ({run_id})"),
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
            CallError::Unwritable(reason) => Self::Unwritable(reason),
            CallError::Malformed(reason) => Self::Malformed(reason),
            other => Self::Malformed(other.to_string()),
        }
    }
}

/// Returns `true` if `error` says that a login is required.
pub(crate) fn wants_login(error: &CallError) -> bool {
    matches!(error, CallError::Refused(error) if error.is(Code::AuthRequired))
}
