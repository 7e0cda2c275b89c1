//! Admin sockets in the runtime directory, `serve-PID.sock`: listed, and removed once their process is gone.
//!
//! A killed gate leaves its socket behind. A lock serializes removal and binding: otherwise a new process
//! with the same pid could lose the socket that it has just bound.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

pub(super) fn socket_path(directory: &Path, pid: u32) -> PathBuf {
    directory.join(format!("serve-{pid}.sock"))
}

/// Locks a directory for binding or removing. Released when the file is dropped.
pub(super) fn lock(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    file.lock()?;
    Ok(file)
}

/// Returns the sockets in a directory, sorted. Empty if there is no such directory.
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

/// Removes sockets of processes that are gone. A failure is harmless, because the next call tries again. The
/// caller must hold the lock.
pub(super) fn sweep(directory: &Path) {
    for path in list(directory).unwrap_or_default() {
        if is_stale(&path) {
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Returns `true` if the process of a socket is gone and no process accepts on it. The second check is needed
/// because a process in another PID namespace looks gone.
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

    fn ended_pid() -> u32 {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    #[test]
    fn only_sockets_of_ended_processes_that_accept_nothing_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        let stale = socket_path(home.path(), ended_pid());
        drop(UnixListener::bind(&stale).unwrap());
        let inherited = socket_path(home.path(), ended_pid());
        let listener = UnixListener::bind(&inherited).unwrap();
        let own = socket_path(home.path(), std::process::id());
        drop(UnixListener::bind(&own).unwrap());
        let file = socket_path(home.path(), ended_pid());
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
