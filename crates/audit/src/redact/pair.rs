//! Finds values whose names are not directly before a delimiter: in pairs, attributes and calls, and in
//! declarations with a type.

use std::ops::Range;

use super::name::{self, NamedValueKind};
use super::token_patterns::{self, is_name_letter, tag_before};

/// Members that name the value beside them. So do all members that end with `key` or `name`: `{"name":
/// "TOKEN", "value": "…"}`.
const LABELS: [&str; 4] = ["field", "header", "id", "variable"];

const MAX_LABEL_DISTANCE: usize = 192;

const MAX_ITEM_BYTES: usize = 512;

const MAX_TYPE_BYTES: usize = 64;

/// Endings of functions that set a value by its name, in lower case: `setenv("TOKEN", "…")`.
const SETTERS: [&str; 18] = [
    "add",
    "append",
    "arg",
    "define",
    "env",
    "environmentvariable",
    "field",
    "header",
    "insert",
    "param",
    "parameter",
    "property",
    "put",
    "replace",
    "set",
    "setdefault",
    "setting",
    "variable",
];

/// Endings of functions whose second argument is a password, in lower case and without separators.
const LOGIN_CALLS: [&str; 7] = [
    "authenticate",
    "basicauth",
    "basiccredentials",
    "credential",
    "credentials",
    "login",
    "passwordauthentication",
];

const MAX_BRACED_BYTES: usize = 1024;

const MAX_CALL_BYTES: usize = 256;

/// Returns `true` if a label beside a value is the name of a secret: `key="password" value="…"`. `start` is
/// the start of the value's own attribute name, which is not a label.
pub(super) fn is_labeled(
    text: &str,
    start: usize,
    name: &str,
    named: impl Fn(&str) -> Option<NamedValueKind>,
) -> bool {
    let end = name.len().checked_sub("value".len()).and_then(|from| name.get(from..));
    if !end.is_some_and(|end| end.eq_ignore_ascii_case("value")) {
        return false;
    }
    let before = &text[floor(text, start.saturating_sub(MAX_LABEL_DISTANCE))..start];
    let edge = behind_last(before, |letter| matches!(letter, '{' | '}' | '<' | '>'));
    let is_enclosed = before[..edge].ends_with(['{', '<']);
    // In a list without braces, an item ends where the next one starts.
    let before = &before[edge..];
    // The name of an element can label its attribute: `<Password value="…"/>`.
    let tag = before.split(|letter: char| letter.is_ascii_whitespace()).next().unwrap_or(before);
    if text[..start - before.len()].ends_with('<') && is_secret(tag, &named) {
        return true;
    }
    let before = &before[before.rfind("\n-").unwrap_or(0)..];
    if let Some((label, end)) = label_values(before).next_back()
        && is_secret(label, &named)
    {
        let is_around = |letter: char| letter.is_whitespace() || matches!(letter, '"' | '\'' | '\\' | ',');
        let between = &before[end..];
        if between.trim_matches(is_around).is_empty() || is_enclosed && !between.contains(';') {
            return true;
        }
    }
    if edge > 0
        && text[..start].ends_with(|letter: char| letter.is_ascii_whitespace())
        && is_labeled_attribute(text, start + name.len(), &named)
        || is_labeled_item(text, start, name.len(), &named)
    {
        return true;
    }
    let after = &text[start..floor(text, start + MAX_LABEL_DISTANCE)];
    let is_braced = text[..start].trim_end_matches(['"', '\'', ' ', '\n', '\t', '\\']).ends_with(['{', ',']);
    let after = after.find('}').filter(|_| is_braced).map(|at| &after[..at]);
    after.is_some_and(|after| label_values(after).any(|(label, _)| is_secret(label, &named)))
}

/// Returns `true` if a label of a secret follows, in the same tag, the attribute whose name ends at `at`:
/// `value="…" name="password"`.
fn is_labeled_attribute(text: &str, at: usize, named: impl Fn(&str) -> Option<NamedValueKind>) -> bool {
    let bytes = text.as_bytes();
    let quote = at + 1;
    let Some(b'"' | b'\'') = bytes.get(quote).filter(|_| bytes[at] == b'=') else { return false };
    let value = &bytes[quote + 1..bytes.len().min(quote + 1 + token_patterns::MAX_TAG_TEXT_BYTES)];
    let Some(length) = memchr::memchr(bytes[quote], value) else { return false };
    let from = quote + 1 + length + 1;
    let after = &text[from..floor(text, from + MAX_LABEL_DISTANCE)];
    after.find('>').is_some_and(|end| label_values(&after[..end]).any(|(label, _)| is_secret(label, &named)))
}

