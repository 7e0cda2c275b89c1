//! What is to be served: a manifest with all it leads to, and the workspace it is for.

use std::path::{Path, PathBuf};

use narrows_govern::{Patience, Presence};
use narrows_manifest::types::acp::Tier;
use narrows_manifest::{AuditTarget, Bundle, Finding, Findings, Kind, PlannedMount, Severity};

use super::admin::Admin;
use super::bounds::inside;
use super::keys::KeyFiles;
use super::preflight::{self, parent};
use super::scripts::Scripts;
use crate::cli::Serve;
use crate::config::{self, Variables};
use crate::drive;
use crate::failure::Failure;
use crate::output;
use crate::terminal::{Colour, line};

/// A manifest that can be served.
pub(super) struct Charge {
    pub(super) bundle: Bundle,
    /// The root of the workspace: absolute and without links.
    pub(super) root: PathBuf,
    /// The keys of those who approve from elsewhere.
    pub(super) keys: KeyFiles,
    /// What is run of the workspace.
    pub(super) scripts: Scripts,
    /// How long anything may take.
    pub(super) patience: Patience,
    /// Where those come in who approve from elsewhere, if that was said.
    pub(super) admin: Option<Admin>,
    /// What clients are to know that they would not learn otherwise.
    pub(super) notice: Option<String>,
}

impl Charge {
    /// Loads it and tells what is wrong with it. `None`: it cannot be used.
    pub(super) fn load(args: &Serve) -> Result<Option<Self>, Failure> {
        let manifest = manifest_at(&args.path);
        if let Err(error) = std::fs::metadata(&manifest) {
            return Err(Failure::no_manifest(&manifest, &error));
        }
        // As the user wrote it, so that what is said about files leads there.
        let shown = args.root.as_deref().unwrap_or_else(|| parent(&manifest));
        if !shown.is_dir() {
            return Err(Failure::no_root(shown));
        }
        let (bundle, keys) = match preflight::load(&manifest, args.root.as_deref()) {
            Ok(loaded) => loaded,
            Err(findings) => {
                tell(shown, &findings);
                return Ok(None);
            }
        };
        tell(shown, &bundle.warnings);
        let root = drive::directory(shown)?;
        let patience = patience(args)?;
        let scripts = Scripts::read(&root, &bundle)
            .map_err(|error| Failure::unreadable("what is to be run", &root, &error))?;
        let admin = Admin::of(args, &bundle, &root)?;
        Ok(Some(Self { bundle, root, keys, scripts, patience, admin, notice: None }))
    }

    /// What decides about the agent, or is run for the next one, is not for it to change: the files of the manifest, the keys,
    /// the log, signatures, programs and scripts.
    pub(super) fn sealed(&self) -> Vec<PathBuf> {
        let Self { bundle, root, keys, scripts, .. } = self;
        let pins = bundle.pins.iter().map(|pin| pin.path.as_path());
        let mut places: Vec<PathBuf> = pins.map(|path| root.join(path)).collect();
        // Also if they do not exist: the gate would read one that an agent has made.
        places.extend(keys.paths().map(|path| root.join(path)));
        places.extend(scripts.paths().map(Path::to_owned));
        places.extend(self.log_places());
        if let Some(governance) = &bundle.governance {
            places.push(root.join(&governance.scope).join("signatures"));
        }
        let real: Vec<PathBuf> = places.iter().filter_map(|place| place.canonicalize().ok()).collect();
        places.extend(real);
        places.sort();
        places.dedup();
        places
    }

    /// The log and what is kept for it. Whoever could open its lock could keep its writers out.
    pub(super) fn log_places(&self) -> Vec<PathBuf> {
        match &self.bundle.audit {
            AuditTarget::Log(path) => log_places(&self.root, &self.root.join(path)),
            _ => Vec::new(),
        }
    }

