//! Terminals that an agent runs itself and tells of in updates, as version 2 of the protocol has them.
//!
//! A terminal that runs the command of an allowed call, or that an allowed call shows, is a part of that call. A call has one
//! terminal, which runs its command once, before the call ends. Any other, and any further run, is decided about like a
//! call that runs its command. Its output is shown only if it may run.

use std::borrow::Cow;

use narrows_wire::View;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Pass;
use super::api::Out;
use super::outbox::Otherwise;
use super::retained::RetainedBytes;
use super::session::{Case, Session, key_of};
use crate::call::{Call, Progress, Said};
use crate::unique_keys::Once;

/// The kind of a call that runs a command.
const EXECUTE: &str = "execute";

/// The most calls that a terminal is a part of.
const MAX_CALLS: usize = 16;

/// A terminal that is a part of calls.
#[derive(Debug, Default)]
pub(super) struct CallTerminal {
    /// The keys of those calls.
    calls: Vec<Box<str>>,
    stage: Stage,
}

/// How far a terminal of a call is: a command that is told again is the same run until it has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Unused,
    Running,
    Ended,
}

/// What an update says about a terminal.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TerminalUpdate<'a> {
    #[serde(borrow)]
    terminal_id: Cow<'a, str>,
    #[serde(default)]
    command: Option<Once>,
    #[serde(default)]
    cwd: Option<Once>,
    #[serde(default)]
    output: Option<Once>,
    #[serde(default)]
    exit_status: Option<Once>,
    /// Of a chunk of output.
    #[serde(default)]
    data: Option<Once>,
}

impl TerminalUpdate<'_> {
    /// The input of a call that runs its command, if it tells one.
    fn input(&self) -> Option<Value> {
        let Once(command) = self.command.as_ref()?;
        let mut input = json!({"command": command});
        if let Some(Once(cwd)) = &self.cwd {
            input["cwd"] = cwd.clone();
        }
        (!command.is_null()).then_some(input)
    }

    fn progress(&self) -> Option<Progress> {
        let has = |told: &Option<Once>| told.as_ref().is_some_and(|Once(told)| !told.is_null());
        match has(&self.exit_status) {
            true => Some(Progress::Completed),
            false if has(&self.command) || has(&self.output) || has(&self.data) => Some(Progress::Running),
            false => None,
        }
    }

    /// The same, said about a call that runs its command.
    fn into_said(self) -> Said<'static> {
        let (input, progress) = (self.input(), self.progress());
        Said::about_command(EXECUTE, input, progress, self.exit_status)
    }
}

/// The key of a terminal that is decided about by itself.
fn terminal_key(id: &str) -> Box<str> {
    format!("terminal {id}").into()
}

impl<O: Out> Pass<'_, O> {
    /// Handles an update about a terminal, or a chunk of its output.
    pub(super) fn terminal_said(&mut self, name: &str, update: &[u8], message: View<'_>) {
        let Ok(told) = serde_json::from_slice::<TerminalUpdate<'_>>(update) else {
            return self.unreadable(name, update);
        };
        let own_key = terminal_key(&told.terminal_id);
        let Some(session) = self.gate.sessions.get_mut(name) else { return };
        if let Some(input) = told.input() {
            session.join_allowed_call(&self.gate.retained, &told.terminal_id, &input);
            if session.runs_as_joined(&told.terminal_id, &input, told.progress()) {
                session.advance(&told.terminal_id, told.progress());
                return self.send_marked(message, None, Otherwise::Nothing);
            }
        } else if !session.calls.contains_key(&own_key) && session.is_joined(&told.terminal_id) {
            if session.joined(&told.terminal_id).all(|case| case.approved.is_given()) {
                session.advance(&told.terminal_id, told.progress());
                self.send_marked(message, None, Otherwise::Nothing);
            } else if told.progress().is_some() {
                self.halt(name, "it ran a terminal for a tool call that is not allowed");
            }
            return;
        }
        self.call_said(name, &own_key, told.into_said(), message);
    }

    /// Notes which terminals a call shows.
    pub(super) fn note_terminals(&mut self, name: &str, said: &Said<'_>) {
        let Some(id) = said.tool_call_id.as_deref() else { return };
        let Some(session) = self.gate.sessions.get_mut(name) else { return };
        for terminal in said.terminals() {
            session.join(&self.gate.retained, &terminal, &key_of(id));
        }
    }
}

