//! Requests for permission: judged by what they are about, answered by the kind of an option.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use narrows_acp::Version;
use narrows_policy::{Access, Action, Because, Command, Decision, Kind, Verdict};
use narrows_rpc::{Request, Responder};
use serde_json::{Value, json};

use super::actor::{Actor, now_ms};
use crate::allowed::{Deed, Holds};
use crate::authority::{Authority, By, Note, explained};
use crate::choose::{self, Answer, PermissionOption};
use crate::event::{Payload, PermissionResolved};
use crate::host::links::{Unfollowed, follow_links};
use crate::map::Asked;
use crate::question::{Approval, Question, Reply};

/// A request that waits for its answer.
pub(super) struct Held {
    responder: Responder,
    call_id: Option<Arc<str>>,
    options: Vec<PermissionOption>,
    decision: Decision,
    may_always: bool,
    /// What it is if the client does it for the agent.
    deed: Option<Deed>,
}

/// How a request was settled.
pub(super) struct Settled {
    id: String,
    reply: Reply,
    by: By,
    /// What the policy said once links were followed; `None`: what it said before.
    decision: Option<Decision>,
}

impl Settled {
    fn at_once(id: String, (reply, by): (Reply, By)) -> Self {
        Self { id, reply, by, decision: None }
    }
}

/// The reason for a question about a command that is not known to run here.
const MAY_RUN_ITSELF: &str = "asks before a command that the agent may run itself, in no sandbox";

/// What a request is judged by.
#[derive(Clone)]
struct Matter {
    action: Action,
    /// It is done by this client, in the sandbox: by our own MCP server, or by a terminal of an agent that is known to
    /// run commands nowhere else.
    runs_here: bool,
    /// Not all of it could be read.
    is_partial: bool,
    approval: Option<Approval>,
}

impl Matter {
    /// What the policy says of it.
    fn judge(&self, authority: &Authority) -> Decision {
        let mut decision = authority.judge(&self.action, self.runs_here);
        if let Because::Preset { access: Access::Medium, kind: Kind::Execute, why } = &mut decision.because
            && !self.runs_here
            && decision.verdict == Verdict::Ask
        {
            *why = MAY_RUN_ITSELF;
        }
        if self.is_partial {
            // What cannot be read in whole cannot be judged: somebody may look at it, but no rule lets it pass.
            decision.verdict = decision.verdict.max(Verdict::Ask);
        }
        if let Some(approval) = &self.approval
            && matches!(decision.because, Because::Preset { .. })
            && decision.verdict <= Verdict::Ask
        {
            // An approval is somebody's word, or that of a rule somebody wrote for it; a preset is neither.
            decision.verdict = Verdict::Ask;
            decision.because = Because::Approval { reason: approval.reason.clone() };
        }
        decision
    }

    /// Returns `true` if there is no path in it that could lead elsewhere.
    fn names_nothing(&self) -> bool {
        self.action.paths.is_empty() && self.action.cwd.is_none()
    }

    /// The same with where its paths lead. One that cannot be followed may lead anywhere.
    async fn followed(mut self, authority: &Authority) -> Self {
        let Some(here) = authority.here().map(Path::to_owned) else { return self };
        let home = authority.home().map(Path::to_owned);
        let mut action = self.action.clone();
        let following = tokio::task::spawn_blocking(move || {
            let followed = follow_links(&mut action, &here, home.as_deref());
            followed.map(|()| action)
        });
        match following.await {
            Ok(Ok(action)) => self.action = action,
            // The second is only if the runtime ends.
            Ok(Err(Unfollowed)) | Err(_) => self.is_partial = true,
        }
        self
    }
}

