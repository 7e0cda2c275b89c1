//! An action that an agent requests, as far as its effects are known before it happens.

mod commands;
mod content;
mod input;
mod members;
mod patch;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::command;
use crate::kind::Kind;
use crate::variable::Variable;
pub(crate) use input::MAX_PATH_BYTES;

/// The command of an action.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Command {
    /// A program and its arguments, without a shell.
    Argv(Vec<String>),
    /// A text for a shell. Which shell reads the text is unknown.
    Shell(String),
    /// A command that cannot be parsed, with its original text. It counts as able to do anything.
    Unknown(String),
}

impl Command {
    /// Returns `true` if both commands certainly do the same: equal words, or equal shell text.
    pub fn is_same(&self, other: &Self) -> bool {
        if matches!(self, Self::Unknown(_)) || matches!(other, Self::Unknown(_)) {
            return false;
        }
        let (ours, theirs) = (command::read(self), command::read(other));
        let texts = (ours.shell_text(self), theirs.shell_text(other));
        self == other
            || matches!(texts, (Some(ours), Some(theirs)) if ours == theirs)
            || matches!((ours.plain_words(), theirs.plain_words()), (Some(ours), Some(theirs)) if ours == theirs)
    }
}

/// An action to be judged. A caller that knows the effects creates it directly. [`Action::read`] creates it
/// from the description of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Action {
    /// The kind that the agent claims, or a stricter detected one.
    pub kind: Kind,
    pub also: Vec<Kind>,
    pub tool: Option<String>,
    /// Unproven names of the tool: an agent's claim such as `kind:read` or `notes/add`, or several different
    /// names. They count for rules that forbid, and never for rules that permit.
    pub claimed: Vec<String>,
    pub server: Option<String>,
    /// Affected paths: absolute, or relative to `cwd`. Paths are matched by name, so a caller that has
    /// resolved a link adds both paths.
    pub paths: Vec<PathBuf>,
    pub command: Option<Command>,
    /// Working directory. `None` stands for the first root.
    pub cwd: Option<PathBuf>,
    /// Working directory with all links resolved, if it differs from `cwd`. Rules are checked for both.
    pub real_cwd: Option<PathBuf>,
    /// Words of the command that are links or lead through a link, with their targets. Rules are checked for
    /// both.
    pub word_links: Vec<WordLink>,
    /// `true` if git may read a repository in the directory that is not named `.git`: see
    /// [`is_unusual_repository`](crate::is_unusual_repository).
    pub unusual_repository: bool,
    /// Environment variables that the request sets for the command.
    pub env: Vec<Variable>,
    pub urls: Vec<String>,
    pub query: bool,
    /// `true` if the action names a path or pattern on disk to search.
    pub local: bool,
}

/// A word of a command that is a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WordLink {
    pub written: String,
    /// Target of the link, without links: relative if it is below the directory of the command, otherwise
    /// absolute.
    pub real: String,
}

impl WordLink {
    /// Creates the link `written` to `real`. Both `real` and `cwd` must be absolute and without links.
    /// Returns `None` if `real` is not UTF-8.
    pub fn new(written: String, real: &Path, cwd: &Path) -> Option<Self> {
        let real = match real.strip_prefix(cwd) {
            Ok(inside) if inside.components().count() > 1 => inside.to_str()?.to_owned(),
            Ok(inside) => format!("./{}", inside.to_str()?),
            Err(_) => real.to_str()?.to_owned(),
        };
        Some(Self { written, real })
    }
}

impl Action {
    /// Creates an action of which only the kind is known.
    pub fn new(kind: Kind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Creates an action that reads, changes, moves or deletes a file.
    pub fn file(kind: Kind, path: impl Into<PathBuf>) -> Self {
        Self { kind, paths: vec![path.into()], ..Self::default() }
    }

    /// Creates an action that runs a command.
    pub fn execute(command: Command, cwd: Option<PathBuf>) -> Self {
        Self { kind: Kind::Execute, command: Some(command), cwd, ..Self::default() }
    }

    /// Creates a call of an MCP tool.
    pub fn mcp(server: impl Into<String>, tool: impl Into<String>, arguments: &Value) -> Self {
        let tool = tool.into();
        Self { server: Some(server.into()), ..Self::read(None, Some(&tool), arguments, &[]) }
    }

    /// Reads a tool call as an agent describes it. The agent is not trusted: its input is examined too, and
    /// the stricter of the claimed and the detected kind counts.
    pub fn read(kind: Option<&str>, tool: Option<&str>, raw_input: &Value, locations: &[PathBuf]) -> Self {
        input::read(kind, tool, raw_input, locations)
    }

    /// Adds the names of the tool. If there are several different ones, none of them is proven.
    #[must_use]
    pub fn with_tool_names<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut all: Vec<String> = Vec::new();
        for name in names {
            if !all.iter().any(|known| known == name) {
                all.push(name.to_owned());
            }
        }
        match <[String; 1]>::try_from(all) {
            Ok([name]) => self.tool = Some(name),
            Err(several) => (self.tool, self.claimed) = (None, several),
        }
        self
    }

