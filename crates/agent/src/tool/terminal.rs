//! Commands in the user's terminal, through the client: never a process of our own.

use std::time::Duration;

use narrows_acp::method::{
    TERMINAL_CREATE, TERMINAL_KILL, TERMINAL_OUTPUT, TERMINAL_RELEASE, TERMINAL_WAIT_FOR_EXIT,
};
use narrows_model::Part;
use narrows_rpc::{CallError, Peer};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::call::{Done, Interrupt, Job, Task, text};
use super::files::reason;
use super::permission::Grant;
use crate::dialect::Field;
use crate::session::Place;
use crate::shown::{Status, ToolCall, ToolContent, ToolKind};
use crate::turn::Turn;
use crate::voice::new_id;

/// How long a client may take to start a command that it need not ask its user about, to tell its output, or to end it.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the end of a command that is given up is waited for: whoever has cancelled does not want to wait.
const GRACE: Duration = Duration::from_secs(1);

/// The longest that a command is waited for; its limit comes before.
const EXIT: Duration = Duration::from_secs(86_400);

/// How much of its output a client keeps.
const OUTPUT_LIMIT: u64 = 64 << 10;

/// The longest command line that a title shows whole.
const MAX_TITLE_CHARS: usize = 200;

/// Blanks in a row that a title shows as they are. More of them could move what follows out of sight.
const MAX_BLANKS: usize = 8;

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

/// `run_command`.
pub(super) fn prepare(place: &Place, arguments: &Map<String, Value>) -> Result<Job, String> {
    let command = text(arguments, "command")?.trim();
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
        // Models write a whole line where a program is asked for.
        _ => split(command)?,
    };
    if program.is_empty() {
        return Err("The argument `command` must not be empty.".to_owned());
    }
    let cwd = match arguments.get("cwd") {
        None | Some(Value::Null) => place.cwd.clone(),
        Some(_) => place.resolve(text(arguments, "cwd")?)?,
    };
    let words: Vec<&str> = std::iter::once(program.as_str()).chain(args.iter().map(String::as_str)).collect();
    let line = shlex::try_join(words.iter().copied()).unwrap_or_else(|_| words.join(" "));
    let command = ShownCommand::new(&line, (cwd != place.cwd).then_some(cwd.as_str()));
    let shown = ToolCall {
        id: new_id(),
        title: command.title.clone(),
        name: "run_command".to_owned(),
        kind: ToolKind::Execute,
        status: Status::Pending,
        content: command.details.into_iter().map(ToolContent::text).collect(),
        locations: Vec::new(),
        input: Value::Object(arguments.clone()),
        output: None,
    };
    // This very command in this very place: anything wider would be more than the user has seen.
    let key = json!(["run", cwd, words]).to_string();
    let grant = Grant { key, scope: command.is_whole.then_some(command.title) };
    Ok(Job { shown, grant: Some(grant), task: Task::Run { program, args, cwd } })
}

/// A command as the user is shown it before it runs.
struct ShownCommand {
    title: String,
    /// All of it, if the title does not have that.
    details: Option<String>,
    /// The title shows all of the command.
    is_whole: bool,
}

impl ShownCommand {
    /// The command `line`, which runs in `cwd` unless that is the directory of the session.
    fn new(line: &str, cwd: Option<&str>) -> Self {
        let line = visible(line);
        let short = with_counted_blanks(&line);
        let count = short.chars().count();
        let is_whole = short == line && count <= MAX_TITLE_CHARS;
        let place = cwd.map(|cwd| format!(" in {}", as_code(&visible(cwd)))).unwrap_or_default();
        let title = if count <= MAX_TITLE_CHARS {
            format!("{}{place}", as_code(&short))
        } else {
            let start: String = short.chars().take(MAX_TITLE_CHARS).collect();
            let rest = count - MAX_TITLE_CHARS;
            format!("{} … and {rest} more characters{place}", as_code(&start))
        };
        let details = (!is_whole).then(|| format!("The whole command{place}: {}", as_code(&line)));
        Self { title, details, is_whole }
    }
}

