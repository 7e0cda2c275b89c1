//! HTTP and WebSocket listeners: address, TLS and authentication.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use super::address::host_and_port;

const DEFAULT_PATH: &str = "/acp";

pub const TOKENS_HINT: &str =
    "`narrows token new NAME --file FILE` creates a token file, or adds a token to one";

pub const PEM_HINT: &str = "TLS needs a certificate and its private key, both in PEM form";

/// The proof of identity that a listener requires of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerAuth {
    /// No proof: every user of this machine is admitted.
    None,
    User,
    /// Clients have to present a token.
    Token,
    /// Clients have to present a certificate of `client_ca`.
    Mtls,
}

impl ListenerAuth {
    /// Returns the text for this value in `bus.toml`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::User => "user",
            Self::Token => "token",
            Self::Mtls => "mtls",
        }
    }

    /// Returns `true` if each client has to prove an identity.
    #[must_use]
    pub fn names_clients(self) -> bool {
        matches!(self, Self::Token | Self::Mtls)
    }
}

/// File paths of the TLS settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// The file with the authorities that sign client certificates. `None`: they are not accepted.
    pub client_ca: Option<PathBuf>,
}

/// The address and the settings of an HTTP and WebSocket listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Web {
    pub address: String,
    /// `true` if the listener uses TLS, as with `https` and `wss`.
    pub secure: bool,
    /// `true` if the URL is written with `ws` or `wss`, which mean the same as `http` and `https`.
    pub is_socket: bool,
    pub path: String,
    pub auth: ListenerAuth,
    /// The file with the hashes of tokens.
    pub tokens: Option<PathBuf>,
    /// The origins of the web pages that may connect.
    pub origins: Vec<String>,
    pub hosts: Vec<String>,
    pub tls: Option<Tls>,
}

impl Web {
    /// Parses the rest of a URL after `http:`: `//HOST:PORT/PATH`.
    pub(super) fn parse(rest: &str, secure: bool, is_socket: bool) -> Result<Self, &'static str> {
        let rest = rest.strip_prefix("//").ok_or("two slashes are missing: http://HOST:PORT/acp")?;
        let (address, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        if address.contains('@') {
            return Err("the URL of a listener must not contain a user name or a password");
        }
        host_and_port(
            address,
            "the host must be localhost or an address of this machine, such as 0.0.0.0 for all addresses",
        )?;
        let path = if path.is_empty() { DEFAULT_PATH } else { path };
        if !path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte)) {
            return Err("the path of the URL may contain only letters, digits, `/`, `-`, `.`, `_` and `~`");
        }
        Ok(Self {
            address: address.to_owned(),
            secure,
            is_socket,
            path: path.to_owned(),
            auth: ListenerAuth::User,
            tokens: None,
            origins: Vec::new(),
            hosts: Vec::new(),
            tls: None,
        })
    }

    /// Returns `true` if only this machine can reach the listener.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let host = self.bare_host();
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// Returns the host without a port and without brackets.
    fn bare_host(&self) -> &str {
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// Returns `true` if the listener accepts connections on all addresses and `hosts` is empty. Clients
    /// cannot use an address such as `0.0.0.0` as a host name.
    #[must_use]
    pub fn lacks_host_name(&self) -> bool {
        let ip = self.bare_host().parse::<IpAddr>();
        self.hosts.is_empty() && ip.is_ok_and(|ip| ip.is_unspecified())
    }

    /// Returns the first conflict between the settings of a listener: the key of a setting, and the message.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, &'static str)> {
        let has_ca = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let found = match self.auth {
            _ if self.secure && self.tls.is_none() => {
                ("url", "needs a certificate: tls = { cert = \"cert.pem\", key = \"key.pem\" }")
            }
            _ if !self.secure && self.tls.is_some() => {
                ("tls", "has an effect only with https:// or wss:// in the `url`")
            }
            ListenerAuth::None | ListenerAuth::User if !self.is_loopback() => {
                ("url", "can be reached from other machines, which needs `auth` and https:// or wss://")
            }
            _ if !self.secure && !self.is_loopback() => {
                ("url", "can be reached from other machines, which needs https:// or wss:// and `tls`")
            }
            ListenerAuth::Token if self.tokens.is_none() => {
                ("auth", "needs a file of tokens: tokens = \"tokens.toml\"")
            }
            ListenerAuth::None | ListenerAuth::User | ListenerAuth::Mtls if self.tokens.is_some() => {
                ("tokens", "has an effect only with auth = \"token\"")
            }
            ListenerAuth::Mtls if !has_ca => {
                ("auth", "needs the authority of its clients: tls = { …, client_ca = \"ca.pem\" }")
            }
            ListenerAuth::None | ListenerAuth::User if has_ca => {
                ("tls", "has a `client_ca`, which has an effect only with auth = \"mtls\" or \"token\"")
            }
            _ => return None,
        };
        Some(found)
    }

    /// Returns the files that the listener reads.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let tls = self.tls.iter().flat_map(|tls| [Some(&tls.cert), Some(&tls.key), tls.client_ca.as_ref()]);
        tls.flatten().chain(&self.tokens)
    }
}

impl fmt::Display for Web {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.is_socket, self.secure) {
            (false, false) => "http",
            (false, true) => "https",
            (true, false) => "ws",
            (true, true) => "wss",
        };
        write!(out, "{scheme}://{}{}", self.address, self.path)
    }
}

