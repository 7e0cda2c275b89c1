//! What others wrote, made fit for one line of ours.

use std::error::Error;
use std::fmt::Write;

/// How much of a reason is kept.
const REASON: usize = 600;

/// One line of at most a few hundred characters. What a terminal would obey appears as `\u{…}`, the end of a line as
/// ` | `.
pub(crate) fn one_line(text: &str) -> String {
    clipped(text, REASON)
}

/// The same with a limit of its own, in characters of the text.
pub(crate) fn clipped(text: &str, limit: usize) -> String {
    let mut out = String::new();
    let mut left = limit;
    for (number, line) in text.split(['\n', '\r']).filter(|line| !line.trim().is_empty()).enumerate() {
        if number > 0 {
            out.push_str(" | ");
        }
        for character in line.trim().chars() {
            if left == 0 {
                out.push('…');
                return out;
            }
            left -= 1;
            let reorders = matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            if character.is_control() || reorders {
                // Writing into a string cannot fail.
                _ = write!(out, "{}", character.escape_unicode());
            } else {
                out.push(character);
            }
        }
    }
    out
}

/// An error with what caused it, without what its text says already.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
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

/// The end of a text, on one line.
pub(crate) fn ending(text: &str, limit: usize) -> String {
    let text = text.trim_end();
    let skipped = text.chars().count().saturating_sub(limit);
    let end = clipped(&text.chars().skip(skipped).collect::<String>(), limit);
    if skipped > 0 { format!("…{end}") } else { end }
}

/// The longest beginning of `text` that has at most `bytes` bytes.
pub(crate) fn head(text: &str, bytes: usize) -> &str {
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
    fn one_line_is_one_line() {
        check("plain", 10, "plain");
        check("\n a \r\n\n b\n", 10, "a | b");
        check("a\u{1b}[31m\u{202e}b", 10, "a\\u{1b}[31m\\u{202e}b");
        check("äöüß", 3, "äöü…");
        check("", 3, "");
    }

    #[test]
    fn an_ending_is_the_end() {
        assert_eq!(ending("first\nlast\n", 6), "…t | last");
        assert_eq!(ending("first\nlast\n", 60), "first | last");
    }

    #[test]
    fn a_head_ends_between_characters() {
        assert_eq!(head("aäb", 2), "a");
        assert_eq!(head("aäb", 3), "aä");
        assert_eq!(head("aäb", 9), "aäb");
        assert_eq!(head("ä", 0), "");
    }

    #[test]
    fn a_chain_does_not_repeat_itself() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Told(&'static str, #[source] Option<Box<Told>>);
        let error = Told(
            "no answer: refused",
            Some(Box::new(Told("refused", Some(Box::new(Told("by peer", None)))))),
        );
        assert_eq!(chain(&error), "no answer: refused: by peer");
    }
}
