//! Rebuilds the judged action from a recorded permission request.

use std::path::PathBuf;

use narrows_acp::method::{ELICITATION_CREATE, FS_READ_TEXT_FILE, FS_WRITE_TEXT_FILE, TERMINAL_CREATE};
use narrows_client::{Json, PermissionRequested};
use narrows_policy::{Action, Command, Decision, Kind, Verdict};
use serde_json::Value;

use super::Evaluator;

/// The method under which calls of tools of local MCP servers are recorded.
const MCP_METHOD: &str = "mcp/message";

/// Evaluates a recorded request. Returns `None` if rules do not apply to it.
pub(super) fn decide(evaluator: &Evaluator, asked: &PermissionRequested) -> Option<Decision> {
    let mut decision = evaluator.policy.decide(&action(asked)?, &evaluator.request_context());
    if asked.truncated || asked.problem.is_some() {
        // An unreadable path cannot be judged, so the decision is at least `ask`, whatever the rules say.
        decision.verdict = decision.verdict.max(Verdict::Ask);
    }
    Some(decision)
}

fn action(asked: &PermissionRequested) -> Option<Action> {
    let input = asked.input.as_ref().map(Json::value).unwrap_or_default();
    Some(match asked.method.as_str() {
        FS_READ_TEXT_FILE => file_action(Kind::Read, asked, &input),
        FS_WRITE_TEXT_FILE => file_action(Kind::Edit, asked, &input),
        TERMINAL_CREATE => {
            let words = input.get("args").and_then(Value::as_array).into_iter().flatten();
            let words = input.get("command").into_iter().chain(words);
            let argv = words.filter_map(Value::as_str).map(str::to_owned).collect();
            let cwd = input.get("cwd").and_then(Value::as_str).map(PathBuf::from);
            let env = Action::read(None, None, &input, &[]).env;
            Action { env, ..Action::execute(Command::Argv(argv), cwd) }
        }
        MCP_METHOD => {
            let name = asked.tool_name.as_deref().unwrap_or_default();
            let (server, tool) = name.split_once('.').unwrap_or(("", name));
            Action::mcp(server, tool, &input)
        }
        // Requests for forms are declined, whatever the rules say.
        ELICITATION_CREATE => return None,
        _ => tool_call_action(asked, &input),
    })
}

/// Returns the action of a file request, with the path and its link target.
fn file_action(kind: Kind, asked: &PermissionRequested, input: &Value) -> Action {
    let named = input.get("path").and_then(Value::as_str);
    let mut paths: Vec<PathBuf> = asked.locations.iter().map(PathBuf::from).collect();
    paths.extend(
        named.map(PathBuf::from).filter(|named| !paths.contains(named)).into_iter().collect::<Vec<_>>(),
    );
    Action { paths, ..Action::new(kind) }
}

/// Returns the action of a tool call for which the agent asked for permission.
fn tool_call_action(asked: &PermissionRequested, input: &Value) -> Action {
    let locations: Vec<PathBuf> = asked.locations.iter().map(PathBuf::from).collect();
    // A tool without a name is recorded with its title as the name, which rules must not match.
    let named = asked.tool_name.as_deref().filter(|name| Some(*name) != asked.title.as_deref());
    let read = |text: &Option<Json>| text.as_ref().map(Json::value).unwrap_or_default();
    let unknown = match read(&asked.unknown) {
        Value::Array(unknown) => unknown,
        _ => Vec::new(),
    };
    // Unknown members belong to the command if there is one, else to the tool call.
    let (beside_call, beside_command) = match asked.command {
        Some(_) => (Vec::new(), unknown),
        None => (unknown, Vec::new()),
    };
    let mut action =
        Action::read(asked.kind.as_deref(), named, &with_members(input.clone(), beside_call), &locations);
    if let Some(command) = &asked.command {
        let mut subject = read(&asked.beside_command).as_object().cloned().unwrap_or_default();
        subject.insert("command".to_owned(), command.as_str().into());
        subject.insert("cwd".to_owned(), asked.cwd.as_deref().into());
        let subject = with_members(subject.into(), beside_command);
        let Action { also, command, cwd, env, paths, urls, .. } =
            Action::read(Some("execute"), None, &subject, &[]);
        action.kind = Kind::Execute;
        (action.command, action.cwd) = (command, cwd);
        action.also.extend(also);
        action.env.extend(env);
        action.paths.extend(paths);
        action.urls.extend(urls);
    }
    action
}

/// Adds members to an input, in a form in which the rules judge all of them.
fn with_members(input: Value, members: Vec<Value>) -> Value {
    if members.is_empty() { input } else { std::iter::once(input).chain(members).collect() }
}
