//! The part of a configuration that a reload cannot change: the addresses and the authentication of
//! listeners.

use std::fmt;

use super::{Handle, Router};
use crate::config::{ListenAddr, ListenerSettings, Web};

/// A listener whose state differs from the configuration until the bus is restarted. Displayed as its address
/// and the consequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerDifference {
    /// The listener is no longer configured and stays open.
    StillOpen(ListenAddr),
    /// The listener is configured and is not opened.
    NotOpened(ListenAddr),
    /// The settings of the listener have changed, and it stays open with its former ones.
    OldSettings(ListenAddr),
}

impl fmt::Display for ListenerDifference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StillOpen(address) => write!(out, "{address} stays open until the bus is restarted"),
            Self::OldSettings(address) => {
                write!(out, "{address} keeps its settings until the bus is restarted")
            }
            Self::NotOpened(address) => write!(out, "{address} is not opened until the bus is restarted"),
        }
    }
}

/// The listeners that were opened at the start, with the settings that later reloads have changed.
#[derive(Debug)]
pub(super) struct FixedListeners {
    pub(super) listen: Vec<ListenerSettings>,
    pub(super) addresses: Vec<ListenAddr>,
    pub(super) max_connections: usize,
}

impl FixedListeners {
    /// Returns the open listeners, each with the pools that `wanted` permits it, and the differences that
    /// need a restart.
    pub(super) fn apply(
        &self,
        wanted: &[ListenerSettings],
    ) -> (Vec<ListenerSettings>, Vec<ListenerDifference>) {
        let mut rest: Vec<&ListenerSettings> = wanted.iter().collect();
        let mut differences = Vec::new();
        let mut kept = Vec::with_capacity(self.listen.len());
        for (open, address) in self.listen.iter().zip(&self.addresses) {
            match rest.iter().position(|listen| listen.addr == open.addr) {
                Some(index) => {
                    let wanted = rest.remove(index).clone();
                    if wanted.auth != open.auth {
                        differences.push(ListenerDifference::OldSettings(address.clone()));
                    }
                    kept.push(ListenerSettings { auth: open.auth, ..wanted });
                }
                None => {
                    // Token and certificate files are re-read when they change, but the pools that they grant
                    // are fixed.
                    let same = rest.iter().position(|listen| is_same_place(&listen.addr, &open.addr));
                    let same = same.map(|index| rest.remove(index).clone());
                    let changed = same.is_some();
                    let ListenerSettings { pool, pools, .. } = same.unwrap_or_else(|| open.clone());
                    kept.push(ListenerSettings { pool, pools, ..open.clone() });
                    let told =
                        if changed { ListenerDifference::OldSettings } else { ListenerDifference::StillOpen };
                    differences.push(told(address.clone()));
                }
            }
        }
        differences.extend(rest.into_iter().map(|listen| ListenerDifference::NotOpened(listen.addr.clone())));
        (kept, differences)
    }
}

impl<B: Router> Handle<B> {
    /// Returns `true` if a connection that began on one listener may continue on another, because both
    /// require the same proof of identity and permit the same pools.
    #[must_use]
    pub fn listeners_have_equal_rights(&self, one: usize, other: usize) -> bool {
        let fixed = self.fixed();
        let both = (fixed.listen.get(one), fixed.listen.get(other));
        matches!(both, (Some(one), Some(other)) if have_equal_rights(one, other))
    }
}

fn have_equal_rights(one: &ListenerSettings, other: &ListenerSettings) -> bool {
    let is_same_proof = match (&one.addr, &other.addr) {
        (ListenAddr::Web(one), ListenAddr::Web(other)) => {
            let authority = |web: &Web| web.tls.as_ref().and_then(|tls| tls.client_ca.clone());
            one.auth == other.auth && one.tokens == other.tokens && authority(one) == authority(other)
        }
        (one, other) => std::mem::discriminant(one) == std::mem::discriminant(other),
    };
    is_same_proof && one.auth == other.auth && one.pool == other.pool && one.pools == other.pools
}

