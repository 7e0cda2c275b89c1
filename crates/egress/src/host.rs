//! Host names in one normalized form, used to compare, resolve and connect.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A host: an address, or a lower-case name that every resolver reads in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    Address(IpAddr),
    Name(String),
}

/// Error: the text is not a valid host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid host name")]
pub struct HostError;

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or(HostError)?;
            return inner
                .parse::<Ipv6Addr>()
                .map(|address| Self::Address(address.into()))
                .map_err(|_| HostError);
        }
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Ok(Self::Address(address.into()));
        }
        if is_name(text) { Ok(Self::Name(text.to_ascii_lowercase())) } else { Err(HostError) }
    }
}

/// Returns `true` for labels of letters, digits and hyphens. The last one must contain a letter; otherwise
/// some resolvers read an address.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    // Some resolvers also read hexadecimal numbers as addresses.
    let is_number =
        last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x") || last.starts_with("0X");
    text.len() <= 253 && text.split('.').all(is_label) && !is_number
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    pub host: Host,
    pub port: u16,
}

impl Target {
    /// Parses `host:port`, or a host alone if `port` is given as the default.
    ///
    /// # Errors
    /// If the text is invalid.
    pub fn parse(text: &str, port: Option<u16>) -> Result<Self, HostError> {
        let colon = match text.rfind(']') {
            Some(end) => text[end..].find(':').map(|colon| end + colon),
            None => text.find(':'),
        };
        let (host, port) = match colon {
            Some(colon) => (&text[..colon], read_port(&text[colon + 1..])),
            None => (text, port),
        };
        Ok(Self { host: host.parse()?, port: port.ok_or(HostError)? })
    }
}

/// Parses a port of digits only, without a sign or spaces.
pub(crate) fn read_port(text: &str) -> Option<u16> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|port| *port > 0)
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn targets_are_parsed_unambiguously() {
        let check = |text: &str, port: Option<u16>, expected: Option<&str>| {
            let read = Target::parse(text, port).ok().map(|target| target.to_string());
            assert_eq!(read.as_deref(), expected, "{text:?}");
        };
        check("API.Example.com:443", None, Some("api.example.com:443"));
        check("example.com", Some(80), Some("example.com:80"));
        check("127.0.0.1:80", None, Some("127.0.0.1:80"));
        check("[::1]:80", None, Some("[::1]:80"));
        check("[::1]", Some(80), Some("[::1]:80"));
        for text in [
            "",
            ":80",
            "a",
            "a:",
            "a:0",
            "a:65536",
            "a:+80",
            "a:80x",
            "a:8 0",
            "a:80:80",
            "a b:80",
            "a..b:80",
            ".a:80",
            "a.:80",
            "-a:80",
            "a-:80",
            "a_b:80",
            "a\0.b:80",
            "evil\0.allowed.com:443",
            "a@b:80",
            "a/b:80",
            "é.com:80",
            "2130706433:80",
            "127.1:80",
            "0x7f.1:80",
            "0x7f000001:80",
            "1.2.3.4.5:80",
            "256.1.1.1:80",
            "01.2.3.4:80",
            "[::1:80",
            "::1:80",
            "[fe80::1%eth0]:80",
            "[127.0.0.1]:80",
            "a%2eb:80",
        ] {
            check(text, None, None);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_displayed_target_is_parsed_unchanged(text in "[a-zA-Z0-9.:\\[\\]%@ /\\\\\0-]{0,24}") {
            if let Ok(target) = Target::parse(&text, None) {
                let shown = target.to_string();
                prop_assert_eq!(Target::parse(&shown, None), Ok(target));
                prop_assert!(shown.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
    }
}
