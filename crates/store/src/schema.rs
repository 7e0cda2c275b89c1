//! Creates, opens and migrates the database file.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;

use crate::StoreError;
use crate::database::DbError;

const FILE_NAME: &str = "sessions.db";

pub(crate) const MEMORY: &str = ":memory:";

const LOCKS_DIRECTORY: &str = "locks";

const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause between attempts, for calls in which SQLite does not wait itself.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Marks the file as a session database: "nrws".
const APPLICATION_ID: i64 = 0x6e72_7773;

/// The steps from each version to the next. Existing entries never change; each new version appends an
/// entry.
const MIGRATIONS: [&str; 2] = [
    "CREATE TABLE sessions (
        key INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        cwd TEXT NOT NULL,
        roots TEXT NOT NULL,
        title TEXT,
        settings TEXT NOT NULL,
        created INTEGER NOT NULL,
        updated INTEGER NOT NULL,
        last_turn INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE INDEX sessions_updated ON sessions (updated, id);
    CREATE INDEX sessions_cwd ON sessions (cwd, updated, id);
    CREATE TABLE turns (
        session INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        messages TEXT NOT NULL,
        replay TEXT NOT NULL,
        PRIMARY KEY (session, number)
    ) STRICT;",
    // Version 2 adds summaries, and the index for pruning.
    "CREATE TABLE summaries (
        session INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,
        through INTEGER NOT NULL,
        messages TEXT NOT NULL,
        replay TEXT NOT NULL,
        PRIMARY KEY (session, through)
    ) STRICT;
    CREATE INDEX sessions_empty ON sessions (created) WHERE last_turn = 0;",
];

pub(crate) const VERSION: i64 = MIGRATIONS.len() as i64;

pub(crate) fn file(directory: &Path) -> PathBuf {
    directory.join(FILE_NAME)
}

pub(crate) fn locks(directory: &Path) -> PathBuf {
    directory.join(LOCKS_DIRECTORY)
}

/// Opens the database in `directory`. Creates the directory and the file with access for this user only.
pub(crate) fn open(directory: &Path) -> Result<Connection, StoreError> {
    // The directory of lock files is inside `directory`, so both are created here.
    let locks = locks(directory);
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&locks);
    made.map_err(|error| StoreError::io(&locks, &error))?;
    let file = file(directory);
    // SQLite would create a file that others can read. The file must not be opened and closed here, because
    // that would release the locks of all connections of this process.
    match mknodat(CWD, &file, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(StoreError::io(&file, &error.into())),
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(&file, flags);
    let connection = opened.map_err(|error| StoreError::sqlite(&file, &error))?;
    prepare(connection, &file).map_err(|fault| fault.at(&file))
}

pub(crate) fn open_in_memory() -> Result<Connection, StoreError> {
    let file = Path::new(MEMORY);
    let opened = Connection::open_in_memory().map_err(|error| StoreError::sqlite(file, &error));
    prepare(opened?, file).map_err(|fault| fault.at(file))
}

fn prepare(mut connection: Connection, file: &Path) -> Result<Connection, DbError> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // The version is checked first, because a foreign or newer file must not be changed.
    let version = version(&connection.transaction()?, file)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    // Deleted data is overwritten with zeros.
    connection.pragma_update(None, "secure_delete", true)?;
    connection.pragma_update(None, "journal_size_limit", 8 << 20)?;
    write_ahead(&connection)?;
    // Full sync: a turn costs seconds and money, surviving a power loss only milliseconds.
    connection.pragma_update(None, "synchronous", "FULL")?;
    if version < VERSION {
        migrate(&mut connection, file)?;
    }
    Ok(connection)
}

/// Returns the version of the file, or 0 if the file is empty. Needs a transaction, because another process
/// may be creating the tables.
fn version(connection: &Transaction<'_>, file: &Path) -> Result<i64, DbError> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (found, application) = (number("user_version")?, number("application_id")?);
    let empty = connection.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| row.get(0))?;
    let ours =
        if empty { (found, application) == (0, 0) } else { application == APPLICATION_ID && found > 0 };
    if !ours {
        let reason = "it is a database of another program".to_owned();
        return Err(StoreError::Corrupt { file: file.to_owned(), reason }.into());
    }
    if found > VERSION {
        return Err(StoreError::NewerSchema { file: file.to_owned(), found, known: VERSION }.into());
    }
    Ok(found)
}

/// Switches to a write-ahead log, so that readers and a writer work concurrently. Some file systems do not
/// support it.
fn write_ahead(connection: &Connection) -> Result<(), rusqlite::Error> {
    let start = Instant::now();
    loop {
        match connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0)) {
            // SQLite does not wait here if two processes open a new file at once.
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && start.elapsed() < BUSY_TIMEOUT =>
            {
                thread::sleep(RETRY_PAUSE);
            }
            Err(error) => return Err(error),
            Ok(mode) => {
                tracing::debug!(mode, "sessions opened");
                return Ok(());
            }
        }
    }
}

fn migrate(connection: &mut Connection, file: &Path) -> Result<(), DbError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have migrated the file before this transaction began.
    let from = version(&transaction, file)?;
    for (step, version) in MIGRATIONS.iter().zip(1..) {
        if version > from {
            transaction.execute_batch(step)?;
        }
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn a_new_file_can_be_opened_by_many_at_once() {
        for _ in 0..20 {
            let place = tempfile::tempdir().unwrap();
            let start = Barrier::new(4);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        start.wait();
                        let mut connection = open(place.path()).unwrap();
                        let state = connection.transaction().unwrap();
                        assert_eq!(version(&state, place.path()).unwrap(), VERSION);
                    });
                }
            });
        }
    }

    #[test]
    fn a_new_file_has_durable_settings() {
        let place = tempfile::tempdir().unwrap();
        let connection = open(place.path()).unwrap();
        let ask = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!((ask("synchronous"), ask("foreign_keys"), ask("secure_delete")), (2, 1, 1));
        let mode = connection.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0));
        assert_eq!(mode.unwrap(), "wal");
    }

    #[test]
    fn lists_follow_an_index() {
        let connection = open_in_memory().unwrap();
        let plan = |condition: &str| {
            let sql = format!(
                "EXPLAIN QUERY PLAN SELECT settings FROM sessions WHERE {condition} \
                 ORDER BY updated DESC, id DESC LIMIT 10"
            );
            let steps: Vec<String> = connection
                .prepare(&sql)
                .unwrap()
                .query_map([], |row| row.get(3))
                .unwrap()
                .collect::<Result<_, _>>()
                .unwrap();
            steps.join("; ")
        };
        let after = "(updated, id) < (1, 'a')";
        assert_eq!(plan(after), "SEARCH sessions USING INDEX sessions_updated ((updated,id)<(?,?))");
        assert_eq!(
            plan(&format!("cwd = '/a' AND {after}")),
            "SEARCH sessions USING INDEX sessions_cwd (cwd=? AND (updated,id)<(?,?))"
        );
    }
}
