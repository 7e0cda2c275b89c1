//! Escapes text from peers, files and users. No other code does.
//!
//! All text for a terminal, a log or an error message is escaped here, so that no control character of a peer
//! takes effect, whichever crate quotes the text. Escaped characters appear as `\u{…}`.

use std::borrow::Cow;

/// Returns `true` for characters that control a terminal, end a line, change the direction of text or are
/// invisible.
///
/// Returns `false` for joiners and variation selectors, because some languages and emoji need them.
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    let shapes_others = matches!(c,
        '\u{180b}'..='\u{180d}' | '\u{180f}' | '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}');
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{fff9}'..='\u{fffb}')
        || is_default_ignorable(c) && !shapes_others
}

/// Returns `true` for characters that a terminal does not show: Default_Ignorable_Code_Point of Unicode.
fn is_default_ignorable(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns `true` for every character that cannot be seen or looks like a blank: the characters of
/// [`is_unsafe`], white space except U+0020, format characters, default ignorable code points, fillers, and
/// code points without a shape. Text for an approval shows none of them.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || c.is_whitespace() && c != ' '
        || is_default_ignorable(c)
        || matches!(c,
            '\u{600}'..='\u{605}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{2800}'
            | '\u{e000}'..='\u{f8ff}' | '\u{fff9}'..='\u{fffc}' | '\u{fffe}'..='\u{ffff}')
        || matches!(c,
            '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1345f}' | '\u{16fe4}' | '\u{1d159}'
            | '\u{e0000}'..='\u{10ffff}')
}

/// Returns `text` as one line of at most `max_chars` characters, and `…` if it is cut. Line ends and tabs
/// become a blank, unsafe characters are escaped.
#[must_use]
pub fn one_line(text: &str, max_chars: usize) -> String {
    line_without(text.trim(), max_chars, is_unsafe)
}

/// Returns `text` as [`one_line`] does, but with all hidden characters escaped, for an approval.
#[must_use]
pub fn approval_line(text: &str, max_chars: usize) -> String {
    line_without(text.trim_matches([' ', '\n', '\t']), max_chars, is_hidden)
}

/// Returns `text` for a quotation in a message, in at most `max_chars` characters. Hidden characters are
/// escaped, line ends and tabs become `\n`, `\r` and `\t`, and blanks at both ends stay.
#[must_use]
pub fn quoted(text: &str, max_chars: usize) -> String {
    let mut line = BoundedLine::new(text.len(), max_chars);
    for c in text.chars() {
        let fits = match c {
            '\n' | '\r' | '\t' => line.push(c.escape_default()),
            c if is_hidden(c) => line.push(c.escape_unicode()),
            c => line.push([c]),
        };
        if !fits {
            break;
        }
    }
    line.text
}

/// Returns `text` with unsafe characters escaped, except line ends and tabs. `\r\n` becomes `\n`.
#[must_use]
pub fn multi_line(text: &str) -> Cow<'_, str> {
    lines_without(text, is_unsafe, "")
}

/// Returns `text` as [`multi_line`] does, but with all hidden characters escaped, for an approval.
#[must_use]
pub fn approval_lines(text: &str) -> Cow<'_, str> {
    lines_without(text, is_hidden, "")
}

/// Returns `text` for a file or a program that may show it on a terminal later. Control characters are
/// escaped, except tabs, `\n` and `\r\n`.
#[must_use]
pub fn without_controls(text: &str) -> Cow<'_, str> {
    lines_without(text, char::is_control, "\r")
}

/// Returns the JSON text `json` with every unsafe or invisible character in its strings escaped as JSON does
/// (`\u200b`). The parsed value stays equal.
#[must_use]
pub fn escape_json(json: String) -> String {
    /// DELETE, the only ASCII control character that may appear unescaped in a JSON string.
    const DELETE: u8 = 0x7f;
    // Joiners and variation selectors are escaped too, because the parsed value stays equal. Line ends and
    // tabs can only be between JSON tokens.
    let is_escaped = |c: char| !matches!(c, '\n' | '\r' | '\t') && is_unsafe(c) || is_default_ignorable(c);
    let is_plain = json.is_ascii() && !json.as_bytes().contains(&DELETE);
    if is_plain || !json.contains(is_escaped) {
        return json;
    }
    let mut safe = String::with_capacity(json.len() + json.len() / 8);
    for c in json.chars() {
        if is_escaped(c) {
            safe.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            safe.push(c);
        }
    }
    safe
}

