//! Logs the events of the core.

use std::sync::Arc;

use crate::config::{Pool, PoolProtocol, ShareMode};
use crate::core::{LogEvent, PoolId, WorkerId};

/// Names of pools by number, and the pool of each worker, for the log. Administrators do not know the numbers
/// of the core.
#[derive(Debug, Default)]
pub(super) struct Names {
    pools: Vec<Name>,
    workers: Vec<Name>,
}

#[derive(Clone, Debug, Default)]
struct Name {
    name: Arc<str>,
    shared: bool,
    /// `true` if a worker of the pool is sent `initialize` before it counts as ready.
    initializes: bool,
    pool: usize,
    /// For a worker that has exited: its last stderr lines, if only the log may contain them. For a pool: the
    /// reason why a worker was lost last.
    last: Option<String>,
}

impl Names {
    pub(super) fn learn(&mut self, worker: u32, pool: PoolId, settings: &Pool) {
        let (worker, pool) = (worker as usize, pool.0 as usize);
        for (names, number) in [(&mut self.workers, worker), (&mut self.pools, pool)] {
            if names.len() <= number {
                names.resize_with(number + 1, Name::default);
            }
        }
        if *self.pools[pool].name != *settings.name {
            let shared = settings.share == ShareMode::All;
            let initializes = shared && settings.protocol != PoolProtocol::JsonRpc;
            self.pools[pool] =
                Name { name: settings.name.as_str().into(), shared, initializes, pool, last: None };
        }
        self.workers[worker] = Name { last: None, ..self.pools[pool].clone() };
    }

    pub(super) fn pool_name(&self, worker: u32) -> &str {
        self.workers.get(worker as usize).map_or("", |name| &name.name)
    }

    fn pool(&self, pool: PoolId) -> &str {
        self.pools.get(pool.0 as usize).map_or("", |name| &name.name)
    }

    /// Returns the reason of a worker's exit that its clients may see. The stderr of a shared worker may be
    /// about another client, so it goes only to the log, as a warning if the worker was lost.
    pub(super) fn end(&mut self, worker: u32, reason: String, stderr: &str) -> String {
        tracing::debug!(pool = self.pool_name(worker), worker, reason, stderr, "worker exited");
        match self.workers.get_mut(worker as usize) {
            _ if stderr.is_empty() => reason,
            Some(name) if name.shared => {
                name.last = Some(stderr.to_owned());
                reason
            }
            _ => format!("{reason}; stderr: {stderr}"),
        }
    }

    /// Returns the last stderr lines of a lost worker if only the log may contain them. Keeps the reason as
    /// that of the pool's last loss.
    fn lose(&mut self, worker: WorkerId, reason: &str) -> Option<String> {
        let name = self.workers.get_mut(worker.0 as usize)?;
        let words = name.last.take();
        let reason =
            words.as_ref().map_or_else(|| reason.to_owned(), |words| format!("{reason}; stderr: {words}"));
        if let Some(pool) = self.pools.get_mut(name.pool) {
            pool.last = Some(reason);
        }
        words
    }

