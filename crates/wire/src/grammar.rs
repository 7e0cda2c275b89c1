//! Checks the JSON grammar without recursion or allocation.

use crate::fault::Fault;
use crate::skip::{Job, Skip};

pub const MAX_DEPTH: u32 = 128;

/// Returns the byte at `at`, or NUL past the end. NUL is never valid, so the end of the input reaches an
/// error arm.
#[inline(always)]
pub(crate) fn byte(text: &[u8], at: usize) -> u8 {
    if at < text.len() { text[at] } else { 0 }
}

#[inline(always)]
pub(crate) fn skip_blank(text: &[u8], at: usize) -> usize {
    let mut at = at;
    while matches!(byte(text, at), b' ' | b'\t' | b'\n' | b'\r') {
        at += 1;
    }
    at
}

/// Returns the index after the number, `true`, `false` or `null` at `at`.
#[inline(always)]
pub(crate) fn scalar_end(text: &[u8], at: usize) -> Result<usize, Fault> {
    match byte(text, at) {
        b't' => literal_end(text, at, b"true"),
        b'f' => literal_end(text, at, b"false"),
        b'n' => literal_end(text, at, b"null"),
        _ => number_end(text, at),
    }
}

/// Returns the index after `expected`, which must be at `at`.
#[inline(always)]
fn literal_end<const N: usize>(text: &[u8], at: usize, expected: &[u8; N]) -> Result<usize, Fault> {
    // Because the length is part of the type, this compiles to one or two comparisons of words.
    if text[at..].first_chunk() == Some(expected) { Ok(at + N) } else { Err(Fault::Syntax) }
}

#[inline(always)]
fn number_end(text: &[u8], at: usize) -> Result<usize, Fault> {
    let at = if byte(text, at) == b'-' { at + 1 } else { at };
    let mut at = match byte(text, at) {
        b'0' => at + 1,
        b'1'..=b'9' => digits_end(text, at + 1),
        _ => return Err(Fault::Syntax),
    };
    if byte(text, at) == b'.' {
        at = required_digits_end(text, at + 1)?;
    }
    if matches!(byte(text, at), b'e' | b'E') {
        at += 1;
        if matches!(byte(text, at), b'+' | b'-') {
            at += 1;
        }
        at = required_digits_end(text, at)?;
    }
    Ok(at)
}

#[inline(always)]
fn digits_end(text: &[u8], at: usize) -> usize {
    let mut at = at;
    while byte(text, at).is_ascii_digit() {
        at += 1;
    }
    at
}

#[inline(always)]
fn required_digits_end(text: &[u8], at: usize) -> Result<usize, Fault> {
    let end = digits_end(text, at);
    if end > at { Ok(end) } else { Err(Fault::Syntax) }
}

/// A job that checks the container whose opening bracket is at `at`, and returns the index after it.
pub(crate) struct Container<'a> {
    pub(crate) text: &'a [u8],
    pub(crate) at: usize,
    /// Limit of nested containers, this one included. At most [`MAX_DEPTH`].
    pub(crate) levels: u32,
}

impl Job for Container<'_> {
    type Out = Result<usize, Fault>;

    #[inline(always)]
    fn run<S: Skip>(self, skip: S) -> Self::Out {
        container_end(skip, self.text, self.at, self.levels)
    }
}

#[inline(always)]
fn container_end<S: Skip>(skip: S, text: &[u8], at: usize, levels: u32) -> Result<usize, Fault> {
    // One bit per open container, the innermost in the lowest bit: set for an object, clear for an array.
    let mut kinds: u128 = 0;
    let mut open = 0;
    let mut at = at;
    'value: loop {
        match byte(text, at) {
            b'"' => at = skip.strict_string(text, at + 1).ok_or(Fault::Syntax)?.quote + 1,
            opening @ (b'{' | b'[') => {
                if open == levels {
                    return Err(Fault::TooDeep);
                }
                open += 1;
                let object = opening == b'{';
                kinds = kinds << 1 | u128::from(object);
                at = skip_blank(text, at + 1);
                if byte(text, at) == opening + 2 {
                    // An empty container continues with the code that closes every container.
                } else if object {
                    at = key_value(skip, text, at)?;
                    continue 'value;
                } else {
                    continue 'value;
                }
            }
            _ => at = scalar_end(text, at)?,
        }
        loop {
            at = skip_blank(text, at);
            let object = kinds & 1 == 1;
            match byte(text, at) {
                b',' => {
                    at = skip_blank(text, at + 1);
                    if object {
                        at = key_value(skip, text, at)?;
                    }
                    continue 'value;
                }
                b'}' if object => {}
                b']' if !object => {}
                _ => return Err(Fault::Syntax),
            }
            at += 1;
            open -= 1;
            kinds >>= 1;
            if open == 0 {
                return Ok(at);
            }
        }
    }
}

/// Returns the index of the value of the key whose opening quote must be at `at`.
#[inline(always)]
fn key_value<S: Skip>(skip: S, text: &[u8], at: usize) -> Result<usize, Fault> {
    if byte(text, at) != b'"' {
        return Err(Fault::Syntax);
    }
    let end = skip.strict_string(text, at + 1).ok_or(Fault::Syntax)?;
    let at = skip_blank(text, end.quote + 1);
    if byte(text, at) == b':' { Ok(skip_blank(text, at + 1)) } else { Err(Fault::Syntax) }
}

#[cfg(test)]
mod tests {
    use serde::de::IgnoredAny;

    use super::*;
    use crate::{Check, Kind, scan, scan_portable};

