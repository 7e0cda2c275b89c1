//! Questions to the person at the terminal.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

use narrows_client::{Approval, PermissionOption, Question, Reply};
use narrows_policy::{Action, Command, Variable};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{QueueSelector, tcflush};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use crate::cli::Output;
use crate::terminal::{Colour, Echo, Style, line, long_line};

/// The longest answer.
const LONGEST: usize = 4096;

/// How much of what is asked is shown. What is longer cannot be allowed: nobody is to allow what they cannot see.
const MAX_SHOWN_CHARS: usize = 4000;

/// More blanks in a row than this are counted, so that what stands behind them does not scroll away.
const MAX_BLANKS: usize = 8;

/// Whether a person watches the terminal and nobody else reads what is printed.
pub(crate) fn is_possible(output: Output) -> bool {
    output == Output::Text && io::stderr().is_terminal() && io::stdin().is_terminal()
}

/// A question that a person has been asked. Dropping it takes the question back.
pub(crate) struct Asking {
    answered: oneshot::Receiver<Reply>,
    /// Closed with this, which is how the thread learns that nobody wants to know any more.
    wanted: PipeWriter,
}

impl Asking {
    /// Asks, in a thread of its own: a person takes as long as they take, and nothing else may wait for them.
    pub(crate) fn begin(question: Arc<Question>, colour: Colour) -> io::Result<Self> {
        let (unwanted, wanted) = io::pipe()?;
        let (answer, answered) = oneshot::channel();
        std::thread::Builder::new().name("question".to_owned()).spawn(move || {
            // Whoever no longer waits has decided otherwise.
            let _ = answer.send(ask(&question, colour, &unwanted).unwrap_or(Reply::Nobody));
        })?;
        Ok(Self { answered, wanted })
    }

    /// The answer. Safe to cancel.
    pub(crate) async fn reply(&mut self) -> Reply {
        (&mut self.answered).await.unwrap_or(Reply::Nobody)
    }

    /// Takes the question back, and waits until nothing more is read or written for it.
    pub(crate) async fn withdraw(self) {
        let Self { answered, wanted } = self;
        drop(wanted);
        let _ = answered.await;
    }
}

/// The terminal: ours, or if we have none to ourselves, the one that is our stdin.
fn terminal() -> io::Result<File> {
    let ours = File::options().read(true).write(true).open("/dev/tty");
    ours.or_else(|error| {
        let stdin = io::stdin();
        if stdin.is_terminal() { Ok(File::from(stdin.as_fd().try_clone_to_owned()?)) } else { Err(error) }
    })
}

