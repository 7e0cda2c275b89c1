//! Joins a name and its value that a file format allows to be separated, so that they are recognized as on
//! one line.
//!
//! They may be separated by comments and line breaks around a delimiter, tags and anchors of YAML, explicit
//! keys, continued lines, folded headers, delimiters and blanks of other scripts, and escaped blanks and
//! delimiters of a shell. Positions in joined text are mapped back, so the displayed text keeps its layout.
//! Each step reads its text once.

use std::ops::Range;

use memchr::{memchr, memchr2_iter, memrchr};

use super::decode::Decoded;
use super::token_patterns::{self, is_name_letter};

const MAX_PROPERTY_BYTES: usize = 128;

/// YAML tags whose value is the name of something, and words after `&` in program code. All in lower case.
const REFERENCE_TAGS: [&str; 12] = [
    "env",
    "env_var",
    "findinmap",
    "getatt",
    "importvalue",
    "include",
    "input",
    "output",
    "ref",
    "reference",
    "secret",
    "var",
];
const CODE_WORDS: [&str; 4] = ["dyn", "mut", "self", "str"];

type Edit = (Range<usize>, &'static str);

/// Bounds for the text before and after a joined position that is searched again.
const MAX_BYTES_BEFORE: usize = 512;
const MAX_BYTES_BEHIND: usize = 4096;

/// Joins the separated parts of this text, and calls `find` with the text around each joined position.
/// Returns what was found as positions in this text.
pub(super) fn find_joined(
    text: &str,
    mut find: impl FnMut(&str, &mut Vec<Range<usize>>),
) -> Vec<Range<usize>> {
    let mut edits = continued_lines(text);
    edits.extend(shell_escapes(text));
    edits.extend(wide_signs(text));
    // Edits of different kinds never overlap: an escape is ASCII, and comes before the end of its line.
    edits.sort_unstable_by_key(|(place, _)| place.start);
    let lines = apply(text, &edits);
    let source = lines.as_ref().map_or(text, |lines| &lines.text);
    let gaps = apply(source, &Gaps::new(source).edits());
    let Some(joined) = gaps.as_ref().or(lines.as_ref()) else { return Vec::new() };
    let edges = |step: Option<&Decoded>| {
        step.map_or(Vec::new(), |step| step.edges.iter().map(|edge| edge.0).collect())
    };
    let mut positions: Vec<usize> = edges(lines.as_ref());
    if let Some(gaps) = &gaps {
        positions.iter_mut().for_each(|at| *at = gaps.position(*at));
        positions.extend(edges(Some(gaps)));
        positions.sort_unstable();
    }
    let steps = [gaps.as_ref(), lines.as_ref()];
    let mut places = Vec::new();
    for part in parts(&joined.text, &positions) {
        let from = places.len();
        find(&joined.text[part.clone()], &mut places);
        for place in &mut places[from..] {
            let moved = part.start + place.start..part.start + place.end;
            *place = steps.into_iter().flatten().fold(moved, |place, step| step.source(&place));
        }
    }
    places
}

/// Returns the parts of a text around these ordered positions. A part starts at the beginning of a line if
/// the line begins nearby.
fn parts(text: &str, positions: &[usize]) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let boundary = |at: usize| (at..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let mut parts: Vec<Range<usize>> = Vec::new();
    for at in positions {
        let end = boundary((at + MAX_BYTES_BEHIND).min(text.len()));
        if let Some(last) = parts.last_mut().filter(|last| at.saturating_sub(MAX_BYTES_BEFORE) <= last.end) {
            last.end = last.end.max(end);
            continue;
        }
        let from = boundary(at.saturating_sub(MAX_BYTES_BEFORE));
        let line = memchr(b'\n', &bytes[from..*at]).map_or(from, |length| from + length + 1);
        parts.push(if from == 0 { 0..end } else { line..end });
    }
    parts
}

/// Applies these ordered edits to the text. Returns `None` if there are no edits.
fn apply(text: &str, edits: &[Edit]) -> Option<Decoded> {
    let mut joined =
        Decoded { text: String::with_capacity(text.len()), edges: Vec::with_capacity(2 * edits.len()) };
    let mut done = 0;
    for (place, instead) in edits {
        joined.text.push_str(&text[done..place.start]);
        joined.edges.push((joined.text.len(), place.start));
        joined.text.push_str(instead);
        joined.edges.push((joined.text.len(), place.end));
        done = place.end;
    }
    joined.text.push_str(&text[done..]);
    (!edits.is_empty()).then_some(joined)
}

/// Joins lines that end with a backslash, and folded lines of headers that contain credentials.
fn continued_lines(text: &str) -> Vec<Edit> {
    let bytes = text.as_bytes();
    let mut edits = Vec::new();
    // Indentation of the header that may continue on the next line.
    let mut header: Option<usize> = None;
    let mut begin = 0;
    while let Some(length) = memchr(b'\n', &bytes[begin..]) {
        let next = begin + length + 1;
        let line = &bytes[begin..next];
        let shown = line.trim_ascii_end();
        let end = begin + shown.len();
        let indent = indent(&bytes[next..]);
        let inner = next + indent;
        let is_last = bytes.get(inner).is_none_or(|byte| matches!(byte, b'\r' | b'\n'));
        begin = next;
        if is_last {
            header = None;
            continue;
        }
        // Two backslashes are one escaped backslash.
        if shown.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1 {
            edits.push((end - 1..inner, ""));
            continue;
        }
        let first = self::indent(line);
        header = match header {
            Some(outer) if first > outer => Some(outer),
            _ => is_folded_header(shown, &bytes[inner..]).then_some(first),
        };
        if header.is_some_and(|outer| indent > outer) {
            edits.push((end..inner, " "));
        }
    }
    edits
}

/// Removes the backslash before a blank or a delimiter, as a shell does: `-H Cookie:\ sid=…`. A backslash at
/// the end of a line stays.
fn shell_escapes(text: &str) -> Vec<Edit> {
    let bytes = text.as_bytes();
    let (mut edits, mut done) = (Vec::new(), 0);
    for at in memchr::memchr_iter(b'\\', bytes) {
        if at < done {
            continue;
        }
        let count = bytes[at..].iter().take_while(|byte| **byte == b'\\').count();
        done = at + count;
        // Two backslashes are one escaped backslash.
        let is_escape = count % 2 == 1
            && match &bytes[done..] {
                [b' ' | b'\t', rest @ ..] => {
                    let behind = rest.iter().find(|byte| !matches!(byte, b' ' | b'\t'));
                    behind.is_some_and(|byte| !matches!(byte, b'\r' | b'\n'))
                }
                [sign, ..] => matches!(sign, b':' | b'=' | b';' | b'&'),
                [] => false,
            };
        if is_escape {
            edits.push((done - 1..done, ""));
        }
    }
    edits
}

/// Replaces delimiters and blanks of other scripts by their ASCII equivalents: `password：…`.
fn wide_signs(text: &str) -> Vec<Edit> {
    if text.is_ascii() {
        return Vec::new();
    }
    let instead = |letter: char| match letter {
        '：' | '﹕' | '︓' | '꞉' | '∶' => Some(":"),
        '＝' | '﹦' | '꞊' => Some("="),
        letter if !letter.is_ascii() && letter.is_whitespace() => Some(" "),
        _ => None,
    };
    let edit = |(at, letter): (usize, char)| Some((at..at + letter.len_utf8(), instead(letter)?));
    text.char_indices().filter_map(edit).collect()
}

/// Returns `true` if a line is a header with a credential, or the beginning of a folded one. `next` is the
/// text of the next line.
fn is_folded_header(line: &[u8], next: &[u8]) -> bool {
    let ends_like = |text: &[u8], end: &[u8]| {
        text.len().checked_sub(end.len()).is_some_and(|from| text[from..].eq_ignore_ascii_case(end))
    };
    let Some(last) = memrchr(b':', line) else { return false };
    // The value of the header is on the next line: `X-Token: Bearer`.
    let mut word = [b' '; 16];
    let sort = line[last + 1..].trim_ascii_start();
    if sort.len() < word.len() && !sort.is_empty() {
        word[..sort.len()].copy_from_slice(sort);
        if token_patterns::words(&[&word[..=sort.len()], b"x"].concat()) > 0 {
            return true;
        }
    }
    memchr::memchr_iter(b':', line).any(|at| {
        let name = line[..at].trim_ascii_end();
        let is_empty = line[at + 1..].trim_ascii().is_empty();
        (ends_like(name, b"authorization") || ends_like(name, b"cookie"))
            && (!is_empty || token_patterns::words(&next[..next.len().min(32)]) > 0)
    })
}

fn indent(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count()
}

/// Finds the next position of a delimiter. Queried positions must not decrease, so that the text is searched
/// only once.
struct Next {
    sign: &'static [u8],
    next: Option<usize>,
    last: Option<usize>,
}

impl Next {
    fn new(sign: &'static [u8], bytes: &[u8]) -> Self {
        Self { sign, next: memchr::memmem::find(bytes, sign), last: None }
    }

    fn pass(&mut self, bytes: &[u8], at: usize) {
        while let Some(next) = self.next.filter(|next| *next < at) {
            self.last = Some(next);
            let from = next + 1;
            self.next = memchr::memmem::find(&bytes[from..], self.sign).map(|length| from + length);
        }
    }
}

/// What a gap between a name, a delimiter and a value contains, apart from blanks.
#[derive(Default)]
struct Contents {
    line: Option<usize>,
    has_escaped_line: bool,
    has_tab: bool,
    has_comment: bool,
    has_hash: bool,
    has_property: bool,
}

impl Contents {
    fn has_line(&self) -> bool {
        self.line.is_some() || self.has_escaped_line
    }

    fn is_blank(&self) -> bool {
        !(self.has_line() || self.has_tab || self.has_comment || self.has_hash || self.has_property)
    }
}

struct Gaps<'a> {
    text: &'a str,
    bytes: &'a [u8],
    open: Next,
    close: Next,
    line: Next,
    edits: Vec<Edit>,
}

