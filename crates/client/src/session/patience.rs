//! How long an agent is waited for, and what is done when it takes longer.

use std::time::Duration;

use narrows_acp::method::SESSION_CANCEL;
use narrows_process::Ladder;
use serde_json::json;
use tokio::time::Instant;

use super::active::{GivingUp, Rung, Why};
use super::actor::Actor;

/// How long an agent may take once its terminals have been killed.
const AFTER_KILL: Duration = Duration::from_millis(500);

/// How an agent is ended that did not stop when it was asked to: it has had its time already.
const LADDER: Ladder =
    Ladder { eof_grace: Duration::from_millis(500), term_grace: Duration::from_millis(500) };

impl Actor {
    /// When something is to be done though nothing comes.
    pub(super) fn deadline(&self, has_room: bool) -> Option<Instant> {
        let run = self.run.as_ref()?;
        let silence = self.shared.agent.deadlines.silence;
        // While nobody takes its events it is not the agent that is silent.
        let counts = !silence.is_zero() && run.giving_up.is_none() && has_room;
        let quiet = counts.then_some(self.silence.1);
        run.next_deadline().into_iter().chain(quiet).min()
    }

    /// Asks the agent to stop.
    pub(super) fn give_up(&mut self, why: Why) {
        let Some(run) = &mut self.run else { return };
        if run.giving_up.is_some() {
            return;
        }
        let deadlines = &self.shared.agent.deadlines;
        let until = Instant::now()
            + match why {
                Why::Timeout(_) => deadlines.cancel_late,
                Why::Asked | Why::Silence(_) | Why::ModeLeft => deadlines.cancel,
            };
        run.giving_up = Some(GivingUp { why, rung: Rung::Asked, until });
        let params = json!({"sessionId": &*self.id});
        if let Err(error) = self.shared.peer.notify_now(SESSION_CANCEL, &params) {
            tracing::debug!(%error, "the turn could not be cancelled");
        }
        self.services.authority.cancel();
    }

    /// A deadline has passed. Whether the agent was ended for it.
    pub(super) async fn late(&mut self) -> bool {
        let now = Instant::now();
        let Some(run) = &mut self.run else { return false };
        if let Some(giving_up) = &mut run.giving_up {
            if now < giving_up.until {
                return false;
            }
            if giving_up.rung == Rung::Asked {
                giving_up.rung = Rung::Killed;
                giving_up.until = now + AFTER_KILL;
                self.services.terminals.release_all().await;
                return false;
            }
            let why = giving_up.why;
            tracing::info!("the agent does not stop, so it is ended");
            let seen = self.shared.end(LADDER).await;
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
            self.give_up(Why::Timeout(limit));
            return false;
        }
        let frames = self.shared.peer.link_stats().frames_in;
        let silence = self.shared.agent.deadlines.silence;
        if now >= self.silence.1 {
            if frames == self.silence.0 && !self.services.authority.is_asking() {
                self.give_up(Why::Silence(silence));
            } else {
                self.hear();
            }
        }
        false
    }

    /// Silence is measured anew from here.
    pub(super) fn hear(&mut self) {
        let until = Instant::now() + self.shared.agent.deadlines.silence;
        self.silence = (self.shared.peer.link_stats().frames_in, until);
    }
}
