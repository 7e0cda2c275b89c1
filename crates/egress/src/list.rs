//! The allow-list: names, patterns and addresses, with a port or the default web ports.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use crate::host::{Host, Target, read_port};

const DEFAULT_PORTS: [u16; 2] = [80, 443];

/// The allowed hosts. An empty list allows none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostAllowList {
    /// A target must be allowed by each of these lists. There is at least one list.
    lists: Vec<Vec<Entry>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    host: HostPattern,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HostPattern {
    /// Exactly this host.
    Host(Host),
    /// All hosts below this name, without the name itself.
    Subdomains(String),
}

/// An invalid entry of an allow-list, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid host pattern")]
pub struct EntryError(pub String);

impl HostAllowList {
    /// Parses entries such as `api.example.com`, `*.example.com`, `api.example.com:8443` and `10.0.0.1:80`.
    ///
    /// # Errors
    /// If an entry is invalid.
    pub fn parse<S: AsRef<str>>(entries: impl IntoIterator<Item = S>) -> Result<Self, EntryError> {
        let entries = entries.into_iter().map(|text| Entry::parse(text.as_ref()));
        Ok(Self { lists: vec![entries.collect::<Result<_, _>>()?] })
    }

    /// Returns the intersection: a target must be allowed by both lists.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.lists.extend(other.lists);
        self
    }

    /// Returns `true` if nothing is allowed.
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty() || self.lists.iter().any(Vec::is_empty)
    }

    /// Returns `true` if the target is allowed.
    pub fn permits(&self, target: &Target) -> bool {
        !self.is_empty() && self.lists.iter().all(|entries| entries.iter().any(|entry| entry.permits(target)))
    }

    /// Returns `true` if `host` may resolve to this address. A listed address stands only for itself, and
    /// `localhost` only for loopback. Any other name must not resolve to this machine or a private network.
    pub(crate) fn permits_address(host: &Host, address: IpAddr) -> bool {
        match host {
            Host::Address(literal) => *literal == address,
            Host::Name(name) if name == "localhost" => address.to_canonical().is_loopback(),
            Host::Name(_) => {
                is_public(address.to_canonical()) && !is_own(address.to_canonical(), is_bindable)
            }
        }
    }
}

