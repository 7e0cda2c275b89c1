//! Terminals that the agent runs itself and reports in updates, as in version 2 of the protocol.
//!
//! A terminal belongs to a call if the terminal runs the call's command while the call is allowed, or if the
//! allowed call shows the terminal. A call has one terminal, which runs the command once, before the call
//! ends. Any other terminal, and any further run, is decided like a call that runs the terminal's command.
//! The output of a terminal is shown only if the run is allowed.

use std::borrow::Cow;

use narrows_wire::View;
use serde::Deserialize;
use serde_json::{Value, json};

use super::GateCtx;
use super::api::GateOutput;
use super::outbox::OnAuditFailure;
use super::retained::RetainedBytes;
use super::session::{CallRecord, Session, call_key};
use crate::call::{Call, CallStatus, CallUpdate};
use crate::unique_keys::UnambiguousJson;

const EXECUTE: &str = "execute";

/// Maximum number of calls that one terminal can belong to.
const MAX_CALLS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct CallTerminal {
    calls: Vec<Box<str>>,
    stage: TerminalState,
}

/// Progress of a terminal. The same command reported again belongs to the same run, until the run has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum TerminalState {
    #[default]
    Unused,
    Running,
    Ended,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TerminalUpdate<'a> {
    #[serde(borrow)]
    terminal_id: Cow<'a, str>,
    #[serde(default)]
    command: Option<UnambiguousJson>,
    #[serde(default)]
    cwd: Option<UnambiguousJson>,
    #[serde(default)]
    output: Option<UnambiguousJson>,
    #[serde(default)]
    exit_status: Option<UnambiguousJson>,
    #[serde(default)]
    data: Option<UnambiguousJson>,
}

impl TerminalUpdate<'_> {
    /// Returns the input of a call that runs the terminal's command. Returns `None` if the update has no
    /// command.
    fn input(&self) -> Option<Value> {
        let UnambiguousJson(command) = self.command.as_ref()?;
        let mut input = json!({"command": command});
        if let Some(UnambiguousJson(cwd)) = &self.cwd {
            input["cwd"] = cwd.clone();
        }
        (!command.is_null()).then_some(input)
    }

    fn progress(&self) -> Option<CallStatus> {
        let has = |told: &Option<UnambiguousJson>| {
            told.as_ref().is_some_and(|UnambiguousJson(told)| !told.is_null())
        };
        match has(&self.exit_status) {
            true => Some(CallStatus::Completed),
            false if has(&self.command) || has(&self.output) || has(&self.data) => Some(CallStatus::Running),
            false => None,
        }
    }

    /// Converts the update into an update of a call that runs the terminal's command.
    fn into_call_update(self) -> CallUpdate<'static> {
        let (input, progress) = (self.input(), self.progress());
        CallUpdate::for_command(EXECUTE, input, progress, self.exit_status)
    }
}

/// Returns the key of the call that stands for a terminal which belongs to no call.
fn terminal_key(id: &str) -> Box<str> {
    format!("terminal {id}").into()
}

impl<O: GateOutput> GateCtx<'_, O> {
    pub(super) fn handle_terminal_update(&mut self, name: &str, update: &[u8], message: View<'_>) {
        let Ok(told) = serde_json::from_slice::<TerminalUpdate<'_>>(update) else {
            return self.halt_unreadable(name, update, "tool call");
        };
        let own_key = terminal_key(&told.terminal_id);
        let Some(session) = self.gate.sessions.get_mut(name) else { return };
        if let Some(input) = told.input() {
            session.join_allowed_call(&self.gate.retained, &told.terminal_id, &input);
            if session.runs_as_joined(&told.terminal_id, &input, told.progress()) {
                session.advance_terminal(&told.terminal_id, told.progress());
                return self.send_marked(message, None, OnAuditFailure::Drop);
            }
        } else if !session.calls.contains_key(&own_key) && session.is_joined_terminal(&told.terminal_id) {
            if session.joined_calls(&told.terminal_id).all(|record| record.outcome.is_given()) {
                session.advance_terminal(&told.terminal_id, told.progress());
                self.send_marked(message, None, OnAuditFailure::Drop);
            } else if told.progress().is_some() {
                self.halt_turn(name, "it ran a terminal for a tool call that is not allowed");
            }
            return;
        }
        self.apply_call_update(name, &own_key, told.into_call_update(), message);
    }

    pub(super) fn join_shown_terminals(&mut self, name: &str, said: &CallUpdate<'_>) {
        let Some(id) = said.tool_call_id.as_deref() else { return };
        let Some(session) = self.gate.sessions.get_mut(name) else { return };
        for terminal in said.terminals() {
            session.join_terminal(&self.gate.retained, &terminal, &call_key(id));
        }
    }
}

