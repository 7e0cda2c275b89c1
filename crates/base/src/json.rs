//! A bound on the number of values in a JSON text, checked before the text is parsed.
//!
//! Two bytes of JSON text can become a hundred bytes of parsed values, so a bound on the length of the text
//! alone does not bound memory.

/// Maximum number of values in a peer's JSON text that is parsed into a tree of values.
pub const MAX_PEER_VALUES: usize = 20_000;

/// Returns `true` if the JSON text `json` has more than `max` values, as [`count_values`] counts them.
#[must_use]
pub fn has_more_values_than(json: &[u8], max: usize) -> bool {
    // Each value takes at least two bytes of text, except the first one.
    json.len() / 2 >= max && count_values(json, max) > max
}

/// Returns the number of values in a JSON text, or `max + 1` if there are more than `max`. Lists and objects
/// count, and so does each value in them; keys do not.
///
/// The count of an invalid JSON text has no meaning. The parser refuses such a text anyway.
#[must_use]
pub fn count_values(json: &[u8], max: usize) -> usize {
    // A value is the whole text, or follows a comma, or is the first in a list or object.
    let mut count = 1;
    let mut is_first_in_container = false;
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => continue,
            b']' | b'}' => is_first_in_container = false,
            _ if std::mem::take(&mut is_first_in_container) => count += 1,
            _ => {}
        }
        match byte {
            b',' => count += 1,
            b'[' | b'{' => is_first_in_container = true,
            b'"' => skip_string(&mut bytes),
            _ => {}
        }
        if count > max {
            return max.saturating_add(1);
        }
    }
    count
}

/// Moves past the end of a string. The opening quote has already been read.
fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => _ = bytes.next(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, expected: usize) {
        assert_eq!(count_values(json.as_bytes(), usize::MAX), expected, "{json}");
        assert!(!has_more_values_than(json.as_bytes(), expected), "{json}");
        assert!(has_more_values_than(json.as_bytes(), expected - 1), "{json}");
    }

    #[test]
    fn containers_and_values_count_but_keys_do_not() {
        for json in ["null", "0", "\"\"", " [ ] ", "{\n}", r#""[,{\"[,""#] {
            check(json, 1);
        }
        check("[0]", 2);
        check("[[]]", 2);
        check("[[],[]]", 3);
        check("[0, 0,0]", 4);
        check(r#"{"a": 1, "b,[": [true, null]}"#, 5);
        check(r#"{"a\\": {"b": {}}, "c\"": "]"}"#, 4);
    }

    #[test]
    fn counting_ends_at_the_bound() {
        assert_eq!(count_values(&b"0,".repeat(1000), 10), 11);
    }
}
