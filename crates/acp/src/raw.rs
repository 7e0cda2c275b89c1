//! JSON kept exactly as it came, with a typed view read on demand.
//!
//! A typed value forgets what its type does not know. Whoever stores or passes on a message therefore keeps
//! a [`Raw`], and whoever needs to understand it reads a view of it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use narrows_base::text::one_line;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// The exact text of a JSON value that is expected to be a `T`.
///
/// Equality is equality of the text. Clones share it. Like [`RawValue`] it can only be read from and written
/// to JSON text by `serde_json`, and not from inside a flattened, untagged or internally tagged type.
pub struct Raw<T> {
    text: Arc<RawValue>,
    // `fn() -> T`: a Raw owns no T, so it is Send and Sync whatever T is.
    view: PhantomData<fn() -> T>,
}

impl<T> Raw<T> {
    /// Checks that `text` is one JSON value, and keeps it.
    ///
    /// # Errors
    /// [`ReadError::Json`] if it is not.
    pub fn parse(text: &str) -> Result<Self, ReadError> {
        serde_json::from_str::<&RawValue>(text)
            .map(Self::from)
            .map_err(|error| ReadError::Json { reason: words(&error) })
    }

    /// The text.
    pub fn text(&self) -> &str {
        self.text.get()
    }

    /// The text, in the form `serde_json` embeds verbatim.
    pub fn as_raw(&self) -> &RawValue {
        &self.text
    }
}

impl<T: DeserializeOwned> Raw<T> {
    /// Reads the text as a `T`.
    ///
    /// For a type with variants, [`reading`](Self::reading) tells a variant nobody knows from a broken one.
    ///
    /// # Errors
    /// [`ReadError::Shape`] if it is not a `T`.
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

/// Why a typed view could not be had. The text is not harmed by it.
///
/// What the peer wrote appears in the words only escaped and shortened, so they may go to a log or into the
/// message of an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The text is not one JSON value.
    #[error("not JSON: {reason}")]
    Json {
        /// What the parser met.
        reason: String,
    },
    /// The value does not have the form its type asks for.
    #[error("unexpected form: {reason}")]
    Shape {
        /// What did not fit.
        reason: String,
    },
    /// The value is not an object in which exactly one string names the variant.
    #[error("no usable `{field}`: {reason}")]
    Tag {
        /// The member that should name the variant.
        field: &'static str,
        /// What was there in its place.
        reason: String,
    },
    /// The variant is one the schema knows, but the rest does not fit it. Never to be taken for "other".
    #[error("`{field}` is `{tag}`, but the rest does not fit: {reason}")]
    Payload {
        /// The member that names the variant.
        field: &'static str,
        /// The variant.
        tag: String,
        /// What did not fit.
        reason: String,
    },
}

/// Reads JSON text as a `T`.
pub(crate) fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, ReadError> {
    serde_json::from_str(text).map_err(|error| ReadError::Shape { reason: words(&error) })
}

/// Reads JSON text as a `T` if it is an object.
///
/// A derived struct also takes an array of its fields, which no peer may send and only this check refuses.
pub(crate) fn read_object<'a, T: Deserialize<'a>>(text: &'a RawValue) -> Result<T, ReadError> {
    if text.get().starts_with('{') {
        read(text.get())
    } else {
        Err(ReadError::Shape { reason: "expected an object".into() })
    }
}

/// What `error` says, in one line of bounded length without control characters.
///
/// A parser quotes the peer: a whole string, unescaped where it was to be the name of a variant.
pub(crate) fn words(error: &dyn fmt::Display) -> String {
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
    fn only_json_is_taken() {
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
    fn words_are_one_short_line() {
        assert_eq!(words(&"a\nb\u{1b}[2J\u{202e}"), "a b\\u{1b}[2J\\u{202e}");
        assert_eq!(words(&"é".repeat(300)).chars().count(), 201);
    }
}
