//! The directories of a session, each held open by a descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::walk::{PASS_THROUGH, PathResolver};
use super::{FileError, FileErrorKind};

/// One directory. The descriptor stays valid if the path changes.
#[derive(Debug)]
pub(super) struct Root {
    /// Path as the caller wrote it.
    given: PathBuf,
    path: PathBuf,
    fd: OwnedFd,
}

impl Root {
    fn open(given: &Path) -> Result<Self, FileError> {
        if !given.is_absolute() {
            return Err(FileError::new(given, FileErrorKind::Relative));
        }
        let path = given.canonicalize().map_err(|error| FileError::io(given, &error))?;
        let flags = PASS_THROUGH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, &path, flags, Mode::empty()).map_err(|errno| FileError::system(given, errno))?;
        Ok(Self { given: given.to_owned(), path, fd })
    }

    /// Returns the path without links, as it was when the directory was opened.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[derive(Debug)]
pub(crate) struct Roots {
    list: Vec<Root>,
    resolver: PathResolver,
}

impl Roots {
    /// Opens the directories. Must be called before the agent starts, because the agent could move them.
    ///
    /// # Errors
    /// [`FileError`] for the first directory that is not absolute or cannot be opened.
    pub(crate) fn open(directories: &[PathBuf]) -> Result<Self, FileError> {
        let top = Root::open(Path::new("/"))?;
        let resolver = PathResolver::probe(top.fd());
        Self::open_by(resolver, directories)
    }

    fn open_by(resolver: PathResolver, directories: &[PathBuf]) -> Result<Self, FileError> {
        let mut list = directories.iter().map(|path| Root::open(path)).collect::<Result<Vec<_>, _>>()?;
        // If several roots contain a path, the innermost root counts.
        list.sort_by_key(|root| std::cmp::Reverse(root.path.components().count()));
        Ok(Self { list, resolver })
    }

    /// Opens the directories with a fixed path resolver.
    #[cfg(test)]
    pub(super) fn open_with(resolver: PathResolver, directories: &[PathBuf]) -> Result<Self, FileError> {
        Self::open_by(resolver, directories)
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.list.iter().map(Root::path)
    }

    pub(super) fn resolver(&self) -> PathResolver {
        self.resolver
    }

    /// Returns the root whose path is a prefix of `path`, and the rest of `path`.
    pub(super) fn find_containing<'p>(&self, path: &'p Path) -> Option<(&Root, &'p Path)> {
        self.list.iter().find_map(|root| {
            let below = path.strip_prefix(&root.path).or_else(|_| path.strip_prefix(&root.given)).ok()?;
            Some((root, below))
        })
    }
}
