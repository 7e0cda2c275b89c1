//! TOML read with a finger on the line, so that every complaint says where, what, and what may have been meant.

use std::path::Path;
use std::time::Duration;

use narrows_base::suggest::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Origin};
use crate::cli::value;

/// How much of a text is shown.
const LONGEST: usize = 40;

/// What a reading function returns.
pub(super) type Read<T> = Result<T, ConfigError>;

/// The text that is read.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

impl<'a> Source<'a> {
    /// The place of a byte.
    fn origin(self, at: usize) -> Origin {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Origin::File { path: self.path.to_owned(), line }
    }

    /// Reads the whole text with `reading`.
    pub(super) fn document<T>(self, reading: impl FnOnce(Table<'_>) -> Read<T>) -> Read<T> {
        let entries = DeTable::parse(self.text).map_err(|error| {
            let words: Vec<&str> = error.message().lines().map(str::trim).collect();
            let at = error.span().map_or(0, |span| span.start);
            ConfigError::new(self.origin(at), format!("this is no TOML: {}", words.join("; ")))
        })?;
        reading(Table { source: self, name: String::new(), at: 0, entries: entries.get_ref() })
    }
}

/// The entries of a table, and the name by which a complaint calls it.
pub(super) struct Table<'a> {
    source: Source<'a>,
    /// Empty for the whole file.
    name: String,
    at: usize,
    entries: &'a DeTable<'a>,
}

impl<'a> Table<'a> {
    /// Where it begins.
    pub(super) fn origin(&self) -> Origin {
        self.source.origin(self.at)
    }

    /// All entries, in the order of the file.
    pub(super) fn entries(&self) -> Vec<(&'a str, Node<'a>)> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let node = |(key, value): (&'a Spanned<_>, _)| {
            let key: &std::borrow::Cow<'a, str> = key.get_ref();
            (key.as_ref(), Node { source: self.source, name: self.full(key), value })
        };
        entries.into_iter().map(node).collect()
    }

    /// The value of `key`, if there is one.
    pub(super) fn get(&self, key: &str) -> Option<Node<'a>> {
        let value = self.entries.get(key)?;
        Some(Node { source: self.source, name: self.full(key), value })
    }

    /// The value of `key` as `reading` understands it, if there is one.
    pub(super) fn read<T>(&self, key: &str, reading: impl FnOnce(Node<'a>) -> Read<T>) -> Read<Option<T>> {
        self.get(key).map(reading).transpose()
    }

    /// Complains about any key that is not one of `known`.
    pub(super) fn only(&self, known: &[&str]) -> Read<()> {
        let unknown = self.entries.keys().filter(|key| !known.contains(&key.get_ref().as_ref()));
        let Some(key) = unknown.min_by_key(|key| key.span().start) else { return Ok(()) };
        let name: &str = key.get_ref();
        let place = if self.name.is_empty() { String::new() } else { format!(" in [{}]", self.name) };
        let message = format!("there is no setting `{}`{place}", shown(name));
        let dashed = name.replace('_', "-");
        let near = known
            .iter()
            .copied()
            .find(|known| *known == dashed)
            .or_else(|| nearest(name, known.iter().copied()));
        Err(ConfigError::new(self.source.origin(key.span().start), message).hint(match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("what may stand there: {}", known.join(", ")),
        }))
    }

    fn full(&self, key: &str) -> String {
        if self.name.is_empty() { shown(key) } else { format!("{}.{}", self.name, shown(key)) }
    }
}

