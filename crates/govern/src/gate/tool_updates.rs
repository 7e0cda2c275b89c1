//! Tool calls as the agent tells of them: decided before they are shown, and stopped if they run undecided.

use std::borrow::Cow;

use bytes::Bytes;
use narrows_audit::Event;
use narrows_policy::{Action, Class};
use narrows_wire::{DuplicateKey, View, member};
use serde_json::{Value, json};

use super::Pass;
use super::api::{Out, Ticket};
use super::deadlines::late;
use super::outbox::{Otherwise, Way};
use super::retained::NO_ROOM;
use super::session::{Case, Halt, MAX_HELD_BYTES, Session, key_of};
use super::session_open::read;
use super::turn::{failure, failure_sentence};
use crate::audit_events::{self, Approved};
use crate::authorizer::{Judged, Verdict};
use crate::call::{Call, Progress, Said};
use crate::lifecycle::Life;
use crate::path_resolver::{Followed, follow_links};
use crate::protected_files;
use crate::scope;
use crate::shared_budget::Spent;

/// What is to be done with an update about a call.
enum Course {
    /// It may be shown.
    Show,
    /// It is not shown.
    Hide,
    /// It runs and may not.
    Halt(String),
}

impl<O: Out> Pass<'_, O> {
    pub(super) fn update(&mut self, message: View<'_>) {
        // An update about nothing is shown to nobody: what it tells of could not be decided.
        let Some(name) = message.session() else {
            self.record_name_once("session/update", message, Some("no_session"));
            return;
        };
        let Ok((kind, update)) = kind_of(message) else {
            return self.halt(&name, "it sent an update that can be read in two ways");
        };
        if kind == "subagent_update" {
            return self.subagent(&name, update, message);
        }
        if self.gate.is_stopping(&name) {
            // In version 1 the answer to the prompt ends a turn, and nothing else.
            if self.gate.is_v2 && kind == "state_update" && is_state(update, "idle") {
                self.idle(&name, update, message);
            }
            return;
        }
        if self.gate.is_replaying(&name) {
            return self.show_replayed(message);
        }
        match &*kind {
            "tool_call" | "tool_call_update" => self.call_update(&name, update, message),
            "terminal_update" | "terminal_output_chunk" => self.terminal_said(&name, update, message),
            // More of what a call shows: as hidden as the call, and nothing that is to be decided.
            "tool_call_content_chunk" => {
                let Ok(said) = serde_json::from_slice::<Said<'_>>(update) else {
                    return self.unreadable(&name, update);
                };
                // A change of a file is to be decided, however it is told.
                if said.is_change() {
                    return self.tool_said(&name, said, message);
                }
                self.note_terminals(&name, &said);
                let id = said.tool_call_id;
                let case = self.case(&name, &key_of(id.as_deref().unwrap_or_default()));
                if case.is_some_and(|case| case.approved.is_given()) {
                    self.send_marked(message, None, Otherwise::Nothing);
                }
            }
            "state_update" if is_state(update, "idle") => self.idle(&name, update, message),
            // While somebody is asked it waits, whatever its agent says.
            "state_update" if is_state(update, "running") && self.hearings_of(&name).is_empty() => {
                if let Some(session) = self.session(&name) {
                    session.runs = true;
                }
                let ticket = self.step_to_running(&name);
                self.send_marked(message, ticket, Otherwise::Halt((&*name).into()));
            }
            "agent_message_chunk"
            | "agent_message"
            | "agent_thought_chunk"
            | "agent_thought"
            | "plan"
            | "plan_update" => {
                let ticket = self.step_to_running(&name);
                self.send_marked(message, ticket, Otherwise::Halt((&*name).into()));
            }
            // A kind that is not known, about a call: decided as one, whatever it is called.
            _ if !matches!(member(update, "toolCallId"), Ok(None)) => {
                self.call_update(&name, update, message);
            }
            kind if is_harmless(kind) => self.send_marked(message, None, Otherwise::Nothing),
            // It could tell of anything, so nobody can decide about it.
            kind => {
                let kind = format!("{} {kind}", narrows_acp::method::SESSION_UPDATE);
                self.record_name_once(&kind, message, Some("unknown_update"));
            }
        }
    }

    /// Handles an update about a tool call.
    fn call_update(&mut self, name: &str, update: &[u8], message: View<'_>) {
        match serde_json::from_slice::<Said<'_>>(update) {
            Ok(said) => self.tool_said(name, said, message),
            Err(_) => self.unreadable(name, update),
        }
    }

    /// Shows history as such. It is not acted on.
    pub(super) fn show_replayed(&mut self, message: View<'_>) {
        let fitting = self.fitting_update(message);
        let message = fitting.as_deref().map_or(message, View::parse);
        if let Some(marked) = self.gate.mark.put_replayed(message).map(|marked| marked.concat()) {
            self.send(Way::ToClient, &[&marked], None, Otherwise::Nothing);
        }
    }

    /// A turn of version 2 is over, or the work of a child.
    fn idle(&mut self, name: &str, update: &[u8], message: View<'_>) {
        if self.gate.is_child(name) {
            let was_stopping = self.gate.is_stopping(name);
            let update: Value = serde_json::from_slice(update).unwrap_or_default();
            let ticket = self.child_rests(name, update["stopReason"].as_str());
            if !was_stopping {
                self.send_marked(message, ticket, Otherwise::Nothing);
            }
            return;
        }
        let was_working = self.session(name).is_some_and(|session| {
            let was_working = session.is_working();
            session.runs = false;
            was_working
        });
        self.rest(name);
        let Some((Halt { reason, is_late }, ticket)) = self.unhalt(name) else {
            let update: Value = serde_json::from_slice(update).unwrap_or_default();
            let error = &update["error"];
            let failed = failure_sentence(&error["data"]).filter(|_| error["data"]["kind"].is_string());
            let failed = failed.or_else(|| error["message"].as_str().map(str::to_owned));
            let failed = failed.or_else(|| failure(&update)).or_else(|| failure(&read(message.params())));
            let ticket = match (failed, update["stopReason"].as_str()) {
                _ if !was_working => None,
                (Some(failed), _) => self.step(name, Life::Interrupted, Some(&failed)),
                (None, Some(reason @ ("cancelled" | "refusal" | "error"))) => {
                    self.step(name, Life::Interrupted, Some(reason))
                }
                _ => self.step(name, Life::Completed, None),
            };
            return self.send_marked(message, ticket, Otherwise::Nothing);
        };
        let mut update = json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": "refusal"});
        if is_late {
            update["stopReason"] = json!("error");
            update["error"] = json!(late(&reason));
        }
        let params =
            json!({"sessionId": name, "update": update, "_meta": {"aip44": {"interrupted": reason}}});
        if let Ok(line) = narrows_wire::message::notification(narrows_acp::method::SESSION_UPDATE, &params) {
            self.send(Way::ToClient, &[&line], ticket, Otherwise::Nothing);
        }
    }

    fn tool_said(&mut self, name: &str, said: Said<'_>, message: View<'_>) {
        let id = key_of(said.tool_call_id.as_deref().unwrap_or_default());
        self.call_said(name, &id, said, message);
    }

    /// Decides about the call of this key as it is known now, and shows what was said about it if it may be.
    pub(super) fn call_said(&mut self, name: &str, id: &str, said: Said<'_>, message: View<'_>) {
        let Some(session) = self.session(name) else { return };
        if !session.has_room_for(id) {
            return self.halt(name, "it has too many tool calls open");
        }
        // The line may be kept beside the call.
        if !self.has_room_for_call(
            name,
            id,
            said.retained_bytes() + message.bytes().len().min(MAX_HELD_BYTES),
        ) {
            return self.halt(name, NO_ROOM);
        }
        let Some(case) = self.gate.case_or_new(name, id) else { return };
        if case.is_closed
            && let Some(call) = case.call.again(&said)
        {
            **case = Case { call, ..Case::default() };
        }
        // Before this update closes it.
        let Some(session) = self.gate.sessions.get_mut(name) else { return };
        for terminal in said.terminals() {
            session.join(&self.gate.retained, &terminal, id);
        }
        let Some(case) = session.calls.get_mut(id) else { return };
        // An output that comes after the end is recorded as well.
        case.is_closed &= !case.call.is_unrecorded_output(&said);
        let changed = case.call.hear(said);
        let mut ticket = None;
        if case.verdict.is_none() && case.call.is_bare() {
            let has_room = case.hold(message.bytes());
            self.charge_call(name, id);
            if !has_room {
                self.halt(name, "it says too much about a tool call before it says what that is");
            }
            return;
        }
        let is_new = case.verdict.is_none();
        self.charge_call(name, id);
        if is_new && self.adopt_decided(name, id) {
            // It was recorded when it was decided.
        } else if changed || is_new {
            ticket = self.judge(name, id);
        }
        self.excuse(name, id);
        let Some(case) = self.case(name, id) else { return };
        match course(case) {
            Course::Hide => {
                self.finish(name, id);
            }
            Course::Halt(reason) => self.halt(name, &reason),
            Course::Show => {
                if case.call.has_begun() {
                    case.use_up();
                }
                let held = std::mem::take(&mut case.held);
                ticket = self.step_to_running(name).or(ticket);
                ticket = self.finish(name, id).or(ticket);
                self.show_held(name, &held, ticket);
                self.send_marked(message, ticket, Otherwise::Halt(name.into()));
            }
        }
    }

    /// What is told of a call can be read in two ways, or not at all, so nobody can decide about it: it counts as one that
    /// runs and may not.
    pub(super) fn unreadable(&mut self, name: &str, update: &[u8]) {
        let input = json!({"bytes": update.len(), "sha256": audit_events::digest(update)});
        let event = self.parties(name).refused("tool.refused", "ambiguous_call", input);
        self.record(event);
        self.halt(name, "it told of a tool call that can be read in two ways");
    }

    /// A call that failed because something that it needs was refused is not held against its agent, once for each refusal.
    /// Our own agent asks before it does anything, so what it says has failed was not done.
    fn excuse(&mut self, name: &str, id: &str) {
        let asks_first = self.gate.mandate.asks_first;
        let Some(session) = self.gate.sessions.get_mut(name) else { return };
        let Some(case) = session.calls.get_mut(id).filter(|case| case.was_tried_untold()) else { return };
        if asks_first {
            case.tell();
        } else if session.refusals > 0 {
            session.refusals -= 1;
            case.tell();
        }
    }

    /// Shows what was kept until a call was decided.
    pub(super) fn show_held(&mut self, name: &str, held: &[Bytes], ticket: Option<Ticket>) {
        for line in held {
            self.send_marked(View::parse(line), ticket, Otherwise::Halt(name.into()));
        }
    }

    pub(super) fn case(&mut self, name: &str, id: &str) -> Option<&mut Case> {
        self.gate.sessions.get_mut(name)?.calls.get_mut(id).map(Box::as_mut)
    }

    /// Decides about a call as it is known now, and has that recorded. What was approved for other input is void.
    pub(super) fn judge(&mut self, name: &str, id: &str) -> Option<Ticket> {
        let at = self.unix();
        self.gate.desk.look_around();
        let session = self.gate.sessions.get(name)?;
        let case = session.calls.get(id)?;
        let digest = case.call.digest();
        let judged = Judged { at, counted: case.counted.as_ref().map(|counted| (counted, digest)) };
        let Followed { action, leads } = self.followed(session, &case.call);
        let mut verdict = self.rule(session, &case.call, &action, judged);
        if let Some(command) = case.call.asked_command() {
            let Followed { action, .. } = self.followed(session, &command);
            verdict = verdict.stricter(self.rule(session, &command, &action, judged));
        }
        let approved = match verdict.class() {
            Class::Allow => Approved::Auto,
            Class::RequireApproval | Class::Escalate => Approved::Pending,
            Class::Deny => Approved::Refused(verdict.reason()),
        };
        self.overtake(name, id, &verdict.ruling);
        let case = self.gate.sessions.get_mut(name)?.calls.get_mut(id)?;
        let spent = match approved {
            Approved::Auto => self.gate.desk.count(&verdict, at, digest, &mut case.counted),
            _ => None,
        };
        (case.verdict, case.leads) = (Some(verdict), Some(leads));
        // Somebody has agreed to just this.
        let is_agreed = case.agreed.is_some_and(|agreed| agreed == case.call.digest());
        if approved != Approved::Pending || !is_agreed {
            case.approved = approved;
        }
        case.call.set_allowed(case.approved.is_given());
        let is_of_client = case.call.is_wish();
        let event = self.resolved(name, id, spent.as_ref())?;
        let ticket = self.record(event);
        if self.gate.refusals.has_too_many_calls() && !is_of_client {
            self.halt(name, "too many of its tool calls were not allowed");
        }
        Some(ticket)
    }

    /// Returns what a call in a session does, with where its paths lead just now.
    pub(super) fn followed(&self, session: &Session, call: &Call) -> Followed {
        follow_links(call.action(), &session.roots, &*self.gate.ground)
    }

    /// Returns `true` if the paths of a call lead elsewhere than when it was judged, or the call is not known any more: what was
    /// decided then is about other files.
    pub(super) fn leads_elsewhere(&self, name: &str, id: &str) -> bool {
        let Some(session) = self.gate.sessions.get(name) else { return true };
        let Some(case) = session.calls.get(id) else { return true };
        case.leads.is_some_and(|judged| judged != self.followed(session, &case.call).leads)
    }

    /// What the policy and the mandate say of a call in a session that does `action`.
    fn rule(&self, session: &Session, call: &Call, action: &Action, judged: Judged<'_>) -> Verdict {
        let gate = &self.gate;
        let mut verdict =
            gate.desk.rule_action(call, action, &gate.mandate, &gate.who, &session.roots, judged);
        // The paths of an action that is too large to judge are not looked up.
        let beyond = if action.is_too_large() {
            Some("there is more in it than can be judged".to_owned())
        } else {
            scope::beyond(call, &gate.mandate, &*gate.ground)
                .or_else(|| protected_files::touched(call, &gate.mandate, &session.roots, &*gate.ground))
        };
        if let Some(because) = beyond {
            verdict.ruling.class = Class::Deny;
            verdict.because.get_or_insert(because);
        }
        verdict
    }

    /// What was decided about a call, for the log.
    pub(super) fn resolved(&self, name: &str, id: &str, spent: Option<&Spent>) -> Option<Event> {
        let case = self.gate.sessions.get(name)?.calls.get(id)?;
        let verdict = case.verdict.as_ref()?;
        let (tool, input, kinds) = (case.call.tool(), case.call.matter(), case.call.kinds());
        let named =
            audit_events::Case { tool: &tool, id, posed: case.call.posed(), input: &input, kinds: &kinds };
        Some(self.parties(name).resolved(&named, &verdict.ruling, &case.approved, spent))
    }

    /// What came of a call, for the log.
    pub(super) fn called(&self, name: &str, id: &str, case: &Case, output: Value) -> Option<Event> {
        let verdict = case.verdict.as_ref()?;
        let (tool, input, kinds) = (case.call.tool(), case.call.matter(), case.call.kinds());
        let named =
            audit_events::Case { tool: &tool, id, posed: case.call.posed(), input: &input, kinds: &kinds };
        Some(self.parties(name).called(&named, &verdict.ruling, &case.approved, output))
    }

    /// Has what came of a call recorded, if it has ended.
    fn finish(&mut self, name: &str, id: &str) -> Option<Ticket> {
        let case = self.case(name, id)?;
        if case.is_closed || !matches!(case.call.progress, Progress::Completed | Progress::Failed) {
            return None;
        }
        case.is_closed = true;
        let output = case.call.take_output();
        let output = if case.call.progress == Progress::Failed { json!({"error": output}) } else { output };
        let case = self.gate.sessions.get(name)?.calls.get(id)?;
        let event = self.called(name, id, case, output)?;
        self.charge_call(name, id);
        Some(self.record(event))
    }
}

