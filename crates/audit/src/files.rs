//! The files of a log, all opened at the same time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::segment::LogFileNames;
use crate::verify::Source;

/// Maximum time for which a reader waits until a write has ended.
const READ_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The files of a log in order: the sealed ones, then the active one.
pub(crate) struct Files(Vec<SegmentFile>);

struct SegmentFile {
    name: String,
    first: Option<u64>,
    content: Content,
    length: u64,
}

/// A sealed file is opened for each read of a piece. A log can have more files than a process may open.
enum Content {
    Sealed {
        path: PathBuf,
        /// The device and inode.
        id: (u64, u64),
    },
    /// The active file may be renamed at any time.
    Active(File),
}

impl Files {
    /// Opens the files of the log whose active file has this path. Waits for a write in progress.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let (directory, names) = resolve(path)?;
        let _guard = lock_for_reading(&directory.join(names.lock()));
        let sealed = names.sealed_among(list_names(&directory)?);
        let mut parts = Vec::new();
        for (first, name) in sealed {
            parts.push(open_segment(&directory, name, Some(first))?);
        }
        match open_segment(&directory, names.current().to_owned(), None) {
            Ok(part) => parts.push(part),
            // After the active file was sealed, it is missing for a moment.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !parts.is_empty() => {}
            Err(error) => return Err(error),
        }
        Ok(Self(parts))
    }

    pub(crate) fn sources(&self) -> Vec<&dyn Source> {
        self.0.iter().map(|part| part as &dyn Source).collect()
    }
}

pub(crate) fn resolve(path: &Path) -> io::Result<(PathBuf, LogFileNames)> {
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name");
    let names = LogFileNames::from_path(path).ok_or_else(no_name)?;
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    Ok((directory, names))
}

pub(crate) fn list_names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = std::fs::read_dir(directory)?;
    let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(io::Result::transpose).collect()
}

fn open_segment(directory: &Path, name: String, first: Option<u64>) -> io::Result<SegmentFile> {
    let path = directory.join(&name);
    let file = open_regular(&path)?;
    let found = file.metadata()?;
    let content = match first {
        Some(_) => Content::Sealed { path, id: (found.dev(), found.ino()) },
        None => Content::Active(file),
    };
    Ok(SegmentFile { name, first, content, length: found.len() })
}

/// Opens a regular file for reading. Fails for other types of files: reading a pipe might block forever or
/// never end.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file =
        File::options().read(true).custom_flags(flags(OFlags::NONBLOCK | OFlags::NOCTTY)).open(path)?;
    check_regular(file)
}

/// Opens a lock file for writing, and creates it with this mode if it is missing. Fails for a link, which
/// would lock or create another file, and for a file that is not regular.
pub fn open_lock(path: &Path, mode: u32) -> io::Result<File> {
    let options = &mut File::options();
    check_regular(lock_options(options).create(true).truncate(false).mode(mode).open(path)?)
}

/// Sets the options to open a lock file: for writing, because its mode does not allow reading, and without
/// following a link or waiting for the reader of a pipe.
fn lock_options(options: &mut OpenOptions) -> &mut OpenOptions {
    options.write(true).custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY))
}

pub(crate) fn flags(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).unwrap_or_default()
}

fn check_regular(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Takes the lock, so that no process writes while the returned file is open. Returns `None` if the lock
/// cannot be taken; the log is then read without the lock.
fn lock_for_reading(lock: &Path) -> Option<File> {
    let file = check_regular(lock_options(&mut File::options()).open(lock).ok()?).ok()?;
    let deadline = Instant::now() + READ_LOCK_TIMEOUT;
    loop {
        match file.try_lock_shared() {
            Ok(()) => return Some(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return None,
        }
    }
}

impl Source for SegmentFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn first(&self) -> Option<u64> {
        self.first
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let (path, id) = match &self.content {
            Content::Active(file) => return file.read_at(buffer, offset),
            Content::Sealed { path, id } => (path, *id),
        };
        let file = open_regular(path)?;
        let found = file.metadata()?;
        if (found.dev(), found.ino()) != id {
            return Err(io::Error::other("the log was replaced during verification"));
        }
        file.read_at(buffer, offset)
    }
}