/// One value, and the name by which a complaint calls it.
pub(super) struct Node<'a> {
    source: Source<'a>,
    name: String,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Node<'a> {
    /// Where it stands.
    pub(super) fn origin(&self) -> Origin {
        self.source.origin(self.value.span().start)
    }

    /// A complaint about it.
    pub(super) fn fail(&self, message: &str) -> ConfigError {
        ConfigError::new(self.origin(), format!("`{}` {message}", self.name))
    }

    /// The complaint that it is of another kind than `wanted`. What it is stays unsaid: it may be a key.
    fn expected(&self, wanted: &str) -> ConfigError {
        self.fail(&format!("must be {wanted}"))
    }

    /// The complaint that it cannot be this text.
    fn refused(&self, text: &str, reason: &str) -> ConfigError {
        let short: String = text.chars().take(LONGEST).collect();
        self.fail(&format!("cannot be {short:?}: {reason}"))
    }

    fn text(&self) -> Read<&'a str> {
        let text = self.value.get_ref().as_str().filter(|text| !text.trim().is_empty());
        text.ok_or_else(|| self.expected("a text in quotes"))
    }

    /// A text that is not empty.
    pub(super) fn string(self) -> Read<String> {
        self.text().map(str::to_owned)
    }

    /// A text that `reading` understands.
    pub(super) fn parsed<T>(self, reading: impl FnOnce(&str) -> Result<T, &'static str>) -> Read<T> {
        let text = self.value.get_ref().as_str().ok_or_else(|| self.expected("a text in quotes"))?;
        reading(text).map_err(|reason| self.refused(text, reason))
    }

    /// The name of a model.
    pub(super) fn model(self) -> Read<String> {
        let text = self.text()?;
        value::model(text).map_err(|reason| self.refused(text, reason))
    }

    /// A text of which there are only a few.
    pub(super) fn one_of<T>(self, choice: impl FnOnce(&str) -> Option<T>, names: &[&str]) -> Read<T> {
        let text = self.value.get_ref().as_str().unwrap_or_default();
        choice(text).ok_or_else(|| {
            let error = self.expected(&format!("one of {}", names.join(", ")));
            match nearest(text, names.iter().copied()) {
                Some(near) => error.hint(format!("did you mean \"{near}\"?")),
                None => error,
            }
        })
    }

    /// A switch.
    pub(super) fn flag(self) -> Read<bool> {
        self.value.get_ref().as_bool().ok_or_else(|| self.expected("true or false"))
    }

    /// A whole number above 0.
    pub(super) fn count(self) -> Read<u64> {
        let number = self.value.get_ref().as_integer();
        let number = number.and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok());
        number.filter(|number| *number > 0).ok_or_else(|| self.expected("a whole number above 0"))
    }

    /// A number, with a fraction or without.
    pub(super) fn temperature(self) -> Read<f64> {
        let text = match self.value.get_ref() {
            DeValue::Float(number) => number.as_str(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
            _ => return Err(self.expected("a number, 0 or above")),
        };
        value::temperature(text).map_err(|_| self.expected("a number, 0 or above"))
    }

    /// A time.
    pub(super) fn duration(self) -> Read<Duration> {
        self.parsed(value::duration)
    }

    /// A table.
    pub(super) fn table(self) -> Read<Table<'a>> {
        let entries = self.value.get_ref().as_table().ok_or_else(|| self.expected("a table"))?;
        Ok(Table { source: self.source, name: self.name, at: self.value.span().start, entries })
    }

    /// Whether it is a list.
    pub(super) fn is_list(&self) -> bool {
        self.value.get_ref().as_array().is_some()
    }

    /// A list of what `reading` understands.
    pub(super) fn list<T>(self, reading: impl Fn(Node<'a>) -> Read<T>) -> Read<Vec<T>> {
        let entries = self.value.get_ref().as_array().ok_or_else(|| self.expected("a list"))?;
        let entry = |value| reading(Node { source: self.source, name: self.name.clone(), value });
        entries.iter().map(entry).collect()
    }

    /// A table of texts, in the order of the file.
    pub(super) fn texts(self) -> Read<Vec<(String, String)>> {
        let text = |(key, node): (&str, Node<'_>)| {
            let text = node.value.get_ref().as_str().ok_or_else(|| node.expected("a text in quotes"))?;
            Ok((key.to_owned(), text.to_owned()))
        };
        self.table()?.entries().into_iter().map(text).collect()
    }
}

/// The beginning of a text that somebody wrote.
fn shown(text: &str) -> String {
    narrows_base::text::quoted(text, LONGEST)
}
