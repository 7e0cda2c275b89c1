//! Finds the ends of objects and lists in a text that may contain other text.
//!
//! A message may contain any number of unterminated, nested starts. The results for starts that were passed
//! are kept, so each byte is read at most twice: once as part of a string, and once outside of one.

use std::collections::HashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Position after the last byte of the value.
    pub(super) end: usize,
    /// Nesting depth of the value, which counts as one level itself.
    pub(super) depth: usize,
}

pub(super) struct Scanner<'t> {
    text: &'t [u8],
    /// Results by position of the opening bracket. `None` if no valid value starts at the position.
    known: HashMap<usize, Option<Extent>>,
}

/// An object or list whose end is not found yet.
struct Open {
    start: usize,
    inner: usize,
}

#[derive(Clone, Copy, Debug)]
enum Expected {
    Value,
    /// A value, or the end of the list.
    Item,
    /// A member name, or the end of the object.
    Member,
    Name,
    Colon,
    /// A comma, or the end of the object or list.
    Separator,
}

impl<'t> Scanner<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text: text.as_bytes(), known: HashMap::new() }
    }

    /// Returns the end of the object or list at `start`; `None` if it is invalid.
    pub(super) fn extent(&mut self, start: usize) -> Option<Extent> {
        if !self.known.contains_key(&start) {
            let mut open = Vec::new();
            self.scan(start, &mut open);
            // Values that contain the error, or that do not end, are invalid.
            self.known.extend(open.into_iter().map(|open| (open.start, None)));
        }
        self.known.get(&start).copied().flatten()
    }

    /// Reads the value at `start` up to its end or to the first error. Leaves values without an end in
    /// `open`.
    fn scan(&mut self, start: usize, open: &mut Vec<Open>) -> Option<()> {
        let mut at = start;
        let mut expected = Expected::Value;
        loop {
            at += self.count(at, |byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
            let is_object = open.last().is_some_and(|open| self.text.get(open.start) == Some(&b'{'));
            let byte = *self.text.get(at)?;
            (expected, at) = match (expected, byte) {
                (Expected::Value | Expected::Item, b'{' | b'[') => {
                    open.push(Open { start: at, inner: 0 });
                    (if byte == b'{' { Expected::Member } else { Expected::Item }, at + 1)
                }
                (Expected::Member, b'}') | (Expected::Item, b']') => (self.close(at + 1, open), at + 1),
                (Expected::Separator, b'}') if is_object => (self.close(at + 1, open), at + 1),
                (Expected::Separator, b']') if !is_object => (self.close(at + 1, open), at + 1),
                (Expected::Separator, b',') if is_object => (Expected::Name, at + 1),
                (Expected::Separator, b',') => (Expected::Value, at + 1),
                (Expected::Member | Expected::Name, b'"') => (Expected::Colon, self.string(at)?),
                (Expected::Colon, b':') => (Expected::Value, at + 1),
                (Expected::Value | Expected::Item, _) => (Expected::Separator, self.scalar(at)?),
                _ => return None,
            };
            if open.is_empty() {
                return Some(());
            }
        }
    }

    /// Ends the innermost value of `open` at `end`.
    fn close(&mut self, end: usize, open: &mut Vec<Open>) -> Expected {
        if let Some(Open { start, inner }) = open.pop() {
            let depth = inner + 1;
            self.known.insert(start, Some(Extent { end, depth }));
            if let Some(outer) = open.last_mut() {
                outer.inner = outer.inner.max(depth);
            }
        }
        Expected::Separator
    }

    /// Returns the end of the string, number or literal at `at`.
    fn scalar(&self, at: usize) -> Option<usize> {
        match self.text.get(at)? {
            b'"' => self.string(at),
            b'-' | b'0'..=b'9' => self.number(at),
            _ => {
                let words: [&[u8]; 3] = [b"true", b"false", b"null"];
                let word = words.into_iter().find(|word| self.text[at..].starts_with(word))?;
                Some(at + word.len())
            }
        }
    }

    fn number(&self, at: usize) -> Option<usize> {
        let is = |at: usize, any: &[u8]| self.text.get(at).is_some_and(|byte| any.contains(byte));
        let digits = |at: usize| match self.count(at, u8::is_ascii_digit) {
            0 => None,
            count => Some(at + count),
        };
        let mut at = at + usize::from(is(at, b"-"));
        at = if is(at, b"0") { at + 1 } else { digits(at)? };
        if is(at, b".") {
            at = digits(at + 1)?;
        }
        if is(at, b"eE") {
            at = digits(at + 1 + usize::from(is(at + 1, b"+-")))?;
        }
        Some(at)
    }

    /// Returns the end of the string that starts with the quotation mark at `at`.
    fn string(&self, at: usize) -> Option<usize> {
        let mut at = at + 1;
        loop {
            at += self.count(at, |byte| !matches!(byte, b'"' | b'\\' | 0..0x20));
            match self.text.get(at)? {
                b'"' => return Some(at + 1),
                b'\\' => at += self.escape(at)?,
                _ => return None,
            }
        }
    }

    fn escape(&self, at: usize) -> Option<usize> {
        match self.text.get(at + 1)? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(2),
            b'u' => self.text.get(at + 2..at + 6)?.iter().all(u8::is_ascii_hexdigit).then_some(6),
            _ => None,
        }
    }

    /// Returns the number of bytes from `at` for which `is` returns `true`.
    fn count(&self, at: usize, is: impl Fn(&u8) -> bool) -> usize {
        self.text.get(at..).unwrap_or_default().iter().take_while(|byte| is(byte)).count()
    }
}
