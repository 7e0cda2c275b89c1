//! Findings: errors and warnings about a configuration file, with their positions.

use std::cell::RefCell;
use std::fmt;

/// A position in a configuration file. Displayed as `line:column`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourcePos {
    pub line: usize,
    pub column: usize,
}

impl SourcePos {
    pub const START: Self = Self { line: 1, column: 1 };
}

impl fmt::Display for SourcePos {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.line, self.column)
    }
}

/// The severity of a finding in a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Error,
    /// The file can be used, but may not mean what its author intended.
    Warning,
}

/// An error or a warning about a configuration file. Displayed as `file:line:column: message; hint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub file: String,
    pub pos: SourcePos,
    pub severity: Severity,
    /// The message never quotes a value that may be a secret.
    pub message: String,
    /// Advice on how to correct the file, if there is any.
    pub hint: Option<String>,
}

impl Finding {
    /// Returns an error about a file, without a hint.
    pub fn error(file: impl Into<String>, pos: SourcePos, message: impl Into<String>) -> Self {
        Self { file: file.into(), pos, severity: Severity::Error, message: message.into(), hint: None }
    }

    /// Returns a warning about a file, without a hint.
    pub fn warning(file: impl Into<String>, pos: SourcePos, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(file, pos, message) }
    }

    /// Returns this finding with a hint added.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.file, self.pos, self.message)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(out, "; {hint}"))
    }
}

impl std::error::Error for Finding {}

/// A configuration file and all findings about it. Reading continues after an error, so that all errors can
/// be reported at once.
pub struct Findings<'a> {
    file: &'a str,
    text: &'a str,
    pub(crate) shows_values: bool,
    list: RefCell<Vec<Finding>>,
}

impl<'a> Findings<'a> {
    /// Creates an empty list of findings for `text`, the content of `file`.
    #[must_use]
    pub fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, text, shows_values: false, list: RefCell::default() }
    }

    /// Makes errors quote the values that they are about. Only for files without secrets.
    #[must_use]
    pub fn showing_values(self) -> Self {
        Self { shows_values: true, ..self }
    }

    /// Returns the name of the configuration file.
    #[must_use]
    pub fn file(&self) -> &'a str {
        self.file
    }

    /// Returns the content of the configuration file.
    #[must_use]
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// Returns the position of a byte offset in the file. An offset after the last character is on the last
    /// line.
    #[must_use]
    pub fn pos(&self, at: usize) -> SourcePos {
        let mut end = at.min(self.text.trim_end().len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &self.text[..end];
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        SourcePos { line, column }
    }

    /// Records an error at a byte offset.
    pub fn error(&self, at: usize, message: impl Into<String>, hint: Option<String>) {
        self.push(Finding { hint, ..Finding::error(self.file, self.pos(at), message) });
    }

    /// Records a warning at a byte offset.
    pub fn warning(&self, at: usize, message: impl Into<String>) {
        self.push(Finding::warning(self.file, self.pos(at), message));
    }

    fn push(&self, finding: Finding) {
        self.list.borrow_mut().push(finding);
    }

    /// Runs `read` and returns its value, or the first error that `read` recorded. Such errors are removed.
    ///
    /// # Errors
    /// Returns the first error, even if `read` returned a value.
    pub fn isolated<T>(&self, read: impl FnOnce() -> Option<T>) -> Result<T, Finding> {
        let start = self.list.borrow().len();
        let value = read();
        let recorded = self.list.borrow_mut().split_off(start);
        let (mut errors, warnings) = partition(recorded);
        self.list.borrow_mut().extend(warnings);
        match value {
            Some(value) if errors.is_empty() => Ok(value),
            _ if errors.is_empty() => {
                Err(Finding::error(self.file, SourcePos::START, "the file cannot be read"))
            }
            _ => Err(errors.swap_remove(0)),
        }
    }

    /// Returns all errors and all warnings, each in the order of the file.
    #[must_use]
    pub fn into_errors_and_warnings(self) -> (Vec<Finding>, Vec<Finding>) {
        let mut list = self.list.into_inner();
        list.sort_by_key(|finding| finding.pos);
        partition(list)
    }
}

fn partition(list: Vec<Finding>) -> (Vec<Finding>, Vec<Finding>) {
    list.into_iter().partition(|finding| finding.severity == Severity::Error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_inside_the_file() {
        #[track_caller]
        fn check(text: &str, at: usize, expected: (usize, usize)) {
            let pos = Findings::new("f", text).pos(at);
            assert_eq!((pos.line, pos.column), expected, "{text:?} {at}");
        }
        check("", 0, (1, 1));
        check("", 9, (1, 1));
        check("a\nbc\n", 0, (1, 1));
        check("a\nbc\n", 3, (2, 2));
        check("a\nbc\n\n\n", 7, (2, 3));
        check("ä = 1", 2, (1, 2));
        check("ä = 1", 1, (1, 1));
    }

    #[test]
    fn an_isolated_part_returns_its_first_error_and_keeps_the_others() {
        let findings = Findings::new("f", "a\nb\nc\n");
        findings.error(4, "before", None);
        let part = findings.isolated(|| {
            findings.error(2, "first", Some("do it".to_owned()));
            findings.error(0, "second", None);
            findings.warning(0, "strange");
            Some(1)
        });
        assert_eq!(part.unwrap_err().to_string(), "f:2:1: first; do it");
        assert_eq!(findings.isolated(|| Some(2)), Ok(2));
        let (errors, warnings) = findings.into_errors_and_warnings();
        let lines: Vec<String> = errors.iter().chain(&warnings).map(ToString::to_string).collect();
        assert_eq!(lines, ["f:3:1: before", "f:1:1: strange"]);
    }
}
