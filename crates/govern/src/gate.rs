//! The gate as a pure state machine between one client and one agent.
//!
//! Messages go in by [`Gate::client`] and [`Gate::agent`], messages and events come out through an [`GateOutput`]. What has to be
//! recorded first waits for [`Gate::settled`], and everything behind it on the same way waits too, so order is kept. There
//! is no clock, no disk and no task in here but the [`PathResolver`] that paths are looked up on.

mod api;
mod approval;
mod approval_notice;
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

use bytes::Bytes;
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
    ApprovalRequest, ApprovalVote, AuditSeq, GateOutput, GateStart, GateTime, SessionSlot, SessionSlots,
    SignatureValidity, ToolCheck, VoteError, VoteSignature,
};
pub use approval::is_signer;
pub(crate) use retained::value_bytes;

use approval::PendingApproval;
use outbox::{GateDirection, OnAuditFailure, OrderedOutbox};
use retained::{ByteCharge, ChargedMap, RetainedBytes};
use session::{ClientRequestKind, PendingAtAgent, PendingAtClient, Session};

/// Raw JSON that waits in a table: an id.
type Raw = Box<[u8]>;

/// How many sessions, calls of one, and requests may be open.
const MAX_OPEN: usize = 4_096;

/// Why nothing is done while a session is opened: what is told then was done before.
const REPLAYING: &str = "nothing is done while history is replayed";

/// Why a turn is stopped whose acts could not be recorded.
const UNRECORDED: &str = "the audit log could not be written";

/// Stands between one client and one agent.
#[derive(Debug)]
pub struct Gate {
    config: GateConfig,
    principal: Principal,
    authorizer: Authorizer,
    resolver: Box<dyn PathResolver>,
    /// Whose sessions are; if nobody keeps that, all are the client's.
    owners: Option<Arc<dyn SessionOwners>>,
    /// Limits the sessions of all gates together. `None`: only those of this gate are limited.
    session_slots: Option<Arc<dyn SessionSlots>>,
    cursors: ownership::Cursors,
    mark: MetaMark,
    start: GateStart,
    /// Whether version 2 is spoken.
    is_v2: bool,
    /// The agent has answered `initialize`.
    is_initialized: bool,
    /// What is declared and the agent does not have, as it has introduced itself: nothing is begun with it.
    unmet_capabilities: Option<String>,
    /// The client says nothing more.
    is_client_input_closed: bool,
    /// What the client said it does for the agent.
    client_offer: Option<session_open::ClientOffer>,
    sessions: HashMap<Box<str>, Session>,
    /// Sessions that were open, the oldest first.
    closed_sessions: VecDeque<child_sessions::ClosedSession>,
    /// What the agent said in sessions that are not open yet.
    early_messages: Vec<(Bytes, ByteCharge)>,
    /// The agent is being ended because of what it did between turns.
    is_ending: bool,
    /// Requests of the client that the agent has not answered, of those that matter here.
    pending_at_agent: ChargedMap<Raw, PendingAtAgent>,
    /// Requests of the agent that the client has not answered, of those that matter here.
    pending_at_client: ChargedMap<Raw, PendingAtClient>,
    /// Connections to MCP servers in the client, and the ids of those.
    mcp_connections: ChargedMap<String, String>,
    /// Names of unknown notifications of the agent that are in the log.
    recorded_names: BTreeSet<Box<str>>,
    refusals: refusal_log::RefusalLog,
    /// The byte budget of the tables.
    retained: RetainedBytes,
    /// What waits for an approval.
    approvals: BTreeMap<u64, PendingApproval>,
    to_client: OrderedOutbox,
    to_agent: OrderedOutbox,
    /// Answers to our own agent that wait until they are recorded.
    held_check_results: VecDeque<tool_check::HeldCheckResult>,
    /// When something may be due.
    next_due: Option<GateTime>,
    last_seq: u64,
    /// The last of which it is known what became of it.
    last_settled: AuditSeq,
    serial: u64,
}

