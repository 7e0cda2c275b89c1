//! How the store can fail, and what SQLite's codes mean here.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{ErrorCode, ffi};

/// Why something could not be stored, found or opened. Nothing has been changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No session has this id.
    #[error("there is no such session")]
    NotFound,
    /// A session with this id is there already.
    #[error("a session with this id exists")]
    Exists,
    /// An id that is empty or longer than 64 bytes.
    #[error("a session id has 1 to 64 bytes")]
    BadId,
    /// The session is open.
    #[error("the session is open {}", if *.by_us { "already" } else { "in another process" })]
    InUse {
        /// Whether through this very store.
        by_us: bool,
    },
    /// The claim is one of another store.
    #[error("the claim belongs to another store")]
    NotClaimed,
    /// A cursor that [`Store::list`](crate::Store::list) never gave out.
    #[error("the cursor is not valid")]
    BadCursor,
    /// A summary that covers turns which are not there, or fewer than the one before.
    #[error("a summary can cover the turns up to one of {least} to {last}, not up to {through}")]
    BadTurn {
        /// The turn that was given.
        through: u64,
        /// The first one possible.
        least: u64,
        /// The last one possible.
        last: u64,
    },
    /// The disk is full. What was stored stays, and storing works again once there is room.
    #[error("the disk is full")]
    Full,
    /// Another process has been writing for longer than we wait.
    #[error("another process keeps the sessions locked")]
    Busy,
    /// The file is damaged, or is none of ours. It has not been touched.
    #[error("{} cannot be read as sessions: {reason}", file.display())]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A newer program has written the file. It has not been touched.
    #[error("{} has version {found}, and this program knows versions up to {known}", file.display())]
    NewerSchema {
        /// The file.
        file: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version known here.
        known: i64,
    },
    /// A file or directory cannot be used.
    #[error("{}: {reason}", file.display())]
    Io {
        /// Which one.
        file: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// Anything else that SQLite reports.
    #[error("the sessions could not be used: {0}")]
    Sqlite(String),
    /// The thread that writes has ended; a bug.
    #[error("the store has stopped working")]
    Stopped,
}

impl StoreError {
    /// Returns `true` if the same may work later without anything being changed in the store: there is room again, or the file can
    /// be used again.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Full | Self::Busy | Self::Io { .. } | Self::Sqlite(_))
    }

    /// What an error of the file system means for `file`.
    pub(crate) fn io(file: &Path, error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full,
            _ => Self::Io { file: file.to_owned(), reason: error.to_string() },
        }
    }

    /// What an error of SQLite means for `file`.
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
            // The shared memory beside the log could not be made longer: for want of room.
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
    fn codes_have_their_meaning() {
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
    fn errors_say_what_is_to_be_known() {
        let newer = StoreError::NewerSchema { file: "f".into(), found: 9, known: 2 };
        assert_eq!(newer.to_string(), "f has version 9, and this program knows versions up to 2");
        assert_eq!(StoreError::InUse { by_us: true }.to_string(), "the session is open already");
        assert_eq!(StoreError::InUse { by_us: false }.to_string(), "the session is open in another process");
        let turn = StoreError::BadTurn { through: 9, least: 2, last: 5 };
        assert_eq!(turn.to_string(), "a summary can cover the turns up to one of 2 to 5, not up to 9");
    }
}
