//! Opens files of the session by descriptor, and never outside the roots.
//!
//! A path of an agent is untrusted, and so is the disk while the path is followed: another process may
//! replace a directory by a link. So no path is judged and then opened again by the same name.
//! [`Files::find`] opens the file's directory beneath a root. The policy judges [`Found::path`], which
//! contains no links. Reading and writing use the descriptor of that directory and one name, which must not
//! be a link. All functions block.

mod aside;
mod error;
pub(crate) mod follow;
mod roots;
mod save;
mod walk;

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use narrows_wire::Effects;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

pub(crate) use aside::Aside;
pub(crate) use error::{FileError, FileErrorKind};
pub(crate) use roots::Roots;

use roots::Root;
use walk::{DeepestDirectory, MAX_LINKS};

/// Longest path that the system accepts.
const MAX_PATH_BYTES: usize = 4096;

/// Handling of links in a requested path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathLinks {
    Follow,
    /// Refused: the decision has followed all links, so a link that exists now was created after it.
    Refuse,
}

/// Ways to change the content of an existing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    /// A new file replaces the old one: readers see the old or the new content, even after a crash.
    Replace,
    /// The content is overwritten, so that mounts of the file remain. After a crash it may be incomplete. A
    /// file with several hard links is still replaced, so that its other names keep their content.
    InPlace,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) read: usize,
    pub(crate) write: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { read: 10 << 20, write: 10 << 20 }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Files {
    roots: Arc<Roots>,
    limits: Limits,
    /// `true` if written files are synced to disk.
    durable: bool,
}

impl Files {
    pub(crate) fn new(roots: Arc<Roots>, limits: Limits) -> Self {
        Self { roots, limits, durable: true }
    }

    #[cfg(test)]
    fn without_sync(self) -> Self {
        Self { durable: false, ..self }
    }

    /// Finds a file that exists or can be created.
    ///
    /// # Errors
    /// [`FileError`] if the path does not lead beneath a root.
    pub(crate) fn find(&self, asked: &Path) -> Result<Found, FileError> {
        check(asked)?;
        // Search by the spelled path first, so that the descriptor of the root counts, even if its path now
        // leads elsewhere.
        if let Some((root, below)) = self.roots.find_containing(asked) {
            match self.place(asked, root, below) {
                Err(Errno::XDEV) => {}
                found => return found.map_err(|errno| FileError::system(asked, errno)),
            }
        }
        // A link to an absolute path, or a `..` above a root, may still lead beneath a root. The guessed
        // target is then walked beneath that root, which confirms or refuses it.
        let place = || {
            let guess = follow::guess(asked)?;
            let (root, below) = self.roots.find_containing(&guess).ok_or(Errno::XDEV)?;
            self.place(asked, root, below)
        };
        place().map_err(|errno| FileError::system(asked, errno))
    }

    /// Finds `below` beneath `root`. Follows links in the last name as well.
    fn place(&self, asked: &Path, root: &Root, below: &Path) -> Result<Found, Errno> {
        let mut below = below.to_owned();
        let mut must_be_directory = false;
        for _ in 0..=MAX_LINKS {
            let name = below.file_name().filter(|_| !must_be_directory).map(ToOwned::to_owned);
            let Some(name) = name else {
                // The path names a root, a parent directory, or a directory by its spelling. Any of these may
                // be missing or outside.
                let deep = self.roots.resolver().directory(root.fd(), &below)?;
                return Err(if deep.missing.is_empty() { Errno::ISDIR } else { Errno::NOENT });
            };
            let parent = below.parent().unwrap_or(Path::new(""));
            let DeepestDirectory { directory, real, missing } =
                self.roots.resolver().directory(root.fd(), parent)?;
            let entry = if missing.is_empty() { entry(&directory, &name)? } else { None };
            if entry.is_some_and(|entry| kind(&entry) == FileType::Symlink) {
                match readlinkat(&directory, &name, Vec::new()) {
                    Ok(target) if target.as_bytes().starts_with(b"/") => return Err(Errno::XDEV),
                    Ok(target) => {
                        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                        must_be_directory = follow::names_directory(target);
                        below = real.join(target);
                    }
                    // It is no longer a link, so try again.
                    Err(Errno::INVAL | Errno::NOENT) => {}
                    Err(errno) => return Err(errno),
                }
                continue;
            }
            let mut path = root.path().join(&real);
            path.extend(&missing);
            path.push(&name);
            let asked = asked.to_owned();
            return Ok(Found {
                asked,
                path,
                directory,
                missing,
                name,
                entry,
                limits: self.limits,
                durable: self.durable,
            });
        }
        Err(Errno::LOOP)
    }
}

