//! What secrets look like in the middle of a text, and how far each of them goes.

use std::ops::Range;

/// How long a value must be to pass for a secret where only its name speaks for it: in a sentence it may be a word.
const VALUE: usize = 8;

/// The same behind an option, and in quotes. Where it is given by nothing but `=`, there is no doubt.
const OPTION: usize = 6;
const QUOTED: usize = 4;

/// What stands for a secret that has gone.
const GONE: &[u8] = super::BLANK.as_bytes();

/// What a header says of a credential before it, in lower case.
const SORTS: [&str; 7] = ["bearer ", "basic ", "token ", "apikey ", "api-key ", "negotiate ", "ntlm "];

/// The options that logins follow.
const LOGINS: [&str; 4] = ["-u", "-U", "--user", "--proxy-user"];

/// The shortest text that can be a secret by its look: `a://b:c@`.
pub(super) const SHORTEST: usize = 8;

/// What stands in front of a credential in a header, in lower case.
pub(super) const SCHEMES: [&str; 2] = ["bearer ", "basic "];

/// How long the token behind it is at least.
const CREDENTIAL: usize = 16;

/// What a private key is never longer than.
const KEY: usize = 16 << 10;

/// What a byte can be a part of, as bits.
#[derive(Clone, Debug)]
pub(super) struct Signs([u8; 256]);

/// The beginning of a token.
const START: u8 = 1;
/// A word, within which no token begins.
const WORD: u8 = 1 << 1;
const BLANK: u8 = 1 << 2;
const EQUALS: u8 = 1 << 3;
const COLON: u8 = 1 << 4;
const DASH: u8 = 1 << 5;
const SLASH: u8 = 1 << 6;

