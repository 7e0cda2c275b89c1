//! Finds paths, commands and URLs in the input of any tool.
//!
//! The known member names are those that agents use. Every object of the input is visited, at any depth. An
//! input that is too large counts as unknown. So does a command if the input has a member that cannot be
//! judged.

use std::path::PathBuf;

use narrows_base::json::MAX_PEER_VALUES;
use serde_json::{Map, Value};

use super::commands::{self, Commands, word};
use super::members::{Finding, Role};
use super::{Action, Command, patch};
use crate::address::local_path;
use crate::kind::Kind;
use crate::variable::Variable;

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
/// Names of members that contain the working directory of the command in the same object.
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

/// Last parts of names of members that contain new or old file contents: `new_content`, `fileChanges`.
const CONTENT_PARTS: &[&str] = &[
    "content",
    "contents",
    "diff",
    "diffs",
    "patch",
    "patches",
    "hunk",
    "hunks",
    "edit",
    "edits",
    "change",
    "changes",
    "replacement",
    "replacements",
];
/// Last parts of names of members that contain file contents if a part such as `new` or `old` precedes them.
const TEXT_PARTS: &[&str] = &["string", "str", "text", "source", "code", "body", "data", "lines", "value"];
const VERSION_PARTS: &[&str] =
    &["new", "old", "updated", "modified", "replacement", "file", "insert", "inserted"];

/// Members that contain texts for people or files. A path in such a text is not accessed.
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
    // Some agents send the command alone, without an object around it.
    if claimed == Kind::Execute && seen.commands.is_empty() && (input.is_string() || input.is_array()) {
        seen.commands.add_value(input, false);
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
        code_by_part,
    } = seen;
    // If the call names no file, a text for a file may be meant for the command instead.
    let unjudged = unjudged.or(file_text.filter(|_| paths.is_empty() && locations.is_empty()));
    // In a call that claims to change something, code may be the text of a file.
    let looks = claimed <= Kind::Fetch;
    // A name that only has a known part is weaker evidence than a known name.
    let command = code
        .filter(|_| looks)
        .or(commands.into_command(unclear || overflow, unjudged))
        .or(code_by_part.filter(|_| looks));
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
    // If a move has no destination, files may be moved anywhere.
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

#[derive(Default)]
pub(super) struct Seen {
    pub(super) paths: Vec<PathBuf>,
    /// Possible paths in members whose names are unknown.
    pub(super) mentioned: Vec<PathBuf>,
    commands: Commands,
    cwd: Option<PathBuf>,
    /// `true` if the working directory cannot be determined.
    unclear: bool,
    env: Vec<Variable>,
    urls: Vec<String>,
    query: bool,
    pattern: bool,
    content: bool,
    moves: bool,
    pub(super) overflow: bool,
    /// First member that may be a part of the command and cannot be judged.
    unjudged: Option<String>,
    file_text: Option<String>,
    /// First member that counts as a command if the call claims to change nothing.
    code: Option<Command>,
    /// Like `code`, for a member of which only a part of the name is known.
    code_by_part: Option<Command>,
}

#[derive(Clone, Copy)]
struct Waiting<'a> {
    name: &'a str,
    value: &'a Value,
    role: Role,
    /// `true` if texts within the value are not paths.
    is_text: bool,
}

