//! What is wrong with a rule file, and where.

use std::fmt;

/// A complaint about one place of a rule file. Displayed: `file:line:column: what; hint`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesError {
    /// The file, as the caller called it.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1, in characters.
    pub column: usize,
    /// What is wrong.
    pub what: String,
    /// What to write instead, if that is known.
    pub hint: Option<String>,
}

impl fmt::Display for RulesError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}: {}", self.file, self.line, self.column, self.what)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(out, "; {hint}"))
    }
}

impl std::error::Error for RulesError {}
