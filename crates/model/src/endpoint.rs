//! Settings and limits of an endpoint.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Provider, Secret};

/// Base URL of the built-in demo model.
pub const DEMO_URL: &str = "builtin:demo";

/// A Chat Completions endpoint, as configured.
#[derive(Clone)]
pub struct Endpoint {
    pub name: String,
    /// URL to which `/chat/completions` is appended, or [`DEMO_URL`].
    pub base_url: String,
    pub key: Option<Secret>,
    /// Additional headers of every request. A header replaces the built-in header of the same name.
    pub headers: Vec<(String, Secret)>,
    pub query: Vec<(String, String)>,
    /// Provider; `None` detects it from the URL.
    pub provider: Option<Provider>,
    /// Size of the context window in tokens; overrides the size that the endpoint reports.
    pub context_window: Option<u64>,
    pub limits: Limits,
    /// File with additional certificate authorities in PEM form.
    pub ca_file: Option<PathBuf>,
    /// HTTP proxy. Never used for loopback addresses.
    pub proxy: Option<String>,
    /// Pause between two pieces of the demo model's answer.
    pub pace: Duration,
}

impl Endpoint {
    /// Returns an endpoint with default settings.
    #[must_use]
    pub fn new(name: impl Into<String>, base_url: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            base_url: base_url.into(),
            key: None,
            headers: Vec::new(),
            query: Vec::new(),
            provider: None,
            context_window: None,
            limits: Limits::default(),
            ca_file: None,
            proxy: None,
            pace: Duration::ZERO,
        }
    }

    /// Returns the endpoint of the built-in demo model.
    #[must_use]
    pub fn demo() -> Self {
        Self::new("demo", DEMO_URL)
    }
}

impl fmt::Debug for Endpoint {
    /// Query parameters and the proxy's credentials are omitted, because they are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            base_url,
            key,
            headers,
            query,
            provider,
            context_window,
            limits,
            ca_file,
            proxy,
            pace,
        } = self;
        f.debug_struct("Endpoint")
            .field("name", name)
            .field("base_url", &base_url.split(['?', '#']).next().unwrap_or_default())
            .field("key", key)
            .field("headers", headers)
            .field("query", &query.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("provider", provider)
            .field("context_window", context_window)
            .field("limits", limits)
            .field("ca_file", ca_file)
            .field("proxy", &proxy.is_some())
            .field("pace", pace)
            .finish()
    }
}

/// Limits of a request: timeouts, retries and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub connect: Duration,
    /// Time until the first event of the answer, because a local model may read a long prompt for minutes.
    /// Also the maximum time without an event while a gateway sends only comments.
    pub first_event: Duration,
    /// Maximum time between two reads after the first event. A comment counts as a read.
    pub idle: Duration,
    /// Time for the whole answer, including retries.
    pub total: Duration,
    /// Time to wait for the usage after the answer has ended.
    pub grace: Duration,
    /// Maximum number of attempts per request, including the first one.
    pub attempts: u32,
    /// Maximum delay before a retry. If a server demands a longer delay, the request is not retried.
    pub max_wait: Duration,
    /// Maximum number of bytes in one line of the answer.
    pub max_line: usize,
    /// Maximum number of bytes of the answer, as transferred.
    pub max_reply: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_event: Duration::from_secs(300),
            idle: Duration::from_secs(120),
            total: Duration::from_secs(3600),
            grace: Duration::from_secs(2),
            attempts: 4,
            max_wait: Duration::from_secs(60),
            max_line: 16 << 20,
            max_reply: 64 << 20,
        }
    }
}

/// An invalid setting of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct EndpointError {
    /// Name of the setting. For a header, the name includes that of the header, as in `headers.X-Team`.
    pub setting: String,
    /// Description of the problem in one line, without secrets.
    pub problem: String,
}

impl EndpointError {
    pub(crate) fn new(setting: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { setting: setting.into(), problem: problem.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_debug_form_holds_no_secrets() {
        let mut endpoint = Endpoint::new("work", "https://example.org/v1?sig=hidden-1");
        endpoint.key = Some("hidden-2".into());
        endpoint.headers.push(("X-Team".to_owned(), "hidden-3".into()));
        endpoint.query.push(("code".to_owned(), "hidden-4".to_owned()));
        endpoint.proxy = Some("http://me:hidden-5@proxy:3128".to_owned());
        let shown = format!("{endpoint:?}");
        assert!(!shown.contains("hidden"), "{shown}");
        assert!(shown.contains("X-Team") && shown.contains("code"), "{shown}");
    }
}
