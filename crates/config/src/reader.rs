//! Typed access to the values of a configuration file. A value of the wrong type or range becomes an error
//! with its position.

use std::path::PathBuf;
use std::time::Duration;

use narrows_base::suggest::nearest;
use narrows_base::units::{format_size, parse_duration, parse_size};

use crate::finding::Findings;
use crate::path_base::PathBase;
use crate::tree::{Node, TableEntry, ValueKind};

const MAX_QUOTED_CHARS: usize = 40;

const COMMAND_HINT: &str = "write command = [\"narrows\", \"acp\"], or command = \"narrows acp\"";

/// A value of a setting, and the name that errors use for it. If a method returns `None`, it has recorded an
/// error.
#[derive(Clone, Copy)]
pub struct SettingValue<'a> {
    pub findings: &'a Findings<'a>,
    /// The key of the value. An entry of a list has the key of its list.
    pub name: &'a str,
    pub node: &'a Node,
}

impl<'a> SettingValue<'a> {
    /// Records an error about the value. The message begins with the name of the setting.
    pub fn error_with_name(self, what: &str, hint: Option<String>) {
        self.findings.error(self.node.at, format!("`{}` {what}", self.name), hint);
    }

    /// Records a warning about the value. The message begins with the name of the setting.
    pub fn warn(self, what: &str) {
        self.findings.warning(self.node.at, format!("`{}` {what}", self.name));
    }

    /// Records an error with this message at the position of the value.
    pub fn error<T>(self, message: impl Into<String>, hint: Option<&str>) -> Option<T> {
        self.findings.error(self.node.at, message, hint.map(str::to_owned));
        None
    }

    /// Records an error that says what was expected instead of the value. The value itself may be a secret,
    /// and is quoted only if the file has no secrets.
    pub fn expected<T>(self, wanted: &str, hint: Option<&str>) -> Option<T> {
        let found = match &self.node.kind {
            _ if !self.findings.shows_values => String::new(),
            ValueKind::Text(text) => format!(", not \"{}\"", quoted(text)),
            ValueKind::Integer(number) => format!(", not {number}"),
            ValueKind::Float(number) => format!(", not {number:?}"),
            ValueKind::Bool(flag) => format!(", not {flag}"),
            ValueKind::List(_) => ", not a list".to_owned(),
            ValueKind::Table(_) => ", not a table".to_owned(),
            ValueKind::Null => ", not null".to_owned(),
        };
        self.error_with_name(&format!("must be {wanted}{found}"), hint.map(str::to_owned));
        None
    }

