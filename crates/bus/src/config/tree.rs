//! A file as a tree of values that know where they stand, whether it was TOML or JSON.

use std::borrow::Cow;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::notes::Notes;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    /// The byte where it begins.
    pub(super) at: usize,
    /// The value.
    pub(super) kind: Kind,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// A text.
    Text(String),
    /// A whole number; one that is too large for this is as large as can be.
    Whole(i128),
    /// A number with a fraction.
    Fraction(f64),
    /// A switch.
    Flag(bool),
    /// A list.
    List(Vec<Node>),
    /// A table, in the order of the file.
    Table(Vec<Entry>),
    /// JSON's `null`.
    Nothing,
}

/// One entry of a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// The byte where its key begins.
    pub(super) at: usize,
    /// Its key.
    pub(super) key: String,
    /// Its value.
    pub(super) node: Node,
}

impl Node {
    /// It as a value without a place.
    pub(super) fn value(&self) -> Value {
        match &self.kind {
            Kind::Text(text) => Value::from(text.as_str()),
            Kind::Whole(number) => match (u64::try_from(*number), i64::try_from(*number)) {
                (Ok(number), _) => Value::from(number),
                (_, Ok(number)) => Value::from(number),
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "so JSON numbers of that size are read everywhere"
                )]
                _ => Value::from(*number as f64),
            },
            Kind::Fraction(number) => Value::from(*number),
            Kind::Flag(flag) => Value::from(*flag),
            Kind::List(nodes) => nodes.iter().map(Self::value).collect(),
            Kind::Table(entries) => {
                Value::Object(entries.iter().map(|entry| (entry.key.clone(), entry.node.value())).collect())
            }
            Kind::Nothing => Value::Null,
        }
    }
}

/// Reads the text as TOML. `None` is a mistake, which is noted.
pub(super) fn toml(notes: &Notes<'_>) -> Option<Node> {
    match DeTable::parse(notes.text()) {
        Ok(table) => Some(Node { at: 0, kind: from_table(table.get_ref()) }),
        Err(error) => {
            let words: Vec<&str> = error.message().lines().map(str::trim).collect();
            let at = error.span().map_or(0, |span| span.start);
            notes.mistake(at, format!("this is no TOML: {}", words.join("; ")), bare(notes.text(), at));
            None
        }
    }
}

/// What to do about a value that is a text without quotes, if that is what stands in the line of `at`.
fn bare(text: &str, at: usize) -> Option<String> {
    let start = text.get(..at)?.rfind('\n').map_or(0, |end| end + 1);
    let (key, value) = text.get(start..)?.lines().next()?.split_once('=')?;
    let is_text =
        value.trim_start().starts_with(|first: char| first.is_alphanumeric() || "/~.$".contains(first));
    is_text.then(|| format!("quotes may be missing: {} = \"…\"", key.trim()))
}

fn from_table(table: &DeTable<'_>) -> Kind {
    let entry = |(key, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| Entry {
        at: key.span().start,
        key: key.get_ref().clone().into_owned(),
        node: from_value(value),
    };
    let mut entries: Vec<Entry> = table.iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.at);
    Kind::Table(entries)
}

fn from_value(value: &Spanned<DeValue<'_>>) -> Node {
    let kind = match value.get_ref() {
        DeValue::String(text) => Kind::Text(text.clone().into_owned()),
        DeValue::Integer(number) => {
            let whole = i128::from_str_radix(number.as_str(), number.radix());
            Kind::Whole(whole.unwrap_or(i128::MAX))
        }
        DeValue::Float(number) => Kind::Fraction(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => Kind::Flag(*flag),
        DeValue::Datetime(time) => Kind::Text(time.to_string()),
        DeValue::Array(list) => Kind::List(list.iter().map(from_value).collect()),
        DeValue::Table(table) => from_table(table),
    };
    Node { at: value.span().start, kind }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_know_where_they_stand() {
        let text = "a = 1\n[[b]]\nc = \"x\"\n\n[[b]]\nd = [true, 0x10, -2, 1.5, 1979-05-27]\n";
        let notes = Notes::new("f", text);
        let node = toml(&notes).unwrap();
        assert_eq!(
            node.value(),
            json!({"a": 1, "b": [{"c": "x"}, {"d": [true, 16, -2, 1.5, "1979-05-27"]}]})
        );
        let Kind::Table(top) = &node.kind else { panic!("{node:?}") };
        let Kind::List(tables) = &top[1].node.kind else { panic!("{top:?}") };
        let lines: Vec<usize> = tables.iter().map(|table| notes.place(table.at).line).collect();
        assert_eq!(lines, [2, 5]);
    }

    #[test]
    fn what_is_no_toml_is_told_with_its_place() {
        let notes = Notes::new("f", "a = 1\nb = = 2\n");
        assert_eq!(toml(&notes), None);
        let mistakes = notes.finish().0;
        assert_eq!((mistakes.len(), mistakes[0].place.line), (1, 2), "{mistakes:?}");
        assert_eq!(mistakes[0].hint, None);
    }

    #[test]
    fn a_text_without_quotes_is_told_as_that() {
        for line in ["url = tcp://127.0.0.1:9000", "url = /run/x", "url = 30s"] {
            let text = format!("a = 1\n{line}\n");
            let notes = Notes::new("f", &text);
            assert_eq!(toml(&notes), None);
            let mistakes = notes.finish().0;
            assert_eq!(mistakes[0].hint.as_deref(), Some("quotes may be missing: url = \"…\""), "{line}");
        }
    }
}
