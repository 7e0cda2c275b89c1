//! `narrows policy test`: evaluates the requests of a recorded run again.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use narrows_client::{EventBody, Payload, PermissionRequested, PermissionResolved, RuntimeEvent};
use narrows_policy::{Decision, Verdict};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Evaluator, replay};
use crate::cli::Test;
use crate::failure::{ExitStatus, Failure};
use crate::output;
use crate::terminal::line;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReplayedRequest {
    request_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<Arc<str>>,
    title: String,
    was: String,
    now: Verdict,
    changed: bool,
    words: String,
    decision: Decision,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReplayResult {
    requests: Vec<ReplayedRequest>,
    /// The number of requests that rules did not decide, in the recorded run or now.
    unjudged: usize,
    unanswered: usize,
    events: usize,
    /// The number of lines that are not events.
    unknown_lines: usize,
}

pub(super) fn execute(args: &Test) -> Result<ExitCode, Failure> {
    let evaluator = Evaluator::new(Some(&args.file), &args.circumstances)?;
    let outcome =
        read(&evaluator, &args.events).map_err(|error| Failure::record_unreadable(&args.events, &error))?;
    if outcome.events == 0 {
        return Err(Failure::not_a_record(&args.events));
    }
    let changed = outcome.requests.iter().filter(|judged| judged.changed).count();
    if args.circumstances.json {
        let mut value = json!(outcome);
        value["changed"] = changed.into();
        output::print_json(value)?;
    } else {
        output::print(outcome.text(changed).as_bytes())?;
    }
    Ok(if changed > 0 && !args.allow_changes { ExitCode::FAILURE } else { ExitStatus::Success.exit_code() })
}

fn read(evaluator: &Evaluator, path: &Path) -> io::Result<ReplayResult> {
    let mut lines: Box<dyn BufRead> = match path.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => Box::new(BufReader::new(File::open(path)?)),
    };
    let mut record = RecordReader { evaluator, outcome: ReplayResult::default(), open: HashMap::new() };
    let mut text = Vec::new();
    while lines.read_until(b'\n', &mut text)? > 0 {
        record.line(text.trim_ascii());
        text.clear();
    }
    record.outcome.unanswered += record.open.len();
    Ok(record.outcome)
}

struct RecordReader<'a> {
    evaluator: &'a Evaluator,
    outcome: ReplayResult,
    open: HashMap<(Option<Arc<str>>, String), Box<PermissionRequested>>,
}

impl RecordReader<'_> {
    fn line(&mut self, text: &[u8]) {
        if text.is_empty() {
            return;
        }
        let Ok(event) = serde_json::from_slice::<RuntimeEvent>(text) else {
            self.outcome.unknown_lines += 1;
            return;
        };
        self.outcome.events += 1;
        let EventBody::Provider { payload, .. } = event.body else { return };
        match payload {
            Payload::PermissionRequested(asked) => {
                let key = (event.session_id, asked.request_id.clone());
                // Another request has the same id, so the earlier one has no answer.
                self.outcome.unanswered += usize::from(self.open.insert(key, asked).is_some());
            }
            Payload::PermissionResolved(told) => {
                let key = (event.session_id, told.request_id.clone());
                if let Some(asked) = self.open.remove(&key) {
                    self.on_answer(key.0, &asked, &told);
                }
            }
            _ => {}
        }
    }

    fn on_answer(
        &mut self,
        session_id: Option<Arc<str>>,
        asked: &PermissionRequested,
        told: &PermissionResolved,
    ) {
        let was = told.decision.as_ref().and_then(|decision| recorded_decision(&decision.value()));
        let (Some(was), Some(decision)) = (was, replay::decide(self.evaluator, asked)) else {
            self.outcome.unjudged += 1;
            return;
        };
        let is_partial = asked.truncated || asked.problem.is_some();
        let words = match is_partial && decision.verdict == Verdict::Ask {
            true => "the request is not fully known, so no rule can allow it".to_owned(),
            false => decision.because.to_string(),
        };
        self.outcome.requests.push(ReplayedRequest {
            request_id: asked.request_id.clone(),
            session_id,
            title: title(asked),
            changed: was != decision.verdict.name(),
            was,
            now: decision.verdict,
            words,
            decision,
        });
    }
}

/// Returns the recorded decision, if rules made it.
fn recorded_decision(decision: &Value) -> Option<String> {
    // A cancelled turn denies all its requests.
    if decision["because"]["by"] == "cancelling" {
        return None;
    }
    decision.get("verdict").and_then(Value::as_str).map(str::to_owned)
}

fn title(asked: &PermissionRequested) -> String {
    let title = asked.title.as_ref().or(asked.command.as_ref()).or(asked.tool_name.as_ref());
    title.cloned().unwrap_or_else(|| "(no title)".to_owned())
}

impl ReplayResult {
    fn text(&self, changed: usize) -> String {
        let mut text = String::new();
        for judged in &self.requests {
            let (mark, was) = match judged.changed {
                true => ('!', format!("{} -> ", line(&judged.was))),
                false => ('=', String::new()),
            };
            _ = writeln!(text, "{mark} {was}{}: {}", judged.now, line(&judged.title));
            if judged.changed {
                _ = writeln!(text, "    {}", line(&judged.words));
            }
        }
        _ = writeln!(text, "decisions that differ: {changed} of {}", self.requests.len());
        for (words, count) in [
            ("requests not decided by rules", self.unjudged),
            ("requests without an answer", self.unanswered),
            ("lines that are not events", self.unknown_lines),
        ] {
            if count > 0 {
                _ = writeln!(text, "{words}: {count}");
            }
        }
        text
    }
}
