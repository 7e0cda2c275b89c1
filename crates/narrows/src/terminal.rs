//! What may be written to a terminal: nothing that a peer says can steer it.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::environment;

/// How long a quoted line may be.
const LONGEST: usize = 400;

/// A colour or weight.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    /// What went wrong.
    Error,
    /// What to do about it.
    Hint,
    /// What is said beside the answer.
    Dim,
}

/// Whether styles are shown on a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Colour(bool);

impl Colour {
    /// For stderr: only on a terminal, and only if the user does not mind.
    pub(crate) fn of_stderr() -> Self {
        Self(std::io::stderr().is_terminal() && environment::wants_colour())
    }

    /// For nowhere.
    #[cfg(test)]
    pub(crate) fn off() -> Self {
        Self(false)
    }

    /// `text` in `style`.
    pub(crate) fn paint(self, style: Style, text: &str) -> Cow<'_, str> {
        if !self.0 {
            return Cow::Borrowed(text);
        }
        let start = match style {
            Style::Error => "\u{1b}[1;31m",
            Style::Hint => "\u{1b}[1;36m",
            Style::Dim => "\u{1b}[2m",
        };
        Cow::Owned(format!("{start}{text}\u{1b}[0m"))
    }
}

/// Whether a terminal shows what is typed. Dropping it gives the terminal back as it was.
#[derive(Debug)]
pub(crate) struct Echo {
    terminal: OwnedFd,
    before: Termios,
}

impl Echo {
    /// Keys typed into stdin are not shown: they are for the next prompt. `None` if stdin is no terminal.
    pub(crate) fn off() -> Option<Self> {
        Self::set(std::io::stdin().as_fd(), false)
    }

    /// Keys typed into `terminal` are shown.
    pub(crate) fn on(terminal: &impl AsFd) -> Option<Self> {
        Self::set(terminal.as_fd(), true)
    }

    fn set(terminal: BorrowedFd<'_>, is_on: bool) -> Option<Self> {
        let before = tcgetattr(terminal).ok()?;
        let mut wanted = before.clone();
        wanted.local_modes.set(LocalModes::ECHO, is_on);
        tcsetattr(terminal, OptionalActions::Now, &wanted).ok()?;
        Some(Self { terminal: terminal.try_clone_to_owned().ok()?, before })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

/// `text` of a peer, of many lines, safe for a terminal: control characters are shown instead of obeyed.
pub(crate) fn text(text: &str) -> Cow<'_, str> {
    shown(text, steers, "")
}

/// `text` of a peer, of many lines, for a file or a program: it may be shown on a terminal later, so no control character is left in it
/// but ends of lines and tabs.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    shown(text, char::is_control, "\r")
}

/// Returns `text` of many lines for a person who is to approve it: no character of it is hidden.
pub(crate) fn visible_text(text: &str) -> Cow<'_, str> {
    shown(text, is_hidden, "")
}

/// `text` with what `steers` written out. `before_end` stands for a carriage return before the end of a line.
fn shown<'a>(text: &'a str, steers: fn(char) -> bool, before_end: &str) -> Cow<'a, str> {
    if !text.chars().any(|c| !matches!(c, '\n' | '\t') && steers(c)) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\n' | '\t' => safe.push(c),
            '\r' if rest.peek() == Some(&'\n') => safe.push_str(before_end),
            c if steers(c) => safe.extend(c.escape_unicode()),
            c => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// `text` of a peer as one line of bounded length, safe for a terminal and for a log.
pub(crate) fn line(text: &str) -> String {
    long_line(text, LONGEST)
}

/// The same, of at most this many characters.
pub(crate) fn long_line(text: &str, longest: usize) -> String {
    one_line(text.trim(), longest, steers)
}

/// Returns `text` as one line of at most `longest` characters for a person who is to approve it: no character of it is hidden.
pub(crate) fn visible_line(text: &str, longest: usize) -> String {
    one_line(text.trim_matches([' ', '\n', '\t']), longest, is_hidden)
}

/// `text` as one line with the characters written out for which `is_escaped` holds.
fn one_line(text: &str, longest: usize, is_escaped: fn(char) -> bool) -> String {
    let mut safe = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == longest {
            safe.push('…');
            break;
        }
        match c {
            '\n' | '\t' => safe.push(' '),
            c if is_escaped(c) => safe.extend(c.escape_unicode()),
            c => safe.push(c),
        }
    }
    safe
}

/// Returns the JSON text `json` with every character that [`steers`] a terminal as `\\uXXXX`, but for ends of lines: the same
/// value. The others can only be in strings, and those below a space are escaped already.
pub(crate) fn escape_json(json: String) -> String {
    let is_plain = json.is_ascii() && !json.as_bytes().contains(&DELETE);
    if is_plain || !json.chars().any(steers_in_json) {
        return json;
    }
    let mut safe = String::with_capacity(json.len() + json.len() / 8);
    for c in json.chars() {
        if steers_in_json(c) {
            safe.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            safe.push(c);
        }
    }
    safe
}

