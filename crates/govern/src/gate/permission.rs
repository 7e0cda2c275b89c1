//! Permission requests of the agent: answered by the policy where it can, by somebody who may where it cannot.

use narrows_acp::method;
use narrows_wire::{View, message};
use serde_json::{Value, json};

use super::Pass;
use super::api::{Out, Ticket};
use super::outbox::{Otherwise, Way};
use super::retained::value_bytes;
use super::session::{Case, Options, Origin, key_of, request_key};
use super::session_open::read;
use crate::audit_events::{Approved, digest};
use crate::call::{Progress, Said};

impl<O: Out> Pass<'_, O> {
    pub(super) fn permission(&mut self, id: &[u8], message: View<'_>) {
        let name = message.session().unwrap_or_default();
        let params = read(message.params());
        let options = Options::read(&params["options"]);
        let subject = if self.gate.is_v2 {
            self.subject(&name, &params["subject"])
        } else {
            Ok((params["toolCall"].clone(), None))
        };
        let (told, command) = match subject {
            Ok(subject) => subject,
            Err(code) => return self.refuse_subject(id, &name, &options, code, message),
        };
        let told = told.to_string();
        let Ok(mut said) = serde_json::from_str::<Said<'_>>(&told) else {
            return self.refuse_subject(id, &name, &options, "unreadable_subject", message);
        };
        let call = said.tool_call_id.as_deref().map_or_else(|| request_key(id), key_of);
        // Of history nothing is run, and of a turn that is to end neither.
        let is_over = self.gate.is_stopping(&name) || self.gate.is_replaying(&name);
        let bytes = said.retained_bytes() + command.as_ref().map_or(0, value_bytes);
        if is_over || !self.has_room_for_call(&name, &call, bytes) {
            return self.answer_permission(id, &name, None, None);
        }
        let Some(case) = self.gate.case_or_new(&name, &call) else { return };
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
        let needs_judging = case.ask();
        let mut changed = case.call.hear(said);
        changed |= command.is_some_and(|command| case.call.ask_command(command));
        let is_new = case.verdict.is_none();
        self.charge_call(&name, &call);
        let ticket = match is_new && self.adopt_decided(&name, &call) {
            false if changed || is_new || needs_judging => self.judge(&name, &call),
            // It was judged when it was told of. Each answer is recorded, that of an approver when it is given.
            _ => match self.case(&name, &call).is_some_and(|case| case.approved != Approved::Pending) {
                true => self.resolved(&name, &call, None).map(|event| self.record(event)),
                false => None,
            },
        };
        let Some(case) = self.case(&name, &call) else { return };
        match &case.approved {
            Approved::Auto | Approved::By { .. } => {
                case.use_up();
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

    /// What a permission request of version 2 is about: what it says of a call, and the command that would be run as a part
    /// of one that is known. Else the code of the refusal.
    fn subject(&self, name: &str, subject: &Value) -> Result<(Value, Option<Value>), &'static str> {
        match subject["type"].as_str() {
            // What stands beside the call may be meant in place of it.
            Some("tool_call") if has_others(subject, &["type", "toolCall", "_meta"]) => {
                return Err("unreadable_subject");
            }
            Some("tool_call") => return Ok((subject["toolCall"].clone(), None)),
            Some("command") if subject["command"].is_string() => {}
            Some("command") => return Err("unreadable_subject"),
            Some(_) => return Err("unknown_subject"),
            None => return Err("no_subject"),
        }
        let id = &subject["toolCallId"];
        let session = self.gate.sessions.get(name);
        let known = id.as_str().and_then(|id| session?.calls.get(&key_of(id)));
        let mut command = json!({"command": subject["command"], "cwd": subject["cwd"]});
        for (key, value) in others(subject, &["type", "toolCallId", "terminalId", "_meta"]) {
            command[key] = value.clone();
        }
        Ok(match known.is_some_and(|case| case.verdict.is_some()) {
            true => (json!({"toolCallId": id}), Some(command)),
            false => (json!({"toolCallId": id, "kind": "execute", "rawInput": command}), None),
        })
    }

    /// Refuses to grant what cannot be judged, and records that.
    fn refuse_subject(
        &mut self,
        id: &[u8],
        name: &str,
        options: &Options,
        code: &'static str,
        message: View<'_>,
    ) {
        let params = message.params().unwrap_or_default();
        let method = method::SESSION_REQUEST_PERMISSION;
        let input = json!({"method": method, "bytes": params.len(), "sha256": digest(params)});
        let event = self.parties(name).refused("tool.refused", code, input);
        let ticket = self.record(event);
        self.reject_permission(id, name, options, "what it is about cannot be judged", Some(ticket));
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

/// The members of a subject that are not `known` and not null.
fn others<'a>(subject: &'a Value, known: &[&str]) -> impl Iterator<Item = (&'a str, &'a Value)> {
    let members = subject.as_object().into_iter().flatten();
    members
        .map(|(key, value)| (key.as_str(), value))
        .filter(|(key, value)| !known.contains(key) && !value.is_null())
}

/// Returns `true` if a subject has such members.
fn has_others(subject: &Value, known: &[&str]) -> bool {
    others(subject, known).next().is_some()
}