    /// Compares the result with serde_json, which neither decodes nor limits ignored values.
    #[track_caller]
    fn check(text: &[u8]) {
        let json = serde_json::from_slice::<IgnoredAny>(text).is_ok();
        let expected = json && std::str::from_utf8(text).is_ok();
        for (kind, _) in [scan(text, Check::Grammar), scan_portable(text, Check::Grammar)] {
            let json = !matches!(kind, Kind::Invalid(Fault::Syntax));
            assert_eq!(json, expected, "{kind:?}: {}", text.escape_ascii());
        }
    }

    /// Checks a value alone, in an array, under a key, and with each of its ends at the end of a vector.
    #[track_caller]
    fn check_value(value: &str) {
        check(value.as_bytes());
        for pad in [0, 5, 20, 40] {
            let pad = " ".repeat(pad);
            check(format!("{pad}[{value}]").as_bytes());
            check(format!("[0,{pad}{value}{pad},{value}]").as_bytes());
            check(format!("{{\"k\":{value}{pad}}}").as_bytes());
            check(format!("{{\"a\":{{\"k\"{pad}:{pad}{value}}},\"b\":[{value}]}}{pad}").as_bytes());
            check(format!("{{\"params\":{{\"k\"{pad}:{value},\"l\":{value}}}}}").as_bytes());
        }
    }

    #[test]
    fn values_are_accepted_as_by_serde_json() {
        for value in [
            "",
            "0",
            "-0",
            "-",
            "+1",
            "01",
            "-01",
            "1",
            "12",
            "1.",
            ".5",
            "1.5",
            "1.5.5",
            "1e",
            "1e5",
            "1E+5",
            "1e-",
            "1e-05",
            "1e+",
            "0e0",
            "0x1",
            "1a",
            "--1",
            "1 2",
            "1e400",
            "-1e400",
            "9223372036854775808",
            "123456789012345678901234567890",
            "NaN",
            "Infinity",
            "true",
            "tru",
            "truee",
            "True",
            "false",
            "fals",
            "falsy",
            "null",
            "nul",
            "nulll",
            "{}",
            "[]",
            "{]",
            "[}",
            "{",
            "[",
            "}",
            "]",
            "[,]",
            "[1,]",
            "[,1]",
            "[1,,2]",
            "[1 2]",
            "{,}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{\"a\":1 \"b\":2}",
            "{\"a\",1}",
            "{a:1}",
            "{1:1}",
            "{\"a\":1,\"a\":2}",
            "{\"\":\"\"}",
            "[[[[]]]]",
            "[{\"a\":[{}]}]",
            "'a'",
            "\"",
            "\"a",
            "\"a\"",
            "\"\\\"",
            "\"\\\\\"",
            "\"\\a\"",
            "\"\\/\\b\\f\\n\\r\\t\"",
            "\"\\u\"",
            "\"\\u12\"",
            "\"\\u12g4\"",
            "\"\\u12ab\"",
            "\"\\ud800\"",
            "\"\\udc00\\ud800\"",
            "\"\u{7f}\"",
            "\"\u{1f}\"",
            "\"\t\"",
            "\"\n\"",
            "\"\0\"",
            "\0",
            "\"é☃𝄞\"",
            "\u{feff}1",
            "1\u{a0}",
            "\u{c}",
            "/**/1",
            "1//",
            "[1]x",
            "\"a\"\"b\"",
            "\u{b}1",
        ] {
            check_value(value);
        }
    }

    #[test]
    fn every_byte_in_every_place() {
        for byte in 0..=u8::MAX {
            for around in [
                "?",
                "[?]",
                "[1?2]",
                "{\"a\"?1}",
                "{\"a\":1?}",
                "\"?\"",
                "\"\\?\"",
                "1?1",
                "?{}",
                "{}?",
                "-?",
            ] {
                let text: Vec<u8> =
                    around.bytes().map(|place| if place == b'?' { byte } else { place }).collect();
                check(&text);
            }
        }
    }

    #[test]
    fn every_prefix_of_a_document() {
        let text = br#" {"a" : [1, -2.5e+3, true, false, null, "x\u00e9\n\"y", {"b":{}, "c":[]}], "d":"" } "#;
        for end in 0..=text.len() {
            check(&text[..end]);
        }
    }

    #[test]
    fn nesting_is_limited_exactly() {
        let nested = |open: &str, close: &str, depth: usize| open.repeat(depth) + &close.repeat(depth);
        let limit = MAX_DEPTH as usize;
        for (text, fits) in [
            (nested("[", "]", limit), true),
            (nested("[", "]", limit + 1), false),
            (nested("[", "]", 100_000), false),
            ("[".repeat(100_000), false),
            ("{\"a\":".repeat(100_000), false),
            (format!("{}1{}", "{\"a\":".repeat(limit), "}".repeat(limit)), true),
            (format!("{}1{}", "{\"a\":".repeat(limit + 1), "}".repeat(limit + 1)), false),
            (format!("{{\"params\":{}}}", nested("[", "]", limit - 1)), true),
            (format!("{{\"params\":{}}}", nested("[", "]", limit)), false),
            (format!("{{\"params\":{{\"a\":{}}}}}", nested("[", "]", limit - 2)), true),
            (format!("{{\"params\":{{\"a\":{}}}}}", nested("[", "]", limit - 1)), false),
            (format!("{{\"sessionId\":{}}}", nested("[", "]", limit - 1)), true),
            (format!("{{\"sessionId\":{}}}", nested("[", "]", limit)), false),
        ] {
            for check in [Check::Grammar, Check::Envelope] {
                for (kind, _) in [scan(text.as_bytes(), check), scan_portable(text.as_bytes(), check)] {
                    let deep = kind == Kind::Invalid(Fault::TooDeep);
                    assert_eq!(deep, !fits, "{kind:?} {check:?}: {} bytes", text.len());
                }
            }
        }
    }
}
