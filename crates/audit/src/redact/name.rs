//! Names whose values are secrets, however they are written: case, separators, letters that cannot be seen and letters that
//! look like others make no difference.

/// The ends of names whose values are secrets, in lower case and without separators.
const ENDS: &[&str] = &[
    "accesskey",
    "accesssignature",
    "accountkey",
    "adminpass",
    "apikey",
    "authkey",
    "authorization",
    "authpass",
    "cookie",
    "credential",
    "credentials",
    "dbpass",
    "encryptionkey",
    "ftppass",
    "keypass",
    "ldappass",
    "mailpass",
    "masterkey",
    "mnemonic",
    "mysqlpass",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "passwort",
    "pgpass",
    "privatekey",
    "proxypass",
    "redispass",
    "rootpass",
    "secret",
    "secretkey",
    "signingkey",
    "smtppass",
    "sshpass",
    "storepass",
    "subscriptionkey",
    "token",
    "userpass",
    "userpwd",
    "xamzsignature",
    "xgoogsignature",
];

/// Last words of names, in lower case. Within longer words they mean something else.
const WORDS: [&str; 7] = ["bearer", "jwt", "otp", "pw", "pwd", "totp", "userpw"];

/// The last words of names whose values are secrets if they look like it: `db_pass` is a password, and `tests_pass` a number.
const DOUBTFUL: [&str; 5] = ["auth", "cred", "creds", "pass", "passes"];

/// Words that may follow the one that makes a name that of a secret: `password_confirmation`, `tokenOld`.
const CONTINUATIONS: &[&str] = &[
    "again",
    "backup",
    "confirm",
    "confirmation",
    "confirmed",
    "current",
    "dev",
    "live",
    "new",
    "old",
    "plain",
    "plaintext",
    "prev",
    "previous",
    "primary",
    "prod",
    "production",
    "repeat",
    "repeated",
    "secondary",
    "stage",
    "staging",
    "test",
    "value",
    "verify",
];

/// Of a longer name these last bytes are looked at.
pub(super) const MAX_NAME_BYTES: usize = 64;

/// What a name says of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// It is a secret.
    Secret,
    /// It is a secret unless it is a path: `pwd` is a password, and a directory.
    UnlessPath,
    /// The texts in it are secrets: `tokens` are also counted.
    Texts,
    /// It is a secret if it looks like one.
    Doubtful,
}

/// All names whose values are secrets.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// Ends that a caller has added to the usual ones.
    added: Vec<String>,
    /// The last letters of these, as bits: most names are out by theirs.
    last: u32,
}

impl Default for Names {
    fn default() -> Self {
        let mut names = Self { added: Vec::new(), last: bit(b's') };
        for word in ENDS.iter().chain(&WORDS) {
            names.last |= word.bytes().next_back().map_or(0, bit);
        }
        // `DB_PASS`, `STRIPE_KEY`.
        names.last |= bit(b'y');
        for word in DOUBTFUL {
            names.last |= word.bytes().next_back().map_or(0, bit);
        }
        names
    }
}

fn bit(letter: u8) -> u32 {
    if letter.is_ascii_lowercase() { 1 << (letter - b'a') } else { 1 << 31 }
}

impl Names {
    /// Adds the end of a name, which may be written in any way.
    pub(super) fn add(&mut self, end: &str) {
        let end = plain(end);
        self.last |= end.bytes().next_back().map_or(0, bit);
        self.added.push(end);
    }

    /// What is said of the value of this name, if it is or has a secret.
    pub(super) fn of(&self, name: &str) -> Option<Named> {
        let plain_name;
        let name = if name.is_ascii() {
            name
        } else {
            plain_name = readable(name);
            &plain_name
        };
        // Also behind what surrounds it: `[password]`, `password?`.
        let name = name.trim_matches(|letter: char| !letter.is_ascii_alphanumeric());
        self.of_whole(name).or_else(|| {
            let core = without_continuation(name);
            (core.len() < name.len()).then(|| self.of_whole(core))?
        })
    }

