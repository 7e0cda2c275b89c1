//! Examples of a rule, which are checked when the rule is read.

use std::path::PathBuf;

use narrows_config::{SettingValue, Table};

use super::{Rule, parse};
use crate::action::{Action, Command};
use crate::command;
use crate::decision::Verdict;
use crate::kind::Kind;
use crate::path::PatternBase;
use crate::request_context::RequestContext;
use crate::target::targets;
use crate::variable::Variable;

const ROOT: &str = "/project";

pub(super) fn check(rule: &Rule, table: Table<'_>) -> Option<()> {
    for (key, expected) in [("match", true), ("not_match", false)] {
        let Some(item) = table.get(key) else { continue };
        for example in item.list("")? {
            if matches(rule, &action(rule, example)?) != expected {
                let what = if expected {
                    "this rule does not match this example"
                } else {
                    "this rule matches this example"
                };
                let hint = match (expected, rule.effect) {
                    (true, Verdict::Allow) => {
                        Some("an allow rule must match all of it: every word, every path")
                    }
                    (false, Verdict::Deny | Verdict::Ask) => {
                        Some("deny and ask rules also match further words, and paths below")
                    }
                    _ => None,
                };
                return example.error(what, hint);
            }
        }
    }
    Some(())
}

fn matches(rule: &Rule, action: &Action) -> bool {
    let roots = [PathBuf::from(ROOT)];
    let context = RequestContext { roots: &roots, ..RequestContext::default() };
    let pattern_base = PatternBase { roots: &roots, home: None };
    let script = action.command.as_ref().map(command::read);
    let targets = targets(action, script.as_ref(), &context, None);
    let mut about = targets.iter().map(|target| rule.is_about(target, pattern_base));
    if rule.effect == Verdict::Allow { about.all(|about| about) } else { about.any(|about| about) }
}

/// Returns the action that an example describes: a command line, or a table of fields.
fn action(rule: &Rule, item: SettingValue<'_>) -> Option<Action> {
    if item.is_text() {
        return Some(Action::execute(Command::Shell(item.string()?.to_owned()), None));
    }
    let table = item.table()?;
    let mut known = parse::CONDITIONS.to_vec();
    known.push("env");
    table.only(&known, &[]);
    let [paths, urls, env] =
        ["path", "url", "env"].map(|key| table.get(key).and_then(texts).unwrap_or_default());
    let command = table.get("command").and_then(example_command);
    let kind = match table.get("kind") {
        Some(item) => parse::kind(item)?,
        None if command.is_some() => Kind::Execute,
        None if !urls.is_empty() => Kind::Fetch,
        None => rule.kinds.first().copied().unwrap_or(Kind::Read),
    };
    Some(Action {
        tool: table.string("tool"),
        server: table.string("server"),
        paths: paths.into_iter().map(PathBuf::from).collect(),
        urls,
        command,
        env: env.into_iter().map(|name| Variable::new(name, "value")).collect(),
        ..Action::new(kind)
    })
}

/// Returns the command of an example: a shell line, or a list of words.
fn example_command(item: SettingValue<'_>) -> Option<Command> {
    if item.is_text() {
        Some(Command::Shell(item.string()?.to_owned()))
    } else {
        parse::words(item).map(Command::Argv)
    }
}

fn texts(item: SettingValue<'_>) -> Option<Vec<String>> {
    parse::any_of(item)?.into_iter().map(|item| item.string().map(str::to_owned)).collect()
}
