//! Errors of starting a worker.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::Unenforceable;

/// Reason why [`spawn`](crate::spawn) failed. The worker has not run, and no part of it is left. With
/// [`SpawnError::Guardian`], the worker may have run briefly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// The program exists neither at the path nor in the worker's `PATH`.
    #[error("program {program:?} not found{}", if searched.is_some() { " in PATH" } else { "" })]
    NotFound {
        program: OsString,
        /// The `PATH` in which the program was searched. `None` if the program was given as a path.
        searched: Option<OsString>,
    },
    #[error("{} is not executable", path.display())]
    NotExecutable { path: PathBuf },
    #[error("{} is a directory, not a program", path.display())]
    IsDirectory { path: PathBuf },
    /// The working directory is missing, not a directory or not accessible.
    #[error("working directory {} is not usable", path.display())]
    Cwd { path: PathBuf, source: io::Error },
    /// A program name, argument or environment variable that a process cannot have.
    #[error("{what} contains a NUL character")]
    Invalid {
        /// Name of the invalid part of the specification.
        what: &'static str,
    },
    #[error("cannot execute {}", path.display())]
    Exec { path: PathBuf, source: io::Error },
    /// A sandbox is required, but this machine supports none.
    #[error("no sandbox: {why}")]
    NoSandbox {
        /// The part of a sandbox that this machine lacks.
        why: String,
    },
    /// A path that the sandbox must show is missing or cannot be shown.
    #[error("the sandbox cannot mount {}", path.display())]
    SandboxPlace { path: PathBuf, source: io::Error },
    #[error("cannot {action}")]
    Sandbox { action: &'static str, source: io::Error },
    #[error(transparent)]
    Limit(#[from] Unenforceable),
    /// The pipes, processes or other resources of the worker could not be set up.
    #[error("cannot {action}")]
    Setup { action: &'static str, source: io::Error },
    /// The guardian or the worker was killed before the program ran.
    #[error("the process was killed during its start")]
    Guardian,
}

impl SpawnError {
    /// Returns `true` if the machine lacked descriptors, processes or memory, so that a later attempt may
    /// succeed.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        let source = match self {
            Self::Cwd { source, .. }
            | Self::Exec { source, .. }
            | Self::SandboxPlace { source, .. }
            | Self::Sandbox { source, .. }
            | Self::Setup { source, .. } => source,
            Self::NotFound { .. }
            | Self::NotExecutable { .. }
            | Self::IsDirectory { .. }
            | Self::Invalid { .. }
            | Self::NoSandbox { .. }
            | Self::Limit(_)
            | Self::Guardian => return false,
        };
        let short = [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM];
        source.raw_os_error().is_some_and(|raw| short.iter().any(|errno| errno.raw_os_error() == raw))
    }

    pub(crate) fn setup(action: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Setup { action, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_resource_errors_are_a_shortage() {
        for (errno, expected) in [
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::AGAIN, true),
            (Errno::NOMEM, true),
            (Errno::ACCESS, false),
            (Errno::NOEXEC, false),
        ] {
            let error = SpawnError::setup("fork")(errno.into());
            assert_eq!(error.is_shortage(), expected, "{errno}");
        }
        assert!(!SpawnError::setup("fork")(io::Error::other("no")).is_shortage());
        assert!(!SpawnError::Guardian.is_shortage());
    }
}
