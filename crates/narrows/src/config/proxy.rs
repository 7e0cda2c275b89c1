//! Selects the proxy for a URL from the usual environment variables.

use std::net::IpAddr;

use url::{Host, Url};

use super::variables::Variables;
use crate::environment as env;

/// Returns the URL of the proxy for `url`, and the variable that sets it. Connections to this machine use no
/// proxy.
pub(super) fn select(url: &str, variables: &Variables) -> Option<(String, &'static str)> {
    let url = Url::parse(url).ok()?;
    let scheme = match url.scheme() {
        "https" => env::HTTPS_PROXY,
        "http" => env::HTTP_PROXY,
        _ => return None,
    };
    let direct =
        is_loopback(&url) || get(env::NO_PROXY, variables).is_some_and(|list| is_listed(&url, &list));
    if direct {
        return None;
    }
    let found = |name| get(name, variables).map(|proxy| (proxy, name));
    found(scheme).or_else(|| found(env::ALL_PROXY)).map(|(proxy, name)| {
        // Users often leave out the scheme in proxy variables.
        (if proxy.contains("://") { proxy } else { format!("http://{proxy}") }, name)
    })
}

/// Returns the value of a variable. The lower-case form of its name has precedence.
fn get(name: &str, variables: &Variables) -> Option<String> {
    let value = variables.get(&name.to_ascii_lowercase()).or_else(|| variables.get(name))?;
    value.to_str().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::V6(address).to_canonical().is_loopback(),
        None => false,
    }
}

/// Returns `true` if `list` (hosts, domains and networks) contains the host of `url`.
fn is_listed(url: &Url, list: &str) -> bool {
    let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default());
    let host = host.trim_matches(['[', ']']);
    list.split([',', ' ']).map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        let entry = entry.to_ascii_lowercase();
        if entry == "*" {
            return true;
        }
        if let Some((network, length)) = entry.split_once('/') {
            return is_in(host, network, length);
        }
        let (name, only) = match entry.rsplit_once(':') {
            // Several colons mean an IPv6 address without a port.
            Some((name, number)) if !name.contains(':') => (name, number.parse().ok()),
            _ => (entry.as_str(), None),
        };
        let name = name.trim_start_matches("*.").trim_start_matches('.').trim_matches(['[', ']']);
        let below = host.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        !name.is_empty() && below && (only.is_none() || only == port)
    })
}

fn is_in(host: &str, network: &str, length: &str) -> bool {
    let parsed = (host.parse::<IpAddr>(), network.parse::<IpAddr>(), length.parse::<u32>());
    let (address, network, length, width) = match parsed {
        (Ok(IpAddr::V4(a)), Ok(IpAddr::V4(n)), Ok(length)) => {
            (u128::from(a.to_bits()), u128::from(n.to_bits()), length, 32)
        }
        (Ok(IpAddr::V6(a)), Ok(IpAddr::V6(n)), Ok(length)) => (a.to_bits(), n.to_bits(), length, 128),
        _ => return false,
    };
    let Some(rest) = u32::checked_sub(width, length) else { return false };
    address.checked_shr(rest).unwrap_or(0) == network.checked_shr(rest).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::variables::variables;

    #[track_caller]
    fn check(url: &str, pairs: &[(&str, &str)], expected: Option<&str>) {
        let found = select(url, &variables(pairs));
        assert_eq!(found.as_ref().map(|(proxy, _)| proxy.as_str()), expected, "{url} {pairs:?}");
    }

    #[test]
    fn the_usual_variables_select_a_proxy() {
        let url = "https://api.example.org/v1";
        check(url, &[], None);
        check(url, &[("HTTPS_PROXY", "http://p:1")], Some("http://p:1"));
        check(url, &[("https_proxy", "p:1"), ("HTTPS_PROXY", "http://q")], Some("http://p:1"));
        check(url, &[("HTTP_PROXY", "http://p:1")], None);
        check(url, &[("ALL_PROXY", "socks5://p:1")], Some("socks5://p:1"));
        check(url, &[("HTTPS_PROXY", ""), ("all_proxy", "http://p")], Some("http://p"));
        check("http://example.org", &[("HTTP_PROXY", "http://p:1")], Some("http://p:1"));
        check("builtin:demo", &[("ALL_PROXY", "http://p:1")], None);
        check("nonsense", &[("ALL_PROXY", "http://p:1")], None);
    }

    #[test]
    fn this_machine_is_reached_directly() {
        for url in
            ["http://localhost:11434/v1", "http://127.0.0.1", "http://[::1]:8000/v1", "http://a.localhost"]
        {
            check(url, &[("ALL_PROXY", "http://p"), ("HTTP_PROXY", "http://p")], None);
        }
    }

    #[test]
    fn hosts_of_no_proxy_are_reached_directly() {
        #[track_caller]
        fn excepted(host: &str, list: &str, expected: bool) {
            let (url, vars) = (format!("https://{host}/v1"), [("ALL_PROXY", "http://p"), ("NO_PROXY", list)]);
            check(&url, &vars, (!expected).then_some("http://p"));
        }
        excepted("api.example.org", "*", true);
        excepted("api.example.org", "example.com, example.org", true);
        excepted("api.example.org", ".example.org", true);
        excepted("api.example.org", "*.example.org", true);
        excepted("api.example.org", "Api.Example.Org", true);
        excepted("api.example.org", "ample.org", false);
        excepted("api.example.org", "", false);
        excepted("api.example.org:8443", "example.org:8443", true);
        excepted("api.example.org:8443", "example.org:443", false);
        excepted("api.example.org", "example.org:443", true);
        excepted("10.1.2.3", "10.0.0.0/8", true);
        excepted("11.1.2.3", "10.0.0.0/8", false);
        excepted("11.1.2.3", "0.0.0.0/0", true);
        excepted("11.1.2.3", "11.1.2.3/33", false);
        excepted("[fd00::1]", "fd00::/8", true);
        excepted("[fd00::1]", "fd00::1", true);
        excepted("[fe80::1]", "fd00::/8", false);
    }
}
