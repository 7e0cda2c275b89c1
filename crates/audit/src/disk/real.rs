//! The directory of a log in the file system, and the lock of its writers.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::{FileStatus, LogDirectory, LogFile};
use crate::files;

const LOCK_RETRY_PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// Mode of the lock file: writable, and not readable. A user who may only read the log cannot open the file,
/// and so cannot take the lock and block all writers.
const LOCK_MODE: u32 = 0o200;

/// The directory of a log, and its lock.
#[derive(Debug)]
pub struct SystemDirectory {
    path: PathBuf,
    lock: File,
}

impl SystemDirectory {
    /// Opens the directory at `path`, with a lock file of the name `lock`. Creates the directory if it is
    /// missing.
    pub fn open(path: &Path, lock: &str) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let lock = files::open_lock(&path.join(lock), LOCK_MODE)?;
        if lock.metadata()?.mode() & 0o777 != LOCK_MODE {
            // An earlier version of Narrows created the lock file with another mode. Changing the mode fails
            // for a user who does not own the file.
            let _ = lock.set_permissions(Permissions::from_mode(LOCK_MODE));
        }
        Ok(Self { path: path.to_owned(), lock })
    }
}

impl LogDirectory for SystemDirectory {
    fn lock(&mut self, timeout: Duration) -> io::Result<()> {
        let deadline = Instant::now() + timeout;
        let mut pause = LOCK_RETRY_PAUSES.0;
        loop {
            match self.lock.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LOCK_RETRY_PAUSES.1);
                }
                Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::TimedOut.into()),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    fn unlock(&mut self) {
        // Releasing a lock that is held cannot fail.
        let _ = self.lock.unlock();
    }

    fn list_names(&mut self) -> io::Result<Vec<String>> {
        files::list_names(&self.path)
    }

    fn status(&mut self, name: &str) -> io::Result<Option<FileStatus>> {
        match std::fs::symlink_metadata(self.path.join(name)) {
            Ok(found) => Ok(Some(file_status(&found))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn open(&mut self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let file = options().append(true).open(self.path.join(name))?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        Ok(Box::new(file))
    }

    fn create(&mut self, name: &str) -> io::Result<Box<dyn LogFile>> {
        Ok(Box::new(options().append(true).create_new(true).open(self.path.join(name))?))
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

impl LogFile for File {
    fn status(&self) -> io::Result<FileStatus> {
        Ok(file_status(&self.metadata()?))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Options that make files accessible only to their owner, never open a link, and never wait for a pipe or a
/// device.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = files::flags(OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY);
    options.read(true).write(true).mode(0o600).custom_flags(flags);
    options
}

fn file_status(found: &std::fs::Metadata) -> FileStatus {
    FileStatus { file: (found.dev(), found.ino()), length: found.len() }
}
