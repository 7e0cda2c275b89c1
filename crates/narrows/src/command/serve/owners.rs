//! Whose the sessions of a manifest are: a file that only grows, read by every process that serves it.

use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use narrows_base::sync::lock;
use narrows_govern::Owners;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    session: String,
    owner: String,
}

/// What is known of a session.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    One(String),
    /// Several say that it is theirs: then nobody can open it again.
    Several,
}

#[derive(Debug, Default)]
struct Known {
    owners: HashMap<String, Owner>,
    /// How much of the file was read.
    read: u64,
    /// The file, once it was there.
    file: Option<File>,
}

/// The owners of the sessions of one manifest.
#[derive(Debug)]
pub(super) struct Index {
    path: PathBuf,
    known: Mutex<Known>,
}

impl Index {
    /// Those of the manifest at `manifest`, below the data directory.
    pub(super) fn open(data: &Path, manifest: &Path) -> io::Result<Self> {
        let digest = Sha256::digest(manifest.as_os_str().as_encoded_bytes());
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let index = Self { path: data.join("owners").join(format!("{name}.jsonl")), known: Mutex::default() };
        index.known().catch_up(&index.path)?;
        Ok(index)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }
}

impl Owners for Index {
    fn has(&self, owner: &str, session: &str) -> bool {
        let mut known = self.known();
        if let Err(error) = known.catch_up(&self.path) {
            // What is not known is nobody's.
            tracing::warn!(%error, path = %self.path.display(), "whose sessions are cannot be read");
        }
        matches!(known.owners.get(session), Some(Owner::One(one)) if one == owner)
    }

    fn is_taken(&self, session: &str) -> bool {
        let mut known = self.known();
        if let Err(error) = known.catch_up(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "whose sessions are cannot be read");
            return true;
        }
        known.owners.contains_key(session)
    }

    fn enter(&self, owner: &str, session: &str) -> io::Result<()> {
        let mut known = self.known();
        known.catch_up(&self.path)?;
        let is_entered = match known.owners.get(session) {
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
        known.catch_up(&self.path)
    }
}

impl Known {
    /// Reads what others and we have added.
    fn catch_up(&mut self, path: &Path) -> io::Result<()> {
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
        // What has no end yet is being written, or never was.
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in text[..whole].split(|byte| *byte == b'\n') {
            // One that cannot be read makes nobody an owner.
            if let Ok(Entry { session, owner }) = serde_json::from_slice(line) {
                self.note(session, owner);
            }
        }
        self.read += whole as u64;
        Ok(())
    }

    fn note(&mut self, session: String, owner: String) {
        let noted = self.owners.entry(session).or_insert_with(|| Owner::One(owner.clone()));
        if *noted != Owner::One(owner) {
            *noted = Owner::Several;
        }
    }
}

/// Adds a line, which is on the disk when this returns. Behind one that was cut short it begins anew.
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
        // Of a line that was not written whole nothing stays.
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

    fn index(home: &Path) -> Index {
        Index::open(home, Path::new("/w/ACP.md")).expect("an index")
    }

    #[test]
    fn owners_are_known_to_every_process_and_after_a_restart() {
        let home = tempfile::tempdir().expect("a directory");
        let (first, second) = (index(home.path()), index(home.path()));
        assert!(!first.has("user:ada", "s"), "what nobody has made is nobody's");
        first.enter("user:ada", "s").expect("it is kept");
        first.enter("user:ada", "s").expect("once");
        for index in [&first, &second, &index(home.path())] {
            assert!(index.has("user:ada", "s") && !index.has("user:eve", "s"));
        }
        let text = std::fs::read_to_string(&first.path).expect("it is there");
        assert_eq!(text, "{\"session\":\"s\",\"owner\":\"user:ada\"}\n");
        let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
        assert_eq!((mode(&first.path), mode(first.path.parent().expect("one"))), (0o600, 0o700));
        let other = Index::open(home.path(), Path::new("/x/ACP.md")).expect("an index");
        assert!(!other.has("user:ada", "s"), "each manifest has its own");
    }

    #[test]
    fn a_session_that_several_have_is_nobodys() {
        let home = tempfile::tempdir().expect("a directory");
        let (first, second) = (index(home.path()), index(home.path()));
        first.enter("user:ada", "s").expect("it is kept");
        second.enter("user:eve", "s").expect("it is kept");
        for index in [&first, &second, &index(home.path())] {
            assert!(!index.has("user:ada", "s") && !index.has("user:eve", "s"));
        }
    }

    #[test]
    fn a_line_that_was_cut_short_spoils_no_other() {
        let home = tempfile::tempdir().expect("a directory");
        let first = index(home.path());
        first.enter("user:ada", "a").expect("it is kept");
        let mut text = std::fs::read(&first.path).expect("it is there");
        text.extend_from_slice(b"{\"session\":\"b\",\"own");
        std::fs::write(&first.path, text).expect("it is ours");
        first.enter("user:ada", "c").expect("it is kept");
        for index in [&first, &index(home.path())] {
            assert!(index.has("user:ada", "a") && index.has("user:ada", "c") && !index.has("user:ada", "b"));
        }
    }

    proptest! {
        #[test]
        fn whatever_stands_there_makes_nobody_an_owner(text in "[{}\",:a-z\n]{0,80}") {
            let home = tempfile::tempdir().expect("a directory");
            let path = index(home.path()).path;
            std::fs::create_dir_all(path.parent().expect("one")).expect("a directory");
            std::fs::write(&path, text).expect("it is ours");
            let index = index(home.path());
            prop_assert!(!index.has("user:ada", "s"));
            index.enter("user:ada", "s").expect("it is kept");
            prop_assert!(index.has("user:ada", "s"));
        }
    }
}
