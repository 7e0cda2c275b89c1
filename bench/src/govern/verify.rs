//! Verifies a log of a million lines from the first to the last.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use narrows_audit::{Log, LogOptions, verify};

use super::Took;
use super::append::event;

const LINES: u64 = 1_000_000;
/// Number of repetitions. The best counts, because it was disturbed least.
const ROUNDS: usize = 3;
/// Concurrent events while the log is created.
const GROUP: usize = 4000;

/// Results of verifying, and of only reading and hashing the log.
pub(super) struct Verified {
    pub(super) all: Took,
    pub(super) hashing: Took,
    pub(super) lines: u64,
    pub(super) length: u64,
}

/// Creates a log, and verifies it on all processors.
pub(super) fn measure(directory: &Path) -> io::Result<Verified> {
    let path = directory.join("verify.jsonl");
    // Several files, which is normal for a log of this size.
    let log = Log::open(&path, LogOptions { window: Duration::ZERO, ..LogOptions::default() })
        .map_err(io::Error::other)?;
    for start in (0..LINES as usize).step_by(GROUP) {
        let group: Vec<_> =
            (start..start + GROUP).map(|number| log.append(event(number % 100, number))).collect();
        group.into_iter().try_for_each(|append| append.wait().map(drop)).map_err(io::Error::other)?;
    }
    log.close();
    let (mut all, mut hashing) = (Took::FOREVER, Took::FOREVER);
    for _ in 0..ROUNDS {
        all = all.or(Took::by(|| {
            let report = verify::log(&path, &verify::VerifyOptions::default())?;
            match report.bad {
                None if report.entries == LINES => Ok(()),
                bad => Err(io::Error::other(format!("{} lines, then {bad:?}", report.entries))),
            }
        })?);
        hashing = hashing.or(Took::by(|| hashed(directory))?);
    }
    let length = files(directory)?
        .iter()
        .map(|file| file.metadata().map(|found| found.len()))
        .sum::<io::Result<u64>>()?;
    Ok(Verified { all, hashing, lines: LINES, length })
}

fn files(directory: &Path) -> io::Result<Vec<File>> {
    let paths =
        std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths
        .iter()
        .filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"))
        .map(File::open)
        .collect()
}

/// Reads and hashes every byte on all processors, without any check.
fn hashed(directory: &Path) -> io::Result<()> {
    let files = std::sync::Mutex::new(files(directory)?);
    let work = || -> io::Result<()> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            let next = files.lock().map_or(None, |mut files| files.pop());
            let Some(mut file) = next else { return Ok(()) };
            let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
            loop {
                match file.read(&mut buffer)? {
                    0 => break,
                    count => digest.update(&buffer[..count]),
                }
            }
            std::hint::black_box(digest.finish());
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut outcomes = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
        outcomes
            .try_for_each(|outcome| outcome.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
    })
}
