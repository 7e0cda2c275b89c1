//! The sandbox of an agent, built from the merged bounds. Fails if a bound cannot be enforced.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use narrows_audit::{Event, Log};
use narrows_egress::HostAllowList;
use narrows_manifest::types::runner::Engine;
use narrows_manifest::{Agent, RunnerPlan};
use narrows_mcp::Confinement;
use narrows_process::{AllowList, Environment, Limits, Mount, Sandbox, Spec, Support};
use serde_json::{Value, json};

use super::egress::EgressProxy;
use super::manifest::LoadedManifest;
use super::sandbox_bounds::{SandboxBounds, Unenforceable, requested_sandboxes};
use super::version_managers::Shim;
use crate::environment;
use crate::output;

const BASE_ENV: [&str; 11] =
    ["PATH", "LANG", "LANGUAGE", "LC_*", "TERM", "COLORTERM", "NO_COLOR", "TZ", "USER", "LOGNAME", "SHELL"];

const PROXY_ENV: [&str; 6] =
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];

/// The field that errors name for a program that cannot run in a sandbox.
const PROGRAM_FIELD: &str = "bin";

#[derive(Debug, Clone)]
pub(super) struct AgentSandbox {
    sandbox: Option<Sandbox>,
    /// Programs that must be started by their real path, because they find their packages relative to it.
    resolved_programs: Vec<(OsString, PathBuf)>,
    env: Environment,
    pub(super) cwd: PathBuf,
    pub(super) egress: HostAllowList,
    limits: Limits,
    cpu_time: Option<Duration>,
    pub(super) lifetime: Option<Duration>,
    /// The enforced settings, in the format of the audit log.
    pub(super) enforced: Value,
}

impl AgentSandbox {
    /// Builds the sandbox for the agent of a manifest, or for the MCP servers of the built-in agent. If a
    /// sandbox is unavailable, that is an error if the tier demands it, and a warning if only the agent's
    /// manifest requests it.
    pub(super) async fn build(
        manifest: &LoadedManifest,
        agent: Option<&Agent>,
        programs: &[Spec],
    ) -> Result<Self, Unenforceable> {
        let strict = manifest.is_sandboxed();
        let requested = requested_sandboxes(&manifest.bundle, agent);
        let runner = agent.and_then(|agent| agent.runner.as_ref());
        let bounds = SandboxBounds::merge(&manifest.root, &requested, runner)?;
        let confined = if requested.is_empty() {
            Ok(None)
        } else {
            build_sandbox(manifest, &bounds, programs).await.map(Some)
        };
        let sandbox = match confined {
            Ok(sandbox) => sandbox,
            // The shim of a version manager would not work inside the sandbox, and must not run outside of
            // it.
            Err(refused) if strict || refused.field == PROGRAM_FIELD => return Err(refused),
            Err(refused) => {
                output::warn(&format!("the agent is not sandboxed: {refused}"));
                None
            }
        };
        let (sandbox, resolved_programs) = sandbox.unzip();
        let limits = kernel_limits(&bounds)?;
        let env = match &sandbox {
            Some(sandbox) => sandbox_environment(&bounds, sandbox),
            None => Environment::filtered(environment::variables(), &AllowList::default().and(&bounds.env)),
        };
        let enforced = enforced_limits(&bounds, sandbox.as_ref(), runner);
        Ok(Self {
            cwd: if sandbox.is_some() { bounds.cwd } else { manifest.root.clone() },
            sandbox,
            resolved_programs: resolved_programs.unwrap_or_default(),
            env,
            egress: bounds.egress,
            limits,
            cpu_time: bounds.limits.cpu_ms.map(Duration::from_millis),
            lifetime: bounds.limits.timeout_ms.map(Duration::from_millis),
            enforced,
        })
    }

    /// Applies the sandbox to a process. Only the agent itself gets the egress proxy.
    pub(super) fn confine(&self, mut spec: Spec, more: &[(String, String)]) -> Spec {
        if let Some((_, real)) = self.resolved_programs.iter().find(|(named, _)| *named == spec.program) {
            spec.program = real.into();
        }
        spec.cwd = Some(self.cwd.clone());
        spec.env = self.env.clone();
        spec.env.extend(more.iter().map(|(name, value)| (name, value)));
        spec.limits = self.limits;
        spec.processor = self.cpu_time;
        spec.sandbox.clone_from(&self.sandbox);
        spec
    }
}

impl AgentSandbox {
    /// Returns the confinement for MCP servers of the built-in agent. Each server gets its own egress proxy.
    pub(super) fn mcp_confinement(&self, log: Option<&Log>, event: Event) -> Option<Confinement> {
        let (egress, log) = (self.egress.clone(), log.cloned());
        Some(Confinement {
            sandbox: self.sandbox.clone()?,
            limits: self.limits,
            processor: self.cpu_time,
            open_egress: Arc::new(move |listener| {
                let opened = EgressProxy::open(listener, egress.clone(), log.clone(), event.clone());
                opened.ok().map(|proxy| Box::new(proxy) as narrows_mcp::EgressGuard)
            }),
        })
    }

