//! Finds commands in the input of a tool.
//!
//! Agents write commands in many forms: a text, a list, a program with separate arguments. Every uncertain
//! form becomes [`Command::Unknown`], which counts as able to do anything. Several commands are read
//! separately, so that no command can quote, continue or comment out another one.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::Command;
use super::input::plain_key;
use super::members::is_common_shell;

const COMMAND: &[&str] = &[
    "command",
    "cmd",
    "script",
    "shellcommand",
    "commandline",
    "cmdline",
    "bash",
    "commands",
    "program",
    "executable",
    "fullcommand",
    "fullcommandtext",
    "bashcommand",
    "bashscript",
    "cmdstring",
    "cmdtext",
    "commandstring",
    "commandtext",
    "commandtoexecute",
    "commandtorun",
    "execcommand",
    "executecommand",
    "rawcommand",
    "runcommand",
    "shellcmd",
    "shellscript",
    "terminalcommand",
];
/// Names of members that contain commands in a call which claims to change nothing. In other calls they may
/// contain the text of a file or an id.
const CODE: &[&str] = &[
    "code",
    "eval",
    "exec",
    "execute",
    "powershell",
    "pwsh",
    "python",
    "run",
    "sh",
    "shell",
    "terminal",
    "zsh",
];
/// Last parts of names of members that contain commands: `gitCommand`, `cmds`.
const COMMAND_PARTS: &[&str] = &["command", "commands", "cmd", "cmds", "script", "scripts"];
/// Last parts of names of members that contain commands if the part before says how code is run: `bash_code`,
/// `runSnippet`.
const CODE_PARTS: &[&str] = &["code", "snippet", "source", "line", "lines", "input", "text", "string"];
/// Parts of a member name that say how code is run.
const RUN_PARTS: &[&str] = &[
    "bash",
    "sh",
    "zsh",
    "fish",
    "shell",
    "terminal",
    "powershell",
    "pwsh",
    "run",
    "execute",
    "exec",
    "eval",
    "python",
    "py",
    "node",
    "js",
    "javascript",
    "typescript",
    "ruby",
    "perl",
    "php",
    "lua",
    "command",
    "cmd",
    "script",
];
/// Member that contains a command with its program. Another command beside it must begin with the same words:
/// some tools leave out the program, others run the other command instead.
const ARGV: &str = "argv";
const ARGUMENTS: &[&str] = &[
    "args",
    "arguments",
    "argument",
    "arg",
    "argslist",
    "arglist",
    "argumentlist",
    "commandargs",
    "commandarguments",
    "cmdargs",
    "extraargs",
    "extraarguments",
    "additionalargs",
    "switches",
];
/// Members that contain arguments. An object in them contains settings of the tool, not arguments.
const OPTIONS: &[&str] = &["options", "opts", "flags", "params", "parameters"];
const INPUT: &[&str] = &["stdin", "standardinput", "stdintext", "stdindata"];

/// Returns `true` if a member with this name, normalized by [`plain_key`], contains a command or a part of
/// one.
pub(super) fn is_part(key: &str) -> bool {
    key == ARGV || [COMMAND, ARGUMENTS, OPTIONS, INPUT].iter().any(|names| names.contains(&key))
}

/// Returns the command in a member of a call that claims to change nothing. `key` is the member's name,
/// normalized by [`plain_key`]. Numbers, booleans and names of shells are settings.
pub(super) fn code(key: &str, value: &Value) -> Option<Command> {
    let names_shell = key == "shell" && value.as_str().is_some_and(is_common_shell);
    (CODE.contains(&key) && !is_setting(value) && !names_shell).then(|| Command::Unknown(plain(value)))
}

/// Returns the command in a member if the parts of the member's name say that it contains one.
pub(super) fn code_by_part(parts: &[String], value: &Value) -> Option<Command> {
    let (last, before) = parts.split_last()?;
    let runs = || before.iter().any(|part| RUN_PARTS.contains(&part.as_str()));
    let is_code = COMMAND_PARTS.contains(&last.as_str()) || CODE_PARTS.contains(&last.as_str()) && runs();
    (is_code && !is_setting(value)).then(|| Command::Unknown(plain(value)))
}

