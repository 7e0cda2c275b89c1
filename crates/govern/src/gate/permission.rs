//! Permission requests of the agent: answered by the policy where it can, by somebody who may where it cannot.

use narrows_wire::{View, message};
use serde_json::{Value, json};

use super::Pass;
use super::api::{Out, Ticket};
use super::lane::{Otherwise, Way};
use super::opening::read;
use super::session::{Case, Options, Origin, key_of, request_key};
use crate::call::{Progress, Said};
use crate::record::Approved;

impl<O: Out> Pass<'_, O> {
    pub(super) fn permission(&mut self, id: &[u8], message: View<'_>) {
        let name = message.session().unwrap_or_default();
        let params = read(message.params());
        let options = Options::read(&params["options"]);
        let told = if self.gate.is_v2 {
            self.subject(&name, &params["subject"])
        } else {
            params["toolCall"].clone()
        };
        let told = told.to_string();
        let Ok(mut said) = serde_json::from_str::<Said<'_>>(&told) else {
            return self.answer_permission(id, &name, options.reject.as_deref(), None);
        };
        let call = said.tool_call_id.as_deref().map_or_else(|| request_key(id), key_of);
        // Of history nothing is run, and of a turn that is to end neither.
        let is_over = self.gate.is_stopping(&name) || self.gate.is_replaying(&name);
        let Some(session) = self.session(&name) else { return self.answer_permission(id, &name, None, None) };
        if is_over || !session.has_room_for(&call) {
            return self.answer_permission(id, &name, None, None);
        }
        let case = session.calls.entry(call.clone()).or_default();
        if said.tool_call_id.is_none() {
            // What has no id is what this request says, and nothing that was said before.
            **case = Case::default();
        } else if case.is_closed {
            // Whoever asks about a call that has ended wants another.
            if !matches!(said.status, Some(Progress::Pending | Progress::Running)) {
                said.status = Some(Progress::Pending);
            }
            if let Some(call) = case.call.again(&said) {
                **case = Case { call, ..Case::default() };
            }
        }
        let changed = case.call.hear(said);
        let is_new = case.verdict.is_none();
        let ticket = match is_new && self.adopt_decided(&name, &call) {
            false if changed || is_new => self.judge(&name, &call),
            _ => None,
        };
        let Some(case) = self.case(&name, &call) else { return };
        match &case.approved {
            Approved::Auto | Approved::By { .. } => {
                let held = std::mem::take(&mut case.held);
                self.show_held(&name, &held, ticket);
                self.answer_permission(
                    id,
                    &name,
                    options.allow.as_deref().or(options.reject.as_deref()),
                    ticket,
                );
            }
            Approved::Refused(why) => {
                let why = why.clone();
                self.reject_permission(id, &name, &options, &why, ticket);
            }
            Approved::Pending => {
                let held = std::mem::take(&mut case.held);
                self.show_held(&name, &held, ticket);
                self.hear(&name, &call, Origin::Permission { id: id.into(), options }, ticket);
            }
        }
    }

    /// What a permission request of version 2 is about: a call, or a command, which is one where no call is named.
    fn subject(&self, name: &str, subject: &Value) -> Value {
        if subject["type"] != "command" {
            return subject["toolCall"].clone();
        }
        let known = subject["toolCallId"].as_str();
        let is_known = |call: &str| {
            let session = self.gate.sessions.get(name);
            session
                .and_then(|session| session.calls.get(&key_of(call)))
                .is_some_and(|case| case.verdict.is_some())
        };
        match known {
            // It is decided as the call that it is a part of.
            Some(call) if is_known(call) => json!({"toolCallId": call}),
            _ => json!({
                "toolCallId": known,
                "kind": "execute",
                "rawInput": {"command": subject["command"], "cwd": subject["cwd"]},
            }),
        }
    }

    /// Answers a permission request with a no, and says why to whoever reads that.
    pub(super) fn reject_permission(
        &mut self,
        id: &[u8],
        name: &str,
        options: &Options,
        why: &str,
        after: Option<Ticket>,
    ) {
        let mut outcome = chosen(options.reject.as_deref());
        outcome["_meta"] = json!({"aip44": {"refused": why}});
        self.say_outcome(id, name, &outcome, after);
    }

    /// Answers a permission request with one of its options, or with none of them.
    pub(super) fn answer_permission(
        &mut self,
        id: &[u8],
        name: &str,
        option: Option<&str>,
        after: Option<Ticket>,
    ) {
        self.say_outcome(id, name, &chosen(option), after);
    }

    fn say_outcome(&mut self, id: &[u8], name: &str, outcome: &Value, after: Option<Ticket>) {
        let Ok(line) = message::response(id, outcome) else { return };
        self.send(Way::ToAgent, &[&line], after, Otherwise::fail(id, name));
    }
}

/// The answer that takes one of the options, or none of them.
fn chosen(option: Option<&str>) -> Value {
    match option {
        Some(option) => json!({"outcome": {"outcome": "selected", "optionId": option}}),
        None => json!({"outcome": {"outcome": "cancelled"}}),
    }
}
