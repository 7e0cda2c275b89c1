//! The gate as a pure state machine between one client and one agent.
//!
//! Messages go in by [`Gate::client`] and [`Gate::agent`], messages and events come out through an [`Out`]. What has to be
//! recorded first waits for [`Gate::settled`], and everything behind it on the same way waits too, so order is kept. There
//! is no clock, no disk and no task in here but the [`Ground`] that paths are looked up on.

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

use crate::audit_events::Parties;
use crate::authorizer::Desk;
use crate::config::Mandate;
use crate::identity::{Owners, Principal};
use crate::meta::Mark;
use crate::path_resolver::Ground;
use crate::shared_budget::Till;
use crate::timeouts::Patience;

pub use api::{
    Ballot, BallotError, Open, Out, Request, SessionSlot, SessionSlots, Setting, SignatureValidity, Ticket,
    Time, VoteSignature,
};
pub use approval::is_signer;
pub(crate) use retained::value_bytes;

use approval::Hearing;
use outbox::{Lane, Otherwise, Way};
use retained::{Charge, ChargedMap, RetainedBytes};
use session::{Asked, Owed, Served, Session};

/// Raw JSON that waits in a table: an id.
type Raw = Box<[u8]>;

/// How many sessions, calls of one, and requests may be open.
const MOST_OPEN: usize = 4_096;

/// Why nothing is done while a session is opened: what is told then was done before.
const REPLAYING: &str = "nothing is done while history is replayed";

/// Why a turn is stopped whose acts could not be recorded.
const UNRECORDED: &str = "the audit log could not be written";

/// Stands between one client and one agent.
#[derive(Debug)]
pub struct Gate {
    mandate: Mandate,
    who: Principal,
    desk: Desk,
    ground: Box<dyn Ground>,
    /// Whose sessions are; if nobody keeps that, all are the client's.
    owners: Option<Arc<dyn Owners>>,
    /// Limits the sessions of all gates together. `None`: only those of this gate are limited.
    session_slots: Option<Arc<dyn SessionSlots>>,
    cursors: ownership::Cursors,
    mark: Mark,
    setting: Setting,
    /// Whether version 2 is spoken.
    is_v2: bool,
    /// The agent has answered `initialize`.
    is_introduced: bool,
    /// What is declared and the agent does not have, as it has introduced itself: nothing is begun with it.
    unmet: Option<String>,
    /// The client says nothing more.
    is_mute: bool,
    /// What the client said it does for the agent.
    offered: Option<session_open::Offered>,
    sessions: HashMap<Box<str>, Session>,
    /// Sessions that were open, the oldest first.
    closed: VecDeque<child_sessions::Closed>,
    /// What the agent said in sessions that are not open yet.
    early: Vec<(Bytes, Charge)>,
    /// The agent is being ended because of what it did between turns.
    is_ending: bool,
    /// Requests of the client that the agent has not answered, of those that matter here.
    asked: ChargedMap<Raw, Owed>,
    /// Requests of the agent that the client has not answered, of those that matter here.
    served: ChargedMap<Raw, Served>,
    /// Connections to MCP servers in the client, and the ids of those.
    connections: ChargedMap<String, String>,
    /// Names of unknown notifications of the agent that are in the log.
    recorded_names: BTreeSet<Box<str>>,
    refusals: refusal_log::RefusalLog,
    /// The byte budget of the tables.
    retained: RetainedBytes,
    /// What waits for an approval.
    hearings: BTreeMap<u64, Hearing>,
    to_client: Lane,
    to_agent: Lane,
    /// Answers to our own agent that wait until they are recorded.
    advice: VecDeque<tool_check::Advice>,
    /// When something may be due.
    due: Option<Time>,
    tickets: u64,
    /// The last of which it is known what became of it.
    settled: Ticket,
    serial: u64,
}

/// One event on its way through the gate.
struct Pass<'a, O> {
    gate: &'a mut Gate,
    now: Time,
    out: &'a mut O,
}

