//! Permission requests of the agent: judged by their subjects, answered by the kind of an option.

mod change;
mod subject;

use std::path::Path;
use std::sync::Arc;

use narrows_acp::Version;
use narrows_policy::{Access, Action, Decision, DecisionReason, Kind, Verdict};
use narrows_rpc::{Request, Responder};
use tokio::sync::OwnedSemaphorePermit;

use self::change::{ShownChange, compare_with_disk};
use self::subject::{
    BuiltInTools, Subject, all_changes, client_action, input, locations, shown_actions, subjects, title,
};

use super::actor::{Actor, TaskOutcome, now_ms};
use crate::agent::{CommandRunner, Offer};
use crate::allowed::{ClientAction, Validity};
use crate::event::{Payload, PermissionResolved};
use crate::host::links::{Unfollowed, follow_links};
use crate::map::Call;
use crate::mcp;
use crate::option_choice::{self, PermissionAnswer, PermissionOption};
use crate::permission_request::{Approval, PermissionReply, PermissionRequest, RequestProblem};
use crate::permissions::{DecidedBy, PermissionNotice, PermissionService, TurnId, explained};

/// Problem of a request whose tool call was too large to keep.
const TOO_LARGE: &str = "the tool call has more input, locations or content than is kept";

pub(super) struct HeldRequest {
    responder: Responder,
    call_id: Option<Arc<str>>,
    options: Vec<PermissionOption>,
    decision: Decision,
    may_always: bool,
    /// `true` if the request contains a command that the client runs, according to the user's settings.
    is_trusted: bool,
    /// `true` if the request is about a change of the agent's mode.
    switches_mode: bool,
    /// Action that the client would perform for the agent if the request is allowed.
    client_action: Option<ClientAction>,
    /// Share of the limit of open requests, held until the answer.
    _permit: OwnedSemaphorePermit,
}

pub(super) struct SettledRequest {
    id: String,
    reply: PermissionReply,
    by: DecidedBy,
    /// Decision of the policy that considers link targets, if it differs from the decision without them.
    decision: Option<Decision>,
    /// Part of the changes that the person was shown.
    shown: ShownChange,
}

impl SettledRequest {
    fn immediately(id: String, (reply, by): (PermissionReply, DecidedBy)) -> Self {
        Self { id, reply, by, decision: None, shown: ShownChange::Whole }
    }
}

/// The subjects of a request, as the policy judges them.
#[derive(Clone)]
struct JudgedSubjects {
    /// Subjects of the request. The strictest decision on any of them counts.
    subjects: Vec<Subject>,
    /// `true` if a part of the request could not be read or is ambiguous.
    is_partial: bool,
    approval: Option<Approval>,
}

impl JudgedSubjects {
    fn judge(&self, permissions: &PermissionService, turn: TurnId) -> Decision {
        let decisions = self.subjects.iter().map(|subject| subject.judge(permissions, turn));
        let strictest = decisions.reduce(Decision::stricter);
        let mut decision = strictest.unwrap_or_else(|| permissions.judge(turn, &Action::default(), false));
        if self.is_partial {
            // A rule must not allow a request that cannot be read completely. A person may allow it.
            decision.verdict = decision.verdict.max(Verdict::Ask);
        }
        if let Some(approval) = &self.approval
            && matches!(decision.because, DecisionReason::Preset { .. })
            && decision.verdict <= Verdict::Ask
        {
            // A preset does not decide about an approval: only a person or a rule does.
            decision.verdict = Verdict::Ask;
            decision.because = DecisionReason::Approval { reason: approval.reason.clone() };
        }
        decision
    }

    /// Returns `true` if no subject contains a path, so that no link needs to be followed.
    fn names_nothing(&self) -> bool {
        let is_plain =
            |action: &Action| action.paths.is_empty() && action.cwd.is_none() && action.command.is_none();
        self.actions().all(is_plain)
    }

    fn actions(&self) -> impl Iterator<Item = &Action> {
        self.subjects.iter().map(|subject| &subject.action)
    }

    /// Adds the link targets of the subjects' paths. If a path cannot be followed, marks the request as
    /// partial.
    async fn followed(mut self, permissions: &PermissionService) -> Self {
        let Some(here) = permissions.local_root().map(Path::to_owned) else { return self };
        let files = permissions.files().clone();
        let mut subjects = self.subjects.clone();
        let following = move || {
            let mut actions = subjects.iter_mut().map(|subject| &mut subject.action);
            let followed = actions.try_for_each(|action| follow_links(action, &here, &files));
            followed.map(|()| subjects)
        };
        match permissions.files().look_up(following).await {
            Ok(subjects) => self.subjects = subjects,
            Err(Unfollowed) => self.is_partial = true,
        }
        self
    }
}

