//! A manifest with all its files, and the workspace that it is served for.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use narrows_govern::{GateTimeouts, SystemPathResolver};
use narrows_manifest::types::acp::Tier;
use narrows_manifest::{AuditTarget, Bundle, Finding, Findings, ManifestKind, PlannedMount, Severity};

use super::approval_socket::AdminSocketConfig;
use super::keys::KeyFiles;
use super::preflight::{self, parent};
use super::sandbox_bounds::workspace_path;
use super::scripts::Scripts;
use crate::agent_source;
use crate::cli::Serve;
use crate::config::{self, Variables};
use crate::failure::Failure;
use crate::output;
use crate::terminal::{Color, line};

/// Directory of the signatures of approvals, beside the governance.
pub(super) const SIGNATURES_DIR: &str = "signatures";

pub(super) struct LoadedManifest {
    pub(super) bundle: Bundle,
    /// The workspace, as an absolute path without links.
    pub(super) root: PathBuf,
    pub(super) keys: KeyFiles,
    pub(super) scripts: Scripts,
    pub(super) patience: GateTimeouts,
    pub(super) admin: Option<AdminSocketConfig>,
    /// A notice that clients get in the response to `initialize`.
    pub(super) notice: Option<String>,
}

impl LoadedManifest {
    /// Loads the manifest and prints findings. Returns `None` if it cannot be served.
    pub(super) fn load(args: &Serve) -> Result<Option<Self>, Failure> {
        let manifest = manifest_at(&args.path);
        if let Err(error) = std::fs::metadata(&manifest) {
            return Err(Failure::manifest_missing(&manifest, &error));
        }
        // Findings show the workspace path as the user wrote it.
        let shown = args.root.as_deref().unwrap_or_else(|| parent(&manifest));
        if !shown.is_dir() {
            return Err(Failure::root_invalid(shown));
        }
        let (bundle, keys) = match preflight::load(&manifest, args.root.as_deref()) {
            Ok(loaded) => loaded,
            Err(findings) => {
                print_findings(shown, &findings);
                return Ok(None);
            }
        };
        print_findings(shown, &bundle.warnings);
        let root = agent_source::absolute_dir(shown)?;
        let patience = gate_deadlines(args)?;
        let scripts = Scripts::read(&root, &bundle)
            .map_err(|error| Failure::file_unreadable("the manifest", &root, &error))?;
        let admin = AdminSocketConfig::from_args(args, &bundle, &root)?;
        Ok(Some(Self { bundle, root, keys, scripts, patience, admin, notice: None }))
    }

    /// Returns the paths that the agent must not change, because they decide what it may do, or are run for
    /// the next client: manifests, keys, log, signatures, programs and scripts.
    pub(super) fn protected_paths(&self) -> Vec<PathBuf> {
        let Self { bundle, root, keys, scripts, .. } = self;
        let pins = bundle.pins.iter().map(|pin| pin.path.as_path());
        let mut paths: Vec<PathBuf> = pins.map(|path| root.join(path)).collect();
        // Missing keys files are protected too: an agent could create them, and the gate would read them.
        paths.extend(keys.paths().map(|path| root.join(path)));
        paths.extend(scripts.paths().map(Path::to_owned));
        paths.extend(self.log_paths());
        paths.extend(self.signatures_dir());
        let real: Vec<PathBuf> = paths.iter().filter_map(|place| place.canonicalize().ok()).collect();
        paths.extend(real);
        paths.sort();
        paths.dedup();
        paths
    }

    fn signatures_dir(&self) -> Option<PathBuf> {
        let governance = self.bundle.governance.as_ref()?;
        Some(self.root.join(&governance.scope).join(SIGNATURES_DIR))
    }

    /// Creates the directories of protected files that may not exist yet: of signatures, keys and the log. A
    /// sandbox can protect them only if they exist. It reports those that could not be created.
    pub(super) fn create_protected_dirs(&self) {
        let keys = self.keys.paths().map(|path| self.root.join(path));
        let of_keys = keys.filter_map(|path| Some((path.parent()?.to_owned(), 0o755)));
        let private = self.signatures_dir().into_iter().chain(self.log_paths()).map(|path| (path, 0o700));
        for (directory, mode) in of_keys.chain(private) {
            // A link must not lead out of the workspace.
            if !directory.exists()
                && let Ok(real) = narrows_govern::resolve_in_roots(
                    &directory,
                    std::slice::from_ref(&self.root),
                    &SystemPathResolver,
                )
            {
                let _ = DirBuilder::new().recursive(true).mode(mode).create(real);
            }
        }
    }

