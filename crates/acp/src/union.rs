//! Reads types with variants, so that an unknown variant is neither lost nor an error.
//!
//! The unions of v1 are closed: an unknown variant fails to parse like a malformed one. Those of v2 have a
//! catch-all. [`Raw::read_variant`] gives both the same three outcomes: known, unknown, and an error for a
//! known variant with malformed content.

use std::fmt;

use serde::de::value::MapDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserializer, de::Error as _};

use crate::raw::{Raw, ReadError, bounded_line, read};
use crate::{v1, v2};

/// A schema type whose variants are named by one string member.
pub trait Union: DeserializeOwned {
    /// Name of the member that names the variant.
    const TAG: &'static str;

    /// Returns `true` for the schema's own catch-all variant.
    fn is_other(&self) -> bool;
}

/// The result of reading a [`Union`]: a known or an unknown variant.
#[derive(Debug, Clone, PartialEq)]
pub enum VariantReading<T> {
    Known(T),
    /// A custom or future variant. Display it generically or ignore it, and forward it unchanged.
    Unknown {
        tag: String,
        raw: Raw<T>,
    },
}

impl<T: Union> Raw<T> {
    /// Reads the variant.
    ///
    /// # Errors
    /// [`ReadError::Tag`] if no variant is named, [`ReadError::Payload`] if a known one is malformed. In v1
    /// that includes a known variant with an unknown one inside, such as a message chunk of an unknown
    /// content type.
    ///
    /// The error concerns this value only: the turn must go on.
    pub fn read_variant(&self) -> Result<VariantReading<T>, ReadError> {
        // The common case costs one parse; other values are examined again. Text that is not an object
        // takes the slow path, because the schema would also accept an array of members.
        let reason = match read::<T>(self.text()) {
            Ok(value) if self.text().starts_with('{') && !value.is_other() => {
                return Ok(VariantReading::Known(value));
            }
            Ok(_) => None,
            Err(ReadError::Shape { reason }) => Some(reason),
            Err(error) => return Err(error),
        };
        let tag = self.tag()?;
        match reason {
            Some(reason) if knows::<T>(&tag) => {
                Err(ReadError::Payload { field: T::TAG, tag: bounded_line(&tag), reason })
            }
            _ => Ok(VariantReading::Unknown { tag, raw: self.clone() }),
        }
    }

    /// Returns the name of the variant, whatever else the value holds.
    ///
    /// # Errors
    /// [`ReadError::Tag`] if the value is not an object with exactly one string under the tag's name.
    pub fn tag(&self) -> Result<String, ReadError> {
        let mut text = serde_json::Deserializer::from_str(self.text());
        TagVisitor(T::TAG)
            .deserialize(&mut text)
            .map_err(|error| ReadError::Tag { field: T::TAG, reason: bounded_line(&error) })
    }
}

macro_rules! unions {
    ($tag:literal: closed $closed:ty, open $open:ty) => {
        impl Union for $closed {
            const TAG: &'static str = $tag;

            fn is_other(&self) -> bool {
                false
            }
        }

        impl Union for $open {
            const TAG: &'static str = $tag;

            fn is_other(&self) -> bool {
                matches!(self, Self::Other(_))
            }
        }
    };
}

unions!("sessionUpdate": closed v1::SessionUpdate, open v2::SessionUpdate);
unions!("type": closed v1::ContentBlock, open v2::ContentBlock);
unions!("type": closed v1::ToolCallContent, open v2::ToolCallContent);
unions!("outcome": closed v1::RequestPermissionOutcome, open v2::RequestPermissionOutcome);

/// Returns `true` if the schema has a variant of this name.
///
/// Tries to deserialize a value that has only the tag. A list of names would become outdated and would
/// ignore the features of the schema crate.
fn knows<T: Union>(tag: &str) -> bool {
    let nothing_but_the_name = MapDeserializer::new(std::iter::once((T::TAG, tag)));
    match T::deserialize(nothing_but_the_name) {
        Ok(value) => !value.is_other(),
        Err(Probe::UnknownVariant) => false,
        Err(Probe::Other) => true,
    }
}

/// The error type of [`knows`]. Shows only if the variant name was the problem.
#[derive(Debug)]
enum Probe {
    UnknownVariant,
    Other,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl std::error::Error for Probe {}

impl de::Error for Probe {
    fn custom<M: fmt::Display>(_: M) -> Self {
        Self::Other
    }

    fn unknown_variant(_: &str, _: &'static [&'static str]) -> Self {
        Self::UnknownVariant
    }
}

/// Finds the string member of this name. A second member of the same name is an error, because two readers
/// could choose different ones.
struct TagVisitor(&'static str);

impl<'de> DeserializeSeed<'de> for TagVisitor {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TagVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<String, A::Error> {
        let mut tag = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != self.0 {
                map.next_value::<IgnoredAny>()?;
            } else if tag.replace(map.next_value()?).is_some() {
                return Err(A::Error::duplicate_field(self.0));
            }
        }
        tag.ok_or_else(|| A::Error::missing_field(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: Union>(known: &[&str], unknown: &[&str]) {
        for tag in known {
            assert!(knows::<T>(tag), "{tag} should be known");
        }
        for tag in unknown {
            assert!(!knows::<T>(tag), "{tag} should be unknown");
        }
    }

    #[test]
    fn the_schema_says_which_variants_it_knows() {
        check::<v1::SessionUpdate>(&["tool_call", "plan_removed", "notice"], &["state_update", "_x", ""]);
        check::<v2::SessionUpdate>(&["state_update", "plan_removed", "notice"], &["tool_call", "_x", ""]);
        check::<v1::ContentBlock>(&["text", "resource_link"], &["video", "Text"]);
        check::<v2::ContentBlock>(&["text", "resource_link"], &["video", "Text"]);
        check::<v1::ToolCallContent>(&["content", "diff", "terminal"], &["text"]);
        check::<v2::ToolCallContent>(&["content", "diff", "terminal"], &["text"]);
        check::<v1::RequestPermissionOutcome>(&["selected", "cancelled"], &["approved"]);
        check::<v2::RequestPermissionOutcome>(&["selected", "cancelled"], &["approved"]);
    }

    #[test]
    fn a_variant_is_named_by_exactly_one_string() {
        #[track_caller]
        fn check(text: &str, expected: Option<&str>) {
            let raw = Raw::<v2::ContentBlock>::parse(text).unwrap();
            assert_eq!(raw.tag().ok().as_deref(), expected, "{text}");
        }
        check(r#"{"a":{"type":"x"},"type":"y","b":[]}"#, Some("y"));
        check(r#"{"t\u0079pe":"y"}"#, Some("y"));
        check(r#"{"type":"y","type":"y"}"#, None);
        check(r#"{"type":null}"#, None);
        check(r#"{"type":1}"#, None);
        check(r#"{}"#, None);
        check(r#"["text","hello"]"#, None);
        check(r#""text""#, None);
    }
}
