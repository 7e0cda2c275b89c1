//! What secrets look like in the middle of a text, and how far each of them goes.

use std::ops::Range;

/// How long a value must be to pass for a secret where only its name speaks for it.
const VALUE: usize = 8;

/// The shortest text that can be a secret by its look: `a://b:c@`.
pub(super) const SHORTEST: usize = 8;

/// What stands in front of a credential in a header, in lower case.
pub(super) const SCHEMES: [&str; 2] = ["bearer ", "basic "];

/// How long the token behind it is at least.
const CREDENTIAL: usize = 16;

/// What a private key is never longer than.
const KEY: usize = 16 << 10;

/// What a byte can be a part of, as bits.
#[derive(Clone, Debug)]
pub(super) struct Signs([u8; 256]);

/// The beginning of a token.
const START: u8 = 1;
/// A word, within which no token begins.
const WORD: u8 = 1 << 1;
const BLANK: u8 = 1 << 2;
const EQUALS: u8 = 1 << 3;
const COLON: u8 = 1 << 4;
const DASH: u8 = 1 << 5;
const SLASH: u8 = 1 << 6;

impl Default for Signs {
    /// No token begins with anything yet.
    fn default() -> Self {
        let mut signs = [0; 256];
        for byte in 0..=u8::MAX {
            signs[usize::from(byte)] = match byte {
                b' ' => BLANK,
                b'=' => EQUALS,
                b':' => COLON,
                b'/' => SLASH,
                b'-' => DASH | WORD,
                b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => WORD,
                _ => 0,
            };
        }
        Self(signs)
    }
}

impl Signs {
    /// Tokens begin with this byte.
    pub(super) fn begin(&mut self, byte: u8) {
        self.0[usize::from(byte)] |= START;
    }
}

/// Whether there can be private keys in a text with these signs.
pub(super) fn may_have_private_keys(signs: u8) -> bool {
    signs & DASH != 0 && signs & BLANK != 0
}

/// Whether there can be logins.
pub(super) fn may_have_logins(signs: u8) -> bool {
    signs & COLON != 0 && signs & SLASH != 0
}

/// Whether there can be assignments.
pub(super) fn may_have_assignments(signs: u8) -> bool {
    signs & (EQUALS | COLON | BLANK) != 0
}

/// Whether a name ends like one of these, which are plain.
pub(super) fn ends_like(name: &str, ends: &[String]) -> bool {
    if !name.is_ascii() {
        let name = plain(name);
        return ends.iter().any(|end| name.ends_with(end.as_str()));
    }
    let letters =
        || name.bytes().rev().filter(|byte| !is_separator(*byte)).map(|byte| byte.to_ascii_lowercase());
    // By the last letter most are out.
    let last = letters().next();
    ends.iter().any(|end| {
        let mut letters = letters();
        end.bytes().next_back() == last && end.bytes().rev().all(|wanted| letters.next() == Some(wanted))
    })
}

fn is_separator(byte: u8) -> bool {
    matches!(byte, b'-' | b'_' | b'.' | b' ')
}

/// A name without case and separators.
pub(super) fn plain(name: &str) -> String {
    let letters = name.chars().filter(|letter| !u8::try_from(*letter).is_ok_and(is_separator));
    letters.flat_map(char::to_lowercase).collect()
}

/// The private keys that begin in it, each with its last line or as far as keys go.
pub(super) fn private_keys(text: &str, found: &mut Vec<Range<usize>>) {
    // Mostly there is none, and to look for one is cheaper than to look for all.
    if !text.contains("-----BEGIN ") {
        return;
    }
    let mut done = 0;
    for (at, start) in text.match_indices("-----BEGIN ") {
        let rest = &text[at + start.len()..];
        let Some((title, body)) = rest.split_once("-----") else { return };
        if at < done || title.len() >= 64 || !title.ends_with("PRIVATE KEY") {
            continue;
        }
        let begin = text.len() - body.len();
        done = (begin + KEY).min(text.len());
        while !text.is_char_boundary(done) {
            done += 1;
        }
        done = text[begin..done].find("-----END ").map_or(done, |length| begin + length);
        found.push(begin..done);
    }
}

