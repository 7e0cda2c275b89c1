//! State of sessions, calls, and requests in flight.

use std::path::PathBuf;

use bytes::Bytes;
use serde_json::Value;

use super::api::{AuditSeq, GateTime, SessionSlot};
use super::child_sessions::Lineage;
use super::mcp::McpList;
use super::retained::{ByteCharge, ChargedMap, RetainedBytes};
use super::terminals::CallTerminal;
use super::{Gate, MAX_OPEN, RawRequestId};
use crate::audit_events::ApprovalOutcome;
use crate::authorizer::{CallDecision, CountedCall};
use crate::call::{Call, Digest};
use crate::identity::Principal;
use crate::lifecycle::OperatorState;

/// Maximum size of the messages that are held for one call until the call is decided.
pub(super) const MAX_HELD_BYTES: usize = 1 << 20;

/// Prefixes of call keys that the gate generates. An agent's call id with such a prefix gets a key with the
/// prefix `call `.
const RESERVED: [&str; 5] = ["request ", "turn ", "change ", "call ", "terminal "];

/// Returns the key of the call with this id. No id that an agent chooses leads to a key that the gate
/// generates.
pub(super) fn call_key(id: &str) -> Box<str> {
    match RESERVED.iter().any(|reserved| id.starts_with(reserved)) {
        true => format!("call {id}").into(),
        false => id.into(),
    }
}

pub(super) fn request_key(id: &[u8]) -> Box<str> {
    format!("request {}", String::from_utf8_lossy(id)).into()
}

#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) operator_state: OperatorState,
    /// `true` if the client may use the session: the client created it, or owns it.
    pub(super) is_admitted: bool,
    pub(super) lineage: Option<Lineage>,
    pub(super) roots: Vec<PathBuf>,
    /// Ids of prompt requests whose turn has not ended.
    pub(super) prompts: Vec<RawRequestId>,
    /// `true` if a turn is active although its prompt is already answered, as in version 2.
    pub(super) is_running: bool,
    /// Number of unanswered requests for which the agent replays the history of the session.
    pub(super) replays: u32,
    /// Boxed, because there may be many calls and a record is large.
    pub(super) calls: ChargedMap<Box<str>, Box<CallRecord>>,
    pub(super) terminals: ChargedMap<Box<str>, CallTerminal>,
    pub(super) servers: Vec<(String, String)>,
    /// Calls of the built-in agent that were decided before the agent announced them, by id.
    pub(super) decided_calls: Vec<(Box<str>, CallRecord, ByteCharge)>,
    pub(super) halted: Option<TurnHalt>,
    pub(super) halt_seq: Option<AuditSeq>,
    pub(super) stop_deadline: Option<GateTime>,
    pub(super) last_activity: Option<GateTime>,
    /// Number of refused client requests of the agent. A call that fails because its client request was
    /// refused is excused, once per refusal.
    pub(super) refusals: u32,
    pub(super) charge: ByteCharge,
    /// `None` if the number of sessions is not limited, or if this is a child session.
    pub(super) slot: Option<SessionSlot>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TurnHalt {
    pub(super) reason: String,
    /// `true` if the turn was stopped because a deadline passed. Such a turn ends as failed instead of
    /// refused.
    pub(super) is_late: bool,
}

#[derive(Debug)]
pub(super) struct PendingAtAgent {
    pub(super) kind: ClientRequestKind,
    pub(super) method: Box<str>,
    /// Deadline of the answer. `None` means that there is no deadline.
    pub(super) due: Option<GateTime>,
    /// `true` once the deadline has passed and the gate has answered the request.
    pub(super) is_late: bool,
}

#[derive(Debug, Default)]
pub(super) struct CallRecord {
    pub(super) call: Call,
    pub(super) decision: Option<CallDecision>,
    /// Digest of the call's resolved paths at the time of the decision.
    pub(super) resolved_digest: Option<Digest>,
    pub(super) outcome: ApprovalOutcome,
    pub(super) approved_digest: Option<Digest>,
    /// `true` once the agent has asked for permission. An approval answers only one permission request.
    pub(super) has_request: bool,
    pub(super) counted: Option<CountedCall>,
    /// Messages about the call that are held until the call is decided.
    pub(super) held_lines: Vec<Bytes>,
    pub(super) is_recorded: bool,
    pub(super) approvers: Vec<Principal>,
    /// `true` if the approval of the call also covers the client request that performs the call.
    pub(super) covers_effects: bool,
    /// Digest of the call at the time when the agent asked for permission. The agent knows the decision about
    /// the call in this state, or will know it.
    pub(super) digest_known_to_agent: Option<Digest>,
    /// The terminal that the call showed first, or that ran its command. A call has at most one terminal.
    pub(super) terminal: Option<Box<str>>,
    /// Digest that the file will have after the edit. `None` until the file was read.
    pub(super) edit_result: Option<Digest>,
}