impl<'a> Gaps<'a> {
    fn new(text: &'a str) -> Self {
        let bytes = text.as_bytes();
        let [open, close] = [b"/*", b"*/"].map(|sign| Next::new(sign, bytes));
        let line = Next::new(b"\n", bytes);
        Self { text, bytes, open, close, line, edits: Vec::new() }
    }

    fn edits(mut self) -> Vec<Edit> {
        let mut done = 0;
        for at in memchr2_iter(b':', b'=', self.bytes) {
            if at < done {
                continue;
            }
            let is_apart =
                |byte: &u8| matches!(byte, b'\n' | b'\t' | b'/' | b' ' | b'n' | b'r' | b't' | b'\r');
            let is_before = at.checked_sub(1).is_some_and(|before| is_apart(&self.bytes[before]));
            if is_before {
                self.before(at, done);
            }
            let next = self.bytes.get(at + 1);
            if next.is_some_and(|next| next.is_ascii_whitespace() || matches!(next, b'/' | b'\\')) {
                done = self.behind(at);
            }
        }
        self.edits
    }

    /// Joins the delimiter at `at` to the name before it.
    fn before(&mut self, at: usize, done: usize) {
        let (bytes, mut end, mut gap) = (self.bytes, at, Contents::default());
        loop {
            let before = &bytes[done..end];
            match before {
                [.., b' ' | b'\r'] => end -= 1,
                [.., b'\t'] => (end, gap.has_tab) = (end - 1, true),
                [.., b'\n'] => {
                    end -= 1;
                    gap.line = Some(end);
                    let line = done + memrchr(b'\n', &bytes[done..end]).map_or(0, |at| at + 1);
                    let slashes = memchr::memmem::find(&bytes[line..end], b"//").map(|start| line + start);
                    if let Some(comment) =
                        slashes.or_else(|| hash(&bytes[line..end]).map(|start| line + start))
                    {
                        (end, gap.has_comment) = (comment, true);
                    }
                }
                [.., b'\\', b'n' | b'r' | b't'] => {
                    end = done
                        + before[..before.len() - 1]
                            .iter()
                            .rposition(|byte| *byte != b'\\')
                            .map_or(0, |at| at + 1);
                    gap.has_escaped_line = true;
                }
                [.., b'*', b'/'] => {
                    self.open.pass(bytes, end - 2);
                    let Some(open) = self.open.last.filter(|open| *open >= done && *open + 2 <= end - 2)
                    else {
                        break;
                    };
                    (end, gap.has_comment) = (open, true);
                }
                _ => break,
            }
        }
        if gap.is_blank() || end <= done {
            return;
        }
        match bytes[end - 1] {
            b'"' | b'\'' => self.leave_out(end..at),
            _ if !self.text[..end].ends_with(is_name_letter) || gap.has_escaped_line => {}
            _ if gap.line.is_none() => self.leave_out(end..at),
            _ if bytes[at] == b':' => {
                if let Some(sign) = self.explicit_key(at, end, done) {
                    self.leave_out(sign);
                    self.leave_out(end..at);
                }
            }
            _ => {}
        }
    }

