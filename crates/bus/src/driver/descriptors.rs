//! How many connections there can be.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::{Config, Door};

/// What we need for ourselves.
const OURS: u64 = 64;
/// What a worker needs: its pipes, its guardian's socket and handle, and some while it is started.
const WORKER: u64 = 8;

/// The limit of this process before it was first raised, whoever did that: a process has but one.
static FIRST: OnceLock<Option<u64>> = OnceLock::new();

/// How many descriptors we could have before we asked for more; `None` for any number.
pub(crate) fn before() -> Option<u64> {
    *FIRST.get_or_init(|| getrlimit(Resource::Nofile).current)
}

/// How many descriptors we could have if we asked for them.
pub(crate) fn most() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Raises the limit on descriptors as far as we may. Returns it.
pub(crate) fn raise() -> u64 {
    before();
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

/// How many descriptors the workers that `config` keeps ready and one client need.
pub(crate) fn needed(config: &Config) -> u64 {
    let workers: u64 = config.pools.iter().map(|pool| u64::from(pool.instances)).sum();
    OURS + WORKER * workers + 1
}

/// How many connections fit under `limit` beside the workers of `config`, if that is less than it allows.
pub(crate) fn cap(config: &Config, limit: u64) -> Option<usize> {
    let room = limit.saturating_add(1).saturating_sub(needed(config)).max(1);
    // A client of the network has a socket of its own beside both ends of the one that leads to us.
    let each = if config.listen.iter().any(|listen| matches!(listen.at, Door::Web(_))) { 3 } else { 1 };
    let room = usize::try_from((room / each).max(1)).unwrap_or(usize::MAX);
    (room < config.limits.max_connections).then_some(room)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Admin, Limits, Pool};

    #[test]
    fn connections_are_capped_by_descriptors() {
        let pools = vec![Pool { instances: 4, ..Pool::new("p", vec!["cat".into()]) }];
        let limits = Limits { max_connections: 1000, ..Limits::default() };
        let config = Config { listen: Vec::new(), pools, limits, admin: Admin::default() };
        for (limit, expected) in [(1 << 20, None), (1096, None), (1095, Some(999)), (10, Some(1))] {
            assert_eq!(cap(&config, limit), expected, "{limit}");
        }
        assert_eq!(needed(&config), 64 + 8 * 4 + 1);
        let listen = vec![crate::config::Listen::parse("http://127.0.0.1:1").unwrap()];
        assert_eq!(cap(&Config { listen, ..config }, 1096), Some(333));
        assert_eq!(raise(), raise());
    }
}
