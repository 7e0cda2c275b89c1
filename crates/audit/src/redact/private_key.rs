//! Private keys, as PEM, SSH2 and PuTTY write them.

use std::collections::HashMap;
use std::ops::Range;

use super::look::GONE;

/// How long the title of a key is at most: `RSA PRIVATE KEY`.
const MAX_TITLE_BYTES: usize = 64;

/// The private keys that begin in it, each up to its last line, or as far as it looks like a key.
pub(super) fn private_keys(text: &str, found: &mut Vec<Range<usize>>) {
    // Mostly there is none, and to look for one is cheaper than to look for all.
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

/// The last lines of keys in a text. They are looked for once, however many keys begin.
struct Ends<'a> {
    all: Vec<usize>,
    /// The same by the titles they have.
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

    /// Where the key ends that begins here: at the line with its title, as another that only looks like the last is a part of the key.
    fn first_behind(&self, begin: usize, title: &str) -> Option<usize> {
        let first = |ends: &[usize]| ends.get(ends.partition_point(|end| *end < begin)).copied();
        self.titled.get(title).and_then(|ends| first(ends)).or_else(|| first(&self.all))
    }
}

/// How far this looks like a key that has lost its last line.
fn key_run(bytes: &[u8]) -> usize {
    let gone = if bytes.starts_with(GONE) { GONE.len() } else { 0 };
    let is_key = |byte: &u8| {
        byte.is_ascii_alphanumeric()
            || byte.is_ascii_whitespace()
            || matches!(byte, b'+' | b'/' | b'=' | b':' | b',' | b'-' | b'.' | b'\\')
    };
    let run = bytes[gone..].iter().take_while(|byte| is_key(byte)).count();
    let blank = bytes[gone..gone + run].iter().rev().take_while(|byte| byte.is_ascii_whitespace()).count();
    gone + run - blank
}
