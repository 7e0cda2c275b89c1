//! Pending approvals: the required approvers, their votes, and what happens after the decision.

use bytes::Bytes;
use narrows_acp::method;
use narrows_policy::GovernanceDecision;
use narrows_wire::{Code, RpcError, View, message};
use serde_json::{Value, json};

use super::api::{
    ApprovalRequest, ApprovalVote, AuditSeq, GateOutput, GateStart, GateTime, VoteError, VoteSignature,
};
use super::approval_summary::{MAX_PENDING_APPROVALS, summarize_input};
use super::approvers::{ApprovalRequirement, approval_requirements, requirements_met};
use super::client_services::MOVED;
use super::outbox::{GateDirection, OnAuditFailure};
use super::retained::{ByteCharge, value_bytes};
use super::session::{ApprovalOrigin, PendingAtClient};
use super::session_open::{audit_unavailable, parse_object};
use super::turn::CANCELLED;
use super::{GateCtx, RawRequestId};
use crate::audit_events::{self, ApprovalOutcome};
use crate::authorizer::CallDecision;
use crate::call::{Call, Digest, repeated_input};
use crate::identity::Principal;
use crate::lifecycle::OperatorState;

/// Ids of the options in permission requests that the gate sends.
const ALLOW: &str = "allow_once";
const REJECT: &str = "reject_once";

/// Maximum number of changed files that the reason of an approval names.
const MAX_NAMED_FILES: usize = 8;

/// Reason for refusing an approval: the call has changed since the approval was requested.
const CHANGED: &str = "the call changed while it waited for approval";

/// Reason for refusing an approval when there are too many, or the byte budget is exhausted.
const NO_ROOM: &str = "too many pending approvals";

#[derive(Debug)]
pub(super) struct PendingApproval {
    session: Box<str>,
    call: Box<str>,
    pub(super) tool: String,
    /// Reserved name that the agent reported as the tool name.
    claimed: Option<String>,
    input: Value,
    pub(super) input_summary: Box<str>,
    kinds: Vec<&'static str>,
    /// Digest of everything that was judged about the call and is shown to approvers.
    digest: Digest,
    content: Value,
    /// Decision about the call as approvers have seen it.
    ruling: GovernanceDecision,
    pub(super) reason: String,
    origin: ApprovalOrigin,
    requirements: Vec<ApprovalRequirement>,
    votes: Vec<(Principal, Option<VoteSignature>)>,
    client_request: Option<RawRequestId>,
    /// `true` if the client gets notices about this approval, because the client alone cannot give the
    /// approval.
    pub(super) notifies_client: bool,
    pub(super) due: GateTime,
    charge: ByteCharge,
}

impl PendingApproval {
    pub(super) fn to_request(
        &self,
        start: &GateStart,
        principal: &Principal,
        number: u64,
    ) -> ApprovalRequest {
        ApprovalRequest {
            id: approval_name(start, number),
            session: self.session.to_string(),
            tool: self.tool.clone(),
            input: self.input.clone(),
            kinds: self.kinds.join(", "),
            digest: self.digest,
            content: self.content.clone(),
            reason: self.reason.clone(),
            requirements: self.describe_requirements(),
            approved_by: self.votes.iter().map(|(signer, _)| signer.id.clone()).collect(),
            client: principal.id.clone(),
            deadline: self.due,
            expires_at: start.started_at + self.due.as_secs(),
            is_client_asked: self.client_request.is_some(),
        }
    }

    fn retained_bytes(&self) -> usize {
        let texts = self.session.len() + self.call.len() + self.tool.len() + self.reason.len();
        let values = value_bytes(&self.input) + value_bytes(&self.content) + self.input_summary.len();
        size_of::<Self>() + texts + values + self.origin.retained_bytes()
    }

    pub(super) fn session(&self) -> Box<str> {
        self.session.clone()
    }

    pub(super) fn describe_requirements(&self) -> String {
        self.requirements.iter().map(ApprovalRequirement::describe).collect::<Vec<_>>().join(", and ")
    }

    pub(super) fn is_in_session(&self, session: &str) -> bool {
        *self.session == *session
    }

    /// Returns `true` if the approval decides about the agent request with this id.
    pub(super) fn holds_request(&self, request: &[u8]) -> bool {
        match &self.origin {
            ApprovalOrigin::Permission { id, .. } | ApprovalOrigin::Service { id, .. } => **id == *request,
            ApprovalOrigin::ToolCheck { .. }
            | ApprovalOrigin::Turn { .. }
            | ApprovalOrigin::SessionConfig { .. } => false,
        }
    }

