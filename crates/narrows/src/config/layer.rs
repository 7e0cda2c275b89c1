//! What one source says about an endpoint, and how sources are laid over each other.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use narrows_model::{Effort, Provider};

/// A text that is not to be shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Hidden(String);

impl Hidden {
    /// The text, for whoever is to get it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Hidden {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

/// A header of every request. Its value may be a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Its name.
    pub(crate) name: String,
    /// Its value.
    pub(crate) value: Hidden,
}

/// Where a key is to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// Here.
    Here(Hidden),
    /// In a variable.
    Variable(String),
    /// In a file, without the white space around it.
    File(PathBuf),
}

/// How an endpoint is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Proxy {
    /// Directly, whatever variables say.
    None,
    /// Through this.
    Through(String),
}

impl From<String> for Proxy {
    /// `none` is none.
    fn from(text: String) -> Self {
        if text == "none" { Self::None } else { Self::Through(text) }
    }
}

/// What one source says about an endpoint. What it does not say is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Layer {
    /// Where it is.
    pub(crate) base_url: Option<String>,
    /// What opens it.
    pub(crate) key: Option<Key>,
    /// The model.
    pub(crate) model: Option<String>,
    /// What is sent with every request.
    pub(crate) headers: Vec<Header>,
    /// What is added to every URL.
    pub(crate) query: Vec<(String, String)>,
    /// Whose endpoint it is, where the URL does not tell.
    pub(crate) provider: Option<Provider>,
    /// How many tokens the model can take in.
    pub(crate) context_window: Option<u64>,
    /// Certificates to trust beside the system's.
    pub(crate) ca_file: Option<PathBuf>,
    /// The way to it.
    pub(crate) proxy: Option<Proxy>,
    /// How many tokens an answer may have.
    pub(crate) max_tokens: Option<u64>,
    /// How freely the model chooses its words.
    pub(crate) temperature: Option<f64>,
    /// How long the model thinks.
    pub(crate) effort: Option<Effort>,
    /// How long a connection may take.
    pub(crate) connect_timeout: Option<Duration>,
    /// How long the first word may take.
    pub(crate) first_timeout: Option<Duration>,
    /// How long a silence may last after it.
    pub(crate) idle_timeout: Option<Duration>,
    /// How long a whole answer may take.
    pub(crate) total_timeout: Option<Duration>,
}

impl Layer {
    /// This, and where it says nothing what `below` says.
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

/// Those below that are not replaced, and then those above.
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
    fn what_is_above_wins_and_what_it_leaves_out_stays() {
        let below = Layer {
            base_url: Some("http://a".to_owned()),
            model: Some("m".to_owned()),
            headers: vec![header("X-A", "1"), header("X-B", "2")],
            query: vec![("v".to_owned(), "1".to_owned())],
            max_tokens: Some(7),
            ..Layer::default()
        };
        let above = Layer {
            model: Some("n".to_owned()),
            headers: vec![header("x-a", "3")],
            query: vec![("w".to_owned(), "2".to_owned())],
            ..Layer::default()
        };
        let expected = Layer {
            base_url: Some("http://a".to_owned()),
            model: Some("n".to_owned()),
            headers: vec![header("X-B", "2"), header("x-a", "3")],
            query: vec![("v".to_owned(), "1".to_owned()), ("w".to_owned(), "2".to_owned())],
            max_tokens: Some(7),
            ..Layer::default()
        };
        assert_eq!(above.over(below.clone()), expected);
        assert_eq!(Layer::default().over(below.clone()), below);
        assert_eq!(below.clone().over(Layer::default()), below);
    }

    #[test]
    fn a_key_is_not_shown() {
        let layer = Layer {
            key: Some(Key::Here("hunter2".to_owned().into())),
            headers: vec![header("Authorization", "hunter3")],
            ..Layer::default()
        };
        let shown = format!("{layer:?}");
        assert!(!shown.contains("hunter"), "{shown}");
    }
}
