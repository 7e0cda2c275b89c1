//! The public handle of the store.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use narrows_base::sync::lock;

use crate::claim::{Claim, Claims};
use crate::database::Database;
use crate::writer::{DbThread, Writer};
use crate::{Change, NewSession, Page, Record, StoreError, Turn, schema};

/// The sessions in a directory, or in memory. Clones share the store.
///
/// Every method is atomic. If its future is dropped, it may or may not have taken effect.
#[derive(Clone)]
pub struct Store {
    place: Arc<Place>,
}

enum Place {
    /// Jobs run in the thread of the caller. They take microseconds, and a test with a paused clock must see
    /// no time pass.
    Memory(Mutex<DbThread>),
    Disk(Writer),
}

impl Store {
    /// Creates a handle of the sessions in `directory`. The directory, the file and the thread are created
    /// at the first use.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        // Made absolute now, so that a later change of the working directory has no effect, and a directory
        // named `file:…` is not read as a URI.
        let directory = std::path::absolute(&directory).unwrap_or(directory);
        let claims = Claims::new(Some(schema::locks(&directory)));
        Self { place: Arc::new(Place::Disk(Writer::new(directory, claims))) }
    }

    /// Creates a store in memory, which ends when its last handle is dropped. The store uses no thread, so a
    /// paused clock stands still.
    #[must_use]
    pub fn in_memory() -> Self {
        let db_thread = DbThread::new(None, Claims::new(None));
        Self { place: Arc::new(Place::Memory(Mutex::new(db_thread))) }
    }

    /// Creates a session and opens it.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::BadId`], or if the file cannot be used.
    pub async fn create(&self, new: NewSession) -> Result<Claim, StoreError> {
        self.run_batched(move |database| database.create(&new)).await
    }

    /// Opens a session.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::InUse`], or if the file cannot be used.
    pub async fn claim(&self, id: &str) -> Result<(Claim, Record), StoreError> {
        let id = id.to_owned();
        self.run(move |database| database.claim(&id)).await
    }

    /// Creates a session with the history and title of another session, which may be open in any process.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if `from` does not exist, and those of [`Store::create`].
    pub async fn fork(&self, from: &str, new: NewSession) -> Result<Claim, StoreError> {
        let from = from.to_owned();
        self.run(move |database| database.fork(&from, &new)).await
    }

    /// Lists sessions, most recently used first. With `cwd`, lists only those in exactly that directory.
    /// `cursor` is the `next` of the previous page. Returns at most `limit` sessions, clamped to 1 to 1000.
    ///
    /// # Errors
    /// [`StoreError::BadCursor`], or if the file cannot be used.
    pub async fn list(
        &self,
        cwd: Option<&str>,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let (cwd, cursor) = (cwd.map(str::to_owned), cursor.map(str::to_owned));
        self.run(move |database| database.list(cwd.as_deref(), cursor.as_deref(), limit)).await
    }

    /// Deletes a session. Returns `false` if it does not exist. A session that is open through this store
    /// is deleted too; later calls with its claim fail.
    ///
    /// # Errors
    /// [`StoreError::InUse`] if another process has the session open, or if the file cannot be used.
    pub async fn delete(&self, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.run(move |database| database.delete(&id)).await
    }

    /// Returns a session without its history, open or not.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub async fn record(&self, id: &str) -> Result<Option<Record>, StoreError> {
        let id = id.to_owned();
        self.run(move |database| database.record(&id)).await
    }

    /// Returns the history of a session, open or not. All `messages` in order are the model's input, all
    /// `replay` the client's. Turns covered by a summary have no messages; the summary comes after the last
    /// of them.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], or if the file cannot be used.
    pub async fn history(&self, id: &str) -> Result<Vec<Turn>, StoreError> {
        let id = id.to_owned();
        self.run(move |database| database.history(&id)).await
    }

    /// Appends a turn to the history. Returns its number.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if the session was deleted, [`StoreError::Full`], or if the file cannot be
    /// used.
    pub async fn append(&self, claim: &Claim, turn: Turn) -> Result<u64, StoreError> {
        self.append_called(claim, Arc::new(turn), None).await
    }

    /// Appends a turn as [`Store::append`] does, and sets the title if one is given. The turn is shared, so
    /// that the caller can retry.
    ///
    /// # Errors
    /// Those of [`Store::append`].
    pub async fn append_called(
        &self,
        claim: &Claim,
        turn: Arc<Turn>,
        title: Option<String>,
    ) -> Result<u64, StoreError> {
        let held = claim.share();
        self.run_batched(move |database| database.append(&held, &turn, title.as_deref())).await
    }

    /// Replaces the messages of all turns up to number `through` by `summary`. What the client gets is only
    /// extended: the `replay` of the turns stays, and that of the summary is added.
    ///
    /// # Errors
    /// [`StoreError::BadTurn`] if the turn does not exist or an earlier summary covers more, and those of
    /// [`Store::append`].
    pub async fn replace_history(
        &self,
        claim: &Claim,
        through: u64,
        summary: Turn,
    ) -> Result<(), StoreError> {
        let held = claim.share();
        self.run(move |database| database.summarize(&held, through, &summary)).await
    }

    /// Changes a session. The position of the session in the list stays.
    ///
    /// # Errors
    /// Those of [`Store::append`].
    pub async fn set(&self, claim: &Claim, change: Change) -> Result<(), StoreError> {
        let held = claim.share();
        self.run_batched(move |database| database.set(&held, &change)).await
    }

    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        match &*self.place {
            Place::Memory(db_thread) => lock(db_thread).run(job),
            Place::Disk(writer) => writer.run(job).await,
        }
    }

    async fn run_batched<T: Send + 'static>(
        &self,
        mut job: impl FnMut(&mut Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        match &*self.place {
            Place::Memory(db_thread) => lock(db_thread).run(&mut job),
            Place::Disk(writer) => writer.run_batched(job).await,
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &*self.place {
            Place::Memory(_) => "memory",
            Place::Disk(_) => "disk",
        };
        f.debug_tuple("Store").field(&place).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Send>(_: &T) {}

    #[test]
    fn everything_can_be_used_on_any_thread() {
        let store = Store::in_memory();
        check(&(&store, store.clone()));
        check(&store.claim("a"));
        check(&store.create(NewSession::default()));
        let claim: Option<(Claim, &Claim)> = None;
        check(&claim);
        assert_eq!(format!("{store:?} {:?}", Store::new("x".into())), r#"Store("memory") Store("disk")"#);
    }
}