/// Asks for a yes. Anything else, and nothing at all, is none.
pub(crate) fn agrees(text: &str) -> io::Result<bool> {
    let mut terminal = terminal()?;
    // What was typed before the question is no answer to it.
    tcflush(&terminal, QueueSelector::IFlush)?;
    terminal.write_all(text.as_bytes())?;
    let mut answer = [0; LONGEST];
    let length = terminal.read(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer[..length]);
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// Asks in the terminal itself, wherever stdin and stdout lead, until it is answered or `unwanted` ends.
fn ask(question: &Question, colour: Colour, unwanted: &PipeReader) -> io::Result<Reply> {
    let mut terminal = terminal()?;
    let text = render(question, colour);
    // What was typed before the question is no answer to it.
    tcflush(&terminal, QueueSelector::IFlush)?;
    let _shown = Echo::on(&terminal);
    loop {
        terminal.write_all(text.as_bytes())?;
        let mut waits = [PollFd::new(&terminal, PollFlags::IN), PollFd::new(unwanted, PollFlags::IN)];
        poll(&mut waits, None)?;
        if !waits[1].revents().is_empty() {
            terminal.write_all(b"\n")?;
            return Ok(Reply::Reject);
        }
        let mut answer = [0; LONGEST];
        let length = terminal.read(&mut answer)?;
        if length == 0 {
            return Ok(Reply::Reject);
        }
        let answer = String::from_utf8_lossy(&answer[..length]);
        match read(&question.options, answer.trim()) {
            Some(Reply::Reject) => return Ok(Reply::Reject),
            Some(reply) if is_shown_whole(question) => return Ok(reply),
            _ => {}
        }
    }
}

/// The question as it is shown: what the agent wants, why that is asked, and the keys that answer it.
fn render(question: &Question, colour: Colour) -> String {
    let heading = colour.paint(Style::Hint, "The agent asks for permission:").into_owned();
    let mut text = format!("\n{heading} {}\n", line(&question.title));
    let mut row = |name: &str, words: &str| {
        if !words.is_empty() {
            let name = colour.paint(Style::Dim, &format!("{name}:")).into_owned();
            text.push_str(&format!("  {name} {}\n", long_line(&visible(words), MAX_SHOWN_CHARS)));
        }
    };
    let Shown { what, directory, rest } = shown(question);
    match &question.approval {
        // What the gate says of it is all that there is to say; rules here have no part in it.
        Some(Approval { id, reason }) => {
            row("what", &what);
            row("in", &directory);
            row("input", &rest);
            row("why asked", &format!("governance: {reason}"));
            let elsewhere = format!("`narrows approve {id} --key FILE`");
            row(
                "approval",
                &format!("{id}; with a key that the governance names it can be given elsewhere: {elsewhere}"),
            );
        }
        None => {
            row("about", question.description.as_deref().unwrap_or_default());
            row("what", &what);
            row("in", &directory);
            row("input", &rest);
            row("why asked", &question.decision.because.to_string());
        }
    }
    if !is_shown_whole(question) {
        text.push_str("  It is too long to be shown, so it can only be rejected here. A rule in a --policy file can allow it.\n");
        text.push_str("  [n] no, or Enter\nReject it? ");
        return text;
    }
    let mut keys = vec!["[y] yes, this once".to_owned(), "[n] no, or Enter".to_owned()];
    keys.extend(question.options.iter().enumerate().map(|(number, option)| {
        let name = line(&option.name);
        // What a name promises need not be what its kind means.
        let lasts = if option.kind.ends_with("_always") { " (lasts)" } else { "" };
        format!("[{}] {name}{lasts}", number + 1)
    }));
    text.push_str(&format!("  {}\nAllow it? ", keys.join("  ")));
    text
}

/// What would be done, as it is shown.
struct Shown {
    /// The command with its variables, or else the kind of thing and the files.
    what: String,
    /// The working directory of a command, if the request names one.
    directory: String,
    /// Everything else in the input.
    rest: String,
}

fn shown(question: &Question) -> Shown {
    let input = &question.input;
    let Some(fields) =
        input.as_object().filter(|_| input["command"].as_str().is_some_and(|text| !text.is_empty()))
    else {
        let mut parts = vec![question.tool.clone().unwrap_or_else(|| question.kind.clone())];
        parts.extend(question.locations.iter().map(|path| path.display().to_string()));
        if !input.is_null() {
            parts.push(input.to_string());
        }
        parts.retain(|part| !part.is_empty());
        return Shown { what: parts.join(" "), directory: String::new(), rest: String::new() };
    };
    // As it is judged, variables included.
    let Action { command, env, cwd, .. } = Action::read(Some("execute"), None, input, &[]);
    let quoted = |word: &str| shlex::try_quote(word).map_or_else(|_| word.to_owned(), Cow::into_owned);
    let mut words: Vec<String> = env
        .iter()
        .map(|Variable { name, value }| match name.as_str() {
            "" => format!("env {value}"),
            name => format!("{name}={}", quoted(value)),
        })
        .collect();
    match command {
        Some(Command::Argv(argv)) if argv.len() > 1 => words.extend(argv.iter().map(|word| quoted(word))),
        Some(Command::Argv(argv)) => words.extend(argv),
        Some(Command::Shell(text) | Command::Unknown(text)) => words.push(text),
        None => {}
    }
    let is_shown = |key: &str| ["command", "args", "cwd", "env"].contains(&key);
    let rest: Map<String, Value> = fields
        .iter()
        .filter(|(key, value)| !is_shown(key) && !value.is_null())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    Shown {
        what: words.join(" "),
        directory: cwd.map(|cwd| cwd.display().to_string()).unwrap_or_default(),
        rest: if rest.is_empty() { String::new() } else { Value::Object(rest).to_string() },
    }
}

fn is_shown_whole(question: &Question) -> bool {
    let Shown { what, directory, rest } = shown(question);
    [what, directory, rest].iter().all(|text| visible(text).chars().count() <= MAX_SHOWN_CHARS)
}

/// A text in which ends of lines, tabs and long runs of blanks can be seen: a command on a second line must not look like a part of a
/// comment on the first.
fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let blanks = rest.len() - rest.trim_start_matches(' ').len();
        match letter {
            ' ' if blanks > MAX_BLANKS => shown.push_str(&format!(" [{blanks} blanks] ")),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            letter => shown.push(letter),
        }
        let length = if letter == ' ' && blanks > MAX_BLANKS { blanks } else { letter.len_utf8() };
        rest = &rest[length..];
    }
    shown
}

