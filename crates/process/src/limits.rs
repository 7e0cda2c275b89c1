//! Limits of a worker's tree, enforced by the kernel.

mod cgroup;
mod cgroup_root;

use std::fmt;

pub(crate) use self::cgroup::TreeCgroups;
use self::cgroup_root::CgroupRoot;

/// Limits of the resources that a worker and its descendants may use together. The kernel enforces them by
/// control groups, from the first instruction of the worker on.
///
/// This prevents accidents, not attacks: a process that may create groups may also leave them. A worker
/// runs as the same user as this program, so only a sandbox keeps it from writing there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum memory in bytes, including swap. If the tree exceeds it, the kernel kills processes
    /// ([`Exit::oom`](crate::Exit::oom)).
    pub memory: Option<u64>,
    /// Maximum number of processes and threads. If the tree exceeds it, `fork` fails.
    pub pids: Option<u64>,
}

/// A resource that can be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Controller {
    Memory,
    Pids,
}

impl Controller {
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

/// Error: a limit cannot be enforced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {controller} controller is unavailable: {why}")]
pub struct Unenforceable {
    pub controller: Controller,
    pub why: String,
}

impl Limits {
    /// Checks that this machine can probably enforce a limit of this kind, without changing anything.
    ///
    /// # Errors
    /// If it cannot.
    pub fn check(controller: Controller) -> Result<(), Unenforceable> {
        CgroupRoot::find(controller)
            .and_then(|place| place.check())
            .map_err(|why| Unenforceable { controller, why })
    }

    /// Checks that these limits can be set, by setting them on empty groups. With control groups version 2,
    /// this program moves into a child of its own group, because only a group without processes can have
    /// children with limits.
    ///
    /// # Errors
    /// If one cannot.
    pub fn try_out(&self) -> Result<(), Unenforceable> {
        TreeCgroups::new(self).map(drop)
    }

    fn wanted(&self) -> impl Iterator<Item = (Controller, u64)> {
        let memory = self.memory.map(|limit| (Controller::Memory, limit));
        memory.into_iter().chain(self.pids.map(|limit| (Controller::Pids, limit)))
    }
}
