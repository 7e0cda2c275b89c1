//! The steps of a script.

use std::time::Duration;

use narrows_wire::RpcError;
use serde_json::Value;

/// An event to which a script can react. The steps run before the response.
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
    /// All events, with their names in a script.
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

    /// Returns `true` if the event belongs to a session. Only then can steps send updates.
    pub(crate) fn has_session(self) -> bool {
        !matches!(self, Self::Start | Self::Initialize | Self::Authenticate | Self::SessionList)
    }
}

/// A step of a script. Its texts may contain placeholders, which are filled in when the step runs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Speak { speaker: Speaker, text: String, words: bool, every: Option<Duration> },
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

/// A fault: behavior that violates the protocol or breaks the output.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaker {
    Message,
    Thought,
}

/// A tool call, or the changed fields of one.
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

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Diff {
    pub(crate) path: String,
    /// Old text of the file; `None` for a new file.
    pub(crate) old: Option<String>,
    pub(crate) new: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlanEntry {
    pub(crate) content: String,
    pub(crate) priority: &'static str,
    pub(crate) status: &'static str,
}

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
    /// Returns `true` if the step sends updates, which need a session.
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

    /// Returns `true` if the step is only valid in a turn.
    pub(crate) fn needs_turn(&self) -> bool {
        matches!(self, Self::WaitCancel | Self::Stop(_))
    }

    /// Returns `true` if the step needs a request to respond to.
    pub(crate) fn needs_request(&self) -> bool {
        matches!(self, Self::Error(_) | Self::Reorder | Self::DuplicateResponse)
    }
}