fn is_same_place(one: &ListenAddr, other: &ListenAddr) -> bool {
    matches!((one, other), (ListenAddr::Web(one), ListenAddr::Web(other)) if one.address == other.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(urls: &[&str]) -> Vec<ListenerSettings> {
        urls.iter().map(|url| ListenerSettings::parse(url).unwrap()).collect()
    }

    #[test]
    fn listeners_stay_and_their_pools_change() {
        #[track_caller]
        fn check(open: &[&str], wanted: &[&str], expected: &[&str], differences: &[&str]) {
            let listen = places(open);
            let addresses = listen.iter().map(|listen| listen.addr.clone()).collect();
            let fixed = FixedListeners { listen, addresses, max_connections: 1 };
            let (kept, told) = fixed.apply(&places(wanted));
            assert_eq!(kept, places(expected));
            let told: Vec<String> = told.iter().map(ToString::to_string).collect();
            assert_eq!(told, differences);
        }
        check(&["unix:/a"], &["unix:/a"], &["unix:/a"], &[]);
        check(
            &["tcp://[::1]:1/a", "unix:/b"],
            &["unix:/b", "tcp://[::1]:1/c"],
            &["tcp://[::1]:1/c", "unix:/b"],
            &[],
        );
        check(
            &["tcp://[::1]:1/a", "unix:/b"],
            &["tcp://[::1]:2/a", "unix:/b", "stdio:"],
            &["tcp://[::1]:1/a", "unix:/b"],
            &[
                "tcp://[::1]:1 stays open until the bus is restarted",
                "tcp://[::1]:2 is not opened until the bus is restarted",
                "stdio: is not opened until the bus is restarted",
            ],
        );
        check(
            &["http://127.0.0.1:1/a", "http://127.0.0.1:2/a"],
            &["http://127.0.0.1:1/a", "http://127.0.0.1:2/b"],
            &["http://127.0.0.1:1/a", "http://127.0.0.1:2/a"],
            &["http://127.0.0.1:2/a keeps its settings until the bus is restarted"],
        );
        // Port 0 means any free port, so two listeners with port 0 are different listeners.
        let free = "tcp://127.0.0.1:0";
        check(
            &[free],
            &[free, free],
            &[free],
            &["tcp://127.0.0.1:0 is not opened until the bus is restarted"],
        );
    }

    #[test]
    fn connections_continue_at_listeners_with_equal_rights() {
        let pools = |listen: ListenerSettings, names: &[&str]| ListenerSettings {
            pools: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..listen
        };
        let web = |url: &str, tokens: Option<&str>| {
            let mut listen = ListenerSettings::parse(url).unwrap();
            let ListenAddr::Web(web) = &mut listen.addr else { panic!("{url}") };
            web.tokens = tokens.map(Into::into);
            listen
        };
        let plain = |url: &str| ListenerSettings::parse(url).unwrap();
        let (one, other) = ("http://127.0.0.1:1/acp", "ws://[::1]:2/acp");
        for (one, other, expected) in [
            (plain("tcp://127.0.0.1:1"), plain("tcp://[::1]:1"), true),
            (plain("tcp://127.0.0.1:1"), plain("tcp://127.0.0.1:2/a"), false),
            (plain("tcp://127.0.0.1:1"), pools(plain("tcp://127.0.0.1:2"), &["a"]), false),
            (plain("tcp://127.0.0.1:1"), plain("unix:/a"), false),
            (plain("tcp://127.0.0.1:1"), plain(one), false),
            (web(one, None), web(other, None), true),
            (web(one, Some("a")), web(other, Some("a")), true),
            (web(one, Some("a")), web(other, Some("b")), false),
            (web(one, Some("a")), pools(web(other, Some("a")), &["a"]), false),
        ] {
            assert_eq!(have_equal_rights(&one, &other), expected, "{one:?} {other:?}");
        }
    }
}
