//! A place where clients come in by HTTP and WebSocket: where it is, how safe it is, and who is let in.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use super::address::host_and_port;

/// The usual path.
const USUAL: &str = "/acp";

/// What to do about a file of tokens that cannot be used.
pub const MAKES_TOKENS: &str = "`narrows token new NAME --file FILE` makes a file of tokens, and adds to one";

/// What to do about a certificate or a key that cannot be used.
pub const TAKES_PEM: &str = "it takes a certificate and its private key, both in PEM form";

/// Who is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Every user of this machine.
    None,
    /// The user that the bus runs as.
    User,
    /// Who has a token.
    Token,
    /// Who has a certificate of ours.
    Mtls,
}

impl Auth {
    /// How people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::User => "user",
            Self::Token => "token",
            Self::Mtls => "mtls",
        }
    }

    /// Returns `true` if each client proves a name of its own.
    #[must_use]
    pub fn names_clients(self) -> bool {
        matches!(self, Self::Token | Self::Mtls)
    }
}

/// What is needed to speak in secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The file with our certificates.
    pub cert: PathBuf,
    /// The file with the key to them.
    pub key: PathBuf,
    /// The file with the authorities that clients are known by.
    pub client_ca: Option<PathBuf>,
}

/// A place where clients come in by HTTP and WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Web {
    /// A host and a port.
    pub address: String,
    /// Whether it is `https`.
    pub secure: bool,
    /// Whether people write it as `ws` or `wss`, which means the same.
    pub is_socket: bool,
    /// The path, which begins with a slash.
    pub path: String,
    /// Who is let in.
    pub auth: Auth,
    /// The file with the hashes of tokens.
    pub tokens: Option<PathBuf>,
    /// The web pages that may connect, as browsers name them.
    pub origins: Vec<String>,
    /// The names by which clients may call us, besides those of this machine.
    pub hosts: Vec<String>,
    /// What `https` needs.
    pub tls: Option<Tls>,
}

impl Web {
    /// Reads what stands behind `http:`: `//HOST:PORT/PATH`.
    pub(super) fn parse(rest: &str, secure: bool, is_socket: bool) -> Result<Self, &'static str> {
        let rest = rest.strip_prefix("//").ok_or("two slashes are missing: http://HOST:PORT/acp")?;
        let (address, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        if address.contains('@') {
            return Err("no name and no password may stand in it");
        }
        host_and_port(
            address,
            "only localhost and addresses of this machine are possible, such as 0.0.0.0 for all of them",
        )?;
        let path = if path.is_empty() { USUAL } else { path };
        if !path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte)) {
            return Err("its path may have letters, digits, `/`, `-`, `.`, `_` and `~`");
        }
        Ok(Self {
            address: address.to_owned(),
            secure,
            is_socket,
            path: path.to_owned(),
            auth: Auth::User,
            tokens: None,
            origins: Vec::new(),
            hosts: Vec::new(),
            tls: None,
        })
    }

    /// Whether only this machine can reach it.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let host = self.bare_host();
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// The host without a port and without brackets.
    fn bare_host(&self) -> &str {
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// Whether it is at all addresses of this machine, which are none to call it by, and has no other name.
    #[must_use]
    pub fn is_nameless(&self) -> bool {
        let ip = self.bare_host().parse::<IpAddr>();
        self.hosts.is_empty() && ip.is_ok_and(|ip| ip.is_unspecified())
    }

    /// What is wrong with the whole of it, and the setting that it is about.
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
            Auth::None | Auth::User if !self.is_loopback() => {
                ("url", "can be reached from other machines, which needs `auth` and https:// or wss://")
            }
            _ if !self.secure && !self.is_loopback() => {
                ("url", "can be reached from other machines, which needs https:// or wss:// and `tls`")
            }
            Auth::Token if self.tokens.is_none() => {
                ("auth", "needs a file of tokens: tokens = \"tokens.toml\"")
            }
            Auth::None | Auth::User | Auth::Mtls if self.tokens.is_some() => {
                ("tokens", "has an effect only with auth = \"token\"")
            }
            Auth::Mtls if !has_ca => {
                ("auth", "needs the authority of its clients: tls = { …, client_ca = \"ca.pem\" }")
            }
            Auth::None | Auth::User if has_ca => {
                ("tls", "has a `client_ca`, which has an effect only with auth = \"mtls\" or \"token\"")
            }
            _ => return None,
        };
        Some(found)
    }

    /// The files that it needs.
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

