//! All disk operations of a log, as traits, so that tests can inject failures.

mod real;

use std::io;
use std::time::Duration;

pub use real::SystemDirectory;

/// The directory of a log.
pub trait LogDirectory: Send {
    /// Waits for the lock that a process must hold while it writes.
    fn lock(&mut self, timeout: Duration) -> io::Result<()>;
    /// Releases the lock.
    fn unlock(&mut self);
    /// Returns the names of all files.
    fn list_names(&mut self) -> io::Result<Vec<String>>;
    /// Returns the identity and length of a file, or `None` if it does not exist.
    fn status(&mut self, name: &str) -> io::Result<Option<FileStatus>>;
    /// Opens an existing file for reading and appending.
    fn open(&mut self, name: &str) -> io::Result<Box<dyn LogFile>>;
    /// Creates a file that must not exist.
    fn create(&mut self, name: &str) -> io::Result<Box<dyn LogFile>>;
    /// Renames a file, replacing an existing one.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&mut self, name: &str) -> io::Result<()>;
    /// Returns once all renames and removals are on disk.
    fn sync_directory(&mut self) -> io::Result<()>;
}

/// An open file.
pub trait LogFile: Send + Sync {
    /// Returns the identity and length of the file.
    fn status(&self) -> io::Result<FileStatus>;
    /// Reads up to the length of `buffer`. Returns the number of bytes read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Appends all of `bytes`. After an error, some of the bytes may have been written.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Truncates the file to `length`.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
    /// Returns once all appended bytes are on disk. After an error it is unknown what is on disk, and another
    /// call would wrongly succeed.
    fn sync(&mut self) -> io::Result<()>;
}

/// The identity and length of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// The device and inode. They do not change when the file is renamed.
    pub file: (u64, u64),
    pub length: u64,
}
