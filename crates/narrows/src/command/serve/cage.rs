//! The sandbox of an agent, made as its manifests say, or refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use narrows_audit::{Event, Log};
use narrows_egress::List;
use narrows_manifest::types::runner::Engine;
use narrows_manifest::{Agent, RunnerPlan};
use narrows_mcp::Confinement;
use narrows_process::{AllowList, Environment, Limits, Mount, Sandbox, Spec, Support};
use serde_json::{Value, json};

use super::bounds::{Asked, Bounds, Unenforceable};
use super::charge::Charge;
use super::wayout::WayOut;
use crate::environment;
use crate::output;
use crate::terminal::line;

/// Variables that no program does without, and that tell nothing.
const PLAIN: [&str; 11] =
    ["PATH", "LANG", "LANGUAGE", "LC_*", "TERM", "COLORTERM", "NO_COLOR", "TZ", "USER", "LOGNAME", "SHELL"];

/// By these programs find the only way out.
const PROXIES: [&str; 6] =
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];

/// What a process is started with and kept to.
#[derive(Debug, Clone)]
pub(super) struct Cage {
    sandbox: Option<Sandbox>,
    env: Environment,
    pub(super) cwd: PathBuf,
    /// What is let through, if anything is.
    pub(super) egress: List,
    limits: Limits,
    processor: Option<Duration>,
    /// How long it may live.
    pub(super) lifetime: Option<Duration>,
    /// What of it holds, for the log.
    pub(super) told: Value,
}

impl Cage {
    /// For the agent of a manifest, or for what an operator of our own starts. What the tier demands and cannot be had is
    /// refused; what only the agent's manifest asks for is warned of.
    pub(super) async fn of(
        charge: &Charge,
        agent: Option<&Agent>,
        programs: &[Spec],
    ) -> Result<Self, Unenforceable> {
        let strict = charge.is_sandboxed();
        let mut asked = Vec::new();
        if let Some(plan) = charge.bundle.sandbox.as_ref().filter(|_| strict) {
            asked.push(Asked { file: "SANDBOX.md", plan });
        }
        let named = agent.and_then(|agent| Some((agent, agent.sandbox.clone()?)));
        let own = named.map(|(agent, mut plan)| {
            let auth = agent.cli.front.auth.as_ref().and_then(|auth| auth.state.as_ref());
            plan.env.extend(auth.into_iter().flat_map(|state| state.env.clone()));
            plan
        });
        asked.extend(own.as_ref().map(|plan| Asked { file: "AGENT-CLI.md", plan }));
        let runner = agent.and_then(|agent| agent.runner.as_ref());
        let bounds = Bounds::of(&charge.root, &asked, runner)?;
        let confined =
            if asked.is_empty() { Ok(None) } else { confine(charge, &bounds, programs).await.map(Some) };
        let sandbox = match confined {
            Ok(sandbox) => sandbox,
            Err(refused) if strict => return Err(refused),
            Err(refused) => {
                warn(&format!("the agent is not confined: {refused}"));
                None
            }
        };
        let (limits, unlimited) = limit(&bounds, strict)?;
        let env = match &sandbox {
            Some(sandbox) => sheltered(&bounds, sandbox),
            None => Environment::filtered(environment::variables(), &AllowList::default().and(&bounds.env)),
        };
        let told = told(&bounds, sandbox.as_ref(), runner, &unlimited);
        Ok(Self {
            cwd: if sandbox.is_some() { bounds.cwd } else { charge.root.clone() },
            sandbox,
            env,
            egress: bounds.egress,
            limits,
            processor: bounds.limits.cpu_ms.map(Duration::from_millis),
            lifetime: bounds.limits.timeout_ms.map(Duration::from_millis),
            told,
        })
    }

    /// Puts a process in it. Only the agent itself gets the way out.
    pub(super) fn hold(&self, mut spec: Spec, more: &[(String, String)]) -> Spec {
        spec.cwd = Some(self.cwd.clone());
        spec.env = self.env.clone();
        spec.env.extend(more.iter().map(|(name, value)| (name, value)));
        spec.limits = self.limits;
        spec.processor = self.processor;
        spec.sandbox.clone_from(&self.sandbox);
        spec
    }
}

