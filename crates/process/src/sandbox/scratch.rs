//! A private temporary directory, gone with the tree that used it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, chmodat, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

/// Names that may be taken, by whoever had our process id before.
const ATTEMPTS: u32 = 1000;
/// How many entries of a directory are looked at in one go; whoever filled it chose their number, too.
const PORTION: usize = 4096;

/// A directory for one tree; dropping it removes all that is in it.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A new directory in `parent`, for this user only.
    pub(crate) fn new(parent: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let parent = parent.canonicalize()?;
        for _ in 0..ATTEMPTS {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("narrows-{}-{number}", std::process::id()));
            match mkdirat(CWD, &path, Mode::RWXU) {
                Ok(()) => return Ok(Self { path }),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let removed = open_directory(CWD, &self.path).and_then(|top| clear(top.as_fd()));
        if let Err(error) = removed.and_then(|()| unlinkat(CWD, &self.path, AtFlags::REMOVEDIR)) {
            tracing::warn!(path = %self.path.display(), %error, "a temporary directory could not be removed");
        }
    }
}

fn open_directory(at: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// Empties a directory without recursion: whoever filled it chose the depth. Directories further down move up
/// until they are empty, so that a few descriptors are enough for any of it.
fn clear(top: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut moved = 0u64;
    loop {
        let names = names(top)?;
        if names.is_empty() {
            return Ok(());
        }
        for name in &names {
            if remove_file(top, name)? {
                continue;
            }
            let directory = open_whatever_its_mode(top, name)?;
            for inner in self::names(directory.as_fd())? {
                if remove_file(directory.as_fd(), &inner)? {
                    continue;
                }
                // Moving a directory changes its `..`, so it has to be writable.
                _ = chmodat(&directory, &inner, Mode::RWXU, AtFlags::empty());
                move_up(directory.as_fd(), &inner, top, &mut moved)?;
            }
            match unlinkat(top, name, AtFlags::REMOVEDIR) {
                // The rest of it is for the next round.
                Ok(()) | Err(Errno::NOTEMPTY) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

fn names(directory: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
        if names.len() == PORTION {
            break;
        }
    }
    Ok(names)
}

/// Says whether the entry was something else than a directory, and is gone.
fn remove_file(directory: BorrowedFd<'_>, name: &CString) -> Result<bool, Errno> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::ISDIR | Errno::PERM) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn open_whatever_its_mode(top: BorrowedFd<'_>, name: &CString) -> Result<OwnedFd, Errno> {
    // Without search and write permission the entries cannot be removed either. It is no link: it could not be
    // unlinked.
    _ = chmodat(top, name, Mode::RWXU, AtFlags::empty());
    open_directory(top, name)
}

fn move_up(from: BorrowedFd<'_>, name: &CString, top: BorrowedFd<'_>, moved: &mut u64) -> Result<(), Errno> {
    loop {
        *moved += 1;
        match renameat(from, name, top, format!("{moved}.narrows")) {
            // Taken, by an empty directory if it seemed to work: then that is one less.
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn it_is_private_and_goes_with_all_that_is_in_it() {
        let parent = tempfile::tempdir().unwrap();
        let kept = parent.path().join("kept");
        fs::write(&kept, "x").unwrap();
        let scratch = Scratch::new(parent.path()).unwrap();
        let other = Scratch::new(parent.path()).unwrap();
        assert_ne!(scratch.path(), other.path());
        let top = scratch.path().to_owned();
        assert_eq!(fs::metadata(&top).unwrap().permissions().mode() & 0o777, 0o700);
        fs::create_dir_all(top.join("a/b/c")).unwrap();
        fs::create_dir_all(top.join("1.narrows/2.narrows/x/y")).unwrap();
        fs::write(top.join("2.narrows"), "in the way").unwrap();
        fs::write(top.join("a/b/file"), "x").unwrap();
        for number in 0..=PORTION {
            fs::write(top.join(format!("a/b/c/{number}")), "").unwrap();
        }
        symlink(parent.path(), top.join("a/b/out")).unwrap();
        symlink("nowhere", top.join("dangling")).unwrap();
        for mode in ["a/b", "a"] {
            fs::set_permissions(top.join(mode), fs::Permissions::from_mode(0o000)).unwrap();
        }
        drop(scratch);
        assert!(!top.exists());
        assert_eq!(fs::read_to_string(kept).unwrap(), "x", "links are not followed");
        assert!(other.path().exists());
    }

    #[test]
    fn depth_is_no_obstacle() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(parent.path()).unwrap();
        let top = scratch.path().to_owned();
        // Deeper than a path may be long or descriptors may be open.
        let mut at = open_directory(CWD, &top).unwrap();
        for _ in 0..1500 {
            mkdirat(&at, "deeper", Mode::RWXU).unwrap();
            at = open_directory(&at, "deeper").unwrap();
        }
        drop(scratch);
        assert!(!top.exists());
    }
}
