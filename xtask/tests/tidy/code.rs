//! Rust source without its comments and texts, so that a word found in it is code.

/// `source` with everything in comments, strings and characters turned into blanks; lines stay where they are.
pub(crate) fn blank(source: &str) -> String {
    let mut code = source.as_bytes().to_vec();
    let mut at = 0;
    while at < code.len() {
        let Some(end) = end_of_text(source, at) else {
            at += 1;
            continue;
        };
        code[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        at = end;
    }
    String::from_utf8(code).expect("whole characters were blanked")
}

/// The end of the comment, string or character that starts at `at`, if one does.
fn end_of_text(source: &str, at: usize) -> Option<usize> {
    let bytes = source.as_bytes();
    match bytes[at] {
        b'/' if bytes[at..].starts_with(b"//") => Some(line_end(bytes, at)),
        b'/' if bytes[at..].starts_with(b"/*") => Some(block_end(bytes, at)),
        b'"' => Some(string_end(bytes, at + 1)),
        b'r' if !is_word(bytes, at.wrapping_sub(1)) || is_prefix(bytes, at) => raw_end(bytes, at),
        b'\'' => character_end(source, at),
        _ => None,
    }
}

/// Returns `true` if `word` occurs in `code` as a whole word.
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    let bytes = code.as_bytes();
    code.match_indices(word).any(|(start, _)| {
        let end = start + word.len();
        let starts = !is_word(bytes, start.wrapping_sub(1));
        let ends = !is_word(bytes, end - 1) || !is_word(bytes, end);
        starts && ends
    })
}

fn is_word(bytes: &[u8], at: usize) -> bool {
    bytes.get(at).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

/// Returns `true` if the `r` at `at` continues a `b` or `c` that starts a word: `br"…"`.
fn is_prefix(bytes: &[u8], at: usize) -> bool {
    at > 0 && matches!(bytes[at - 1], b'b' | b'c') && !is_word(bytes, at.wrapping_sub(2))
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |length| at + length)
}

fn block_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at.min(bytes.len())
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of `r"…"` or `r#"…"#`, if one starts at `at`.
fn raw_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at + 1..].iter().take_while(|byte| **byte == b'#').count();
    let start = at + 1 + hashes;
    if bytes.get(start) != Some(&b'"') {
        return None;
    }
    let closing = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    let length = bytes[start + 1..].windows(closing.len()).position(|window| window == closing);
    Some(length.map_or(bytes.len(), |length| start + 1 + length + closing.len()))
}

/// The end of the character at `at`, if it is one and not a lifetime.
fn character_end(source: &str, at: usize) -> Option<usize> {
    let bytes = source.as_bytes();
    if bytes.get(at + 1) == Some(&b'\\') {
        // What stands after the backslash may be a quote itself.
        let length = bytes.get(at + 3..)?.iter().position(|byte| *byte == b'\'')?;
        return Some(at + 3 + length + 1);
    }
    let close = at + 1 + source[at + 1..].chars().next()?.len_utf8();
    (bytes.get(close) == Some(&b'\'')).then_some(close + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: &str) {
        assert_eq!(blank(source), expected, "{source}");
    }

    #[test]
    fn comments_and_texts_are_blank() {
        check("a // b\nc", "a     \nc");
        check("a /* b /* c */ d */ e", "a                   e");
        check(r#"f("a \" b") + g"#, "f(        ) + g");
        check(r##"f(r#"a " b"#, br"c") + g"##, "f(          , b    ) + g");
        check(
            "match c { '\"' => 1, '\\'' => 2, '\\u{1f}' => 3, 'é' => 4 }",
            "match c {     => 1,      => 2,          => 3,      => 4 }",
        );
        check("fn f<'a>(x: &'a str, r: u8) -> &'static str", "fn f<'a>(x: &'a str, r: u8) -> &'static str");
        check("r#type + \"\n\"", "r#type +  \n ");
    }

    #[test]
    fn a_word_is_not_part_of_another() {
        assert!(has_word("unsafe { x }", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe"));
        assert!(!has_word("not_unsafe", "unsafe"));
        assert!(has_word("std::env::var(x)", "env::var"));
        assert!(!has_word("std::env::vars()", "env::var"));
        assert!(has_word("sleep(second)", "sleep("));
    }
}
