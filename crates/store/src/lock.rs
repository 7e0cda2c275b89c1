//! Lock files: one per open session, removed when the session is closed or its process ends.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Limit of attempts to get a lock. Pruning, deleting and removing stale locks hold a lock only briefly.
const MAX_LOCK_ATTEMPTS: u32 = 5;

const LOCK_RETRY_PAUSE: Duration = Duration::from_millis(10);

/// A locked file. Dropping it removes the file, then the lock.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Locks `path`, creating the file if needed. Returns `None` if the lock is held elsewhere.
    pub(crate) fn acquire(path: &Path) -> io::Result<Option<Self>> {
        Self::acquire_with(path, || thread::sleep(LOCK_RETRY_PAUSE))
    }

    fn acquire_with(path: &Path, mut pause: impl FnMut()) -> io::Result<Option<Self>> {
        let mut tries = MAX_LOCK_ATTEMPTS;
        loop {
            match attempt(path, true)? {
                Attempt::Locked(lock) => return Ok(Some(lock)),
                // The opened file was just removed: try the path again.
                Attempt::Stale => {}
                Attempt::Held => {
                    tries -= 1;
                    if tries == 0 {
                        return Ok(None);
                    }
                    pause();
                }
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The file is removed before it is unlocked. Otherwise another process could lock a file that is
        // about to be removed. If the directory was recreated, the path names a different lock file, which
        // must stay.
        let removed = is_same_file(&self.file, &self.path)
            .and_then(|ours| if ours { fs::remove_file(&self.path) } else { Ok(()) });
        if let Err(error) = removed {
            tracing::debug!(file = %self.path.display(), %error, "lock file not removed");
        }
        // Closing the file does not unlock it if a forked process shares the open file.
        if let Err(error) = self.file.unlock() {
            tracing::debug!(file = %self.path.display(), %error, "lock kept until its file is closed");
        }
    }
}

enum Attempt {
    Locked(Lock),
    Held,
    Stale,
}

fn attempt(path: &Path, create: bool) -> io::Result<Attempt> {
    let file =
        OpenOptions::new().read(true).write(true).create(create).truncate(false).mode(0o600).open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Attempt::Held),
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {
            return Ok(Attempt::Stale);
        }
        Err(TryLockError::Error(error)) => return Err(error),
    }
    if is_same_file(&file, path)? {
        Ok(Attempt::Locked(Lock { file, path: path.to_owned() }))
    } else {
        Ok(Attempt::Stale)
    }
}

/// Returns `true` if `file` is the one at `path`.
fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    let file = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (file.dev(), file.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the lock files in `directory` that no process holds: killed processes leave them behind.
pub(crate) fn remove_stale(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != EXTENSION) {
            continue;
        }
        match attempt(&path, false) {
            Ok(Attempt::Locked(lock)) => drop(lock),
            Ok(Attempt::Held | Attempt::Stale) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

const EXTENSION: &str = "lock";

/// Returns the name of the lock file of session `id`. Characters special to a file system are escaped.
pub(crate) fn file_name(id: &str) -> String {
    let mut name = String::with_capacity(id.len() + 5);
    for byte in id.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("_{byte:02x}"));
        }
    }
    name + "." + EXTENSION
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(id: &str, expected: &str) {
        assert_eq!(file_name(id), expected);
    }

    #[test]
    fn a_session_id_becomes_a_file_name() {
        check("0190c3a0-7f3a-7000", "0190c3a0-7f3a-7000.lock");
        check("../a b", "_2e_2e_2fa_20b.lock");
        check("_", "_5f.lock");
        check("\0é", "_00_c3_a9.lock");
    }

    proptest! {
        #[test]
        fn file_names_are_safe_and_distinct(a in ".{1,16}", b in ".{1,16}") {
            let safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
            prop_assert!(file_name(&a).bytes().all(safe) && !file_name(&a).starts_with('.'));
            prop_assert_eq!(file_name(&a) == file_name(&b), a == b);
        }

        #[test]
        fn the_longest_id_is_short_enough(id in "[é/.]{0,32}") {
            prop_assert!(id.len() <= 64 && file_name(&id).len() <= 255);
        }
    }

    #[test]
    fn a_lock_is_exclusive_and_leaves_no_file() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.lock");
        let lock = Lock::acquire(&path).unwrap().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(Lock::acquire(&path).unwrap().is_none());
        drop(lock);
        assert!(!path.exists());
        assert!(Lock::acquire(&path).unwrap().is_some());
    }

    #[test]
    fn a_lock_ends_although_a_copy_of_its_file_is_open() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.lock");
        let lock = Lock::acquire(&path).unwrap().unwrap();
        // The copy stands for the descriptor of a process that was forked without an exec.
        let copy = lock.file.try_clone().unwrap();
        fs::hard_link(&path, place.path().join("b.lock")).unwrap();
        drop(lock);
        assert!(Lock::acquire(&place.path().join("b.lock")).unwrap().is_some());
        drop(copy);
    }

    #[test]
    fn a_file_removed_while_locking_is_not_the_lock() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.lock");
        let inside = AtomicU32::new(0);
        let taken = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        let Attempt::Locked(lock) = attempt(&path, true).unwrap() else { continue };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                        taken.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert!(taken.into_inner() > 0);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_is_distinguished_from_others_of_its_name() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.lock");
        let file = File::create(&path).unwrap();
        assert!(is_same_file(&file, &path).unwrap());
        fs::rename(&path, place.path().join("b.lock")).unwrap();
        assert!(!is_same_file(&file, &path).unwrap());
        let other = File::create(&path).unwrap();
        assert!(!is_same_file(&file, &path).unwrap());
        assert!(is_same_file(&other, &path).unwrap());
    }

    #[test]
    fn the_lock_of_another_is_not_removed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.lock");
        let lock = Lock::acquire(&path).unwrap().unwrap();
        fs::rename(&path, place.path().join("away")).unwrap();
        let other = Lock::acquire(&path).unwrap().unwrap();
        drop(lock);
        assert!(Lock::acquire(&path).unwrap().is_none());
        drop(other);
        assert!(!path.exists());
    }

    #[test]
    fn a_briefly_held_lock_is_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.lock");
        let mut held = Lock::acquire(&path).unwrap();
        let mut pauses = 0;
        let taken = Lock::acquire_with(&path, || {
            pauses += 1;
            held.take_if(|_| pauses == 3);
        });
        assert!(taken.unwrap().is_some());
        assert_eq!(pauses, 3);
    }

    #[test]
    fn only_unheld_locks_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let held = Lock::acquire(&path("held.lock")).unwrap().unwrap();
        fs::write(path("left.lock"), "").unwrap();
        fs::write(path("other"), "").unwrap();
        remove_stale(place.path()).unwrap();
        assert!(held.path.exists());
        assert!(!path("left.lock").exists());
        assert!(path("other").exists());
    }
}
