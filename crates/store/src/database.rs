//! The open database. All work on it runs in transactions, on the thread that owns it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};

use crate::StoreError;
use crate::claim::Claims;
use crate::schema;

const BEGIN_IMMEDIATE: &str = "BEGIN IMMEDIATE";

/// An open database and the open sessions in it.
pub(crate) struct Database {
    connection: Connection,
    /// Path shown in error messages.
    file: PathBuf,
    /// Device and inode of the file; `None` in memory.
    identity: Option<(u64, u64)>,
    pub(crate) claims: Arc<Claims>,
}

impl Database {
    pub(crate) fn open(directory: Option<&Path>, claims: Arc<Claims>) -> Result<Self, StoreError> {
        let (connection, file) = match directory {
            Some(directory) => (schema::open(directory)?, schema::file(directory)),
            None => (schema::open_in_memory()?, PathBuf::from(schema::MEMORY)),
        };
        let identity = directory.and_then(|_| identity(&file));
        Ok(Self { connection, file, identity, claims })
    }

    /// Returns `true` if the path still leads to the open file. Writes to an unlinked file would be lost.
    pub(crate) fn is_in_place(&self) -> bool {
        self.identity.is_none_or(|opened| identity(&self.file) == Some(opened))
    }

    /// Runs `work` on one consistent state of the database.
    pub(crate) fn read<T>(
        &mut self,
        work: impl FnOnce(&Connection) -> Result<T, DbError>,
    ) -> Result<T, StoreError> {
        self.run("BEGIN", work)
    }

    /// Runs `work` in a transaction: its changes are stored on return, or not at all. Within
    /// [`Database::in_one_transaction`], the changes are stored together with those of the other calls.
    pub(crate) fn write<T>(
        &mut self,
        work: impl FnOnce(&Connection) -> Result<T, DbError>,
    ) -> Result<T, StoreError> {
        // The transaction takes the write lock at the start. A transaction that starts as a reader fails at
        // its first write if another process has written since.
        self.run(BEGIN_IMMEDIATE, work)
    }

    fn run<T>(
        &mut self,
        begin: &str,
        work: impl FnOnce(&Connection) -> Result<T, DbError>,
    ) -> Result<T, StoreError> {
        let work = |database: &mut Self| work(&database.connection).map_err(|fault| fault.at(&database.file));
        if self.in_transaction() { work(self) } else { self.transaction(begin, work) }
    }

    /// Runs `work` in one transaction for all its reads and writes, so that the slow wait for the disk
    /// happens once.
    pub(crate) fn in_one_transaction(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.transaction(BEGIN_IMMEDIATE, work)
    }

    fn transaction<T>(
        &mut self,
        begin: &str,
        work: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.statement(begin)?;
        let done = work(self).and_then(|value| self.statement("COMMIT").map(|()| value));
        // Some errors make SQLite end the transaction itself.
        if done.is_err() && self.in_transaction() {
            self.statement("ROLLBACK")?;
        }
        done
    }

    /// Returns `true` if [`Database::in_one_transaction`] is running.
    pub(crate) fn in_transaction(&self) -> bool {
        !self.connection.is_autocommit()
    }

    fn statement(&self, sql: &str) -> Result<(), StoreError> {
        let done = self.connection.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
        done.map(drop).map_err(|error| StoreError::sqlite(&self.file, &error))
    }
}

fn identity(file: &Path) -> Option<(u64, u64)> {
    fs::metadata(file).ok().map(|file| (file.dev(), file.ino()))
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DbError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
}

impl DbError {
    pub(crate) fn at(&self, file: &Path) -> StoreError {
        match self {
            Self::Store(error) => error.clone(),
            Self::Sqlite(error) => StoreError::sqlite(file, error),
        }
    }
}

/// A list of arbitrary texts, stored in a single column.
pub(crate) struct TextList<T>(pub(crate) T);

impl ToSql for TextList<&[String]> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let text = serde_json::to_string(self.0);
        text.map(Into::into).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
    }
}

impl FromSql for TextList<Vec<String>> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let texts = serde_json::from_str(value.as_str()?);
        texts.map(TextList).map_err(|error| FromSqlError::Other(error.into()))
    }
}

