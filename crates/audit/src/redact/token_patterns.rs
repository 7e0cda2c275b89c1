//! Finds tokens, logins and assigned secrets within a text, and determines where each of them ends.

use std::ops::Range;

use super::name::{self, NamedValueKind};
use super::pair::{self, behind_last};
use super::private_key;
use super::token::{self, TOKENS};
use super::value::{Delimiter, Form, Quotes, is_given, value_of, word_end};

/// Minimum length of a value that only its name marks as a secret. In a sentence, a shorter value may be a
/// word.
const MIN_VALUE_BYTES: usize = 8;

/// Minimum length of a value after an option, of a quoted value, and of a value that mixes letters with other
/// characters. After a plain `=` there is no minimum.
pub(super) const MIN_OPTION_BYTES: usize = 6;
pub(super) const MIN_QUOTED_BYTES: usize = 4;
const MIN_MIXED_BYTES: usize = 4;

/// URL parameters that are secrets, each with its minimum length. Elsewhere their names have another meaning.
const PARAMETERS: [(&str, usize); 7] =
    [("sig", 8), ("signature", 8), ("key", 16), ("code", 16), ("auth", 16), ("pass", 4), ("hmac", 8)];

/// Authentication schemes whose credential has more than one word. In lower case.
const LONG_AUTH_SCHEMES: [&str; 7] =
    ["aws4-hmac-sha256 ", "digest ", "hawk ", "oauth ", "signature ", "sso-key ", "edgegrid "];

pub(super) const PLACEHOLDER_BYTES: &[u8] = super::PLACEHOLDER.as_bytes();

/// Words before a credential in a header, in lower case.
const AUTH_PREFIXES: [&str; 12] = [
    "bearer ",
    "basic ",
    "token ",
    "apikey ",
    "api-key ",
    "negotiate ",
    "ntlm ",
    "dpop ",
    "key ",
    "splunk ",
    "sharedkey ",
    "sharedkeylite ",
];

/// Length of the shortest text that can be a secret by its form: `a://b:c@`.
pub(super) const MIN_SECRET_TEXT_BYTES: usize = 8;

/// Schemes before a credential in a header, in lower case.
pub(super) const SCHEMES: [&str; 2] = ["bearer ", "basic "];

const MIN_CREDENTIAL_BYTES: usize = 16;

/// Minimum length of a user name in a URL without a password that counts as a token: `https://TOKEN@host`.
const MIN_LOGIN_TOKEN_BYTES: usize = 10;

/// Bound for reading the bytes of a text again, as a multiple of the length of the text. Values that are not
/// secrets are read again.
const MAX_KEPT_FACTOR: usize = 16;

const MAX_TAG_BYTES: usize = 256;

pub(super) const MAX_TAG_TEXT_BYTES: usize = 4096;

/// For each byte, the forms of secrets that can contain the byte, as bits.
#[derive(Clone, Debug)]
pub(super) struct ByteClasses([u8; 256]);

/// Prefixes of tokens: the built-in ones and those that a caller has added.
#[derive(Clone, Debug, Default)]
pub(super) struct Tokens {
    added: Vec<(String, usize)>,
}

impl Tokens {
    /// Adds a prefix of a token, and the minimum number of characters that follow it.
    pub(super) fn add(&mut self, start: &str, least: usize) {
        self.added.push((start.to_owned(), least));
    }

    fn begins(&self, rest: &[u8]) -> bool {
        let is_there = |start: &str, least: usize| {
            rest.strip_prefix(start.as_bytes()).is_some_and(|rest| runs(rest, least))
        };
        let first = rest.first();
        let from = TOKENS.partition_point(|(start, _)| start.as_bytes().first() < first);
        let same = TOKENS[from..].iter().take_while(|(start, _)| start.as_bytes().first() == first);
        same.into_iter().any(|(start, least)| is_there(start, *least))
            || self.added.iter().any(|(start, least)| is_there(start, *least))
    }
}