    pub(super) fn environment(&self) -> Environment {
        self.env.clone()
    }
}

/// Builds the sandbox and verifies that it works.
async fn build_sandbox(
    manifest: &LoadedManifest,
    bounds: &SandboxBounds,
    programs: &[Spec],
) -> Result<(Sandbox, Vec<(OsString, PathBuf)>), Unenforceable> {
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
        hint: "install bubblewrap, or enable user and mount namespaces with Landlock and seccomp; mounts must \
               exist, and must cover neither system directories nor the path of the workspace: choose another `at`"
            .to_owned(),
    }
    };
    if !can.view {
        return Err(refused("mounts", format!("{support} cannot restrict the visible files")));
    }
    if gateway && !can.gateway {
        return Err(refused("network.egress", format!("{support} cannot restrict the network")));
    }
    let mut view = bounds.mounts.clone();
    let kept = unmountable_dirs(&manifest.root);
    let mut resolved_programs = Vec::new();
    for program in programs {
        // A missing program is reported when the agent is started.
        if let Ok(path) = narrows_process::find(program) {
            if let Some(shim) = Shim::at_path(&path) {
                return Err(Unenforceable {
                    file: "AGENT-CLI.md".to_owned(),
                    hint: shim.hint(),
                    ..refused(PROGRAM_FIELD, shim.to_string())
                });
            }
            let mounts = program_mounts(&path, &view, &kept);
            let link = mounts.iter().find(|mount| mount.at == path && package_root(&mount.source).is_some());
            resolved_programs.extend(link.map(|mount| (program.program.clone(), mount.source.clone())));
            view.extend(mounts);
        }
    }
    if view.iter().any(|mount| mount.writable) {
        manifest.create_protected_dirs();
    }
    let (protected, hidden) = (manifest.protected_paths(), manifest.log_paths());
    let sandbox = Sandbox { view: Some(view), protected, hidden, gateway, ..Sandbox::new(support) };
    sandbox.try_out(&bounds.cwd).await.map_err(|why| refused("mounts", why))?;
    Ok((sandbox, resolved_programs))
}

/// Returns the mounts that a program outside of the system directories needs: the program, and the directory
/// of its packages if it contains nothing else. The manifest mounts everything else.
fn program_mounts(program: &Path, shown: &[Mount], kept: &[PathBuf]) -> Vec<Mount> {
    let real = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let mut mounts: Vec<Mount> = Vec::new();
    for path in [program, &real] {
        let is_shown = |mount: &Mount| mount.at == mount.source && path.starts_with(&mount.at);
        if is_system_path(path) || shown.iter().chain(&mounts).any(is_shown) {
            continue;
        }
        let is_own = |place: &&Path| !kept.iter().any(|kept| kept.starts_with(place));
        let place = package_root(path).filter(is_own).unwrap_or(path);
        if place.canonicalize().is_ok_and(|real| real == place) {
            mounts.push(Mount::here(place, false));
        } else if real.is_file() {
            // A link cannot be mounted, so the target of the link is mounted at the path of the link.
            mounts.push(Mount { source: real.clone(), at: path.to_owned(), writable: false });
        }
    }
    mounts
}

/// Returns the outermost directory of a program that has only packages in it: `node_modules`, a Python virtual
/// environment, or one version in a directory of versions.
fn package_root(program: &Path) -> Option<&Path> {
    let above: Vec<&Path> = program.ancestors().skip(1).collect();
    let named = |place: &Path, name: &str| place.file_name().is_some_and(|found| found == name);
    let is_version = |place: &Path| {
        let name = place.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.trim_start_matches('v').starts_with(|first: char| first.is_ascii_digit())
            && place.ancestors().skip(1).take(2).any(|above| named(above, "versions"))
    };
    let version = above.iter().find(|place| is_version(place));
    let environment = above.iter().take(2).find(|place| place.join("pyvenv.cfg").is_file());
    // The outermost `node_modules` is mounted, because packages use their neighbors.
    let modules = above.iter().rfind(|place| named(place, "node_modules"));
    version.or(environment).or(modules).copied()
}

/// Returns directories that are never mounted for a program, nor any directory above them.
fn unmountable_dirs(root: &Path) -> Vec<PathBuf> {
    let home = environment::variables().find(|(name, _)| name == "HOME").map(|(_, home)| PathBuf::from(home));
    let homes = home.into_iter().flat_map(|home| {
        let real = home.canonicalize().ok();
        [Some(home), real].into_iter().flatten()
    });
    let inner =
        homes.flat_map(|home| ["", ".local/bin", ".local/share", ".config"].map(|place| home.join(place)));
    inner.chain([root.to_owned()]).collect()
}

fn is_system_path(path: &Path) -> bool {
    ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/nix", "/gnu"]
        .iter()
        .any(|place| path.starts_with(place))
}

