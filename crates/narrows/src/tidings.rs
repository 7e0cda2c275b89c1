//! What is told of a connection that is lost and tried to be had again.

use std::time::Duration;

use narrows_remote::client::{ConnectionState, Outage};
use tokio::time::Instant;

use crate::screen::Piece;
use crate::terminal::{Colour, Style};

/// What is had again within so long nobody needs to know of.
const BLINK: Duration = Duration::from_secs(1);

/// How often it is told where every line stays.
const OFTEN: Duration = Duration::from_secs(60);

/// The connection to an agent, if it is somewhere else, and what was told of it.
#[derive(Debug, Default)]
pub(crate) struct Tidings {
    standing: Option<ConnectionState>,
    /// When it was told last that the connection is lost.
    told: Option<Instant>,
}

/// What becomes of an agent that does not stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It was started here, and is ended.
    Ended,
    /// It is somewhere else, and left to itself.
    Left,
    /// It is somewhere else, and cannot be told anything.
    CutOff,
}

impl Tidings {
    /// Of the connection that there is, if there is one.
    pub(crate) fn of(standing: Option<ConnectionState>) -> Self {
        Self { standing, told: None }
    }

    /// Whether there can be any.
    pub(crate) fn are_possible(&self) -> bool {
        self.standing.is_some()
    }

    /// What becomes of the agent now if it does not stop.
    pub(crate) fn fate(&self) -> Fate {
        match &self.standing {
            None => Fate::Ended,
            Some(standing) if self.told.is_some() || standing.gap().is_some() => Fate::CutOff,
            Some(_) => Fate::Left,
        }
    }

    /// What is to be said now. Where a terminal is `watched` one line stands there all the time.
    pub(crate) fn now(&mut self, watched: bool, colour: Colour) -> Option<Piece> {
        let gap = self.standing.as_ref()?.gap();
        self.tell(gap, watched, colour, Instant::now())
    }

    fn tell(&mut self, gap: Option<Outage>, watched: bool, colour: Colour, now: Instant) -> Option<Piece> {
        let Some(gap) = gap else {
            self.told.take()?;
            return Some(if watched {
                Piece::Rest
            } else {
                Piece::Note("the connection is back".to_owned())
            });
        };
        let is_due = watched || self.told.is_none_or(|told| now.duration_since(told) >= OFTEN);
        if now.duration_since(gap.since) < BLINK || !is_due {
            return None;
        }
        self.told = Some(now);
        let left = gap.until.saturating_duration_since(now).as_secs();
        let words = format!("the connection is lost, and is being taken up again: {left} s left");
        Some(if watched {
            Piece::Alert(colour.paint(Style::Dim, &format!("… {words}")).into_owned())
        } else {
            Piece::Note(words)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_while_it_lasts_and_never_too_often() {
        let start = Instant::now();
        let gap = Some(Outage { since: start, until: start + Duration::from_secs(300) });
        let told = |watched: bool, at: &[(u64, Option<Outage>)]| -> Vec<Option<Piece>> {
            let mut tidings = Tidings::default();
            let at = at.iter().map(|(at, gap)| (start + Duration::from_secs(*at), *gap));
            at.map(|(now, gap)| tidings.tell(gap, watched, Colour::off(), now)).collect()
        };
        let words = |left: u64| format!("the connection is lost, and is being taken up again: {left} s left");
        let at = [(0, gap), (2, gap), (4, gap), (62, gap), (64, None), (66, None)];
        let note = |left| Some(Piece::Note(words(left)));
        let back = Some(Piece::Note("the connection is back".to_owned()));
        assert_eq!(told(false, &at), [None, note(298), None, note(238), back, None]);
        let alert = |left| Some(Piece::Alert(format!("… {}", words(left))));
        let rest = Some(Piece::Rest);
        assert_eq!(told(true, &at), [None, alert(298), alert(296), alert(238), rest, None]);
        // What was never told need not be taken back.
        assert_eq!(told(false, &[(0, gap), (1, None)]), [None, None]);
    }
}
