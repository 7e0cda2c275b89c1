//! Errors of the store, and the mapping of SQLite's error codes to them.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{ErrorCode, ffi};

/// Error of an operation of the store. The operation has not changed the stored data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error("session not found")]
    NotFound,
    #[error("a session with this id already exists")]
    Exists,
    #[error("a session id must have 1 to 64 bytes")]
    BadId,
    #[error("the session is open {}", if *.by_us { "already" } else { "in another process" })]
    InUse {
        /// `true`: open through this store. `false`: open in another process.
        by_us: bool,
    },
    #[error("the claim belongs to another store")]
    NotClaimed,
    /// The cursor is not from [`Store::list`](crate::Store::list).
    #[error("invalid cursor")]
    BadCursor,
    /// A summary would cover turns that do not exist, or fewer turns than the previous summary.
    #[error("the last turn of a summary must be one of {least} to {last}, not {through}")]
    BadTurn { through: u64, least: u64, last: u64 },
    /// The disk is full. Stored data stays, and storing works again when there is room.
    #[error("the disk is full")]
    Full,
    #[error("another process has locked the session store")]
    Busy,
    /// The file is damaged, or not a session store. The file was left unchanged.
    #[error("{} is not a session store: {reason}", file.display())]
    Corrupt { file: PathBuf, reason: String },
    /// A newer program has written the file. The file was left unchanged.
    #[error("{} has version {found}, the newest supported version is {known}", file.display())]
    NewerSchema { file: PathBuf, found: i64, known: i64 },
    #[error("{}: {reason}", file.display())]
    Io { file: PathBuf, reason: String },
    #[error("the session store failed: {0}")]
    Sqlite(String),
    #[error("the session store has stopped")]
    Stopped,
}

impl StoreError {
    /// Returns `true` if the operation may succeed later without a change of the stored data: the disk has
    /// room again, or the file can be used again.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Full | Self::Busy | Self::Io { .. } | Self::Sqlite(_))
    }

    pub(crate) fn io(file: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Io { file: file.to_owned(), reason: error.to_string() },
        }
    }

    pub(crate) fn sqlite(file: &Path, error: &rusqlite::Error) -> Self {
        let corrupt = || Self::Corrupt { file: file.to_owned(), reason: error.to_string() };
        let rusqlite::Error::SqliteFailure(failure, _) = error else {
            return match error {
                rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::Utf8Error(..) => corrupt(),
                _ => Self::Sqlite(error.to_string()),
            };
        };
        match (failure.code, failure.extended_code) {
            // SQLite could not extend the shared-memory file because the disk is full.
            (ErrorCode::DiskFull, _) | (_, ffi::SQLITE_IOERR_SHMSIZE) => Self::Full,
            (ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked, _) => Self::Busy,
            (ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase, _) => corrupt(),
            (ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::SystemIoFailure, _) => {
                Self::Io { file: file.to_owned(), reason: error.to_string() }
            }
            _ => Self::Sqlite(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(code: i32, expected: &str) {
        let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some("why".to_owned()));
        let text = format!("{:?}", StoreError::sqlite(Path::new("f"), &error));
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn sqlite_codes_become_store_errors() {
        check(ffi::SQLITE_FULL, "Full");
        check(ffi::SQLITE_IOERR_SHMSIZE, "Full");
        check(ffi::SQLITE_BUSY, "Busy");
        check(ffi::SQLITE_BUSY_RECOVERY, "Busy");
        check(ffi::SQLITE_CORRUPT, "Corrupt { file: \"f\"");
        check(ffi::SQLITE_NOTADB, "Corrupt { file: \"f\"");
        check(ffi::SQLITE_IOERR_READ, "Io { file: \"f\"");
        check(ffi::SQLITE_CANTOPEN, "Io { file: \"f\"");
        check(ffi::SQLITE_READONLY, "Io { file: \"f\"");
        check(ffi::SQLITE_ERROR, "Sqlite(");
    }

    #[test]
    fn a_disk_without_room_is_full_for_files_too() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(StoreError::io(Path::new("f"), &full), StoreError::Full);
        let denied = StoreError::io(Path::new("f"), &io::ErrorKind::PermissionDenied.into());
        assert_eq!(denied.to_string(), "f: permission denied");
    }

    #[test]
    fn error_messages_are_readable() {
        let newer = StoreError::NewerSchema { file: "f".into(), found: 9, known: 2 };
        assert_eq!(newer.to_string(), "f has version 9, the newest supported version is 2");
        assert_eq!(StoreError::InUse { by_us: true }.to_string(), "the session is open already");
        assert_eq!(StoreError::InUse { by_us: false }.to_string(), "the session is open in another process");
        let turn = StoreError::BadTurn { through: 9, least: 2, last: 5 };
        assert_eq!(turn.to_string(), "the last turn of a summary must be one of 2 to 5, not 9");
    }
}
