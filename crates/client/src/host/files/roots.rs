//! The directories of a session, each held by its descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::walk::{PASS_THROUGH, PathResolver};
use super::{FileError, FileErrorKind};

/// One directory. Whatever is done to its path later, the descriptor stays what it was.
#[derive(Debug)]
pub(super) struct Root {
    /// As the caller spelled it.
    given: PathBuf,
    /// Without links.
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

    /// Where it was when it was opened, without links.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The directories of a session.
#[derive(Debug)]
pub(crate) struct Roots {
    list: Vec<Root>,
    resolver: PathResolver,
}

impl Roots {
    /// Opens the directories. To be done before the agent starts, which could move them.
    ///
    /// # Errors
    /// [`FileError`] for the first that is not absolute or cannot be opened.
    pub(crate) fn open(directories: &[PathBuf]) -> Result<Self, FileError> {
        let top = Root::open(Path::new("/"))?;
        let resolver = PathResolver::probe(top.fd());
        Self::open_by(resolver, directories)
    }

    fn open_by(resolver: PathResolver, directories: &[PathBuf]) -> Result<Self, FileError> {
        let mut list = directories.iter().map(|path| Root::open(path)).collect::<Result<Vec<_>, _>>()?;
        // The innermost of two that contain a path is asked first.
        list.sort_by_key(|root| std::cmp::Reverse(root.path.components().count()));
        Ok(Self { list, resolver })
    }

    /// Opens the directories and follows paths in them by `way`, whatever this system has.
    #[cfg(test)]
    pub(super) fn open_with(resolver: PathResolver, directories: &[PathBuf]) -> Result<Self, FileError> {
        Self::open_by(resolver, directories)
    }

    /// The directories, absolute and without links.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.list.iter().map(Root::path)
    }

    pub(super) fn resolver(&self) -> PathResolver {
        self.resolver
    }

    /// The root that the absolute `path` is spelled to lie beneath, and the way from there.
    pub(super) fn find_containing<'p>(&self, path: &'p Path) -> Option<(&Root, &'p Path)> {
        self.list.iter().find_map(|root| {
            let below = path.strip_prefix(&root.path).or_else(|_| path.strip_prefix(&root.given)).ok()?;
            Some((root, below))
        })
    }
}
