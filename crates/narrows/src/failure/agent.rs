//! Failures of the conversation with an agent, from its start to the end of a turn.

use std::time::Duration;

use narrows_acp::offer::NegotiationError;
use narrows_base::suggest::nearest;
use narrows_link::CloseReason;
use narrows_process::SpawnError;
use narrows_wire::{Code as RpcCode, RpcError};

use super::{ExitStatus, Failure};
use crate::cli::value::bare_address;
use crate::config::BUILT_IN;
use crate::terminal::line;
use narrows_client::{AgentOutput, ClientError, Fault, Login, LoginKind, Problem, Stage};

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let ClientError { stage, problem, agent_output: AgentOutput { stray_lines, strays, stderr } } = error;
        let silent = matches!(*problem, Problem::Lost(_) | Problem::Deadline(_) | Problem::Malformed(_));
        let explained = silent || matches!(*problem, Problem::Refused(_));
        let mut failure = match *problem {
            Problem::Spawn { agent, source } => spawn_failed(&agent, &source),
            Problem::Lost(reason) => agent_lost(stage, &reason),
            Problem::Deadline(limit) => stage_timeout(stage, limit),
            Problem::Refused(error) => request_refused(stage, &error),
            Problem::LoginNeeded(logins) => login_required(&logins),
            Problem::Malformed(reason) => Self::new(
                ExitStatus::Protocol,
                format!("invalid response of the agent to {}: {}", stage_request(stage), line(&reason)),
            ),
            Problem::NoCommonVersion(unfit) => version_mismatch(&unfit),
            Problem::Unsupported(reason) => Self::new(ExitStatus::Agent, line(&reason)),
            Problem::Invalid(reason) => Self::new(ExitStatus::Usage, line(&reason)),
            Problem::NotSerializable(reason) => Self::new(ExitStatus::Internal, "cannot write the message")
                .with_cause(&std::io::Error::other(reason)),
            other => Self::new(ExitStatus::Internal, other.to_string()),
        };
        if silent && stray_lines > 0 {
            let agent_output = stray_lines_notice(stray_lines, &strays);
            let hint = if stage == Stage::Turn {
                agent_output
            } else {
                format!("{agent_output}; {NOT_AN_AGENT_HINT}")
            };
            failure = failure.with_hint(hint);
        }
        if explained {
            failure.stderr = stderr;
        }
        failure
    }
}

impl Failure {
    pub(crate) fn unknown_agent(wanted: &str, known: &[String]) -> Self {
        let wanted = line(wanted);
        let failure = Self::new(ExitStatus::Start, format!("unknown agent {wanted:?}"));
        let words = "neither an agent in narrows.toml nor a program in PATH has this name";
        let failure = failure.with_cause(&std::io::Error::other(words));
        let names = || known.iter().map(String::as_str).chain([BUILT_IN]);
        let near = nearest(&wanted, names()).map(str::to_owned).or_else(|| similar_agent(&wanted));
        let failure = match near {
            Some(near) => failure.with_hint(did_you_mean(&near)),
            None => failure,
        };
        failure.with_hint(format!("configured agents: {}", line(&names().collect::<Vec<_>>().join(", "))))
    }
}

const MAX_LISTED_MODELS: usize = 10;

impl Failure {
    pub(crate) fn no_such_model(endpoint: &str, model: &str, listed: &[&str]) -> Self {
        let names: Vec<String> = listed.iter().take(MAX_LISTED_MODELS).map(|name| line(name)).collect();
        let more = match listed.len().saturating_sub(MAX_LISTED_MODELS) {
            0 => String::new(),
            more => format!(", … {more} more"),
        };
        let message = format!("model {model:?} not found: the endpoint {endpoint:?} does not list it");
        let failure = Self::new(ExitStatus::Agent, message);
        match nearest(model, listed.iter().copied()) {
            Some(near) => failure.with_hint(format!("did you mean {near:?}?")),
            None if names.is_empty() => failure.with_hint("the endpoint lists no models"),
            None => failure.with_hint(format!("available models: {}{more}", names.join(", "))),
        }
    }

    pub(crate) fn no_model_list(endpoint: &str, model: &str, reason: &str) -> Self {
        let message = format!("cannot check the model {model:?}: the endpoint {endpoint:?} lists no models");
        Self::new(ExitStatus::Agent, message)
            .with_cause(&std::io::Error::other(line(reason)))
            .with_hint("remove --require-model to use the model unchecked")
    }
}

fn stage_request(stage: Stage) -> &'static str {
    match stage {
        Stage::Start | Stage::Initialize => "`initialize`",
        Stage::Login => "`authenticate`",
        Stage::Open => "`session/new`",
        Stage::Resume => "the request to resume a session",
        Stage::Fork => "`session/fork`",
        Stage::List => "`session/list`",
        Stage::Delete => "`session/delete`",
        Stage::Set => "the request to set an option",
        Stage::Turn => "the prompt",
    }
}

