//! The bounds of an agent's sandbox, merged from the sandboxes and the runner of its manifests. The stricter
//! value wins.

use std::path::{Path, PathBuf};

use narrows_egress::HostAllowList;
use narrows_manifest::types::acp::Tier;
use narrows_manifest::types::runner::Limits;
use narrows_manifest::{Agent, Bundle, PlannedMount, RunnerPlan, SandboxPlan};
use narrows_process::Mount;

pub(super) struct RequestedSandbox {
    pub(super) file: &'static str,
    pub(super) plan: SandboxPlan,
}

/// Returns the sandboxes for `agent`, or without one those for the MCP servers of the built-in agent. If the
/// tier is `sandboxed`, its sandbox is the first.
pub(super) fn requested_sandboxes(bundle: &Bundle, agent: Option<&Agent>) -> Vec<RequestedSandbox> {
    let sandboxed = bundle.acp.front.metadata.aip44.tier == Tier::Sandboxed;
    let of_tier = bundle.sandbox.clone().filter(|_| sandboxed);
    let named = agent.and_then(|agent| Some((agent, agent.sandbox.clone()?)));
    let own = named.map(|(agent, mut plan)| {
        let auth = agent.cli.front.auth.as_ref().and_then(|auth| auth.state.as_ref());
        plan.env.extend(auth.into_iter().flat_map(|state| state.env.clone()));
        plan
    });
    let of_tier = of_tier.map(|plan| RequestedSandbox { file: "SANDBOX.md", plan });
    let own = own.map(|plan| RequestedSandbox { file: "AGENT-CLI.md", plan });
    of_tier.into_iter().chain(own).collect()
}

/// A field of a manifest that cannot be enforced on this machine, so the manifest is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot enforce {field} of {file} on this machine: {why}")]
pub(super) struct Unenforceable {
    pub(super) code: &'static str,
    pub(super) file: String,
    pub(super) field: &'static str,
    pub(super) why: String,
    pub(super) hint: String,
}

/// The files, hosts and resources that an agent may use.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SandboxBounds {
    /// Visible parts of the workspace. Each is also mounted at its own path, because clients use that path.
    pub(super) mounts: Vec<Mount>,
    pub(super) cwd: PathBuf,
    pub(super) egress: HostAllowList,
    /// The allowed hosts as written in the manifests, one list for each sandbox.
    pub(super) hosts: Vec<Vec<String>>,
    pub(super) env: Vec<String>,
    pub(super) limits: Limits,
}

impl SandboxBounds {
    /// Merges the sandboxes and the runner for work in `root`. The first sandbox is the outer one.
    pub(super) fn merge(
        root: &Path,
        requested: &[RequestedSandbox],
        runner: Option<&RunnerPlan>,
    ) -> Result<Self, Unenforceable> {
        let mut limits = runner.map(|runner| runner.limits).unwrap_or_default();
        let mut egress = None::<HostAllowList>;
        let mut env = None::<Vec<String>>;
        let mut planned: &[PlannedMount] = &[];
        let mut kept = Vec::new();
        let mut cwd = None;
        for RequestedSandbox { file, plan } in requested {
            let refused = |code, field, why: &str, hint: &str| Unenforceable {
                code,
                file: (*file).to_owned(),
                field,
                why: why.to_owned(),
                hint: hint.to_owned(),
            };
            if plan.read_only {
                let why = "a read-only sandbox cannot run programs, and the agent is a program";
                return Err(refused(
                    "sandbox_read_only",
                    "read_only",
                    why,
                    "use mode: read-only at its mounts instead",
                ));
            }
            let list = HostAllowList::parse(&plan.egress).map_err(|error| {
                refused("sandbox_unenforceable", "network.egress", &error.to_string(), "use a host name")
            })?;
            egress = Some(match egress {
                Some(outer) => outer.and(list),
                None => list,
            });
            env = Some(match env {
                Some(outer) => outer.into_iter().filter(|name| plan.env.contains(name)).collect(),
                None => plan.env.clone(),
            });
            limits = stricter_limits(limits, plan.limits);
            if !plan.mounts.is_empty() {
                kept = match planned {
                    [] => plan.mounts.clone(),
                    outer => narrow_mounts(outer, &plan.mounts).ok_or_else(|| {
                        let why = "this mount is not in the sandbox of the ACP.md";
                        refused("sandbox_unenforceable", "mounts", why, "use the same source and at in both")
                    })?,
                };
                planned = &plan.mounts;
            }
            cwd = plan.cwd.as_ref().or(cwd);
        }
        let mounts = visible_mounts(root, &kept);
        let cwd = match cwd {
            Some(cwd) => workspace_path(root, cwd),
            // The default working directory is the workspace if it is mounted as a whole, otherwise the first
            // mount.
            None if kept.is_empty() || kept.iter().any(|mount| mount.source == Path::new("")) => {
                root.to_owned()
            }
            None => kept.first().map_or_else(|| root.to_owned(), |mount| workspace_path(root, &mount.source)),
        };
        Ok(Self {
            mounts,
            cwd,
            egress: egress.unwrap_or_default(),
            hosts: requested.iter().map(|requested| requested.plan.egress.clone()).collect(),
            env: env.unwrap_or_default(),
            limits,
        })
    }
}

/// Returns a path in the workspace, without a trailing slash.
pub(super) fn workspace_path(root: &Path, path: &Path) -> PathBuf {
    if path == Path::new("") { root.to_owned() } else { root.join(path) }
}