    /// Removes a part of the text, and all edits from the start of that part on. A removed comment may
    /// contain delimiters that were joined before.
    fn leave_out(&mut self, part: Range<usize>) {
        self.edits.truncate(self.edits.partition_point(|(place, _)| place.end <= part.start));
        self.edits.push((part, ""));
    }

    /// Returns the delimiter that ends an explicit YAML key at `end`: `? password`, with the value on the
    /// next line. A similar expression in program code is indented more deeply than the line before.
    fn explicit_key(&self, at: usize, end: usize, done: usize) -> Option<Range<usize>> {
        let bytes = self.bytes;
        let line = memrchr(b'\n', &bytes[..end]).map_or(0, |at| at + 1);
        let indent = indent(&bytes[line..end]);
        let list = if bytes[line + indent..end].starts_with(b"- ") { 2 } else { 0 };
        let sign = line + indent + list;
        let is_key = bytes[sign..end].starts_with(b"? ") && sign >= done;
        let before = &bytes[..line.saturating_sub(1)];
        let before = &before[memrchr(b'\n', before).map_or(0, |at| at + 1)..];
        let is_deeper = !before.trim_ascii().is_empty() && self::indent(before) < indent;
        let begins_map = before.trim_ascii_end().ends_with(b":");
        let rest = &bytes[at..];
        let value = &rest[..memchr(b'\n', rest).unwrap_or(rest.len())];
        let is_code = value.trim_ascii_end().ends_with(b";") || is_deeper && !begins_map;
        (is_key && !is_code).then_some(sign..sign + 2)
    }