    /// The same of a name by its end.
    fn of_whole(&self, name: &str) -> Option<Named> {
        let last = name.bytes().next_back()?.to_ascii_lowercase();
        if self.last & bit(last) == 0 {
            return None;
        }
        if self.ends_like(name) || is_variable(name) {
            return Some(Named::Secret);
        }
        let word = last_word(name);
        if WORDS.iter().any(|known| word.eq_ignore_ascii_case(known)) {
            let is_directory = word.eq_ignore_ascii_case("pwd");
            return Some(if is_directory { Named::UnlessPath } else { Named::Secret });
        }
        if DOUBTFUL.iter().any(|known| word.eq_ignore_ascii_case(known)) {
            return Some(if name == "PASS" { Named::Secret } else { Named::Doubtful });
        }
        let one = name.strip_suffix(['s', 'S'])?;
        match self.ends_like(one) {
            true if word.eq_ignore_ascii_case("tokens") => Some(Named::Texts),
            true => Some(Named::Secret),
            false => None,
        }
    }

    /// Whether a name, in ASCII, ends like one of these.
    fn ends_like(&self, name: &str) -> bool {
        let letters =
            || name.bytes().rev().filter(|byte| !is_separator(*byte)).map(|byte| byte.to_ascii_lowercase());
        // By the last letter most are out.
        let last = letters().next();
        let is_end = |end: &str| {
            let mut letters = letters();
            end.bytes().next_back() == last && end.bytes().rev().all(|wanted| letters.next() == Some(wanted))
        };
        ENDS.iter().any(|end| is_end(end)) || self.added.iter().any(|end| is_end(end))
    }
}

fn is_separator(byte: u8) -> bool {
    matches!(byte, b'-' | b'_' | b'.' | b' ')
}

/// A name without case and separators.
fn plain(name: &str) -> String {
    let letters = readable(name);
    letters
        .chars()
        .filter(|letter| !u8::try_from(*letter).is_ok_and(is_separator))
        .collect::<String>()
        .to_lowercase()
}

/// What stands behind the last separator, or begins with the last capital: `user_pw`, `userPw`.
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

/// A name without the numbers and words at its end that say nothing about what it is the name of: `password2`, `tokenOld`.
fn without_continuation(name: &str) -> &str {
    let mut core = name;
    loop {
        let shorter = core.trim_end_matches(|letter: char| {
            letter.is_ascii_digit() || u8::try_from(letter).is_ok_and(is_separator)
        });
        let word = last_word(shorter);
        let is_more =
            word.len() < shorter.len() && CONTINUATIONS.iter().any(|known| word.eq_ignore_ascii_case(known));
        if !is_more {
            return shorter;
        }
        core = &shorter[..shorter.len() - word.len()];
    }
}

/// The end of a name, as far as names are looked at.
pub(super) fn end_of(name: &str) -> &str {
    let from = name.len().saturating_sub(MAX_NAME_BYTES);
    let from = (from..=name.len()).find(|at| name.is_char_boundary(*at)).unwrap_or(from);
    name.get(from..).unwrap_or(name)
}

/// Whether the value of this variable is a secret, by the last word of its name: `DB_PASS`, `STRIPE_KEY`. In small letters they
/// mean too much else.
fn is_variable(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let last = name.rsplit_once('_').map(|(_, last)| last);
    last.is_some_and(|last| matches!(last, "PASS" | "PWD" | "PW" | "KEY"))
        && name.bytes().all(is_letter)
        && name != "OLD_PWD"
}

/// The same of an option: `--pass`, `--db-pwd`.
pub(super) fn is_option(name: &str) -> bool {
    let last = name.strip_prefix("--").and_then(|name| name.rsplit('-').next());
    last.is_some_and(|last| matches!(last, "pass" | "pwd" | "pw"))
}

/// Whether a value can be that of a directory.
pub(super) fn is_path(value: &str) -> bool {
    value.starts_with(['/', '~', '.', '$', '%']) || value.as_bytes().get(1..3) == Some(b":\\")
}

/// A name as it looks to who reads it, in ASCII as far as it can be: without letters that cannot be seen, and with those it seems to have.
fn readable(name: &str) -> String {
    name.chars().filter(|letter| !is_invisible(*letter)).map(looks_like).collect()
}

fn is_invisible(letter: char) -> bool {
    matches!(letter,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fe00}'..='\u{fe0f}' | '\u{300}'..='\u{36f}' | '\u{115f}' | '\u{1160}'
        | '\u{3164}' | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}')
}

