//! Deadlines: who has not answered in time, and what is done about it.
//!
//! [`Gate::deadline`](super::Gate::deadline) is the earliest moment at which something may be due. It is made earlier
//! where something is awaited, and found out anew only when it has come, so that a message costs nothing.

use std::time::Duration;

use narrows_acp::method;
use narrows_wire::{Code, Effects, RpcError, message};
use serde_json::{Value, json};

use super::api::{Out, Time};
use super::approval::name_of;
use super::outbox::{Otherwise, Way};
use super::retained::ChargedMap;
use super::session::{Asked, Halt, Owed, Served};
use super::{Gate, Pass, Raw};
use crate::audit_events::Approved;

impl Gate {
    /// Something may be due then.
    pub(super) fn arm(&mut self, at: Time) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Whether the agent waits for somebody else in this session: for an approval, or for the client.
    fn is_held(&self, name: &str) -> bool {
        let of_client = |served: &Served| match served {
            Served::Service { session, .. } | Served::Wait { session } => self.is_within(session, name),
            Served::Question(_)
            | Served::Late { .. }
            | Served::Connect { .. }
            | Served::Listed { .. }
            | Served::Shown { .. } => false,
        };
        self.hearings.values().any(|hearing| self.is_within(&hearing.session(), name))
            || self.served.values().any(of_client)
    }

    /// When something is due, as things are.
    fn next_due(&self) -> Option<Time> {
        let hearings = self.hearings.values().map(|hearing| hearing.due);
        let owed = self.asked.values().filter_map(|owed| owed.due);
        let served = self.served.values().filter_map(|served| match served {
            Served::Service { due, .. } => Some(*due),
            _ => None,
        });
        let stops = self.sessions.values().filter_map(|session| session.stop_by);
        let silence = self.mandate.patience.silence;
        let silences = self.sessions.iter().filter_map(|(name, session)| {
            let since = session.heard.filter(|_| session.halted.is_none())?;
            (!self.is_held(name)).then_some(since + silence)
        });
        hearings.chain(owed).chain(served).chain(stops).chain(silences).chain(self.refusals.due()).min()
    }
}