fn line_without(text: &str, max_chars: usize, is_escaped: fn(char) -> bool) -> String {
    let mut line = BoundedLine::new(text.len(), max_chars);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let fits = match c {
            '\r' if rest.peek() == Some(&'\n') => true,
            '\n' | '\t' => line.push([' ']),
            c if is_escaped(c) => line.push(c.escape_unicode()),
            c => line.push([c]),
        };
        if !fits {
            break;
        }
    }
    line.text
}

/// A line of at most `max_chars` characters. It ends with `…` if text was cut off.
struct BoundedLine {
    text: String,
    room: usize,
}

impl BoundedLine {
    fn new(expected_bytes: usize, max_chars: usize) -> Self {
        Self { text: String::with_capacity(expected_bytes.min(max_chars) + 4), room: max_chars }
    }

    /// Appends the characters of `piece`, or only `…` if not all of them fit. Returns `true` if they fit.
    fn push(&mut self, piece: impl IntoIterator<Item = char> + Clone) -> bool {
        let count = piece.clone().into_iter().count();
        let fits = count <= self.room;
        if fits {
            self.room -= count;
            self.text.extend(piece);
        } else {
            self.text.push('…');
        }
        fits
    }
}

/// Returns `text` with the characters escaped for which `is_escaped` returns `true`, except tabs and line
/// ends. `before_newline` replaces a carriage return that comes before a newline.
fn lines_without<'a>(text: &'a str, is_escaped: fn(char) -> bool, before_newline: &str) -> Cow<'a, str> {
    if !text.contains(|c: char| !matches!(c, '\n' | '\t') && is_escaped(c)) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\n' | '\t' => safe.push(c),
            '\r' if rest.peek() == Some(&'\n') => safe.push_str(before_newline),
            c if is_escaped(c) => safe.extend(c.escape_unicode()),
            c => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_keeps_its_lines_and_no_control_characters() {
        assert_eq!(multi_line("a\tb\nü"), "a\tb\nü");
        assert_eq!(multi_line("a\r\nb\rc"), "a\nb\\u{d}c");
        assert_eq!(multi_line("\u{1b}]0;owned\u{7}\u{9b}2J"), "\\u{1b}]0;owned\\u{7}\\u{9b}2J");
        assert_eq!(multi_line("\u{2764}\u{fe0f}\u{200d}"), "\u{2764}\u{fe0f}\u{200d}");
        assert_eq!(multi_line("user\u{202e}nimda"), "user\\u{202e}nimda");
        for hidden in [
            '\u{ad}',
            '\u{34f}',
            '\u{115f}',
            '\u{206a}',
            '\u{3164}',
            '\u{ffa0}',
            '\u{e0fff}',
            '\u{61c}',
            '\u{200b}',
            '\u{200e}',
            '\u{200f}',
            '\u{2060}',
            '\u{feff}',
            '\u{e0041}',
        ] {
            let expected = format!("a{}b", hidden.escape_unicode());
            assert_eq!(multi_line(&format!("a{hidden}b")), expected);
            assert_eq!(one_line(&format!("a{hidden}b"), 12), expected);
        }
    }

    #[test]
    fn a_line_is_one_line_of_bounded_length() {
        assert_eq!(one_line(" a\nb\u{1b}[2J \n", 20), "a b\\u{1b}[2J");
        assert_eq!(one_line("a\r\nb\rc\td", 20), "a b\\u{d}c d");
        assert_eq!(one_line("abc", 3), "abc");
        assert_eq!(one_line("abcd", 3), "abc…");
        assert_eq!(one_line("", 0), "");
        assert_eq!(one_line("a\u{1b}b", 6), "a…");
    }

    #[test]
    fn a_quoted_text_shows_all_of_it() {
        assert_eq!(
            quoted(" a\r\n\tb\u{1b}\u{200d}\u{a0}\"'\\", 40),
            " a\\r\\n\\tb\\u{1b}\\u{200d}\\u{a0}\"'\\"
        );
        assert_eq!(quoted("aaaaaa", 3), "aaa…");
        assert_eq!(quoted("aaa", 3), "aaa");
    }

    #[test]
    fn text_for_a_file_keeps_bidirectional_marks() {
        assert_eq!(without_controls("a\tb\r\nü\n"), "a\tb\r\nü\n");
        assert_eq!(without_controls("\u{1b}[31m\u{7f}\u{0}a\rb"), "\\u{1b}[31m\\u{7f}\\u{0}a\\u{d}b");
        assert_eq!(without_controls("\u{2067}א\u{2069}"), "\u{2067}א\u{2069}");
    }

    #[test]
    fn nothing_is_hidden_in_text_to_approve() {
        let hidden = "\u{ad}\u{3164}\u{115f}\u{2800}\u{a0}\u{3000}\u{200d}\u{fe0f}\u{1b}\u{202e}\u{e0041}";
        for c in hidden.chars() {
            let expected = format!("a{}b", c.escape_unicode());
            assert_eq!(approval_lines(&format!("a{c}b")), expected);
            assert_eq!(approval_line(&format!("a{c}b"), 40), expected);
            assert_eq!(approval_line(&c.to_string(), 40), c.escape_unicode().to_string());
        }
        assert_eq!(approval_lines("a\tb\nü"), "a\tb\nü");
        assert_eq!(approval_line(" a\nb\tü\n", 40), "a b ü");
        assert_eq!(approval_line("abc", 2), "ab…");
        assert_eq!((char::MIN..=char::MAX).find(|c| is_unsafe(*c) && !is_hidden(*c)), None);
    }

    #[test]
    fn escaped_json_parses_to_the_same_value() {
        assert_eq!(escape_json("\"\u{ad}\u{fe0f}\u{e0100}\"".to_owned()), "\"\\u00ad\\ufe0f\\udb40\\udd00\"");
        let plain = "{\"a\":\"b\u{e4}\u{1f600}\"}\n";
        assert_eq!(escape_json(plain.to_owned()), plain);
        assert_eq!(
            escape_json("[\"\u{9b}2J\u{200d}\u{7f}\u{e0041}\",\t\"a\"]\n".to_owned()),
            "[\"\\u009b2J\\u200d\\u007f\\udb40\\udc41\",\t\"a\"]\n"
        );
    }

    /// Returns `true` for characters of the Unicode property Bidi_Control or the category Zl, Zp or Cc. They
    /// are listed here independently of the tested code.
    fn is_dangerous(c: char) -> bool {
        const BIDI: [u32; 12] =
            [0x61c, 0x200e, 0x200f, 0x202a, 0x202b, 0x202c, 0x202d, 0x202e, 0x2066, 0x2067, 0x2068, 0x2069];
        let code = u32::from(c);
        code < 0x20 || (0x7f..0xa0).contains(&code) || matches!(code, 0x2028 | 0x2029) || BIDI.contains(&code)
    }

    proptest! {
        #[test]
        fn no_line_has_a_dangerous_character(
            text in "[\\PC\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}\u{61c}\u{200e}\u{200f}\u{202a}-\u{202e}\r\n\t]{0,40}",
            max_chars in 0..50usize,
        ) {
            for line in [one_line(&text, max_chars), approval_line(&text, max_chars), quoted(&text, max_chars)] {
                prop_assert!(!line.contains(is_dangerous), "{line:?}");
                prop_assert!(line.chars().count() <= max_chars + 1);
            }
            for lines in [multi_line(&text), approval_lines(&text)] {
                prop_assert!(!lines.contains(|c| !matches!(c, '\n' | '\t') && is_dangerous(c)), "{lines:?}");
            }
        }
    }
}
