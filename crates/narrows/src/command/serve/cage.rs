//! The sandbox of an agent, made as its manifests say, or refused.

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

use super::bounds::{Bounds, Unenforceable, asked};
use super::charge::Charge;
use super::shim::Shim;
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

/// The field of a program that cannot be had in a sandbox.
const SHIMMED: &str = "bin";

/// What a process is started with and kept to.
#[derive(Debug, Clone)]
pub(super) struct Cage {
    sandbox: Option<Sandbox>,
    /// Programs that are started by where their links lead, because only from there they find their packages.
    led: Vec<(OsString, PathBuf)>,
    env: Environment,
    pub(super) cwd: PathBuf,
    /// What is let through, if anything is.
    pub(super) egress: HostAllowList,
    limits: Limits,
    processor: Option<Duration>,
    /// How long it may live.
    pub(super) lifetime: Option<Duration>,
    /// What of it holds, for the log.
    pub(super) told: Value,
}

impl Cage {
    /// For the agent of a manifest, or for what an operator of our own starts. What the tier demands and cannot be had is
    /// refused; a sandbox that only the agent's manifest asks for is warned of.
    pub(super) async fn of(
        charge: &Charge,
        agent: Option<&Agent>,
        programs: &[Spec],
    ) -> Result<Self, Unenforceable> {
        let strict = charge.is_sandboxed();
        let asked = asked(&charge.bundle, agent);
        let runner = agent.and_then(|agent| agent.runner.as_ref());
        let bounds = Bounds::of(&charge.root, &asked, runner)?;
        let confined =
            if asked.is_empty() { Ok(None) } else { confine(charge, &bounds, programs).await.map(Some) };
        let sandbox = match confined {
            Ok(sandbox) => sandbox,
            // What is found by a shim would not run in there, and is not run without.
            Err(refused) if strict || refused.field == SHIMMED => return Err(refused),
            Err(refused) => {
                warn(&format!("the agent is not confined: {refused}"));
                None
            }
        };
        let (sandbox, led) = sandbox.unzip();
        let limits = limit(&bounds)?;
        let env = match &sandbox {
            Some(sandbox) => sheltered(&bounds, sandbox),
            None => Environment::filtered(environment::variables(), &AllowList::default().and(&bounds.env)),
        };
        let told = told(&bounds, sandbox.as_ref(), runner);
        Ok(Self {
            cwd: if sandbox.is_some() { bounds.cwd } else { charge.root.clone() },
            sandbox,
            led: led.unwrap_or_default(),
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
        if let Some((_, real)) = self.led.iter().find(|(named, _)| *named == spec.program) {
            spec.program = real.into();
        }
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
            open_egress: Arc::new(move |listener| {
                let opened = WayOut::open(listener, egress.clone(), log.clone(), event.clone());
                opened.ok().map(|way_out| Box::new(way_out) as narrows_mcp::EgressGuard)
            }),
        })
    }

    /// What these see of the environment.
    pub(super) fn environment(&self) -> Environment {
        self.env.clone()
    }
}

/// The sandbox itself, once it is known to work.
async fn confine(
    charge: &Charge,
    bounds: &Bounds,
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
    let kept = kept(&charge.root);
    let mut led = Vec::new();
    for program in programs {
        // One that is not there is complained about when it is started.
        if let Ok(path) = narrows_process::find(program) {
            if let Some(shim) = Shim::at(&path) {
                return Err(Unenforceable {
                    file: "AGENT-CLI.md".to_owned(),
                    hint: shim.advice(),
                    ..refused(SHIMMED, shim.to_string())
                });
            }
            let mounts = installation(&path, &view, &kept);
            let link = mounts.iter().find(|mount| mount.at == path && package(&mount.source).is_some());
            led.extend(link.map(|mount| (program.program.clone(), mount.source.clone())));
            view.extend(mounts);
        }
    }
    let (protected, hidden) = (charge.sealed(), charge.log_places());
    let sandbox = Sandbox { view: Some(view), protected, hidden, gateway, ..Sandbox::new(support) };
    sandbox.try_out(&bounds.cwd).await.map_err(|why| refused("mounts", why))?;
    Ok((sandbox, led))
}

