//! What the core finds worth telling, in the log.

use std::sync::Arc;

use crate::config::{Pool, Share};
use crate::core::{Note, PoolId, Worker};

/// What pools are called, and whose the workers are: operators do not know our numbers of pools.
#[derive(Debug, Default)]
pub(super) struct Names {
    pools: Vec<Name>,
    workers: Vec<Name>,
}

/// Of a pool.
#[derive(Clone, Debug, Default)]
struct Name {
    name: Arc<str>,
    shared: bool,
}

impl Names {
    /// A worker of a pool is to be started.
    pub(super) fn learn(&mut self, worker: u32, pool: PoolId, settings: &Pool) {
        let (worker, pool) = (worker as usize, pool.0 as usize);
        for (names, number) in [(&mut self.workers, worker), (&mut self.pools, pool)] {
            if names.len() <= number {
                names.resize_with(number + 1, Name::default);
            }
        }
        if *self.pools[pool].name != *settings.name {
            self.pools[pool] =
                Name { name: settings.name.as_str().into(), shared: settings.share == Share::All };
        }
        self.workers[worker] = self.pools[pool].clone();
    }

    /// The pool of a worker.
    pub(super) fn of(&self, worker: u32) -> &str {
        self.workers.get(worker as usize).map_or("", |name| &name.name)
    }

    fn pool(&self, pool: PoolId) -> &str {
        self.pools.get(pool.0 as usize).map_or("", |name| &name.name)
    }

    /// How a worker ended, for whoever has to do with it. Where all share one, its last words may be about somebody else:
    /// they stand in the log alone.
    pub(super) fn end(&self, worker: u32, reason: String, stderr: &str) -> String {
        if stderr.is_empty() {
            return reason;
        }
        if !self.workers.get(worker as usize).is_some_and(|name| name.shared) {
            return format!("{reason}; stderr: {stderr}");
        }
        tracing::warn!(pool = self.of(worker), worker, stderr, "the last words of a worker");
        reason
    }

    /// Writes a note to the log.
    pub(super) fn tell(&self, note: &Note) {
        let of = |worker: &Worker| self.of(worker.0);
        match note {
            Note::Ready(worker) => {
                tracing::info!(pool = of(worker), worker = worker.0, "a worker is ready");
            }
            Note::Lost { worker, reason, requests, sessions } => {
                let pool = of(worker);
                tracing::warn!(pool, worker = worker.0, reason, requests, sessions, "a worker is gone");
            }
            Note::Strike { worker, what } => {
                tracing::warn!(pool = of(worker), worker = worker.0, what, "a worker misbehaves");
            }
            Note::Dropped { worker, why } => {
                let pool = of(worker);
                tracing::debug!(pool, worker = worker.0, why, "a message of a worker was dropped");
            }
            Note::CircuitOpened(pool) => {
                tracing::error!(pool = self.pool(*pool), "a pool's workers were lost too often");
            }
            Note::CircuitClosed(pool) => {
                tracing::info!(pool = self.pool(*pool), "a pool works again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_for_those_who_share_a_worker_with_nobody() {
        let mut names = Names::default();
        let own = Pool::new("own", vec!["a".to_owned()]);
        let shared = Pool { share: Share::All, ..Pool::new("shared", vec!["a".to_owned()]) };
        names.learn(3, PoolId(1), &own);
        names.learn(0, PoolId(0), &shared);
        assert_eq!((names.of(3), names.of(0), names.of(1), names.of(9)), ("own", "shared", "", ""));
        assert_eq!((names.pool(PoolId(1)), names.pool(PoolId(2))), ("own", ""));
        let end = |worker, stderr| names.end(worker, "exit status 1".to_owned(), stderr);
        assert_eq!(end(3, "oh"), "exit status 1; stderr: oh");
        assert_eq!(end(3, ""), "exit status 1");
        assert_eq!(end(0, "oh"), "exit status 1");
        // Another pool has its slot now.
        names.learn(0, PoolId(1), &own);
        assert_eq!(names.of(0), "own");
    }
}
