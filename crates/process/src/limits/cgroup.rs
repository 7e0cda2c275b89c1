//! The control groups of one tree, which are removed with the tree.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::cgroup_root::{CgroupRoot, GROUP_PREFIX, OWN_GROUP_NAME, Version, write};
use super::{Controller, Limits, Unenforceable};
use crate::spawn::above_stdio;

/// Maximum number of group names to try. A previous process with this program's pid may have left groups of
/// the same name.
const MAX_NAME_ATTEMPTS: u32 = 1000;
/// Number of new groups between two searches for stale ones.
const SWEEP_EVERY: u64 = 64;
/// Maximum number of attempts to remove a group. Exiting processes keep a group busy briefly.
const MAX_REMOVAL_ATTEMPTS: u32 = 20;
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// Control groups with limits, in which a tree starts. A drop removes the groups that have no processes.
#[derive(Debug)]
pub(crate) struct TreeCgroups {
    /// One group per hierarchy. Version 2 has one hierarchy in all, version 1 usually one per controller.
    parts: Vec<Cgroup>,
    /// Path of the group in which the kernel counts processes that it killed for lack of memory.
    memory: Option<(PathBuf, Version)>,
}

#[derive(Debug)]
struct Cgroup {
    path: PathBuf,
    /// File of a group. A process that writes a zero to it moves into the group.
    entry: OwnedFd,
}

impl TreeCgroups {
    /// Creates the groups for `limits`. Without limits, creates none.
    pub(crate) fn new(limits: &Limits) -> Result<Self, Unenforceable> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut group = Self { parts: Vec::new(), memory: None };
        for (controller, limit) in limits.wanted() {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            group.add(controller, limit, number).map_err(|why| Unenforceable { controller, why })?;
        }
        Ok(group)
    }

    fn add(&mut self, controller: Controller, limit: u64, number: u64) -> Result<(), String> {
        let place = CgroupRoot::find(controller)?;
        place.divide()?;
        // The remainders 0 and 1 both count, because with version 1 the numbers may alternate between two
        // hierarchies.
        if number % SWEEP_EVERY < 2 {
            remove_stale(&place.path);
        }
        let known = self.parts.iter().find(|part| part.path.parent() == Some(&*place.path));
        let path = match known {
            Some(part) => part.path.clone(),
            None => {
                let (path, entry) =
                    create_cgroup(&place.path, number).map_err(|error| place.explain(&error))?;
                self.parts.push(Cgroup { path: path.clone(), entry });
                path
            }
        };
        write_limit(&path, controller, place.version, limit).map_err(|error| place.explain(&error))?;
        if controller == Controller::Memory {
            self.memory = Some((path, place.version));
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the files to which a worker writes a zero to move into the groups.
    pub(crate) fn entries(&self) -> [Option<BorrowedFd<'_>>; 2] {
        let mut entries = self.parts.iter().map(|part| part.entry.as_fd());
        [entries.next(), entries.next()]
    }

    /// Returns `true` if the kernel has killed a process for lack of memory.
    pub(crate) fn oom(&self) -> bool {
        let Some((path, version)) = &self.memory else { return false };
        let read = |file| fs::read_to_string(path.join(file)).unwrap_or_default();
        match version {
            Version::Two => has_kills(&read("memory.events")).unwrap_or(false),
            // Old kernels only count how often the limit was reached.
            Version::One => has_kills(&read("memory.oom_control"))
                .unwrap_or_else(|| read("memory.failcnt").trim().parse().is_ok_and(|count: u64| count > 0)),
        }
    }
}

/// Returns `true` if the kernel has killed a process of the group. `None` if the kernel does not report that.
fn has_kills(text: &str) -> Option<bool> {
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
    count.trim().parse().ok().map(|count: u64| count > 0)
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..MAX_REMOVAL_ATTEMPTS {
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(REMOVAL_PAUSE); // sleep: an empty group causes no notification, so this polls
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return tracing::warn!(path = %self.path.display(), %error, "control group not removed");
                }
                _ => return,
            }
        }
        tracing::warn!(path = %self.path.display(), "control group not removed: it has processes");
    }
}