/// A file beneath a root, which may not exist yet.
#[derive(Debug)]
pub(crate) struct Found {
    /// Path as requested, for errors.
    asked: PathBuf,
    path: PathBuf,
    directory: OwnedFd,
    /// Missing directories between `directory` and the file.
    missing: Vec<OsString>,
    name: OsString,
    entry: Option<Stat>,
    limits: Limits,
    durable: bool,
}

impl Found {
    /// Returns the absolute path without links, which the policy judges.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `self` if the requested path contains no links. Later changes of the path have no effect on
    /// the descriptor.
    ///
    /// # Errors
    /// [`FileErrorKind::Link`] if the path contains a link.
    pub(crate) fn without_links(self) -> Result<Self, FileError> {
        if self.path == self.asked { Ok(self) } else { Err(FileError::new(&self.asked, FileErrorKind::Link)) }
    }

    /// Reads the whole text, or `limit` lines from `line` on, counted from 1. Lines keep their line ends.
    ///
    /// # Errors
    /// [`FileError`], also if the file is not text or too long. [`FileErrorKind::Changed`] if the file was
    /// replaced since it was found: the caller must find and judge it again.
    pub(crate) fn read(&self, line: Option<u32>, limit: Option<u32>) -> Result<String, FileError> {
        let fail = |kind| FileError::new(&self.asked, kind);
        self.regular()?.ok_or_else(|| fail(FileErrorKind::NotFound))?;
        let (file, stat) = self.open(OFlags::RDONLY)?;
        let cap = self.limits.read;
        let too_large = || fail(FileErrorKind::TooLarge { limit: cap });
        if usize::try_from(stat.st_size).is_ok_and(|size| size > cap) {
            return Err(too_large());
        }
        let mut bytes = Vec::new();
        // The file may grow while it is read.
        let more = u64::try_from(cap).unwrap_or(u64::MAX).saturating_add(1);
        std::fs::File::from(file)
            .take(more)
            .read_to_end(&mut bytes)
            .map_err(|error| FileError::io(&self.asked, &error))?;
        if bytes.len() > cap {
            return Err(too_large());
        }
        let text = String::from_utf8(bytes).map_err(|_| fail(FileErrorKind::NotText))?;
        Ok(lines(text, line, limit))
    }

    /// Replaces the content by `text`: completely or not at all, unless `mode` is [`WriteMode::InPlace`].
    /// Creates missing directories.
    ///
    /// # Errors
    /// [`FileError`]. [`FileErrorKind::Changed`] if the file was replaced since it was found.
    pub(crate) fn write(&self, text: &str, mode: WriteMode) -> Result<(), FileError> {
        if text.len() > self.limits.write {
            return Err(FileError::new(&self.asked, FileErrorKind::TooLarge { limit: self.limits.write }));
        }
        // Replacing a file needs only permission for its directory, so opening it detects a read-only file.
        let old = match self.regular()? {
            Some(_) => Some(self.open(OFlags::WRONLY)?),
            None => None,
        };
        if is_kernel_file_system(&self.directory) {
            return Err(FileError::new(&self.asked, FileErrorKind::NotRegular("a kernel file")));
        }
        if let Some((file, stat)) = &old
            && mode == WriteMode::InPlace
            && stat.st_nlink == 1
        {
            return save::overwrite(file, text.as_bytes(), self.durable)
                .map_err(|errno| FileError::system(&self.asked, errno).effects(Effects::Possible));
        }
        let old = old.map(|(_, stat)| stat);
        let effects = if self.missing.is_empty() { Effects::None } else { Effects::Possible };
        let fail = |errno| FileError::system(&self.asked, errno).effects(effects);
        let made = save::directories(&self.directory, &self.missing).map_err(fail)?;
        let directory = made.as_ref().unwrap_or(&self.directory);
        save::save(directory.as_fd(), &self.name, text.as_bytes(), old.as_ref(), self.durable).map_err(fail)
    }

