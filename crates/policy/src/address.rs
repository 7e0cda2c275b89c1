//! URLs, and patterns that match URLs.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use url::{Host, Url};

use crate::path::Step;
use crate::text_pattern::{Case, TextPattern, meet};

/// A URL pattern such as `example.com`, `*.example.com`, `https://example.com:8443/docs/**`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UrlPattern {
    scheme: Option<String>,
    host: TextPattern,
    port: Option<u16>,
    path: Option<Vec<Step>>,
}

impl UrlPattern {
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
                .map(
                    |name| if name == "**" { Step::Deep } else { Step::Name(TextPattern::glob(name, false)) },
                )
                .collect()
        });
        // A numeric host is compared in its normalized form, as in the URL.
        let plain = host.to_ascii_lowercase();
        let number = Host::parse(&plain).ok().filter(|host| !matches!(host, Host::Domain(_)));
        let host = number.map_or(plain, |host| embedded(&host).map_or(host.to_string(), |v4| v4.to_string()));
        Ok(Self { scheme, host: TextPattern::glob(&host, false), port, path })
    }

    /// Returns `true` if the pattern certainly matches `url`.
    pub(crate) fn covers(&self, url: &str) -> bool {
        let Some(url) = read(url) else { return false };
        let scheme = match &self.scheme {
            Some(scheme) => url.scheme() == scheme,
            None => matches!(url.scheme(), "http" | "https"),
        };
        let port = url.port_or_known_default() == self.port.or_else(|| default_port(url.scheme()));
        // Some servers treat an encoded slash as a slash, others do not.
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

    /// Returns `true` if the pattern may match `url`. A text that cannot be parsed may be any URL.
    pub(crate) fn touches(&self, url: &str) -> bool {
        let Some(url) = read(url) else { return true };
        let below = TextPattern::glob(&format!("*.{}", self.host_text()), false);
        let hosts = hosts(&url);
        self.scheme.as_ref().is_none_or(|scheme| url.scheme() == scheme)
            && self.port.is_none_or(|port| url.port_or_known_default() == Some(port))
            && hosts.iter().any(|host| self.host.meets(host, Case::Same) || below.meets(host, Case::Same))
            && self.is_path(&url, true)
    }

    fn host_text(&self) -> String {
        self.host
            .0
            .iter()
            .map(|unit| match unit {
                crate::text_pattern::PatternUnit::Char(letter) => *letter,
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
            .map(|name| Step::Name(TextPattern::exact(name)))
            .collect();
        let deep = |step: &Step| *step == Step::Deep;
        let case = if below { Case::Same } else { Case::Different };
        meet(&wanted, &names, deep, deep, |a, b| match (a, b) {
            (Step::Name(a), Step::Name(b)) => a.meets(b, case),
            _ => true,
        })
    }
}

/// Parses a URL strictly. Returns `None` for an ambiguous URL, or one without a host.
fn read(url: &str) -> Option<Url> {
    // This parser ignores these characters, and other parsers do not.
    if url.contains(['\0', '\t', '\n', '\r', '\\']) {
        return None;
    }
    Url::parse(url).ok().filter(Url::has_host)
}

fn host(url: &Url) -> TextPattern {
    let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
    TextPattern::exact(host.strip_suffix('.').unwrap_or(&host))
}

/// Returns all names of the URL's host, including an embedded IPv4 address and every name of the local
/// machine.
fn hosts(url: &Url) -> Vec<TextPattern> {
    let mut hosts = vec![host(url)];
    let Some(found) = url.host() else { return hosts };
    let v4 = embedded(&found);
    hosts.extend(v4.map(|v4| TextPattern::exact(&v4.to_string())));
    let is_local = match found {
        Host::Domain(name) => {
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
        Host::Ipv4(_) => false,
        Host::Ipv6(v6) => v6.is_loopback() || v6.is_unspecified(),
    };
    if is_local || v4.is_some_and(|v4| v4.is_loopback() || v4.is_unspecified()) {
        hosts.extend(["127.0.0.1", "[::1]", "localhost", "0.0.0.0", "[::]"].map(TextPattern::exact));
    }
    hosts
}

/// Returns the IPv4 address that a host is, or that is embedded in its IPv6 address.
fn embedded<S>(host: &Host<S>) -> Option<Ipv4Addr> {
    let v6: &Ipv6Addr = match host {
        Host::Domain(_) => return None,
        Host::Ipv4(v4) => return Some(*v4),
        Host::Ipv6(v6) => v6,
    };
    let of = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match v6.segments() {
        _ if v6.is_loopback() || v6.is_unspecified() => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => Some(of(high, low)),
        _ => None,
    }
}

/// Schemes after which programs accept any number of slashes.
const SLASHED: [&str; 6] = ["http", "https", "ftp", "ftps", "ws", "wss"];

/// Returns all URLs in a text. `x=http://a,https:/b` contains two.
pub(crate) fn addresses_in(text: &str) -> Vec<String> {
    let is_scheme = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
    let mut found = Vec::new();
    for (colon, _) in text.match_indices(':') {
        let before = &text[..colon];
        let start = before.rfind(|letter| !is_scheme(letter));
        let start = start.map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
        let behind = &text[colon + 1..];
        let slashes = behind.bytes().take_while(|byte| matches!(byte, b'/' | b'\\')).count();
        let scheme = before[start..].to_ascii_lowercase();
        let rest = &text[start..];
        let end = rest.find([' ', '\t', '\n', '\'', '"', '`', ')', '>']).unwrap_or(rest.len());
        let is_named = !scheme.is_empty() && rest[..end].len() > colon - start + 1 + slashes;
        if behind.starts_with("//") {
            found.push(rest[..end].to_owned());
        } else if slashes > 0 && is_named && SLASHED.contains(&scheme.as_str()) {
            found.push(format!("{scheme}://{}", &rest[colon - start + 1 + slashes..end]));
        }
    }
    found
}

/// Returns the path of a local URL, even if another scheme precedes it: `file:///x`, `view-source:file:/x`.
pub(crate) fn local_path(address: &str) -> Option<PathBuf> {
    const MAX_WRAPPERS: usize = 8;
    let is_scheme = |text: &str| {
        text.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter))
    };
    let mut rest = address.trim_matches(|letter: char| letter <= ' ');
    for _ in 0..MAX_WRAPPERS {
        let (scheme, behind) = rest.split_once(':')?;
        if scheme.eq_ignore_ascii_case("file") {
            let path = Url::parse(rest).ok().and_then(|url| url.to_file_path().ok());
            return Some(path.unwrap_or_else(|| PathBuf::from(behind.trim_start_matches("//"))));
        }
        rest = Some(behind).filter(|_| is_scheme(scheme))?;
    }
    None
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
    fn a_host_pattern_matches_the_whole_host() {
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
    fn port_and_path_count_only_if_the_pattern_has_them() {
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
    fn an_unreadable_address_is_never_permitted() {
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
    fn invalid_patterns_are_refused() {
        for pattern in ["", "https://", "/path", "a@b", "example.com:x", "example.com/?q"] {
            assert!(UrlPattern::parse(pattern).is_err(), "{pattern}");
        }
    }
}