    /// Returns the value if it is a text, with any content.
    #[must_use]
    pub fn string(self) -> Option<&'a str> {
        match &self.node.kind {
            ValueKind::Text(text) => Some(text),
            _ => self.expected("a text in quotes", None),
        }
    }

    /// Returns the value if it is a text that is not empty and has no NUL, so that system calls accept it.
    #[must_use]
    pub fn text(self) -> Option<&'a str> {
        match self.string()? {
            text if text.contains('\0') => self.expected("a text without NUL", None),
            text if text.trim().is_empty() => self.expected("a text that is not empty", None),
            text => Some(text),
        }
    }

    /// Returns the value if it is a text, converted by `parse`.
    pub fn parsed<T>(self, parse: impl FnOnce(&str) -> Result<T, &'static str>) -> Option<T> {
        let text = self.text()?;
        parse(text).map_err(|reason| self.reject_text(text, reason)).ok()
    }

    /// Records an error that `text` is not accepted, with the `reason`.
    pub fn reject_text(self, text: &str, reason: &str) {
        self.error_with_name(&format!("cannot be \"{}\": {reason}", quoted(text)), None);
    }

    /// Returns the one of the `choices` whose name is the value.
    #[must_use]
    pub fn one_of<T: Copy>(self, choices: &[(&'static str, T)]) -> Option<T> {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        let choice = |text: &str| choices.iter().find(|(name, _)| *name == text).map(|(_, choice)| *choice);
        self.named(choice, &names)
    }

    /// Returns the choice that `parse` selects by the value. Errors list `names` as the valid texts.
    pub fn named<T>(self, parse: impl FnOnce(&str) -> Option<T>, names: &[&str]) -> Option<T> {
        let text = if let ValueKind::Text(text) = &self.node.kind { text } else { "" };
        parse(text).or_else(|| {
            let all: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
            let hint = nearest(text, names).map(|near| format!("did you mean \"{near}\"?"));
            self.expected(&format!("one of {}", all.join(", ")), hint.as_deref())
        })
    }

    /// Returns the value if it is `true` or `false`.
    #[must_use]
    pub fn flag(self) -> Option<bool> {
        match self.node.kind {
            ValueKind::Bool(flag) => Some(flag),
            _ => self.expected("true or false", None),
        }
    }

    /// Returns the value if it is a whole number from `least` to `most`. `u64::MAX` and `i64::MAX` mean that
    /// there is no upper bound.
    pub fn count<N: TryFrom<i128>>(self, least: impl Into<i128>, most: impl Into<i128>) -> Option<N> {
        let (least, most) = (least.into(), most.into());
        match self.node.kind {
            ValueKind::Integer(number) if (least..=most).contains(&number) => N::try_from(number).ok(),
            _ => None,
        }
        .or_else(|| match most >= i64::MAX.into() {
            true => self.expected(&format!("a whole number, {least} or more"), None),
            false => self.expected(&format!("a whole number from {least} to {most}"), None),
        })
    }

    /// Returns the value if it is a number, with or without a fraction.
    #[must_use]
    pub fn number(self) -> Option<f64> {
        match self.node.kind {
            ValueKind::Float(number) if number.is_finite() => Some(number),
            #[expect(clippy::cast_precision_loss, reason = "a number of that size has no exact meaning")]
            ValueKind::Integer(number) => Some(number as f64),
            _ => self.expected("a number", None),
        }
    }

    /// Returns the value if it is a duration: a text with a unit, or a number of seconds.
    #[must_use]
    pub fn duration(self) -> Option<Duration> {
        let number = match self.node.kind {
            ValueKind::Integer(number) => number.to_string(),
            ValueKind::Float(number) => number.to_string(),
            ValueKind::Text(_) => return self.parsed(parse_duration),
            _ => return self.expected("a duration such as \"30s\"", None),
        };
        parse_duration(&number).map_err(|reason| self.reject_text(&number, reason)).ok()
    }

    /// Returns the value if it is a duration above zero.
    #[must_use]
    pub fn positive_duration(self) -> Option<Duration> {
        let duration = self.duration()?;
        Some(duration).filter(|it| !it.is_zero()).or_else(|| self.expected("greater than zero", None))
    }

    /// Returns the value if it is a size in this range: a text with a unit, or a number of bytes.
    #[must_use]
    pub fn size(self, least: u64, most: u64) -> Option<u64> {
        let bytes = match self.node.kind {
            ValueKind::Integer(number) if number >= 0 => u64::try_from(number).ok(),
            ValueKind::Text(_) => Some(self.parsed(parse_size)?),
            _ => return self.expected("a size such as \"64MiB\"", None),
        };
        bytes
            .filter(|bytes| (least..=most).contains(bytes))
            .or_else(|| self.expected(&format!("from {} to {}", format_size(least), format_size(most)), None))
    }

    /// Returns the value if it is a program with arguments: a list of texts, or one text that is split into
    /// words as a shell does.
    #[must_use]
    pub fn command(self) -> Option<Vec<String>> {
        let words: Vec<String> = match &self.node.kind {
            ValueKind::Text(text) => match shlex::split(text) {
                Some(words) => words,
                None => return self.expected("a command in which each quote is closed", None),
            },
            ValueKind::List(nodes) => nodes
                .iter()
                .map(|node| SettingValue { node, ..self }.string().map(str::to_owned))
                .collect::<Option<_>>()?,
            _ => return self.expected("a text or a list of texts", Some(COMMAND_HINT)),
        };
        if words.iter().any(|word| word.contains('\0')) {
            return self.expected("a command without NUL", None);
        }
        match words.first() {
            Some(program) if !program.trim().is_empty() => Some(words),
            _ => self.expected("a program and its arguments", Some(COMMAND_HINT)),
        }
    }

    /// Returns the value if it is a path, resolved against the directories of `paths`.
    #[must_use]
    pub fn path(self, paths: PathBase<'_>) -> Option<PathBuf> {
        self.parsed(|text| paths.resolve(text))
    }

    /// Returns `true` if the value is a text.
    #[must_use]
    pub fn is_text(self) -> bool {
        matches!(self.node.kind, ValueKind::Text(_))
    }

    /// Returns `true` if the value is a list.
    #[must_use]
    pub fn is_list(self) -> bool {
        matches!(self.node.kind, ValueKind::List(_))
    }

    /// Returns `true` if the value is a table.
    #[must_use]
    pub fn is_table(self) -> bool {
        matches!(self.node.kind, ValueKind::Table(_))
    }

    /// Returns the entries of the value if it is a list.
    #[must_use]
    pub fn list(self, hint: &str) -> Option<impl Iterator<Item = SettingValue<'a>> + use<'a>> {
        let hint = Some(hint).filter(|hint| !hint.is_empty());
        let ValueKind::List(nodes) = &self.node.kind else { return self.expected("a list", hint) };
        Some(nodes.iter().map(move |node| SettingValue { node, ..self }))
    }

    /// Returns the value if it is a table.
    #[must_use]
    pub fn table(self) -> Option<Table<'a>> {
        let ValueKind::Table(entries) = &self.node.kind else { return self.expected("a table", None) };
        Some(Table { findings: self.findings, name: self.name, at: self.node.at, entries })
    }

    /// Returns the entries of the value if it is a list of tables.
    #[must_use]
    pub fn tables(self) -> Option<impl Iterator<Item = Table<'a>> + use<'a>> {
        if !self.is_list() {
            let hint = format!("write [[{}]], with two brackets", self.name);
            return self.expected("a list of tables", Some(&hint));
        }
        Some(self.list("")?.filter_map(SettingValue::table))
    }
}

