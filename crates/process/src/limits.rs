//! What a worker's tree may use of this machine, and what the kernel lets us enforce of it.

mod cgroup;
mod cgroup_root;

use std::fmt;

pub(crate) use self::cgroup::TreeCgroups;
use self::cgroup_root::CgroupRoot;

/// What a worker and all it starts may use together. The kernel keeps them to it by control groups, from the first
/// instruction of the worker on.
///
/// This stops accidents, not attacks: whoever may make groups may also leave them, and a worker runs as the same user
/// as we do, unless a sandbox keeps it from writing there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory, swap included. Who needs more is killed by the kernel ([`Exit::oom`](crate::Exit::oom)).
    pub memory: Option<u64>,
    /// Processes and threads. Who wants more gets an error from `fork`.
    pub pids: Option<u64>,
}

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Controller {
    /// Memory.
    Memory,
    /// Processes and threads.
    Pids,
}

impl Controller {
    /// As the kernel calls it.
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

/// A limit that cannot be set here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {controller} controller cannot be used: {why}")]
pub struct Unenforceable {
    /// What was to be limited.
    pub controller: Controller,
    /// What is missing.
    pub why: String,
}

impl Limits {
    /// Whether this machine can enforce a limit of this kind, as far as can be told without changing anything.
    ///
    /// # Errors
    /// When it cannot.
    pub fn check(controller: Controller) -> Result<(), Unenforceable> {
        CgroupRoot::find(controller)
            .and_then(|place| place.check())
            .map_err(|why| Unenforceable { controller, why })
    }

    /// Whether these limits can be set, by setting them for nobody. Where control groups are version 2 and this
    /// program has one of its own, it moves into a part of it, because only what holds no process can be divided.
    ///
    /// # Errors
    /// When one cannot.
    pub fn try_out(&self) -> Result<(), Unenforceable> {
        TreeCgroups::new(self).map(drop)
    }

    /// What is limited, and to how much.
    fn wanted(&self) -> impl Iterator<Item = (Controller, u64)> {
        let memory = self.memory.map(|limit| (Controller::Memory, limit));
        memory.into_iter().chain(self.pids.map(|limit| (Controller::Pids, limit)))
    }
}
