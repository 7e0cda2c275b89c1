//! The sandbox of stdio servers.

use std::any::Any;
use std::fmt;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use narrows_process::{Limits, Sandbox};

/// Serves the network access of a sandbox until it is dropped.
pub type EgressGuard = Box<dyn Any + Send + Sync>;

/// Sandbox, limits and network access of the processes of stdio servers.
#[derive(Clone)]
pub struct Confinement {
    pub sandbox: Sandbox,
    pub limits: Limits,
    /// Maximum processor time of each process.
    pub processor: Option<Duration>,
    /// Called with the listener of a process that has its own network. The returned guard is dropped when the
    /// process ends.
    pub open_egress: Arc<dyn Fn(TcpListener) -> Option<EgressGuard> + Send + Sync>,
}

impl fmt::Debug for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Confinement").field("sandbox", &self.sandbox).finish_non_exhaustive()
    }
}