impl Actor {
    pub(super) fn permission(&mut self, request: Request, method: &str, permit: OwnedSemaphorePermit) {
        let params = request.frame.params().unwrap_or(b"{}");
        let permissions = Arc::clone(&self.services.permissions);
        let turn = permissions.turn();
        let id = permissions.next_request_id();
        let asked = self.mapper.permission_requested(&id, method, params, now_ms(), &mut self.events);
        // Built-in tools exist only in version 2, and only for an agent that accepts MCP servers from its
        // client.
        let known = &self.shared.known;
        let has_tools = known.version == Version::V2 && known.can.mcp_acp;
        let Offer { read_files: read, write_files: write, run_commands: run } = self.shared.offer;
        let tools = BuiltInTools { here: &self.services.cwd, offer: mcp::Offer { read, write, run } };
        let mut subjects = subjects(&asked, has_tools.then_some(&tools));
        let agent = &self.shared.agent;
        let is_trusted = !agent.acts_through_client && agent.commands_run_by == CommandRunner::Client;
        let runs_commands = (agent.acts_through_client || is_trusted) && self.shared.offer.run_commands;
        // A command of a user's MCP server is no command of the client: it runs without a sandbox.
        let is_held = |Subject { action, runs_here }: &Subject| {
            !runs_here && action.command.is_some() && action.server.is_none()
        };
        // The sandbox of the next command is determined before the command is judged.
        let command_sandbox = (runs_commands && subjects.iter().any(is_held)).then(|| {
            subjects
                .iter_mut()
                .filter(|subject| is_held(subject))
                .for_each(|subject| subject.runs_here = true);
            self.services.command_sandbox.clone()
        });
        let is_trusted = is_trusted && command_sandbox.is_some();
        let switches_mode = subjects.iter().any(|Subject { action, .. }| {
            action.kind == Kind::SwitchMode || action.also.contains(&Kind::SwitchMode)
        });
        let is_cut = asked.calls().any(Call::is_partial);
        let reason = asked.problem.clone().or_else(|| is_cut.then(|| TOO_LARGE.to_owned()));
        let problem = reason.map(|reason| RequestProblem::new(reason, params));
        let is_partial = problem.is_some() || asked.is_bare;
        let matter = JudgedSubjects { subjects, is_partial, approval: asked.approval.clone() };
        let decision = matter.judge(&permissions, turn);
        // If the request did not show the whole action, the permission does not cover a later request of the
        // action.
        let client_action =
            client_action(&matter.subjects, &asked, &self.services.cwd).filter(|_| !is_partial);
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
        let permission_request = PermissionRequest {
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
            subjects: Vec::new(),
            changes: all_changes(&asked),
            options: options.clone(),
            decision: decision.clone(),
            approval: asked.approval,
            problem,
        };
        // The request is allowed for good only if no option allows it once, and only with the preset that
        // allows everything.
        let may_always = permissions.access() == Access::High;
        let responder = request.responder;
        let given_up = responder.cancelled();
        let cwd = self.services.cwd.clone();
        // Link targets can make a decision only stricter, so a denial is final.
        let is_final =
            decision.verdict == Verdict::Deny || matter.names_nothing() && command_sandbox.is_none();
        let immediately = permissions.reply_without_asking(&decision).filter(|_| is_final);
        self.held.insert(
            id.clone(),
            HeldRequest {
                responder,
                call_id,
                options,
                decision,
                may_always,
                is_trusted,
                switches_mode,
                client_action,
                _permit: permit,
            },
        );
        if let Some(settled) = immediately {
            return self.settled(SettledRequest::immediately(id, settled));
        }
        self.tasks.spawn(async move {
            let settling = async {
                if let Some(command_sandbox) = command_sandbox {
                    permissions.set_confined(command_sandbox.prepare().await.1);
                }
                let named: Vec<usize> = matter.actions().map(|action| action.paths.len()).collect();
                let matter = matter.followed(&permissions).await;
                let decision = matter.judge(&permissions, turn);
                let mut permission_request =
                    PermissionRequest { decision: decision.clone(), ..permission_request };
                for (action, named) in matter.actions().zip(named) {
                    permission_request.locations.extend(action.paths.iter().skip(named).cloned());
                }
                permission_request.subjects = shown_actions(matter.subjects, &cwd);
                let (changes, shown) = compare_with_disk(permission_request.changes, cwd).await;
                permission_request.changes = changes;
                let (reply, by) = permissions.settle(turn, permission_request).await;
                (reply, by, Some(decision), shown)
            };
            let (reply, by, decision, shown) = tokio::select! {
                biased;
                settled = settling => settled,
                () = given_up => (PermissionReply::Cancel, DecidedBy::Cancelled, None, ShownChange::Whole),
            };
            Some(TaskOutcome::SettledRequest(SettledRequest { id, reply, by, decision, shown }))
        });
    }

