//! A manifest of the kind `bridge`: another agent, spoken for on our own stdin and stdout.

use std::process::ExitCode;
use std::time::Duration;

use narrows_govern::Ended;
use narrows_link::child;
use narrows_manifest::types::acp::Kind;
use narrows_process::Ladder;
use tokio::sync::mpsc;

use super::charge::Charge;
use super::stand::{self, Outcome, QUESTIONS};
use super::{Post, agent, door, proxy};
use crate::failure::{Code, Failure};
use crate::interrupt::Interrupts;

/// How patiently an agent is ended.
pub(super) const LADDER: Ladder =
    Ladder { eof_grace: Duration::from_secs(2), term_grace: Duration::from_secs(5) };

/// For one that does not do as it is told.
pub(super) const AT_ONCE: Ladder = Ladder { eof_grace: Duration::ZERO, term_grace: Duration::ZERO };

/// Serves until the client or the agent has gone.
pub(super) fn serve(post: Post) -> Result<ExitCode, Failure> {
    super::super::block_on(bridge(post))?
}

async fn bridge(post: Post) -> Result<ExitCode, Failure> {
    let mut interrupts = Interrupts::take().map_err(|error| Failure::setup("get ready", &error))?;
    let options = narrows_link::Options::default();
    let mut client = narrows_link::stdio::take(&options)
        .map_err(|error| Failure::setup("take stdin and stdout", &error))?;
    // In a chain somebody else is the agent, so none is started before that is known.
    let in_chain = interrupts.unless(proxy::is_wanted(&mut client)).await.map_err(Failure::left)?;
    if in_chain && post.charge.bundle.role == Kind::Bridge {
        return proxy::serve(post, client, &options, &mut interrupts).await;
    }
    let Post { charge, log, who } = post;
    let started = async {
        let spec = agent::prepare(&charge).await?;
        let program = spec.program.to_string_lossy().into_owned();
        let spawned = child::spawn(spec, &options).await;
        spawned.map_err(|error| Failure::not_installed(&agent_name(&charge), &program, &error))
    };
    let (agent, process) = interrupts.unless(started).await.map_err(Failure::left)??;
    let (output, input) = (client.sender.clone(), agent.sender.clone());
    let gate = stand::gate(&charge, who)?;
    let questions = mpsc::channel(QUESTIONS);
    let door = door::open(&charge, questions.0.clone())?;
    let outcome = stand::stand(gate, client, agent, log.clone(), questions, &mut interrupts).await;
    drop(door);
    stand::drain(&output).await;
    let reason = input.reason();
    let ladder = if matches!(outcome, Outcome::Ended(Ended::Unruly(_))) { AT_ONCE } else { LADDER };
    process.stop(ladder).await;
    if let Some(log) = log {
        log.close();
    }
    match outcome {
        Outcome::Ended(Ended::Client | Ended::Told) => Ok(Code::Success.exit()),
        Outcome::Ended(Ended::Agent) => Err(Failure::agent_gone(&agent_name(&charge), &reason)),
        Outcome::Ended(Ended::Unruly(why)) => Err(Failure::unruly(&agent_name(&charge), &why)),
        Outcome::Left(signal) => Err(Failure::left(signal)),
    }
}

/// What the agent is called in its manifest.
pub(super) fn agent_name(charge: &Charge) -> String {
    charge.bundle.agent.as_ref().map(|agent| agent.cli.front.id.clone()).unwrap_or_default()
}
