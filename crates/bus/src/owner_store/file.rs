//! The file of session owners: one line of JSON per entry. The last entry of a session counts.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Owned;
use crate::core::OwnedName;

const FILE_HEADER: &str = r#"{"narrows":"owners","version":1}"#;

/// The reason why the file of session owners cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OwnersError {
    #[error("{0:?} is in use by another bus of this user")]
    InUse(PathBuf),
    #[error("{0:?} is not a session owners file of a known version")]
    Unknown(PathBuf),
    #[error("cannot open {path:?}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// One line of the file of session owners.
///
/// Older versions have no `p`. They write a name in a pool as `POOL NUL NAME`, and a name that a client chose
/// may look the same. New lines keep that text, so that an older bus still reads them, and `p` tells where to
/// split it.
#[derive(Serialize, Deserialize)]
struct Line<'a> {
    #[serde(rename = "s", borrow)]
    session: std::borrow::Cow<'a, str>,
    /// Length in bytes of the pool's name in `session`. 0: `session` is a name that clients use. `None` if
    /// `session` contains no NUL, and in lines of older versions.
    #[serde(rename = "p", skip_serializing_if = "Option::is_none", default)]
    pool_bytes: Option<usize>,
    /// The owner of the session. `None` if the entry deletes the owner.
    #[serde(rename = "i", borrow, skip_serializing_if = "Option::is_none", default)]
    identity: Option<std::borrow::Cow<'a, str>>,
    #[serde(rename = "t", default)]
    used: u64,
}

#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    file: fs::File,
    /// The length of the file in bytes. The file contains only whole lines.
    length: u64,
    lines: usize,
    #[cfg(test)]
    pub(super) room: Option<u64>,
    /// The lock is held while the file is open, because two writers would undo each other's changes.
    _lock: fs::File,
}

impl File {
    pub(super) fn open(path: &Path) -> Result<(Self, HashMap<OwnedName, Owned>), OwnersError> {
        let failed = |source| OwnersError::Io { path: path.to_owned(), source };
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let lock = options.open(path.with_extension("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(OwnersError::InUse(path.to_owned())),
            Err(fs::TryLockError::Error(error)) => return Err(failed(error)),
        }
        let mut file = options.open(path).map_err(failed)?;
        let Read { known, length, lines } = match read(&file).map_err(failed)? {
            Some(read) => read,
            None => return Err(OwnersError::Unknown(path.to_owned())),
        };
        // A killed process may have left an incomplete line at the end, which is removed.
        file.set_len(length).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        let mut this = Self {
            path: path.to_owned(),
            file,
            length,
            lines,
            #[cfg(test)]
            room: None,
            _lock: lock,
        };
        if length == 0 {
            this.append(format!("{FILE_HEADER}\n").as_bytes()).map_err(failed)?;
            this.lines = 0;
        }
        Ok((this, known))
    }

    pub(super) fn lines(&self) -> usize {
        self.lines
    }

    /// Appends whole lines and syncs the file. After an error, restores the former content if possible.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        if self.room.is_some_and(|room| self.length + lines.len() as u64 > room) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let written = self.file.write_all(lines).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            _ = self.file.set_len(self.length);
            _ = self.file.seek(SeekFrom::Start(self.length));
            return Err(error);
        }
        self.length += lines.len() as u64;
        self.lines += memchr::memchr_iter(b'\n', lines).count();
        Ok(())
    }

    pub(super) fn rewrite(&mut self, known: &HashMap<OwnedName, Owned>) -> io::Result<()> {
        let mut text = format!("{FILE_HEADER}\n").into_bytes();
        for (session, owned) in known {
            write_line(&mut text, session, Some(owned));
        }
        let new = self.path.with_extension("new");
        let file = replace(&self.path, &new, &text).inspect_err(|_| {
            // The incomplete copy would take the room that is left on a full disk.
            _ = fs::remove_file(&new);
        })?;
        self.file = file;
        self.length = text.len() as u64;
        self.lines = known.len();
        Ok(())
    }
}

fn replace(path: &Path, new: &Path, text: &[u8]) -> io::Result<fs::File> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(new)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    if let Some(parent) = path.parent() {
        fs::File::open(parent)?.sync_all()?;
    }
    Ok(file)
}

/// Appends a line to `text`: the owner of a session, or, if `owned` is `None`, the deletion of the owner.
pub(super) fn write_line(text: &mut Vec<u8>, session: &OwnedName, owned: Option<&Owned>) {
    let (name, pool_bytes) = match &session.pool {
        Some(pool) => (format!("{pool}\0{}", session.name).into(), Some(pool.len())),
        None => ((&*session.name).into(), session.name.contains('\0').then_some(0)),
    };
    let line = Line {
        session: name,
        pool_bytes,
        identity: owned.map(|owned| (&*owned.identity).into()),
        used: owned.map_or(0, |owned| owned.used),
    };
    let start = text.len();
    match serde_json::to_writer(&mut *text, &line) {
        Ok(()) => text.push(b'\n'),
        // Serializing strings and numbers cannot fail.
        Err(_) => text.truncate(start),
    }
}