    /// Answers a settled request, and reports the answer.
    pub(super) fn settled(&mut self, settled: SettledRequest) {
        let SettledRequest { id, reply, by, decision: followed, shown } = settled;
        // A request that is no longer held was already answered at the end of its turn.
        let Some(held) = self.held.remove(&id) else { return };
        let HeldRequest {
            responder,
            call_id,
            options,
            decision,
            may_always,
            is_trusted,
            switches_mode,
            client_action,
            _permit,
        } = held;
        let decision = followed.unwrap_or(decision);
        let answer = answer(&options, &reply, may_always);
        let chosen = answer.option_id().and_then(|id| options.iter().find(|option| option.option_id == id));
        // If only a part of a file's change was shown, the permission does not cover the client's later
        // write.
        let client_action = client_action.filter(|_| shown == ShownChange::Whole);
        if let (DecidedBy::Person, Some(client_action), Some(option)) = (by, client_action, chosen) {
            let allowed = &self.services.permissions.allowed;
            match option.kind.as_str() {
                "allow_once" => allowed.remember(client_action, Validity::Once),
                "allow_always" => allowed.remember(client_action, Validity::Always),
                _ => {}
            }
        }
        let is_allowed = chosen.is_some_and(|option| option.kind.starts_with("allow_"));
        if let Some(call) = call_id.as_ref().filter(|_| is_trusted && is_allowed) {
            self.client_run_commands.allow(Arc::clone(call), self.services.commands_wanted());
        }
        if switches_mode && is_allowed {
            self.mode_guard.release();
        }
        let resolved = PermissionResolved {
            request_id: id,
            call_id,
            outcome: if chosen.is_some() { "selected" } else { "cancelled" }.to_owned(),
            option_id: chosen.map(|option| option.option_id.clone()),
            option_kind: chosen.map(|option| option.kind.clone()),
            decision: Some(explained(&decision, by)),
        };
        // The mark tells a gate in front of the agent that no person has decided.
        let answer = if matches!(by, DecidedBy::NoApprover | DecidedBy::Deadline) {
            answer.unasked(by.name())
        } else {
            answer
        };
        responder.respond(&answer);
        self.mapper.permission_resolved(resolved, now_ms(), &mut self.events);
        // The time of a person's decision does not count as silence of the agent.
        self.reset_silence_timer();
    }

    /// Answers and reports all open requests, because their turn has ended.
    pub(super) fn settle_all(&mut self) {
        self.services.permissions.cancel();
        while let Some(answered) = self.tasks.try_join_next() {
            if let Some(outcome) = answered.unwrap_or_default() {
                self.task_ended(outcome);
            }
        }
        let held: Vec<String> = self.held.keys().cloned().collect();
        for id in held {
            self.settled(SettledRequest::immediately(id, (PermissionReply::Cancel, DecidedBy::Cancelled)));
        }
        while let Ok(notice) = self.inputs.notices.try_recv() {
            self.handle_notice(notice);
        }
        for id in std::mem::take(&mut self.undecided) {
            self.report_abandoned(&id);
        }
    }

    pub(super) fn handle_notice(&mut self, notice: PermissionNotice) {
        match notice {
            PermissionNotice::Requested(requested) => {
                self.undecided.insert(requested.request_id.clone());
                let payload = Payload::PermissionRequested(requested);
                self.mapper.provider_event(payload, now_ms(), &mut self.events);
            }
            PermissionNotice::Resolved(resolved) => {
                self.undecided.remove(&resolved.request_id);
                if self.services.permissions.pending_permissions.mark_reported(&resolved.request_id) {
                    self.mapper.permission_resolved(resolved, now_ms(), &mut self.events);
                }
                self.reset_silence_timer();
            }
            PermissionNotice::GivenUp(id) => {
                self.undecided.remove(&id);
                self.report_abandoned(&id);
            }
            PermissionNotice::Other(payload) => {
                self.mapper.provider_event(payload, now_ms(), &mut self.events);
            }
        }
    }

    fn report_abandoned(&mut self, id: &str) {
        if let Some(resolved) = self.services.permissions.pending_permissions.give_up(id) {
            self.mapper.permission_resolved(resolved, now_ms(), &mut self.events);
        }
    }
}

/// Returns the answer that selects one of the agent's options according to `reply`.
fn answer(options: &[PermissionOption], reply: &PermissionReply, may_always: bool) -> PermissionAnswer {
    match reply {
        PermissionReply::Allow => {
            option_choice::allow(options, may_always).unwrap_or_else(|| option_choice::reject(options))
        }
        PermissionReply::Reject | PermissionReply::NoApprover => option_choice::reject(options),
        PermissionReply::Select(id) => option_choice::exactly(options, id).unwrap_or_else(|| {
            tracing::warn!("answer names an unknown option, treated as a rejection");
            option_choice::reject(options)
        }),
        PermissionReply::Cancel => PermissionAnswer::CANCELLED,
    }
}
