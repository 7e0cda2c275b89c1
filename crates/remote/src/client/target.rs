//! The URL of a remote agent.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use narrows_link::socket::{Address, AddressError};
use url::{Host, Url};

/// The path of a URL that names none. A bus serves this path by default.
const DEFAULT_PATH: &str = "/acp";

/// The URL of a remote agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    WebSocket(Url),
    /// `http://` or `https://`: the Streamable HTTP profile.
    Http(Url),
    /// `tcp://HOST:PORT` or `unix:PATH`: line-based.
    Lines(Address),
}

/// An error in a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error("invalid URL: {1}")]
    Syntax(String, String),
    #[error("unknown scheme: expected ws://, wss://, http://, https://, tcp:// or unix:")]
    Scheme(String),
    /// The URL contains a name or password, which would appear in process lists and logs.
    #[error("the URL contains a user name or a password")]
    Secrets,
    #[error("the URL must end with its port: the listener selects the pool")]
    Lines(String),
    #[error(transparent)]
    Address(#[from] AddressError),
}

impl Target {
    /// Returns `true` if `text` is meant as a URL, not as a command.
    #[must_use]
    pub fn looks_like(text: &str) -> bool {
        const SCHEMES: [&str; 6] = ["ws://", "wss://", "http://", "https://", "tcp://", "unix:"];
        let begins =
            |scheme: &&str| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
        SCHEMES.iter().any(begins)
    }

    /// Returns `true` if the URL uses TLS.
    #[must_use]
    pub fn speaks_tls(&self) -> bool {
        matches!(self, Self::WebSocket(url) | Self::Http(url) if matches!(url.scheme(), "wss" | "https"))
    }

    /// Returns `true` if a network between client and server could read the data.
    pub(super) fn is_exposed(&self) -> bool {
        match self {
            Self::WebSocket(url) | Self::Http(url) => {
                !self.speaks_tls() && !url.host().is_some_and(|host| is_loopback(&host))
            }
            Self::Lines(Address::Unix(_)) => false,
            Self::Lines(Address::Tcp(host)) => {
                // The host is parsed with the scheme `http`, for which addresses and names are distinguished.
                let url = Url::parse(&format!("http://{host}"));
                !url.is_ok_and(|url| url.host().is_some_and(|host| is_loopback(&host)))
            }
        }
    }
}

fn parse_lines(text: &str) -> Result<Target, TargetError> {
    let behind = text.strip_prefix("tcp://").and_then(|rest| rest.split_once(['/', '?', '#']));
    if behind.is_some_and(|(_, rest)| !rest.is_empty()) {
        return Err(TargetError::Lines(text.to_owned()));
    }
    Ok(Target::Lines(text.parse()?))
}

fn is_loopback(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => *name == "localhost",
        Host::Ipv4(address) => IpAddr::V4(*address).is_loopback(),
        Host::Ipv6(address) => IpAddr::V6(*address).is_loopback(),
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        if !Self::looks_like(text) {
            return Err(TargetError::Scheme(text.to_owned()));
        }
        if matches!(text.split(':').next(), Some("tcp" | "unix")) {
            return parse_lines(text);
        }
        let failed = |why: String| TargetError::Syntax(text.to_owned(), why);
        let mut url = Url::parse(text).map_err(|error| failed(error.to_string()))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(TargetError::Secrets);
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(failed("no host".to_owned()));
        }
        url.set_fragment(None);
        let behind = text.split_once("://").map_or("", |(_, behind)| behind);
        let has_path = behind.find(['/', '?', '#']).is_some_and(|end| behind[end..].starts_with('/'));
        if !has_path {
            url.set_path(DEFAULT_PATH);
        }
        match url.scheme() {
            "ws" | "wss" => Ok(Self::WebSocket(url)),
            "http" | "https" => Ok(Self::Http(url)),
            _ => Err(TargetError::Scheme(text.to_owned())),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The query of the URL is left out, because it may contain a secret.
            Self::WebSocket(url) | Self::Http(url) => {
                let mut shown = url.clone();
                shown.set_query(url.query().map(|_| "…"));
                write!(f, "{}", shown.as_str().replace("%E2%80%A6", "…"))
            }
            Self::Lines(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, shown: &str, exposed: bool) {
        let target: Target = text.parse().unwrap();
        assert_eq!((target.to_string().as_str(), target.is_exposed()), (shown, exposed));
        assert!(Target::looks_like(text));
    }

    #[test]
    fn urls_are_parsed() {
        check("ws://127.0.0.1:8787/acp", "ws://127.0.0.1:8787/acp", false);
        check("ws://localhost/acp#x", "ws://localhost/acp", false);
        check("WS://[::1]:1", "ws://[::1]:1/acp", false);
        check("https://bus.example?a", "https://bus.example/acp?…", false);
        check("https://bus.example/", "https://bus.example/", false);
        check("https://bus.example/other/", "https://bus.example/other/", false);
        check("ws://bus.example/acp?key=hunter2", "ws://bus.example/acp?…", true);
        check("wss://bus.example/acp", "wss://bus.example/acp", false);
        check("http://10.0.0.1/acp", "http://10.0.0.1/acp", true);
        check("https://10.0.0.1/acp", "https://10.0.0.1/acp", false);
        check("tcp://127.0.0.1:9000", "tcp://127.0.0.1:9000", false);
        check("tcp://[::1]:9000", "tcp://[::1]:9000", false);
        check("tcp://bus.example:9000", "tcp://bus.example:9000", true);
        check("unix:/run/x.sock", "unix:/run/x.sock", false);
        check("unix:////run/x.sock", "unix:////run/x.sock", false);
    }

    proptest::proptest! {
        #[test]
        fn a_displayed_target_parses_to_itself(text in "(ws|wss|http|https|tcp|unix)(://|:/?)[a-z0-9.:@/?#\\[\\]%-]{0,20}") {
            if let Ok(target) = text.parse::<Target>() {
                let shown = target.to_string();
                proptest::prop_assert!(shown.contains('?') || shown.parse() == Ok(target), "{}", shown);
            }
        }

        #[test]
        fn no_input_panics(text: String) {
            _ = text.parse::<Target>();
        }
    }

    #[test]
    fn invalid_targets_are_refused() {
        for text in ["", "narrows acp", "ftp://x", "ws:/x", "ws//x"] {
            assert_eq!(text.parse::<Target>(), Err(TargetError::Scheme(text.to_owned())));
            assert!(!Target::looks_like(text));
        }
        assert_eq!("wss://me:pw@host/".parse::<Target>(), Err(TargetError::Secrets));
        assert!(matches!("ws://".parse::<Target>(), Err(TargetError::Syntax(..))));
        assert!(matches!("tcp://host".parse::<Target>(), Err(TargetError::Address(_))));
        for text in ["tcp://127.0.0.1:9000/default", "tcp://host:1?x", "tcp://host/x"] {
            assert_eq!(text.parse::<Target>(), Err(TargetError::Lines(text.to_owned())));
        }
    }
}
