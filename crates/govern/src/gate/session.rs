//! What is known of each session, each call, and each request that matters here.

use std::path::PathBuf;

use bytes::Bytes;
use serde_json::Value;

use super::api::{AuditSeq, GateTime, SessionSlot};
use super::child_sessions::Lineage;
use super::mcp::McpList;
use super::retained::{ByteCharge, ChargedMap, RetainedBytes};
use super::terminals::CallTerminal;
use super::{Gate, MAX_OPEN, Raw};
use crate::audit_events::ApprovalOutcome;
use crate::authorizer::{CallDecision, CountedCall};
use crate::call::{Call, Digest};
use crate::identity::Principal;
use crate::lifecycle::OperatorState;

/// How much of what is said about a call is kept until it is decided.
pub(super) const MAX_HELD_BYTES: usize = 1 << 20;

/// How the keys of calls begin that nobody tells of, and of those that are told of by ids which begin so.
const RESERVED: [&str; 5] = ["request ", "turn ", "change ", "call ", "terminal "];

/// The key of a call that an agent tells of by this id. An agent may choose any: it is never the key of anything else.
pub(super) fn call_key(id: &str) -> Box<str> {
    match RESERVED.iter().any(|reserved| id.starts_with(reserved)) {
        true => format!("call {id}").into(),
        false => id.into(),
    }
}

/// The key of what a request of the agent's wants.
pub(super) fn request_key(id: &[u8]) -> Box<str> {
    format!("request {}", String::from_utf8_lossy(id)).into()
}

/// What is known of a session.
#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) operator_state: OperatorState,
    /// The client may use it: it has made it, or opened one that is its own.
    pub(super) is_admitted: bool,
    /// Those above it, if the agent announced it as a child.
    pub(super) lineage: Option<Lineage>,
    pub(super) roots: Vec<PathBuf>,
    /// Its turns that have not ended, by the ids of their prompts.
    pub(super) prompts: Vec<Raw>,
    /// Whether one runs that has been answered already, as in version 2.
    pub(super) is_running: bool,
    /// How many requests replay its history just now.
    pub(super) replays: u32,
    /// Each in a place of its own: there may be many, and they are large.
    pub(super) calls: ChargedMap<Box<str>, Box<CallRecord>>,
    /// The terminals that are parts of calls, by their ids.
    pub(super) terminals: ChargedMap<Box<str>, CallTerminal>,
    /// Its MCP servers in the client: their ids and their names.
    pub(super) servers: Vec<(String, String)>,
    /// Calls that were decided before they are told of, by their ids.
    pub(super) decided_calls: Vec<(Box<str>, CallRecord, ByteCharge)>,
    /// Why its turn was stopped by us, if it was.
    pub(super) halted: Option<TurnHalt>,
    /// What records that.
    pub(super) halt_seq: Option<AuditSeq>,
    /// When its agent is ended if it has not stopped.
    pub(super) stop_deadline: Option<GateTime>,
    /// When something was last heard of the turn that goes on, if one does.
    pub(super) last_activity: Option<GateTime>,
    /// How many requests of its agent were refused: each may let one call fail.
    pub(super) refusals: u32,
    /// For its name, directories and servers.
    pub(super) charge: ByteCharge,
    /// `None`: the sessions of all gates together are not limited, or it is a child.
    pub(super) slot: Option<SessionSlot>,
}

/// Why a turn was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TurnHalt {
    pub(super) reason: String,
    /// Because of a deadline: that is a fault, and not a refusal.
    pub(super) is_late: bool,
}

/// A request of the client's that the agent has not answered.
#[derive(Debug)]
pub(super) struct PendingAtAgent {
    pub(super) kind: ClientRequestKind,
    pub(super) method: Box<str>,
    /// Until when, if there is a bound.
    pub(super) due: Option<GateTime>,
    /// It was answered by us.
    pub(super) is_late: bool,
}