impl Default for Signs {
    /// No token begins with anything yet.
    fn default() -> Self {
        let mut signs = [0; 256];
        for byte in 0..=u8::MAX {
            signs[usize::from(byte)] = match byte {
                b' ' | b'\t' => BLANK,
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

impl Signs {
    /// Tokens begin with this byte.
    pub(super) fn begin(&mut self, byte: u8) {
        self.0[usize::from(byte)] |= START;
    }
}

/// Whether there can be private keys in a text with these signs.
pub(super) fn may_have_private_keys(signs: u8) -> bool {
    signs & DASH != 0 && signs & BLANK != 0
}

/// Whether there can be logins.
pub(super) fn may_have_logins(signs: u8) -> bool {
    signs & COLON != 0 && signs & SLASH != 0
}

/// Whether there can be assignments.
pub(super) fn may_have_assignments(signs: u8) -> bool {
    signs & (EQUALS | COLON | BLANK) != 0
}

/// Whether there can be logins behind options.
pub(super) fn may_have_users(signs: u8) -> bool {
    signs & DASH != 0 && signs & COLON != 0
}

/// Whether a name ends like one of these, which are plain.
pub(super) fn ends_like(name: &str, ends: &[String]) -> bool {
    if !name.is_ascii() {
        let name = plain(name);
        return ends.iter().any(|end| name.ends_with(end.as_str()));
    }
    let letters =
        || name.bytes().rev().filter(|byte| !is_separator(*byte)).map(|byte| byte.to_ascii_lowercase());
    // By the last letter most are out.
    let last = letters().next();
    ends.iter().any(|end| {
        let mut letters = letters();
        end.bytes().next_back() == last && end.bytes().rev().all(|wanted| letters.next() == Some(wanted))
    })
}

fn is_separator(byte: u8) -> bool {
    matches!(byte, b'-' | b'_' | b'.' | b' ')
}

/// A name without case and separators.
pub(super) fn plain(name: &str) -> String {
    let letters = name.chars().filter(|letter| !u8::try_from(*letter).is_ok_and(is_separator));
    letters.flat_map(char::to_lowercase).collect()
}

/// The private keys that begin in it, each with its last line or as far as keys go.
pub(super) fn private_keys(text: &str, found: &mut Vec<Range<usize>>) {
    // Mostly there is none, and to look for one is cheaper than to look for all.
    if !text.contains("-----BEGIN ") {
        return;
    }
    let mut done = 0;
    for (at, start) in text.match_indices("-----BEGIN ") {
        let rest = &text[at + start.len()..];
        let Some((title, body)) = rest.split_once("-----") else { return };
        if at < done || title.len() >= 64 || !title.ends_with("PRIVATE KEY") {
            continue;
        }
        let begin = text.len() - body.len();
        done = (begin + KEY).min(text.len());
        while !text.is_char_boundary(done) {
            done += 1;
        }
        done = text[begin..done].find("-----END ").map_or(done, |length| begin + length);
        found.push(begin..done);
    }
}

/// The logins of URLs that have a password: sometimes it is the name that is the secret.
pub(super) fn logins(text: &str, found: &mut Vec<Range<usize>>) {
    if !text.contains("://") {
        return;
    }
    for (at, sign) in text.match_indices("://") {
        let begin = at + sign.len();
        let rest = &text[begin..];
        let end = rest.find(|letter: char| letter.is_whitespace() || matches!(letter, '/' | '?' | '#' | '"'));
        let authority = &rest[..end.unwrap_or(rest.len())];
        let Some((login, _)) = authority.rsplit_once('@') else { continue };
        let password = login.split_once(':').map_or("", |(_, password)| password);
        if !password.is_empty() {
            found.push(begin..begin + login.len());
        }
    }
}

/// The tokens in it that begin like one of these, and returns all signs that it has.
pub(super) fn tokens(
    text: &str,
    tokens: &[(String, usize)],
    Signs(signs): &Signs,
    found: &mut Vec<Range<usize>>,
) -> u8 {
    let bytes = text.as_bytes();
    let (mut before, mut all, mut done) = (0, 0, 0);
    for (at, &byte) in bytes.iter().enumerate() {
        let sign = signs[usize::from(byte)];
        let begins = before & WORD == 0 && sign & START != 0 && at >= done;
        all |= sign;
        before = sign;
        if !begins {
            continue;
        }
        let rest = &bytes[at..];
        if let Some(scheme) = scheme(rest) {
            done = value_end(bytes, at + scheme);
            found.push(at + scheme..done);
        } else if tokens.iter().any(|token| starts(rest, token)) {
            done = at + rest.iter().take_while(|byte| is_token(byte)).count();
            found.push(at..done);
        }
    }
    all
}

fn starts(rest: &[u8], (start, least): &(String, usize)) -> bool {
    // By the first byte most are out.
    rest.first() == start.as_bytes().first()
        && rest.strip_prefix(start.as_bytes()).is_some_and(|rest| runs(rest, *least))
}

/// How long the word is in front of the credential: `Bearer …` and `Basic …`, as headers have them.
fn scheme(rest: &[u8]) -> Option<usize> {
    let is_there = |scheme: &&str| {
        rest.len() > scheme.len()
            && rest[..scheme.len()].eq_ignore_ascii_case(scheme.as_bytes())
            && runs(&rest[scheme.len()..], CREDENTIAL)
    };
    SCHEMES.iter().find(|scheme| is_there(scheme)).map(|scheme| scheme.len())
}

/// What is given to something that is named like a secret: `TOKEN=…`, `"password": "…"`, `--api-key …`.
pub(super) fn assignments(text: &str, is_name: impl Fn(&str) -> bool, found: &mut Vec<Range<usize>>) {
    let bytes = text.as_bytes();
    let mut done = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if at < done || !matches!(byte, b'=' | b':' | b' ' | b'\t') {
            continue;
        }
        let rest = &bytes[at + 1..];
        let is_blank = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'"' | b'\'' | b'\\');
        let blank = rest.iter().take_while(is_blank).take(4).count();
        let begin = at + 1 + blank;
        // Mostly it is the end of a word and nothing more, which is quickly seen.
        if !is_given(&bytes[begin..], 1) {
            continue;
        }
        // Only an option has its value behind nothing but a blank.
        let option = matches!(byte, b' ' | b'\t');
        let before = if option { &text[..at] } else { text[..at].trim_end_matches(['"', '\'', ' ', '\\']) };
        let start =
            before.rfind(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_' && letter != '-');
        let name =
            &before[start.map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8))..];
        if name.is_empty() || name.len() > 64 || (option && !name.starts_with("--")) {
            continue;
        }
        if !is_name(name) && !is_option(name) {
            continue;
        }
        if byte == b':' && ends_like(name, &["cookie".to_owned()]) {
            done = cookies(bytes, begin, found);
            if done > begin {
                continue;
            }
        }
        let begin = begin + words(&bytes[begin..]);
        let quote = bytes[begin - 1];
        let is_quoted = matches!(quote, b'"' | b'\'');
        let is_tight = byte == b'=' && blank <= usize::from(is_quoted) && before.len() == at;
        let least = match () {
            () if is_tight => 1,
            () if is_quoted => QUOTED,
            () if option => OPTION,
            () => VALUE,
        };
        let is_whole = if is_quoted {
            bytes[begin..].get(..least).is_some_and(|value| !value.contains(&quote))
                && is_given(&bytes[begin..], 1)
        } else {
            is_given(&bytes[begin..], least)
        };
        if !is_whole || (option && bytes[begin] == b'-') {
            continue;
        }
        let closing = || bytes[begin..].iter().position(|byte| *byte == quote);
        let length = if is_quoted { closing() } else { None };
        done = length.map_or_else(|| value_end(bytes, begin), |length| begin + length);
        found.push(begin..done);
    }
}

/// Whether a value of at least so many bytes is given here: one that has not gone already, and that is not that of a variable.
fn is_given(bytes: &[u8], least: usize) -> bool {
    let is_variable = matches!(bytes, [b'$', b'A'..=b'Z' | b'{' | b'(', ..]);
    bytes.get(..least).is_some_and(|value| !value.iter().any(is_end))
        && !is_variable
        && !bytes.starts_with(GONE)
}

/// How long the word is that says of which sort a credential is, if one follows.
fn words(bytes: &[u8]) -> usize {
    let is_there = |scheme: &&&str| {
        let length = scheme.len();
        bytes.len() > length
            && bytes[..length].eq_ignore_ascii_case(scheme.as_bytes())
            && !is_end(&bytes[length])
    };
    SORTS.iter().find(is_there).map_or(0, |scheme| scheme.len())
}

/// The values of the cookies that are listed from here on, and where the list ends.
fn cookies(bytes: &[u8], begin: usize, found: &mut Vec<Range<usize>>) -> usize {
    let mut at = begin;
    loop {
        let name = bytes[at..].iter().take(64).take_while(|byte| is_token(byte) && **byte != b'=').count();
        if name == 0 || bytes.get(at + name) != Some(&b'=') {
            return at;
        }
        let value = at + name + 1;
        let end = value_end(bytes, value);
        if end > value && !bytes[value..].starts_with(GONE) {
            found.push(value..end);
        }
        let next = if bytes[value..].starts_with(GONE) { value + GONE.len() } else { end };
        match bytes[next..] {
            [b';', b' ', ..] => at = next + 2,
            [b';', ..] => at = next + 1,
            _ => return next,
        }
    }
}

/// Whether the value of this variable is a secret, by the last word of its name: `DB_PASS`, `STRIPE_KEY`. In small letters they
/// mean too much else.
pub(super) fn is_variable(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let last = name.rsplit_once('_').map(|(_, last)| last);
    last.is_some_and(|last| matches!(last, "PASS" | "PWD" | "PW" | "KEY")) && name.bytes().all(is_letter)
}

/// The same of an option: `--pass`, `--db-pwd`.
fn is_option(name: &str) -> bool {
    let last = name.strip_prefix("--").and_then(|name| name.rsplit('-').next());
    last.is_some_and(|last| matches!(last, "pass" | "pwd"))
}

/// What the argument behind another one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    Secret,
    Login,
}