/// Returns `true` if the YAML member whose name begins at `start` has a label of a secret before or after it,
/// in the same list item and with the same indentation.
fn is_labeled_item(
    text: &str,
    start: usize,
    length: usize,
    named: impl Fn(&str) -> Option<NamedValueKind>,
) -> bool {
    if !text[start + length..].trim_start_matches(['"', '\'', ' ']).starts_with(':') {
        return false;
    }
    let from = floor(text, start.saturating_sub(MAX_ITEM_BYTES));
    let before = &text[from..start];
    let line = before.rfind('\n').map_or(0, |at| at + 1);
    let indent = |line: &str| line.len() - line.trim_start_matches([' ', '-']).len();
    let own = before[line..].trim_end_matches(['"', '\'']);
    let column = indent(own);
    if column != own.len() {
        return false;
    }
    let is_label = |line: &str| {
        indent(line) == column
            && line[column..].find(':').is_some_and(|end| {
                let place = label_values(&line[column..]).next();
                place.is_some_and(|(label, at)| at > end && is_secret(label, &named))
            })
    };
    let is_blank = |line: &&str| line.trim().is_empty();
    let begins = |line: &str| line[..indent(line)].contains('-');
    let after = &text[start..floor(text, start + MAX_ITEM_BYTES)];
    let mut behind = after.split('\n').skip(1).filter(|line| !is_blank(line));
    let mut behind =
        behind.by_ref().take_while(|line| indent(line) >= column && (indent(line) > column || !begins(line)));
    if behind.any(is_label) {
        return true;
    }
    if own.contains('-') {
        return false;
    }
    let mut is_done = false;
    let lines = before[..line].rsplit('\n').filter(|line| !is_blank(line));
    let mut lines = lines.take_while(|line| {
        let is_inside = !is_done && indent(line) >= column;
        is_done = indent(line) == column && begins(line);
        is_inside
    });
    lines.any(is_label)
}

fn is_secret(label: &str, named: impl Fn(&str) -> Option<NamedValueKind>) -> bool {
    named(name::end_of(label)).is_some_and(NamedValueKind::is_secret)
}

fn label_values(text: &str) -> impl DoubleEndedIterator<Item = (&str, usize)> {
    let is_around = |letter: char| matches!(letter, '"' | '\'' | ' ' | '\\');
    text.match_indices(['=', ':']).filter_map(move |(at, _)| {
        let label = text[..at].trim_end_matches(is_around);
        let label = &label[behind_last(label, |letter| !is_name_letter(letter))..];
        let ends = |known: &str| {
            let end = label.len().checked_sub(known.len()).and_then(|from| label.get(from..));
            end.is_some_and(|end| end.eq_ignore_ascii_case(known))
        };
        if !(ends("key") || ends("name") || LABELS.iter().any(|known| label.eq_ignore_ascii_case(known))) {
            return None;
        }
        let value = text[at + 1..].trim_start_matches(is_around);
        let end = value.find(|letter: char| is_around(letter) || matches!(letter, ',' | '\n' | '\r'));
        let length = end.unwrap_or(value.len());
        Some((&value[..length], text.len() - value.len() + length))
    })
}

/// Finds the values of Kubernetes secrets: all values in `data` and `stringData` of a document whose `kind`
/// is `Secret`.
pub(super) fn secret_manifests(text: &str, found: &mut Vec<Range<usize>>) {
    if !text.contains("Secret") || !text.contains("kind") {
        return;
    }
    let mut begin = 0;
    for document in text.split("\n---") {
        let is_secret = document.match_indices("kind").any(|(at, kind)| {
            let rest = document[at + kind.len()..].trim_start_matches(['"', '\'', ' ', '\\', ':']);
            rest.strip_prefix("Secret").is_some_and(|rest| !rest.starts_with(is_name_letter))
        });
        if is_secret {
            let from = found.len();
            token_patterns::assignments(
                document,
                |name| is_manifest_data(name).then_some(NamedValueKind::Secret),
                found,
            );
            found[from..].iter_mut().for_each(|place| *place = begin + place.start..begin + place.end);
        }
        begin += document.len() + "\n---".len();
    }
}

