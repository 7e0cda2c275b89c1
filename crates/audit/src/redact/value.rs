//! Determines where an assigned value begins and ends, including joined quotes, escapes, lists and several
//! lines.

use std::ops::Range;

use super::line;
use super::token_patterns::{MAX_TAG_TEXT_BYTES, PLACEHOLDER_BYTES, tag_text, words};

const MAX_LIST_BYTES: usize = 1024;

/// Maximum length of a shell expansion that is searched for a literal text.
const MAX_EXPANSION_BYTES: usize = 256;

const CDATA: &[u8] = b"<![CDATA[";

const MAX_TAG_NAME_BYTES: usize = 32;

const MAX_BLOCK_HEADER_BYTES: usize = 16;

/// The kinds of quotes that are open at a position of a line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Quotes {
    double: bool,
    single: bool,
}

impl Quotes {
    pub(super) fn pass(&mut self, bytes: &[u8], at: usize) {
        let is_escaped = || at.checked_sub(1).is_some_and(|before| bytes[before] == b'\\');
        match bytes[at] {
            b'\n' => *self = Self::default(),
            b'"' if !self.single && !is_escaped() => self.double = !self.double,
            b'\'' if !self.double => self.single = !self.single,
            _ => {}
        }
    }

    fn is_open(self, quote: u8) -> bool {
        if quote == b'"' { self.double } else { self.single }
    }
}

/// The delimiter between a name, which begins at `start`, and a value.
pub(super) struct Delimiter {
    pub(super) byte: u8,
    pub(super) start: usize,
    /// `true` if there are no blanks between name, delimiter and value.
    pub(super) is_tight: bool,
    pub(super) quotes: Quotes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Plain,
    Quoted,
    Block,
    /// Several quoted texts in parentheses: `("me", "…")`.
    Tuple,
}

pub(super) struct Value {
    pub(super) place: Range<usize>,
    pub(super) form: Form,
    /// `true` if variables in the value are not expanded.
    is_literal: bool,
}

impl Value {
    /// Returns `true` if the whole value is a variable, or the output of a command.
    pub(super) fn is_variable(&self, bytes: &[u8]) -> bool {
        let [b'$', rest @ ..] = &bytes[self.place.clone()] else { return false };
        if self.is_literal {
            return false;
        }
        let is_name = |rest: &[u8]| {
            let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
            rest.first().is_some_and(u8::is_ascii_uppercase) && rest.iter().all(is_letter)
        };
        match rest {
            [b'(', ..] => true,
            [b'{', name @ .., b'}'] => !name.contains(&b'}'),
            rest => is_name(rest),
        }
    }
}

impl Value {
    /// Returns the literal text of a value that a shell expands to a literal text.
    pub(super) fn literal(&self, bytes: &[u8]) -> Option<Range<usize>> {
        if self.is_literal { None } else { literal_of(bytes, self.place.start) }
    }
}

/// Returns the literal text to which a shell expands the text at `begin`: the output of `$(echo …)`, or the
/// default of `${NAME:-…}`.
pub(super) fn literal_of(bytes: &[u8], begin: usize) -> Option<Range<usize>> {
    let rest = bytes.get(begin..)?;
    let (open, close) = match rest {
        [b'$', b'(', ..] => (2, b')'),
        [b'`', ..] => (1, b'`'),
        [b'$', b'{', ..] => (2, b'}'),
        _ => return None,
    };
    let from = begin + open;
    let length =
        bytes[from..].iter().take(MAX_EXPANSION_BYTES).position(|byte| *byte == close || *byte == b'\n')?;
    let inner =
        std::str::from_utf8(&bytes[from..from + length]).ok().filter(|_| bytes[from + length] == close)?;
    let place = match close {
        b'}' => {
            let name = inner.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')?;
            let sign = [":-", ":=", "-", "="].into_iter().find(|sign| inner[name..].starts_with(sign))?;
            from + name + sign.len()..from + length
        }
        _ => {
            let command = inner.split(['|', ';', '&', '<', '>']).next()?;
            let is_print =
                command.trim_start().starts_with("echo ") || command.trim_start().starts_with("printf ");
            line::printed(command, from).filter(|_| is_print)?
        }
    };
    let quoted = |byte: &u8| matches!(byte, b'"' | b'\'');
    let start = place.start + bytes[place.clone()].iter().take_while(|byte| quoted(byte)).count();
    let tail = bytes[start..place.end.max(start)].iter().rev().take_while(|byte| quoted(byte)).count();
    let place = start..place.end.max(start) - tail;
    (!place.is_empty() && is_given(&bytes[place.clone()])).then_some(place)
}

