//! Effects of an update on the session, in addition to its events.

use std::sync::Arc;

use narrows_acp::stop::StopReason;

use super::fault::Fault;
use crate::event::Json;

/// Effects of an update on the session.
#[derive(Debug, Default, PartialEq)]
pub struct Effects {
    pub state: Option<AgentState>,
    /// A failure that the agent reports instead of an answer. The mapper reports it at the end of the run.
    pub fault: Option<Box<Fault>>,
    pub usage: Option<UsageReport>,
    pub session: Option<SessionChange>,
    /// Id of the updated tool call. [`Mapper::call`](super::Mapper::call) returns the call while it is open.
    pub call: Option<Arc<str>>,
    /// Id of a child session that the agent announces (v2).
    pub child: Option<String>,
    /// Reason why a gate in front of the agent has stopped the turn.
    pub interrupted: Option<String>,
}

/// State of the agent (v2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentState {
    Accepted {
        message_id: Option<Arc<str>>,
    },
    Running,
    RequiresAction,
    /// The agent has stopped, with its stop reason.
    Idle(Option<StopReason>),
    Other(String),
}

/// A usage report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsageReport {
    /// A `usage_update`: the context size, and the cost of the session.
    Update(Json),
    /// The `usage` at the end of a turn.
    End(Json),
    /// Usage of one model call, from the `_meta` of a message.
    Call(Json),
}

/// A change of a session, with the whole update that reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionChange {
    /// Change of the available commands (`availableCommands`).
    Commands(Json),
    /// Change of the current mode (`currentModeId`).
    Mode(Json),
    /// Change of the options (`configOptions`), with all options.
    Options(Json),
    /// Change of the session's title and time. Missing members are unchanged, null members are cleared.
    Info(Json),
}
