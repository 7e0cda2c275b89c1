//! Limits of a worker's tree, as far as the kernel can enforce them.

mod cgroup;
mod cgroup_root;

use std::fmt;

pub(crate) use self::cgroup::TreeCgroups;
use self::cgroup_root::CgroupRoot;

/// What a worker and its descendants may use together. The kernel enforces it by control groups from the first
/// instruction of the worker on.
///
/// This prevents accidents, not attacks: a process that may create groups may also leave them, and a worker runs as the
/// same user, unless a sandbox keeps it from writing there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory, swap included. Beyond it the kernel kills processes ([`Exit::oom`](crate::Exit::oom)).
    pub memory: Option<u64>,
    /// Processes and threads. Beyond it `fork` fails.
    pub pids: Option<u64>,
}

/// A resource that can be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Controller {
    /// Memory.
    Memory,
    /// Processes and threads.
    Pids,
}

impl Controller {
    /// The kernel's name.
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A limit that cannot be enforced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {controller} controller is unavailable: {why}")]
pub struct Unenforceable {
    /// The resource.
    pub controller: Controller,
    /// The reason.
    pub why: String,
}

impl Limits {
    /// Checks that this machine can enforce a limit of this kind, as far as that is visible without changes.
    ///
    /// # Errors
    /// If it cannot.
    pub fn check(controller: Controller) -> Result<(), Unenforceable> {
        CgroupRoot::find(controller)
            .and_then(|place| place.check())
            .map_err(|why| Unenforceable { controller, why })
    }

    /// Checks that these limits can be set, by setting them on empty groups. With control groups version 2, this
    /// program moves into a child of its own group, because only a group without processes can be divided.
    ///
    /// # Errors
    /// If one cannot.
    pub fn try_out(&self) -> Result<(), Unenforceable> {
        TreeCgroups::new(self).map(drop)
    }

    /// The limited resources and their limits.
    fn wanted(&self) -> impl Iterator<Item = (Controller, u64)> {
        let memory = self.memory.map(|limit| (Controller::Memory, limit));
        memory.into_iter().chain(self.pids.map(|limit| (Controller::Pids, limit)))
    }
}
