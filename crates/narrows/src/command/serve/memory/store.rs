//! The file of a memory log: read and written as a whole, by one process at a time.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use narrows_manifest::types::operator::MemoryPolicy;
use rustix::fs::{FlockOperation, flock};

use super::log::{LogChange, LogCorruption, LogHeader, MAX_LOG_BYTES, MemoryEntry, MemoryLog};

const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryStoreError {
    #[error(transparent)]
    Corrupt(#[from] LogCorruption),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("locked by another process")]
    Busy,
    #[error("full, and no entry may be removed")]
    Full,
}

#[derive(Clone, Debug)]
pub(super) struct MemoryStore {
    pub(super) path: PathBuf,
}

impl MemoryStore {
    /// Reads the log. A missing file is an empty log.
    pub(super) fn read(&self) -> Result<MemoryLog, MemoryStoreError> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(MemoryLog::default()),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = Vec::new();
        file.take(MAX_LOG_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        Ok(MemoryLog::parse(&bytes)?)
    }

    /// Adds entries. On failure the file stays as it was.
    pub(super) fn add(
        &self,
        head: &LogHeader,
        notes: Vec<MemoryEntry>,
        policy: MemoryPolicy,
    ) -> Result<MemoryLog, MemoryStoreError> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let _lock = self.lock()?;
        let mut memory_log = self.read()?;
        let whole = memory_log.length as u64;
        match memory_log.add(head, notes, policy) {
            LogChange::Append(_) if memory_log.length > MAX_LOG_BYTES => return Err(MemoryStoreError::Full),
            LogChange::Append(bytes) => self.append(whole, &bytes)?,
            LogChange::Replace(bytes) => self.replace(directory, &bytes)?,
        }
        Ok(memory_log)
    }

    /// Locks the file until the result is dropped.
    fn lock(&self) -> Result<File, MemoryStoreError> {
        let mut name = self.path.clone().into_os_string();
        name.push(".lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o200).open(name)?;
        let since = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK) if since.elapsed() < LOCK_TIMEOUT => {
                    std::thread::sleep(LOCK_RETRY_INTERVAL);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(MemoryStoreError::Busy),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Appends `bytes` after the complete lines, which have `whole` bytes.
    fn append(&self, whole: u64, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?;
        // An incomplete last line is cut off, because it would become part of the next line.
        if file.metadata()?.len() > whole {
            file.set_len(whole)?;
        }
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if written.is_err() {
            // The file is cut back to its complete lines. If that fails, the next write does it.
            let _ = file.set_len(whole);
        }
        written?;
        if whole == 0 {
            File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        }
        Ok(())
    }

    fn replace(&self, directory: &Path, bytes: &[u8]) -> io::Result<()> {
        // The temporary file is created with mode 0600.
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

    fn entry(said: &str) -> MemoryEntry {
        MemoryEntry::new("2026-01-01T00:00:00Z".into(), "s", said, "yes")
    }

    const ALL: [MemoryPolicy; 3] =
        [MemoryPolicy::AppendOnly, MemoryPolicy::Redactable, MemoryPolicy::Summarising];

    #[test]
    fn logs_grow_and_are_private() {
        for policy in ALL {
            let home = tempfile::tempdir().expect("a directory");
            let store = MemoryStore { path: home.path().join("memory/x/notes.jsonl") };
            assert_eq!(store.read().expect("a missing file is an empty log").notes.len(), 0);
            for number in 1..4 {
                let memory_log = store.add(&LogHeader::default(), vec![entry("a")], policy).expect("written");
                assert_eq!(
                    (memory_log.notes.len(), &store.read().expect("an intact log")),
                    (number, &memory_log),
                    "{policy:?}"
                );
            }
            let mode = store.path.metadata().expect("the file exists").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{policy:?}");
        }
    }

    #[test]
    fn a_corrupt_log_is_neither_read_nor_overwritten() {
        for policy in ALL {
            let home = tempfile::tempdir().expect("a directory");
            let store = MemoryStore { path: home.path().join("notes.jsonl") };
            store.add(&LogHeader::default(), vec![entry("a")], policy).expect("written");
            let text =
                std::fs::read_to_string(&store.path).expect("the file exists").replace("\"a\"", "\"b\"");
            std::fs::write(&store.path, &text).expect("the file is writable");
            assert!(matches!(store.read(), Err(MemoryStoreError::Corrupt(_))));
            let added = store.add(&LogHeader::default(), vec![entry("c")], policy);
            assert!(matches!(added, Err(MemoryStoreError::Corrupt(_))), "{policy:?}");
            assert_eq!(std::fs::read_to_string(&store.path).expect("the file exists"), text);
        }
    }

    #[test]
    fn an_incomplete_line_is_removed() {
        let home = tempfile::tempdir().expect("a directory");
        let store = MemoryStore { path: home.path().join("notes.jsonl") };
        store.add(&LogHeader::default(), vec![entry("a")], MemoryPolicy::AppendOnly).expect("written");
        let mut file = OpenOptions::new().append(true).open(&store.path).expect("the file exists");
        file.write_all(b"{\"note\":{\"sai").expect("the file is writable");
        let memory_log =
            store.add(&LogHeader::default(), vec![entry("b")], MemoryPolicy::AppendOnly).expect("written");
        assert_eq!((memory_log.notes.len(), store.read().expect("an intact log").notes.len()), (2, 2));
    }

    #[test]
    fn two_writers_take_turns() {
        let home = tempfile::tempdir().expect("a directory");
        let store = MemoryStore { path: home.path().join("notes.jsonl") };
        for policy in ALL {
            let before = store.read().expect("an intact log").notes.len();
            let others: Vec<_> = (0..4)
                .map(|_| {
                    let store = store.clone();
                    std::thread::spawn(move || {
                        store.add(&LogHeader::default(), vec![entry("x")], policy).expect("written")
                    })
                })
                .collect();
            others.into_iter().for_each(|other| drop(other.join().expect("alive")));
            assert_eq!(store.read().expect("an intact log").notes.len(), before + 4, "{policy:?}");
        }
    }
}