impl CallRecord {
    /// Returns `true` if the record may be dropped to free memory. If the agent reports the call again, the
    /// call is decided again.
    fn is_over(&self) -> bool {
        self.is_recorded || matches!(self.outcome, ApprovalOutcome::Refused(_))
    }

    /// Records that the agent knows the decision about the call in its current state.
    pub(super) fn mark_known_to_agent(&mut self) {
        self.digest_known_to_agent = Some(self.call.digest());
    }

    /// Returns `true` if the call is not allowed, and the agent attempted it before it knew the decision.
    pub(super) fn was_tried_before_decision(&self) -> bool {
        !self.outcome.is_given()
            && self.call.was_tried()
            && self.digest_known_to_agent.is_none_or(|told| told != self.call.digest())
    }

    /// Sets the outcome of the decision about the call in its current state.
    pub(super) fn set_outcome(&mut self, outcome: ApprovalOutcome) {
        self.call.set_allowed(outcome.is_given());
        self.approved_digest = outcome.is_given().then(|| self.call.digest());
        self.outcome = outcome;
    }

    /// Records a permission request about the call. An approval answers one request, so another request voids
    /// the approval. Returns `true` if the call must be decided again, also because its shown text has
    /// changed.
    pub(super) fn set_asked(&mut self) -> bool {
        let is_changed = self.call.set_asked();
        let is_first = !std::mem::replace(&mut self.has_request, true);
        if !is_first {
            (self.approved_digest, self.counted) = (None, None);
            self.approvers.clear();
        }
        is_changed || !is_first
    }

    pub(super) fn mark_used(&mut self) {
        if let Some(counted) = &mut self.counted {
            counted.set_used();
        }
    }

    pub(super) fn retained_bytes(&self) -> usize {
        let held: usize = self.held_lines.iter().map(|line| size_of::<Bytes>() + line.len()).sum();
        let terminal = self.terminal.as_ref().map_or(0, |terminal| terminal.len());
        size_of::<Self>() + self.call.retained_bytes() + held + terminal
    }

    /// Holds a message until the call is decided. Returns `false` if the call already holds too many bytes.
    pub(super) fn hold_line(&mut self, line: &[u8]) -> bool {
        let held: usize = self.held_lines.iter().map(Bytes::len).sum();
        if held + line.len() > MAX_HELD_BYTES {
            return false;
        }
        self.held_lines.push(Bytes::copy_from_slice(line));
        true
    }
}

#[derive(Debug, Default)]
pub(super) struct SessionSetup {
    pub(super) roots: Vec<PathBuf>,
    pub(super) servers: Vec<(String, String)>,
    /// `None` if the session already has a slot, or if sessions are not limited.
    pub(super) slot: Option<SessionSlot>,
}

impl SessionSetup {
    pub(super) fn retained_bytes(&self) -> usize {
        setup_bytes(&self.roots, &self.servers)
    }
}

fn setup_bytes(roots: &[PathBuf], servers: &[(String, String)]) -> usize {
    let roots: usize = roots.iter().map(|root| size_of::<PathBuf>() + root.as_os_str().len()).sum();
    let servers = servers.iter().map(|(id, name)| size_of::<(String, String)>() + id.len() + name.len());
    roots + servers.sum::<usize>()
}

#[derive(Debug)]
pub(super) enum ClientRequestKind {
    Initialize,
    Create {
        setup: SessionSetup,
    },
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
    List,
    /// A request that does not change the state of the gate.
    Other,
}

impl ClientRequestKind {
    pub(super) fn retained_bytes(&self) -> usize {
        let setup = if let Self::Create { setup } = self { setup.retained_bytes() } else { 0 };
        size_of::<PendingAtAgent>() + setup + self.session().map_or(0, str::len)
    }

    /// Returns the session of the request. A session that is being created has no name yet.
    pub(super) fn session(&self) -> Option<&str> {
        match self {
            Self::Open { session, .. } | Self::Prompt { session } | Self::Close { session } => Some(session),
            Self::Initialize | Self::Create { .. } | Self::List | Self::Other => None,
        }
    }
}

