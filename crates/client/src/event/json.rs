//! JSON text of an agent, kept byte by byte.

use std::fmt;
use std::sync::Arc;

use narrows_policy::UnambiguousJson;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::peer_json::{self, PeerJsonError};

/// Text of one JSON value. Clones share the text; two values are equal if their texts are.
#[derive(Clone, PartialEq, Eq)]
pub struct Json(Arc<str>);

impl Json {
    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.text().len()
    }

    /// Returns `true` for the values `null`, `""`, `[]` and `{}`.
    pub fn is_empty(&self) -> bool {
        says_nothing(self.text())
    }

    /// Parses the value. Replaces lone surrogates. A text with too many values becomes a JSON string that
    /// contains the text.
    pub fn value(&self) -> Value {
        let text = self.text();
        let repaired = || crate::map::surrogates::repaired(text.as_bytes());
        match peer_json::read(text.as_bytes()) {
            Ok(value) => Some(value),
            Err(PeerJsonError::TooManyValues) => None,
            Err(PeerJsonError::Malformed(_)) => {
                repaired().and_then(|repaired| serde_json::from_slice(&repaired).ok())
            }
        }
        .unwrap_or_else(|| Value::String(text.to_owned()))
    }

    /// Parses the value. Returns `None` if it has too many values.
    pub(crate) fn bounded_value(&self) -> Option<Value> {
        (!self.has_too_many_values()).then(|| self.value())
    }

    pub(crate) fn has_too_many_values(&self) -> bool {
        peer_json::has_too_many_values(self.text().as_bytes())
    }

    /// Returns `true` if an object has a duplicate key, so that parsers may disagree on its value. Also
    /// returns `true` if there are too many values to check.
    pub(crate) fn is_ambiguous(&self) -> bool {
        if self.has_too_many_values() {
            return true;
        }
        let text = self.text().as_bytes();
        let repaired = || crate::map::surrogates::repaired(text);
        UnambiguousJson::read(text).or_else(|| UnambiguousJson::read(&repaired()?)).is_none()
    }

    pub(crate) fn nothing() -> Self {
        Self("{}".into())
    }

    /// Wraps text that was already parsed as JSON.
    pub(crate) fn from_checked(text: &str) -> Self {
        Self(text.into())
    }

    /// Wraps bytes of a peer. Bytes that are not JSON become a JSON string.
    pub(crate) fn from_bytes_lossy(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        match serde_json::from_str::<&RawValue>(&text) {
            Ok(raw) => raw.into(),
            Err(_) => Self::write(&text),
        }
    }

    /// Serializes `value`. Returns `null` if serialization fails.
    pub(crate) fn write(value: &impl Serialize) -> Self {
        Self(serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned()).into())
    }
}

/// Returns `true` for the JSON texts `null`, `""`, `[]` and `{}`.
pub(crate) fn says_nothing(text: &str) -> bool {
    let mut visible = text.bytes().filter(|byte| !byte.is_ascii_whitespace());
    let first = [visible.next(), visible.next()];
    match first {
        [None, _] => true,
        [Some(b'n'), _] => true,
        [Some(b'{'), Some(b'}')] | [Some(b'['), Some(b']')] => true,
        // Only `""` is empty: a string of spaces is content.
        [Some(b'"'), Some(b'"')] => text.trim() == "\"\"",
        _ => false,
    }
}

impl From<&RawValue> for Json {
    fn from(text: &RawValue) -> Self {
        Self(text.get().into())
    }
}

impl From<&Value> for Json {
    fn from(value: &Value) -> Self {
        Self::write(value)
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(&self.0).map_err(ser::Error::custom)?.serialize(serializer)
    }
}

/// Requires JSON text as the input of the deserializer. Like [`RawValue`], `Json` cannot be read from content
/// that serde has buffered.
impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|text| Self::from(&*text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_json_is_distinguished_from_content() {
        #[track_caller]
        fn check(text: &str, expected: bool) {
            let json: Json = serde_json::from_str(text).unwrap();
            assert_eq!(json.is_empty(), expected, "{text}");
        }
        for text in ["null", "{}", "{ \n}", "[]", "[ ]", "\"\""] {
            check(text, true);
        }
        for text in ["0", "false", "\" \"", "{\"a\":null}", "[0]", "\"n\"", "\"\\\"\""] {
            check(text, false);
        }
    }

    #[test]
    fn text_is_kept_and_lone_surrogates_can_be_read() {
        let text = r#"{ "b":1.0,"a":"\ud800" }"#;
        let json: Json = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&json).unwrap(), text);
        assert_eq!(json.value(), serde_json::json!({"a": "\u{fffd}", "b": 1.0}));
    }
}
