//! Prepares the worker's mount namespace before the fork.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySet, capabilities};

use super::private_root::Layout;
use super::protected_paths;
use crate::enter_sandbox::{
    IdentityPlan, MAX_ROOT_MOUNTS, MAX_WRITABLE_MOUNTS, MountPlan, Processes, ShapePlan,
};
use crate::sys::Arena;

/// The source of a worker's right to mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// The program is root. It then avoids a user namespace, in which the files of other users would belong
    /// to `nobody`.
    Own,
    /// The worker gets a user namespace, in which every user may mount.
    UserNamespace,
}

/// The namespaces that a worker gets in addition to its mount namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Namespaces {
    pub(crate) right: Right,
    pub(crate) processes: Processes,
}

impl Namespaces {
    /// Returns the combinations of namespaces to try, best first.
    pub(crate) fn candidates() -> impl Iterator<Item = Self> {
        let own = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
        let rights = own.then_some(Right::Own).into_iter().chain([Right::UserNamespace]);
        let can_have_own =
            fs::read_to_string("/proc/self/mountinfo").is_ok_and(|mounts| shows_procfs(&mounts));
        let processes = can_have_own.then_some(Processes::Own).into_iter().chain([Processes::All]);
        rights.flat_map(move |right| processes.clone().map(move |processes| Self { right, processes }))
    }
}

/// Empty mount points in procfs. A mount on them hides nothing.
const EMPTY_IN_PROCFS: [&str; 2] = ["/proc/fs/nfsd", "/proc/sys/fs/binfmt_misc"];

/// Returns `true` if no part of procfs is covered or read-only according to `/proc/self/mountinfo`.
///
/// A container covers the parts that its processes must not access. A PID namespace needs a new procfs, in
/// which nothing is covered. In a user namespace the kernel refuses that mount, but root may make it.
fn shows_procfs(mounts: &str) -> bool {
    let mut is_mounted = false;
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(3);
        let (Some(root), Some(at), Some(options)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if at == "/proc" {
            is_mounted = root == "/" && options.split(',').all(|option| option != "ro");
        } else if at.starts_with("/proc/") && !EMPTY_IN_PROCFS.contains(&at) {
            return false;
        }
    }
    is_mounted
}

#[derive(Debug)]
pub(crate) struct Mounts {
    /// The id mappings of the user and the group, in the kernel's format.
    identity: Option<[CString; 2]>,
    processes: Processes,
    shape: Shape,
}

#[derive(Debug)]
enum Shape {
    /// The whole file system is visible, and only some paths are writable.
    All {
        writable: Vec<CString>,
        pinned: Vec<CString>,
        sealed: Vec<CString>,
    },
    Pieces {
        root: CString,
        proc: CString,
        sources: Vec<CString>,
        places: Vec<CString>,
        writable: Vec<u8>,
    },
}

impl Mounts {
    /// Prepares mounts that make `writable` paths and the worker's own `scratch` directory writable, but not
    /// `protected` paths.
    pub(crate) fn new(
        namespaces: Namespaces,
        writable: &[PathBuf],
        scratch: &Path,
        protected: &[PathBuf],
    ) -> io::Result<Self> {
        let mut sealed = protected_paths::protected(protected, writable).map_err(io::Error::other)?;
        sealed.extend(protected_paths::links(protected, writable));
        sealed.sort();
        let pinned =
            protected_paths::pinned(&sealed, writable).into_iter().map(text).collect::<io::Result<_>>()?;
        let is_inside = |path: &Path| writable.iter().any(|root| path.starts_with(root));
        let shown = writable.iter().map(PathBuf::as_path).chain((!is_inside(scratch)).then_some(scratch));
        // If the root directory is writable, everything must stay writable.
        let everything = writable.iter().any(|root| root == Path::new("/"));
        let writable: Vec<CString> =
            if everything { Vec::new() } else { shown.map(text).collect::<io::Result<_>>()? };
        if writable.len() > MAX_WRITABLE_MOUNTS {
            return Err(io::Error::other(format!(
                "there are more than {MAX_WRITABLE_MOUNTS} writable paths"
            )));
        }
        let sealed = sealed.iter().map(|path| text(path)).collect::<io::Result<_>>()?;
        let Namespaces { right, processes } = namespaces;
        Ok(Self { identity: identity(right)?, processes, shape: Shape::All { writable, pinned, sealed } })
    }