/// The logins of URLs that have a password: sometimes it is the name that is the secret.
pub(super) fn logins(text: &str, found: &mut Vec<Range<usize>>) {
    if !text.contains("://") {
        return;
    }
    for (at, sign) in text.match_indices("://") {
        let begin = at + sign.len();
        let rest = &text[begin..];
        let end = rest.find(|letter: char| letter.is_whitespace() || matches!(letter, '/' | '?' | '#' | '"'));
        let authority = &rest[..end.unwrap_or(rest.len())];
        let Some((login, _)) = authority.rsplit_once('@') else { continue };
        let password = login.split_once(':').map_or("", |(_, password)| password);
        if !password.is_empty() {
            found.push(begin..begin + login.len());
        }
    }
}

/// The tokens in it that begin like one of these, and returns all signs that it has.
pub(super) fn tokens(
    text: &str,
    tokens: &[(String, usize)],
    Signs(signs): &Signs,
    found: &mut Vec<Range<usize>>,
) -> u8 {
    let bytes = text.as_bytes();
    let (mut before, mut all, mut done) = (0, 0, 0);
    for (at, &byte) in bytes.iter().enumerate() {
        let sign = signs[usize::from(byte)];
        let begins = before & WORD == 0 && sign & START != 0 && at >= done;
        all |= sign;
        before = sign;
        if !begins {
            continue;
        }
        let rest = &bytes[at..];
        if let Some(scheme) = scheme(rest) {
            done = value_end(bytes, at + scheme);
            found.push(at + scheme..done);
        } else if tokens.iter().any(|token| starts(rest, token)) {
            done = at + rest.iter().take_while(|byte| is_token(byte)).count();
            found.push(at..done);
        }
    }
    all
}

fn starts(rest: &[u8], (start, least): &(String, usize)) -> bool {
    // By the first byte most are out.
    rest.first() == start.as_bytes().first()
        && rest.strip_prefix(start.as_bytes()).is_some_and(|rest| runs(rest, *least))
}

/// How long the word is in front of the credential: `Bearer …` and `Basic …`, as headers have them.
fn scheme(rest: &[u8]) -> Option<usize> {
    let is_there = |scheme: &&str| {
        rest.len() > scheme.len()
            && rest[..scheme.len()].eq_ignore_ascii_case(scheme.as_bytes())
            && runs(&rest[scheme.len()..], CREDENTIAL)
    };
    SCHEMES.iter().find(|scheme| is_there(scheme)).map(|scheme| scheme.len())
}

/// What is given to something that is named like a secret: `TOKEN=…`, `"password": "…"`, `--api-key …`.
pub(super) fn assignments(text: &str, is_name: impl Fn(&str) -> bool, found: &mut Vec<Range<usize>>) {
    let bytes = text.as_bytes();
    let mut done = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if at < done || !matches!(byte, b'=' | b':' | b' ') {
            continue;
        }
        let rest = &bytes[at + 1..];
        let blank =
            rest.iter().take_while(|byte| matches!(byte, b' ' | b'"' | b'\'' | b'\\')).take(4).count();
        if !runs(&rest[blank..], VALUE) {
            continue;
        }
        // Only an option has its value behind nothing but a blank.
        let option = byte == b' ';
        let before = if option { &text[..at] } else { text[..at].trim_end_matches(['"', '\'', ' ', '\\']) };
        let start =
            before.rfind(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_' && letter != '-');
        let name =
            &before[start.map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8))..];
        if name.is_empty() || name.len() > 64 || (option && !name.starts_with("--")) || !is_name(name) {
            continue;
        }
        let begin = at + 1 + blank;
        done = match bytes[begin - 1] {
            quote @ (b'"' | b'\'') => {
                let length = bytes[begin..].iter().position(|byte| *byte == quote);
                length.map_or_else(|| value_end(bytes, begin), |length| begin + length)
            }
            _ => value_end(bytes, begin),
        };
        found.push(begin..done);
    }
}

/// Where a value ends that begins here: it may have signs in it that no token has.
fn value_end(bytes: &[u8], begin: usize) -> usize {
    let is_end = |byte: &u8| {
        byte.is_ascii_whitespace()
            || matches!(
                byte,
                b'"' | b'\'' | b'`' | b'\\' | b'&' | b';' | b',' | b')' | b']' | b'}' | b'>' | b'<'
            )
    };
    bytes[begin..].iter().position(is_end).map_or(bytes.len(), |length| begin + length)
}

/// Whether these bytes begin with so many characters of a token. No more are looked at: whoever writes the text may
/// have made it long.
fn runs(bytes: &[u8], least: usize) -> bool {
    bytes.get(..least).is_some_and(|bytes| bytes.iter().all(is_token))
}

fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+' | b'/' | b'=' | b'~')
}
