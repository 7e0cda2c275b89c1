//! What the processes of stdio servers run in.

use std::any::Any;
use std::fmt;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use narrows_process::{Limits, Sandbox};

/// Whatever lets connections through as long as it lives.
pub type WayOut = Box<dyn Any + Send + Sync>;

/// A sandbox and limits for each process, and the way out of it.
#[derive(Clone)]
pub struct Confinement {
    /// What each process and its tree run in.
    pub sandbox: Sandbox,
    /// What each tree may use.
    pub limits: Limits,
    /// How much time of the processor each process may use.
    pub processor: Option<Duration>,
    /// Takes the listener of a process that has a network of its own. What it returns is dropped with the process.
    pub way_out: Arc<dyn Fn(TcpListener) -> Option<WayOut> + Send + Sync>,
}

impl fmt::Debug for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Confinement").field("sandbox", &self.sandbox).finish_non_exhaustive()
    }
}
