//! What to start, and the timeouts for ending it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Environment, Limits, Sandbox};

/// The specification of a worker.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The program: a path if it contains a slash, otherwise a name that is searched in the *worker's* `PATH`. A
    /// relative path starts at `cwd`. Also becomes `argv[0]`.
    pub program: OsString,
    /// The arguments after `argv[0]`. No shell is involved.
    pub args: Vec<OsString>,
    /// The worker's working directory; `None` keeps the supervisor's.
    pub cwd: Option<PathBuf>,
    /// Whether `cwd` may contain links when the worker enters it.
    pub cwd_links: CwdLinks,
    /// The worker's whole environment.
    pub env: Environment,
    /// Number of bytes of stderr that are kept.
    pub stderr_limit: usize,
    /// Merges stderr with stdout, in the order of the worker's writes. Nothing of it is kept.
    pub merge_stderr: bool,
    /// The sandbox of the worker's tree. If it is not available, nothing starts.
    pub sandbox: Option<Sandbox>,
    /// The limits of the worker's tree. If one cannot be set, nothing starts.
    pub limits: Limits,
    /// The soft limit of descriptors; `None` keeps the supervisor's. Programs that use `select` fail with many
    /// descriptors, and some that close all possible ones are slow.
    pub descriptors: Option<u64>,
    /// Limit of processor time of each process, in seconds, rounded up. The kernel ends processes beyond it. It does
    /// not apply to the tree as a whole.
    pub processor: Option<Duration>,
    /// The time between `SIGTERM` and `SIGKILL` for processes that outlive the worker, the [`Child`](crate::Child) or
    /// the supervisor.
    pub orphan_grace: Duration,
}

impl Spec {
    /// Creates the specification of a worker without arguments, in this working directory, with an empty environment:
    /// without a `PATH` in it, a name is searched in the usual system directories only.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            cwd: None,
            cwd_links: CwdLinks::Follow,
            env: Environment::empty(),
            stderr_limit: 64 * 1024,
            merge_stderr: false,
            sandbox: None,
            limits: Limits::default(),
            descriptors: None,
            processor: None,
            orphan_grace: Duration::from_secs(2),
        }
    }
}

/// Links in the path of a working directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CwdLinks {
    /// They are followed.
    #[default]
    Follow,
    /// They are an error, for a path that was resolved and checked before: a directory that has become a link since
    /// would lead elsewhere. The path must be absolute and normalized.
    Refuse,
}

/// The timeouts of [`Child::stop`](crate::Child::stop) between its steps: end of input, `SIGTERM`, `SIGKILL`.
///
/// The default takes at most six seconds, so that a stop fits into ten on a loaded machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ladder {
    /// Between the end of the worker's stdin and `SIGTERM`.
    pub eof_grace: Duration,
    /// Between `SIGTERM` and `SIGKILL`.
    pub term_grace: Duration,
}

impl Default for Ladder {
    fn default() -> Self {
        Self { eof_grace: Duration::from_secs(2), term_grace: Duration::from_secs(3) }
    }
}