impl Gate {
    /// One through which nothing has gone yet.
    #[must_use]
    pub fn new(
        mandate: Mandate,
        who: Principal,
        policy: Policy,
        ground: Box<dyn Ground>,
        setting: Setting,
    ) -> Self {
        let mark = Mark::new(&mandate);
        Self {
            mandate,
            who,
            desk: Desk::new(policy, &setting.nonce),
            ground,
            owners: None,
            session_slots: None,
            cursors: ownership::Cursors::default(),
            mark,
            setting,
            is_v2: false,
            is_introduced: false,
            unmet: None,
            is_mute: false,
            offered: None,
            sessions: HashMap::new(),
            closed: VecDeque::new(),
            early: Vec::new(),
            is_ending: false,
            asked: ChargedMap::default(),
            served: ChargedMap::default(),
            connections: ChargedMap::default(),
            recorded_names: BTreeSet::new(),
            refusals: refusal_log::RefusalLog::default(),
            retained: RetainedBytes::default(),
            hearings: BTreeMap::new(),
            to_client: Lane::default(),
            to_agent: Lane::default(),
            advice: VecDeque::new(),
            due: None,
            tickets: 0,
            settled: Ticket(0),
            serial: 0,
        }
    }

    /// The same for a client that sees no sessions but its own: those that `owners` says it has made.
    #[must_use]
    pub fn with_owners(self, owners: Arc<dyn Owners>) -> Self {
        Self { owners: Some(owners), ..self }
    }

    /// Sets the limit of the sessions of all gates together.
    #[must_use]
    pub fn with_session_slots(self, slots: Arc<dyn SessionSlots>) -> Self {
        Self { session_slots: Some(slots), ..self }
    }

    /// The same, which shares its budgets with others that this tells of.
    #[must_use]
    pub fn with_till(mut self, till: Box<dyn Till>) -> Self {
        self.desk = self.desk.with_till(till);
        self
    }

    fn pass<'a, O: Out>(&'a mut self, now: Time, out: &'a mut O) -> Pass<'a, O> {
        Pass { gate: self, now, out }
    }

    /// The client has said something: a message, and no batch of them.
    pub fn client<O: Out>(&mut self, now: Time, message: View<'_>, out: &mut O) {
        self.pass(now, out).said_by_client(message);
    }

    /// The agent has said something: a message, and no batch of them.
    pub fn agent<O: Out>(&mut self, now: Time, message: View<'_>, out: &mut O) {
        self.pass(now, out).said_by_agent(message);
    }

    /// What was to be recorded is on the disk, or could not be written.
    pub fn settled<O: Out>(&mut self, now: Time, ticket: Ticket, written: bool, out: &mut O) {
        self.pass(now, out).settled(ticket, written);
    }

    /// An agent of our own asks whether it may call a tool, before it tells of the call. The answer is [`Out::advise`]d once
    /// the decision is recorded.
    pub fn consult<O: Out>(&mut self, now: Time, number: u64, request: Request, out: &mut O) {
        self.pass(now, out).consult(number, request);
    }

    /// Somebody approves or rejects from elsewhere.
    ///
    /// # Errors
    /// When nothing of this name is open, or it is not theirs to approve.
    pub fn ballot<O: Out>(&mut self, now: Time, ballot: Ballot, out: &mut O) -> Result<(), BallotError> {
        self.pass(now, out).ballot(ballot)
    }

    /// The client says nothing more, and may still read: nothing is asked of it from now on.
    pub fn client_mute<O: Out>(&mut self, now: Time, out: &mut O) {
        self.pass(now, out).mute();
    }

    /// Whether all that the client has asked is answered, and no turn of its goes on.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.owes_nothing()
    }

    /// The client is gone: its sessions are over.
    pub fn client_gone<O: Out>(&mut self, now: Time, out: &mut O) {
        let mut pass = self.pass(now, out);
        pass.record_omitted();
        pass.all_over("the client has gone");
    }

    /// The same of one that may still read: what it has asked and nobody has answered is answered with `why`.
    pub fn client_left<O: Out>(&mut self, now: Time, why: &str, out: &mut O) {
        let mut pass = self.pass(now, out);
        pass.record_omitted();
        pass.leave(why);
    }

    /// The agent is gone: its sessions are over. `how` it ended is for the client, made safe to show.
    pub fn agent_gone<O: Out>(&mut self, now: Time, how: Option<&str>, out: &mut O) {
        let mut pass = self.pass(now, out);
        pass.record_omitted();
        pass.agent_gone(how);
    }

    /// Does what is due.
    pub fn tick<O: Out>(&mut self, now: Time, out: &mut O) {
        self.pass(now, out).tick();
    }

    /// How long anything may take.
    #[must_use]
    pub fn patience(&self) -> &Patience {
        &self.mandate.patience
    }

    /// When something may be due: [`Self::tick`] finds out.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.due
    }

    /// What waits for an approval.
    #[must_use]
    pub fn open(&self) -> Vec<Open> {
        self.hearings
            .iter()
            .map(|(number, hearing)| hearing.open(&self.setting, &self.who, *number))
            .collect()
    }
}