/// A call and what was decided about it.
#[derive(Debug, Default)]
pub(super) struct CallRecord {
    pub(super) call: Call,
    /// What was decided about it as it is now.
    pub(super) decision: Option<CallDecision>,
    /// A digest of where its paths led then.
    pub(super) resolved_digest: Option<Digest>,
    pub(super) outcome: ApprovalOutcome,
    /// The digest of the call that somebody has approved.
    pub(super) approved_digest: Option<Digest>,
    /// A permission request about it was received: an approval answers one.
    pub(super) has_request: bool,
    /// What it has taken of the budgets of its clauses.
    pub(super) counted: Option<CountedCall>,
    /// What the agent said about it before it was decided.
    pub(super) held_lines: Vec<Bytes>,
    /// What came of it is recorded.
    pub(super) is_recorded: bool,
    /// Who has agreed to it.
    pub(super) approvers: Vec<Principal>,
    /// Whether what our own agent then wants of the client is a part of it.
    pub(super) covers_effects: bool,
    /// What the agent has asked about: then it was told, or will be, whether it may.
    pub(super) told_digest: Option<Digest>,
    /// The terminal that is a part of it: the first that it showed, or that ran its command. There is no second one.
    pub(super) terminal: Option<Box<str>>,
    /// What it makes of a file, as a digest, once that is known.
    pub(super) edit_result: Option<Digest>,
}

impl CallRecord {
    /// Whether it can be forgotten: if it is told of again it is decided again.
    fn is_over(&self) -> bool {
        self.is_recorded || matches!(self.outcome, ApprovalOutcome::Refused(_))
    }

    /// Notes that its agent knows what is said of it as it is now.
    pub(super) fn set_told(&mut self) {
        self.told_digest = Some(self.call.digest());
    }

    /// Returns `true` if it was not allowed and tried all the same by an agent that was not told so of it as it is now.
    pub(super) fn was_tried_untold(&self) -> bool {
        !self.outcome.is_given()
            && self.call.was_tried()
            && self.told_digest.is_none_or(|told| told != self.call.digest())
    }

    /// Notes that this was decided about it as it is now: an approval holds for that.
    pub(super) fn set_outcome(&mut self, outcome: ApprovalOutcome) {
        self.call.set_allowed(outcome.is_given());
        self.approved_digest = outcome.is_given().then(|| self.call.digest());
        self.outcome = outcome;
    }

    /// Notes that a permission request about it was received. After the first of them nobody has agreed to it any more:
    /// an approval answers one. Returns `true` if it has to be judged again: this is not the first, or the agent has shown
    /// another text since it was judged.
    pub(super) fn set_asked(&mut self) -> bool {
        let is_changed = self.call.set_asked();
        let is_first = !std::mem::replace(&mut self.has_request, true);
        if !is_first {
            (self.approved_digest, self.counted) = (None, None);
            self.approvers.clear();
        }
        is_changed || !is_first
    }

    /// Notes that its agent was granted it as it is now, or that it runs.
    pub(super) fn mark_used(&mut self) {
        if let Some(counted) = &mut self.counted {
            counted.set_used();
        }
    }

    /// Estimates the memory that it takes.
    pub(super) fn retained_bytes(&self) -> usize {
        let held: usize = self.held_lines.iter().map(|line| size_of::<Bytes>() + line.len()).sum();
        let terminal = self.terminal.as_ref().map_or(0, |terminal| terminal.len());
        size_of::<Self>() + self.call.retained_bytes() + held + terminal
    }

    /// Keeps what was said about it until it is decided. Tells whether there was room for it.
    pub(super) fn hold_line(&mut self, line: &[u8]) -> bool {
        let held: usize = self.held_lines.iter().map(Bytes::len).sum();
        if held + line.len() > MAX_HELD_BYTES {
            return false;
        }
        self.held_lines.push(Bytes::copy_from_slice(line));
        true
    }
}

