//! JSON kept exactly as received, with a typed view on demand.
//!
//! Reading a typed value drops unknown members. Code that stores or forwards a message keeps a [`Raw`] and
//! reads a view of it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use narrows_base::text::one_line;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// The exact text of a JSON value that should be a `T`.
///
/// Two values are equal if their texts are. Clones share the text. Like [`RawValue`], it can only be read
/// from and written to JSON text by `serde_json`, and not inside a flattened, untagged or internally tagged
/// type.
pub struct Raw<T> {
    text: Arc<RawValue>,
    // `fn() -> T`: a Raw owns no T, so it is Send and Sync whatever T is.
    view: PhantomData<fn() -> T>,
}

impl<T> Raw<T> {
    /// Keeps `text`, which must be one JSON value.
    ///
    /// # Errors
    /// [`ReadError::Json`] if `text` is not one JSON value.
    pub fn parse(text: &str) -> Result<Self, ReadError> {
        serde_json::from_str::<&RawValue>(text)
            .map(Self::from)
            .map_err(|error| ReadError::Json { reason: bounded_line(&error) })
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        self.text.get()
    }

    /// Returns the text as a `RawValue`, for embedding with `serde_json`.
    pub fn as_raw(&self) -> &RawValue {
        &self.text
    }
}

impl<T: DeserializeOwned> Raw<T> {
    /// Deserializes the text.
    ///
    /// For a type with variants, use [`read_variant`](Self::read_variant), which distinguishes unknown
    /// variants from malformed ones.
    ///
    /// # Errors
    /// [`ReadError::Shape`] if the text is not a `T`.
    pub fn read(&self) -> Result<T, ReadError> {
        read(self.text())
    }
}

impl<T> From<&RawValue> for Raw<T> {
    fn from(text: &RawValue) -> Self {
        text.to_owned().into()
    }
}

impl<T> From<Box<RawValue>> for Raw<T> {
    fn from(text: Box<RawValue>) -> Self {
        Self { text: text.into(), view: PhantomData }
    }
}

impl<T> Clone for Raw<T> {
    fn clone(&self) -> Self {
        Self { text: Arc::clone(&self.text), view: PhantomData }
    }
}

impl<T> PartialEq for Raw<T> {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl<T> Eq for Raw<T> {}

impl<T> fmt::Debug for Raw<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Raw").field(&self.text()).finish()
    }
}

impl<T> Serialize for Raw<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.as_ref().serialize(serializer)
    }
}

impl<'de, T> Deserialize<'de> for Raw<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self::from)
    }
}

/// Reason why a value could not be deserialized.
///
/// Text of the peer is escaped and shortened, so the message may be logged or sent in an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("not JSON: {reason}")]
    Json { reason: String },
    #[error("unexpected form: {reason}")]
    Shape { reason: String },
    /// The value is not an object with exactly one string that names the variant.
    #[error("no usable `{field}`: {reason}")]
    Tag {
        /// Name of the member that should name the variant.
        field: &'static str,
        reason: String,
    },
    /// The variant is known, but its content is malformed. Must not be treated as unknown.
    #[error("`{field}` is `{tag}`, but other members are invalid: {reason}")]
    Payload { field: &'static str, tag: String, reason: String },
}

pub(crate) fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, ReadError> {
    serde_json::from_str(text).map_err(|error| ReadError::Shape { reason: bounded_line(&error) })
}

/// Deserializes JSON text if it is an object.
///
/// A derived struct would also accept an array of its fields, which no peer may send.
pub(crate) fn read_object<'a, T: Deserialize<'a>>(text: &'a RawValue) -> Result<T, ReadError> {
    if text.get().starts_with('{') {
        read(text.get())
    } else {
        Err(ReadError::Shape { reason: "expected an object".into() })
    }
}

/// Formats `error` as one short line without control characters.
///
/// Parsers quote the peer's text unescaped: for a wrong variant name, the whole string.
pub(crate) fn bounded_line(error: &dyn fmt::Display) -> String {
    const MAX_CHARS: usize = 200;
    one_line(&error.to_string(), MAX_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_kept_and_shared() {
        let text = r#"{ "b":1.0,"a" : 1e3, "b":"\u0041" }"#;
        let raw = Raw::<u8>::parse(&format!("  {text}\n")).unwrap();
        assert_eq!(raw.text(), text);
        assert_eq!(serde_json::to_string(&[&raw.clone(), &raw]).unwrap(), format!("[{text},{text}]"));
        assert_eq!(serde_json::from_str::<Raw<u8>>(text).unwrap(), raw);
    }

    #[test]
    fn only_json_is_accepted() {
        for text in ["", "{", "{} {}", "nul", "\u{feff}{}"] {
            assert!(matches!(Raw::<u8>::parse(text), Err(ReadError::Json { .. })), "{text:?}");
        }
    }

    #[test]
    fn views_are_read_on_demand() {
        assert_eq!(Raw::<u8>::parse("7").unwrap().read(), Ok(7));
        assert!(matches!(Raw::<u8>::parse("700").unwrap().read(), Err(ReadError::Shape { .. })));
    }

    #[test]
    fn error_text_is_one_short_line() {
        assert_eq!(bounded_line(&"a\nb\u{1b}[2J\u{202e}"), "a b\\u{1b}[2J\\u{202e}");
        assert_eq!(bounded_line(&"é".repeat(300)).chars().count(), 201);
    }
}
