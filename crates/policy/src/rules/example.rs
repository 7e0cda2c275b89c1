//! The examples a rule brings along, tried when it is read.

use std::path::PathBuf;

use super::node::{Fields, Node, Read};
use super::{Rule, parse};
use crate::action::{Action, Command};
use crate::command;
use crate::decision::Verdict;
use crate::kind::Kind;
use crate::path::Ground;
use crate::scene::Scene;
use crate::target::targets;
use crate::variable::Variable;

/// The root that examples live in.
const ROOT: &str = "/project";

/// Tries `match` and `not_match`.
pub(super) fn check(rule: &Rule, fields: Fields<'_>) -> Read<()> {
    for (key, expected) in [("match", true), ("not_match", false)] {
        let Some(node) = fields.get(key) else { continue };
        for example in node.list()? {
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
                        Some("what denies or asks also matches further words and paths below")
                    }
                    _ => None,
                };
                return Err(example.fail(what, hint));
            }
        }
    }
    Ok(())
}

/// Whether the rule says something about `action` in a usual place.
fn matches(rule: &Rule, action: &Action) -> bool {
    let roots = [PathBuf::from(ROOT)];
    let scene = Scene { roots: &roots, ..Scene::default() };
    let ground = Ground { roots: &roots, home: None };
    let script = action.command.as_ref().map(command::read);
    let targets = targets(action, script.as_ref(), &scene, None);
    let mut about = targets.iter().map(|target| rule.is_about(target, ground));
    if rule.effect == Verdict::Allow { about.all(|about| about) } else { about.any(|about| about) }
}

/// What an example describes: a command line, or a table of fields.
fn action(rule: &Rule, node: Node<'_>) -> Read<Action> {
    if node.is_string() {
        return Ok(Action::execute(Command::Shell(node.string()?.to_owned()), None));
    }
    let fields = node.table()?;
    let mut known = parse::CONDITIONS.to_vec();
    known.push("env");
    fields.only(&known)?;
    let paths = fields.get("path").map_or(Ok(Vec::new()), texts)?;
    let urls = fields.get("url").map_or(Ok(Vec::new()), texts)?;
    let env = fields.get("env").map_or(Ok(Vec::new()), texts)?;
    let command = fields.get("command").map(example_command).transpose()?;
    let kind = match fields.get("kind") {
        Some(node) => parse::kind(node)?,
        None if command.is_some() => Kind::Execute,
        None if !urls.is_empty() => Kind::Fetch,
        None => rule.kinds.first().copied().unwrap_or(Kind::Read),
    };
    Ok(Action {
        tool: fields.string("tool")?,
        server: fields.string("server")?,
        paths: paths.into_iter().map(PathBuf::from).collect(),
        urls,
        command,
        env: env.into_iter().map(|name| Variable::new(name, "value")).collect(),
        ..Action::new(kind)
    })
}

/// A line for a shell, or a list of words.
fn example_command(node: Node<'_>) -> Read<Command> {
    if node.is_string() {
        Ok(Command::Shell(node.string()?.to_owned()))
    } else {
        parse::words(node).map(Command::Argv)
    }
}

fn texts(node: Node<'_>) -> Read<Vec<String>> {
    node.any_of()?.into_iter().map(|node| node.string().map(str::to_owned)).collect()
}
