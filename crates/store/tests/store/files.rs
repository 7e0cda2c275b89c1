//! Tests of the files: permissions, versions, and damaged files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use narrows_store::{Store, StoreError};
use rusqlite::Connection;

use crate::{messages, new, on_disk, replay, turn};

fn file(place: &Path) -> PathBuf {
    place.join("sessions.db")
}

fn sql(place: &Path, sql: &str) {
    Connection::open(file(place)).unwrap().execute_batch(sql).unwrap();
}

fn names(place: &Path) -> Vec<String> {
    let entries = fs::read_dir(place).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn files_are_created_at_first_use_for_the_owner_only() {
    let (_, place) = on_disk();
    let directory = place.path().join("data/narrows");
    let store = Store::new(directory.clone());
    assert!(names(place.path()).is_empty());
    let _claim = store.create(new("a")).await.unwrap();
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(names(&directory), ["locks", "sessions.db", "sessions.db-shm", "sessions.db-wal"]);
    for name in names(&directory) {
        let expected = if name == "locks" { 0o700 } else { 0o600 };
        assert_eq!(mode(directory.join(&name)), expected, "{name}");
    }
    assert_eq!(mode(directory.join("locks/a.lock")), 0o600);
    assert_eq!((mode(directory.clone()), mode(place.path().join("data"))), (0o700, 0o700));
}

/// Statements that create a file of version 1, which has no table of summaries.
const VERSION_1: &str = r#"
    PRAGMA application_id = 0x6e727773;
    PRAGMA user_version = 1;
    CREATE TABLE sessions (
        key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, cwd TEXT NOT NULL, roots TEXT NOT NULL, title TEXT,
        settings TEXT NOT NULL, created INTEGER NOT NULL, updated INTEGER NOT NULL,
        last_turn INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE INDEX sessions_updated ON sessions (updated, id);
    CREATE INDEX sessions_cwd ON sessions (cwd, updated, id);
    CREATE TABLE turns (
        session INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE, number INTEGER NOT NULL,
        messages TEXT NOT NULL, replay TEXT NOT NULL, PRIMARY KEY (session, number)
    ) STRICT;
    INSERT INTO sessions VALUES (3, 'old', '/a', '["/r"]', 'Title', '{}', 1700000000000, 1700000001000, 2);
    INSERT INTO turns VALUES (3, 1, '["m 1","n 1"]', '["r 1"]'), (3, 2, '["m 2"]', '["r 2"]');
"#;

#[tokio::test]
async fn an_older_version_is_migrated() {
    let (store, place) = on_disk();
    sql(place.path(), VERSION_1);
    let (claim, record) = store.claim("old").await.unwrap();
    assert_eq!((record.title.as_deref(), record.turns), (Some("Title"), 2));
    assert_eq!(record.updated_at(), "2023-11-14T22:13:21.000Z");
    assert_eq!(messages(&store.history("old").await.unwrap()), ["m 1", "n 1", "m 2"]);
    store.replace_history(&claim, 1, turn("s")).await.unwrap();
    assert_eq!(store.append(&claim, turn("3")).await.unwrap(), 3);
    let history = store.history("old").await.unwrap();
    assert_eq!(messages(&history), ["m s", "n s", "m 2", "m 3", "n 3"]);
    assert_eq!(replay(&history), ["r 1", "r s", "r 2", "r 3"]);
    let version: i64 = Connection::open(file(place.path()))
        .unwrap()
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .unwrap();
    assert_eq!(version, 2);
}

/// Creates a file with `make`. Checks that every use of it fails with `error` and leaves it unchanged.
#[track_caller]
fn check_refused(make: impl FnOnce(&Path), error: impl Fn(&Path) -> StoreError) {
    let (store, place) = on_disk();
    make(place.path());
    let before = fs::read(file(place.path())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let expected = error(&file(place.path()));
    assert!(expected.to_string().contains("sessions.db"), "{expected}");
    assert_eq!(runtime.block_on(store.list(None, None, 1)).unwrap_err(), expected);
    assert_eq!(runtime.block_on(store.create(new("a"))).unwrap_err(), expected);
    assert_eq!(fs::read(file(place.path())).unwrap(), before);
    // Once the file is moved away, the same store works.
    fs::rename(file(place.path()), place.path().join("kept")).unwrap();
    runtime.block_on(store.create(new("a"))).unwrap();
}

#[test]
fn a_newer_version_is_refused() {
    let error = |file: &Path| StoreError::NewerSchema { file: file.into(), found: 3, known: 2 };
    check_refused(|place| sql(place, &VERSION_1.replace("user_version = 1", "user_version = 3")), error);
}

#[test]
fn a_foreign_file_is_refused() {
    let corrupt = |reason: &'static str| {
        move |file: &Path| StoreError::Corrupt { file: file.into(), reason: reason.into() }
    };
    let foreign = corrupt("it is a database of another program");
    check_refused(|place| sql(place, "CREATE TABLE bookmarks (url TEXT)"), foreign);
    check_refused(|place| sql(place, "PRAGMA user_version = 1; CREATE TABLE sessions (id TEXT)"), foreign);
    check_refused(|place| sql(place, "PRAGMA application_id = 5"), foreign);
    let garbage = corrupt("file is not a database");
    check_refused(|place| fs::write(file(place), "garbage ".repeat(1000)).unwrap(), garbage);
}

#[tokio::test]
async fn an_empty_file_counts_as_missing() {
    let (store, place) = on_disk();
    fs::write(file(place.path()), "").unwrap();
    let claim = store.create(new("a")).await.unwrap();
    assert_eq!(store.append(&claim, turn("1")).await.unwrap(), 1);
}

#[tokio::test]
async fn a_damaged_file_is_reported_and_kept() {
    let (store, place) = on_disk();
    let claim = store.create(new("a")).await.unwrap();
    for count in 0..50 {
        store.append(&claim, turn(&count.to_string().repeat(500))).await.unwrap();
    }
    drop(claim);
    sql(place.path(), "PRAGMA wal_checkpoint(TRUNCATE)");
    drop(store);
    let mut bytes = fs::read(file(place.path())).unwrap();
    // All but the first page, which contains the file format.
    bytes[4096..].fill(0xa5);
    let damaged = tempfile::tempdir().unwrap();
    fs::write(file(damaged.path()), &bytes).unwrap();
    let store = Store::new(damaged.path().to_owned());
    for result in [store.record("a").await.map(drop), store.create(new("b")).await.map(drop)] {
        let error = result.unwrap_err();
        assert!(matches!(&error, StoreError::Corrupt { file: named, .. } if *named == file(damaged.path())));
    }
    drop(store);
    assert_eq!(fs::read(file(damaged.path())).unwrap(), bytes);
}

#[tokio::test]
async fn a_removed_file_is_noticed() {
    let (store, place) = on_disk();
    let claim = store.create(new("a")).await.unwrap();
    store.append(&claim, turn("1")).await.unwrap();
    fs::remove_dir_all(place.path()).unwrap();
    assert_eq!(store.append(&claim, turn("2")).await.unwrap_err(), StoreError::NotFound);
    let claim = store.create(new("b")).await.unwrap();
    assert_eq!(store.append(&claim, turn("1")).await.unwrap(), 1);
    assert_eq!(Store::new(place.path().to_owned()).history("b").await.unwrap().len(), 1);
}

#[tokio::test]
async fn an_unusable_directory_is_reported() {
    let (_, place) = on_disk();
    fs::write(place.path().join("file"), "").unwrap();
    let store = Store::new(place.path().join("file/below"));
    let error = store.list(None, None, 1).await.unwrap_err();
    assert!(matches!(&error, StoreError::Io { file, .. } if file.starts_with(place.path())), "{error}");
    fs::remove_file(place.path().join("file")).unwrap();
    store.create(new("a")).await.unwrap();
}

#[tokio::test]
async fn unused_sessions_are_removed_after_a_day() {
    let (store, place) = on_disk();
    let day = 24 * 60 * 60 * 1000;
    let mut claims = Vec::new();
    for id in ["empty", "fresh", "used", "open"] {
        claims.push(store.create(new(id)).await.unwrap());
    }
    store.append(&claims[2], turn("1")).await.unwrap();
    let held = claims.pop();
    claims.clear();
    let age = |id, millis| {
        let change = format!("UPDATE sessions SET created = created - {millis} WHERE id = '{id}'");
        sql(place.path(), &change);
    };
    for id in ["empty", "used", "open"] {
        age(id, day);
    }
    age("fresh", day - 60_000);
    assert!(store.record("empty").await.unwrap().is_some(), "only opening the file prunes");

    let again = Store::new(place.path().to_owned());
    let ids = |page: narrows_store::Page| {
        let mut ids: Vec<_> = page.sessions.into_iter().map(|record| record.id).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids(again.list(None, None, 9).await.unwrap()), ["fresh", "open", "used"]);
    assert_eq!(names(&place.path().join("locks")), ["open.lock"]);
    drop(held);
    let again = Store::new(place.path().to_owned());
    assert_eq!(ids(again.list(None, None, 9).await.unwrap()), ["fresh", "used"]);
}
