//! What goes into the gate and what comes out of it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use narrows_audit::Event;
use serde_json::Value;

use crate::identity::Principal;

/// A moment, as the time since the gate was made: it has no clock.
pub type GateTime = Duration;

/// Something that is to be recorded, in the order in which it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuditSeq(pub u64);

impl AuditSeq {
    /// Stands for a refusal that is only counted. Nothing waits for it.
    pub(super) const UNRECORDED: Self = Self(0);
}

/// Where messages, events and orders go.
pub trait GateOutput {
    /// One message to the client: the parts in a row, without a line end.
    fn to_client(&mut self, parts: &[&[u8]]);
    /// The same to the agent.
    fn to_agent(&mut self, parts: &[&[u8]]);
    /// Records an event. [`Gate::settled`](super::Gate::settled) tells what became of it.
    fn record(&mut self, seq: AuditSeq, event: Event);
    /// Answers a question of [`Gate::consult`](super::Gate::consult): why not, or nothing if it may.
    fn answer_tool_check(&mut self, number: u64, refusal: Option<String>);
    /// Ends the agent, which does not do as it is told.
    fn end_agent(&mut self, why: &str);
    /// Ends the agent, which does not come to an end by itself. It may be given more time than one that is unruly.
    fn end_agent_gracefully(&mut self, why: &str) {
        self.end_agent(why);
    }
}

/// Where and when a gate stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateStart {
    /// When it was made, in seconds since 1970.
    pub started_at: u64,
    /// A word that nobody can guess: ids of our own requests have it in them.
    pub nonce: String,
}

/// A call of a tool that an agent of our own wants to make.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCheck {
    /// The session.
    pub session: String,
    /// The id by which the agent will announce the call.
    pub call: String,
    /// The MCP server, or nothing for a tool of the client's own files and terminals.
    pub server: Option<String>,
    /// The tool.
    pub tool: String,
    /// By which name the agent tells of it.
    pub name: String,
    /// What it is called with.
    pub arguments: Value,
}

/// Released when dropped.
pub type SessionSlot = Box<dyn Debug + Send + Sync>;

/// Limits the open sessions of all gates that share it.
pub trait SessionSlots: Debug + Send + Sync {
    /// Takes a slot for a session of this identity. Returns `None` if a limit is reached.
    fn take(&self, identity: &str) -> Option<SessionSlot>;
}

/// Something that waits for an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalRequest {
    /// Its name.
    pub id: String,
    /// The session.
    pub session: String,
    /// The tool.
    pub tool: String,
    /// What it is to be called with.
    pub input: Value,
    /// The kinds that it is of, separated by commas.
    pub kinds: String,
    /// The SHA-256 of all that is judged and shown of it.
    pub digest: [u8; 32],
    /// What the agent shows of it beside that, such as a change of a file; null if nothing.
    pub content: Value,
    /// Why it needs one.
    pub reason: String,
    /// Whose, in words.
    pub needs: String,
    /// Who has given theirs.
    pub given: Vec<String>,
    /// For whom it is to be done.
    pub client: String,
    /// Until when.
    pub due: GateTime,
    /// The same in seconds since 1970.
    pub until: u64,
    /// Whether the client was asked and has not answered.
    pub asked: bool,
}

/// The present validity of a signature that was counted: its key may have been revoked since.
pub trait SignatureValidity: Debug + Send + Sync {
    /// Blocks while the keys are read.
    ///
    /// # Errors
    /// The reason, if the key was revoked since or the keys cannot be read.
    fn check(&self) -> Result<(), String>;
}

/// The signature of an approval.
#[derive(Clone, Debug)]
pub struct VoteSignature {
    /// The path of the file that it is kept in.
    pub file: String,
    /// Asked before each further approval is counted.
    pub validity: Arc<dyn SignatureValidity>,
}

/// What somebody says about it.
#[derive(Clone, Debug)]
pub struct ApprovalVote {
    /// The name of what it is about.
    pub id: String,
    /// Who.
    pub signer: Principal,
    /// Whether it may be done.
    pub approves: bool,
    /// Why not.
    pub reason: Option<String>,
    /// `None`: nothing was signed, so there is no key that can be revoked.
    pub signature: Option<VoteSignature>,
}

/// Why a ballot does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VoteError {
    /// Nothing of this name is open.
    #[error("nothing of this name waits for an approval")]
    NotFound,
    /// It is not theirs to approve.
    #[error("it is not for this signer to approve")]
    NotASigner,
    /// They have said so already.
    #[error("this signer has approved it already")]
    AlreadyApproved,
    /// A signature that was counted is not valid any more, so nothing can complete the quorum.
    #[error("{0}; reject it, or let it expire")]
    SignatureInvalid(String),
}
