//! Plans of sandboxes and runners as plain data: directories, modes, names and limits.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Map, Value};

use super::plan::Loaded;
use super::reader::ManifestReader;
use crate::code::Code;
use crate::files::join;
use crate::finding::Draft;
use crate::types::runner::{Engine, Limits, Needs, Runner};
use crate::types::sandbox::{Mode, Sandbox, Source};
use crate::types::storage::Storage;
use crate::yaml::SourcePos;

/// The plan of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SandboxPlan {
    /// Name of the provider, always `local`.
    pub provider: String,
    /// Working directory, relative to the root of the workspace.
    pub cwd: Option<PathBuf>,
    pub mounts: Vec<PlannedMount>,
    /// Hosts that can be reached. An empty list stands for no network.
    pub egress: Vec<String>,
    /// Names of environment variables of Narrows that commands in the sandbox get.
    pub env: Vec<String>,
    pub limits: Limits,
    /// `true` if no command can be run in the sandbox.
    pub read_only: bool,
}

/// A directory that is visible in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedMount {
    /// Directory on disk, relative to the root of the workspace.
    pub source: PathBuf,
    pub at: PathBuf,
    pub writable: bool,
}

/// The plan of a runner.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunnerPlan {
    /// Kind of isolation. A runner never runs in the process of Narrows.
    pub engine: Engine,
    /// `true` if the manifest asked to run in the process of Narrows.
    pub downgraded: bool,
    /// Limits as written in the manifest, without defaults.
    pub limits: Limits,
    pub needs: Option<Needs>,
}

impl RunnerPlan {
    /// Default memory limit, in MiB.
    pub const MEMORY_MB: u64 = 256;
    /// Default timeout, in milliseconds.
    pub const TIMEOUT_MS: u64 = 600_000;

    pub(super) fn new(runner: &Runner) -> Self {
        let downgraded = runner.engine == Engine::InProcess;
        let engine = if downgraded { Engine::Subprocess } else { runner.engine };
        Self { engine, downgraded, limits: runner.limits, needs: runner.needs.clone() }
    }

    /// Returns the limits, with defaults for limits that the manifest does not set.
    pub fn effective_limits(&self) -> Limits {
        Limits {
            memory_mb: self.limits.memory_mb.or(Some(Self::MEMORY_MB)),
            timeout_ms: self.limits.timeout_ms.or(Some(Self::TIMEOUT_MS)),
            cpu_ms: self.limits.cpu_ms,
        }
    }
}

/// Loads the sandbox that a key of `from` refers to.
pub(super) fn at<T>(
    reader: &mut ManifestReader<'_>,
    from: &Loaded<T>,
    reference: &str,
    place: SourcePos,
    key: &str,
) -> Option<SandboxPlan> {
    let loaded =
        reader.read_manifest_reference::<Sandbox, _>(from, reference, place, key, Some(Code::Sandbox))?;
    let front = loaded.front.clone();
    plan(reader, &loaded, &front, &[])
}

/// Reads a sandbox that is written into another manifest, below `path`. The schema of that manifest has
/// checked the form of the sandbox.
pub(super) fn inline<T>(
    reader: &mut ManifestReader<'_>,
    from: &Loaded<T>,
    value: &Map<String, Value>,
    path: &[&str],
) -> Option<SandboxPlan> {
    let sandbox: Sandbox = serde_json::from_value(Value::Object(value.clone())).ok()?;
    plan(reader, from, &sandbox, path)
}

