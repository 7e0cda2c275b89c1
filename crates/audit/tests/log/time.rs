//! A clock that jumps.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use narrows_audit::{Clock, Entry, Filter, Log, Options, Reader};

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
    let options = Options { clock: clock.clone(), ..Options::default() };
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
    // Behind its own log when it starts again.
    let log = Log::open(&path, options).expect("a log");
    append(&log, 10 * DAY + 9, 9);
    log.close();

    assert_eq!(verified(&path), (9, None));
    let mut reader = Reader::open(&path, Filter::default()).expect("readable");
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
