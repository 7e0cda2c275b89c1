//! Progress notices while a lost connection is being re-established.

use std::time::Duration;

use narrows_remote::client::{ConnectionState, Outage};
use tokio::time::Instant;

use crate::output_thread::OutputPiece;
use crate::terminal::{Color, Style};

/// Outages shorter than this are not reported.
const NOTICE_DELAY: Duration = Duration::from_secs(1);

/// The interval of notices if stderr is not a terminal.
const NOTICE_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct ReconnectNotice {
    state: Option<ConnectionState>,
    last_notice: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnstoppedAgent {
    /// A local agent is killed.
    Killed,
    /// A remote agent is left running.
    LeftRunning,
    /// A remote agent cannot be reached.
    Unreachable,
}

impl ReconnectNotice {
    pub(crate) fn new(state: Option<ConnectionState>) -> Self {
        Self { state, last_notice: None }
    }

    pub(crate) fn is_remote(&self) -> bool {
        self.state.is_some()
    }

    /// Returns the fate of the agent if it does not stop now.
    pub(crate) fn unstopped_agent(&self) -> UnstoppedAgent {
        match &self.state {
            None => UnstoppedAgent::Killed,
            Some(state) if self.last_notice.is_some() || state.outage().is_some() => {
                UnstoppedAgent::Unreachable
            }
            Some(_) => UnstoppedAgent::LeftRunning,
        }
    }

    /// Returns the next notice, if one is due. On a terminal, the notice is a status line that is updated
    /// continuously.
    pub(crate) fn next(&mut self, is_terminal: bool, color: Color) -> Option<OutputPiece> {
        let outage = self.state.as_ref()?.outage();
        self.notice(outage, is_terminal, color, Instant::now())
    }

    fn notice(
        &mut self,
        outage: Option<Outage>,
        is_terminal: bool,
        color: Color,
        now: Instant,
    ) -> Option<OutputPiece> {
        let Some(outage) = outage else {
            self.last_notice.take()?;
            return Some(if is_terminal {
                OutputPiece::Rest
            } else {
                OutputPiece::Note("connection restored".to_owned())
            });
        };
        let is_due =
            is_terminal || self.last_notice.is_none_or(|told| now.duration_since(told) >= NOTICE_INTERVAL);
        if now.duration_since(outage.since) < NOTICE_DELAY || !is_due {
            return None;
        }
        self.last_notice = Some(now);
        let left = outage.until.saturating_duration_since(now).as_secs();
        let words = format!("connection lost, reconnecting ({left} s left)");
        Some(if is_terminal {
            OutputPiece::Alert(color.paint(Style::Dim, &format!("… {words}")).into_owned())
        } else {
            OutputPiece::Note(words)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_is_reported_repeatedly_but_not_too_often() {
        let start = Instant::now();
        let outage = Some(Outage { since: start, until: start + Duration::from_secs(300) });
        let told = |is_terminal: bool, at: &[(u64, Option<Outage>)]| -> Vec<Option<OutputPiece>> {
            let mut reconnect_notice = ReconnectNotice::default();
            let at = at.iter().map(|(at, outage)| (start + Duration::from_secs(*at), *outage));
            at.map(|(now, outage)| reconnect_notice.notice(outage, is_terminal, Color::off(), now)).collect()
        };
        let words = |left: u64| format!("connection lost, reconnecting ({left} s left)");
        let at = [(0, outage), (2, outage), (4, outage), (62, outage), (64, None), (66, None)];
        let note = |left| Some(OutputPiece::Note(words(left)));
        let back = Some(OutputPiece::Note("connection restored".to_owned()));
        assert_eq!(told(false, &at), [None, note(298), None, note(238), back, None]);
        let alert = |left| Some(OutputPiece::Alert(format!("… {}", words(left))));
        let rest = Some(OutputPiece::Rest);
        assert_eq!(told(true, &at), [None, alert(298), alert(296), alert(238), rest, None]);
        // If the loss was not reported, its end is not reported either.
        assert_eq!(told(false, &[(0, outage), (1, None)]), [None, None]);
    }
}
