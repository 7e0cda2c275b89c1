//! TOML read with a finger on the line, so that every complaint says where, what and what else.

use std::time::Duration;

use narrows_base::suggest::nearest;
use narrows_base::units::{parse_duration, parse_size};
use serde_json::{Map, Number, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ScriptError;

/// What a reading function returns.
pub(super) type Read<T> = Result<T, ScriptError>;

/// A complaint about what stands at `at`.
fn complaint(text: &str, at: usize, message: String) -> ScriptError {
    let before = &text.as_bytes()[..at.min(text.len())];
    ScriptError { line: before.iter().filter(|byte| **byte == b'\n').count() + 1, message }
}

/// Reads the whole text with `reading`.
pub(super) fn document<T>(text: &str, reading: impl FnOnce(Fields<'_>) -> Read<T>) -> Read<T> {
    let table = DeTable::parse(text).map_err(|error| {
        let words: Vec<&str> = error.message().lines().map(str::trim).collect();
        complaint(text, error.span().map_or(0, |span| span.start), words.join("; "))
    })?;
    reading(Fields { text, name: "the script", at: 0, entries: table.get_ref() })
}

/// One value, and the name by which a complaint calls it.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    text: &'a str,
    name: &'a str,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Node<'a> {
    /// A complaint about it.
    pub(super) fn fail(self, message: impl Into<String>) -> ScriptError {
        complaint(self.text, self.value.span().start, message.into())
    }

    /// The complaint that it is something else than `wanted`.
    pub(super) fn expected(self, wanted: &str) -> ScriptError {
        let found = match self.value.get_ref() {
            DeValue::String(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Boolean(flag) => flag.to_string(),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Datetime(_) => "a date".to_owned(),
            DeValue::Array(_) => "a list".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        };
        self.fail(format!("`{}` must be {wanted}, not {found}", self.name))
    }

    pub(super) fn string(self) -> Read<&'a str> {
        self.value.get_ref().as_str().ok_or_else(|| self.expected("a text in quotes"))
    }

    /// A text of which there are only a few.
    pub(super) fn one_of(self, words: &[&'static str]) -> Read<&'static str> {
        let found = self.value.get_ref().as_str();
        let known = words.iter().find(|word| found == Some(**word));
        known.copied().ok_or_else(|| self.expected(&format!("one of {}", words.join(", "))))
    }

    pub(super) fn flag(self) -> Read<bool> {
        self.value.get_ref().as_bool().ok_or_else(|| self.expected("true or false"))
    }

    /// For what is either written or not.
    pub(super) fn only_true(self) -> Read<()> {
        if self.flag()? { Ok(()) } else { Err(self.expected("true, or left out")) }
    }

    /// A whole number from `least` to `most`.
    pub(super) fn number(self, least: i64, most: i64) -> Read<i64> {
        let parsed = self
            .value
            .get_ref()
            .as_integer()
            .and_then(|number| i64::from_str_radix(number.as_str(), number.radix()).ok());
        parsed
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.expected(&format!("a whole number from {least} to {most}")))
    }

    pub(super) fn float(self) -> Read<f64> {
        let found = match self.value.get_ref() {
            DeValue::Float(number) => number.as_str().parse().ok(),
            DeValue::Integer(number) => number.as_str().parse().ok(),
            _ => None,
        };
        found.filter(|number: &f64| number.is_finite()).ok_or_else(|| self.expected("a number"))
    }

    pub(super) fn duration(self) -> Read<Duration> {
        let found = self.value.get_ref().as_str().and_then(|text| parse_duration(text).ok());
        found.ok_or_else(|| self.expected("a duration such as \"100ms\", \"2s\" or \"1m\""))
    }

    /// A number of bytes.
    pub(super) fn size(self) -> Read<u64> {
        let found = match self.value.get_ref() {
            DeValue::Integer(number) if number.radix() == 10 => parse_size(number.as_str()).ok(),
            DeValue::String(text) => parse_size(text).ok(),
            _ => None,
        };
        found.ok_or_else(|| self.expected("a size such as 100, \"64KiB\" or \"80MiB\""))
    }

    pub(super) fn list(self) -> Read<impl Iterator<Item = Node<'a>>> {
        let list = self.value.get_ref().as_array().ok_or_else(|| self.expected("a list"))?;
        Ok(list.iter().map(move |value| Node { value, ..self }))
    }

    /// A list of texts, with at least one.
    pub(super) fn strings(self) -> Read<Vec<String>> {
        let strings =
            self.list()?.map(|entry| entry.string().map(str::to_owned)).collect::<Read<Vec<_>>>()?;
        if strings.is_empty() {
            Err(self.fail(format!("`{}` must not be empty", self.name)))
        } else {
            Ok(strings)
        }
    }

    pub(super) fn is_table(self) -> bool {
        self.value.get_ref().is_table()
    }

    pub(super) fn is_string(self) -> bool {
        self.value.get_ref().is_str()
    }

    pub(super) fn table(self) -> Read<Fields<'a>> {
        let entries = self.value.get_ref().as_table().ok_or_else(|| self.expected("a table"))?;
        Ok(Fields { text: self.text, name: self.name, at: self.value.span().start, entries })
    }

    /// The same value in JSON.
    pub(super) fn json(self) -> Read<Value> {
        Ok(match self.value.get_ref() {
            DeValue::String(text) => Value::from(text.as_ref()),
            DeValue::Integer(_) => Value::from(self.number(i64::MIN, i64::MAX)?),
            DeValue::Float(_) => Number::from_f64(self.float()?).map_or(Value::Null, Value::Number),
            DeValue::Boolean(flag) => Value::from(*flag),
            DeValue::Datetime(date) => Value::from(date.to_string()),
            DeValue::Array(_) => Value::Array(self.list()?.map(Node::json).collect::<Read<_>>()?),
            DeValue::Table(_) => {
                let fields = self.table()?;
                let members = fields.entries().map(|(key, node)| Ok((key.to_owned(), node.json()?)));
                Value::Object(members.collect::<Read<Map<_, _>>>()?)
            }
        })
    }
}

/// The entries of a table, and the name by which a complaint calls it.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    text: &'a str,
    name: &'a str,
    at: usize,
    entries: &'a DeTable<'a>,
}

