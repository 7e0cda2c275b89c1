//! `narrows audit show`: prints the entries of a log.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use narrows_audit::verify::{self, LineForm, VerifyOptions, VerifyProblem};
use narrows_audit::{Entry, Filter, LogReader, ReadError, jcs};
use narrows_base::text::{escape_json, one_line};
use serde_json::{Value, json};

use crate::cli::{AuditFormat, AuditShow};
use crate::failure::{ExitStatus, Failure};
use crate::output;

const MAX_LINE_CHARS: usize = 1000;

pub(super) fn execute(args: &AuditShow) -> Result<ExitCode, Failure> {
    let path = super::file(&args.path);
    let filter = Filter {
        session: args.session.clone(),
        tool: args.tool.clone(),
        decision: args.decision,
        text: None,
    };
    let mut reader = LogReader::open(&path, filter).map_err(|error| match error {
        ReadError::Io { source, .. } => Failure::audit_log_unreadable(&path, &source),
        error => Failure::audit_entry_unreadable(&error),
    })?;
    warn(&path);
    loop {
        let next = if args.follow { reader.follow().map(Some) } else { reader.next_entry() };
        let Some(entry) = next.map_err(|error| Failure::audit_entry_unreadable(&error))? else {
            return Ok(ExitStatus::Success.exit_code());
        };
        let text = match args.format {
            AuditFormat::Text => Some(text(&entry)),
            AuditFormat::Json => canonical(&json!(entry)),
            AuditFormat::Aip44 => aip44(&entry).and_then(|object| canonical(&object)),
        };
        // When a program reads the output, entries keep the canonical form that was hashed.
        let text = if std::io::stdout().is_terminal() { text.map(escape_json) } else { text };
        if let Some(text) = text {
            output::print(format!("{text}\n").as_bytes())?;
        }
    }
}

/// Prints a warning that names the first invalid line of a log. Entries are shown all the same.
fn warn(path: &Path) {
    let options = VerifyOptions { form: LineForm::Any, ..VerifyOptions::default() };
    // Read errors are reported by the caller.
    let Ok(report) = verify::log(path, &options) else { return };
    // A torn last line is no reason for a warning: another process may still be writing it.
    let Some(bad) = report.bad.filter(|bad| bad.why != VerifyProblem::TornTail) else { return };
    let place = if bad.line == 0 { String::new() } else { format!(" from entry {} on", bad.seq) };
    let told = format!(
        "{}: the log does not verify{place} ({}: {}); run `narrows audit verify` for details",
        path.display(),
        bad.why,
        bad.detail
    );
    output::warn(&told);
}

/// Returns the canonical JSON of an entry. `None` for a value that is nested too deeply, which no entry is.
fn canonical(value: &Value) -> Option<String> {
    String::from_utf8(jcs::to_vec(value).ok()?).ok()
}

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
    parts.extend(target(entry));
    if let Some(approval) = approval(entry) {
        parts.push(approval);
    }
    let about = |key: &str| entry.aip44(key).and_then(Value::as_str).filter(|words| !words.is_empty());
    parts.extend(about("identity").map(|who| format!("for {who}")));
    let is_about_method = entry.action.starts_with("method.") || entry.action == "agent.violation";
    let input = entry.input.as_ref().filter(|_| is_about_method);
    let input = |key: &str| input.and_then(|input| input.get(key)?.as_str());
    parts.extend(about("method").or(input("method")).map(|method| format!("method {method}")));
    parts.extend(input("claimedSession").map(|session| format!("claimed session {session}")));
    parts.extend(about("code").map(|code| format!("code {code}")));
    // A denial by the policy itself, without an approver, has its reason in `refused`.
    let refused = entry.aip44("approval").and_then(|approval| approval.get("refused")?.as_str());
    let reason = about("reason").filter(|reason| refused != Some(reason));
    parts.extend(reason.map(|reason| format!("reason: {reason}")));
    if entry.subject.kind != "session"
        && let Some(session) = entry.session()
    {
        parts.push(format!("session {session}"));
    }
    if let Some(error) = entry.output.as_ref().and_then(|output| output.get("error")) {
        parts.push(format!("error {error}"));
    }
    // The note of an entry about the log itself is in no other field.
    if let Some(note) = entry.metadata.get("note") {
        parts.push(note.to_string());
    }
    // The number is cut from the untrimmed text, because trimming would remove the spaces that align it.
    let width = parts[0].len();
    format!(
        "{}{}",
        &parts[0][..width - entry.seq.to_string().len()],
        one_line(&parts.join("  "), MAX_LINE_CHARS)
    )
}

