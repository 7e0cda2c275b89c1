//! Addresses of listeners, as people write them: `tcp://127.0.0.1:9000`, `unix:/path`, `stdio:` or
//! `http://127.0.0.1:8787/acp`.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use narrows_config::PathBase;

use super::{ListenAddr, ListenerSettings, Web};

/// The longest path of a unix socket that Linux accepts, in bytes.
const MAX_SOCKET_PATH_BYTES: usize = 107;

const URL_HINT: &str = "the address must be tcp://HOST:PORT, unix:/PATH, stdio: or http://HOST:PORT/acp";

impl ListenerSettings {
    /// Parses `tcp://HOST:PORT`, `tcp://HOST:PORT/POOL`, `unix:PATH`, `stdio:` or `http://HOST:PORT/PATH`.
    /// `ws://` means `http://`; `https://` and `wss://` use TLS. See also [`Web::problem`].
    ///
    /// # Errors
    /// If the URL has another form, or is a TCP address that other machines can reach.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once(':').ok_or(URL_HINT)?;
        let (at, pool) = match scheme {
            "tcp" => {
                let rest = rest.strip_prefix("//").ok_or("two slashes are missing: tcp://HOST:PORT")?;
                let (address, pool) = rest.split_once('/').unwrap_or((rest, ""));
                (ListenAddr::tcp(address)?, Some(pool).filter(|pool| !pool.is_empty()).map(str::to_owned))
            }
            "unix" => (ListenAddr::unix(rest.strip_prefix("//").unwrap_or(rest))?, None),
            "stdio" if rest.is_empty() || rest == "//" => (ListenAddr::Stdio, None),
            "stdio" => return Err("nothing may follow `stdio:`"),
            "http" | "https" | "ws" | "wss" => {
                let (secure, is_socket) = (matches!(scheme, "https" | "wss"), matches!(scheme, "ws" | "wss"));
                let web = Web::parse(rest, secure, is_socket)?;
                (ListenAddr::Web(Box::new(web)), None)
            }
            _ => return Err(URL_HINT),
        };
        Ok(Self { pool, ..Self::new(at) })
    }
}

impl ListenAddr {
    /// Returns `true` if one process cannot listen on both addresses: a port has one listener, whatever its
    /// protocol. Port 0 stands for a different port each time.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self.port(), other.port()) {
            (Some(one), Some(other)) => is_same(one, other),
            _ => self == other,
        }
    }

    /// Returns a hint for an address that conflicts with `other`, if there is another way to have both.
    #[must_use]
    pub fn conflict_hint(&self, other: &Self) -> Option<&'static str> {
        match (self, other) {
            (Self::Web(one), Self::Web(other)) if one.path != other.path => {
                Some("a port has one path: use another port for the other path")
            }
            _ => None,
        }
    }

    pub(super) fn port(&self) -> Option<&str> {
        match self {
            Self::Tcp(address) => Some(address),
            Self::Web(web) => Some(&web.address),
            Self::Stdio | Self::Unix(_) => None,
        }
    }

    /// Parses `HOST:PORT`. The host must be a loopback address.
    ///
    /// # Errors
    /// If the host is not a loopback address, or the form is wrong.
    pub fn tcp(address: &str) -> Result<Self, &'static str> {
        loopback(address, CLIENT_LOOPBACK_ONLY)?;
        Ok(Self::Tcp(address.to_owned()))
    }

    /// Parses the path of a unix socket.
    ///
    /// # Errors
    /// If a socket cannot have this path.
    pub fn unix(path: &str) -> Result<Self, &'static str> {
        socket(path, PathBase { base: Path::new(""), home: None }).map(Self::Unix)
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio => out.write_str("stdio:"),
            Self::Tcp(address) => write!(out, "tcp://{address}"),
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
            Self::Web(web) => web.fmt(out),
        }
    }
}

const CLIENT_LOOPBACK_ONLY: &str = "only 127.0.0.1, [::1] and localhost are allowed, because every client may use the agents; \
    for other machines use https:// or wss:// with `auth`";

pub(super) const ADMIN_LOOPBACK_ONLY: &str =
    "only 127.0.0.1, [::1] and localhost are allowed, because every client can read the status of the bus";

