//! Tests of reading a log, also while it grows.

use narrows_audit::{Event, Filter, Head, Log, LogOptions, LogReader, LoggedDecision, PolicyRef, verify};
use serde_json::json;

use crate::{event, verified};

fn session_event(number: usize, session: &str, decision: LoggedDecision) -> Event {
    Event {
        policy: Some(PolicyRef { reference: "note-sync".into(), decision: Some(decision) }),
        metadata: [("aip44".to_owned(), json!({"session": session}))].into_iter().collect(),
        ..event(number, 100)
    }
}

#[test]
fn entries_are_found_across_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let log = Log::open(&path, LogOptions { segment_bytes: 3000, ..LogOptions::default() }).expect("a log");
    for number in 0..60 {
        let decision = LoggedDecision::ALL[number % 4];
        log.append(session_event(number, ["a", "b"][number % 2], decision)).wait().expect("written");
    }
    let count = |filter: Filter| {
        let mut reader = LogReader::open(&path, filter).expect("readable");
        std::iter::from_fn(|| reader.next_entry().expect("an entry")).count()
    };
    assert_eq!(count(Filter::default()), 60);
    let session = Some("b".to_owned());
    assert_eq!(count(Filter { session: session.clone(), ..Filter::default() }), 30);
    assert_eq!(count(Filter { tool: Some("tool-1".into()), ..Filter::default() }), 20);
    assert_eq!(count(Filter { decision: Some(LoggedDecision::Deny), ..Filter::default() }), 15);
    let both =
        Filter { session, tool: Some("tool-1".into()), decision: Some(LoggedDecision::Deny), text: None };
    assert_eq!(count(both), 5);
    assert_eq!(count(Filter { text: Some("\"session\":\"b\""), ..Filter::default() }), 30);
    assert_eq!(count(Filter { session: Some("c".into()), ..Filter::default() }), 0);
    assert!(LogReader::open(&directory.path().join("none"), Filter::default()).is_err());
}

#[test]
fn a_log_is_followed_through_its_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let log = Log::open(&path, LogOptions { segment_bytes: 1500, ..LogOptions::default() }).expect("a log");
    log.append(event(0, 100)).wait().expect("written");
    let mut reader = LogReader::open(&path, Filter::default()).expect("readable");
    assert_eq!(reader.follow().expect("an entry").seq, 0);
    let mut expected = 1;
    // Several entries at a time. The reader is then in the middle of a file, at its end, or several files
    // behind.
    for some in [1, 2, 3, 5, 8, 13, 1, 1, 4] {
        for number in 0..some {
            log.append(event(number, 100)).wait().expect("written");
        }
        for _ in 0..some {
            assert_eq!(reader.follow().expect("an entry").seq, expected);
            expected += 1;
        }
        assert!(reader.next_entry().expect("no error").is_none());
    }
    assert_eq!(verified(&path), (expected, None));
}

#[test]
fn a_log_is_verified_while_it_is_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let log = Log::open(&path, LogOptions { segment_bytes: 20_000, ..LogOptions::default() }).expect("a log");
    log.append(event(0, 100)).wait().expect("written");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..200 {
                log.append(event(number, 300)).wait().expect("written");
            }
        });
        while !writer.is_finished() {
            assert_eq!(verified(&path).1, None);
        }
    });
    assert_eq!(verified(&path), (201, None));
}

#[test]
fn a_head_reveals_truncation_and_rewriting() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, count: usize, other: usize| {
        let path = directory.path().join(name);
        let log = Log::open(&path, LogOptions::default()).expect("a log");
        for number in 0..count {
            // The entries from `other` on are different.
            let length = if number < other { 10 } else { 20 };
            log.append(event(number, length)).wait().expect("written");
        }
        log.close();
        path
    };
    let path = write("a.jsonl", 10, 99);
    let report = verify::log(&path, &verify::VerifyOptions::default()).expect("readable");
    let head =
        Head::new(report.log.expect("an entry"), 10, report.hash.expect("an entry"), jiff::Timestamp::now());
    let against = |path: &std::path::Path| {
        let options = verify::VerifyOptions { head: Some(head.clone()), ..verify::VerifyOptions::default() };
        verify::log(path, &options).expect("readable").bad.map(|bad| (bad.why, bad.seq, bad.detail))
    };
    assert_eq!(against(&path), None);
    let log = Log::open(&path, LogOptions::default()).expect("a log");
    log.append(event(10, 10)).wait().expect("written");
    log.close();
    assert_eq!(against(&path), None);

    let text = std::fs::read_to_string(&path).expect("readable");
    let cut: String = text.split_inclusive('\n').take(7).collect();
    std::fs::write(&path, &cut).expect("written");
    assert_eq!(verified(&path), (7, None));
    let truncated = (verify::VerifyProblem::Truncated, 7, "7 of at least 10 entries are there".to_owned());
    assert_eq!(against(&path), Some(truncated.clone()));
    // Half a line at the end does not make the truncated log look like one after a crash.
    std::fs::write(&path, text.get(..cut.len() + 40).expect("a longer log")).expect("written");
    assert_eq!(verified(&path).1.map(|bad| bad.why), Some(verify::VerifyProblem::TornTail));
    assert_eq!(against(&path), Some(truncated));
    std::fs::write(&path, [&*text, "{"].concat()).expect("written");
    assert_eq!(against(&path).map(|bad| bad.0), Some(verify::VerifyProblem::TornTail));
    // The log was rewritten from some entry on, with other times.
    let rewritten = (verify::VerifyProblem::Rewritten, 0, "its first entry is another".to_owned());
    assert_eq!(against(&write("b.jsonl", 12, 5)), Some(rewritten));
    let kept: String = text.split_inclusive('\n').take(5).collect();
    std::fs::write(directory.path().join("c.jsonl"), kept).expect("written");
    let rewritten = (verify::VerifyProblem::Rewritten, 9, "entry 9 is another than it was".to_owned());
    assert_eq!(against(&write("c.jsonl", 8, 0)), Some(rewritten));
}
