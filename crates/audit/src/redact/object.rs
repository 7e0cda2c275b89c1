//! Finds values that another member of the same object names, in any order: `{"name": "password", "value":
//! "…"}`. Also finds filled form fields: `{"selector": "#password", "text": "…"}`.

use std::ops::Range;

use super::name::{self, NamedValueKind};
use super::pair::behind_last;
use super::token_patterns::{self, PLACEHOLDER_BYTES, is_name_letter};
use super::value::{closing, is_given};

const MAX_DEPTH: usize = 64;

const MAX_NESTED_TEXTS: usize = 4;

/// Members that always name the value of a member beside them. All member names here are in lower case.
const NAMES: [&str; 6] = ["field", "header", "k", "key", "name", "variable"];
/// Members that name the value beside them only if that value is a text. With another value they may have
/// another meaning.
const IDS: [&str; 3] = ["id", "label", "target"];
/// Members that describe a form field.
const FIELDS: [&str; 9] =
    ["arialabel", "css", "element", "locator", "placeholder", "ref", "selector", "testid", "xpath"];
/// Members whose value another member may name.
const VALUES: [&str; 5] = ["data", "text", "v", "val", "value"];
/// Members whose value another member may name if the value is one word. Longer values are texts for people.
const WORD_VALUES: [&str; 5] = ["answer", "content", "default", "example", "input"];

/// Words in the description of a form field that say nothing about its content.
const FIELD_WORDS: [&str; 14] = [
    "a", "box", "control", "edit", "element", "entry", "field", "for", "input", "optional", "required",
    "text", "textbox", "txt",
];

/// The kind of value that a label announces in a member beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Label {
    /// A secret, if the value looks like a generated token: `{"type": "token"}` is also part of a program.
    Token,
    /// A secret, if the value is one word: `{"id": "password", "text": "Enter your password"}` is part of a
    /// page.
    Word,
    /// A secret, if the value is a text.
    Text,
    Secret,
}

impl Label {
    /// Returns the label that the member `key` is for the value beside it. Returns `None` if the member does
    /// not announce a secret.
    pub(super) fn new(key: &str, text: &str, named: impl Fn(&str) -> Option<NamedValueKind>) -> Option<Self> {
        let is_any = |known: &[&str]| known.iter().any(|known| key.eq_ignore_ascii_case(known));
        let is_secret = || named(name::end_of(text)).is_some_and(NamedValueKind::is_secret);
        if key.eq_ignore_ascii_case("type") {
            let is_other = ["token", "secret", "cookie", "credential", "credentials"]
                .iter()
                .any(|word| ends_with(text, word));
            return is_secret().then_some(if is_other { Self::Token } else { Self::Text });
        }
        if is_any(&NAMES) {
            return (is_secret() || is_secret_field(text, &named)).then_some(Self::Secret);
        }
        if is_any(&FIELDS) || key.eq_ignore_ascii_case("aria-label") {
            return (is_secret() || is_secret_field(text, &named)).then_some(Self::Text);
        }
        if is_any(&IDS) {
            return (is_secret() || is_secret_field(text, &named)).then_some(Self::Word);
        }
        let is_name = ends_with(key, "key") || ends_with(key, "name");
        (is_name && is_secret()).then_some(Self::Word)
    }

    pub(super) fn accepts(self, text: &str) -> bool {
        match self {
            Self::Token => name::is_token_like(text),
            Self::Word => {
                !text.contains(char::is_whitespace)
                    && token_patterns::can_be_value(text.as_bytes(), token_patterns::MIN_OPTION_BYTES)
            }
            Self::Text | Self::Secret => !text.is_empty(),
        }
    }
}

/// Returns `true` if a member may contain the value that another member names.
pub(super) fn is_value_key(key: &str) -> bool {
    VALUES.iter().any(|known| key.eq_ignore_ascii_case(known)) || ends_with(key, "value") || is_word_key(key)
}

fn is_word_key(key: &str) -> bool {
    WORD_VALUES.iter().any(|known| key.eq_ignore_ascii_case(known))
}

