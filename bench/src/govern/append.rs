//! Many sessions that log events, each waiting for the disk before it continues.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use narrows_audit::{Actor, Event, Facts, Log, LogOptions, LoggedDecision, PolicyRef, Subject};
use serde_json::json;

use super::Took;

/// Number of sessions, and of concurrent calls in each.
const SESSIONS: usize = 8;
const MAX_IN_FLIGHT: usize = 256;
const EVENTS: usize = 12_800;
/// Number of repetitions. The best counts, because it was disturbed least.
const ROUNDS: usize = 3;

/// Events that are handed over without waiting.
const HANDED: usize = 4000;

/// Results of logging, and of writing the same bytes without a log.
pub(super) struct Appended {
    pub(super) log: Took,
    pub(super) floor: Took,
    pub(super) events: u64,
    pub(super) bytes: u64,
    /// Upper bound of the commits: the number of distinct times in the log.
    pub(super) commits: usize,
}

/// Logs events, then writes the same bytes in the same number of pieces.
pub(super) fn measure(directory: &Path) -> io::Result<Appended> {
    let mut best = Appended {
        log: Took::FOREVER,
        floor: Took::FOREVER,
        events: (SESSIONS * EVENTS) as u64,
        bytes: 0,
        commits: 1,
    };
    for round in 0..ROUNDS {
        let path = directory.join(format!("append-{round}.jsonl"));
        let log = Log::open(&path, LogOptions { segment_bytes: u64::MAX, ..LogOptions::default() })
            .map_err(io::Error::other)?;
        let took = Took::by(|| sessions(&log))?;
        log.close();
        let written = std::fs::read(&path)?;
        std::fs::remove_file(&path)?;
        let groups = groups(&written);
        if took.seconds < best.log.seconds {
            (best.log, best.bytes, best.commits) = (took, written.len() as u64, groups.len());
        }
        best.floor = best.floor.or(Took::by(|| bare(&path, &written, &groups))?);
        std::fs::remove_file(&path)?;
    }
    Ok(best)
}

/// Runs all sessions. Each waits for its oldest event before it logs another.
fn sessions(log: &Log) -> io::Result<()> {
    std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|session| {
                scope.spawn(move || {
                    let mut waiting = std::collections::VecDeque::with_capacity(MAX_IN_FLIGHT);
                    for number in 0..EVENTS {
                        if waiting.len() == MAX_IN_FLIGHT {
                            settle(waiting.pop_front())?;
                        }
                        waiting.push_back(log.append(event(session, number)));
                    }
                    waiting.into_iter().try_for_each(|append| settle(Some(append)))
                })
            })
            .collect();
        let mut outcomes = sessions.into_iter().map(std::thread::ScopedJoinHandle::join);
        outcomes
            .try_for_each(|outcome| outcome.unwrap_or_else(|_| Err(io::Error::other("a session panicked"))))
    })
}

fn settle(append: Option<narrows_audit::Append>) -> io::Result<()> {
    append.map_or(Ok(()), |append| append.wait().map(drop).map_err(io::Error::other))
}

/// Returns a tool call event as the gate records it.
pub(super) fn event(session: usize, number: usize) -> Event {
    let facts = Facts::from([
        ("kind", Some("tool-call".into())),
        ("operator", Some("notes-operator".to_owned().into())),
        ("session", Some(format!("sess_{session:03}").into())),
        ("tool", Some("append-to-notes".to_owned().into())),
        ("toolCallId", Some(format!("call_{number}").into())),
        ("approval", Some("auto".into())),
        ("identity", Some("user:1000".to_owned().into())),
    ]);
    Event {
        actor: Actor { id: "operator:notes-operator".into(), role: Some("operator".into()) },
        action: "tool.call".into(),
        subject: Subject { kind: "tool".into(), reference: Some("append-to-notes".into()), path: None },
        input: Some(json!({"filename": "/notes/a.md", "line": "bring the café its beans", "number": number})),
        output: Some(json!({"ok": true})),
        policy: Some(PolicyRef { reference: "note-sync".into(), decision: Some(LoggedDecision::Allow) }),
        facts,
        ..Event::default()
    }
}

/// Returns the processor time that a caller needs to hand over an event, in microseconds.
pub(super) fn handed_over(directory: &Path) -> io::Result<f64> {
    let log = Log::open(&directory.join("hand.jsonl"), LogOptions::default()).map_err(io::Error::other)?;
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let events: Vec<_> = (0..HANDED).map(|number| event(0, number)).collect();
        let start = thread_time();
        let appends: Vec<_> = events.into_iter().map(|event| log.append(event)).collect();
        best = best.min((thread_time() - start) * 1e6 / HANDED as f64);
        appends.into_iter().try_for_each(|append| settle(Some(append)))?;
    }
    log.close();
    Ok(best)
}

fn thread_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the ends of the groups of lines with the same time, each of which is one commit.
fn groups(written: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let (mut at, mut last) = (0, &written[..0]);
    for line in written.split_inclusive(|byte| *byte == b'\n') {
        // `"ts":"…"}` and the end of the line.
        let time = &line[line.len().saturating_sub(28)..];
        if !last.is_empty() && time != last {
            ends.push(at);
        }
        last = time;
        at += line.len();
    }
    ends.push(at);
    ends
}

/// Writes and syncs the same bytes in the same pieces, without a log.
fn bare(path: &Path, bytes: &[u8], ends: &[usize]) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create_new(true).open(path)?;
    let mut start = 0;
    for &end in ends {
        file.write_all(&bytes[start..end])?;
        file.sync_data()?;
        start = end;
    }
    Ok(())
}