    pub(crate) fn private_root(namespaces: Namespaces, layout: &Layout) -> io::Result<Self> {
        if layout.mounts.len() > MAX_ROOT_MOUNTS {
            return Err(io::Error::other(format!("more than {MAX_ROOT_MOUNTS} mounts")));
        }
        let (mut sources, mut places, mut writable) = (Vec::new(), Vec::new(), Vec::new());
        for mount in &layout.mounts {
            sources.push(text(&mount.source)?);
            places.push(text(&mount.at)?);
            writable.push(u8::from(mount.writable));
        }
        let (root, proc) = (text(&layout.root)?, text(&layout.root.join("proc"))?);
        Ok(Self {
            identity: identity(namespaces.right)?,
            processes: namespaces.processes,
            shape: Shape::Pieces { root, proc, sources, places, writable },
        })
    }

    pub(crate) fn size(&self) -> usize {
        let (lists, more, bytes): ([&[CString]; 3], [Option<&CString>; 2], usize) = match &self.shape {
            Shape::All { writable, pinned, sealed } => ([writable, pinned, sealed], [None, None], 0),
            Shape::Pieces { root, proc, sources, places, writable } => {
                ([sources, places, &[]], [Some(root), Some(proc)], writable.len())
            }
        };
        let strings = lists.into_iter().flatten().chain(self.identity.iter().flatten());
        let strings = strings.chain(more.into_iter().flatten());
        bytes + strings.map(|string| string.count_bytes() + 1 + 2 * size_of::<usize>()).sum::<usize>()
    }

    pub(crate) fn plan<'a>(&self, arena: &'a Arena) -> io::Result<MountPlan<'a>> {
        let identity = match &self.identity {
            Some([user, group]) => {
                Some(IdentityPlan { user: arena.string(user)?, group: arena.string(group)? })
            }
            None => None,
        };
        let shape = match &self.shape {
            Shape::All { writable, pinned, sealed } => ShapePlan::All {
                writable: arena.strings(writable)?,
                pinned: arena.strings(pinned)?,
                sealed: arena.strings(sealed)?,
            },
            Shape::Pieces { root, proc, sources, places, writable } => {
                let modes = arena.zeroed(writable.len())?;
                modes.copy_from_slice(writable);
                ShapePlan::Pieces {
                    root: arena.string(root)?,
                    proc: arena.string(proc)?,
                    sources: arena.strings(sources)?,
                    places: arena.strings(places)?,
                    writable: modes,
                }
            }
        };
        Ok(MountPlan { identity, processes: self.processes, shape })
    }
}

fn identity(right: Right) -> io::Result<Option<[CString; 2]>> {
    match right {
        Right::Own => Ok(None),
        Right::UserNamespace => {
            let [user, group] = [geteuid().as_raw(), getegid().as_raw()];
            Ok(Some([CString::new(format!("{user} {user} 1"))?, CString::new(format!("{group} {group} 1"))?]))
        }
    }
}

fn text(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_covered_or_read_only_procfs_is_not_mounted_anew() {
        let line = |root: &str, at: &str, options: &str| {
            format!("22 27 0:21 {root} {at} {options} - proc proc rw\n")
        };
        let plain = line("/", "/proc", "rw,relatime");
        let others = line("/", "/", "ro") + &line("/", "/processes", "ro") + &line("/", "/sys", "ro");
        let empty = line("/", "/proc/sys/fs/binfmt_misc", "rw,relatime");
        assert!(shows_procfs(&format!("{others}{plain}{empty}")));
        assert!(!shows_procfs(&others), "there is none");
        assert!(!shows_procfs(&line("/", "/proc", "nosuid,ro")));
        assert!(!shows_procfs(&line("/sys", "/proc", "rw")), "only a part of it");
        for covered in ["/proc/sys", "/proc/kcore", "/proc/sys/fs/binfmt_misc/x"] {
            assert!(!shows_procfs(&format!("{plain}{}", line("/", covered, "rw"))), "{covered}");
        }
    }
}