/// Returns the kind of value that `label` announces in the member `key`. Returns `None` if that member cannot
/// contain the value.
pub(super) fn label_of(key: &str, label: Label) -> Option<Label> {
    is_value_key(key).then(|| if is_word_key(key) { label.min(Label::Word) } else { label })
}

pub(super) fn is_label_key(key: &str) -> bool {
    Label::new(key, "password", |_| Some(NamedValueKind::Secret)).is_some()
}

fn ends_with(text: &str, end: &str) -> bool {
    let from = text.len().checked_sub(end.len());
    from.is_some_and(|from| text.as_bytes()[from..].eq_ignore_ascii_case(end.as_bytes()))
}

/// Returns `true` for the description or the selector of a form field that takes a secret: `Password field`,
/// `input[name=password]`.
fn is_secret_field(text: &str, named: impl Fn(&str) -> Option<NamedValueKind>) -> bool {
    const MAX_BYTES: usize = 256;
    let is_secret = |word: &str| named(word).is_some_and(NamedValueKind::is_secret);
    let is_field_word = |word: &str| FIELD_WORDS.iter().any(|known| word.eq_ignore_ascii_case(known));
    if text.len() > MAX_BYTES {
        return false;
    }
    let is_selector = text.contains(['#', '[', '=', '@', '/', '>', '(']) || text.starts_with('.');
    if is_selector {
        let words = text.split(|letter: char| !is_name_letter(letter));
        return words.filter(|word| !word.is_empty()).any(|word| {
            let mut core = word;
            while let Some((before, _)) = core.rsplit_once(['-', '_']).filter(|(_, last)| is_field_word(last))
            {
                core = before;
            }
            is_secret(core)
        });
    }
    // In `password for NAME`, the name says who owns the secret.
    let text = text.split(" for ").next().unwrap_or(text);
    let mut core = text.trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric());
    while let Some((before, _)) = core.rsplit_once([' ', '-', '_']).filter(|(_, last)| is_field_word(last)) {
        core = before.trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric());
    }
    core.len() < text.len() && is_secret(core)
}

