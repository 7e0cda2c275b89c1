//! The fields of a chunk that are used, borrowed from its bytes.
//!
//! Every field may be missing, null, or of an unexpected type. An unusable value counts as missing.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A chunk of a stream, or the body of an answer without a stream.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct Chunk<'a> {
    #[serde(borrow)]
    pub(super) choices: Option<Choices<'a>>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) usage: Option<&'a RawValue>,
    /// Field in which Groq sends the usage with the last chunk.
    #[serde(borrow)]
    pub(super) x_groq: Option<Groq<'a>>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct Groq<'a> {
    #[serde(borrow)]
    pub(super) usage: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
}

/// The first choice whose index is 0 or missing. Other choices are ignored.
#[derive(Default)]
pub(super) struct Choices<'a>(pub(super) Option<Choice<'a>>);

#[derive(Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct Choice<'a> {
    pub(super) index: Index,
    /// Boxed, because the value is large and the parser moves it often.
    #[serde(borrow)]
    pub(super) delta: Option<Box<Delta<'a>>>,
    #[serde(borrow)]
    pub(super) message: Option<Box<Delta<'a>>>,
    #[serde(borrow)]
    pub(super) finish_reason: Option<LenientText<'a>>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
    /// Text that Together repeats beside the delta. Servers older than the chat format send text only here.
    #[serde(borrow)]
    pub(super) text: LenientText<'a>,
}

/// A delta of a streamed message, or a whole message.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct Delta<'a> {
    #[serde(borrow)]
    pub(super) content: Content<'a>,
    #[serde(borrow)]
    pub(super) reasoning_content: LenientText<'a>,
    #[serde(borrow)]
    pub(super) reasoning: LenientText<'a>,
    #[serde(borrow)]
    pub(super) refusal: LenientText<'a>,
    #[serde(borrow)]
    pub(super) reasoning_details: Option<&'a RawValue>,
    /// Field in which Gemini sends a thought signature outside of a call.
    #[serde(borrow)]
    pub(super) extra_content: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) tool_calls: Option<Vec<CallDelta<'a>>>,
    #[serde(borrow)]
    pub(super) function_call: Option<Box<Function<'a>>>,
}

#[derive(Default)]
pub(super) struct CallDelta<'a> {
    pub(super) index: Index,
    pub(super) id: LenientText<'a>,
    pub(super) function: Option<Function<'a>>,
    /// Fields of unknown meaning, which are sent back to the endpoint.
    pub(super) extra: Map<String, Value>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct Function<'a> {
    #[serde(borrow)]
    pub(super) name: LenientText<'a>,
    #[serde(borrow)]
    pub(super) arguments: Arguments<'a>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Index(pub(super) Option<u64>);

/// A text field; empty if the value is missing or not a text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LenientText<'a>(pub(super) Cow<'a, str>);

/// Arguments as JSON text. Some servers send a JSON value instead of text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Arguments<'a>(pub(super) Cow<'a, str>);

/// Content of a message: a text, or a list of parts, of which some may be reasoning.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Content<'a> {
    pub(super) text: Cow<'a, str>,
    pub(super) thought: String,
}

/// Conversion that never fails: a value of an unexpected type becomes the default.
trait Lenient<'de>: Sized + Default {
    fn text(_: Cow<'de, str>) -> Self {
        Self::default()
    }

    fn number(_: u64) -> Self {
        Self::default()
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }

    fn map<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }
}

struct Any<T>(PhantomData<T>);

impl<'de, T: Lenient<'de>> Visitor<'de> for Any<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<T, E> {
        Ok(T::text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok(T::text(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<T, E> {
        Ok(T::number(number))
    }

    fn visit_i64<E>(self, _: i64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::list(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::map(map)
    }
}

macro_rules! lenient {
    ($type:ty) => {
        impl<'de: 'a, 'a> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Any(PhantomData))
            }
        }
    };
}

lenient!(LenientText<'a>);
lenient!(Arguments<'a>);
lenient!(Content<'a>);

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any(PhantomData))
    }
}

impl Lenient<'_> for Index {
    fn number(number: u64) -> Self {
        Self(Some(number))
    }
}

impl<'de: 'a, 'a> Lenient<'de> for LenientText<'a> {
    fn text(text: Cow<'de, str>) -> Self {
        Self(text)
    }
}

impl<'de: 'a, 'a> Lenient<'de> for Arguments<'a> {
    fn text(text: Cow<'de, str>) -> Self {
        Self(text)
    }

    fn list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        let value = Value::deserialize(SeqAccessDeserializer::new(list))?;
        Ok(Self(Cow::Owned(value.to_string())))
    }

    fn map<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        let value = Value::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Self(Cow::Owned(value.to_string())))
    }
}

impl<'de: 'a, 'a> Lenient<'de> for Content<'a> {
    fn text(text: Cow<'de, str>) -> Self {
        Self { text, thought: String::new() }
    }

    fn list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let (mut text, mut thought) = (String::new(), String::new());
        while let Some(part) = list.next_element::<Value>()? {
            push_part(&part, &mut text, &mut thought);
        }
        Ok(Self { text: Cow::Owned(text), thought })
    }
}

