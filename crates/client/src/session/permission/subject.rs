//! The subjects of a permission request, in the form that the policy judges and a person sees.
//!
//! One request can have several subjects: a tool call, a separate command line, and further calls. One call
//! can show several actions. The agent may mean any of these actions, so all of them are judged and shown.

use std::path::{Path, PathBuf};

use narrows_policy::{Access, Action, Command, Decision, DecisionReason, Kind, Variable, Verdict};
use serde_json::{Value, json};

use crate::allowed::ClientAction;
use crate::event::Json;
use crate::map::{Call, ReadRequest};
use crate::mcp::{self, Run, ToolCall};
use crate::permission_request::FileChange;
use crate::permissions::{PermissionService, TurnId};

/// Reason for a request about a command that may not run in the client.
const MAY_RUN_ITSELF: &str = "asks before commands that the agent may run itself without a sandbox";

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Subject {
    pub(super) action: Action,
    /// `true` if the client performs the action in its sandbox: by the built-in MCP server, or in a terminal
    /// for an agent that is known to run commands only in terminals of the client.
    pub(super) runs_here: bool,
}

impl Subject {
    pub(super) fn judge(&self, permissions: &PermissionService, turn: TurnId) -> Decision {
        let mut decision = permissions.judge(turn, &self.action, self.runs_here);
        if let DecisionReason::Preset { access: Access::Medium, kind: Kind::Execute, why } =
            &mut decision.because
            && !self.runs_here
            && decision.verdict == Verdict::Ask
        {
            *why = MAY_RUN_ITSELF;
        }
        decision
    }
}

/// Context of the built-in MCP server's tools, for an agent that has them.
pub(super) struct BuiltInTools<'a> {
    pub(super) here: &'a Path,
    pub(super) offer: mcp::Offer,
}

/// Returns all known subjects of the request. `built_in_tools` is `None` for an agent without these tools.
pub(super) fn subjects(asked: &ReadRequest, built_in_tools: Option<&BuiltInTools<'_>>) -> Vec<Subject> {
    let others = asked.other_calls.iter().map(|other| (&other.call, &other.mcp));
    let calls = std::iter::once((&asked.call, &asked.mcp)).chain(others);
    // A call that shows nothing but its command is judged by the command alone.
    let shown = calls.filter(|(call, _)| asked.command.is_none() || call.shows_action());
    // Members that the protocol does not define are judged with the command, or else with the first call.
    let beside = |is_first: bool| if is_first { &asked.unknown[..] } else { &[] };
    let mut all: Vec<Subject> = shown
        .enumerate()
        .map(|(number, (call, mcp))| {
            let beside = beside(number == 0 && asked.command.is_none());
            let built_in_tools = built_in_tools.filter(|_| mcp.is_none() && beside.is_empty());
            match built_in_tools.and_then(|tools| own(call, tools)) {
                Some(action) => Subject { action, runs_here: true },
                None => Subject { action: action(call, mcp.as_ref(), beside), runs_here: false },
            }
        })
        .collect();
    if let Some(input) = asked.command_input() {
        let action = Action::read(Some("execute"), None, &with_members(input, &asked.unknown), &[]);
        let action = action.with_tool_names(asked.call.names());
        all.push(Subject { action, runs_here: false });
    }
    all
}