/// Checks that `text` is the origin of a web page, exactly as browsers send it: a scheme, a host, and a port
/// if it is not the default one.
///
/// # Errors
/// If `text` has another form.
pub fn origin(text: &str) -> Result<String, &'static str> {
    if text == "*" {
        return Err("`*` would let every web page use the agents; list the origins of the permitted pages");
    }
    let is_default = |scheme: &str, port: &str| matches!((scheme, port), ("https", "443") | ("http", "80"));
    match text.split_once("://") {
        Some(("", _)) => Err("an origin has the form https://app.example"),
        Some((_, rest)) if rest.is_empty() || rest.contains(['/', '?', '#', '@', '*', ' ']) => {
            Err("an origin ends after the host and the port: https://app.example")
        }
        Some((scheme, rest)) if rest.rsplit_once(':').is_some_and(|(_, port)| is_default(scheme, port)) => {
            Err("an origin must not contain the default port, because browsers omit it")
        }
        Some(_) if text.bytes().any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii_graphic()) => {
            Err("an origin must be in lower case, as browsers send it")
        }
        Some(_) => Ok(text.to_owned()),
        None => Err("an origin has the form https://app.example"),
    }
}

/// Checks that `text` is the name or the address of a host, without a port.
///
/// # Errors
/// If `text` has another form.
pub fn host(text: &str) -> Result<String, &'static str> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
    let is_v6 = text.starts_with('[') && text.ends_with(']');
    match text {
        _ if text.bytes().any(|byte| byte.is_ascii_uppercase()) => Err("a host name must be in lower case"),
        _ if is_v6 || (!text.is_empty() && text.bytes().all(plain)) => Ok(text.to_owned()),
        _ => Err("only a host name or an address without a port is accepted, such as bus.example"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_that_other_machines_reach_need_tls_and_authentication() {
        #[track_caller]
        fn check(url: &str, change: impl FnOnce(&mut Web), expected: Option<&str>) {
            let (scheme, rest) = url.split_once(':').unwrap();
            let mut web = Web::parse(rest, scheme == "https", false).expect(url);
            change(&mut web);
            let found = web.problem();
            assert_eq!(found.map(|(key, _)| key), expected, "{url}: {found:?}");
        }
        let tls = |ca: bool| {
            Some(Tls { cert: "c".into(), key: "k".into(), client_ca: ca.then(|| PathBuf::from("ca")) })
        };
        let here = "http://127.0.0.1:1/acp";
        check(here, |_| {}, None);
        check("http://localhost:1", |_| {}, None);
        check("http://[::1]:1", |_| {}, None);
        check(here, |web| (web.auth, web.tokens) = (ListenerAuth::Token, Some("t".into())), None);
        check(here, |web| web.auth = ListenerAuth::Token, Some("auth"));
        check(here, |web| web.tokens = Some("t".into()), Some("tokens"));
        check(here, |web| web.auth = ListenerAuth::Mtls, Some("auth"));
        check(here, |web| web.tls = tls(false), Some("tls"));
        check("https://127.0.0.1:1", |_| {}, Some("url"));
        check("https://127.0.0.1:1", |web| web.tls = tls(true), Some("tls"));
        check("https://127.0.0.1:1", |web| (web.auth, web.tls) = (ListenerAuth::Mtls, tls(true)), None);
        let both = |web: &mut Web| {
            (web.auth, web.tokens, web.tls) = (ListenerAuth::Token, Some("t".into()), tls(true));
        };
        check("https://127.0.0.1:1", both, None);
        for far in ["0.0.0.0", "192.168.0.1", "[::]"] {
            let (plain, secure) = (format!("http://{far}:1"), format!("https://{far}:1"));
            let token = |web: &mut Web| (web.auth, web.tokens) = (ListenerAuth::Token, Some("t".into()));
            check(&plain, |_| {}, Some("url"));
            check(&plain, token, Some("url"));
            check(&secure, |web| web.tls = tls(false), Some("url"));
            check(&secure, token, Some("url"));
            let both = |web: &mut Web| {
                token(web);
                web.tls = tls(false);
            };
            check(&secure, both, None);
            check(&secure, |web| (web.auth, web.tls) = (ListenerAuth::Mtls, tls(true)), None);
        }
    }

    #[test]
    fn only_exact_origins_and_host_names_are_accepted() {
        for good in ["https://app.example", "http://localhost:3000", "chrome-extension://abc"] {
            assert_eq!(origin(good).as_deref(), Ok(good));
        }
        for bad in [
            "*",
            "null",
            "app.example",
            "https://",
            "https://a/",
            "https://a.example/x",
            "https://*.a",
            "https://a:443",
            "http://a:80",
            "https://App.example",
            "https://u@a",
            "://a",
            "",
        ] {
            assert!(origin(bad).is_err(), "{bad}");
        }
        for good in ["bus.example", "10.0.0.1", "[::2]", "a"] {
            assert_eq!(host(good).as_deref(), Ok(good));
        }
        for bad in ["", "a:80", "*", "https://a", "A.example", "a b", "a/b"] {
            assert!(host(bad).is_err(), "{bad}");
        }
    }
}
