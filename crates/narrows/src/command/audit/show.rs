//! `narrows audit show`: the entries of a log.

use std::process::ExitCode;

use narrows_audit::{Entry, Filter, ReadError, Reader, jcs};
use serde_json::{Value, json};

use crate::cli::{AuditFormat, AuditShow};
use crate::failure::{Code, Failure};
use crate::output;
use crate::terminal::long_line;

/// How long a line for people may be.
const LONGEST: usize = 1000;

/// Prints what is wanted, and goes on if that is wanted, too.
pub(super) fn execute(args: &AuditShow) -> Result<ExitCode, Failure> {
    let path = super::file(&args.path);
    let filter = Filter {
        session: args.session.clone(),
        tool: args.tool.clone(),
        decision: args.decision,
        text: None,
    };
    let mut reader = Reader::open(&path, filter).map_err(|error| match error {
        ReadError::Io { source, .. } => Failure::audit_log(&path, &source),
        error => Failure::audit_entry(&error),
    })?;
    loop {
        let next = if args.follow { reader.follow().map(Some) } else { reader.next_entry() };
        let Some(entry) = next.map_err(|error| Failure::audit_entry(&error))? else {
            return Ok(Code::Success.exit());
        };
        let text = match args.format {
            AuditFormat::Text => Some(text(&entry)),
            AuditFormat::Json => canonical(&json!(entry)),
            AuditFormat::Aip44 => aip44(&entry).and_then(|object| canonical(&object)),
        };
        if let Some(text) = text {
            output::print(format!("{text}\n").as_bytes())?;
        }
    }
}

/// What is nested too deeply is in no log.
fn canonical(value: &Value) -> Option<String> {
    String::from_utf8(jcs::to_vec(value).ok()?).ok()
}

/// A line for people.
fn text(entry: &Entry) -> String {
    let subject = [Some(&entry.subject.kind), entry.subject.reference.as_ref(), entry.subject.path.as_ref()];
    let subject = subject.into_iter().flatten().cloned().collect::<Vec<_>>().join(" ");
    let mut parts = vec![
        format!("{:>6}", entry.seq),
        entry.ts.clone(),
        entry.action.clone(),
        subject,
        entry.actor.id.clone(),
    ];
    if let Some(policy) = &entry.policy {
        parts.push(match policy.decision {
            Some(decision) => format!("{decision} ({})", policy.reference),
            None => policy.reference.clone(),
        });
    }
    if entry.subject.kind != "session"
        && let Some(session) = entry.session()
    {
        parts.push(format!("session {session}"));
    }
    if let Some(error) = entry.output.as_ref().and_then(|output| output.get("error")) {
        parts.push(format!("error {error}"));
    }
    // What was noted about the log itself is nowhere else.
    if let Some(note) = entry.metadata.get("note") {
        parts.push(note.to_string());
    }
    // The number is aligned, and would not be at the beginning of a trimmed line.
    let width = parts[0].len();
    format!("{}{}", &parts[0][..width - entry.seq.to_string().len()], long_line(&parts.join("  "), LONGEST))
}

/// The object of seven fields; nothing if it is no call of a tool.
fn aip44(entry: &Entry) -> Option<Value> {
    if entry.aip44("kind").and_then(Value::as_str) != Some("tool-call") {
        return None;
    }
    Some(json!({
        "audit-event-kind": "tool-call",
        "operator": entry.aip44("operator"),
        "session": entry.session(),
        "tool": entry.tool(),
        "arguments": entry.input,
        "result": entry.output,
        "approval": entry.aip44("approval"),
    }))
}
