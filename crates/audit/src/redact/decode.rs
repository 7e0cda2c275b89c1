//! Decodes escapes, so that escaped names, delimiters and tokens are recognized like plain ones:
//! `"p\u0061ssword"`, `p%61ssword=`.
//!
//! Every encoding is decoded separately, because a quote or separator of one encoding is an ordinary letter
//! in another. The first pass decodes only letters of names: an unescaped blank ends a value, but an escaped
//! blank does not. The second pass decodes all escapes, including those of delimiters. Positions in decoded
//! text are mapped back, so the displayed text keeps its escapes. Each step reads its text once.

use std::ops::Range;

/// The order in which encodings are decoded. Two encodings are decoded twice, because their escapes may be
/// escaped themselves.
const ORDER: [Encoding; 6] = [
    Encoding::Backslash,
    Encoding::Percent,
    Encoding::Entity,
    Encoding::Backslash,
    Encoding::Percent,
    Encoding::Percent,
];

/// Maximum length of a run of backslashes that counts as one backslash, escaped repeatedly.
const MAX_REPEATS: usize = 8;

/// Character that replaces control characters. Invisible characters do not change a name.
const INVISIBLE: char = '\u{200b}';

/// Named entities of HTML and XML, except those that represent letters of names.
const ENTITIES: [(&str, char); 10] = [
    ("amp;", '&'),
    ("apos;", '\''),
    ("colon;", ':'),
    ("equals;", '='),
    ("gt;", '>'),
    ("hyphen;", '-'),
    ("lowbar;", '_'),
    ("lt;", '<'),
    ("nbsp;", ' '),
    ("quot;", '"'),
];

/// An encoding of letters by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// `\u0061`, `\x61`, `\141` and `\/`, as in JSON and program code.
    Backslash,
    /// `%61`, as in URLs and forms.
    Percent,
    /// `&#97;` and `&quot;`, as in HTML and XML.
    Entity,
}

/// Reads an escape at the beginning of a text. Returns the decoded letter and the length of the escape.
type ReadEscape = fn(&str) -> Option<(char, usize)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Names,
    All,
}

impl Reach {
    fn includes(self, letter: char) -> bool {
        self == Self::All
            || letter.is_alphanumeric()
            || letter.is_control() && !letter.is_whitespace()
            || matches!(letter, '_' | '-' | '.' | '[' | ']' | '%' | '\\')
    }
}

/// A text in which all escapes of one encoding are decoded.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) text: String,
    /// Boundaries of the decoded escapes, each as a position in `text` and a position in the source.
    pub(super) edges: Vec<(usize, usize)>,
}

impl Decoded {
    /// Maps a range of `text` to a range of the source.
    pub(super) fn source(&self, place: &Range<usize>) -> Range<usize> {
        let position = |at: usize| {
            let behind = self.edges.partition_point(|(decoded, _)| *decoded <= at);
            match behind.checked_sub(1).map(|edge| self.edges[edge]) {
                Some((decoded, source)) => source + (at - decoded),
                None => at,
            }
        };
        position(place.start)..position(place.end)
    }

    /// Maps a position of the source to `text`.
    pub(super) fn position(&self, at: usize) -> usize {
        let behind = self.edges.partition_point(|(_, source)| *source <= at);
        let next = self.edges.get(behind).map_or(self.text.len(), |edge| edge.0);
        match behind.checked_sub(1).map(|edge| self.edges[edge]) {
            Some((decoded, source)) => (decoded + (at - source)).min(next),
            None => at,
        }
    }
}

/// Calls `find` with every decoding of this text. Returns what was found as ranges of this text.
pub(super) fn find_decoded(text: &str, mut find: impl FnMut(&str) -> Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let mut before: Vec<Decoded> = Vec::new();
    for reach in [Reach::Names, Reach::All] {
        let mut steps: Vec<Decoded> = Vec::new();
        for encoding in ORDER {
            let source = steps.last().map_or(text, |step| &step.text);
            let Some(decoded) = decode(source, encoding, reach) else { continue };
            let is_done = before.iter().any(|step| step.text == decoded.text);
            let found = if is_done { Vec::new() } else { find(&decoded.text) };
            steps.push(decoded);
            for place in found {
                places.push(steps.iter().rev().fold(place, |place, step| step.source(&place)));
            }
        }
        before = steps;
    }
    places
}

pub(super) fn decode_all(text: &str) -> Option<String> {
    ORDER.into_iter().fold(None, |decoded: Option<String>, encoding| {
        let next = decode(decoded.as_deref().unwrap_or(text), encoding, Reach::All);
        next.map(|next| next.text).or(decoded)
    })
}

/// Decodes all escapes of one encoding. Returns `None` if the text has no such escapes.
fn decode(text: &str, encoding: Encoding, reach: Reach) -> Option<Decoded> {
    let (sign, read): (u8, ReadEscape) = match encoding {
        Encoding::Backslash => (b'\\', backslash),
        Encoding::Percent => (b'%', percent),
        Encoding::Entity => (b'&', entity),
    };
    let mut decoded = Decoded { text: String::new(), edges: Vec::new() };
    let mut done = 0;
    for at in memchr::memchr_iter(sign, text.as_bytes()) {
        if at < done {
            continue;
        }
        let Some((letter, length)) = read(&text[at..]).filter(|(letter, _)| reach.includes(*letter)) else {
            continue;
        };
        decoded.text.push_str(&text[done..at]);
        decoded.edges.push((decoded.text.len(), at));
        // A human reader does not see control characters, so they do not end a name.
        let is_blank = matches!(letter, '\t' | '\n' | '\r');
        decoded.text.push(if letter.is_control() && !is_blank { INVISIBLE } else { letter });
        done = at + length;
        decoded.edges.push((decoded.text.len(), done));
    }
    if decoded.edges.is_empty() {
        return None;
    }
    decoded.text.push_str(&text[done..]);
    Some(decoded)
}

