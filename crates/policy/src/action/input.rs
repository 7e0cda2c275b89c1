//! What the input of a tool shows, whatever the tool calls itself.
//!
//! Names of fields are those that agents use. Every object of the input is looked at, not only the outermost; one that
//! is too large to look at counts as unknown.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::{Action, Command, patch};
use crate::kind::Kind;
use crate::variable::Variable;

/// How many values are looked at before the input counts as unknown.
const MOST_VALUES: usize = 20_000;

const COMMAND: &[&str] = &[
    "command",
    "cmd",
    "argv",
    "script",
    "shellcommand",
    "commandline",
    "cmdline",
    "bash",
    "commands",
    "program",
    "executable",
];
const ARGUMENTS: &[&str] =
    &["args", "arguments", "argv", "argument", "arg", "commandargs", "commandarguments", "cmdargs"];
const VARIABLES: &[&str] =
    &["env", "envs", "environment", "envvars", "environmentvariables", "extraenv", "variables"];
const CWD: &[&str] = &["cwd", "workdir", "workingdirectory", "workingdir"];
const PATH: &[&str] = &[
    "path",
    "filepath",
    "filename",
    "file",
    "abspath",
    "absolutepath",
    "notebookpath",
    "directory",
    "dir",
    "dirpath",
    "folder",
    "source",
    "src",
    "sourcepath",
    "oldpath",
    "target",
    "targetfile",
    "targetpath",
    "paths",
    "files",
    "filepaths",
    "relativepath",
    "relativeworkspacepath",
    "outputpath",
    "outfile",
];
const DESTINATION: &[&str] = &["destination", "dest", "newpath", "destinationpath", "targetpath", "moveto"];
const CONTENT: &[&str] = &[
    "content",
    "contents",
    "newstring",
    "newstr",
    "oldstring",
    "oldstr",
    "newtext",
    "oldtext",
    "diff",
    "patch",
    "edits",
    "changes",
    "filetext",
    "insertline",
    "inserttext",
    "newsource",
    "replacement",
    "codeedit",
    "unifieddiff",
];
const URL: &[&str] = &["url", "urls", "uri", "uris", "href", "link", "endpoint", "websiteurl"];
const QUERY: &[&str] = &["query", "queries", "q", "searchquery", "searchterm", "searchterms"];
const PATTERN: &[&str] = &["pattern", "patterns", "glob", "globs", "regex", "globpattern", "includepattern"];

pub(super) fn read(kind: Option<&str>, tool: Option<&str>, input: &Value, locations: &[PathBuf]) -> Action {
    let claimed = kind.map_or(Kind::Other, Kind::named);
    let mut seen = Seen::default();
    seen.everything(input);
    // Some agents send the bare command.
    if claimed == Kind::Execute && seen.command.is_none() && (input.is_string() || input.is_array()) {
        seen.run(input, false, &Map::new());
    }
    let Seen { mut paths, command, cwd, env, urls, query, pattern, content, moves, overflow } = seen;
    let named = !paths.is_empty();
    paths.extend_from_slice(locations);
    if paths.len() > 1 {
        let mut known = std::collections::HashSet::new();
        paths.retain(|path| known.insert(path.clone()));
    }

    let mut kinds = vec![claimed];
    kinds.extend((content && !paths.is_empty()).then_some(Kind::Edit));
    kinds.extend((moves && paths.len() > 1).then_some(Kind::Move));
    kinds.extend((query && !named && !pattern && claimed < Kind::Search).then_some(Kind::Search));
    kinds.extend(overflow.then_some(Kind::Other));
    kinds.sort_unstable();
    kinds.dedup();
    let strictest = kinds.pop().unwrap_or_default();
    Action {
        kind: strictest,
        also: kinds,
        tool: tool.map(str::to_owned),
        claimed: None,
        server: None,
        paths,
        command,
        cwd,
        real_cwd: None,
        env,
        urls,
        query,
        local: named || pattern,
    }
}

/// What has been found so far.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) paths: Vec<PathBuf>,
    command: Option<Command>,
    cwd: Option<PathBuf>,
    env: Vec<Variable>,
    urls: Vec<String>,
    query: bool,
    pattern: bool,
    content: bool,
    moves: bool,
    pub(super) overflow: bool,
}

impl Seen {
    /// Looks at every object in `input`.
    pub(super) fn everything(&mut self, input: &Value) {
        let mut waiting = vec![input];
        let mut left = MOST_VALUES;
        while let Some(value) = waiting.pop() {
            if left == 0 {
                self.overflow = true;
                return;
            }
            left -= 1;
            match value {
                Value::Array(items) => waiting.extend(items),
                Value::Object(fields) => {
                    self.object(fields);
                    waiting.extend(fields.values());
                }
                // A bare text is what some agents send for a patch.
                Value::String(text) if patch::is_patch(text) => {
                    self.content = true;
                    self.paths.extend(patch::paths(text));
                }
                _ => {}
            }
        }
    }

    fn object(&mut self, fields: &Map<String, Value>) {
        for (key, value) in fields {
            let key = plain_key(key);
            let is = |names: &[&str]| names.contains(&key.as_str());
            if is(COMMAND) && !value.is_null() {
                self.run(value, key == "commands", fields);
            }
            if is(VARIABLES) {
                self.env.extend(variables(value));
            }
            if is(CWD) {
                self.cwd = value.as_str().map(PathBuf::from).or_else(|| self.cwd.take());
            }
            if is(PATH) || is(DESTINATION) {
                self.place(value);
            }
            self.moves |= is(DESTINATION) && value.is_string();
            self.content |= is(CONTENT) && !value.is_null();
            if let ("changes" | "edits" | "files", Some(changes)) = (key.as_str(), value.as_object()) {
                self.paths.extend(changes.keys().map(PathBuf::from));
            }
            if is(URL) {
                self.address(value);
            }
            self.query |= is(QUERY) && !value.is_null();
            self.pattern |= is(PATTERN) && !value.is_null();
        }
    }

