//! The agent behind the gate: the program of an AGENT-CLI.md, and what it is started with.

use std::path::{Path, PathBuf};

use narrows_manifest::Agent;
use narrows_manifest::types::operator::MemoryKind;
use narrows_process::{AllowList, Environment, Spec};

use super::charge::Charge;
use super::version;
use crate::environment;
use crate::failure::Failure;
use crate::output;

/// How the agent is started, once its version is known to be one that will do.
pub(super) async fn prepare(charge: &Charge) -> Result<Spec, Failure> {
    let Charge { bundle, root, .. } = charge;
    let agent = bundle.agent.as_ref().ok_or_else(Failure::no_agent)?;
    doubts(agent);
    let memory = bundle.operator.as_ref().and_then(|operator| operator.front.memory.as_ref());
    if memory.is_some_and(|memory| matches!(memory.kind, MemoryKind::OperatorContext | MemoryKind::External))
    {
        output::complain("warning: an agent has its own memory: what the operator's says is not done\n");
    }
    let beside = root.join(agent.cli.directory());
    let env = environment(agent);
    version::check(agent, &beside, &env).await?;
    let mut spec = Spec::new(program(&agent.launch.program, &beside)?);
    spec.args = agent.launch.args.iter().map(Into::into).collect();
    spec.cwd = Some(root.clone());
    spec.env = env;
    Ok(spec)
}

/// A program by its name, or by its path from the directory of its manifest on.
pub(super) fn program(named: &str, beside: &Path) -> Result<PathBuf, Failure> {
    match named {
        // Ourselves, installed or not.
        "narrows" => std::env::current_exe().map_err(|error| Failure::setup("find this program", &error)),
        path if path.contains('/') => Ok(beside.join(path)),
        name => Ok(PathBuf::from(name)),
    }
}

/// What the agent sees of our environment: ordinary variables, those that its sandbox lets through, and what its manifest
/// sets.
fn environment(agent: &Agent) -> Environment {
    let passed = agent.sandbox.iter().flat_map(|sandbox| &sandbox.env);
    let allowed = AllowList::default().and(passed);
    let mut env = Environment::filtered(environment::variables(), &allowed);
    for (name, value) in &agent.launch.env {
        env.set(name, value);
    }
    env
}

/// Says what the manifest of the agent asks for and is not done.
fn doubts(agent: &Agent) {
    if agent.sandbox.is_some() {
        output::complain("warning: the agent is not confined: the sandbox of its manifest is not enforced\n");
    }
    if agent.runner.is_some() {
        output::complain("warning: the limits of the agent's runner are not enforced\n");
    }
    if !agent.cli.front.setup.is_empty() {
        output::complain("warning: the setup of the agent is not run; it has to be done already\n");
    }
}
