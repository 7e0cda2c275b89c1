//! What an agent can do, one step at a time.

use std::time::Duration;

use narrows_wire::RpcError;
use serde_json::Value;

/// What a script can react to before it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Start,
    Initialize,
    Authenticate,
    SessionNew,
    SessionLoad,
    SessionResume,
    SessionList,
    SessionClose,
    SessionDelete,
    SessionSetMode,
    SessionSetConfigOption,
}

impl Event {
    /// All of them, by the names they have in a script.
    pub(crate) const ALL: [(&str, Self); 11] = [
        ("start", Self::Start),
        ("initialize", Self::Initialize),
        ("authenticate", Self::Authenticate),
        ("session_new", Self::SessionNew),
        ("session_load", Self::SessionLoad),
        ("session_resume", Self::SessionResume),
        ("session_list", Self::SessionList),
        ("session_close", Self::SessionClose),
        ("session_delete", Self::SessionDelete),
        ("session_set_mode", Self::SessionSetMode),
        ("session_set_config_option", Self::SessionSetConfigOption),
    ];

    /// Whether it happens in a session, so that the agent can speak there.
    pub(crate) fn has_session(self) -> bool {
        !matches!(self, Self::Start | Self::Initialize | Self::Authenticate | Self::SessionList)
    }
}

/// One thing to do.
///
/// Texts may hold placeholders; they are filled in when the step is played.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Speak { voice: Voice, text: String, words: bool, every: Option<Duration> },
    Tool(Box<ToolCall>),
    ToolUpdate(Box<ToolCall>),
    Plan(Vec<PlanEntry>),
    Ask(Box<Ask>),
    Read { path: String, line: Option<u32>, limit: Option<u32> },
    Write { path: String, content: String },
    Terminal { command: Vec<String>, cwd: Option<String>, tool: Option<String> },
    Usage { used: u64, size: u64, cost: Option<Cost> },
    Notice { severity: &'static str, title: String, description: Option<String> },
    Commands(Vec<Command>),
    Title(String),
    Mode(String),
    Update(Value),
    Notify { method: String, params: Value },
    Request { method: String, params: Value },
    Pause(Duration),
    WaitCancel,
    Stop(String),
    Error(RpcError),
    Repeat { times: u64, steps: Vec<Step> },
    Reorder,
    DuplicateResponse,
    Fault(Fault),
}

/// What no agent should do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    Pollute(String),
    HalfLine(String),
    GiantLine(u64),
    BadUtf8,
    UnknownResponse,
    Flood { updates: u64, bytes: usize },
    Hang,
    Crash,
    Exit(u8),
    CloseStdout,
    IgnoreCancel(bool),
    IgnoreEof,
    IgnoreSigterm,
    Stderr(String),
    Orphan(Vec<String>),
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voice {
    /// The agent, aloud.
    Message,
    /// The agent, to itself.
    Thought,
}

/// A tool call, or what has changed of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    pub(crate) title: Option<String>,
    pub(crate) kind: Option<&'static str>,
    pub(crate) status: Option<&'static str>,
    pub(crate) path: Option<String>,
    pub(crate) line: Option<u32>,
    pub(crate) input: Option<Value>,
    pub(crate) output: Option<Value>,
    pub(crate) text: Option<String>,
    pub(crate) diff: Option<Diff>,
}

/// A change to a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Diff {
    pub(crate) path: String,
    /// Nothing for a new file.
    pub(crate) old: Option<String>,
    pub(crate) new: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlanEntry {
    pub(crate) content: String,
    pub(crate) priority: &'static str,
    pub(crate) status: &'static str,
}

/// A request for permission.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ask {
    pub(crate) tool: Option<String>,
    pub(crate) title: String,
    pub(crate) options: Vec<Choice>,
    pub(crate) on_allow: Vec<Step>,
    pub(crate) on_reject: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) kind: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cost {
    pub(crate) amount: f64,
    pub(crate) currency: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Command {
    pub(crate) name: String,
    pub(crate) description: String,
}

impl Step {
    /// Whether it speaks in a session, so that there must be one.
    pub(crate) fn needs_session(&self) -> bool {
        match self {
            Self::Speak { .. }
            | Self::Tool(_)
            | Self::ToolUpdate(_)
            | Self::Plan(_)
            | Self::Ask(_)
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::Terminal { .. }
            | Self::Usage { .. }
            | Self::Notice { .. }
            | Self::Commands(_)
            | Self::Title(_)
            | Self::Mode(_)
            | Self::Update(_)
            | Self::Fault(Fault::Flood { .. }) => true,
            Self::Notify { .. }
            | Self::Request { .. }
            | Self::Pause(_)
            | Self::WaitCancel
            | Self::Stop(_)
            | Self::Error(_)
            | Self::Repeat { .. }
            | Self::Reorder
            | Self::DuplicateResponse
            | Self::Fault(_) => false,
        }
    }

    /// Whether it makes sense in a turn only.
    pub(crate) fn needs_turn(&self) -> bool {
        matches!(self, Self::WaitCancel | Self::Stop(_))
    }

    /// Whether it is about an answer, so that there must be a request.
    pub(crate) fn needs_request(&self) -> bool {
        matches!(self, Self::Error(_) | Self::Reorder | Self::DuplicateResponse)
    }
}