impl Seen {
    pub(super) fn everything(&mut self, input: &Value) {
        let mut waiting = vec![Waiting { name: "", value: input, role: Role::Members, is_text: false }];
        // An input with more values counts as unknown.
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
                // Some agents send a patch as a plain text instead of in a member.
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

    /// Records the first member that may be a part of the command and cannot be judged.
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
        for (name, value) in fields {
            let key = plain_key(name);
            let is = |names: &[&str]| names.contains(&key.as_str());
            let parts = parts(name);
            if self.code.is_none() {
                self.code = commands::code(&key, value);
            }
            if self.code_by_part.is_none() {
                self.code_by_part = commands::code_by_part(&parts, value);
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
            self.content |= is(CONTENT) && !value.is_null() || is_content(&parts, value);
            let last = parts.last().map_or("", String::as_str);
            if let ("changes" | "edits" | "files", Some(changes)) = (last, value.as_object()) {
                self.paths.extend(changes.keys().map(PathBuf::from));
            }
            if is(URL) {
                self.address(value);
            }
            self.query |= is(QUERY) && !value.is_null();
            self.pattern |= is(PATTERN) && !value.is_null();
        }
    }

    /// Adds a working directory. If there are two, the working directory is unclear.
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

    fn place(&mut self, value: &Value) {
        let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for path in items.iter().filter_map(Value::as_str).filter(|path| !path.is_empty()) {
            self.paths.push(without_scheme(path));
        }
    }

    /// Adds one URL or a list of URLs. A `file:` URL is added as a path.
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

/// Normalizes a member name: lower case, without separators.
pub(super) fn plain_key(key: &str) -> String {
    key.chars()
        .filter(|letter| !matches!(letter, '_' | '-' | '.' | ' '))
        .flat_map(char::to_lowercase)
        .collect()
}

/// Returns the parts of a name in lower case. `newContent`, `new_content` and `NEW-CONTENT` have two parts
/// each.
fn parts(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.chars().collect();
    let mut parts = vec![String::new()];
    for (at, letter) in letters.iter().enumerate() {
        let is_end = !letter.is_alphanumeric();
        let is_lower =
            |at: usize| letters.get(at).is_some_and(|letter| letter.is_lowercase() || letter.is_numeric());
        // In `newContent` and `JSCode`, an upper-case letter begins the second part.
        let begins = letter.is_uppercase() && at > 0 && (is_lower(at - 1) || is_lower(at + 1));
        if (is_end || begins) && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut().filter(|_| !is_end) {
            part.extend(letter.to_lowercase());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Returns `true` if a member contains new or old file content, judged by the parts of its name. Numbers and
/// booleans are settings.
fn is_content(parts: &[String], value: &Value) -> bool {
    let Some((last, before)) = parts.split_last() else { return false };
    let has_version = || before.iter().any(|part| VERSION_PARTS.contains(&part.as_str()));
    matches!(value, Value::String(_) | Value::Array(_) | Value::Object(_))
        && (CONTENT_PARTS.contains(&last.as_str()) || TEXT_PARTS.contains(&last.as_str()) && has_version())
}

/// Returns `true` if a text in a member with this name is not a path.
fn names_no_path(key: &str) -> bool {
    commands::is_part(key)
        || [CONTENT, TEXT, URL, QUERY, PATTERN, VARIABLES].iter().any(|names| names.contains(&key))
}

/// Returns `true` if a text is a path that leads out of the working directory.
fn leads_elsewhere(text: &str) -> bool {
    let is_line = !text.contains('\n') && text.len() <= MAX_PATH_BYTES;
    let begins = ["/", "~", "../", "file:"].iter().any(|start| text.starts_with(start));
    is_line && (begins || text == ".." || text.contains("/../") || text.ends_with("/.."))
}

/// Reads assignments of variables: an object `{"A": "x"}`, a list `[{"name": "A", "value": "x"}]` or
/// `["A=x"]`, or a text `A=x`. An assignment that cannot be read has an empty name.
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

/// Returns the variable `name`. A value that is not a text is unknown, because it is uncertain which text the
/// agent sets.
fn assigned(name: &str, value: &Value) -> Variable {
    match word(value) {
        Some(value) => Variable::new(name, value),
        None => Variable::new("", format!("{name}={value}")),
    }
}

fn without_scheme(path: &str) -> PathBuf {
    let is_address = path.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:"));
    local_path(path).filter(|_| is_address).unwrap_or_else(|| PathBuf::from(path))
}

#[cfg(test)]
#[path = "input_tests.rs"]
mod tests;
