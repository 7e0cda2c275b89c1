//! Normalizes request ids, so that ids with the same meaning compare as equal.

use std::borrow::Cow;

/// Returns the id with all escapes resolved. Returns `None` if another program may write the id back
/// differently: `3.0` as `3`, or a lone surrogate as U+FFFD.
pub(crate) fn comparable_id(id: &[u8]) -> Option<Cow<'_, [u8]>> {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !br#""\"#.contains(byte);
    match id {
        [b'"', text @ .., b'"'] if text.iter().all(is_plain) => Some(Cow::Borrowed(id)),
        [b'"', ..] => {
            let text: String = serde_json::from_slice(id).ok()?;
            serde_json::to_vec(&text).ok().map(Cow::Owned)
        }
        b"-0" => None,
        // All programs read integers below 2^53 exactly.
        [b'-', digits @ ..] | digits => {
            let is_whole = (1..=15).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
            is_whole.then_some(Cow::Borrowed(id))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(id: &str, expected: Option<&str>) {
        let compared = comparable_id(id.as_bytes());
        assert_eq!(compared.as_deref(), expected.map(str::as_bytes), "{id}");
    }

    #[test]
    fn ids_are_normalized_before_they_are_compared() {
        for id in ["0", "7", "-7", "123456789012345", r#""""#, r#""a-1_b:2 c""#, r#""a/b<é>""#] {
            check(id, Some(id));
        }
        check(r#""\u0061\/b""#, Some(r#""a/b""#));
        check(r#""\u00e9""#, Some(r#""é""#));
        for id in ["3.0", "3e0", "-0", "-", "1234567890123456", r#""\ud800""#, "null", "true"] {
            check(id, None);
        }
    }
}