/// Returns `true` if a member with this name contains the values of a Kubernetes secret.
pub(super) fn is_manifest_data(name: &str) -> bool {
    matches!(name, "data" | "stringData")
}

/// Returns `true` if a label of a secret belongs to the tag that ends at `at`, in the tag or before it:
/// `<entry key="password">`, `<key>password</key><string>`.
pub(super) fn is_labeled_tag(
    text: &str,
    at: usize,
    closing: &mut ClosingTags,
    named: impl Fn(&str) -> Option<NamedValueKind>,
) -> bool {
    let Some(start) = tag_before(&text[..at]).and_then(|tag| tag.rfind('<')) else { return false };
    let tag = &text[start + 1..at];
    if tag.starts_with('/') {
        return false;
    }
    if label_values(tag).any(|(label, _)| is_secret(label, &named)) {
        return true;
    }
    let before = text[..start].trim_end();
    let is_value = tag
        .get(tag.len().saturating_sub("value".len())..)
        .is_some_and(|end| end.eq_ignore_ascii_case("value"));
    // The label may belong to the enclosing element, or be its name: `<setting name="ApiKey"><value>`,
    // `<password><value>`.
    if is_value && before.ends_with('>') {
        let outer = before.len() - 1;
        let Some(start) = tag_before(&before[..outer]).and_then(|tag| tag.rfind('<')) else { return false };
        let tag = &before[start + 1..outer];
        let name = tag.split(|letter: char| letter.is_ascii_whitespace()).next().unwrap_or(tag);
        let is_labeled = label_values(tag).any(|(label, _)| is_secret(label, &named));
        if is_labeled || !name.starts_with('/') && is_secret(name, &named) {
            return true;
        }
    }
    // The label may be a separate element before or after this one.
    let from = floor(before, before.len().saturating_sub(MAX_LABEL_DISTANCE));
    let in_front = before[from..].strip_suffix('>').and_then(|before| {
        let (before, closing) = before.rsplit_once("</")?;
        let (_, label) = before.rsplit_once('<')?.1.split_once('>')?;
        is_label_element(closing).then_some(label)
    });
    if in_front.is_some_and(|label| is_secret(label.trim(), &named)) {
        return true;
    }
    // If a label precedes the value, a label after the value belongs to the next value.
    if in_front.is_some() || !is_value {
        return false;
    }
    let after = &text[at + 1..floor(text, at + 1 + token_patterns::MAX_TAG_TEXT_BYTES)];
    let behind = closing.first(text, at + 1).and_then(|place| after.get(place - at + 1..)).and_then(|rest| {
        let (tag, rest) = rest.split_once('>')?.1.trim_start().strip_prefix('<')?.split_once('>')?;
        is_label_element(tag).then(|| rest.split('<').next())?
    });
    behind.is_some_and(|label| is_secret(label.trim(), &named))
}

/// Finds the next closing tag. Queried positions must not decrease, so that a text is searched only once, for
/// any number of tags.
#[derive(Debug, Default)]
pub(super) struct ClosingTags {
    next: Option<usize>,
    #[cfg(test)]
    pub(super) searched: usize,
}

impl ClosingTags {
    fn first(&mut self, text: &str, from: usize) -> Option<usize> {
        if self.next.is_none_or(|next| next < from) {
            let length = text[from..].find("</");
            self.next = Some(length.map_or(text.len(), |length| from + length));
            #[cfg(test)]
            {
                self.searched += self.next.unwrap_or_default() - from;
            }
        }
        self.next.filter(|next| *next < text.len())
    }
}

/// Returns `true` if the content of elements with this tag names the value beside them.
fn is_label_element(tag: &str) -> bool {
    ["id", "key", "name"].iter().any(|known| tag.eq_ignore_ascii_case(known))
}

