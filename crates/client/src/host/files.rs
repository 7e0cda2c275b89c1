//! Opens files of the session by descriptor and never outside the roots.
//!
//! A path from an agent is untrusted, and so is the disk while the path is followed: another process may
//! replace a directory with a link. So no decision is made about a path and then applied to the same path.
//! [`Files::find`] holds the descriptor of the file's directory, found beneath a root. The policy judges
//! [`Found::path`], which has no links in it. Reading and writing use that descriptor and one name that must
//! not be a link. All functions block.

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

pub(crate) use error::{FileError, FileErrorKind};
pub(crate) use roots::Roots;

use roots::Root;
use walk::{DeepestDirectory, MAX_LINKS};

/// Longest path that the system accepts.
const MAX_PATH_BYTES: usize = 4096;

/// Whether links in the path of a request are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathLinks {
    Follow,
    /// The decision has followed all links, so a link that is present now was created afterwards.
    Refuse,
}

/// How the content of an existing file is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    /// A new file replaces it: readers see the old content or the new, also after a crash.
    Replace,
    /// The same file gets the new content, so that mounts on it remain. A crash may leave a part of it. A
    /// file with several hard links is replaced all the same, so that the other names keep their content.
    InPlace,
}

/// Bounds on one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of bytes read.
    pub(crate) read: usize,
    /// Maximum number of bytes written.
    pub(crate) write: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { read: 10 << 20, write: 10 << 20 }
    }
}

/// Files that an agent may use.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    roots: Arc<Roots>,
    limits: Limits,
    /// `true` if a written file is synced to disk.
    durable: bool,
}

impl Files {
    /// Gives access to files beneath `roots`.
    pub(crate) fn new(roots: Arc<Roots>, limits: Limits) -> Self {
        Self { roots, limits, durable: true }
    }

    /// Disables syncing to disk.
    #[cfg(test)]
    fn without_sync(self) -> Self {
        Self { durable: false, ..self }
    }

    /// Finds a file that exists or can be created.
    ///
    /// # Errors
    /// [`FileError`] if the path does not lead to a place beneath a root.
    pub(crate) fn find(&self, asked: &Path) -> Result<Found, FileError> {
        check(asked)?;
        // The path as spelled comes first, so that the root's descriptor counts, not what is now at the
        // root's path.
        if let Some((root, below)) = self.roots.find_containing(asked) {
            match self.place(asked, root, below) {
                Err(Errno::XDEV) => {}
                found => return found.map_err(|errno| FileError::system(asked, errno)),
            }
        }
        // A link to an absolute path, or a detour over the parent of a root, may still end beneath a root.
        // The guessed target is confirmed or refused by the walk beneath the root.
        let place = || {
            let guess = follow::guess(asked)?;
            let (root, below) = self.roots.find_containing(&guess).ok_or(Errno::XDEV)?;
            self.place(asked, root, below)
        };
        place().map_err(|errno| FileError::system(asked, errno))
    }

    /// Finds `below` beneath `root`, following links at its end.
    fn place(&self, asked: &Path, root: &Root, below: &Path) -> Result<Found, Errno> {
        let mut below = below.to_owned();
        let mut must_be_directory = false;
        for _ in 0..=MAX_LINKS {
            let name = below.file_name().filter(|_| !must_be_directory).map(ToOwned::to_owned);
            let Some(name) = name else {
                // A root itself, the parent of something, or a directory according to a link. All of them may
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
                    // It is no longer a link: try again.
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
    /// The path as written by the agent, for errors.
    asked: PathBuf,
    path: PathBuf,
    directory: OwnedFd,
    /// Missing directories between `directory` and the file.
    missing: Vec<OsString>,
    name: OsString,
    /// Metadata of the existing file.
    entry: Option<Stat>,
    limits: Limits,
    durable: bool,
}

impl Found {
    /// Returns the absolute path without links, which is what rules are applied to.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `self` if the requested path has no links in it. The descriptor stays valid whatever happens
    /// to the path later.
    ///
    /// # Errors
    /// [`FileErrorKind::Link`] if there is a link in that path.
    pub(crate) fn without_links(self) -> Result<Self, FileError> {
        if self.path == self.asked { Ok(self) } else { Err(FileError::new(&self.asked, FileErrorKind::Link)) }
    }

    /// Reads the text, or `limit` lines from `line` on, counted from 1. Lines keep their line ends.
    ///
    /// # Errors
    /// [`FileError`], also if the file is not text or too long; [`FileErrorKind::Changed`] if the file was
    /// replaced since it was found: then find and judge it again.
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

    /// Replaces the content with `text`: at once and completely, or not at all, unless `mode` says otherwise.
    /// Missing directories are created.
    ///
    /// # Errors
    /// [`FileError`]; [`FileErrorKind::Changed`] if the file was replaced since it was found.
    pub(crate) fn write(&self, text: &str, mode: WriteMode) -> Result<(), FileError> {
        if text.len() > self.limits.write {
            return Err(FileError::new(&self.asked, FileErrorKind::TooLarge { limit: self.limits.write }));
        }
        // Replacing needs only write permission for the directory; a read-only file is detected by opening
        // it.
        let old = match self.regular()? {
            Some(_) => Some(self.open(OFlags::WRONLY)?),
            None => None,
        };
        if is_made_up(&self.directory) {
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

    /// Returns the file that was found, if it is regular or missing.
    fn regular(&self) -> Result<Option<&Stat>, FileError> {
        if let Some(entry) = &self.entry {
            self.must_be_regular(entry)?;
        }
        Ok(self.entry.as_ref())
    }

    /// Opens a regular file, and checks that it is still the one that was found.
    fn open(&self, access: OFlags) -> Result<(OwnedFd, Stat), FileError> {
        // If it has become a pipe or a terminal, opening must neither block nor acquire a controlling
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
        if is_made_up(&file) {
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

/// Checks that `path` can name a file.
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

/// Returns `true` for file systems in which the kernel exposes itself, such as `/proc`: reading them reveals
/// this process, and writing them changes the machine.
#[cfg(target_os = "linux")]
fn is_made_up(fd: &OwnedFd) -> bool {
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
fn is_made_up(_: &OwnedFd) -> bool {
    false
}

/// Returns the requested lines of `text`.
fn lines(text: String, line: Option<u32>, limit: Option<u32>) -> String {
    // Line 0 means the first line as well.
    let skipped = line.unwrap_or(1).saturating_sub(1) as usize;
    if skipped == 0 && limit.is_none() {
        return text;
    }
    let taken = limit.map_or(usize::MAX, |limit| limit as usize);
    text.split_inclusive('\n').skip(skipped).take(taken).collect()
}

#[cfg(test)]
mod tests;
