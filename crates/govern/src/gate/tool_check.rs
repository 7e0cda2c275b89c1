//! Questions of an agent of our own: whether it may call a tool, before it tells of the call or makes it.

use super::api::{Out, Request, Ticket};
use super::retained::Charge;
use super::session::{Case, Origin, key_of};
use super::{Pass, REPLAYING, UNRECORDED};
use crate::audit_events::Approved;
use crate::call::Call;

/// How many decided calls are remembered that were not told of yet.
const MOST_DECIDED: usize = 256;

/// What our own agent's tools for the files and terminals of its client do.
fn kind_of(tool: &str) -> &'static str {
    match tool {
        "read_file" => "read",
        "write_file" | "edit_file" => "edit",
        "run_command" => "execute",
        _ => "other",
    }
}

/// An answer that waits until it is recorded.
#[derive(Debug)]
pub(super) struct Advice {
    after: Ticket,
    number: u64,
    refusal: Option<String>,
}

impl<O: Out> Pass<'_, O> {
    pub(super) fn consult(&mut self, number: u64, request: Request) {
        let Request { session: name, call: id, server, tool, name: told_as, arguments } = request;
        let key = key_of(&id);
        let kind = if server.is_none() { kind_of(&tool) } else { "other" };
        let call = Call::known(server, &tool, kind, arguments).told_as(told_as);
        let bytes = call.retained_bytes();
        let (is_stopping, is_replaying) = (self.gate.is_stopping(&name), self.gate.is_replaying(&name));
        let Some(session) = self.session(&name) else {
            return self.out.advise(number, Some("there is no such session".to_owned()));
        };
        if is_replaying {
            return self.out.advise(number, Some(REPLAYING.to_owned()));
        }
        if session.calls.contains_key(&key) {
            return self.out.advise(number, Some("another call has this id".to_owned()));
        }
        if is_stopping || !self.has_room_for_call(&name, &key, bytes) {
            return self.out.advise(number, Some("the turn is to end".to_owned()));
        }
        if let Some(session) = self.gate.sessions.get_mut(&*name) {
            session.add_call(&self.gate.retained, &key, Case { call, ..Case::default() });
        }
        let ticket = self.judge(&name, &key);
        let (Some(ticket), Some(case)) = (ticket, self.case(&name, &key)) else { return };
        match case.approved.clone() {
            Approved::Pending => self.hear(&name, &key, Origin::Consult { number }, Some(ticket)),
            approved => self.advise(&name, &key, number, &approved, ticket),
        }
    }

    /// Answers once that is recorded, and remembers what was decided for when the call is told of.
    pub(super) fn advise(&mut self, name: &str, key: &str, number: u64, approved: &Approved, after: Ticket) {
        let refusal = match approved {
            Approved::Refused(why) => Some(why.clone()),
            _ => None,
        };
        if let Some(session) = self.gate.sessions.get_mut(name)
            && let Some((mut case, charge)) = session.calls.remove_charged(key)
            && refusal.is_none()
        {
            case.leads_on = true;
            session.decided.push((key.into(), *case, charge));
            if session.decided.len() > MOST_DECIDED {
                session.decided.remove(0);
            }
        }
        // A refusal that is only counted is waited for by nothing.
        if after == Ticket::UNRECORDED && refusal.is_some() {
            return self.out.advise(number, refusal);
        }
        self.gate.advice.push_back(Advice { after, number, refusal });
    }

    /// A call is told of that was decided before: then that holds for it.
    pub(super) fn adopt_decided(&mut self, name: &str, id: &str) -> bool {
        let Some(session) = self.gate.sessions.get_mut(name) else { return false };
        let Some(case) = session.calls.get(id) else { return false };
        let is_it = |(decided_id, decided, _): &(Box<str>, Case, Charge)| {
            **decided_id == *id
                && decided.call.input == case.call.input
                && decided.call.is_named_like(&case.call)
        };
        let Some(at) = session.decided.iter().position(is_it) else { return false };
        let (_, decided, _) = session.decided.remove(at);
        let Some(session) = self.gate.sessions.get(name) else { return false };
        let is_unmoved = decided.leads == Some(self.followed(session, &decided.call).leads);
        let Some(session) = self.gate.sessions.get_mut(name) else { return false };
        let Some(case) = session.calls.get_mut(id) else { return false };
        let (held, told) = (std::mem::take(&mut case.held), std::mem::take(&mut case.call));
        let terminal = case.terminal.take();
        **case = Case { held, terminal, ..decided };
        case.call.go_on(told);
        case.settle(case.approved.clone());
        let digest = case.call.digest();
        if let Some(counted) = &mut case.counted {
            counted.set_digest(digest);
        }
        // It may name further places than when it was decided.
        if is_unmoved
            && let Some(session) = self.gate.sessions.get(name)
            && let Some(case) = session.calls.get(id)
        {
            let leads = Some(self.followed(session, &case.call).leads);
            if let Some(case) = self.case(name, id) {
                case.leads = leads;
            }
        }
        true
    }

    /// Something was recorded or could not be: whoever waits for it is answered.
    pub(super) fn give_advice(&mut self, ticket: Ticket, written: bool) {
        let (due, rest) = std::mem::take(&mut self.gate.advice)
            .into_iter()
            .partition(|advice| if written { advice.after <= ticket } else { advice.after >= ticket });
        self.gate.advice = rest;
        for Advice { number, refusal, .. } in due {
            let refusal = if written { refusal } else { Some(UNRECORDED.to_owned()) };
            self.out.advise(number, refusal);
        }
    }
}
