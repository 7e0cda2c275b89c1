//! What to say when an agent could not be driven to the end of its turn.

use std::time::Duration;

use narrows_acp::offer::NegotiationError;
use narrows_base::suggest::nearest;
use narrows_link::CloseReason;
use narrows_process::SpawnError;
use narrows_wire::{Code as RpcCode, RpcError};

use super::{Code, Failure};
use crate::cli::value::bare_address;
use crate::config::BUILT_IN;
use crate::terminal::line;
use narrows_client::{ClientError, Fault, Login, LoginKind, Problem, Seen, Stage};

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let ClientError { stage, problem, seen: Seen { stray_lines, strays, stderr } } = error;
        let silent = matches!(*problem, Problem::Lost(_) | Problem::Deadline(_) | Problem::Malformed(_));
        let explained = silent || matches!(*problem, Problem::Refused(_));
        let mut failure = match *problem {
            Problem::Spawn { agent, source } => spawn(&agent, &source),
            Problem::Lost(reason) => lost(stage, &reason),
            Problem::Deadline(limit) => deadline(stage, limit),
            Problem::Refused(error) => refused(stage, &error),
            Problem::LoginNeeded(logins) => login(&logins),
            Problem::Malformed(reason) => Self::new(
                Code::Protocol,
                format!("the agent's answer to {} makes no sense: {}", asked(stage), line(&reason)),
            ),
            Problem::Unfit(unfit) => versions(&unfit),
            Problem::Unsupported(reason) => Self::new(Code::Agent, line(&reason)),
            Problem::Invalid(reason) => Self::new(Code::Usage, line(&reason)),
            Problem::Unwritable(reason) => Self::new(Code::Internal, "our own message cannot be written")
                .because(&std::io::Error::other(reason)),
            other => Self::new(Code::Internal, other.to_string()),
        };
        if silent && stray_lines > 0 {
            let seen = strayed(stray_lines, &strays);
            let hint = if stage == Stage::Turn { seen } else { format!("{seen}; {NOT_AN_AGENT}") };
            failure = failure.hint(hint);
        }
        if explained {
            failure.stderr = stderr;
        }
        failure
    }
}

impl Failure {
    /// What was given as an agent is neither the name of one nor a program.
    pub(crate) fn unknown_agent(wanted: &str, known: &[String]) -> Self {
        let wanted = line(wanted);
        let failure = Self::new(Code::Start, format!("there is no agent {wanted:?}"));
        let words = "no agent of narrows.toml is called so, and no program in PATH";
        let failure = failure.because(&std::io::Error::other(words));
        let names = || known.iter().map(String::as_str).chain([BUILT_IN]);
        let near = nearest(&wanted, names()).map(str::to_owned).or_else(|| near_program(&wanted));
        let failure = match near {
            Some(near) => failure.hint(did_you_mean(&near)),
            None => failure,
        };
        failure.hint(format!("the agents there are: {}", line(&names().collect::<Vec<_>>().join(", "))))
    }
}

/// How many names of a long list are shown.
const SHOWN: usize = 10;

impl Failure {
    /// The endpoint of the built-in agent does not have the model that is required.
    pub(crate) fn no_such_model(endpoint: &str, model: &str, listed: &[&str]) -> Self {
        let names: Vec<String> = listed.iter().take(SHOWN).map(|name| line(name)).collect();
        let more = match listed.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(", … {more} more"),
        };
        let message =
            format!("the model {model:?} cannot be had: the endpoint {endpoint:?} does not list it");
        let failure = Self::new(Code::Agent, message);
        match nearest(model, listed.iter().copied()) {
            Some(near) => failure.hint(format!("did you mean {near:?}?")),
            None if names.is_empty() => failure.hint("it lists none at all"),
            None => failure.hint(format!("it lists: {}{more}", names.join(", "))),
        }
    }

    /// The endpoint of the built-in agent does not say which models it has.
    pub(crate) fn no_model_list(endpoint: &str, model: &str, reason: &str) -> Self {
        let message =
            format!("the model {model:?} cannot be checked: the endpoint {endpoint:?} lists no models");
        Self::new(Code::Agent, message)
            .because(&std::io::Error::other(line(reason)))
            .hint("leave out --require-model to use it unchecked")
    }
}

/// What the agent was asked at `stage`.
fn asked(stage: Stage) -> &'static str {
    match stage {
        Stage::Start | Stage::Initialize => "`initialize`",
        Stage::Login => "`authenticate`",
        Stage::Open => "`session/new`",
        Stage::Resume => "the request to resume the session",
        Stage::Fork => "`session/fork`",
        Stage::List => "`session/list`",
        Stage::Delete => "`session/delete`",
        Stage::Set => "the request to set an option",
        Stage::Turn => "the prompt",
    }
}

