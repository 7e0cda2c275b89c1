//! Tests of the log through its public interface: on a disk that works, on a disk that fails, and with killed
//! processes.

mod crash;
mod faults;
mod follow;
mod kill;
mod memory;
mod schema;
mod secrets;
mod shared;
mod time;

use std::path::Path;

use narrows_audit::{Actor, Event, Subject, verify};
use serde_json::json;

/// Returns an event with this number, of at least this length.
fn event(number: usize, length: usize) -> Event {
    Event {
        actor: Actor { id: "operator:test".into(), role: Some("operator".into()) },
        action: "tool.call".into(),
        subject: Subject { kind: "tool".into(), reference: Some(format!("tool-{}", number % 3)), path: None },
        input: Some(json!({"number": number, "text": "x ".repeat(length / 2)})),
        ..Event::default()
    }
}

/// Returns the number of entries of the log at `path`, and its problem.
fn verified(path: &Path) -> (u64, Option<verify::BadLine>) {
    let report = verify::log(path, &verify::VerifyOptions::default()).expect("readable");
    (report.entries, report.bad)
}