/// Returns `true` if the name before a type marks a secret, and a text is assigned to it: `password: &str =
/// "…"`. `start` is the start of the type's last word.
pub(super) fn is_typed(
    text: &str,
    start: usize,
    sign: u8,
    named: impl Fn(&str) -> Option<NamedValueKind>,
) -> bool {
    if sign != b'=' {
        return false;
    }
    let from = floor(text, start.saturating_sub(MAX_TYPE_BYTES));
    let before = &text[from..start];
    let is_type = |letter: char| {
        letter.is_ascii_alphanumeric()
            || matches!(
                letter,
                '_' | '&' | '\'' | '<' | '>' | '*' | ' ' | '[' | ']' | '|' | '.' | ':' | '(' | ')'
            )
    };
    let before = &before[behind_last(before, |letter| !is_type(letter))..];
    // A double colon separates the parts of a path within the type.
    let is_single = |at: &usize| !before[..*at].ends_with(':') && !before[at + 1..].starts_with(':');
    let Some(colon) = before.match_indices(':').map(|(at, _)| at).rfind(is_single) else {
        return false;
    };
    let before = before[..colon].trim_end_matches(['?', ' ']);
    let name = &before[behind_last(before, |letter| !is_name_letter(letter))..];
    // A variable on the right side is not a secret.
    let value = text[start..].split_once('=').map_or("", |(_, value)| value.trim_start());
    let is_call =
        |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':' | '.' | '(' | '&');
    let value = &value[..floor(value, value.len().min(MAX_TYPE_BYTES))];
    let argument = value.trim_start_matches(is_call);
    let is_given = argument.len() == value.len() || value[..value.len() - argument.len()].ends_with('(');
    let is_text = is_given && argument.starts_with(['"', '\'', '`']);
    is_text && is_secret(name, named)
}

/// Returns the name in a pair of quoted texts with a comma: `("TOKEN", "…")`. Returns `None` if the text is
/// not such a pair.
pub(super) fn pair_name(text: &str, comma: usize) -> Option<Range<usize>> {
    let is_quote = |letter: char| matches!(letter, '"' | '\'');
    let before = text[..comma].trim_end_matches(' ').strip_suffix(is_quote)?;
    let after = text[comma + 1..].trim_start_matches([' ', '\n', '\t', '\\']);
    let name = before.trim_end_matches('\\');
    let start = behind_last(name, |letter| !is_name_letter(letter) && letter != '.');
    let is_pair = after.starts_with(is_quote) && start < name.len();
    (is_pair && name[..start].ends_with(is_quote)).then_some(start..name.len())
}

/// Returns `true` if the value of a pair can be a secret. Either a function sets the name, which begins at
/// `start`, to the value, or the pair is alone in its brackets and the value is not a word. A word in a list
/// of words is not a secret.
pub(super) fn is_pair_secret(text: &str, start: usize, value: &Range<usize>) -> bool {
    let Some(shown) = text.get(value.clone()).filter(|shown| !shown.contains(' ')) else { return false };
    let before = text[..start].trim_end_matches(['"', '\'', '\\', ' ']);
    let function = before.strip_suffix('(').map_or("", |call| {
        let from = floor(call, call.len().saturating_sub(name::MAX_NAME_BYTES));
        &call[from..]
    });
    if ends_like_word(function, &SETTERS) {
        return shown.len() >= token_patterns::MIN_QUOTED_BYTES;
    }
    let after = text[value.end..].trim_start_matches(['"', '\'', '\\', ' ']);
    let is_all = (before.is_empty() || before.ends_with(['(', '[', '{', '\n']))
        && (after.is_empty() || after.starts_with([')', ']', '}', '\n']));
    is_all
        && token_patterns::can_be_value(shown.as_bytes(), usize::MAX)
        && NamedValueKind::UnlessPattern.accepts(shown)
        && NamedValueKind::UnlessPath.accepts(shown)
}

/// Returns `true` if a function of this name takes a user name and a password.
pub(super) fn is_login_call(name: &str) -> bool {
    ends_like_word(name, &LOGIN_CALLS)
}

/// Returns `true` if a name ends with one of `words`, ignoring case and separators.
fn ends_like_word(name: &str, words: &[&str]) -> bool {
    words.iter().any(|word| {
        let mut letters = name.bytes().rev().filter(|byte| *byte != b'_');
        word.bytes()
            .rev()
            .all(|wanted| letters.next().is_some_and(|letter| letter.to_ascii_lowercase() == wanted))
    })
}

