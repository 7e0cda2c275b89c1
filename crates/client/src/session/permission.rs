//! Requests for permission: judged by what they are about, answered by the kind of an option.

use std::path::Path;
use std::sync::Arc;

use narrows_policy::{Access, Action, Because, Command, Decision, Kind, Verdict};
use narrows_rpc::{Request, Responder};
use serde_json::{Value, json};

use super::actor::{Actor, now_ms};
use crate::authority::{By, Note, explained};
use crate::choose::{self, Answer, PermissionOption};
use crate::event::{Payload, PermissionResolved};
use crate::map::Asked;
use crate::question::{Question, Reply};

/// A request that waits for its answer.
pub(super) struct Held {
    responder: Responder,
    call_id: Option<Arc<str>>,
    options: Vec<PermissionOption>,
    decision: Decision,
    may_always: bool,
}

/// How a request was settled.
pub(super) struct Settled {
    id: String,
    reply: Reply,
    by: By,
}

impl Actor {
    /// The agent asks whether it may.
    pub(super) fn permission(&mut self, request: Request, method: &str) {
        let params = request.frame.params().unwrap_or(b"{}");
        let authority = Arc::clone(&self.services.authority);
        let id = authority.number();
        let asked = self.mapper.permission_requested(&id, method, params, now_ms(), &mut self.events);
        let own = own(&asked, &self.services.cwd);
        let runs_here = own.is_some();
        let mut decision = authority.judge(&own.unwrap_or_else(|| action(&asked)), runs_here);
        if asked.problem.is_some() || asked.call.is_partial() {
            // What cannot be read in whole cannot be judged: somebody may look at it, but no rule lets it pass.
            decision.verdict = decision.verdict.max(Verdict::Ask);
        }
        if let Some(approval) = &asked.approval
            && matches!(decision.because, Because::Preset { .. })
            && decision.verdict <= Verdict::Ask
        {
            // An approval is somebody's word, or that of a rule somebody wrote for it; a preset is neither.
            decision.verdict = Verdict::Ask;
            decision.because = Because::Approval { reason: approval.reason.clone() };
        }
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
            input: match (&asked.call.raw_input, &asked.command) {
                (Some(input), _) => input.value(),
                (None, Some(command)) => json!({"command": command, "cwd": asked.cwd}),
                (None, None) => Value::Null,
            },
            locations: asked.call.paths().into_iter().map(Into::into).collect(),
            options: options.clone(),
            decision: decision.clone(),
            approval: asked.approval.clone(),
        };
        // For good only where nothing less is to be had and everything is allowed anyway.
        let may_always = authority.access() == Access::High;
        let responder = request.responder;
        let given_up = responder.cancelled();
        let at_once = authority.settled(&decision);
        self.held.insert(id.clone(), Held { responder, call_id, options, decision, may_always });
        if let Some((reply, by)) = at_once {
            return self.settled(Settled { id, reply, by });
        }
        self.tasks.spawn(async move {
            let (reply, by) = tokio::select! {
                biased;
                settled = authority.settle(question) => settled,
                () = given_up => (Reply::Cancel, By::Cancelled),
            };
            Some(Settled { id, reply, by })
        });
    }

    /// A request was settled: the agent is answered, and that is told.
    pub(super) fn settled(&mut self, settled: Settled) {
        let Settled { id, reply, by } = settled;
        // One that is not there was answered when its turn ended.
        let Some(held) = self.held.remove(&id) else { return };
        let Held { responder, call_id, options, decision, may_always } = held;
        let answer = answer(&options, &reply, may_always);
        let chosen = answer.option_id().and_then(|id| options.iter().find(|option| option.option_id == id));
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
            self.settled(Settled { id, reply: Reply::Cancel, by: By::Cancelled });
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
                let payload = Payload::PermissionRequested(Box::new(requested));
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
/// that is judged again when the call comes. Whoever only borrows the name gets no more than that.
fn own(asked: &Asked, here: &Path) -> Option<Action> {
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
            Some(Action::execute(Command::Argv(argv), text("cwd").map(|cwd| here.join(cwd))))
        }
        _ => None,
    }
}

/// What the request is about, as far as it is known.
fn action(asked: &Asked) -> Action {
    let call = &asked.call;
    let input = call.raw_input.as_ref().map(crate::event::Json::value).unwrap_or_default();
    let locations: Vec<std::path::PathBuf> = call.paths().into_iter().map(Into::into).collect();
    let mut action = Action::read(call.kind.as_deref(), call.own_name(), &input, &locations);
    if let Some(command) = &asked.command {
        action.kind = Kind::Execute;
        action.command = Some(Command::Shell(command.clone()));
        action.cwd = asked.cwd.as_ref().map(Into::into);
    }
    action
}

fn title(asked: &Asked) -> String {
    let title = asked.title.as_ref().or(asked.call.title.as_ref());
    title.cloned().unwrap_or_else(|| "something it gave no title".to_owned())
}
