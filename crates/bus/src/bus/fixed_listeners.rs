//! The part of a configuration that a reload cannot change: the listeners.

use std::fmt;

use crate::config::{Listen, ListenAddr};

/// A listener that differs from the configuration until the bus is restarted. Displayed as its address and the consequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmoved {
    /// It is no longer configured and stays open.
    Open(ListenAddr),
    /// It is configured and is not opened.
    Closed(ListenAddr),
    /// It stays open with its former settings.
    Changed(ListenAddr),
}

impl fmt::Display for Unmoved {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(address) => write!(out, "{address} stays open until the bus is restarted"),
            Self::Changed(address) => {
                write!(out, "{address} keeps its settings until the bus is restarted")
            }
            Self::Closed(address) => write!(out, "{address} is not opened until the bus is restarted"),
        }
    }
}

/// The listeners as opened at the start, with the settings applied since.
#[derive(Debug)]
pub(super) struct FixedListeners {
    /// The open listeners, as configured.
    pub(super) listen: Vec<Listen>,
    /// The addresses they are bound to.
    pub(super) addresses: Vec<ListenAddr>,
    pub(super) max_connections: usize,
}

impl FixedListeners {
    /// Returns the open listeners with the pools of `wanted`, and the differences that need a restart.
    pub(super) fn apply(&self, wanted: &[Listen]) -> (Vec<Listen>, Vec<Unmoved>) {
        let mut rest: Vec<&Listen> = wanted.iter().collect();
        let mut unmoved = Vec::new();
        let mut kept = Vec::with_capacity(self.listen.len());
        for (open, address) in self.listen.iter().zip(&self.addresses) {
            match rest.iter().position(|listen| listen.at == open.at) {
                Some(index) => {
                    let wanted = rest.remove(index).clone();
                    if wanted.auth != open.auth {
                        unmoved.push(Unmoved::Changed(address.clone()));
                    }
                    kept.push(Listen { auth: open.auth, ..wanted });
                }
                None => {
                    // Token and certificate files are re-read when they change; the pools they grant are fixed.
                    let same = rest.iter().position(|listen| is_same_place(&listen.at, &open.at));
                    let same = same.map(|index| rest.remove(index).clone());
                    let changed = same.is_some();
                    let Listen { pool, pools, .. } = same.unwrap_or_else(|| open.clone());
                    kept.push(Listen { pool, pools, ..open.clone() });
                    let told = if changed { Unmoved::Changed } else { Unmoved::Open };
                    unmoved.push(told(address.clone()));
                }
            }
        }
        unmoved.extend(rest.into_iter().map(|listen| Unmoved::Closed(listen.at.clone())));
        (kept, unmoved)
    }
}

/// Returns `true` if two HTTP listeners have the same address.
fn is_same_place(one: &ListenAddr, other: &ListenAddr) -> bool {
    matches!((one, other), (ListenAddr::Web(one), ListenAddr::Web(other)) if one.address == other.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(urls: &[&str]) -> Vec<Listen> {
        urls.iter().map(|url| Listen::parse(url).unwrap()).collect()
    }

    #[test]
    fn listeners_stay_and_their_pools_change() {
        #[track_caller]
        fn check(open: &[&str], wanted: &[&str], expected: &[&str], unmoved: &[&str]) {
            let listen = places(open);
            let addresses = listen.iter().map(|listen| listen.at.clone()).collect();
            let fixed = FixedListeners { listen, addresses, max_connections: 1 };
            let (kept, told) = fixed.apply(&places(wanted));
            assert_eq!(kept, places(expected));
            let told: Vec<String> = told.iter().map(ToString::to_string).collect();
            assert_eq!(told, unmoved);
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
        // Two listeners on any free port are two listeners.
        let free = "tcp://127.0.0.1:0";
        check(
            &[free],
            &[free, free],
            &[free],
            &["tcp://127.0.0.1:0 is not opened until the bus is restarted"],
        );
    }
}