#[derive(Clone, Copy, Debug, Default)]
enum Key<'a> {
    #[default]
    None,
    Label(&'a str),
    Value(&'a str),
}

impl<'a> Key<'a> {
    fn new(key: &'a str) -> Self {
        if is_value_key(key) { Self::Value(key) } else { Self::Label(key) }
    }
}

#[derive(Default)]
struct Scope<'a> {
    is_list: bool,
    key: Key<'a>,
    label: Option<Label>,
    /// Values that a label may announce: key, position, and `true` if the value is quoted.
    values: Vec<(&'a str, Range<usize>, bool)>,
}

/// Finds the values in objects that have a label of a secret. Quoted texts count only within braces.
pub(super) fn objects(
    text: &str,
    named: impl Fn(&str) -> Option<NamedValueKind>,
    found: &mut Vec<Range<usize>>,
) {
    read(text, 0, 0, &named, found);
}

fn read(
    text: &str,
    offset: usize,
    depth: usize,
    named: &impl Fn(&str) -> Option<NamedValueKind>,
    found: &mut Vec<Range<usize>>,
) {
    let bytes = text.as_bytes();
    let mut scopes: Vec<Scope<'_>> = Vec::new();
    // For each kind of quote and number of backslashes before it: `true` if no closing quote follows in the
    // text.
    let mut unclosed = [[false; 9]; 3];
    let mut at = 0;
    while at < bytes.len() {
        let Some(scope) = scopes.last_mut() else {
            let Some(open) = memchr::memchr(b'{', &bytes[at..]) else { return };
            scopes.push(Scope::default());
            at += open + 1;
            continue;
        };
        match bytes[at] {
            b'{' | b'[' => {
                let is_list = bytes[at] == b'[';
                let key = if is_list { scope.key } else { Key::None };
                if scopes.len() == MAX_DEPTH {
                    for scope in scopes.drain(..MAX_DEPTH / 2) {
                        settle(text, offset, &scope, found);
                    }
                }
                scopes.push(Scope { is_list, key, ..Scope::default() });
            }
            b'}' | b']' => {
                if let Some(mut scope) = scopes.pop() {
                    match scopes.last_mut().filter(|_| scope.is_list) {
                        Some(outer) => outer.values.append(&mut scope.values),
                        None => settle(text, offset, &scope, found),
                    }
                }
            }
            b',' if !scope.is_list => scope.key = Key::None,
            // A semicolon shows that the braces contain statements, not an object.
            b';' => *scope = Scope { is_list: scope.is_list, ..Scope::default() },
            quote @ (b'"' | b'\'' | b'`') => {
                let escapes = bytes[..at].iter().rev().take(8).take_while(|byte| **byte == b'\\').count();
                let kind = usize::from(quote == b'\'') + 2 * usize::from(quote == b'`');
                let before = bytes[..at - escapes].trim_ascii_end().last();
                let is_opening = quote == b'"' || before.is_some_and(|byte| b"{[,:(".contains(byte));
                let end = match is_opening && !unclosed[kind][escapes] {
                    true => closing(bytes, at + 1, quote, escapes),
                    false => None,
                };
                let Some(end) = end else {
                    unclosed[kind][escapes] |= is_opening;
                    at += 1;
                    continue;
                };
                let place = at + 1..end;
                at = end + escapes;
                let inner = text.get(place.clone()).unwrap_or_default();
                let rest = &bytes[(at + 1).min(bytes.len())..];
                let blank = rest.iter().take(256).take_while(|byte| byte.is_ascii_whitespace()).count();
                if rest.get(blank) == Some(&b':') && !scope.is_list {
                    scope.key = Key::new(inner);
                    // Skips the delimiter, so that it is not examined again.
                    at += blank + 1;
                } else {
                    add(scope, inner, place.clone(), true, named);
                    if depth < MAX_NESTED_TEXTS && inner.contains("{\\") {
                        read(inner, offset + place.start, depth + 1, named, found);
                    }
                }
            }
            b':' if !scope.is_list => {
                let before = text[..at].trim_end_matches(' ');
                let from = before.len().saturating_sub(name::MAX_NAME_BYTES);
                let from = (from..=before.len()).find(|at| before.is_char_boundary(*at)).unwrap_or(from);
                let before = &before[from..];
                scope.key = Key::new(&before[behind_last(before, |letter| !is_name_letter(letter))..]);
            }
            byte if !byte.is_ascii_whitespace() && !matches!(scope.key, Key::None) && byte != b'\\' => {
                // An unquoted value.
                let is_end = |byte: &u8| byte.is_ascii_whitespace() || b",}]{[;\"'`\\:".contains(byte);
                let length = bytes[at..].iter().position(is_end).unwrap_or(bytes.len() - at);
                let end = at + length;
                if length > 0 && bytes.get(end) != Some(&b':') {
                    let inner = text.get(at..end).unwrap_or_default();
                    add(scope, inner, at..end, false, named);
                    if !scope.is_list {
                        scope.key = Key::None;
                    }
                }
                at = end.max(at + 1);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    for scope in &scopes {
        settle(text, offset, scope, found);
    }
}

fn add(
    scope: &mut Scope<'_>,
    text: &str,
    place: Range<usize>,
    is_quoted: bool,
    named: impl Fn(&str) -> Option<NamedValueKind>,
) {
    match scope.key {
        Key::Label(key) if !scope.is_list => scope.label = scope.label.max(Label::new(key, text, named)),
        Key::Value(key) => scope.values.push((key, place, is_quoted)),
        _ => {}
    }
}

fn settle(text: &str, offset: usize, scope: &Scope<'_>, found: &mut Vec<Range<usize>>) {
    let Some(label) = scope.label else { return };
    for (key, place, is_quoted) in &scope.values {
        let Some(label) = label_of(key, label) else { continue };
        let Some(shown) = text.get(place.clone()) else { continue };
        let is_long = match is_quoted {
            true => shown.len() >= token_patterns::MIN_QUOTED_BYTES,
            false => token_patterns::can_be_value(shown.as_bytes(), usize::MAX),
        };
        if is_long
            && label.accepts(shown)
            && is_given(shown.as_bytes())
            && shown.as_bytes() != PLACEHOLDER_BYTES
        {
            found.push(offset + place.start..offset + place.end);
        }
    }
}
