//! Governance: the cost of the gate per frame, the rate at which events are written to disk, and the time
//! to verify a log.

mod append;
mod gate;
mod verify;

use std::io;

use crate::measure::{Bar, Demand, Report};

/// Bars for the processor time that the gate adds to a frame without an event, and to an event of a call
/// that it decides and records. In microseconds.
const UNGOVERNED: f64 = 3.0;
const GOVERNED: f64 = 15.0;
/// Bar for appends, in events per second.
const APPENDS: f64 = 50_000.0;
/// Bar for the verification of a million lines, in seconds.
const VERIFICATION: f64 = 5.0;

/// Measures frames through a gate, appends to a log from many sessions, and the verification of a long log.
pub(crate) fn run() -> io::Result<Report> {
    // On the disk of the target directory, because a file system in memory would not measure a disk.
    let directory = tempfile::tempdir_in(std::env::current_exe()?.parent().ok_or(io::ErrorKind::NotFound)?)?;
    // In memory, where a sync costs nothing.
    let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let gate::Gated { frame, call } = gate::measure(memory.path())?;
    let appended = append::measure(directory.path())?;
    let handed = append::handed_over(directory.path())?;
    let verified = verify::measure(directory.path())?;
    let row = |name: &str, seconds: f64, events: u64, bytes: u64, processor: f64| {
        let (each, all) = (1e6 / events as f64, events as f64);
        (name.to_owned(), vec![all / seconds, bytes as f64 / seconds / 1e6, processor * each])
    };
    let append::Appended { log, floor, events, bytes, commits } = appended;
    let verify::Verified { all, hashing, lines, length } = verified;
    Ok(Report {
        title: "govern: the gate beside a relay that copies, and the audit log beside the least that the same disk and processor need",
        columns: ["per s", "MB/s", "µs of cpu each"].map(str::to_owned).to_vec(),
        rows: vec![
            ("relay a chunk of text".to_owned(), vec![1e6 / frame.0, f64::NAN, frame.0]),
            ("the gate lets it pass: added".to_owned(), vec![1e6 / frame.1, f64::NAN, frame.1]),
            ("relay an event of a tool call".to_owned(), vec![1e6 / call.0, f64::NAN, call.0]),
            ("the gate decides and records it: added".to_owned(), vec![1e6 / call.1, f64::NAN, call.1]),
            row("append, group commit of 1 ms", log.seconds, events, bytes, log.processor),
            ("append, in the caller's thread".to_owned(), vec![1e6 / handed, f64::NAN, handed]),
            row("write and fdatasync, as many commits", floor.seconds, events, bytes, floor.processor),
            row("verify 1,000,000 lines", all.seconds, lines, length, all.processor),
            row("read and hash the same bytes", hashing.seconds, lines, length, hashing.processor),
        ],
        bars: vec![
            Bar {
                name: "gate: added to an ungoverned frame, µs of cpu".to_owned(),
                value: frame.1,
                demand: Demand::AtMost(UNGOVERNED),
            },
            Bar {
                name: "gate: added to an event of a governed call, µs of cpu".to_owned(),
                value: call.1,
                demand: Demand::AtMost(GOVERNED),
            },
            Bar {
                name: format!("append: events per second ({commits} commits)"),
                value: events as f64 / log.seconds,
                demand: Demand::AtLeast(APPENDS),
            },
            Bar {
                name: "verify 1,000,000 lines: seconds".to_owned(),
                value: all.seconds,
                demand: Demand::AtMost(VERIFICATION),
            },
        ],
    })
}

/// Times of a measurement, in seconds.
#[derive(Clone, Copy, Debug)]
struct Took {
    seconds: f64,
    processor: f64,
}

impl Took {
    const FOREVER: Self = Self { seconds: f64::INFINITY, processor: f64::INFINITY };

    fn by(work: impl FnOnce() -> io::Result<()>) -> io::Result<Self> {
        let (start, used) = (std::time::Instant::now(), processor());
        work()?;
        Ok(Self { seconds: start.elapsed().as_secs_f64(), processor: processor() - used })
    }

    /// Returns the shorter of two measurements.
    fn or(self, other: Self) -> Self {
        if other.seconds < self.seconds { other } else { self }
    }
}

fn processor() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
