//! Parses token usage under the names of all known endpoints.

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::chat::Usage;

pub(crate) fn read(raw: &RawValue) -> Option<Usage> {
    let fields: Fields = serde_json::from_str(raw.get()).ok()?;
    let input = fields.prompt_tokens.or(fields.input_tokens);
    let output = fields.completion_tokens.or(fields.output_tokens);
    let total = fields.total_tokens.whole();
    if input.0.is_none() && output.0.is_none() && total.is_none() {
        return None;
    }
    let (input, output) = (input.whole().unwrap_or(0), output.whole().unwrap_or(0));
    let read = fields.prompt_tokens_details.or(fields.input_tokens_details).unwrap_or_default();
    let written = fields.completion_tokens_details.or(fields.output_tokens_details).unwrap_or_default();
    Some(Usage {
        input,
        output,
        total: total.unwrap_or_else(|| input.saturating_add(output)),
        cached: read.cached_tokens.or(fields.prompt_cache_hit_tokens).or(fields.cached_tokens).whole(),
        reasoning: written.reasoning_tokens.or(fields.reasoning_tokens).whole(),
        cost: fields.cost.0.filter(|cost| *cost >= 0.0),
    })
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Fields {
    prompt_tokens: Number,
    completion_tokens: Number,
    total_tokens: Number,
    input_tokens: Number,
    output_tokens: Number,
    prompt_tokens_details: Option<Details>,
    completion_tokens_details: Option<Details>,
    input_tokens_details: Option<Details>,
    output_tokens_details: Option<Details>,
    /// Number of cached tokens in DeepSeek's format.
    prompt_cache_hit_tokens: Number,
    /// Number of cached tokens in Together's format.
    cached_tokens: Number,
    reasoning_tokens: Number,
    cost: Number,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Details {
    cached_tokens: Number,
    reasoning_tokens: Number,
}

/// A number field. Any other JSON value counts as missing.
#[derive(Clone, Copy, Default)]
struct Number(Option<f64>);

impl Number {
    fn or(self, other: Self) -> Self {
        Self(self.0.or(other.0))
    }

    fn whole(self) -> Option<u64> {
        self.0.filter(|number| *number >= 0.0).map(|number| number as u64)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNumber)
    }
}

struct AnyNumber;

impl<'de> Visitor<'de> for AnyNumber {
    type Value = Number;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("anything")
    }

    fn visit_u64<E>(self, number: u64) -> Result<Number, E> {
        Ok(Number(Some(number as f64)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Number, E> {
        Ok(Number(Some(number as f64)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Number, E> {
        Ok(Number(Some(number)))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Number, E> {
        Ok(Number(None))
    }

    fn visit_unit<E>(self) -> Result<Number, E> {
        Ok(Number(None))
    }

    fn visit_str<E>(self, text: &str) -> Result<Number, E> {
        Ok(Number(text.parse().ok().filter(|number: &f64| number.is_finite())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Number, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Number(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Number, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Number(None))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Option<Usage> {
        let raw: Box<RawValue> = serde_json::from_str(text).expect("JSON");
        read(&raw)
    }

    #[track_caller]
    fn check(text: &str, expected: Usage) {
        assert_eq!(parse(text), Some(expected), "{text}");
    }

    fn tokens(input: u64, output: u64) -> Usage {
        Usage { input, output, total: input + output, ..Usage::default() }
    }

    #[test]
    fn every_name() {
        check(r#"{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}"#, tokens(3, 4));
        check(r#"{"prompt_tokens":3,"completion_tokens":4}"#, tokens(3, 4));
        check(r#"{"input_tokens":3,"output_tokens":4,"total_tokens":9}"#, Usage { total: 9, ..tokens(3, 4) });
        check(
            r#"{"prompt_tokens":3,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2,"audio_tokens":0},
                "completion_tokens_details":{"reasoning_tokens":1},"cost":0.25}"#,
            Usage { cached: Some(2), reasoning: Some(1), cost: Some(0.25), ..tokens(3, 4) },
        );
        check(
            r#"{"prompt_tokens":3,"prompt_cache_hit_tokens":2}"#,
            Usage { cached: Some(2), ..tokens(3, 0) },
        );
        check(r#"{"prompt_tokens":3,"cached_tokens":2}"#, Usage { cached: Some(2), ..tokens(3, 0) });
    }

    #[test]
    fn invalid_values_are_ignored() {
        check(
            r#"{"prompt_tokens":3.0,"completion_tokens":"4","total_tokens":null,"prompt_tokens_details":null,
                "completion_tokens_details":{"reasoning_tokens":null},"cost":-1,"cached_tokens":[1],
                "reasoning_tokens":{"a":1},"queue_time":0.1}"#,
            tokens(3, 4),
        );
        check(r#"{"total_tokens":5,"prompt_tokens":-1,"cost":true}"#, Usage { total: 5, ..Usage::default() });
        for nothing in ["{}", "[]", "1", "\"x\"", r#"{"cost":1}"#, r#"{"prompt_tokens":null}"#] {
            assert_eq!(parse(nothing), None, "{nothing}");
        }
    }

    proptest! {
        #[test]
        fn any_counts_are_parsed(input in 0..1u64 << 40, output in 0..1u64 << 40, cached in 0..1u64 << 40) {
            let text = serde_json::json!({
                "prompt_tokens": input, "completion_tokens": output,
                "prompt_tokens_details": {"cached_tokens": cached},
            });
            let expected = Usage { cached: Some(cached), ..tokens(input, output) };
            prop_assert_eq!(parse(&text.to_string()), Some(expected));
        }
    }
}
