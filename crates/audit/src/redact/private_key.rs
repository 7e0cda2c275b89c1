//! Finds private keys in the formats of PEM, SSH2 and PuTTY, also in base64.

use std::collections::HashMap;
use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use super::token_patterns::PLACEHOLDER_BYTES;

/// Maximum length of a title in PEM: `RSA PRIVATE KEY`.
const MAX_TITLE_BYTES: usize = 64;

/// Beginnings of base64-encoded key files: `-----BEGIN`, `---- BEGIN` and `PuTTY-User-Key-`.
const ENCODED_STARTS: [&[u8]; 3] = [b"LS0tLS1CRUdJTi", b"LS0tLSBCRUdJTi", b"UHVUVFktVXNlci1LZXkt"];

pub(super) const ENCODED_FIRST: &str = "LU";

const MAX_LAST_LINE_LETTERS: usize = 112;

/// Returns the length of the base64-encoded file of keys or certificates that begins here, and `true` if the
/// file contains a private key. Accepts both alphabets of base64, and plain or escaped line breaks.
pub(super) fn encoded_file(rest: &[u8]) -> Option<(usize, bool)> {
    ENCODED_STARTS.iter().find(|start| rest.starts_with(start))?;
    let (mut letters, mut at) = (Vec::new(), 0);
    while let Some(&byte) = rest.get(at) {
        let gap = if is_base64(&byte) { 0 } else { line_break(&rest[at..]) };
        match byte {
            b'-' => letters.push(b'+'),
            b'_' => letters.push(b'/'),
            byte if is_base64(&byte) => letters.push(byte),
            _ if gap == 0 || is_complete(&letters) || !is_base64_line(&rest[at + gap..]) => break,
            _ => {}
        }
        at += gap.max(1);
    }
    at += rest[at..].iter().take(2).take_while(|byte| **byte == b'=').count();
    let mut keys = Vec::new();
    private_keys(&String::from_utf8_lossy(&decode(&letters)), &mut keys);
    Some((at, !keys.is_empty()))
}

fn is_base64(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_')
}

/// Decodes base64, and ignores an incomplete group at the end.
fn decode(letters: &[u8]) -> Vec<u8> {
    STANDARD_NO_PAD.decode(&letters[..letters.len() / 4 * 4]).unwrap_or_default()
}

/// Returns the length of the line break that begins here, with the blanks after it. Returns 0 without a line
/// break.
fn line_break(rest: &[u8]) -> usize {
    let signs = rest.iter().take(4).take_while(|byte| matches!(byte, b'\\' | b'\r')).count();
    let is_there = match rest.get(signs) {
        Some(b'\n') => true,
        Some(b'n' | b'r') => signs > 0,
        _ => false,
    };
    let begin = signs + 1;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    if is_there { begin + rest[begin..].iter().take_while(|byte| is_blank(byte)).count() } else { 0 }
}

/// Returns `true` if the line that begins here consists of base64 only.
fn is_base64_line(rest: &[u8]) -> bool {
    let length = rest.iter().take_while(|byte| is_base64(byte)).count();
    let padding = rest[length..].iter().take(2).take_while(|byte| **byte == b'=').count();
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b'\\');
    length > 0 && rest.get(length + padding).is_none_or(is_end)
}

/// Returns `true` if the decoded file ends with the last line of a key.
fn is_complete(letters: &[u8]) -> bool {
    let from = letters.len().saturating_sub(MAX_LAST_LINE_LETTERS) / 4 * 4;
    let last = decode(&letters[from..]);
    memchr::memmem::find(&last, b"-----END ").is_some_and(|at| last[at..].trim_ascii().ends_with(b"---"))
}

/// Finds the private keys in a text. A key ends with its last line. If that line is missing, the key ends
/// where the text no longer looks like a key.
pub(super) fn private_keys(text: &str, found: &mut Vec<Range<usize>>) {
    // Most texts contain no key, and this check is cheaper than the search.
    if !text.contains("---- BEGIN ") && !text.contains("-----BEGIN ") && !text.contains("Private-Lines:") {
        return;
    }
    let ends = Ends::new(text);
    let mut done = 0;
    for (at, start) in text.match_indices("BEGIN ") {
        let rest = &text[at + start.len()..];
        if at < done || !text[..at].trim_end_matches(' ').ends_with("----") {
            continue;
        }
        let Some((title, body)) = rest.split_once("----") else { break };
        if title.len() >= MAX_TITLE_BYTES || !title.contains("PRIVATE KEY") {
            continue;
        }
        let body = body.trim_start_matches('-');
        let begin = text.len() - body.len();
        done = ends.first_behind(begin, title).unwrap_or_else(|| begin + key_run(body.as_bytes()));
        found.push(begin..done);
    }
    let last_mac = text.rfind("\nPrivate-MAC").unwrap_or(0);
    let mut done = 0;
    for (at, start) in text.match_indices("Private-Lines:") {
        if at < done {
            continue;
        }
        let Some(line) = text[at + start.len()..].find('\n') else { break };
        let begin = at + start.len() + line + 1;
        let body = &text[begin..];
        let length = (last_mac >= begin).then(|| body.find("\nPrivate-MAC")).flatten();
        done = begin + length.unwrap_or_else(|| key_run(body.as_bytes()));
        found.push(begin..done);
    }
    found.retain(|place| !place.is_empty());
}

/// Positions of all last lines of keys in a text, found once for any number of keys.
struct Ends<'a> {
    all: Vec<usize>,
    titled: HashMap<&'a str, Vec<usize>>,
}

impl<'a> Ends<'a> {
    fn new(text: &'a str) -> Self {
        let mut ends = Self { all: Vec::new(), titled: HashMap::new() };
        for (at, start) in text.match_indices("-----END ") {
            ends.all.push(at);
            let rest = &text[at + start.len()..];
            let length = rest.bytes().take(MAX_TITLE_BYTES).position(|byte| byte == b'-');
            if let Some(length) = length.filter(|length| rest[*length..].starts_with("-----")) {
                ends.titled.entry(&rest[..length]).or_default().push(at);
            }
        }
        ends
    }

    /// Returns the end of the key that begins at `begin`: the next last line with its title. If no last line
    /// has this title, the next one with any title counts.
    fn first_behind(&self, begin: usize, title: &str) -> Option<usize> {
        let first = |ends: &[usize]| ends.get(ends.partition_point(|end| *end < begin)).copied();
        self.titled.get(title).and_then(|ends| first(ends)).or_else(|| first(&self.all))
    }
}

/// Returns the length of a key whose last line is missing, judged by its content.
fn key_run(bytes: &[u8]) -> usize {
    let gone = if bytes.starts_with(PLACEHOLDER_BYTES) { PLACEHOLDER_BYTES.len() } else { 0 };
    let is_key = |byte: &u8| {
        byte.is_ascii_alphanumeric()
            || byte.is_ascii_whitespace()
            || matches!(byte, b'+' | b'/' | b'=' | b':' | b',' | b'-' | b'.' | b'\\')
    };
    let run = bytes[gone..].iter().take_while(|byte| is_key(byte)).count();
    let blank = bytes[gone..gone + run].iter().rev().take_while(|byte| byte.is_ascii_whitespace()).count();
    gone + run - blank
}