/// Creates a group in `parent`. Returns the group's path and the file by which processes enter the group.
fn create_cgroup(parent: &Path, number: u64) -> io::Result<(PathBuf, OwnedFd)> {
    for attempt in 0..MAX_NAME_ATTEMPTS {
        let again = if attempt == 0 { String::new() } else { format!("-{attempt}") };
        let path = parent.join(format!("{GROUP_PREFIX}{}-{number}{again}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        }
        let entry = fs::OpenOptions::new().write(true).open(path.join("cgroup.procs"));
        return match entry.and_then(|file| above_stdio(file.into())) {
            Ok(entry) => Ok((path, entry)),
            Err(error) => {
                _ = fs::remove_dir(&path);
                Err(error)
            }
        };
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn write_limit(path: &Path, controller: Controller, version: Version, limit: u64) -> io::Result<()> {
    // Without a limit of swap, memory that is swapped out would not count.
    let (file, swap) = match (controller, version) {
        (Controller::Pids, _) => ("pids.max", None),
        (Controller::Memory, Version::Two) => ("memory.max", Some(("memory.swap.max", 0))),
        (Controller::Memory, Version::One) => {
            ("memory.limit_in_bytes", Some(("memory.memsw.limit_in_bytes", limit)))
        }
    };
    write(&path.join(file), &limit.to_string())?;
    match swap.map(|(file, limit)| write(&path.join(file), &limit.to_string())) {
        // A machine without swap lacks this file, and needs no limit.
        Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes groups that dead processes of this program have left. A group with processes cannot be removed.
fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(owner_pid);
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
            && let Err(error) = fs::remove_dir(entry.path())
        {
            tracing::debug!(path = %entry.path().display(), %error, "leftover control group not removed");
        }
    }
}

fn owner_pid(name: &str) -> Option<u32> {
    let (pid, rest) = name.strip_prefix(GROUP_PREFIX)?.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let ours = rest == OWN_GROUP_NAME || rest.split('-').all(is_number);
    (ours && is_number(pid)).then(|| pid.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_names_contain_the_owner_pid() {
        for (name, expected) in [
            ("narrows-12-0", Some(12)),
            ("narrows-12-7-1", Some(12)),
            ("narrows-12-self", Some(12)),
            ("narrows-12-other", None),
            ("narrows-12-", None),
            ("narrows-12", None),
            ("narrows--1", None),
            ("narrows-+1-1", None),
            ("user.slice", None),
        ] {
            assert_eq!(owner_pid(name), expected, "{name}");
        }
    }

    #[test]
    fn only_groups_of_dead_processes_are_removed() {
        let place = tempfile::tempdir().unwrap();
        // No process can have the highest pid, so the group is stale.
        let dead = format!("narrows-{}-3", u32::MAX);
        let alive = format!("narrows-{}-3", std::process::id());
        for name in [&*dead, &*alive, "strange"] {
            fs::create_dir(place.path().join(name)).unwrap();
        }
        remove_stale(place.path());
        assert!(!place.path().join(dead).exists());
        assert!(place.path().join(alive).exists());
        assert!(place.path().join("strange").exists());
    }

    #[test]
    fn kills_for_lack_of_memory_are_detected() {
        let check = |version, files: &[(&str, &str)], expected| {
            let place = tempfile::tempdir().unwrap();
            for (name, text) in files {
                fs::write(place.path().join(name), text).unwrap();
            }
            let group = TreeCgroups { parts: Vec::new(), memory: Some((place.path().to_owned(), version)) };
            assert_eq!(group.oom(), expected, "{files:?}");
        };
        check(
            Version::Two,
            &[("memory.events", "low 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 0\n")],
            true,
        );
        check(Version::Two, &[("memory.events", "low 0\nmax 9\noom 1\noom_kill 0\n")], false);
        check(Version::Two, &[], false);
        let control = |kills: &str| format!("oom_kill_disable 0\nunder_oom 0\n{kills}");
        check(
            Version::One,
            &[("memory.oom_control", &control("oom_kill 2\n")), ("memory.failcnt", "0\n")],
            true,
        );
        check(
            Version::One,
            &[("memory.oom_control", &control("oom_kill 0\n")), ("memory.failcnt", "5\n")],
            false,
        );
        check(Version::One, &[("memory.oom_control", &control("")), ("memory.failcnt", "5\n")], true);
        check(Version::One, &[("memory.oom_control", &control("")), ("memory.failcnt", "0\n")], false);
    }

    #[test]
    fn without_limits_there_is_no_group() {
        let group = TreeCgroups::new(&Limits::default()).unwrap();
        assert!(group.entries().iter().all(Option::is_none));
        assert!(!group.oom());
    }
}
