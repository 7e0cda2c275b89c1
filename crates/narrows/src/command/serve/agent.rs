//! The agent behind the gate: the program of an AGENT-CLI.md, what it is started with, and what it runs in.

use std::path::{Path, PathBuf};

use narrows_audit::{Actor, Event, Log, Subject};
use narrows_govern::Principal;
use narrows_link::child::{self, Process};
use narrows_link::{Link, Options};
use narrows_manifest::types::operator::MemoryKind;
use narrows_process::{Exit, Ladder, Spec};
use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;

use super::bounds::Unenforceable;
use super::cage::Cage;
use super::charge::Charge;
use super::wayout::WayOut;
use super::{setup, version};
use crate::failure::Failure;
use crate::output;

/// The agent at work, and everything that keeps it to its manifest.
pub(super) struct Running {
    process: Process,
    /// Open as long as the agent runs.
    _way_out: Option<WayOut>,
    /// Whether it has lived too long.
    overdue: Option<JoinHandle<bool>>,
    /// What it was started with.
    pub(super) spec: Spec,
}

/// How it ended.
pub(super) struct Stopped {
    pub(super) exit: Exit,
    /// Whether it had run for longer than it may.
    pub(super) overdue: bool,
}

impl Running {
    /// Ends it.
    pub(super) async fn stop(self, ladder: Ladder) -> Stopped {
        let overdue = match self.overdue {
            Some(task) if task.is_finished() => task.await.unwrap_or(false),
            Some(task) => {
                task.abort();
                false
            }
            None => false,
        };
        Stopped { exit: self.process.stop(ladder).await, overdue }
    }
}

/// How the agent is started, and what it runs in.
pub(super) struct Prepared {
    id: String,
    cage: Cage,
    spec: Spec,
}

/// Makes sure that the agent's version is one that will do, that it is set up, and that it can be kept to the sandbox and the
/// limits of its manifests. What cannot be had is in the log.
pub(super) async fn prepare(charge: &Charge, log: Option<&Log>) -> Result<Prepared, Failure> {
    let Charge { bundle, root, .. } = charge;
    let agent = bundle.agent.as_ref().ok_or_else(Failure::no_agent)?;
    let id = &agent.cli.front.id;
    let memory = bundle.operator.as_ref().and_then(|operator| operator.front.memory.as_ref());
    if memory.is_some_and(|memory| matches!(memory.kind, MemoryKind::OperatorContext | MemoryKind::External))
    {
        output::complain("warning: an agent has its own memory: what the operator's says is not done\n");
    }
    let beside = root.join(agent.cli.directory());
    let mut spec = Spec::new(program(&agent.launch.program, &beside)?);
    spec.args = agent.launch.args.iter().map(Into::into).collect();
    let checked = version::command(agent, &beside)?;
    let cage = match Cage::of(charge, Some(agent), &located(root, [&spec, &checked])).await {
        Ok(cage) => cage,
        Err(refused) => {
            record(charge, log, "sandbox.refused", id, refusal(&refused)).await?;
            return Err(Failure::unenforceable(&refused, refused.code, &refused.hint));
        }
    };
    let own: Vec<(String, String)> =
        agent.launch.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    version::check(agent, cage.hold(checked, &own)).await?;
    if let Err(pending) = setup::check(agent, &beside, &cage, &own).await? {
        let about = json!({"kind": "refusal", "code": "setup_required", "step": pending.step});
        record(charge, log, "agent.refused", id, about).await?;
        return Err(Failure::setup_required(id, &pending.step, &pending.what));
    }
    let spec = cage.hold(spec, &own);
    Ok(Prepared { id: id.clone(), cage, spec })
}

impl Prepared {
    /// Starts the agent for somebody. What it is kept to is in the log before it runs.
    pub(super) async fn start(
        &self,
        charge: &Charge,
        options: &Options,
        log: Option<&Log>,
        who: &Principal,
    ) -> Result<(Link, Running), Failure> {
        let Self { id, cage, spec } = self;
        let for_whom = json!({"identity": who.id, "identity_method": who.method.name()});
        let mut about = cage.told.clone();
        about["kind"] = json!("sandbox");
        about["identity"] = for_whom["identity"].clone();
        about["identity_method"] = for_whom["identity_method"].clone();
        record(charge, log, "sandbox.applied", id, about).await?;
        let named = spec.program.to_string_lossy().into_owned();
        let spawned = child::spawn(spec.clone(), options).await;
        let (link, mut process) = spawned.map_err(|error| Failure::not_installed(id, &named, &error))?;
        let way_out = match process.take_gateway() {
            Some(listener) => {
                let denied = event(charge, "egress.denied", id, for_whom);
                let opened = WayOut::open(listener, cage.egress.clone(), log.cloned(), denied);
                Some(opened.map_err(|error| Failure::setup("let the agent out", &error))?)
            }
            None => None,
        };
        let overdue = cage.lifetime.map(|limit| process.kill_after(limit));
        Ok((link, Running { process, _way_out: way_out, overdue, spec: spec.clone() }))
    }
}

/// What is started, where it would be found.
pub(super) fn located<'a>(root: &Path, specs: impl IntoIterator<Item = &'a Spec>) -> Vec<Spec> {
    let all = crate::environment::variables().filter(|(name, _)| name == "PATH");
    let path: Vec<_> = all.collect();
    let located = specs.into_iter().map(|spec| {
        let mut spec = spec.clone();
        spec.cwd = Some(root.to_owned());
        spec.env.extend(path.clone());
        spec
    });
    located.collect()
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

/// Why something is not served, for the log.
pub(super) fn refusal(refused: &Unenforceable) -> Value {
    let Unenforceable { code, file, field, why, .. } = refused;
    json!({"kind": "refusal", "code": code, "file": file, "field": field, "reason": why})
}

/// An event about the agent.
pub(super) fn event(charge: &Charge, action: &str, id: &str, mut about: Value) -> Event {
    let operator =
        charge.bundle.operator.as_ref().map_or(&charge.bundle.acp.front.id, |operator| &operator.front.id);
    about["operator"] = json!(operator);
    about["tier"] = json!(charge.bundle.acp.front.metadata.aip44.tier.name());
    Event {
        actor: Actor { id: format!("operator:{operator}"), role: Some("operator".to_owned()) },
        action: action.to_owned(),
        subject: Subject { kind: "agent".to_owned(), reference: Some(id.to_owned()), path: None },
        metadata: Map::from_iter([("aip44".to_owned(), about)]),
        ..Event::default()
    }
}

/// Has it recorded before anything else happens.
pub(super) async fn record(
    charge: &Charge,
    log: Option<&Log>,
    action: &str,
    id: &str,
    about: Value,
) -> Result<(), Failure> {
    let Some(log) = log else { return Ok(()) };
    log.append(event(charge, action, id, about))
        .await
        .map(|_| ())
        .map_err(|error| Failure::unrecorded(&error))
}