fn sandbox_environment(bounds: &SandboxBounds, sandbox: &Sandbox) -> Environment {
    let allowed = AllowList::new(BASE_ENV).and(&bounds.env);
    let mut env = Environment::filtered(environment::variables(), &allowed);
    if sandbox.gateway {
        for name in PROXY_ENV {
            env.set(name, format!("http://{}", Sandbox::GATEWAY));
        }
        env.set("NO_PROXY", "");
        env.set("no_proxy", "");
        // Node.js ignores the proxy variables unless this variable is set.
        env.set("NODE_USE_ENV_PROXY", "1");
    }
    env
}

/// Returns the limits that the kernel enforces. A limit that cannot be enforced is an error in every tier,
/// because its author relies on it.
fn kernel_limits(bounds: &SandboxBounds) -> Result<Limits, Unenforceable> {
    let Some(memory) = bounds.limits.memory_mb else { return Ok(Limits::default()) };
    let limits = Limits { memory: Some(memory.saturating_mul(1 << 20)), pids: None };
    limits.try_out().map(|()| limits).map_err(|error| Unenforceable {
        code: "runner_limit_unenforceable",
        file: "the runner or the sandbox".to_owned(),
        field: "limits.memory_mb",
        why: error.to_string(),
        hint: "run it in its own control group (systemd-run --user --scope -p Delegate=yes narrows serve …), or \
               remove the limit"
            .to_owned(),
    })
}

/// Returns the enforced settings in the format of the audit log.
fn enforced_limits(bounds: &SandboxBounds, sandbox: Option<&Sandbox>, runner: Option<&RunnerPlan>) -> Value {
    let limits: serde_json::Map<String, Value> = [
        ("memory_mb", bounds.limits.memory_mb),
        ("timeout_ms", bounds.limits.timeout_ms),
        ("cpu_ms_per_process", bounds.limits.cpu_ms),
    ]
    .into_iter()
    .filter_map(|(name, limit)| Some((name.to_owned(), json!(limit?))))
    .collect();
    let mut enforced = json!({"enforced": sandbox.is_some(), "limits": limits});
    if let Some(sandbox) = sandbox {
        let mounts = sandbox.view.iter().flatten().map(|Mount { source, at, writable }| {
            json!({"source": source, "at": at, "mode": if *writable { "read-write" } else { "read-only" }})
        });
        enforced["mechanism"] = json!(sandbox.support.to_string());
        enforced["mounts"] = mounts.collect();
        enforced["egress"] = if sandbox.gateway { json!(bounds.hosts) } else { json!([]) };
        enforced["env"] = json!(bounds.env);
    }
    if let Some(runner) = runner {
        let downgraded = runner.downgraded || (runner.engine == Engine::Sandbox && sandbox.is_none());
        let engine = if sandbox.is_some() { "sandbox" } else { "subprocess" };
        enforced["runner"] = json!({"engine": engine, "downgraded": downgraded});
    }
    enforced
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_program_is_mounted_with_its_packages_and_nothing_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let top = directory.path().canonicalize().expect("it exists");
        let files = [
            "home/.local/bin/agent",
            "home/.local/share/tool/versions/1.2.0/tool",
            "home/.nvm/versions/node/v20.1.0/bin/node",
            "home/.npm/lib/node_modules/@x/pkg/cli.js",
            "home/venv/bin/run",
            "home/venv/pyvenv.cfg",
            "w/agent",
            "w/pyvenv.cfg",
            "w/bin/agent",
        ];
        for file in files {
            let path = top.join(file);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            std::fs::write(path, "").expect("a file");
        }
        symlink("../share/tool/versions/1.2.0/tool", top.join("home/.local/bin/tool")).expect("a link");
        let kept = [top.join("home/.local/bin"), top.join("home"), top.join("w")];
        let check = |program: &str, shown: &[Mount], expected: &[&str]| {
            let found = program_mounts(&top.join(program), shown, &kept);
            assert!(found.iter().all(|mount| !mount.writable), "{program}");
            let places: Vec<PathBuf> = found.into_iter().map(|mount| mount.at).collect();
            let expected: Vec<PathBuf> = expected.iter().map(|path| top.join(path)).collect();
            assert_eq!(places, expected, "{program}");
        };
        check("home/.local/bin/agent", &[], &["home/.local/bin/agent"]);
        let version = "home/.local/share/tool/versions/1.2.0";
        check("home/.local/bin/tool", &[], &["home/.local/bin/tool", version]);
        check("home/.nvm/versions/node/v20.1.0/bin/node", &[], &["home/.nvm/versions/node/v20.1.0"]);
        check("home/.npm/lib/node_modules/@x/pkg/cli.js", &[], &["home/.npm/lib/node_modules"]);
        check("home/venv/bin/run", &[], &["home/venv"]);
        check("w/agent", &[], &["w/agent"]);
        check("w/bin/agent", &[], &["w/bin/agent"]);
        check("w/agent", &[Mount::here(top.join("w"), true)], &[]);
        check("/usr/bin/env", &[], &[]);
    }
}
