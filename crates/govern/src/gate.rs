//! The gate as a pure state machine between one client and one agent.
//!
//! Messages enter through [`Gate::handle_client_message`] and [`Gate::handle_agent_message`]; messages and
//! audit events leave through a [`GateOutput`]. A line that depends on an audit event waits until
//! [`Gate::handle_audit_result`] confirms the event, and later lines of the same direction wait behind it, so
//! order is kept. The gate has no clock, no disk and no task; it resolves paths through a [`PathResolver`].

mod api;
mod approval;
mod approval_notice;
mod approval_summary;
mod approvers;
mod child_sessions;
mod client_services;
mod deadlines;
mod derived_approval;
mod from_agent;
mod from_client;
mod half_closed;
mod mcp;
mod method_rules;
mod outbox;
mod ownership;
mod permission;
mod prompt_content;
mod refusal_log;
mod responses;
mod retained;
mod session;
mod session_config;
mod session_open;
mod strip_meta;
mod terminals;
#[cfg(test)]
mod tests;
mod tool_check;
mod tool_updates;
mod turn;
mod unknown_members;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use narrows_audit::Event;
use narrows_policy::Policy;
use narrows_wire::View;

use crate::audit_events::AuditContext;
use crate::authorizer::Authorizer;
use crate::config::GateConfig;
use crate::identity::{Principal, SessionOwners};
use crate::meta::MetaMark;
use crate::path_resolver::PathResolver;
use crate::shared_budget::BudgetSource;
use crate::timeouts::GateTimeouts;

pub use api::{
    ApprovalRequest, ApprovalSummary, ApprovalVote, AuditSeq, GateOutput, GateStart, GateTime, SessionSlot,
    SessionSlots, SignatureValidity, ToolCheck, VoteError, VoteSignature,
};
pub use approvers::is_signer;
pub(crate) use retained::{ByteCharge, RetainedBytes, value_bytes};

use approval::PendingApproval;
use outbox::{GateDirection, OnAuditFailure, OrderedOutbox};
use retained::ChargedMap;
use session::{ClientRequestKind, PendingAtAgent, PendingAtClient, Session};

type RawRequestId = Box<[u8]>;

const MAX_OPEN: usize = 4_096;

/// Reason for refusing work while history is replayed: the agent's updates describe past actions then.
const REPLAYING: &str = "history is being replayed";

/// Reason for stopping a turn: an action could not be recorded.
const UNRECORDED: &str = "the audit log could not be written";

/// Enforces a governance between one client and one agent.
#[derive(Debug)]
pub struct Gate {
    config: GateConfig,
    principal: Principal,
    authorizer: Authorizer,
    resolver: Box<dyn PathResolver>,
    /// Owners of sessions. `None` means that the client may use every session.
    owners: Option<Arc<dyn SessionOwners>>,
    /// Limit for the sessions of all gates together. `None` means that only the limit of this gate counts.
    session_slots: Option<Arc<dyn SessionSlots>>,
    cursors: ownership::Cursors,
    mark: MetaMark,
    start: GateStart,
    is_v2: bool,
    is_initialized: bool,
    /// Capabilities that the manifest declares and the agent lacks, according to its answer to `initialize`.
    /// While set, no session can be opened.
    unmet_capabilities: Option<String>,
    is_client_input_closed: bool,
    client_offer: Option<session_open::ClientOffer>,
    sessions: HashMap<Box<str>, Session>,
    closed_sessions: VecDeque<child_sessions::ClosedSession>,
    /// Messages that the agent sent in sessions that are not open yet.
    early_messages: child_sessions::EarlyMessages,
    /// `true` once the agent violated the governance outside of a turn, and is being ended.
    is_ending: bool,
    pending_at_agent: ChargedMap<RawRequestId, PendingAtAgent>,
    pending_at_client: ChargedMap<RawRequestId, PendingAtClient>,
    /// Connections to MCP servers in the client, mapped to the ids of the servers.
    mcp_connections: ChargedMap<String, String>,
    /// Names of unlisted methods and unknown members that this connection has already recorded once.
    recorded_names: BTreeSet<Box<str>>,
    refusals: refusal_log::RefusalLog,
    retained: RetainedBytes,
    approvals: BTreeMap<u64, PendingApproval>,
    to_client: OrderedOutbox,
    to_agent: OrderedOutbox,
    /// Results of tool checks that wait for their audit events.
    held_check_results: VecDeque<tool_check::HeldCheckResult>,
    /// Earliest time at which [`Self::tick`] may have work. `None` means that there is no deadline.
    next_due: Option<GateTime>,
    last_seq: u64,
    /// Number of the last audit event that is durable or has failed.
    last_settled: AuditSeq,
    serial: u64,
}

