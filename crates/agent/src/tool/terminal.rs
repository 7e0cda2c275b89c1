//! Runs commands in a terminal of the client. The agent never starts a process itself.

use std::time::Duration;

use narrows_acp::method::{
    TERMINAL_CREATE, TERMINAL_KILL, TERMINAL_OUTPUT, TERMINAL_RELEASE, TERMINAL_WAIT_FOR_EXIT,
};
use narrows_model::Part;
use narrows_rpc::{CallError, Peer};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::call::{Interrupt, ToolJob, ToolOutcome, ToolTask, text_argument};
use super::files::error_reason;
use super::permission::PermissionScope;
use crate::encode_update::CallField;
use crate::session::SessionDirs;
use crate::transcript::{ToolCall, ToolContent, ToolKind, ToolStatus};
use crate::turn::Turn;
use crate::update_writer::new_id;

/// Time for a client to start a command without asking its user, to return output, or to kill a command.
const TERMINAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Time to wait for the output of a cancelled command. Short, because the user is waiting.
const OUTPUT_GRACE_TIMEOUT: Duration = Duration::from_secs(1);

/// Upper bound for the wait for a command. The tool's time limit is shorter.
const EXIT_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Bytes of output that the client is asked to keep.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;

/// Maximum length of a command line that a title shows completely.
const MAX_TITLE_CHARS: usize = 200;

