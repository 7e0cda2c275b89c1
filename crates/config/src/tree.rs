//! A configuration file as a tree of values with their positions, parsed from TOML or JSON.

use std::borrow::Cow;

use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::finding::Findings;
use crate::reader::{Table, quoted};

/// A value of a configuration file, and its position.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The byte offset at which the value begins in the file.
    pub at: usize,
    pub kind: ValueKind,
}

/// The type and the content of a value in a configuration file.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueKind {
    /// A text, or a TOML date.
    Text(String),
    /// A whole number. A number outside the range of `i128`, positive or negative, becomes `i128::MAX`.
    Integer(i128),
    Float(f64),
    Bool(bool),
    List(Vec<Node>),
    /// A table, with its entries in the order of the file.
    Table(Vec<TableEntry>),
    Null,
}

/// An entry of a table in a configuration file.
#[derive(Clone, Debug, PartialEq)]
pub struct TableEntry {
    /// The byte offset at which the key begins in the file.
    pub at: usize,
    pub key: String,
    /// The key with the keys of all tables around it, such as `endpoint.a.model`, if the tree was
    /// [qualified](Node::qualified).
    pub(crate) name: Option<String>,
    pub node: Node,
}

impl TableEntry {
    /// Returns `true` if the entry has this key, possibly in its old spelling with `-` for `_`.
    pub(crate) fn is(&self, key: &str) -> bool {
        self.key == key || (self.key.contains('-') && self.key.replace('-', "_") == key)
    }
}

impl Node {
    /// Parses a whole TOML file. Returns `None` if the file has an error, which is recorded.
    #[must_use]
    pub fn from_toml(findings: &Findings<'_>) -> Option<Self> {
        match DeTable::parse(findings.text()) {
            Ok(table) => Some(Self { at: 0, kind: table_kind(table.get_ref()) }),
            Err(error) => {
                let words: Vec<&str> = error.message().lines().map(str::trim).collect();
                let at = error.span().map_or(0, |span| span.start);
                let hint = missing_quotes(findings.text(), at);
                findings.error(at, format!("invalid TOML: {}", words.join("; ")), hint);
                None
            }
        }
    }

    /// Parses a whole TOML file and converts it with `read`.
    ///
    /// # Errors
    /// Returns the first recorded error.
    pub fn read_toml<T>(
        findings: &Findings<'_>,
        read: impl FnOnce(Table<'_>) -> Option<T>,
    ) -> Result<T, crate::Finding> {
        findings.isolated(|| {
            let node = Self::from_toml(findings)?;
            read(node.as_table(findings)?)
        })
    }

    /// Returns the whole file as a table. If the file is no table, records an error.
    #[must_use]
    pub fn as_table<'a>(&'a self, findings: &'a Findings<'a>) -> Option<Table<'a>> {
        crate::SettingValue { findings, name: "", node: self }.table()
    }

    /// Adds to each entry its key with the keys of all tables around it.
    #[must_use]
    pub fn qualified(mut self) -> Self {
        self.qualify("");
        self
    }

    fn qualify(&mut self, parent: &str) {
        match &mut self.kind {
            ValueKind::List(nodes) => nodes.iter_mut().for_each(|node| node.qualify(parent)),
            ValueKind::Table(entries) => {
                for entry in entries {
                    let dot = if parent.is_empty() { "" } else { "." };
                    let name = format!("{parent}{dot}{}", quoted(&entry.key));
                    entry.node.qualify(&name);
                    entry.name = Some(name);
                }
            }
            _ => {}
        }
    }

    /// Returns the value without positions, as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match &self.kind {
            ValueKind::Text(text) => Value::from(text.as_str()),
            ValueKind::Integer(number) => match (u64::try_from(*number), i64::try_from(*number)) {
                (Ok(number), _) => Value::from(number),
                (_, Ok(number)) => Value::from(number),
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "so JSON numbers of that size are read everywhere"
                )]
                _ => Value::from(*number as f64),
            },
            ValueKind::Float(number) => Value::from(*number),
            ValueKind::Bool(flag) => Value::from(*flag),
            ValueKind::List(nodes) => nodes.iter().map(Self::to_json).collect(),
            ValueKind::Table(entries) => {
                Value::Object(entries.iter().map(|entry| (entry.key.clone(), entry.node.to_json())).collect())
            }
            ValueKind::Null => Value::Null,
        }
    }
}

