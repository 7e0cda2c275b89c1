//! Failures of commands that inspect agents, sessions, rules and manifests.

use std::io;
use std::path::Path;

use narrows_client::{ClientError, Problem};
use narrows_config::Finding;
use narrows_process::SpawnError;

use super::{ExitStatus, Failure};
use crate::terminal::line;

impl Failure {
    pub(crate) fn not_installed(agent: &str, program: &str, error: &SpawnError) -> Self {
        let message = match agent == program {
            true => format!("cannot start the agent {agent:?}"),
            false => format!("cannot start the agent {agent:?}, because of its program {program:?}"),
        };
        let failure = Self::new(ExitStatus::Start, message);
        match error {
            SpawnError::NotFound { searched: Some(_), .. } => failure
                .with_cause(&io::Error::other("not found in PATH"))
                .with_hint("install the program, or use its path"),
            SpawnError::NotFound { searched: None, .. } => {
                failure.with_cause(&io::Error::other("file not found"))
            }
            SpawnError::SandboxPlace { .. } => failure.with_cause(error).with_hint(
                "mount missing files, or install the program for the system: a sandbox contains the system, the \
                 mounts, and of a program elsewhere only itself or its node_modules, virtual environment or version",
            ),
            error => failure.with_cause(error),
        }
    }

    pub(crate) fn from_probe(error: ClientError) -> Self {
        let late = matches!(*error.problem, Problem::Deadline(_));
        let mut failure = Self::from(error);
        if late && let Some(hint) = failure.hints.first_mut() {
            // The default hint is about flags of `narrows run`.
            "if the agent starts slowly, allow more time: --timeout 2m".clone_into(hint);
        }
        failure
    }

    pub(crate) fn cannot_list_sessions(agent: &str) -> Self {
        Self::new(ExitStatus::Agent, format!("the agent {agent:?} does not support listing sessions"))
            .with_hint("continue a session by its id: narrows run --resume ID")
    }

    pub(crate) fn cannot_delete_session(agent: &str) -> Self {
        Self::new(ExitStatus::Agent, format!("the agent {agent:?} does not support deleting sessions"))
            .with_hint("check if the agent has its own command to delete sessions")
    }

    pub(crate) fn unknown_session<'a>(
        id: &str,
        agent: Option<&str>,
        known: impl Iterator<Item = &'a str>,
    ) -> Self {
        let failure = Self::new(ExitStatus::Usage, format!("the agent has no session {id:?}"));
        let mut meant = known.filter(|known| !id.is_empty() && known.starts_with(id));
        match (meant.next(), meant.next()) {
            (Some(meant), None) => failure.with_hint(format!("did you mean {}?", line(meant))),
            (Some(_), Some(_)) => failure.with_hint("use the full id, as several sessions start with this"),
            (None, _) => failure.with_hint(match agent {
                Some(agent) => {
                    format!("list its sessions: narrows sessions --all --agent {:?}", line(agent))
                }
                None => "list its sessions: narrows sessions --all".to_owned(),
            }),
        }
    }

    /// Reports an error in a configuration file, with the hint on a line of its own.
    pub(crate) fn config_finding(Finding { file, pos, message, hint, .. }: &Finding) -> Self {
        let failure = Self::new(ExitStatus::Usage, line(&format!("{file}:{pos}: {message}")));
        match hint {
            Some(hint) => failure.with_hint(line(hint)),
            None => failure,
        }
    }

    /// Reports an error in a manifest, with the hint on a line of its own.
    pub(crate) fn manifest_finding(what: String, finding: &narrows_manifest::Finding) -> Self {
        let failure = Self::new(ExitStatus::Usage, what);
        match &finding.hint {
            Some(hint) => failure.with_hint(line(hint)),
            None => failure,
        }
    }

    pub(crate) fn no_manifests(path: &Path) -> Self {
        let message = format!("check: no manifests in {:?}", path.display().to_string());
        Self::new(ExitStatus::Usage, line(&message)).with_hint(
            "manifests are named ACP.md, OPERATOR.md, GOVERNANCE.md, POLICY.md, SANDBOX.md, RUNNER.md or \
                        AGENT-CLI.md",
        )
    }

    pub(crate) fn record_unreadable(path: &Path, error: &io::Error) -> Self {
        Self::file_unreadable("--events", path, error)
    }

    pub(crate) fn not_a_record(path: &Path) -> Self {
        Self::new(ExitStatus::Usage, format!("no events in {path:?}"))
            .with_hint("record a run with `narrows run --output events`")
    }
}
