//! A private temporary directory that is removed with its tree.
//!
//! The process that uses the directory holds a lock on it. The lock ends with that process in any case, so
//! an unlocked directory is stale, and a thread of the next process removes it. That can take several
//! processes: a command can leave any number of files, and the exit of a process does not wait for the removal.

use std::ffi::CString;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, chmodat, fchmod, flock, fstat, mkdirat, openat,
    renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Maximum number of names to try. A name may be taken, or another process may remove the directory before it
/// is locked, but both are rare.
const MAX_NAME_ATTEMPTS: u32 = 16;
/// Maximum number of directory entries handled at once, because the tree may have created any number.
const MAX_ENTRIES_PER_ROUND: usize = 4096;
/// Maximum number of rounds that remove no entry. After that, the remaining entries stay.
const MAX_IDLE_ROUNDS: u32 = 16;

/// Number of new directories between two searches for stale ones.
const SWEEP_EVERY: u64 = 64;
const NAME_PREFIX: &str = "narrows-";

/// A temporary directory for one tree. A drop removes the directory with its content.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    directory: OwnedFd,
}

impl Scratch {
    /// Creates a directory in `parent` that only this user can access. The name is random, because another
    /// user could occupy predictable names.
    pub(crate) fn new(parent: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let parent = parent.canonicalize()?;
        for _ in 0..MAX_NAME_ATTEMPTS {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            if number.is_multiple_of(SWEEP_EVERY) {
                remove_stale_in_background(parent.clone());
            }
            let name = format!("{NAME_PREFIX}{}-{}", std::process::id(), RandomState::new().hash_one(number));
            let path = parent.join(name);
            match mkdirat(CWD, &path, Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(errno) => return Err(errno.into()),
            }
            // Locking fails if another process has removed the new directory as stale.
            if let Some(directory) = lock(&path) {
                return Ok(Self { path, directory });
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
        if let Err(error) = remove(&self.path, self.directory.as_fd()) {
            tracing::warn!(path = %self.path.display(), %error, "temporary directory not removed");
        }
    }
}

fn remove(path: &Path, directory: BorrowedFd<'_>) -> Result<(), Errno> {
    clear(directory)?;
    unlinkat(CWD, path, AtFlags::REMOVEDIR)
}

/// Removes stale directories on a thread of its own, because this can take long. At most one such thread runs
/// at a time.
fn remove_stale_in_background(parent: PathBuf) {
    static IS_RUNNING: AtomicBool = AtomicBool::new(false);
    if IS_RUNNING.swap(true, Ordering::Relaxed) {
        return;
    }
    let run = move || {
        remove_stale(&parent);
        IS_RUNNING.store(false, Ordering::Relaxed);
    };
    if std::thread::Builder::new().name("remove-stale".to_owned()).spawn(run).is_err() {
        IS_RUNNING.store(false, Ordering::Relaxed);
    }
}

/// Removes stale directories of this program.
fn remove_stale(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(is_ours)
            && let path = entry.path()
            && let Some(directory) = lock(&path)
            && let Err(error) = remove(&path, directory.as_fd())
        {
            tracing::debug!(path = %path.display(), %error, "leftover temporary directory not removed");
        }
    }
}

fn is_ours(name: &str) -> bool {
    let numbers = name.strip_prefix(NAME_PREFIX).and_then(|rest| rest.split_once('-'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.is_some_and(|(process, number)| is_number(process) && is_number(number))
}

/// Opens and locks a directory of this user. Returns `None` if another process has locked or removed it.
fn lock(path: &Path) -> Option<OwnedFd> {
    let directory = open_directory(CWD, path).ok()?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
    let stat = fstat(&directory).ok()?;
    (stat.st_nlink > 0 && stat.st_uid == geteuid().as_raw()).then_some(directory)
}

fn open_directory(at: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// Empties a directory without recursion, because the tree may have created any depth. Nested directories
/// move up until they are empty, so a few descriptors suffice. An entry that cannot be removed does not
/// prevent the removal of others, because other processes may replace entries meanwhile.
fn clear(top: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut cleaner = Cleaner { top, moved: 0, removed: 0 };
    let mut idle_rounds = 0;
    loop {
        let names = names(top)?;
        if names.is_empty() {
            return Ok(());
        }
        let before = (cleaner.removed, cleaner.moved);
        let results: Vec<Result<(), Errno>> = names.iter().map(|name| cleaner.remove_entry(name)).collect();
        let failed = results.into_iter().collect::<Result<(), Errno>>();
        idle_rounds = if before == (cleaner.removed, cleaner.moved) { idle_rounds + 1 } else { 0 };
        if idle_rounds == MAX_IDLE_ROUNDS {
            return failed.and(Err(Errno::NOTEMPTY));
        }
    }
}

struct Cleaner<'a> {
    top: BorrowedFd<'a>,
    /// Number of directories that were moved to `top`, from which their new names are made.
    moved: u64,
    removed: u64,
}

impl Cleaner<'_> {
    /// Removes an entry of `top`. The content of a directory is removed first, and directories in it move to
    /// `top`.
    fn remove_entry(&mut self, name: &CString) -> Result<(), Errno> {
        if self.remove_file(self.top, name)? {
            return Ok(());
        }
        let directory = open_whatever_its_mode(self.top, name)?;
        let mut emptied = Ok(());
        for inner in names(directory.as_fd())? {
            let result = self.remove_inner(directory.as_fd(), &inner);
            emptied = emptied.and(result);
        }
        match unlinkat(self.top, name, AtFlags::REMOVEDIR) {
            Ok(()) => self.removed += 1,
            // The entries that are left are removed in the next round.
            Err(Errno::NOTEMPTY | Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        emptied
    }

    /// Removes an entry of `directory`, or moves it to `top`.
    fn remove_inner(&mut self, directory: BorrowedFd<'_>, name: &CString) -> Result<(), Errno> {
        if self.remove_file(directory, name)? {
            return Ok(());
        }
        // A directory must be writable to be moved, because moving changes its entry `..`.
        _ = open_whatever_its_mode(directory, name);
        loop {
            self.moved += 1;
            match renameat(directory, name, self.top, format!("{}.narrows", self.moved)) {
                // The new name is taken. (An empty directory with that name would have been replaced.)
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR) => {}
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(errno) => {
                    self.moved -= 1;
                    return Err(errno);
                }
            }
        }
    }

    /// Removes an entry. Returns `false` if it is a directory.
    fn remove_file(&mut self, directory: BorrowedFd<'_>, name: &CString) -> Result<bool, Errno> {
        match unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) => self.removed += 1,
            Err(Errno::NOENT) => {}
            Err(Errno::ISDIR | Errno::PERM) => return Ok(false),
            Err(errno) => return Err(errno),
        }
        Ok(true)
    }
}

fn names(directory: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
        if names.len() == MAX_ENTRIES_PER_ROUND {
            break;
        }
    }
    Ok(names)
}

