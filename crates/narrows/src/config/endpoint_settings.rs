//! The settings of an endpoint from one source, and how sources are merged.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use narrows_model::{Effort, Provider};

/// A text that `Debug` hides.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct HiddenText(String);

impl HiddenText {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for HiddenText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for HiddenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

/// An HTTP header of every request. Its value may be an API key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) name: String,
    pub(crate) value: HiddenText,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Inline(HiddenText),
    Variable(String),
    /// The file that holds the key. White space around the key is removed.
    File(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proxy {
    /// Connect directly, even if environment variables name a proxy.
    None,
    Through(String),
}

impl From<String> for Proxy {
    /// Converts a setting: `none` means a direct connection.
    fn from(text: String) -> Self {
        if text == "none" { Self::None } else { Self::Through(text) }
    }
}

/// The settings of an endpoint from one source. Absent settings are `None` or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EndpointSettings {
    pub(crate) base_url: Option<String>,
    pub(crate) key: Option<Key>,
    pub(crate) model: Option<String>,
    pub(crate) headers: Vec<Header>,
    /// Parameters that are added to the URL of every request.
    pub(crate) query: Vec<(String, String)>,
    /// The provider, if the URL does not tell it.
    pub(crate) provider: Option<Provider>,
    /// In tokens, like `max_tokens`.
    pub(crate) context_window: Option<u64>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) temperature: Option<f64>,
    pub(crate) effort: Option<Effort>,
    pub(crate) connect_timeout: Option<Duration>,
    /// Time until the first event of an answer.
    pub(crate) first_timeout: Option<Duration>,
    /// Time between two events of an answer.
    pub(crate) idle_timeout: Option<Duration>,
    /// Time for a whole answer.
    pub(crate) total_timeout: Option<Duration>,
}

impl EndpointSettings {
    /// Returns these settings. Absent ones are taken from `below`.
    pub(crate) fn over(self, below: Self) -> Self {
        Self {
            base_url: self.base_url.or(below.base_url),
            key: self.key.or(below.key),
            model: self.model.or(below.model),
            headers: merged(self.headers, below.headers, |a, b| a.name.eq_ignore_ascii_case(&b.name)),
            query: merged(self.query, below.query, |a, b| a.0 == b.0),
            provider: self.provider.or(below.provider),
            context_window: self.context_window.or(below.context_window),
            ca_file: self.ca_file.or(below.ca_file),
            proxy: self.proxy.or(below.proxy),
            max_tokens: self.max_tokens.or(below.max_tokens),
            temperature: self.temperature.or(below.temperature),
            effort: self.effort.or(below.effort),
            connect_timeout: self.connect_timeout.or(below.connect_timeout),
            first_timeout: self.first_timeout.or(below.first_timeout),
            idle_timeout: self.idle_timeout.or(below.idle_timeout),
            total_timeout: self.total_timeout.or(below.total_timeout),
        }
    }
}

/// Returns the entries of `below` that `above` does not replace, then those of `above`.
fn merged<T>(above: Vec<T>, below: Vec<T>, same: impl Fn(&T, &T) -> bool) -> Vec<T> {
    let mut all: Vec<T> = below.into_iter().filter(|old| !above.iter().any(|new| same(new, old))).collect();
    all.extend(above);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, value: &str) -> Header {
        Header { name: name.to_owned(), value: value.to_owned().into() }
    }

    #[test]
    fn the_upper_layer_overrides_only_what_it_sets() {
        let below = EndpointSettings {
            base_url: Some("http://a".to_owned()),
            model: Some("m".to_owned()),
            headers: vec![header("X-A", "1"), header("X-B", "2")],
            query: vec![("v".to_owned(), "1".to_owned())],
            max_tokens: Some(7),
            ..EndpointSettings::default()
        };
        let above = EndpointSettings {
            model: Some("n".to_owned()),
            headers: vec![header("x-a", "3")],
            query: vec![("w".to_owned(), "2".to_owned())],
            ..EndpointSettings::default()
        };
        let expected = EndpointSettings {
            base_url: Some("http://a".to_owned()),
            model: Some("n".to_owned()),
            headers: vec![header("X-B", "2"), header("x-a", "3")],
            query: vec![("v".to_owned(), "1".to_owned()), ("w".to_owned(), "2".to_owned())],
            max_tokens: Some(7),
            ..EndpointSettings::default()
        };
        assert_eq!(above.over(below.clone()), expected);
        assert_eq!(EndpointSettings::default().over(below.clone()), below);
        assert_eq!(below.clone().over(EndpointSettings::default()), below);
    }

    #[test]
    fn a_key_is_not_shown() {
        let settings = EndpointSettings {
            key: Some(Key::Inline("hunter2".to_owned().into())),
            headers: vec![header("Authorization", "hunter3")],
            ..EndpointSettings::default()
        };
        let shown = format!("{settings:?}");
        assert!(!shown.contains("hunter"), "{shown}");
    }
}