    fn is_satisfied(&self) -> bool {
        let given: Vec<&Principal> = self.votes.iter().map(|(signer, _)| signer).collect();
        requirements_met(&self.requirements, &given)
    }

    /// Checks that every counted signature is still valid.
    ///
    /// # Errors
    ///
    /// The reason why a signature is invalid.
    fn check_signatures(&self) -> Result<(), String> {
        let mut signatures = self.votes.iter().filter_map(|(_, signature)| signature.as_ref());
        signatures.try_for_each(|signature| signature.validity.check())
    }

    pub(super) fn can_be_approved_by(&self, signer: &Principal) -> bool {
        self.requirements.iter().flat_map(|requirement| &requirement.0).any(|group| group.includes(signer))
    }

    fn has_no_approvers(&self) -> bool {
        self.requirements.iter().any(|requirement| requirement.0.is_empty())
    }
}

/// Returns the end of an approval's reason, which names the files that the diffs of the call change.
fn changed_files_note(call: &Call) -> String {
    let files = call.changed_files();
    if files.is_empty() {
        return String::new();
    }
    let first: Vec<String> = files
        .iter()
        .take(MAX_NAMED_FILES)
        .map(|file| format!("`{}`", narrows_base::text::quoted(&file.to_string_lossy(), 200)))
        .collect();
    let more = files.len().saturating_sub(MAX_NAMED_FILES);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("; it changes {}{more}", first.join(", "))
}

pub(super) fn approval_name(start: &GateStart, number: u64) -> String {
    format!("{}-{number}", start.nonce)
}