/// One event on its way through the gate.
struct GateCtx<'a, O> {
    gate: &'a mut Gate,
    now: GateTime,
    out: &'a mut O,
}

impl Gate {
    /// One through which nothing has gone yet.
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
            early_messages: Vec::new(),
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

    /// The same for a client that sees no sessions but its own: those that `owners` says it has made.
    #[must_use]
    pub fn with_owners(self, owners: Arc<dyn SessionOwners>) -> Self {
        Self { owners: Some(owners), ..self }
    }

    /// Sets the limit of the sessions of all gates together.
    #[must_use]
    pub fn with_session_slots(self, slots: Arc<dyn SessionSlots>) -> Self {
        Self { session_slots: Some(slots), ..self }
    }

    /// The same, which shares its budgets with others that this tells of.
    #[must_use]
    pub fn with_budget_source(mut self, budget_source: Box<dyn BudgetSource>) -> Self {
        self.authorizer = self.authorizer.with_budget_source(budget_source);
        self
    }

    fn ctx<'a, O: GateOutput>(&'a mut self, now: GateTime, out: &'a mut O) -> GateCtx<'a, O> {
        GateCtx { gate: self, now, out }
    }

    /// The client has said something: a message, and no batch of them.
    pub fn handle_client_message<O: GateOutput>(&mut self, now: GateTime, message: View<'_>, out: &mut O) {
        self.ctx(now, out).screen_client_message(message);
    }

    /// The agent has said something: a message, and no batch of them.
    pub fn handle_agent_message<O: GateOutput>(&mut self, now: GateTime, message: View<'_>, out: &mut O) {
        self.ctx(now, out).screen_agent_message(message);
    }

    /// What was to be recorded is on the disk, or could not be written.
    pub fn handle_audit_result<O: GateOutput>(
        &mut self,
        now: GateTime,
        seq: AuditSeq,
        written: bool,
        out: &mut O,
    ) {
        self.ctx(now, out).apply_audit_result(seq, written);
    }

    /// An agent of our own asks whether it may call a tool, before it tells of the call. The answer is [`GateOutput::advise`]d once
    /// the decision is recorded.
    pub fn check_tool<O: GateOutput>(&mut self, now: GateTime, number: u64, request: ToolCheck, out: &mut O) {
        self.ctx(now, out).check_tool(number, request);
    }

    /// Somebody approves or rejects from elsewhere.
    ///
    /// # Errors
    /// When nothing of this name is open, or it is not theirs to approve.
    pub fn vote<O: GateOutput>(
        &mut self,
        now: GateTime,
        vote: ApprovalVote,
        out: &mut O,
    ) -> Result<(), VoteError> {
        self.ctx(now, out).vote(vote)
    }

    /// The client says nothing more, and may still read: nothing is asked of it from now on.
    pub fn close_client_input<O: GateOutput>(&mut self, now: GateTime, out: &mut O) {
        self.ctx(now, out).close_client_input();
    }

    /// Whether all that the client has asked is answered, and no turn of its goes on.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.owes_nothing()
    }

    /// The client is gone: its sessions are over.
    pub fn handle_client_lost<O: GateOutput>(&mut self, now: GateTime, out: &mut O) {
        let mut ctx = self.ctx(now, out);
        ctx.record_omitted();
        ctx.close_all_sessions("the client has gone");
    }

    /// The same of one that may still read: what it has asked and nobody has answered is answered with `why`.
    pub fn handle_client_closed<O: GateOutput>(&mut self, now: GateTime, why: &str, out: &mut O) {
        let mut ctx = self.ctx(now, out);
        ctx.record_omitted();
        ctx.answer_pending_and_close(why);
    }

    /// The agent is gone: its sessions are over. `how` it ended is for the client, made safe to show.
    pub fn handle_agent_lost<O: GateOutput>(&mut self, now: GateTime, how: Option<&str>, out: &mut O) {
        let mut ctx = self.ctx(now, out);
        ctx.record_omitted();
        ctx.handle_agent_lost(how);
    }

    /// Does what is due.
    pub fn tick<O: GateOutput>(&mut self, now: GateTime, out: &mut O) {
        self.ctx(now, out).tick();
    }

    /// How long anything may take.
    #[must_use]
    pub fn timeouts(&self) -> &GateTimeouts {
        &self.config.timeouts
    }

    /// When something may be due: [`Self::tick`] finds out.
    #[must_use]
    pub fn next_deadline(&self) -> Option<GateTime> {
        self.next_due
    }

    /// What waits for an approval.
    #[must_use]
    pub fn pending_approvals(&self) -> Vec<ApprovalRequest> {
        self.approvals
            .iter()
            .map(|(number, approval)| approval.to_request(&self.start, &self.principal, *number))
            .collect()
    }
}