/// Returns the action of a call that the built-in server would execute exactly as shown. The action is judged
/// again when the MCP call arrives. Returns `None` if the agent could mean anything else: an argument that
/// the tool does not accept, another kind, further files, or another change.
fn own(call: &Call, tools: &BuiltInTools<'_>) -> Option<Action> {
    let name = call.sole_name()?;
    let tool = name.strip_prefix("mcp__").unwrap_or(name).strip_prefix("narrows__")?;
    let Value::Object(arguments) = call.raw_input.as_ref()?.value() else { return None };
    let parsed = ToolCall::parse(tools.offer, tool, arguments)?.ok()?;
    let mut text = None;
    let mut action = match parsed {
        ToolCall::Read { path, .. } => Action::file(Kind::Read, tools.here.join(path)),
        ToolCall::Write { path, text: new } => {
            text = Some(new);
            Action::file(Kind::Edit, tools.here.join(path))
        }
        ToolCall::Run(Run { program, args, env, cwd, .. }) => {
            let argv = std::iter::once(program).chain(args).collect();
            let cwd = cwd.map(|cwd| tools.here.join(cwd));
            let env = env.into_iter().map(|(name, value)| Variable::new(name, value)).collect();
            Action { env, ..Action::execute(Command::Argv(argv), cwd) }
        }
    };
    let is_named = |path: &Path| action.paths.contains(&tools.here.join(path));
    let kind = call.kind.as_deref().map_or(Kind::Other, Kind::named);
    let shown =
        Action::default().with_content(&call.content_values()).with_locations(&call.location_values());
    let is_exact = [Kind::Other, action.kind].contains(&kind)
        && !shown.also.contains(&Kind::Other)
        && call.paths().iter().all(|path| is_named(Path::new(path)))
        && changes(call).all(|FileChange { path, new_text, .. }| {
            path.is_some_and(|path| is_named(&path)) && text.as_ref() == Some(&new_text)
        });
    // Rules about the reported names of the tool apply too.
    action.claimed = call.names().map(str::to_owned).collect();
    is_exact.then_some(action)
}

/// Adds `members` to `input`, so that a rule about the input covers both.
fn with_members(input: Value, members: &[Json]) -> Value {
    if members.is_empty() {
        return input;
    }
    std::iter::once(input).chain(members.iter().map(Json::value)).collect()
}

/// Returns the action of a call. `beside` are members outside the protocol that may belong to the call.
fn action(call: &Call, mcp: Option<&(String, String)>, beside: &[Json]) -> Action {
    let input = call.raw_input.as_ref().map(Json::value).unwrap_or_default();
    let input = with_members(input, beside);
    let locations: Vec<PathBuf> = call.paths().into_iter().map(Into::into).collect();
    let read = Action::read(call.kind.as_deref(), None, &input, &locations);
    let read = read.with_content(&call.content_values()).with_locations(&call.location_values());
    match mcp {
        // Rules about the agent's own name of the tool apply too.
        Some((server, tool)) => Action {
            tool: Some(tool.clone()),
            server: Some(server.clone()),
            claimed: call.own_name().map(str::to_owned).into_iter().collect(),
            ..read
        },
        None => read.with_tool_names(call.names()),
    }
}

/// Returns the file changes in the content of a call.
fn changes(call: &Call) -> impl Iterator<Item = FileChange> {
    call.content().iter().filter_map(|block| {
        let change = FileChange::from_content(&block.value())?;
        // An ambiguous change is shown as written.
        Some(if block.is_ambiguous() { FileChange::unread(block.text()) } else { change })
    })
}

pub(super) fn all_changes(asked: &ReadRequest) -> Vec<FileChange> {
    asked.calls().flat_map(changes).collect()
}

/// Returns all judged actions for display. A command without a directory gets the session's directory.
pub(super) fn shown_actions(subjects: Vec<Subject>, here: &Path) -> Vec<Action> {
    let mut actions: Vec<Action> = subjects.into_iter().map(|subject| subject.action).collect();
    for action in &mut actions {
        if action.command.is_some() && action.server.is_none() {
            action.cwd.get_or_insert_with(|| here.to_owned());
        }
    }
    actions
}

/// Returns the files to display: those that the agent lists, and those in its changes.
pub(super) fn locations(asked: &ReadRequest) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    for call in asked.calls() {
        let named = call.paths().into_iter().map(PathBuf::from);
        let shown =
            Action::default().with_content(&call.content_values()).with_locations(&call.location_values());
        for path in named.chain(shown.paths) {
            if !all.contains(&path) {
                all.push(path);
            }
        }
    }
    all
}

