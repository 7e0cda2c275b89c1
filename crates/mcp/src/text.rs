//! Shortens and escapes text that servers send.

use std::error::Error;

const MAX_REASON_CHARS: usize = 600;

/// Returns `text` as one line of at most a few hundred characters. Line ends appear as ` | `.
pub(crate) fn one_line(text: &str) -> String {
    clipped(text, MAX_REASON_CHARS)
}

/// Returns `text` as one line, like [`one_line`], of at most `limit` of its characters.
pub(crate) fn clipped(text: &str, limit: usize) -> String {
    const SEPARATOR: &str = " | ";
    let lines: Vec<&str> = text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty()).collect();
    let limit = limit.saturating_add(lines.len().saturating_sub(1) * SEPARATOR.len());
    narrows_base::text::one_line(&lines.join(SEPARATOR), limit)
}

/// Returns the message of an error and of its causes, without repetitions.
pub(crate) fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut out = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !out.contains(&text) {
            out.push_str(": ");
            out.push_str(&text);
        }
        cause = error.source();
    }
    one_line(&out)
}

pub(crate) fn last_chars(text: &str, limit: usize) -> String {
    let text = text.trim_end();
    let skipped = text.chars().count().saturating_sub(limit);
    let end = clipped(&text.chars().skip(skipped).collect::<String>(), limit);
    if skipped > 0 { format!("…{end}") } else { end }
}

pub(crate) fn first_bytes(text: &str, bytes: usize) -> &str {
    if text.len() <= bytes {
        return text;
    }
    let end = (0..=bytes).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, limit: usize, expected: &str) {
        assert_eq!(clipped(text, limit), expected);
    }

    #[test]
    fn text_becomes_one_escaped_line() {
        check("plain", 10, "plain");
        check("\n a \r\n\n b\n", 10, "a | b");
        check("a\u{1b}[31m\u{202e}b", 30, "a\\u{1b}[31m\\u{202e}b");
        check("äöüß", 3, "äöü…");
        check("", 3, "");
    }

    #[test]
    fn last_chars_returns_the_end() {
        assert_eq!(last_chars("first\nlast\n", 6), "…t | last");
        assert_eq!(last_chars("first\nlast\n", 60), "first | last");
    }

    #[test]
    fn first_bytes_ends_between_characters() {
        assert_eq!(first_bytes("aäb", 2), "a");
        assert_eq!(first_bytes("aäb", 3), "aä");
        assert_eq!(first_bytes("aäb", 9), "aäb");
        assert_eq!(first_bytes("ä", 0), "");
    }

    #[test]
    fn an_error_chain_has_no_repetitions() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Told(&'static str, #[source] Option<Box<Told>>);
        let error = Told(
            "no answer: refused",
            Some(Box::new(Told("refused", Some(Box::new(Told("by peer", None)))))),
        );
        assert_eq!(error_chain(&error), "no answer: refused: by peer");
    }
}
