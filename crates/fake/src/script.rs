//! Scripts: their content, how they are parsed, and the built-in ones.

mod action;
mod fault;
mod parse;
pub(crate) mod step;

use std::collections::BTreeMap;
use std::time::Duration;

use narrows_acp::Versions;
use narrows_config::Finding;

use step::{Event, Step};

/// The content of a script.
///
/// Parsed with [`Script::parse`] from TOML, or [built in](Script::builtin).
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) protocol: Versions,
    /// Pattern of session ids, in which `{n}` stands for the number of the session.
    pub(crate) session_id: String,
    pub(crate) delay: Duration,
    /// Modes of a session, the initial one first.
    pub(crate) modes: Vec<String>,
    pub(crate) auth: Option<Auth>,
    pub(crate) capabilities: Capabilities,
    pub(crate) on: BTreeMap<Event, Vec<Step>>,
    pub(crate) turns: Vec<Turn>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Turn {
    /// Text that a prompt must contain for this turn. `None` makes the turn one of those that run in order.
    pub(crate) when: Option<String>,
    /// Pause between two steps. `None` applies the pause of the script.
    pub(crate) delay: Option<Duration>,
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Auth {
    pub(crate) id: String,
    pub(crate) name: String,
    /// `true` if opening a session requires authentication.
    pub(crate) required: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Capabilities {
    pub(crate) load: bool,
    pub(crate) resume: bool,
    pub(crate) list: bool,
    pub(crate) close: bool,
    pub(crate) delete: bool,
    pub(crate) image: bool,
    pub(crate) audio: bool,
    pub(crate) embedded_context: bool,
    pub(crate) mcp_http: bool,
    pub(crate) mcp_sse: bool,
    pub(crate) mcp_acp: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            load: true,
            resume: true,
            list: true,
            close: true,
            delete: true,
            image: true,
            audio: true,
            embedded_context: true,
            mcp_http: true,
            // Few agents support SSE, so it is off by default.
            mcp_sse: false,
            mcp_acp: false,
        }
    }
}

/// Error in a script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ScriptError {
    line: usize,
    message: String,
}

impl From<Finding> for ScriptError {
    fn from(Finding { pos, message, hint, .. }: Finding) -> Self {
        let message = hint.map_or_else(|| message.clone(), |hint| format!("{message}; {hint}"));
        Self { line: pos.line, message }
    }
}

impl ScriptError {
    /// Returns the line, counted from 1.
    #[must_use]
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns a description of the problem, with the valid alternatives.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// The built-in scripts, each as name, summary and text.
const BUILTIN: &[(&str, &str, &str)] = &[
    (
        "hello",
        "greets, thinks, calls a tool and streams a few sentences",
        include_str!("../scripts/hello.toml"),
    ),
    ("echo", "repeats the prompt word by word", include_str!("../scripts/echo.toml")),
    ("ask", "asks for permission and follows the answer", include_str!("../scripts/ask.toml")),
    (
        "files",
        "writes and reads a file and runs a command, all through the client",
        include_str!("../scripts/files.toml"),
    ),
    ("slow", "takes its time, and can be cancelled", include_str!("../scripts/slow.toml")),
    ("flood", "sends 200 000 updates as fast as they are read", include_str!("../scripts/flood.toml")),
    (
        "noisy",
        "writes all sorts of garbage, and a message too long to be taken",
        include_str!("../scripts/noisy.toml"),
    ),
    ("hang", "begins to answer and never ends", include_str!("../scripts/hang.toml")),
    ("crash", "begins to answer and dies", include_str!("../scripts/crash.toml")),
    (
        "stubborn",
        "ignores cancellation, the end of its input and SIGTERM",
        include_str!("../scripts/stubborn.toml"),
    ),
];

const NAMES: [(&str, &str); BUILTIN.len()] = {
    let mut names = [("", ""); BUILTIN.len()];
    let mut at = 0;
    while at < BUILTIN.len() {
        names[at] = (BUILTIN[at].0, BUILTIN[at].1);
        at += 1;
    }
    names
};

impl Script {
    /// Parses a script.
    ///
    /// # Errors
    /// Returns an error if the text is not TOML or not a valid script.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        parse::script(text)
    }

    /// Returns the built-in script of this name.
    #[must_use]
    pub fn builtin(name: &str) -> Option<Self> {
        let text = Self::builtin_source(name)?;
        Some(Self::parse(text).expect("the tests parse every built-in script"))
    }

    /// Returns the names and summaries of the built-in scripts.
    #[must_use]
    pub fn builtins() -> &'static [(&'static str, &'static str)] {
        &NAMES
    }

    /// Returns the text of a built-in script, as a template for others.
    #[must_use]
    pub fn builtin_source(name: &str) -> Option<&'static str> {
        BUILTIN.iter().find(|(builtin, ..)| *builtin == name).map(|(_, _, text)| *text)
    }

    pub(crate) fn on(&self, event: Event) -> &[Step] {
        self.on.get(&event).map_or(&[], Vec::as_slice)
    }

    /// Returns the turn for `prompt`, when `taken` turns in order have run. The flag is `true` for the next
    /// turn in order, and `false` for a turn chosen by its condition.
    pub(crate) fn turn(&self, prompt: &str, taken: usize) -> Option<(&Turn, bool)> {
        let matching = |turn: &&Turn| turn.when.as_ref().is_some_and(|when| prompt.contains(when.as_str()));
        if let Some(turn) = self.turns.iter().find(matching) {
            return Some((turn, false));
        }
        let in_order: Vec<&Turn> = self.turns.iter().filter(|turn| turn.when.is_none()).collect();
        let last = in_order.len().checked_sub(1)?;
        Some((in_order[taken.min(last)], true))
    }
}

#[cfg(test)]
#[path = "script_tests.rs"]
mod tests;
