//! Addresses and patterns for them: a host, or more of it.

use url::Url;

use crate::path::Step;
use crate::shape::{Case, Shape, meet};

/// A pattern such as `example.com`, `*.example.com`, `https://example.com:8443/docs/**`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UrlPattern {
    scheme: Option<String>,
    host: Shape,
    port: Option<u16>,
    path: Option<Vec<Step>>,
}

impl UrlPattern {
    /// Reads a pattern, or says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
            None => (None, text),
        };
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, Some(path)),
            None => (rest, None),
        };
        if authority.contains(['@', '?', '#', ' ']) || path.is_some_and(|path| path.contains(['?', '#'])) {
            return Err("a url pattern is a scheme, a host, a port and a path, nothing else");
        }
        let (host, port) = match authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| "the port must be a number")?)),
            None => (authority, None),
        };
        if host.is_empty() {
            return Err("a url pattern needs a host, or `*`");
        }
        let path = path.map(|path| {
            path.split('/')
                .filter(|name| !name.is_empty())
                .map(|name| if name == "**" { Step::Deep } else { Step::Name(Shape::glob(name, false)) })
                .collect()
        });
        Ok(Self { scheme, host: Shape::glob(&host.to_ascii_lowercase(), false), port, path })
    }

    /// Whether exactly `url` is meant.
    pub(crate) fn covers(&self, url: &str) -> bool {
        let Some(url) = read(url) else { return false };
        let scheme = match &self.scheme {
            Some(scheme) => url.scheme() == scheme,
            None => matches!(url.scheme(), "http" | "https"),
        };
        let port = url.port_or_known_default() == self.port.or_else(|| default_port(url.scheme()));
        // What a server makes of an encoded slash is its own affair.
        let encoded = url.path().to_ascii_lowercase();
        let clear = self.path.is_none() || !encoded.contains("%2f") && !encoded.contains("%5c");
        let named = url.username().is_empty() && url.password().is_none();
        scheme
            && port
            && clear
            && named
            && self.host.meets(&host(&url), Case::Different)
            && self.is_path(&url, false)
    }

    /// Whether `url` can be meant. An address that cannot be read can be anything.
    pub(crate) fn touches(&self, url: &str) -> bool {
        let Some(url) = read(url) else { return true };
        let below = Shape::glob(&format!("*.{}", self.host_text()), false);
        let host = host(&url);
        self.scheme.as_ref().is_none_or(|scheme| url.scheme() == scheme)
            && self.port.is_none_or(|port| url.port_or_known_default() == Some(port))
            && (self.host.meets(&host, Case::Same) || below.meets(&host, Case::Same))
            && self.is_path(&url, true)
    }

    fn host_text(&self) -> String {
        self.host
            .0
            .iter()
            .map(|unit| match unit {
                crate::shape::Unit::Char(letter) => *letter,
                _ => '*',
            })
            .collect()
    }

    fn is_path(&self, url: &Url, below: bool) -> bool {
        let Some(path) = &self.path else { return true };
        let mut wanted = path.clone();
        wanted.extend(below.then_some(Step::Deep));
        let names: Vec<Step> = url
            .path()
            .split('/')
            .filter(|name| !name.is_empty())
            .map(|name| Step::Name(Shape::exact(name)))
            .collect();
        let deep = |step: &Step| *step == Step::Deep;
        let case = if below { Case::Same } else { Case::Different };
        meet(&wanted, &names, deep, deep, |a, b| match (a, b) {
            (Step::Name(a), Step::Name(b)) => a.meets(b, case),
            _ => true,
        })
    }
}

/// An address with a host, read strictly.
fn read(url: &str) -> Option<Url> {
    // The parser drops these, others do not.
    if url.contains(['\0', '\t', '\n', '\r', '\\']) {
        return None;
    }
    Url::parse(url).ok().filter(Url::has_host)
}

/// The host in small letters, without the dot at its end.
fn host(url: &Url) -> Shape {
    let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
    Shape::exact(host.strip_suffix('.').unwrap_or(&host))
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" | "ws" => Some(80),
        "https" | "wss" => Some(443),
        "ftp" => Some(21),
        "ssh" => Some(22),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, url: &str, covers: bool, touches: bool) {
        let pattern = UrlPattern::parse(pattern).unwrap();
        assert_eq!((pattern.covers(url), pattern.touches(url)), (covers, touches), "{pattern:?} {url}");
    }

    #[test]
    fn a_host_is_all_of_it() {
        check("example.com", "https://example.com/a/b?c", true, true);
        check("example.com", "https://EXAMPLE.com./", true, true);
        check("example.com", "https://www.example.com/", false, true);
        check("example.com", "https://badexample.com/", false, false);
        check("example.com", "https://example.com.evil.org/", false, false);
        check("example.com", "https://evil.org/example.com", false, false);
        check("example.com", "https://example.com@evil.org/", false, false);
        check("example.com", "https://user@example.com/", false, true);
        check("example.com", "https://example.com:8080/", false, true);
        check("example.com", "gopher://example.com/", false, true);
        check("*.example.com", "https://a.b.example.com/", true, true);
        check("*.example.com", "https://example.com/", false, false);
        check("*", "https://anything/", true, true);
    }

    #[test]
    fn the_rest_counts_if_it_is_written() {
        check("https://example.com/docs/**", "https://example.com/docs/a/b", true, true);
        check("https://example.com/docs/**", "http://example.com/docs/a", false, false);
        check("https://example.com/docs/**", "https://example.com/docs/../admin", false, false);
        check("https://example.com/docs/**", "https://example.com/docs/%2e%2e/admin", false, false);
        check("https://example.com/docs/**", "https://example.com/docs/..%2fadmin", false, true);
        check("https://example.com/docs", "https://example.com/docs/a", false, true);
        check("example.com:8443", "https://example.com:8443/", true, true);
        check("example.com:8443", "https://example.com/", false, false);
    }

    #[test]
    fn what_cannot_be_read_is_never_permitted() {
        for url in [
            "",
            "example.com",
            "evil\0.example.com",
            "https://evil\0.example.com",
            "https://",
            "https://a\\@example.com",
        ] {
            check("example.com", url, false, true);
        }
    }

    #[test]
    fn patterns_that_are_none_are_refused() {
        for pattern in ["", "https://", "/path", "a@b", "example.com:x", "example.com/?q"] {
            assert!(UrlPattern::parse(pattern).is_err(), "{pattern}");
        }
    }
}
