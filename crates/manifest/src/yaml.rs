//! YAML as a tree that knows where everything stands.

mod front;
mod parse;
mod scalar;

pub(crate) use front::split;
pub(crate) use parse::parse;

use serde_json::{Map, Number, Value};

/// A place in a file: line and column, both from 1, the column in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SourcePos {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl SourcePos {
    /// Where a file begins.
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) at: SourcePos,
    pub(crate) content: Content,
}

/// What a value is, by the core schema of YAML 1.2.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// Nothing, with the word for it, if there is one.
    Null(String),
    /// `true` or `false`.
    Bool(bool, String),
    /// A number, and how it was written. Absent: one that JSON cannot hold.
    Number(Option<Number>, String),
    /// A text.
    Text(String),
    /// Values in order.
    List(Vec<Node>),
    /// Values by key, in order. No key comes twice.
    Map(Vec<(Key, Node)>),
}

/// A key and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) at: SourcePos,
}

impl Node {
    /// What stands under this key, if this is a map that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|(_, node)| node)
    }

    /// The same with the key itself.
    pub(crate) fn entry(&self, key: &str) -> Option<(&Key, &Self)> {
        let Content::Map(entries) = &self.content else { return None };
        entries.iter().find(|(found, _)| found.text == key).map(|(key, node)| (key, node))
    }

    /// What stands under these keys, one below the other.
    pub(crate) fn find(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    /// The place of the last key of `path` that is there.
    pub(crate) fn place(&self, path: &[&str]) -> SourcePos {
        let mut node = self;
        let mut at = self.at;
        for key in path {
            let Some((key, below)) = node.entry(key) else { break };
            at = key.at;
            node = below;
        }
        at
    }

    /// The entries of a map; of anything else none.
    pub(crate) fn entries(&self) -> &[(Key, Self)] {
        match &self.content {
            Content::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The values of a list; of anything else none.
    pub(crate) fn items(&self) -> &[Self] {
        match &self.content {
            Content::List(items) => items,
            _ => &[],
        }
    }

    /// The text, if it is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Text(text) => Some(text),
            _ => None,
        }
    }

    /// How a scalar was written.
    pub(crate) fn raw(&self) -> Option<&str> {
        match &self.content {
            Content::Null(raw) | Content::Bool(_, raw) | Content::Number(_, raw) | Content::Text(raw) => {
                Some(raw)
            }
            Content::List(_) | Content::Map(_) => None,
        }
    }

    /// What it is, for people.
    pub(crate) fn is_a(&self) -> &'static str {
        match &self.content {
            Content::Null(_) => "nothing",
            Content::Bool(..) => "true or false",
            Content::Number(..) => "a number",
            Content::Text(_) => "a text",
            Content::List(_) => "a list",
            Content::Map(_) => "a map",
        }
    }

    /// The same value in JSON. A whole number is an integer however it was written.
    pub(crate) fn to_json(&self) -> Value {
        match &self.content {
            Content::Null(_) => Value::Null,
            Content::Bool(value, _) => Value::Bool(*value),
            Content::Number(Some(number), _) => Value::Number(number.clone()),
            Content::Number(None, raw) => Value::String(raw.clone()),
            Content::Text(text) => Value::String(text.clone()),
            Content::List(items) => Value::Array(items.iter().map(Self::to_json).collect()),
            Content::Map(entries) => {
                let entries = entries.iter().map(|(key, node)| (key.text.clone(), node.to_json()));
                Value::Object(entries.collect::<Map<_, _>>())
            }
        }
    }
}
