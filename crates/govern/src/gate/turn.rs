//! Turns: begun, ended, cut short, and whole sessions that are over.

use std::borrow::Cow;

use narrows_acp::method;
use narrows_wire::{Code, Effects, RpcError, View, message};
use serde_json::{Value, json};

use super::api::{Out, Ticket};
use super::client_services::ambiguous;
use super::deadlines::late;
use super::outbox::{Otherwise, Way};
use super::session::{Asked, Case, Halt, Origin, Owed, Session};
use super::session_open::{UNDECLARED, crowded, unnamed, unrecorded, unrecorded_outcome};
use super::{Pass, Raw, UNRECORDED, prompt_content};
use crate::audit_events::{self, Sender};
use crate::call::Call;
use crate::config::Autonomy;
use crate::lifecycle::Life;
use crate::unique_keys;

/// Why what waits for an approval in a turn is not done once its client has cancelled it.
pub(super) const CANCELLED: &str = "the turn was cancelled";

impl<O: Out> Pass<'_, O> {
    /// The client wants a turn.
    pub(super) fn prompt(&mut self, id: &[u8], message: View<'_>) {
        let Some(name) = self.ready(id, message) else { return };
        let Some(params) = unique_keys::read(message.params()) else {
            return self.refuse_client(id, &ambiguous());
        };
        // The gate cannot check the capabilities of anything else, nor show it to an approver.
        if params.get("prompt").is_some_and(|prompt| !prompt.is_array()) {
            let error = RpcError::new(Code::InvalidParams, "prompt is not an array");
            return self.refuse_client(id, &error);
        }
        if let Some(kind) = prompt_content::undeclared(&params, self.gate.mandate.capabilities) {
            return self.refuse_block(id, &name, kind);
        }
        if self.gate.mandate.autonomy != Autonomy::Gated {
            return self.begin_turn(id, &name, message, None);
        }
        let key = format!("turn {}", String::from_utf8_lossy(id));
        let call = Call::known(None, "turn", "other", prompt_content::matter(&params, message.params()));
        let verdict = self.turn_verdict(&call);
        if !self.open_wish(id, &name, &key, call) {
            return;
        }
        if let Some(case) = self.case(&name, &key) {
            case.verdict = Some(verdict);
        }
        let origin = Origin::Turn { line: message.bytes().to_vec().into(), id: id.into() };
        self.hear(&name, &key, origin, None);
    }

    /// Refuses a prompt with a content block that the manifest does not declare.
    pub(super) fn refuse_block(&mut self, id: &[u8], name: &str, kind: &str) {
        let event =
            self.parties(name).refused("prompt.refused", "undeclared_capability", json!({"type": kind}));
        let ticket = self.record(event);
        let error =
            RpcError::new(Code::InvalidParams, UNDECLARED).with("code", json!("undeclared_capability"));
        let line = message::error(id, &error);
        let otherwise = Otherwise::Say(Way::ToClient, unrecorded(id));
        self.send(Way::ToClient, &[&line], Some(ticket), otherwise);
    }

    /// The session that a request of the client's is about, if something can be begun in it: one that was opened here, and
    /// not still being opened. Else the client is told.
    pub(super) fn ready<'a>(&mut self, id: &[u8], message: View<'a>) -> Option<Cow<'a, str>> {
        let Some(name) = message.session() else {
            self.refuse_client(id, &unnamed());
            return None;
        };
        match self.gate.sessions.get(&*name) {
            Some(session) if session.replays > 0 => {
                // What the agent did in it would pass for history.
                let error = RpcError::new(Code::InvalidRequest, "the session is still being opened")
                    .with("condition", json!("session_busy"))
                    .with("retryable", json!(true));
                self.refuse_client(id, &error);
            }
            Some(session) if session.is_admitted => return Some(name),
            None if self.gate.sessions.len() >= super::MOST_OPEN => self.refuse_client(id, &crowded()),
            _ => self.refuse_unknown(id, &message.method().unwrap_or_default(), message),
        }
        None
    }

    /// Notes what the client wants and has to be decided. Not twice by the same id, and not if there is no room for it.
    pub(super) fn open_wish(&mut self, id: &[u8], name: &str, key: &str, call: Call) -> bool {
        let is_asked = self.gate.asked.contains_key(id);
        let Some(session) = self.gate.sessions.get(name) else { return false };
        let error = if is_asked || session.calls.contains_key(key) {
            RpcError::new(Code::DuplicateId, "a request with this id is still unanswered")
        } else if !self.has_room_for_call(name, key, call.retained_bytes()) {
            RpcError::new(Code::Backpressure, "too many requests are unanswered")
        } else {
            if let Some(session) = self.gate.sessions.get_mut(name) {
                session.add_call(&self.gate.retained, key, Case { call, ..Case::default() });
            }
            return true;
        };
        self.refuse_client(id, &error);
        false
    }

    /// Sends a prompt on, once what lets it begin is recorded.
    pub(super) fn begin_turn(&mut self, id: &[u8], name: &str, message: View<'_>, after: Option<Ticket>) {
        if !self.await_answer(id, message, Asked::Prompt { session: name.into() }) {
            return;
        }
        let is_v2 = self.gate.is_v2;
        if let Some(session) = self.session(name) {
            if !session.is_working() {
                session.forget_terminals();
            }
            session.prompts.push(id.into());
            session.runs = is_v2;
        }
        self.listen(name);
        // An approval of the turn has recorded what it is about.
        let after = after.unwrap_or_else(|| {
            let params = message.params().unwrap_or_default();
            let event = self.parties(name).accepted("prompt.accepted", method::SESSION_PROMPT, params);
            self.record(event)
        });
        let otherwise = Otherwise::Unbegun(unrecorded(id), id.into());
        self.send(Way::ToAgent, &[message.bytes()], Some(after), otherwise);
    }

    /// The client stops a turn: what waits for an approval in it is not done.
    pub(super) fn cancelled_by_client(&mut self, name: &str) {
        for number in self.hearings_within(name) {
            self.decide(number, audit_events::Approved::Refused(CANCELLED.to_owned()));
        }
        let goes_on = |session: &Session| session.heard.is_some() && session.stop_by.is_none();
        if self.gate.sessions.get(name).is_some_and(goes_on) {
            self.stop_soon(name);
        }
    }

    /// The client closes a session: what goes on in it is to end first.
    pub(super) fn close(&mut self, id: &[u8], message: View<'_>) {
        let Some(name) = message.session() else { return self.refuse_client(id, &unnamed()) };
        if !self.await_answer(id, message, Asked::Close { session: (&*name).into() }) {
            return;
        }
        for number in self.hearings_within(&name) {
            self.decide(number, audit_events::Approved::Refused("the session is being closed".to_owned()));
        }
        if self.gate.sessions.get(&*name).is_some_and(|session| session.heard.is_some()) {
            self.cancel(&name);
        }
        let is_delete = message.method().is_some_and(|method| method == method::SESSION_DELETE);
        if !is_delete && self.gate.sessions.contains_key(&*name) {
            // That it is over is recorded when the agent says so.
            return self.forward(message);
        }
        let ticket = self.record_method(Sender::Client, &message.method().unwrap_or_default(), message, None);
        let otherwise = Otherwise::Unbegun(unrecorded(id), id.into());
        self.send(Way::ToAgent, &[message.bytes()], Some(ticket), otherwise);
    }

    /// Tells the agent to end a turn.
    fn cancel(&mut self, name: &str) {
        if let Ok(line) = message::notification(method::SESSION_CANCEL, &json!({"sessionId": name})) {
            self.send(Way::ToAgent, &[&line], None, Otherwise::Nothing);
        }
    }

    /// Answers the prompts of a session that is over and whose agent has not.
    pub(super) fn settle_prompts(&mut self, name: &str) {
        let prompts = self.gate.sessions.get_mut(name).map(|session| std::mem::take(&mut session.prompts));
        for id in prompts.unwrap_or_default() {
            if let Some(owed) = self.gate.asked.get_mut(&id) {
                owed.is_late = true;
            }
            let ticket = self.step(name, Life::Interrupted, Some("it was closed"));
            if let Ok(line) = message::response(&id, &json!({"stopReason": "cancelled"})) {
                let otherwise = Otherwise::Say(Way::ToClient, unrecorded_outcome(&id));
                self.send(Way::ToClient, &[&line], ticket, otherwise);
            }
        }
    }

    /// A turn is over, and nothing more has to be heard of it.
    pub(super) fn rest(&mut self, name: &str) {
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.heard = None;
        }
    }

    /// The agent has answered a prompt: in version 1 the turn is over.
    pub(super) fn turn_answered(&mut self, id: &[u8], name: &str, message: View<'_>) {
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.prompts.retain(|prompt| **prompt != *id);
            let is_over = session.prompts.is_empty() && (!self.gate.is_v2 || message.result().is_none());
            session.heard = session.heard.filter(|_| !is_over);
        }
        if self.gate.is_v2 {
            return self.turn_accepted(id, name, message);
        }
        if let Some((Halt { reason, is_late }, ticket)) = self.unhalt(name) {
            if is_late {
                let line = message::error(id, &late(&reason));
                let otherwise = Otherwise::Say(Way::ToClient, line.clone());
                return self.send(Way::ToClient, &[&line], ticket, otherwise);
            }
            let meta = json!({"aip44": {"interrupted": reason}});
            let Ok(line) = message::response(id, &json!({"stopReason": "refusal", "_meta": meta})) else {
                return;
            };
            let otherwise = Otherwise::Say(Way::ToClient, unrecorded_outcome(id));
            return self.send(Way::ToClient, &[&line], ticket, otherwise);
        }
        let result: Value =
            message.result().and_then(|it| serde_json::from_slice(it).ok()).unwrap_or_default();
        let ticket = match (message.error(), failure(&result), result["stopReason"].as_str()) {
            (Some(error), ..) => self.step(name, Life::Interrupted, Some(&error.message)),
            (None, Some(failed), _) => self.step(name, Life::Interrupted, Some(&failed)),
            (None, None, Some(reason @ ("cancelled" | "refusal"))) => {
                self.step(name, Life::Interrupted, Some(reason))
            }
            _ => self.step(name, Life::Completed, None),
        };
        self.send_marked(message, ticket, Otherwise::Say(Way::ToClient, unrecorded_outcome(id)));
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
        self.send_marked(message, ticket, Otherwise::Say(Way::ToClient, unrecorded_outcome(id)));
    }

    /// A session that was halted has stopped. Why it was, and what is still to be recorded of that.
    pub(super) fn unhalt(&mut self, name: &str) -> Option<(Halt, Option<Ticket>)> {
        let settled = self.gate.settled;
        for child in self.gate.below(name) {
            if let Some(child) = self.gate.sessions.get_mut(&child) {
                (child.halted, child.stop_by) = (None, None);
            }
        }
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

    /// Records that a session runs, if a turn goes on in it. What an agent sends after a turn, or while it is stopped, begins
    /// none, and nothing would record its end.
    pub(super) fn step_to_running(&mut self, name: &str) -> Option<Ticket> {
        let session = self.gate.sessions.get(name)?;
        let is_turn = session.lineage.is_some() || session.heard.is_some() || session.is_working();
        if !is_turn || self.gate.is_stopping(name) {
            return None;
        }
        self.step(name, Life::Running, None)
    }

    /// Stops a turn in which the agent does what it may not.
    pub(super) fn halt(&mut self, name: &str, reason: &str) {
        self.stop(name, Halt { reason: reason.to_owned(), is_late: false });
    }

    /// Stops a turn whose acts cannot be recorded. One that is over already has nothing to be stopped, and nothing to be
    /// waited for.
    pub(super) fn halt_unrecorded(&mut self, name: &str) {
        let root = self.gate.sessions.get(self.gate.root_of(name));
        if root.is_some_and(|session| session.heard.is_some()) {
            self.halt(name, UNRECORDED);
        } else {
            self.cancel(name);
        }
    }

    /// Stops a turn: that of the session at the top, if a child does what it may not. If the agent does not stop, it is ended.
    pub(super) fn stop(&mut self, name: &str, halt: Halt) {
        if self.gate.is_stopping(name) {
            return;
        }
        let root: Box<str> = self.gate.root_of(name).into();
        let is_turn = |session: &Session| session.heard.is_some() || session.is_working();
        if *root != *name && self.gate.sessions.get(&root).is_some_and(is_turn) {
            if let Some(session) = self.session(name) {
                session.halted = Some(halt.clone());
            }
            self.step(name, Life::Interrupted, Some(&halt.reason));
            self.cancel(name);
            return self.stop(&root, halt);
        }
        let Some(session) = self.session(name) else { return };
        let reason = halt.reason.clone();
        session.halted = Some(halt);
        self.stop_soon(name);
        let ticket = self.step(name, Life::Interrupted, Some(&reason));
        if let Some(session) = self.session(name) {
            session.halted_at = ticket;
        }
        for number in self.hearings_within(name) {
            self.decide(number, audit_events::Approved::Refused(reason.clone()));
        }
        self.cancel(name);
    }

    /// A session is over: what never finished is recorded as such. The last thing that is.
    pub(super) fn over(&mut self, name: &str, reason: &str) -> Option<Ticket> {
        for number in self.hearings_within(name) {
            self.decide(number, audit_events::Approved::Refused(reason.to_owned()));
        }
        for child in self.gate.below(name) {
            self.over_alone(&child, reason);
        }
        self.over_alone(name, reason)
    }

    fn over_alone(&mut self, name: &str, reason: &str) -> Option<Ticket> {
        let session = self.gate.sessions.get_mut(name)?;
        let is_interrupted = session.is_working() && session.life.step(Life::Interrupted);
        let mut open: Vec<(Box<str>, Box<Case>)> =
            session.calls.drain().filter(|(_, case)| !case.is_closed && case.approved.is_given()).collect();
        open.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (id, case) in open {
            let event = self.called(name, &id, &case, json!({"error": "interrupted"}));
            self.record_maybe(event);
        }
        if is_interrupted {
            let event = self.parties(name).step(Life::Interrupted, Some(reason));
            self.record(event);
        }
        let event = self.parties(name).closed(reason);
        let is_child = self.gate.is_child(name);
        self.gate.sessions.remove(name);
        self.gate.note_closed(name, is_child);
        self.forget_connections();
        Some(self.record(event))
    }

    fn record_maybe(&mut self, event: Option<narrows_audit::Event>) {
        if let Some(event) = event {
            self.record(event);
        }
    }

    /// All sessions are over. The last thing that is recorded of it.
    pub(super) fn all_over(&mut self, reason: &str) -> Option<Ticket> {
        let mut names: Vec<Box<str>> = self.gate.sessions.keys().cloned().collect();
        names.sort_unstable();
        let mut last = None;
        for name in names {
            last = self.over(&name, reason).or(last);
        }
        last
    }

    /// The agent is gone: what it owes it will not answer.
    pub(super) fn agent_gone(&mut self, how: Option<&str>) {
        let mut owed: Vec<(Raw, Owed)> = self.gate.asked.drain().filter(|(_, owed)| !owed.is_late).collect();
        owed.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let words = how.map_or("the agent has gone".to_owned(), |how| format!("the agent has gone: {how}"));
        let gone = RpcError::new(Code::WorkerLost, words).effects(Effects::Possible);
        for (id, owed) in owed {
            let halted = owed.what.session().and_then(|name| self.gate.sessions.get(name)?.halted.as_ref());
            let line = match halted.filter(|halt| halt.is_late) {
                Some(halt) => message::error(&id, &late(&halt.reason)),
                None => message::error(&id, &gone),
            };
            self.send(Way::ToClient, &[&line], None, Otherwise::Nothing);
        }
        self.all_over("the agent has gone");
    }
}

/// Why a turn failed that ended all the same: agents that tell of a failure in the place of an answer say so in `_meta`.
pub(super) fn failure(holder: &Value) -> Option<String> {
    let error = holder["_meta"].get("narrows/error").filter(|error| !error.is_null())?;
    Some(failure_sentence(error).unwrap_or_else(|| "the turn failed".to_owned()))
}

/// The sentence for a failed model call with these fields, the same in both versions of the protocol: its kind, the HTTP status,
/// the endpoint, and the words of that. `None` if there is neither a kind nor words.
pub(super) fn failure_sentence(fields: &Value) -> Option<String> {
    let text = |key: &str| fields[key].as_str().filter(|text| !text.is_empty());
    let Some(kind) = text("kind") else { return text("message").map(str::to_owned) };
    let mut sentence = kind.to_owned();
    if let Some(status) = fields["status"].as_u64() {
        sentence.push_str(&format!(" (HTTP {status})"));
    }
    if let Some(url) = text("url") {
        sentence.push_str(&format!(" from {url}"));
    }
    if let Some(message) = text("message") {
        sentence.push_str(&format!(": {message}"));
    }
    Some(sentence)
}
