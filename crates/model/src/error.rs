//! Failures of an endpoint.

use std::fmt;
use std::time::Duration;

const MAX_MESSAGE_CHARS: usize = 1999;

/// Failure of a request: no answer, or only a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelError {
    pub kind: ErrorKind,
    /// HTTP status, or the status in a stream event.
    pub status: Option<u16>,
    /// URL of the request, without query and user.
    pub url: String,
    /// The provider's message, or else the cause. One line of at most 2000 characters, with control
    /// characters escaped.
    pub message: String,
    /// `true` if the same request may succeed later.
    pub retryable: bool,
    /// Delay before a retry that the provider demands.
    pub retry_after: Option<Duration>,
    /// Id by which the provider can find the request.
    pub request_id: Option<String>,
    /// Size of the context window, if the provider reports it in an overflow error.
    pub window: Option<u64>,
    /// `true` if a part of the answer was shown before the failure.
    pub shown: bool,
}

/// Kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    Unconfigured,
    Auth,
    /// Too many requests or tokens in a period.
    RateLimit,
    Quota,
    Overflow,
    Server,
    /// An HTTP status without a kind of its own.
    Http,
    /// No connection, or a broken connection.
    Network,
    /// A timeout expired.
    Timeout,
    /// The answer stopped before its end.
    Cut,
    /// The response is not an answer, but a web page, an empty body, or too much data.
    Garbage,
    /// The provider reports a failure in the response to a successful request.
    Provider,
    /// The model does not accept a part of the request, such as an image.
    Unsupported,
    Demo,
}

impl ErrorKind {
    /// Returns the name for logs and programs.
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

impl ErrorKind {
    /// Returns `true` if messages of this kind are written by this crate, not by the provider.
    fn is_in_our_words(self) -> bool {
        matches!(self, Self::Unconfigured | Self::Network | Self::Timeout | Self::Cut | Self::Demo)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ModelError {
    /// Creates an error that is not retryable. Removes the query and the user from `url`, and makes `message`
    /// a single line.
    pub(crate) fn new(kind: ErrorKind, url: &str, message: &str) -> Self {
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

    /// Removes `secret` from all texts, because some providers quote the key. Also removes a beginning of
    /// `secret` at the end of a cut message.
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

/// The text omits the provider's message, because logs contain it and providers quote the conversation.
impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if let Some(status) = self.status {
            write!(f, " (HTTP {status})")?;
        }
        if !self.url.is_empty() {
            write!(f, " from {}", self.url)?;
        }
        if !self.message.is_empty() && self.kind.is_in_our_words() {
            write!(f, ": {}", self.message)?;
        }
        if let Some(id) = &self.request_id {
            write!(f, " [request {id}]")?;
        }
        Ok(())
    }
}

impl std::error::Error for ModelError {}

fn bare(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// Returns `text` as one line that is safe to log and to show. White space becomes single spaces.
pub(crate) fn one_line(text: &str) -> String {
    // Every word has at least one character, so more words than characters cannot fit.
    let words: Vec<&str> = text.split_whitespace().take(MAX_MESSAGE_CHARS).collect();
    narrows_base::text::one_line(&words.join(" "), MAX_MESSAGE_CHARS)
}

/// Replaces `secret` in `text`, and also the beginning of `secret` at the end of a cut text.
fn hide(text: &mut String, secret: &str) {
    const MARK: &str = "[secret]";
    /// Minimum length of a part of a secret that is removed. Shorter parts reveal nothing.
    const MIN_SECRET_PREFIX_BYTES: usize = 4;
    if text.contains(secret) {
        *text = text.replace(secret, MARK);
    }
    let Some(kept) = text.strip_suffix('…') else { return };
    let cut = secret
        .char_indices()
        .map(|(at, _)| &secret[..at])
        .rev()
        .find(|start| start.len() >= MIN_SECRET_PREFIX_BYTES && kept.ends_with(start));
    if let Some(start) = cut {
        let end = kept.len() - start.len();
        text.truncate(end);
        text.push_str(MARK);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_url_loses_query_and_user() {
        #[track_caller]
        fn check(url: &str, expected: &str) {
            assert_eq!(ModelError::new(ErrorKind::Http, url, "").url, expected);
        }
        check("https://h/v1/chat/completions", "https://h/v1/chat/completions");
        check("https://h:1/v1?api-version=1&key=k#f", "https://h:1/v1");
        check("https://user:pass@h/v1/a@b", "https://h/v1/a@b");
        check("https://u@p@h", "https://h");
        check("builtin:demo", "builtin:demo");
        check("", "");
    }

    #[test]
    fn a_message_is_one_safe_line() {
        #[track_caller]
        fn check(text: &str, expected: &str) {
            assert_eq!(one_line(text), expected);
        }
        check(" a\r\n\tb  c ", "a b c");
        check("a\u{1b}[31mb\u{0}", "a\\u{1b}[31mb\\u{0}");
        check("a\u{202e}b", "a\\u{202e}b");
        check("é😀", "é😀");
        check(&"x".repeat(1999), &"x".repeat(1999));
        check(&"x".repeat(2001), &format!("{}…", "x".repeat(1999)));
    }

    #[test]
    fn an_error_is_one_line_in_a_log() {
        let error = ModelError {
            status: Some(429),
            request_id: Some("req_1".to_owned()),
            ..ModelError::new(ErrorKind::RateLimit, "https://h/v1?k=v", "slow\ndown")
        };
        assert_eq!(error.to_string(), "rate_limit (HTTP 429) from https://h/v1 [request req_1]");
        assert_eq!(ModelError::new(ErrorKind::Demo, "", "no").to_string(), "demo: no");
        assert_eq!(ModelError::new(ErrorKind::Cut, "", "").to_string(), "cut");
        let quotes = ModelError::new(
            ErrorKind::Http,
            "",
            "Invalid request: [{'role': 'user', 'content': 'a prompt'}]",
        );
        assert_eq!(quotes.to_string(), "http");
    }

    #[test]
    fn a_secret_is_removed() {
        #[track_caller]
        fn check(message: &str, expected: &str) {
            let mut error = ModelError::new(ErrorKind::Auth, "https://h/sk-secret/v1", message);
            error.hide("sk-secret");
            assert_eq!(error.message, expected);
            assert_eq!(error.url, "https://h/[secret]/v1");
        }
        check("wrong key sk-secret, not sk-secret", "wrong key [secret], not [secret]");
        check("wrong key sk-se", "wrong key sk-se");
        let long = "x".repeat(1990);
        check(&format!("{long} sk-secret sk-secret"), &format!("{long} [secret]…"));
        let mut error = ModelError::new(ErrorKind::Auth, "", "a");
        error.hide("");
        assert_eq!(error.message, "a");
    }

    proptest! {
        #[test]
        fn any_text_becomes_one_short_line(text in any::<String>(), times in 1..200usize) {
            let line = one_line(&text.repeat(times));
            prop_assert!(line.chars().count() <= MAX_MESSAGE_CHARS + 1);
            prop_assert!(!line.chars().any(narrows_base::text::is_unsafe));
        }

        #[test]
        fn no_part_of_a_secret_is_left_in_a_cut_message(before in 1900..2100usize, key in "sk-[a-z0-9]{20}") {
            let mut error = ModelError::new(ErrorKind::Auth, "", &format!("{} {key} {key}", "X".repeat(before)));
            error.hide(&key);
            prop_assert!(!error.message.contains(&key[..4]), "{}", error.message);
        }
    }
}