fn spawn_failed(program: &str, error: &SpawnError) -> Failure {
    let failure = Failure::new(ExitStatus::Start, format!("cannot start the agent {program:?}"));
    match error {
        SpawnError::NotFound { program: wanted, searched: Some(_) } => {
            let wanted = wanted.to_string_lossy();
            let words = format!("program {wanted:?} not found in PATH");
            let failure = failure.with_cause(&std::io::Error::other(words));
            match similar_agent(&wanted) {
                Some(near) => failure.with_hint(did_you_mean(&near)),
                None => failure.with_hint("install the program, or use its path: --agent \"/path/to/agent\""),
            }
        }
        SpawnError::NotFound { searched: None, .. } => {
            failure.with_cause(&std::io::Error::other("file not found"))
        }
        SpawnError::NotExecutable { path } => {
            failure.with_cause(error).with_hint(format!("make the file executable: chmod +x {}", path.display()))
        }
        SpawnError::Exec { .. } => failure
            .with_cause(error)
            .with_hint("if the file is a script, add a first line such as `#!/bin/sh`; if it is a binary, use one for this platform"),
        _ => failure.with_cause(error),
    }
}

fn did_you_mean(near: &str) -> String {
    format!("did you mean {near:?}?")
}

/// Agents that are suggested for a misspelled name. Other programs in PATH are not suggested: there are so
/// many that almost any word resembles one.
const KNOWN_AGENTS: [&str; 18] = [
    "auggie",
    "claude-agent-acp",
    "claude-code-acp",
    "cline",
    "codex-acp",
    "copilot",
    "cursor-agent",
    "droid",
    "fast-agent-acp",
    "gemini",
    "goose",
    "kimi",
    "narrows",
    "opencode",
    "openhands",
    "qodercli",
    "qwen",
    "vibe-acp",
];

/// Returns a suggestion for an unknown program: the URL of a port, or a known agent with a similar name.
fn similar_agent(wanted: &str) -> Option<String> {
    bare_address(wanted).or_else(|| nearest(wanted, KNOWN_AGENTS).map(str::to_owned))
}

fn agent_lost(stage: Stage, reason: &CloseReason) -> Failure {
    let when = match stage {
        Stage::Start | Stage::Initialize => "before it answered `initialize`",
        Stage::Turn => "during the turn",
        _ => "before it opened a session",
    };
    let code =
        if matches!(stage, Stage::Start | Stage::Initialize) { ExitStatus::Start } else { ExitStatus::Agent };
    let failure = match reason {
        CloseReason::Exited { exit, .. } => Failure::new(code, format!("the agent exited {when}: {exit}")),
        CloseReason::Eof => Failure::new(code, format!("the agent closed its output {when}")),
        CloseReason::NotReading => Failure::new(code, format!("the agent closed its input {when}")),
        reason => Failure::new(code, format!("the agent was lost {when}")).with_cause(reason),
    };
    Failure { is_agent_lost: true, ..failure }
}

fn stage_timeout(stage: Stage, limit: Duration) -> Failure {
    let failure = Failure::new(
        ExitStatus::Timeout,
        format!("the agent did not answer {} within {limit:?}", stage_request(stage)),
    );
    match stage {
        Stage::Open | Stage::Resume | Stage::Fork => {
            failure.with_hint("if the agent starts slowly, allow more time: --session-timeout 5m")
        }
        _ => failure.with_hint("if the agent starts slowly, allow more time: --initialize-timeout 2m"),
    }
}

fn request_refused(stage: Stage, error: &RpcError) -> Failure {
    let message = format!("the agent answered {} with an error", stage_request(stage));
    let details = error_details(error.data.as_ref());
    let reason = std::io::Error::other(format!("{}{details} ({})", line(&error.message), error.code));
    let rpc = Some(Box::new(error.clone()));
    let is_agent_lost = error.is(RpcCode::WorkerLost);
    let retryable =
        error.data.as_ref().and_then(|data| data.get("retryable")).and_then(serde_json::Value::as_bool);
    let code = match stage {
        // A bus or gateway answers with these errors for an agent that is currently unavailable.
        Stage::Initialize if is_agent_lost || retryable == Some(true) => ExitStatus::Start,
        Stage::Initialize => ExitStatus::Protocol,
        _ => ExitStatus::Agent,
    };
    let failure = Failure { rpc, is_agent_lost, ..Failure::new(code, message).with_cause(&reason) };
    if stage == Stage::Initialize && error.is(RpcCode::MethodNotFound) {
        return failure.with_hint(NOT_AN_AGENT_HINT);
    }
    if error.data.as_ref().is_some_and(|data| data["code"] == "cwd_outside_root") {
        return failure.with_hint("use a directory inside the agent's workspace: --cwd DIR");
    }
    if matches!(stage, Stage::Resume | Stage::Fork) && error.is(RpcCode::NotFound) {
        return failure
            .with_hint("list sessions with `narrows sessions --all`, for another agent with --agent");
    }
    match retryable {
        Some(true) => failure.with_hint(retry_hint(error.data.as_ref())),
        _ => failure,
    }
}

