//! What the core finds worth telling, in the log.

use crate::core::Note;

/// Writes a note to the log.
pub(super) fn tell(note: &Note) {
    match note {
        Note::Ready(worker) => tracing::info!(worker = worker.0, "a worker is ready"),
        Note::Lost { worker, reason, requests, sessions } => {
            tracing::warn!(worker = worker.0, reason, requests, sessions, "a worker is gone");
        }
        Note::Strike { worker, what } => tracing::warn!(worker = worker.0, what, "a worker misbehaves"),
        Note::Dropped { worker, why } => {
            tracing::debug!(worker = worker.0, why, "a message of a worker was dropped");
        }
        Note::CircuitOpened(pool) => {
            tracing::error!(pool = pool.0, "a pool's workers were lost too often");
        }
        Note::CircuitClosed(pool) => tracing::info!(pool = pool.0, "a pool works again"),
    }
}
