//! The agent behind the gate: the program of an AGENT-CLI.md, its environment and its sandbox.

use std::path::{Path, PathBuf};

use narrows_audit::{Actor, Event, Log, Subject};
use narrows_govern::Principal;
use narrows_link::child::{self, Process};
use narrows_link::{Link, Options};
use narrows_manifest::types::operator::MemoryKind;
use narrows_process::{Exit, Ladder, Spec};
use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;

use super::egress::EgressProxy;
use super::manifest::LoadedManifest;
use super::sandbox::AgentSandbox;
use super::sandbox_bounds::Unenforceable;
use super::setup_steps;
use super::version_check;
use crate::failure::Failure;
use crate::output;

pub(super) struct AgentProcess {
    process: Process,
    _egress: Option<EgressProxy>,
    /// Resolves to `true` if the agent was killed because its lifetime was over.
    overdue: Option<JoinHandle<bool>>,
    pub(super) spec: Spec,
}

pub(super) struct StoppedAgent {
    pub(super) exit: Exit,
    pub(super) overdue: bool,
}

impl AgentProcess {
    pub(super) async fn stop(self, ladder: Ladder) -> StoppedAgent {
        let overdue = match self.overdue {
            Some(task) if task.is_finished() => task.await.unwrap_or(false),
            Some(task) => {
                task.abort();
                false
            }
            None => false,
        };
        StoppedAgent { exit: self.process.stop(ladder).await, overdue }
    }
}

pub(super) struct PreparedAgent {
    id: String,
    sandbox: AgentSandbox,
    spec: Spec,
}

/// Checks version and setup of the agent, and builds its sandbox and limits. Records in the log what cannot be
/// enforced.
pub(super) async fn prepare(manifest: &LoadedManifest, log: Option<&Log>) -> Result<PreparedAgent, Failure> {
    let LoadedManifest { bundle, root, .. } = manifest;
    let agent = bundle.agent.as_ref().ok_or_else(Failure::no_served_agent)?;
    let id = &agent.cli.front.id;
    let memory = bundle.operator.as_ref().and_then(|operator| operator.front.memory.as_ref());
    if memory.is_some_and(|memory| matches!(memory.kind, MemoryKind::OperatorContext | MemoryKind::External))
    {
        output::write_stderr(
            "warning: the agent has its own memory; the memory settings of the operator have no \
                              effect\n",
        );
    }
    let beside = root.join(agent.cli.directory());
    let mut spec = Spec::new(resolve_program(&agent.launch.program, &beside)?);
    spec.args = agent.launch.args.iter().map(Into::into).collect();
    let checked = version_check::command(agent, &beside)?;
    let sandbox =
        match AgentSandbox::build(manifest, Some(agent), &with_search_path(root, [&spec, &checked])).await {
            Ok(sandbox) => sandbox,
            Err(refused) => {
                record(manifest, log, "sandbox.refused", id, refusal_details(&refused)).await?;
                return Err(Failure::unenforceable(&refused, refused.code, &refused.hint));
            }
        };
    let launch_env: Vec<(String, String)> =
        agent.launch.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    version_check::check(agent, sandbox.confine(checked, &launch_env)).await?;
    if let Err(missing) = setup_steps::check(agent, &beside, &sandbox, &launch_env).await? {
        let about = json!({"kind": "refusal", "code": "setup_required", "step": missing.step});
        record(manifest, log, "agent.refused", id, about).await?;
        return Err(Failure::setup_required(id, &missing.step, &missing.what));
    }
    let spec = sandbox.confine(spec, &launch_env);
    Ok(PreparedAgent { id: id.clone(), sandbox, spec })
}

impl PreparedAgent {
    pub(super) async fn start(
        &self,
        manifest: &LoadedManifest,
        options: &Options,
        log: Option<&Log>,
        who: &Principal,
    ) -> Result<(Link, AgentProcess), Failure> {
        let Self { id, sandbox, spec } = self;
        let for_whom = json!({"identity": who.id, "identity_method": who.method.name()});
        let mut about = sandbox.enforced.clone();
        about["kind"] = json!("sandbox");
        about["identity"] = for_whom["identity"].clone();
        about["identity_method"] = for_whom["identity_method"].clone();
        record(manifest, log, "sandbox.applied", id, about).await?;
        let named = spec.program.to_string_lossy().into_owned();
        let spawned = child::spawn(spec.clone(), options).await;
        let (link, mut process) = spawned.map_err(|error| Failure::not_installed(id, &named, &error))?;
        let egress = match process.take_gateway() {
            Some(listener) => {
                let denied = agent_event(manifest, "egress.denied", id, for_whom);
                let opened = EgressProxy::open(listener, sandbox.egress.clone(), log.cloned(), denied);
                Some(opened.map_err(|error| Failure::setup("start the egress proxy", &error))?)
            }
            None => None,
        };
        let overdue = sandbox.lifetime.map(|limit| process.kill_after(limit));
        Ok((link, AgentProcess { process, _egress: egress, overdue, spec: spec.clone() }))
    }
}

/// Adds the working directory and `PATH` to the specs, so that their programs can be looked up.
pub(super) fn with_search_path<'a>(root: &Path, specs: impl IntoIterator<Item = &'a Spec>) -> Vec<Spec> {
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

/// Resolves a program. A relative path starts from the directory of its manifest.
pub(super) fn resolve_program(named: &str, beside: &Path) -> Result<PathBuf, Failure> {
    match named {
        // The name `narrows` stands for this executable, even if it is not in PATH.
        "narrows" => std::env::current_exe().map_err(|error| Failure::setup("find this program", &error)),
        path if path.contains('/') => Ok(beside.join(path)),
        name => Ok(PathBuf::from(name)),
    }
}

/// Returns the reason for a refusal in the format of the audit log.
pub(super) fn refusal_details(refused: &Unenforceable) -> Value {
    let Unenforceable { code, file, field, why, .. } = refused;
    json!({"kind": "refusal", "code": code, "file": file, "field": field, "reason": why})
}

pub(super) fn agent_event(manifest: &LoadedManifest, action: &str, id: &str, mut about: Value) -> Event {
    let operator = manifest
        .bundle
        .operator
        .as_ref()
        .map_or(&manifest.bundle.acp.front.id, |operator| &operator.front.id);
    about["operator"] = json!(operator);
    about["tier"] = json!(manifest.bundle.acp.front.metadata.aip44.tier.name());
    Event {
        actor: Actor { id: format!("operator:{operator}"), role: Some("operator".to_owned()) },
        action: action.to_owned(),
        subject: Subject { kind: "agent".to_owned(), reference: Some(id.to_owned()), path: None },
        metadata: Map::from_iter([("aip44".to_owned(), about)]),
        ..Event::default()
    }
}

/// Records an event and waits until it is on disk, so that it precedes its effect.
pub(super) async fn record(
    manifest: &LoadedManifest,
    log: Option<&Log>,
    action: &str,
    id: &str,
    about: Value,
) -> Result<(), Failure> {
    let Some(log) = log else { return Ok(()) };
    log.append(agent_event(manifest, action, id, about))
        .await
        .map(|_| ())
        .map_err(|error| Failure::audit_append_failed(&error))
}
