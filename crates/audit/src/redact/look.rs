//! What secrets look like in the middle of a text.

/// How long a value must be to pass for a secret where only its name speaks for it.
const VALUE: usize = 8;

/// A name without case and separators.
pub(super) fn plain(name: &str) -> String {
    let letters = name.chars().filter(|letter| !matches!(letter, '-' | '_' | '.' | ' '));
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

/// Whether a token that begins like one of these stands in it.
pub(super) fn has_token(text: &str, tokens: &[(String, usize)]) -> bool {
    let bytes = text.as_bytes();
    let mut inside = false;
    for (at, &byte) in bytes.iter().enumerate() {
        let begins = !inside;
        inside = byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if begins && (is_scheme(&bytes[at..]) || tokens.iter().any(|token| starts(&bytes[at..], token))) {
            return true;
        }
    }
    false
}

fn starts(rest: &[u8], (start, least): &(String, usize)) -> bool {
    rest.strip_prefix(start.as_bytes()).is_some_and(|rest| run(rest) >= *least)
}

/// `Bearer …` and `Basic …`, as headers have them.
fn is_scheme(rest: &[u8]) -> bool {
    [(&b"bearer "[..], 16), (b"basic ", 16)].iter().any(|(scheme, least)| {
        rest.len() > scheme.len()
            && rest[..scheme.len()].eq_ignore_ascii_case(scheme)
            && run(&rest[scheme.len()..]) >= *least
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
        if run(&rest[blank..]) < VALUE {
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

/// How many characters of a token these bytes begin with.
fn run(bytes: &[u8]) -> usize {
    let is_token = |byte: &&u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+' | b'/' | b'=' | b'~')
    };
    bytes.iter().take_while(is_token).count()
}
