//! Keeps an agent in the read-only mode that low access selected.
//!
//! An agent can leave the mode by itself, and would act without asking. The client sets the mode back once
//! per turn. If the agent leaves the mode again, or refuses to return to it, the client cancels the turn,
//! because low access is not enforced.

use std::sync::{Arc, Mutex};

use narrows_base::sync::lock;
use serde_json::json;

use super::active_run::AbortReason;
use super::actor::{Actor, TaskOutcome, now_ms};
use super::restrict::{CONSEQUENCE, current_mode};
use super::{locked, set};
use crate::event::{Json, Payload};

const EVENT: &str = "mode.left";

/// The mode that low access selected, enforced until the user selects another. Shared by a session and its
/// task.
#[derive(Debug, Default)]
pub(super) struct ModeGuard(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    mode: Option<String>,
    restoring: Restoring,
}

/// Progress of setting back the agent's mode in the current turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Restoring {
    #[default]
    Unused,
    /// The agent has not answered the request to set back the mode.
    InFlight,
    Used,
    /// The agent left the mode a second time, so the turn is being cancelled.
    GivenUp,
}

/// Reaction to an agent that has changed to a mode in which it acts without asking.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// No reaction is needed: no mode is enforced, or the mode is being set back.
    Ignore,
    Restore(String),
    /// The turn must be cancelled, because the agent left the mode a second time.
    Cancel(String),
}

impl ModeGuard {
    pub(super) fn set_mode(&self, mode: &str) {
        *lock(&self.0) = State { mode: Some(mode.to_owned()), restoring: Restoring::Unused };
    }

    /// Stops enforcing a mode. Returns the mode that was enforced.
    pub(super) fn release(&self) -> Option<String> {
        std::mem::take(&mut *lock(&self.0)).mode
    }

    /// Allows the client to set back the mode once more, because a turn begins.
    pub(super) fn begin_turn(&self) {
        let mut state = lock(&self.0);
        if state.restoring != Restoring::InFlight {
            state.restoring = Restoring::Unused;
        }
    }

    /// Returns the reaction to a change to a mode that is not read-only.
    fn on_mode_left(&self) -> Step {
        let mut state = lock(&self.0);
        let Some(mode) = state.mode.clone() else { return Step::Ignore };
        match state.restoring {
            Restoring::InFlight | Restoring::GivenUp => Step::Ignore,
            Restoring::Used => {
                state.restoring = Restoring::GivenUp;
                Step::Cancel(mode)
            }
            Restoring::Unused => {
                state.restoring = Restoring::InFlight;
                Step::Restore(mode)
            }
        }
    }

    /// Records the agent's answer to the request to set back the mode. Returns `true` if a mode is still
    /// enforced.
    fn on_restored(&self) -> bool {
        let mut state = lock(&self.0);
        state.restoring = Restoring::Used;
        state.mode.is_some()
    }
}

impl Actor {
    /// Handles a reported mode other than the one that low access selected.
    pub(super) fn check_mode(&mut self) {
        let current = current_mode(&locked(&self.snapshot));
        if current.as_ref().is_some_and(|mode| mode.only_reads) {
            return;
        }
        let current = current.map(|mode| mode.id).unwrap_or_default();
        match self.mode_guard.on_mode_left() {
            Step::Ignore => {}
            Step::Restore(mode) => {
                self.report_mode(&current, &mode, &format!("{CONSEQUENCE}; setting it back"));
                let (shared, id) = (Arc::clone(&self.shared), Arc::clone(&self.id));
                let snapshot = Arc::clone(&self.snapshot);
                self.tasks.spawn(async move {
                    let restored = set::try_set(&shared, &id, &snapshot, "mode", &mode).await;
                    Some(TaskOutcome::ModeRestored { mode, restored })
                });
            }
            Step::Cancel(mode) => {
                self.report_mode(&current, &mode, CONSEQUENCE);
                self.abort_run(AbortReason::ModeLeft);
            }
        }
    }

    pub(super) fn mode_restored(&mut self, mode: &str, restored: Result<(), String>) {
        if !self.mode_guard.on_restored() {
            return;
        }
        let current = current_mode(&locked(&self.snapshot));
        let only_reads = current.as_ref().is_some_and(|mode| mode.only_reads);
        let Some(reason) =
            restored.err().or_else(|| (!only_reads).then(|| "the agent left it again".to_owned()))
        else {
            return;
        };
        let current = current.map(|mode| mode.id).unwrap_or_default();
        self.report_mode(&current, mode, &format!("it cannot be set back ({reason}), so {CONSEQUENCE}"));
        self.abort_run(AbortReason::ModeLeft);
    }

    fn report_mode(&mut self, current: &str, wanted: &str, consequence: &str) {
        let problem = format!("the agent left the mode {wanted:?} for {current:?}: {consequence}");
        let data = Json::write(&json!({"mode": current, "wanted": wanted, "problem": problem}));
        let payload = Payload::Other { name: EVENT.to_owned(), data };
        self.mapper.provider_event(payload, now_ms(), &mut self.events);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_set_back_once_per_turn() {
        let guard = ModeGuard::default();
        assert_eq!(guard.on_mode_left(), Step::Ignore);
        guard.set_mode("plan");
        assert_eq!(guard.on_mode_left(), Step::Restore("plan".to_owned()));
        assert_eq!(guard.on_mode_left(), Step::Ignore, "it is being set back");
        assert!(guard.on_restored());
        assert_eq!(guard.on_mode_left(), Step::Cancel("plan".to_owned()));
        assert_eq!(guard.on_mode_left(), Step::Ignore, "the turn is being cancelled");
        guard.begin_turn();
        assert_eq!(guard.on_mode_left(), Step::Restore("plan".to_owned()));
        assert_eq!(guard.release().as_deref(), Some("plan"));
        assert!(!guard.on_restored());
        assert_eq!(guard.on_mode_left(), Step::Ignore);
    }
}
