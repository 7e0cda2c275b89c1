//! What waits for an approval: who may give it, how many have to, and until when.

use bytes::Bytes;
use narrows_acp::method;
use narrows_manifest::types::governance::Approver;
use narrows_policy::{Ruling, Signer};
use narrows_wire::{Code, RpcError, View, message};
use serde_json::{Value, json};

use super::api::{Ballot, BallotError, Open, Out, Setting, Ticket, Time, VoteSignature};
use super::client_services::MOVED;
use super::outbox::{Otherwise, Way};
use super::retained::{Charge, value_bytes};
use super::session::{Origin, Served};
use super::session_open::{read, unrecorded};
use super::turn::CANCELLED;
use super::{Pass, Raw};
use crate::audit_events::{self, Approved};
use crate::authorizer::Verdict;
use crate::call::{Call, Digest};
use crate::identity::Principal;
use crate::lifecycle::Life;

/// How the options of our own questions are called.
const ALLOW: &str = "allow_once";
const REJECT: &str = "reject_once";

/// Files of a diff that the reason for a question names.
const MAX_NAMED_FILES: usize = 8;

/// Why what was asked about is not done once it has become something else.
const CHANGED: &str = "the call was changed while it waited";

/// Why it is not done if there is no room for it.
const NO_ROOM: &str = "too much waits for an approval";

/// Something that waits for an approval.
#[derive(Debug)]
pub(super) struct Hearing {
    session: Box<str>,
    call: Box<str>,
    pub(super) tool: String,
    /// What it was told to be, and is not.
    posed: Option<String>,
    input: Value,
    kinds: Vec<&'static str>,
    /// Of all that is judged and shown of the call.
    digest: Digest,
    /// What the agent shows of it beside that.
    content: Value,
    /// What was decided about it as it was shown.
    ruling: Ruling,
    pub(super) reason: String,
    origin: Origin,
    needs: Vec<Need>,
    /// Who has approved, and their signatures.
    given: Vec<(Principal, Option<VoteSignature>)>,
    /// The id of the question to the client, if it was asked.
    question: Option<Raw>,
    /// The client is told what becomes of it: it cannot say so by itself.
    pub(super) told: bool,
    pub(super) due: Time,
    charge: Charge,
}

impl Hearing {
    pub(super) fn open(&self, setting: &Setting, who: &Principal, number: u64) -> Open {
        Open {
            id: name_of(setting, number),
            session: self.session.to_string(),
            tool: self.tool.clone(),
            input: self.input.clone(),
            kinds: self.kinds.join(", "),
            digest: self.digest,
            content: self.content.clone(),
            reason: self.reason.clone(),
            needs: self.needed(),
            given: self.given.iter().map(|(signer, _)| signer.id.clone()).collect(),
            client: who.id.clone(),
            due: self.due,
            until: setting.began + self.due.as_secs(),
            asked: self.question.is_some(),
        }
    }

    /// Estimates the memory that it takes.
    fn retained_bytes(&self) -> usize {
        let texts = self.session.len() + self.call.len() + self.tool.len() + self.reason.len();
        let values = value_bytes(&self.input) + value_bytes(&self.content);
        size_of::<Self>() + texts + values + self.origin.retained_bytes()
    }

    /// The session it is about something in.
    pub(super) fn session(&self) -> Box<str> {
        self.session.clone()
    }

    /// Whose approval it needs, in words.
    pub(super) fn needed(&self) -> String {
        self.needs.iter().map(Need::words).collect::<Vec<_>>().join(", and ")
    }

    /// Whether it is about something in this session.
    pub(super) fn is_of(&self, session: &str) -> bool {
        *self.session == *session
    }

    /// Whether a request of the agent's with this id waits for it.
    pub(super) fn holds(&self, request: &[u8]) -> bool {
        match &self.origin {
            Origin::Permission { id, .. } | Origin::Service { id, .. } => **id == *request,
            Origin::Consult { .. } | Origin::Turn { .. } | Origin::Change { .. } => false,
        }
    }

    /// Whether enough of those who may have approved.
    fn is_settled(&self) -> bool {
        let given: Vec<&Principal> = self.given.iter().map(|(signer, _)| signer).collect();
        settle(&self.needs, &given)
    }

    /// Checks that every signature that was counted is still valid.
    ///
    /// # Errors
    /// The reason why one is not.
    fn check_signatures(&self) -> Result<(), String> {
        let mut signatures = self.given.iter().filter_map(|(_, signature)| signature.as_ref());
        signatures.try_for_each(|signature| signature.validity.check())
    }