impl Cage {
    /// The same around the MCP servers that an operator of our own starts, each with a way out of its own.
    pub(super) fn around_servers(&self, log: Option<&Log>, event: Event) -> Option<Confinement> {
        let (egress, log) = (self.egress.clone(), log.cloned());
        Some(Confinement {
            sandbox: self.sandbox.clone()?,
            limits: self.limits,
            processor: self.processor,
            way_out: Arc::new(move |listener| {
                let opened = WayOut::open(listener, egress.clone(), log.clone(), event.clone());
                opened.ok().map(|way_out| Box::new(way_out) as narrows_mcp::WayOut)
            }),
        })
    }

    /// What these see of the environment.
    pub(super) fn environment(&self) -> Environment {
        self.env.clone()
    }
}

/// The sandbox itself, once it is known to work.
async fn confine(charge: &Charge, bounds: &Bounds, programs: &[Spec]) -> Result<Sandbox, Unenforceable> {
    let gateway = !bounds.egress.is_empty();
    let support = match gateway {
        true => Support::namespaces().await,
        false => Sandbox::support().await,
    };
    let can = support.confined();
    let refused = |field, why: String| {
        Unenforceable {
        code: "sandbox_unenforceable",
        file: "the sandbox".to_owned(),
        field,
        why,
        hint: "it takes bubblewrap, or user and mount namespaces with Landlock and seccomp; mounts have to exist, and \
               must not cover what is the system's"
            .to_owned(),
    }
    };
    if !can.view {
        return Err(refused("mounts", format!("{support} cannot show a part of this machine")));
    }
    if gateway && !can.gateway {
        return Err(refused("network.egress", format!("{support} cannot give it a network of its own")));
    }
    let mut view = bounds.mounts.clone();
    for program in programs {
        // One that is not there is complained about when it is started.
        if let Ok(path) = narrows_process::find(program) {
            view.extend(installation(&path, &view));
        }
    }
    let sandbox =
        Sandbox { view: Some(view), protected: protected(charge), gateway, ..Sandbox::new(support) };
    sandbox.try_out(&bounds.cwd).await.map_err(|why| refused("mounts", why))?;
    Ok(sandbox)
}

/// What decides about the agent is not for it to change: the files of the manifest, the keys, the log.
fn protected(charge: &Charge) -> Vec<PathBuf> {
    let bundle = &charge.bundle;
    let pins = bundle.pins.iter().map(|pin| pin.path.as_path());
    let keys = charge.keys.files.iter().map(|(path, _)| path.as_path());
    let mut places: Vec<PathBuf> = pins.chain(keys).map(|path| charge.root.join(path)).collect();
    if let narrows_manifest::AuditTarget::Log(path) = &bundle.audit {
        places.extend(charge.root.join(path).parent().map(Path::to_owned));
    }
    if let Some(governance) = &bundle.governance {
        places.push(charge.root.join(&governance.scope).join("signatures"));
    }
    places
}

/// What has to be seen of a program that lies where nothing else is: itself, and what it was installed with.
fn installation(program: &Path, shown: &[Mount]) -> Vec<Mount> {
    let home = environment::variables().find(|(name, _)| name == "HOME").map(|(_, home)| PathBuf::from(home));
    let real = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let ourselves = std::env::current_exe().ok().and_then(|path| path.canonicalize().ok());
    let mut mounts: Vec<Mount> = Vec::new();
    for path in [program, &real] {
        let is_shown = |mount: &Mount| mount.at == mount.source && path.starts_with(&mount.at);
        if is_of_system(path) || shown.iter().chain(&mounts).any(is_shown) {
            continue;
        }
        let directory = path.parent().unwrap_or(Path::new("/"));
        let is_own = |place: &Path| {
            place.components().count() > 2 && home.as_deref().is_none_or(|home| !home.starts_with(place))
        };
        let above = directory.parent().filter(|above| directory.ends_with("bin") && is_own(above));
        let place = match above.or(Some(directory).filter(|place| is_own(place))) {
            Some(place) if ourselves.as_deref() != Some(path) => place,
            _ => path,
        };
        // One that leads through a link cannot be shown, and the other path is that without it.
        if place.canonicalize().is_ok_and(|real| real == place) {
            mounts.push(Mount::here(place, false));
        }
    }
    mounts
}

fn is_of_system(path: &Path) -> bool {
    ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/nix", "/gnu"]
        .iter()
        .any(|place| path.starts_with(place))
}

