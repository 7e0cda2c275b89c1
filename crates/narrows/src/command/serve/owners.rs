//! Owners of the sessions of a manifest: an append-only file, shared by all processes that serve the manifest.

use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use narrows_base::sync::lock;
use narrows_govern::SessionOwners;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    session: String,
    owner: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Owner {
    One(String),
    /// The file names several owners, so the session can no longer be opened.
    Several,
}

#[derive(Debug, Default)]
struct OwnerIndex {
    owners: HashMap<String, Owner>,
    /// The number of bytes of the file that were read.
    read: u64,
    file: Option<File>,
}

#[derive(Debug)]
pub(super) struct SessionOwnerFile {
    path: PathBuf,
    index: Mutex<OwnerIndex>,
}

impl SessionOwnerFile {
    pub(super) fn open(data: &Path, manifest: &Path) -> io::Result<Self> {
        let digest = Sha256::digest(manifest.as_os_str().as_encoded_bytes());
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let index = Self { path: data.join("owners").join(format!("{name}.jsonl")), index: Mutex::default() };
        index.index().read_new_lines(&index.path)?;
        Ok(index)
    }

    fn index(&self) -> MutexGuard<'_, OwnerIndex> {
        lock(&self.index)
    }
}

impl SessionOwners for SessionOwnerFile {
    fn is_owner(&self, owner: &str, session: &str) -> bool {
        let mut index = self.index();
        if let Err(error) = index.read_new_lines(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "cannot read session owners");
        }
        matches!(index.owners.get(session), Some(Owner::One(one)) if one == owner)
    }

    fn has_owner(&self, session: &str) -> bool {
        let mut index = self.index();
        if let Err(error) = index.read_new_lines(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "cannot read session owners");
            return true;
        }
        index.owners.contains_key(session)
    }

    fn set_owner(&self, owner: &str, session: &str) -> io::Result<()> {
        let mut index = self.index();
        index.read_new_lines(&self.path)?;
        let is_entered = match index.owners.get(session) {
            Some(Owner::One(one)) => one == owner,
            Some(Owner::Several) => true,
            None => false,
        };
        if is_entered {
            return Ok(());
        }
        let entry = Entry { session: session.to_owned(), owner: owner.to_owned() };
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        append(&self.path, &line)?;
        index.read_new_lines(&self.path)
    }
}

impl OwnerIndex {
    fn read_new_lines(&mut self, path: &Path) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => match File::open(path) {
                Ok(file) => none.insert(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            },
        };
        if file.metadata()?.len() <= self.read {
            return Ok(());
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // A last line without a line end is still being written, or was never completed.
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in text[..whole].split(|byte| *byte == b'\n') {
            // An unreadable line names no owner.
            if let Ok(Entry { session, owner }) = serde_json::from_slice(line) {
                self.add(session, owner);
            }
        }
        self.read += whole as u64;
        Ok(())
    }

    fn add(&mut self, session: String, owner: String) {
        let noted = self.owners.entry(session).or_insert_with(|| Owner::One(owner.clone()));
        if *noted != Owner::One(owner) {
            *noted = Owner::Several;
        }
    }
}

/// Appends a line and syncs it. Starts a new line after an incomplete one.
fn append(path: &Path, line: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    file.lock()?;
    let length = file.metadata()?.len();
    let mut last = [b'\n'];
    if length > 0 {
        file.seek(SeekFrom::Start(length - 1))?;
        file.read_exact(&mut last)?;
    }
    let mut whole = if last == *b"\n" { Vec::new() } else { vec![b'\n'] };
    whole.extend_from_slice(line);
    if let Err(error) = file.write_all(&whole) {
        // The incomplete line is cut off again.
        let _ = file.set_len(length);
        return Err(error);
    }
    file.sync_data()?;
    if length == 0 {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    fn index(home: &Path) -> SessionOwnerFile {
        SessionOwnerFile::open(home, Path::new("/w/ACP.md")).expect("an index")
    }

    #[test]
    fn owners_are_shared_by_processes_and_survive_a_restart() {
        let home = tempfile::tempdir().expect("a directory");
        let (first, second) = (index(home.path()), index(home.path()));
        assert!(!first.is_owner("user:ada", "s"), "an unknown session has no owner");
        first.set_owner("user:ada", "s").expect("the owner is stored");
        first.set_owner("user:ada", "s").expect("once");
        for index in [&first, &second, &index(home.path())] {
            assert!(index.is_owner("user:ada", "s") && !index.is_owner("user:eve", "s"));
        }
        let text = std::fs::read_to_string(&first.path).expect("the file exists");
        assert_eq!(text, "{\"session\":\"s\",\"owner\":\"user:ada\"}\n");
        let mode = |path: &Path| path.metadata().expect("the file exists").permissions().mode() & 0o777;
        assert_eq!(
            (mode(&first.path), mode(first.path.parent().expect("a parent directory"))),
            (0o600, 0o700)
        );
        let other = SessionOwnerFile::open(home.path(), Path::new("/x/ACP.md")).expect("an index");
        assert!(!other.is_owner("user:ada", "s"), "each manifest has its own");
    }

    #[test]
    fn a_session_with_two_owners_is_inaccessible() {
        let home = tempfile::tempdir().expect("a directory");
        let (first, second) = (index(home.path()), index(home.path()));
        first.set_owner("user:ada", "s").expect("the owner is stored");
        second.set_owner("user:eve", "s").expect("the owner is stored");
        for index in [&first, &second, &index(home.path())] {
            assert!(!index.is_owner("user:ada", "s") && !index.is_owner("user:eve", "s"));
        }
    }

    #[test]
    fn an_incomplete_line_does_not_affect_others() {
        let home = tempfile::tempdir().expect("a directory");
        let first = index(home.path());
        first.set_owner("user:ada", "a").expect("the owner is stored");
        let mut text = std::fs::read(&first.path).expect("the file exists");
        text.extend_from_slice(b"{\"session\":\"b\",\"own");
        std::fs::write(&first.path, text).expect("the file is writable");
        first.set_owner("user:ada", "c").expect("the owner is stored");
        for index in [&first, &index(home.path())] {
            assert!(
                index.is_owner("user:ada", "a")
                    && index.is_owner("user:ada", "c")
                    && !index.is_owner("user:ada", "b")
            );
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_names_no_owner(text in "[{}\",:a-z\n]{0,80}") {
            let home = tempfile::tempdir().expect("a directory");
            let path = index(home.path()).path;
            std::fs::create_dir_all(path.parent().expect("a parent directory")).expect("a directory");
            std::fs::write(&path, text).expect("the file is writable");
            let index = index(home.path());
            prop_assert!(!index.is_owner("user:ada", "s"));
            index.set_owner("user:ada", "s").expect("the owner is stored");
            prop_assert!(index.is_owner("user:ada", "s"));
        }
    }
}