/// Decodes an escape after backslashes. Returns its letter and its length.
fn backslash(text: &str) -> Option<(char, usize)> {
    let signs = text.bytes().take(MAX_REPEATS).take_while(|byte| *byte == b'\\').count();
    let rest = &text.as_bytes()[signs..];
    let (letter, length) = match rest {
        [b'/', ..] => ('/', 1),
        [b'u' | b'x', b'{', number @ ..] => {
            let digits = number.iter().take(6).take_while(|byte| byte.is_ascii_hexdigit()).count();
            let is_closed = number.get(digits) == Some(&b'}');
            (char::from_u32(hex(number, digits)?).filter(|_| is_closed)?, digits + 3)
        }
        [b'u', number @ ..] => utf16(number)?,
        [b'U', number @ ..] => (char::from_u32(hex(number, 8)?)?, 9),
        [b'x', number @ ..] => (char::from_u32(hex(number, 2)?)?, 3),
        [first @ b'0'..=b'3', second @ b'0'..=b'7', third @ b'0'..=b'7', ..] => {
            let digit = |byte: &u8| u32::from(byte - b'0');
            (char::from_u32(digit(first) * 64 + digit(second) * 8 + digit(third))?, 3)
        }
        _ => return None,
    };
    Some((letter, signs + length))
}

/// Decodes four digits after `u`, or a surrogate pair.
fn utf16(number: &[u8]) -> Option<(char, usize)> {
    let first = hex(number, 4)?;
    if let Some(letter) = char::from_u32(first) {
        return Some((letter, 5));
    }
    let more = &number[4..];
    let signs = more.iter().take(MAX_REPEATS).take_while(|byte| **byte == b'\\').count();
    let second = more.get(signs..)?.strip_prefix(b"u").and_then(|number| hex(number, 4))?;
    let units = [u16::try_from(first).ok()?, u16::try_from(second).ok()?];
    let letter = char::decode_utf16(units).next()?.ok()?;
    Some((letter, 5 + signs + 5))
}

/// Decodes a percent escape of one or several bytes. Returns its letter and its length.
fn percent(text: &str) -> Option<(char, usize)> {
    const LENGTH: usize = 3;
    let bytes = text.as_bytes();
    let first = percent_byte(bytes)?;
    let count = match first {
        0..0x80 => return Some((char::from(first), LENGTH)),
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0..0xf8 => 4,
        _ => return None,
    };
    let mut letter = [0; 4];
    for (index, byte) in letter[..count].iter_mut().enumerate() {
        *byte = percent_byte(bytes.get(index * LENGTH..)?)?;
    }
    let letter = std::str::from_utf8(&letter[..count]).ok()?.chars().next()?;
    Some((letter, count * LENGTH))
}

fn percent_byte(bytes: &[u8]) -> Option<u8> {
    u8::try_from(hex(bytes.strip_prefix(b"%")?, 2)?).ok()
}

fn entity(text: &str) -> Option<(char, usize)> {
    let rest = text.strip_prefix('&')?;
    let Some(number) = rest.strip_prefix('#') else {
        let (name, letter) = ENTITIES.iter().find(|(name, _)| rest.starts_with(name))?;
        return Some((*letter, 1 + name.len()));
    };
    let (digits, radix) = match number.strip_prefix(['x', 'X']) {
        Some(digits) => (digits, 16),
        None => (number, 10),
    };
    let length = digits.bytes().take(7).take_while(u8::is_ascii_hexdigit).count();
    let letter = u32::from_str_radix(&digits[..length], radix).ok().and_then(char::from_u32)?;
    let begin = text.len() - digits.len();
    digits[length..].starts_with(';').then_some((letter, begin + length + 1))
}

fn hex(bytes: &[u8], digits: usize) -> Option<u32> {
    let digits = bytes
        .get(..digits)
        .filter(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit))?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_encoding_is_decoded() {
        for (text, expected) in [
            (r"p\u0061ss", Some("pass")),
            (r"p\\\\u0061ss", Some("pass")),
            (r"\ud835\udc29", Some("𝐩")),
            (r"\ud835 \ud835\u0061", Some(r"\ud835 \ud835a")),
            (r"\u{61}\x61\141\U00000061\/", Some("aaaa/")),
            (r"\u{}\u{zz}\x6\19\q\u006", None),
            ("%61%2561%252561%20", Some("aaa ")),
            ("%C3%A9%D0%B0", Some("éа")),
            ("%C3 %FF %C3% %e9 %", None),
            ("%C3%28%61", Some("%C3(a")),
            ("100%25", Some("100%")),
            ("&#97;&#x61;&quot;&amp;", Some("aa\"&")),
            ("&#;&#xzz;&#97 &nothing;", None),
            (r"\u002561 &#37;61", Some("a a")),
            ("plain", None),
            ("é\\é%é&é", None),
        ] {
            assert_eq!(decode_all(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn positions_are_mapped_back_through_all_steps() {
        let text = r"é p\u002561ss=x&quot;y%20z";
        let places = find_decoded(text, |decoded| {
            decoded
                .match_indices("pass")
                .chain(decoded.match_indices("y z"))
                .map(|(at, found)| at..at + found.len())
                .collect()
        });
        let mut found: Vec<&str> = places.into_iter().map(|place| &text[place]).collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, [r"p\u002561ss", "y%20z"]);
    }
}