impl Actor {
    /// The agent asks whether it may.
    pub(super) fn permission(&mut self, request: Request, method: &str) {
        let params = request.frame.params().unwrap_or(b"{}");
        let authority = Arc::clone(&self.services.authority);
        let id = authority.number();
        let asked = self.mapper.permission_requested(&id, method, params, now_ms(), &mut self.events);
        // Only version 2 has our tools as such, and only an agent that takes servers from its client has them at all.
        let known = &self.shared.known;
        let has_tools = known.version == Version::V2 && known.can.mcp_acp;
        let own = has_tools.then(|| own(&asked, &self.services.cwd)).flatten();
        let is_own = own.is_some();
        let action = own.unwrap_or_else(|| action(&asked));
        // What confines the next command is looked up before one is judged by it.
        let confinement = (!is_own
            && self.shared.agent.acts_through_client
            && self.shared.offer.run_commands
            && action.command.is_some())
        .then(|| self.services.confinement.clone());
        let matter = Matter {
            runs_here: is_own || confinement.is_some(),
            action,
            is_partial: asked.problem.is_some() || asked.call.is_partial(),
            approval: asked.approval.clone(),
        };
        let decision = matter.judge(&authority);
        let deed = deed(&matter.action, &asked, &self.services.cwd);
        let options: Vec<PermissionOption> = asked
            .options
            .iter()
            .map(|choice| PermissionOption {
                option_id: choice.option_id.clone(),
                name: choice.name.clone(),
                kind: choice.kind.clone(),
            })
            .collect();
        let call_id = (!asked.call.id.is_empty()).then(|| Arc::clone(&asked.call.id));
        let question = Question {
            id: id.clone(),
            session_id: self.id.to_string(),
            run_id: self.run_id(),
            title: title(&asked),
            description: asked.description.clone(),
            tool_call_id: call_id.as_ref().map(ToString::to_string),
            tool: asked.call.own_name().map(str::to_owned),
            kind: asked.call.kind.clone().unwrap_or_else(|| "other".to_owned()),
            input: input(&asked),
            locations: locations(&asked),
            options: options.clone(),
            decision: decision.clone(),
            approval: asked.approval,
        };
        // For good only where nothing less is to be had and everything is allowed anyway.
        let may_always = authority.access() == Access::High;
        let responder = request.responder;
        let given_up = responder.cancelled();
        // A refusal stays one wherever the paths lead.
        let is_final = decision.verdict == Verdict::Deny || matter.names_nothing() && confinement.is_none();
        let at_once = authority.settled(&decision).filter(|_| is_final);
        self.held.insert(id.clone(), Held { responder, call_id, options, decision, may_always, deed });
        if let Some(settled) = at_once {
            return self.settled(Settled::at_once(id, settled));
        }
        self.tasks.spawn(async move {
            let settling = async {
                if let Some(confinement) = confinement {
                    authority.set_confined(confinement.now().await.1);
                }
                let named = matter.action.paths.len();
                let matter = matter.followed(&authority).await;
                let decision = matter.judge(&authority);
                let mut question = Question { decision: decision.clone(), ..question };
                question.locations.extend(matter.action.paths.into_iter().skip(named));
                let (reply, by) = authority.settle(question).await;
                (reply, by, Some(decision))
            };
            let (reply, by, decision) = tokio::select! {
                biased;
                settled = settling => settled,
                () = given_up => (Reply::Cancel, By::Cancelled, None),
            };
            Some(Settled { id, reply, by, decision })
        });
    }

    /// A request was settled: the agent is answered, and that is told.
    pub(super) fn settled(&mut self, settled: Settled) {
        let Settled { id, reply, by, decision: followed } = settled;
        // One that is not there was answered when its turn ended.
        let Some(held) = self.held.remove(&id) else { return };
        let Held { responder, call_id, options, decision, may_always, deed } = held;
        let decision = followed.unwrap_or(decision);
        let answer = answer(&options, &reply, may_always);
        let chosen = answer.option_id().and_then(|id| options.iter().find(|option| option.option_id == id));
        if let (By::Person, Some(deed), Some(option)) = (by, deed, chosen) {
            let allowed = &self.services.authority.allowed;
            match option.kind.as_str() {
                "allow_once" => allowed.remember(deed, Holds::Once),
                "allow_always" => allowed.remember(deed, Holds::Always),
                _ => {}
            }
        }
        let resolved = PermissionResolved {
            request_id: id,
            call_id,
            outcome: if chosen.is_some() { "selected" } else { "cancelled" }.to_owned(),
            option_id: chosen.map(|option| option.option_id.clone()),
            option_kind: chosen.map(|option| option.kind.clone()),
            decision: Some(explained(&decision, by)),
        };
        // Whoever asked may write down who said so.
        let answer = if matches!(by, By::Nobody | By::Deadline) { answer.unasked(by.name()) } else { answer };
        responder.respond(&answer);
        self.mapper.permission_resolved(resolved, now_ms(), &mut self.events);
        // The time in which somebody thought is not the agent's.
        self.hear();
    }

    /// Answers and tells everything that the agent has asked: what comes later belongs to no turn.
    pub(super) fn settle_all(&mut self) {
        self.services.authority.cancel();
        while let Some(answered) = self.tasks.try_join_next() {
            if let Some(settled) = answered.unwrap_or_default() {
                self.settled(settled);
            }
        }
        let held: Vec<String> = self.held.keys().cloned().collect();
        for id in held {
            self.settled(Settled::at_once(id, (Reply::Cancel, By::Cancelled)));
        }
        while let Ok(note) = self.ears.notes.try_recv() {
            self.note(note);
        }
        for id in std::mem::take(&mut self.noted) {
            self.given_up(&id);
        }
    }

