//! Timeouts of a run: cancels it, then ends the agent.

use std::time::Duration;

use narrows_acp::method::SESSION_CANCEL;
use narrows_process::Ladder;
use serde_json::json;
use tokio::time::Instant;

use super::active_run::{Abort, AbortReason, AbortStage};
use super::actor::Actor;

/// Time for an agent to end its turn after its terminals were killed.
const KILL_TIMEOUT: Duration = Duration::from_millis(500);

/// Grace periods for ending an agent that did not end a cancelled turn. Short, because the agent already had
/// the `cancel` deadline.
const STOP_LADDER: Ladder =
    Ladder { eof_grace: Duration::from_millis(500), term_grace: Duration::from_millis(500) };

impl Actor {
    pub(super) fn deadline(&self, has_room: bool) -> Option<Instant> {
        let run = self.run.as_ref()?;
        let silence = self.shared.agent.deadlines.silence;
        // Nothing is read from the agent while the queue of events is full, so silence does not count.
        let counts = !silence.is_zero() && run.abort.is_none() && has_room;
        let quiet = counts.then_some(self.silence.1);
        run.next_deadline().into_iter().chain(quiet).min()
    }

    pub(super) fn abort_run(&mut self, why: AbortReason) {
        let Some(run) = &mut self.run else { return };
        if run.abort.is_some() {
            return;
        }
        let deadlines = &self.shared.agent.deadlines;
        let until = Instant::now()
            + match why {
                AbortReason::Timeout(_) => deadlines.cancel_late,
                AbortReason::Requested | AbortReason::Silence(_) | AbortReason::ModeLeft => deadlines.cancel,
            };
        run.abort = Some(Abort { why, stage: AbortStage::Requested, until });
        let params = json!({"sessionId": &*self.id});
        if let Err(error) = self.shared.peer.notify_now(SESSION_CANCEL, &params) {
            tracing::debug!(%error, "turn not cancelled");
        }
        self.services.permissions.cancel();
    }

    /// Handles an expired deadline. Returns `true` if the agent was ended.
    pub(super) async fn handle_deadline(&mut self) -> bool {
        let now = Instant::now();
        let Some(run) = &mut self.run else { return false };
        if let Some(abort) = &mut run.abort {
            if now < abort.until {
                return false;
            }
            if abort.stage == AbortStage::Requested {
                abort.stage = AbortStage::Killed;
                abort.until = now + KILL_TIMEOUT;
                self.services.terminals.release_all().await;
                return false;
            }
            let why = abort.why;
            tracing::info!("agent did not stop, ending it");
            let seen = self.shared.end(STOP_LADDER).await;
            if let Some(run) = &mut self.run {
                run.data = Some(
                    json!({"stderr": seen.stderr, "strayLines": seen.stray_lines, "strays": seen.strays}),
                );
            }
            self.finish(why.end(), None);
            return true;
        }
        if let Some((at, limit)) = run.deadline
            && now >= at
        {
            self.abort_run(AbortReason::Timeout(limit));
            return false;
        }
        let frames = self.shared.peer.link_stats().frames_in;
        let silence = self.shared.agent.deadlines.silence;
        if now >= self.silence.1 {
            if frames == self.silence.0 && !self.services.permissions.is_asking() {
                self.abort_run(AbortReason::Silence(silence));
            } else {
                self.reset_silence_timer();
            }
        }
        false
    }

    pub(super) fn reset_silence_timer(&mut self) {
        let until = Instant::now() + self.shared.agent.deadlines.silence;
        self.silence = (self.shared.peer.link_stats().frames_in, until);
    }
}
