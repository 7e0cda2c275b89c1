//! A client that says nothing more and may still read: what it has asked is answered, and what it would have to answer is not
//! waited for.

use narrows_wire::{Code, Effects, RpcError, message};
use serde_json::json;

use super::api::Out;
use super::outbox::{Otherwise, Way};
use super::session::{Asked, Owed, Served, Session};
use super::session_open::unrecorded;
use super::{Gate, Pass, Raw};
use crate::audit_events::Approved;

/// Why nothing is asked of it.
const MUTE: &str = "the client has ended its input, so it cannot answer";

impl Gate {
    /// Whether all that the client has asked is answered, as far as that depends on somebody else than the disk.
    pub(super) fn owes_nothing(&self) -> bool {
        self.asked.values().all(|owed| owed.is_late)
            && !self.sessions.values().any(Session::is_working)
            && self.hearings.is_empty()
            && self.to_client.is_empty()
            && self.to_agent.is_empty()
    }
}

impl<O: Out> Pass<'_, O> {
    /// The client says nothing more: what it was asked it will not answer.
    pub(super) fn mute(&mut self) {
        self.gate.is_mute = true;
        let hearings = self.gate.hearings.iter().filter(|(_, hearing)| hearing.counts(&self.gate.who));
        let hearings: Vec<u64> = hearings.map(|(number, _)| *number).collect();
        for number in hearings {
            self.decide(number, Approved::Refused(MUTE.to_owned()));
        }
        let mut served: Vec<(Raw, Served)> = self.gate.served.drain().collect();
        served.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (id, served) in served {
            match served {
                Served::Service { session: name, call, .. } => {
                    let case =
                        self.gate.sessions.get_mut(&*name).and_then(|session| session.calls.remove(&*call));
                    let event =
                        case.and_then(|case| self.called(&name, &call, &case, json!({"error": MUTE})));
                    let ticket = event.map(|event| self.record(event));
                    let line = message::error(&id, &unanswered());
                    self.send(Way::ToAgent, &[&line], ticket, Otherwise::fail(&id, &name));
                    self.resume(&name);
                }
                Served::Wait { session } => {
                    self.refuse_agent(&id, &unanswered());
                    self.resume(&session);
                }
                Served::Connect { .. } | Served::Listed { .. } | Served::Shown { .. } => {
                    self.refuse_agent(&id, &unanswered());
                }
                // It was answered by us, or is about a hearing that others may settle.
                Served::Late { .. } | Served::Question(_) => {}
            }
        }
    }

    /// Whether the client cannot be asked any more. Then the agent is told.
    pub(super) fn is_beyond_asking(&mut self, id: &[u8]) -> bool {
        if self.gate.is_mute {
            self.refuse_agent(id, &unanswered());
        }
        self.gate.is_mute
    }

    /// Why nobody can be asked who would have to be: the client, and it says nothing more.
    pub(super) fn unaskable(&self) -> Option<Approved> {
        self.gate.is_mute.then(|| Approved::Refused(MUTE.to_owned()))
    }

    /// All sessions are over; what the client has asked and nobody has answered is answered once that is recorded.
    pub(super) fn leave(&mut self, why: &str) {
        let mut owed: Vec<(Raw, Owed)> = self.gate.asked.drain().filter(|(_, owed)| !owed.is_late).collect();
        owed.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let ticket = self.all_over("the client has gone");
        for (id, owed) in owed {
            let is_turn = matches!(owed.what, Asked::Prompt { .. }) && !self.gate.is_v2;
            let meta = json!({"aip44": {"interrupted": why}});
            let line = match is_turn {
                true => message::response(&id, &json!({"stopReason": "cancelled", "_meta": meta})).ok(),
                false => {
                    let error = RpcError::new(Code::Cancelled, why.to_owned()).effects(Effects::Possible);
                    Some(message::error(&id, &error))
                }
            };
            if let Some(line) = line {
                let otherwise = Otherwise::Say(Way::ToClient, unrecorded(&id));
                self.send(Way::ToClient, &[&line], ticket, otherwise);
            }
        }
    }
}

/// The error of an agent that wants something of a client that can say nothing more.
fn unanswered() -> RpcError {
    RpcError::new(Code::Cancelled, MUTE)
}
