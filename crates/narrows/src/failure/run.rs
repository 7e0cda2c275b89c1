//! Failures of turns that have started.

use std::time::Duration;

use narrows_client::{MessageLoss, RunError, RunResult, Status};
use narrows_wire::{Code as RpcCode, RpcError};
use serde_json::Value;

use super::agent::{RETRY_LATER_HINT, error_details, model_failed, stray_lines_notice};
use super::{ExitStatus, Failure};
use crate::cli::Output;
use crate::interrupt::Signal;
use crate::reconnect_notice::UnstoppedAgent;
use crate::terminal::line;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelReason {
    Signal(Signal),
    /// The program that reads the events cancelled the turn.
    Program,
    /// The answer exceeds the size limit of one JSON object.
    TooLong,
    Output,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RunLimits {
    pub(crate) turn: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) unstopped_agent: UnstoppedAgent,
}

impl Failure {
    /// Returns the failure of a run that did not end well.
    pub(crate) fn from_run(result: &RunResult, limits: RunLimits) -> Result<(), Self> {
        match (result.status, &result.error) {
            (Status::Success, _) => Ok(()),
            (Status::Cancelled, _) => {
                Err(Self::new(ExitStatus::Agent, "the agent cancelled the turn without a request"))
            }
            (Status::Error, None) => {
                Err(Self::new(ExitStatus::Agent, "the agent failed without an error message"))
            }
            (Status::Error, Some(error)) => {
                let failure = Self::run_failed(error, limits.turn);
                let given_up = matches!(error.code.as_str(), "timeout" | "silence");
                Err(if given_up { failure.with_unstopped_agent(result, limits) } else { failure })
            }
        }
    }

    fn run_failed(error: &RunError, limit: Option<Duration>) -> Self {
        let RunError { code, message, fault, data } = error;
        if let Some(fault) = fault {
            return model_failed(fault);
        }
        let words = line(message);
        let data = data.clone().unwrap_or_default();
        let failure = match code.as_str() {
            "max_tokens" => {
                Self::new(ExitStatus::Limit, "the answer is incomplete: the agent reached its token limit")
            }
            "max_turn_requests" => Self::new(
                ExitStatus::Limit,
                "the answer is incomplete: the agent reached its limit of model requests",
            ),
            "refusal" if words.starts_with("the gate ") && words.contains("audit log could not") => {
                Self::new(ExitStatus::Refusal, words).with_hint(
                    "check the log of `narrows serve` on its stderr for the reason; the disk may be full",
                )
            }
            "refusal" if words.starts_with("the gate ") => Self::new(ExitStatus::Refusal, words)
                .with_hint("see the decision and its policy in the audit log: narrows audit show LOG"),
            "refusal" => Self::new(ExitStatus::Refusal, "the agent refused to answer"),
            "timeout" => {
                let limit = limit.unwrap_or_default();
                Self::new(
                    ExitStatus::Timeout,
                    format!("the turn exceeded --timeout of {limit:?} and was cancelled"),
                )
                .with_hint("allow more time with --timeout, or omit it")
            }
            "silence" => Self::new(ExitStatus::Timeout, words)
                .with_hint("if the agent works without output, allow more time: --silence-timeout 1h"),
            "mode_left" => Self::new(ExitStatus::Agent, words)
                .with_hint("select a mode with --mode in which the agent may work, or use another agent"),
            "malformed" => Self::new(ExitStatus::Protocol, words),
            "agent_exited" => {
                let failure = Self { is_agent_lost: true, ..Self::new(ExitStatus::Agent, words) };
                let strays = data["strayLines"].as_u64().unwrap_or(0);
                let first = serde_json::from_value::<Vec<String>>(data["strays"].clone()).unwrap_or_default();
                if strays > 0 { failure.with_hint(stray_lines_notice(strays, &first)) } else { failure }
            }
            "agent_error" => Self::prompt_error(&words, &data),
            "login_needed" => Self::new(ExitStatus::Agent, words)
                .with_hint("log in with the agent's own command, or pass it a key: --env NAME"),
            _ => Self::new(ExitStatus::Agent, words),
        };
        let stderr = data["stderr"].as_str().unwrap_or_default().to_owned();
        Self { stderr, ..failure }
    }

    pub(crate) fn startup_timeout(limit: Duration) -> Self {
        Self::new(ExitStatus::Timeout, format!("the agent was not ready within --timeout of {limit:?}"))
            .with_hint("allow more time with --timeout, or omit it")
    }