impl<'a> Fields<'a> {
    /// A complaint about the table as a whole.
    pub(super) fn fail(self, message: impl Into<String>) -> ScriptError {
        complaint(self.text, self.at, message.into())
    }

    /// All of them.
    pub(super) fn entries(self) -> impl Iterator<Item = (&'a str, Node<'a>)> {
        let text = self.text;
        self.entries.iter().map(move |(key, value)| {
            let name = key.get_ref().as_ref();
            (name, Node { text, name, value })
        })
    }

    /// The value of `key`, if there is one.
    pub(super) fn get(self, key: &str) -> Option<Node<'a>> {
        let (key, value) = self.entries.get_key_value(key)?;
        Some(Node { text: self.text, name: key.get_ref().as_ref(), value })
    }

    /// The value of `key`, which must be there.
    pub(super) fn need(self, key: &str) -> Read<Node<'a>> {
        self.get(key).ok_or_else(|| self.fail(format!("`{}` needs `{key}`", self.name)))
    }

    /// Complains about any key that is not one of `allowed`.
    pub(super) fn only(self, allowed: &[&str]) -> Read<()> {
        for (key, _) in self.entries {
            let name: &str = key.get_ref().as_ref();
            if !allowed.contains(&name) {
                let message = format!(
                    "{} has no `{name}`{}; it takes {}",
                    if self.name == "the script" { self.name.to_owned() } else { format!("`{}`", self.name) },
                    hint(name, allowed.iter().copied()),
                    allowed.join(", "),
                );
                return Err(complaint(self.text, key.span().start, message));
            }
        }
        Ok(())
    }

    /// A text, if it is there.
    pub(super) fn string(self, key: &str) -> Read<Option<String>> {
        self.get(key).map(|node| node.string().map(str::to_owned)).transpose()
    }

    /// Whether a flag is there and set, or what it is when it is not there.
    pub(super) fn flag(self, key: &str, otherwise: bool) -> Read<bool> {
        self.get(key).map_or(Ok(otherwise), Node::flag)
    }
}

/// `, did you mean …?` if one of `words` is close to `word`.
pub(super) fn hint<'w>(word: &str, words: impl Iterator<Item = &'w str>) -> String {
    nearest(word, words).map_or_else(String::new, |known| format!(" (did you mean `{known}`?)"))
}