/// Returns the subject of a call: the file, command or URL in its input.
fn target(entry: &Entry) -> Option<String> {
    let input = entry.input.as_ref()?;
    let words = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(words) => {
            let words: Option<Vec<&str>> = words.iter().map(Value::as_str).collect();
            words.filter(|words| !words.is_empty()).map(|words| words.join(" "))
        }
        _ => None,
    };
    let keys = ["path", "file_path", "filePath", "command", "url", "uri", "cwd", "locations"];
    let found = keys.iter().find_map(|key| words(input.get(*key)?).map(|words| (key, words)));
    found.map(|(key, words)| match *key {
        "command" => format!("$ {words}"),
        _ => words,
    })
}

/// Returns the approver of a call, or the reason why the call was not approved.
fn approval(entry: &Entry) -> Option<String> {
    let told = entry.aip44("approval")?;
    if let Some(why) = told.get("refused").and_then(Value::as_str) {
        return Some(format!("not approved: {why}"));
    }
    Some(match told.as_str()? {
        "auto" => "by policy".to_owned(),
        "pending" => "approval pending".to_owned(),
        who => format!("approved by {who}"),
    })
}

/// Returns the `aip44` object of an entry about a tool call.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &Value, approval: &Value, expected: &str) {
        let entry = json!({
            "$schema": "s", "doctype": "d", "seq": 7, "ts": "T", "action": "policy.resolved", "actor": {"id": "operator:tidy"},
            "subject": {"kind": "tool", "ref": "Bash"}, "input": input,
            "policy": {"ref": "runs", "decision": "deny"}, "prevHash": "p", "hash": "h",
            "metadata": {"aip44": {"session": "s", "identity": "user:ada", "approval": approval, "reason": "deny: so"}},
        });
        let entry: Entry = serde_json::from_value(entry).expect("an entry");
        assert_eq!(
            text(&entry),
            format!("     7  T  policy.resolved  tool Bash  operator:tidy  deny (runs)  {expected}")
        );
    }

    #[test]
    fn a_line_names_subject_decider_client_and_reason() {
        let rest = "for user:ada  reason: deny: so  session s";
        check(
            &json!({"path": "/w/a"}),
            &json!({"refused": "not approved in time"}),
            &format!("/w/a  not approved: not approved in time  {rest}"),
        );
        check(
            &json!({"command": ["rm", "-r", "x"]}),
            &json!("user:lead, user:bob"),
            &format!("$ rm -r x  approved by user:lead, user:bob  {rest}"),
        );
        check(&json!({"locations": ["/a", "/b"]}), &json!("auto"), &format!("/a /b  by policy  {rest}"));
        check(
            &json!({"n": 1}),
            &json!({"refused": "deny: so"}),
            "not approved: deny: so  for user:ada  session s",
        );
        check(&json!({"n": 1}), &json!("pending"), &format!("approval pending  {rest}"));
        check(
            &json!({"url": "http://x/\u{1b}[2J"}),
            &json!("auto"),
            &format!("http://x/\\u{{1b}}[2J  by policy  {rest}"),
        );
    }

    #[test]
    fn a_line_about_a_method_names_the_method() {
        let check = |action: &str, input: &Value, expected: &str| {
            let entry = json!({
                "$schema": "s", "doctype": "d", "seq": 7, "ts": "T", "action": action, "actor": {"id": "c"},
                "subject": {"kind": "session", "ref": "s"}, "input": input, "prevHash": "p", "hash": "h",
                "metadata": {"aip44": {"session": "s", "code": "x"}},
            });
            let entry: Entry = serde_json::from_value(entry).expect("an entry");
            assert_eq!(text(&entry), format!("     7  T  {action}  session s  c  {expected}"));
        };
        let input = json!({"method": "_session/steering", "bytes": 2});
        check("method.refused", &input, "method _session/steering  code x");
        check("method.allowed", &input, "method _session/steering  code x");
        let input = json!({"method": "session/update", "claimedSession": "t"});
        check("agent.violation", &input, "method session/update  claimed session t  code x");
        // A member `method` in the input of a tool does not name a protocol method.
        check("tool.refused", &input, "code x");
    }
}
