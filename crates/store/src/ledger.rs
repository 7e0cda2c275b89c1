//! The open file: everything that is done with it runs in one transaction each, on the thread that owns it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::StoreError;
use crate::claim::Claims;
use crate::schema;

/// An open file, and who works on what in it.
pub(crate) struct Ledger {
    connection: Connection,
    /// For errors.
    file: PathBuf,
    pub(crate) claims: Arc<Claims>,
}

impl Ledger {
    /// Opens the file in `directory`, or one in memory.
    pub(crate) fn open(directory: Option<&Path>, claims: Arc<Claims>) -> Result<Self, StoreError> {
        let (connection, file) = match directory {
            Some(directory) => (schema::open(directory)?, schema::file(directory)),
            None => (schema::open_in_memory()?, PathBuf::from(":memory:")),
        };
        Ok(Self { connection, file, claims })
    }

    /// Runs `work` on one state of the file.
    pub(crate) fn read<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        self.run(TransactionBehavior::Deferred, work)
    }

    /// Runs `work`; what it changes is stored when this returns, or nothing is.
    pub(crate) fn write<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        // Immediate: a reader that turns writer fails at once if another process wrote meanwhile.
        self.run(TransactionBehavior::Immediate, work)
    }

    fn run<T>(
        &mut self,
        behavior: TransactionBehavior,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        let run = || {
            let transaction = self.connection.transaction_with_behavior(behavior)?;
            let value = work(&transaction)?;
            transaction.commit()?;
            Ok(value)
        };
        run().map_err(|fault: Fault| fault.at(&self.file))
    }
}

/// What goes wrong in a transaction.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
}

impl Fault {
    /// The same for others, with the file it happened to.
    pub(crate) fn at(&self, file: &Path) -> StoreError {
        match self {
            Self::Store(error) => error.clone(),
            Self::Sqlite(error) => StoreError::sqlite(file, error),
        }
    }
}

/// Several texts in one column, whatever is in them.
pub(crate) struct Texts<T>(pub(crate) T);

impl ToSql for Texts<&[String]> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let text = serde_json::to_string(self.0);
        text.map(Into::into).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
    }
}

impl FromSql for Texts<Vec<String>> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let texts = serde_json::from_str(value.as_str()?);
        texts.map(Texts).map_err(|error| FromSqlError::Other(error.into()))
    }
}

/// A number for SQLite, whose integers have a sign.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number from SQLite that we never store below zero.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
