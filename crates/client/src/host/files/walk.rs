//! Walks from a root down to a directory, without leaving the root.
//!
//! Linux does this in one system call. On other systems, and where a seccomp filter blocks that call, this
//! module walks name by name. It reads links instead of following them, and goes up by walking down again
//! from the root.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;

/// Maximum number of links to follow, as in the kernel.
pub(super) const MAX_LINKS: usize = 40;

/// Maximum number of directories to open for one path: links and `..` multiply.
const MAX_STEPS: usize = 10_000;

/// Number of kernel calls to try while directories are being moved.
#[cfg(target_os = "linux")]
const KERNEL_TRIES: usize = 16;

/// Flags for opening a directory on the way: it may be passable but not readable.
#[cfg(target_os = "linux")]
pub(super) const PASS_THROUGH: OFlags = OFlags::PATH;
#[cfg(not(target_os = "linux"))]
pub(super) const PASS_THROUGH: OFlags = OFlags::RDONLY;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathResolver {
    /// By one system call.
    #[cfg(target_os = "linux")]
    Kernel,
    /// Name by name, in this module.
    Walk,
}

#[derive(Debug)]
pub(super) struct DeepestDirectory {
    pub(super) directory: OwnedFd,
    /// Path from the root, without links.
    pub(super) real: PathBuf,
    pub(super) missing: Vec<OsString>,
}

impl PathResolver {
    #[cfg(target_os = "linux")]
    pub(super) fn probe(directory: BorrowedFd<'_>) -> Self {
        if kernel(directory, Path::new("")).is_ok() { Self::Kernel } else { Self::Walk }
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn probe(_: BorrowedFd<'_>) -> Self {
        Self::Walk
    }

    /// Opens `path` beneath `root`. Returns `XDEV` if the path leaves the root, even if it comes back. A link
    /// to an absolute path always leaves it.
    pub(super) fn directory(self, root: BorrowedFd<'_>, path: &Path) -> Result<DeepestDirectory, Errno> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Kernel => match kernel(root, path) {
                // The walk finds the existing part of the path and the targets of dangling links. It also
                // works while directories are moved constantly.
                Err(Errno::NOENT | Errno::AGAIN) => walk(root, path),
                deep => deep,
            },
            Self::Walk => walk(root, path),
        }
    }
}

#[cfg(target_os = "linux")]
fn kernel(root: BorrowedFd<'_>, path: &Path) -> Result<DeepestDirectory, Errno> {
    use rustix::fs::{ResolveFlags, openat2};
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = PASS_THROUGH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut tries = 1;
    let directory = loop {
        match openat2(root, path, flags, Mode::empty(), beneath) {
            Err(Errno::AGAIN | Errno::INTR) if tries < KERNEL_TRIES => tries += 1,
            opened => break opened?,
        }
    };
    // Reads both paths now: the root may have been moved, or the directory may have been moved out of it.
    let (top, real) = (name(root)?, name(directory.as_fd())?);
    let real = real.strip_prefix(top).map_err(|_| Errno::XDEV)?.to_owned();
    Ok(DeepestDirectory { directory, real, missing: Vec::new() })
}

/// Returns the current path of an open directory.
#[cfg(target_os = "linux")]
fn name(directory: BorrowedFd<'_>) -> Result<PathBuf, Errno> {
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStringExt;
    let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let target = readlinkat(rustix::fs::CWD, link, Vec::new())?;
    Ok(OsString::from_vec(target.into_bytes()).into())
}

fn walk(root: BorrowedFd<'_>, path: &Path) -> Result<DeepestDirectory, Errno> {
    let mut walker = Walker { root, here: reopen(root)?, names: Vec::new(), opened: 0 };
    let mut steps = Vec::new();
    push(&mut steps, path)?;
    let mut missing = Vec::new();
    let mut links = 0;
    while let Some(step) = steps.pop() {
        match step {
            // A missing directory has no parent.
            Step::Up if !missing.is_empty() => return Err(Errno::NOENT),
            Step::Up => walker.up()?,
            Step::Down(name) if !missing.is_empty() => missing.push(name),
            Step::Down(name) => match walker.down(&name) {
                Ok(()) => {}
                Err(Errno::NOENT) => missing.push(name),
                // Systems report these errors for a link, or for an entry that is not a directory.
                Err(Errno::LOOP | Errno::MLINK | Errno::NOTDIR) => {
                    let target =
                        readlinkat(&walker.here, &name, Vec::new()).map_err(|errno| match errno {
                            Errno::INVAL => Errno::NOTDIR,
                            errno => errno,
                        })?;
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP);
                    }
                    push(&mut steps, Path::new(OsStr::from_bytes(target.as_bytes())))?;
                }
                Err(errno) => return Err(errno),
            },
        }
    }
    Ok(DeepestDirectory { directory: walker.here, real: walker.names.iter().collect(), missing })
}

enum Step {
    Up,
    Down(OsString),
}

/// Pushes the steps of `path` in reverse order, so that the first is on top.
fn push(steps: &mut Vec<Step>, path: &Path) -> Result<(), Errno> {
    for component in path.components().rev() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => steps.push(Step::Up),
            Component::Normal(name) => steps.push(Step::Down(name.to_owned())),
            Component::Prefix(_) | Component::RootDir => return Err(Errno::XDEV),
        }
    }
    Ok(())
}

/// Position beneath a root, and the names that led there.
struct Walker<'r> {
    root: BorrowedFd<'r>,
    here: OwnedFd,
    names: Vec<OsString>,
    opened: usize,
}

impl Walker<'_> {
    fn down(&mut self, name: &OsStr) -> Result<(), Errno> {
        self.count(1)?;
        self.here = open(self.here.as_fd(), name)?;
        self.names.push(name.to_owned());
        Ok(())
    }

    /// Goes up by walking down again from the root: the parent of a moved directory may be anywhere. Fails if
    /// a name on the way is now a link.
    fn up(&mut self) -> Result<(), Errno> {
        self.names.pop().ok_or(Errno::XDEV)?;
        self.count(self.names.len())?;
        let mut here = reopen(self.root)?;
        for name in &self.names {
            here = open(here.as_fd(), name).map_err(|errno| match errno {
                Errno::LOOP | Errno::MLINK | Errno::NOTDIR => Errno::AGAIN,
                errno => errno,
            })?;
        }
        self.here = here;
        Ok(())
    }

    fn count(&mut self, more: usize) -> Result<(), Errno> {
        self.opened += more;
        if self.opened > MAX_STEPS { Err(Errno::LOOP) } else { Ok(()) }
    }
}

/// Opens a directory. Fails for a link.
fn open(from: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    openat(from, name, PASS_THROUGH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn reopen(directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    openat(directory, ".", PASS_THROUGH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}