fn plan<T>(
    reader: &mut ManifestReader<'_>,
    from: &Loaded<T>,
    sandbox: &Sandbox,
    path: &[&str],
) -> Option<SandboxPlan> {
    let key = |name: &str| path.iter().copied().chain([name]).collect::<Vec<_>>().join(".");
    let place = |name: &str| from.place(&path.iter().copied().chain([name]).collect::<Vec<_>>());
    let mut mounts = Vec::new();
    let mut complete = true;
    for mount in &sandbox.mounts {
        match source(reader, from, &mount.source) {
            Some(directory) => {
                let writable = mount.mode == Mode::ReadWrite && !sandbox.read_only;
                mounts.push(PlannedMount { source: directory, at: PathBuf::from(&mount.at), writable });
            }
            None => {
                complete = false;
                let message = "the mount source is not a directory in this workspace";
                let draft = Draft::error(Code::Sandbox, place("mounts"), message).key(key("mounts"));
                reader.find(
                    from,
                    draft.value(&mount.at).hint("write source: workspace, or {ref: ./directory}"),
                );
            }
        }
        if mount.at.split('/').any(|part| part == ".." || part.contains('\0')) {
            complete = false;
            let draft = Draft::error(Code::Sandbox, place("mounts"), "a mount path must not contain `..`");
            reader.find(from, draft.key(key("mounts")).value(&mount.at).hint("write the full path"));
        }
    }
    let cwd = match sandbox.config.get("cwd").and_then(Value::as_str) {
        None => None,
        Some(cwd) => match join(&from.directory(), cwd) {
            Some(path) => Some(path),
            None => {
                complete = false;
                let draft = Draft::error(
                    Code::Outside,
                    place("config"),
                    "the working directory is outside the workspace",
                );
                reader.find(from, draft.key(key("config.cwd")).value(cwd).hint("write a path in it"));
                None
            }
        },
    };
    let secrets = sandbox.env.auth.as_ref().and_then(|auth| auth.state.as_ref());
    let secrets = secrets.map(|state| state.env.as_slice()).unwrap_or_default();
    let mut env: Vec<String> = sandbox.env.passthrough.iter().chain(secrets).cloned().collect();
    env.sort_unstable();
    env.dedup();
    complete.then(|| SandboxPlan {
        provider: sandbox.provider.clone(),
        cwd,
        mounts,
        egress: sandbox.network.egress.clone(),
        env,
        limits: sandbox.limits,
        read_only: sandbox.read_only,
    })
}

/// Returns the directory of a mount's source. Returns `None` if the source is not a directory of this
/// workspace.
fn source<T>(reader: &mut ManifestReader<'_>, from: &Loaded<T>, source: &Source) -> Option<PathBuf> {
    match source {
        Source::Workspace(_) => Some(PathBuf::new()),
        Source::Ref(reference) => {
            let path = join(&from.directory(), &reference.r#ref)?;
            if reader.files.has_directory(&path) {
                Some(path)
            } else {
                described(reader, from, &reference.r#ref)
            }
        }
        Source::File(file) => described(reader, from, &file.file),
        Source::Inline(inline) => stored(reader, &from.directory(), &inline.inline),
    }
}

/// Returns the directory of a storage that is described in another file.
fn described<T>(reader: &mut ManifestReader<'_>, from: &Loaded<T>, reference: &str) -> Option<PathBuf> {
    let (path, bytes) = reader.read_reference(from, reference).ok()?;
    let front = crate::document::front_matter(&bytes)?;
    let storage: Storage = serde_json::from_value(front).ok()?;
    stored(reader, path.parent()?, &storage)
}

fn stored(reader: &ManifestReader<'_>, directory: &std::path::Path, storage: &Storage) -> Option<PathBuf> {
    let named = ["path", "root", "directory"].iter().find_map(|key| storage.config.get(*key)?.as_str());
    let path = join(directory, named?)?;
    (storage.provider == "local" && reader.files.has_directory(&path)).then_some(path)
}

/// Reads a runner in any of its forms: a path, `{ref}`, `{file}`, inline, or inline below the runner's former
/// key.
pub(super) fn runner<T>(
    reader: &mut ManifestReader<'_>,
    from: &Loaded<T>,
    value: &Value,
    key: &str,
) -> Option<RunnerPlan> {
    let at = from.place(&[key]);
    let reference = match value {
        Value::String(path) => Some(path.as_str()),
        Value::Object(map) => map.get("ref").or_else(|| map.get("file")).and_then(Value::as_str),
        _ => None,
    };
    if let Some(reference) = reference {
        let loaded =
            reader.read_manifest_reference::<Runner, _>(from, reference, at, key, Some(Code::Runner))?;
        return Some(RunnerPlan::new(&loaded.front));
    }
    let inner = value.get("runtime").filter(|_| value.as_object().is_some_and(|map| map.len() == 1));
    match serde_json::from_value::<Runner>(inner.unwrap_or(value).clone()) {
        Ok(runner) => Some(RunnerPlan::new(&runner)),
        Err(_) => {
            let draft = Draft::error(Code::Runner, at, "invalid runner").key(key);
            reader.find(from, draft.hint("write a path, {ref: path}, or engine and limits"));
            None
        }
    }
}