/// What is to be done with a call after what was said about it.
fn course(case: &Case) -> Course {
    let begun = case.call.has_begun();
    let tool = || narrows_base::text::quoted(&case.call.tool(), 200);
    match &case.approved {
        Approved::Auto | Approved::By { .. } => Course::Show,
        Approved::Pending if begun => {
            let why = case.verdict.as_ref().map(Verdict::reason).unwrap_or_default();
            Course::Halt(format!("it ran `{}` without an approval ({why})", tool()))
        }
        Approved::Refused(why) if begun => {
            Course::Halt(format!("it ran `{}`, which was refused ({why})", tool()))
        }
        Approved::Refused(why) if case.was_tried_untold() => {
            Course::Halt(format!("it tried `{}`, which was refused ({why})", tool()))
        }
        Approved::Pending if case.was_tried_untold() => {
            Course::Halt(format!("it tried `{}` without an approval", tool()))
        }
        Approved::Pending => Course::Show,
        Approved::Refused(_) => Course::Hide,
    }
}

/// What kind of update this is, and the update itself.
fn kind_of<'a>(message: View<'a>) -> Result<(Cow<'a, str>, &'a [u8]), DuplicateKey> {
    let params = message.params().unwrap_or_default();
    let Some(update) = member(params, "update")? else { return Ok((Cow::Borrowed(""), b"{}")) };
    let update = &params[update];
    let Some(kind) = member(update, "sessionUpdate")? else { return Ok((Cow::Borrowed(""), update)) };
    let raw = &update[kind];
    let plain = raw.strip_prefix(b"\"").and_then(|raw| raw.strip_suffix(b"\""));
    match plain.filter(|text| !text.contains(&b'\\')).and_then(|text| std::str::from_utf8(text).ok()) {
        Some(kind) => Ok((Cow::Borrowed(kind), update)),
        None => Ok((Cow::Owned(serde_json::from_slice(raw).unwrap_or_default()), update)),
    }
}

/// Returns `true` for updates that tell of nothing an agent does to this machine.
fn is_harmless(kind: &str) -> bool {
    matches!(
        kind,
        "user_message_chunk"
            | "user_message"
            | "state_update"
            | "plan_removed"
            | "available_commands_update"
            | "current_mode_update"
            | "config_option_update"
            | "session_info_update"
            | "usage_update"
            | "notice"
            | "compaction_update"
            | "compaction_summary_chunk"
            | "session_message"
            | "session_message_chunk"
    )
}

fn is_state(update: &[u8], state: &str) -> bool {
    serde_json::from_slice::<Value>(update).is_ok_and(|update| update["state"] == state)
}