/// What an answer means; `None` if it means nothing.
fn read(options: &[PermissionOption], answer: &str) -> Option<Reply> {
    match answer.to_ascii_lowercase().as_str() {
        "y" | "yes" => Some(Reply::Allow),
        "n" | "no" | "" => Some(Reply::Reject),
        number => {
            let option = options.get(number.parse::<usize>().ok()?.checked_sub(1)?)?;
            Some(Reply::Select(option.option_id.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use narrows_policy::{Access, Because, Decision, Kind, Verdict};
    use serde_json::json;

    use super::*;

    fn option(id: &str, kind: &str) -> PermissionOption {
        PermissionOption { option_id: id.to_owned(), name: id.to_uppercase(), kind: kind.to_owned() }
    }

    fn question(input: Value, locations: &[&str]) -> Question {
        let because = Because::Preset { access: Access::Medium, kind: Kind::Delete, why: "asks about it" };
        Question {
            id: "perm_1".to_owned(),
            session_id: "s".to_owned(),
            run_id: None,
            title: "Clean\u{1b}[2J up".to_owned(),
            description: None,
            tool_call_id: None,
            tool: None,
            kind: "delete".to_owned(),
            input,
            locations: locations.iter().map(Into::into).collect(),
            options: vec![option("a", "allow_once"), option("b", "allow_always")],
            decision: Decision { verdict: Verdict::Ask, because, about: None },
            approval: None,
        }
    }

    #[track_caller]
    fn check(input: Value, locations: &[&str], expected: &str) {
        let question = question(input, locations);
        let expected = format!(
            "\nThe agent asks for permission: Clean\\u{{1b}}[2J up\n  what: {expected}\n  why asked: no rule matches, and medium access asks about it\n  [y] yes, this once  [n] no, or Enter  [1] A  [2] B (lasts)\nAllow it? "
        );
        assert_eq!(render(&question, Colour::off()), expected);
    }

    #[test]
    fn a_question_says_what_and_why_and_how_to_answer() {
        check(json!(null), &[], "delete");
        check(json!(null), &["/a", "/b c"], "delete /a /b c");
        check(json!({"force": true}), &["/a"], "delete /a {\"force\":true}");
        check(json!({"command": "rm -r x", "cwd": "/a"}), &[], "rm -r x\n  in: /a");
        check(json!({"command": "ls # all\nrm\tx"}), &[], "ls # all\\nrm\\tx");
        check(json!({"command": format!("ls{}; rm x", " ".repeat(3000))}), &[], "ls [3000 blanks] ; rm x");
        let edit = json!({"command": "create", "path": "/a", "text": "x", "more": null});
        check(edit, &[], "create\n  input: {\"path\":\"/a\",\"text\":\"x\"}");
        check(json!({"command": "rm", "args": ["-r", "a b"]}), &[], "rm -r 'a b'");
        let env = json!([{"name": "PATH", "value": "/evil dir"}]);
        check(json!({"command": "ls", "args": ["-l"], "env": env}), &[], "PATH='/evil dir' ls -l");
        let environment = "A=1 ls\n  input: {\"environment\":{\"A\":\"1\"}}";
        check(json!({"command": "ls", "environment": {"A": "1"}}), &[], environment);
        check(json!({"command": "find", "args": ". -delete"}), &[], "find . -delete");
        check(json!({"command": "head", "args": ["-n", 5]}), &[], "head -n 5");
        let long = "x".repeat(1000);
        check(json!({"command": long}), &[], &long);
    }

    #[test]
    fn what_is_too_long_to_be_shown_cannot_be_allowed() {
        let question = question(json!({"command": format!("ls {}; rm y", "x".repeat(MAX_SHOWN_CHARS))}), &[]);
        assert!(!is_shown_whole(&question));
        let shown = render(&question, Colour::off());
        assert!(shown.ends_with("[n] no, or Enter\nReject it? ") && !shown.contains("yes"), "{shown}");
    }

    #[test]
    fn an_approval_is_shown_with_its_policy_and_its_name() {
        let approval = Approval {
            id: "n-1".to_owned(),
            reason: "require-approval: policy `removing` says so".to_owned(),
        };
        let question = Question { approval: Some(approval), ..question(json!(null), &["/a"]) };
        let shown = render(&question, Colour::off());
        let expected = "  what: delete /a\n  why asked: governance: require-approval: policy `removing` says so\n  approval: n-1; with a key that the governance names it can be given elsewhere: `narrows approve n-1 --key FILE`\n";
        assert!(shown.contains(expected), "{shown}");
    }

    #[test]
    fn answers_are_understood_or_asked_for_again() {
        let options = [option("a", "allow_once"), option("b", "allow_once")];
        for (answer, expected) in [
            ("y", Some(Reply::Allow)),
            ("YES", Some(Reply::Allow)),
            ("", Some(Reply::Reject)),
            ("no", Some(Reply::Reject)),
            ("2", Some(Reply::Select("b".to_owned()))),
            ("3", None),
            ("0", None),
            ("maybe", None),
        ] {
            assert_eq!(read(&options, answer), expected, "{answer}");
        }
    }
}
