//! Finding one member of an object without reading the rest of it into anything.

use std::ops::Range;

/// A key stands there twice: two readers may choose differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key stands there twice")]
pub struct Doubled;

/// Where the value of `key` stands in an object, of text that is known to be JSON; `None` if it is no object or has no
/// such key.
///
/// # Errors
/// When the key stands there twice.
#[inline]
pub fn member(text: &[u8], key: &str) -> Result<Option<Range<usize>>, Doubled> {
    let mut found = None;
    let mut at = blank(text, 0);
    if text.get(at) != Some(&b'{') {
        return Ok(None);
    }
    loop {
        let name = blank(text, at + 1);
        if text.get(name) != Some(&b'"') {
            return Ok(found);
        }
        let behind = string_end(text, name);
        // Behind the colon.
        let start = blank(text, blank(text, behind) + 1);
        let end = value_end(text, start);
        if is_key(text.get(name..behind).unwrap_or_default(), key) && found.replace(start..end).is_some() {
            return Err(Doubled);
        }
        at = blank(text, end);
        if text.get(at) != Some(&b',') {
            return Ok(found);
        }
    }
}

fn is_key(raw: &[u8], key: &str) -> bool {
    if raw.contains(&b'\\') {
        serde_json::from_slice::<String>(raw).is_ok_and(|name| name == key)
    } else {
        raw.get(1..raw.len().saturating_sub(1)) == Some(key.as_bytes())
    }
}

/// The first place from `at` on that is not blank.
fn blank(text: &[u8], at: usize) -> usize {
    let blanks = text.iter().skip(at).take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    at + blanks.count()
}

/// Behind the string that begins at `at`.
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

/// Behind the value that begins at `at`.
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn what_is_found_is_what_a_parser_finds(value in any_json(), pretty: bool, escape: bool) {
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
        fn no_text_does_harm(text: Vec<u8>) {
            _ = member(&text, "key");
        }
    }

    #[test]
    fn a_doubled_key_is_no_member() {
        assert_eq!(member(br#"{"a":1,"b":2,"\u0061":3}"#, "a"), Err(Doubled));
        assert_eq!(member(br#"{"a":1,"b":2,"\u0061":3}"#, "b"), Ok(Some(11..12)));
    }
}
