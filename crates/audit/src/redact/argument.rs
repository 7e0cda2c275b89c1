//! Finds secrets among the arguments of programs: after options whose name marks a secret, and after options
//! that are known for a program.

use std::ops::Range;

use super::name::{self, MAX_NAME_BYTES, NamedValueKind};
use super::program::{
    CURL, CURL_FLAGS, SecretOptions, SecretPart, SecretPlace, Settings, begins_settings, options,
    sets_variable, settings_of,
};
use super::token_patterns;
use super::value::{Quotes, closing, is_given, literal_of, word_end};

/// Options that are followed by a login, whatever the program is.
const LOGIN_OPTIONS: [&str; 4] = ["-u", "-U", "--user", "--proxy-user"];

#[derive(Debug, Default)]
pub(super) struct ArgumentReader {
    options: Option<SecretOptions>,
    next: Option<SecretPart>,
    /// `true` for each word of `OPTION_CONTEXT_WORDS` that was already read. `SecretPlace::After` requires
    /// one of the words.
    after: [bool; OPTION_CONTEXT_WORDS.len()],
    /// Number of arguments that were already read and are not options.
    words: u8,
    settings: Option<Settings>,
    /// `true` if the name of a secret was read, for example after `--name`. The value of that name may follow
    /// another option.
    is_named: bool,
    is_name_next: bool,
    /// Number of `words` when the word before a `SecretPlace::Second` was read.
    second_of: Option<u8>,
    is_share: bool,
    has_secret_flag: bool,
    /// Number of keywords read from a `.netrc` line: `machine … login … password`.
    netrc: u8,
}

/// Words after which certain options take a secret.
const OPTION_CONTEXT_WORDS: [&str; 10] =
    ["login", "auth", "AUTH", "secret", "secrets", "put-parameter", "put", "patch", "write", "publish"];

pub(super) const SECRET_FLAG: &str = "--secret";

/// Options whose argument is a name, and options whose argument is the value of that name.
const NAME_OPTIONS: [&str; 5] = ["--name", "-Name", "--key", "-Path", "--variable"];
const VALUE_OPTIONS: [&str; 4] = ["--value", "-Value", "--secret", "--data"];

impl ArgumentReader {
    pub(super) fn new(program: &str) -> Self {
        let mut reader = Self::default();
        reader.start(program);
        reader
    }

    /// Sets whether the command has the flag `--secret` anywhere among its arguments.
    pub(super) fn set_secret_flag(&mut self, has_secret_flag: bool) {
        self.has_secret_flag = has_secret_flag;
    }

    fn start(&mut self, word: &str) -> bool {
        let word = word.trim_end_matches(['"', '\'', '`', ')', ',']);
        let at = word.rfind(|letter: char| {
            matches!(
                letter,
                '"' | '\'' | '`' | '(' | '[' | '{' | '=' | ':' | ',' | '/' | '\\' | ';' | '&' | '|'
            )
        });
        let program = at.and_then(|at| word.get(at + 1..)).unwrap_or(word);
        let program = program.strip_suffix(".exe").unwrap_or(program);
        let Some(options) = options(program) else { return false };
        // Some programs have `set` as a subcommand: `aws configure set`.
        if program == "set" && self.options.is_some() {
            return false;
        }
        let has_secret_flag = self.has_secret_flag;
        *self = Self {
            options: Some(options),
            settings: settings_of(program),
            has_secret_flag,
            ..Self::default()
        };
        if let [("", SecretPlace::Next, takes)] = options {
            self.next = Some(*takes);
        }
        true
    }

