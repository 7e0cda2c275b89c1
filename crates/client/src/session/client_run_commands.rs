//! Reports an agent that runs commands itself, although the user states that the client runs them.
//!
//! With [`CommandRunner::Client`](crate::CommandRunner::Client), a permission request is judged with the
//! client's sandbox. An agent that runs the command itself runs it without a sandbox. The client cannot
//! prevent that, but detects a tool call that ends without a terminal request.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use super::actor::{Actor, now_ms};
use crate::event::{EventBody, Json, Payload};

const MAX_WATCHED: usize = 1000;

const EVENT: &str = "command.run_by_agent";

const PROBLEM: &str =
    "the agent ran a command itself without a sandbox, although its settings say that it never does";

/// Calls that were allowed because the client will run their commands. Also counts the commands that
/// completed calls account for.
#[derive(Debug, Default)]
pub(super) struct ClientRunCommands {
    /// By call id: number of commands that the agent had requested when the call was allowed.
    allowed: BTreeMap<Arc<str>, u64>,
    /// Number of requested commands that are attributed to completed calls.
    claimed: u64,
    is_reported: bool,
}

impl ClientRunCommands {
    /// Records that a call was allowed, after `wanted` commands had been requested.
    pub(super) fn allow(&mut self, call: Arc<str>, wanted: u64) {
        if !self.is_reported && self.allowed.len() < MAX_WATCHED {
            self.allowed.insert(call, wanted);
        }
    }

    /// Ends a call. Returns `true` if no requested command belongs to the call, for the first such call only.
    fn end(&mut self, call: &str, wanted: u64) -> bool {
        let Some(before) = self.allowed.remove(call) else { return false };
        let before = before.max(self.claimed);
        if wanted > before {
            self.claimed = before + 1;
            return false;
        }
        !std::mem::replace(&mut self.is_reported, true)
    }
}

impl Actor {
    /// Reports a call that the agent has completed without requesting a terminal. Ignores a failed call,
    /// because its command may never have run.
    pub(super) fn check_own_command(&mut self, call: &str, now: u64) {
        if !self.client_run_commands.allowed.contains_key(call) {
            return;
        }
        let is_completed = self.events.iter().rev().any(|event| match &event.body {
            EventBody::ToolResult { call_id, output } => **call_id == *call && output.status == "completed",
            _ => false,
        });
        if is_completed {
            self.end_own_command(call, now);
        }
    }

    /// Reports a call that is still in progress at the end of the turn without having requested a terminal.
    pub(super) fn check_unfinished_commands(&mut self) {
        let is_cancelled = self.run.as_ref().is_some_and(|run| run.abort.is_some());
        let calls: Vec<Arc<str>> = self.client_run_commands.allowed.keys().cloned().collect();
        for call in calls.iter().filter(|_| !is_cancelled) {
            let status = self.mapper.call(call).and_then(|call| call.status.as_deref());
            if status == Some("in_progress") {
                self.end_own_command(call, now_ms());
            }
        }
        self.client_run_commands.allowed.clear();
    }

    fn end_own_command(&mut self, call: &str, now: u64) {
        if self.client_run_commands.end(call, self.services.commands_wanted()) {
            let data = Json::write(&json!({"callId": call, "problem": PROBLEM}));
            let payload = Payload::Other { name: EVENT.to_owned(), data };
            self.mapper.provider_event(payload, now, &mut self.events);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_needs_a_command_of_its_own() {
        let mut commands = ClientRunCommands::default();
        for call in ["a", "b", "c"] {
            commands.allow(call.into(), 3);
        }
        assert!(!commands.end("unknown", 3));
        assert!(!commands.end("a", 5) && !commands.end("b", 5));
        assert!(commands.end("c", 5) && !commands.end("c", 5));
    }

    #[test]
    fn one_unfinished_command_is_reported() {
        let mut commands = ClientRunCommands::default();
        commands.allow("a".into(), 0);
        commands.allow("b".into(), 0);
        assert!(commands.end("a", 0) && !commands.end("b", 0));
    }
}
