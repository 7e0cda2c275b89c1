//! Admin sockets in the runtime directory, `serve-PID.sock`: listed, and removed once their process is gone.
//!
//! A killed gate leaves its file behind. A lock keeps removal and binding apart: a new process with the same number could
//! otherwise lose the socket that it has just opened.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// The path of the socket of a process.
pub(super) fn path_of(directory: &Path, pid: u32) -> PathBuf {
    directory.join(format!("serve-{pid}.sock"))
}

/// Takes the lock of a directory, for binding or removing in it. It is released when the file is dropped.
pub(super) fn lock(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    file.lock()?;
    Ok(file)
}

/// The sockets in a directory, by name. None if there is no such directory.
pub(super) fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let is_gate = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("serve-") && name.ends_with(".sock")
    };
    let mut paths: Vec<PathBuf> =
        entries.filter_map(Result::ok).map(|entry| entry.path()).filter(is_gate).collect();
    paths.sort();
    Ok(paths)
}

/// Removes the sockets of processes that are gone. Failing at one is no harm: the next sweep tries again.
/// Call it with the lock held.
pub(super) fn sweep(directory: &Path) {
    for path in list(directory).unwrap_or_default() {
        if is_stale(&path) {
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Returns `true` if a socket's process is gone and nothing accepts on it. A process in another namespace looks gone.
fn is_stale(path: &Path) -> bool {
    let is_socket = path.symlink_metadata().is_ok_and(|file| file.file_type().is_socket());
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let pid = name.strip_prefix("serve-").and_then(|name| name.strip_suffix(".sock"));
    let pid = pid.and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    let is_gone = pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH));
    let is_refused =
        || UnixStream::connect(path).is_err_and(|it| it.kind() == io::ErrorKind::ConnectionRefused);
    is_socket && is_gone && is_refused()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// The number of a process that has ended.
    fn gone() -> u32 {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    #[test]
    fn only_sockets_of_ended_processes_that_accept_nothing_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        let stale = path_of(home.path(), gone());
        drop(UnixListener::bind(&stale).unwrap());
        let inherited = path_of(home.path(), gone());
        let listener = UnixListener::bind(&inherited).unwrap();
        let own = path_of(home.path(), std::process::id());
        drop(UnixListener::bind(&own).unwrap());
        let file = path_of(home.path(), gone());
        std::fs::write(&file, "").unwrap();
        for name in ["serve-x.sock", "serve-0.sock", "other.sock"] {
            drop(UnixListener::bind(at(name)).unwrap());
        }
        let _lock = lock(home.path()).unwrap();
        sweep(home.path());
        assert!(!stale.exists());
        for path in [inherited, own, file, at("serve-x.sock"), at("serve-0.sock"), at("other.sock")] {
            assert!(path.exists(), "{}", path.display());
        }
        drop(listener);
    }
}