/// Adds a part of a content list to the text or the reasoning. Ignores references and images.
fn push_part(part: &Value, text: &mut String, thought: &mut String) {
    if let Value::String(words) = part {
        text.push_str(words);
        return;
    }
    for name in ["text", "refusal"] {
        text.push_str(part.get(name).and_then(Value::as_str).unwrap_or_default());
    }
    match part.get("thinking") {
        Some(Value::String(words)) => thought.push_str(words),
        Some(Value::Array(parts)) => {
            let words = parts.iter().filter_map(|part| part.get("text")?.as_str());
            thought.extend(words);
        }
        _ => {}
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Choices<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ChoicesVisitor(PhantomData))
    }
}

/// Accepts only a list of choices. Data with anything else in this field is not a chunk.
struct ChoicesVisitor<'a>(PhantomData<&'a str>);

impl<'de: 'a, 'a> Visitor<'de> for ChoicesVisitor<'a> {
    type Value = Choices<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of choices")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Choices<'a>, A::Error> {
        let mut first = None;
        while let Some(choice) = list.next_element::<Choice<'a>>()? {
            if first.is_none() && matches!(choice.index, Index(None | Some(0))) {
                first = Some(choice);
            }
        }
        Ok(Choices(first))
    }
}

lenient!(CallDelta<'a>);

// Implemented by hand, because `flatten` would copy all fields to find the unknown ones.
impl<'de: 'a, 'a> Lenient<'de> for CallDelta<'a> {
    fn map<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut call = Self::default();
        while let Some(LenientText(name)) = map.next_key()? {
            match &*name {
                "index" => call.index = map.next_value()?,
                "id" => call.id = map.next_value()?,
                "function" => call.function = map.next_value()?,
                "type" => drop(map.next_value::<IgnoredAny>()?),
                _ => {
                    let value: Value = map.next_value()?;
                    if !value.is_null() {
                        call.extra.insert(name.into_owned(), value);
                    }
                }
            }
        }
        Ok(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn content(json: &str, text: &str, thought: &str) {
        let content: Content<'_> = serde_json::from_str(json).expect("JSON");
        assert_eq!((&*content.text, &*content.thought), (text, thought), "{json}");
    }

    #[test]
    fn content_of_any_kind() {
        content(r#""a""#, "a", "");
        content(r#""\u00e9\n""#, "é\n", "");
        content("null", "", "");
        content("7", "", "");
        content(r#"{"text":"a"}"#, "", "");
        content(r#"["a",{"type":"text","text":"b"},{"type":"reference","reference_ids":[1]}]"#, "ab", "");
        content(
            r#"[{"type":"thinking","thinking":[{"type":"text","text":"why"},{"x":1}]},{"type":"text","text":"so"}]"#,
            "so",
            "why",
        );
        content(r#"[{"type":"thinking","thinking":"why"},3,null]"#, "", "why");
    }

    #[test]
    fn plain_text_is_borrowed() {
        let json = br#"{"choices":[{"delta":{"content":"abc","tool_calls":[{"id":"x"}]}}]}"#;
        let chunk: Chunk<'_> = serde_json::from_slice(json).expect("JSON");
        let delta = chunk.choices.and_then(|choices| choices.0?.delta).expect("a delta");
        assert!(matches!(delta.content.text, Cow::Borrowed("abc")));
        assert!(matches!(delta.tool_calls.expect("calls")[0].id.0, Cow::Borrowed("x")));
    }

    #[test]
    fn arguments_of_any_kind() {
        #[track_caller]
        fn check(json: &str, expected: &str) {
            let Arguments(text) = serde_json::from_str(json).expect("JSON");
            assert_eq!(text, expected, "{json}");
        }
        check(r#""{\"a\":1}""#, r#"{"a":1}"#);
        check(r#"{"a":[1,{"b":null}]}"#, r#"{"a":[1,{"b":null}]}"#);
        check("[1]", "[1]");
        check("null", "");
        check("1.5", "");
    }

    #[test]
    fn wrong_types_count_as_missing() {
        let json = r#"{"choices":[{"index":"0","delta":{"content":{"a":[1]},"reasoning":true,"refusal":-1,
            "reasoning_content":1.5,"tool_calls":[{"index":-1,"id":7,"function":null,"type":[]},4]},
            "finish_reason":[],"text":{}}],"usage":null,"error":null,"x_groq":null}"#;
        let chunk: Chunk<'_> = serde_json::from_str(json).expect("all of it is taken");
        let choice = chunk.choices.and_then(|choices| choices.0).expect("a choice");
        let delta = choice.delta.as_ref().expect("a delta");
        assert_eq!(choice.index, Index(None));
        assert_eq!(delta.content, Content::default());
        assert_eq!(choice.finish_reason, Some(LenientText::default()));
        let calls = delta.tool_calls.as_ref().expect("calls");
        assert_eq!((calls.len(), calls[0].index, &*calls[0].id.0), (2, Index(None), ""));
        assert!(calls[0].extra.is_empty());
    }
}
