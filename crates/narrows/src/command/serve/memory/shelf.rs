//! Where books of memories lie: read and written as wholes, by one process at a time.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use narrows_manifest::types::operator::MemoryPolicy;
use rustix::fs::{FlockOperation, flock};

use super::book::{Book, Change, Head, MOST, Note, Poisoned};

/// How long another process may write.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often it is looked whether it still does.
const PAUSE: Duration = Duration::from_millis(20);

/// Why memories are not read or kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShelfError {
    /// They are not what was written.
    #[error(transparent)]
    Poisoned(#[from] Poisoned),
    /// They cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Another process writes, and does not stop.
    #[error("another process writes it and does not stop")]
    Busy,
    /// There is no room for more.
    #[error("it holds all it can, and nothing may be taken out of it")]
    Full,
}

/// The place of a book.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    pub(super) path: PathBuf,
}

impl Shelf {
    /// What is there. Nothing yet is an empty book.
    pub(super) fn read(&self) -> Result<Book, ShelfError> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Book::default()),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = Vec::new();
        file.take(MOST as u64 + 1).read_to_end(&mut bytes)?;
        Ok(Book::parse(&bytes)?)
    }

    /// Adds to it. If that fails it is as it was.
    pub(super) fn add(
        &self,
        head: &Head,
        notes: Vec<Note>,
        policy: MemoryPolicy,
    ) -> Result<Book, ShelfError> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let _lock = self.lock()?;
        let mut book = self.read()?;
        let whole = book.length as u64;
        match book.add(head, notes, policy) {
            Change::Append(_) if book.length > MOST => return Err(ShelfError::Full),
            Change::Append(bytes) => self.append(whole, &bytes)?,
            Change::Replace(bytes) => self.replace(directory, &bytes)?,
        }
        Ok(book)
    }

    /// Held until it is dropped.
    fn lock(&self) -> Result<File, ShelfError> {
        let mut name = self.path.clone().into_os_string();
        name.push(".lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o200).open(name)?;
        let since = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK) if since.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(ShelfError::Busy),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Writes behind the whole lines that are there.
    fn append(&self, whole: u64, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?;
        // What a crash has left of a line would be a part of the next.
        if file.metadata()?.len() > whole {
            file.set_len(whole)?;
        }
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if written.is_err() {
            // A part of it is worse than nothing; what cannot be cut is torn, and cut the next time.
            let _ = file.set_len(whole);
        }
        written?;
        if whole == 0 {
            File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        }
        Ok(())
    }

    /// Puts another file in its place.
    fn replace(&self, directory: &Path, bytes: &[u8]) -> io::Result<()> {
        // Made with mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        File::open(directory)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn note(said: &str) -> Note {
        Note::new("2026-01-01T00:00:00Z".into(), "s", said, "yes")
    }

    const ALL: [MemoryPolicy; 3] =
        [MemoryPolicy::AppendOnly, MemoryPolicy::Redactable, MemoryPolicy::Summarising];

    #[test]
    fn books_grow_and_are_for_their_owner_only() {
        for policy in ALL {
            let home = tempfile::tempdir().expect("a directory");
            let shelf = Shelf { path: home.path().join("memory/x/notes.jsonl") };
            assert_eq!(shelf.read().expect("nothing").notes.len(), 0);
            for number in 1..4 {
                let book = shelf.add(&Head::default(), vec![note("a")], policy).expect("written");
                assert_eq!((book.notes.len(), &shelf.read().expect("sound")), (number, &book), "{policy:?}");
            }
            let mode = shelf.path.metadata().expect("it is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{policy:?}");
        }
    }

    #[test]
    fn what_is_poisoned_is_neither_read_nor_written_over() {
        for policy in ALL {
            let home = tempfile::tempdir().expect("a directory");
            let shelf = Shelf { path: home.path().join("notes.jsonl") };
            shelf.add(&Head::default(), vec![note("a")], policy).expect("written");
            let text = std::fs::read_to_string(&shelf.path).expect("it is there").replace("\"a\"", "\"b\"");
            std::fs::write(&shelf.path, &text).expect("it is ours");
            assert!(matches!(shelf.read(), Err(ShelfError::Poisoned(_))));
            let added = shelf.add(&Head::default(), vec![note("c")], policy);
            assert!(matches!(added, Err(ShelfError::Poisoned(_))), "{policy:?}");
            assert_eq!(std::fs::read_to_string(&shelf.path).expect("it is there"), text);
        }
    }

    #[test]
    fn what_a_crash_has_left_is_cut() {
        let home = tempfile::tempdir().expect("a directory");
        let shelf = Shelf { path: home.path().join("notes.jsonl") };
        shelf.add(&Head::default(), vec![note("a")], MemoryPolicy::AppendOnly).expect("written");
        let mut file = OpenOptions::new().append(true).open(&shelf.path).expect("it is there");
        file.write_all(b"{\"note\":{\"sai").expect("it is ours");
        let book = shelf.add(&Head::default(), vec![note("b")], MemoryPolicy::AppendOnly).expect("written");
        assert_eq!((book.notes.len(), shelf.read().expect("sound").notes.len()), (2, 2));
    }

    #[test]
    fn two_write_one_after_the_other() {
        let home = tempfile::tempdir().expect("a directory");
        let shelf = Shelf { path: home.path().join("notes.jsonl") };
        for policy in ALL {
            let before = shelf.read().expect("sound").notes.len();
            let others: Vec<_> = (0..4)
                .map(|_| {
                    let shelf = shelf.clone();
                    std::thread::spawn(move || {
                        shelf.add(&Head::default(), vec![note("x")], policy).expect("written")
                    })
                })
                .collect();
            others.into_iter().for_each(|other| drop(other.join().expect("alive")));
            assert_eq!(shelf.read().expect("sound").notes.len(), before + 4, "{policy:?}");
        }
    }
}
