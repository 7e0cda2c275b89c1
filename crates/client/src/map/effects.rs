//! Effects of an update on the session, beside its events.

use std::sync::Arc;

use narrows_acp::stop::StopReason;

use super::fault::Fault;
use crate::event::Json;

/// An effect of an update on the session.
#[derive(Debug, Default, PartialEq)]
pub struct Effects {
    /// What the agent does now (v2).
    pub state: Option<AgentState>,
    /// A failure that stands in the place of an answer. The mapper has noted it for the end of the run.
    pub fault: Option<Box<Fault>>,
    /// Numbers for what the run costs.
    pub usage: Option<UsageReport>,
    /// What is different about the session.
    pub session: Option<SessionChange>,
    /// The tool call of which something was told; [`Mapper::call`](super::Mapper::call) has it while it is open.
    pub call: Option<Arc<str>>,
    /// The child session that the agent announces (v2).
    pub child: Option<String>,
    /// Why a gate in front of the agent has stopped the turn, if it says so.
    pub interrupted: Option<String>,
}

/// What the agent does (v2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentState {
    /// A message of the user is part of the session now.
    Accepted {
        /// The message.
        message_id: Option<Arc<str>>,
    },
    /// It works.
    Running,
    /// The agent waits for a person.
    RequiresAction,
    /// It has stopped, for this reason if it gave one.
    Idle(Option<StopReason>),
    /// An unknown state, which is not idle.
    Other(String),
}

/// Numbers for what the run costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsageReport {
    /// A `usage_update`: the context, and what the session has cost.
    Update(Json),
    /// The `usage` with which a turn ended.
    End(Json),
    /// What one call of the model took, in the `_meta` of a message.
    Call(Json),
}

/// What is different about a session: the whole update that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionChange {
    /// The commands there are (`availableCommands`).
    Commands(Json),
    /// The mode (`currentModeId`).
    Mode(Json),
    /// What can be set, all of it (`configOptions`).
    Options(Json),
    /// The title and when it was changed: what is not there stays, what is null goes.
    Info(Json),
}
