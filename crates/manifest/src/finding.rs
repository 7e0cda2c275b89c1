//! Findings: problems in a file, their positions, and hints to fix them.

use std::fmt;
use std::path::{Path, PathBuf};

use narrows_base::text::quoted;
use serde::Serialize;

use crate::code::Code;
use crate::yaml::SourcePos;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file can be used, but may mean something else than its author intended.
    Warning,
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// A problem in a file. It is displayed as one line: position, severity, message, hint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    pub code: Code,
    pub file: PathBuf,
    /// Line number, beginning with 1.
    pub line: usize,
    /// Column in characters, beginning with 1.
    pub column: usize,
    /// Path of the key from the top level of the file: `metadata.aip44.acp_rev`. Empty if the finding is
    /// about the whole file.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// The value of the key, escaped and shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// `true` if the file is well-formed, but the problem prevents running it.
    #[serde(skip)]
    pub(crate) blocks: bool,
}

impl Finding {
    /// Creates a finding for a check of another crate. `place` is a line and a column, which both begin with
    /// 1.
    pub fn new(
        severity: Severity,
        code: Code,
        file: &Path,
        place: (usize, usize),
        message: impl Into<String>,
    ) -> Self {
        let (line, column) = place;
        let mut draft = Draft::error(code, SourcePos { line, column }, message);
        draft.0.severity = severity;
        draft.into_finding(file)
    }

    /// Sets the key.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = key.into();
        self
    }

    /// Sets the hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = quoted(&self.file.to_string_lossy(), 200);
        write!(out, "{file}:{}:{}: {}[{}]: ", self.line, self.column, self.severity, self.code)?;
        if !self.key.is_empty() {
            write!(out, "{}: ", self.key)?;
        }
        out.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(out, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// Findings of several files, in the order in which the files were read. Findings of one file are ordered by
/// line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Findings {
    list: Vec<Finding>,
}

impl Findings {
    /// Iterates over the findings.
    pub fn iter(&self) -> std::slice::Iter<'_, Finding> {
        self.list.iter()
    }

    /// Returns the number of findings.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns `true` if there are no findings.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns `true` if there is an error.
    pub fn has_errors(&self) -> bool {
        self.list.iter().any(|finding| finding.severity == Severity::Error)
    }

    /// Returns `true` if there is a finding with this code.
    pub fn has(&self, code: Code) -> bool {
        self.list.iter().any(|finding| finding.code == code)
    }

    /// Turns all warnings into errors.
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.list.iter_mut().for_each(|finding| finding.severity = Severity::Error);
        self
    }

    /// Adds a finding, unless the list has one with the same position, code and key. The more severe of both
    /// severities counts.
    pub(crate) fn merge(&mut self, finding: Finding) {
        let same = |known: &&mut Finding| {
            (known.line, known.column, known.code, &known.key)
                == (finding.line, finding.column, finding.code, &finding.key)
        };
        match self.list.iter_mut().find(same) {
            Some(known) => known.severity = known.severity.max(finding.severity),
            None => self.list.push(finding),
        }
    }

    /// Adds a finding.
    pub fn push(&mut self, finding: Finding) {
        self.list.push(finding);
    }

    /// Returns `true` if an ACP.md only describes an external runtime: the file names neither an operator nor
    /// a governance, and no misspelled key was meant to name one.
    pub(crate) fn is_descriptive(&self) -> bool {
        let is_misspelled = |finding: &Finding| finding.blocks && finding.code == Code::UnknownAip44;
        self.has(Code::Unbound) && !self.list.iter().any(is_misspelled)
    }

    /// Changes findings that prevent running a well-formed file into errors. Checking a file and serving it
    /// both call this function.
    pub(crate) fn for_running(&mut self) {
        for finding in &mut self.list {
            if finding.blocks {
                finding.severity = Severity::Error;
            }
        }
    }

    pub(crate) fn without(&mut self, code: Code) {
        self.list.retain(|finding| finding.code != code);
    }

    pub(crate) fn sort(&mut self) {
        self.list.sort_by_key(|finding| (finding.line, finding.column, finding.code));
    }

    pub(crate) fn truncate(&mut self, most: usize) {
        self.list.truncate(most);
    }
}

impl<'a> IntoIterator for &'a Findings {
    type Item = &'a Finding;
    type IntoIter = std::slice::Iter<'a, Finding>;
    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

impl IntoIterator for Findings {
    type Item = Finding;
    type IntoIter = std::vec::IntoIter<Finding>;
    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, finding) in self.list.iter().enumerate() {
            if number > 0 {
                out.write_str("\n")?;
            }
            write!(out, "{finding}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Findings {}

#[derive(Debug, Clone)]
pub(crate) struct Draft(Box<Finding>);

impl Draft {
    pub(crate) fn error(code: Code, at: SourcePos, message: impl Into<String>) -> Self {
        Self(Box::new(Finding {
            severity: Severity::Error,
            code,
            file: PathBuf::new(),
            line: at.line,
            column: at.column,
            key: String::new(),
            value: None,
            message: message.into(),
            hint: None,
            blocks: false,
        }))
    }

    pub(crate) fn warning(code: Code, at: SourcePos, message: impl Into<String>) -> Self {
        let mut draft = Self::error(code, at, message);
        draft.0.severity = Severity::Warning;
        draft
    }

    /// Creates a finding that is a warning when a file is only checked, and an error when the file is run.
    pub(crate) fn blocking(code: Code, at: SourcePos, message: impl Into<String>) -> Self {
        Self::error(code, at, message).unless_run()
    }

    /// Marks an error as one that only prevents running the file.
    pub(crate) fn unless_run(mut self) -> Self {
        self.0.severity = Severity::Warning;
        self.0.blocks = true;
        self
    }

    pub(crate) fn key(mut self, key: impl Into<String>) -> Self {
        self.0.key = key.into();
        self
    }

    pub(crate) fn value(mut self, value: &str) -> Self {
        self.0.value = Some(quoted(value, 80));
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    pub(crate) fn is_error(&self) -> bool {
        self.0.severity == Severity::Error
    }

    pub(crate) fn code(&self) -> Code {
        self.0.code
    }

    pub(crate) fn into_finding(mut self, file: &Path) -> Finding {
        file.clone_into(&mut self.0.file);
        *self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_displayed_on_one_line() {
        let finding = Draft::error(Code::Enum, SourcePos { line: 3, column: 7 }, "`x` is none of them")
            .key("kind")
            .value("a\n\u{1b}[2J")
            .hint("write one of a, b")
            .into_finding(Path::new("dir/ACP\n.md"));
        assert_eq!(
            finding.to_string(),
            "dir/ACP\\n.md:3:7: error[enum]: kind: `x` is none of them; write one of a, b"
        );
        assert_eq!(finding.value.as_deref(), Some("a\\n\\u{1b}[2J"));
    }

    #[test]
    fn a_duplicate_finding_keeps_the_worse_severity() {
        let at = SourcePos { line: 1, column: 1 };
        let mut findings = Findings::default();
        findings.merge(Draft::warning(Code::Name, at, "").into_finding(Path::new("a")));
        findings.merge(Draft::warning(Code::Unbound, at, "").into_finding(Path::new("a")));
        findings.merge(Draft::error(Code::Unbound, at, "").into_finding(Path::new("a")));
        let found: Vec<_> = findings.iter().map(|finding| (finding.code, finding.severity)).collect();
        assert_eq!(found, [(Code::Name, Severity::Warning), (Code::Unbound, Severity::Error)]);
        assert!(findings.strict().iter().all(|finding| finding.severity == Severity::Error));
    }
}