/// Returns a hint about missing quotes if the line at `at` contains a text without quotes.
fn missing_quotes(text: &str, at: usize) -> Option<String> {
    let start = text.get(..at)?.rfind('\n').map_or(0, |end| end + 1);
    let (key, value) = text.get(start..)?.lines().next()?.split_once('=')?;
    let is_text =
        value.trim_start().starts_with(|first: char| first.is_alphanumeric() || "/~.$".contains(first));
    is_text.then(|| format!("quotes may be missing: {} = \"…\"", quoted(key.trim())))
}

fn table_kind(table: &DeTable<'_>) -> ValueKind {
    let entry = |(key, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| TableEntry {
        at: key.span().start,
        key: key.get_ref().clone().into_owned(),
        name: None,
        node: node(value),
    };
    let mut entries: Vec<TableEntry> = table.iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.at);
    ValueKind::Table(entries)
}

fn node(value: &Spanned<DeValue<'_>>) -> Node {
    let kind = match value.get_ref() {
        DeValue::String(text) => ValueKind::Text(text.clone().into_owned()),
        DeValue::Integer(number) => {
            let whole = i128::from_str_radix(number.as_str(), number.radix());
            ValueKind::Integer(whole.unwrap_or(i128::MAX))
        }
        DeValue::Float(number) => ValueKind::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => ValueKind::Bool(*flag),
        DeValue::Datetime(time) => ValueKind::Text(time.to_string()),
        DeValue::Array(list) => ValueKind::List(list.iter().map(node).collect()),
        DeValue::Table(table) => table_kind(table),
    };
    Node { at: value.span().start, kind }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_have_positions() {
        let text = "a = 1\n[[b]]\nc = \"x\"\n\n[[b]]\nd = [true, 0x10, -2, 1.5, 1979-05-27]\n";
        let findings = Findings::new("f", text);
        let node = Node::from_toml(&findings).unwrap();
        assert_eq!(
            node.to_json(),
            json!({"a": 1, "b": [{"c": "x"}, {"d": [true, 16, -2, 1.5, "1979-05-27"]}]})
        );
        let ValueKind::Table(top) = &node.kind else { panic!("{node:?}") };
        let ValueKind::List(tables) = &top[1].node.kind else { panic!("{top:?}") };
        let lines: Vec<usize> = tables.iter().map(|table| findings.pos(table.at).line).collect();
        assert_eq!(lines, [2, 5]);
    }

    #[test]
    fn invalid_toml_is_an_error_with_a_position() {
        let findings = Findings::new("f", "a = 1\nb = = 2\n");
        assert_eq!(Node::from_toml(&findings), None);
        let errors = findings.into_errors_and_warnings().0;
        assert_eq!((errors.len(), errors[0].pos.line), (1, 2), "{errors:?}");
        assert_eq!(errors[0].hint, None);
    }

    #[test]
    fn a_text_without_quotes_is_recognized() {
        for line in ["url = tcp://127.0.0.1:9000", "url = /run/x", "url = 30s"] {
            let text = format!("a = 1\n{line}\n");
            let findings = Findings::new("f", &text);
            assert_eq!(Node::from_toml(&findings), None);
            let errors = findings.into_errors_and_warnings().0;
            assert_eq!(errors[0].hint.as_deref(), Some("quotes may be missing: url = \"…\""), "{line}");
        }
    }

    #[test]
    fn names_are_keys_or_qualified_by_the_tables_around_them() {
        let findings = Findings::new("f", "[a.b]\nc = [{ d = 1 }]\n");
        let node = Node::from_toml(&findings).unwrap();
        for (node, expected) in [(node.clone(), "d"), (node.qualified(), "a.b.c.d")] {
            let top = node.as_table(&findings).unwrap();
            let list =
                top.get("a").unwrap().table().unwrap().get("b").unwrap().table().unwrap().get("c").unwrap();
            let table = list.list("").unwrap().next().unwrap().table().unwrap();
            assert_eq!(table.get("d").unwrap().name, expected);
        }
    }
}
