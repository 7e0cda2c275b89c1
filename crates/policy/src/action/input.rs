//! What the input of a tool shows, whatever the tool calls itself.
//!
//! Names of fields are those that agents use. Every object of the input is looked at, not only the outermost; one that
//! is too large to look at counts as unknown. So does a command with a member beside it that cannot be judged.

use std::path::PathBuf;

use narrows_base::json::MAX_PEER_VALUES;
use serde_json::{Map, Value};

use super::commands::{self, Commands, word};
use super::members::{Finding, Role};
use super::{Action, Command, patch};
use crate::address::local_path;
use crate::kind::Kind;
use crate::variable::Variable;

/// A longer text is no path.
pub(crate) const MAX_PATH_BYTES: usize = 4096;

pub(super) const VARIABLES: &[&str] = &[
    "env",
    "envs",
    "environ",
    "environment",
    "envvars",
    "environmentvariables",
    "environmentoverrides",
    "envoverrides",
    "extraenv",
    "setenv",
    "variables",
    "vars",
];
pub(super) const CWD: &[&str] = &[
    "cwd",
    "workdir",
    "workingdirectory",
    "workingdir",
    "workingfolder",
    "currentdirectory",
    "currentworkingdirectory",
    "chdir",
];
/// Where a command runs, if one stands beside it.
const DIRECTORY: &[&str] =
    &["directory", "dir", "dirpath", "folder", "root", "rootdir", "basedir", "projectdir"];