/// Returns the first argument of the function whose name begins at `begin`, if the argument is quoted.
pub(super) fn call_argument(bytes: &[u8], begin: usize) -> Option<Range<usize>> {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
    let name = bytes[begin..].iter().take(name::MAX_NAME_BYTES).take_while(|byte| is_name(byte)).count();
    let argument = begin + name + 1;
    (bytes.get(argument - 1) == Some(&b'(')).then(|| quoted(bytes, argument, MAX_CALL_BYTES))?
}

/// Returns the text in the quotes that open at `from`. The quotes must close on the same line and within
/// `most` bytes.
fn quoted(bytes: &[u8], from: usize, most: usize) -> Option<Range<usize>> {
    let quote = *bytes.get(from).filter(|byte| matches!(byte, b'"' | b'\''))?;
    let length = bytes[from + 1..].iter().take(most).position(|byte| *byte == quote || *byte == b'\n')?;
    (bytes[from + 1 + length] == quote).then_some(from + 1..from + 1 + length)
}

/// Returns the possible secrets in the braces that open at `begin`: `{"value": "…"}`.
pub(super) fn braced_values(bytes: &[u8], begin: usize) -> Vec<Range<usize>> {
    let mut values = Vec::new();
    let (mut depth, mut at, mut is_value) = (0_usize, begin, false);
    let end = bytes.len().min(begin + MAX_BRACED_BYTES);
    while at < end {
        match bytes[at] {
            b'{' => depth += 1,
            b'}' if depth <= 1 => break,
            b'}' => depth -= 1,
            b'"' | b'\'' => {
                let Some(place) = quoted(bytes, at, MAX_CALL_BYTES) else { break };
                at = place.end;
                if is_value && std::str::from_utf8(&bytes[place.clone()]).is_ok_and(name::is_token_like) {
                    values.push(place);
                }
            }
            _ => {}
        }
        is_value = bytes[at] == b':' || is_value && bytes[at].is_ascii_whitespace();
        at += 1;
    }
    values
}

/// Returns the default value of an environment variable: `token = env.TOKEN || "…"`.
pub(super) fn fallback(bytes: &[u8], value: &Range<usize>) -> Option<Range<usize>> {
    let start = &bytes[value.start..value.end.min(value.start + MAX_TYPE_BYTES)];
    let has = |word: &[u8]| start.windows(word.len()).any(|window| window.eq_ignore_ascii_case(word));
    let end = has(b"env").then_some(value.end)?;
    let rest = bytes[end..].iter().take(MAX_TYPE_BYTES);
    let close = rest.take_while(|byte| matches!(byte, b')' | b']' | b' ' | b'"' | b'\'')).count();
    let rest = &bytes[end + close..];
    let sign = ["||", "??", "?:", "or "].into_iter().find(|sign| rest.starts_with(sign.as_bytes()))?;
    let from = end + close + sign.len();
    let blank = bytes[from..].iter().take(MAX_TYPE_BYTES).take_while(|byte| **byte == b' ').count();
    quoted(bytes, from + blank, MAX_CALL_BYTES)
        .filter(|place| place.len() >= token_patterns::MIN_QUOTED_BYTES)
}

/// Returns the second quoted argument of the call whose arguments begin at `begin`, if the first argument is
/// also quoted: `("me", "…")`.
pub(super) fn second_text(bytes: &[u8], begin: usize) -> Option<Range<usize>> {
    let first = quoted(bytes, begin, MAX_CALL_BYTES)?;
    let gap =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b',' | b' ' | b'(' | b'&' | b'=' | b'_');
    let from = first.end + 1;
    let second = from + bytes[from..].iter().take(MAX_CALL_BYTES).take_while(|byte| gap(byte)).count();
    let has_comma = bytes[from..second].contains(&b',');
    quoted(bytes, second, MAX_CALL_BYTES).filter(|place| has_comma && !place.is_empty())
}

/// Returns the position after the last matching character, or 0 if none matches.
pub(super) fn behind_last(text: &str, is_wanted: impl Fn(char) -> bool) -> usize {
    text.char_indices()
        .rev()
        .find(|(_, letter)| is_wanted(*letter))
        .map_or(0, |(at, letter)| at + letter.len_utf8())
}

fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
