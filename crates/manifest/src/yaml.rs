//! A tree of YAML values, each with its position in the file.

mod front;
mod parse;
mod scalar;

pub(crate) use front::split;
pub(crate) use parse::parse;

use serde_json::{Map, Number, Value};

/// A position in a file. Line and column begin with 1. The column counts characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SourcePos {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl SourcePos {
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) at: SourcePos,
    pub(crate) content: Content,
}

/// Content of a value, interpreted by the core schema of YAML 1.2.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// A null, as it is spelled in the file. The text is empty if the value is missing.
    Null(String),
    Bool(bool, String),
    /// A number, and the text in the file. `None` if JSON cannot represent the number.
    Number(Option<Number>, String),
    Text(String),
    List(Vec<Node>),
    /// A map in the order of the file, without duplicate keys.
    Map(Vec<(Key, Node)>),
}

#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) at: SourcePos,
}

impl Node {
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entry(key).map(|(_, node)| node)
    }

    pub(crate) fn entry(&self, key: &str) -> Option<(&Key, &Self)> {
        let Content::Map(entries) = &self.content else { return None };
        entries.iter().find(|(found, _)| found.text == key).map(|(key, node)| (key, node))
    }

    /// Returns the value at a path of keys.
    pub(crate) fn find(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

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

    /// Returns the entries of a map. Empty for other values.
    pub(crate) fn entries(&self) -> &[(Key, Self)] {
        match &self.content {
            Content::Map(entries) => entries,
            _ => &[],
        }
    }

    /// Returns the items of a list. Empty for other values.
    pub(crate) fn items(&self) -> &[Self] {
        match &self.content {
            Content::List(items) => items,
            _ => &[],
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn raw(&self) -> Option<&str> {
        match &self.content {
            Content::Null(raw) | Content::Bool(_, raw) | Content::Number(_, raw) | Content::Text(raw) => {
                Some(raw)
            }
            Content::List(_) | Content::Map(_) => None,
        }
    }

    /// Returns the name of the value's type for users, with an article.
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

    /// Converts the value to JSON. A whole number becomes an integer, even if it is spelled like `1.0`.
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
