//! What secrets look like in the middle of a text.

/// How long a value must be to pass for a secret where only its name speaks for it.
const VALUE: usize = 8;

/// The shortest text that can be a secret by its look: `a://b:c@`.
pub(super) const SHORTEST: usize = 8;

/// What stands in front of a credential in a header, in lower case.
pub(super) const SCHEMES: [&str; 2] = ["bearer ", "basic "];

/// How long the token behind it is at least.
const CREDENTIAL: usize = 16;

/// Whether a name ends like one of these, which are plain.
pub(super) fn ends_like(name: &str, ends: &[String]) -> bool {
    if !name.is_ascii() {
        let name = plain(name);
        return ends.iter().any(|end| name.ends_with(end.as_str()));
    }
    ends.iter().any(|end| {
        let letters =
            name.bytes().rev().filter(|byte| !is_separator(*byte)).map(|byte| byte.to_ascii_lowercase());
        let mut letters = letters;
        end.bytes().rev().all(|wanted| letters.next() == Some(wanted))
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

/// Whether a private key begins in it.
pub(super) fn has_private_key(text: &str) -> bool {
    text.match_indices("-----BEGIN ").any(|(at, start)| {
        let title = text[at + start.len()..].split("-----").next();
        title.is_some_and(|title| title.len() < 64 && title.ends_with("PRIVATE KEY"))
    })
}

/// Whether there is a URL with a password in it.
pub(super) fn has_login(text: &str) -> bool {
    text.match_indices("://").any(|(at, sign)| {
        let rest = &text[at + sign.len()..];
        let end = rest.find(|letter: char| letter.is_whitespace() || matches!(letter, '/' | '?' | '#' | '"'));
        let authority = &rest[..end.unwrap_or(rest.len())];
        let login = authority.rsplit_once('@').and_then(|(login, _)| login.split_once(':'));
        login.is_some_and(|(_, password)| !password.is_empty())
    })
}

/// Whether a token that begins like one of these stands in it; `first` has the bytes with which they begin.
pub(super) fn has_token(text: &str, tokens: &[(String, usize)], first: &[bool; 256]) -> bool {
    let bytes = text.as_bytes();
    let mut inside = false;
    for (at, &byte) in bytes.iter().enumerate() {
        let begins = !inside && first[usize::from(byte)];
        inside = byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if begins && (is_scheme(&bytes[at..]) || tokens.iter().any(|token| starts(&bytes[at..], token))) {
            return true;
        }
    }
    false
}

fn starts(rest: &[u8], (start, least): &(String, usize)) -> bool {
    rest.strip_prefix(start.as_bytes()).is_some_and(|rest| runs(rest, *least))
}

/// `Bearer …` and `Basic …`, as headers have them.
fn is_scheme(rest: &[u8]) -> bool {
    SCHEMES.iter().any(|scheme| {
        rest.len() > scheme.len()
            && rest[..scheme.len()].eq_ignore_ascii_case(scheme.as_bytes())
            && runs(&rest[scheme.len()..], CREDENTIAL)
    })
}

/// Whether something that is named like a secret gets a value in it: `TOKEN=…`, `"password": "…"`, `--api-key …`.
pub(super) fn has_assignment(text: &str, is_name: impl Fn(&str) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().enumerate().any(|(at, &byte)| {
        if !matches!(byte, b'=' | b':') {
            return false;
        }
        let rest = &bytes[at + 1..];
        let blank =
            rest.iter().take_while(|byte| matches!(byte, b' ' | b'"' | b'\'' | b'\\')).take(4).count();
        if !runs(&rest[blank..], VALUE) {
            return false;
        }
        let before = text[..at].trim_end_matches(['"', '\'', ' ', '\\']);
        let start =
            before.rfind(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_' && letter != '-');
        let name =
            &before[start.map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8))..];
        !name.is_empty() && name.len() <= 64 && is_name(name)
    })
}

/// Whether these bytes begin with so many characters of a token. No more are looked at: whoever writes the text may
/// have made it long.
fn runs(bytes: &[u8], least: usize) -> bool {
    let is_token = |byte: &u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+' | b'/' | b'=' | b'~')
    };
    bytes.get(..least).is_some_and(|bytes| bytes.iter().all(is_token))
}