impl<O: Out> Pass<'_, O> {
    /// Something was said in a session, or need not be waited for any more: its silence begins anew.
    /// What a child says ends the silence of the turn it is a part of. Returns `true` if there is such a session.
    pub(super) fn heard(&mut self, name: &str) -> bool {
        let now = self.now;
        let Some(mut session) = self.gate.sessions.get_mut(name) else { return false };
        if let Some(lineage) = &session.lineage {
            let root = std::sync::Arc::clone(&lineage.root);
            let Some(above) = self.gate.sessions.get_mut(&*root) else { return true };
            session = above;
        }
        if let Some(heard) = &mut session.heard {
            *heard = now;
        }
        true
    }

    /// The same, where nothing was to be heard meanwhile.
    pub(super) fn resume(&mut self, name: &str) {
        self.heard(name);
        self.gate.arm(self.now + self.gate.mandate.patience.silence);
    }

    /// A turn begins: something is to be heard of it.
    pub(super) fn listen(&mut self, name: &str) {
        if let Some(session) = self.session(name) {
            session.heard = Some(Time::ZERO);
        }
        self.resume(name);
    }

    /// A turn is to end soon.
    pub(super) fn stop_soon(&mut self, name: &str) {
        let by = self.now + self.gate.mandate.patience.cancel;
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.stop_by = Some(by);
            self.gate.arm(by);
        }
    }

    /// Does what is due.
    pub(super) fn tick(&mut self) {
        let now = self.now;
        let due: Vec<u64> =
            self.gate.hearings.iter().filter(|(_, it)| it.due <= now).map(|(number, _)| *number).collect();
        for number in due {
            self.nobody_approved(number);
        }
        for id in ids(&self.gate.asked, |owed: &Owed| owed.due.is_some_and(|due| due <= now)) {
            self.agent_is_late(&id);
        }
        for id in ids(
            &self.gate.served,
            |served: &Served| matches!(served, Served::Service { due, .. } if *due <= now),
        ) {
            self.client_is_late(&id);
        }
        if self.gate.refusals.due().is_some_and(|due| due <= now) {
            self.record_omitted();
        }
        self.end_the_silent();
        self.end_the_stubborn();
        self.gate.due = self.gate.next_due();
    }

    /// Nobody has approved in time: that is a refusal.
    fn nobody_approved(&mut self, number: u64) {
        let Some(hearing) = self.gate.hearings.get_mut(&number) else { return };
        // Whoever was asked and has not answered learns that it is too late.
        hearing.told = true;
        let name = hearing.session();
        let id = name_of(&self.gate.setting, number);
        let why = format!("nobody approved {id} within {}", words(self.gate.mandate.patience.approval));
        let event = self.parties(&name).deadline("request.expired", method::SESSION_REQUEST_PERMISSION, &why);
        self.record(event);
        self.decide(number, Approved::Refused("nobody approved in time".to_owned()));
    }

    /// The agent has not answered in time: then we do, and what it says later is nobody's.
    fn agent_is_late(&mut self, id: &[u8]) {
        let Some(owed) = self.gate.asked.get_mut(id) else { return };
        owed.due = None;
        owed.is_late = true;
        let method = owed.method.clone();
        let closes = match &owed.what {
            Asked::Close { session } => Some(session.clone()),
            _ => None,
        };
        let session = owed.what.session().unwrap_or_default().to_owned();
        let waited = self.gate.mandate.patience.of(&method).unwrap_or_default();
        let why = format!("the agent did not answer {} within {}", shown(&method), words(waited));
        let event = self.parties(&session).deadline("request.expired", &method, &why);
        let ticket = self.record(event);
        let line = message::error(id, &late(&why));
        // Whoever waits is told, recorded or not.
        let otherwise = Otherwise::Say(Way::ToClient, line.clone());
        self.send(Way::ToClient, &[&line], Some(ticket), otherwise);
        if let Some(name) = closes {
            self.settle_prompts(&name);
            self.over(&name, "the agent did not close it in time");
            return self.out.release_agent("it did not close a session in time");
        }
        self.cancel_request(Way::ToAgent, id);
    }

    /// The agent has answered what was answered for it.
    pub(super) fn too_late(&mut self, owed: &Owed) {
        if let Asked::Open { session: name, replays: true } = &owed.what
            && let Some(session) = self.gate.sessions.get_mut(&**name)
        {
            // Only now is its history over.
            session.replays = session.replays.saturating_sub(1);
        }
        let session = owed.what.session().unwrap_or_default();
        let why = "the agent answered after its time, and the answer was dropped";
        let event = self.parties(session).deadline("request.late", &owed.method, why);
        self.record(event);
    }

    /// The client has not done in time what it was asked: the agent is told.
    fn client_is_late(&mut self, id: &[u8]) {
        let Some(Served::Service { session: name, call, .. }) = self.gate.served.remove(id) else { return };
        self.gate.add_served(id, Served::Late { session: name.clone() });
        let case = self.gate.sessions.get_mut(&*name).and_then(|session| session.calls.remove(&*call));
        let waited = words(self.gate.mandate.patience.service);
        let why = format!("the client did not answer within {waited}");
        let asked = case.as_ref().map(|case| case.call.tool()).unwrap_or_default();
        let event = self.parties(&name).deadline("request.expired", &asked, &why);
        self.record(event);
        let event = case.and_then(|case| self.called(&name, &call, &case, json!({"error": why})));
        let ticket = event.map(|event| self.record(event));
        let line = message::error(id, &late(&why));
        self.send(Way::ToAgent, &[&line], ticket, Otherwise::fail_outcome(id, &name));
        self.cancel_request(Way::ToClient, id);
        self.resume(&name);
    }

    /// The client has answered what was answered for it.
    pub(super) fn client_too_late(&mut self, name: &str) {
        let why = "the client answered after its time, and the answer was dropped";
        let event = self.parties(name).deadline("request.late", "", why);
        self.record(event);
    }

    /// Stops the turns in which nothing was said for too long.
    fn end_the_silent(&mut self) {
        let silence = self.gate.mandate.patience.silence;
        let gate = &self.gate;
        let is_silent = |name: &str| {
            let session = gate.sessions.get(name)?;
            let since = session.heard.filter(|_| session.halted.is_none())?;
            (since + silence <= self.now && !gate.is_held(name)).then_some(())
        };
        let mut names: Vec<Box<str>> =
            gate.sessions.keys().filter(|name| is_silent(name).is_some()).cloned().collect();
        names.sort_unstable();
        for name in names {
            let reason = format!("the agent said nothing for {}", words(silence));
            let event = self.parties(&name).deadline("request.expired", method::SESSION_PROMPT, &reason);
            self.record(event);
            self.stop(&name, Halt { reason, is_late: true });
        }
    }

    /// Ends the agent if it goes on with a turn that was to end.
    fn end_the_stubborn(&mut self) {
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

    /// Tells whoever works on a request that nobody waits for it any more.
    pub(super) fn cancel_request(&mut self, way: Way, id: &[u8]) {
        let id: Value = serde_json::from_slice(id).unwrap_or_default();
        if let Ok(line) = message::notification(method::CANCEL_REQUEST, &json!({"requestId": id})) {
            self.send(way, &[&line], None, Otherwise::Nothing);
        }
    }
}

/// The error of whoever has waited in vain.
pub(super) fn late(why: &str) -> RpcError {
    RpcError::new(Code::Deadline, why.to_owned()).effects(Effects::Possible)
}

/// The ids of those that are so, in an order that does not depend on chance.
fn ids<T>(table: &ChargedMap<Raw, T>, so: impl Fn(&T) -> bool) -> Vec<Raw> {
    let mut found: Vec<Raw> = table.iter().filter(|(_, it)| so(it)).map(|(id, _)| id.clone()).collect();
    found.sort_unstable();
    found
}

/// A method, as long as a message can bear.
fn shown(method: &str) -> String {
    narrows_base::text::quoted(method, 64)
}

/// A time as people say it.
pub(super) fn words(time: Duration) -> String {
    match (time.as_secs(), time.subsec_millis()) {
        (0, millis) => format!("{millis} ms"),
        (seconds, 0) if seconds > 60 && seconds % 60 == 0 => format!("{} min", seconds / 60),
        (_, 0) => format!("{} s", time.as_secs()),
        _ => format!("{} s", time.as_secs_f32()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_shortly() {
        for (millis, said) in
            [(250, "250 ms"), (10_000, "10 s"), (60_000, "60 s"), (600_000, "10 min"), (1_500, "1.5 s")]
        {
            assert_eq!(words(Duration::from_millis(millis)), said);
        }
    }
}
