//! `narrows policy test`: a recorded run, judged once more.

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

use super::{Court, replay};
use crate::cli::Test;
use crate::failure::{Code, Failure};
use crate::output;
use crate::terminal::line;

/// A request that was judged twice.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Judged {
    request_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<Arc<str>>,
    title: String,
    /// What the rules of then said.
    was: String,
    /// What these rules say.
    now: Verdict,
    changed: bool,
    /// Why, in words.
    words: String,
    decision: Decision,
}

/// What a record comes to.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    requests: Vec<Judged>,
    /// Requests that no rule decided, then or now.
    unjudged: usize,
    /// Requests whose answer is not in the record.
    unanswered: usize,
    events: usize,
    /// Lines that are no events.
    unknown_lines: usize,
}

/// Judges the record.
pub(super) fn execute(args: &Test) -> Result<ExitCode, Failure> {
    let court = Court::new(Some(&args.file), &args.circumstances)?;
    let outcome = read(&court, &args.events).map_err(|error| Failure::record(&args.events, &error))?;
    if outcome.events == 0 {
        return Err(Failure::no_record(&args.events));
    }
    let changed = outcome.requests.iter().filter(|judged| judged.changed).count();
    if args.circumstances.json {
        let mut value = json!(outcome);
        value["changed"] = changed.into();
        output::print_json(value)?;
    } else {
        output::print(outcome.text(changed).as_bytes())?;
    }
    Ok(if changed > 0 && !args.allow_changes { ExitCode::FAILURE } else { Code::Success.exit() })
}

fn read(court: &Court, path: &Path) -> io::Result<Outcome> {
    let mut lines: Box<dyn BufRead> = match path.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => Box::new(BufReader::new(File::open(path)?)),
    };
    let mut record = Record { court, outcome: Outcome::default(), open: HashMap::new() };
    let mut text = Vec::new();
    while lines.read_until(b'\n', &mut text)? > 0 {
        record.line(text.trim_ascii());
        text.clear();
    }
    record.outcome.unanswered += record.open.len();
    Ok(record.outcome)
}

/// A record that is being read.
struct Record<'a> {
    court: &'a Court,
    outcome: Outcome,
    /// Requests whose answer is yet to come, by session and id.
    open: HashMap<(Option<Arc<str>>, String), Box<PermissionRequested>>,
}

impl Record<'_> {
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
                // Asked again before it was answered: the one before never will be.
                self.outcome.unanswered += usize::from(self.open.insert(key, asked).is_some());
            }
            Payload::PermissionResolved(told) => {
                let key = (event.session_id, told.request_id.clone());
                if let Some(asked) = self.open.remove(&key) {
                    self.answered(key.0, &asked, &told);
                }
            }
            _ => {}
        }
    }

    fn answered(
        &mut self,
        session_id: Option<Arc<str>>,
        asked: &PermissionRequested,
        told: &PermissionResolved,
    ) {
        let was = told.decision.as_ref().and_then(|decision| ruled(&decision.value()));
        let (Some(was), Some(decision)) = (was, replay::decide(self.court, asked)) else {
            self.outcome.unjudged += 1;
            return;
        };
        let is_partial = asked.truncated || asked.problem.is_some();
        let words = match is_partial && decision.verdict == Verdict::Ask {
            true => "not all of it is known, so no rule lets it pass".to_owned(),
            false => decision.because.to_string(),
        };
        self.outcome.requests.push(Judged {
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

/// What the rules said, if it was they who decided.
fn ruled(decision: &Value) -> Option<String> {
    // While a turn is being cancelled everything is refused.
    if decision["because"]["by"] == "cancelling" {
        return None;
    }
    decision.get("verdict").and_then(Value::as_str).map(str::to_owned)
}

fn title(asked: &PermissionRequested) -> String {
    let title = asked.title.as_ref().or(asked.command.as_ref()).or(asked.tool_name.as_ref());
    title.cloned().unwrap_or_else(|| "something without a title".to_owned())
}

impl Outcome {
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
        _ = writeln!(text, "verdicts that differ: {changed} of {}", self.requests.len());
        for (words, count) in [
            ("requests that no rule decided", self.unjudged),
            ("requests without an answer", self.unanswered),
            ("lines that are no events", self.unknown_lines),
        ] {
            if count > 0 {
                _ = writeln!(text, "{words}: {count}");
            }
        }
        text
    }
}
