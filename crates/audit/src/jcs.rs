//! Canonical JSON (RFC 8785): each value has exactly one text.

use std::cmp::Ordering;
use std::io::Write;

use serde_json::{Map, Number, Value};

use crate::event::MAX_DEPTH;

/// The error for a value that is nested too deeply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value is nested more than {MAX_DEPTH} levels deep")]
pub struct TooDeep;

/// Returns the canonical text of a value. Numbers are formatted as in ECMAScript, so integers beyond 2^53 are
/// rounded.
pub fn to_vec(value: &Value) -> Result<Vec<u8>, TooDeep> {
    let mut text = Vec::with_capacity(128);
    write(value, &mut text)?;
    Ok(text)
}

pub(crate) fn write(value: &Value, out: &mut Vec<u8>) -> Result<(), TooDeep> {
    write_at(value, out, 0)
}

fn write_at(value: &Value, out: &mut Vec<u8>, depth: usize) -> Result<(), TooDeep> {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_text(text, out),
        Value::Array(_) | Value::Object(_) if depth == MAX_DEPTH => return Err(TooDeep),
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_at(item, out, depth + 1)?;
            }
            out.push(b']');
        }
        Value::Object(members) => write_members(members, out, depth)?,
    }
    Ok(())
}

pub(crate) fn write_object(members: &Map<String, Value>, out: &mut Vec<u8>) -> Result<(), TooDeep> {
    write_members(members, out, 0)
}

fn write_members(members: &Map<String, Value>, out: &mut Vec<u8>, depth: usize) -> Result<(), TooDeep> {
    out.push(b'{');
    let mut first = true;
    let mut write = |key: &str, member: &Value| {
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        write_text(key, out);
        out.push(b':');
        write_at(member, out, depth + 1)
    };
    // `serde_json` sorts maps unless another crate enables a feature that keeps the order of insertion.
    if members.keys().is_sorted_by(|one, other| by_utf16(one, other) == Ordering::Less) {
        members.iter().try_for_each(|(key, member)| write(key, member))?;
    } else {
        let mut members: Vec<_> = members.iter().collect();
        members.sort_unstable_by(|(one, _), (other, _)| by_utf16(one, other));
        members.into_iter().try_for_each(|(key, member)| write(key, member))?;
    }
    out.push(b'}');
    Ok(())
}

/// Compares keys by their UTF-16 code units. Their order differs from the order of the UTF-8 bytes.
pub(crate) fn by_utf16(one: &str, other: &str) -> Ordering {
    // The first different byte decides about the order. UTF-8 and UTF-16 agree if both bytes are below this
    // byte.
    const ELSEWHERE: u8 = 0xee;
    match one.bytes().zip(other.bytes()).find(|(one, other)| one != other) {
        None => one.len().cmp(&other.len()),
        Some((one, other)) if one.max(other) < ELSEWHERE => one.cmp(&other),
        Some(_) => one.encode_utf16().cmp(other.encode_utf16()),
    }
}

fn write_number(number: &Number, out: &mut Vec<u8>) {
    match number.as_i64() {
        Some(integer) if integer.unsigned_abs() < 1 << 53 => write_integer(integer, out),
        _ => {
            // Numbers in JSON are always finite.
            let number = number.as_f64().unwrap_or_default();
            out.extend_from_slice(ryu_js::Buffer::new().format(number).as_bytes());
        }
    }
}

/// Writes an integer that a double represents exactly.
pub(crate) fn write_integer(integer: i64, out: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    let _ = write!(out, "{integer}");
}

/// Writes a quoted text. Escapes only characters that must be escaped.
pub(crate) fn write_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let bytes = text.as_bytes();
    // Fast path: most texts need no escapes.
    let is_special = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
    if !bytes.iter().fold(false, |found, byte| found | is_special(byte)) {
        out.extend_from_slice(bytes);
        out.push(b'"');
        return;
    }
    let mut start = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        let short = match byte {
            b'"' | b'\\' => byte,
            0x08 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            0x0c => b'f',
            b'\r' => b'r',
            0..0x20 => b'u',
            _ => continue,
        };
        out.extend_from_slice(&bytes[start..at]);
        out.extend_from_slice(&[b'\\', short]);
        if short == b'u' {
            let _ = write!(out, "{byte:04x}");
        }
        start = at + 1;
    }
    out.extend_from_slice(&bytes[start..]);
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(value: &Value, expected: &str) {
        assert_eq!(String::from_utf8(to_vec(value).expect("shallow")).expect("UTF-8"), expected);
    }

    #[test]
    fn values_have_one_text() {
        check(&json!({"b": [true, false, null], "a": {}}), r#"{"a":{},"b":[true,false,null]}"#);
        check(
            &json!("\u{8}\t\n\u{c}\r\"\\/\u{1}\u{1f}\u{7f}\u{2028}é😀"),
            "\"\\b\\t\\n\\f\\r\\\"\\\\/\\u0001\\u001f\u{7f}\u{2028}é😀\"",
        );
        // UTF-8 and UTF-16 sort these keys differently.
        check(&json!({"\u{fb33}": 1, "😀": 2, "é": 3, "1": 4}), "{\"1\":4,\"é\":3,\"😀\":2,\"\u{fb33}\":1}");
    }

    proptest::proptest! {
        #[test]
        fn keys_are_ordered_by_their_utf16(
            one in "[a\u{7f}\u{80}é\u{7ff}\u{800}\u{d7ff}\u{e000}\u{fb33}\u{ffff}\u{10000}😀\u{10ffff}]{0,4}",
            other in "[a\u{7f}\u{80}é\u{7ff}\u{800}\u{d7ff}\u{e000}\u{fb33}\u{ffff}\u{10000}😀\u{10ffff}]{0,4}",
        ) {
            proptest::prop_assert_eq!(by_utf16(&one, &other), one.encode_utf16().cmp(other.encode_utf16()));
        }
    }

    #[test]
    fn numbers_are_those_of_ecmascript() {
        let cases: [(Value, &str); 14] = [
            (json!(0), "0"),
            (json!(-0.0), "0"),
            (json!(1.0), "1"),
            (json!(-1), "-1"),
            (json!(9_007_199_254_740_991_u64), "9007199254740991"),
            (json!(u64::MAX), "18446744073709552000"),
            (json!(1e21), "1e+21"),
            (json!(1e20), "100000000000000000000"),
            (json!(1e-6), "0.000001"),
            (json!(1e-7), "1e-7"),
            (json!(0.1 + 0.2), "0.30000000000000004"),
            (json!(5e-324), "5e-324"),
            (json!(f64::MAX), "1.7976931348623157e+308"),
            (json!(333_333_333.333_333_3), "333333333.3333333"),
        ];
        for (value, expected) in cases {
            check(&value, expected);
        }
    }

    #[test]
    fn depth_is_limited() {
        let nested = |levels: usize| (1..levels).fold(json!([]), |inner, _| json!([inner]));
        assert!(to_vec(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(to_vec(&nested(MAX_DEPTH + 1)), Err(TooDeep));
    }
}