    /// Adds the end of the agent's stderr, unless the failure has one already.
    pub(crate) fn with_stderr(self, stderr: &str) -> Self {
        if self.stderr.is_empty() { Self { stderr: stderr.to_owned(), ..self } } else { self }
    }

    pub(crate) fn agent_exited_idle() -> Self {
        let words = "the agent exited while it was idle";
        Self { is_agent_lost: true, ..Self::new(ExitStatus::Agent, words) }
    }

    /// Returns the failure of a prompt that was answered with an error.
    fn prompt_error(words: &str, data: &Value) -> Self {
        let code = data["code"].as_i64().unwrap_or(0);
        let inner = Some(data["data"].clone()).filter(|inner| !inner.is_null());
        let retryable = inner.as_ref().and_then(|inner| inner["retryable"].as_bool());
        let rpc = RpcError { code, message: words.to_owned().into(), data: inner };
        let details = error_details(rpc.data.as_ref());
        let reason = std::io::Error::other(format!("{words}{details} ({code})"));
        let failure =
            Self::new(ExitStatus::Agent, "the agent answered the prompt with an error").with_cause(&reason);
        // A bus or gateway answers with this error for an agent that it lost.
        let is_agent_lost = rpc.is(RpcCode::WorkerLost);
        let failure = Self { rpc: Some(Box::new(rpc)), is_agent_lost, ..failure };
        if retryable == Some(true) { failure.with_hint(RETRY_LATER_HINT) } else { failure }
    }

    /// Returns a failure if parts of a finished answer were lost.
    pub(crate) fn incomplete_answer(message_loss: MessageLoss, unreadable: u64) -> Result<(), Self> {
        let MessageLoss { too_long, unclaimed, unreadable: lines, nameless: _, nameless_answers } =
            message_loss;
        let unreadable = unreadable + lines + nameless_answers;
        let all = [
            (too_long, "too long"),
            (unclaimed, "dropped before the session was opened"),
            (unreadable, "unreadable"),
        ];
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
        Err(Self::new(ExitStatus::Limit, format!("the answer is incomplete: {}", lost.join(", "))))
    }

    pub(crate) fn schema_mismatch(result: &RunResult, format: Output) -> Self {
        let retries = match result.prompts {
            0 | 1 => "",
            _ => " after 1 retry",
        };
        let mut message = format!("the answer does not match the schema{retries}");
        if !result.schema_problems.is_empty() {
            message.push_str(": ");
            message.push_str(&line(&result.schema_problems.join("; ")));
        }
        let failure = Self::new(ExitStatus::Limit, message);
        match format {
            Output::Text => failure.with_hint("use `--output json` to see the invalid answer"),
            Output::Json | Output::Events => failure,
        }
    }

    /// Adds the fate of an agent that did not stop after its turn was cancelled.
    pub(crate) fn with_unstopped_agent(self, result: &RunResult, limits: RunLimits) -> Self {
        if result.stop_reason.is_some() {
            return self;
        }
        let ended = match limits.unstopped_agent {
            UnstoppedAgent::Killed => {
                format!("the agent did not stop within {:?} and was killed", limits.grace)
            }
            UnstoppedAgent::LeftRunning => {
                format!("the agent did not stop within {:?} and may still be working", limits.grace)
            }
            UnstoppedAgent::Unreachable => {
                "the connection is lost, so the agent may still be working".to_owned()
            }
        };
        Self { message: format!("{}; {ended}", self.message), ..self }
    }

    pub(crate) fn cancelled(why: CancelReason) -> Self {
        match why {
            CancelReason::Program | CancelReason::Signal(Signal::Interrupt) => {
                Self::new(ExitStatus::Interrupted, "cancelled")
            }
            CancelReason::Signal(Signal::Terminate) => {
                Self::new(ExitStatus::Terminated, "cancelled by SIGTERM")
            }
            CancelReason::Signal(Signal::HangUp) => Self::new(ExitStatus::HungUp, "cancelled by SIGHUP"),
            CancelReason::TooLong => {
                Self::new(ExitStatus::Limit, "the answer is too long for one JSON object")
                    .with_hint("use --output text, which has no limit")
            }
            CancelReason::Output => Self::new(ExitStatus::OutputClosed, ExitStatus::OutputClosed.meaning()),
        }
    }

    pub(crate) fn forced_exit(signal: Signal) -> Self {
        Self::cancelled(CancelReason::Signal(signal))
    }
}
