//! What a manifest was trusted with: the digests of all its files, kept since its first start.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use narrows_audit::{Actor, Event, Log, Subject};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};

use super::charge::Charge;
use super::scripts::digest;
use crate::ask;
use crate::failure::Failure;
use crate::output;
use crate::terminal::line;

/// The files of a manifest and their digests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pins {
    /// The manifest.
    manifest: PathBuf,
    /// Every file that was read, with the SHA-256 of its bytes.
    files: BTreeMap<PathBuf, String>,
}

/// What a manifest is compared with what was pinned.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It was never started.
    New,
    /// It is what was pinned.
    Same,
    /// It is not.
    Changed(Vec<Change>),
}

/// A file that is not what was pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Change {
    path: PathBuf,
    /// Its digest when it was pinned, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<String>,
    /// Its digest now, if it is still a part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<String>,
}

impl Change {
    /// What has become of it.
    fn words(&self) -> String {
        let path = self.path.display();
        match (&self.before, &self.now) {
            (None, _) => format!("{path} is new"),
            (Some(_), Some(_)) => format!("{path} has changed"),
            (Some(_), None) => format!("{path} is no longer part of it"),
        }
    }

    /// The same, with what it was and what it is.
    fn summary(&self) -> String {
        let short = |digest: &Option<String>| match digest {
            Some(digest) => digest.chars().take(12).collect(),
            None => "nothing".to_owned(),
        };
        format!("{}: sha256 {} -> {}", self.words(), short(&self.before), short(&self.now))
    }
}

/// The place of the pins of one manifest.
#[derive(Debug)]
pub(super) struct Book {
    path: PathBuf,
    now: Pins,
    standing: Standing,
}

impl Book {
    /// Looks up what a manifest was pinned with, below the data directory.
    pub(super) fn open(data: &Path, charge: &Charge) -> Result<Self, Failure> {
        let now = Pins::of(charge);
        let path =
            data.join("pins").join(format!("{}.json", digest(now.manifest.as_os_str().as_encoded_bytes())));
        let kept = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice::<Pins>(&bytes).map(Some).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let kept = kept.map_err(|error| Failure::unreadable("the pins of this manifest", &path, &error))?;
        let standing = kept.map_or(Standing::New, |kept| kept.compare(&now));
        Ok(Self { path, now, standing })
    }

    /// Whether it is what was pinned, or new.
    pub(super) fn admit(&self) -> Result<(), Failure> {
        match &self.standing {
            Standing::Changed(changes) => {
                let words: Vec<String> = changes.iter().map(Change::words).collect();
                Err(Failure::changed(&self.now.manifest, &words))
            }
            Standing::New | Standing::Same => Ok(()),
        }
    }

    /// Asks the person at the terminal whether what has changed is to be trusted. Nothing but a clear yes is one.
    pub(super) fn consents(&self) -> bool {
        let Standing::Changed(changes) = &self.standing else { return false };
        let mut text = line(&format!("{} is not what was trusted:", self.now.manifest.display()));
        text.push('\n');
        for change in changes {
            text.push_str(&format!("  {}\n", line(&change.summary())));
        }
        text.push_str("Trust it as it is now? [y/N] ");
        ask::agrees(&text).unwrap_or(false)
    }

    /// Pins what is new, and says so. It is recorded first, so that nothing is ever trusted that no log tells of.
    pub(super) fn pin(&self, log: Option<&Log>, who: &str, id: &str) -> Result<Option<String>, Failure> {
        if self.standing != Standing::New {
            return Ok(None);
        }
        self.settle("manifest.pinned", log, who, id)?;
        let count = self.now.files.len();
        let told = format!(
            "{} and what it leads to, {count} files, are trusted from now on; whatever changes is to be approved",
            line(&self.now.manifest.display().to_string())
        );
        output::complain(&format!("{told}\n"));
        Ok(Some(told))
    }

