//! Finds secrets in addresses: URLs of webhooks and bots that grant access by themselves, and passwords in
//! database addresses and `.pgpass` lines.
//!
//! Only the part that grants access is removed. Host and service stay readable.

use std::ops::Range;

use super::token_patterns;
use super::value::is_given;

/// Which part of an address is secret: the next segment of the path, or all further ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Segment,
    /// All further segments of the path.
    Rest,
}

/// Secret addresses: a host or the end of its name, the segments before the secret (`*` matches any), and the
/// secret part.
const LINKS: &[(&str, &str, Part)] = &[
    ("alchemy.com", "v2", Part::Segment),
    ("api.pushcut.io", "", Part::Segment),
    ("calendar.google.com", "calendar/ical/*", Part::Segment),
    ("discord.com", "api/*/webhooks/*", Part::Segment),
    ("discord.com", "api/webhooks/*", Part::Segment),
    ("discord.com", "api/*/interactions/*", Part::Segment),
    ("discord.com", "api/interactions/*", Part::Segment),
    ("discordapp.com", "api/*/webhooks/*", Part::Segment),
    ("discordapp.com", "api/webhooks/*", Part::Segment),
    ("events.pagerduty.com", "integration", Part::Segment),
    ("hc-ping.com", "", Part::Segment),
    ("hooks.slack-gov.com", "*", Part::Rest),
    ("hooks.slack.com", "*", Part::Rest),
    ("hooks.zapier.com", "hooks/catch/*", Part::Rest),
    ("hooks.zapier.com", "hooks/standard/*", Part::Rest),
    ("infura.io", "v3", Part::Segment),
    ("maker.ifttt.com", "trigger/*/json/with/key", Part::Rest),
    ("maker.ifttt.com", "trigger/*/with/key", Part::Rest),
    ("maker.ifttt.com", "use", Part::Rest),
    ("open.feishu.cn", "open-apis/bot/*/hook", Part::Rest),
    ("open.larksuite.com", "open-apis/bot/*/hook", Part::Rest),
    ("outlook.office.com", "webhook", Part::Rest),
    ("outlook.office365.com", "webhook", Part::Rest),
    ("quiknode.pro", "", Part::Segment),
    ("webhook.office.com", "webhookb2", Part::Rest),
    ("webhook.site", "", Part::Segment),
];

/// Path segments that precede random-looking secrets, on any host.
const HOOK_SEGMENTS: [&str; 7] =
    ["hook", "hooks", "webhook", "webhooks", "incomingwebhook", "token", "secret"];

/// Minimum length of a path segment that counts as random.
const MIN_RANDOM_BYTES: usize = 16;
const MIN_RANDOM_TURNS: usize = 4;

/// Number of digits of a Telegram bot's id.
const BOT_DIGITS: std::ops::RangeInclusive<usize> = 5..=12;
const MIN_BOT_TOKEN_BYTES: usize = 20;
const MIN_BARE_BOT_TOKEN_BYTES: usize = 30;

/// Endings of source file names. A line number follows such a name, as a port follows a host name.
const SOURCE_ENDS: &[&str] = &[
    "c", "cc", "cpp", "cs", "css", "go", "h", "hpp", "html", "java", "js", "json", "jsx", "kt", "log", "lua",
    "md", "php", "pl", "py", "rb", "rs", "sh", "sql", "swift", "toml", "ts", "tsx", "txt", "xml", "yaml",
    "yml",
];

/// Maximum distance between a host in a database address and the beginning of the login before it.
const MAX_LOGIN_BYTES: usize = 256;

pub(super) fn links(text: &str, found: &mut Vec<Range<usize>>) {
    let known = found.len();
    let is_end = |letter: char| {
        letter.is_whitespace()
            || matches!(letter, '"' | '\'' | '`' | '<' | '>' | '(' | ')' | ',' | '|' | ';' | '\\')
    };
    let mut begin = 0;
    for word in text.split(is_end) {
        if word.contains('/') {
            link_word(word, begin, found);
        }
        // Every character that ends a word is one byte long, except some blanks.
        begin += word.len();
        begin += text[begin..].chars().next().map_or(0, char::len_utf8);
    }
    let mut index = 0;
    found.retain(|place| {
        index += 1;
        index <= known || is_given(&text.as_bytes()[place.clone()])
    });
}

