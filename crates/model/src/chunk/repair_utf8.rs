//! Repairs JSON with invalid UTF-8 or with unpaired surrogate escapes.

use std::borrow::Cow;

/// Returns a copy of `data` with invalid characters replaced. Returns `None` if all characters are valid.
pub(super) fn repair_utf8(data: &[u8]) -> Option<Vec<u8>> {
    let text = String::from_utf8_lossy(data);
    let was_wrong = matches!(text, Cow::Owned(_));
    match replace_lone_surrogates(&text) {
        Some(mended) => Some(mended.into_bytes()),
        None => was_wrong.then(|| text.into_owned().into_bytes()),
    }
}

/// Replaces every unpaired surrogate escape. Returns `None` if there are none.
fn replace_lone_surrogates(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut mended = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'\\', &bytes[at..]) {
        at += found;
        match (escaped(bytes, at), escaped(bytes, at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => at += 12,
            (Some(0xd800..=0xdfff), _) => {
                mended.push_str(&text[copied..at]);
                mended.push_str("\\ufffd");
                at += 6;
                copied = at;
            }
            // The character after a backslash is skipped: an escaped backslash does not start an escape.
            _ => at += 2,
        }
        if at > bytes.len() {
            break;
        }
    }
    if copied == 0 {
        return None;
    }
    mended.push_str(&text[copied..]);
    Some(mended)
}

/// Returns the code unit of an escape `\uXXXX` at position `at`.
fn escaped(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(data: &[u8], expected: Option<&str>) {
        let mended = repair_utf8(data).map(|mended| String::from_utf8(mended).expect("UTF-8"));
        assert_eq!(mended.as_deref(), expected);
    }

    #[test]
    fn lone_surrogates_and_invalid_bytes_are_replaced() {
        check(br#""a\ud83d""#, Some(r#""a\ufffd""#));
        check(br#""\ude00b""#, Some(r#""\ufffdb""#));
        check(br#""\ud83d\ud83d\ude00\uD83Dx""#, Some(r#""\ufffd\ud83d\ude00\ufffdx""#));
        check(b"\"a\xff\"", Some("\"a\u{fffd}\""));
        check(b"\xe9\\ud83d", Some("\u{fffd}\\ufffd"));
    }

    #[test]
    fn valid_text_is_unchanged() {
        check(br#""a\n\u00e9\ud83d\ude00\\ud83d""#, None);
        check(br"\u12", None);
        check(br"\", None);
        check(b"", None);
        check("é".as_bytes(), None);
    }

    proptest! {
        #[test]
        fn any_escapes_become_json(
            parts in proptest::collection::vec(
                prop::sample::select(vec!["\\ud83d", "\\ude00", "\\\\", "\\n", "a", "\\u0041", "é", "ud83d"]), 0..12,
            ),
        ) {
            let text = format!("\"{}\"", parts.concat());
            let mended = repair_utf8(text.as_bytes()).unwrap_or_else(|| text.clone().into_bytes());
            prop_assert!(serde_json::from_slice::<String>(&mended).is_ok(), "{}", text);
            if serde_json::from_str::<String>(&text).is_ok() {
                prop_assert_eq!(mended, text.into_bytes());
            }
        }
    }
}
