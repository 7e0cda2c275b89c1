//! `narrows policy explain`: evaluates one request and explains the decision.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use narrows_client::follow_links;
use narrows_policy::{Action, Command, Explanation, Kind, Verdict};
use serde_json::json;

use super::Evaluator;
use crate::cli::{Explain, Wanted};
use crate::failure::{ExitStatus, Failure};
use crate::output;
use crate::terminal::line;

pub(super) fn execute(args: &Explain) -> Result<ExitCode, Failure> {
    let evaluator = Evaluator::new(args.file.as_deref(), &args.circumstances)?;
    let mut action = action(&args.wanted, &args.request);
    // Relative paths start at the first root.
    let here = evaluator.roots.first().cloned().unwrap_or_default();
    let is_followed = follow_links(&mut action, &here, &evaluator.files).is_ok();
    let mut explanation = evaluator.policy.explain(&action, &evaluator.request_context());
    if !is_followed {
        // The target of the path is unknown, so the decision is at least `ask`, whatever the rules say.
        explanation.decision.verdict = explanation.decision.verdict.max(Verdict::Ask);
    }
    let outside = outside(&args.wanted.path, &action, &evaluator);
    let notes = notes(&outside, &action, &explanation);
    if args.circumstances.json {
        let mut object = as_json(&evaluator, &explanation);
        object["outside"] = json!(outside);
        object["notes"] = json!(notes);
        output::print_json(object)?;
    } else {
        let notes: String = notes.iter().map(|note| format!("note: {note}\n")).collect();
        output::print(format!("{explanation}{notes}").as_bytes())?;
    }
    Ok(ExitStatus::Success.exit_code())
}

/// Returns the paths of a file request that are outside the session's directories. The client refuses those
/// before it asks the policy.
fn outside(named: &[PathBuf], action: &Action, evaluator: &Evaluator) -> Vec<PathBuf> {
    if action.command.is_some() || !matches!(action.kind, Kind::Read | Kind::Edit) {
        return Vec::new();
    }
    let here = evaluator.roots.first().cloned().unwrap_or_default();
    let absolute = |path: &PathBuf| match (path.strip_prefix("~"), evaluator.policy.home()) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => here.join(path),
    };
    let is_outside =
        |path: &PathBuf| !evaluator.roots.iter().any(|root| resolve_links(path).starts_with(root));
    named.iter().map(absolute).filter(is_outside).collect()
}

/// Returns `path` without links, as far as it exists.
fn resolve_links(path: &Path) -> PathBuf {
    let known = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    match known {
        Some((above, real)) => path.strip_prefix(above).map_or(real.clone(), |rest| real.join(rest)),
        None => path.to_owned(),
    }
}

fn notes(outside: &[PathBuf], action: &Action, explanation: &Explanation) -> Vec<String> {
    let mut notes = Vec::new();
    if explanation.decision.verdict == Verdict::Deny {
        return notes;
    }
    if let [first, ..] = outside {
        notes.push(format!(
            "the client's file service only reaches the session's directories, and {} is outside; add one with \
             --add-dir DIR",
            line(&first.display().to_string())
        ));
    }
    let strict = explanation.rules.iter().filter(|looked| looked.effect != Verdict::Allow && !looked.matched);
    if action.command.is_some() && strict.into_iter().any(|looked| looked.why.starts_with("its `kind`")) {
        notes.push(
            "a command has kind execute, whatever it does to files; a rule with `command` matches it"
                .to_owned(),
        );
    }
    notes
}

fn as_json(evaluator: &Evaluator, explanation: &Explanation) -> serde_json::Value {
    let Explanation { decision, parts, rules } = explanation;
    json!({
        "verdict": decision.verdict,
        "because": decision.because,
        "about": decision.about,
        "words": decision.to_string(),
        "parts": parts,
        "rules": rules,
        "access": evaluator.policy.access(),
        "roots": evaluator.roots,
        "confined": evaluator.confined,
    })
}

fn action(wanted: &Wanted, request: &[String]) -> Action {
    let command = match request {
        [] => None,
        [line] if line.contains(char::is_whitespace) => Some(Command::Shell(line.clone())),
        words => Some(Command::Argv(words.to_vec())),
    };
    let kind = match wanted.kind {
        Some(kind) => kind,
        None if command.is_some() => Kind::Execute,
        None if !wanted.url.is_empty() => Kind::Fetch,
        None if !wanted.path.is_empty() => Kind::Read,
        None => Kind::Other,
    };
    Action {
        tool: wanted.tool.clone(),
        server: wanted.server.clone(),
        paths: wanted.path.clone(),
        urls: wanted.url.clone(),
        command,
        ..Action::new(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(wanted: &Wanted, request: &[&str], expected: &Action) {
        let request: Vec<String> = request.iter().map(|word| (*word).to_owned()).collect();
        assert_eq!(action(wanted, &request), *expected, "{wanted:?} {request:?}");
    }

    #[test]
    fn a_request_comes_from_a_command_or_from_flags() {
        let argv = |words: &[&str]| Command::Argv(words.iter().map(|word| (*word).to_owned()).collect());
        let none = Wanted::default;
        check(&none(), &["ls"], &Action::execute(argv(&["ls"]), None));
        check(&none(), &["ls", "-l a"], &Action::execute(argv(&["ls", "-l a"]), None));
        check(&none(), &["ls -l"], &Action::execute(Command::Shell("ls -l".to_owned()), None));
        check(&none(), &["ls\n-l"], &Action::execute(Command::Shell("ls\n-l".to_owned()), None));
        let path = || Wanted { path: vec!["a".into()], ..none() };
        check(&path(), &[], &Action::file(Kind::Read, "a"));
        check(&Wanted { kind: Some(Kind::Delete), ..path() }, &[], &Action::file(Kind::Delete, "a"));
        let url = vec!["https://example.org".to_owned()];
        let fetched = Action { urls: url.clone(), ..Action::new(Kind::Fetch) };
        check(&Wanted { url, ..none() }, &[], &fetched);
        let tool = || Some("create_issue".to_owned());
        let server = || Some("github".to_owned());
        let called = Action { tool: tool(), server: server(), ..Action::new(Kind::Other) };
        check(&Wanted { tool: tool(), server: server(), ..none() }, &[], &called);
        let both = Action { paths: vec!["a".into()], ..Action::execute(argv(&["ls"]), None) };
        check(&path(), &["ls"], &both);
    }
}
