//! Replaces unpaired surrogates, which JSON can contain but UTF-8 cannot.

/// Returns the JSON with U+FFFD in place of each escaped unpaired surrogate; `None` if there are none.
pub(crate) fn repaired(json: &[u8]) -> Option<Vec<u8>> {
    let mut repaired = None;
    let mut at = 0;
    while let Some(found) = json[at..].iter().position(|byte| *byte == b'\\') {
        at += found;
        let length = match escaped(json, at) {
            Some(0xd800..=0xdbff) if matches!(escaped(json, at + 6), Some(0xdc00..=0xdfff)) => 12,
            Some(0xd800..=0xdfff) => {
                repaired.get_or_insert_with(|| json.to_vec())[at..at + 6].copy_from_slice(b"\\ufffd");
                6
            }
            Some(_) => 6,
            None => 2,
        };
        at = (at + length).min(json.len());
    }
    repaired
}

/// Returns the code unit of a `\\u` escape at position `at`.
fn escaped(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lone_surrogates_are_replaced() {
        #[track_caller]
        fn check(json: &str, expected: Option<&str>) {
            let repaired = repaired(json.as_bytes()).map(|repaired| String::from_utf8(repaired).unwrap());
            assert_eq!(repaired.as_deref(), expected, "{json}");
        }
        check(r#""plain \n ü \u00fc""#, None);
        check(r#""\ud83d\ude00""#, None);
        check(r#""\\ud800""#, None);
        check(r#""a\ud800b""#, Some(r#""a\ufffdb""#));
        check(r#""\uDC00\ud83d\ude00\ud83d""#, Some(r#""\ufffd\ud83d\ude00\ufffd""#));
        check(r#""\ud800\ud83d\ude00""#, Some(r#""\ufffd\ud83d\ude00""#));
        check(r#""\ud800\"#, Some(r#""\ufffd\"#));
    }
}