impl<O: Out> Pass<'_, O> {
    /// The time in seconds since 1970.
    fn unix(&self) -> u64 {
        self.gate.setting.began + self.now.as_secs()
    }

    fn parties<'a>(&'a self, session: &'a str) -> Parties<'a> {
        let lineage = self.gate.sessions.get(session).and_then(|session| session.lineage.as_ref());
        let parent = lineage.map(|lineage| &*lineage.parent);
        Parties { mandate: &self.gate.mandate, who: &self.gate.who, session, parent }
    }

    /// Has something recorded. Of refusals beyond the rate only the number is: then nothing has to be waited for.
    fn record(&mut self, event: Event) -> Ticket {
        match self.gate.refusals.admit(self.now, event) {
            Ok(event) => self.record_always(event),
            Err(due) => {
                self.gate.arm(due);
                Ticket::UNRECORDED
            }
        }
    }

    fn record_always(&mut self, event: Event) -> Ticket {
        self.gate.tickets += 1;
        let ticket = Ticket(self.gate.tickets);
        self.out.record(ticket, event);
        ticket
    }

    /// Sends a line, once what it follows from is recorded.
    fn send(&mut self, way: Way, parts: &[&[u8]], after: Option<Ticket>, otherwise: Otherwise) {
        let lane = match way {
            Way::ToClient => &mut self.gate.to_client,
            Way::ToAgent => &mut self.gate.to_agent,
        };
        let after = after.filter(|ticket| *ticket != Ticket::UNRECORDED);
        if after.is_none() && lane.is_empty() {
            self.write(way, parts);
        } else {
            lane.push(parts.concat().into(), after, otherwise);
        }
    }

    fn write(&mut self, way: Way, parts: &[&[u8]]) {
        match way {
            Way::ToClient => self.out.to_client(parts),
            Way::ToAgent => self.out.to_agent(parts),
        }
    }

    fn settled(&mut self, ticket: Ticket, written: bool) {
        self.gate.settled = self.gate.settled.max(ticket);
        self.give_advice(ticket, written);
        for way in [Way::ToClient, Way::ToAgent] {
            let lane = match way {
                Way::ToClient => &mut self.gate.to_client,
                Way::ToAgent => &mut self.gate.to_agent,
            };
            let failed = if written {
                lane.recorded(ticket);
                Vec::new()
            } else {
                lane.unrecorded(ticket)
            };
            for otherwise in failed {
                self.instead(otherwise);
            }
            self.flush(way);
        }
    }

    /// What is done because something could not be recorded.
    fn instead(&mut self, otherwise: Otherwise) {
        match otherwise {
            Otherwise::Nothing => {}
            Otherwise::Say(way, line) => self.send(way, &[&line], None, Otherwise::Nothing),
            Otherwise::Unbegun(line, id) => {
                let Some(owed) = self.gate.asked.remove(&id) else { return };
                match owed.what {
                    Asked::Prompt { session } => {
                        if let Some(session) = self.gate.sessions.get_mut(&session) {
                            session.prompts.retain(|prompt| *prompt != id);
                            session.runs = false;
                            session.heard = None;
                        }
                    }
                    Asked::Open { session, replays } => self.unopened(&session, replays),
                    _ => {}
                }
                // After a deadline the client has its answer.
                if !owed.is_late {
                    self.send(Way::ToClient, &[&line], None, Otherwise::Nothing);
                }
            }
            Otherwise::Unserved(line, id) => {
                self.send(Way::ToAgent, &[&line], None, Otherwise::Nothing);
                if let Some(Served::Service { session, call, .. }) = self.gate.served.remove(&id) {
                    if let Some(session) = self.gate.sessions.get_mut(&session) {
                        session.calls.remove(&call);
                    }
                    self.halt_unrecorded(&session);
                }
            }
            Otherwise::Halt(session) => self.halt_unrecorded(&session),
            Otherwise::Fail(line, session) => {
                self.send(Way::ToAgent, &[&line], None, Otherwise::Nothing);
                self.halt_unrecorded(&session);
            }
        }
    }

    fn flush(&mut self, way: Way) {
        loop {
            let lane = match way {
                Way::ToClient => &mut self.gate.to_client,
                Way::ToAgent => &mut self.gate.to_agent,
            };
            let Some((line, otherwise)) = lane.pop() else { return };
            if let Otherwise::Unserved(_, id) = &otherwise
                && !self.may_be_sent(id)
            {
                continue;
            }
            self.write(way, &[&line]);
        }
    }
}