    /// Joins the delimiter at `at` to the value after it. Returns the start of the value.
    fn behind(&mut self, at: usize) -> usize {
        let (bytes, from) = (self.bytes, at + 1);
        let (mut end, mut gap) = (from, Contents::default());
        let before = self.text[..at].trim_end_matches([' ', '\t', '\n', '\r']);
        let is_quoted =
            self.edits.last().is_some_and(|(place, _)| place.end == at) || before.ends_with(['"', '\'']);
        loop {
            let is_apart = bytes[end - 1].is_ascii_whitespace() || gap.has_escaped_line;
            match &bytes[end..] {
                [b' ' | b'\r', ..] => end += 1,
                [b'\t', ..] => (end, gap.has_tab) = (end + 1, true),
                [b'\n', ..] => {
                    gap.line = Some(end);
                    end += 1;
                }
                [b'\\', ..] => {
                    let signs = bytes[end..].iter().take(8).take_while(|byte| **byte == b'\\').count();
                    if !matches!(bytes.get(end + signs), Some(b'n' | b'r' | b't')) {
                        break;
                    }
                    (end, gap.has_escaped_line) = (end + signs + 1, true);
                }
                [b'/', b'*', ..] => {
                    self.close.pass(bytes, end + 2);
                    let Some(close) = self.close.next else { break };
                    (end, gap.has_comment) = (close + 2, true);
                }
                [b'/', b'/', ..] if is_apart || is_quoted => {
                    let Some(line) = self.line_end(end) else { break };
                    (end, gap.has_comment) = (line, true);
                }
                [b'#', ..] if is_apart => {
                    let Some(line) = self.line_end(end) else { break };
                    (end, gap.has_hash) = (line, true);
                }
                [b'!' | b'&', ..] if is_apart && bytes[at] == b':' => {
                    let Some(length) = property(&bytes[end..]) else { break };
                    (end, gap.has_property) = (end + length, true);
                }
                _ => break,
            }
        }
        let rest = &bytes[end..];
        let escapes = rest.iter().take(8).take_while(|byte| **byte == b'\\').count();
        let is_added = gap.has_comment || gap.has_hash || gap.has_property;
        let instead = match rest.get(escapes) {
            None => None,
            Some(b'"' | b'\'' | b'`') if is_added || gap.has_line() => Some(from..end),
            _ if escapes > 0 => None,
            Some(b'[' | b'{' | b'0'..=b'9') if is_quoted && (is_added || gap.has_line()) => Some(from..end),
            // A YAML value on its own line is recognized by its indentation, so the indentation stays.
            Some(_) if is_added && !gap.has_comment => Some(from..gap.line.unwrap_or(end)),
            Some(_) if gap.has_comment && (!gap.has_line() || is_quoted) => Some(from..end),
            Some(_) => None,
        };
        let is_changed = instead.is_some();
        if let Some(place) = instead {
            let blank = if place.end == end { " " } else { "" };
            self.edits.push((place, blank));
        }
        // A comment may follow the block indicator `|` or `>`.
        if is_changed || matches!(rest, [b'|' | b'>', ..]) {
            let is_sign = |byte: &&u8| matches!(byte, b'|' | b'>' | b'+' | b'-' | b'0'..=b'9');
            end += self.block_comment(end, rest.iter().take(4).take_while(is_sign).count());
        }
        // The beginning of this value may also be the name before the next delimiter.
        end.max(from)
    }