/// What has to be seen of a program that lies where nothing else is: itself, and the packages it was installed with if it
/// lies where nothing else is installed. All else is for `mounts`.
fn installation(program: &Path, shown: &[Mount], kept: &[PathBuf]) -> Vec<Mount> {
    let real = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let mut mounts: Vec<Mount> = Vec::new();
    for path in [program, &real] {
        let is_shown = |mount: &Mount| mount.at == mount.source && path.starts_with(&mount.at);
        if is_of_system(path) || shown.iter().chain(&mounts).any(is_shown) {
            continue;
        }
        let is_own = |place: &&Path| !kept.iter().any(|kept| kept.starts_with(place));
        let place = package(path).filter(is_own).unwrap_or(path);
        if place.canonicalize().is_ok_and(|real| real == place) {
            mounts.push(Mount::here(place, false));
        } else if real.is_file() {
            // A link cannot be shown; what it leads to can, at its place.
            mounts.push(Mount { source: real.clone(), at: path.to_owned(), writable: false });
        }
    }
    mounts
}

/// The directory above a program that has nothing but packages in it: `node_modules`, a virtual environment of Python, or
/// one version in a directory of versions.
fn package(program: &Path) -> Option<&Path> {
    let above: Vec<&Path> = program.ancestors().skip(1).collect();
    let named = |place: &Path, name: &str| place.file_name().is_some_and(|found| found == name);
    let is_version = |place: &Path| {
        let name = place.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.trim_start_matches('v').starts_with(|first: char| first.is_ascii_digit())
            && place.ancestors().skip(1).take(2).any(|above| named(above, "versions"))
    };
    let version = above.iter().find(|place| is_version(place));
    let environment = above.iter().take(2).find(|place| place.join("pyvenv.cfg").is_file());
    // The outermost: packages need their neighbours.
    let modules = above.iter().rfind(|place| named(place, "node_modules"));
    version.or(environment).or(modules).copied()
}

/// What is never shown because a program lies in it, nor anything above.
fn kept(root: &Path) -> Vec<PathBuf> {
    let home = environment::variables().find(|(name, _)| name == "HOME").map(|(_, home)| PathBuf::from(home));
    let homes = home.into_iter().flat_map(|home| {
        let real = home.canonicalize().ok();
        [Some(home), real].into_iter().flatten()
    });
    let inner =
        homes.flat_map(|home| ["", ".local/bin", ".local/share", ".config"].map(|place| home.join(place)));
    inner.chain([root.to_owned()]).collect()
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

/// The limits that the kernel keeps. In every tier one that it cannot keep is refused: a limit that is none misleads whoever
/// wrote it.
fn limit(bounds: &Bounds) -> Result<Limits, Unenforceable> {
    let Some(memory) = bounds.limits.memory_mb else { return Ok(Limits::default()) };
    let limits = Limits { memory: Some(memory.saturating_mul(1 << 20)), pids: None };
    limits.try_out().map(|()| limits).map_err(|error| Unenforceable {
        code: "runner_limit_unenforceable",
        file: "the runner or the sandbox".to_owned(),
        field: "limits.memory_mb",
        why: error.to_string(),
        hint: "run in a control group of your own (systemd-run --user --scope -p Delegate=yes narrows serve …), or write no \
               limit"
            .to_owned(),
    })
}

/// What holds, in the words of the log.
fn told(bounds: &Bounds, sandbox: Option<&Sandbox>, runner: Option<&RunnerPlan>) -> Value {
    let limits: serde_json::Map<String, Value> = [
        ("memory_mb", bounds.limits.memory_mb),
        ("timeout_ms", bounds.limits.timeout_ms),
        ("cpu_ms_per_process", bounds.limits.cpu_ms),
    ]
    .into_iter()
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
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_program_is_shown_with_its_packages_and_no_more() {
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
            let found = installation(&top.join(program), shown, &kept);
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
