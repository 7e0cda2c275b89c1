//! How a command can fail: the exit code, the words and the hints, all decided here.

mod auditing;
mod busing;
mod confining;
mod denied;
mod driving;
mod inspecting;
mod papers;
mod remoting;
mod running;
mod serving;
mod setting;

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

use crate::cli::meant;
use crate::output;
use crate::terminal::{Colour, Style, line};
pub(crate) use denied::THE_GATE;
pub(crate) use driving::strayed;
pub(crate) use papers::{about_tls, about_tokens};
pub(crate) use running::{Cancelled, Limits};
pub(crate) use serving::IDENTITIES;

/// What the exit status says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Everything went well.
    Success,
    /// The agent failed.
    Agent,
    /// The arguments are wrong.
    Usage,
    /// The agent refused.
    Refusal,
    /// A limit was reached.
    Limit,
    /// The agent could not be started.
    Start,
    /// The agent does not keep to the protocol.
    Protocol,
    /// A deadline has passed.
    Timeout,
    /// The rules, or whoever was asked, refused something.
    Denied,
    /// Something failed on this side.
    Internal,
    /// SIGHUP.
    HungUp,
    /// Ctrl-C.
    Interrupted,
    /// Nobody reads our output any more.
    OutputClosed,
    /// SIGTERM.
    Terminated,
}

impl Code {
    /// All of them.
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

    /// The exit status.
    pub(crate) fn number(self) -> u8 {
        self.row().0
    }

    /// Its name for programs.
    pub(crate) fn name(self) -> &'static str {
        self.row().1
    }

    /// What it means, for people.
    pub(crate) fn meaning(self) -> &'static str {
        self.row().2
    }

    /// As what `main` returns.
    pub(crate) fn exit(self) -> ExitCode {
        ExitCode::from(self.number())
    }

    fn row(self) -> (u8, &'static str, &'static str) {
        match self {
            Self::Success => (0, "success", "the agent has answered"),
            Self::Agent => (1, "agent", "the agent failed: it reported an error, wants a login, or died"),
            Self::Usage => (2, "usage", "the arguments or the settings are wrong; nothing was started"),
            Self::Refusal => {
                (3, "refusal", "the agent refused to answer, or a gate in front of it stopped the turn")
            }
            Self::Limit => {
                (4, "limit", "the answer is incomplete: a limit was reached, or a part of it was lost")
            }
            Self::Start => (5, "start", "the agent cannot be started"),
            Self::Protocol => (6, "protocol", "the agent does not speak ACP as we know it"),
            Self::Timeout => (7, "timeout", "a deadline has passed"),
            Self::Denied => (
                9,
                "denied",
                "the agent has answered, but the rules, or who was asked, refused something it wanted",
            ),
            Self::Internal => (70, "internal", "something failed on this side"),
            Self::HungUp => (129, "hung_up", "cancelled by SIGHUP: the terminal was closed"),
            Self::Interrupted => (130, "interrupted", "cancelled by Ctrl-C"),
            Self::OutputClosed => (141, "output_closed", "nobody reads the output any more"),
            Self::Terminated => (143, "terminated", "cancelled by SIGTERM"),
        }
    }
}

/// Why a command failed, and what to do about it.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    /// One line.
    message: String,
    /// Why that happened, and why that, a line each.
    causes: Vec<String>,
    /// What the agent wrote to stderr, made safe to show.
    stderr: String,
    /// What to do about it, a line each.
    hints: Vec<String>,
    /// The error with which the agent answered.
    rpc: Option<Box<RpcError>>,
    /// What the agent says about its model.
    fault: Option<Box<Fault>>,
    /// It is that the agent has gone, by itself or with the connection to it.
    is_gone: bool,
    /// The command has printed it to stdout for programs, in its own form.
    is_reported: bool,
}