    /// Takes news of what the agent wants of this machine.
    pub(super) fn note(&mut self, note: Note) {
        match note {
            Note::Requested(requested) => {
                self.noted.insert(requested.request_id.clone());
                let payload = Payload::PermissionRequested(requested);
                self.mapper.provider_event(payload, now_ms(), &mut self.events);
            }
            Note::Resolved(resolved) => {
                self.noted.remove(&resolved.request_id);
                if self.services.authority.docket.tell(&resolved.request_id) {
                    self.mapper.permission_resolved(resolved, now_ms(), &mut self.events);
                }
                self.hear();
            }
            Note::GivenUp(id) => {
                self.noted.remove(&id);
                self.given_up(&id);
            }
        }
    }

    /// Tells what became of a request that nobody waits for.
    fn given_up(&mut self, id: &str) {
        if let Some(resolved) = self.services.authority.docket.give_up(id) {
            self.mapper.permission_resolved(resolved, now_ms(), &mut self.events);
        }
    }
}

/// The answer in the agent's own options.
fn answer(options: &[PermissionOption], reply: &Reply, may_always: bool) -> Answer {
    match reply {
        Reply::Allow => choose::allow(options, may_always).unwrap_or_else(|| choose::reject(options)),
        Reply::Reject | Reply::Nobody => choose::reject(options),
        Reply::Select(id) => choose::exactly(options, id).unwrap_or_else(|| {
            tracing::warn!("the answer names an option that was not offered, so it is a refusal");
            choose::reject(options)
        }),
        Reply::Cancel => Answer::CANCELLED,
    }
}

/// What the request is about if it is a tool of our own server, which agents without files and terminals have: the same
/// that is judged again when the call comes. Whoever only borrows the name gets no more than that. A command that the request
/// itself carries is not the tool's.
fn own(asked: &Asked, here: &Path) -> Option<Action> {
    if asked.command.is_some() {
        return None;
    }
    let name = asked.call.own_name()?;
    let tool = name.strip_prefix("mcp__").unwrap_or(name).strip_prefix("narrows__")?;
    let input = asked.call.raw_input.as_ref()?.value();
    let text = |key: &str| input.get(key).and_then(Value::as_str).map(str::to_owned);
    match tool {
        "read_text_file" => Some(Action::file(Kind::Read, here.join(text("path")?))),
        "write_text_file" => Some(Action::file(Kind::Edit, here.join(text("path")?))),
        "run_command" => {
            let words = input.get("args").and_then(Value::as_array).into_iter().flatten();
            let words = words.map(|word| word.as_str().map(str::to_owned));
            let argv = std::iter::once(text("command")).chain(words).collect::<Option<Vec<String>>>()?;
            let described = Action::read(Some("execute"), None, &input, &[]);
            let cwd = text("cwd").map(|cwd| here.join(cwd));
            Some(Action { env: described.env, ..Action::execute(Command::Argv(argv), cwd) })
        }
        _ => None,
    }
}

/// The blocks of content of the call.
fn content(asked: &Asked) -> Vec<Value> {
    asked.call.content().iter().map(crate::event::Json::value).collect()
}

/// The files that a person is shown: those that the agent names, and those that its diffs change.
fn locations(asked: &Asked) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = asked.call.paths().into_iter().map(Into::into).collect();
    let changed = Action::default().with_content(&content(asked)).paths;
    all.extend(changed.into_iter().filter(|path| !all.contains(path)).collect::<Vec<_>>());
    all
}

/// What the request is about, as far as it is known.
fn action(asked: &Asked) -> Action {
    let call = &asked.call;
    let input = call.raw_input.as_ref().map(crate::event::Json::value).unwrap_or_default();
    let locations: Vec<PathBuf> = call.paths().into_iter().map(Into::into).collect();
    let content = content(asked);
    let (server, tool) = match &asked.mcp {
        Some((server, tool)) => (Some(server.clone()), Some(tool.as_str())),
        None => (None, call.own_name()),
    };
    let mut action = Action::read(call.kind.as_deref(), tool, &input, &locations).with_content(&content);
    if server.is_some() {
        // A rule that forbids the name by which the agent calls it still does.
        action.claimed = call.own_name().map(str::to_owned);
        action.server = server;
    }
    if let Some(command) = &asked.command {
        action.kind = Kind::Execute;
        action.command = Some(Command::Shell(command.clone()));
        action.cwd = asked.cwd.as_ref().map(Into::into);
    }
    action
}

