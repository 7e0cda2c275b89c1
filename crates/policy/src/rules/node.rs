//! TOML read with a finger on the place, so that every complaint says where, what and what else.

use narrows_base::suggest::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::RulesError;
use crate::decision::shown;

/// What a reading function returns.
pub(super) type Read<T> = Result<T, RulesError>;

/// The file that is read.
#[derive(Clone, Copy)]
pub(super) struct File<'a> {
    pub(super) name: &'a str,
    pub(super) text: &'a str,
}

impl<'a> File<'a> {
    /// The line and the column of a place, from 1.
    pub(super) fn place(self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        (line, before.rsplit('\n').next().unwrap_or_default().chars().count() + 1)
    }

    /// A complaint about what stands at `at`.
    pub(super) fn fail(self, at: usize, what: String, hint: Option<String>) -> RulesError {
        let (line, column) = self.place(at);
        RulesError { file: self.name.to_owned(), line, column, what, hint }
    }

    /// Reads the whole text with `reading`.
    pub(super) fn document<T>(self, reading: impl FnOnce(Fields<'_>) -> Read<T>) -> Read<T> {
        let table = DeTable::parse(self.text).map_err(|error| {
            let words: Vec<&str> = error.message().lines().map(str::trim).collect();
            self.fail(error.span().map_or(0, |span| span.start), words.join("; "), None)
        })?;
        reading(Fields { file: self, name: "the file", at: 0, entries: table.get_ref() })
    }
}

/// One value, and the name by which a complaint calls it.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    file: File<'a>,
    name: &'a str,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Node<'a> {
    /// A complaint about it.
    pub(super) fn fail(self, what: impl Into<String>, hint: Option<&str>) -> RulesError {
        self.file.fail(self.value.span().start, what.into(), hint.map(str::to_owned))
    }

    /// The complaint that it is something else than `wanted`.
    pub(super) fn expected(self, wanted: &str) -> RulesError {
        let found = match self.value.get_ref() {
            DeValue::String(text) => format!("\"{}\"", shown(text)),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Boolean(flag) => flag.to_string(),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Datetime(_) => "a date".to_owned(),
            DeValue::Array(_) => "a list".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        };
        self.fail(format!("`{}` must be {wanted}, not {found}", self.name), None)
    }

    pub(super) fn string(self) -> Read<&'a str> {
        self.value.get_ref().as_str().ok_or_else(|| self.expected("a text in quotes"))
    }

    pub(super) fn flag(self) -> Read<bool> {
        self.value.get_ref().as_bool().ok_or_else(|| self.expected("true or false"))
    }

    pub(super) fn is_string(self) -> bool {
        self.value.get_ref().is_str()
    }

    pub(super) fn is_list(self) -> bool {
        self.value.get_ref().is_array()
    }

    pub(super) fn list(self) -> Read<Vec<Node<'a>>> {
        let list = self.value.get_ref().as_array().ok_or_else(|| self.expected("a list"))?;
        Ok(list.iter().map(|value| Node { value, ..self }).collect())
    }

    /// Itself, or the entries of the list that it is; at least one.
    pub(super) fn any_of(self) -> Read<Vec<Node<'a>>> {
        if !self.is_list() {
            return Ok(vec![self]);
        }
        let list = self.list()?;
        if list.is_empty() {
            return Err(self.fail(format!("`{}` must not be empty", self.name), Some("leave it out")));
        }
        Ok(list)
    }

    pub(super) fn table(self) -> Read<Fields<'a>> {
        let entries = self.value.get_ref().as_table().ok_or_else(|| self.expected("a table"))?;
        Ok(Fields { file: self.file, name: self.name, at: self.value.span().start, entries })
    }
}

/// The entries of a table, and the name by which a complaint calls it.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    pub(super) file: File<'a>,
    name: &'a str,
    at: usize,
    entries: &'a DeTable<'a>,
}

impl<'a> Fields<'a> {
    /// A complaint about the table as a whole.
    pub(super) fn fail(self, what: impl Into<String>, hint: Option<&str>) -> RulesError {
        self.file.fail(self.at, what.into(), hint.map(str::to_owned))
    }

    /// The line it starts on.
    pub(super) fn line(self) -> usize {
        self.file.place(self.at).0
    }

    /// The value of `key`, if there is one.
    pub(super) fn get(self, key: &str) -> Option<Node<'a>> {
        let (key, value) = self.entries.get_key_value(key)?;
        Some(Node { file: self.file, name: key.get_ref().as_ref(), value })
    }

    /// The value of `key`, which must be there.
    pub(super) fn need(self, key: &str, hint: &str) -> Read<Node<'a>> {
        self.get(key).ok_or_else(|| self.fail(format!("`{}` needs `{key}`", self.name), Some(hint)))
    }

    /// Complains about any key that is not one of `allowed`.
    pub(super) fn only(self, allowed: &[&str]) -> Read<()> {
        for (key, _) in self.entries {
            let name: &str = key.get_ref().as_ref();
            if !allowed.contains(&name) {
                let holder =
                    if self.name == "the file" { self.name.to_owned() } else { format!("`{}`", self.name) };
                let hint = nearest(name, allowed.iter().copied()).map_or_else(
                    || format!("it takes {}", allowed.join(", ")),
                    |near| format!("did you mean `{near}`?"),
                );
                let what = format!("{holder} has no `{}`", shown(name));
                return Err(self.file.fail(key.span().start, what, Some(hint)));
            }
        }
        Ok(())
    }

    /// A text, if it is there.
    pub(super) fn string(self, key: &str) -> Read<Option<String>> {
        self.get(key).map(|node| node.string().map(str::to_owned)).transpose()
    }
}
