//! Recognizes names whose values are secrets. Ignores case, separators and invisible letters, and reads
//! lookalike letters as ASCII.

use super::decode;
use super::homoglyph::readable;
use super::words::{
    ATTRIBUTES, CONTINUATIONS, CORES, DOUBTFUL, ENDS, PUBLIC_ENDS, TOKEN_ENDS, TOKEN_ISSUERS, WORDS,
};

/// Number of bytes at the end of a name that are examined.
pub(super) const MAX_NAME_BYTES: usize = 64;

/// The kind of value that a name indicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamedValueKind {
    Secret,
    /// A secret, unless the value is a path: `pwd` can mean a password or the working directory.
    UnlessPath,
    /// A secret, if the value is a text. A number is not: `tokens` are also counted.
    Texts,
    /// A secret, if the value looks like one.
    Doubtful,
    /// A secret, unless the value is a pattern: `GITHUB_PAT` is a personal access token, but `FILE_PAT` may
    /// be `*.c`.
    UnlessPattern,
    /// A secret, if the value looks like a generated token.
    TokenLike,
}

impl NamedValueKind {
    /// Returns `true` if a name of this kind makes its value a secret, unless the value is clearly something
    /// else.
    pub(super) fn is_secret(self) -> bool {
        matches!(self, Self::Secret | Self::UnlessPath | Self::UnlessPattern)
    }

    /// Returns `true` unless the value is clearly not a secret.
    pub(super) fn accepts(self, value: &str) -> bool {
        match self {
            Self::Secret | Self::Texts | Self::Doubtful => true,
            Self::UnlessPath => !is_path(value),
            Self::UnlessPattern => !value.contains(is_pattern_letter),
            Self::TokenLike => is_token_like(value),
        }
    }
}

/// Returns `true` for characters of patterns, lists and calls. Generated tokens do not contain them.
fn is_pattern_letter(letter: char) -> bool {
    letter.is_whitespace()
        || matches!(
            letter,
            '*' | '?' | '^' | '|' | '\\' | '<' | '>' | '(' | ')' | '[' | ']' | '{' | '}' | ',' | ';'
        )
}

const MIN_TOKEN_BYTES: usize = 8;

/// Returns `true` if this can be a generated token: letters and digits that are not a pattern, path or
/// address.
pub(super) fn is_token_like(value: &str) -> bool {
    value.len() >= MIN_TOKEN_BYTES
        && value.bytes().any(|byte| byte.is_ascii_digit())
        && value.bytes().any(|byte| byte.is_ascii_alphabetic())
        && !value.contains(is_pattern_letter)
        && !value.contains("://")
        && !is_path(value)
}

#[derive(Clone, Debug)]
pub(super) struct SecretNames {
    added: Vec<String>,
    /// Last letters of all known endings, as bits. Most names are excluded by their last letter.
    last: u32,
}

impl Default for SecretNames {
    fn default() -> Self {
        let mut names = Self { added: Vec::new(), last: bit(b's') };
        for word in ENDS.iter().chain(&WORDS) {
            names.last |= word.bytes().next_back().map_or(0, bit);
        }
        // Last letters of environment variables such as `STRIPE_KEY`, `GITHUB_PAT` and `AUTH_SALT`.
        names.last |= bit(b'y') | bit(b't') | bit(b'd');
        for word in DOUBTFUL.iter().chain(&TOKEN_ENDS) {
            names.last |= word.bytes().next_back().map_or(0, bit);
        }
        names
    }
}

fn bit(letter: u8) -> u32 {
    if letter.is_ascii_lowercase() { 1 << (letter - b'a') } else { 1 << 31 }
}

impl SecretNames {
    pub(super) fn add(&mut self, end: &str) {
        let end = plain(end);
        self.last |= end.bytes().next_back().map_or(0, bit);
        self.added.push(end);
    }

    /// Classifies a name. Returns `None` if its value is not and does not contain a secret.
    pub(super) fn classify(&self, name: &str) -> Option<NamedValueKind> {
        let plain_name;
        let name = if name.is_ascii() {
            name
        } else {
            plain_name = readable(name);
            &plain_name
        };
        // The name may be enclosed in delimiters: `[password]`, `password?`.
        let name = name.trim_matches(|letter: char| !letter.is_ascii_alphanumeric());
        self.classify_end(name)
            .or_else(|| {
                let core = without_continuation(name);
                (core.len() < name.len()).then(|| self.classify_end(core))?
            })
            .or_else(|| has_core(name).then_some(NamedValueKind::TokenLike))
    }

    /// Like [`classify`](Self::classify), for a name that may contain escapes: `p%61ssword`.
    pub(super) fn classify_key(&self, name: &str) -> Option<NamedValueKind> {
        self.classify(name).or_else(|| decode::decode_all(name).and_then(|name| self.classify(&name)))
    }

