//! Injects every fault at every position of a long trace. Afterwards the chain verifies, and all acknowledged
//! entries are there.

use std::collections::BTreeMap;
use std::time::Duration;

use narrows_audit::{AppendError, Entry, Log, LogOptions, Receipt, verify};

use crate::event;
use crate::memory::{Counted, Fault, Memory, Plan};

const TRACE: u32 = 300;

/// Windows of group commits: no window, and one that contains a whole round.
const ALONE: Duration = Duration::ZERO;
const TOGETHER: Duration = Duration::from_millis(1);

/// Options with small files, so that many of them are sealed.
fn options(window: Duration) -> LogOptions {
    LogOptions { window, segment_bytes: 5 << 10, ..LogOptions::default() }
}

fn open(disk: &Memory, window: Duration) -> Log {
    Log::open_on(Box::new(disk.clone()), "log.jsonl", options(window)).expect("it opens again")
}

/// Logs one or a few events at once, of different lengths.
fn round(log: &Log, number: u32) -> Vec<Result<Receipt, AppendError>> {
    let at = number as usize;
    let appends: Vec<_> = (0..if at.is_multiple_of(5) { 3 } else { 1 })
        .map(|part| log.append(event(at * 3 + part, at * 97 % 500)))
        .collect();
    appends.into_iter().map(narrows_audit::Append::wait).collect()
}

/// Hashes of the acknowledged entries, by number.
#[derive(Clone, Default)]
struct Kept(BTreeMap<u64, String>);

impl Kept {
    /// Stores the acknowledged entries. Returns `true` if an event was not acknowledged.
    fn add(&mut self, results: Vec<Result<Receipt, AppendError>>) -> bool {
        let mut failed = false;
        for result in results {
            match result {
                Ok(Receipt { seq, hash }) => {
                    assert_eq!(self.0.insert(seq, hash), None, "two entries are {seq}");
                }
                Err(_) => failed = true,
            }
        }
        failed
    }
}

/// Writes until the fault has happened, restarts if necessary, continues, and checks the log.
fn survive(plan: Plan, disk: &Memory, window: Duration, mut kept: Kept) {
    // A failure to open the log counts too.
    let log = Log::open_on(Box::new(disk.clone()), "log.jsonl", options(window)).ok();
    if let Some(log) = &log {
        for number in 0..2 * TRACE {
            if kept.add(round(log, number)) || disk.fired() {
                break;
            }
        }
    }
    assert!(disk.fired(), "{plan:?}: nothing happened");
    let dies = matches!(plan.fault, Fault::Kill | Fault::PowerCut);
    if let Some(log) = log {
        for number in 0..if dies { 0 } else { 8 } {
            let failed = kept.add(round(&log, number));
            assert!(!failed || number < plan.times, "{plan:?}: it does not recover unaided");
        }
        log.close();
    }
    if !dies {
        // All acknowledged entries survive a power cut.
        disk.cut_power();
    }
    disk.restart();
    let log = open(disk, window);
    for number in 0..4 {
        assert!(!kept.add(round(&log, number)), "{plan:?}: it does not work again");
    }
    log.close();
    assert!(!disk.asked_again(), "{plan:?}: a file was synced after that had failed");

    let content = disk.content();
    let report = verify::bytes(&content, &verify::VerifyOptions::default());
    assert_eq!(report.bad, None, "{plan:?}");
    let lines: BTreeMap<u64, String> = content
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| serde_json::from_slice::<Entry>(line).expect("an entry"))
        .map(|entry| (entry.seq, entry.hash))
        .collect();
    for (seq, hash) in &kept.0 {
        assert_eq!(lines.get(seq), Some(hash), "{plan:?}: {seq} was acknowledged");
    }
}

/// Injects the fault at every write of a trace, each time on a copy of the disk at that moment.
fn everywhere(counted: Counted, fault: Fault, times: u32) {
    let main = Memory::new(None, 1);
    let log = open(&main, ALONE);
    let mut kept = Kept::default();
    for number in 0..TRACE {
        let plan = Plan { counted, at: 1, times, fault };
        survive(plan, &main.copy(plan, u64::from(number) + 1), ALONE, kept.clone());
        assert!(!kept.add(round(&log, number)));
    }
}

/// Injects the fault at each of the first operations of a disk, which include renames, creations, truncations
/// and reads.
fn anywhere(fault: Fault, times: u32, window: Duration) {
    for at in 1..=TRACE {
        let plan = Plan { counted: Counted::All, at, times, fault };
        survive(
            plan,
            &Memory::new(Some(plan), u64::from(at).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            window,
            Kept::default(),
        );
    }
}

#[test]
fn a_write_that_is_refused() {
    everywhere(Counted::Writes, Fault::Refuse, 1);
}

#[test]
fn a_disk_that_is_full_for_a_while() {
    everywhere(Counted::Writes, Fault::Fill, 3);
}

#[test]
fn a_write_that_is_torn_by_a_kill() {
    everywhere(Counted::Writes, Fault::Kill, 1);
}

#[test]
fn a_write_that_is_reordered_by_a_power_cut() {
    everywhere(Counted::Writes, Fault::PowerCut, 1);
}

#[test]
fn a_sync_that_fails() {
    everywhere(Counted::Syncs, Fault::Refuse, 1);
}

#[test]
fn a_sync_that_fails_again() {
    everywhere(Counted::Syncs, Fault::Refuse, 2);
}

#[test]
fn a_power_cut_instead_of_a_sync() {
    everywhere(Counted::Syncs, Fault::PowerCut, 1);
}

#[test]
fn any_operation_that_fails() {
    anywhere(Fault::Fill, 1, ALONE);
}

#[test]
fn several_operations_that_fail() {
    anywhere(Fault::Fill, 4, ALONE);
}

#[test]
fn several_operations_that_fail_when_lines_are_written_together() {
    anywhere(Fault::Fill, 2, TOGETHER);
}

#[test]
fn a_kill_at_any_operation() {
    anywhere(Fault::Kill, 1, ALONE);
}

#[test]
fn a_power_cut_at_any_operation() {
    anywhere(Fault::PowerCut, 1, ALONE);
}

#[test]
#[ignore = "takes long: for the night"]
fn all_faults_at_every_operation_of_a_longer_trace() {
    for fault in [Fault::Refuse, Fault::Fill, Fault::Kill, Fault::PowerCut] {
        for counted in [Counted::Writes, Counted::Syncs, Counted::All] {
            for times in [1, 3] {
                for at in 1..=if counted == Counted::All { 1500 } else { 600 } {
                    let plan = Plan { counted, at, times, fault };
                    survive(plan, &Memory::new(Some(plan), u64::from(at) + 1), ALONE, Kept::default());
                }
            }
        }
    }
}

#[test]
fn damage_by_another_program_is_an_error() {
    let disk = Memory::new(None, 1);
    let log = open(&disk, ALONE);
    for number in 0..40 {
        round(&log, number).into_iter().for_each(|result| drop(result.expect("written")));
    }
    log.close();
    assert!(disk.files() > 2, "{}", disk.files());
    disk.damage("log.000000000000.jsonl", 700);
    let error = Log::open_on(Box::new(disk.clone()), "log.jsonl", options(ALONE)).expect_err("damaged");
    let told = error.to_string();
    assert!(told.starts_with("the audit log is damaged: log.000000000000.jsonl:2: "), "{told}");
}