/// Maximum number of successive blanks that a title shows unchanged. More blanks could move the rest out of
/// sight.
const MAX_BLANK_RUN: usize = 8;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Created {
    terminal_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Output {
    #[serde(default)]
    output: String,
    #[serde(default)]
    truncated: bool,
    exit_status: Option<ExitStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExitStatus {
    exit_code: Option<i64>,
    signal: Option<String>,
}

pub(super) fn prepare(dirs: &SessionDirs, arguments: &Map<String, Value>) -> Result<ToolJob, String> {
    let command = text_argument(arguments, "command")?.trim();
    let args = match arguments.get("args") {
        None | Some(Value::Null) => None,
        Some(Value::Array(args)) => {
            let texts = args.iter().map(|arg| arg.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
            Some(texts.ok_or("The argument `args` must be an array of strings.")?)
        }
        Some(_) => return Err("The argument `args` must be an array of strings.".to_owned()),
    };
    let (program, args) = match args {
        Some(args) if !args.is_empty() => (command.to_owned(), args),
        // Models often put a whole command line into `command`.
        _ => split_words(command)?,
    };
    if program.is_empty() {
        return Err("The argument `command` must not be empty.".to_owned());
    }
    let cwd = match arguments.get("cwd") {
        None | Some(Value::Null) => dirs.cwd.clone(),
        Some(_) => dirs.resolve(text_argument(arguments, "cwd")?)?,
    };
    let words: Vec<&str> = std::iter::once(program.as_str()).chain(args.iter().map(String::as_str)).collect();
    let line = shlex::try_join(words.iter().copied()).unwrap_or_else(|_| words.join(" "));
    let command = ShownCommand::new(&line, (cwd != dirs.cwd).then_some(cwd.as_str()));
    let shown = ToolCall {
        id: new_id(),
        title: command.title.clone(),
        name: "run_command".to_owned(),
        kind: ToolKind::Execute,
        status: ToolStatus::Pending,
        content: command.details.into_iter().map(ToolContent::text).collect(),
        locations: Vec::new(),
        input: Value::Object(arguments.clone()),
        output: None,
    };
    // The user saw only this command in this directory, so a permission for the session covers nothing else.
    let key = json!(["run", cwd, words]).to_string();
    let grant = PermissionScope { key, scope: command.is_whole.then_some(command.title) };
    Ok(ToolJob { shown, grant: Some(grant), task: ToolTask::Run { program, args, cwd } })
}

/// A command in the form shown to the user before it runs.
struct ShownCommand {
    title: String,
    /// The complete command line; `None` if the title shows all of it.
    details: Option<String>,
    is_whole: bool,
}

impl ShownCommand {
    /// Creates the texts for the command `line`. `cwd` is set if it is not the session's directory.
    fn new(line: &str, cwd: Option<&str>) -> Self {
        let line = escape_invisible(line);
        let short = with_counted_blanks(&line);
        let count = short.chars().count();
        let is_whole = short == line && count <= MAX_TITLE_CHARS;
        let location = cwd.map(|cwd| format!(" in {}", as_code(&escape_invisible(cwd)))).unwrap_or_default();
        let title = if count <= MAX_TITLE_CHARS {
            format!("{}{location}", as_code(&short))
        } else {
            let start: String = short.chars().take(MAX_TITLE_CHARS).collect();
            let rest = count - MAX_TITLE_CHARS;
            format!("{} … and {rest} more characters{location}", as_code(&start))
        };
        let details = (!is_whole).then(|| format!("The whole command{location}: {}", as_code(&line)));
        Self { title, details, is_whole }
    }
}

/// Escapes characters that are invisible or change the appearance of the text around them.
fn escape_invisible(text: &str) -> String {
    // These letters are displayed as blanks.
    const FILLERS: [char; 4] = ['\u{115f}', '\u{1160}', '\u{3164}', '\u{ffa0}'];
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        let is_seen = character == ' '
            || character.is_ascii_graphic()
            || (character.is_alphanumeric() && !FILLERS.contains(&character));
        match is_seen {
            true => shown.push(character),
            false => shown.extend(character.escape_default()),
        }
    }
    shown
}

/// Replaces each long run of blanks by its length.
fn with_counted_blanks(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(' ') {
        let (before, blanks) = rest.split_at(at);
        let after = blanks.trim_start_matches(' ');
        let count = blanks.len() - after.len();
        shown.push_str(before);
        match count {
            ..=MAX_BLANK_RUN => shown.extend(std::iter::repeat_n(' ', count)),
            _ => shown.push_str(&format!(" [{count} blanks] ")),
        }
        rest = after;
    }
    shown.push_str(rest);
    shown
}

/// Formats `text` as Markdown code, even if it contains backticks.
fn as_code(text: &str) -> String {
    let longest = text.split(|character| character != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest + 1);
    let space = if longest == 0 { "" } else { " " };
    format!("{fence}{space}{text}{space}{fence}")
}

/// Splits a command line into words. Fails if it needs a shell.
fn split_words(line: &str) -> Result<(String, Vec<String>), String> {
    if line.contains(['|', '&', ';', '<', '>', '`', '$', '\n', '*', '?', '(', ')']) {
        return Err(
            "No shell is involved, so `|`, `&`, `;`, `<`, `>`, `$`, `*` and the like mean nothing. Give the \
            program and its arguments one by one, or run a shell: command `bash`, args [\"-c\", \"…\"]."
                .to_owned(),
        );
    }
    let words = shlex::split(line).ok_or("The quotes in `command` do not match.")?;
    let mut words = words.into_iter();
    Ok((words.next().unwrap_or_default(), words.collect()))
}

/// Runs a command in a terminal of the client, and always releases the terminal. `limit` counts from the time
/// at which the client has started the command.
pub(super) async fn run(
    turn: &mut Turn,
    shown: &mut ToolCall,
    (program, args, cwd): (&str, &[String], &str),
    stopped: impl Future<Output = Interrupt>,
    limit: Duration,
) -> Result<ToolOutcome, Interrupt> {
    tokio::pin!(stopped);
    let timeout = if turn.authorizes { super::permission::PERMISSION_TIMEOUT } else { TERMINAL_TIMEOUT };
    let mut params = turn.terminal_params();
    params["command"] = program.into();
    params["args"] = args.into();
    params["cwd"] = cwd.into();
    params["outputByteLimit"] = MAX_OUTPUT_BYTES.into();
    let asking = turn.peer.clone();
    let mut creating =
        Box::pin(async move { asking.request::<_, Created>(TERMINAL_CREATE, &params, timeout).await });
    let created = tokio::select! {
        biased;
        interrupt = &mut stopped => {
            let (peer, params) = (turn.peer.clone(), turn.terminal_params());
            // The client may still create the terminal. Only this task then knows its id and can release it.
            tokio::spawn(async move {
                if let Ok(Created { terminal_id }) = creating.await {
                    let _ = release_terminal(peer, with_terminal_id(params, &terminal_id), true).await;
                }
            });
            return Err(interrupt);
        }
        created = &mut creating => created,
    };
    let id = match created {
        Ok(Created { terminal_id }) => terminal_id,
        Err(error) => {
            return Ok(ToolOutcome::failed(format!(
                "The command could not be started: {}",
                error_reason(&error)
            )));
        }
    };
    let interrupt = async move {
        tokio::select! {
            biased;
            interrupt = stopped => interrupt,
            () = tokio::time::sleep(limit) => Interrupt::Deadline(limit),
        }
    };
    tokio::pin!(interrupt);
    shown.content = vec![ToolContent::Terminal { id: id.clone() }];
    // If the client has disconnected, the error is reported by the next request.
    let _ = turn.updates.send_call_change(shown, &[CallField::Content]).await;
    let params = with_terminal_id(turn.terminal_params(), &id);
    let mut ended = tokio::select! {
        biased;
        interrupt = &mut interrupt => Err(interrupt),
        exit = turn.peer.request::<_, ExitStatus>(TERMINAL_WAIT_FOR_EXIT, &params, EXIT_TIMEOUT) => Ok(exit),
    };
    // In a separate task, the terminal is released even if the turn does not wait.
    let release = tokio::spawn(release_terminal(turn.peer.clone(), params, ended.is_err()));
    let mut released =
        Box::pin(async { release.await.unwrap_or_else(|_| Err("releasing the terminal failed".to_owned())) });
    let mut output = None;
    if ended.is_ok() {
        tokio::select! {
            biased;
            told = &mut released => output = Some(told),
            interrupt = &mut interrupt => ended = Err(interrupt),
        }
    }
    let output = match output {
        Some(output) => output,
        None => tokio::time::timeout(OUTPUT_GRACE_TIMEOUT, released)
            .await
            .unwrap_or_else(|_| Err("the output did not arrive in time".to_owned())),
    };
    // The terminal no longer exists when the session is replayed, so its output is recorded instead.
    if let Ok(Output { output, .. }) = &output {
        shown.content.push(ToolContent::text(fenced(output)));
    }
    match ended {
        Err(Interrupt::Deadline(limit)) => {
            let text = output.map(|output| output.output).unwrap_or_default();
            let mut done = ToolOutcome::failed(format!("{}\n{text}", Interrupt::Deadline(limit).message()));
            done.content = None;
            Ok(done)
        }
        Err(interrupt) => Err(interrupt),
        Ok(exit) => Ok(to_outcome(exit, output)),
    }
}

/// Kills the command if `kill` is set, and releases the terminal. Returns its output, or an error text.
async fn release_terminal(peer: Peer, params: Value, kill: bool) -> Result<Output, String> {
    if kill {
        let _ = peer.request::<_, Value>(TERMINAL_KILL, &params, TERMINAL_TIMEOUT).await;
    }
    let output = peer.request::<_, Output>(TERMINAL_OUTPUT, &params, TERMINAL_TIMEOUT).await;
    let _ = peer.request::<_, Value>(TERMINAL_RELEASE, &params, TERMINAL_TIMEOUT).await;
    output.map_err(|error| error_reason(&error))
}

fn with_terminal_id(mut params: Value, terminal: &str) -> Value {
    params["terminalId"] = terminal.into();
    params
}

impl Turn {
    fn terminal_params(&self) -> Value {
        json!({"sessionId": &*self.session.id})
    }
}

fn to_outcome(exit: Result<ExitStatus, CallError>, output: Result<Output, String>) -> ToolOutcome {
    let (text, truncated, seen) = match output {
        Ok(Output { output, truncated, exit_status }) => (output, truncated, exit_status),
        Err(reason) => {
            return ToolOutcome::failed(format!("The output of the command is not available: {reason}"));
        }
    };
    let exit = match exit {
        Ok(exit) => exit,
        Err(error) => match seen {
            Some(exit) => exit,
            None => {
                return ToolOutcome::failed(format!(
                    "The exit of the command is unknown: {}",
                    error_reason(&error)
                ));
            }
        },
    };
    let ending = match (exit.exit_code, &exit.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    };
    let cut = if truncated { "(the beginning of the output was left out)\n" } else { "" };
    ToolOutcome {
        content: None,
        parts: vec![Part::text(format!("{cut}{text}\n({ending})"))],
        output: json!({"exitCode": exit.exit_code, "signal": exit.signal, "truncated": truncated}),
        // A command that exits counts as a successful call, whatever its exit code. Only a signal makes it a
        // failed one.
        failed: exit.exit_code.is_none() && exit.signal.is_some(),
    }
}

fn fenced(output: &str) -> String {
    format!("```\n{}\n```", output.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(arguments: &Value, expected: Result<(&str, &[&str]), &str>) {
        let dirs = SessionDirs { cwd: "/w".to_owned(), roots: Vec::new() };
        let job = prepare(&dirs, arguments.as_object().unwrap());
        match (job, expected) {
            (Ok(ToolJob { task: ToolTask::Run { program, args, cwd }, .. }), Ok((name, words))) => {
                assert_eq!((program.as_str(), cwd.as_str()), (name, "/w"));
                assert_eq!(args, words);
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (Ok(_), _) => panic!("{arguments} was taken"),
            (Err(error), _) => panic!("{arguments}: {error}"),
        }
    }

    /// Checks the title, whether a permission for the session is offered, and that the details contain what
    /// the title omits.
    #[track_caller]
    fn check_shown(arguments: &Value, title: &str, for_session: bool) {
        let dirs = SessionDirs { cwd: "/w".to_owned(), roots: Vec::new() };
        let ToolJob { shown, grant, .. } = prepare(&dirs, arguments.as_object().unwrap()).unwrap();
        assert_eq!(shown.title, title);
        assert_eq!(grant.unwrap().scope, for_session.then(|| title.to_owned()), "{arguments}");
        assert_eq!(shown.content.is_empty(), for_session, "{arguments}");
    }

    #[test]
    fn a_title_states_that_a_command_is_cut() {
        let script = |script: &str| json!({"command": "bash", "args": ["-c", script]});
        check_shown(&json!({"command": "ls -l"}), "`ls -l`", true);
        check_shown(&json!({"command": "ls -l", "cwd": "sub"}), "`ls -l` in `/w/sub`", true);
        check_shown(&script("a `b`"), "`` bash -c 'a `b`' ``", true);
        check_shown(&script("a\nb\u{202e}\u{3164}c"), r"`bash -c 'a\nb\u{202e}\u{3164}c'`", true);
        let long = "x".repeat(300);
        let start = &format!("bash -c '{long}; evil'")[..200];
        check_shown(
            &script(&format!("{long}; evil")),
            &format!("`{start}` … and 116 more characters"),
            false,
        );
        let blanks = " ".repeat(180);
        check_shown(&script(&format!("ls{blanks}; evil")), "`bash -c 'ls [180 blanks] ; evil'`", false);
    }

    #[test]
    fn a_long_command_is_shown_completely_in_the_content() {
        let line = format!("echo {} evil", "x".repeat(5000));
        let ShownCommand { details, .. } = ShownCommand::new(&line, Some("/w/sub"));
        assert_eq!(details.unwrap(), format!("The whole command in `/w/sub`: `{line}`"));
    }

    #[test]
    fn a_command_is_a_program_and_its_arguments() {
        check(&json!({"command": "ls", "args": ["-l", "a b"]}), Ok(("ls", &["-l", "a b"])));
        check(&json!({"command": "cargo test -p 'a b'"}), Ok(("cargo", &["test", "-p", "a b"])));
        check(&json!({"command": "bash", "args": ["-c", "ls | wc"]}), Ok(("bash", &["-c", "ls | wc"])));
        check(&json!({"command": "ls | wc"}), Err("No shell"));
        check(&json!({"command": "echo $HOME"}), Err("No shell"));
        check(&json!({"command": "echo 'a"}), Err("quotes"));
        check(&json!({"command": " "}), Err("empty"));
        check(&json!({"args": []}), Err("missing"));
        check(&json!({"command": "ls", "args": "-l"}), Err("array"));
        check(&json!({"command": "ls", "cwd": "/etc"}), Err("outside"));
    }
}
