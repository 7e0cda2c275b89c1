//! Sandboxes and runners as plain data: directories, modes, names and limits.

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

/// What a sandbox shows and lets through.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SandboxPlan {
    /// Who makes it. Here always `local`.
    pub provider: String,
    /// Where it starts, from the root of the workspace on.
    pub cwd: Option<PathBuf>,
    /// What it shows.
    pub mounts: Vec<PlannedMount>,
    /// Hosts it reaches. None: no network.
    pub egress: Vec<String>,
    /// Variables it sees, by name.
    pub env: Vec<String>,
    /// What each command may use up.
    pub limits: Limits,
    /// Whether nothing may be run in it.
    pub read_only: bool,
}

/// A directory that a sandbox shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedMount {
    /// The directory, from the root of the workspace on.
    pub source: PathBuf,
    /// Where it is in the sandbox.
    pub at: PathBuf,
    /// Whether it can be changed there.
    pub writable: bool,
}

/// The process around something that runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunnerPlan {
    /// Where it runs; never in ours.
    pub engine: Engine,
    /// Whether it asked to run in ours.
    pub downgraded: bool,
    /// Its limits as they were written.
    pub limits: Limits,
    /// What has to be there.
    pub needs: Option<Needs>,
}

impl RunnerPlan {
    /// How much memory in MiB, if nothing was said.
    pub const MEMORY_MB: u64 = 256;
    /// How many milliseconds, if nothing was said.
    pub const TIMEOUT_MS: u64 = 600_000;

    pub(super) fn new(runner: &Runner) -> Self {
        let downgraded = runner.engine == Engine::InProcess;
        let engine = if downgraded { Engine::Subprocess } else { runner.engine };
        Self { engine, downgraded, limits: runner.limits, needs: runner.needs.clone() }
    }

    /// Its limits, with the usual ones where nothing was said.
    pub fn effective_limits(&self) -> Limits {
        Limits {
            memory_mb: self.limits.memory_mb.or(Some(Self::MEMORY_MB)),
            timeout_ms: self.limits.timeout_ms.or(Some(Self::TIMEOUT_MS)),
            cpu_ms: self.limits.cpu_ms,
        }
    }
}

/// The sandbox that a key of `from` refers to.
pub(super) fn at<T>(
    reader: &mut ManifestReader<'_>,
    from: &Loaded<T>,
    reference: &str,
    place: SourcePos,
    key: &str,
) -> Option<SandboxPlan> {
    let loaded = reader.referred::<Sandbox, _>(from, reference, place, key, Some(Code::Sandbox))?;
    let front = loaded.front.clone();
    plan(reader, &loaded, &front, &[])
}

/// The sandbox that stands in another manifest, below `path`. Its form was checked with that manifest.
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
                let message = "what is to be mounted is not a directory of this workspace";
                let draft = Draft::error(Code::Sandbox, place("mounts"), message).key(key("mounts"));
                reader.find(
                    from,
                    draft.value(&mount.at).hint("write source: workspace, or {ref: ./directory}"),
                );
            }
        }
        if mount.at.split('/').any(|part| part == ".." || part.contains('\0')) {
            complete = false;
            let draft = Draft::error(Code::Sandbox, place("mounts"), "a place must not have `..` in it");
            reader.find(from, draft.key(key("mounts")).value(&mount.at).hint("write it in full"));
        }
    }
    let cwd = match sandbox.config.get("cwd").and_then(Value::as_str) {
        None => None,
        Some(cwd) => match join(&from.directory(), cwd) {
            Some(path) => Some(path),
            None => {
                complete = false;
                let draft = Draft::error(Code::Outside, place("config"), "it starts outside the workspace");
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

/// The directory that is meant, if it is one of this workspace.
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

/// The directory that a description of a storage means.
fn described<T>(reader: &mut ManifestReader<'_>, from: &Loaded<T>, reference: &str) -> Option<PathBuf> {
    let (path, bytes) = reader.bytes_at(from, reference).ok()?;
    let front = crate::document::front_matter(&bytes)?;
    let storage: Storage = serde_json::from_value(front).ok()?;
    stored(reader, path.parent()?, &storage)
}

fn stored(reader: &ManifestReader<'_>, directory: &std::path::Path, storage: &Storage) -> Option<PathBuf> {
    let named = ["path", "root", "directory"].iter().find_map(|key| storage.config.get(*key)?.as_str());
    let path = join(directory, named?)?;
    (storage.provider == "local" && reader.files.has_directory(&path)).then_some(path)
}

/// A runner in one of its forms: a path, `{ref}`, `{file}`, in full, or in full below the word it had earlier.
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
        let loaded = reader.referred::<Runner, _>(from, reference, at, key, Some(Code::Runner))?;
        return Some(RunnerPlan::new(&loaded.front));
    }
    let inner = value.get("runtime").filter(|_| value.as_object().is_some_and(|map| map.len() == 1));
    match serde_json::from_value::<Runner>(inner.unwrap_or(value).clone()) {
        Ok(runner) => Some(RunnerPlan::new(&runner)),
        Err(_) => {
            let draft = Draft::error(Code::Runner, at, "this is not a runner").key(key);
            reader.find(from, draft.hint("write a path, {ref: path}, or engine and limits"));
            None
        }
    }
}
