//! Failures as JSON on stdout.
//!
//! `main` prints a failure here, unless the command has already done so. A command with `--output json`,
//! `--output events` or `--json` that fails thus always writes to stdout, even if its arguments are wrong.

use std::ffi::OsString;

use narrows_client::{EventBody, RuntimeEvent};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::{
    Agents, AgentsCommand, AuditCommand, AuditFormat, BusCommand, CheckFormat, Command, Output,
    PolicyCommand, SessionsCommand, TokenCommand,
};
use crate::failure::{ExitStatus, Failure};
use crate::output;

/// Commands whose stdout is a protocol or a script must not print error objects there. `serve --self-test` is an
/// exception.
const COMMANDS_WITHOUT_ERROR_OBJECTS: [&str; 6] =
    ["acp", "chat", "completions", "connect", "fake-agent", "serve"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorFormat {
    /// An object with the member `error` alone.
    Object,
    /// The object that `run --output json` prints, with `error` set and all other members empty or null.
    RunObject,
    /// One `error` event.
    Event,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ErrorReport {
    kind: &'static str,
    message: String,
    exit_code: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<Value>,
    #[serde(skip_serializing_if = "String::is_empty")]
    stderr: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hints: Vec<String>,
}

impl From<&Failure> for ErrorReport {
    fn from(failure: &Failure) -> Self {
        Self {
            kind: failure.code().name(),
            message: failure.message(),
            exit_code: failure.code().number(),
            code: failure.rpc().map(|error| error.code),
            data: failure.rpc().and_then(|error| error.data.clone()),
            endpoint: failure.fault().map(|fault| json!(fault)),
            stderr: failure.stderr().to_owned(),
            hints: failure.hints().to_vec(),
        }
    }
}

impl ErrorFormat {
    /// Returns the form for `command`, if it prints errors to stdout.
    pub(crate) fn for_command(command: &Command) -> Option<Self> {
        let is_json = match command {
            Command::Run(run) => return Self::for_output(run.output),
            Command::Agents(Agents { command: Some(AgentsCommand::List(list)), .. }) => list.json,
            Command::Agents(agents) => agents.list.json,
            Command::Sessions(sessions) => match &sessions.command {
                Some(SessionsCommand::List(list)) => list.json,
                Some(SessionsCommand::Delete(delete)) => delete.json,
                None => sessions.list.json,
            },
            Command::Policy(policy) => match &policy.command {
                PolicyCommand::Explain(explain) => explain.circumstances.json,
                PolicyCommand::Check(check) => check.json,
                PolicyCommand::Test(test) => test.circumstances.json,
            },
            Command::Bus(bus) => matches!(&bus.subcommand, Some(BusCommand::Status(status)) if status.json),
            Command::Token(token) => match &token.command {
                TokenCommand::New(new) => new.json,
                TokenCommand::List(list) => list.json,
                TokenCommand::Revoke(revoke) => revoke.json,
            },
            Command::Check(check) => check.json || check.format == CheckFormat::Json,
            Command::Audit(audit) => match &audit.command {
                AuditCommand::Verify(verify) => verify.json,
                AuditCommand::Show(show) => show.format == AuditFormat::Json,
                AuditCommand::Keygen(keygen) => keygen.json,
                AuditCommand::Head(_) => false,
            },
            Command::Serve(serve) => serve.self_test && serve.format == CheckFormat::Json,
            Command::Approve(approve) => approve.json,
            Command::FakeAgent(fake) => fake.json,
            Command::Chat(_) | Command::Acp(_) | Command::Connect(_) | Command::Completions(_) => false,
        };
        is_json.then_some(Self::Object)
    }

    fn for_output(output: Output) -> Option<Self> {
        match output {
            Output::Text => None,
            Output::Json => Some(Self::RunObject),
            Output::Events => Some(Self::Event),
        }
    }

    /// Returns the form for arguments that cannot be parsed. `words` begins with the program name.
    pub(crate) fn from_words(words: &[OsString]) -> Option<Self> {
        let mut words =
            words.iter().skip(1).map(|word| word.to_string_lossy()).take_while(|word| word != "--");
        let (mut command, mut format, mut is_value) = (None, None, false);
        let (mut is_filter, mut is_self_test) = (false, false);
        for word in &mut words {
            // `--log` is the only option before the command that has a value.
            if std::mem::replace(&mut is_filter, word == "--log") {
                continue;
            }
            is_self_test |= word == "--self-test";
            let value = match word.strip_prefix("--output=").or_else(|| word.strip_prefix("--format=")) {
                Some(value) => Some(value),
                None => is_value.then_some(&*word),
            };
            is_value = matches!(&*word, "--output" | "--format");
            match value {
                Some("json") => format = Some(Self::Object),
                Some("events") => format = Some(Self::Event),
                Some(_) => {}
                None if word == "--json" => format = Some(Self::Object),
                None if command.is_none() && !word.starts_with('-') => command = Some(word.into_owned()),
                None => {}
            }
        }
        let has_none = |command| {
            COMMANDS_WITHOUT_ERROR_OBJECTS.contains(&command) && !(is_self_test && command == "serve")
        };
        if command.as_deref().is_some_and(has_none) {
            return None;
        }
        match format {
            Some(Self::Object) if command.as_deref() == Some("run") => Some(Self::RunObject),
            format => format,
        }
    }

    /// Writes `failure` to stdout. A write error does not change the exit code.
    pub(crate) fn print(self, failure: &Failure) {
        let report = ErrorReport::from(failure);
        let text = match self {
            Self::Object => Ok(json!({ "error": report }).to_string()),
            Self::RunObject => Ok(json!({
                "text": "", "stopReason": null, "sessionId": null, "agent": null, "protocol": null,
                "error": report,
            })
            .to_string()),
            Self::Event => serde_json::to_string(&failure_event(failure)),
        };
        if let Ok(text) = text {
            _ = output::print_json(text);
        }
    }
}

pub(crate) fn failure_event(failure: &Failure) -> RuntimeEvent {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    RuntimeEvent {
        at_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        run_id: None,
        session_id: None,
        body: EventBody::Error { message: failure.message(), code: Some(failure.code().name().to_owned()) },
        raw: None,
    }
}

/// Converts a clap error: its first paragraph becomes the message, its tips become hints.
pub(crate) fn from_clap(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let first = paragraphs.next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let message = first.split_whitespace().collect::<Vec<_>>().join(" ");
    let tips = text.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    tips.fold(Failure::new(ExitStatus::Usage, message), Failure::with_hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(words: &str, expected: Option<ErrorFormat>) {
        let words: Vec<OsString> =
            std::iter::once("narrows").chain(words.split(' ')).map(OsString::from).collect();
        assert_eq!(ErrorFormat::from_words(&words), expected, "{words:?}");
    }

    #[test]
    fn invalid_arguments_still_select_the_error_format() {
        use ErrorFormat::{Event, Object, RunObject};
        check("run --output json --bogus", Some(RunObject));
        check("run --output=json --bogus", Some(RunObject));
        check("run --bogus --output events", Some(Event));
        check("--log debug run --bogus --output events", Some(Event));
        check("--log debug run --output json --bogus", Some(RunObject));
        check("--log=debug run --output json --bogus", Some(RunObject));
        check("--log run sessions --output json --bogus", Some(Object));
        check("--log debug acp --json --bogus", None);
        check("serve --self-test --format json --bogus", Some(Object));
        check("serve --format json --bogus", None);
        check("run --json hi", Some(RunObject));
        check("sessions --json --bogus", Some(Object));
        check("check --format json --bogus", Some(Object));
        check("sesions --json", Some(Object));
        check("run --bogus", None);
        check("run --output text --bogus", None);
        check("run --output", None);
        check("run --bogus -- --output json", None);
        check("run --agent json --bogus", None);
        // These commands use stdout for a protocol or a script.
        check("acp --json --bogus", None);
        check("fake-agent --json --bogus", None);
        check("connect --output json", None);
    }

    #[test]
    fn clap_errors_become_one_line_with_hints() {
        let words = ["narrows", "run", "--schem", "x"].map(OsString::from);
        let failure = from_clap(&crate::cli::Cli::parse_args(words.to_vec()).expect_err("invalid arguments"));
        assert_eq!(failure.message(), "unexpected argument '--schem' found");
        assert_eq!(failure.hints(), ["a similar argument exists: '--schema'"]);
        assert_eq!(failure.code(), ExitStatus::Usage);
    }
}
