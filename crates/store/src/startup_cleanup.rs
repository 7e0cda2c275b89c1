//! Cleans up when the database is opened: unused sessions and locks of killed processes.

use std::path::Path;
use std::time::Duration;

use crate::claim::Claim;
use crate::database::{Database, signed};
use crate::{StoreError, Timestamp, lock, schema};

/// Age at which a session without turns is removed.
const MAX_EMPTY_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Limit of sessions removed at once. Each needs an open lock file during the removal.
const MAX_PRUNED_AT_ONCE: u64 = 100;

impl Database {
    /// Removes unused sessions and stale lock files. Only logs failures, because the database can be used
    /// anyway.
    pub(crate) fn tidy(&mut self, directory: &Path) {
        let locks = schema::locks(directory);
        if let Err(error) = lock::remove_stale(&locks) {
            tracing::warn!(file = %locks.display(), %error, "removing old lock files failed");
        }
        match self.prune() {
            Ok(0) => {}
            Ok(count) => tracing::debug!(count, "empty sessions removed"),
            Err(error) => tracing::warn!(%error, "removing empty sessions failed"),
        }
    }

    /// Removes old sessions without turns that are not open. Returns the number of removed sessions.
    fn prune(&mut self) -> Result<usize, StoreError> {
        let age = i64::try_from(MAX_EMPTY_AGE.as_millis()).unwrap_or(i64::MAX);
        let before = Timestamp::now().as_millis().saturating_sub(age);
        let ids = self.read(|file| {
            let mut query =
                file.prepare("SELECT id FROM sessions WHERE last_turn = 0 AND created < ?1 LIMIT ?2")?;
            let ids = query.query_map([before, signed(MAX_PRUNED_AT_ONCE)], |row| row.get::<_, String>(0))?;
            Ok(ids.collect::<Result<Vec<_>, _>>()?)
        })?;
        let mut claims = Vec::new();
        for id in ids {
            match self.claims.claim(&id) {
                Ok(claim) => claims.push(claim),
                Err(StoreError::InUse { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if claims.is_empty() {
            return Ok(0);
        }
        self.write(|file| {
            // Checked again: another process may have added a turn before the session was claimed here.
            let mut delete = file.prepare("DELETE FROM sessions WHERE id = ?1 AND last_turn = 0")?;
            claims.iter().map(Claim::id).try_fold(0, |count, id| Ok(count + delete.execute([id])?))
        })
    }
}
