//! The handle: what others can ask of the sessions.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use narrows_base::sync::lock;

use crate::claim::{Claim, Claims};
use crate::database::Database;
use crate::writer::{DbThread, Writer};
use crate::{Change, NewSession, Page, Record, StoreError, Turn, schema};

/// The sessions in a directory, or in memory. Clones are the same store.
///
/// Every method is done whole or not at all. Dropping its future does not tell which.
#[derive(Clone)]
pub struct Store {
    place: Arc<Place>,
}

enum Place {
    /// Done at once, by whoever asks: it takes microseconds, and a test on a paused clock sees no time pass.
    Memory(Mutex<DbThread>),
    Disk(Writer),
}

impl Store {
    /// The sessions in `directory`. Nothing is made, opened or started before the first use.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        // Whoever changes the working directory later, or calls a directory `file:…`, gets what was meant.
        let directory = std::path::absolute(&directory).unwrap_or(directory);
        let claims = Claims::new(Some(schema::locks(&directory)));
        Self { place: Arc::new(Place::Disk(Writer::new(directory, claims))) }
    }

    /// Sessions that end with the last handle. Nothing waits for a thread here, so that a paused clock stands still.
    #[must_use]
    pub fn in_memory() -> Self {
        let db_thread = DbThread::new(None, Claims::new(None));
        Self { place: Arc::new(Place::Memory(Mutex::new(db_thread))) }
    }

    /// Makes a session, which is open at once.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::BadId`], or what keeps the file from being used.
    pub async fn create(&self, new: NewSession) -> Result<Claim, StoreError> {
        self.run_batched(move |database| database.create(&new)).await
    }

    /// Opens a session.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::InUse`], or what keeps the file from being used.
    pub async fn claim(&self, id: &str) -> Result<(Claim, Record), StoreError> {
        let id = id.to_owned();
        self.run(move |database| database.claim(&id)).await
    }

    /// Makes a session with the history and the title of another, which may be open, here or elsewhere.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] for the other, and as [`Store::create`].
    pub async fn fork(&self, from: &str, new: NewSession) -> Result<Claim, StoreError> {
        let from = from.to_owned();
        self.run(move |database| database.fork(&from, &new)).await
    }

    /// The sessions, the one used last first: those that work in exactly `cwd`, if it is given, and come after
    /// `cursor`, the `next` of the page before. At most `limit`, which counts as 1 to 1000.
    ///
    /// # Errors
    /// [`StoreError::BadCursor`], or what keeps the file from being used.
    pub async fn list(
        &self,
        cwd: Option<&str>,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let (cwd, cursor) = (cwd.map(str::to_owned), cursor.map(str::to_owned));
        self.run(move |database| database.list(cwd.as_deref(), cursor.as_deref(), limit)).await
    }

    /// Deletes a session; false if there is none. One that is open through this store is deleted all the same, and
    /// its claim is good for nothing then.
    ///
    /// # Errors
    /// [`StoreError::InUse`] by another process, or what keeps the file from being used.
    pub async fn delete(&self, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.run(move |database| database.delete(&id)).await
    }

    /// What is known of a session, open or not.
    ///
    /// # Errors
    /// What keeps the file from being used.
    pub async fn record(&self, id: &str) -> Result<Option<Record>, StoreError> {
        let id = id.to_owned();
        self.run(move |database| database.record(&id)).await
    }

    /// The history of a session, open or not. All `messages` one after the other are what the model gets, all `replay`
    /// what the client is shown: turns that a summary stands for have no messages, and the summary comes behind the
    /// last of them.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], or what keeps the file from being used.
    pub async fn history(&self, id: &str) -> Result<Vec<Turn>, StoreError> {
        let id = id.to_owned();
        self.run(move |database| database.history(&id)).await
    }

    /// Adds a turn to the history and returns its number.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if the session has been deleted, [`StoreError::Full`], or what keeps the file from
    /// being used.
    pub async fn append(&self, claim: &Claim, turn: Turn) -> Result<u64, StoreError> {
        self.append_called(claim, Arc::new(turn), None).await
    }

    /// The same, and the session is called `title` from now on, if there is one. The turn is shared, so that it can be tried again.
    ///
    /// # Errors
    /// As [`Store::append`].
    pub async fn append_called(
        &self,
        claim: &Claim,
        turn: Arc<Turn>,
        title: Option<String>,
    ) -> Result<u64, StoreError> {
        let held = claim.share();
        self.run_batched(move |database| database.append(&held, &turn, title.as_deref())).await
    }

    /// Lets `summary` stand for the messages of all turns up to number `through`. What the client is shown stays, and
    /// the summary's `replay` is added to it.
    ///
    /// # Errors
    /// [`StoreError::BadTurn`] if there is no such turn or an earlier summary reaches further, and as
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

    /// Changes what is known of a session. That is no use of it: its place in the list stays.
    ///
    /// # Errors
    /// As [`Store::append`].
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
