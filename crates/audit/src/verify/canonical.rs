//! Checks that a text is canonical JSON, without building or writing values.

use std::ops::Range;

use super::number;

const MAX_DEPTH: usize = 160;

/// A violation of the canonical form: its position and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flaw {
    pub(super) at: usize,
    pub(super) what: &'static str,
    /// `true` if the text is not JSON or exceeds a limit. `false` if the text is JSON in another form.
    pub(super) broken: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) key: Range<usize>,
    pub(super) value: Range<usize>,
}

enum Open {
    Array,
    /// An object, with the range of its last key without the quotes.
    Object(Option<Range<usize>>),
}

/// Reads a canonical text. If it is an object, adds its members to `members`.
pub(super) fn read(text: &[u8], members: &mut Vec<Member>) -> Result<(), Flaw> {
    members.clear();
    if let Err(error) = std::str::from_utf8(text) {
        return Err(Flaw { at: error.valid_up_to(), what: "it is not UTF-8", broken: true });
    }
    let mut reader = Reader { text, at: 0 };
    let mut open: Vec<Open> = Vec::new();
    loop {
        // A value or the end of an empty container follows.
        let start = reader.at;
        let mut whole = true;
        match reader.peek() {
            Some(b'{') => {
                reader.at += 1;
                if !reader.takes(b'}') {
                    open.push(Open::Object(None));
                    whole = false;
                }
            }
            Some(b'[') => {
                reader.at += 1;
                if !reader.takes(b']') {
                    open.push(Open::Array);
                    if open.len() > MAX_DEPTH {
                        return Err(reader.broken("it is nested too deeply"));
                    }
                    continue;
                }
            }
            Some(b'"') => {
                reader.string()?;
            }
            Some(b't') => reader.word(b"true")?,
            Some(b'f') => reader.word(b"false")?,
            Some(b'n') => reader.word(b"null")?,
            Some(b'-' | b'0'..=b'9') => reader.number()?,
            _ => return Err(reader.stray()),
        }
        if whole
            && open.len() == 1
            && let Some(member) = members.last_mut()
        {
            member.value = start..reader.at;
        }
        if open.len() > MAX_DEPTH {
            return Err(reader.broken("it is nested too deeply"));
        }
        // The end of the container or another member follows the value.
        loop {
            let depth = open.len();
            let Some(around) = open.last_mut() else {
                return if reader.at == text.len() { Ok(()) } else { Err(reader.stray()) };
            };
            match around {
                Open::Array if reader.takes(b']') => {}
                Open::Array if reader.takes(b',') => break,
                Open::Object(Some(_)) if whole && reader.takes(b'}') => {}
                Open::Object(last) => {
                    if whole && !reader.takes(b',') {
                        return Err(reader.stray());
                    }
                    let key = reader.string()?;
                    if !reader.takes(b':') {
                        return Err(reader.stray());
                    }
                    if let Some(last) = last
                        && !ascends(&text[last.clone()], &text[key.clone()])
                    {
                        return Err(Flaw { at: key.start, what: "its keys are not in order", broken: false });
                    }
                    if depth == 1 {
                        members.push(Member { key: key.clone(), value: 0..0 });
                    }
                    *last = Some(key);
                    break;
                }
                Open::Array => return Err(reader.stray()),
            }
            open.pop();
            whole = true;
            if open.len() == 1
                && let Some(member) = members.last_mut()
            {
                // The value began after the key, a quote and a colon.
                member.value = member.key.end + 2..reader.at;
            }
        }
    }
}

/// Returns `true` if the UTF-16 code units of key `one` sort before those of key `other`.
fn ascends(one: &[u8], other: &[u8]) -> bool {
    let plain = |key: &[u8]| key.iter().all(|byte| byte.is_ascii() && *byte != b'\\');
    if plain(one) && plain(other) {
        return one < other;
    }
    units(one) < units(other)
}