/// Purpose of a request of the agent or of the gate that the client has not answered.
#[derive(Debug)]
pub(super) enum PendingAtClient {
    /// A file or command request that is allowed. Its result is recorded.
    Service {
        session: Box<str>,
        call: Box<str>,
        method: Box<str>,
        due: GateTime,
    },
    /// A request that waits for the exit of an allowed command. It has no deadline.
    TerminalWait {
        session: Box<str>,
    },
    /// A request whose deadline has passed. The gate has already answered the agent.
    AlreadyAnswered {
        session: Box<str>,
    },
    /// A permission request of the gate. The answer is the client's vote on the approval with this number.
    Approval(u64),
    McpConnect {
        server: String,
    },
    /// A request for a list of an MCP server. The answer is reduced to the entries that the agent may read.
    McpList {
        session: Option<Box<str>>,
        server: String,
        list: &'static McpList,
    },
    /// Any other agent request. Its answer is passed to the agent.
    PassThrough {
        method: Box<str>,
    },
}

impl PendingAtClient {
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

#[derive(Clone, Debug, Default)]
pub(super) struct PermissionOptions {
    pub(super) allow: Option<String>,
    pub(super) reject: Option<String>,
}

impl PermissionOptions {
    /// Reads the offered options of a permission request. Ignores options that also decide about future
    /// requests.
    pub(super) fn from_offered(offered: &Value) -> Self {
        let options = offered.as_array().map(Vec::as_slice).unwrap_or_default();
        let of = |kind: &str| {
            let mut found = options.iter().filter(|option| option["kind"] == kind);
            let id = found.next()?.get("optionId")?.as_str()?;
            // Two options with the same id are ambiguous.
            let times = options.iter().filter(|option| option["optionId"] == id).count();
            (times == 1).then(|| id.to_owned())
        };
        Self { allow: of("allow_once"), reject: of("reject_once") }
    }
}

#[derive(Debug)]
pub(super) enum ApprovalOrigin {
    Permission { id: RawRequestId, options: PermissionOptions },
    Service { line: Bytes, id: RawRequestId },
    ToolCheck { number: u64 },
    Turn { line: Bytes, id: RawRequestId },
    SessionConfig { line: Bytes, id: RawRequestId },
}

impl ApprovalOrigin {
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

    pub(super) fn is_of_agent(&self) -> bool {
        matches!(self, Self::Permission { .. } | Self::Service { .. } | Self::ToolCheck { .. })
    }

    /// Returns `true` if the agent cannot report that it waits for an approval, because it did not ask for
    /// one.
    pub(super) fn is_unannounced(&self) -> bool {
        matches!(self, Self::Service { .. } | Self::ToolCheck { .. })
    }
}

impl Gate {
    /// Returns the call with this key, or creates one. The caller checks before that there is room, and
    /// charges the call once its content is known.
    pub(super) fn call_record_or_new(&mut self, session: &str, key: &str) -> Option<&mut Box<CallRecord>> {
        let session = self.sessions.get_mut(session)?;
        if !session.calls.contains_key(key) {
            session.add_call(&self.retained, key, CallRecord::default());
        }
        session.calls.get_mut(key)
    }
}

impl Session {
    pub(super) fn set_up(&mut self, setup: SessionSetup) {
        self.roots = setup.roots;
        self.servers = setup.servers;
        self.slot = setup.slot.or(self.slot.take());
    }

    /// Returns `true` if the session may have a call with this id. Forgets finished calls if necessary.
    pub(super) fn has_room_for(&mut self, id: &str) -> bool {
        if self.calls.len() < MAX_OPEN || self.calls.contains_key(id) {
            return true;
        }
        self.forget_calls_over();
        self.calls.len() < MAX_OPEN
    }

    pub(super) fn forget_calls_over(&mut self) {
        self.calls.retain(|_, record| !record.is_over());
    }

    /// Adds a call. The caller checks before that there is room.
    pub(super) fn add_call(&mut self, budget: &RetainedBytes, key: &str, record: CallRecord) {
        let bytes = key.len() + record.retained_bytes();
        self.calls.insert(budget, key.into(), record.into(), bytes);
    }

    pub(super) fn retained_bytes(&self) -> usize {
        size_of::<Self>() + setup_bytes(&self.roots, &self.servers)
    }

    pub(super) fn is_working(&self) -> bool {
        self.is_running || !self.prompts.is_empty()
    }

    /// Returns `true` if the session has no active turn and no unfinished call.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_working()
            && !matches!(
                self.operator_state,
                OperatorState::Running | OperatorState::Suspended | OperatorState::Resumed
            )
            && self.calls.values().all(|record| record.is_over())
    }
}