/// The only control character of ASCII that JSON leaves as it is in a string.
const DELETE: u8 = 0x7f;

/// Returns `true` for characters that are escaped in JSON. Joiners are, too: the value stays the same.
fn steers_in_json(c: char) -> bool {
    let is_layout = matches!(c, '\n' | '\r' | '\t');
    !is_layout && steers(c) || matches!(c, '\u{200c}' | '\u{200d}')
}

/// Returns `true` for characters that are not seen, look like a blank or steer the terminal: everything but U+0020 that is
/// white space, control and format characters, default ignorable code points, fillers, and what has no shape of its own. What a person is to approve shows none of them.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || c.is_whitespace() && c != ' '
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
            | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
            | '\u{e000}'..='\u{f8ff}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffc}' | '\u{fffe}'..='\u{ffff}')
        || matches!(c,
            '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1345f}' | '\u{16fe4}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d159}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{10ffff}')
}

/// Returns `true` for control characters, and for those that end a line, turn its direction or cannot be seen. It is a part of what
/// [`is_hidden`] has: joiners and others belong to some languages, and stay in what an agent says.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}')
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || matches!(c, '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_keeps_its_lines_and_loses_its_powers() {
        assert_eq!(text("a\tb\nü"), "a\tb\nü");
        assert_eq!(text("a\r\nb\rc"), "a\nb\\u{d}c");
        assert_eq!(text("\u{1b}]0;owned\u{7}\u{9b}2J"), "\\u{1b}]0;owned\\u{7}\\u{9b}2J");
        assert_eq!(text("user\u{202e}nimda"), "user\\u{202e}nimda");
        for hidden in ['\u{61c}', '\u{200b}', '\u{200f}', '\u{2060}', '\u{feff}', '\u{e0041}'] {
            assert_eq!(text(&format!("a{hidden}b")), format!("a{}b", hidden.escape_unicode()));
        }
    }

    #[test]
    fn json_keeps_its_value_and_loses_its_powers() {
        let plain = "{\"a\":\"b\u{e4}\u{1f600}\"}\n";
        assert_eq!(escape_json(plain.to_owned()), plain);
        let hostile = "\u{9b}2J\u{202e}\u{200b}\u{200d}\u{2028}\u{7f}\u{feff}\u{e0041}\u{85}";
        let written = serde_json::json!({ hostile: [hostile, "\u{1b}", "plain"] }).to_string() + "\n";
        let safe = escape_json(written.clone());
        assert!(safe.trim_end().bytes().all(|byte| matches!(byte, b' '..=b'~')), "{safe}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(read(&safe), read(&written));
    }

    #[test]
    fn plain_text_for_a_file_has_no_control_characters() {
        assert_eq!(plain("a\tb\r\nü\n"), "a\tb\r\nü\n");
        assert_eq!(
            plain("\u{1b}[31m\u{7}\u{9b}2J\u{7f}\u{0}a\rb"),
            "\\u{1b}[31m\\u{7}\\u{9b}2J\\u{7f}\\u{0}a\\u{d}b"
        );
        // Marks of direction belong to some languages.
        assert_eq!(plain("\u{2067}א\u{2069}"), "\u{2067}א\u{2069}");
    }

    #[test]
    fn nothing_is_hidden_in_what_is_to_be_approved() {
        let hidden = "\u{ad}\u{3164}\u{115f}\u{2800}\u{a0}\u{3000}\u{200d}\u{fe0f}\u{1b}\u{202e}\u{e0041}";
        for c in hidden.chars() {
            let expected = format!("a{}b", c.escape_unicode());
            assert_eq!(visible_text(&format!("a{c}b")), expected);
            assert_eq!(visible_line(&format!("a{c}b"), 40), expected);
            assert_eq!(visible_line(&c.to_string(), 40), c.escape_unicode().to_string());
        }
        assert_eq!(visible_text("a\tb\nü"), "a\tb\nü");
        assert_eq!(visible_line(" a\nb\tü\n", 40), "a b ü");
        assert_eq!(visible_line("abc", 2), "ab…");
        let steers_and_is_shown = |c: &char| steers(*c) && !is_hidden(*c);
        assert_eq!((char::MIN..=char::MAX).find(steers_and_is_shown), None, "there is one list");
    }

    #[test]
    fn a_line_is_one_line() {
        assert_eq!(line(" a\nb\u{1b}[2J \n"), "a b\\u{1b}[2J");
        assert_eq!(line(&"x".repeat(1000)).chars().count(), LONGEST + 1);
    }
}
