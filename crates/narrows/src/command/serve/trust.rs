//! Trust on first use: digests of all files of a manifest, pinned at its first start.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use narrows_audit::{Actor, Event, Log, Subject};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};

use super::manifest::LoadedManifest;
use super::scripts::sha256_hex;
use crate::failure::Failure;
use crate::output;
use crate::permission_prompt;
use crate::terminal::line;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PinnedFiles {
    manifest: PathBuf,
    files: BTreeMap<PathBuf, String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum PinStatus {
    Unpinned,
    Unchanged,
    Changed(Vec<PinChange>),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct PinChange {
    path: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<String>,
    /// The current digest. `None` if the file is no longer part of the manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<String>,
}

impl PinChange {
    fn describe(&self) -> String {
        let path = self.path.display();
        match (&self.before, &self.now) {
            (None, _) => format!("{path} is new"),
            (Some(_), Some(_)) => format!("{path} changed"),
            (Some(_), None) => format!("{path} was removed"),
        }
    }

    fn describe_with_digests(&self) -> String {
        let short = |digest: &Option<String>| match digest {
            Some(digest) => digest.chars().take(12).collect(),
            None => "nothing".to_owned(),
        };
        format!("{}: sha256 {} -> {}", self.describe(), short(&self.before), short(&self.now))
    }
}

#[derive(Debug)]
pub(super) struct TrustStore {
    path: PathBuf,
    now: PinnedFiles,
    status: PinStatus,
}

impl TrustStore {
    pub(super) fn open(data: &Path, manifest: &LoadedManifest) -> Result<Self, Failure> {
        let now = PinnedFiles::from_manifest(manifest);
        let path = data
            .join("pins")
            .join(format!("{}.json", sha256_hex(now.manifest.as_os_str().as_encoded_bytes())));
        let pinned = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice::<PinnedFiles>(&bytes).map(Some).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let pinned =
            pinned.map_err(|error| Failure::file_unreadable("the pins of this manifest", &path, &error))?;
        let status = pinned.map_or(PinStatus::Unpinned, |pinned| pinned.compare(&now));
        Ok(Self { path, now, status })
    }

    /// Returns an error if the manifest differs from its pins.
    pub(super) fn require_trusted(&self) -> Result<(), Failure> {
        match &self.status {
            PinStatus::Changed(changes) => {
                let words: Vec<String> = changes.iter().map(PinChange::describe).collect();
                Err(Failure::manifest_changed(&self.now.manifest, &words))
            }
            PinStatus::Unpinned | PinStatus::Unchanged => Ok(()),
        }
    }

    /// Asks the user at the terminal to trust the changes. Any answer but a clear yes means no.
    pub(super) fn ask_consent(&self) -> bool {
        let PinStatus::Changed(changes) = &self.status else { return false };
        let mut text = line(&format!("{} has untrusted changes:", self.now.manifest.display()));
        text.push('\n');
        for change in changes {
            text.push_str(&format!("  {}\n", line(&change.describe_with_digests())));
        }
        text.push_str("Trust the changes? [y/N] ");
        permission_prompt::confirm(&text).unwrap_or(false)
    }

    /// Pins a new manifest and returns a notice. The log entry is written before the pins, so that trust is
    /// always recorded.
    pub(super) fn pin_new(&self, log: Option<&Log>, who: &str, id: &str) -> Result<Option<String>, Failure> {
        if self.status != PinStatus::Unpinned {
            return Ok(None);
        }
        self.record_and_write("manifest.pinned", log, who, id)?;
        let count = self.now.files.len();
        let notice = format!(
            "first use: trusting {} and all files it refers to, {count} files; approve later changes with `narrows \
             serve --approve`",
            line(&self.now.manifest.display().to_string())
        );
        output::write_stderr(&format!("{notice}\n"));
        Ok(Some(notice))
    }

    pub(super) fn approve(&self, log: Option<&Log>, who: &str, id: &str) -> Result<(), Failure> {
        if let PinStatus::Changed(changes) = &self.status {
            for change in changes {
                output::write_stderr(&format!("approved: {}\n", line(&change.describe_with_digests())));
            }
        }
        self.record_and_write("manifest.approved", log, who, id)?;
        let manifest = line(&self.now.manifest.display().to_string());
        output::write_stderr(&format!("{manifest} is trusted, {} files\n", self.now.files.len()));
        Ok(())
    }

    fn record_and_write(&self, action: &str, log: Option<&Log>, who: &str, id: &str) -> Result<(), Failure> {
        if let Some(log) = log {
            let event = self.event(action, who, id);
            log.append(event).wait().map_err(|error| Failure::audit_append_failed(&error))?;
        }
        self.write().map_err(|error| Failure::pins_unwritable(&self.path, &error))
    }

    fn event(&self, action: &str, who: &str, id: &str) -> Event {
        let changed = match &self.status {
            PinStatus::Changed(changes) => changes.as_slice(),
            PinStatus::Unpinned | PinStatus::Unchanged => &[],
        };
        let manifest = self.now.manifest.display().to_string();
        let mut input = json!({"manifest": manifest, "files": self.now.files});
        if !changed.is_empty() {
            input["changed"] = json!(changed);
        }
        Event {
            actor: Actor { id: who.to_owned(), role: Some("user".to_owned()) },
            action: action.to_owned(),
            subject: Subject { kind: "manifest".to_owned(), reference: Some(id.to_owned()), path: None },
            input: Some(input),
            metadata: Map::from_iter([("aip44".to_owned(), json!({"kind": "manifest", "identity": who}))]),
            ..Event::default()
        }
    }

    /// Replaces the file of pins atomically. Only the owner can read the new file.
    fn write(&self) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        // The temporary file is created with mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        serde_json::to_writer_pretty(&mut file, &self.now)?;
        file.write_all(b"\n")?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        File::open(directory)?.sync_all()
    }
}

impl PinnedFiles {
    fn from_manifest(manifest: &LoadedManifest) -> Self {
        let LoadedManifest { bundle, root, keys, scripts, .. } = manifest;
        let files = bundle.pins.iter().map(|pin| (root.join(&pin.path), pin.sha256.clone()));
        // Signing keys are pinned, too, because they decide which approvals count.
        let keys = keys.files.iter().map(|(path, bytes)| (root.join(path), sha256_hex(bytes)));
        // Programs outside of the workspace are left out: the system updates them, and the manifest states
        // their versions.
        let files = files.chain(keys).chain(scripts.digests()).collect();
        Self { manifest: root.join(&bundle.acp.path), files }
    }

    fn compare(&self, now: &Self) -> PinStatus {
        let mut changes = Vec::new();
        for (path, digest) in &now.files {
            match self.files.get(path) {
                Some(pinned) if pinned == digest => {}
                pinned => changes.push(PinChange {
                    path: path.clone(),
                    before: pinned.cloned(),
                    now: Some(digest.clone()),
                }),
            }
        }
        let gone = self.files.iter().filter(|(path, _)| !now.files.contains_key(*path));
        changes.extend(gone.map(|(path, digest)| PinChange {
            path: path.clone(),
            before: Some(digest.clone()),
            now: None,
        }));
        if changes.is_empty() { PinStatus::Unchanged } else { PinStatus::Changed(changes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pins(files: &[(&str, &str)]) -> PinnedFiles {
        let files = files.iter().map(|(path, digest)| (PathBuf::from(path), (*digest).to_owned()));
        PinnedFiles { manifest: "/w/ACP.md".into(), files: files.collect() }
    }

    #[test]
    fn every_changed_file_is_reported() {
        let pinned = pins(&[("/w/ACP.md", "1"), ("/w/A.md", "2"), ("/w/B.md", "3")]);
        assert_eq!(pinned.compare(&pinned), PinStatus::Unchanged);
        let now = pins(&[("/w/ACP.md", "1"), ("/w/A.md", "0"), ("/w/C.md", "3")]);
        let PinStatus::Changed(changes) = pinned.compare(&now) else { panic!("it has changed") };
        let said: Vec<String> = changes.iter().map(PinChange::describe_with_digests).collect();
        let expected = [
            "/w/A.md changed: sha256 2 -> 0",
            "/w/C.md is new: sha256 nothing -> 3",
            "/w/B.md was removed: sha256 3 -> nothing",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn pins_round_trip_and_are_private() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("pins/x.json");
        let now = pins(&[("/w/ACP.md", "1")]);
        let store = TrustStore { path: path.clone(), now: now.clone(), status: PinStatus::Unpinned };
        store.write().expect("it is written");
        store.write().expect("and written over");
        let bytes = std::fs::read(&path).expect("the file exists");
        assert_eq!(serde_json::from_slice::<PinnedFiles>(&bytes).expect("pins"), now);
        let mode = |path: &Path| path.metadata().expect("the file exists").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&home.path().join("pins"))), (0o600, 0o700));
        assert_eq!(std::fs::read_dir(home.path().join("pins")).expect("a directory").count(), 1);
    }
}
