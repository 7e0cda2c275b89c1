//! The specification of a worker, and the timeouts for ending it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Environment, Limits, Sandbox};

/// The specification of a worker.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The program: a path if it contains a slash, otherwise a name that is searched in the *worker's*
    /// `PATH`. A relative path starts at `cwd`. Also becomes `argv[0]`.
    pub program: OsString,
    pub args: Vec<OsString>,
    pub cwd: Option<PathBuf>,
    /// Policy for links in `cwd` when the worker enters it.
    pub cwd_links: CwdLinks,
    pub env: Environment,
    pub stderr_limit: usize,
    /// `true` to merge stderr with stdout, in the order of the worker's writes. No text of stderr is kept
    /// then.
    pub merge_stderr: bool,
    pub sandbox: Option<Sandbox>,
    /// Limits of the worker's tree. If a limit cannot be set, the worker is not started.
    pub limits: Limits,
    /// Soft limit of open descriptors; `None` keeps the supervisor's limit. With a high limit, programs that
    /// use `select` fail, and programs that close all possible descriptors are slow.
    pub descriptors: Option<u64>,
    /// Maximum processor time of each process, rounded up to seconds. The kernel ends a process that exceeds
    /// it. The tree as a whole has no limit.
    pub processor: Option<Duration>,
    /// Time between `SIGTERM` and `SIGKILL` for processes that outlive the worker, the
    /// [`Child`](crate::Child) or the supervisor.
    pub orphan_grace: Duration,
}

impl Spec {
    /// Creates the specification of a worker without arguments, in this working directory, with an empty
    /// environment. Without a `PATH` in the environment, a program name is searched only in the usual
    /// system directories.
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

/// Policy for links in the path of a working directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CwdLinks {
    #[default]
    Follow,
    /// A link is an error. Meant for a path that was resolved and checked before: a directory that has become
    /// a link since would lead elsewhere. The path must be absolute and normalized.
    Refuse,
}

/// The timeouts of [`Child::stop`](crate::Child::stop) between its steps: end of input, `SIGTERM`, `SIGKILL`.
///
/// The default takes at most six seconds, so that a stop fits into ten on a loaded machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ladder {
    /// Time between closing the worker's stdin and sending `SIGTERM`.
    pub eof_grace: Duration,
    pub term_grace: Duration,
}

impl Default for Ladder {
    fn default() -> Self {
        Self { eof_grace: Duration::from_secs(2), term_grace: Duration::from_secs(3) }
    }
}