    /// Returns the metadata of the found file. Fails if it is neither regular nor missing.
    fn regular(&self) -> Result<Option<&Stat>, FileError> {
        if let Some(entry) = &self.entry {
            self.must_be_regular(entry)?;
        }
        Ok(self.entry.as_ref())
    }

    /// Opens a regular file, and checks that it is the one that was found.
    fn open(&self, access: OFlags) -> Result<(OwnedFd, Stat), FileError> {
        // The file may meanwhile be a pipe or a terminal: opening must not block, nor acquire a controlling
        // terminal.
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file =
            openat(&self.directory, &self.name, flags, Mode::empty()).map_err(|errno| match errno {
                Errno::LOOP | Errno::MLINK | Errno::NOENT | Errno::NXIO => {
                    FileError::new(&self.asked, FileErrorKind::Changed)
                }
                errno => FileError::system(&self.asked, errno),
            })?;
        let stat = fstat(&file).map_err(|errno| FileError::system(&self.asked, errno))?;
        self.must_be_regular(&stat)?;
        if is_kernel_file_system(&file) {
            return Err(FileError::new(&self.asked, FileErrorKind::NotRegular("a kernel file")));
        }
        Ok((file, stat))
    }

    fn must_be_regular(&self, stat: &Stat) -> Result<(), FileError> {
        let what = match kind(stat) {
            FileType::RegularFile => return Ok(()),
            FileType::Directory => "a directory",
            FileType::Fifo => "a pipe",
            FileType::Socket => "a socket",
            FileType::CharacterDevice | FileType::BlockDevice => "a device",
            _ => "something else",
        };
        Err(FileError::new(&self.asked, FileErrorKind::NotRegular(what)))
    }
}

fn check(path: &Path) -> Result<(), FileError> {
    let bytes = path.as_os_str().as_bytes();
    let problem = if !path.is_absolute() {
        FileErrorKind::Relative
    } else if bytes.contains(&0) || bytes.len() > MAX_PATH_BYTES {
        FileErrorKind::Malformed
    } else if bytes.ends_with(b"/") || bytes.ends_with(b"/.") {
        FileErrorKind::NotRegular("a directory")
    } else {
        return Ok(());
    };
    Err(FileError::new(path, problem))
}

/// Returns the metadata of `name` in `directory`, without following a link.
fn entry(directory: &OwnedFd, name: &OsString) -> Result<Option<Stat>, Errno> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Returns `true` for file systems of the kernel such as `/proc`: reading them reveals this process, and
/// writing them changes the machine.
#[cfg(target_os = "linux")]
fn is_kernel_file_system(fd: &OwnedFd) -> bool {
    use rustix::fs::{FsWord, PROC_SUPER_MAGIC, fstatfs};
    const SYSFS: FsWord = 0x6265_6572;
    const CGROUP2: FsWord = 0x6367_7270;
    const DEBUGFS: FsWord = 0x6462_6720;
    const TRACEFS: FsWord = 0x7472_6163;
    const SECURITYFS: FsWord = 0x7363_6673;
    const CONFIGFS: FsWord = 0x6265_6570;
    let made_up = [PROC_SUPER_MAGIC, SYSFS, CGROUP2, DEBUGFS, TRACEFS, SECURITYFS, CONFIGFS];
    fstatfs(fd).is_ok_and(|system| made_up.contains(&system.f_type))
}

#[cfg(not(target_os = "linux"))]
fn is_kernel_file_system(_: &OwnedFd) -> bool {
    false
}

fn lines(text: String, line: Option<u32>, limit: Option<u32>) -> String {
    // Line 0 means the first line.
    let skipped = line.unwrap_or(1).saturating_sub(1) as usize;
    if skipped == 0 && limit.is_none() {
        return text;
    }
    let taken = limit.map_or(usize::MAX, |limit| limit as usize);
    text.split_inclusive('\n').skip(skipped).take(taken).collect()
}

#[cfg(test)]
mod tests;
