//! The setup steps of an agent, checked before it starts.

use std::path::Path;
use std::time::Duration;

use narrows_manifest::Agent;
use narrows_manifest::types::cli::{Persist, SetupStep, SkipIf};
use narrows_process::Spec;
use tokio::time::timeout;

use super::agent;
use super::sandbox::AgentSandbox;
use crate::environment;
use crate::failure::Failure;
use crate::output;

/// The default timeout of a command that checks a step.
const DEFAULT_CHECK_TIMEOUT_MS: u64 = 5_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PendingStep {
    pub(super) step: String,
    pub(super) what: String,
}

#[derive(Debug, PartialEq, Eq)]
enum StepStatus<'a> {
    Done,
    /// The exit code of a command tells whether the step is done.
    Command(&'a SkipIf),
    Unknown,
}

/// Returns the first step that is not done. Warns about steps whose state is unknown.
pub(super) async fn check(
    agent: &Agent,
    beside: &Path,
    sandbox: &AgentSandbox,
    env: &[(String, String)],
) -> Result<Result<(), PendingStep>, Failure> {
    let mut unknown = Vec::new();
    for step in &agent.cli.front.setup {
        let pending = pending_step(step);
        match step_status(step, &|name| environment::variables().any(|(known, _)| known == name)) {
            StepStatus::Done => {}
            StepStatus::Unknown => unknown.push(pending.step),
            StepStatus::Command(skip) => {
                if !is_unneeded(skip, beside, sandbox, env).await? {
                    return Ok(Err(pending));
                }
            }
        }
    }
    if !unknown.is_empty() {
        let steps = unknown.join(", ");
        output::write_stderr(&format!(
            "warning: the setup state of the agent is unknown ({steps}); complete these steps before serving\n"
        ));
    }
    Ok(Ok(()))
}

/// Returns the status of a step as far as it is known without running a command.
fn step_status<'a>(step: &'a SetupStep, is_set: &dyn Fn(&str) -> bool) -> StepStatus<'a> {
    let (skip, persist): (&Option<SkipIf>, Option<&Persist>) = match step {
        SetupStep::Cmd { skip_if, persist, .. }
        | SetupStep::Prompt { skip_if, persist, .. }
        | SetupStep::External { skip_if, persist, .. } => (skip_if, persist.as_ref()),
        SetupStep::Oauth { skip_if, .. } => (skip_if, None),
    };
    let kept = persist.and_then(|persist| persist.env.as_deref());
    match (kept, skip) {
        (Some(name), _) if is_set(name) => StepStatus::Done,
        (_, Some(skip)) => StepStatus::Command(skip),
        _ => StepStatus::Unknown,
    }
}

fn pending_step(step: &SetupStep) -> PendingStep {
    let (step, what) = match step {
        SetupStep::Cmd { id, cmd, .. } => (id, format!("run: {cmd}")),
        SetupStep::Prompt { id, prompt, persist, .. } => {
            let name = persist.as_ref().and_then(|persist| persist.env.as_deref());
            let place = name.map_or_else(String::new, |name| format!(", and set {name} to the answer"));
            (id, format!("answer: {prompt}{place}"))
        }
        SetupStep::Oauth { id, secret_slug, .. } => (id, format!("log in for the secret {secret_slug}")),
        SetupStep::External { id, url, .. } => (id, format!("open {url}")),
    };
    PendingStep { step: step.clone(), what }
}

/// Returns `true` if a command reports that the step is not needed. `false` if the command cannot be run.
async fn is_unneeded(
    skip: &SkipIf,
    beside: &Path,
    sandbox: &AgentSandbox,
    env: &[(String, String)],
) -> Result<bool, Failure> {
    let words = shlex::split(&skip.cmd).filter(|words| !words.is_empty());
    let Some([named, args @ ..]) = words.as_deref() else { return Ok(false) };
    let mut spec = Spec::new(agent::resolve_program(named, beside)?);
    spec.args = args.iter().map(Into::into).collect();
    let Ok(mut child) = narrows_process::spawn(sandbox.confine(spec, env)).await else { return Ok(false) };
    drop((child.take_stdin(), child.take_stdout()));
    let limit = Duration::from_millis(skip.timeout_ms.unwrap_or(DEFAULT_CHECK_TIMEOUT_MS));
    let exit = timeout(limit, child.wait()).await;
    Ok(exit.is_ok_and(|exit| exit.code.is_some_and(|code| i64::from(code) == skip.exit_code)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn step(value: serde_json::Value) -> SetupStep {
        serde_json::from_value(value).expect("a step")
    }

    #[test]
    fn a_step_is_done_unknown_or_to_be_asked_for() {
        let told = |value| {
            let step = step(value);
            let step_status = match step_status(&step, &|name| name == "SET") {
                StepStatus::Done => "done",
                StepStatus::Command(_) => "ask",
                StepStatus::Unknown => "unknown",
            };
            let PendingStep { step, what } = pending_step(&step);
            format!("{step_status} {step}: {what}")
        };
        let skip = json!({"cmd": "test -f x"});
        assert_eq!(told(json!({"kind": "cmd", "id": "a", "cmd": "x init"})), "unknown a: run: x init");
        assert_eq!(told(json!({"kind": "cmd", "id": "a", "cmd": "x", "skip_if": skip})), "ask a: run: x");
        let prompt =
            |name: &str| json!({"kind": "prompt", "id": "key", "prompt": "Key?", "persist": {"env": name}});
        assert_eq!(told(prompt("SET")), "done key: answer: Key?, and set SET to the answer");
        assert_eq!(told(prompt("UNSET")), "unknown key: answer: Key?, and set UNSET to the answer");
        assert_eq!(
            told(json!({"kind": "oauth", "id": "o", "secret_slug": "gh", "skip_if": skip})),
            "ask o: log in for the secret gh"
        );
        assert_eq!(
            told(json!({"kind": "external", "id": "e", "url": "https://a.b"})),
            "unknown e: open https://a.b"
        );
    }
}