    /// Refuses to run what is not what it was when it was compared with what is trusted.
    pub(super) fn admit_scripts(&self) -> Result<(), Failure> {
        match self.scripts.changed(&self.root, &self.bundle) {
            Some(path) => {
                let words = format!("{} has changed", path.display());
                Err(Failure::changed(&self.root.join(&self.bundle.acp.path), &[words]))
            }
            None => Ok(()),
        }
    }

    /// Whether everything has to be enforced that the manifest says about its sandbox.
    pub(super) fn is_sandboxed(&self) -> bool {
        self.bundle.acp.front.metadata.aip44.tier == Tier::Sandboxed
    }

    /// The directories in which everything happens, and those of them that may not be changed: what the sandbox of the
    /// tier mounts, and else the workspace.
    pub(super) fn roots(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let mounts = match &self.bundle.sandbox {
            Some(sandbox) if self.is_sandboxed() => sandbox.mounts.as_slice(),
            _ => return (vec![self.root.clone()], Vec::new()),
        };
        let of = |mount: &PlannedMount| inside(&self.root, &mount.source);
        if mounts.is_empty() {
            return (vec![self.root.clone()], vec![self.root.clone()]);
        }
        (mounts.iter().map(of).collect(), mounts.iter().filter(|mount| !mount.writable).map(of).collect())
    }
}

/// The directory of a log, which has nothing else in it; where that is the workspace, the files of the log.
fn log_places(root: &Path, log: &Path) -> Vec<PathBuf> {
    match (log.parent(), log.file_name().and_then(|name| name.to_str())) {
        (Some(above), _) if !root.starts_with(above) => vec![above.to_owned()],
        (Some(above), Some(name)) => {
            let stem = name.split_once('.').map_or(name, |(stem, _)| stem).to_owned();
            let found = std::fs::read_dir(above).into_iter().flatten().flatten();
            let files = found.filter(|entry| entry.file_name().to_string_lossy().starts_with(&stem));
            let files = files.map(|entry| entry.path());
            files.chain([log.to_owned(), above.join(format!("{name}.lock")), Presence::path(log)]).collect()
        }
        _ => vec![log.to_owned()],
    }
}

/// What narrows.toml says about how long anything may take, and then what the flags say.
fn patience(args: &Serve) -> Result<Patience, Failure> {
    let file = config::load(args.model.config.as_deref(), &Variables::of_process())?.file;
    let of_file = file.map(|file| file.deadlines).unwrap_or_default();
    let of_flags = args.deadlines.iter().map(|deadline| (deadline.name, deadline.time));
    let mut patience = Patience::default();
    for (name, time) in of_file.into_iter().chain(of_flags) {
        if let Some(deadline) = patience.named(name) {
            *deadline = time;
        }
    }
    Ok(patience)
}

/// The ACP.md that is meant by a path.
fn manifest_at(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(Kind::Acp.file_name()) } else { path.to_owned() }
}

/// Says what is wrong with the files below `base`, and what is strange.
fn tell(base: &Path, findings: &Findings) {
    for finding in findings {
        let Finding { line: row, column, key, message, .. } = finding;
        let file = base.join(&finding.file);
        let about = if key.is_empty() { String::new() } else { format!("{key}: ") };
        let what = line(&format!("{}:{row}:{column}: {about}{message}", file.display()));
        match finding.severity {
            Severity::Error => {
                output::complain(&Failure::finding(what, finding).render(Colour::of_stderr()));
            }
            Severity::Warning => {
                let hint = finding.hint.as_ref().map(|hint| format!("hint: {}\n", line(hint)));
                output::complain(&format!("warning: {what}\n{}", hint.unwrap_or_default()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_means_the_manifest_in_it() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(manifest_at(directory.path()), directory.path().join("ACP.md"));
        assert_eq!(manifest_at(Path::new("x/MY.md")), Path::new("x/MY.md"));
        assert_eq!((parent(Path::new("ACP.md")), parent(Path::new("a/b"))), (Path::new("."), Path::new("a")));
    }
}