/// A table of a configuration file, and the name that errors use for it. The name of the whole file is empty.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    pub findings: &'a Findings<'a>,
    pub name: &'a str,
    /// The byte offset at which the table begins in the file.
    pub at: usize,
    entries: &'a [TableEntry],
}

impl<'a> Table<'a> {
    /// Returns the value of `key`, if the table has it. The old spelling of a key, with `-` for `_`, is
    /// accepted too.
    #[must_use]
    pub fn get(self, key: &str) -> Option<SettingValue<'a>> {
        let exact = self.entries.iter().find(|entry| entry.key == key);
        exact.or_else(|| self.entries.iter().find(|entry| entry.is(key))).map(|entry| self.item(entry))
    }

    /// Returns the value of `key`. If the table does not have the key, records an error.
    pub fn required<'h>(self, key: &str, hint: impl Into<Option<&'h str>>) -> Option<SettingValue<'a>> {
        self.get(key).or_else(|| self.error(format!("`{key}` is missing{}", self.place()), hint.into()))
    }

    /// Returns the value of `key`, converted by `read`, if the table has the key.
    pub fn read<T>(self, key: &str, read: impl FnOnce(SettingValue<'a>) -> Option<T>) -> Option<T> {
        self.get(key).and_then(read)
    }

    /// Returns the text that `key` has as its value, if the table has the key.
    #[must_use]
    pub fn string(self, key: &str) -> Option<String> {
        self.read(key, SettingValue::string).map(str::to_owned)
    }

    /// Returns all keys and values of the table, in the order of the file.
    pub fn entries(self) -> impl Iterator<Item = (&'a str, SettingValue<'a>)> {
        self.entries.iter().map(move |entry| (entry.key.as_str(), self.item(entry)))
    }

    /// Returns all values of the table, in the order of the file.
    pub fn items(self) -> impl Iterator<Item = SettingValue<'a>> {
        self.entries().map(|(_, item)| item)
    }

    fn item(self, entry: &'a TableEntry) -> SettingValue<'a> {
        let name = entry.name.as_deref().unwrap_or(&entry.key);
        SettingValue { findings: self.findings, name, node: &entry.node }
    }

    /// Records an error at the position of the table.
    pub fn error<T>(self, message: impl Into<String>, hint: Option<&str>) -> Option<T> {
        self.findings.error(self.at, message, hint.map(str::to_owned));
        None
    }

    /// Returns the entries whose keys are not in `known`, each with the known key that was probably meant.
    pub fn unknown<'k>(
        self,
        known: &'k [&'k str],
    ) -> impl Iterator<Item = (&'a TableEntry, Option<&'k str>)> + use<'a, 'k> {
        let is_unknown = move |entry: &&TableEntry| !known.iter().any(|key| entry.is(key));
        self.entries
            .iter()
            .filter(is_unknown)
            .map(move |entry| (entry, nearest(&entry.key, known.iter().copied())))
    }

    /// Records an error for every key that is not in `known`, and a warning for every key in its old
    /// spelling. `usual` has hints for unknown keys that are often written.
    pub fn only(self, known: &[&str], usual: &[(&str, &str)]) {
        self.warn_about_old_spellings(known);
        for (entry, near) in self.unknown(known) {
            let usual = usual.iter().find(|(key, _)| *key == entry.key).map(|(_, hint)| (*hint).to_owned());
            let near = || near.map(|near| format!("did you mean `{near}`?"));
            let all = || format!("valid settings are: {}", known.join(", "));
            let what = format!("unknown setting `{}`{}", quoted(&entry.key), self.place());
            self.findings.error(entry.at, what, Some(usual.or_else(near).unwrap_or_else(all)));
        }
    }

    fn warn_about_old_spellings(self, known: &[&str]) {
        for entry in self.entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let Some(key) = known.iter().find(|key| entry.is(key)) else { continue };
            let old = quoted(&entry.key);
            if self.entries.iter().any(|other| other.key == *key) {
                self.findings.error(
                    entry.at,
                    format!("`{old}` is the old spelling of `{key}`, which is set too"),
                    None,
                );
            } else {
                self.findings.warning(entry.at, format!("`{old}` is deprecated: write `{key}`"));
            }
        }
    }

    /// Returns ` in [name]` with the name of the table, or nothing for the whole file.
    #[must_use]
    pub fn place(self) -> String {
        if self.name.is_empty() { String::new() } else { format!(" in [{}]", self.name) }
    }
}