/// Decodes the UTF-16 code units of a key whose syntax was already checked.
fn units(key: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(key);
    let mut units = Vec::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            units.extend_from_slice(letter.encode_utf16(&mut [0; 2]));
            continue;
        }
        units.push(match letters.next() {
            Some('b') => 8,
            Some('t') => 9,
            Some('n') => 10,
            Some('f') => 12,
            Some('r') => 13,
            Some('u') => {
                let digits: String = letters.by_ref().take(4).collect();
                u16::from_str_radix(&digits, 16).unwrap_or_default()
            }
            other => other.map_or(0, |letter| letter as u16),
        });
    }
    units
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn takes(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Flaw> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.broken("it is not JSON"));
        }
        self.at += word.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), Flaw> {
        let rest = &self.text[self.at..];
        let length =
            rest.iter().take_while(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'));
        let length = length.count();
        if !number::is_canonical(&rest[..length]) {
            return Err(Flaw { at: self.at, what: "a number is not in its canonical form", broken: false });
        }
        self.at += length;
        Ok(())
    }

    fn string(&mut self) -> Result<Range<usize>, Flaw> {
        if !self.takes(b'"') {
            return Err(self.stray());
        }
        let start = self.at;
        loop {
            let rest = &self.text[self.at..];
            let Some(length) = rest.iter().position(|&byte| byte == b'"' || byte == b'\\' || byte < b' ')
            else {
                return Err(self.broken("unterminated string"));
            };
            self.at += length;
            match rest[length] {
                b'"' => {
                    self.at += 1;
                    return Ok(start..self.at - 1);
                }
                b'\\' => self.escape()?,
                _ => return Err(self.broken("control character in a string")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Flaw> {
        let needless = Flaw { at: self.at, what: "an escape is not in its canonical form", broken: false };
        match &self.text[self.at + 1..] {
            [b'"' | b'\\' | b'b' | b't' | b'n' | b'f' | b'r', ..] => self.at += 2,
            // Control characters without a shorter escape.
            [b'u', b'0', b'0', b'0', b'0'..=b'7' | b'b' | b'e' | b'f', ..]
            | [b'u', b'0', b'0', b'1', b'0'..=b'9' | b'a'..=b'f', ..] => self.at += 6,
            [b'u' | b'/', ..] => return Err(needless),
            _ => return Err(self.broken("it is not JSON")),
        }
        Ok(())
    }

    fn stray(&self) -> Flaw {
        match self.peek() {
            Some(b' ' | b'\t' | b'\r') => {
                Flaw { at: self.at, what: "there is space between its parts", broken: false }
            }
            Some(_) => self.broken("it is not JSON"),
            None => self.broken("it ends too early"),
        }
    }

    fn broken(&self, what: &'static str) -> Flaw {
        Flaw { at: self.at, what, broken: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let told = read(text.as_bytes(), &mut Vec::new()).err();
        assert_eq!(
            told.map_or(String::new(), |flaw| format!("{}: {}", flaw.at, flaw.what)),
            expected,
            "{text}"
        );
    }

    #[test]
    fn canonical_texts_pass() {
        for text in [
            "{}",
            "[]",
            "0",
            "\"\"",
            "null",
            "[[],{},[{}]]",
            "{\"a\":{\"b\":[1,-2,0.5,1e+21]},\"b\":true}",
            "\"\\b\\t\\n\\f\\r\\\"\\\\/\\u0001\\u001f\u{7f}é😀\"",
            "{\"1\":4,\"é\":3,\"😀\":2,\"\u{fb33}\":1}",
            "{\"\\n\":1,\"\\u000b\":1,\"1\":1}",
        ] {
            check(text, "");
        }
    }

    #[test]
    fn other_forms_of_the_same_value_fail() {
        check("{\"b\":1,\"a\":2}", "8: its keys are not in order");
        check("{\"a\":1,\"a\":2}", "8: its keys are not in order");
        check("{\"\u{fb33}\":1,\"😀\":2}", "10: its keys are not in order");
        check("{\"a\" :1}", "4: there is space between its parts");
        check(" {}", "0: there is space between its parts");
        check("{}\r", "2: there is space between its parts");
        check("[1, 2]", "3: there is space between its parts");
        check("\"\\/\"", "1: an escape is not in its canonical form");
        check("\"\\u0041\"", "1: an escape is not in its canonical form");
        check("\"\\u000a\"", "1: an escape is not in its canonical form");
        check("\"\\u001F\"", "1: an escape is not in its canonical form");
        check("\"\\ud83d\\ude00\"", "1: an escape is not in its canonical form");
        check("1.0", "0: a number is not in its canonical form");
        check("[-0]", "1: a number is not in its canonical form");
    }

    #[test]
    fn broken_texts_are_distinguished_from_other_forms() {
        for text in [
            "", "{", "[1,]", "{,}", "{\"a\"}", "{\"a\":}", "\"", "\"\\x\"", "\"\n\"", "tru", "[}", "{]",
            "{}{}", "1 2x",
        ] {
            let flaw = read(text.as_bytes(), &mut Vec::new()).expect_err(text);
            assert!(flaw.broken || text.contains(' '), "{text}: {flaw:?}");
        }
        assert!(read(b"\"\xff\"", &mut Vec::new()).expect_err("no UTF-8").broken);
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        check(&deep, "161: it is nested too deeply");
        let deep = format!("{}1{}", "{\"a\":".repeat(200), "}".repeat(200));
        assert_eq!(read(deep.as_bytes(), &mut Vec::new()).expect_err("deep").what, "it is nested too deeply");
    }

    #[test]
    fn members_of_the_top_level_object_are_returned() {
        let text = br#"{"a":[1,{"x":2}],"b":{},"c":"d","e":{"f":1}}"#;
        let mut members = Vec::new();
        read(text, &mut members).expect("canonical");
        let found: Vec<_> = members
            .iter()
            .map(|member| (&text[member.key.clone()], &text[member.value.clone()]))
            .map(|(key, value)| format!("{}={}", key.escape_ascii(), String::from_utf8_lossy(value)))
            .collect();
        assert_eq!(found, ["a=[1,{\"x\":2}]", "b={}", "c=\"d\"", "e={\"f\":1}"]);
    }
}