/// State for the handling of one input: the gate, the current time and the output.
struct GateCtx<'a, O> {
    gate: &'a mut Gate,
    now: GateTime,
    out: &'a mut O,
}

impl Gate {
    /// Creates a gate that has not seen any message.
    #[must_use]
    pub fn new(
        config: GateConfig,
        principal: Principal,
        policy: Policy,
        resolver: Box<dyn PathResolver>,
        start: GateStart,
    ) -> Self {
        let mark = MetaMark::new(&config);
        Self {
            config,
            principal,
            authorizer: Authorizer::new(policy, &start.nonce),
            resolver,
            owners: None,
            session_slots: None,
            cursors: ownership::Cursors::default(),
            mark,
            start,
            is_v2: false,
            is_initialized: false,
            unmet_capabilities: None,
            is_client_input_closed: false,
            client_offer: None,
            sessions: HashMap::new(),
            closed_sessions: VecDeque::new(),
            early_messages: child_sessions::EarlyMessages::default(),
            is_ending: false,
            pending_at_agent: ChargedMap::default(),
            pending_at_client: ChargedMap::default(),
            mcp_connections: ChargedMap::default(),
            recorded_names: BTreeSet::new(),
            refusals: refusal_log::RefusalLog::default(),
            retained: RetainedBytes::default(),
            approvals: BTreeMap::new(),
            to_client: OrderedOutbox::default(),
            to_agent: OrderedOutbox::default(),
            held_check_results: VecDeque::new(),
            next_due: None,
            last_seq: 0,
            last_settled: AuditSeq(0),
            serial: 0,
        }
    }

    /// Restricts the client to the sessions that `owners` reports as its own.
    #[must_use]
    pub fn with_owners(self, owners: Arc<dyn SessionOwners>) -> Self {
        Self { owners: Some(owners), ..self }
    }

    /// Sets the limit of the sessions of all gates together.
    #[must_use]
    pub fn with_session_slots(self, slots: Arc<dyn SessionSlots>) -> Self {
        Self { session_slots: Some(slots), ..self }
    }

    /// Shares the budgets with other gates, whose use `budget_source` reports.
    #[must_use]
    pub fn with_budget_source(mut self, budget_source: Box<dyn BudgetSource>) -> Self {
        self.authorizer = self.authorizer.with_budget_source(budget_source);
        self
    }

    fn ctx<'a, O: GateOutput>(&'a mut self, now: GateTime, out: &'a mut O) -> GateCtx<'a, O> {
        GateCtx { gate: self, now, out }
    }

    /// Handles one message of the client. Batches must be split before.
    pub fn handle_client_message<O: GateOutput>(&mut self, now: GateTime, message: View<'_>, out: &mut O) {
        self.ctx(now, out).screen_client_message(message);
    }

    /// Handles one message of the agent. Batches must be split before.
    pub fn handle_agent_message<O: GateOutput>(&mut self, now: GateTime, message: View<'_>, out: &mut O) {
        self.ctx(now, out).screen_agent_message(message);
    }

    /// Reports that the event `seq` is durable, or that it could not be written.
    pub fn handle_audit_result<O: GateOutput>(
        &mut self,
        now: GateTime,
        seq: AuditSeq,
        written: bool,
        out: &mut O,
    ) {
        self.ctx(now, out).apply_audit_result(seq, written);
    }

