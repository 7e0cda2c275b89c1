//! Requests that a person has allowed and that may come once more, as a request for a file or a terminal of this machine.
//!
//! Many agents ask for permission and then have the client do what they asked for. A person who has allowed something is
//! not asked again for the very same; anything else is another request.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use narrows_policy::{Command, Variable};
use serde_json::Value;

/// How many are remembered; the oldest is forgotten first.
const MAX_ALLOWED: usize = 16;

/// What was allowed, as it would be done here.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    /// A command, where it runs and with which variables.
    Run { command: Command, cwd: PathBuf, env: Vec<Variable> },
    /// A file that is read, or a part of it.
    Read { path: PathBuf },
    /// A file and its new text.
    Write { path: PathBuf, text: String },
    /// A tool of an MCP server that runs here, or another method of it, and the arguments.
    Mcp { server: String, tool: String, arguments: Value },
}

impl Deed {
    /// A command. The order of its variables means nothing.
    pub(crate) fn run(command: Command, cwd: PathBuf, mut env: Vec<Variable>) -> Self {
        env.sort();
        Self::Run { command, cwd, env }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Run { command, cwd, env }, Self::Run { command: wanted, cwd: place, env: variables }) => {
                cwd == place && env == variables && command.is_same(wanted)
            }
            (Self::Read { path }, Self::Read { path: wanted }) => path == wanted,
            (Self::Write { path, text }, Self::Write { path: wanted, text: new }) => {
                path == wanted && text == new
            }
            (
                Self::Mcp { server, tool, arguments },
                Self::Mcp { server: wanted, tool: name, arguments: given },
            ) => server == wanted && tool == name && arguments == given,
            _ => false,
        }
    }
}

/// How long an answer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// For one request in this turn.
    Once,
    /// As long as the session.
    Always,
}

/// What a person has allowed in one session.
#[derive(Debug, Default)]
pub(crate) struct Allowed {
    list: Mutex<Vec<(Deed, Holds)>>,
}

impl Allowed {
    fn list(&self) -> MutexGuard<'_, Vec<(Deed, Holds)>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers that a person has allowed `deed`.
    pub(crate) fn remember(&self, deed: Deed, holds: Holds) {
        let mut list = self.list();
        if list.len() >= MAX_ALLOWED {
            list.remove(0);
        }
        list.push((deed, holds));
    }

    /// Returns `true` if a person has allowed `deed`; if it was for once, it is used up with that.
    pub(crate) fn take(&self, deed: &Deed) -> bool {
        let mut list = self.list();
        let Some(at) = list.iter().position(|(allowed, _)| allowed.is_same(deed)) else { return false };
        if list[at].1 == Holds::Once {
            list.remove(at);
        }
        true
    }

    /// Forgets what was allowed for one request: its turn is over.
    pub(crate) fn end_turn(&self) {
        self.list().retain(|(_, holds)| *holds == Holds::Always);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str], cwd: &str, env: &[(&str, &str)]) -> Deed {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let env = env.iter().map(|(name, value)| Variable::new(*name, *value)).collect();
        Deed::run(Command::Argv(words), cwd.into(), env)
    }

    #[test]
    fn what_was_allowed_once_is_not_asked_again_once() {
        let allowed = Allowed::default();
        allowed.remember(run(&["ls", "-l"], "/w", &[("A", "1"), ("B", "2")]), Holds::Once);
        for other in [
            run(&["ls"], "/w", &[("A", "1"), ("B", "2")]),
            run(&["ls", "-l"], "/v", &[("A", "1"), ("B", "2")]),
            run(&["ls", "-l"], "/w", &[("A", "1")]),
            run(&["ls", "-l"], "/w", &[("A", "1"), ("B", "3")]),
            Deed::Write { path: "/w".into(), text: String::new() },
        ] {
            assert!(!allowed.take(&other), "{other:?}");
        }
        assert!(allowed.take(&run(&["ls", "-l"], "/w", &[("B", "2"), ("A", "1")])));
        assert!(!allowed.take(&run(&["ls", "-l"], "/w", &[("A", "1"), ("B", "2")])));
    }

    #[test]
    fn what_was_allowed_for_good_holds_until_the_session_ends() {
        let allowed = Allowed::default();
        allowed.remember(run(&["ls"], "/w", &[]), Holds::Always);
        allowed.remember(run(&["id"], "/w", &[]), Holds::Once);
        allowed.end_turn();
        assert!(allowed.take(&run(&["ls"], "/w", &[])) && allowed.take(&run(&["ls"], "/w", &[])));
        assert!(!allowed.take(&run(&["id"], "/w", &[])));
    }

    #[test]
    fn a_write_is_the_same_with_the_same_text_only() {
        let allowed = Allowed::default();
        let write = |text: &str| Deed::Write { path: "/w/a".into(), text: text.to_owned() };
        allowed.remember(write("x"), Holds::Once);
        assert!(!allowed.take(&Deed::Read { path: "/w/a".into() }));
        assert!(!allowed.take(&write("y")) && allowed.take(&write("x")));
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let allowed = Allowed::default();
        for number in 0..=MAX_ALLOWED {
            allowed.remember(run(&[&number.to_string()], "/w", &[]), Holds::Once);
        }
        assert!(!allowed.take(&run(&["0"], "/w", &[])) && allowed.take(&run(&["1"], "/w", &[])));
    }
}