pub(super) const PATH: &[&str] = &[
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
    "output",
    "outputfile",
    "root",
    "rootdir",
    "rootpath",
    "basedir",
    "basepath",
    "projectdir",
    "projectpath",
    "workspaceroot",
];
pub(super) const DESTINATION: &[&str] = &[
    "destination",
    "destinationpath",
    "destinationfile",
    "dest",
    "destpath",
    "dst",
    "dstpath",
    "newpath",
    "newfile",
    "newfilename",
    "newfilepath",
    "newlocation",
    "newname",
    "targetpath",
    "to",
    "topath",
    "moveto",
    "renameto",
    "copyto",
];
pub(super) const CONTENT: &[&str] = &[
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
pub(super) const URL: &[&str] = &["url", "urls", "uri", "uris", "href", "link", "endpoint", "websiteurl"];
pub(super) const QUERY: &[&str] = &["query", "queries", "q", "searchquery", "searchterm", "searchterms"];
pub(super) const PATTERN: &[&str] =
    &["pattern", "patterns", "glob", "globs", "regex", "globpattern", "includepattern"];

/// Texts for people, or for files: a path in them is not one that is touched.
const TEXT: &[&str] = &[
    "text",
    "description",
    "message",
    "title",
    "prompt",
    "explanation",
    "reason",
    "instruction",
    "instructions",
    "comment",
    "summary",
    "thought",
    "note",
];

pub(super) fn read(kind: Option<&str>, tool: Option<&str>, input: &Value, locations: &[PathBuf]) -> Action {
    let claimed = kind.map_or(Kind::Other, Kind::named);
    let mut seen = Seen::default();
    seen.everything(input);
    // Some agents send the bare command.
    if claimed == Kind::Execute && seen.commands.is_empty() && (input.is_string() || input.is_array()) {
        seen.commands.take(input, false);
        seen.unjudged = None;
    }
    let Seen {
        mut paths,
        mentioned,
        commands,
        cwd,
        unclear,
        env,
        urls,
        query,
        pattern,
        content,
        moves,
        overflow,
        unjudged,
        file_text,
        code,
    } = seen;
    // A text for a file that is not named may be for the command.
    let unjudged = unjudged.or(file_text.filter(|_| paths.is_empty() && locations.is_empty()));
    // Only a call that is said to change nothing has no other use for code.
    let code = code.filter(|_| claimed <= Kind::Fetch);
    let command = code.or(commands.into_command(unclear || overflow, unjudged));
    let named = !paths.is_empty();
    paths.extend_from_slice(locations);
    let changes = matches!(claimed, Kind::Edit | Kind::Move | Kind::Delete) || content && !paths.is_empty();
    if changes || moves {
        paths.extend(mentioned);
    }
    if paths.len() > 1 {
        let mut known = std::collections::HashSet::new();
        paths.retain(|path| known.insert(path.clone()));
    }

    let mut kinds = vec![claimed];
    kinds.extend((content && !paths.is_empty()).then_some(Kind::Edit));
    kinds.extend((moves && paths.len() > 1).then_some(Kind::Move));
    kinds.extend((query && !named && !pattern && claimed < Kind::Search).then_some(Kind::Search));
    // Where something is moved to must be known.
    let lacks_target = claimed == Kind::Move && paths.len() < 2;
    kinds.extend((overflow || unclear || lacks_target).then_some(Kind::Other));
    kinds.sort_unstable();
    kinds.dedup();
    let strictest = kinds.pop().unwrap_or_default();
    Action {
        kind: strictest,
        also: kinds,
        tool: tool.map(str::to_owned),
        claimed: Vec::new(),
        server: None,
        paths,
        command,
        cwd,
        real_cwd: None,
        word_links: Vec::new(),
        unusual_repository: false,
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
    /// What looks like a path of its own in fields of other names.
    pub(super) mentioned: Vec<PathBuf>,
    commands: Commands,
    cwd: Option<PathBuf>,
    /// Where it runs cannot be read.
    unclear: bool,
    env: Vec<Variable>,
    urls: Vec<String>,
    query: bool,
    pattern: bool,
    content: bool,
    moves: bool,
    pub(super) overflow: bool,
    /// The first member that cannot be judged beside a command.
    unjudged: Option<String>,
    /// The first text for a file.
    file_text: Option<String>,
    /// The first member that is a command if the call is said to change nothing.
    code: Option<Command>,
}

/// A value that has not been looked at.
#[derive(Clone, Copy)]
struct Waiting<'a> {
    /// The name of the member that it stands in.
    name: &'a str,
    value: &'a Value,
    role: Role,
    /// Texts in it are no paths.
    is_text: bool,
}

impl Seen {
    /// Looks at every object in `input`.
    pub(super) fn everything(&mut self, input: &Value) {
        let mut waiting = vec![Waiting { name: "", value: input, role: Role::Members, is_text: false }];
        // One with more counts as unknown.
        let mut left = MAX_PEER_VALUES;
        while let Some(next) = waiting.pop() {
            if left == 0 {
                self.overflow = true;
                return;
            }
            left -= 1;
            self.check(next);
            match next.value {
                Value::Array(items) => {
                    let role = next.role.of_item();
                    waiting.extend(items.iter().map(|value| Waiting { value, role, ..next }));
                }
                Value::Object(fields) => {
                    self.object(fields);
                    waiting.extend(fields.iter().map(|(name, value)| Waiting {
                        name,
                        value,
                        role: next.role.of_member(name, value),
                        is_text: names_no_path(&plain_key(name)),
                    }));
                }
                // A bare text is what some agents send for a patch.
                Value::String(text) if patch::is_patch(text) => {
                    self.content = true;
                    self.paths.extend(patch::paths(text));
                }
                Value::String(text) if !next.is_text && leads_elsewhere(text) => {
                    self.mentioned.push(without_scheme(text));
                }
                _ => {}
            }
        }
    }

    /// Keeps the first value that cannot be judged beside a command.
    fn check(&mut self, Waiting { name, value, role, .. }: Waiting<'_>) {
        let kept = match role.check(value) {
            Finding::Known => return,
            Finding::NeedsFile => &mut self.file_text,
            Finding::Unknown => &mut self.unjudged,
        };
        kept.get_or_insert_with(|| format!("{name}: {value}"));
    }

    fn object(&mut self, fields: &Map<String, Value>) {
        self.commands.add(fields);
        let runs = commands::runs(fields);
        for (key, value) in fields {
            let key = plain_key(key);
            let is = |names: &[&str]| names.contains(&key.as_str());
            if self.code.is_none() {
                self.code = commands::code(&key, value);
            }
            if is(VARIABLES) {
                self.env.extend(variables(value));
            }
            if is(CWD) || runs && is(DIRECTORY) {
                self.directory(value);
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

    /// Takes a working directory. There can be one.
    fn directory(&mut self, value: &Value) {
        match value {
            Value::Null => {}
            Value::String(path) => {
                let path = without_scheme(path);
                self.unclear |= self.cwd.as_ref().is_some_and(|known| *known != path);
                self.cwd = Some(path);
            }
            _ => self.unclear = true,
        }
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
            match local_path(url) {
                Some(path) => self.paths.push(path),
                None => self.urls.push(url.to_owned()),
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

/// Returns `true` if texts in a field of this name are no paths.
fn names_no_path(key: &str) -> bool {
    commands::is_part(key)
        || [CONTENT, TEXT, URL, QUERY, PATTERN, VARIABLES].iter().any(|names| names.contains(&key))
}

/// Returns `true` if a text is a path that leads out of the directory it is used in.
fn leads_elsewhere(text: &str) -> bool {
    let is_line = !text.contains('\n') && text.len() <= MAX_PATH_BYTES;
    let begins = ["/", "~", "../", "file:"].iter().any(|start| text.starts_with(start));
    is_line && (begins || text == ".." || text.contains("/../") || text.ends_with("/.."))
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

/// The path of a `file:` address, or the path itself.
fn without_scheme(path: &str) -> PathBuf {
    let is_address = path.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:"));
    local_path(path).filter(|_| is_address).unwrap_or_else(|| PathBuf::from(path))
}

#[cfg(test)]
#[path = "input_tests.rs"]
mod tests;