/// Returns the action that the client would perform if the request is allowed. It corresponds to the last of
/// `subjects`.
pub(super) fn client_action(subjects: &[Subject], asked: &ReadRequest, here: &Path) -> Option<ClientAction> {
    let call = &asked.call;
    let action = &subjects.last()?.action;
    // An ambiguous request may mean more than the person was shown, so the answer covers no later action.
    if !asked.other_calls.is_empty() || !asked.unknown.is_empty() || call.is_ambiguous() {
        return None;
    }
    if let Some((server, tool)) = asked.mcp.clone().filter(|_| asked.command.is_none()) {
        let arguments = call.raw_input.as_ref()?.value();
        return Some(ClientAction::Mcp { server, tool, arguments });
    }
    if let Some(command) = &action.command {
        let cwd = action.cwd.as_ref().map_or_else(|| here.to_owned(), |cwd| here.join(cwd));
        return Some(ClientAction::run(command.clone(), cwd, action.env.clone()));
    }
    // The client's action is a write if the call changes exactly one file and shows its whole new text.
    if let [content] = call.content() {
        let diff = content.value();
        let text = |key: &str| diff.get(key).and_then(Value::as_str);
        if let (Some("diff"), Some(path), Some(new)) = (text("type"), text("path"), text("newText")) {
            return Some(ClientAction::Write { path: here.join(path), text: new.to_owned() });
        }
    }
    if call.content_values().iter().any(Action::is_change) {
        return None;
    }
    let mut paths: Vec<PathBuf> = action.paths.iter().map(|path| here.join(path)).collect();
    paths.dedup();
    let [path] = <[PathBuf; 1]>::try_from(paths).ok()?;
    let input = call.raw_input.as_ref().map(Json::value).unwrap_or_default();
    match action.kinds()[..] {
        [Kind::Read] => Some(ClientAction::Read { path }),
        [Kind::Edit] if is_whole_text(&input) => {
            let text = input.get("content")?.as_str()?.to_owned();
            Some(ClientAction::Write { path, text })
        }
        _ => None,
    }
}

/// Returns `true` if `input` has only a path and `content`, so that `content` is the whole new text.
fn is_whole_text(input: &Value) -> bool {
    let paths =
        ["path", "file_path", "filePath", "filepath", "file", "filename", "abs_path", "absolute_path"];
    input.as_object().is_some_and(|fields| {
        fields.contains_key("content")
            && fields.keys().all(|key| key == "content" || paths.contains(&key.as_str()))
    })
}

/// Returns the input to display, with everything in the request. With several subjects, each becomes a member
/// of one object.
pub(super) fn input(asked: &ReadRequest) -> Value {
    let command = asked.command_input();
    let mut inputs: Vec<Value> = asked
        .calls()
        .filter(|call| command.is_none() || call.shows_action())
        .map(shown_input)
        .filter(|input| !input.is_null())
        .collect();
    let input = match (command, inputs.len()) {
        (Some(command), 0) => command,
        (None, 0 | 1) => inputs.pop().unwrap_or_default(),
        (Some(command), 1) => json!({"input": inputs[0], "command": command}),
        (Some(command), _) => json!({"inputs": inputs, "command": command}),
        (None, _) => json!({"inputs": inputs}),
    };
    let values = |all: &[Json]| all.iter().map(Json::value).collect::<Value>();
    match (input, &asked.unknown[..]) {
        (input, []) => input,
        (Value::Null, unknown) => json!({"unknown": values(unknown)}),
        (input, unknown) => json!({"input": input, "unknown": values(unknown)}),
    }
}

/// Returns the input of a call to display. An ambiguous input is shown as JSON text.
fn shown_input(call: &Call) -> Value {
    match &call.raw_input {
        Some(input) if input.is_ambiguous() => input.text().into(),
        Some(input) => input.value(),
        None => Value::Null,
    }
}

