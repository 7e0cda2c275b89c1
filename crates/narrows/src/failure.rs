//! Failures of commands: exit code, message and hints are all decided here.

mod agent;
mod audit;
mod bus;
mod config;
mod credentials;
mod denied;
mod inspect;
mod remote;
mod run;
mod sandbox;
mod serve;

use std::fmt::Write;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use narrows_base::suggest::nearest;
use narrows_client::Fault;
use narrows_fake::{Script, ScriptError};
use narrows_link::CloseReason;
use narrows_remote::client::TargetError;
use narrows_wire::RpcError;

use crate::cli::intended_url;
use crate::output;
use crate::terminal::{Color, Style, line};
pub(crate) use agent::stray_lines_notice;
pub(crate) use credentials::{ONE_TOKEN_PER_NAME, tls_hint, token_hint};
pub(crate) use denied::GATE_RULES;
pub(crate) use run::{CancelReason, RunLimits};
pub(crate) use serve::IDENTITIES_HINT;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    Success,
    Agent,
    Usage,
    Refusal,
    Limit,
    Start,
    Protocol,
    Timeout,
    Denied,
    Internal,
    /// Ended by SIGHUP.
    HungUp,
    Interrupted,
    /// The reader of stdout closed it.
    OutputClosed,
    /// Ended by SIGTERM.
    Terminated,
}

impl ExitStatus {
    pub(crate) const ALL: [Self; 14] = [
        Self::Success,
        Self::Agent,
        Self::Usage,
        Self::Refusal,
        Self::Limit,
        Self::Start,
        Self::Protocol,
        Self::Timeout,
        Self::Denied,
        Self::Internal,
        Self::HungUp,
        Self::Interrupted,
        Self::OutputClosed,
        Self::Terminated,
    ];

    pub(crate) fn number(self) -> u8 {
        self.row().0
    }