/// Returns the session names to which the owner in a line applies. Empty if the line is not valid.
///
/// In an older version, a line with a NUL may be about a name of either kind, so it counts for both. The
/// owner keeps the session, and no other identity gets it.
fn names(line: &Line<'_>) -> Vec<OwnedName> {
    let text = &*line.session;
    let in_pool = |at: usize| {
        let (pool, name) = (text.get(..at)?, text.get(at..)?.strip_prefix('\0')?);
        Some(OwnedName { pool: Some(pool.into()), name: name.into() })
    };
    match line.pool_bytes {
        Some(0) => vec![text.into()],
        Some(bytes) => in_pool(bytes).into_iter().collect(),
        None => {
            let legacy = text.find('\0').filter(|at| *at > 0).and_then(in_pool);
            legacy.into_iter().chain([text.into()]).collect()
        }
    }
}

struct Read {
    known: HashMap<OwnedName, Owned>,
    length: u64,
    lines: usize,
}

/// Reads the entries of a file. Returns `None` if the file has another format. An invalid line names no
/// owner, so no client sees its session.
fn read(file: &fs::File) -> io::Result<Option<Read>> {
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut line = Vec::new();
    let mut read = Read { known: HashMap::new(), length: 0, lines: 0 };
    let mut identities: HashMap<Box<str>, Arc<str>> = HashMap::new();
    let mut bad = 0_usize;
    loop {
        line.clear();
        reader.read_until(b'\n', &mut line)?;
        let Some(text) = line.strip_suffix(b"\n") else { break };
        read.length += line.len() as u64;
        if read.length == line.len() as u64 {
            if text != FILE_HEADER.as_bytes() {
                return Ok(None);
            }
            continue;
        }
        read.lines += 1;
        let Ok(line) = serde_json::from_slice::<Line<'_>>(text) else {
            bad += 1;
            continue;
        };
        let sessions = names(&line);
        bad += usize::from(sessions.is_empty());
        match line.identity {
            Some(identity) => {
                // All entries of an identity share one copy of its name.
                let identity =
                    identities.entry(identity.as_ref().into()).or_insert_with(|| identity.as_ref().into());
                for session in sessions {
                    let owned = Owned { identity: Arc::clone(identity), used: line.used };
                    read.known.insert(session, owned);
                }
            }
            None => {
                for session in &sessions {
                    read.known.remove(session);
                }
            }
        }
    }
    if bad > 0 {
        tracing::warn!(lines = bad, "invalid lines in the session owners file");
    }
    Ok(Some(read))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owned(identity: &str) -> Owned {
        Owned { identity: identity.into(), used: 5 }
    }

    #[test]
    fn an_incomplete_last_line_is_ignored_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("o");
        let mut text = Vec::new();
        write_line(&mut text, &"a".into(), Some(&owned("x")));
        write_line(&mut text, &"b".into(), Some(&owned("y")));
        for cut in 0..=text.len() {
            fs::write(&path, [FILE_HEADER.as_bytes(), b"\n", &text[..cut]].concat()).unwrap();
            let (mut file, known) = File::open(&path).unwrap();
            let whole = memchr::memchr_iter(b'\n', &text[..cut]).count();
            assert_eq!((known.len(), file.lines()), (whole, whole), "{cut}");
            let mut more = Vec::new();
            write_line(&mut more, &"c".into(), Some(&owned("z")));
            file.append(&more).unwrap();
            drop(file);
            assert_eq!(File::open(&path).unwrap().1.len(), whole + 1, "{cut}");
        }
    }

    #[test]
    fn the_file_is_locked_and_other_formats_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("o");
        let first = File::open(&path).unwrap();
        assert!(matches!(File::open(&path), Err(OwnersError::InUse(_))));
        drop(first);
        assert!(File::open(&path).is_ok());
        fs::write(&path, "{\"narrows\":\"owners\",\"version\":2}\n").unwrap();
        assert!(matches!(File::open(&path), Err(OwnersError::Unknown(_))));
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn any_file_content_is_read_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("o");
            fs::write(&path, [FILE_HEADER.as_bytes(), b"\n", &text].concat()).unwrap();
            let (mut file, known) = File::open(&path).unwrap();
            prop_assert!(file.rewrite(&known).is_ok());
            prop_assert_eq!(File::open(&path).is_err(), true, "the lock is still held");
            drop(file);
            prop_assert_eq!(File::open(&path).unwrap().1, known);
        }
    }
}
