//! Notes: entries that the log writes about itself.

use serde_json::{Value, json};

use crate::clock::{ClockJump, format_timestamp};
use crate::draft::Draft;
use crate::event::{Actor, Event, Subject};
use crate::redact::Redaction;
use crate::verify::BadLine;

const AUDIT_ACTOR: &str = "system:audit";

pub(super) fn clock_jump(jump: ClockJump) -> Option<Draft> {
    let ClockJump { expected, found } = jump;
    let by = found.saturating_sub(expected);
    new_note(
        None,
        json!({"kind": "clock-jump", "expected": format_timestamp(expected), "found": format_timestamp(found), "byMs": by}),
    )
}

/// Returns a note that unacknowledged data was removed from the end of the log.
pub(super) fn truncation(bad: &BadLine, bytes: u64) -> Option<Draft> {
    new_note(Some(&bad.segment), json!({"kind": "torn-tail-cut", "offset": bad.offset, "bytes": bytes}))
}

/// Returns a note that a file was replaced by a copy of its valid part, because a sync failed.
pub(super) fn replacement(segment: &str) -> Option<Draft> {
    new_note(Some(segment), json!({"kind": "sync-failed", "action": "segment sealed"}))
}

fn new_note(segment: Option<&str>, note: Value) -> Option<Draft> {
    let event = Event {
        actor: Actor { id: AUDIT_ACTOR.into(), role: Some("system".into()) },
        action: "audit.note".into(),
        subject: Subject { kind: "audit-log".into(), reference: segment.map(str::to_owned), path: None },
        metadata: [("note".to_owned(), note)].into_iter().collect(),
        ..Event::default()
    };
    // A note is too long only if the file name of the log is very long. The note is then left out.
    Draft::new(event, &Redaction::default(), 1 << 20).ok()
}