/// A web page's origin, just as browsers name it: a scheme, a host, and a port if that is not the usual one.
///
/// # Errors
/// When it is something else.
pub fn origin(text: &str) -> Result<String, &'static str> {
    if text == "*" {
        return Err("every page there is could use the agents; name the pages");
    }
    let usual = |scheme: &str, port: &str| matches!((scheme, port), ("https", "443") | ("http", "80"));
    match text.split_once("://") {
        Some(("", _)) => Err("it must be like https://app.example"),
        Some((_, rest)) if rest.is_empty() || rest.contains(['/', '?', '#', '@', '*', ' ']) => {
            Err("it ends behind the host and the port, and stands for itself alone: https://app.example")
        }
        Some((scheme, rest)) if rest.rsplit_once(':').is_some_and(|(_, port)| usual(scheme, port)) => {
            Err("browsers leave the usual port out, and so must this")
        }
        Some(_) if text.bytes().any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii_graphic()) => {
            Err("browsers write it in small letters, and so must this")
        }
        Some(_) => Ok(text.to_owned()),
        None => Err("it must be like https://app.example"),
    }
}

/// The name of a host, or its address, without a port.
///
/// # Errors
/// When it is something else.
pub fn host(text: &str) -> Result<String, &'static str> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
    let is_v6 = text.starts_with('[') && text.ends_with(']');
    match text {
        _ if text.bytes().any(|byte| byte.is_ascii_uppercase()) => Err("write it in small letters"),
        _ if is_v6 || (!text.is_empty() && text.bytes().all(plain)) => Ok(text.to_owned()),
        _ => Err("it must be the name of a host alone, such as bus.example"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_reached_from_elsewhere_is_guarded() {
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
        check(here, |web| (web.auth, web.tokens) = (Auth::Token, Some("t".into())), None);
        check(here, |web| web.auth = Auth::Token, Some("auth"));
        check(here, |web| web.tokens = Some("t".into()), Some("tokens"));
        check(here, |web| web.auth = Auth::Mtls, Some("auth"));
        check(here, |web| web.tls = tls(false), Some("tls"));
        check("https://127.0.0.1:1", |_| {}, Some("url"));
        check("https://127.0.0.1:1", |web| web.tls = tls(true), Some("tls"));
        check("https://127.0.0.1:1", |web| (web.auth, web.tls) = (Auth::Mtls, tls(true)), None);
        let both =
            |web: &mut Web| (web.auth, web.tokens, web.tls) = (Auth::Token, Some("t".into()), tls(true));
        check("https://127.0.0.1:1", both, None);
        for far in ["0.0.0.0", "192.168.0.1", "[::]"] {
            let (plain, secure) = (format!("http://{far}:1"), format!("https://{far}:1"));
            let token = |web: &mut Web| (web.auth, web.tokens) = (Auth::Token, Some("t".into()));
            check(&plain, |_| {}, Some("url"));
            check(&plain, token, Some("url"));
            check(&secure, |web| web.tls = tls(false), Some("url"));
            check(&secure, token, Some("url"));
            let both = |web: &mut Web| {
                token(web);
                web.tls = tls(false);
            };
            check(&secure, both, None);
            check(&secure, |web| (web.auth, web.tls) = (Auth::Mtls, tls(true)), None);
        }
    }

    #[test]
    fn pages_and_hosts_are_named_exactly() {
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