    /// Returns the paths of the log, which the agent must not see: a process that opens its lock file can
    /// block the writers.
    pub(super) fn log_paths(&self) -> Vec<PathBuf> {
        match &self.bundle.audit {
            AuditTarget::Log(path) => log_paths(&self.root, &self.root.join(path)),
            _ => Vec::new(),
        }
    }

    /// Returns an error if an executable file changed since it was pinned.
    pub(super) fn check_scripts(&self) -> Result<(), Failure> {
        match self.scripts.changed(&self.root, &self.bundle) {
            Some(path) => {
                let words = format!("{} changed", path.display());
                Err(Failure::manifest_changed(&self.root.join(&self.bundle.acp.path), &[words]))
            }
            None => Ok(()),
        }
    }

    /// Returns `true` if the manifest has the tier `sandboxed`. Every part of that sandbox must be enforced.
    pub(super) fn is_sandboxed(&self) -> bool {
        self.bundle.acp.front.metadata.aip44.tier == Tier::Sandboxed
    }

    /// Returns the working directories, and those of them that are read-only. With the tier `sandboxed` these
    /// are the mounts, otherwise the workspace.
    pub(super) fn roots(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let mounts = match &self.bundle.sandbox {
            Some(sandbox) if self.is_sandboxed() => sandbox.mounts.as_slice(),
            _ => return (vec![self.root.clone()], Vec::new()),
        };
        let of = |mount: &PlannedMount| workspace_path(&self.root, &mount.source);
        if mounts.is_empty() {
            return (vec![self.root.clone()], vec![self.root.clone()]);
        }
        (mounts.iter().map(of).collect(), mounts.iter().filter(|mount| !mount.writable).map(of).collect())
    }
}

/// Returns the directory of a log, or only the log if that directory contains the workspace. Then the gate
/// protects the log's files by their names, and no sandbox is built ([`preflight`]).
fn log_paths(root: &Path, log: &Path) -> Vec<PathBuf> {
    match log.parent() {
        Some(directory) if !contains(directory, root) => vec![directory.to_owned()],
        _ => vec![log.to_owned()],
    }
}

/// Returns `true` if `directory` is `root` or contains it.
fn contains(directory: &Path, root: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(root).starts_with(real(directory))
}

/// Returns the gate deadlines of narrows.toml, overridden by flags.
fn gate_deadlines(args: &Serve) -> Result<GateTimeouts, Failure> {
    let file = config::load(args.model.config.as_deref(), &Variables::of_process())?.file;
    let in_file = file.map(|file| file.deadlines).unwrap_or_default();
    let in_flags = args.deadlines.iter().map(|deadline| (deadline.name, deadline.time));
    let mut patience = GateTimeouts::default();
    for (name, time) in in_file.into_iter().chain(in_flags) {
        if let Some(deadline) = patience.by_name_mut(name) {
            *deadline = time;
        }
    }
    Ok(patience)
}

fn manifest_at(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(ManifestKind::Acp.file_name()) } else { path.to_owned() }
}

fn print_findings(base: &Path, findings: &Findings) {
    for finding in findings {
        let Finding { line: row, column, key, message, .. } = finding;
        let file = base.join(&finding.file);
        let about = if key.is_empty() { String::new() } else { format!("{key}: ") };
        let what = line(&format!("{}:{row}:{column}: {about}{message}", file.display()));
        match finding.severity {
            Severity::Error => {
                output::write_stderr(&Failure::manifest_finding(what, finding).render(Color::for_stderr()));
            }
            Severity::Warning => {
                let hint = finding.hint.as_ref().map(|hint| format!("hint: {}\n", line(hint)));
                output::write_stderr(&format!("warning: {what}\n{}", hint.unwrap_or_default()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_stands_for_its_manifest() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(manifest_at(directory.path()), directory.path().join("ACP.md"));
        assert_eq!(manifest_at(Path::new("x/MY.md")), Path::new("x/MY.md"));
        assert_eq!((parent(Path::new("ACP.md")), parent(Path::new("a/b"))), (Path::new("."), Path::new("a")));
    }
}
