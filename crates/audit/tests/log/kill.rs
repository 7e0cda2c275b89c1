//! Tests with real processes that are killed while they write.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use narrows_audit::{Filter, Log, LogOptions, LogReader};

use crate::verified;

const KILLS: usize = 200;

/// Returns the program of `examples/appender.rs`, which cargo builds for tests.
fn appender() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let built = test.parent().and_then(Path::parent).expect("two folders up");
    let appender = built.join("examples").join("appender");
    assert!(appender.exists(), "build it first: cargo build -p narrows-audit --examples");
    appender
}

#[test]
fn acknowledged_entries_survive_two_hundred_kills() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("audit-log.jsonl");
    let program = appender();
    let mut acknowledged = BTreeMap::new();
    let mut dice = fastrand::Rng::with_seed(7);
    // Two processes at a time, which wait for each other.
    for _ in 0..KILLS / 2 {
        let mut pair = [(); 2].map(|()| {
            Command::new(&program)
                .arg(&path)
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit())
                .spawn()
                .expect("it starts")
        });
        let mut readers = Vec::new();
        for child in &mut pair {
            let mut output = child.stdout.take().expect("piped");
            readers.push(std::thread::spawn(move || {
                let mut text = String::new();
                output.read_to_string(&mut text).map(|_| text)
            }));
        }
        for child in &mut pair {
            // sleep: the process is to be killed at any moment of its work
            std::thread::sleep(Duration::from_micros(dice.u64(2_000..20_000)));
            kill(child);
        }
        for reader in readers {
            let text = reader.join().expect("alive").expect("readable");
            // The last line may be incomplete, because the process was killed.
            for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
                let (seq, hash) = line.split_once(' ').expect("two words");
                acknowledged.insert(seq.parse::<u64>().expect("a number"), hash.to_owned());
            }
        }
    }
    Log::open(&path, LogOptions::default()).expect("it opens").close();
    assert_eq!(verified(&path).1.map(|bad| bad.to_string()), None);
    let mut reader = LogReader::open(&path, Filter::default()).expect("readable");
    let entries: BTreeMap<_, _> = std::iter::from_fn(|| reader.next_entry().expect("an entry"))
        .map(|entry| (entry.seq, entry.hash))
        .collect();
    assert!(acknowledged.len() > KILLS, "only {} were acknowledged", acknowledged.len());
    for (seq, hash) in acknowledged {
        assert_eq!(entries.get(&seq), Some(&hash), "{seq} was acknowledged");
    }
}

fn kill(child: &mut Child) {
    child.kill().expect("ours");
    child.wait().expect("ours");
}
