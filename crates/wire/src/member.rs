//! Finds members, elements and keys in JSON text without building a value.

use std::ops::Range;

use crate::lookalike::Letters;

/// Error: a key occurs twice, so two readers may choose different values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("duplicate key")]
pub struct DuplicateKey;

/// Returns the position of the value of `key` in `text`, which must be valid JSON. Returns `None` if `text`
/// is not an object or lacks the key.
///
/// # Errors
/// If the key occurs twice.
#[inline]
pub fn member(text: &[u8], key: &str) -> Result<Option<Range<usize>>, DuplicateKey> {
    let mut found = None;
    for (name, value) in members(text) {
        if key_equals(text.get(name).unwrap_or_default(), key) && found.replace(value).is_some() {
            return Err(DuplicateKey);
        }
    }
    Ok(found)
}

/// Iterates over the members of an object: the range of each key, including its quotes, and of its value.
/// `text` must be valid JSON. Yields nothing if it is not an object.
#[inline]
pub fn members(text: &[u8]) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + '_ {
    let mut next = after_bracket(text, b'{');
    std::iter::from_fn(move || {
        let name = skip_blank(text, next?);
        if text.get(name) != Some(&b'"') {
            next = None;
            return None;
        }
        let behind = string_end(text, name);
        // Skips the colon between the key and the value.
        let start = skip_blank(text, skip_blank(text, behind) + 1);
        let end = value_end(text, start);
        next = after_comma(text, end);
        Some((name..behind, start..end))
    })
}

/// Iterates over the elements of an array. `text` must be valid JSON. Yields nothing if it is not an array.
pub fn elements(text: &[u8]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut next = after_bracket(text, b'[');
    std::iter::from_fn(move || {
        let start = skip_blank(text, next?);
        if matches!(text.get(start), None | Some(b']')) {
            next = None;
            return None;
        }
        let end = value_end(text, start);
        next = after_comma(text, end);
        Some(start..end)
    })
}

/// Iterates over all keys at any depth, as written, with quotes. `text` must be valid JSON.
pub fn keys(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(quote) = text.get(at..).and_then(|rest| memchr::memchr(b'"', rest)) {
            let start = at + quote;
            at = string_end(text, start);
            // Only a key is followed by a colon, so other strings are skipped.
            if text.get(skip_blank(text, at)) == Some(&b':') {
                return text.get(start..at);
            }
        }
        None
    })
}

/// Returns the index after the opening `bracket`, if `text` begins with it.
fn after_bracket(text: &[u8], bracket: u8) -> Option<usize> {
    let at = skip_blank(text, 0);
    (text.get(at) == Some(&bracket)).then_some(at + 1)
}

/// Returns the index after the comma that follows a value which ends at `end`.
fn after_comma(text: &[u8], end: usize) -> Option<usize> {
    let at = skip_blank(text, end);
    (text.get(at) == Some(&b',')).then_some(at + 1)
}

fn key_equals(raw: &[u8], key: &str) -> bool {
    let content = raw.get(1..raw.len().saturating_sub(1)).unwrap_or_default();
    match content.contains(&b'\\') {
        true if key.is_ascii() => Letters(content).eq(key.chars()),
        true => serde_json::from_slice::<String>(raw).is_ok_and(|name| name == key),
        false => content == key.as_bytes(),
    }
}

fn skip_blank(text: &[u8], at: usize) -> usize {
    let blanks = text.iter().skip(at).take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    at + blanks.count()
}

fn string_end(text: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while let Some(next) = text.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        if text.get(at + next) == Some(&b'"') {
            return at + next + 1;
        }
        at += next + 2;
    }
    text.len()
}

fn value_end(text: &[u8], at: usize) -> usize {
    let mut depth = 0_usize;
    let mut now = at;
    while let Some(byte) = text.get(now) {
        match byte {
            b'"' => {
                now = string_end(text, now);
                if depth == 0 {
                    return now;
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return now + 1,
            b'}' | b']' | b',' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => return now,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        now += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    use super::*;

    fn any_json() -> impl Strategy<Value = Value> {
        let key = prop_oneof![
            Just("_meta".to_owned()),
            Just("key".to_owned()),
            "[a-z\"\\\\{}\\[\\],: \n\u{e9}]{0,6}"
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<i16>().prop_map(|number| Value::from(f64::from(number) / 8.0)),
            "[a-z\"\\\\{}\\[\\],: \n\u{e9}]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((key.clone(), inner), 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    #[test]
    fn members_elements_and_keys_are_found() {
        let list = |text: &str| -> Vec<String> {
            elements(text.as_bytes()).map(|place| text[place].to_owned()).collect()
        };
        assert_eq!(list(r#" [ 1 , "a,]" ,{"b":[2,3]},[] ] "#), ["1", "\"a,]\"", "{\"b\":[2,3]}", "[]"]);
        assert_eq!(list("[]"), Vec::<String>::new());
        assert_eq!(list("{\"a\":1}"), Vec::<String>::new());
        let found = |text: &'static str| -> Vec<&str> {
            keys(text.as_bytes()).map(|key| std::str::from_utf8(key).unwrap()).collect()
        };
        assert_eq!(
            found(r#"{"a" : "x:", "b":[{"c\":d":"e"},"f"],"\u0061":{}}"#),
            ["\"a\"", "\"b\"", "\"c\\\":d\"", "\"\\u0061\""]
        );
        assert_eq!(found(r#"["a:",":"]"#), Vec::<&str>::new());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn the_search_agrees_with_a_parser(value in any_json(), pretty: bool, escape: bool) {
            let mut text = if pretty { format!("{value:#}") } else { value.to_string() };
            if escape {
                text = text.replace("_meta", "_me\\u0074a").replace('\u{e9}', "\\u00e9");
            }
            for key in ["_meta", "key", "a", ""] {
                let found = member(text.as_bytes(), key).unwrap();
                let found = found.map(|place| serde_json::from_str::<Value>(&text[place]).unwrap());
                prop_assert_eq!(found.as_ref(), value.as_object().and_then(|object| object.get(key)));
            }
        }

        #[test]
        fn arbitrary_text_never_panics(text: Vec<u8>) {
            _ = member(&text, "key");
            _ = elements(&text).count() + keys(&text).count() + members(&text).count();
        }
    }

    #[test]
    fn a_duplicate_key_is_an_error() {
        assert_eq!(member(br#"{"a":1,"b":2,"\u0061":3}"#, "a"), Err(DuplicateKey));
        assert_eq!(member(br#"{"a":1,"b":2,"\u0061":3}"#, "b"), Ok(Some(11..12)));
    }
}