    fn classify_end(&self, name: &str) -> Option<NamedValueKind> {
        let last = name.bytes().next_back()?.to_ascii_lowercase();
        if self.last & bit(last) == 0 {
            return None;
        }
        if self.ends_like(name) || is_variable(name) {
            return Some(NamedValueKind::Secret);
        }
        let word = last_word(name);
        if word.eq_ignore_ascii_case("pat") {
            return Some(access_token(name, word));
        }
        if WORDS.iter().any(|known| word.eq_ignore_ascii_case(known)) {
            let is_directory = word.eq_ignore_ascii_case("pwd");
            return Some(if is_directory { NamedValueKind::UnlessPath } else { NamedValueKind::Secret });
        }
        if DOUBTFUL.iter().any(|known| word.eq_ignore_ascii_case(known)) {
            return Some(if name == "PASS" { NamedValueKind::Secret } else { NamedValueKind::Doubtful });
        }
        // `sessionid` in lower case is the name of a cookie. In another case it may be the id of any session.
        if TOKEN_ENDS.iter().any(|end| has_end(name, end)) || name.ends_with("sessionid") {
            return Some(NamedValueKind::TokenLike);
        }
        let one = name.strip_suffix(['s', 'S'])?;
        match self.ends_like(one) {
            true if word.eq_ignore_ascii_case("tokens") => Some(NamedValueKind::Texts),
            true => Some(NamedValueKind::Secret),
            false => None,
        }
    }

    /// Returns `true` if an ASCII name has the ending of a secret name.
    fn ends_like(&self, name: &str) -> bool {
        let is_end = |end: &str| has_end(name, end);
        (ENDS.iter().any(|end| is_end(end)) && !PUBLIC_ENDS.iter().any(|end| is_end(end)))
            || self.added.iter().any(|end| is_end(end))
    }
}

fn has_end(name: &str, end: &str) -> bool {
    let letters =
        name.bytes().rev().filter(|byte| !is_separator(*byte)).map(|byte| byte.to_ascii_lowercase());
    let mut letters = letters;
    end.bytes().rev().all(|wanted| letters.next() == Some(wanted))
}

/// Returns the kind of value of a name that may mean a personal access token. `last` is the last word of the
/// name.
fn access_token(name: &str, last: &str) -> NamedValueKind {
    let before =
        name[..name.len() - last.len()].trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric());
    let is_variable = name.bytes().all(is_variable_byte) && !before.is_empty();
    let issuer = last_word(before);
    let is_issued = TOKEN_ISSUERS.iter().any(|known| issuer.eq_ignore_ascii_case(known));
    if is_variable || is_issued { NamedValueKind::UnlessPattern } else { NamedValueKind::TokenLike }
}

/// Returns `true` if a name contains a word for a secret, and no later word changes its meaning:
/// `API_KEY_OPENAI`.
fn has_core(name: &str) -> bool {
    // A name with two words for a secret has at least this length.
    if name.len() < 8 {
        return false;
    }
    let is_variable = name.bytes().all(is_variable_byte);
    let (mut rest, mut next, mut words) = (name, "", 0);
    while !rest.is_empty() {
        let word = last_word(rest);
        let before =
            rest[..rest.len() - word.len()].trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric());
        let is_core = CORES.iter().any(|(first, second)| {
            word.eq_ignore_ascii_case(first) && (second.is_empty() || next.eq_ignore_ascii_case(second))
        });
        // In lower case, most names with `token` belong to parsers and language models.
        let is_token = word.eq_ignore_ascii_case("token");
        if is_core && words > 0 {
            return is_variable || !is_token;
        }
        let is_second = word.eq_ignore_ascii_case("key") && !before.is_empty();
        if !is_second && ATTRIBUTES.iter().any(|known| word.eq_ignore_ascii_case(known)) {
            return false;
        }
        (rest, next, words) = (before, word, words + 1);
    }
    false
}

fn is_variable_byte(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_'
}

fn is_separator(byte: u8) -> bool {
    matches!(byte, b'-' | b'_' | b'.' | b' ')
}

fn plain(name: &str) -> String {
    let letters = readable(name);
    letters
        .chars()
        .filter(|letter| !u8::try_from(*letter).is_ok_and(is_separator))
        .collect::<String>()
        .to_lowercase()
}

