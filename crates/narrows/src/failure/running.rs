//! What to say when a turn ended, but not with an answer.

use std::time::Duration;

use narrows_client::{Losses, RunError, RunResult, Status};
use narrows_wire::{Code as RpcCode, RpcError};
use serde_json::Value;

use super::driving::{LATER, details, reported, strayed};
use super::{Code, Failure};
use crate::cli::Output;
use crate::interrupt::Signal;
use crate::terminal::line;
use crate::tidings::Fate;

/// Why we ended a turn ourselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// We were told to.
    Signal(Signal),
    /// The program that reads our events wanted it.
    Program,
    /// The text no longer fits where it is kept.
    TooLong,
    /// Our output cannot be written any more.
    Output,
}

/// How long a turn, and its end, were given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The turn, if that has a limit.
    pub(crate) turn: Option<Duration>,
    /// Its end, once it was cancelled.
    pub(crate) grace: Duration,
    /// What becomes of an agent that does not stop.
    pub(crate) fate: Fate,
}

impl Failure {
    /// What a run that did not end well comes to.
    pub(crate) fn of_run(result: &RunResult, limits: Limits) -> Result<(), Self> {
        match (result.status, &result.error) {
            (Status::Success, _) => Ok(()),
            (Status::Cancelled, _) => {
                Err(Self::new(Code::Agent, "the agent cancelled the turn, though nobody asked it to"))
            }
            (Status::Error, None) => Err(Self::new(Code::Agent, "the agent failed and does not say why")),
            (Status::Error, Some(error)) => {
                let failure = Self::failed(error, limits.turn);
                let given_up = matches!(error.code.as_str(), "timeout" | "silence");
                Err(if given_up { failure.unless_stopped(result, limits) } else { failure })
            }
        }
    }

    fn failed(error: &RunError, limit: Option<Duration>) -> Self {
        let RunError { code, message, fault, data } = error;
        if let Some(fault) = fault {
            return reported(fault);
        }
        let words = line(message);
        let data = data.clone().unwrap_or_default();
        let failure = match code.as_str() {
            "max_tokens" => {
                Self::new(Code::Limit, "the answer is incomplete: the agent reached its limit of tokens")
            }
            "max_turn_requests" => Self::new(
                Code::Limit,
                "the answer is incomplete: the agent reached its limit of model requests",
            ),
            "refusal" if words.starts_with("the gate ") && words.contains("audit log could not") => {
                Self::new(Code::Refusal, words)
                    .hint("`narrows serve` logs why, on its stderr; the disk may be full")
            }
            "refusal" if words.starts_with("the gate ") => Self::new(Code::Refusal, words)
                .hint("what was decided, and by which policy, is in its audit log: narrows audit show LOG"),
            "refusal" => Self::new(Code::Refusal, "the agent refused to answer"),
            "timeout" => {
                let limit = limit.unwrap_or_default();
                Self::new(Code::Timeout, format!("the turn was not over within {limit:?} and was cancelled"))
                    .hint("give it more with --timeout, or leave that out")
            }
            "silence" => Self::new(Code::Timeout, words)
                .hint("an agent that works in silence may need more: --silence-timeout 1h"),
            "mode_left" => Self::new(Code::Agent, words)
                .hint("name a mode with --mode to let the agent work in it, or use another agent"),
            "malformed" => Self::new(Code::Protocol, words),
            "agent_exited" => {
                let failure = Self { is_gone: true, ..Self::new(Code::Agent, words) };
                let strays = data["strayLines"].as_u64().unwrap_or(0);
                let first = serde_json::from_value::<Vec<String>>(data["strays"].clone()).unwrap_or_default();
                if strays > 0 { failure.hint(strayed(strays, &first)) } else { failure }
            }
            "agent_error" => Self::answered(&words, &data),
            "login_needed" => Self::new(Code::Agent, words)
                .hint("log in with the agent's own command, or hand it a key: --env NAME"),
            _ => Self::new(Code::Agent, words),
        };
        let stderr = data["stderr"].as_str().unwrap_or_default().to_owned();
        Self { stderr, ..failure }
    }

    /// `--timeout` has passed before the prompt was sent.
    pub(crate) fn not_ready(limit: Duration) -> Self {
        Self::new(Code::Timeout, format!("the agent was not ready within {limit:?}"))
            .hint("give it more with --timeout, or leave that out")
    }