    /// Adds the content of the tool call. A diff counts as an edit of the files it names.
    #[must_use]
    pub fn with_content(mut self, content: &[Value]) -> Self {
        content::add(&mut self, content);
        self
    }

    /// Adds those locations of a tool call that have members outside the protocol. Such a member may name
    /// another file, so its paths are judged, and the action counts as able to do anything.
    #[must_use]
    pub fn with_locations(mut self, locations: &[Value]) -> Self {
        content::add_locations(&mut self, locations);
        self
    }

    /// Returns `true` if a content block of a tool call shows a file change.
    pub fn is_change(block: &Value) -> bool {
        block.as_object().is_some_and(content::is_change)
    }

    /// Returns `true` if the action has more parts than can be judged. Such an action is denied, so its links
    /// need not be resolved.
    pub fn is_too_large(&self) -> bool {
        crate::target::is_too_large(self, None)
    }

    /// Returns the distinct words of the command that may name files and that no shell expands. A relative
    /// word starts in the working directory.
    pub fn file_words(&self) -> Vec<String> {
        let script = self.command.as_ref().map(command::read).unwrap_or_default();
        let mut known = std::collections::HashSet::new();
        script.file_words().filter(|word| known.insert(*word)).map(str::to_owned).collect()
    }

    /// Returns `true` if the command only reads a git repository. Which configuration git uses depends on the
    /// directory.
    pub fn reads_repository(&self) -> bool {
        self.command.as_ref().is_some_and(|command| command::depends_on_directory(&command::read(command)))
    }

    /// Returns `true` if the action certainly changes nothing: all its kinds only read, and so does its
    /// command.
    pub fn only_reads(&self) -> bool {
        let reads = |command: &Command| command::is_read_only(&command::read(command)) && !self.is_steered();
        let is_run = self.kinds().contains(&Kind::Execute);
        self.reads_beside_command() && (!is_run || self.command.as_ref().is_some_and(reads))
    }

    /// Returns `true` if the action would only read without its command. Otherwise a harmless command proves
    /// nothing, because an agent can add one to any edit.
    pub(crate) fn reads_beside_command(&self) -> bool {
        self.kinds().iter().all(|kind| *kind == Kind::Execute || kind.only_reads())
    }

    /// Returns `true` if the action sets a variable that may change the effect of its command.
    pub(crate) fn is_steered(&self) -> bool {
        self.env.iter().any(|variable| !variable.is_harmless())
    }

    pub(crate) fn risk(&self) -> u8 {
        let shown = [self.command.as_ref().map(|_| Kind::Execute), self.urls.first().map(|_| Kind::Fetch)];
        let also = self.also.iter().copied().chain(shown.into_iter().flatten());
        also.map(Kind::risk).fold(self.kind.risk(), u8::max)
    }

    /// Returns all kinds of the action: claimed by the agent, detected, and implied by a command or URL.
    pub fn kinds(&self) -> Vec<Kind> {
        let mut kinds = vec![self.kind];
        kinds.extend(&self.also);
        kinds.extend(self.command.is_some().then_some(Kind::Execute));
        kinds.extend((!self.urls.is_empty()).then_some(Kind::Fetch));
        kinds.sort_unstable();
        kinds.dedup();
        // Kinds that only read do not matter if another kind does more.
        if kinds.iter().any(|kind| *kind > Kind::Read) {
            kinds.retain(|kind| *kind > Kind::Read);
        }
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(action: &Action, expected: &[Kind]) {
        assert_eq!(action.kinds(), expected, "{action:?}");
    }

    #[test]
    fn commands_are_the_same_only_if_every_word_is() {
        #[track_caller]
        fn check(one: &str, other: &[&str], expected: bool) {
            let one = Command::Shell(one.into());
            let other = Command::Argv(other.iter().map(|word| (*word).into()).collect());
            assert_eq!((one.is_same(&other), other.is_same(&one)), (expected, expected), "{one:?} {other:?}");
        }
        check("ls", &["ls"], true);
        check("ls -la", &["sh", "-c", "ls -la"], true);
        check("ls | wc", &["bash", "-c", "ls | wc"], true);
        check("ls | wc", &["bash", "-c", "sh -c 'ls | wc'; touch x"], false);
        check("ls", &["bash", "-c", "sh -c ls; touch x"], false);
        check("ls", &["sh", "-c", "ls", "x"], false);
    }

    #[test]
    fn a_command_or_an_address_overrides_a_harmless_kind() {
        check(&Action::new(Kind::Read), &[Kind::Read]);
        check(&Action { command: Some(Command::Argv(vec![])), ..Action::new(Kind::Read) }, &[Kind::Execute]);
        check(&Action { urls: vec!["x".into()], ..Action::new(Kind::Think) }, &[Kind::Fetch]);
        check(
            &Action { urls: vec!["x".into()], also: vec![Kind::Edit], ..Action::new(Kind::Other) },
            &[Kind::Fetch, Kind::Edit, Kind::Other],
        );
    }
}
