//! JSON in which a duplicate key is an error, because readers would choose different values.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A JSON value, reduced to the types that a file of MCP servers needs.
#[derive(Debug, PartialEq)]
pub(super) enum Node {
    Null,
    Flag(bool),
    Number,
    Text(String),
    List(Vec<Self>),
    /// An object, as pairs in the order of the file.
    Pairs(Vec<(String, Self)>),
}

impl Node {
    /// Converts the object `{"name": …, "value": …}` to a pair.
    pub(super) fn into_pair(self) -> Option<(String, Self)> {
        let Self::Pairs(pairs) = self else { return None };
        let (mut name, mut value) = (None, None);
        for (key, node) in pairs {
            match (key.as_str(), node) {
                ("name", Self::Text(text)) => name = Some(text),
                ("value", node) => value = Some(node),
                _ => return None,
            }
        }
        Some((name?, value?))
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Node, E> {
        Ok(Node::Flag(flag))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Number)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Number)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Number)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element()? {
            nodes.push(node);
        }
        Ok(Node::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut keys = HashSet::new();
        let mut pairs = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if !keys.insert(key.clone()) {
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            pairs.push((key, map.next_value()?));
        }
        Ok(Node::Pairs(pairs))
    }
}