/// `text` with a visible form of whatever would not be seen, or would change what is seen around it.
fn visible(text: &str) -> String {
    // Letters by their category that are blank.
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

/// `text` with the number of blanks in the place of many in a row.
fn with_counted_blanks(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(' ') {
        let (before, blanks) = rest.split_at(at);
        let after = blanks.trim_start_matches(' ');
        let count = blanks.len() - after.len();
        shown.push_str(before);
        match count {
            ..=MAX_BLANKS => shown.extend(std::iter::repeat_n(' ', count)),
            _ => shown.push_str(&format!(" [{count} blanks] ")),
        }
        rest = after;
    }
    shown.push_str(rest);
    shown
}

/// `text` as code in Markdown, whatever backticks it has.
fn as_code(text: &str) -> String {
    let longest = text.split(|character| character != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest + 1);
    let space = if longest == 0 { "" } else { " " };
    format!("{fence}{space}{text}{space}{fence}")
}

/// A line without a shell's meaning, in words.
fn split(line: &str) -> Result<(String, Vec<String>), String> {
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

/// Runs a command in a terminal of the client, which is given back whatever happens. It has `limit` from when the
/// client has started it.
pub(super) async fn run(
    turn: &mut Turn,
    shown: &mut ToolCall,
    (program, args, cwd): (&str, &[String], &str),
    stopped: impl Future<Output = Interrupt>,
    limit: Duration,
) -> Result<Done, Interrupt> {
    tokio::pin!(stopped);
    let patience = if turn.authorizes { super::permission::PATIENCE } else { PATIENCE };
    let mut params = turn.terminal();
    params["command"] = program.into();
    params["args"] = args.into();
    params["cwd"] = cwd.into();
    params["outputByteLimit"] = OUTPUT_LIMIT.into();
    let asking = turn.peer.clone();
    let mut creating =
        Box::pin(async move { asking.request::<_, Created>(TERMINAL_CREATE, &params, patience).await });
    let created = tokio::select! {
        biased;
        interrupt = &mut stopped => {
            let (peer, params) = (turn.peer.clone(), turn.terminal());
            // It may still come, and nobody else would know of it.
            tokio::spawn(async move {
                if let Ok(Created { terminal_id }) = creating.await {
                    let _ = give_back(peer, with_id(params, &terminal_id), true).await;
                }
            });
            return Err(interrupt);
        }
        created = &mut creating => created,
    };
    let id = match created {
        Ok(Created { terminal_id }) => terminal_id,
        Err(error) => {
            return Ok(Done::failed(format!("The command could not be started: {}", reason(&error))));
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
    // If the client has gone, the next request finds out.
    let _ = turn.voice.change(shown, &[Field::Content]).await;
    let params = with_id(turn.terminal(), &id);
    let mut ended = tokio::select! {
        biased;
        interrupt = &mut interrupt => Err(interrupt),
        exit = turn.peer.request::<_, ExitStatus>(TERMINAL_WAIT_FOR_EXIT, &params, EXIT) => Ok(exit),
    };
    // A task of its own: what has begun is brought to its end, however short the patience of the turn.
    let giving = tokio::spawn(give_back(turn.peer.clone(), params, ended.is_err()));
    let mut given = Box::pin(async { giving.await.unwrap_or_else(|_| Err("it cannot be told".to_owned())) });
    let mut output = None;
    if ended.is_ok() {
        tokio::select! {
            biased;
            told = &mut given => output = Some(told),
            interrupt = &mut interrupt => ended = Err(interrupt),
        }
    }
    let output = match output {
        Some(output) => output,
        None => {
            tokio::time::timeout(GRACE, given).await.unwrap_or_else(|_| Err("it does not come".to_owned()))
        }
    };
    // The output stands in for the terminal when the session is shown again.
    if let Ok(Output { output, .. }) = &output {
        shown.content.push(ToolContent::text(fenced(output)));
    }
    match ended {
        Err(Interrupt::Deadline(limit)) => {
            let said = output.map(|output| output.output).unwrap_or_default();
            let mut done = Done::failed(format!("{}\n{said}", Interrupt::Deadline(limit).words()));
            done.content = None;
            Ok(done)
        }
        Err(interrupt) => Err(interrupt),
        Ok(exit) => Ok(done(exit, output)),
    }
}

/// Ends what runs in a terminal if need be, and gives the terminal back; what it showed, or why that is not known.
async fn give_back(peer: Peer, params: Value, kill: bool) -> Result<Output, String> {
    if kill {
        let _ = peer.request::<_, Value>(TERMINAL_KILL, &params, PATIENCE).await;
    }
    let output = peer.request::<_, Output>(TERMINAL_OUTPUT, &params, PATIENCE).await;
    let _ = peer.request::<_, Value>(TERMINAL_RELEASE, &params, PATIENCE).await;
    output.map_err(|error| reason(&error))
}

fn with_id(mut params: Value, terminal: &str) -> Value {
    params["terminalId"] = terminal.into();
    params
}

impl Turn {
    fn terminal(&self) -> Value {
        json!({"sessionId": &*self.session.id})
    }
}

fn done(exit: Result<ExitStatus, CallError>, output: Result<Output, String>) -> Done {
    let (said, truncated, seen) = match output {
        Ok(Output { output, truncated, exit_status }) => (output, truncated, exit_status),
        Err(reason) => return Done::failed(format!("The output of the command could not be had: {reason}")),
    };
    let exit = match exit {
        Ok(exit) => exit,
        Err(error) => match seen {
            Some(exit) => exit,
            None => return Done::failed(format!("The end of the command was not seen: {}", reason(&error))),
        },
    };
    let ending = match (exit.exit_code, &exit.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    };
    let cut = if truncated { "(the beginning of the output was left out)\n" } else { "" };
    Done {
        content: None,
        parts: vec![Part::text(format!("{cut}{said}\n({ending})"))],
        output: json!({"exitCode": exit.exit_code, "signal": exit.signal, "truncated": truncated}),
        // A command that ran is a call that worked, unless it was ended from outside; the code is for the model to judge.
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
        let place = Place { cwd: "/w".to_owned(), roots: Vec::new() };
        let job = prepare(&place, arguments.as_object().unwrap());
        match (job, expected) {
            (Ok(Job { task: Task::Run { program, args, cwd }, .. }), Ok((name, words))) => {
                assert_eq!((program.as_str(), cwd.as_str()), (name, "/w"));
                assert_eq!(args, words);
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (Ok(_), _) => panic!("{arguments} was taken"),
            (Err(error), _) => panic!("{arguments}: {error}"),
        }
    }

    /// Checks the title, whether an answer for the whole session is offered, and whether the whole is shown elsewhere.
    #[track_caller]
    fn check_shown(arguments: &Value, title: &str, for_session: bool) {
        let place = Place { cwd: "/w".to_owned(), roots: Vec::new() };
        let Job { shown, grant, .. } = prepare(&place, arguments.as_object().unwrap()).unwrap();
        assert_eq!(shown.title, title);
        assert_eq!(grant.unwrap().scope, for_session.then(|| title.to_owned()), "{arguments}");
        assert_eq!(shown.content.is_empty(), for_session, "{arguments}");
    }

    #[test]
    fn a_title_that_does_not_show_all_of_a_command_says_so() {
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
    fn the_whole_of_a_long_command_is_in_the_content() {
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
