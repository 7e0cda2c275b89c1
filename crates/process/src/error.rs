//! Why a worker could not be started.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::Unenforceable;

/// Why [`spawn`](crate::spawn) failed. The worker has not run and nothing of it is left, except for
/// [`SpawnError::Guardian`], where the worker may have run briefly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// The program exists neither at the path nor in the worker's `PATH`.
    #[error("program {program:?} not found{}", if searched.is_some() { " in PATH" } else { "" })]
    NotFound {
        /// The requested program.
        program: OsString,
        /// The `PATH` that was searched; `None` if the program was given as a path.
        searched: Option<OsString>,
    },
    /// The file exists but may not be executed.
    #[error("{} is not executable", path.display())]
    NotExecutable {
        /// The file that was found.
        path: PathBuf,
    },
    /// The program is a directory.
    #[error("{} is a directory, not a program", path.display())]
    IsDirectory {
        /// The directory that was found.
        path: PathBuf,
    },
    /// The working directory is missing, not a directory or not accessible.
    #[error("working directory {} is not usable", path.display())]
    Cwd {
        /// The requested directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A program name, argument or environment variable that a process cannot have.
    #[error("{what} contains a NUL character")]
    Invalid {
        /// The part of the specification.
        what: &'static str,
    },
    /// The kernel refused to execute the program.
    #[error("cannot execute {}", path.display())]
    Exec {
        /// The file to execute.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A sandbox is required, and this machine supports none.
    #[error("no sandbox: {why}")]
    NoSandbox {
        /// What is missing.
        why: String,
    },
    /// A path that the sandbox must show is missing or cannot be shown.
    #[error("the sandbox cannot mount {}", path.display())]
    SandboxPlace {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The sandbox could not be created.
    #[error("cannot {action}")]
    Sandbox {
        /// What was attempted.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A limit cannot be enforced.
    #[error(transparent)]
    Limit(#[from] Unenforceable),
    /// The worker's surroundings could not be set up.
    #[error("cannot {action}")]
    Setup {
        /// What was attempted.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The guardian or the worker was killed before the program ran.
    #[error("the process was killed during its start")]
    Guardian,
}

impl SpawnError {
    /// Returns `true` if the machine lacked descriptors, processes or memory. A later attempt may succeed.
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
    fn a_shortage_is_no_fault_of_the_worker() {
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