pub(super) fn value_of(bytes: &[u8], begin: usize, sign: &Delimiter) -> Option<Value> {
    let rest = bytes.get(begin..)?;
    let value = |place, form, is_literal| Some(Value { place, form, is_literal });
    if sign.byte == b'>' {
        let start = begin + comments(rest);
        if let Some(text) = bytes[start..].strip_prefix(CDATA) {
            let text = &text[..text.len().min(MAX_TAG_TEXT_BYTES)];
            let start = start + CDATA.len();
            let length = memchr::memmem::find(text, b"]]>").unwrap_or_else(|| tag_text(text));
            return value(start..start + length, Form::Plain, true);
        }
        return value(start..start + tag_text(&bytes[start..]), Form::Plain, true);
    }
    // A YAML tag may precede the value: `!!str …`.
    let tag = yaml_tag(rest);
    if sign.byte == b':' && tag > 0 {
        return value_of(bytes, begin + tag, sign);
    }
    if !sign.is_tight && matches!(rest, [b'\n' | b'\r' | b'|' | b'>', ..]) {
        return lines(bytes, begin, sign).and_then(|(place, form)| value(place, form, true));
    }
    if !rest.starts_with(PLACEHOLDER_BYTES)
        && let [b'[', list @ ..] = rest
    {
        // The placeholder of an earlier redaction contains brackets, which do not delimit the list.
        let gone = if list.starts_with(PLACEHOLDER_BYTES) { PLACEHOLDER_BYTES.len() } else { 0 };
        let length = list.iter().take(MAX_LIST_BYTES).skip(gone).position(|byte| *byte == b']');
        if let Some(length) = length.map(|length| gone + length)
            && (!sign.is_tight || list[..length].iter().any(|byte| matches!(byte, b'"' | b'\'')))
        {
            return value(begin + 1..begin + 1 + length, Form::Block, true);
        }
    }
    if let [b'(', list @ ..] = rest
        && let Some(length) = list.iter().take(MAX_LIST_BYTES).position(|byte| matches!(byte, b')' | b'\n'))
        && list[length] == b')'
        && list[..length].iter().filter(|byte| matches!(byte, b'"' | b'\'')).count() >= 4
    {
        return value(begin + 1..begin + 1 + length, Form::Tuple, true);
    }
    for quote in [b"\"\"\"", b"\'\'\'"] {
        if rest.starts_with(quote) {
            let from = begin + quote.len();
            let length = bytes[from..].windows(3).position(|window| window == quote)?;
            return value(from..from + length, Form::Block, true);
        }
    }
    let escapes = rest.iter().take_while(|byte| **byte == b'\\').take(8).count();
    let quote = rest.get(escapes).copied().filter(|byte| matches!(byte, b'"' | b'\'' | b'`'));
    // The quote closes a text that began earlier, so no value follows.
    let quote = quote.filter(|quote| escapes > 0 || !sign.quotes.is_open(*quote) || sign.byte == b':');
    if let Some(quote) = quote.filter(|quote| *quote != b'`' || !sign.is_tight) {
        let opening = begin + escapes + 1;
        let inner = opening + words(&bytes[opening..]);
        let is_literal = quote == b'\'';
        let Some(closing) = closing(bytes, opening, quote, escapes) else {
            return value(inner..plain_end(bytes, inner, sign), Form::Plain, is_literal);
        };
        // The quoted text may be joined to another one: `"a"b`.
        let joined = closing + escapes + 1;
        let end = match sign.is_tight && escapes == 0 {
            true => word_end(bytes, joined, sign.quotes),
            false => joined,
        };
        let end = if end > joined { end } else { closing };
        return value(inner.min(end)..end, Form::Quoted, is_literal);
    }
    let begin = begin + escapes.min(usize::from(!sign.is_tight) * escapes);
    let inner = begin + words(&bytes[begin..]);
    value(inner..plain_end(bytes, inner, sign), Form::Plain, false)
}