/// What `action` is if the agent has the client do it.
fn deed(action: &Action, asked: &Asked, here: &Path) -> Option<Deed> {
    if let Some((server, tool)) = asked.mcp.clone() {
        let arguments = asked.call.raw_input.as_ref()?.value();
        return Some(Deed::Mcp { server, tool, arguments });
    }
    if let Some(command) = &action.command {
        let cwd = action.cwd.as_ref().map_or_else(|| here.to_owned(), |cwd| here.join(cwd));
        return Some(Deed::run(command.clone(), cwd, action.env.clone()));
    }
    // One file with one new text: what else it may do nobody has seen.
    if let [content] = asked.call.content() {
        let diff = content.value();
        let text = |key: &str| diff.get(key).and_then(Value::as_str);
        if let (Some("diff"), Some(path), Some(new)) = (text("type"), text("path"), text("newText")) {
            return Some(Deed::Write { path: here.join(path), text: new.to_owned() });
        }
    }
    if content(asked).iter().any(Action::is_change) {
        return None;
    }
    let mut paths: Vec<PathBuf> = action.paths.iter().map(|path| here.join(path)).collect();
    paths.dedup();
    let [path] = <[PathBuf; 1]>::try_from(paths).ok()?;
    let input = asked.call.raw_input.as_ref().map(crate::event::Json::value).unwrap_or_default();
    match action.kinds()[..] {
        [Kind::Read] => Some(Deed::Read { path }),
        [Kind::Edit] if is_whole_text(&input) => {
            let text = input.get("content")?.as_str()?.to_owned();
            Some(Deed::Write { path, text })
        }
        _ => None,
    }
}

/// Returns `true` if `content` is all that `input` says of a file beside its path: then it is its whole new text.
fn is_whole_text(input: &Value) -> bool {
    let paths =
        ["path", "file_path", "filePath", "filepath", "file", "filename", "abs_path", "absolute_path"];
    input.as_object().is_some_and(|fields| {
        fields.contains_key("content")
            && fields.keys().all(|key| key == "content" || paths.contains(&key.as_str()))
    })
}

/// The input that a person is shown: the command that the request itself carries, else what is known of its call.
fn input(asked: &Asked) -> Value {
    match (&asked.command, &asked.call.raw_input) {
        (Some(command), _) => json!({"command": command, "cwd": asked.cwd}),
        (None, Some(input)) => input.value(),
        (None, None) => Value::Null,
    }
}

fn title(asked: &Asked) -> String {
    let title = asked.title.as_ref().or(asked.call.title.as_ref());
    title.cloned().unwrap_or_else(|| "something it gave no title".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Json;

    /// Version 2 has these in place of files and terminals.
    #[test]
    fn a_call_of_our_own_tool_is_known_as_what_the_client_then_does() {
        let here = Path::new("/w");
        let deed = |name: &str, input: Value| {
            let mut asked = Asked::default();
            asked.call.name = Some(name.into());
            asked.call.raw_input = Some(Json::write(&input));
            let action = own(&asked, here).expect("our own");
            deed(&action, &asked, here)
        };
        let write = deed("mcp__narrows__write_text_file", json!({"path": "a", "content": "x"}));
        assert!(
            matches!(&write, Some(Deed::Write { path, text }) if path == Path::new("/w/a") && text == "x"),
            "{write:?}"
        );
        let read = deed("narrows__read_text_file", json!({"path": "/v/a", "line": 2}));
        assert!(matches!(&read, Some(Deed::Read { path }) if path == Path::new("/v/a")), "{read:?}");
        let run = deed("narrows__run_command", json!({"command": "ls", "args": []}));
        assert!(matches!(&run, Some(Deed::Run { .. })), "{run:?}");
    }

    /// The call that a command names says nothing about it, whatever tool it is of.
    #[test]
    fn a_command_that_names_a_known_call_is_judged_and_shown_itself() {
        let mut asked = Asked { cwd: Some("/w".to_owned()), ..Asked::default() };
        asked.call.name = Some("narrows__read_text_file".to_owned());
        asked.call.raw_input = Some((&json!({"path": "README.md"})).into());
        let here = Path::new("/w");
        assert_eq!(own(&asked, here).map(|action| action.kind), Some(Kind::Read));
        asked.command = Some("rm -rf /".to_owned());
        assert_eq!(own(&asked, here), None);
        assert_eq!(action(&asked).command, Some(Command::Shell("rm -rf /".to_owned())));
        assert_eq!(input(&asked), json!({"command": "rm -rf /", "cwd": "/w"}));
    }
}
