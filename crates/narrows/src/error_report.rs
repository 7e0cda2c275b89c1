//! Failures as JSON on stdout, for commands whose output programs read.
//!
//! `main` prints a failure here unless the command has done so itself, so that stdout is never empty when a command
//! with `--output json`, `--output events` or `--json` fails, wrong arguments included.

use std::ffi::OsString;

use narrows_client::{EventBody, RuntimeEvent};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::{
    AuditCommand, AuditFormat, BusCommand, CheckFormat, Command, Output, PolicyCommand, TokenCommand,
};
use crate::failure::{Code, Failure};
use crate::output;

/// Commands whose stdout is a protocol or a script: no error object may appear there. `serve --self-test` is an exception.
const NO_OBJECTS: [&str; 6] = ["acp", "chat", "completions", "connect", "fake-agent", "serve"];

/// The JSON form of an error, as the arguments ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorFormat {
    /// `{"error": {…}}`.
    Object,
    /// The object of `run --output json`, in which nothing but `error` is known.
    RunObject,
    /// One `error` event.
    Event,
}

/// The `error` field of an object. Empty fields are left out.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ErrorReport {
    kind: &'static str,
    message: String,
    exit_code: u8,
    /// Code of the JSON-RPC error with which the agent answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
    /// What the agent reports about the model request that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<Value>,
    /// The end of the agent's stderr.
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
    /// Returns the form in which `command` reports errors on stdout, if it does.
    pub(crate) fn of(command: &Command) -> Option<Self> {
        let is_json = match command {
            Command::Run(run) => return Self::of_output(run.output),
            Command::Agents(agents) => agents.json,
            Command::Sessions(sessions) => sessions.json,
            Command::Policy(policy) => match &policy.command {
                PolicyCommand::Explain(explain) => explain.circumstances.json,
                PolicyCommand::Check(check) => check.json,
                PolicyCommand::Test(test) => test.circumstances.json,
            },
            Command::Bus(bus) => matches!(&bus.subcommand, Some(BusCommand::Status(status)) if status.json),
            Command::Token(token) => match &token.command {
                TokenCommand::New(new) => new.json,
                TokenCommand::List(list) => list.json,
                TokenCommand::Revoke(_) => false,
            },
            Command::Check(check) => check.json || check.format == CheckFormat::Json,
            Command::Audit(audit) => match &audit.command {
                AuditCommand::Verify(verify) => verify.json,
                AuditCommand::Show(show) => show.format == AuditFormat::Json,
                _ => false,
            },
            Command::Serve(serve) => serve.self_test && serve.format == CheckFormat::Json,
            Command::Chat(_)
            | Command::Approve(_)
            | Command::Acp(_)
            | Command::Connect(_)
            | Command::FakeAgent(_)
            | Command::Completions(_) => false,
        };
        is_json.then_some(Self::Object)
    }

    fn of_output(output: Output) -> Option<Self> {
        match output {
            Output::Text => None,
            Output::Json => Some(Self::RunObject),
            Output::Events => Some(Self::Event),
        }
    }

    /// The same for arguments that cannot be parsed: `words` begins with the name of the program.
    pub(crate) fn of_words(words: &[OsString]) -> Option<Self> {
        let mut words =
            words.iter().skip(1).map(|word| word.to_string_lossy()).take_while(|word| word != "--");
        let (mut command, mut format, mut is_value) = (None, None, false);
        let (mut is_filter, mut is_self_test) = (false, false);
        for word in &mut words {
            // The value of the only option that may precede the command.
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
        let has_none = |command| NO_OBJECTS.contains(&command) && !(is_self_test && command == "serve");
        if command.as_deref().is_some_and(has_none) {
            return None;
        }
        match format {
            Some(Self::Object) if command.as_deref() == Some("run") => Some(Self::RunObject),
            format => format,
        }
    }

    /// Writes `failure` to stdout. A stdout that cannot be written leaves the exit code as it is.
    pub(crate) fn print(self, failure: &Failure) {
        let report = ErrorReport::from(failure);
        let text = match self {
            Self::Object => Ok(json!({ "error": report }).to_string()),
            Self::RunObject => Ok(json!({
                "text": "", "stopReason": null, "sessionId": null, "agent": null, "protocol": null,
                "error": report,
            })
            .to_string()),
            Self::Event => serde_json::to_string(&event(failure)),
        };
        if let Ok(text) = text {
            _ = output::print_json(text);
        }
    }
}

/// The failure as an event of its own.
pub(crate) fn event(failure: &Failure) -> RuntimeEvent {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    RuntimeEvent {
        at_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        run_id: None,
        session_id: None,
        body: EventBody::Error { message: failure.message(), code: Some(failure.code().name().to_owned()) },
        raw: None,
    }
}

/// What clap says is wrong with the arguments, as a failure: its first paragraph, and its tips as hints.
pub(crate) fn of_arguments(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let first = paragraphs.next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let message = first.split_whitespace().collect::<Vec<_>>().join(" ");
    let tips = text.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    tips.fold(Failure::new(Code::Usage, message), Failure::hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(words: &str, expected: Option<ErrorFormat>) {
        let words: Vec<OsString> =
            std::iter::once("narrows").chain(words.split(' ')).map(OsString::from).collect();
        assert_eq!(ErrorFormat::of_words(&words), expected, "{words:?}");
    }

    #[test]
    fn arguments_that_cannot_be_parsed_still_say_how_errors_are_printed() {
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
        // Their stdout is for something else.
        check("acp --json --bogus", None);
        check("fake-agent --json --bogus", None);
        check("connect --output json", None);
    }

    #[test]
    fn what_clap_says_is_one_line_with_its_tips_as_hints() {
        let words = ["narrows", "run", "--schem", "x"].map(OsString::from);
        let failure = of_arguments(&crate::cli::Cli::read(words.to_vec()).expect_err("it is wrong"));
        assert_eq!(failure.message(), "unexpected argument '--schem' found");
        assert_eq!(failure.hints(), ["a similar argument exists: '--schema'"]);
        assert_eq!(failure.code(), Code::Usage);
    }
}