    /// Takes a command. Two of them become one text, so that both are judged.
    fn run(&mut self, value: &Value, many: bool, fields: &Map<String, Value>) {
        let unknown = || Command::Unknown(value.to_string());
        let found = match value {
            Value::String(program) => {
                let is_list = |key: &str| ARGUMENTS.contains(&plain_key(key).as_str());
                let mut arguments = fields.iter().filter(|(key, value)| is_list(key) && !value.is_null());
                match (arguments.next(), arguments.next()) {
                    (None, _) => Command::Shell(program.clone()),
                    // A shell will put both together.
                    (Some((_, Value::String(text))), None) => Command::Shell(format!("{program} {text}")),
                    (Some((_, list)), None) => match words(list) {
                        Some(list) => Command::Argv(std::iter::once(program.clone()).chain(list).collect()),
                        None => Command::Unknown(format!("{program} {list}")),
                    },
                    (Some(_), Some(_)) => unknown(),
                }
            }
            Value::Array(_) => match words(value) {
                Some(lines) if many => Command::Shell(lines.join("\n")),
                Some(argv) => Command::Argv(argv),
                None => unknown(),
            },
            _ => unknown(),
        };
        self.command = Some(match self.command.take() {
            None => found,
            Some(Command::Argv(argv)) if matches!(&found, Command::Shell(text) if argv.first() == Some(text)) => {
                Command::Argv(argv)
            }
            Some(first)
                if matches!((&first, &found), (Command::Unknown(_), _) | (_, Command::Unknown(_))) =>
            {
                Command::Unknown(format!("{}\n{}", text(&first), text(&found)))
            }
            Some(first) => Command::Shell(format!("{}\n{}", text(&first), text(&found))),
        });
    }

    /// Takes one path or many.
    fn place(&mut self, value: &Value) {
        let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for path in items.iter().filter_map(Value::as_str).filter(|path| !path.is_empty()) {
            self.paths.push(without_scheme(path));
        }
    }

    /// Takes one address or many. An address on this disk is a path.
    fn address(&mut self, value: &Value) {
        let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for url in items.iter().filter_map(Value::as_str).filter(|url| !url.is_empty()) {
            if url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:")) {
                self.paths.push(without_scheme(url));
            } else {
                self.urls.push(url.to_owned());
            }
        }
    }
}

/// A name of a field as it is compared: in small letters, without what stands between its words.
pub(super) fn plain_key(key: &str) -> String {
    key.chars()
        .filter(|letter| !matches!(letter, '_' | '-' | '.' | ' '))
        .flat_map(char::to_lowercase)
        .collect()
}

/// One word of a command, if a program would be given it as a text.
fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

/// The words of a list, or the one word that stands in its place.
fn words(list: &Value) -> Option<Vec<String>> {
    match list {
        Value::Array(items) => items.iter().map(word).collect(),
        single => word(single).map(|word| vec![word]),
    }
}

/// The assignments of an object `{"A": "x"}`, a list `[{"name": "A", "value": "x"}]` or `["A=x"]`, or a text `A=x`. One
/// that cannot be read has no name.
fn variables(value: &Value) -> Vec<Variable> {
    match value {
        Value::Null => Vec::new(),
        Value::Object(fields) => fields.iter().map(|(name, value)| assigned(name, value)).collect(),
        Value::Array(items) => items.iter().map(variable).collect(),
        single => vec![variable(single)],
    }
}

fn variable(item: &Value) -> Variable {
    let unreadable = || Variable::new("", item.to_string());
    match item {
        Value::String(text) => match text.split_once('=') {
            Some((name, value)) if !name.contains(char::is_whitespace) => Variable::new(name, value),
            _ => unreadable(),
        },
        Value::Object(fields) => {
            let find = |names: &[&str]| {
                let mut found = fields.iter().filter(|(key, _)| names.contains(&plain_key(key).as_str()));
                found.next().filter(|_| found.next().is_none()).map(|(_, value)| value)
            };
            match (find(&["name", "key", "variable"]), find(&["value", "val"])) {
                (Some(Value::String(name)), Some(value)) => assigned(name, value),
                _ => unreadable(),
            }
        }
        _ => unreadable(),
    }
}

/// The variable `name`; a value that is no text is not what will be set, so it is not known what is.
fn assigned(name: &str, value: &Value) -> Variable {
    match word(value) {
        Some(value) => Variable::new(name, value),
        None => Variable::new("", format!("{name}={value}")),
    }
}

/// A command as a text for a shell.
fn text(command: &Command) -> String {
    match command {
        Command::Shell(text) | Command::Unknown(text) => text.clone(),
        Command::Argv(words) => {
            let quoted: Vec<String> =
                words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
            quoted.join(" ")
        }
    }
}

/// The path of a `file:` address, or the path itself.
fn without_scheme(path: &str) -> PathBuf {
    if path.get(..5).is_none_or(|scheme| !scheme.eq_ignore_ascii_case("file:")) {
        return PathBuf::from(path);
    }
    let read = url::Url::parse(path).ok().and_then(|url| url.to_file_path().ok());
    read.unwrap_or_else(|| PathBuf::from(path[5..].trim_start_matches("//")))
}

#[cfg(test)]
#[path = "input_tests.rs"]
mod tests;