/// The ASCII letter that this one is taken for.
fn looks_like(letter: char) -> char {
    let at = |first: char, to: u8| {
        u32::from(letter)
            .checked_sub(u32::from(first))
            .and_then(|by| u8::try_from(by).ok())
            .map_or(letter, |by| char::from(to.wrapping_add(by)))
    };
    match letter {
        // Full width.
        '\u{ff01}'..='\u{ff5e}' => at('\u{ff01}', b'!'),
        // Letters for mathematics come in alphabets of 52, but for a few.
        '\u{1d400}'..='\u{1d6a3}' => {
            let index = (u32::from(letter) - 0x1d400) % 52;
            let (first, by) = if index < 26 { (b'a', index) } else { (b'a', index - 26) };
            char::from(first.wrapping_add(u8::try_from(by).unwrap_or(0)))
        }
        'а' | 'α' | 'ɑ' | 'á' | 'à' | 'â' | 'ä' | 'ã' | 'å' | 'ā' | 'А' | 'Α' | 'ⓐ' => 'a',
        'в' | 'В' | 'Β' | 'Ь' | 'ь' | 'ƅ' => 'b',
        'с' | 'С' | 'ϲ' | 'ç' | 'ć' | 'č' | 'ᴄ' => 'c',
        'ԁ' | 'ɗ' | 'đ' | 'ď' | 'ⅾ' => 'd',
        'е' | 'ё' | 'Е' | 'Ε' | 'ε' | 'é' | 'è' | 'ê' | 'ë' | 'ē' | 'ҽ' => 'e',
        'ց' | 'ɡ' | 'ğ' => 'g',
        'һ' | 'Н' | 'Η' | 'հ' => 'h',
        'і' | 'ї' | 'І' | 'Ι' | 'ι' | 'í' | 'ì' | 'î' | 'ï' | 'ı' | 'ɩ' | 'ⅰ' => 'i',
        'ј' | 'Ј' | 'ϳ' => 'j',
        'к' | 'К' | 'κ' | 'Κ' | 'ĸ' => 'k',
        'ӏ' | 'ⅼ' | 'ł' => 'l',
        'м' | 'М' | 'Μ' | 'ⅿ' => 'm',
        'п' | 'ո' | 'ñ' | 'η' | 'Ν' => 'n',
        'о' | 'О' | 'ο' | 'Ο' | 'σ' | 'ó' | 'ò' | 'ô' | 'ö' | 'õ' | 'ø' | 'օ' => 'o',
        'р' | 'Р' | 'ρ' | 'Ρ' => 'p',
        'г' | 'ɼ' => 'r',
        'ѕ' | 'Ѕ' | 'ś' | 'š' | 'ş' | 'ꜱ' => 's',
        'т' | 'Т' | 'τ' | 'Τ' | 'ť' => 't',
        'υ' | 'ս' | 'ú' | 'ù' | 'û' | 'ü' => 'u',
        'ѵ' | 'ν' | 'ⅴ' => 'v',
        'ԝ' | 'ѡ' | 'ω' | 'ɯ' => 'w',
        'х' | 'Х' | 'χ' | 'Χ' | 'ⅹ' => 'x',
        'у' | 'У' | 'γ' | 'Υ' | 'ý' | 'ÿ' => 'y',
        'ᴢ' | 'Ζ' | 'ž' => 'z',
        '‐' | '‑' | '‒' | '–' | '—' | '−' => '-',
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{3000}' => ' ',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_however_they_are_written() {
        let names = Names::default();
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
            assert_eq!(names.of(name), Some(Named::Secret), "{name}");
        }
        for name in ["pwd", "Pwd", "PWD", "user_pwd"] {
            assert!(matches!(names.of(name), Some(Named::UnlessPath | Named::Secret)), "{name}");
        }
        for name in ["pass", "mine_pass", "ansible_become_pass", "_auth", "creds", "pass2"] {
            assert_eq!(names.of(name), Some(Named::Doubtful), "{name}");
        }
        assert_eq!(names.of("tokens"), Some(Named::Texts));
        assert_eq!(names.of("max_tokens"), Some(Named::Texts));
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
            assert_eq!(names.of(name), None, "{name}");
        }
    }
}
