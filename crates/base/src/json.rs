//! A bound on the values of a JSON text, judged before the text is parsed.
//!
//! Two bytes of text can become a hundred bytes of parsed values, so a bound on bytes alone does not bound
//! memory.

/// Maximum number of values in a peer's JSON that is parsed into a tree of values.
pub const MAX_PEER_VALUES: usize = 20_000;

/// Returns `true` if `json` has more than `max` values. Values are counted as [`count_values`] counts them.
#[must_use]
pub fn has_more_values_than(json: &[u8], max: usize) -> bool {
    // A value takes at least two bytes, except the first one.
    json.len() / 2 >= max && count_values(json, max) > max
}

/// Returns the number of values in `json`, or `max + 1` if there are more than `max`. Containers and
/// everything in them count; keys do not.
///
/// Invalid JSON gets an arbitrary count: its parser refuses it anyway.
#[must_use]
pub fn count_values(json: &[u8], max: usize) -> usize {
    // A value is the whole text, follows a comma, or is the first in a container.
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

/// Moves past the end of a string whose opening quote has been read.
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