impl<O: GateOutput> GateCtx<'_, O> {
    /// The time in seconds since 1970.
    fn unix_seconds(&self) -> u64 {
        self.gate.start.started_at + self.now.as_secs()
    }

    fn parties<'a>(&'a self, session: &'a str) -> AuditContext<'a> {
        let lineage = self.gate.sessions.get(session).and_then(|session| session.lineage.as_ref());
        let parent = lineage.map(|lineage| &*lineage.parent);
        AuditContext { config: &self.gate.config, principal: &self.gate.principal, session, parent }
    }

    /// Has something recorded. Of refusals beyond the rate only the number is: then nothing has to be waited for.
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

    /// Sends a line, once what it follows from is recorded.
    fn send(
        &mut self,
        way: GateDirection,
        parts: &[&[u8]],
        after: Option<AuditSeq>,
        on_failure: OnAuditFailure,
    ) {
        let outbox = match way {
            GateDirection::ToClient => &mut self.gate.to_client,
            GateDirection::ToAgent => &mut self.gate.to_agent,
        };
        let after = after.filter(|seq| *seq != AuditSeq::UNRECORDED);
        if after.is_none() && outbox.is_empty() {
            self.send_now(way, parts);
        } else {
            outbox.push(parts.concat().into(), after, on_failure);
        }
    }

    fn send_now(&mut self, way: GateDirection, parts: &[&[u8]]) {
        match way {
            GateDirection::ToClient => self.out.to_client(parts),
            GateDirection::ToAgent => self.out.to_agent(parts),
        }
    }

    fn apply_audit_result(&mut self, seq: AuditSeq, written: bool) {
        self.gate.last_settled = self.gate.last_settled.max(seq);
        self.release_check_results(seq, written);
        for way in [GateDirection::ToClient, GateDirection::ToAgent] {
            let outbox = match way {
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
            self.flush(way);
        }
    }

    /// What is done because something could not be recorded.
    fn apply_audit_failure(&mut self, on_failure: OnAuditFailure) {
        match on_failure {
            OnAuditFailure::Drop => {}
            OnAuditFailure::SendInstead(way, line) => self.send(way, &[&line], None, OnAuditFailure::Drop),
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
                        self.handle_open_failure(&session, replays)
                    }
                    _ => {}
                }
                // After a deadline the client has its answer.
                if !pending.is_late {
                    self.send(GateDirection::ToClient, &[&line], None, OnAuditFailure::Drop);
                }
            }
            OnAuditFailure::FailAgentRequest(line, id) => {
                self.send(GateDirection::ToAgent, &[&line], None, OnAuditFailure::Drop);
                if let Some(PendingAtClient::Service { session, call, .. }) =
                    self.gate.pending_at_client.remove(&id)
                {
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

    fn flush(&mut self, way: GateDirection) {
        loop {
            let outbox = match way {
                GateDirection::ToClient => &mut self.gate.to_client,
                GateDirection::ToAgent => &mut self.gate.to_agent,
            };
            let Some((line, on_failure)) = outbox.pop() else { return };
            if let OnAuditFailure::FailAgentRequest(_, id) = &on_failure
                && !self.admit_forwarding(id)
            {
                continue;
            }
            self.send_now(way, &[&line]);
        }
    }
}