/// Returns the beginning of a text from the configuration file, with unsafe characters escaped.
#[must_use]
pub fn quoted(text: &str) -> String {
    narrows_base::text::quoted(text, MAX_QUOTED_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;

    fn duration(text: &str) -> Option<Duration> {
        let text = format!("value = {text}");
        let findings = Findings::new("f", &text);
        Node::read_toml(&findings, |table| table.read("value", SettingValue::duration)).ok()
    }

    fn command(text: &str) -> Option<Vec<String>> {
        let text = format!("value = {text}");
        let findings = Findings::new("f", &text);
        Node::read_toml(&findings, |table| table.read("value", SettingValue::command)).ok()
    }

    #[test]
    fn a_duration_is_a_text_or_a_number_of_seconds() {
        #[track_caller]
        fn check(text: &str, expected: Option<u64>) {
            assert_eq!(duration(text), expected.map(Duration::from_millis), "{text}");
        }
        check("\"300s\"", Some(300_000));
        check("\"5m\"", Some(300_000));
        check("\"300\"", Some(300_000));
        check("300", Some(300_000));
        check("0", Some(0));
        check("0.25", Some(250));
        for text in ["-1", "-0.5", "nan", "inf", "1e300", "99999999999", "true", "[]", "\"5 days\""] {
            check(text, None);
        }
    }

    #[test]
    fn a_command_is_a_text_or_a_list() {
        #[track_caller]
        fn check(text: &str, expected: &[&str]) {
            assert_eq!(command(text).expect(text), expected, "{text}");
        }
        check("\"narrows acp\"", &["narrows", "acp"]);
        check("\"a 'b c' ''\"", &["a", "b c", ""]);
        check("[\"a\", \"b c\", \"\"]", &["a", "b c", ""]);
        for text in ["\"\"", "\" \"", "\"'a\"", "[]", "[\"\"]", "[\"a\", 1]", "1", "[\"a\\u0000\"]"] {
            assert!(command(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_key_in_the_old_spelling_is_read_with_a_warning() {
        let findings = Findings::new("f", "max-line = 1\nmax_batch = 2\nmax-batch = 3\nold-new = 4\n");
        let node = Node::from_toml(&findings).unwrap();
        let table = node.as_table(&findings).unwrap();
        table.only(&["max_line", "max_batch"], &[]);
        assert_eq!(table.read("max_line", |item| item.count(1, 9)), Some(1));
        assert_eq!(table.read("max_batch", |item| item.count(1, 9)), Some(2));
        let (errors, warnings) = findings.into_errors_and_warnings();
        let lines: Vec<String> = errors.iter().chain(&warnings).map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "f:3:1: `max-batch` is the old spelling of `max_batch`, which is set too",
                "f:4:1: unknown setting `old-new`; valid settings are: max_line, max_batch",
                "f:1:1: `max-line` is deprecated: write `max_line`",
            ]
        );
        assert_eq!(warnings[0].severity, Severity::Warning);
    }
}