/// The environment in a sandbox: what is named, and what tells nothing.
fn sheltered(bounds: &Bounds, sandbox: &Sandbox) -> Environment {
    let allowed = AllowList::new(PLAIN).and(&bounds.env);
    let mut env = Environment::filtered(environment::variables(), &allowed);
    if sandbox.gateway {
        for name in PROXIES {
            env.set(name, format!("http://{}", Sandbox::GATEWAY));
        }
        env.set("NO_PROXY", "");
        env.set("no_proxy", "");
        // Node.js asks for more than the variables.
        env.set("NODE_USE_ENV_PROXY", "1");
    }
    env
}

/// The limits that the kernel keeps, and which of those wanted it does not.
fn limit(bounds: &Bounds, strict: bool) -> Result<(Limits, Vec<&'static str>), Unenforceable> {
    let Some(memory) = bounds.limits.memory_mb else { return Ok((Limits::default(), Vec::new())) };
    let limits = Limits { memory: Some(memory.saturating_mul(1 << 20)), pids: None };
    match limits.try_out() {
        Ok(()) => Ok((limits, Vec::new())),
        Err(error) if strict => Err(Unenforceable {
            code: "runner_limit_unenforceable",
            file: "the runner or the sandbox".to_owned(),
            field: "limits.memory_mb",
            why: error.to_string(),
            hint: "run in a control group of your own: systemd-run --user --scope -p Delegate=yes narrows serve …".to_owned(),
        }),
        Err(error) => {
            warn(&format!("the agent may use more memory than limits.memory_mb says: {error}"));
            Ok((Limits::default(), vec!["memory_mb"]))
        }
    }
}

/// What holds, in the words of the log.
fn told(
    bounds: &Bounds,
    sandbox: Option<&Sandbox>,
    runner: Option<&RunnerPlan>,
    unlimited: &[&str],
) -> Value {
    let limits: serde_json::Map<String, Value> = [
        ("memory_mb", bounds.limits.memory_mb),
        ("timeout_ms", bounds.limits.timeout_ms),
        ("cpu_ms_per_process", bounds.limits.cpu_ms),
    ]
    .into_iter()
    .filter(|(name, _)| !unlimited.contains(name))
    .filter_map(|(name, limit)| Some((name.to_owned(), json!(limit?))))
    .collect();
    let mut told = json!({"enforced": sandbox.is_some(), "limits": limits});
    if let Some(sandbox) = sandbox {
        let mounts = sandbox.view.iter().flatten().map(|Mount { source, at, writable }| {
            json!({"source": source, "at": at, "mode": if *writable { "read-write" } else { "read-only" }})
        });
        told["mechanism"] = json!(sandbox.support.to_string());
        told["mounts"] = mounts.collect();
        told["egress"] = if sandbox.gateway { json!(bounds.hosts) } else { json!([]) };
        told["env"] = json!(bounds.env);
    }
    if !unlimited.is_empty() {
        told["unenforced"] = json!(unlimited);
    }
    if let Some(runner) = runner {
        let downgraded = runner.downgraded || (runner.engine == Engine::Sandbox && sandbox.is_none());
        let engine = if sandbox.is_some() { "sandbox" } else { "subprocess" };
        told["runner"] = json!({"engine": engine, "downgraded": downgraded});
    }
    told
}

fn warn(words: &str) {
    output::complain(&format!("warning: {}\n", line(words)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_shown_with_what_it_was_installed_with_and_no_more() {
        let directory = tempfile::tempdir().expect("a directory");
        let top = directory.path().canonicalize().expect("it exists");
        std::fs::create_dir_all(top.join("v20/bin")).expect("a directory");
        std::fs::write(top.join("v20/bin/node"), "").expect("a file");
        std::fs::write(top.join("tool"), "").expect("a file");
        let check = |program: &Path, shown: &[Mount], expected: &[PathBuf]| {
            let places: Vec<PathBuf> =
                installation(program, shown).into_iter().map(|mount| mount.at).collect();
            assert_eq!(places, expected, "{program:?}");
        };
        check(&top.join("v20/bin/node"), &[], &[top.join("v20")]);
        check(&top.join("tool"), &[], std::slice::from_ref(&top));
        check(&top.join("tool"), &[Mount::here(&top, true)], &[]);
        check(Path::new("/usr/bin/env"), &[], &[]);
        let ourselves = std::env::current_exe().and_then(|path| path.canonicalize()).expect("ourselves");
        check(&ourselves, &[], std::slice::from_ref(&ourselves));
    }
}