    /// Whether it is for them to approve.
    pub(super) fn counts(&self, signer: &Principal) -> bool {
        self.needs.iter().flat_map(|need| &need.0).any(|board| board.has(signer))
    }

    /// Whether those who would have to approve cannot, because there are none.
    fn is_hopeless(&self) -> bool {
        self.needs.iter().any(|need| need.0.is_empty())
    }
}

/// An approval that is needed: of any of these boards.
#[derive(Debug)]
struct Need(Vec<Board>);

impl Need {
    fn words(&self) -> String {
        self.0.iter().map(Board::words).collect::<Vec<_>>().join(" or ")
    }
}

/// Some people of whom so many have to approve.
#[derive(Debug)]
struct Board {
    /// Who. None: anybody who is asked.
    signers: Vec<Signer>,
    quorum: u32,
}

impl Board {
    fn words(&self) -> String {
        let mut names: Vec<String> = Vec::new();
        for signer in &self.signers {
            let role = signer.role.as_ref().map(|role| format!("role {role}"));
            // An approver is also known by its own name as a role.
            let is_said = signer.role.as_ref().is_some_and(|role| names.contains(role));
            names.extend(signer.user_id.clone().or(role.filter(|_| !is_said)));
        }
        let whom = if names.is_empty() { "those who are asked".to_owned() } else { names.join(", ") };
        format!("{} of {whom}", self.quorum.max(1))
    }

    fn has(&self, who: &Principal) -> bool {
        self.signers.is_empty() || is_signer(&self.signers, who)
    }
}

/// Whether somebody is one of those who may approve.
#[must_use]
pub fn is_signer(signers: &[Signer], who: &Principal) -> bool {
    signers.iter().any(|signer| {
        signer.user_id.as_ref().is_some_and(|user| is_user(user, &who.id))
            || signer.role.as_ref().is_some_and(|role| who.roles.contains(role))
    })
}

/// Whether those who have approved something are enough for what this ruling wants.
pub(super) fn suffice(ruling: &Ruling, approvers: &[Approver], given: &[Principal]) -> bool {
    settle(&needs(ruling, approvers), &given.iter().collect::<Vec<_>>())
}

fn settle(needs: &[Need], given: &[&Principal]) -> bool {
    needs.iter().all(|need| {
        need.0.iter().any(|board| {
            let count = given.iter().filter(|signer| board.has(signer)).count();
            count >= board.quorum.max(1) as usize
        })
    })
}

/// Who has to approve: those whom the policies name, and where they name nobody those who are responsible for the action.
fn needs(ruling: &Ruling, approvers: &[Approver]) -> Vec<Need> {
    let responsible = |quorum: u32| {
        if approvers.is_empty() {
            return Need(vec![Board { signers: Vec::new(), quorum }]);
        }
        let may = |approver: &&Approver| match &approver.can_approve {
            Some(known) => known.iter().any(|known| ruling.actions.iter().any(|action| known == action)),
            None => true,
        };
        let board = |approver: &Approver| {
            let role = |role: String| Signer { role: Some(role), user_id: None };
            let mut signers = vec![Signer { role: None, user_id: Some(approver.id.clone()) }];
            signers.push(role(approver.id.clone()));
            signers.extend(approver.role.clone().map(role));
            Board { signers, quorum: quorum.max(approver.needed()) }
        };
        Need(approvers.iter().filter(may).map(board).collect())
    };
    if ruling.approvals.is_empty() {
        return vec![responsible(1)];
    }
    let need = |approval: &narrows_policy::Approval| match approval.signers.is_empty() {
        true => responsible(approval.quorum),
        false => Need(vec![Board { signers: approval.signers.clone(), quorum: approval.quorum }]),
    };
    ruling.approvals.iter().map(need).collect()
}

/// Whether a policy means this user by this name: with or without saying that it is one.
fn is_user(named: &str, id: &str) -> bool {
    named == id || id.strip_prefix("user:") == Some(named)
}