fn spawn(program: &str, error: &SpawnError) -> Failure {
    let failure = Failure::new(Code::Start, format!("cannot start the agent {program:?}"));
    match error {
        SpawnError::NotFound { program: wanted, searched: Some(_) } => {
            let wanted = wanted.to_string_lossy();
            let words = format!("there is no program {wanted:?} in PATH");
            let failure = failure.because(&std::io::Error::other(words));
            match near_program(&wanted) {
                Some(near) => failure.hint(did_you_mean(&near)),
                None => failure.hint("install it, or give the path to it: --agent \"/path/to/agent\""),
            }
        }
        SpawnError::NotFound { searched: None, .. } => {
            failure.because(&std::io::Error::other("there is no such file"))
        }
        SpawnError::NotExecutable { path } => {
            failure.because(error).hint(format!("make it executable: chmod +x {}", path.display()))
        }
        SpawnError::Exec { .. } => failure
            .because(error)
            .hint("a script needs a first line such as `#!/bin/sh`, a binary must be made for this machine"),
        _ => failure.because(error),
    }
}

fn did_you_mean(near: &str) -> String {
    format!("did you mean {near:?}?")
}

/// Programs that are agents. Nothing else in PATH is suggested: there are so many programs that almost any word is near one.
const AGENTS: [&str; 18] = [
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

/// What was probably meant by a program that there is not: the URL of a port, or an agent.
fn near_program(wanted: &str) -> Option<String> {
    bare_address(wanted).or_else(|| nearest(wanted, AGENTS).map(str::to_owned))
}

fn lost(stage: Stage, reason: &CloseReason) -> Failure {
    let when = match stage {
        Stage::Start | Stage::Initialize => "before it answered `initialize`",
        Stage::Turn => "in the middle of the turn",
        _ => "before it opened a session",
    };
    let code = if matches!(stage, Stage::Start | Stage::Initialize) { Code::Start } else { Code::Agent };
    let failure = match reason {
        CloseReason::Exited { exit, .. } => Failure::new(code, format!("the agent ended {when}: {exit}")),
        CloseReason::Eof => Failure::new(code, format!("the agent closed its output {when}")),
        CloseReason::NotReading => Failure::new(code, format!("the agent closed its input {when}")),
        reason => Failure::new(code, format!("the agent was lost {when}")).because(reason),
    };
    Failure { is_gone: true, ..failure }
}

fn deadline(stage: Stage, limit: Duration) -> Failure {
    let failure =
        Failure::new(Code::Timeout, format!("the agent did not answer {} within {limit:?}", asked(stage)));
    match stage {
        Stage::Open | Stage::Resume | Stage::Fork => {
            failure.hint("an agent that is slow to start may need more: --session-timeout 5m")
        }
        _ => failure.hint("an agent that is slow to start may need more: --initialize-timeout 2m"),
    }
}

fn refused(stage: Stage, error: &RpcError) -> Failure {
    let message = format!("the agent answered {} with an error", asked(stage));
    let details = details(error.data.as_ref());
    let reason = std::io::Error::other(format!("{}{details} ({})", line(&error.message), error.code));
    let rpc = Some(Box::new(error.clone()));
    let is_gone = error.is(RpcCode::WorkerLost);
    let retryable =
        error.data.as_ref().and_then(|data| data.get("retryable")).and_then(serde_json::Value::as_bool);
    let code = match stage {
        // Whoever carries messages answers so for an agent that cannot be had now.
        Stage::Initialize if is_gone || retryable == Some(true) => Code::Start,
        Stage::Initialize => Code::Protocol,
        _ => Code::Agent,
    };
    let failure = Failure { rpc, is_gone, ..Failure::new(code, message).because(&reason) };
    if stage == Stage::Initialize && error.is(RpcCode::MethodNotFound) {
        return failure.hint(NOT_AN_AGENT);
    }
    if error.data.as_ref().is_some_and(|data| data["code"] == "cwd_outside_root") {
        return failure
            .hint("a session lives where you are, or where --cwd DIR says: name a directory in there");
    }
    if matches!(stage, Stage::Resume | Stage::Fork) && error.is(RpcCode::NotFound) {
        return failure.hint("`narrows sessions --all` lists the sessions of the built-in agent, with --agent those of another");
    }
    match retryable {
        Some(true) => failure.hint(later(error.data.as_ref())),
        _ => failure,
    }
}

/// What stands beside an error, where agents put the real reason.
pub(super) fn details(data: Option<&serde_json::Value>) -> String {
    let text = |key: &str| data.and_then(|data| data.get(key)).and_then(serde_json::Value::as_str);
    text("details").or_else(|| text("message")).map_or(String::new(), |words| format!(": {}", line(words)))
}

const NOT_AN_AGENT: &str =
    "is it an ACP agent? Many programs are one only with an argument, such as `acp` or `--acp`";

pub(super) const LATER: &str = "the agent says that it may work later";

/// Who says that it may work later, and when, as far as that is said: what names a condition is a bus, or another of us.
fn later(data: Option<&serde_json::Value>) -> String {
    let of = |key: &str| data.and_then(|data| data.get(key));
    match (of("condition"), of("retryAfterMs").and_then(serde_json::Value::as_u64)) {
        (_, Some(millis)) => format!("this may work later: in {} s", millis.div_ceil(1000)),
        (Some(_), None) => "this may work later".to_owned(),
        (None, None) => LATER.to_owned(),
    }
}

/// That there were lines which are no messages, and how the first of them begins.
pub(crate) fn strayed(lines: u64, first: &[String]) -> String {
    let words = match lines {
        1 => "1 line of its output was no protocol message".to_owned(),
        lines => format!("{lines} lines of its output were no protocol messages"),
    };
    match first.first() {
        Some(first) if lines == 1 => format!("{words}: {}", line(first)),
        Some(first) => format!("{words}, the first: {}", line(first)),
        None => words,
    }
}

fn login(logins: &[Login]) -> Failure {
    let failure = Failure::new(Code::Agent, "the agent wants you to log in first");
    if logins.is_empty() {
        return failure.hint("log in with the agent's own command, or hand it a key: --env NAME");
    }
    logins.iter().fold(failure.hint("it offers these ways:"), |failure, login| {
        let how = match &login.how {
            LoginKind::Environment { missing, .. } if !missing.is_empty() => {
                format!("set {}", missing.join(", "))
            }
            LoginKind::Environment { variables, .. } => {
                format!("by {}, which did not help", variables.join(", "))
            }
            LoginKind::Terminal { arguments } if arguments.is_empty() => {
                "start it by itself, in a terminal".to_owned()
            }
            LoginKind::Terminal { arguments } => {
                format!("start it in a terminal, with {} behind its command", arguments.join(" "))
            }
            LoginKind::Agent | LoginKind::Other => match &login.description {
                Some(description) => description.clone(),
                None => "with the agent's own command".to_owned(),
            },
        };
        failure.hint(format!("  {}: {}", line(&login.name), line(&how)))
    })
}

fn versions(unfit: &NegotiationError) -> Failure {
    let failure = Failure::new(Code::Protocol, unfit.to_string());
    match unfit {
        NegotiationError::Chosen { chosen: 2, .. } => failure.hint("offer version 2: --protocol 2"),
        NegotiationError::Unsupported { supported, .. } if supported.contains(&2) => {
            failure.hint("offer version 2: --protocol 2")
        }
        NegotiationError::Answer(_) => failure.hint(NOT_AN_AGENT),
        _ => failure,
    }
}

/// The agent could not get an answer from its model.
pub(super) fn reported(fault: &Fault) -> Failure {
    let (words, url) = (line(&fault.message), line(&fault.url));
    let failure = match (url.is_empty(), words.is_empty()) {
        (false, _) => {
            let status = fault.status.map_or(String::new(), |status| format!(" (HTTP {status})"));
            let failure = Failure::new(Code::Agent, format!("the model at {url} gave no answer{status}"));
            if words.is_empty() { failure } else { failure.because(&std::io::Error::other(words)) }
        }
        (true, false) => Failure::new(Code::Agent, words),
        (true, true) => Failure::new(Code::Agent, "the agent reports a failure in place of an answer"),
    };
    let failure = Failure { fault: Some(Box::new(fault.clone())), ..failure };
    match fault.kind.as_str() {
        "auth" => failure.hint("check the key: OPENAI_API_KEY, or what narrows.toml says about it"),
        "network" if url.contains("//localhost") || url.contains("//127.") => {
            failure.hint("is the model server running?")
        }
        _ if fault.retryable => failure.hint(LATER),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whoever_says_that_it_may_work_later_is_named() {
        for (data, expected) in [
            (json!({"retryable": true}), LATER),
            (json!({"retryable": true, "condition": "draining"}), "this may work later"),
            (json!({"condition": "backpressure", "retryAfterMs": 100}), "this may work later: in 1 s"),
            (json!({"condition": "backpressure", "retryAfterMs": 2500}), "this may work later: in 3 s"),
        ] {
            assert_eq!(later(Some(&data)), expected, "{data}");
        }
        assert_eq!(later(None), LATER);
    }
}