/// Opens a directory, and gives the user all rights to it, without which its entries could not be removed.
/// Does not follow links, because another process may have replaced the directory by one.
fn open_whatever_its_mode(at: BorrowedFd<'_>, name: &CString) -> Result<OwnedFd, Errno> {
    match open_directory(at, name) {
        Ok(directory) => {
            _ = fchmod(&directory, Mode::RWXU);
            return Ok(directory);
        }
        Err(Errno::ACCESS) => {}
        Err(errno) => return Err(errno),
    }
    // The directory cannot be opened for reading. `fchmod` does not accept a path-only descriptor, but the
    // descriptor's entry in procfs leads to the opened directory.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat(at, name, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    chmodat(CWD, path, Mode::RWXU, AtFlags::empty())?;
    open_directory(&found, c".")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_scratch_directory_is_private_and_removed_with_its_content() {
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
        for number in 0..=MAX_ENTRIES_PER_ROUND {
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
    fn stale_directories_are_removed_and_used_ones_are_not() {
        let parent = tempfile::tempdir().unwrap();
        let [left, used, foreign, file] =
            ["narrows-1-1", "narrows-1-2", "narrows-x-1", "narrows-1-3"].map(|name| parent.path().join(name));
        for directory in [&left, &used, &foreign] {
            fs::create_dir_all(directory.join("a/b")).unwrap();
        }
        fs::write(&file, "").unwrap();
        let held = lock(&used).unwrap();
        remove_stale(parent.path());
        assert_eq!([&left, &used, &foreign, &file].map(|path| path.exists()), [false, true, true, true]);
        drop(held);
        remove_stale(parent.path());
        assert!(!used.exists());
        // A directory in use by this process counts as in use for all processes.
        let scratch = Scratch::new(parent.path()).unwrap();
        remove_stale(parent.path());
        assert!(scratch.path().exists());
    }

    #[test]
    fn another_user_cannot_take_the_names_in_advance() {
        let parent = tempfile::tempdir().unwrap();
        for number in 0..2000 {
            let name = format!("{NAME_PREFIX}{}-{number}", std::process::id());
            fs::write(parent.path().join(name), "").unwrap();
        }
        Scratch::new(parent.path()).unwrap();
    }

    #[test]
    fn a_link_in_place_of_a_directory_is_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        let foreign = parent.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::set_permissions(&foreign, fs::Permissions::from_mode(0o500)).unwrap();
        symlink(&foreign, parent.path().join("link")).unwrap();
        let top = open_directory(CWD, parent.path()).unwrap();
        assert!(open_whatever_its_mode(top.as_fd(), &c"link".to_owned()).is_err());
        assert_eq!(fs::metadata(&foreign).unwrap().permissions().mode() & 0o777, 0o500);
    }

    #[test]
    fn exchanged_entries_do_not_prevent_the_removal_of_the_rest() {
        let parent = tempfile::tempdir().unwrap();
        let foreign = parent.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("file"), "x").unwrap();
        fs::set_permissions(&foreign, fs::Permissions::from_mode(0o500)).unwrap();
        let link = parent.path().join("link");
        let scratch = Scratch::new(parent.path()).unwrap();
        let top = scratch.path().to_owned();
        for number in 0..300 {
            fs::create_dir_all(top.join(format!("n{number}/inner"))).unwrap();
        }
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    _ = symlink(&foreign, &link);
                    for number in 0..300 {
                        let entry = top.join(format!("n{number}"));
                        let exchange = rustix::fs::RenameFlags::EXCHANGE;
                        _ = rustix::fs::renameat_with(CWD, &entry, CWD, &link, exchange);
                        _ = rustix::fs::renameat_with(CWD, &entry, CWD, &link, exchange);
                    }
                }
            });
            drop(scratch);
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(!top.exists());
        assert_eq!(fs::metadata(&foreign).unwrap().permissions().mode() & 0o777, 0o500);
        assert!(foreign.join("file").exists());
    }

    #[test]
    fn any_depth_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(parent.path()).unwrap();
        let top = scratch.path().to_owned();
        // The nesting is deeper than a path can be long or descriptors can be open.
        let mut at = open_directory(CWD, &top).unwrap();
        for _ in 0..1500 {
            mkdirat(&at, "deeper", Mode::RWXU).unwrap();
            at = open_directory(&at, "deeper").unwrap();
        }
        drop(scratch);
        assert!(!top.exists());
    }
}