/// Returns `data.details` or `data.message` of an error, where agents put the actual reason.
pub(super) fn error_details(data: Option<&serde_json::Value>) -> String {
    let text = |key: &str| data.and_then(|data| data.get(key)).and_then(serde_json::Value::as_str);
    text("details").or_else(|| text("message")).map_or(String::new(), |words| format!(": {}", line(words)))
}

const NOT_AN_AGENT_HINT: &str =
    "check that it is an ACP agent; many programs need an argument such as `acp` or `--acp`";

pub(super) const RETRY_LATER_HINT: &str = "the agent reports a temporary error; try again later";

/// Returns the hint that a retry may work, with the delay if it is known. A condition means that a bus, or
/// another narrows, reports the error, and not the agent itself.
fn retry_hint(data: Option<&serde_json::Value>) -> String {
    let of = |key: &str| data.and_then(|data| data.get(key));
    match (of("condition"), of("retryAfterMs").and_then(serde_json::Value::as_u64)) {
        (_, Some(millis)) => format!("try again in {} s", millis.div_ceil(1000)),
        (Some(_), None) => "try again later".to_owned(),
        (None, None) => RETRY_LATER_HINT.to_owned(),
    }
}

/// Returns a notice about lines that are not messages: their number, and the beginnings of the first.
pub(crate) fn stray_lines_notice(lines: u64, first: &[String]) -> String {
    let words = match lines {
        1 => "1 line of its output was not a protocol message".to_owned(),
        lines => format!("{lines} lines of its output were not protocol messages"),
    };
    match first.first() {
        Some(first) if lines == 1 => format!("{words}: {}", line(first)),
        Some(first) => format!("{words}, the first: {}", line(first)),
        None => words,
    }
}

fn login_required(logins: &[Login]) -> Failure {
    let failure = Failure::new(ExitStatus::Agent, "the agent requires a login");
    if logins.is_empty() {
        return failure.with_hint("log in with the agent's own command, or pass it a key: --env NAME");
    }
    logins.iter().fold(failure.with_hint("available login methods:"), |failure, login| {
        let how = match &login.how {
            LoginKind::Environment { missing, .. } if !missing.is_empty() => {
                format!("set {}", missing.join(", "))
            }
            LoginKind::Environment { variables, .. } => {
                format!("{} did not work", variables.join(", "))
            }
            LoginKind::Terminal { arguments } if arguments.is_empty() => {
                "run its command in a terminal".to_owned()
            }
            LoginKind::Terminal { arguments } => {
                format!("run its command in a terminal with {}", arguments.join(" "))
            }
            LoginKind::Agent | LoginKind::Other => match &login.description {
                Some(description) => description.clone(),
                None => "use the agent's own command".to_owned(),
            },
        };
        failure.with_hint(format!("  {}: {}", line(&login.name), line(&how)))
    })
}

fn version_mismatch(unfit: &NegotiationError) -> Failure {
    let failure = Failure::new(ExitStatus::Protocol, unfit.to_string());
    match unfit {
        NegotiationError::Chosen { chosen: 2, .. } => failure.with_hint("offer version 2 with --protocol 2"),
        NegotiationError::Unsupported { supported, .. } if supported.contains(&2) => {
            failure.with_hint("offer version 2 with --protocol 2")
        }
        NegotiationError::Answer(_) => failure.with_hint(NOT_AN_AGENT_HINT),
        _ => failure,
    }
}

pub(super) fn model_failed(fault: &Fault) -> Failure {
    let (words, url) = (line(&fault.message), line(&fault.url));
    let failure = match (url.is_empty(), words.is_empty()) {
        (false, _) => {
            let status = fault.status.map_or(String::new(), |status| format!(" (HTTP {status})"));
            let failure =
                Failure::new(ExitStatus::Agent, format!("the model at {url} did not answer{status}"));
            if words.is_empty() { failure } else { failure.with_cause(&std::io::Error::other(words)) }
        }
        (true, false) => Failure::new(ExitStatus::Agent, words),
        (true, true) => {
            Failure::new(ExitStatus::Agent, "the agent reports a model error instead of an answer")
        }
    };
    let failure = Failure { fault: Some(Box::new(fault.clone())), ..failure };
    match fault.kind.as_str() {
        "auth" => failure.with_hint("check the API key: OPENAI_API_KEY, or `key` in narrows.toml"),
        "network" if url.contains("//localhost") || url.contains("//127.") => {
            failure.with_hint("check that the model server is running")
        }
        _ if fault.retryable => failure.with_hint(RETRY_LATER_HINT),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_retry_hint_names_the_bus_or_the_agent() {
        for (data, expected) in [
            (json!({"retryable": true}), RETRY_LATER_HINT),
            (json!({"retryable": true, "condition": "draining"}), "try again later"),
            (json!({"condition": "backpressure", "retryAfterMs": 100}), "try again in 1 s"),
            (json!({"condition": "backpressure", "retryAfterMs": 2500}), "try again in 3 s"),
        ] {
            assert_eq!(retry_hint(Some(&data)), expected, "{data}");
        }
        assert_eq!(retry_hint(None), RETRY_LATER_HINT);
    }
}
