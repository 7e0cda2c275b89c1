//! Scripts: what they hold, where they come from, and those that are built in.

mod action;
mod fault;
mod parse;
mod read;
pub(crate) mod step;

use std::collections::BTreeMap;
use std::time::Duration;

use narrows_acp::Versions;

use step::{Event, Step};

/// What the scripted agent says and does.
///
/// Read with [`Script::parse`] from TOML, or one of those that are [built in](Script::builtin).
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// What the agent calls itself.
    pub(crate) name: String,
    /// Which version of itself it says it is.
    pub(crate) version: String,
    /// The protocol versions it speaks.
    pub(crate) protocol: Versions,
    /// The ids of its sessions, with `{n}` for their number.
    pub(crate) session_id: String,
    /// The pause between two steps.
    pub(crate) delay: Duration,
    /// The modes a session can be in, the first to begin with.
    pub(crate) modes: Vec<String>,
    /// How to log in, if one can.
    pub(crate) auth: Option<Auth>,
    /// What it says it can do.
    pub(crate) capabilities: Capabilities,
    /// What it does before it answers certain requests.
    pub(crate) on: BTreeMap<Event, Vec<Step>>,
    /// What it does when prompted.
    pub(crate) turns: Vec<Turn>,
}

/// What to do when prompted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Turn {
    /// Only for prompts with this in them.
    pub(crate) when: Option<String>,
    /// The pause between two steps, if another than the script's.
    pub(crate) delay: Option<Duration>,
    /// What to do.
    pub(crate) steps: Vec<Step>,
}

/// How to log in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Auth {
    pub(crate) id: String,
    pub(crate) name: String,
    /// Whether there are no sessions before.
    pub(crate) required: bool,
}

/// What the agent says it can do.
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
            // Hardly any agent has these.
            mcp_sse: false,
            mcp_acp: false,
        }
    }
}

/// Why a text is no script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ScriptError {
    line: usize,
    message: String,
}

impl ScriptError {
    /// The line, counted from 1.
    #[must_use]
    pub fn line(&self) -> usize {
        self.line
    }

    /// What is wrong there, and what would be right.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// The built-in scripts: name, one line on what it does, text.
const BUILTIN: &[(&str, &str, &str)] = &[
    (
        "hello",
        "greets, thinks, calls a tool and streams a few sentences",
        include_str!("../scripts/hello.toml"),
    ),
    ("echo", "says what it was told, word by word", include_str!("../scripts/echo.toml")),
    ("ask", "asks for permission and does as it is told", include_str!("../scripts/ask.toml")),
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

/// The same without the texts, as [`Script::builtins`] gives it.
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
    /// Reads a script.
    ///
    /// # Errors
    /// When it is not TOML, or says something a script cannot say.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        parse::script(text)
    }

    /// The built-in script of this name.
    #[must_use]
    pub fn builtin(name: &str) -> Option<Self> {
        let text = Self::builtin_source(name)?;
        Some(Self::parse(text).expect("the tests parse every built-in script"))
    }

    /// The built-in scripts: name, and one line on what it does.
    #[must_use]
    pub fn builtins() -> &'static [(&'static str, &'static str)] {
        &NAMES
    }

    /// The text of the built-in script of this name, to be read and adapted.
    #[must_use]
    pub fn builtin_source(name: &str) -> Option<&'static str> {
        BUILTIN.iter().find(|(builtin, ..)| *builtin == name).map(|(_, _, text)| *text)
    }

    /// What to do on `event` before it is answered.
    pub(crate) fn on(&self, event: Event) -> &[Step] {
        self.on.get(&event).map_or(&[], Vec::as_slice)
    }

    /// The turn for `prompt` when `taken` turns have been taken in order already, and whether it is the next of these.
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