/// Returns the part of a name after its last separator, or from its last capital on: `user_pw`, `userPw`.
fn last_word(name: &str) -> &str {
    let bytes = name.as_bytes();
    let mut start = bytes.len();
    while let Some(at) = start.checked_sub(1) {
        if is_separator(bytes[at]) {
            break;
        }
        start = at;
        let is_capital = bytes[at].is_ascii_uppercase();
        if is_capital && at.checked_sub(1).is_some_and(|before| bytes[before].is_ascii_lowercase()) {
            break;
        }
    }
    name.get(start..).unwrap_or(name)
}

/// Returns a name without numbers and words at its end that do not change its meaning: `password2`,
/// `tokenOld`.
fn without_continuation(name: &str) -> &str {
    let mut core = name;
    loop {
        let shorter = core.trim_end_matches(|letter: char| {
            letter.is_ascii_digit() || u8::try_from(letter).is_ok_and(is_separator)
        });
        let is_more = |name: &str, word: &str| {
            word.len() < name.len() && CONTINUATIONS.iter().any(|known| word.eq_ignore_ascii_case(known))
        };
        // The number can be a part of the last word, as in `b64`, or follow it, as in `old2`.
        core = match (last_word(core), last_word(shorter)) {
            (word, _) if is_more(core, word) => &core[..core.len() - word.len()],
            (_, word) if is_more(shorter, word) => &shorter[..shorter.len() - word.len()],
            _ => return shorter,
        };
    }
}

pub(super) fn end_of(name: &str) -> &str {
    let from = name.len().saturating_sub(MAX_NAME_BYTES);
    let from = (from..=name.len()).find(|at| name.is_char_boundary(*at)).unwrap_or(from);
    name.get(from..).unwrap_or(name)
}

/// Returns `true` if the last word of an environment variable's name marks a secret: `DB_PASS`, `STRIPE_KEY`.
/// In lower case, such names are ambiguous.
fn is_variable(name: &str) -> bool {
    let last = name.rsplit_once('_').map(|(_, last)| last);
    last.is_some_and(|last| matches!(last, "PASS" | "PWD" | "PW" | "KEY" | "SALT"))
        && name.bytes().all(is_variable_byte)
        && name != "OLD_PWD"
}

/// Returns `true` if the name of an option marks its value as a secret: `--pass`, `--db-pwd`.
pub(super) fn is_option(name: &str) -> bool {
    let last = name.strip_prefix("--").and_then(|name| name.rsplit('-').next());
    last.is_some_and(|last| matches!(last, "pass" | "pwd" | "pw"))
}

pub(super) fn is_path(value: &str) -> bool {
    value.starts_with(['/', '~', '.', '$', '%']) || value.as_bytes().get(1..3) == Some(b":\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_recognized_in_any_spelling() {
        let names = SecretNames::default();
        for name in [
            "password",
            "PassWord",
            "pass_word",
            "db.password",
            "passwords",
            "X-Api-Key",
            "api_keys",
            "user_pw",
            "userPw",
            "pw",
            "bearer",
            "p\u{200b}assword",
            "pаsswоrd",
            "ｐａｓｓｗｏｒｄ",
            "pa\u{301}ssword",
            "тоken",
            "AccountKey",
            "STRIPE_KEY",
            "DB_PASS",
            "[password]",
            "Set-Cookie",
            "𝐩𝐚𝐬𝐬𝐰𝐨𝐫𝐝",
            "secrets",
            "cookies",
            "otp",
            "password1",
            "PASSWORD_2",
            "token2",
            "db_password_prod",
            "secret_value",
            "tokenValue",
            "passwordOld",
            "password_confirmation",
            "API_KEY_2",
            "PASS",
            "Password",
            "SharedAccessSignature",
        ] {
            assert_eq!(names.classify(name), Some(NamedValueKind::Secret), "{name}");
        }
        for name in ["pwd", "Pwd", "PWD", "user_pwd"] {
            assert!(
                matches!(names.classify(name), Some(NamedValueKind::UnlessPath | NamedValueKind::Secret)),
                "{name}"
            );
        }
        for name in ["pass", "mine_pass", "ansible_become_pass", "_auth", "creds", "pass2"] {
            assert_eq!(names.classify(name), Some(NamedValueKind::Doubtful), "{name}");
        }
        assert_eq!(names.classify("tokens"), Some(NamedValueKind::Texts));
        assert_eq!(names.classify("max_tokens"), Some(NamedValueKind::Texts));
        for name in [
            "",
            "key",
            "keys",
            "token_count",
            "tokenType",
            "password_length",
            "sha256",
            "old",
            "value",
            "2",
            "bypass",
            "compass",
            "sessionId",
            "primary_keys",
            "cwd",
            "tokenizer",
            "passwordless",
            "cookieJar",
            "spw",
            "name",
            "été",
            "日本語",
        ] {
            assert_eq!(names.classify(name), None, "{name}");
        }
    }
}
