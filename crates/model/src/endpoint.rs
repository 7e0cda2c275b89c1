//! Where a model is asked, and within which limits.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Provider, Secret};

/// The base URL of the built-in model for demonstration.
pub const DEMO_URL: &str = "builtin:demo";

/// One Chat Completions endpoint, as configured.
#[derive(Clone)]
pub struct Endpoint {
    /// What the person calls it.
    pub name: String,
    /// The URL to which `/chat/completions` is appended, or [`DEMO_URL`].
    pub base_url: String,
    /// The key, if one is needed.
    pub key: Option<Secret>,
    /// Further headers of every request. One that is also ours replaces ours.
    pub headers: Vec<(String, Secret)>,
    /// Further parameters in the query of every URL.
    pub query: Vec<(String, String)>,
    /// What stands behind the URL, if the URL does not tell.
    pub provider: Option<Provider>,
    /// The size of the context window in tokens, if known better than the endpoint knows it.
    pub context_window: Option<u64>,
    /// How long and how much.
    pub limits: Limits,
    /// Further certificate authorities to trust, in PEM form.
    pub ca_file: Option<PathBuf>,
    /// The HTTP proxy to go through. Loopback addresses never do.
    pub proxy: Option<String>,
    /// The pause between two pieces of the demo model's answer.
    pub pace: Duration,
}

impl Endpoint {
    /// An endpoint with nothing but a name and a URL.
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

    /// The built-in model for demonstration.
    #[must_use]
    pub fn demo() -> Self {
        Self::new("demo", DEMO_URL)
    }
}

impl fmt::Debug for Endpoint {
    /// Without what may hold a secret: parameters and the proxy's credentials.
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

/// How long to wait, how often to try, how much to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Until a connection stands.
    pub connect: Duration,
    /// Until the first event of the answer, and until the next where a gateway only keeps the connection open: a local
    /// model may read a long prompt for minutes.
    pub first_event: Duration,
    /// Between two reads after that: comments of a gateway count, but only for `first_event` without an event.
    pub idle: Duration,
    /// For the whole answer, retries included.
    pub total: Duration,
    /// After the end of the answer, for the numbers that may follow it.
    pub grace: Duration,
    /// How often a request is sent before its failure is reported, the first time included.
    pub attempts: u32,
    /// The longest wait between two attempts; a server that asks for more gets none.
    pub max_wait: Duration,
    /// Bytes of one line of the answer.
    pub max_line: usize,
    /// Bytes of the whole answer as sent.
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

/// What is wrong with an endpoint's settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {problem}")]
pub struct EndpointError {
    /// The setting, by the name of its field; a header with its own name as in `headers.X-Team`.
    pub setting: String,
    /// What is wrong, in one line without secrets.
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
