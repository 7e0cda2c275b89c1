//! Input and output types of the gate.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use narrows_audit::Event;
use serde_json::Value;

use crate::identity::Principal;

/// Time since the creation of the gate. The caller measures it.
pub type GateTime = Duration;

/// Number of an audit event. Events are numbered in the order in which they must be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuditSeq(pub u64);

impl AuditSeq {
    /// Number for a refusal that is counted but not recorded. No line waits for this number.
    pub(super) const UNRECORDED: Self = Self(0);
}

/// Receives the messages, audit events and orders of a gate.
pub trait GateOutput {
    /// Sends one message to the client. The parts are concatenated. They contain no line end.
    fn to_client(&mut self, parts: &[&[u8]]);
    /// Sends one message to the agent. The parts are concatenated. They contain no line end.
    fn to_agent(&mut self, parts: &[&[u8]]);
    /// Records an event. [`Gate::handle_audit_result`](super::Gate::handle_audit_result) must report the
    /// result.
    fn record(&mut self, seq: AuditSeq, event: Event);
    /// Reports the result of [`Gate::check_tool`](super::Gate::check_tool): the reason of a refusal, or
    /// `None` if the tool may run.
    fn answer_tool_check(&mut self, number: u64, refusal: Option<String>);
    /// Kills the agent because it violated the governance.
    fn end_agent(&mut self, why: &str);
    /// Ends the agent because it does not respond. The agent gets time to exit.
    fn end_agent_gracefully(&mut self, why: &str) {
        self.end_agent(why);
    }
}

/// Start time and nonce of a gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateStart {
    pub started_at: u64,
    /// An unguessable string. Ids of the gate's own requests contain it, so that no peer can predict an id.
    pub nonce: String,
}

/// A tool call that the built-in agent wants to make.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCheck {
    pub session: String,
    /// Id under which the agent will announce the call.
    pub call: String,
    pub server: Option<String>,
    pub tool: String,
    /// Tool name under which the agent will announce the call.
    pub name: String,
    pub arguments: Value,
}

pub type SessionSlot = Box<dyn Debug + Send + Sync>;

/// Limits the open sessions of all gates that share the limit.
pub trait SessionSlots: Debug + Send + Sync {
    /// Takes a slot for a session of this identity. Returns `None` if a limit is reached.
    fn take(&self, identity: &str) -> Option<SessionSlot>;
}

/// A pending approval, as an approver sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalRequest {
    /// Id of the approval, for [`ApprovalVote::id`].
    pub id: String,
    pub session: String,
    pub tool: String,
    pub input: Value,
    /// Action kinds of the call, separated by commas.
    pub kinds: String,
    /// SHA-256 of everything that was judged about the call and is shown to approvers.
    pub digest: [u8; 32],
    /// Content that the agent shows beside the input, such as a diff. Null if the call has no content.
    pub content: Value,
    pub reason: String,
    /// Readable description of the required approvals.
    pub requirements: String,
    /// Ids of the approvers who have approved.
    pub approved_by: Vec<String>,
    pub client: String,
    pub deadline: GateTime,
    pub expires_at: u64,
    /// `true` while a permission request for this approval is unanswered at the client.
    pub is_client_asked: bool,
}

/// A pending approval in a list. Each text is bounded, whatever the peers wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApprovalSummary {
    /// [`ApprovalRequest::id`]
    pub id: String,
    pub tool: String,
    /// The input as JSON. A long one is cut, and followed by its length and digest.
    pub input: String,
    pub reason: String,
    /// Readable description of the required approvals.
    pub needs: String,
    /// Identity of the client.
    pub client: String,
    pub until: u64,
}

/// Validity of the key of a counted signature, which may have been revoked after the vote.
pub trait SignatureValidity: Debug + Send + Sync {
    /// Checks the key. Blocks while the keys are read.
    ///
    /// # Errors
    ///
    /// The reason, if the key was revoked or the keys cannot be read.
    fn check(&self) -> Result<(), String>;
}

/// The signature of an approval.
#[derive(Clone, Debug)]
pub struct VoteSignature {
    pub file: String,
    /// Checks the key again before each further vote on the same approval.
    pub validity: Arc<dyn SignatureValidity>,
}

/// An approval or a rejection of a pending action.
#[derive(Clone, Debug)]
pub struct ApprovalVote {
    /// The [`ApprovalRequest::id`] of the pending approval.
    pub id: String,
    pub signer: Principal,
    pub approves: bool,
    pub reason: Option<String>,
    /// `None` if the vote is not signed.
    pub signature: Option<VoteSignature>,
}

/// Reason why a vote does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VoteError {
    #[error("no pending approval with this id")]
    NotFound,
    #[error("not an approver of this action")]
    NotASigner,
    #[error("already approved by this signer")]
    AlreadyApproved,
    /// The key of an earlier vote was revoked, so the quorum cannot be completed.
    #[error("{0}; reject it, or let it expire")]
    SignatureInvalid(String),
}