/// Returns the length of comments and blanks before the text of a tag. Returns 0 if there are no comments.
fn comments(text: &[u8]) -> usize {
    const OPEN: &[u8] = b"<!--";
    let text = &text[..text.len().min(MAX_TAG_TEXT_BYTES)];
    let mut at = 0;
    loop {
        let blank = text[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let rest = &text[at + blank..];
        if rest.starts_with(CDATA) {
            return at + blank;
        }
        let Some(inner) = rest.strip_prefix(OPEN) else { return at };
        let Some(length) = memchr::memmem::find(inner, b"-->") else { return at };
        at += blank + OPEN.len() + length + 3;
    }
}

/// Returns the length of the YAML tag before a value, with the blank after the tag. Returns 0 if there is no
/// tag, or if another tag follows.
fn yaml_tag(rest: &[u8]) -> usize {
    let length = |rest: &[u8]| {
        let name = rest
            .strip_prefix(b"!!")?
            .iter()
            .take(MAX_TAG_NAME_BYTES)
            .take_while(|byte| byte.is_ascii_alphabetic());
        let length = 2 + name.count();
        (rest.get(length) == Some(&b' ')).then_some(length + 1)
    };
    length(rest).filter(|tag| length(&rest[*tag..]).is_none()).unwrap_or(0)
}

/// Returns the position of the closing quote, after `escapes` backslashes that escape it.
pub(super) fn closing(bytes: &[u8], from: usize, quote: u8, escapes: usize) -> Option<usize> {
    let mut run: usize = 0;
    for (at, byte) in bytes.iter().enumerate().skip(from) {
        match *byte {
            b'\\' => run += 1,
            byte if byte == quote => {
                // A shell does not process backslashes in single quotes.
                let inner = run.checked_sub(escapes).map(|more| more / (escapes + 1));
                if inner.is_none_or(|inner| inner % 2 == 0) || quote == b'\'' {
                    return Some(at - run.min(escapes));
                }
                run = 0;
            }
            _ => run = 0,
        }
    }
    None
}

fn plain_end(bytes: &[u8], begin: usize, sign: &Delimiter) -> usize {
    let end = word_end(bytes, begin, sign.quotes);
    if sign.is_tight {
        return end;
    }
    // Punctuation at the end of a value belongs to the sentence or list around the value.
    let is_around = |value: &[u8]| matches!(value.last(), Some(b',' | b']' | b'}' | b'.'));
    let mut value = &bytes[begin..end];
    while is_around(value) && !value.ends_with(PLACEHOLDER_BYTES) {
        value = &value[..value.len() - 1];
    }
    begin + value.len()
}

/// Returns the end of the shell word that begins at `begin`, with its quoted and escaped parts.
pub(super) fn word_end(bytes: &[u8], begin: usize, quotes: Quotes) -> usize {
    let mut at = begin;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' if bytes.get(at + 1).is_none_or(|next| matches!(next, b'"' | b'\'' | b'n' | b'r')) => {
                return at;
            }
            b'\\' => at += 2,
            b'"' | b'\'' if quotes.is_open(byte) => return at,
            b'"' | b'\'' => {
                let is_last = |other: &u8| *other == byte || *other == b'\n';
                match bytes[at + 1..].iter().position(is_last) {
                    Some(length) if bytes[at + 1 + length] == byte => at += length + 2,
                    _ => return at,
                }
            }
            b';' | b'&' | b'|' | b'<' | b'>' | b')' | b'`' => return at,
            byte if byte.is_ascii_whitespace() => return at,
            _ => at += 1,
        }
    }
    at.min(bytes.len())
}

/// Returns a value on the lines after a delimiter: a YAML block, or a JSON value on the next line.
fn lines(bytes: &[u8], begin: usize, sign: &Delimiter) -> Option<(Range<usize>, Form)> {
    let head = bytes[begin..].iter().take(MAX_BLOCK_HEADER_BYTES);
    let header = head.clone().position(|byte| *byte == b'\n')?;
    let is_header = |byte: &u8| matches!(byte, b'|' | b'>' | b'+' | b'-' | b'\r' | b' ' | b'0'..=b'9');
    if !head.take(header).all(is_header) {
        return None;
    }
    let line = bytes[..sign.start].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let before = &bytes[line..sign.start];
    let is_around = |byte: &u8| matches!(byte, b' ' | b'\t' | b'-' | b'"' | b'\'' | b'{' | b',');
    if !before.iter().all(is_around) {
        return None;
    }
    let indent = before.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let first = begin + header + 1;
    let blank = bytes[first..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let start = first + blank;
    if let Some(quote @ (b'"' | b'\'')) = bytes.get(start).copied() {
        let end = closing(bytes, start + 1, quote, 0)?;
        return Some((start + 1..end, Form::Quoted));
    }
    // The items of a YAML list may have the same indentation as the list's name, unless the name is in a list
    // itself.
    let is_block = bytes[begin..first].iter().any(|byte| matches!(byte, b'|' | b'>'));
    let may_be_list = !is_block && matches!(before[indent..], [] | [b'"' | b'\'']);
    let mut end = first;
    let (mut is_list, mut is_prose) = (false, true);
    for line in bytes[first..].split_inclusive(|byte| *byte == b'\n') {
        let inner = line.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let is_blank = line.iter().all(u8::is_ascii_whitespace);
        if !is_blank && inner <= indent {
            let item = list_item(&line[inner..]).filter(|_| may_be_list && inner == indent);
            let Some(item) = item.filter(|_| is_list || end <= start) else { break };
            is_list = true;
            is_prose &= is_sentence(item);
        }
        end += line.len();
    }
    if is_list && is_prose {
        return None;
    }
    let tail = bytes[first..end].iter().rev().take_while(|byte| byte.is_ascii_whitespace()).count();
    let end = end - tail;
    (end > start).then_some((start..end, Form::Block))
}

fn list_item(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"-")?;
    rest.first().is_none_or(u8::is_ascii_whitespace).then(|| rest.trim_ascii())
}

/// Returns `true` if a list item is a sentence of several words without a name, such as `at least 8 letters`.
fn is_sentence(item: &[u8]) -> bool {
    let mut words = item.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let is_word = |word: &[u8]| {
        let is_number = word.iter().all(u8::is_ascii_digit);
        let inner = word.strip_suffix(b",").or_else(|| word.strip_suffix(b".")).unwrap_or(word);
        is_number || inner.iter().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'\''))
    };
    words.clone().count() > 1 && words.all(is_word)
}

/// Returns `true` if a value is literal. A variable is not literal.
pub(super) fn is_given(value: &[u8]) -> bool {
    let value = Value { place: 0..value.len(), form: Form::Plain, is_literal: false }.is_variable(value);
    !value
}