    /// Pins it as it is now because somebody says so.
    pub(super) fn approve(&self, log: Option<&Log>, who: &str, id: &str) -> Result<(), Failure> {
        if let Standing::Changed(changes) = &self.standing {
            for change in changes {
                output::complain(&format!("approved: {}\n", line(&change.summary())));
            }
        }
        self.settle("manifest.approved", log, who, id)?;
        let manifest = line(&self.now.manifest.display().to_string());
        output::complain(&format!("{manifest} is trusted as it is, {} files\n", self.now.files.len()));
        Ok(())
    }

    fn settle(&self, action: &str, log: Option<&Log>, who: &str, id: &str) -> Result<(), Failure> {
        if let Some(log) = log {
            let event = self.event(action, who, id);
            log.append(event).wait().map_err(|error| Failure::unrecorded(&error))?;
        }
        self.write().map_err(|error| Failure::unpinned(&self.path, &error))
    }

    fn event(&self, action: &str, who: &str, id: &str) -> Event {
        let changed = match &self.standing {
            Standing::Changed(changes) => changes.as_slice(),
            Standing::New | Standing::Same => &[],
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

    /// Replaces the file as a whole, readable by its owner only.
    fn write(&self) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        // Made with mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        serde_json::to_writer_pretty(&mut file, &self.now)?;
        file.write_all(b"\n")?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        File::open(directory)?.sync_all()
    }
}

impl Pins {
    fn of(charge: &Charge) -> Self {
        let Charge { bundle, root, keys, scripts, .. } = charge;
        let files = bundle.pins.iter().map(|pin| (root.join(&pin.path), pin.sha256.clone()));
        // Whose signature counts is as much a part of it as what they sign for.
        let keys = keys.files.iter().map(|(path, bytes)| (root.join(path), digest(bytes)));
        // A program that is found elsewhere is the system's, which replaces it when it is kept up to date; what version will
        // do stands in the manifest.
        let files = files.chain(keys).chain(scripts.digests()).collect();
        Self { manifest: root.join(&bundle.acp.path), files }
    }

    /// What is different from what was pinned.
    fn compare(&self, now: &Self) -> Standing {
        let mut changes = Vec::new();
        for (path, digest) in &now.files {
            match self.files.get(path) {
                Some(kept) if kept == digest => {}
                kept => changes.push(Change {
                    path: path.clone(),
                    before: kept.cloned(),
                    now: Some(digest.clone()),
                }),
            }
        }
        let gone = self.files.iter().filter(|(path, _)| !now.files.contains_key(*path));
        changes.extend(gone.map(|(path, digest)| Change {
            path: path.clone(),
            before: Some(digest.clone()),
            now: None,
        }));
        if changes.is_empty() { Standing::Same } else { Standing::Changed(changes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pins(files: &[(&str, &str)]) -> Pins {
        let files = files.iter().map(|(path, digest)| (PathBuf::from(path), (*digest).to_owned()));
        Pins { manifest: "/w/ACP.md".into(), files: files.collect() }
    }

    #[test]
    fn every_difference_is_named() {
        let kept = pins(&[("/w/ACP.md", "1"), ("/w/A.md", "2"), ("/w/B.md", "3")]);
        assert_eq!(kept.compare(&kept), Standing::Same);
        let now = pins(&[("/w/ACP.md", "1"), ("/w/A.md", "0"), ("/w/C.md", "3")]);
        let Standing::Changed(changes) = kept.compare(&now) else { panic!("it has changed") };
        let said: Vec<String> = changes.iter().map(Change::summary).collect();
        let expected = [
            "/w/A.md has changed: sha256 2 -> 0",
            "/w/C.md is new: sha256 nothing -> 3",
            "/w/B.md is no longer part of it: sha256 3 -> nothing",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn what_is_written_is_read_again_and_nobody_else_reads_it() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("pins/x.json");
        let now = pins(&[("/w/ACP.md", "1")]);
        let book = Book { path: path.clone(), now: now.clone(), standing: Standing::New };
        book.write().expect("it is written");
        book.write().expect("and written over");
        let bytes = std::fs::read(&path).expect("it is there");
        assert_eq!(serde_json::from_slice::<Pins>(&bytes).expect("pins"), now);
        let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&home.path().join("pins"))), (0o600, 0o700));
        assert_eq!(std::fs::read_dir(home.path().join("pins")).expect("a directory").count(), 1);
    }
}
