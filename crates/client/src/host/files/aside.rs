//! Renames an entry that must not stay at its path.
//!
//! A command creates the entry and owns the directory, so neither its mode nor the names that are taken in it
//! can prevent this. What cannot be renamed is removed.

use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, RenameFlags, chmodat, fstat, renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::walk::DeepestDirectory;
use super::{FileError, Files, entry, kind};

const MAX_NUMBERED_NAMES: usize = 100;

/// Number of names to try that no command can guess.
const RANDOM_NAMES: usize = 4;

/// Result of moving an entry aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Aside {
    /// There is no entry.
    Missing,
    Moved(PathBuf),
    Removed,
}

impl Files {
    /// Renames the entry at `path` in its directory, or the first link on the way to it. Removes it if it
    /// cannot be renamed. `path` had no links when it was found missing.
    ///
    /// # Errors
    /// [`FileError`] if the path is in no root, or the entry can be neither renamed nor removed.
    pub(crate) fn move_aside(&self, path: &Path) -> Result<Aside, FileError> {
        self.rename_first(path).map_err(|errno| FileError::system(path, errno))
    }

    fn rename_first(&self, path: &Path) -> Result<Aside, Errno> {
        let (root, below) = self.roots.find_containing(path).ok_or(Errno::XDEV)?;
        let mut way = PathBuf::new();
        // The last one first, because a drop restores the mode that it found.
        let mut opened: Vec<OpenedMode> = Vec::new();
        for name in below {
            let DeepestDirectory { directory, missing, .. } =
                self.roots.resolver().directory(root.fd(), &way)?;
            if !missing.is_empty() {
                return Ok(Aside::Missing);
            }
            way.push(name);
            let name = name.to_owned();
            let found = match entry(&directory, &name) {
                Err(Errno::ACCESS) => {
                    opened.insert(0, OpenedMode::new(&directory)?);
                    entry(&directory, &name)?
                }
                found => found?,
            };
            let Some(found) = found else { return Ok(Aside::Missing) };
            if way != below && kind(&found) != FileType::Symlink {
                continue;
            }
            let moved = match rename_in(&directory, &name) {
                Err(Errno::ACCESS | Errno::PERM) => {
                    opened.insert(0, OpenedMode::new(&directory)?);
                    rename_in(&directory, &name)
                }
                moved => moved,
            };
            return match moved {
                Ok(other) => Ok(Aside::Moved(root.path().join(&way).with_file_name(&other))),
                Err(Errno::NOENT) => Ok(Aside::Missing),
                Err(errno) => {
                    let is_directory = kind(&found) == FileType::Directory;
                    let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                    unlinkat(&directory, &name, flags).map(|()| Aside::Removed).map_err(|_| errno)
                }
            };
        }
        Ok(Aside::Missing)
    }
}

/// Renames the entry `name` to a free name, and returns that.
fn rename_in(directory: &OwnedFd, name: &OsStr) -> Result<OsString, Errno> {
    let with = |end: String| {
        let mut other = name.to_owned();
        other.push(format!(".denied-{end}"));
        other
    };
    let random = || RandomState::new().hash_one(0).to_string();
    let numbered = (1..=MAX_NUMBERED_NAMES).map(|number| with(number.to_string()));
    let random_names = (0..RANDOM_NAMES).map(|_| with(random()));
    // Short, if the name has almost the maximum length.
    let short = (0..RANDOM_NAMES).map(|_| OsString::from(format!("denied-{}", random())));
    let mut result = Errno::EXIST;
    for other in numbered.chain(random_names).chain(short) {
        match rename_to_free(directory, name, &other) {
            Ok(()) => return Ok(other),
            Err(errno @ (Errno::EXIST | Errno::NAMETOOLONG)) => result = errno,
            Err(errno) => return Err(errno),
        }
    }
    Err(result)
}

fn rename_to_free(directory: &OwnedFd, name: &OsStr, other: &OsStr) -> Result<(), Errno> {
    match renameat_with(directory, name, directory, other, RenameFlags::NOREPLACE) {
        // The file system cannot check it. If a command creates the name meanwhile, its file is overwritten.
        Err(Errno::INVAL | Errno::NOSYS) => match entry(directory, &other.to_owned())? {
            None => renameat(directory, name, directory, other),
            Some(_) => Err(Errno::EXIST),
        },
        renamed => renamed,
    }
}

/// A directory that its owner can change, whatever its mode was. A drop restores the mode.
struct OpenedMode {
    path: String,
    mode: Mode,
    _directory: OwnedFd,
}

impl OpenedMode {
    fn new(directory: &OwnedFd) -> Result<Self, Errno> {
        let mode = Mode::from_raw_mode(fstat(directory)?.st_mode);
        let directory = directory.try_clone().map_err(|_| Errno::MFILE)?;
        // `fchmod` does not accept a path-only descriptor, but its name in procfs leads to the directory.
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        chmodat(CWD, &path, mode | Mode::RWXU, AtFlags::empty())?;
        Ok(Self { path, mode, _directory: directory })
    }
}

impl Drop for OpenedMode {
    fn drop(&mut self) {
        _ = chmodat(CWD, &self.path, self.mode, AtFlags::empty());
    }
}