/// Finds the secrets of the addresses in one word. A word may contain several addresses:
/// `--url=https://a/https://b/`.
fn link_word(word: &str, offset: usize, found: &mut Vec<Range<usize>>) {
    let mut starts = word.match_indices("://").map(|(at, sign)| at + sign.len()).peekable();
    if starts.peek().is_none() {
        let at = word.find('/').unwrap_or(0);
        let host = word[..at].rfind(['=', '@', ':']).map_or(0, |at| at + 1);
        address(&word[host..], offset + host, Scheme::Missing, found);
    }
    while let Some(start) = starts.next() {
        let end = starts.peek().copied().unwrap_or(word.len());
        address(&word[start..end], offset + start, Scheme::Present, found);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Present,
    Missing,
}

/// Finds the secrets in the path of an address that begins with its host.
fn address(address: &str, offset: usize, scheme: Scheme, found: &mut Vec<Range<usize>>) {
    let Some((authority, _)) = address.split_once('/') else { return };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = host.split_once(':').map_or(host, |(host, _)| host);
    let begin = authority.len() + 1;
    let path = &address[begin..];
    let path = &path[..path.find(['?', '#']).unwrap_or(path.len())];
    let offset = offset + begin;
    if is_host(host, "api.telegram.org") {
        found.extend(bot_segments(path).map(|place| offset + place.start..offset + place.end));
        return;
    }
    // The webhook service Make has a host for each region.
    if host.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("hook.")) && is_host(host, "make.com") {
        found.extend((!path.is_empty()).then_some(offset..offset + path.len()));
        return;
    }
    let known = LINKS.iter().filter(|(known, ..)| is_host(host, known));
    for (_, segments, part) in known {
        let Some(begin) = behind(path, segments) else { continue };
        let length = match part {
            Part::Segment => path[begin..].find('/').unwrap_or(path.len() - begin),
            Part::Rest => path.len() - begin,
        };
        if length > 0 {
            found.push(offset + begin..offset + begin + length);
            return;
        }
    }
    // A text without a scheme may be a path of the file system.
    if scheme == Scheme::Present || host.contains('.') && !host.starts_with('.') {
        hook_segments(path, offset, found);
    }
}

fn hook_segments(path: &str, offset: usize, found: &mut Vec<Range<usize>>) {
    let (mut begin, mut is_hook) = (0, false);
    for segment in path.split('/') {
        if is_hook && is_random(segment) {
            found.push(offset + begin..offset + begin + segment.len());
        }
        is_hook |= HOOK_SEGMENTS.iter().any(|known| segment.eq_ignore_ascii_case(known));
        begin += segment.len() + 1;
    }
}

fn bot_segments(path: &str) -> impl Iterator<Item = Range<usize>> {
    let mut begin = 0;
    path.split('/').filter_map(move |segment| {
        let start = begin;
        begin += segment.len() + 1;
        let (number, token) = segment.get(3..)?.split_once(':')?;
        let is_bot =
            segment[..3].eq_ignore_ascii_case("bot") && number.bytes().all(|byte| byte.is_ascii_digit());
        let from = start + segment.len() - token.len();
        (is_bot && !token.is_empty()).then(|| from..from + token.len())
    })
}

fn is_host(host: &str, known: &str) -> bool {
    let Some(at) = host.len().checked_sub(known.len()) else { return false };
    host.get(at..).is_some_and(|end| end.eq_ignore_ascii_case(known))
        && (at == 0 || host.as_bytes()[at - 1] == b'.')
}

/// Returns the position after these segments, if the path begins with all of them.
fn behind(path: &str, segments: &str) -> Option<usize> {
    let mut rest = path;
    for known in segments.split('/').filter(|known| !known.is_empty()) {
        let (segment, more) = rest.split_once('/')?;
        if known != "*" && !segment.eq_ignore_ascii_case(known) {
            return None;
        }
        rest = more;
    }
    Some(path.len() - rest.len())
}

fn is_random(segment: &str) -> bool {
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Class {
        Small,
        Capital,
        Digit,
    }
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'=' | b'@');
    if segment.len() < MIN_RANDOM_BYTES || !segment.bytes().all(is_part) {
        return false;
    }
    let class = |byte: u8| match byte {
        b'a'..=b'z' => Some(Class::Small),
        b'A'..=b'Z' => Some(Class::Capital),
        b'0'..=b'9' => Some(Class::Digit),
        _ => None,
    };
    let (mut last, mut turns, mut has_digit) = (None, 0, false);
    for class in segment.bytes().filter_map(class) {
        turns += usize::from(last.is_some_and(|last| last != class));
        has_digit |= class == Class::Digit;
        last = Some(class);
    }
    has_digit && turns >= MIN_RANDOM_TURNS
}