    /// Decides whether the built-in agent may call a tool that it has not announced yet. Once the decision is
    /// recorded, [`GateOutput::answer_tool_check`] gets the answer.
    pub fn check_tool<O: GateOutput>(&mut self, now: GateTime, number: u64, request: ToolCheck, out: &mut O) {
        self.ctx(now, out).check_tool(number, request);
    }

    /// Counts the vote of an approver other than the client.
    ///
    /// # Errors
    ///
    /// If no such approval is pending, or the signer may not decide about it.
    pub fn vote<O: GateOutput>(
        &mut self,
        now: GateTime,
        vote: ApprovalVote,
        out: &mut O,
    ) -> Result<(), VoteError> {
        self.ctx(now, out).vote(vote)
    }

    /// Handles the end of the client's input. The client may still read, but it can no longer be asked for an
    /// approval.
    pub fn close_client_input<O: GateOutput>(&mut self, now: GateTime, out: &mut O) {
        self.ctx(now, out).close_client_input();
    }

    /// Closes all sessions of a client that has disconnected.
    pub fn handle_client_lost<O: GateOutput>(&mut self, now: GateTime, out: &mut O) {
        let mut ctx = self.ctx(now, out);
        ctx.record_omitted();
        ctx.close_all_sessions("client disconnected");
    }

    /// Closes all sessions of a client that may still read. Its pending requests are answered with `why`.
    pub fn handle_client_closed<O: GateOutput>(&mut self, now: GateTime, why: &str, out: &mut O) {
        let mut ctx = self.ctx(now, out);
        ctx.record_omitted();
        ctx.answer_pending_and_close(why);
    }

    /// Closes all sessions after the agent exited. `how` describes the exit. The client sees `how`, so it
    /// must not contain secrets.
    pub fn handle_agent_lost<O: GateOutput>(&mut self, now: GateTime, how: Option<&str>, out: &mut O) {
        let mut ctx = self.ctx(now, out);
        ctx.record_omitted();
        ctx.handle_agent_lost(how);
    }

    /// Handles everything that is due at `now`.
    pub fn tick<O: GateOutput>(&mut self, now: GateTime, out: &mut O) {
        self.ctx(now, out).tick();
    }

    /// Returns the configured timeouts.
    #[must_use]
    pub fn timeouts(&self) -> &GateTimeouts {
        &self.config.timeouts
    }

    /// Returns the earliest time at which [`Self::tick`] may have work.
    #[must_use]
    pub fn next_deadline(&self) -> Option<GateTime> {
        self.next_due
    }

    /// Returns the pending approvals.
    #[must_use]
    pub fn pending_approvals(&self) -> Vec<ApprovalRequest> {
        self.approvals
            .iter()
            .map(|(number, approval)| approval.to_request(&self.start, &self.principal, *number))
            .collect()
    }
}

