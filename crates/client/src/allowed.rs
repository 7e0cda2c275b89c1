//! Remembers the actions that a user has allowed, until the agent requests them from the client.
//!
//! Many agents request permission and then ask the client to read the file or run the command. The user is
//! not asked again for exactly the same action. Any other action is a new request.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use narrows_base::sync::lock;
use narrows_policy::{Command, Variable};
use serde_json::Value;

use crate::host::links;
use crate::permission_request::FileChange;

/// Maximum number of remembered actions; the oldest is forgotten first.
const MAX_ALLOWED: usize = 16;

/// An allowed action, in the form in which the client would perform it.
#[derive(Clone, Debug)]
pub(crate) enum ClientAction {
    /// A command with its working directory and environment variables.
    Run { command: Command, cwd: PathBuf, env: Vec<Variable> },
    /// Reading a file or a part of it.
    Read { path: PathBuf },
    /// Writing a file with this new text.
    Write { path: PathBuf, text: String },
    /// A call of a tool, or another method, of an MCP server that the client hosts.
    Mcp { server: String, tool: String, arguments: Value },
}

impl ClientAction {
    /// Creates a command action. The order of the variables is irrelevant.
    pub(crate) fn run(command: Command, cwd: PathBuf, mut env: Vec<Variable>) -> Self {
        env.sort();
        Self::Run { command, cwd, env }
    }

    /// Returns the file or directory of the action. Links in this path decide what the action affects.
    fn place(&self) -> Option<&Path> {
        match self {
            Self::Run { cwd: path, .. } | Self::Read { path } | Self::Write { path, .. } => Some(path),
            Self::Mcp { .. } => None,
        }
    }

    /// Returns the file change if the action is a write; `None` for other actions.
    pub(crate) fn change(&self) -> Option<FileChange> {
        let Self::Write { path, text } = self else { return None };
        Some(FileChange { path: Some(path.clone()), old_text: None, new_text: text.clone() })
    }

    /// Returns `true` if the actions are equal, apart from their paths.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Run { command, env, .. }, Self::Run { command: wanted, env: variables, .. }) => {
                env == variables && command.is_same(wanted)
            }
            (Self::Read { .. }, Self::Read { .. }) => true,
            (Self::Write { text, .. }, Self::Write { text: new, .. }) => text == new,
            (
                Self::Mcp { server, tool, arguments },
                Self::Mcp { server: wanted, tool: name, arguments: given },
            ) => server == wanted && tool == name && arguments == given,
            _ => false,
        }
    }
}

/// Time for which an allowed action stays allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validity {
    /// The action is allowed for one request in the current turn.
    Once,
    /// The action is allowed until the session ends.
    Always,
}

#[derive(Debug)]
struct Entry {
    client_action: ClientAction,
    /// Path of the action without links, at the time when the user allowed the action.
    real: Option<PathBuf>,
    validity: Validity,
}

#[derive(Debug, Default)]
pub(crate) struct Allowed {
    list: Mutex<Vec<Entry>>,
}

