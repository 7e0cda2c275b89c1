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
    /// Merges stderr with stdout, in the order of the worker's writes. Then no stderr is kept.
    pub merge_stderr: bool,
    pub sandbox: Option<Sandbox>,
    /// The limits of the worker's tree. If one cannot be set, nothing starts.
    pub limits: Limits,
    /// Soft limit of descriptors; `None` keeps the supervisor's. With many descriptors, programs that use
    /// `select` fail, and some programs that close all possible ones are slow.
    pub descriptors: Option<u64>,
    /// Limit of processor time of each process, rounded up to seconds. The kernel ends processes beyond it.
    /// There is no limit for the tree as a whole.
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
    /// Links are an error. For a path that was resolved and checked before: if a directory has become a
    /// link since, it would lead elsewhere. The path must be absolute and normalized.
    Refuse,
}

/// The timeouts of [`Child::stop`](crate::Child::stop) between its steps: end of input, `SIGTERM`, `SIGKILL`.
///
/// The default takes at most six seconds, so that a stop fits into ten on a loaded machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ladder {
    /// Time between the end of the worker's stdin and `SIGTERM`.
    pub eof_grace: Duration,
    pub term_grace: Duration,
}

impl Default for Ladder {
    fn default() -> Self {
        Self { eof_grace: Duration::from_secs(2), term_grace: Duration::from_secs(3) }
    }
}
