//! Errors about settings, with their origin.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use narrows_config::{Finding, SettingValue, SourcePos};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    File {
        path: PathBuf,
        /// The line number, counted from 1.
        line: usize,
    },
    Variable(Cow<'static, str>),
    /// A command-line option, with its hyphens.
    Flag(&'static str),
}

impl Origin {
    pub(super) fn of_item(item: SettingValue<'_>) -> Self {
        let line = item.findings.pos(item.node.at).line;
        Self::File { path: item.findings.file().into(), line }
    }

    pub(crate) fn variable(name: impl Into<Cow<'static, str>>) -> Self {
        Self::Variable(name.into())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {message}")]
pub(crate) struct ConfigError {
    pub(crate) origin: Origin,
    /// The message names the setting, and never contains the value of an API key.
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl From<Finding> for ConfigError {
    fn from(Finding { file, pos, message, hint, .. }: Finding) -> Self {
        Self { origin: Origin::File { path: file.into(), line: pos.line }, message, hint }
    }
}

impl From<ConfigError> for Finding {
    fn from(ConfigError { origin, message, hint }: ConfigError) -> Self {
        let (file, line) = match origin {
            Origin::File { path, line } => (path.display().to_string(), line),
            other => (other.to_string(), 1),
        };
        Self { hint, ..Self::error(file, SourcePos { line, column: 1 }, message) }
    }
}

impl ConfigError {
    pub(crate) fn new(origin: Origin, message: impl Into<String>) -> Self {
        Self { origin, message: message.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