    /// The same, with the end of what the agent wrote to stderr, unless that is known already.
    pub(crate) fn with_stderr(self, stderr: &str) -> Self {
        if self.stderr.is_empty() { Self { stderr: stderr.to_owned(), ..self } } else { self }
    }

    /// The agent has gone while no turn ran.
    pub(crate) fn ended_idle() -> Self {
        let words = "the agent has ended, though nothing was asked of it";
        Self { is_gone: true, ..Self::new(Code::Agent, words) }
    }

    /// The prompt was answered with an error.
    fn answered(words: &str, data: &Value) -> Self {
        let code = data["code"].as_i64().unwrap_or(0);
        let inner = Some(data["data"].clone()).filter(|inner| !inner.is_null());
        let retryable = inner.as_ref().and_then(|inner| inner["retryable"].as_bool());
        let rpc = RpcError { code, message: words.to_owned().into(), data: inner };
        let details = details(rpc.data.as_ref());
        let reason = std::io::Error::other(format!("{words}{details} ({code})"));
        let failure = Self::new(Code::Agent, "the agent answered the prompt with an error").because(&reason);
        // Whoever carries messages answers so for an agent that it has lost.
        let is_gone = rpc.is(RpcCode::WorkerLost);
        let failure = Self { rpc: Some(Box::new(rpc)), is_gone, ..failure };
        if retryable == Some(true) { failure.hint(LATER) } else { failure }
    }

    /// What is missing of an answer that seems to be whole.
    pub(crate) fn incomplete(losses: Losses, unreadable: u64) -> Result<(), Self> {
        let Losses { too_long, unclaimed, nameless: _, nameless_answers } = losses;
        let unreadable = unreadable + nameless_answers;
        let all = [(too_long, "too long"), (unclaimed, "too early to be kept"), (unreadable, "unreadable")];
        let lost: Vec<String> = all
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

    /// The agent has answered, but not in the form that was asked for.
    pub(crate) fn formless(result: &RunResult, format: Output) -> Self {
        let retries = match result.prompts {
            0 | 1 => "",
            _ => " after 1 retry",
        };
        let mut message = format!("the answer does not match the schema{retries}");
        if !result.schema_problems.is_empty() {
            message.push_str(": ");
            message.push_str(&line(&result.schema_problems.join("; ")));
        }
        let failure = Self::new(Code::Limit, message);
        match format {
            Output::Text => failure.hint("`--output json` has the text that came instead"),
            Output::Json | Output::Events => failure,
        }
    }

    /// The same of a turn that was given up, with what became of an agent that did not stop.
    pub(crate) fn unless_stopped(self, result: &RunResult, limits: Limits) -> Self {
        if result.stop_reason.is_some() {
            return self;
        }
        let ended = match limits.fate {
            Fate::Ended => format!("the agent did not stop within {:?} and was ended", limits.grace),
            Fate::Left => {
                format!("the agent did not stop within {:?}, and may still be at work", limits.grace)
            }
            Fate::CutOff => {
                "the connection to the agent is lost, so that it may not know, and may still be at work"
                    .to_owned()
            }
        };
        Self { message: format!("{}; {ended}", self.message), ..self }
    }

    /// A turn that we ended.
    pub(crate) fn cancelled(why: Cancelled) -> Self {
        match why {
            Cancelled::Program | Cancelled::Signal(Signal::Interrupt) => {
                Self::new(Code::Interrupted, "cancelled")
            }
            Cancelled::Signal(Signal::Terminate) => Self::new(Code::Terminated, "cancelled by SIGTERM"),
            Cancelled::Signal(Signal::HangUp) => Self::new(Code::HungUp, "cancelled by SIGHUP"),
            Cancelled::TooLong => Self::new(Code::Limit, "the answer is too long for one JSON object")
                .hint("--output text has no limit"),
            Cancelled::Output => Self::new(Code::OutputClosed, Code::OutputClosed.meaning()),
        }
    }

    /// Somebody wants us to leave at once.
    pub(crate) fn left(signal: Signal) -> Self {
        Self::cancelled(Cancelled::Signal(signal))
    }
}