/// Converts to a signed integer of SQLite. Numbers above the largest signed integer become that integer.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Converts from SQLite. Negative numbers are never stored.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{NewSession, Turn};

    fn database(directory: &Path) -> Database {
        Database::open(Some(directory), Claims::new(Some(schema::locks(directory)))).unwrap()
    }

    fn turn(text: &str) -> Turn {
        Turn::new(vec![text.to_owned()], vec![text.to_uppercase()])
    }

    /// Sets the maximum number of pages of the database and returns it; 0 only returns the current number.
    fn limit(database: &Database, pages: i64) -> i64 {
        let pragma = if pages == 0 { "page_count" } else { "max_page_count" };
        let asked = match pages {
            0 => database.connection.pragma_query_value(None, pragma, |row| row.get(0)),
            _ => database.connection.pragma_update_and_check(None, pragma, pages, |row| row.get(0)),
        };
        asked.unwrap()
    }

    #[test]
    fn a_full_disk_loses_nothing() {
        let place = tempfile::tempdir().unwrap();
        let mut database = database(place.path());
        let claim = database.create(&NewSession { id: "a".into(), ..NewSession::default() }).unwrap();
        let held = claim.share();
        database.append(&held, &turn("small"), None).unwrap();
        let pages = limit(&database, 0);
        limit(&database, pages);

        let large = turn(&"large ".repeat(10_000));
        let before = (database.record("a"), database.history("a"));
        assert_eq!(database.append(&held, &large, None), Err(StoreError::Full));
        assert_eq!(database.summarize(&held, 1, &large), Err(StoreError::Full));
        let settings = large.messages[0].clone();
        assert_eq!(database.set(&held, &crate::Change::Settings(settings.clone())), Err(StoreError::Full));
        let second = NewSession { id: "b".into(), settings, ..NewSession::default() };
        assert_eq!(database.create(&second).err(), Some(StoreError::Full));
        assert_eq!((database.record("a"), database.history("a")), before);

        limit(&database, pages + 1000);
        assert_eq!(database.append(&held, &large, None), Ok(2));
        assert!(database.create(&second).is_ok(), "the claim of the failed attempt is gone");
        assert_eq!(database.history("a").unwrap()[1].messages, large.messages);
    }

    #[test]
    fn a_writer_does_not_block_readers() {
        let place = tempfile::tempdir().unwrap();
        let mut database = database(place.path());
        let claim = database.create(&NewSession { id: "a".into(), ..NewSession::default() }).unwrap();
        let held = claim.share();
        database.append(&held, &turn("1"), None).unwrap();
        let other = Connection::open(schema::file(place.path())).unwrap();
        other.execute_batch("BEGIN IMMEDIATE; UPDATE sessions SET title = 'x'").unwrap();
        assert_eq!(database.history("a").unwrap().len(), 1);
        assert_eq!(database.record("a").unwrap().unwrap().title, None);
        // Fail at once instead of waiting for the whole timeout.
        database.connection.busy_timeout(std::time::Duration::ZERO).unwrap();
        assert_eq!(database.append(&held, &turn("2"), None), Err(StoreError::Busy));
        other.execute_batch("COMMIT").unwrap();
        assert_eq!(database.append(&held, &turn("2"), None), Ok(2));
    }

    #[test]
    fn a_write_that_fails_in_the_middle_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let mut database = database(place.path());
        let claim = database.create(&NewSession { id: "a".into(), ..NewSession::default() }).unwrap();
        let before = database.record("a");
        let result: Result<(), _> = database.write(|file| {
            file.execute("UPDATE sessions SET last_turn = 7, title = 'x'", [])?;
            Err(StoreError::BadCursor.into())
        });
        assert_eq!(result, Err(StoreError::BadCursor));
        assert_eq!(database.record(claim.id()), before);
    }

    #[test]
    fn invalid_texts_are_reported_as_corruption() {
        let place = tempfile::tempdir().unwrap();
        let mut database = database(place.path());
        let claim = database.create(&NewSession { id: "a".into(), ..NewSession::default() }).unwrap();
        database.append(&claim.share(), &turn("x"), None).unwrap();
        database.write(|file| Ok(file.execute("UPDATE turns SET replay = '[1]'", [])?)).unwrap();
        let error = database.history("a").unwrap_err();
        assert!(matches!(&error, StoreError::Corrupt { file, .. } if *file == schema::file(place.path())));
        assert_eq!(database.record("a").unwrap().unwrap().turns, 1, "the rest can be read");
    }

    #[test]
    fn deleted_data_is_overwritten() {
        let place = tempfile::tempdir().unwrap();
        let mut first = database(place.path());
        let claim = first.create(&NewSession { id: "a".into(), ..NewSession::default() }).unwrap();
        first.append(&claim.share(), &turn(&"needle ".repeat(3000)), None).unwrap();
        let found = |database: Database| {
            // Closing the connection moves the log into the main file.
            drop(database);
            let bytes = fs::read(schema::file(place.path())).unwrap();
            bytes.windows(6).any(|window| window == b"needle")
        };
        drop(claim);
        assert!(found(first));
        let mut second = database(place.path());
        assert_eq!(second.delete("a"), Ok(true));
        assert!(!found(second));
    }
}
