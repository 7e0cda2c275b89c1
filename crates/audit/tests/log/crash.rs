//! Recovery when a log is opened after a crash.

use narrows_audit::{Log, LogOptions, LogReader, OpenError};

use crate::{event, verified};

#[test]
fn a_torn_tail_is_removed_and_a_note_is_logged() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let log = Log::open(&path, LogOptions::default()).expect("a log");
    for number in 0..3 {
        log.append(event(number, 10)).wait().expect("written");
    }
    log.close();
    let whole = std::fs::read(&path).expect("readable");
    std::fs::write(&path, [&whole[..], b"{\"$schema\":\"agentgov"].concat()).expect("written");
    assert_eq!(
        verified(&path).1.expect("torn").to_string(),
        "audit-log.jsonl:4: torn tail: the line is incomplete"
    );

    let log = Log::open(&path, LogOptions::default()).expect("it opens");
    assert_eq!(log.tip().expect("an entry").seq, 2);
    assert_eq!(log.append(event(3, 10)).wait().expect("written").seq, 4);
    log.close();
    assert_eq!(verified(&path), (5, None));
    let mut reader = LogReader::open(&path, narrows_audit::Filter::default()).expect("readable");
    let entries: Vec<_> = std::iter::from_fn(|| reader.next_entry().expect("an entry")).collect();
    assert_eq!(entries[3].action, "audit.note");
    assert_eq!(entries[3].metadata["note"]["kind"], "torn-tail-cut");
    assert_eq!(entries[3].metadata["note"]["bytes"], 20);
    assert!(std::fs::read(&path).expect("readable").starts_with(&whole));
}

#[test]
fn other_damage_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let log = Log::open(&path, LogOptions::default()).expect("a log");
    for number in 0..3 {
        log.append(event(number, 10)).wait().expect("written");
    }
    log.close();
    let whole = std::fs::read_to_string(&path).expect("readable");
    let check = |text: &str, expected: &str| {
        std::fs::write(&path, text).expect("written");
        match Log::open(&path, LogOptions::default()) {
            Err(OpenError::Damaged(bad)) => assert_eq!(bad.to_string(), expected),
            other => panic!("{other:?}"),
        }
        assert_eq!(std::fs::read_to_string(&path).expect("readable"), text, "it was changed");
    };
    check(
        &whole.replacen("\"number\":1", "\"number\":2", 1),
        "audit-log.jsonl:2: tampered: its hash does not match its content",
    );
    let second = whole.lines().nth(1).expect("a line");
    check(
        &whole.replacen(&format!("{second}\n"), "", 1),
        "audit-log.jsonl:2: gap: its number is 2, expected 1",
    );
    check(&format!("{whole}x\n"), "audit-log.jsonl:4: broken: it is not JSON (byte 1)");
    check(&format!("{}x", whole.trim_end()), "audit-log.jsonl:3: broken: the end of this line is damaged");
}

#[test]
fn a_log_continues_after_its_last_entry() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("deep/er/audit-log.jsonl");
    let options = LogOptions { segment_bytes: 2000, ..LogOptions::default() };
    for number in 0..30 {
        let log = Log::open(&path, options.clone()).expect("a log");
        assert_eq!(log.append(event(number, 100)).wait().expect("written").seq, number as u64);
        log.close();
    }
    assert_eq!(verified(&path), (30, None));
    let mut sealed: Vec<_> = std::fs::read_dir(path.parent().expect("a parent"))
        .expect("readable")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    sealed.sort();
    assert_eq!(sealed[0], "audit-log.000000000000.jsonl");
    assert!(sealed.len() > 6, "{sealed:?}");
    // A missing sealed file is a gap, even if the end of the log is missing too.
    std::fs::remove_file(path.with_file_name(&sealed[1])).expect("removed");
    assert!(matches!(Log::open(&path, options), Err(OpenError::Damaged(_))));
}

#[test]
fn a_link_is_not_followed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    std::fs::write(directory.path().join("other"), "").expect("written");
    std::os::unix::fs::symlink("other", &path).expect("linked");
    assert!(matches!(Log::open(&path, LogOptions::default()), Err(OpenError::Io(_))));
}

/// If the crash came between sealing a file and creating the next, the rest of a write is in a sealed file.
#[test]
fn a_torn_tail_of_a_sealed_file_is_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let options = LogOptions { segment_bytes: 1000, ..LogOptions::default() };
    let log = Log::open(&path, options.clone()).expect("a log");
    for number in 0..2 {
        log.append(event(number, 10)).wait().expect("written");
    }
    log.close();
    let sealed = directory.path().join("audit-log.000000000000.jsonl");
    std::fs::rename(&path, &sealed).expect("renamed");
    for empty in [false, true] {
        let whole = std::fs::read(&sealed).expect("readable");
        std::fs::write(&sealed, [&whole[..], b"{\"$sch"].concat()).expect("written");
        if empty {
            std::fs::write(&path, "").expect("written");
        }
        let log = Log::open(&path, options.clone()).expect("it opens");
        log.append(event(0, 10)).wait().expect("written");
        log.append(event(0, 10)).wait().expect("written");
        log.close();
        assert_eq!(verified(&path), (5, None));
        // Restores the original file.
        std::fs::remove_file(&path).expect("removed");
        for name in std::fs::read_dir(directory.path()).expect("readable") {
            let name = name.expect("an entry").path();
            if name != sealed && name.extension().is_some_and(|ending| ending == "jsonl") {
                std::fs::remove_file(name).expect("removed");
            }
        }
    }
}