/// Where a session lives, and what its client has for it.
#[derive(Debug, Default)]
pub(super) struct SessionSetup {
    pub(super) roots: Vec<PathBuf>,
    pub(super) servers: Vec<(String, String)>,
    /// `None` if the session has one, or needs none.
    pub(super) slot: Option<SessionSlot>,
}

impl SessionSetup {
    /// Estimates the memory that it takes.
    pub(super) fn retained_bytes(&self) -> usize {
        place_bytes(&self.roots, &self.servers)
    }
}

fn place_bytes(roots: &[PathBuf], servers: &[(String, String)]) -> usize {
    let roots: usize = roots.iter().map(|root| size_of::<PathBuf>() + root.as_os_str().len()).sum();
    let servers = servers.iter().map(|(id, name)| size_of::<(String, String)>() + id.len() + name.len());
    roots + servers.sum::<usize>()
}

/// A request of the client's at the agent.
#[derive(Debug)]
pub(super) enum ClientRequestKind {
    Initialize,
    /// Opens a session that gets its name by the answer.
    Create {
        place: SessionSetup,
    },
    /// Opens a session of this name, and may replay its history.
    Open {
        session: Box<str>,
        replays: bool,
    },
    Prompt {
        session: Box<str>,
    },
    Close {
        session: Box<str>,
    },
    /// Which sessions there are.
    List,
    /// Anything that changes nothing here.
    Other,
}

impl ClientRequestKind {
    /// Estimates the memory that it takes.
    pub(super) fn retained_bytes(&self) -> usize {
        let place = if let Self::Create { place } = self { place.retained_bytes() } else { 0 };
        size_of::<PendingAtAgent>() + place + self.session().map_or(0, str::len)
    }

    /// The session it is about, if that has a name.
    pub(super) fn session(&self) -> Option<&str> {
        match self {
            Self::Open { session, .. } | Self::Prompt { session } | Self::Close { session } => Some(session),
            Self::Initialize | Self::Create { .. } | Self::List | Self::Other => None,
        }
    }
}

/// A request of the agent's, or of our own, at the client.
#[derive(Debug)]
pub(super) enum PendingAtClient {
    /// Something that was allowed, whose outcome is recorded.
    Service { session: Box<str>, call: Box<str>, method: Box<str>, due: GateTime },
    /// The end of something that was allowed, which takes as long as it takes.
    TerminalWait { session: Box<str> },
    /// It was answered by us.
    AlreadyAnswered { session: Box<str> },
    /// A question about this hearing.
    Approval(u64),
    /// A connection to the MCP server of this id.
    McpConnect { server: String },
    /// A list of what an MCP server has: in its answer stands only what may be read.
    McpList { session: Option<Box<str>>, server: String, list: &'static McpList },
    /// Anything else that was shown: its answer is passed back.
    PassThrough { method: Box<str> },
}

impl PendingAtClient {
    /// Estimates the memory that it takes.
    pub(super) fn retained_bytes(&self) -> usize {
        let text = match self {
            Self::Service { session, call, method, .. } => session.len() + call.len() + method.len(),
            Self::TerminalWait { session } | Self::AlreadyAnswered { session } => session.len(),
            Self::Approval(_) => 0,
            Self::McpConnect { server } => server.len(),
            Self::McpList { session, server, .. } => session.as_ref().map_or(0, |it| it.len()) + server.len(),
            Self::PassThrough { method } => method.len(),
        };
        size_of::<Self>() + text
    }
}

/// The options of a permission request that can be chosen here.
#[derive(Clone, Debug, Default)]
pub(super) struct PermissionOptions {
    pub(super) allow: Option<String>,
    pub(super) reject: Option<String>,
}

impl PermissionOptions {
    /// Of those that an agent offers, only what holds once.
    pub(super) fn parse_object(offered: &Value) -> Self {
        let options = offered.as_array().map(Vec::as_slice).unwrap_or_default();
        let of = |kind: &str| {
            let mut found = options.iter().filter(|option| option["kind"] == kind);
            let id = found.next()?.get("optionId")?.as_str()?;
            // One that stands there twice may mean either.
            let times = options.iter().filter(|option| option["optionId"] == id).count();
            (times == 1).then(|| id.to_owned())
        };
        Self { allow: of("allow_once"), reject: of("reject_once") }
    }
}

/// Where the answer to a hearing goes.
#[derive(Debug)]
pub(super) enum ApprovalOrigin {
    /// The agent has asked for permission.
    Permission { id: Raw, options: PermissionOptions },
    /// The agent wants something of the client.
    Service { line: Bytes, id: Raw },
    /// Our own agent asks.
    ToolCheck { number: u64 },
    /// The client wants a turn of an operator that asks for each.
    Turn { line: Bytes, id: Raw },
    /// The client wants its session run in another way.
    SessionConfig { line: Bytes, id: Raw },
}

impl ApprovalOrigin {
    /// Estimates the memory of the message that it keeps.
    pub(super) fn retained_bytes(&self) -> usize {
        match self {
            Self::Permission { id, options } => {
                let options = [&options.allow, &options.reject].into_iter().flatten();
                id.len() + options.map(String::len).sum::<usize>()
            }
            Self::Service { line, id } | Self::Turn { line, id } | Self::SessionConfig { line, id } => {
                line.len() + id.len()
            }
            Self::ToolCheck { .. } => 0,
        }
    }

