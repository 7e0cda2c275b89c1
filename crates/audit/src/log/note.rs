//! What the log says about itself.

use serde_json::{Value, json};

use crate::clock::{Jump, written};
use crate::draft::Draft;
use crate::event::{Actor, Event, Subject};
use crate::redact::Redaction;
use crate::verify::Bad;

/// Who notes.
const ACTOR: &str = "system:audit";

/// The clock on the wall has jumped.
pub(super) fn jump(jump: Jump) -> Option<Draft> {
    let Jump { expected, found } = jump;
    let by = found.saturating_sub(expected);
    note(
        None,
        json!({"kind": "clock-jump", "expected": written(expected), "found": written(found), "byMs": by}),
    )
}

/// The end of a file was cut, because what was there was never acknowledged.
pub(super) fn cut(bad: &Bad, bytes: u64) -> Option<Draft> {
    note(Some(&bad.segment), json!({"kind": "torn-tail-cut", "offset": bad.offset, "bytes": bytes}))
}

/// A file was replaced by a copy of what is known to be good in it.
pub(super) fn replaced(segment: &str) -> Option<Draft> {
    note(Some(segment), json!({"kind": "sync-failed", "action": "segment sealed"}))
}

fn note(segment: Option<&str>, note: Value) -> Option<Draft> {
    let event = Event {
        actor: Actor { id: ACTOR.into(), role: Some("system".into()) },
        action: "audit.note".into(),
        subject: Subject { kind: "audit-log".into(), reference: segment.map(str::to_owned), path: None },
        metadata: [("note".to_owned(), note)].into_iter().collect(),
        ..Event::default()
    };
    // It keeps to the limits, unless the name of the log does not; then the note is not worth the log.
    Draft::new(event, &Redaction::default(), 1 << 20).ok()
}
