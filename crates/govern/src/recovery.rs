//! Completes the audit log after gates were killed: adds results of calls, ends of turns, and ends of
//! sessions.
//!
//! Audit entries do not name the process that wrote them. So each process with gates holds a shared lock on a
//! file beside the log while it lives. The system releases the lock of a killed process. A process that gets
//! the lock exclusively knows that no gate of the log is alive, and that all unfinished work was interrupted.
//! While other gates live, nothing is added; the next process that starts alone adds the missing entries.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use narrows_audit::{
    AppendError, Entry, Event, Fact, Filter, Log, LogReader, LoggedDecision, ReadError, Subject,
};
use serde_json::{Value, json};

const REASON: &str = "the gate was killed";

/// Bound for the events that wait to be written.
const MAX_PENDING: usize = 1024;

/// Bound for the input of an open call that is kept in memory and recorded again.
const MAX_INPUT_BYTES: usize = 4096;

/// Fields that every entry of a session has.
const SESSION_FIELDS: [&str; 6] =
    ["operator", "session", "parentSessionId", "identity", "identity_method", "tier"];

/// Further fields that the result of a call copies from its decision.
const CALL_FIELDS: [&str; 5] = ["tool", "toolCallId", "claimedTool", "toolKinds", "approval"];

/// Reason why the log could not be recovered.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    #[error(transparent)]
    Lock(#[from] io::Error),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// Holds the shared lock of a process whose gates write to a log. Dropping the value releases the lock.
#[derive(Debug)]
pub struct GatePresence {
    _lock: File,
    /// Number of entries that [`Self::announce`] added for killed gates.
    pub closed: usize,
}

impl GatePresence {
    /// Returns the path of the lock file that belongs to the log at this path.
    #[must_use]
    pub fn path(log: &Path) -> PathBuf {
        let mut name = log.file_name().map(OsString::from).unwrap_or_default();
        name.push(".gates");
        log.with_file_name(name)
    }

    /// Takes the shared lock. If no other process holds it, first adds the entries that killed gates could
    /// not write. Blocks while another process adds entries.
    ///
    /// # Errors
    ///
    /// If the lock fails, or the log cannot be read or written.
    pub fn announce(log: &Log, path: &Path) -> Result<Self, RecoveryError> {
        let lock = narrows_audit::open_lock(&Self::path(path), 0o600)?;
        let mut closed = 0;
        match lock.try_lock() {
            Ok(()) => {
                closed = append_all(log, missing_events(path)?)?;
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        lock.lock_shared()?;
        Ok(Self { _lock: lock, closed })
    }
}

/// Appends events, many of them in one write. Returns their number when all are on disk.
fn append_all(log: &Log, events: Vec<Event>) -> Result<usize, AppendError> {
    let count = events.len();
    let mut pending = VecDeque::new();
    for event in events {
        let append = log.append(event);
        if append.is_waiting() {
            // The events keep their order.
            append.wait()?;
            continue;
        }
        pending.push_back(append);
        if pending.len() > MAX_PENDING
            && let Some(oldest) = pending.pop_front()
        {
            oldest.wait()?;
        }
    }
    pending.into_iter().try_for_each(|append| append.wait().map(drop))?;
    Ok(count)
}

/// A session whose end is not recorded.
#[derive(Debug)]
struct OpenSession {
    first: Entry,
    is_working: bool,
    /// Decisions that allowed a call whose result is missing in the log, by call id.
    calls: BTreeMap<String, Entry>,
}

/// Returns the events that are missing in a log for which no gate is alive.
fn missing_events(path: &Path) -> Result<Vec<Event>, ReadError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let mut reader = LogReader::open(path, Filter::default())?;
    let mut sessions: HashMap<(String, String), OpenSession> = HashMap::new();
    while let Some(entry) = reader.next_entry()? {
        let text = |key: &str| entry.aip44(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let key = (text("identity"), text("session"));
        if key.0.is_empty() || key.1.is_empty() {
            continue;
        }
        let steps = entry.action.strip_prefix("operator.");
        if steps == Some("invoked") {
            let first = OpenSession { first: entry.clone(), is_working: false, calls: BTreeMap::new() };
            sessions.entry(key).or_insert(first);
            continue;
        }
        if entry.action == "session.closed" {
            sessions.remove(&key);
            continue;
        }
        let Some(session) = sessions.get_mut(&key) else { continue };
        let call = text("toolCallId");
        match (&*entry.action, steps) {
            (_, Some("running" | "suspended" | "resumed")) | ("prompt.accepted", _) => {
                session.is_working = true;
            }
            (_, Some("completed" | "interrupted")) => session.is_working = false,
            ("policy.resolved", _) if entry.decision() == Some(LoggedDecision::Allow) && !call.is_empty() => {
                session.calls.insert(call, with_short_input(entry));
            }
            ("policy.resolved" | "tool.call", _) => drop(session.calls.remove(&call)),
            _ => {}
        }
    }
    let mut sessions: Vec<OpenSession> = sessions.into_values().collect();
    sessions.sort_by_key(|session| session.first.seq);
    Ok(sessions.iter().flat_map(OpenSession::closing_events).collect())
}

/// Replaces a long input by its length and the number of the entry that has it.
fn with_short_input(entry: Entry) -> Entry {
    let bytes = entry.input.as_ref().map_or(0, |input| json!(input).to_string().len());
    if bytes <= MAX_INPUT_BYTES {
        return entry;
    }
    let short = [("$truncated", json!(true)), ("bytes", json!(bytes)), ("entry", json!(entry.seq))];
    Entry { input: Some(short.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()), ..entry }
}

impl OpenSession {
    /// Returns the events that a gate would have recorded if it had ended the session.
    fn closing_events(&self) -> Vec<Event> {
        let mut calls: Vec<&Entry> = self.calls.values().collect();
        calls.sort_by_key(|call| call.seq);
        let mut events: Vec<Event> = calls.into_iter().map(interrupted_call).collect();
        if self.is_working {
            events.push(self.state_event("operator.interrupted"));
        }
        events.push(self.state_event("session.closed"));
        events
    }

    fn state_event(&self, action: &str) -> Event {
        let reference = self.first.subject.reference.clone();
        let subject = Subject { kind: "session".to_owned(), reference, path: None };
        let mut event = event_like(&self.first, action, subject, &[]);
        event.facts.insert("kind", "state");
        event.facts.insert("reason", REASON);
        event
    }
}

fn interrupted_call(decision: &Entry) -> Event {
    let mut event = event_like(decision, "tool.call", decision.subject.clone(), &CALL_FIELDS);
    event.facts.insert("kind", "tool-call");
    event.facts.insert("reason", REASON);
    Event {
        input: decision.input.clone().map(Value::Object),
        output: Some(json!({"error": "interrupted"})),
        policy: decision.policy.clone(),
        signatures: decision.signatures.clone(),
        ..event
    }
}

/// Returns an event of the same session as `entry`. Copies the common fields of a session and those in
/// `more`.
fn event_like(entry: &Entry, action: &str, subject: Subject, more: &[&'static str]) -> Event {
    let mut event =
        Event { actor: entry.actor.clone(), action: action.to_owned(), subject, ..Event::default() };
    for name in SESSION_FIELDS.iter().chain(more) {
        if let Some(value) = entry.aip44(name) {
            event.facts.insert(name, Fact::from(value.clone()));
        }
    }
    event
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use narrows_audit::{Actor, Facts, LogOptions, PolicyRef};

    use super::*;

    /// Returns an event of a gate. `text` is `action[=decision] [call]`.
    fn line(identity: &'static str, text: &'static str) -> Event {
        let (what, call) = text.split_once(' ').unwrap_or((text, ""));
        let (action, decision) = what.split_once('=').unwrap_or((what, ""));
        let mut facts = Facts::new();
        for (name, value) in [("operator", "notes"), ("session", "1"), ("identity", identity), ("tier", "t")]
        {
            facts.insert(name, value);
        }
        if !call.is_empty() {
            facts.insert("toolCallId", call);
            facts.insert("tool", "Bash");
        }
        let decision = decision.parse().ok();
        Event {
            actor: Actor { id: "operator:notes".into(), role: None },
            action: action.to_owned(),
            subject: Subject { kind: "session".into(), reference: Some("1".into()), path: None },
            input: Some(json!({"command": "ls"})),
            policy: decision.map(|decision| PolicyRef { reference: "few".into(), decision: Some(decision) }),
            facts,
            ..Event::default()
        }
    }

    /// Checks which events are added to a log with the events `before`. Each expected event is `identity
    /// action [call] [output]`.
    #[track_caller]
    fn check(before: &[(&'static str, &'static str)], expected: &[&str]) {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit-log.jsonl");
        let log = Log::open(&path, LogOptions::default()).unwrap();
        for (identity, text) in before {
            log.append(line(identity, text)).wait().unwrap();
        }
        let presence = GatePresence::announce(&log, &path).unwrap();
        assert_eq!(presence.closed, expected.len());
        // A process that starts while this process lives adds nothing. A process that starts later finds
        // nothing to add.
        assert_eq!(GatePresence::announce(&log, &path).unwrap().closed, 0);
        drop(presence);
        assert_eq!(GatePresence::announce(&log, &path).unwrap().closed, 0);
        log.close();
        let mut reader = LogReader::open(&path, Filter::default()).unwrap();
        let mut found = Vec::new();
        while let Some(entry) = reader.next_entry().unwrap() {
            let text = |key: &str| entry.aip44(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            let output =
                entry.output.as_ref().map(|output| format!(" {}", output["error"])).unwrap_or_default();
            let call =
                Some(text("toolCallId")).filter(|call| !call.is_empty()).map(|call| format!(" {call}"));
            found.push(format!("{} {}{}{output}", text("identity"), entry.action, call.unwrap_or_default()));
        }
        assert_eq!(found[before.len()..], *expected);
    }

    #[test]
    fn unfinished_work_of_a_killed_gate_is_closed_once() {
        check(
            &[
                ("ada", "operator.invoked"),
                ("ada", "operator.running"),
                ("ada", "policy.resolved=allow a"),
                ("ada", "tool.call=allow a"),
                ("ada", "policy.resolved=allow b"),
                ("ada", "policy.resolved=require-approval c"),
            ],
            &["ada tool.call b \"interrupted\"", "ada operator.interrupted", "ada session.closed"],
        );
    }

    #[test]
    fn closed_denied_and_undecided_calls_stay_unchanged() {
        check(
            &[
                ("ada", "operator.invoked"),
                ("ada", "operator.running"),
                ("ada", "policy.resolved=allow a"),
                ("ada", "session.closed"),
            ],
            &[],
        );
        check(
            &[("ada", "operator.invoked"), ("ada", "policy.resolved=deny a"), ("ada", "operator.completed")],
            &["ada session.closed"],
        );
    }

    #[test]
    fn a_silent_turn_is_closed() {
        check(
            &[("ada", "operator.invoked"), ("ada", "prompt.accepted")],
            &["ada operator.interrupted", "ada session.closed"],
        );
        check(
            &[("ada", "operator.invoked"), ("ada", "prompt.accepted"), ("ada", "operator.completed")],
            &["ada session.closed"],
        );
    }

    /// Many calls are closed in few commits, in their order.
    #[test]
    fn many_calls_are_closed_together() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit-log.jsonl");
        let commits = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&commits);
        let observer: narrows_audit::CommitObserver =
            Arc::new(move |_| _ = counted.fetch_add(1, Ordering::Relaxed));
        let options = LogOptions {
            observer: Some(observer),
            window: std::time::Duration::from_millis(20),
            queue_bytes: 100_000,
            max_line: 50_000,
            ..LogOptions::default()
        };
        let log = Log::open(&path, options).unwrap();
        let call = |number: usize| {
            let mut event = line("ada", "policy.resolved=allow a");
            event.facts.insert("toolCallId", format!("call-{number:05}"));
            let long = if number == 7 { "x".repeat(5000) } else { "ls".to_owned() };
            Event { input: Some(json!({"command": long})), ..event }
        };
        let events = std::iter::once(line("ada", "operator.invoked")).chain((0..2000).map(call)).collect();
        append_all(&log, events).unwrap();
        commits.store(0, Ordering::Relaxed);
        assert_eq!(GatePresence::announce(&log, &path).unwrap().closed, 2001);
        assert!(commits.load(Ordering::Relaxed) < 200, "{commits:?}");
        let mut reader = LogReader::open(&path, Filter::default()).unwrap();
        let entries: Vec<Entry> = std::iter::from_fn(|| reader.next_entry().unwrap()).skip(2001).collect();
        for (number, entry) in entries[..2000].iter().enumerate() {
            assert_eq!(entry.aip44("toolCallId"), Some(&json!(format!("call-{number:05}"))));
        }
        assert_eq!(json!(entries[7].input), json!({"$truncated": true, "bytes": 5014, "entry": 8}));
        assert_eq!(entries[2000].action, "session.closed");
    }

    #[test]
    fn the_lock_does_not_follow_a_link() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit-log.jsonl");
        let log = Log::open(&path, LogOptions::default()).unwrap();
        let elsewhere = home.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, GatePresence::path(&path)).unwrap();
        assert!(GatePresence::announce(&log, &path).is_err());
        assert!(!elsewhere.exists());
    }

    #[test]
    fn sessions_with_equal_names_are_distinguished_by_identity() {
        check(
            &[
                ("ada", "operator.invoked"),
                ("bob", "operator.invoked"),
                ("ada", "policy.resolved=allow a"),
                ("bob", "policy.resolved=allow a"),
                ("bob", "tool.call=allow a"),
                ("bob", "session.closed"),
            ],
            &["ada tool.call a \"interrupted\"", "ada session.closed"],
        );
    }

    #[test]
    fn nothing_is_closed_while_another_gate_lives() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit-log.jsonl");
        let log = Log::open(&path, LogOptions::default()).unwrap();
        let other = GatePresence::announce(&log, &path).unwrap();
        for text in ["operator.invoked", "policy.resolved=allow a"] {
            log.append(line("ada", text)).wait().unwrap();
        }
        assert_eq!(GatePresence::announce(&log, &path).unwrap().closed, 0);
        drop(other);
        assert_eq!(GatePresence::announce(&log, &path).unwrap().closed, 2);
    }
}