    /// Returns `true` if the agent has asked.
    pub(super) fn is_of_agent(&self) -> bool {
        matches!(self, Self::Permission { .. } | Self::Service { .. } | Self::ToolCheck { .. })
    }

    /// Whether the agent does not know that somebody is asked.
    pub(super) fn is_unannounced(&self) -> bool {
        matches!(self, Self::Service { .. } | Self::ToolCheck { .. })
    }
}

impl Gate {
    /// Returns the call of this key in a session, which is new if it was not known. The caller has made sure that there is
    /// room for it, and charges it once it has content.
    pub(super) fn call_record_or_new(&mut self, session: &str, key: &str) -> Option<&mut Box<CallRecord>> {
        let session = self.sessions.get_mut(session)?;
        if !session.calls.contains_key(key) {
            session.add_call(&self.retained, key, CallRecord::default());
        }
        session.calls.get_mut(key)
    }
}

impl Session {
    pub(super) fn set_up(&mut self, place: SessionSetup) {
        self.roots = place.roots;
        self.servers = place.servers;
        self.slot = place.slot.or(self.slot.take());
    }

    /// Whether there is room for a call of this id: those that are over give way.
    pub(super) fn has_room_for(&mut self, id: &str) -> bool {
        if self.calls.len() < MAX_OPEN || self.calls.contains_key(id) {
            return true;
        }
        self.forget_calls_over();
        self.calls.len() < MAX_OPEN
    }

    /// Forgets calls that have ended or were refused.
    pub(super) fn forget_calls_over(&mut self) {
        self.calls.retain(|_, record| !record.is_over());
    }

    /// Adds a call. The caller has made sure that there is room for it.
    pub(super) fn add_call(&mut self, budget: &RetainedBytes, key: &str, record: CallRecord) {
        let bytes = key.len() + record.retained_bytes();
        self.calls.insert(budget, key.into(), record.into(), bytes);
    }

    /// Estimates the memory of its directories and servers.
    pub(super) fn retained_bytes(&self) -> usize {
        size_of::<Self>() + place_bytes(&self.roots, &self.servers)
    }

    /// Whether a turn is under way.
    pub(super) fn is_working(&self) -> bool {
        self.is_running || !self.prompts.is_empty()
    }

    /// Returns `true` if nothing goes on in it: no turn, and no call that is not over.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_working()
            && !matches!(
                self.operator_state,
                OperatorState::Running | OperatorState::Suspended | OperatorState::Resumed
            )
            && self.calls.values().all(|record| record.is_over())
    }
}