impl Failure {
    /// Without causes or hints.
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            causes: Vec::new(),
            stderr: String::new(),
            hints: Vec::new(),
            rpc: None,
            fault: None,
            is_gone: false,
            is_reported: false,
        }
    }

    /// The same, which stdout has already in the form of the command.
    pub(crate) fn reported(self) -> Self {
        Self { is_reported: true, ..self }
    }

    /// Returns `true` if stdout has it already.
    pub(crate) fn is_reported(&self) -> bool {
        self.is_reported
    }

    /// The same of an agent that is somewhere else: what has gone is the connection to it, and `lost` knows how.
    pub(crate) fn or_lost(self, lost: Option<Self>) -> Self {
        if self.is_gone { lost.unwrap_or(self) } else { self }
    }

    /// Whether it is that the agent has gone, by itself or with the connection to it.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// The same, because of `cause` and what caused that.
    fn because(mut self, cause: &dyn std::error::Error) -> Self {
        let mut next = Some(cause);
        while let Some(cause) = next {
            self.causes.push(cause.to_string());
            next = cause.source();
        }
        self
    }

    /// The same, with one more hint.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// The log filter cannot be read.
    pub(crate) fn log_filter(reason: &str) -> Self {
        Self::new(Code::Usage, format!("the log filter cannot be read: {reason}"))
            .hint("a filter is a level such as `debug`, or levels of parts such as `narrows_rpc=trace,warn`")
    }

    /// There is no prompt.
    pub(crate) fn no_prompt() -> Self {
        Self::new(Code::Usage, "there is no prompt")
            .hint("write it as the last argument, or send it to stdin: `echo Hi | narrows run`")
    }

    /// The prompt cannot be had from stdin.
    pub(crate) fn prompt(error: &io::Error) -> Self {
        Self::new(Code::Usage, "the prompt cannot be read from stdin").because(error)
    }

    /// The working directory cannot be used.
    pub(crate) fn cwd(directory: &Path, error: &io::Error) -> Self {
        Self::new(Code::Usage, format!("the directory {directory:?} cannot be used")).because(error)
    }

    /// A file cannot be read.
    pub(crate) fn unreadable(what: &str, path: &Path, error: &io::Error) -> Self {
        Self::new(Code::Usage, format!("{what}: {path:?} cannot be read")).because(error)
    }

    /// What is to be checked cannot be read.
    pub(crate) fn unchecked(path: &Path, error: &io::Error) -> Self {
        let failure = Self::unreadable("check", path, error);
        match error.kind() {
            io::ErrorKind::NotFound => {
                failure.hint("name a file that is there, or a directory with manifests in it")
            }
            _ => failure,
        }
    }

    /// A file does not say what it should.
    pub(crate) fn bad_file(path: &Path, error: &dyn std::error::Error) -> Self {
        Self::new(Code::Usage, format!("{}: {}", path.display(), line(&error.to_string())))
    }

    /// A file that an argument names is not JSON.
    pub(crate) fn not_json(argument: &str, path: &Path, error: &serde_json::Error) -> Self {
        let words = line(&error.to_string());
        Self::new(
            Code::Usage,
            format!("{argument} {:?}: not valid JSON: {words}", path.display().to_string()),
        )
    }

    /// A file of rules cannot be understood.
    pub(crate) fn bad_rules(error: &narrows_policy::RulesError) -> Self {
        Self::new(Code::Usage, error.to_string())
    }

    /// What was given as an agent is none.
    pub(crate) fn bad_agent(wanted: &str, reason: &str) -> Self {
        Self::new(Code::Usage, format!("--agent {wanted:?}: {reason}"))
    }

    /// What was given as the URL of an agent is none.
    pub(crate) fn bad_url(wanted: &str, error: &TargetError) -> Self {
        let failure = Self::new(Code::Usage, line(&format!("--agent {wanted:?}: {error}")));
        match meant(wanted, error) {
            Some(meant) => failure.hint(line(&format!("did you mean {meant}?"))),
            None => {
                failure.hint("such as wss://HOST/acp, ws://127.0.0.1:8787/acp, tcp://HOST:PORT or unix:PATH")
            }
        }
    }

    /// There is no session to go on with.
    pub(crate) fn nothing_to_continue(cwd: &Path) -> Self {
        Self::new(Code::Usage, format!("the agent knows no session in {}", cwd.display()))
            .hint("leave out --continue to begin one")
    }

    /// The session ended before its run did.
    pub(crate) fn session_closed() -> Self {
        Self::new(Code::Internal, "the session ended before the turn did")
    }

    /// A variable that was to be handed to the agent is not set.
    pub(crate) fn unset_variable(name: &str) -> Self {
        Self::new(Code::Usage, format!("the variable {name:?} is not set here"))
            .hint(format!("give it a value: --env {name}=VALUE"))
    }

    /// There is no built-in script of this name.
    pub(crate) fn no_builtin(name: &str) -> Self {
        let failure = Self::new(Code::Usage, format!("there is no built-in script {name:?}"));
        Self::suggest_builtin(failure, name)
    }

    /// A script is neither built in nor a file that can be read.
    pub(crate) fn unreadable_script(script: &str, error: &io::Error) -> Self {
        if error.kind() != io::ErrorKind::NotFound {
            return Self::new(Code::Usage, format!("the script {script:?} cannot be read")).because(error);
        }
        let message = format!("{script:?} is neither a built-in script nor a file");
        Self::suggest_builtin(Self::new(Code::Usage, message), script)
    }

    /// A file is no script.
    pub(crate) fn bad_script(path: &str, error: &ScriptError) -> Self {
        let message = format!("{path}:{}: {}", error.line(), line(error.message()));
        Self::new(Code::Usage, message).hint("a script that works: narrows fake-agent --print hello")
    }

    fn suggest_builtin(self, wanted: &str) -> Self {
        match nearest(wanted, Script::builtins().iter().map(|(name, _)| *name)) {
            Some(near) => self.hint(format!("did you mean {near:?}?")),
            None => self.hint("the built-in scripts: narrows fake-agent --list"),
        }
    }

    /// Our own machinery could not be set up.
    pub(crate) fn setup(what: &str, error: &io::Error) -> Self {
        Self::new(Code::Internal, format!("cannot {what}")).because(error)
    }

    /// The client of an agent was lost, and not by its own will.
    pub(crate) fn client_lost(reason: &CloseReason) -> Self {
        Self::new(Code::Internal, "the conversation with the client broke off").because(reason)
    }

    /// Our output cannot be written.
    pub(crate) fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(Code::OutputClosed, Code::OutputClosed.meaning());
        }
        Self::new(Code::Internal, "the output cannot be written").because(error)
    }

    /// What the exit status says.
    pub(crate) fn code(&self) -> Code {
        self.code
    }

    /// What happened, in one line.
    pub(crate) fn message(&self) -> String {
        std::iter::once(&self.message).chain(&self.causes).map(String::as_str).collect::<Vec<_>>().join(": ")
    }

    /// The error with which the agent answered, if it did.
    pub(crate) fn rpc(&self) -> Option<&RpcError> {
        self.rpc.as_deref()
    }

    /// What the agent says about its model, if that failed.
    pub(crate) fn fault(&self) -> Option<&Fault> {
        self.fault.as_deref()
    }

    /// The last that the agent wrote to stderr, if that explains it.
    pub(crate) fn stderr(&self) -> &str {
        &self.stderr
    }

    /// What to do about it.
    pub(crate) fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Tells the user, and returns what `main` returns.
    pub(crate) fn tell(&self) -> ExitCode {
        // Whoever closed our output did so on purpose.
        if self.code != Code::OutputClosed {
            output::complain_briefly(self.render(Colour::of_stderr()));
        }
        self.code.exit()
    }

    pub(crate) fn render(&self, colour: Colour) -> String {
        let mut text = format!("{} {}\n", colour.paint(Style::Error, "error:"), self.message);
        for cause in &self.causes {
            _ = writeln!(text, "  because: {cause}");
        }
        if !self.stderr.is_empty() {
            text.push_str("  its last words on stderr:\n");
            for line in self.stderr.lines() {
                _ = writeln!(text, "  | {line}");
            }
        }
        for hint in &self.hints {
            _ = writeln!(text, "{} {hint}", colour.paint(Style::Hint, "hint:"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct() {
        let mut numbers: Vec<_> = Code::ALL.iter().map(|code| code.number()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), Code::ALL.len());
    }

    #[test]
    fn a_failure_is_told_with_its_causes_and_hints() {
        let failure = Failure {
            stderr: "one\ntwo".to_owned(),
            ..Failure::new(Code::Agent, "it broke").because(&io::Error::other("dust")).hint("clean it")
        };
        assert_eq!(
            failure.render(Colour::off()),
            "error: it broke\n  because: dust\n  its last words on stderr:\n  | one\n  | two\nhint: clean it\n"
        );
        assert_eq!(failure.message(), "it broke: dust");
    }
}