    /// Returns the end of the line that contains this position, if another line follows.
    fn line_end(&mut self, at: usize) -> Option<usize> {
        self.line.pass(self.bytes, at);
        self.line.next
    }

    fn block_comment(&mut self, begin: usize, header: usize) -> usize {
        let from = begin + header;
        let blank = indent(&self.bytes[from..]);
        let is_comment = header > 0 && blank > 0 && self.bytes.get(from + blank) == Some(&b'#');
        let Some(line) = is_comment.then(|| self.line_end(from)).flatten() else { return 0 };
        self.edits.push((from..line, ""));
        line - begin
    }
}

/// Returns the position of the `#` that begins a YAML comment.
fn hash(line: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'#', line)
        .find(|at| at.checked_sub(1).is_none_or(|before| line[before].is_ascii_whitespace()))
}

/// Returns the length of the tag or anchor before a YAML value: `!!str`, `!<…>`, `&a`. Returns `None` for
/// other text, and for a tag that says that the value is a reference.
fn property(rest: &[u8]) -> Option<usize> {
    let is_part = |byte: &&u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'!' | b'<' | b'>' | b':' | b',' | b'.' | b'/' | b'_' | b'-')
    };
    let is_anchor = rest.first() == Some(&b'&');
    let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let inner = rest[1..].iter().take(MAX_PROPERTY_BYTES);
    let length =
        if is_anchor { inner.take_while(is_name).count() } else { inner.take_while(is_part).count() };
    let name = &rest[1..=length];
    let words: &[&str] = if is_anchor { &CODE_WORDS } else { &REFERENCE_TAGS };
    let is_other = words.iter().any(|word| name.eq_ignore_ascii_case(word.as_bytes()));
    // What looks like a tag may be the value itself. Then no other value follows on the same line.
    let behind = rest.get(length + 1..)?;
    let is_followed = match behind {
        [b'\r' | b'\n', ..] => true,
        [b' ' | b'\t', rest @ ..] => !matches!(rest, [b'=' | b'&', b' ' | b'=' | b'&', ..] | [b'=', ..]),
        _ => false,
    };
    (is_followed && !is_other && (length > 0 || !is_anchor)).then_some(length + 1)
}
