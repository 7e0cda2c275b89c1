//! Whether the agent has been set up: the steps of its manifest that tell when they are not needed.

use std::path::Path;
use std::time::Duration;

use narrows_manifest::Agent;
use narrows_manifest::types::cli::{Persist, SetupStep, SkipIf};
use narrows_process::Spec;
use tokio::time::timeout;

use super::agent;
use super::cage::Cage;
use crate::environment;
use crate::failure::Failure;
use crate::output;

/// How long a command may take that tells whether a step is needed, if nobody says.
const PATIENCE_MS: u64 = 5_000;

/// A step that has not been taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pending {
    /// Its id.
    pub(super) step: String,
    /// What is to be done.
    pub(super) what: String,
}

/// What is known of a step.
#[derive(Debug, PartialEq, Eq)]
enum Standing<'a> {
    Done,
    /// This command tells.
    Ask(&'a SkipIf),
    /// Nothing tells.
    Unknown,
}

/// Finds the first step that has not been taken. Of a step that does not tell it is said that it has to be done already.
pub(super) async fn check(
    agent: &Agent,
    beside: &Path,
    cage: &Cage,
    env: &[(String, String)],
) -> Result<Result<(), Pending>, Failure> {
    let mut unknown = Vec::new();
    for step in &agent.cli.front.setup {
        let pending = pending(step);
        match standing(step, &|name| environment::variables().any(|(known, _)| known == name)) {
            Standing::Done => {}
            Standing::Unknown => unknown.push(pending.step),
            Standing::Ask(skip) => {
                if !is_needless(skip, beside, cage, env).await? {
                    return Ok(Err(pending));
                }
            }
        }
    }
    if !unknown.is_empty() {
        let steps = unknown.join(", ");
        output::complain(&format!(
            "warning: nothing tells whether the agent's setup is done ({steps}); it has to be done already\n"
        ));
    }
    Ok(Ok(()))
}

/// What is known of a step without running anything.
fn standing<'a>(step: &'a SetupStep, is_set: &dyn Fn(&str) -> bool) -> Standing<'a> {
    let (skip, persist): (&Option<SkipIf>, Option<&Persist>) = match step {
        SetupStep::Cmd { skip_if, persist, .. }
        | SetupStep::Prompt { skip_if, persist, .. }
        | SetupStep::External { skip_if, persist, .. } => (skip_if, persist.as_ref()),
        SetupStep::Oauth { skip_if, .. } => (skip_if, None),
    };
    let kept = persist.and_then(|persist| persist.env.as_deref());
    match (kept, skip) {
        (Some(name), _) if is_set(name) => Standing::Done,
        (_, Some(skip)) => Standing::Ask(skip),
        _ => Standing::Unknown,
    }
}

fn pending(step: &SetupStep) -> Pending {
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
    Pending { step: step.clone(), what }
}

/// Whether a command says that a step is not needed. One that cannot be run says nothing.
async fn is_needless(
    skip: &SkipIf,
    beside: &Path,
    cage: &Cage,
    env: &[(String, String)],
) -> Result<bool, Failure> {
    let words = shlex::split(&skip.cmd).filter(|words| !words.is_empty());
    let Some([named, args @ ..]) = words.as_deref() else { return Ok(false) };
    let mut spec = Spec::new(agent::program(named, beside)?);
    spec.args = args.iter().map(Into::into).collect();
    let Ok(mut child) = narrows_process::spawn(cage.hold(spec, env)).await else { return Ok(false) };
    drop((child.take_stdin(), child.take_stdout()));
    let patience = Duration::from_millis(skip.timeout_ms.unwrap_or(PATIENCE_MS));
    let exit = timeout(patience, child.wait()).await;
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
            let standing = match standing(&step, &|name| name == "SET") {
                Standing::Done => "done",
                Standing::Ask(_) => "ask",
                Standing::Unknown => "unknown",
            };
            let Pending { step, what } = pending(&step);
            format!("{standing} {step}: {what}")
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
