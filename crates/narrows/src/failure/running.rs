//! What to say when a turn ended, but not with an answer.

use std::time::Duration;

use narrows_acp::stop::StopReason;

use super::{Code, Failure};
use crate::drive::Losses;
use crate::interrupt::Signal;
use crate::terminal::line;

/// Why we ended a turn ourselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// We were told to.
    Signal(Signal),
    /// It took too long.
    Timeout(Duration),
    /// The text no longer fits where it is kept.
    TooLong,
    /// Our output cannot be written any more.
    Output,
}

impl Failure {
    /// What the reason for which the agent stopped means, if it is not the good one.
    pub(crate) fn stopped(reason: Option<&StopReason>) -> Result<(), Self> {
        let Some(reason) = reason else { return Ok(()) };
        Err(match reason {
            StopReason::EndTurn => return Ok(()),
            StopReason::MaxTokens => {
                Self::new(Code::Limit, "the answer is incomplete: the agent reached its limit of tokens")
            }
            StopReason::MaxTurnRequests => Self::new(
                Code::Limit,
                "the answer is incomplete: the agent reached its limit of model requests",
            ),
            StopReason::Refusal => Self::new(Code::Refusal, "the agent refused to answer"),
            StopReason::Cancelled => {
                Self::new(Code::Agent, "the agent cancelled the turn, though nobody asked it to")
            }
            StopReason::Error(Some(error)) => Self::new(Code::Agent, "the agent failed").because(
                &std::io::Error::other(format!("{} ({})", line(&error.message), i32::from(error.code))),
            ),
            StopReason::Error(None) => Self::new(Code::Agent, "the agent failed and does not say why"),
            StopReason::Other(name) => Self::new(
                Code::Agent,
                format!("the agent stopped for a reason we do not know: {:?}", line(name)),
            ),
        })
    }

    /// What is missing of an answer that seems to be whole.
    pub(crate) fn incomplete(losses: &Losses) -> Result<(), Self> {
        let Losses { too_long, unclaimed, unreadable } = *losses;
        let lost: Vec<String> =
            [(too_long, "too long"), (unclaimed, "too early to be kept"), (unreadable, "unreadable")]
                .into_iter()
                .filter(|(count, _)| *count > 0)
                .map(|(count, why)| match count {
                    1 => format!("1 message was {why}"),
                    count => format!("{count} messages were {why}"),
                })
                .collect();
        if lost.is_empty() {
            return Ok(());
        }
        Err(Self::new(Code::Limit, format!("the answer is incomplete: {}", lost.join(", "))))
    }

    /// A turn that we ended; `grace` is how long the agent was given, if that was not enough.
    pub(crate) fn cancelled(why: Cancelled, grace: Option<Duration>) -> Self {
        let failure = match why {
            Cancelled::Signal(Signal::Interrupt) => Self::new(Code::Interrupted, "cancelled"),
            Cancelled::Signal(Signal::Terminate) => Self::new(Code::Terminated, "cancelled by SIGTERM"),
            Cancelled::Timeout(limit) => {
                Self::new(Code::Timeout, format!("the turn was not over within {limit:?} and was cancelled"))
                    .hint("give it more with --timeout, or leave that out")
            }
            Cancelled::TooLong => Self::new(Code::Limit, "the answer is too long for one JSON object")
                .hint("--output text has no limit"),
            Cancelled::Output => Self::new(Code::OutputClosed, Code::OutputClosed.meaning()),
        };
        match grace {
            None => failure,
            Some(grace) => Self {
                message: format!(
                    "{}; the agent did not stop within {grace:?} and was ended",
                    failure.message
                ),
                ..failure
            },
        }
    }

    /// Somebody wants us to leave at once.
    pub(crate) fn left(signal: Signal) -> Self {
        Self::cancelled(Cancelled::Signal(signal), None)
    }
}
