//! What to start and how patiently to end it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Environment, Limits, Sandbox};

/// Everything [`spawn`](crate::spawn) needs to know about a worker.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The program: a path if it contains a slash, otherwise a name looked up in the *worker's* `PATH`. A
    /// relative path is taken from `cwd`. It also becomes `argv[0]`.
    pub program: OsString,
    /// The arguments after `argv[0]`. They reach the program as they are; no shell is involved.
    pub args: Vec<OsString>,
    /// The worker's working directory; `None` keeps ours.
    pub cwd: Option<PathBuf>,
    /// Whether `cwd` may lead through links when the worker enters it.
    pub cwd_links: CwdLinks,
    /// The worker's whole environment.
    pub env: Environment,
    /// How many of the last bytes of stderr are kept.
    pub stderr_limit: usize,
    /// Whether stderr goes where stdout goes, in the order in which the worker writes. Then nothing of it is kept.
    pub merge_stderr: bool,
    /// What confines the worker and its tree; `None` lets them do what we may. If it cannot be had, nothing starts.
    pub sandbox: Option<Sandbox>,
    /// What the worker and its tree may use. If a limit cannot be set, nothing starts.
    pub limits: Limits,
    /// How many descriptors the worker may have until it asks for more; `None` is as many as we may. Programs that use
    /// `select` break with many, and some that close all there could be take long.
    pub descriptors: Option<u64>,
    /// How much time of the processor each process of the tree may use, in whole seconds, rounded up. Who needs more is
    /// ended by the kernel. It is not counted for the tree as a whole.
    pub processor: Option<Duration>,
    /// How long processes that outlive the worker, the [`Child`](crate::Child) or the supervisor have
    /// between `SIGTERM` and `SIGKILL`.
    pub orphan_grace: Duration,
}

impl Spec {
    /// A worker without arguments, in our working directory, with an empty environment: without a `PATH` in it, a
    /// program given by name is looked for in the system's usual places only.
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
    /// They are an error. For a path that was resolved and judged before: a directory that became a link since then would
    /// lead elsewhere. The path must be absolute and plain.
    Refuse,
}

/// The patience of [`Child::stop`](crate::Child::stop) on each rung: end of input, `SIGTERM`, `SIGKILL`.
///
/// The default is over within six seconds, so that a stop fits into ten with room for a loaded machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ladder {
    /// From the closing of the worker's stdin to `SIGTERM`.
    pub eof_grace: Duration,
    /// From `SIGTERM` to `SIGKILL`.
    pub term_grace: Duration,
}

impl Default for Ladder {
    fn default() -> Self {
        Self { eof_grace: Duration::from_secs(2), term_grace: Duration::from_secs(3) }
    }
}