/// The files that a call shows changes of, as the end of the reason for a question.
fn shown_changes(call: &Call) -> String {
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

/// What an approval is called outside.
pub(super) fn name_of(setting: &Setting, number: u64) -> String {
    format!("{}-{number}", setting.nonce)
}

impl<O: Out> Pass<'_, O> {
    /// Whether an id is one of our own requests.
    pub(super) fn is_own(&self, id: &[u8]) -> bool {
        id.starts_with(format!("\"aip44:{}:", self.gate.setting.nonce).as_bytes())
    }

    pub(super) fn hearings_of(&self, session: &str) -> Vec<u64> {
        let of = self.gate.hearings.iter().filter(|(_, hearing)| hearing.is_of(session));
        of.map(|(number, _)| *number).collect()
    }

    /// Those of a session and of the children below it.
    pub(super) fn hearings_within(&self, session: &str) -> Vec<u64> {
        let within = |hearing: &Hearing| self.gate.is_within(&hearing.session, session);
        self.gate.hearings.iter().filter(|(_, it)| within(it)).map(|(number, _)| *number).collect()
    }

    /// Whether a turn of an operator that asks for each may be had: somebody has to say.
    pub(super) fn turn_verdict(&self, call: &Call) -> Verdict {
        let gate = &self.gate;
        let mut verdict = gate.desk.rule(call, &gate.mandate, &gate.who, &gate.mandate.roots, self.unix());
        verdict.ruling.class = narrows_policy::Class::RequireApproval;
        Verdict { because: Some("a gated operator asks for every turn".to_owned()), ..verdict }
    }

    /// Opens a hearing about a call, and asks the client if it may say.
    pub(super) fn hear(&mut self, name: &str, call: &str, origin: Origin, after: Option<Ticket>) {
        self.gate.serial += 1;
        let number = self.gate.serial;
        let due = self.now + self.gate.mandate.patience.approval;
        let Some(case) = self.gate.sessions.get(name).and_then(|session| session.calls.get(call)) else {
            return;
        };
        let Some(verdict) = &case.verdict else { return };
        let needs = needs(&verdict.ruling, &self.gate.mandate.approvers);
        let tool_call = case.call.question(call);
        let mut hearing = Hearing {
            session: name.into(),
            call: call.into(),
            tool: case.call.tool(),
            posed: case.call.posed().map(str::to_owned),
            input: case.call.matter().into_owned(),
            kinds: case.call.kinds(),
            digest: case.call.digest(),
            content: case.call.output.clone(),
            ruling: verdict.ruling.clone(),
            reason: verdict.reason() + &shown_changes(&case.call),
            origin,
            needs,
            given: Vec::new(),
            question: None,
            told: false,
            due,
            charge: Charge::default(),
        };
        let bytes = hearing.retained_bytes();
        let has_room = self.has_room_for(name, bytes);
        hearing.charge = self.gate.retained.charge(bytes);
        let asks = hearing.counts(&self.gate.who);
        let hopeless = hearing.is_hopeless();
        hearing.told = hopeless || !settle(&hearing.needs, &[&self.gate.who]);
        let approval = name_of(&self.gate.setting, number);
        let id = format!("\"aip44:{}:{number}\"", self.gate.setting.nonce);
        let mut params = json!({"sessionId": name});
        if self.gate.is_v2 {
            params["title"] = json!(hearing.tool);
            params["description"] = json!(hearing.reason);
            params["subject"] = json!({"type": "tool_call", "toolCall": tool_call});
        } else {
            params["toolCall"] = tool_call;
        }
        params["options"] = json!([
            {"optionId": ALLOW, "name": "Allow once", "kind": ALLOW},
            {"optionId": REJECT, "name": "Reject", "kind": REJECT},
        ]);
        params["_meta"] = json!({"aip44": {"approval": approval, "reason": hearing.reason}});
        let is_unannounced = hearing.origin.is_unannounced();
        // The decision about this call may have been one too many.
        let is_stopped = hearing.origin.is_of_agent() && self.gate.is_stopping(name);
        self.gate.hearings.insert(number, hearing);
        self.gate.arm(due);
        let ticket = self.step(name, Life::Suspended, Some(&approval)).or(after);
        if hopeless {
            return self.decide(number, Approved::Refused("nobody may approve it".to_owned()));
        }
        if !has_room {
            return self.decide(number, Approved::Refused(NO_ROOM.to_owned()));
        }
        if is_stopped {
            return self.decide(number, Approved::Refused("the turn is to end".to_owned()));
        }
        if let Some(refused) = self.unaskable().filter(|_| asks) {
            return self.decide(number, refused);
        }
        if is_unannounced {
            self.tell_state(name, "requires_action", ticket);
        }
        self.tell_waiting(name, number, ticket);
        let line = message::request(id.as_bytes(), method::SESSION_REQUEST_PERMISSION, &params);
        if let Ok(line) = line
            && asks
        {
            self.gate.add_served(id.as_bytes(), Served::Question(number));
            if let Some(hearing) = self.gate.hearings.get_mut(&number) {
                hearing.question = Some(id.as_bytes().into());
            }
            self.send(Way::ToClient, &[&line], ticket, Otherwise::Halt(name.into()));
        }
    }

    /// The client has answered our question.
    pub(super) fn answered(&mut self, number: u64, message: View<'_>) {
        let Some(hearing) = self.gate.hearings.get_mut(&number) else { return };
        hearing.question = None;
        let result = read(message.result());
        let outcome = &result["outcome"];
        let allows = outcome["outcome"] == "selected" && outcome["optionId"] == ALLOW;
        let who = self.gate.who.clone();
        if allows {
            // Whether more have to say so is found out there. The client cannot be asked about it a second time, so what it
            // cannot approve any more is refused, and its agent may ask anew.
            if let Err(BallotError::SignatureInvalid(why)) = self.vote(number, who, None) {
                self.decide(number, Approved::Refused(why));
            }
        } else {
            let why = match result["_meta"]["narrows/by"].as_str() {
                Some("nobody to ask") => format!("nobody could be asked at the client of {}", who.id),
                Some("timed out") => format!("nobody answered at the client of {}", who.id),
                _ => format!("{} rejected it", who.id),
            };
            self.decide(number, Approved::Refused(why));
        }
    }

    pub(super) fn ballot(&mut self, ballot: Ballot) -> Result<(), BallotError> {
        let setting = &self.gate.setting;
        let number = self.gate.hearings.keys().copied().find(|number| name_of(setting, *number) == ballot.id);
        let number = number.ok_or(BallotError::Unknown)?;
        if !self.gate.hearings.get(&number).is_some_and(|hearing| hearing.counts(&ballot.signer)) {
            return Err(BallotError::NotASigner);
        }
        if ballot.approves {
            return self.vote(number, ballot.signer, ballot.signature);
        }
        let why = ballot.reason.unwrap_or_else(|| "no reason given".to_owned());
        self.decide(number, Approved::Refused(format!("{} rejected it: {why}", ballot.signer.id)));
        Ok(())
    }

    /// Counts an approval, unless one that was counted before is not valid any more: a revoked key is part of no quorum.
    fn vote(
        &mut self,
        number: u64,
        signer: Principal,
        signature: Option<VoteSignature>,
    ) -> Result<(), BallotError> {
        let hearing = self.gate.hearings.get_mut(&number).ok_or(BallotError::Unknown)?;
        if hearing.given.iter().any(|(other, _)| other.id == signer.id) {
            return Err(BallotError::Twice);
        }
        hearing.check_signatures().map_err(BallotError::SignatureInvalid)?;
        hearing.given.push((signer, signature));
        if hearing.is_settled() {
            let approvers = hearing.given.iter().map(|(signer, _)| signer.id.clone()).collect();
            let signatures = hearing.given.iter().filter_map(|(_, signature)| signature.as_ref());
            let signatures = signatures.map(|signature| signature.file.clone()).collect();
            self.decide(number, Approved::By { approvers, signatures });
        }
        Ok(())
    }

    /// Closes the hearings about a call that is not any more what they have shown, or about which something else is decided.
    pub(super) fn overtake(&mut self, name: &str, call: &str, ruling: &Ruling) {
        if self.gate.hearings.is_empty() {
            return;
        }
        let Some(case) = self.gate.sessions.get(name).and_then(|session| session.calls.get(call)) else {
            return;
        };
        let digest = case.call.digest();
        let is_other = |hearing: &Hearing| {
            let is_about = hearing.is_of(name) && *hearing.call == *call;
            is_about && (hearing.digest != digest || hearing.ruling != *ruling)
        };
        let others = self.gate.hearings.iter().filter(|(_, hearing)| is_other(hearing));
        let others: Vec<u64> = others.map(|(number, _)| *number).collect();
        for number in others {
            self.decide(number, Approved::Refused(CHANGED.to_owned()));
        }
    }

    /// Closes a hearing, and does what follows once that is recorded. What it approves is what it has shown.
    pub(super) fn decide(&mut self, number: u64, approved: Approved) {
        let Some(mut hearing) = self.gate.hearings.remove(&number) else { return };
        if let Some(question) = hearing.question.take() {
            self.gate.served.remove(&question);
            self.cancel_request(Way::ToClient, &question);
        }
        self.resume(&hearing.session);
        let at = self.unix();
        let is_moved = approved.is_given() && self.leads_elsewhere(&hearing.session, &hearing.call);
        let session = self.gate.sessions.get_mut(&*hearing.session);
        let case = session.and_then(|session| session.calls.get_mut(&*hearing.call)).map(Box::as_mut);
        let case = case.filter(|case| case.call.digest() == hearing.digest);
        let approved = match case.as_ref().map(|case| &case.approved) {
            _ if !approved.is_given() => approved,
            // Nobody was asked about what there is now.
            None => Approved::Refused(CHANGED.to_owned()),
            // What was refused meanwhile stays so.
            Some(refused @ Approved::Refused(_)) => refused.clone(),
            Some(_) if is_moved => Approved::Refused(MOVED.to_owned()),
            Some(_) => approved,
        };
        let mut spent = None;
        if let Some(case) = case {
            case.settle(approved.clone());
            case.signers = hearing.given.drain(..).map(|(signer, _)| signer).collect();
            if approved.is_given() {
                let (desk, counted) = (&mut self.gate.desk, &mut case.counted);
                let verdict = case.verdict.as_ref();
                spent = verdict.and_then(|verdict| desk.count(verdict, at, hearing.digest, counted));
                case.use_up();
            }
        }
        let shown = audit_events::Case {
            tool: &hearing.tool,
            id: &hearing.call,
            posed: hearing.posed.as_deref(),
            input: &hearing.input,
            kinds: &hearing.kinds,
        };
        let event =
            self.parties(&hearing.session).resolved(&shown, &hearing.ruling, &approved, spent.as_ref());
        let recorded = self.record(event);
        let ticket = self.step(&hearing.session, Life::Resumed, None).or(Some(recorded));
        self.tell_settled(number, &hearing, &approved, ticket);
        let Hearing { session: name, call, origin, .. } = hearing;
        if origin.is_unannounced() && self.hearings_of(&name).is_empty() {
            self.tell_state(&name, "running", ticket);
        }
        match (origin, approved) {
            (Origin::Permission { id, options }, Approved::Refused(why)) => {
                self.reject_permission(&id, &name, &options, &why, ticket);
            }
            (Origin::Permission { id, options }, _) => {
                self.answer_permission(
                    &id,
                    &name,
                    options.allow.as_deref().or(options.reject.as_deref()),
                    ticket,
                );
            }
            (Origin::Service { id, .. }, Approved::Refused(why)) => {
                self.deny_service(&id, &name, &call, &why, ticket);
            }
            (Origin::Service { id, line }, _) => self.serve(&id, &name, &call, &line, ticket),
            (Origin::Consult { number }, approved) => {
                self.advise(&name, &call, number, &approved, ticket.unwrap_or(recorded));
            }
            (Origin::Turn { id, .. }, Approved::Refused(why)) => {
                self.close_turn_case(&name, &call);
                self.refuse_turn(&id, &name, &why);
            }
            (Origin::Turn { id, line }, _) => {
                self.close_turn_case(&name, &call);
                self.begin_turn(&id, &name, View::parse(&line), ticket);
            }
            (Origin::Change { id, line }, approved) => {
                self.changed(&id, (&name, &call), View::parse(&line), &approved, ticket);
            }
        }
    }

    /// Tells the client of version 2 that the operator waits, or goes on, where its agent does not know.
    fn tell_state(&mut self, name: &str, state: &str, after: Option<Ticket>) {
        if !self.gate.is_v2 {
            return;
        }
        let update = json!({"sessionUpdate": "state_update", "state": state});
        let params = json!({"sessionId": name, "update": update});
        if let Ok(line) = message::notification(method::SESSION_UPDATE, &params) {
            self.send_marked(View::parse(&line), after, Otherwise::Halt(name.into()));
        }
    }

    fn close_turn_case(&mut self, name: &str, call: &str) {
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.calls.remove(call);
        }
    }

    /// Answers a prompt that never began: whoever has cancelled it is told that, and nobody that it failed.
    fn refuse_turn(&mut self, id: &[u8], name: &str, why: &str) {
        let after = self.step(name, Life::Interrupted, Some(why));
        if self.gate.is_v2 {
            // There an answer means that the prompt was taken.
            let code = if why == CANCELLED { Code::Cancelled } else { Code::PolicyDenied };
            let error = RpcError::new(code, why.to_owned()).with("code", json!("interrupted"));
            let line = message::error(id, &error);
            return self.send(Way::ToClient, &[&line], after, Otherwise::Say(Way::ToClient, unrecorded(id)));
        }
        let stop = if why == CANCELLED { "cancelled" } else { "refusal" };
        let result = json!({"stopReason": stop, "_meta": {"aip44": {"interrupted": why}}});
        if let Ok(line) = message::response(id, &result) {
            let line: Bytes = line;
            self.send(Way::ToClient, &[&line], after, Otherwise::Say(Way::ToClient, unrecorded(id)));
        }
    }
}