/// Returns `true` if a value is a setting of a tool, whatever the member's name is.
fn is_setting(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

pub(super) fn is_input(key: &str) -> bool {
    INPUT.contains(&key)
}

pub(super) fn runs(fields: &Map<String, Value>) -> bool {
    fields.iter().any(|(key, value)| {
        let key = plain_key(key);
        (key == ARGV || COMMAND.contains(&key.as_str())) && !value.is_null()
    })
}

#[derive(Default)]
pub(super) struct Commands {
    found: Vec<Command>,
    known: HashSet<Command>,
    arguments: Vec<String>,
    /// Texts that are written to the standard input of the command.
    input: Vec<String>,
}

impl Commands {
    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub(super) fn add(&mut self, fields: &Map<String, Value>) {
        let (mut commands, mut arguments) = (Vec::new(), Vec::new());
        let mut argv = None;
        for (key, value) in fields.iter().filter(|(_, value)| !is_nothing(value)) {
            let key = plain_key(key);
            let is = |names: &[&str]| names.contains(&key.as_str());
            if key == ARGV {
                argv = Some(value);
            } else if is(COMMAND) {
                commands.push((key == "commands", value));
            } else if is(ARGUMENTS) || is(OPTIONS) && !value.is_object() {
                arguments.push(value);
            } else if is(INPUT) {
                self.input.push(value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            }
        }
        let mut is_ambiguous = false;
        if let Some(argv) = argv {
            match &commands[..] {
                [] => {}
                [(_, Value::String(program))] if starts_with(argv, program) => commands.clear(),
                _ => is_ambiguous = true,
            }
            commands.push((false, argv));
        }
        match (&commands[..], &arguments[..]) {
            _ if is_ambiguous => self.push_unknown(&commands, &arguments),
            ([], _) => {
                // An object in a list of arguments is visited on its own.
                let lists = arguments.iter().filter(|value| !value.is_object());
                self.arguments.extend(lists.map(ToString::to_string));
            }
            (_, []) => {
                for (many, command) in commands {
                    self.add_value(command, many);
                }
            }
            ([(false, command)], [arguments]) => self.push(joined(command, arguments)),
            _ => self.push_unknown(&commands, &arguments),
        }
    }

    fn push_unknown(&mut self, commands: &[(bool, &Value)], arguments: &[&Value]) {
        let all = commands.iter().map(|(_, value)| *value).chain(arguments.iter().copied());
        let all: Vec<String> = all.map(plain).collect();
        self.push(Command::Unknown(all.join(" ")));
    }

    /// Adds a value as one command, or as a list of commands if `many` is set.
    pub(super) fn add_value(&mut self, value: &Value, many: bool) {
        match (value, words(value)) {
            (Value::String(text), _) => self.push(Command::Shell(text.clone())),
            (Value::Array(_), Some(lines)) if many => {
                lines.into_iter().for_each(|line| self.push(Command::Shell(line)));
            }
            (Value::Array(_), Some(words)) => self.push(Command::Argv(words)),
            _ => self.push(Command::Unknown(value.to_string())),
        }
    }

    fn push(&mut self, command: Command) {
        if self.known.insert(command.clone()) {
            self.found.push(command);
        }
    }

    /// Combines everything that was found into one command. The command is unknown if a part of the input is
    /// `unclear` or a member is `unjudged`.
    pub(super) fn into_command(mut self, unclear: bool, unjudged: Option<String>) -> Option<Command> {
        // A command that is only the name of the program in `argv` is not a second command.
        let programs: HashSet<Command> = self.found.iter().filter_map(program).collect();
        self.found.retain(|command| !programs.contains(command));
        let is_unknown = |command: &Command| matches!(command, Command::Unknown(_));
        let unjudged = unjudged.filter(|_| !self.found.iter().all(is_unknown));
        if unclear
            || unjudged.is_some()
            || !self.arguments.is_empty()
            || self.found.len() > 1 && self.found.iter().any(is_unknown)
        {
            let all =
                self.found.iter().map(written).chain(self.arguments).chain(unjudged).collect::<Vec<_>>();
            return (!self.found.is_empty()).then(|| Command::Unknown(all.join("\n")));
        }
        let command = match self.found.len() {
            0 | 1 => self.found.pop()?,
            _ => Command::Shell(self.found.iter().map(alone).collect::<Vec<_>>().join("\n")),
        };
        if self.input.is_empty() || is_unknown(&command) {
            return Some(command);
        }
        let input = quoted(&self.input.join("\n"));
        Some(Command::Shell(format!("printf %s {input} | {}", alone(&command))))
    }
}

fn joined(command: &Value, arguments: &Value) -> Command {
    let unknown = || Command::Unknown(format!("{} {arguments}", plain(command)));
    match (command, arguments) {
        (Value::String(program), _) if program.trim().is_empty() => unknown(),
        // A shell reads the program and the text as one line.
        (Value::String(program), Value::String(text)) => Command::Shell(format!("{program} {text}")),
        // Agents differ in whether they split the program at blanks.
        (Value::String(program), _) if program.contains(char::is_whitespace) => unknown(),
        (Value::Array(_), Value::String(text)) if text.contains(char::is_whitespace) => unknown(),
        (Value::String(_) | Value::Array(_), _) => match (words(command), words(arguments)) {
            (Some(words), Some(more)) => Command::Argv(words.into_iter().chain(more).collect()),
            _ => unknown(),
        },
        _ => unknown(),
    }
}

fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

fn starts_with(argv: &Value, program: &str) -> bool {
    argv.as_array().and_then(|words| words.first()).and_then(Value::as_str) == Some(program)
}

fn program(command: &Command) -> Option<Command> {
    match command {
        Command::Argv(words) if words.len() > 1 => words.first().map(|word| Command::Shell(word.clone())),
        _ => None,
    }
}

/// Returns the text that a program receives as an argument for this value.
pub(super) fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

fn words(list: &Value) -> Option<Vec<String>> {
    match list {
        Value::Array(items) => items.iter().map(word).collect(),
        single => word(single).map(|word| vec![word]),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the original text of a command, for people.
fn written(command: &Command) -> String {
    match command {
        Command::Shell(text) | Command::Unknown(text) => text.clone(),
        Command::Argv(_) => alone(command),
    }
}

/// Returns a shell line that neither affects other lines nor depends on them.
fn alone(command: &Command) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || " _./:,@%+-".contains(letter);
    match command {
        Command::Shell(text) | Command::Unknown(text) if text.chars().all(is_plain) => text.clone(),
        Command::Shell(text) | Command::Unknown(text) => format!("sh -c {}", quoted(text)),
        Command::Argv(words) => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
