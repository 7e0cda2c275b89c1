//! Tests of a clock that jumps.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use narrows_audit::{Clock, Entry, Filter, Log, LogOptions, LogReader};

use crate::{event, verified};

#[derive(Default)]
struct Hands(Mutex<(i64, u64)>);

impl Hands {
    fn set(&self, wall: i64, running: u64) {
        *self.0.lock().expect("alive") = (wall, running);
    }
}

impl Clock for Hands {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.0.lock().expect("alive").0).expect("in range")
    }

    fn running(&self) -> Duration {
        Duration::from_secs(self.0.lock().expect("alive").1)
    }
}

#[test]
fn a_jump_is_recorded_and_time_does_not_go_back() {
    const DAY: i64 = 86_400;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let clock = Arc::new(Hands::default());
    let options = LogOptions { clock: clock.clone(), ..LogOptions::default() };
    let log = Log::open(&path, options.clone()).expect("a log");
    let append = |log: &Log, wall: i64, running: u64| {
        clock.set(wall, running);
        log.append(event(0, 10)).wait().expect("written");
    };
    append(&log, 10 * DAY, 0);
    append(&log, 10 * DAY + 1, 1);
    append(&log, 11 * DAY, 2);
    append(&log, 10 * DAY + 3, 3);
    append(&log, 10 * DAY + 4, 4);
    log.close();
    // At the next start the clock is behind the last entry.
    let log = Log::open(&path, options).expect("a log");
    append(&log, 10 * DAY + 9, 9);
    log.close();

    assert_eq!(verified(&path), (9, None));
    let mut reader = LogReader::open(&path, Filter::default()).expect("readable");
    let entries: Vec<Entry> = std::iter::from_fn(|| reader.next_entry().expect("an entry")).collect();
    let told: Vec<_> = entries
        .iter()
        .map(|entry| {
            let note = entry.metadata.get("note").map(|note| note["byMs"].to_string());
            format!("{} {}", &entry.ts[8..19], note.unwrap_or_default())
        })
        .collect();
    insta::assert_snapshot!(told.join("\n"), @r"
    11T00:00:00 
    11T00:00:01 
    12T00:00:00 86398000
    12T00:00:00 
    12T00:00:00 -86398000
    12T00:00:00 
    12T00:00:00 
    12T00:00:00 -86391000
    12T00:00:00 
    ");
}

#[test]
fn a_log_is_read_from_a_moment_on() {
    for segment_bytes in [20_000, 64 << 20] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("audit-log.jsonl");
        let clock = Arc::new(Hands::default());
        let options = LogOptions { clock: clock.clone(), segment_bytes, ..LogOptions::default() };
        let log = Log::open(&path, options).expect("a log");
        for second in 0..500_u32 {
            clock.set(i64::from(second) * 10, u64::from(second) * 10);
            log.append(event(0, 400)).wait().expect("written");
        }
        for second in [0_i64, 1, 10, 11, 2_500, 4_989, 4_990, 4_991, 9_999] {
            let moment = Timestamp::from_second(second).expect("in range");
            let mut reader = LogReader::since(&path, Filter::default(), moment).expect("readable");
            let entries: Vec<Entry> = std::iter::from_fn(|| reader.next_entry().expect("an entry")).collect();
            let young = |entry: &&Entry| entry.ts.parse::<Timestamp>().is_ok_and(|ts| ts >= moment);
            let expected = (0..500).filter(|number| number * 10 >= second).count();
            assert_eq!(entries.iter().filter(young).count(), expected, "{second}");
            // Few other entries were read, and reading continues when the log grows.
            assert!(entries.len() - expected < 200, "{second}: {}", entries.len());
        }
        let end = Timestamp::from_second(9_999).expect("in range");
        let mut reader = LogReader::since(&path, Filter::default(), end).expect("readable");
        while reader.next_entry().expect("an entry").is_some() {}
        for _ in 0..100 {
            log.append(event(0, 400)).wait().expect("written");
        }
        assert_eq!(std::iter::from_fn(|| reader.next_entry().expect("an entry")).count(), 100);
    }
}