/// Returns `true` if the address belongs to this machine: usually a socket cannot be bound to any other
/// address. If the system allows binding to every address, the address is compared with the source address
/// of packets to it.
fn is_own(address: IpAddr, is_bindable: impl Fn(IpAddr) -> bool) -> bool {
    let (foreign, unspecified): (IpAddr, IpAddr) = match address {
        IpAddr::V4(_) => (Ipv4Addr::new(192, 0, 2, 1).into(), Ipv4Addr::UNSPECIFIED.into()),
        IpAddr::V6(_) => {
            (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(), Ipv6Addr::UNSPECIFIED.into())
        }
    };
    if !is_bindable(address) {
        return false;
    }
    if !is_bindable(foreign) {
        return true;
    }
    let source = UdpSocket::bind((unspecified, 0)).and_then(|socket| {
        // Connecting a datagram socket sends no packet.
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

fn is_bindable(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

impl Entry {
    fn parse(text: &str) -> Result<Self, EntryError> {
        let none = || EntryError(text.to_owned());
        if let Some(below) = text.strip_prefix("*.") {
            let (name, port) = match below.split_once(':') {
                Some((name, port)) => (name, Some(read_port(port).ok_or_else(none)?)),
                None => (below, None),
            };
            return match name.parse() {
                Ok(Host::Name(name)) => Ok(Self { host: HostPattern::Subdomains(format!(".{name}")), port }),
                _ => Err(none()),
            };
        }
        if let Ok(host) = text.parse() {
            return Ok(Self { host: HostPattern::Host(host), port: None });
        }
        let target = Target::parse(text, None).map_err(|_| none())?;
        Ok(Self { host: HostPattern::Host(target.host), port: Some(target.port) })
    }

    fn permits(&self, target: &Target) -> bool {
        let port = match self.port {
            Some(port) => port == target.port,
            None => DEFAULT_PORTS.contains(&target.port),
        };
        port && match (&self.host, &target.host) {
            (HostPattern::Host(host), asked) => host == asked,
            (HostPattern::Subdomains(below), Host::Name(name)) => {
                name.ends_with(below.as_str()) && name.len() > below.len()
            }
            // An address is never a subdomain.
            (HostPattern::Subdomains(_), Host::Address(_)) => false,
        }
    }
}

/// Returns `true` if the address is public: not of this machine, a private network, or reserved.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, second, third, _] = address.octets();
            !(address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_broadcast()
                || address.is_multicast()
                || address.is_documentation()
                || first == 0
                || first >= 240
                // The ranges of carrier-grade NAT, protocol assignments and benchmarks are not public.
                || (first == 100 && (64..128).contains(&second))
                || (first == 192 && second == 0 && third == 0)
                || (first == 198 && (18..20).contains(&second)))
        }
        IpAddr::V6(address) => {
            let [first, second, ..] = address.segments();
            // IPv6 addresses are public if they are global, except those that embed other addresses (6to4,
            // Teredo) and those for documentation.
            first & 0xe000 == 0x2000
                && first != 0x2002
                && !(first == 0x2001 && (second < 0x200 || second == 0xdb8))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(entries: &[&str]) -> HostAllowList {
        HostAllowList::parse(entries).unwrap()
    }

    #[test]
    fn addresses_of_this_machine_are_those_that_can_be_bound() {
        let [own, other]: [IpAddr; 2] = ["127.0.0.1", "93.184.216.34"].map(|text| text.parse().unwrap());
        assert!(is_own(own, is_bindable) && !is_own(other, is_bindable));
        assert!(!is_own("2606:4700::1234".parse().unwrap(), is_bindable));
        // An address of this machine may also be public.
        assert!(is_own(other, |address| address == other));
        // If every address can be bound, the source address of packets decides.
        assert!(is_own(own, |_| true) && !is_own(other, |_| true));
    }

    #[test]
    fn a_list_permits_only_the_named_hosts() {
        let list = list(&[
            "api.example.com",
            "*.Example.org",
            "other.example:8443",
            "*.deep.example:99",
            "10.0.0.1:5",
            "localhost",
        ]);
        let check = |target: &str, expected: bool| {
            assert_eq!(list.permits(&Target::parse(target, None).unwrap()), expected, "{target}");
        };
        for target in [
            "api.example.com:443",
            "API.EXAMPLE.COM:80",
            "a.example.org:443",
            "a.b.example.org:80",
            "other.example:8443",
            "x.deep.example:99",
            "10.0.0.1:5",
            "localhost:80",
        ] {
            check(target, true);
        }
        for target in [
            "api.example.com:22",
            "example.com:443",
            "evil-api.example.com:443",
            "api.example.com.evil:443",
            "example.org:443",
            "evilexample.org:443",
            "other.example:443",
            "deep.example:99",
            "10.0.0.1:443",
            "10.0.0.2:5",
            "[::1]:80",
            "127.0.0.1:80",
        ] {
            check(target, false);
        }
        let target = |text: &str| Target::parse(text, None).unwrap();
        assert!(!HostAllowList::default().permits(&target("api.example.com:443")));
        let parsed = |entries: &[&str]| HostAllowList::parse(entries).unwrap();
        let both = parsed(&["*.example.com", "b.test"]).and(parsed(&["a.example.com", "c.test"]));
        assert!(both.permits(&target("a.example.com:443")) && !both.is_empty());
        assert!(!both.permits(&target("b.example.com:443")) && !both.permits(&target("b.test:443")));
        assert!(parsed(&["a.test"]).and(parsed(&[])).is_empty());
    }

    #[test]
    fn invalid_entries_are_reported() {
        for entry in [
            "",
            "*",
            "*.",
            "**.a",
            "https://a.b",
            "a.b/c",
            "*.0.0.1",
            "*.a:0",
            "a:x",
            "a b",
            "*.a:443:1",
            "*.1",
        ] {
            assert_eq!(HostAllowList::parse([entry]), Err(EntryError(entry.to_owned())));
        }
    }

    #[test]
    fn private_addresses_must_be_listed_literally() {
        let check = |host: &str, address: &str, expected: bool| {
            let permitted = HostAllowList::permits_address(&host.parse().unwrap(), address.parse().unwrap());
            assert_eq!(permitted, expected, "{host} {address}");
        };
        for public in ["93.184.215.14", "1.1.1.1", "2606:4700::1", "2001:4860::8"] {
            check("api.example.com", public, true);
            check("localhost", public, false);
        }
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "192.0.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "2002:7f00:1::",
            "2001:0:1::",
            "64:ff9b::7f00:1",
        ] {
            check("api.example.com", private, false);
        }
        check("localhost", "127.0.0.1", true);
        check("localhost", "::1", true);
        check("localhost", "10.0.0.1", false);
        check("10.0.0.1", "10.0.0.1", true);
        check("10.0.0.1", "10.0.0.2", false);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// A pattern allows only names below its own name.
        #[test]
        fn patterns_do_not_leak(target in "[a-z.-]{1,12}(example)?[.]?(com|org)?:(80|443|22)") {
            let list = list(&["*.example.com"]);
            if let Ok(target) = Target::parse(&target, None) && list.permits(&target) {
                let host = target.host.to_string();
                prop_assert!(host.ends_with(".example.com") && host.len() > ".example.com".len());
                prop_assert!(target.port != 22);
            }
        }

        #[test]
        fn arbitrary_entries_never_panic(entry in "[*a-z0-9.:\\[\\]-]{0,16}") {
            let _ = HostAllowList::parse([entry]);
        }
    }
}