    /// Returns the name of this exit status in JSON output.
    pub(crate) fn name(self) -> &'static str {
        self.row().1
    }

    /// Returns the description of this exit status in the help.
    pub(crate) fn meaning(self) -> &'static str {
        self.row().2
    }

    pub(crate) fn exit_code(self) -> ExitCode {
        ExitCode::from(self.number())
    }

    fn row(self) -> (u8, &'static str, &'static str) {
        match self {
            Self::Success => (0, "success", "the agent answered"),
            Self::Agent => {
                (1, "agent", "the agent failed: it reported an error, requires a login, or exited")
            }
            Self::Usage => (2, "usage", "invalid arguments or configuration; nothing was started"),
            Self::Refusal => (3, "refusal", "the agent refused to answer, or a gate stopped the turn"),
            Self::Limit => {
                (4, "limit", "the answer is incomplete: a limit was reached, or part of it was lost")
            }
            Self::Start => (5, "start", "the agent cannot be started"),
            Self::Protocol => (6, "protocol", "protocol error: invalid ACP or unsupported version"),
            Self::Timeout => (7, "timeout", "a time limit was exceeded"),
            Self::Denied => {
                (9, "denied", "the agent finished, but a request was denied by a rule or an approver")
            }
            Self::Internal => (70, "internal", "internal error"),
            Self::HungUp => (129, "hung_up", "cancelled by SIGHUP: the terminal was closed"),
            Self::Interrupted => (130, "interrupted", "cancelled by Ctrl-C"),
            Self::OutputClosed => (141, "output_closed", "stdout was closed"),
            Self::Terminated => (143, "terminated", "cancelled by SIGTERM"),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Failure {
    code: ExitStatus,
    message: String,
    /// The causes from the outermost on, one line each.
    causes: Vec<String>,
    /// The end of the agent's stderr, escaped.
    stderr: String,
    hints: Vec<String>,
    rpc: Option<Box<RpcError>>,
    /// The report of the agent about its failed model request.
    fault: Option<Box<Fault>>,
    is_agent_lost: bool,
    /// `true` if the command has already printed the failure to stdout in its own format.
    is_reported: bool,
}

impl Failure {
    pub(crate) fn new(code: ExitStatus, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            causes: Vec::new(),
            stderr: String::new(),
            hints: Vec::new(),
            rpc: None,
            fault: None,
            is_agent_lost: false,
            is_reported: false,
        }
    }

    /// Marks the failure as already printed to stdout by the command.
    pub(crate) fn into_reported(self) -> Self {
        Self { is_reported: true, ..self }
    }

    pub(crate) fn is_reported(&self) -> bool {
        self.is_reported
    }

    /// If this failure follows from a lost connection, returns `lost`, the failure of that connection,
    /// instead.
    pub(crate) fn or_connection_failure(self, lost: Option<Self>) -> Self {
        if self.is_agent_lost { lost.unwrap_or(self) } else { self }
    }

    /// Returns `true` if the agent exited or its connection was lost.
    pub(crate) fn is_agent_lost(&self) -> bool {
        self.is_agent_lost
    }

    /// Adds `cause` and its sources.
    fn with_cause(mut self, cause: &dyn std::error::Error) -> Self {
        let mut next = Some(cause);
        while let Some(cause) = next {
            self.causes.push(cause.to_string());
            next = cause.source();
        }
        self
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    pub(crate) fn log_filter_invalid(reason: &str) -> Self {
        Self::new(ExitStatus::Usage, format!("invalid log filter: {reason}"))
            .with_hint("use a level such as `debug`, or levels of modules such as `narrows_rpc=trace,warn`")
    }

    pub(crate) fn no_prompt() -> Self {
        Self::new(ExitStatus::Usage, "missing prompt")
            .with_hint("pass the prompt as the last argument, or on stdin: `echo Hi | narrows run`")
    }

    pub(crate) fn prompt_unreadable(error: &io::Error) -> Self {
        Self::new(ExitStatus::Usage, "cannot read the prompt from stdin").with_cause(error)
    }

    pub(crate) fn cwd_unusable(directory: &Path, error: &io::Error) -> Self {
        Self::new(ExitStatus::Usage, format!("cannot use the directory {directory:?}")).with_cause(error)
    }

    pub(crate) fn file_unreadable(what: &str, path: &Path, error: &io::Error) -> Self {
        Self::new(ExitStatus::Usage, format!("{what}: cannot read {path:?}")).with_cause(error)
    }

    pub(crate) fn check_target_unreadable(path: &Path, error: &io::Error) -> Self {
        let failure = Self::file_unreadable("check", path, error);
        match error.kind() {
            io::ErrorKind::NotFound => {
                failure.with_hint("use an existing file, or a directory with manifests")
            }
            _ => failure,
        }
    }

    pub(crate) fn file_invalid(path: &Path, error: &dyn std::error::Error) -> Self {
        Self::new(ExitStatus::Usage, format!("{}: {}", path.display(), line(&error.to_string())))
    }

    pub(crate) fn json_invalid(argument: &str, path: &Path, error: &serde_json::Error) -> Self {
        let words = line(&error.to_string());
        Self::new(
            ExitStatus::Usage,
            format!("{argument} {:?}: not valid JSON: {words}", path.display().to_string()),
        )
    }

    pub(crate) fn rules_invalid(error: &narrows_config::Finding) -> Self {
        Self::new(ExitStatus::Usage, error.to_string())
    }

    pub(crate) fn agent_invalid(wanted: &str, reason: &str) -> Self {
        Self::new(ExitStatus::Usage, format!("--agent {wanted:?}: {reason}"))
    }

    pub(crate) fn agent_url_invalid(wanted: &str, error: &TargetError) -> Self {
        let failure = Self::new(ExitStatus::Usage, line(&format!("--agent {wanted:?}: {error}")));
        match intended_url(wanted, error) {
            Some(meant) => failure.with_hint(line(&format!("did you mean {meant}?"))),
            None => failure.with_hint(
                "use a URL such as wss://HOST/acp, ws://127.0.0.1:8787/acp, tcp://HOST:PORT or unix:PATH",
            ),
        }
    }

    pub(crate) fn no_session_to_continue(cwd: &Path) -> Self {
        Self::new(ExitStatus::Usage, format!("the agent has no sessions in {}", cwd.display()))
            .with_hint("remove --continue to open a new session")
    }

    pub(crate) fn session_closed() -> Self {
        Self::new(ExitStatus::Internal, "the session ended before the turn")
    }

    pub(crate) fn unset_variable(name: &str) -> Self {
        Self::new(ExitStatus::Usage, format!("environment variable {name:?} is not set"))
            .with_hint(format!("set the value of the variable: --env {name}=VALUE"))
    }

    pub(crate) fn unknown_builtin_script(name: &str) -> Self {
        let failure = Self::new(ExitStatus::Usage, format!("unknown built-in script {name:?}"));
        Self::with_builtin_suggestion(failure, name)
    }

    pub(crate) fn script_unreadable(script: &str, error: &io::Error) -> Self {
        if error.kind() != io::ErrorKind::NotFound {
            return Self::new(ExitStatus::Usage, format!("cannot read the script {script:?}"))
                .with_cause(error);
        }
        let message = format!("{script:?} is neither a built-in script nor a file");
        Self::with_builtin_suggestion(Self::new(ExitStatus::Usage, message), script)
    }

    pub(crate) fn script_invalid(path: &str, error: &ScriptError) -> Self {
        let message = format!("{path}:{}: {}", error.line(), line(error.message()));
        Self::new(ExitStatus::Usage, message)
            .with_hint("see a working script with: narrows fake-agent --print hello")
    }

    fn with_builtin_suggestion(self, wanted: &str) -> Self {
        match nearest(wanted, Script::builtins().iter().map(|(name, _)| *name)) {
            Some(near) => self.with_hint(format!("did you mean {near:?}?")),
            None => self.with_hint("list the built-in scripts: narrows fake-agent --list"),
        }
    }

    pub(crate) fn setup(what: &str, error: &io::Error) -> Self {
        Self::new(ExitStatus::Internal, format!("cannot {what}")).with_cause(error)
    }

    pub(crate) fn client_connection_lost(reason: &CloseReason) -> Self {
        Self::new(ExitStatus::Internal, "connection to the client lost").with_cause(reason)
    }

    pub(crate) fn output_failed(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(ExitStatus::OutputClosed, ExitStatus::OutputClosed.meaning());
        }
        Self::new(ExitStatus::Internal, "cannot write to stdout").with_cause(error)
    }

    pub(crate) fn code(&self) -> ExitStatus {
        self.code
    }

    /// Returns the message and its causes in one line.
    pub(crate) fn message(&self) -> String {
        std::iter::once(&self.message).chain(&self.causes).map(String::as_str).collect::<Vec<_>>().join(": ")
    }

    pub(crate) fn rpc(&self) -> Option<&RpcError> {
        self.rpc.as_deref()
    }

    pub(crate) fn fault(&self) -> Option<&Fault> {
        self.fault.as_deref()
    }

    /// Returns the end of the agent's stderr, if it explains the failure.
    pub(crate) fn stderr(&self) -> &str {
        &self.stderr
    }

    pub(crate) fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Prints the failure to stderr and returns the exit code for `main`.
    pub(crate) fn report(&self) -> ExitCode {
        // A reader that closes stdout does so on purpose.
        if self.code != ExitStatus::OutputClosed {
            output::write_stderr_bounded(self.render(Color::for_stderr()));
        }
        self.code.exit_code()
    }

    pub(crate) fn render(&self, color: Color) -> String {
        let mut text = format!("{} {}\n", color.paint(Style::Error, "error:"), self.message);
        for cause in &self.causes {
            _ = writeln!(text, "  because: {cause}");
        }
        if !self.stderr.is_empty() {
            text.push_str("  last lines on stderr:\n");
            for line in self.stderr.lines() {
                _ = writeln!(text, "  | {line}");
            }
        }
        for hint in &self.hints {
            _ = writeln!(text, "{} {hint}", color.paint(Style::Hint, "hint:"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses_are_distinct() {
        let mut numbers: Vec<_> = ExitStatus::ALL.iter().map(|code| code.number()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), ExitStatus::ALL.len());
    }

    #[test]
    fn a_failure_is_rendered_with_its_causes_and_hints() {
        let failure = Failure {
            stderr: "one\ntwo".to_owned(),
            ..Failure::new(ExitStatus::Agent, "it broke")
                .with_cause(&io::Error::other("dust"))
                .with_hint("clean it")
        };
        assert_eq!(
            failure.render(Color::off()),
            "error: it broke\n  because: dust\n  last lines on stderr:\n  | one\n  | two\nhint: clean it\n"
        );
        assert_eq!(failure.message(), "it broke: dust");
    }
}
