//! Turns: begun, ended, cut short, and whole sessions that are over.

use narrows_acp::method;
use narrows_wire::{Code, Effects, RpcError, View, message};
use serde_json::{Value, json};

use super::api::{Out, Ticket};
use super::lane::{Otherwise, Way};
use super::opening::{unnamed, unrecorded};
use super::session::{Asked, Case, Origin};
use super::{Pass, Raw};
use crate::call::Call;
use crate::life::Life;
use crate::mandate::Autonomy;
use crate::record;

/// Why what waits for an approval in a turn is not done once its client has cancelled it.
pub(super) const CANCELLED: &str = "the turn was cancelled";

impl<O: Out> Pass<'_, O> {
    /// The client wants a turn.
    pub(super) fn prompt(&mut self, id: &[u8], message: View<'_>) {
        let Some(name) = message.session() else { return self.refuse_client(id, &unnamed()) };
        if self.gate.sessions.get(&*name).is_some_and(|session| session.replays > 0) {
            // What the turn does could not be told from what was done before.
            let error = RpcError::new(Code::InvalidRequest, "the session is still being opened");
            return self.refuse_client(id, &error);
        }
        if self.gate.mandate.autonomy != Autonomy::Gated {
            return self.begin_turn(id, &name, message, None);
        }
        let key = format!("turn {}", String::from_utf8_lossy(id));
        let call = Call::known(None, "turn", "other", json!({}));
        let verdict = self.turn_verdict(&call);
        let Some(session) = self.session(&name) else { return self.forward(message) };
        session.calls.insert(key.as_str().into(), Case { call, verdict: Some(verdict), ..Case::default() });
        let origin = Origin::Turn { line: message.bytes().to_vec().into(), id: id.into() };
        self.hear(&name, &key, origin, None);
    }

    /// Sends a prompt on, once what lets it begin is recorded.
    pub(super) fn begin_turn(&mut self, id: &[u8], name: &str, message: View<'_>, after: Option<Ticket>) {
        if !self.await_answer(id, Asked::Prompt { session: name.into() }) {
            return;
        }
        let is_v2 = self.gate.is_v2;
        if let Some(session) = self.session(name) {
            session.prompts.push(id.into());
            session.runs = is_v2;
        }
        let otherwise = Otherwise::Unbegun(unrecorded(id), id.into());
        self.send(Way::ToAgent, &[message.bytes()], after, otherwise);
    }

    /// The client stops a turn: what waits for an approval in it is not done.
    pub(super) fn cancelled_by_client(&mut self, name: &str) {
        for number in self.hearings_of(name) {
            self.decide(number, record::Approved::Refused(CANCELLED.to_owned()));
        }
    }

    /// The agent has answered a prompt: in version 1 the turn is over.
    pub(super) fn turn_answered(&mut self, id: &[u8], name: &str, message: View<'_>) {
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.prompts.retain(|prompt| **prompt != *id);
        }
        if self.gate.is_v2 {
            return self.turn_accepted(id, name, message);
        }
        if let Some((reason, ticket)) = self.unhalt(name) {
            let meta = json!({"aip44": {"interrupted": reason}});
            let Ok(line) = message::response(id, &json!({"stopReason": "refusal", "_meta": meta})) else {
                return;
            };
            let otherwise = Otherwise::Say(Way::ToClient, unrecorded(id));
            return self.send(Way::ToClient, &[&line], ticket, otherwise);
        }
        let ticket = match (message.error(), stop_reason(message).as_deref()) {
            (Some(error), _) => self.step(name, Life::Interrupted, Some(&error.message)),
            (None, Some(reason @ ("cancelled" | "refusal"))) => {
                self.step(name, Life::Interrupted, Some(reason))
            }
            _ => self.step(name, Life::Completed, None),
        };
        self.send_marked(message, ticket, Otherwise::Say(Way::ToClient, unrecorded(id)));
    }

    /// The agent has answered a prompt of version 2: a turn has begun, or there is none.
    fn turn_accepted(&mut self, id: &[u8], name: &str, message: View<'_>) {
        let Some(error) = message.error() else {
            return self.send_marked(message, None, Otherwise::Nothing);
        };
        self.unhalt(name);
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.runs = false;
        }
        let ticket = self.step(name, Life::Interrupted, Some(&error.message));
        self.send_marked(message, ticket, Otherwise::Say(Way::ToClient, unrecorded(id)));
    }

    /// A session that was halted has stopped. Why it was, and what is still to be recorded of that.
    pub(super) fn unhalt(&mut self, name: &str) -> Option<(String, Option<Ticket>)> {
        let settled = self.gate.settled;
        let session = self.gate.sessions.get_mut(name)?;
        session.stop_by = None;
        let ticket = session.halted_at.take().filter(|ticket| *ticket > settled);
        Some((session.halted.take()?, ticket))
    }

    /// Takes the operator a step on, which is recorded if it is one.
    pub(super) fn step(&mut self, name: &str, next: Life, reason: Option<&str>) -> Option<Ticket> {
        let session = self.gate.sessions.get_mut(name)?;
        if !session.life.step(next) {
            return None;
        }
        let event = self.parties(name).step(next, reason);
        Some(self.record(event))
    }

    /// Stops a turn in which the agent does what it may not.
    pub(super) fn halt(&mut self, name: &str, reason: &str) {
        let by = self.now + self.gate.mandate.patience.cancel;
        let Some(session) = self.session(name) else { return };
        if session.is_stopping() {
            return;
        }
        session.halted = Some(reason.to_owned());
        session.stop_by = Some(by);
        let ticket = self.step(name, Life::Interrupted, Some(reason));
        if let Some(session) = self.session(name) {
            session.halted_at = ticket;
        }
        for number in self.hearings_of(name) {
            self.decide(number, record::Approved::Refused(reason.to_owned()));
        }
        if let Ok(line) = message::notification(method::SESSION_CANCEL, &json!({"sessionId": name})) {
            self.send(Way::ToAgent, &[&line], None, Otherwise::Nothing);
        }
    }

    /// A session is over: what never finished is recorded as such. The last thing that is.
    pub(super) fn over(&mut self, name: &str, reason: &str) -> Option<Ticket> {
        for number in self.hearings_of(name) {
            self.decide(number, record::Approved::Refused(reason.to_owned()));
        }
        let mut session = self.gate.sessions.remove(name)?;
        self.forget_connections();
        let mut open: Vec<(Box<str>, Case)> =
            session.calls.drain().filter(|(_, case)| !case.is_closed && case.approved.is_given()).collect();
        open.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (id, case) in open {
            let event = self.called(name, &id, &case, json!({"error": "interrupted"}));
            self.record_maybe(event);
        }
        if session.is_working() && session.life.step(Life::Interrupted) {
            let event = self.parties(name).step(Life::Interrupted, Some(reason));
            self.record(event);
        }
        let event = self.parties(name).closed(reason);
        Some(self.record(event))
    }

    fn record_maybe(&mut self, event: Option<narrows_audit::Event>) {
        if let Some(event) = event {
            self.record(event);
        }
    }

    /// All sessions are over.
    pub(super) fn all_over(&mut self, reason: &str) {
        let mut names: Vec<Box<str>> = self.gate.sessions.keys().cloned().collect();
        names.sort_unstable();
        for name in names {
            self.over(&name, reason);
        }
    }

    /// The agent is gone: what it owes it will not answer.
    pub(super) fn agent_gone(&mut self) {
        let mut owed: Vec<Raw> = self.gate.asked.drain().map(|(id, _)| id).collect();
        owed.sort_unstable();
        let error = RpcError::new(Code::WorkerLost, "the agent has gone").effects(Effects::Possible);
        for id in owed {
            let line = message::error(&id, &error);
            self.send(Way::ToClient, &[&line], None, Otherwise::Nothing);
        }
        self.all_over("the agent has gone");
    }

    pub(super) fn tick(&mut self) {
        let due: Vec<u64> = self
            .gate
            .hearings
            .iter()
            .filter(|(_, hearing)| hearing.due <= self.now)
            .map(|(number, _)| *number)
            .collect();
        for number in due {
            self.decide(number, record::Approved::Refused("nobody approved in time".to_owned()));
        }
        let now = self.now;
        let late =
            self.gate.sessions.values_mut().filter(|session| session.stop_by.is_some_and(|by| by <= now));
        let mut any = false;
        for session in late {
            session.stop_by = None;
            any = true;
        }
        if any {
            self.out.end_agent("it went on with a turn that was stopped");
        }
    }
}

fn stop_reason(message: View<'_>) -> Option<String> {
    let result: Value = serde_json::from_slice(message.result()?).ok()?;
    Some(result.get("stopReason")?.as_str()?.to_owned())
}