impl Session {
    /// Makes a terminal part of a call, unless the call has ended or has another terminal. Does nothing if
    /// the terminal already belongs to too many calls.
    pub(super) fn join_terminal(&mut self, budget: &RetainedBytes, terminal: &str, call: &str) {
        let calls = &self.calls;
        let is_open = |call: &str| calls.get(call).is_some_and(|record| !record.is_recorded);
        if !is_open(call) {
            return;
        }
        if self.terminals.len() >= super::MAX_OPEN {
            self.terminals.retain(|_, joined| joined.calls.iter().any(|call| is_open(call)));
        }
        if self.terminals.len() >= super::MAX_OPEN && !self.terminals.contains_key(terminal) {
            return;
        }
        let Some(record) = self.calls.get_mut(call) else { return };
        if **record.terminal.get_or_insert_with(|| terminal.into()) != *terminal {
            return;
        }
        if !self.terminals.contains_key(terminal) {
            self.terminals.insert(budget, terminal.into(), CallTerminal::default(), terminal.len());
        }
        let Some(joined) = self.terminals.get_mut(terminal) else { return };
        if joined.calls.iter().any(|known| **known == *call) {
            return;
        }
        // The terminal has ended, and has used up the run of each of its earlier calls.
        if joined.stage == TerminalState::Ended {
            *joined = CallTerminal::default();
        }
        if joined.calls.len() < MAX_CALLS {
            joined.calls.push(call.into());
        }
        let bytes = terminal.len() + joined.calls.iter().map(|call| call.len()).sum::<usize>();
        self.terminals.resize(terminal, bytes);
    }

    /// Forgets terminals that do not run and whose calls are all recorded.
    pub(super) fn forget_terminals(&mut self) {
        let calls = &self.calls;
        let is_open = |call: &str| calls.get(call).is_some_and(|record| !record.is_recorded);
        self.terminals.retain(|_, joined| {
            joined.stage == TerminalState::Running || joined.calls.iter().any(|call| is_open(call))
        });
    }

    fn joined_calls(&self, terminal: &str) -> impl Iterator<Item = &CallRecord> {
        let joined = self.terminals.get(terminal).into_iter().flat_map(|joined| &joined.calls);
        let records = joined.filter_map(|call| self.calls.get(call)).map(Box::as_ref);
        records.filter(move |record| record.terminal.as_deref() == Some(terminal))
    }

    fn is_joined_terminal(&self, terminal: &str) -> bool {
        self.joined_calls(terminal).next().is_some()
    }

    /// Makes a terminal part of an allowed call that runs the same command and has no terminal, if there is
    /// such a call.
    fn join_allowed_call(&mut self, budget: &RetainedBytes, terminal: &str, input: &Value) {
        let has_ended =
            self.terminals.get(terminal).is_some_and(|joined| joined.stage == TerminalState::Ended);
        if !has_ended && self.joined_calls(terminal).any(|record| !record.is_recorded) {
            return;
        }
        let wanted = Call::reported(None, EXECUTE, input.clone()).action();
        let found = self.calls.iter().find(|(_, record)| {
            !record.is_recorded
                && record.terminal.is_none()
                && record.outcome.is_given()
                && record.call.runs_command(&wanted, self.working_directory())
        });
        if let Some(key) = found.map(|(key, _)| key.clone()) {
            // The terminal ran for an earlier call. That run does not count for the call that it joins now.
            self.terminals.remove(terminal);
            self.join_terminal(budget, terminal, &key);
        }
    }

    /// Returns `true` if all calls of a terminal are allowed, and the update belongs to the run of one of
    /// their commands: that call has not ended, or the update reports the end of the run.
    fn runs_as_joined(&self, terminal: &str, input: &Value, progress: Option<CallStatus>) -> bool {
        let wanted = Call::reported(None, EXECUTE, input.clone()).action();
        let stage = self.terminals.get(terminal).map(|joined| joined.stage).unwrap_or_default();
        let is_end = stage == TerminalState::Running && progress == Some(CallStatus::Completed);
        let runs = |record: &CallRecord| {
            (is_end || !record.is_recorded) && record.call.runs_command(&wanted, self.working_directory())
        };
        stage != TerminalState::Ended
            && self.joined_calls(terminal).all(|record| record.outcome.is_given())
            && self.joined_calls(terminal).any(runs)
    }

    fn advance_terminal(&mut self, terminal: &str, progress: Option<CallStatus>) {
        let stage = match progress {
            Some(CallStatus::Completed) => TerminalState::Ended,
            Some(_) => TerminalState::Running,
            None => TerminalState::Unused,
        };
        if let Some(joined) = self.terminals.get_mut(terminal) {
            joined.stage = joined.stage.max(stage);
        }
    }

    fn working_directory(&self) -> Option<&std::path::Path> {
        self.roots.first().map(std::path::PathBuf::as_path)
    }
}
