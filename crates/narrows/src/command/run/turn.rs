//! The turn itself, while the agent, the user, the clock and the reader of our output all may end it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{Session, Trouble};
use crate::drive::{DriveError, Problem, Stage, Step, Turn};
use crate::failure::{Cancelled, Failure};
use crate::interrupt::Signal;
use crate::screen::{Failed, Piece, Room, Screen};

/// What happened next.
enum Happened {
    /// Somebody wants us to stop.
    Signal(Signal),
    /// The deadline has passed.
    Deadline,
    /// Our output cannot be written any more.
    OutputFailed,
    /// One piece is on its way to the screen.
    Shown,
    /// The agent did something.
    Step(Result<Step, Problem>),
}

/// How far a turn has come.
struct Following<'a> {
    turn: Turn<'a>,
    /// Until when the turn, or once it is cancelled its end, may take.
    deadline: Option<Instant>,
    /// Why we have asked the agent to stop.
    cancelled: Option<Cancelled>,
    /// What waits for room on the screen.
    pieces: VecDeque<Piece>,
}

impl Session<'_> {
    /// Shows what comes until the turn is over.
    pub(super) async fn follow(&mut self, turn: Turn<'_>) -> Result<(), Trouble> {
        let deadline = self.settings.turn_limit.and_then(after);
        let mut following = Following { turn, deadline, cancelled: None, pieces: VecDeque::new() };
        loop {
            match self.happens(&mut following).await {
                Happened::Shown => {}
                Happened::Signal(signal) => match following.cancelled {
                    Some(_) => return Err(Trouble::Leave(signal)),
                    None => self.cancel(&mut following, Cancelled::Signal(signal)),
                },
                Happened::Deadline => match following.cancelled {
                    Some(why) => {
                        let failure = Failure::cancelled(why, Some(self.settings.cancel_grace));
                        return Err(Trouble::Ended(failure));
                    }
                    None => {
                        let limit = self.settings.turn_limit.unwrap_or_default();
                        self.cancel(&mut following, Cancelled::Timeout(limit));
                    }
                },
                Happened::OutputFailed => self.cancel(&mut following, Cancelled::Output),
                Happened::Step(step) => {
                    if let Some(end) = self.take(&mut following, step).await {
                        self.show_rest(following.pieces).await?;
                        return end;
                    }
                }
            }
        }
    }

    /// Takes a step and what else has come already, as much as is worth showing at once. Returns how the turn ended,
    /// if it did.
    async fn take(
        &mut self,
        following: &mut Following<'_>,
        step: Result<Step, Problem>,
    ) -> Option<Result<(), Trouble>> {
        let mut next = Some(step);
        while let Some(step) = next {
            match step {
                Ok(Step::Event(event)) => {
                    let shown = self.presenter.show(event, &mut following.pieces);
                    if shown.is_err() && following.cancelled.is_none() {
                        self.cancel(following, Cancelled::TooLong);
                    }
                }
                Ok(Step::Ended(reason)) => {
                    self.summary.stop_reason = reason.as_ref().map(|reason| reason.name().to_owned());
                    return Some(match following.cancelled {
                        Some(why) => Err(Trouble::Ended(Failure::cancelled(why, None))),
                        None => Failure::stopped(reason.as_ref())
                            .and_then(|()| Failure::incomplete(&following.turn.losses()))
                            .map_err(Trouble::Ended),
                    });
                }
                Err(problem) => {
                    return Some(Err(match following.cancelled {
                        // An agent that ends when it is told to stop has stopped.
                        Some(why) => Trouble::Ended(Failure::cancelled(why, None)),
                        None => Trouble::Drive(DriveError::new(Stage::Turn, problem)),
                    }));
                }
            }
            next = if enough(&following.pieces) { None } else { following.turn.try_next().await };
        }
        None
    }

    /// Waits for what happens next. Nothing is taken from the agent while there is no room on the screen.
    async fn happens(&mut self, following: &mut Following<'_>) -> Happened {
        let Following { turn, deadline, cancelled, pieces } = following;
        tokio::select! {
            biased;
            signal = self.interrupts.next() => Happened::Signal(signal),
            () = reached(*deadline) => Happened::Deadline,
            () = self.screen.failed(), if *cancelled != Some(Cancelled::Output) => Happened::OutputFailed,
            room = room(&self.screen, pieces.front()), if !pieces.is_empty() => {
                match (room, pieces.pop_front()) {
                    (Ok(room), Some(piece)) => room.send(piece),
                    // Nobody will see the rest either.
                    _ => pieces.clear(),
                }
                Happened::Shown
            }
            step = turn.next(), if pieces.is_empty() => Happened::Step(step),
        }
    }

    /// Asks the agent to stop, unless it has been asked already, and gives it some time for that.
    fn cancel(&mut self, following: &mut Following<'_>, why: Cancelled) {
        if following.cancelled.is_none() {
            self.cancelled = true;
            following.turn.cancel();
            following.deadline = after(self.settings.cancel_grace);
        }
        following.cancelled = Some(why);
        match why {
            Cancelled::Signal(Signal::Interrupt) => {
                let note = "cancelling; press Ctrl-C again to leave at once";
                following.pieces.push_back(Piece::Note(note.to_owned()));
            }
            Cancelled::Output => following.pieces.clear(),
            _ => {}
        }
    }

    /// Shows what is left to show at the end.
    async fn show_rest(&mut self, mut pieces: VecDeque<Piece>) -> Result<(), Trouble> {
        self.presenter.finish(&mut pieces);
        for piece in pieces {
            match self.interrupts.unless(self.screen.room(&piece)).await {
                Ok(Ok(room)) => room.send(piece),
                // Nobody will see the rest either.
                Ok(Err(_)) => return Ok(()),
                Err(signal) => return Err(Trouble::Leave(signal)),
            }
        }
        Ok(())
    }
}

/// Whether what waits is worth showing before more is taken.
fn enough(pieces: &VecDeque<Piece>) -> bool {
    pieces.len() > 16 || matches!(pieces.back(), Some(Piece::Text(text)) if text.len() > 64 << 10)
}

/// Waits for room for a piece, or forever if there is none.
async fn room<'a>(screen: &'a Screen, piece: Option<&Piece>) -> Result<Room<'a>, Failed> {
    match piece {
        Some(piece) => screen.room(piece).await,
        None => std::future::pending().await,
    }
}

/// The moment this long from now, if there will be one.
fn after(limit: Duration) -> Option<Instant> {
    Instant::now().checked_add(limit)
}

/// Waits for a moment, or forever if there is none.
async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
