//! One thing an agent wants to do, as far as it can be known beforehand.

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

/// A command.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Command {
    /// A program and its arguments, which no shell will see.
    Argv(Vec<String>),
    /// A text that some shell will read.
    Shell(String),
    /// A command that cannot be read, as it was written. It can be any.
    Unknown(String),
}

impl Command {
    /// Returns `true` if both certainly run the same: the same words, or the same text in a shell.
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

/// What is to be judged. Built by hand where the meaning is known, by [`Action::read`] where an agent describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Action {
    /// What it is said to be, or the strictest of what it turned out to be.
    pub kind: Kind,
    /// What else it turned out to be.
    pub also: Vec<Kind>,
    /// The name of the tool.
    pub tool: Option<String>,
    /// Names of the tool that prove nothing, such as `kind:read` or `notes/add` by an agent, or several that differ: they
    /// count for what forbids, and never for what permits.
    pub claimed: Vec<String>,
    /// The MCP server the tool belongs to.
    pub server: Option<String>,
    /// Paths it touches: absolute, or relative to `cwd`. Matching is by their names, so whoever has resolved a symbolic
    /// link gives both ends of it.
    pub paths: Vec<PathBuf>,
    /// The command it runs.
    pub command: Option<Command>,
    /// Where it runs. Absent: in the first root.
    pub cwd: Option<PathBuf>,
    /// Where `cwd` leads once its links are followed, if that is another directory. Both count.
    pub real_cwd: Option<PathBuf>,
    /// Words of the command that are links, or lie beyond one, and where they lead. Both names count.
    pub word_links: Vec<WordLink>,
    /// git in its directory may read a repository that is not a `.git`: see
    /// [`is_unusual_repository`](crate::is_unusual_repository).
    pub unusual_repository: bool,
    /// Variables that the command is to run with beside those it would have anyway.
    pub env: Vec<Variable>,
    /// Addresses it goes to.
    pub urls: Vec<String>,
    /// Whether it carries words to search for.
    pub query: bool,
    /// Whether it names a place or pattern on disk to search in.
    pub local: bool,
}

/// A word of a command that leads elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WordLink {
    /// The word as it is written.
    pub written: String,
    /// Where it leads, without links: from the directory of the command if it lies there, else absolute.
    pub real: String,
}

impl WordLink {
    /// A word that leads to `real`, which is absolute and without links, as `cwd` is. `None` if that is no text.
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
    /// An action of this kind about which nothing else is known.
    pub fn new(kind: Kind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// A file that is read, changed, moved or deleted.
    pub fn file(kind: Kind, path: impl Into<PathBuf>) -> Self {
        Self { kind, paths: vec![path.into()], ..Self::default() }
    }

    /// A command that is run.
    pub fn execute(command: Command, cwd: Option<PathBuf>) -> Self {
        Self { kind: Kind::Execute, command: Some(command), cwd, ..Self::default() }
    }

    /// A tool of an MCP server that is called.
    pub fn mcp(server: impl Into<String>, tool: impl Into<String>, arguments: &Value) -> Self {
        let tool = tool.into();
        Self { server: Some(server.into()), ..Self::read(None, Some(&tool), arguments, &[]) }
    }

    /// A tool call as an agent describes it. The agent is not trusted: what its input shows counts beside the kind it
    /// claims, and the stricter wins.
    pub fn read(kind: Option<&str>, tool: Option<&str>, raw_input: &Value, locations: &[PathBuf]) -> Self {
        input::read(kind, tool, raw_input, locations)
    }

    /// The same as a call of the tool of these names. Several that differ prove nothing.
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

    /// The same with what the content of the tool call shows: a diff is an edit of the files it names.
    #[must_use]
    pub fn with_content(mut self, content: &[Value]) -> Self {
        content::add(&mut self, content);
        self
    }

    /// The same with what the locations of a tool call hold beside what the protocol has there. An agent may mean it as a
    /// further file, so its paths are judged, and the action may be anything.
    #[must_use]
    pub fn with_locations(mut self, locations: &[Value]) -> Self {
        content::add_locations(&mut self, locations);
        self
    }

    /// Returns `true` if a block of the content of a tool call shows a change of files.
    pub fn is_change(block: &Value) -> bool {
        block.as_object().is_some_and(content::is_change)
    }

    /// Returns `true` if there is more in it than can be judged, so that it is denied: nothing has to be looked up for it.
    pub fn is_too_large(&self) -> bool {
        crate::target::is_too_large(self, None)
    }

    /// Returns the words of its command that may name files, each once: those that no shell changes. Relative ones start
    /// where the command runs.
    pub fn file_words(&self) -> Vec<String> {
        let script = self.command.as_ref().map(command::read).unwrap_or_default();
        let mut known = std::collections::HashSet::new();
        script.file_words().filter(|word| known.insert(*word)).map(str::to_owned).collect()
    }

    /// Returns `true` if its command reads a git repository and does nothing else: whose configuration counts depends on
    /// the directory.
    pub fn reads_repository(&self) -> bool {
        self.command.as_ref().is_some_and(|command| command::depends_on_directory(&command::read(command)))
    }

    /// Returns `true` if it certainly changes nothing: everything it is reads, and its command, if it has one, only reads.
    pub fn only_reads(&self) -> bool {
        let reads = |command: &Command| command::is_read_only(&command::read(command)) && !self.is_steered();
        let is_run = self.kinds().contains(&Kind::Execute);
        self.reads_beside_command() && (!is_run || self.command.as_ref().is_some_and(reads))
    }

    /// Returns `true` if everything it is beside a command only reads. Otherwise a harmless command proves nothing: an
    /// agent can put one beside any edit.
    pub(crate) fn reads_beside_command(&self) -> bool {
        self.kinds().iter().all(|kind| *kind == Kind::Execute || kind.only_reads())
    }

    /// Returns `true` if it sets a variable that may change what its command does.
    pub(crate) fn is_steered(&self) -> bool {
        self.env.iter().any(|variable| !variable.is_harmless())
    }

    /// The greatest risk of everything it is, 0 to 3.
    pub(crate) fn risk(&self) -> u8 {
        let shown = [self.command.as_ref().map(|_| Kind::Execute), self.urls.first().map(|_| Kind::Fetch)];
        let also = self.also.iter().copied().chain(shown.into_iter().flatten());
        also.map(Kind::risk).fold(self.kind.risk(), u8::max)
    }

    /// Everything it is: what was said, what turned out, what a command and addresses make of it.
    pub fn kinds(&self) -> Vec<Kind> {
        let mut kinds = vec![self.kind];
        kinds.extend(&self.also);
        kinds.extend(self.command.is_some().then_some(Kind::Execute));
        kinds.extend((!self.urls.is_empty()).then_some(Kind::Fetch));
        kinds.sort_unstable();
        kinds.dedup();
        // Whatever does more than read is judged by that.
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