    pub(super) fn log(&mut self, note: &LogEvent) {
        if let LogEvent::Lost { worker, reason, requests, sessions } = note {
            let stderr = self.lose(*worker, reason);
            let (pool, stderr) = (self.pool_name(worker.0), stderr.as_deref());
            tracing::warn!(pool, worker = worker.0, reason, stderr, requests, sessions, "worker lost");
            return;
        }
        let of = |worker: &WorkerId| self.pool_name(worker.0);
        match note {
            LogEvent::Ready(worker) => {
                let initializes = self.workers.get(worker.0 as usize).is_some_and(|name| name.initializes);
                // Without `initialize`, the start of the process is the only sign that the worker works.
                let what = if initializes { "worker ready" } else { "worker started" };
                tracing::info!(pool = of(worker), worker = worker.0, "{what}");
            }
            LogEvent::Lost { .. } => {}
            LogEvent::Strike { worker, what } => {
                tracing::warn!(
                    pool = of(worker),
                    worker = worker.0,
                    reason = what,
                    "worker protocol violation"
                );
            }
            LogEvent::Dropped { worker, why } => {
                let pool = of(worker);
                tracing::debug!(pool, worker = worker.0, reason = why, "worker message dropped");
            }
            LogEvent::CircuitOpened(pool) => {
                let last = self.pools.get(pool.0 as usize).and_then(|name| name.last.as_deref());
                tracing::error!(pool = self.pool(*pool), reason = last, "circuit breaker opened");
            }
            LogEvent::McpRefused { client, pool } => {
                let client = client.map(|client| client.0);
                tracing::info!(client, pool = self.pool(*pool), "mcp server refused");
            }
            LogEvent::MetaRefused { client, pool } => {
                tracing::info!(client = client.0, pool = self.pool(*pool), "_meta member refused");
            }
            LogEvent::PoolRefused(client) => tracing::info!(client = client.0, "pool refused"),
            LogEvent::CircuitClosed(pool) => {
                tracing::info!(pool = self.pool(*pool), "circuit breaker closed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stderr_is_reported_to_clients_of_exclusive_workers_only() {
        let mut names = Names::default();
        let own = Pool::new("own", vec!["a".to_owned()]);
        let shared = Pool { share: ShareMode::All, ..Pool::new("shared", vec!["a".to_owned()]) };
        names.learn(3, PoolId(1), &own);
        names.learn(0, PoolId(0), &shared);
        assert_eq!(
            (names.pool_name(3), names.pool_name(0), names.pool_name(1), names.pool_name(9)),
            ("own", "shared", "", "")
        );
        assert_eq!((names.pool(PoolId(1)), names.pool(PoolId(2))), ("own", ""));
        let mut end = |worker, stderr| names.end(worker, "exit status 1".to_owned(), stderr);
        assert_eq!(end(3, "oh"), "exit status 1; stderr: oh");
        assert_eq!(end(3, ""), "exit status 1");
        assert_eq!(end(0, "oh"), "exit status 1");
        // The stderr lines of the worker are logged once, when it turns out that the worker was lost.
        assert_eq!(names.lose(WorkerId(3), "exit status 1; stderr: oh"), None);
        assert_eq!(names.lose(WorkerId(0), "exit status 1").as_deref(), Some("oh"));
        assert_eq!(names.lose(WorkerId(0), "exit status 2"), None);
        assert_eq!(names.lose(WorkerId(9), "exit status 2"), None);
        let last: Vec<_> = names.pools.iter().map(|pool| pool.last.as_deref()).collect();
        assert_eq!(last, [Some("exit status 2"), Some("exit status 1; stderr: oh")]);
        // The same slot then belongs to a worker of another pool.
        names.end(0, "exit status 1".to_owned(), "oh");
        names.learn(0, PoolId(1), &own);
        assert_eq!(names.pool_name(0), "own");
        assert_eq!(names.lose(WorkerId(0), "exit status 1"), None);
    }

    #[test]
    fn only_initialized_workers_are_logged_as_ready() {
        let mut names = Names::default();
        let pool =
            |name: &str, share, protocol| Pool { share, protocol, ..Pool::new(name, vec!["a".to_owned()]) };
        for (number, pool, initializes) in [
            (0, pool("a", ShareMode::All, PoolProtocol::V1), true),
            (1, pool("b", ShareMode::All, PoolProtocol::V2), true),
            (2, pool("c", ShareMode::All, PoolProtocol::JsonRpc), false),
            (3, pool("d", ShareMode::Session, PoolProtocol::V1), false),
        ] {
            names.learn(number, PoolId(number), &pool);
            assert_eq!(names.workers[number as usize].initializes, initializes, "{pool:?}");
        }
    }
}
