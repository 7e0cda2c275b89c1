//! Adds a member to a JSON object or removes it, and leaves every other byte unchanged.

use std::ops::Range;

use narrows_wire::member;

/// Sets the member at `path`, and creates missing objects on the way. Returns `None` if `text` or a member on the way
/// is not an object or has a duplicate key.
pub(super) fn put(text: &[u8], path: &[&str], value: &[u8]) -> Option<Vec<u8>> {
    let (key, rest) = path.split_first()?;
    let open = opening(text)?;
    let (place, new) = match member(text, key).ok()? {
        Some(place) if rest.is_empty() => (place, value.to_vec()),
        Some(place) if text.get(place.clone()) == Some(b"null".as_slice()) => (place, nested(rest, value)),
        Some(place) => {
            let new = put(text.get(place.clone())?, rest, value)?;
            (place, new)
        }
        None => {
            let mut new = quoted(key);
            new.push(b':');
            new.extend(nested(rest, value));
            if !is_blank(text.get(open..text.len() - 1)?) {
                new.push(b',');
            }
            (open..open, new)
        }
    };
    Some(replace(text, &place, &new))
}

/// Removes the member at `path`, and any object on the way that becomes empty. Returns `None` if the member
/// does not exist, or is not written as [`put`] writes it.
pub(super) fn cut(text: &[u8], path: &[&str]) -> Option<Vec<u8>> {
    let (key, rest) = path.split_first()?;
    let place = member(text, key).ok()??;
    if !rest.is_empty() {
        let inner = cut(text.get(place.clone())?, rest)?;
        let is_empty = opening(&inner).is_some_and(|open| is_blank(&inner[open..inner.len() - 1]));
        if !is_empty {
            return Some(replace(text, &place, &inner));
        }
    }
    let mut name = quoted(key);
    name.push(b':');
    let before = text.get(..place.start)?.strip_suffix(name.as_slice())?;
    let behind = text.get(place.end..)?;
    let comma_behind = behind.strip_prefix(b",");
    let before = if comma_behind.is_some() { before } else { before.strip_suffix(b",").unwrap_or(before) };
    Some([before, comma_behind.unwrap_or(behind)].concat())
}

fn opening(text: &[u8]) -> Option<usize> {
    let open = text.iter().position(|byte| !byte.is_ascii_whitespace())?;
    (text.get(open) == Some(&b'{') && text.ends_with(b"}")).then_some(open + 1)
}

fn nested(path: &[&str], value: &[u8]) -> Vec<u8> {
    path.iter().rev().fold(value.to_vec(), |inner, key| {
        let mut object = vec![b'{'];
        object.extend(quoted(key));
        object.push(b':');
        object.extend(inner);
        object.push(b'}');
        object
    })
}

/// Keys are constants that need no escapes.
fn quoted(key: &str) -> Vec<u8> {
    [b"\"", key.as_bytes(), b"\""].concat()
}

fn is_blank(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_whitespace)
}

pub(super) fn replace(text: &[u8], place: &Range<usize>, new: &[u8]) -> Vec<u8> {
    [&text[..place.start], new, &text[place.end..]].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    use super::*;

    const PATH: [&str; 3] = ["a", "b", "c"];

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let put = put(text.as_bytes(), &PATH, b"1").map(|text| String::from_utf8(text).unwrap());
        assert_eq!(put.as_deref(), expected);
    }

    #[test]
    fn a_member_is_inserted_and_nothing_else_changes() {
        check("{}", Some(r#"{"a":{"b":{"c":1}}}"#));
        check("{ }", Some(r#"{"a":{"b":{"c":1}} }"#));
        check(r#"{"x":[1.0]}"#, Some(r#"{"a":{"b":{"c":1}},"x":[1.0]}"#));
        check(r#"{"x":1e0, "a":{"y" : 2}}"#, Some(r#"{"x":1e0, "a":{"b":{"c":1},"y" : 2}}"#));
        check(r#"{"a":{"b":{"d":3,"c":[0]}}}"#, Some(r#"{"a":{"b":{"d":3,"c":1}}}"#));
        check(r#"{"a":null}"#, Some(r#"{"a":{"b":{"c":1}}}"#));
        check(r#"{"a":[]}"#, None);
        check(r#"{"a":1,"\u0061":2}"#, None);
        check("null", None);
        check("", None);
    }

    #[test]
    fn a_member_elsewhere_or_in_another_form_is_not_cut() {
        for text in ["{}", r#"{"a":{"b":{"d":1}}}"#, r#"{"a":{"b":{"c" : 1}}}"#, "[]", ""] {
            assert_eq!(cut(text.as_bytes(), &PATH), None, "{text}");
        }
    }

    fn any_object() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i32>().prop_map(Value::from),
            ".{0,4}".prop_map(Value::from)
        ];
        let inner = leaf.prop_recursive(4, 24, 3, |inner| {
            prop::collection::vec(("[abcx]", inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>()))
        });
        prop::collection::vec(("[abcx]", inner), 0..4)
            .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>()))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn an_inserted_member_is_readable_and_can_be_cut(object in any_object(), pretty: bool) {
            let text = if pretty { format!("{object:#}") } else { object.to_string() };
            if let Some(with) = put(text.as_bytes(), &PATH, b"{\"n\":1}") {
                let read: Value = serde_json::from_slice(&with).unwrap();
                prop_assert_eq!(&read["a"]["b"]["c"]["n"], 1);
                let mut others = read.clone();
                if let Some(inner) = others["a"]["b"].as_object_mut() { inner.remove("c"); }
                let mut before = object.clone();
                for key in [&["a"][..], &["a", "b"]] {
                    let place = key.iter().fold(&mut before, |value, key| &mut value[*key]);
                    if place.is_null() { *place = Value::Object(Map::new()); }
                }
                if let Some(inner) = before["a"]["b"].as_object_mut() { inner.remove("c"); }
                prop_assert_eq!(others, before);
                if object.get("a").is_none() {
                    prop_assert_eq!(cut(&with, &PATH).unwrap(), text.as_bytes());
                }
            }
        }

        #[test]
        fn no_input_panics(text: Vec<u8>) {
            _ = put(&text, &PATH, b"1");
            _ = cut(&text, &PATH);
        }
    }
}
