//! Converts lines to canonical form, to verify logs of other programs.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::number;

/// A JSON value without duplicate keys. Of two equal keys, readers would use different values.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tree {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    Array(Vec<Tree>),
    /// Members sorted by the UTF-16 code units of their keys.
    Object(BTreeMap<Vec<u16>, (String, Tree)>),
}

impl Tree {
    pub(super) fn get(&self, key: &str) -> Option<&Tree> {
        match self {
            Self::Object(members) => members.get(&units(key)).map(|(_, value)| value),
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<Tree> {
        match self {
            Self::Object(members) => members.remove(&units(key)).map(|(_, value)| value),
            _ => None,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(value) => f.write_str(&number::written(*value)),
            Self::Text(text) => quote(text, f),
            Self::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if index == 0 { '[' } else { ',' })?;
                }
                f.write_str(if items.is_empty() { "[]" } else { "]" })
            }
            Self::Object(members) => {
                for (index, (key, value)) in members.values().enumerate() {
                    f.write_str(if index == 0 { "{" } else { "," })?;
                    quote(key, f)?;
                    write!(f, ":{value}")?;
                }
                f.write_str(if members.is_empty() { "{}" } else { "}" })
            }
        }
    }
}

fn units(key: &str) -> Vec<u16> {
    key.encode_utf16().collect()
}

fn quote(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("\"")?;
    for letter in text.chars() {
        match letter {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\u{8}' => f.write_str("\\b")?,
            '\u{9}' => f.write_str("\\t")?,
            '\u{a}' => f.write_str("\\n")?,
            '\u{c}' => f.write_str("\\f")?,
            '\u{d}' => f.write_str("\\r")?,
            '\0'..'\u{20}' => write!(f, "\\u{:04x}", u32::from(letter))?,
            _ => fmt::Write::write_char(f, letter)?,
        }
    }
    f.write_str("\"")
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Number(value as f64))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element()? {
            all.push(item);
        }
        Ok(Tree::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Tree, A::Error> {
        let mut all = BTreeMap::new();
        while let Some((key, value)) = members.next_entry::<String, Tree>()? {
            if all.insert(units(&key), (key, value)).is_some() {
                return Err(A::Error::custom("duplicate key"));
            }
        }
        Ok(Tree::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let tree: Result<Tree, _> = serde_json::from_str(text);
        assert_eq!(tree.map_or_else(|error| error.to_string(), |tree| tree.to_string()), expected);
    }

    #[test]
    fn texts_become_canonical() {
        check(
            r#" { "b" : 1.0 , "a" : [ ] , "é" : { }, "\ud83d\ude00": [1, "\u0041\/\n\u0001"] } "#,
            "{\"a\":[],\"b\":1,\"é\":{},\"😀\":[1,\"A/\\n\\u0001\"]}",
        );
        check(r#"{"a":1,"a":2}"#, "duplicate key at line 1 column 13");
        check(r#"{"a":true,"b":false,"c":null,"d":-1}"#, r#"{"a":true,"b":false,"c":null,"d":-1}"#);
    }
}