impl<O: GateOutput> GateCtx<'_, O> {
    pub(super) fn is_gate_request_id(&self, id: &[u8]) -> bool {
        id.starts_with(format!("\"aip44:{}:", self.gate.start.nonce).as_bytes())
    }

    pub(super) fn approvals_in_session(&self, session: &str) -> Vec<u64> {
        let of = self.gate.approvals.iter().filter(|(_, approval)| approval.is_in_session(session));
        of.map(|(number, _)| *number).collect()
    }

    pub(super) fn approvals_in_tree(&self, session: &str) -> Vec<u64> {
        let within = |approval: &PendingApproval| self.gate.is_in_subtree(&approval.session, session);
        self.gate.approvals.iter().filter(|(_, it)| within(it)).map(|(number, _)| *number).collect()
    }

    /// Returns the decision about a turn of a gated operator, which always requires an approval.
    pub(super) fn turn_decision(&self, call: &Call) -> CallDecision {
        let gate = &self.gate;
        let mut decision = gate.authorizer.decide(
            call,
            &gate.config,
            &gate.principal,
            &gate.config.roots,
            self.unix_seconds(),
        );
        decision.ruling.class = narrows_policy::Class::RequireApproval;
        CallDecision {
            override_reason: Some("a gated operator needs approval for every turn".to_owned()),
            ..decision
        }
    }

    /// Creates an approval for a call. Asks the client if the client is one of the approvers.
    pub(super) fn request_approval(
        &mut self,
        name: &str,
        call: &str,
        origin: ApprovalOrigin,
        after: Option<AuditSeq>,
    ) {
        self.gate.serial += 1;
        let number = self.gate.serial;
        let due = self.now + self.gate.config.timeouts.approval;
        let Some(record) = self.gate.sessions.get(name).and_then(|session| session.calls.get(call)) else {
            return;
        };
        let Some(decision) = &record.decision else { return };
        let requirements = approval_requirements(&decision.ruling, &self.gate.config.approvers);
        let tool_call = record.call.permission_tool_call(call);
        let approval_id = approval_name(&self.gate.start, number);
        let input = record.call.approval_input().into_owned();
        let mut approval = PendingApproval {
            session: name.into(),
            call: call.into(),
            tool: record.call.tool(),
            claimed: record.call.claimed_name().map(str::to_owned),
            input_summary: summarize_input(&approval_id, &input).into(),
            input,
            kinds: record.call.kinds(),
            digest: record.call.digest(),
            content: record.call.output.clone(),
            ruling: decision.ruling.clone(),
            reason: decision.reason() + &changed_files_note(&record.call),
            origin,
            requirements,
            votes: Vec::new(),
            client_request: None,
            notifies_client: false,
            due,
            charge: ByteCharge::default(),
        };
        let bytes = approval.retained_bytes();
        let has_room = self.gate.approvals.len() < MAX_PENDING_APPROVALS && self.has_room_for(name, bytes);
        approval.charge = self.gate.retained.charge(bytes);
        let asks = approval.can_be_approved_by(&self.gate.principal);
        let has_no_approvers = approval.has_no_approvers();
        approval.notifies_client =
            has_no_approvers || !requirements_met(&approval.requirements, &[&self.gate.principal]);
        let id = format!("\"aip44:{}:{number}\"", self.gate.start.nonce);
        let mut params = json!({"sessionId": name});
        if self.gate.is_v2 {
            params["title"] = json!(approval.tool);
            params["description"] = json!(approval.reason);
            params["subject"] = json!({"type": "tool_call", "toolCall": tool_call});
        } else {
            params["toolCall"] = tool_call;
        }
        params["options"] = json!([
            {"optionId": ALLOW, "name": "Allow once", "kind": ALLOW},
            {"optionId": REJECT, "name": "Reject", "kind": REJECT},
        ]);
        params["_meta"] = json!({"aip44": {"approval": approval_id, "reason": approval.reason}});
        let is_unannounced = approval.origin.is_unannounced();
        // The refusal of this call may have exceeded the refusal limit, which stops the turn.
        let is_stopped = approval.origin.is_of_agent() && self.gate.is_stopping(name);
        self.gate.approvals.insert(number, approval);
        self.gate.arm_timer(due);
        let seq = self.set_operator_state(name, OperatorState::Suspended, Some(&approval_id)).or(after);
        if has_no_approvers {
            return self
                .settle_approval(number, ApprovalOutcome::Refused("no approver may approve it".to_owned()));
        }
        if !has_room {
            return self.settle_approval(number, ApprovalOutcome::Refused(NO_ROOM.to_owned()));
        }
        if is_stopped {
            return self
                .settle_approval(number, ApprovalOutcome::Refused("the turn is being stopped".to_owned()));
        }
        if let Some(refused) = self.client_closed_refusal().filter(|_| asks) {
            return self.settle_approval(number, refused);
        }
        if is_unannounced {
            self.send_operator_state(name, "requires_action", seq);
        }
        self.notify_approval_pending(name, number, seq);
        let line = message::request(id.as_bytes(), method::SESSION_REQUEST_PERMISSION, &params);
        if let Ok(line) = line
            && asks
        {
            self.gate.track_agent_request(id.as_bytes(), PendingAtClient::Approval(number));
            if let Some(approval) = self.gate.approvals.get_mut(&number) {
                approval.client_request = Some(id.as_bytes().into());
            }
            self.send(GateDirection::ToClient, &[&line], seq, OnAuditFailure::HaltTurn(name.into()));
        }
    }

    pub(super) fn handle_client_vote(&mut self, number: u64, message: View<'_>) {
        let Some(approval) = self.gate.approvals.get_mut(&number) else { return };
        approval.client_request = None;
        let result = parse_object(message.result());
        let outcome = &result["outcome"];
        let allows = outcome["outcome"] == "selected" && outcome["optionId"] == ALLOW;
        let principal = self.gate.principal.clone();
        if allows {
            // The client's vote may not be enough, and the client cannot be asked twice. So an approval whose
            // earlier signature became invalid is refused. The agent may ask again.
            if let Err(VoteError::SignatureInvalid(why)) = self.approve(number, principal, None) {
                self.settle_approval(number, ApprovalOutcome::Refused(why));
            }
        } else {
            let why = match result["_meta"]["narrows/by"].as_str() {
                Some("nobody to ask") => format!("no user to ask at the client of {}", principal.id),
                Some("timed out") => format!("no answer at the client of {}", principal.id),
                _ => format!("{} rejected it", principal.id),
            };
            self.settle_approval(number, ApprovalOutcome::Refused(why));
        }
    }

    pub(super) fn vote(&mut self, vote: ApprovalVote) -> Result<(), VoteError> {
        let start = &self.gate.start;
        let number =
            self.gate.approvals.keys().copied().find(|number| approval_name(start, *number) == vote.id);
        let number = number.ok_or(VoteError::NotFound)?;
        if !self.gate.approvals.get(&number).is_some_and(|approval| approval.can_be_approved_by(&vote.signer))
        {
            return Err(VoteError::NotASigner);
        }
        if vote.approves {
            return self.approve(number, vote.signer, vote.signature);
        }
        let why = vote.reason.unwrap_or_else(|| "no reason given".to_owned());
        self.settle_approval(
            number,
            ApprovalOutcome::Refused(format!("{} rejected it: {why}", vote.signer.id)),
        );
        Ok(())
    }

    /// Counts a vote. Fails if an earlier counted signature is no longer valid, because a revoked key must
    /// not count for a quorum.
    fn approve(
        &mut self,
        number: u64,
        signer: Principal,
        signature: Option<VoteSignature>,
    ) -> Result<(), VoteError> {
        let approval = self.gate.approvals.get_mut(&number).ok_or(VoteError::NotFound)?;
        if approval.votes.iter().any(|(other, _)| other.id == signer.id) {
            return Err(VoteError::AlreadyApproved);
        }
        approval.check_signatures().map_err(VoteError::SignatureInvalid)?;
        approval.votes.push((signer, signature));
        if approval.is_satisfied() {
            let approvers = approval.votes.iter().map(|(signer, _)| signer.id.clone()).collect();
            let signatures = approval.votes.iter().filter_map(|(_, signature)| signature.as_ref());
            let signatures = signatures.map(|signature| signature.file.clone()).collect();
            self.settle_approval(number, ApprovalOutcome::By { approvers, signatures });
        }
        Ok(())
    }

    /// Refuses the pending approvals of a call if the call or the decision about it has changed since the
    /// approvers saw it.
    pub(super) fn refuse_outdated_approvals(&mut self, name: &str, call: &str, ruling: &GovernanceDecision) {
        if self.gate.approvals.is_empty() {
            return;
        }
        let Some(record) = self.gate.sessions.get(name).and_then(|session| session.calls.get(call)) else {
            return;
        };
        let digest = record.call.digest();
        let is_other = |approval: &PendingApproval| {
            let is_about = approval.is_in_session(name) && *approval.call == *call;
            is_about && (approval.digest != digest || approval.ruling != *ruling)
        };
        let others = self.gate.approvals.iter().filter(|(_, approval)| is_other(approval));
        let others: Vec<u64> = others.map(|(number, _)| *number).collect();
        for number in others {
            self.settle_approval(number, ApprovalOutcome::Refused(CHANGED.to_owned()));
        }
    }

    /// Closes an approval, and continues the request once the outcome is recorded. A given approval is void
    /// if the call has changed since it was shown.
    pub(super) fn settle_approval(&mut self, number: u64, outcome: ApprovalOutcome) {
        let Some(mut approval) = self.gate.approvals.remove(&number) else { return };
        if let Some(request) = approval.client_request.take() {
            self.gate.pending_at_client.remove(&request);
            self.cancel_request(GateDirection::ToClient, &request);
        }
        self.restart_silence_timer(&approval.session);
        let at = self.unix_seconds();
        let is_moved = outcome.is_given() && self.has_moved(&approval.session, &approval.call);
        let session = self.gate.sessions.get_mut(&*approval.session);
        let record = session.and_then(|session| session.calls.get_mut(&*approval.call)).map(Box::as_mut);
        let record = record.filter(|record| record.call.digest() == approval.digest);
        let outcome = match record.as_ref().map(|record| &record.outcome) {
            _ if !outcome.is_given() => outcome,
            // The call has changed, and no approver has seen its current form.
            None => ApprovalOutcome::Refused(CHANGED.to_owned()),
            // The call was refused after this approval was requested, and the refusal counts.
            Some(refused @ ApprovalOutcome::Refused(_)) => refused.clone(),
            Some(_) if is_moved => ApprovalOutcome::Refused(MOVED.to_owned()),
            Some(_) => outcome,
        };
        let mut spent = None;
        if let Some(record) = record {
            record.set_outcome(outcome.clone());
            record.approvers = approval.votes.drain(..).map(|(signer, _)| signer).collect();
            if outcome.is_given() {
                let (authorizer, counted) = (&mut self.gate.authorizer, &mut record.counted);
                let decision = record.decision.as_ref();
                spent = decision
                    .and_then(|decision| authorizer.count_call(decision, at, approval.digest, counted));
                record.mark_used();
            }
        }
        // The decision that asked for the approval is in the log with the whole input.
        let input = repeated_input(&approval.input, audit_events::has_secret);
        let shown = audit_events::AuditedCall {
            tool: &approval.tool,
            id: &approval.call,
            claimed: approval.claimed.as_deref(),
            input: &input,
            kinds: &approval.kinds,
            call: None,
        };
        let event =
            self.parties(&approval.session).call_decided(&shown, &approval.ruling, &outcome, spent.as_ref());
        let recorded = self.record(event);
        let seq = self.set_operator_state(&approval.session, OperatorState::Resumed, None).or(Some(recorded));
        self.notify_approval_settled(number, &approval, &outcome, seq);
        let PendingApproval { session: name, call, origin, .. } = approval;
        if origin.is_unannounced() && self.approvals_in_session(&name).is_empty() {
            self.send_operator_state(&name, "running", seq);
        }
        match (origin, outcome) {
            (ApprovalOrigin::Permission { id, options }, ApprovalOutcome::Refused(why)) => {
                self.reject_permission(&id, &name, &options, &why, seq);
            }
            (ApprovalOrigin::Permission { id, options }, _) => {
                self.answer_permission(
                    &id,
                    &name,
                    options.allow.as_deref().or(options.reject.as_deref()),
                    seq,
                );
            }
            (ApprovalOrigin::Service { id, .. }, ApprovalOutcome::Refused(why)) => {
                self.deny_client_service(&id, &name, &call, &why, seq);
            }
            (ApprovalOrigin::Service { id, line }, _) => self.forward_service(&id, &name, &call, &line, seq),
            (ApprovalOrigin::ToolCheck { number }, outcome) => {
                self.settle_tool_check(&name, &call, number, &outcome, seq.unwrap_or(recorded));
            }
            (ApprovalOrigin::Turn { id, .. }, ApprovalOutcome::Refused(why)) => {
                self.remove_turn_call(&name, &call);
                self.refuse_turn(&id, &name, &why);
            }
            (ApprovalOrigin::Turn { id, line }, _) => {
                self.remove_turn_call(&name, &call);
                self.begin_turn(&id, &name, View::parse(&line), seq);
            }
            (ApprovalOrigin::SessionConfig { id, line }, outcome) => {
                self.finish_session_config(&id, (&name, &call), View::parse(&line), &outcome, seq);
            }
        }
    }

    /// Reports to a client of version 2 that the operator waits for an approval or continues. Needed if the
    /// agent does not know about the approval, and cannot report its state itself.
    fn send_operator_state(&mut self, name: &str, state: &str, after: Option<AuditSeq>) {
        if !self.gate.is_v2 {
            return;
        }
        let update = json!({"sessionUpdate": "state_update", "state": state});
        let params = json!({"sessionId": name, "update": update});
        if let Ok(line) = message::notification(method::SESSION_UPDATE, &params) {
            self.send_marked(View::parse(&line), after, OnAuditFailure::HaltTurn(name.into()));
        }
    }

    fn remove_turn_call(&mut self, name: &str, call: &str) {
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.calls.remove(call);
        }
    }

    /// Answers a prompt whose turn never began: as cancelled if the client cancelled the turn, otherwise as
    /// refused.
    fn refuse_turn(&mut self, id: &[u8], name: &str, why: &str) {
        let after = self.set_operator_state(name, OperatorState::Interrupted, Some(why));
        if self.gate.is_v2 {
            // In version 2, a prompt is answered with a result only if it was accepted, so a refusal is an
            // error.
            let code = if why == CANCELLED { Code::Cancelled } else { Code::PolicyDenied };
            let error = RpcError::new(code, why.to_owned()).with("code", json!("interrupted"));
            let line = message::error(id, &error);
            return self.send(
                GateDirection::ToClient,
                &[&line],
                after,
                OnAuditFailure::SendInstead(GateDirection::ToClient, audit_unavailable(id)),
            );
        }
        let stop = if why == CANCELLED { "cancelled" } else { "refusal" };
        let result = json!({"stopReason": stop, "_meta": {"aip44": {"interrupted": why}}});
        if let Ok(line) = message::response(id, &result) {
            let line: Bytes = line;
            self.send(
                GateDirection::ToClient,
                &[&line],
                after,
                OnAuditFailure::SendInstead(GateDirection::ToClient, audit_unavailable(id)),
            );
        }
    }
}