    /// Returns the offset of the secret in this argument, and how the secret is read from there. `None` if
    /// the argument has no secret. The argument may be part of a longer text.
    pub(super) fn step(
        &mut self,
        word: &str,
        named: impl Fn(&str) -> Option<NamedValueKind>,
    ) -> Option<(usize, SecretPart)> {
        if let Some(takes) = self.next.take() {
            // A word that begins with `-` is another option or a user id. Only a value of `SecretPart::Pass`
            // may begin with `-`.
            if !word.starts_with('-') || takes == SecretPart::Pass {
                return Some((0, takes));
            }
        }
        if std::mem::take(&mut self.is_name_next) {
            self.is_named = named(name::end_of(word)).is_some_and(NamedValueKind::is_secret);
        }
        if word.starts_with('-') {
            self.is_share = false;
            self.count_flag(word);
        } else if let Some(found) = self.argument(word) {
            return Some(found);
        }
        if let Some(found) = self.cluster(word) {
            return found;
        }
        // For such a program, `--secret` is a flag without a value.
        let has_flag = |(_, place, _): &(_, SecretPlace, _)| matches!(place, SecretPlace::SecondIfSecret(_));
        if word == SECRET_FLAG && self.options.is_some_and(|options| options.iter().any(has_flag)) {
            return None;
        }
        // A word that begins with a slash is a path or a Windows option.
        if !word.starts_with('-') && (self.word(word, &named) || !word.starts_with('/')) {
            return None;
        }
        for (option, place, takes) in self.options.unwrap_or_default() {
            let Some(rest) = word.strip_prefix(option).filter(|_| !option.is_empty()) else { continue };
            let is_long = option.starts_with("--") && !option.ends_with('=');
            if is_long && !rest.is_empty() && !rest.starts_with('=') {
                continue;
            }
            let is_wanted = match place {
                SecretPlace::After(word) => self.is_behind(word),
                _ => true,
            };
            if !is_wanted {
                continue;
            }
            match (rest.is_empty(), place) {
                (true, SecretPlace::Attached) | (false, SecretPlace::Next) => {}
                (true, _) => {
                    self.next = Some(*takes);
                    return None;
                }
                (false, _) => return Some((option.len() + usize::from(rest.starts_with('=')), *takes)),
            }
        }
        if self.settings == Some(Settings::First(SecretPart::Mixed)) && sets_variable(word) {
            self.settings = Some(Settings::First(SecretPart::Value));
            return None;
        }
        self.is_name_next = NAME_OPTIONS.contains(&word);
        if self.is_named && VALUE_OPTIONS.contains(&word) {
            self.next = Some(SecretPart::Value);
            return None;
        }
        if let Some(value) = VALUE_OPTIONS.iter().find_map(|flag| word.strip_prefix(flag)?.strip_prefix('='))
            && self.is_named
        {
            return Some((word.len() - value.len(), SecretPart::Value));
        }
        if let Some(name) = NAME_OPTIONS.iter().find_map(|flag| word.strip_prefix(flag)?.strip_prefix('=')) {
            self.is_named = named(name::end_of(name)).is_some_and(NamedValueKind::is_secret);
            return None;
        }
        if LOGIN_OPTIONS.contains(&word) {
            self.next = Some(SecretPart::Login);
            return None;
        }
        if let Some(login) = LOGIN_OPTIONS.iter().find_map(|flag| word.strip_prefix(flag)?.strip_prefix('='))
        {
            return Some((word.len() - login.len(), SecretPart::Login));
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let name = word.strip_prefix('-').filter(|name| name.len() > 3).map(name::end_of);
        if let Some(name) = name.filter(|name| name.bytes().all(is_plain)) {
            self.next = match named(name) {
                Some(named) if named.is_secret() => Some(SecretPart::Named),
                Some(NamedValueKind::TokenLike) => Some(SecretPart::Token),
                _ => name::is_option(word).then_some(SecretPart::Named),
            };
        }
        None
    }

    /// Returns `true` if this word of [`OPTION_CONTEXT_WORDS`] was already read.
    fn is_behind(&self, word: &str) -> bool {
        OPTION_CONTEXT_WORDS.iter().zip(self.after).any(|(after, seen)| *after == word && seen)
    }

    fn count_flag(&mut self, word: &str) {
        let is_it = |flag: &str| !word.starts_with("--") && word.contains(flag);
        let options = self.options.unwrap_or_default().iter();
        if options.into_iter().any(|(flag, place, _)| *place == SecretPlace::CountedFlag && is_it(flag)) {
            self.words = self.words.saturating_add(1);
        }
    }

    /// Returns the secret in an argument that is not an option, by the number of the argument.
    fn argument(&mut self, word: &str) -> Option<(usize, SecretPart)> {
        self.words = self.words.saturating_add(1);
        let is_second = self.second_of.is_some_and(|words| words.saturating_add(2) == self.words);
        let is_share = std::mem::replace(&mut self.is_share, word.contains('\\') || word.starts_with("//"));
        if is_share && word.starts_with('/') {
            self.is_share = true;
        }
        self.options?.iter().find_map(|(_, place, takes)| match place {
            SecretPlace::Second(_) if is_second && !word.contains('=') => Some((0, *takes)),
            SecretPlace::SecondIfSecret(_) if is_second && self.has_secret_flag => Some((0, *takes)),
            SecretPlace::AfterShare if is_share && !word.starts_with(['/', '*']) => Some((0, *takes)),
            SecretPlace::Behind(after) if self.is_behind(after) => Some((0, *takes)),
            SecretPlace::Word(number) if *number == self.words => Some((0, *takes)),
            SecretPlace::Assigned(after) if self.is_behind(after) => {
                word.find('=').map(|at| (at + 1, *takes))
            }
            _ => None,
        })
    }

    /// Returns the secret after an option letter within a word of several letters, as in `curl -su name:…`.
    /// `Some(None)` means that the secret is in the next argument.
    fn cluster(&mut self, word: &str) -> Option<Option<(usize, SecretPart)>> {
        let letters = word.strip_prefix('-').filter(|_| self.options == Some(CURL))?;
        let flags = letters.bytes().take_while(|byte| CURL_FLAGS.as_bytes().contains(byte)).count();
        let letter = letters.as_bytes().get(flags).filter(|_| flags > 0)?;
        let is_it = |option: &str| option.as_bytes() == [b'-', *letter];
        let (_, _, takes) = CURL.iter().find(|(option, ..)| is_it(option))?;
        let begin = flags + 2;
        if begin < word.len() {
            return Some(Some((begin, *takes)));
        }
        self.next = Some(*takes);
        Some(None)
    }

    /// Handles a word that is not an option. Returns `true` if the word is the name of a program.
    fn word(&mut self, word: &str, named: impl Fn(&str) -> Option<NamedValueKind>) -> bool {
        if self.start(word) {
            return true;
        }
        for (after, seen) in OPTION_CONTEXT_WORDS.iter().zip(&mut self.after) {
            *seen |= *after == word;
        }
        let wants = |place: &SecretPlace| matches!(place, SecretPlace::Second(after) | SecretPlace::SecondIfSecret(after) if *after == word);
        if self.options.unwrap_or_default().iter().any(|(_, place, _)| wants(place)) {
            self.second_of = Some(self.words);
        }
        let follows = self.options.unwrap_or_default().iter().find_map(|(_, place, takes)| match place {
            SecretPlace::Follows(after) if *after == word => Some(*takes),
            _ => None,
        });
        self.next = follows.or(self.next);
        // The keywords of a `.netrc` file, in upper or lower case.
        self.netrc = match (self.netrc, word.to_ascii_lowercase().as_str()) {
            (_, "machine" | "default") => 1,
            (1 | 2 | 4 | 5, "login") => 3,
            (3, _) => 4,
            (4, "password" | "passwd") => {
                self.next = Some(SecretPart::Value);
                0
            }
            // `password` directly after the host, without a login. A sentence would have words between them.
            (2, "password" | "passwd") => {
                self.next = Some(SecretPart::Mixed);
                5
            }
            (1, _) => 2,
            (2, _) => 5,
            (state, _) => state,
        };
        if let Some(Settings::Names(takes) | Settings::First(takes)) = self.settings
            && word.len() <= 2 * MAX_NAME_BYTES
            && !word.contains('=')
            && let Some(named) = named(word)
        {
            self.is_named = named.is_secret();
            self.next = match (named, takes) {
                (NamedValueKind::TokenLike, SecretPart::Named | SecretPart::Mixed) => Some(SecretPart::Token),
                _ => Some(takes),
            };
        }
        match self.settings {
            Some(Settings::First(_)) => self.settings = None,
            None if self.options.is_some() && begins_settings(word) => {
                self.settings = Some(Settings::Names(SecretPart::Named));
            }
            _ => {}
        }
        false
    }

    /// Skips an argument that is known to contain no secret.
    pub(super) fn skip(self) -> Self {
        Self { next: None, ..self }
    }

    /// Ends the current command, because another one may follow.
    fn end(&mut self) {
        *self = Self { netrc: self.netrc, has_secret_flag: self.has_secret_flag, ..Self::default() };
    }
}

/// Returns `true` if a text that contains no options may still contain arguments with secrets.
pub(super) fn may_be_in(text: &str) -> bool {
    [
        "set",
        "config",
        "login",
        "SecureString",
        "assw",
        "ASSW",
        "ENTIFIED",
        "entified",
        "ENV",
        "ARG",
        "sqlplus",
        "define",
        "nmcli",
        "rabbitmqctl",
        "wpa_pass",
        " add ",
        " put ",
        " patch ",
        " write ",
        "authtoken",
        " auth ",
        " AUTH ",
        "net use",
        "secrets ",
        "-Item",
        "-item",
        "-Variable",
        "-variable",
    ]
    .iter()
    .any(|word| text.contains(word))
}

pub(super) fn arguments(
    text: &str,
    named: impl Fn(&str) -> Option<NamedValueKind>,
    found: &mut Vec<Range<usize>>,
) {
    let mut reader = ArgumentReader::default();
    let bytes = text.as_bytes();
    let mut at = 0;
    let (mut quotes, mut passed) = (Quotes::default(), 0);
    let (mut before, mut is_named, mut words_since_for) = ("", false, None);
    let sets_passwords = text.contains("chpasswd");
    let has_secret_flags = text.contains(SECRET_FLAG);
    let mut line_end = 0;
    for word in text.split(|letter: char| letter.is_ascii_whitespace()) {
        let start = at;
        at += word.len() + 1;
        for place in passed..start {
            quotes.pass(bytes, place);
        }
        passed = start;
        if has_secret_flags && start >= line_end {
            line_end =
                memchr::memchr(b'\n', &bytes[start..]).map_or(bytes.len() + 1, |length| start + length + 1);
            let line = &bytes[start..line_end.min(bytes.len())];
            reader.set_secret_flag(memchr::memmem::find(line, SECRET_FLAG.as_bytes()).is_some());
        }
        if !word.is_empty() {
            let bare = word.trim_start_matches(['"', '\'', '`', '(', '$', '\\']);
            // A variable is not a secret.
            let bare = if reader.next.is_some() { word.trim_start_matches('\\') } else { bare };
            let offset = start + word.len() - bare.len();
            let quoted = word.trim_start_matches('\\');
            let is_quoted = quoted.starts_with(['"', '\'']);
            // `# define` with blanks is the same as `#define`.
            let is_define = word == "define" && matches!(before, "#" | "%");
            let bare = if is_define { "#define" } else { bare };
            // A quoted argument after a program is a text, not a setting: `git commit -m "set …"`.
            let bare = if begins_settings(bare) && is_quoted { word } else { bare };
            if let Some((begin, takes)) = reader.step(bare, &named) {
                found.extend(place(bytes, offset + begin, takes, quotes));
            } else if is_named && is_quoted {
                // SQL statements: `PASSWORD '…'`, `IDENTIFIED BY '…'`.
                found.extend(place(bytes, start + word.len() - quoted.len(), SecretPart::Named, quotes));
            } else if sets_passwords && let Some(login) = token_patterns::password(word) {
                found.push(start + login.start..start + login.end);
            }
            let has =
                |word: &str, part: &str| word.contains(part) || word.contains(&part.to_ascii_uppercase());
            let is_by = has(before, "entified") && word.eq_ignore_ascii_case("by");
            let is_word = word.bytes().all(|byte| byte.is_ascii_alphabetic()) && has(word, "assw");
            // SQL statement: `PASSWORD FOR 'me'@'host' = '…'`.
            let is_for = is_named && word.eq_ignore_ascii_case("for");
            let is_set = words_since_for == Some(1) && word == "=";
            words_since_for = match words_since_for {
                _ if is_for => Some(0),
                Some(0) => Some(1),
                _ => None,
            };
            is_named = is_by || is_set || is_word && named(word) == Some(NamedValueKind::Secret);
            before = word;
        }
        let is_end = |byte: &u8| matches!(byte, b';' | b'|' | b'&' | b'\n');
        if word.as_bytes().last().is_some_and(is_end) || bytes.get(at - 1) == Some(&b'\n') {
            reader.end();
            is_named = false;
        }
    }
}

/// Returns the secret in a text, beginning at `begin` or after a few delimiters.
fn place(bytes: &[u8], begin: usize, takes: SecretPart, quotes: Quotes) -> Option<Range<usize>> {
    // In fish, parentheses contain the output of a command; in other languages, an expression. A text in
    // parentheses counts as a value.
    let begin = match bytes.get(begin..)? {
        [b'(', b'"' | b'\'', ..] => begin + 1,
        [b'(', ..] => return None,
        _ => begin,
    };
    let quote = bytes.get(begin).copied().filter(|byte| matches!(byte, b'"' | b'\''));
    let escapes = bytes[..begin].iter().rev().take_while(|byte| **byte == b'\\').take(8).count();
    let start = begin + usize::from(quote.is_some());
    if quote != Some(b'\'')
        && matches!(takes, SecretPart::Value | SecretPart::Named | SecretPart::Mixed)
        && let Some(place) = literal_of(bytes, start)
    {
        return Some(place);
    }
    let whole = word_end(bytes, begin, quotes);
    let end = match quote.and_then(|quote| closing(bytes, start, quote, escapes)) {
        // The quoted part is only the beginning of a longer word.
        Some(closing) if whole > closing + 1 && escapes == 0 => whole,
        Some(closing) => closing,
        None => word_end(bytes, start, quotes),
    };
    let argument = bytes.get(start..end)?;
    let takes = match takes {
        SecretPart::Mixed if quote.is_some() && argument.len() >= token_patterns::MIN_QUOTED_BYTES => {
            SecretPart::Value
        }
        takes => takes,
    };
    let from = start + secret_of(argument, takes)?;
    let until = from + secret_end(&bytes[from..end], takes);
    let is_literal = quote == Some(b'\'');
    (until > from && (is_literal || is_given(&bytes[from..until]))).then_some(from..until)
}

/// Returns the length of a secret. The secret ends with its argument, or at a delimiter within the argument.
fn secret_end(secret: &[u8], takes: SecretPart) -> usize {
    match takes {
        SecretPart::Slash => secret.iter().rposition(|byte| *byte == b'@').unwrap_or(secret.len()),
        _ => secret.len(),
    }
}

pub(super) fn secret_of(argument: &[u8], takes: SecretPart) -> Option<usize> {
    let behind = |sign: u8| argument.iter().position(|byte| *byte == sign).map(|at| at + 1);
    match takes {
        SecretPart::Value => Some(0),
        SecretPart::Named => {
            token_patterns::can_be_value(argument, token_patterns::MIN_OPTION_BYTES).then_some(0)
        }
        SecretPart::Login => {
            std::str::from_utf8(argument).ok().and_then(token_patterns::password).map(|place| place.start)
        }
        SecretPart::LoginOrToken => {
            secret_of(argument, SecretPart::Login).or_else(|| secret_of(argument, SecretPart::Token))
        }
        SecretPart::Percent => behind(b'%'),
        SecretPart::Comma => behind(b','),
        SecretPart::Pass => argument.starts_with(b"pass:").then_some(5),
        SecretPart::Equals => behind(b'='),
        SecretPart::Slash => behind(b'/').filter(|at| *at > 1),
        SecretPart::Mixed => token_patterns::can_be_value(argument, usize::MAX).then_some(0),
        SecretPart::Token => std::str::from_utf8(argument).is_ok_and(name::is_token_like).then_some(0),
    }
}