/// What follows this argument of a program, if that is a secret.
pub(super) fn behind(argument: &str, is_name: impl Fn(&str) -> bool) -> Option<Behind> {
    let name = argument.strip_prefix('-').filter(|name| name.len() <= 64)?;
    if LOGINS.contains(&argument) {
        return Some(Behind::Login);
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_secret = name.bytes().all(is_plain) && (is_name(name) || is_option(argument));
    is_secret.then_some(Behind::Secret)
}

/// The passwords of logins that are given to programs: `-u admin:…`.
pub(super) fn users(text: &str, found: &mut Vec<Range<usize>>) {
    let (mut is_next, mut at) = (false, 0);
    for word in text.split(|letter: char| letter.is_ascii_whitespace()) {
        let end = at + word.len();
        if !word.is_empty() {
            let given = LOGINS.iter().find_map(|flag| word.strip_prefix(flag)?.strip_prefix('='));
            if let Some(login) = if is_next { Some(word) } else { given } {
                let start = end - login.len();
                found.extend(password(login).map(|place| start + place.start..start + place.end));
            }
            is_next = LOGINS.contains(&word);
        }
        at = end + 1;
    }
}

/// The password of a login. Numbers are those of users and groups.
pub(super) fn password(login: &str) -> Option<Range<usize>> {
    let bytes = login.as_bytes();
    let quotes = login.len() - login.trim_start_matches(['"', '\'']).len();
    let begin = quotes + login[quotes..].find(':')? + 1;
    let end = value_end(bytes, begin);
    let is_number = bytes[begin..end].iter().all(u8::is_ascii_digit);
    let is_address = bytes[begin..].starts_with(b"//");
    (end > begin && !is_number && !is_address && is_given(&bytes[begin..], 1)).then_some(begin..end)
}

/// Where a value ends that begins here: it may have signs in it that no token has.
fn value_end(bytes: &[u8], begin: usize) -> usize {
    bytes[begin..].iter().position(is_end).map_or(bytes.len(), |length| begin + length)
}

fn is_end(byte: &u8) -> bool {
    byte.is_ascii_whitespace()
        || matches!(byte, b'"' | b'\'' | b'`' | b'\\' | b'&' | b';' | b',' | b')' | b']' | b'}' | b'>' | b'<')
}

/// Whether these bytes begin with so many characters of a token. No more are looked at: whoever writes the text may
/// have made it long.
fn runs(bytes: &[u8], least: usize) -> bool {
    bytes.get(..least).is_some_and(|bytes| bytes.iter().all(is_token))
}

fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+' | b'/' | b'=' | b'~')
}
