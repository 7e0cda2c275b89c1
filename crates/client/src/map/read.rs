//! Lenient views of agent messages. They borrow the text and accept unknown members.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use narrows_base::json::MAX_PEER_VALUES;
use narrows_base::text::one_line;
use narrows_policy::UnambiguousJson;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::fault::Marks;
use crate::peer_json::{self, PeerJsonError};

/// Value that must be a JSON object. Serde would also accept an array of the members, which no peer may send.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_map(Members(PhantomData)).map(Self)
    }
}

/// Reason why a text could not be parsed, safe to display.
pub(super) type Problem = String;

pub(super) fn object<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Problem> {
    serde_json::from_str::<Object<T>>(text).map(|Object(value)| value).map_err(|error| words(&error))
}

/// Checks that no object in `text` has a duplicate key, at any depth. Parsers could disagree on its value.
pub(super) fn check_unambiguous(text: &str) -> Result<(), Problem> {
    peer_json::read::<UnambiguousJson>(text.as_bytes()).map(drop).map_err(|error| words(&error))
}

/// Returns the message of `error` as one short line, because parsers quote the text that they parse.
fn words(error: &dyn fmt::Display) -> Problem {
    const MAX_CHARS: usize = 200;
    one_line(&error.to_string(), MAX_CHARS)
}

/// Returns the first characters of `text` that fit into `room` bytes.
pub(super) fn head(text: &str, room: usize) -> &str {
    let mut end = room.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The params of a `session/update` with a text chunk, parsed in one pass.
#[derive(Deserialize)]
pub(super) struct TextParams<'a> {
    #[serde(borrow)]
    pub(super) update: Object<TextUpdate<'a>>,
    #[serde(rename = "_meta", borrow, default)]
    pub(super) meta: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TextUpdate<'a> {
    pub(super) session_update: Speaker,
    #[serde(borrow, default)]
    pub(super) message_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) content: Object<TextBlock<'a>>,
    #[serde(rename = "_meta", borrow, default)]
    pub(super) meta: Option<&'a RawValue>,
}

/// Kind of message to which a text chunk belongs. At any other kind of update, the parser stops at once.
#[derive(Clone, Copy, Deserialize)]
pub(super) enum Speaker {
    #[serde(rename = "agent_message_chunk")]
    Said,
    #[serde(rename = "agent_thought_chunk")]
    Thought,
}

#[derive(Deserialize)]
pub(super) struct TextBlock<'a> {
    #[expect(dead_code, reason = "reading it is the check")]
    r#type: Text,
    #[serde(borrow)]
    pub(super) text: Cow<'a, str>,
}

#[derive(Deserialize)]
enum Text {
    #[serde(rename = "text")]
    Text,
}

#[derive(Deserialize)]
pub(super) struct Params<'a> {
    #[serde(borrow)]
    pub(super) update: &'a RawValue,
    #[serde(rename = "_meta", borrow, default)]
    pub(super) meta: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UpdateHead<'a> {
    #[serde(borrow)]
    pub(super) session_update: Cow<'a, str>,
    #[serde(rename = "_meta", borrow, default)]
    meta: Option<&'a RawValue>,
}

impl<'a> UpdateHead<'a> {
    pub(super) fn marks(&self) -> Marks<'a> {
        Marks::from_meta(self.meta)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) message_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) content: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CompleteMessage<'a> {
    #[serde(borrow)]
    pub(super) message_id: Cow<'a, str>,
    /// Content of the message; `None` if it is unchanged.
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct Block<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
}

pub(super) fn text_of(block: &RawValue) -> Result<Option<Cow<'_, str>>, Problem> {
    let Block { r#type, text } = object(block.get())?;
    if r#type != "text" {
        return Ok(None);
    }
    let text = text.ok_or("a text block without text")?;
    string(text).map(Some)
}

/// The fields of a tool call in either version. `None` stands for a missing field.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Fields<'a> {
    #[serde(borrow)]
    pub(super) tool_call_id: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "present")]
    pub(super) title: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub(super) name: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub(super) kind: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub(super) status: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub(super) content: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub(super) locations: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub(super) raw_input: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "present")]
    pub(super) raw_output: Option<&'a RawValue>,
    #[serde(rename = "_meta", borrow)]
    pub(super) meta: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Child<'a> {
    #[serde(borrow)]
    pub(super) session_id: Cow<'a, str>,
}

/// An added item of a tool call's content (v2).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ContentItem<'a> {
    #[serde(borrow)]
    pub(super) tool_call_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) content: &'a RawValue,
}

/// Reads a present value as `Some`, even if it is `null`.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

pub(super) fn string(text: &RawValue) -> Result<Cow<'_, str>, Problem> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str::<Text<'_>>(text.get()).map(|Text(text)| text).map_err(|error| words(&error))
}

/// Parses a JSON string, or returns `None` for `null`.
pub(super) fn string_or_null(text: &RawValue) -> Result<Option<Cow<'_, str>>, Problem> {
    if text.get() == "null" { Ok(None) } else { string(text).map(Some) }
}

/// Parses a JSON list. `null` counts as an empty list. Refuses a list with more items than a peer may send
/// values.
pub(super) fn list(text: &RawValue) -> Result<Vec<&RawValue>, Problem> {
    struct Items;
    impl<'de> Visitor<'de> for Items {
        type Value = Vec<&'de RawValue>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = seq.next_element()? {
                if items.len() == MAX_PEER_VALUES {
                    return Err(A::Error::custom(PeerJsonError::TooManyValues));
                }
                items.push(item);
            }
            Ok(items)
        }
    }
    if text.get() == "null" {
        return Ok(Vec::new());
    }
    serde_json::Deserializer::from_str(text.get()).deserialize_seq(Items).map_err(|error| words(&error))
}
