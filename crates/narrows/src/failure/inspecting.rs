//! What to say when agents, sessions or rules cannot be looked at.

use std::io;
use std::path::Path;

use narrows_bus::config::Mistake;
use narrows_client::{ClientError, Problem};
use narrows_manifest::Finding;
use narrows_policy::RulesError;
use narrows_process::SpawnError;

use super::{Code, Failure};
use crate::terminal::line;

impl Failure {
    /// The program of an agent cannot be had.
    pub(crate) fn not_installed(agent: &str, program: &str, error: &SpawnError) -> Self {
        let message = match agent == program {
            true => format!("the agent {agent:?} cannot be started"),
            false => format!("the agent {agent:?} cannot be started, because of its program {program:?}"),
        };
        let failure = Self::new(Code::Start, message);
        match error {
            SpawnError::NotFound { searched: Some(_), .. } => failure
                .because(&io::Error::other("it is nowhere in PATH"))
                .hint("install it, or give the path to it"),
            SpawnError::NotFound { searched: None, .. } => {
                failure.because(&io::Error::other("there is no such file"))
            }
            SpawnError::SandboxPlace { .. } => failure.because(error).hint(
                "a sandbox shows the system, what is mounted, and of a program elsewhere itself or its node_modules, virtual \
                 environment or version; mount the rest, or install it for the system",
            ),
            error => failure.because(error),
        }
    }

    /// An agent could not be asked what it can do.
    pub(crate) fn of_probe(error: ClientError) -> Self {
        let late = matches!(*error.problem, Problem::Deadline(_));
        let mut failure = Self::from(error);
        if late && let Some(hint) = failure.hints.first_mut() {
            // What it says there is about flags of `narrows run`.
            "an agent that is slow to start may need more: --timeout 2m".clone_into(hint);
        }
        failure
    }

    /// An agent is asked for its sessions and has no way to tell.
    pub(crate) fn cannot_list(agent: &str) -> Self {
        Self::new(Code::Agent, format!("the agent {agent:?} cannot list its sessions"))
            .hint("it may go on with one whose id you know: narrows run --resume ID")
    }

    /// An agent is asked to forget a session and has no way to.
    pub(crate) fn cannot_delete(agent: &str) -> Self {
        Self::new(Code::Agent, format!("the agent {agent:?} cannot delete sessions"))
            .hint("what it keeps is its own; it may have a command for that")
    }

    /// There is no session of this id among those that the agent has.
    pub(crate) fn no_session<'a>(
        id: &str,
        agent: Option<&str>,
        known: impl Iterator<Item = &'a str>,
    ) -> Self {
        let failure = Self::new(Code::Usage, format!("the agent has no session {id:?}"));
        let mut meant = known.filter(|known| !id.is_empty() && known.starts_with(id));
        match (meant.next(), meant.next()) {
            (Some(meant), None) => failure.hint(format!("did you mean {}?", line(meant))),
            (Some(_), Some(_)) => failure.hint("several sessions begin with this; give the whole id"),
            (None, _) => failure.hint(match agent {
                Some(agent) => {
                    format!("the sessions it has: narrows sessions --all --agent {:?}", line(agent))
                }
                None => "the sessions it has: narrows sessions --all".to_owned(),
            }),
        }
    }

    /// Rules cannot be understood; the hint is a line of its own.
    pub(crate) fn wrong_rules(error: &RulesError) -> Self {
        let RulesError { file, line, column, what, hint } = error;
        let failure = Self::new(Code::Usage, format!("{file}:{line}:{column}: {what}"));
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }

    /// A configuration has a mistake; the hint is a line of its own.
    pub(crate) fn mistake(mistake: &Mistake) -> Self {
        let Mistake { place, what, hint } = mistake;
        let failure = Self::new(Code::Usage, line(&format!("{place}: {what}")));
        match hint {
            Some(hint) => failure.hint(line(hint)),
            None => failure,
        }
    }

    /// A manifest has a mistake; the hint is a line of its own.
    pub(crate) fn finding(what: String, finding: &Finding) -> Self {
        let failure = Self::new(Code::Usage, what);
        match &finding.hint {
            Some(hint) => failure.hint(line(hint)),
            None => failure,
        }
    }

    /// A directory to be checked has no manifest in it.
    pub(crate) fn no_manifests(path: &Path) -> Self {
        let message = format!("check: there are no manifests in {:?}", path.display().to_string());
        Self::new(Code::Usage, line(&message))
            .hint("a manifest is called ACP.md, OPERATOR.md, GOVERNANCE.md, POLICY.md, SANDBOX.md, RUNNER.md or AGENT-CLI.md")
    }

    /// The record of a run cannot be read.
    pub(crate) fn record(path: &Path, error: &io::Error) -> Self {
        Self::unreadable("--events", path, error)
    }

    /// The record of a run is none.
    pub(crate) fn no_record(path: &Path) -> Self {
        Self::new(Code::Usage, format!("there is not one event in {path:?}"))
            .hint("record a run with `narrows run --output events`")
    }
}