/// Finds tokens of Telegram bots outside of Telegram's own addresses: `123456789:AA…`, and `bot123456789:…`
/// on other servers.
pub(super) fn bot_tokens(text: &str, found: &mut Vec<Range<usize>>) {
    let bytes = text.as_bytes();
    for at in memchr::memchr_iter(b':', bytes) {
        let digits = bytes[..at]
            .iter()
            .rev()
            .take(BOT_DIGITS.end() + 1)
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        if !BOT_DIGITS.contains(&digits) {
            continue;
        }
        let before = &bytes[..at - digits];
        let is_bot =
            before.len().checked_sub(3).is_some_and(|start| before[start..].eq_ignore_ascii_case(b"bot"));
        let is_word = before.last().is_none_or(|byte| !byte.is_ascii_alphanumeric());
        let is_token = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let begin = at + 1;
        let least = if is_bot { MIN_BOT_TOKEN_BYTES } else { MIN_BARE_BOT_TOKEN_BYTES };
        if !(is_bot || is_word && bytes[begin..].starts_with(b"AA"))
            || bytes[begin..].iter().take(least).take_while(is_token).count() < least
        {
            continue;
        }
        let length = bytes[begin..].iter().take_while(is_token).count();
        found.push(begin..begin + length);
    }
}

/// Finds passwords of database addresses that are not URLs: `me:…@tcp(host)/db`,
/// `jdbc:oracle:thin:me/…@host`.
pub(super) fn database_logins(text: &str, found: &mut Vec<Range<usize>>) {
    let is_end =
        |letter: char| letter.is_whitespace() || matches!(letter, '"' | '\'' | '`' | '=' | '<' | '>');
    for sign in ["@tcp(", "@unix("] {
        for (at, _) in text.match_indices(sign) {
            let from = at.saturating_sub(MAX_LOGIN_BYTES);
            let from = (from..=at).find(|from| text.is_char_boundary(*from)).unwrap_or(at);
            let start = text[from..at].rfind(is_end).map_or(from, |before| from + before);
            let start = start
                + text[start..at].chars().next().filter(|letter| is_end(*letter)).map_or(0, char::len_utf8);
            let Some(colon) = text[start..at].find(':') else { continue };
            // A format placeholder is not a password.
            let password = start + colon + 1..at;
            if colon > 0 && !password.is_empty() && !text[password.clone()].starts_with('%') {
                found.push(password);
            }
        }
    }
    let mut done = 0;
    for (at, start) in text.match_indices("jdbc:oracle:") {
        let begin = at + start.len();
        if at < done {
            continue;
        }
        let word = &text[begin..];
        let word = &word[..word.find(is_end).unwrap_or(word.len())];
        done = begin + word.len();
        let Some((login, _)) = word.rsplit_once('@') else { continue };
        if let Some(slash) = login.find('/').filter(|slash| slash + 1 < login.len()) {
            found.push(begin + slash + 1..begin + login.len());
        }
    }
}

/// Finds passwords of `.pgpass` lines: `host:port:database:user:…`.
pub(super) fn pgpass_lines(text: &str, found: &mut Vec<Range<usize>>) {
    let is_end = |letter: char| letter.is_ascii_whitespace() || matches!(letter, '"' | '\'');
    let is_told = text.contains("pgpass") || text.contains("PGPASS");
    let mut begin = 0;
    for word in text.split(is_end) {
        let start = begin;
        begin += word.len() + 1;
        let Some([host, port, database, user, password]) = pgpass_fields(word) else { continue };
        let is_name = |name: &str| {
            let is_part =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'$');
            name == "*" || (name.bytes().all(is_part) && name.bytes().any(|byte| byte.is_ascii_alphabetic()))
        };
        let is_host =
            host == "*" || host.starts_with('/') || is_name(host) || host.parse::<std::net::IpAddr>().is_ok();
        let is_number = matches!(port.len(), 4..=5) && port.bytes().all(|byte| byte.is_ascii_digit());
        let is_usual = port == "*" || port.starts_with("543") || port == "6432";
        // `.pgpass` lines match all of these conditions. Few other lines with colons do, such as compiler
        // output.
        let is_source = !is_usual && host.rsplit_once('.').is_some_and(|(_, end)| SOURCE_ENDS.contains(&end));
        let is_secret = is_told || is_usual || token_patterns::can_be_value(password.as_bytes(), usize::MAX);
        let is_secret = is_secret && is_given(password.as_bytes());
        if is_host
            && (is_number || port == "*")
            && is_name(database)
            && is_name(user)
            && is_secret
            && !is_source
        {
            let from = start + word.len() - password.len();
            found.push(from..from + password.len());
        }
    }
}

/// Returns the five fields of a `.pgpass` line. Colons within a field are escaped.
fn pgpass_fields(word: &str) -> Option<[&str; 5]> {
    let mut fields = [""; 5];
    let (mut from, mut index) = (0, 0);
    for at in memchr::memchr_iter(b':', word.as_bytes()) {
        if word[..at].ends_with('\\') {
            continue;
        }
        *fields.get_mut(index).filter(|_| index < 4)? = &word[from..at];
        (from, index) = (at + 1, index + 1);
    }
    fields[4] = &word[from..];
    (index == 4 && fields.iter().all(|field| !field.is_empty())).then_some(fields)
}