const START: u8 = 1;
/// A byte within a word. No token begins after such a byte.
const WORD: u8 = 1 << 1;
const BLANK: u8 = 1 << 2;
const EQUALS: u8 = 1 << 3;
const COLON: u8 = 1 << 4;
const DASH: u8 = 1 << 5;
const SLASH: u8 = 1 << 6;
/// A character that can precede a value, other than `=` and `:`.
const CLOSING: u8 = 1 << 7;

impl Default for ByteClasses {
    /// Returns the classes without the first bytes of token prefixes.
    fn default() -> Self {
        let mut signs = [0; 256];
        for byte in 0..=u8::MAX {
            signs[usize::from(byte)] = match byte {
                b' ' | b'\t' | b'\n' => BLANK,
                b'>' | b'(' | b',' => CLOSING,
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

impl ByteClasses {
    pub(super) fn begin(&mut self, byte: u8) {
        self.0[usize::from(byte)] |= START;
    }
}

pub(super) fn may_have_private_keys(signs: u8) -> bool {
    signs & DASH != 0 && signs & BLANK != 0
}

pub(super) fn may_have_logins(signs: u8) -> bool {
    signs & COLON != 0 && signs & SLASH != 0
}

pub(super) fn may_have_paths(signs: u8) -> bool {
    signs & SLASH != 0
}

pub(super) fn may_have_colons(signs: u8) -> bool {
    signs & COLON != 0
}

pub(super) fn may_have_assignments(signs: u8) -> bool {
    signs & (EQUALS | COLON | CLOSING) != 0
}

pub(super) fn may_have_arguments(signs: u8) -> bool {
    signs & BLANK != 0
}

/// Finds the passwords of logins in URLs, and user names that are tokens.
pub(super) fn logins(text: &str, found: &mut Vec<Range<usize>>) {
    if !text.contains("://") {
        return;
    }
    let mut done = 0;
    for (at, sign) in text.match_indices("://") {
        let begin = at + sign.len();
        if begin < done {
            continue;
        }
        let rest = &text[begin..];
        let is_last = |letter: char| letter.is_whitespace() || matches!(letter, '"' | '\'' | '<' | '>' | '`');
        let word = &rest[..rest.find(is_last).unwrap_or(rest.len())];
        done = begin + word.len();
        let authority = &word[..word.find(['/', '?', '#']).unwrap_or(word.len())];
        let login = match authority.rsplit_once('@') {
            Some((login, _)) => login,
            // A password may contain unescaped delimiters. A port could only follow a host.
            None => match (authority.split_once(':'), word.rsplit_once('@')) {
                (Some((_, port)), Some((login, _)))
                    if !port.is_empty() && !port.bytes().all(|byte| byte.is_ascii_digit()) =>
                {
                    login
                }
                _ => continue,
            },
        };
        let is_secret = match login.split_once(':') {
            Some((_, password)) => !password.is_empty(),
            None => login.len() >= MIN_LOGIN_TOKEN_BYTES && is_mixed(login.as_bytes()),
        };
        if is_secret {
            found.push(begin..begin + login.len());
        }
    }
}

/// Finds tokens that have a known prefix. Returns the byte classes of the whole text, and `true` if options
/// can begin in it.
pub(super) fn tokens(
    text: &str,
    tokens: &Tokens,
    ByteClasses(signs): &ByteClasses,
    found: &mut Vec<Range<usize>>,
) -> (u8, bool) {
    let bytes = text.as_bytes();
    let (mut before, mut all, mut done, mut has_options) = (0, 0, 0, false);
    for (at, &byte) in bytes.iter().enumerate() {
        let sign = signs[usize::from(byte)];
        let begins = before & WORD == 0 && sign & START != 0 && at >= done;
        has_options |= before & WORD == 0 && sign & (DASH | SLASH) != 0;
        all |= sign;
        before = sign;
        if !begins {
            continue;
        }
        let rest = &bytes[at..];
        if let Some(scheme) = scheme(rest) {
            done = value_end(bytes, at + scheme);
            found.push(at + scheme..done);
        } else if tokens.begins(rest) || token::has_shape(rest) {
            done = at + rest.iter().take_while(|byte| is_token(byte)).count();
            found.push(at..done);
        } else if let Some((length, has_key)) = private_key::encoded_file(rest) {
            done = at + length;
            found.extend(has_key.then_some(at..done));
        }
    }
    (all, has_options)
}

/// Returns the length of the authentication scheme before a credential: `Bearer …` or `Basic …`.
fn scheme(rest: &[u8]) -> Option<usize> {
    let is_there = |scheme: &&str| {
        rest.len() > scheme.len()
            && rest[..scheme.len()].eq_ignore_ascii_case(scheme.as_bytes())
            && runs(&rest[scheme.len()..], MIN_CREDENTIAL_BYTES)
    };
    SCHEMES.iter().find(|scheme| is_there(scheme)).map(|scheme| scheme.len())
}

/// Finds values that are assigned to names of secrets: `TOKEN=…`, `"password": "…"`, `<password>…`,
/// `password("…")`, `("password", "…")`.
pub(super) fn assignments(
    text: &str,
    named: impl Fn(&str) -> Option<NamedValueKind>,
    found: &mut Vec<Range<usize>>,
) {
    let bytes = text.as_bytes();
    let (mut done, mut kept_bytes) = (0, 0);
    let mut quotes = Quotes::default();
    let mut closing = pair::ClosingTags::default();
    for (at, &byte) in bytes.iter().enumerate() {
        quotes.pass(bytes, at);
        if at < done || !matches!(byte, b'=' | b':' | b'>' | b'(' | b',') {
            continue;
        }
        // `=>` and `:=` are one delimiter each.
        let is_arrow = byte == b'=' && bytes.get(at + 1) == Some(&b'>');
        let from = at + 1 + usize::from(is_arrow);
        // Fast path: most of these characters do not precede a value.
        let Some(first) = bytes.get(from) else { continue };
        if byte == b'(' && !matches!(first, b'"' | b'\'' | b'`' | b'\\') {
            continue;
        }
        // A path of program code is not an assignment, but its call may be one: `Token::new("…")`.
        if byte == b':' && *first == b':' && bytes.get(from + 1).is_some_and(u8::is_ascii_alphabetic) {
            let argument = pair::call_argument(bytes, from + 1);
            let argument = argument.filter(|place| {
                let shown = &bytes[place.clone()];
                can_be_value(shown, usize::MAX) && !shown.contains(&b' ')
            });
            if let Some(argument) = argument
                && let Some(name) = name_before(text, at, byte)
                && named(name::end_of(&text[name])).is_some_and(NamedValueKind::is_secret)
            {
                done = argument.end;
                found.push(argument);
            }
            continue;
        }
        let Some(place) = name_before(text, at, byte) else { continue };
        let (start, name) = (place.start, name::end_of(&text[place]));
        if byte == b'('
            && pair::is_login_call(name)
            && let Some(place) = pair::second_text(bytes, from)
        {
            done = place.end;
            found.push(place);
            continue;
        }
        let parameter = || {
            let before = text[..start].bytes().next_back();
            let is_parameter = byte == b'=' && matches!(before, Some(b'?' | b'&'));
            PARAMETERS.iter().find(|(known, _)| is_parameter && name.eq_ignore_ascii_case(known))
        };
        // Two words such as `api.key` and `api key` form one name.
        let dotted = || {
            let before = text[..start].strip_suffix(['.', ' '])?;
            let from = behind_last(before, |letter| !is_name_letter(letter));
            let is_known = ["key", "login"].iter().any(|known| name.eq_ignore_ascii_case(known));
            let is_part = from < before.len() && is_known;
            is_part.then(|| named(name::end_of(&text[from..start + name.len()])))?
        };
        let (kind, at_least) = match named(name).or_else(dotted) {
            Some(NamedValueKind::Doubtful) if parameter().is_some() => {
                (NamedValueKind::Secret, parameter().map(|known| known.1))
            }
            Some(kind) => (kind, None),
            None if name::is_option(name) || pair::is_labeled(text, start, name, &named) => {
                (NamedValueKind::Secret, None)
            }
            None => match parameter() {
                Some((_, least)) => (NamedValueKind::Secret, Some(*least)),
                None => {
                    let is_tag = byte == b'>' && pair::is_labeled_tag(text, at, &mut closing, &named);
                    if !is_tag && !pair::is_typed(text, start, byte, &named) {
                        continue;
                    }
                    (NamedValueKind::Secret, None)
                }
            },
        };
        let blank = |bytes: &[u8]| bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let begin = from + blank(&bytes[from..]);
        if byte == b':' && name.to_ascii_lowercase().ends_with("cookie") {
            let begin = begin + usize::from(matches!(bytes.get(begin), Some(b'"' | b'\'')));
            done = cookies(bytes, begin, found);
            if done > begin {
                continue;
            }
        }
        let is_quote = |byte: Option<&u8>| matches!(byte, Some(b'"' | b'\'' | b'\\'));
        let header = begin + usize::from(is_quote(bytes.get(begin)));
        if let Some(place) = long_header(text, start, name, header) {
            done = place.end;
            found.extend((!place.is_empty()).then_some(place));
            continue;
        }
        if !matches!(byte, b'>' | b'(') && bytes.get(begin) == Some(&b'{') && (byte == b':' || begin > from) {
            found.extend(kind.is_secret().then(|| pair::braced_values(bytes, begin)).into_iter().flatten());
            continue;
        }
        let is_name_next = at.checked_sub(1).is_some_and(|before| is_name_byte(bytes[before]));
        let is_tight = matches!(byte, b'=' | b'>') && !is_arrow && begin == from && is_name_next;
        let Some(value) = value_of(bytes, begin, &Delimiter { byte, start, is_tight, quotes }) else {
            continue;
        };
        if kind.is_secret()
            && let Some(place) = value.literal(bytes)
        {
            done = place.end;
            found.push(place);
            continue;
        }
        let place = match value.form {
            Form::Tuple => pair::second_text(bytes, value.place.start).unwrap_or(begin..begin),
            _ => value.place.clone(),
        };
        let (begin, end) = (place.start, place.end);
        let whole = &bytes[begin..end];
        let is_whole = match at_least {
            Some(least) => whole.len() >= least,
            None if byte == b',' => {
                value.form == Form::Quoted
                    && kind.is_secret()
                    && pair::is_pair_secret(text, start, &value.place)
            }
            None if value.form != Form::Tuple && (is_tight || value.form == Form::Block) => true,
            None if value.form == Form::Tuple && kind != NamedValueKind::Doubtful => {
                can_be_value(whole, usize::MAX)
            }
            None if matches!(value.form, Form::Quoted | Form::Tuple) => whole.len() >= MIN_QUOTED_BYTES,
            None => can_be_value(whole, MIN_VALUE_BYTES),
        };
        let Some(shown) = text.get(begin..end) else { continue };
        let is_kept = match kind {
            // `PASS: TestName` is a test result.
            NamedValueKind::Secret => name == "PASS" && byte == b':' && value.form == Form::Plain,
            NamedValueKind::UnlessPath | NamedValueKind::UnlessPattern | NamedValueKind::TokenLike => {
                !kind.accepts(shown)
            }
            // Another member may follow the number: `{"tokens":12,"x":1}`.
            NamedValueKind::Texts => !is_mixed(whole) || !is_text_behind(whole),
            NamedValueKind::Doubtful => {
                let is_plain = byte == b':' && value.form == Form::Plain;
                let least = if value.form == Form::Tuple { MIN_QUOTED_BYTES } else { MIN_OPTION_BYTES };
                !can_be_value(whole, least) || value.form == Form::Block || is_plain && !is_mixed(whole)
            }
        };
        if kind.is_secret() && value.form != Form::Block {
            found.extend(pair::fallback(bytes, &value.place));
        }
        if shown.trim().is_empty() || !is_whole || is_kept || value.is_variable(bytes) {
            // A value that is not a secret may contain further names, so it is read again. Only a hostile
            // text contains so many such values that the bound is exceeded. Then the values are removed.
            kept_bytes += value.place.len();
            if begin == end || kept_bytes <= MAX_KEPT_FACTOR * bytes.len() {
                continue;
            }
        }
        done = end;
        found.push(begin..end);
    }
}

/// Returns `false` if the value is only a number, which ends with its member.
fn is_text_behind(value: &[u8]) -> bool {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    digits == 0 || !matches!(value.get(digits), None | Some(b',' | b'}' | b']'))
}

/// Returns the length of the text between a tag and the next tag. Returns 0 if no tag follows nearby.
pub(super) fn tag_text(bytes: &[u8]) -> usize {
    bytes.iter().take(MAX_TAG_TEXT_BYTES).position(|byte| *byte == b'<').unwrap_or(0)
}

fn name_before(text: &str, at: usize, sign: u8) -> Option<Range<usize>> {
    let before = match sign {
        b'>' => tag_before(&text[..at])?,
        b'(' => &text[..at],
        b',' => return pair::pair_name(text, at),
        b'=' => {
            let before = text[..at].trim_end_matches(['"', '\'', ' ', '\\', ':', '+', '?', ']', ')']);
            // `${env:TOKEN} = '…'` is an assignment to a variable. Most other names in braces are members of
            // a hash.
            let is_text = || text[at + 1..].trim_start_matches(' ').starts_with(['"', '\'']);
            without_index(before.strip_suffix('}').filter(|_| is_text()).unwrap_or(before))
        }
        _ => text[..at].trim_end_matches(['"', '\'', ' ', '\\']),
    };
    // In `password: Option<String> =`, a type with parameters precedes the delimiter. It is not a name.
    if sign == b'=' && before.ends_with('>') && !before.ends_with(" >") {
        return Some(before.len()..before.len());
    }
    // Letters of other alphabets may imitate ASCII letters or be invisible, so they count as a part of the
    // name.
    let start = behind_last(before, |letter| !is_name_letter(letter));
    let name = &before[start..];
    let is_tag = sign != b'>' || before[..start].ends_with(['<', ':']);
    (!name.is_empty() && is_tag).then_some(start..before.len())
}

/// Returns a text without an array index or length at its end: `char token[32`, `token[`.
fn without_index(text: &str) -> &str {
    let array = text.trim_end_matches(|letter: char| letter.is_ascii_digit()).strip_suffix('[');
    array.map_or(text, |array| array.trim_end_matches(' '))
}

/// Returns the text up to the end of a tag's name. The tag ends at the end of `text`.
pub(super) fn tag_before(text: &str) -> Option<&str> {
    let from = text.len().saturating_sub(MAX_TAG_BYTES);
    let open =
        text.as_bytes()[from..].iter().rposition(|byte| matches!(byte, b'<' | b'>')).map(|at| from + at)?;
    let inner = text.get(open..).filter(|inner| inner.starts_with('<'))?;
    let end = inner.find(|letter: char| letter.is_ascii_whitespace()).unwrap_or(inner.len());
    text.get(..open + end)
}

pub(super) fn is_name_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric()
        || matches!(letter, '_' | '-')
        || (!letter.is_ascii() && !letter.is_whitespace())
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') || !byte.is_ascii()
}

/// Returns the credential in an authorization header whose scheme is followed by several words.
fn long_header(text: &str, start: usize, name: &str, begin: usize) -> Option<Range<usize>> {
    if !name.to_ascii_lowercase().ends_with("authorization") {
        return None;
    }
    let rest = &text[begin..];
    let is_there = |sort: &&&str| rest.get(..sort.len()).is_some_and(|word| word.eq_ignore_ascii_case(sort));
    let begin = begin + LONG_AUTH_SCHEMES.iter().find(is_there)?.len();
    // The credential ends with the quotes around the header, or with the line.
    let quote = text[..start].bytes().next_back().filter(|byte| matches!(byte, b'"' | b'\''));
    let is_last = |byte: u8| byte == b'\n' || Some(byte) == quote;
    let length = text[begin..].bytes().position(is_last).unwrap_or(text.len() - begin);
    Some(begin..begin + length)
}

/// Returns `true` if a text can be a secret value, and is not a word of a sentence.
pub(super) fn can_be_value(value: &[u8], least: usize) -> bool {
    value.len() >= least || (value.len() >= MIN_MIXED_BYTES && is_mixed(value))
}

fn is_mixed(value: &[u8]) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || !byte.is_ascii();
    value.iter().any(is_letter)
        && value.iter().any(|byte| {
            byte.is_ascii_digit()
                || (byte.is_ascii_punctuation()
                    && !matches!(byte, b'.' | b'-' | b'_' | b'/' | b':' | b'?' | b'!' | b'('))
        })
}

/// Returns the length of the words before a credential. Returns 0 if no credential follows the words.
pub(super) fn words(bytes: &[u8]) -> usize {
    let is_there = |scheme: &&&str| {
        let length = scheme.len();
        bytes.len() > length
            && bytes[..length].eq_ignore_ascii_case(scheme.as_bytes())
            && !is_end(&bytes[length])
    };
    AUTH_PREFIXES.iter().find(is_there).map_or(0, |scheme| scheme.len())
}

/// Finds the values in a list of cookies that begins at `begin`. Returns the end of the list.
fn cookies(bytes: &[u8], begin: usize, found: &mut Vec<Range<usize>>) -> usize {
    let mut at = begin;
    loop {
        let name = bytes[at..].iter().take(64).take_while(|byte| is_token(byte) && **byte != b'=').count();
        if name == 0 || bytes.get(at + name) != Some(&b'=') {
            return at;
        }
        let value = at + name + 1;
        let end = value_end(bytes, value);
        if end > value {
            found.push(value..end);
        }
        match bytes[end..] {
            [b';', b' ', ..] => at = end + 2,
            [b';', ..] => at = end + 1,
            _ => return end,
        }
    }
}

/// Returns the password of a login `name:password`. A number after the colon is a group id, not a password.
pub(super) fn password(login: &str) -> Option<Range<usize>> {
    let bytes = login.as_bytes();
    let quotes = login.len() - login.trim_start_matches(['"', '\'']).len();
    let begin = quotes + login[quotes..].find(':')? + 1;
    let end = word_end(bytes, begin, Quotes::default());
    let is_number = bytes[begin..end].iter().all(u8::is_ascii_digit);
    let is_address = bytes[begin..].starts_with(b"//");
    (end > begin && !is_number && !is_address && is_given(&bytes[begin..end])).then_some(begin..end)
}

/// Returns the end of the value that begins here. Values may contain characters that tokens do not contain.
pub(super) fn value_end(bytes: &[u8], begin: usize) -> usize {
    // A placeholder counts as a part of the value: an agent that writes one must not hide the rest of the
    // value.
    let from =
        begin + if bytes[begin..].starts_with(PLACEHOLDER_BYTES) { PLACEHOLDER_BYTES.len() } else { 0 };
    bytes[from..].iter().position(is_end).map_or(bytes.len(), |length| from + length)
}

fn is_end(byte: &u8) -> bool {
    byte.is_ascii_whitespace()
        || matches!(byte, b'"' | b'\'' | b'`' | b'\\' | b'&' | b';' | b',' | b')' | b']' | b'}' | b'>' | b'<')
}

/// Returns `true` if these bytes begin with at least `least` characters of a token. Examines no further
/// characters, because the author of the text may have made it very long.
fn runs(bytes: &[u8], least: usize) -> bool {
    bytes.get(..least).is_some_and(|bytes| bytes.iter().all(is_token))
}

fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+' | b'/' | b'=' | b'~')
}
