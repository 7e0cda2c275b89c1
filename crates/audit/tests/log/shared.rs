//! Tests of several writers of one log.

use std::collections::BTreeSet;

use narrows_audit::{Event, Log, LogOptions, OpenError};

use crate::{event, verified};

#[test]
fn two_writers_continue_one_chain() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    // Each log has its own lock, as in two processes.
    let options = LogOptions { segment_bytes: 20_000, ..LogOptions::default() };
    let logs = [Log::open(&path, options.clone()), Log::open(&path, options)].map(|log| log.expect("a log"));
    let numbers = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..6)
            .map(|writer| {
                let log = logs[writer % 2].clone();
                let append = move |number| log.append(event(number, 50)).wait().expect("written").seq;
                scope.spawn(move || (0..60).map(append).collect::<Vec<_>>())
            })
            .collect();
        let numbers = writers.into_iter().flat_map(|writer| writer.join().expect("alive"));
        numbers.collect::<BTreeSet<_>>()
    });
    assert_eq!(numbers, (0..360).collect());
    assert_eq!(verified(&path), (360, None));
    for log in logs {
        log.close();
    }
}

#[test]
fn an_event_waits_for_room() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let options = LogOptions { queue_bytes: 4096, max_line: 4096, ..LogOptions::default() };
    let log = Log::open(&path, options).expect("a log");
    let appends: Vec<_> = (0..50).map(|number| log.append(event(number, 1000))).collect();
    let numbers: BTreeSet<_> =
        appends.into_iter().map(|append| append.wait().expect("written").seq).collect();
    assert_eq!(numbers, (0..50).collect());
    let metadata = [("text".to_owned(), "x".repeat(5000).into())].into_iter().collect();
    let error = log.append(Event { metadata, ..event(0, 10) }).wait().expect_err("too long");
    assert!(error.to_string().starts_with("the event cannot be logged: the event takes "), "{error}");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn an_event_is_awaited_on_a_runtime() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    // There is room for one event at a time.
    let options = LogOptions { queue_bytes: 2048, max_line: 2048, ..LogOptions::default() };
    let log = Log::open(&path, options).expect("a log");
    let tasks: Vec<_> = (0..20).map(|number| tokio::spawn(log.append(event(number, 700)))).collect();
    for task in tasks {
        task.await.expect("alive").expect("written");
    }
    drop(log.append(event(20, 10)));
    log.close();
    // An event that is in the queue is written, even if no caller waits for it.
    assert_eq!(verified(&path), (21, None));
}

#[test]
fn a_closed_log_accepts_no_events() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let log = Log::open(&path, LogOptions::default()).expect("a log");
    let waiting: Vec<_> = (0..20).map(|number| log.append(event(number, 10))).collect();
    log.clone().close();
    for append in waiting {
        append.wait().expect("written");
    }
    let error = log.append(event(0, 10)).wait().expect_err("closed");
    assert_eq!(error.to_string(), "the audit log is closed");
    assert_eq!(verified(&path), (20, None));
}

#[test]
fn a_log_locked_by_another_process_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let options = LogOptions { lock_timeout: std::time::Duration::from_millis(20), ..LogOptions::default() };
    let log = Log::open(&path, options.clone()).expect("a log");
    let lock = std::fs::File::options().write(true).open(directory.path().join("audit-log.jsonl.lock"));
    let lock = lock.expect("there");
    lock.lock().expect("locked");
    let error = log.append(event(0, 10)).wait().expect_err("locked");
    assert_eq!(error.to_string(), "the audit log is locked by another process");
    assert!(matches!(Log::open(&path, options), Err(OpenError::Locked)));
    lock.unlock().expect("unlocked");
    log.append(event(0, 10)).wait().expect("written");
}

#[test]
fn a_removed_log_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let log = Log::open(&path, LogOptions::default()).expect("a log");
    log.append(event(0, 10)).wait().expect("written");
    let content = std::fs::read(&path).expect("readable");
    std::fs::remove_file(&path).expect("removed");
    let error_text = |log: &Log| log.append(event(0, 10)).wait().expect_err("gone").to_string();
    assert_eq!(error_text(&log), "the audit log was damaged: audit-log.jsonl:0: broken: the log was removed");
    std::fs::write(&path, &content).expect("written");
    assert_eq!(
        error_text(&log),
        "the audit log was damaged: audit-log.jsonl:0: broken: the log was replaced"
    );
}

#[test]
fn a_truncated_log_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let log = Log::open(&path, LogOptions::default()).expect("a log");
    log.append(event(0, 10)).wait().expect("written");
    std::fs::File::options().write(true).open(&path).expect("there").set_len(0).expect("cut");
    let error = log.append(event(0, 10)).wait().expect_err("shorter");
    assert_eq!(
        error.to_string(),
        "the audit log was damaged: audit-log.jsonl:0: broken: the file became shorter"
    );
}

/// A user who can open a file for reading can lock it.
#[test]
fn readers_cannot_lock_the_log() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a directory");
    let lock = directory.path().join("audit-log.jsonl.lock");
    let mode = || lock.metadata().expect("there").permissions().mode() & 0o777;
    drop(Log::open(&directory.path().join("audit-log.jsonl"), LogOptions::default()).expect("a log"));
    assert_eq!(mode(), 0o200);
    // A lock file of an earlier version.
    std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o644)).expect("ours");
    drop(Log::open(&directory.path().join("audit-log.jsonl"), LogOptions::default()).expect("a log"));
    assert_eq!(mode(), 0o200);
}

/// The lock file of a log in a workspace may come with the workspace.
#[test]
fn a_lock_that_is_not_a_file_neither_blocks_nor_is_followed() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let lock = directory.path().join("audit-log.jsonl.lock");
    let log = Log::open(&path, LogOptions::default()).expect("a log");
    log.append(event(0, 10)).wait().expect("written");
    log.close();
    std::fs::remove_file(&lock).expect("there");
    mknodat(CWD, &lock, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    assert!(Log::open(&path, LogOptions::default()).is_err());
    assert_eq!(verified(&path), (1, None));
    std::fs::remove_file(&lock).expect("there");
    let elsewhere = directory.path().join("elsewhere");
    std::os::unix::fs::symlink(&elsewhere, &lock).expect("a link");
    assert!(Log::open(&path, LogOptions::default()).is_err());
    assert_eq!(verified(&path), (1, None));
    assert!(!elsewhere.exists());
}

/// A long log has more files than a process may open.
#[test]
fn the_number_of_files_is_not_limited() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let options = LogOptions { segment_bytes: 1, ..LogOptions::default() };
    let log = Log::open(&path, options.clone()).expect("a log");
    for number in 0..150 {
        log.append(event(number, 10)).wait().expect("written");
    }
    log.close();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(100), ..before }).expect("a lower limit");
    let found = verified(&path);
    let log = Log::open(&path, options);
    setrlimit(Resource::Nofile, before).expect("the old limit");
    assert_eq!(found, (150, None));
    assert_eq!(log.expect("a log").append(event(150, 10)).wait().expect("written").seq, 150);
}
