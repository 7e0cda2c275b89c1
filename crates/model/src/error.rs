//! What can go wrong with an endpoint, in one form.

use std::fmt;
use std::time::Duration;

/// The most characters of a provider's own words that are kept.
const MAX_MESSAGE: usize = 2000;

/// Why there is no answer, or only a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What sort of failure it is.
    pub kind: Kind,
    /// The HTTP status, or the one the provider names in an event of a stream.
    pub status: Option<u16>,
    /// The URL that was asked, without query and user.
    pub url: String,
    /// The provider's own words or the cause: one line, control characters escaped, at most 2000 characters.
    pub message: String,
    /// Whether the same request may work a little later.
    pub retryable: bool,
    /// How long the provider wants us to wait before that.
    pub retry_after: Option<Duration>,
    /// What the provider can find the request by.
    pub request_id: Option<String>,
    /// The size of the context window, where the provider tells it with an overflow.
    pub window: Option<u64>,
    /// Whether a part of the answer had been shown.
    pub shown: bool,
}

/// The sorts of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No endpoint has been set up.
    Unconfigured,
    /// The key is missing, wrong or not allowed this.
    Auth,
    /// Too many requests or tokens in a while.
    RateLimit,
    /// The account is out of credit.
    Quota,
    /// The conversation does not fit into the context window.
    Overflow,
    /// The provider failed.
    Server,
    /// Any other status.
    Http,
    /// No connection, or it broke.
    Network,
    /// Nothing came for too long.
    Timeout,
    /// The answer stopped without an end.
    Cut,
    /// What came is no answer: a web page, nothing at all, or more than is taken.
    Garbage,
    /// The provider reports a failure in the place of an answer, or within one.
    Provider,
    /// The model cannot take what was sent, such as a picture.
    Unsupported,
    /// The built-in model cannot do this.
    Demo,
}

impl Kind {
    /// Its name in logs and for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unconfigured => "unconfigured",
            Self::Auth => "auth",
            Self::RateLimit => "rate_limit",
            Self::Quota => "quota",
            Self::Overflow => "overflow",
            Self::Server => "server",
            Self::Http => "http",
            Self::Network => "network",
            Self::Timeout => "timeout",
            Self::Cut => "cut",
            Self::Garbage => "garbage",
            Self::Provider => "provider",
            Self::Unsupported => "unsupported",
            Self::Demo => "demo",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Error {
    /// An error that is not retryable and of which nothing more is known. `url` loses its query and user, `message`
    /// becomes one line.
    pub(crate) fn new(kind: Kind, url: &str, message: &str) -> Self {
        Self {
            kind,
            status: None,
            url: bare(url),
            message: one_line(message),
            retryable: false,
            retry_after: None,
            request_id: None,
            window: None,
            shown: false,
        }
    }

    /// Takes `secret` out of all text, also where the end of the message cuts it: some providers quote the key.
    pub(crate) fn hide(&mut self, secret: &str) {
        if secret.is_empty() {
            return;
        }
        hide(&mut self.message, secret);
        hide(&mut self.url, secret);
        if let Some(id) = &mut self.request_id {
            hide(id, secret);
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if let Some(status) = self.status {
            write!(f, " (HTTP {status})")?;
        }
        if !self.url.is_empty() {
            write!(f, " from {}", self.url)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        if let Some(id) = &self.request_id {
            write!(f, " [request {id}]")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// `url` without query, fragment and user.
fn bare(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// `text` as one line that is safe to log and to show: white space becomes single blanks, control characters and
/// direction overrides appear as `\u{…}`, and what is over the limit as `…`.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let gap = (!line.is_empty()).then_some(' ');
        for character in gap.into_iter().chain(word.chars()) {
            let before = line.len();
            if misleads(character) {
                line.extend(character.escape_unicode());
            } else {
                line.push(character);
            }
            length += line[before..].chars().count();
            // One place is kept for the mark.
            if length >= MAX_MESSAGE {
                line.truncate(before);
                line.push('…');
                return line;
            }
        }
    }
    line
}

/// Characters that change how the rest of a line is shown.
fn misleads(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Replaces `secret` in `text`, and the beginning of it at the end of a text that was cut.
fn hide(text: &mut String, secret: &str) {
    const MARK: &str = "[secret]";
    /// Fewer characters of a key than this tell nothing.
    const TELLING: usize = 4;
    if text.contains(secret) {
        *text = text.replace(secret, MARK);
    }
    let Some(kept) = text.strip_suffix('…') else { return };
    let cut = secret
        .char_indices()
        .map(|(at, _)| &secret[..at])
        .rev()
        .find(|start| start.len() >= TELLING && kept.ends_with(start));
    if let Some(start) = cut {
        let end = kept.len() - start.len();
        text.truncate(end);
        text.push_str(MARK);
        text.push('…');
    }
}