impl<O: GateOutput> GateCtx<'_, O> {
    fn unix_seconds(&self) -> u64 {
        self.gate.start.started_at + self.now.as_secs()
    }

    fn parties<'a>(&'a self, session: &'a str) -> AuditContext<'a> {
        let lineage = self.gate.sessions.get(session).and_then(|session| session.lineage.as_ref());
        let parent = lineage.map(|lineage| &*lineage.parent);
        AuditContext { config: &self.gate.config, principal: &self.gate.principal, session, parent }
    }

    /// Records an event. A refusal beyond the rate limit is only counted, and no line waits for a counted
    /// refusal.
    fn record(&mut self, event: Event) -> AuditSeq {
        match self.gate.refusals.admit(self.now, event) {
            Ok(event) => self.record_always(event),
            Err(due) => {
                self.gate.arm_timer(due);
                AuditSeq::UNRECORDED
            }
        }
    }

    fn record_always(&mut self, event: Event) -> AuditSeq {
        self.gate.last_seq += 1;
        let seq = AuditSeq(self.gate.last_seq);
        self.out.record(seq, event);
        seq
    }

    /// Sends a line once the audit event that the line depends on is durable.
    fn send(
        &mut self,
        direction: GateDirection,
        parts: &[&[u8]],
        after: Option<AuditSeq>,
        on_failure: OnAuditFailure,
    ) {
        let outbox = match direction {
            GateDirection::ToClient => &mut self.gate.to_client,
            GateDirection::ToAgent => &mut self.gate.to_agent,
        };
        let after = after.filter(|seq| *seq != AuditSeq::UNRECORDED);
        if after.is_none() && outbox.is_empty() {
            self.send_now(direction, parts);
        } else {
            outbox.push(parts.concat().into(), after, on_failure);
        }
    }

    fn send_now(&mut self, direction: GateDirection, parts: &[&[u8]]) {
        match direction {
            GateDirection::ToClient => self.out.to_client(parts),
            GateDirection::ToAgent => self.out.to_agent(parts),
        }
    }

    fn apply_audit_result(&mut self, seq: AuditSeq, written: bool) {
        self.gate.last_settled = self.gate.last_settled.max(seq);
        self.release_check_results(seq, written);
        for direction in [GateDirection::ToClient, GateDirection::ToAgent] {
            let outbox = match direction {
                GateDirection::ToClient => &mut self.gate.to_client,
                GateDirection::ToAgent => &mut self.gate.to_agent,
            };
            let failed = if written {
                outbox.release_until(seq);
                Vec::new()
            } else {
                outbox.fail_from(seq)
            };
            for on_failure in failed {
                self.apply_audit_failure(on_failure);
            }
            self.flush(direction);
        }
    }

    /// Handles a line that is not sent, because the audit event that it depends on could not be recorded.
    fn apply_audit_failure(&mut self, on_failure: OnAuditFailure) {
        match on_failure {
            OnAuditFailure::Drop => {}
            OnAuditFailure::SendInstead(direction, line) => {
                self.send(direction, &[&line], None, OnAuditFailure::Drop);
            }
            OnAuditFailure::FailClientRequest(line, id) => {
                let Some(pending) = self.gate.pending_at_agent.remove(&id) else { return };
                match pending.kind {
                    ClientRequestKind::Prompt { session } => {
                        if let Some(session) = self.gate.sessions.get_mut(&session) {
                            session.prompts.retain(|prompt| *prompt != id);
                            session.is_running = false;
                            session.last_activity = None;
                        }
                    }
                    ClientRequestKind::Open { session, replays } => {
                        self.handle_open_failure(&session, replays);
                    }
                    _ => {}
                }
                // The gate has already answered an expired request.
                if !pending.is_late {
                    self.send(GateDirection::ToClient, &[&line], None, OnAuditFailure::Drop);
                }
            }
            OnAuditFailure::FailAgentRequest(line, id) => {
                // A request that expired, or that a closing client cannot answer, was answered before.
                let served = self.gate.pending_at_client.remove(&id);
                if matches!(served, Some(PendingAtClient::AlreadyAnswered { .. }) | None) {
                    return;
                }
                self.send(GateDirection::ToAgent, &[&line], None, OnAuditFailure::Drop);
                if let Some(PendingAtClient::Service { session, call, .. }) = served {
                    if let Some(session) = self.gate.sessions.get_mut(&session) {
                        session.calls.remove(&call);
                    }
                    self.halt_unaudited_turn(&session);
                }
            }
            OnAuditFailure::HaltTurn(session) => self.halt_unaudited_turn(&session),
            OnAuditFailure::FailAndHalt(line, session) => {
                self.send(GateDirection::ToAgent, &[&line], None, OnAuditFailure::Drop);
                self.halt_unaudited_turn(&session);
            }
        }
    }

    fn flush(&mut self, direction: GateDirection) {
        loop {
            let outbox = match direction {
                GateDirection::ToClient => &mut self.gate.to_client,
                GateDirection::ToAgent => &mut self.gate.to_agent,
            };
            let Some((line, on_failure)) = outbox.pop() else { return };
            if let OnAuditFailure::FailAgentRequest(_, id) = &on_failure
                && !self.admit_forwarding(id)
            {
                continue;
            }
            self.send_now(direction, &[&line]);
        }
    }
}
