//! Derives the maximum number of connections from the limit of file descriptors.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::{Config, ListenAddr};

const OWN_DESCRIPTORS: u64 = 64;
/// File descriptors per worker: its pipes, its guardian's socket and handle, and some more while it is
/// started.
const DESCRIPTORS_PER_WORKER: u64 = 8;

static ORIGINAL_LIMIT: OnceLock<Option<u64>> = OnceLock::new();

/// Returns the limit of file descriptors before this process raised it. `None`: unlimited.
pub(crate) fn original_fd_limit() -> Option<u64> {
    *ORIGINAL_LIMIT.get_or_init(|| getrlimit(Resource::Nofile).current)
}

pub(crate) fn max_fd_limit() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Raises the limit of file descriptors as far as permitted. Returns the new limit.
pub(crate) fn raise_fd_limit() -> u64 {
    original_fd_limit();
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    let current = limit.current.unwrap_or(u64::MAX);
    if current < maximum
        && setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).is_ok()
    {
        return maximum;
    }
    current
}

/// Returns the number of file descriptors that the permanent workers of `config` and one client need.
pub(crate) fn needed_descriptors(config: &Config) -> u64 {
    let workers: u64 = config.pools.iter().map(|pool| u64::from(pool.instances)).sum();
    OWN_DESCRIPTORS + DESCRIPTORS_PER_WORKER * workers + 1
}

/// Returns the number of file descriptors that the workers of `config` leave for connections.
pub(crate) fn room_for_connections(config: &Config) -> usize {
    room_under(config, getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

fn room_under(config: &Config, limit: u64) -> usize {
    let room = limit.saturating_add(1).saturating_sub(needed_descriptors(config)).max(1);
    usize::try_from(room).unwrap_or(usize::MAX)
}

/// Returns the maximum number of connections if the limit of file descriptors is too low for the configured
/// number. The workers of `config` are subtracted first. `None`: the configured number is possible.
pub(crate) fn cap_connections(config: &Config, limit: u64) -> Option<usize> {
    let room = room_under(config, limit);
    (room < config.limits.max_connections).then_some(room)
}

/// Returns the maximum number of connections of clients without an identity. If a listener also admits other
/// clients, at least a tenth of `max_connections` is reserved for those.
pub(crate) fn anonymous_connections(config: &Config) -> usize {
    let is_others = |address: &ListenAddr| match address {
        ListenAddr::Tcp(..) => false,
        ListenAddr::Web(web) => web.auth.names_clients(),
        _ => true,
    };
    let most = config.limits.max_connections;
    let kept = if config.listen.iter().any(|listen| is_others(&listen.addr)) { most / 10 } else { 0 };
    config.limits.max_anonymous_connections.min(most - kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AdminConfig, BusLimits, Pool};

    #[test]
    fn connections_are_capped_by_descriptors() {
        let pools = vec![Pool { instances: 4, ..Pool::new("p", vec!["cat".into()]) }];
        let limits = BusLimits { max_connections: 1000, ..BusLimits::default() };
        let config = Config { listen: Vec::new(), pools, limits, admin: AdminConfig::default() };
        for (limit, expected) in [(1 << 20, None), (1096, None), (1095, Some(999)), (10, Some(1))] {
            assert_eq!(cap_connections(&config, limit), expected, "{limit}");
        }
        assert_eq!(needed_descriptors(&config), 64 + 8 * 4 + 1);
        let listen = |urls: &[&str]| {
            urls.iter().map(|url| crate::config::ListenerSettings::parse(url).unwrap()).collect()
        };
        let with = |urls: &[&str]| Config { listen: listen(urls), ..config.clone() };
        assert_eq!(
            cap_connections(&with(&["http://127.0.0.1:1"]), 1096),
            None,
            "how many each takes is seen when it comes"
        );
        assert_eq!(room_under(&config, 1096), 1000);
        assert_eq!(anonymous_connections(&with(&["tcp://127.0.0.1:1"])), 1000);
        assert_eq!(anonymous_connections(&with(&["tcp://127.0.0.1:1", "unix:/tmp/x"])), 900);
        assert_eq!(raise_fd_limit(), raise_fd_limit());
    }
}