pub(super) fn title(asked: &ReadRequest) -> String {
    let title = asked.title.as_ref().or(asked.call.title.as_ref());
    title.cloned().unwrap_or_else(|| "an action without a title".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::OtherCall;

    const HERE: &str = "/w";

    fn call(name: &str, input: &Value) -> Call {
        let mut call = Call::default();
        call.name = Some(name.to_owned());
        call.raw_input = Some(Json::write(input));
        call
    }

    fn asked(call: Call) -> ReadRequest {
        ReadRequest { call, ..ReadRequest::default() }
    }

    const ALL_TOOLS: mcp::Offer = mcp::Offer { read: true, write: true, run: true };

    fn all(asked: &ReadRequest) -> Vec<Subject> {
        offered(ALL_TOOLS, asked)
    }

    fn offered(offer: mcp::Offer, asked: &ReadRequest) -> Vec<Subject> {
        subjects(asked, Some(&BuiltInTools { here: Path::new(HERE), offer }))
    }

    /// In version 2, the built-in tools replace the requests for files and terminals.
    #[test]
    fn a_call_of_the_built_in_tool_maps_to_the_client_action() {
        let client_action = |name: &str, input: Value| {
            let asked = asked(call(name, &input));
            let subjects = all(&asked);
            assert!(subjects[0].runs_here, "{name}");
            client_action(&subjects, &asked, Path::new(HERE))
        };
        let write = client_action("mcp__narrows__write_text_file", json!({"path": "a", "content": "x"}));
        assert!(
            matches!(&write, Some(ClientAction::Write { path, text }) if path == Path::new("/w/a") && text == "x"),
            "{write:?}"
        );
        let read = client_action("narrows__read_text_file", json!({"path": "/v/a", "line": 2}));
        assert!(matches!(&read, Some(ClientAction::Read { path }) if path == Path::new("/v/a")), "{read:?}");
        let run = client_action("narrows__run_command", json!({"command": "ls", "args": []}));
        assert!(matches!(&run, Some(ClientAction::Run { .. })), "{run:?}");
    }

    #[test]
    fn a_further_location_is_judged_too() {
        let mut call = call("Read", &json!({"path": "a"}));
        call.kind = Some("read".to_owned());
        call.locations = Some(Json::write(&json!([{"path": "/w/a", "line": 1}])));
        assert_eq!(all(&asked(call.clone()))[0].action.kinds(), [Kind::Read]);
        call.locations = Some(Json::write(&json!([{"path": "/w/a", "target": "/etc/passwd"}])));
        let asked = asked(call);
        let action = all(&asked).remove(0).action;
        let passwd = PathBuf::from("/etc/passwd");
        assert_eq!(action.kinds(), [Kind::Other]);
        assert!(action.paths.contains(&passwd) && locations(&asked).contains(&passwd), "{action:?}");
    }

    #[test]
    fn the_built_in_tool_name_hides_no_other_content() {
        let check = |call: Call, runs_here: bool, kinds: &[Kind]| {
            let subjects = all(&asked(call.clone()));
            let found: Vec<(bool, Vec<Kind>)> =
                subjects.iter().map(|subject| (subject.runs_here, subject.action.kinds())).collect();
            assert_eq!(found, [(runs_here, kinds.to_vec())], "{call:?}");
        };
        let name = "narrows__read_text_file";
        let plain = call(name, &json!({"path": "a", "line": 1}));
        check(plain.clone(), true, &[Kind::Read]);
        check(call(name, &json!({"path": "a", "command": "rm -rf ."})), false, &[Kind::Execute, Kind::Other]);
        check(call(name, &json!({"path": "a", "url": "http://x"})), false, &[Kind::Fetch, Kind::Other]);
        let with = |change: &dyn Fn(&mut Call)| {
            let mut call = plain.clone();
            change(&mut call);
            call
        };
        check(with(&|call| call.kind = Some("read".to_owned())), true, &[Kind::Read]);
        check(with(&|call| call.kind = Some("delete".to_owned())), false, &[Kind::Delete]);
        let at = |path: &str| Some(Json::write(&json!([{ "path": path }])));
        check(with(&|call| call.locations = at("a")), true, &[Kind::Read]);
        check(with(&|call| call.locations = at("/w/a")), true, &[Kind::Read]);
        check(with(&|call| call.locations = at(".env")), false, &[Kind::Other]);
        let target = Some(Json::write(&json!([{"path": "a", "target": "/etc/passwd"}])));
        check(with(&|call| call.locations = target.clone()), false, &[Kind::Other]);
        let run = |input: Value| call("narrows__run_command", &input);
        check(
            run(json!({"command": "ls", "args": ["-l"], "cwd": "/w", "env": {"A": "1"}})),
            true,
            &[Kind::Execute],
        );
        for other in [
            json!({"command": "ls", "argv": ["git", "push"]}),
            json!({"command": "git", "args": "push"}),
            json!({"command": "ls", "steps": [{"command": "git push"}]}),
            json!({"command": "ls", "cwd": ["/etc"]}),
            json!({"command": "ls", "env": [["A"]]}),
        ] {
            let found = all(&asked(run(other.clone())));
            assert!(found.len() == 1 && !found[0].runs_here, "{other}: {found:?}");
        }
    }

    #[test]
    fn a_built_in_tool_that_is_not_offered_is_an_ordinary_tool() {
        let runs = asked(call("narrows__run_command", &json!({"command": "ls"})));
        let found = offered(mcp::Offer { run: false, ..ALL_TOOLS }, &runs);
        assert!(found.len() == 1 && !found[0].runs_here, "{found:?}");
        assert_eq!(found[0].action.tool.as_deref(), Some("narrows__run_command"));
        // Rules about the name of the tool apply.
        assert_eq!(all(&runs)[0].action.claimed, ["narrows__run_command"]);
    }

    /// A command and the call to which it refers may be different actions.
    #[test]
    fn a_command_and_the_call_it_names_are_both_judged_and_shown() {
        let mut asked = asked(call("narrows__read_text_file", &json!({"path": "README.md"})));
        (asked.command, asked.cwd) = (Some("rm -rf /".to_owned()), Some("/w".to_owned()));
        let found = all(&asked);
        let kinds: Vec<(bool, Kind)> =
            found.iter().map(|subject| (subject.runs_here, subject.action.kind)).collect();
        assert_eq!(kinds, [(true, Kind::Read), (false, Kind::Execute)]);
        assert_eq!(found[1].action.command, Some(Command::Shell("rm -rf /".to_owned())));
        let shown = json!({"input": {"path": "README.md"}, "command": {"command": "rm -rf /", "cwd": "/w"}});
        assert_eq!(input(&asked), shown);
        // A call that shows no action is not judged.
        asked.call = Call::default();
        asked.call.name = Some("Bash".to_owned());
        assert_eq!(all(&asked).len(), 1);
        assert_eq!(input(&asked), json!({"command": "rm -rf /", "cwd": "/w"}));
    }

    fn diff(path: &str, new: &str) -> Call {
        let block = json!({"type": "diff", "path": path, "newText": new});
        call("Edit", &json!({"path": path})).with_content(&[block])
    }

    #[test]
    fn everything_an_approval_covers_is_shown() {
        let here = Path::new(HERE);
        let mcp = ReadRequest {
            mcp: Some(("github".to_owned(), "delete_repo".to_owned())),
            ..asked(call("mcp__github__delete_repo", &json!({"command": "ls -l", "repo": "prod"})))
        };
        let command = ReadRequest {
            command: Some("bash -c ls".to_owned()),
            ..asked(call("Bash", &json!({"env": {"BASH_ENV": "/w/evil.sh"}})))
        };
        for (asked, what) in [
            (mcp, "a tool"),
            (command, "a command"),
            (asked(call("Bash", &json!({"command": "make", "env": {"A": "1"}}))), "a command"),
            (asked(diff("a", "all:; rm -rf ~")), "a text"),
            (asked(call("narrows__write_text_file", &json!({"path": "a", "content": "x"}))), "a text"),
            (asked(call("narrows__read_text_file", &json!({"path": "a"}))), "a file"),
        ] {
            let subjects = all(&asked);
            let held = client_action(&subjects, &asked, here).expect(what);
            let (actions, changes, shown) =
                (shown_actions(subjects, here), all_changes(&asked), input(&asked));
            let is_shown = match &held {
                ClientAction::Mcp { server, tool, arguments } => actions.iter().any(|action| {
                    (action.server.as_ref(), action.tool.as_ref(), &shown)
                        == (Some(server), Some(tool), arguments)
                }),
                ClientAction::Run { command, cwd, env } => actions.iter().any(|action| {
                    (action.command.as_ref(), action.cwd.as_ref(), &action.env)
                        == (Some(command), Some(cwd), env)
                }),
                ClientAction::Write { path, text } => {
                    let is_change = |change: &FileChange| {
                        change.path.as_ref().is_some_and(|named| here.join(named) == *path)
                            && change.new_text == *text
                    };
                    changes.iter().any(is_change)
                        || shown["content"] == text.as_str() && actions[0].paths.contains(path)
                }
                ClientAction::Read { path } => actions.iter().any(|action| action.paths.contains(path)),
            };
            assert!(is_shown, "{what}: {held:?} of {actions:?}");
        }
    }

    /// The call was reported earlier and is not the requested action.
    #[test]
    fn an_approved_command_does_not_cover_other_variables() {
        let mut asked = asked(call("Bash", &json!({"env": {"BASH_ENV": "/w/evil.sh"}})));
        asked.command = Some("bash -c ls".to_owned());
        let held = client_action(&all(&asked), &asked, Path::new(HERE));
        assert!(matches!(&held, Some(ClientAction::Run { env, .. }) if env.is_empty()), "{held:?}");
    }

    #[test]
    fn members_beside_a_command_or_call_are_shown() {
        let mut asked = ReadRequest { command: Some("ls".to_owned()), ..ReadRequest::default() };
        asked.beside_command = Some(Json::write(&json!({"args": ["-l"]})));
        assert_eq!(input(&asked), json!({"command": "ls", "cwd": null, "args": ["-l"]}));
        let words = ["ls", "-l"].map(str::to_owned).to_vec();
        assert_eq!(all(&asked)[0].action.command, Some(Command::Argv(words)));
        let mut asked = ReadRequest { call: call("Read", &json!({"path": "a"})), ..ReadRequest::default() };
        asked.unknown = vec![Json::write(&json!({"argv": ["rm", "a"]}))];
        let found = all(&asked);
        assert_eq!(input(&asked), json!({"input": {"path": "a"}, "unknown": [{"argv": ["rm", "a"]}]}));
        assert_eq!(found[0].action.kinds(), [Kind::Execute, Kind::Other]);
        assert!(client_action(&found, &asked, Path::new(HERE)).is_none());
        // The built-in tool does not accept members outside its schema.
        asked.call = call("narrows__read_text_file", &json!({"path": "a"}));
        assert!(!all(&asked)[0].runs_here);
    }

    #[test]
    fn further_calls_of_a_request_are_judged_and_shown() {
        let other = call("Bash", &json!({"command": "rm x"}));
        let asked = ReadRequest {
            call: call("Read", &json!({"path": "a"})),
            other_calls: vec![OtherCall { call: other, mcp: None }],
            ..ReadRequest::default()
        };
        let found = subjects(&asked, None);
        assert_eq!(found[1].action.command, Some(Command::Shell("rm x".to_owned())));
        assert_eq!(input(&asked), json!({"inputs": [{"path": "a"}, {"command": "rm x"}]}));
        assert!(client_action(&found, &asked, Path::new(HERE)).is_none());
    }

    #[test]
    fn an_object_with_a_duplicate_key_is_shown_as_written() {
        let text = r#"{"command":"ls","command":"rm"}"#;
        let mut call = Call::default();
        call.raw_input = serde_json::from_str(text).ok();
        assert!(call.is_ambiguous());
        assert_eq!(input(&asked(call)), json!(text));
    }
}