impl Allowed {
    fn list(&self) -> MutexGuard<'_, Vec<Entry>> {
        lock(&self.list)
    }

    /// Remembers that the user has allowed `client_action`, for the current link target of its path. Blocks.
    pub(crate) fn remember(&self, client_action: ClientAction, validity: Validity) {
        let real = client_action.place().and_then(|path| links::real(path).ok().flatten());
        let mut list = self.list();
        if list.len() >= MAX_ALLOWED {
            list.remove(0);
        }
        list.push(Entry { client_action, real, validity });
    }

    /// Returns `true` if the user has allowed `client_action` at `real`, its path without links. Uses up a
    /// permission for one request. If a link has changed since the user's answer, the action is not allowed.
    pub(crate) fn consume(&self, client_action: &ClientAction, real: Option<&Path>) -> bool {
        let mut list = self.list();
        // The real paths are compared: a gate between agent and client requests permission with the agent's
        // file name, but writes to the link target.
        let is_there = |entry: &Entry| {
            entry.real.as_deref() == real
                && (real.is_some() || entry.client_action.place() == client_action.place())
        };
        let is_same = |entry: &Entry| entry.client_action.is_same(client_action) && is_there(entry);
        let Some(at) = list.iter().position(is_same) else { return false };
        if list[at].validity == Validity::Once {
            list.remove(at);
        }
        true
    }

    pub(crate) fn end_turn(&self) {
        self.list().retain(|entry| entry.validity == Validity::Always);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str], cwd: &str, env: &[(&str, &str)]) -> ClientAction {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let env = env.iter().map(|(name, value)| Variable::new(*name, *value)).collect();
        ClientAction::run(Command::Argv(words), cwd.into(), env)
    }

    /// Consumes an allowance for a path without links.
    fn consume(allowed: &Allowed, client_action: &ClientAction) -> bool {
        allowed.consume(client_action, client_action.place())
    }

    #[test]
    fn an_allowance_does_not_cover_a_changed_link_target() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().canonicalize().unwrap();
        let [one, two, link] = ["one", "two", "link"].map(|name| top.join(name));
        std::fs::create_dir(&one).unwrap();
        std::os::unix::fs::symlink("one", &link).unwrap();
        for client_action in [
            ClientAction::Read { path: link.clone() },
            ClientAction::Write { path: link.clone(), text: "x".into() },
            run(&["ls"], link.to_str().unwrap(), &[]),
        ] {
            let allowed = Allowed::default();
            allowed.remember(client_action.clone(), Validity::Once);
            assert!(
                !allowed.consume(&client_action, Some(&two)) && !allowed.consume(&client_action, Some(&link)),
                "{client_action:?}"
            );
            assert!(allowed.consume(&client_action, Some(&one)), "{client_action:?}");
        }
    }

    #[test]
    fn an_allowance_covers_both_names_of_a_file() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().canonicalize().unwrap();
        std::fs::create_dir(top.join("one")).unwrap();
        std::os::unix::fs::symlink("one", top.join("link")).unwrap();
        let (named, real) = (top.join("link/file"), top.join("one/file"));
        let allowed = Allowed::default();
        allowed.remember(ClientAction::Write { path: named, text: "x".into() }, Validity::Once);
        let write = |text: &str| ClientAction::Write { path: real.clone(), text: text.to_owned() };
        assert!(!consume(&allowed, &write("y")));
        assert!(consume(&allowed, &write("x")) && !consume(&allowed, &write("x")));
    }

    #[test]
    fn an_allowance_for_once_is_used_up() {
        let allowed = Allowed::default();
        allowed.remember(run(&["ls", "-l"], "/w", &[("A", "1"), ("B", "2")]), Validity::Once);
        for other in [
            run(&["ls"], "/w", &[("A", "1"), ("B", "2")]),
            run(&["ls", "-l"], "/v", &[("A", "1"), ("B", "2")]),
            run(&["ls", "-l"], "/w", &[("A", "1")]),
            run(&["ls", "-l"], "/w", &[("A", "1"), ("B", "3")]),
            ClientAction::Write { path: "/w".into(), text: String::new() },
        ] {
            assert!(!consume(&allowed, &other), "{other:?}");
        }
        assert!(consume(&allowed, &run(&["ls", "-l"], "/w", &[("B", "2"), ("A", "1")])));
        assert!(!consume(&allowed, &run(&["ls", "-l"], "/w", &[("A", "1"), ("B", "2")])));
    }

    #[test]
    fn a_lasting_allowance_holds_until_the_session_ends() {
        let allowed = Allowed::default();
        allowed.remember(run(&["ls"], "/w", &[]), Validity::Always);
        allowed.remember(run(&["id"], "/w", &[]), Validity::Once);
        allowed.end_turn();
        assert!(consume(&allowed, &run(&["ls"], "/w", &[])) && consume(&allowed, &run(&["ls"], "/w", &[])));
        assert!(!consume(&allowed, &run(&["id"], "/w", &[])));
    }

    #[test]
    fn an_allowed_write_covers_only_the_same_text() {
        let allowed = Allowed::default();
        let write = |text: &str| ClientAction::Write { path: "/w/a".into(), text: text.to_owned() };
        allowed.remember(write("x"), Validity::Once);
        assert!(!consume(&allowed, &ClientAction::Read { path: "/w/a".into() }));
        assert!(!consume(&allowed, &write("y")) && consume(&allowed, &write("x")));
    }

    #[test]
    fn the_oldest_allowance_is_forgotten_first() {
        let allowed = Allowed::default();
        for number in 0..=MAX_ALLOWED {
            allowed.remember(run(&[&number.to_string()], "/w", &[]), Validity::Once);
        }
        assert!(!consume(&allowed, &run(&["0"], "/w", &[])) && consume(&allowed, &run(&["1"], "/w", &[])));
    }
}