impl Session {
    /// Makes a terminal a part of a call, unless the call has ended or has another one. Of a terminal with many calls all that
    /// count are the first ones.
    pub(super) fn join(&mut self, budget: &RetainedBytes, terminal: &str, call: &str) {
        let calls = &self.calls;
        let is_open = |call: &str| calls.get(call).is_some_and(|case| !case.is_closed);
        if !is_open(call) {
            return;
        }
        if self.terminals.len() >= super::MOST_OPEN {
            self.terminals.retain(|_, joined| joined.calls.iter().any(|call| is_open(call)));
        }
        if self.terminals.len() >= super::MOST_OPEN && !self.terminals.contains_key(terminal) {
            return;
        }
        let Some(case) = self.calls.get_mut(call) else { return };
        if **case.terminal.get_or_insert_with(|| terminal.into()) != *terminal {
            return;
        }
        if !self.terminals.contains_key(terminal) {
            self.terminals.insert(budget, terminal.into(), CallTerminal::default(), terminal.len());
        }
        let Some(joined) = self.terminals.get_mut(terminal) else { return };
        if joined.calls.iter().any(|known| **known == *call) {
            return;
        }
        // The calls that it was a part of have had their run.
        if joined.stage == Stage::Ended {
            *joined = CallTerminal::default();
        }
        if joined.calls.len() < MAX_CALLS {
            joined.calls.push(call.into());
        }
        let bytes = terminal.len() + joined.calls.iter().map(|call| call.len()).sum::<usize>();
        self.terminals.resize(terminal, bytes);
    }

    /// Forgets the terminals of earlier turns that do not run any more: what they do now is no part of a call.
    pub(super) fn forget_terminals(&mut self) {
        let calls = &self.calls;
        let is_open = |call: &str| calls.get(call).is_some_and(|case| !case.is_closed);
        self.terminals.retain(|_, joined| {
            joined.stage == Stage::Running || joined.calls.iter().any(|call| is_open(call))
        });
    }

    /// The calls that a terminal is a part of.
    fn joined(&self, terminal: &str) -> impl Iterator<Item = &Case> {
        let joined = self.terminals.get(terminal).into_iter().flat_map(|joined| &joined.calls);
        let cases = joined.filter_map(|call| self.calls.get(call)).map(Box::as_ref);
        cases.filter(move |case| case.terminal.as_deref() == Some(terminal))
    }

    fn is_joined(&self, terminal: &str) -> bool {
        self.joined(terminal).next().is_some()
    }

    /// Makes a terminal a part of an allowed call that runs just this and has no terminal yet, if there is one.
    fn join_allowed_call(&mut self, budget: &RetainedBytes, terminal: &str, input: &Value) {
        let has_ended = self.terminals.get(terminal).is_some_and(|joined| joined.stage == Stage::Ended);
        if !has_ended && self.joined(terminal).any(|case| !case.is_closed) {
            return;
        }
        let wanted = Call::told(None, EXECUTE, input.clone()).action();
        let found = self.calls.iter().find(|(_, case)| {
            !case.is_closed
                && case.terminal.is_none()
                && case.approved.is_given()
                && case.call.runs(&wanted, self.working_directory())
        });
        if let Some(key) = found.map(|(key, _)| key.clone()) {
            // What it ran for another call has nothing to do with this one.
            self.terminals.remove(terminal);
            self.join(budget, terminal, &key);
        }
    }

    /// Returns `true` if all calls that a terminal is a part of are allowed, and this is the run of the command of one of
    /// them: that call has not ended, or this tells how the run ended that began before.
    fn runs_as_joined(&self, terminal: &str, input: &Value, progress: Option<Progress>) -> bool {
        let wanted = Call::told(None, EXECUTE, input.clone()).action();
        let stage = self.terminals.get(terminal).map(|joined| joined.stage).unwrap_or_default();
        let is_end = stage == Stage::Running && progress == Some(Progress::Completed);
        let runs =
            |case: &Case| (is_end || !case.is_closed) && case.call.runs(&wanted, self.working_directory());
        stage != Stage::Ended
            && self.joined(terminal).all(|case| case.approved.is_given())
            && self.joined(terminal).any(runs)
    }

    /// Notes how far a terminal of a call is.
    fn advance(&mut self, terminal: &str, progress: Option<Progress>) {
        let stage = match progress {
            Some(Progress::Completed) => Stage::Ended,
            Some(_) => Stage::Running,
            None => Stage::Unused,
        };
        if let Some(joined) = self.terminals.get_mut(terminal) {
            joined.stage = joined.stage.max(stage);
        }
    }

    fn working_directory(&self) -> Option<&std::path::Path> {
        self.roots.first().map(std::path::PathBuf::as_path)
    }
}