/// Returns each planned mount at its target and at its source. Without mounts the workspace is readable.
fn visible_mounts(root: &Path, planned: &[PlannedMount]) -> Vec<Mount> {
    if planned.is_empty() {
        return vec![Mount::here(root, false)];
    }
    let shown = planned.iter().flat_map(|PlannedMount { source, at, writable }| {
        let source = workspace_path(root, source);
        let here = Mount::here(source.clone(), *writable);
        // Collecting components removes a trailing slash.
        let there = Mount { source, at: at.components().collect(), writable: *writable };
        [here, there]
    });
    shown.collect()
}

/// Returns the inner mounts, each of which must be one of the outer mounts.
fn narrow_mounts(outer: &[PlannedMount], inner: &[PlannedMount]) -> Option<Vec<PlannedMount>> {
    let narrowed = inner.iter().map(|mount| {
        let same = outer.iter().find(|outer| outer.source == mount.source && outer.at == mount.at)?;
        Some(PlannedMount { writable: mount.writable && same.writable, ..mount.clone() })
    });
    narrowed.collect()
}

fn stricter_limits(one: Limits, other: Limits) -> Limits {
    let least = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
    Limits {
        memory_mb: least(one.memory_mb, other.memory_mb),
        timeout_ms: least(one.timeout_ms, other.timeout_ms),
        cpu_ms: least(one.cpu_ms, other.cpu_ms),
    }
}

#[cfg(test)]
mod tests {
    use narrows_egress::Target;
    use serde_json::{Value, json};

    use super::*;

    fn plan(value: &Value) -> SandboxPlan {
        let text = |key: &str| serde_json::from_value(value[key].clone()).unwrap_or_default();
        let mounts = value["mounts"].as_array().into_iter().flatten().map(|mount| PlannedMount {
            source: mount[0].as_str().unwrap_or_default().into(),
            at: mount[1].as_str().unwrap_or_default().into(),
            writable: mount[2] == "rw",
        });
        SandboxPlan {
            provider: "local".into(),
            cwd: value["cwd"].as_str().map(Into::into),
            mounts: mounts.collect(),
            egress: text("egress"),
            env: text("env"),
            limits: serde_json::from_value(value["limits"].clone()).unwrap_or_default(),
            read_only: value["read_only"] == true,
        }
    }

    fn bounds(outer: &Value, inner: &Value) -> Result<SandboxBounds, Unenforceable> {
        let (outer, inner) = (plan(outer), plan(inner));
        let requested = [
            RequestedSandbox { file: "SANDBOX.md", plan: outer },
            RequestedSandbox { file: "AGENT-CLI.md", plan: inner },
        ];
        SandboxBounds::merge(Path::new("/w"), &requested, None)
    }

    #[test]
    fn the_stricter_of_two_sandboxes_applies() {
        let outer = json!({"mounts": [["", "/work/", "rw"], ["docs", "/work/docs", "ro"]], "egress": ["*.a.test", "b.test"],
            "env": ["A", "B"], "limits": {"memory_mb": 100, "cpu_ms": 5}});
        let same = bounds(
            &outer,
            &json!({"egress": ["x.a.test", "c.test"], "env": ["B", "C"], "limits": {"memory_mb": 50}}),
        )
        .expect("the bounds can be merged");
        let shown: Vec<String> = same
            .mounts
            .iter()
            .map(|mount| format!("{} {} {}", mount.source.display(), mount.at.display(), mount.writable))
            .collect();
        assert_eq!(
            shown,
            ["/w /w true", "/w /work true", "/w/docs /w/docs false", "/w/docs /work/docs false"]
        );
        assert_eq!((same.cwd.as_path(), &*same.env), (Path::new("/w"), &["B".to_owned()][..]));
        assert_eq!(
            (same.limits.memory_mb, same.limits.cpu_ms, same.limits.timeout_ms),
            (Some(50), Some(5), None)
        );
        let permits = |text: &str| same.egress.permits(&Target::parse(text, None).expect("a target"));
        assert!(
            permits("x.a.test:443")
                && !permits("y.a.test:443")
                && !permits("b.test:443")
                && !permits("c.test:443")
        );

        let fewer = bounds(&outer, &json!({"mounts": [["docs", "/work/docs", "rw"]]}))
            .expect("the bounds can be merged");
        assert!(fewer.mounts.iter().all(|mount| !mount.writable) && fewer.mounts.len() == 2, "{fewer:?}");
        assert_eq!(fewer.cwd, Path::new("/w/docs"));
        assert!(fewer.egress.is_empty(), "an empty list allows no host");
    }

    #[test]
    fn without_mounts_the_workspace_is_readable() {
        let nothing = bounds(&json!({}), &json!({"cwd": "sub"})).expect("the bounds can be merged");
        assert_eq!((nothing.mounts, nothing.cwd), (vec![Mount::here("/w", false)], PathBuf::from("/w/sub")));
        assert!(nothing.egress.is_empty() && nothing.env.is_empty());
    }

    #[test]
    fn conflicting_sandboxes_are_reported() {
        let refused = |outer: &Value, inner: &Value| {
            let refused = bounds(outer, inner).expect_err("they do not fit");
            format!("{} {} {}", refused.code, refused.file, refused.field)
        };
        let one = json!({"mounts": [["", "/work", "rw"]]});
        let read_only = json!({"read_only": true});
        assert_eq!(refused(&read_only, &json!({})), "sandbox_read_only SANDBOX.md read_only");
        assert_eq!(refused(&json!({}), &read_only), "sandbox_read_only AGENT-CLI.md read_only");
        assert_eq!(
            refused(&one, &json!({"mounts": [["", "/other", "rw"]]})),
            "sandbox_unenforceable AGENT-CLI.md mounts"
        );
        assert_eq!(
            refused(&json!({"egress": ["*.1"]}), &json!({})),
            "sandbox_unenforceable SANDBOX.md network.egress"
        );
    }
}
