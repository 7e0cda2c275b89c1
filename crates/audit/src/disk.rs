//! All that a log does to a disk, so that tests can have one that fails.

mod real;

use std::io;
use std::time::Duration;

pub use real::Directory;

/// The directory of a log.
pub trait Disk: Send {
    /// Waits for the lock that whoever writes must hold, in whichever process.
    fn lock(&mut self, timeout: Duration) -> io::Result<()>;
    /// Gives it back.
    fn unlock(&mut self);
    /// The names of all files.
    fn list_names(&mut self) -> io::Result<Vec<String>>;
    /// Which file has this name, and how long it is.
    fn status(&mut self, name: &str) -> io::Result<Option<FileStatus>>;
    /// Opens a file that is there, to read it and to write at its end.
    fn open(&mut self, name: &str) -> io::Result<Box<dyn Handle>>;
    /// The same for one that must not be there.
    fn create(&mut self, name: &str) -> io::Result<Box<dyn Handle>>;
    /// Gives a file another name, in place of the file that had it.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&mut self, name: &str) -> io::Result<()>;
    /// Returns when the names are on the disk.
    fn sync_directory(&mut self) -> io::Result<()>;
}

/// A file that is open.
pub trait Handle: Send + Sync {
    /// Which file it is, and how long.
    fn status(&self) -> io::Result<FileStatus>;
    /// Reads some bytes.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `bytes` at the end. If that fails, some of them may be there.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Cuts what is behind `length`.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
    /// Returns when all that was written is on the disk. After an error nobody knows what is, and asking again would
    /// be answered with yes.
    fn sync(&mut self) -> io::Result<()>;
}

/// What a file is seen to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// The same for as long as it is the same file, whatever its name.
    pub file: (u64, u64),
    /// How long it is.
    pub length: u64,
}