/// Checks that `address` is a loopback host and a port. The error for another host is `remote_error`.
pub(super) fn loopback(address: &str, remote_error: &'static str) -> Result<(), &'static str> {
    match host_and_port(address, remote_error)? {
        Some(ip) if !ip.is_loopback() => Err(remote_error),
        _ => Ok(()),
    }
}

/// Checks that `address` is `localhost` or an IP address, and a port. Returns the IP address. The error for
/// any other host name is `name_error`.
pub(super) fn host_and_port(address: &str, name_error: &'static str) -> Result<Option<IpAddr>, &'static str> {
    let (host, port) = address.rsplit_once(':').ok_or("the port is missing: HOST:PORT")?;
    if !port.bytes().all(|byte| byte.is_ascii_digit()) || port.parse::<u16>().is_err() {
        return Err("the port must be a number from 0 to 65535");
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let ip: Option<IpAddr> = bare.unwrap_or(host).parse().ok();
    match ip {
        Some(IpAddr::V6(_)) if bare.is_none() => Err("an IPv6 address needs brackets: [::1]:9000"),
        Some(IpAddr::V4(_)) if bare.is_some() => Err("an IPv4 address takes no brackets"),
        None if host != "localhost" => Err(name_error),
        ip => Ok(ip),
    }
}

/// Returns `true` if two texts are the same address in any notation. Port 0 stands for a different port each
/// time.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    let read = |text: &str| text.parse::<SocketAddr>().ok();
    let same = match (read(one), read(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    };
    same && !one.ends_with(":0")
}

/// Returns a listener URL in which `~` after `unix:` is replaced by the home directory.
#[must_use]
pub fn expand_home<'a>(url: &'a str, home: Option<&Path>) -> Cow<'a, str> {
    let path = url.strip_prefix("unix:").map(|path| path.strip_prefix("//").unwrap_or(path));
    match (path.and_then(|path| path.strip_prefix("~/")), home.and_then(Path::to_str)) {
        (Some(rest), Some(home)) => Cow::Owned(format!("unix:{home}/{rest}")),
        _ => Cow::Borrowed(url),
    }
}

pub(super) fn socket(path: &str, paths: PathBase<'_>) -> Result<PathBuf, &'static str> {
    let path = paths.resolve(path)?;
    match path.as_os_str().len() {
        ..=MAX_SOCKET_PATH_BYTES => Ok(path),
        _ => Err("the path of a socket can have at most 107 bytes"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn valid_listener_addresses_are_accepted() {
        #[track_caller]
        fn check(url: &str, shown: &str, pool: Option<&str>) {
            let listen = ListenerSettings::parse(url).expect(url);
            assert_eq!((listen.addr.to_string().as_str(), listen.pool.as_deref()), (shown, pool), "{url}");
        }
        check("tcp://127.0.0.1:9000", "tcp://127.0.0.1:9000", None);
        check("tcp://127.1.2.3:0/", "tcp://127.1.2.3:0", None);
        check("tcp://[::1]:9000/coder", "tcp://[::1]:9000", Some("coder"));
        check("tcp://localhost:9000", "tcp://localhost:9000", None);
        check("unix:/run/a.sock", "unix:/run/a.sock", None);
        check("unix:///run/a.sock", "unix:/run/a.sock", None);
        check("unix:a.sock", "unix:a.sock", None);
        check("stdio:", "stdio:", None);
        check("stdio://", "stdio:", None);
        check("ws://127.0.0.1:8787/acp", "ws://127.0.0.1:8787/acp", None);
        check("http://localhost:8787", "http://localhost:8787/acp", None);
        check("wss://0.0.0.0:443/a/b", "wss://0.0.0.0:443/a/b", None);
        check("https://[::]:443/", "https://[::]:443/", None);
    }

    #[test]
    fn invalid_listener_addresses_are_refused() {
        #[track_caller]
        fn check(url: &str, reason: &str) {
            let found = ListenerSettings::parse(url).expect_err(url);
            assert!(found.contains(reason), "{url}: {found}");
        }
        check("", "must be tcp");
        check("9000", "must be tcp");
        check("udp://127.0.0.1:1", "must be tcp");
        check("tcp:127.0.0.1:1", "two slashes");
        check("tcp://127.0.0.1", "port is missing");
        check("tcp://127.0.0.1:70000", "0 to 65535");
        check("tcp://127.0.0.1:+1", "0 to 65535");
        check("tcp://0.0.0.0:1", "only 127.0.0.1");
        check("tcp://[::]:1", "only 127.0.0.1");
        check("tcp://example.com:1", "only 127.0.0.1");
        check("tcp://::1:1", "brackets");
        check("tcp://[127.0.0.1]:1", "no brackets");
        check("unix:", "path is empty");
        check("unix:~/a", "HOME");
        check("unix:$HOME/a", "variables");
        check(&format!("unix:/{}", "a".repeat(107)), "107");
        check("stdio:x", "nothing may follow");
        check("ws:127.0.0.1:1", "two slashes");
        check("ws://127.0.0.1/acp", "port is missing");
        check("http://user@127.0.0.1:1/", "user name");
        check("http://127.0.0.1:1/a?b", "path");
        check("http://example.com:1/a", "an address of this machine");
    }

    #[test]
    fn different_spellings_of_an_address_are_equal() {
        for (one, other, same) in [
            ("127.0.0.1:9000", "127.0.0.1:9000", true),
            ("[::1]:9000", "[0:0::1]:9000", true),
            ("localhost:9000", "localhost:9000", true),
            ("127.0.0.1:9000", "127.0.0.1:9001", false),
            ("127.0.0.1:9000", "[::1]:9000", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
        ] {
            assert_eq!(is_same(one, other), same, "{one} {other}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn a_printed_url_parses_again(url in "(tcp|unix|stdio|ws|https|x)?:?/{0,3}[a-z0-9.:\\[\\]]{0,12}(:[0-9]{1,6})?") {
            if let Ok(listen) = ListenerSettings::parse(&url) {
                let again = ListenerSettings::parse(&listen.addr.to_string()).map(|listen| listen.addr);
                prop_assert_eq!(again, Ok(listen.addr));
            }
        }
    }
}
