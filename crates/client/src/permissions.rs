//! Decides about requests for files, commands and MCP calls: by the policy, or by the permission handler if
//! the policy asks.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use narrows_base::sync::lock;
use narrows_policy::{Action, Confined, Decision, DecisionReason, Kind, Policy, RequestContext, Verdict};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::allowed::{Allowed, ClientAction};
use crate::event::{Json, Payload, PermissionRequested, PermissionResolved};
use crate::host::links;
use crate::host::protected::ProtectedFiles;
use crate::pending_permissions::PendingPermissions;
use crate::permission_request::{PermissionHandler, PermissionReply, PermissionRequest};

/// A change of a permission request, for the session to report as an event.
#[derive(Debug)]
pub(crate) enum PermissionNotice {
    Requested(Box<PermissionRequested>),
    Resolved(PermissionResolved),
    /// The requester no longer waits for the answer to the request with this id.
    GivenUp(String),
    Other(Payload),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecidedBy {
    Policy,
    Person,
    NoApprover,
    /// The request was denied, because no answer came before the deadline.
    Deadline,
    /// The request was denied, because a link in a path has changed since the person was asked.
    Changed,
    /// The request was denied, because it is ambiguous.
    Unreadable,
    /// The request was denied, because its turn has ended or has not begun.
    Cancelled,
}

impl DecidedBy {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Person => "answer",
            Self::NoApprover => "nobody to ask",
            Self::Deadline => "timed out",
            Self::Changed => "changed meanwhile",
            Self::Unreadable => "not readable",
            Self::Cancelled => "cancelled",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Denied(pub(crate) String);

/// Number of the turn in which a request arrived. The default stands for no turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TurnId(u64);

/// Description of a request, for events and for people.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestSubject {
    pub(crate) turn: TurnId,
    pub(crate) method: &'static str,
    pub(crate) title: String,
    pub(crate) kind: &'static str,
    pub(crate) tool: Option<String>,
    /// Name of the MCP server, and name of its tool.
    pub(crate) mcp: Option<(String, String)>,
    pub(crate) input: serde_json::Value,
    pub(crate) paths: Vec<PathBuf>,
}

impl RequestSubject {
    fn requested(&self, id: &str) -> PermissionRequested {
        PermissionRequested {
            request_id: id.to_owned(),
            method: self.method.to_owned(),
            tool_name: self.tool.clone(),
            server: self.mcp.as_ref().map(|(server, _)| server.clone()),
            server_tool: self.mcp.as_ref().map(|(_, tool)| tool.clone()),
            title: Some(self.title.clone()),
            kind: Some(self.kind.to_owned()),
            input: (!self.input.is_null()).then(|| Json::write(&self.input)),
            locations: self.paths.iter().map(|path| path.display().to_string()).collect(),
            ..PermissionRequested::default()
        }
    }
}

/// An action of the client, and its path without links.
pub(crate) type ClientActionAt<'a> = (&'a ClientAction, Option<&'a Path>);

pub(crate) struct PermissionService {
    /// Id of the session. Not set until the session is open, although MCP servers may send requests earlier.
    session: OnceLock<Arc<str>>,
    policy: Arc<Policy>,
    roots: Vec<PathBuf>,
    files: ProtectedFiles,
    /// Restrictions that the sandbox enforced for the client's last command, or those determined when the
    /// session was opened.
    confined: Mutex<Confined>,
    decider: Option<Arc<dyn PermissionHandler>>,
    answer_timeout: Duration,
    notices: mpsc::Sender<PermissionNotice>,
    asked: AtomicU64,
    waiting: AtomicUsize,
    /// Odd while a turn is active. Even before the first turn, between turns, and after a cancellation. Each
    /// turn has a new number, so that a request of one turn is not allowed in the next.
    turn: AtomicU64,
    cancelled: Notify,
    pub(crate) pending_permissions: PendingPermissions,
    /// Actions that the user has allowed and that the agent may request again.
    pub(crate) allowed: Allowed,
}

impl PermissionService {
    pub(crate) fn new(
        policy: Arc<Policy>,
        roots: Vec<PathBuf>,
        files: ProtectedFiles,
        decider: Option<Arc<dyn PermissionHandler>>,
        answer_timeout: Duration,
        notices: mpsc::Sender<PermissionNotice>,
    ) -> Self {
        Self {
            session: OnceLock::new(),
            policy,
            roots,
            files,
            confined: Mutex::default(),
            decider,
            answer_timeout,
            notices,
            asked: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            turn: AtomicU64::new(0),
            cancelled: Notify::new(),
            pending_permissions: PendingPermissions::default(),
            allowed: Allowed::default(),
        }
    }

    pub(crate) fn set_session(&self, id: &Arc<str>) {
        // Fails only if the id is already set, and the id of a session never changes.
        let _ = self.session.set(Arc::clone(id));
    }

    /// Sets the restrictions that the sandbox enforces for the client's commands. The default is no
    /// restriction.
    pub(crate) fn set_confined(&self, confined: Confined) {
        *self.confined() = confined;
    }

    pub(crate) fn session(&self) -> String {
        self.session.get().map(ToString::to_string).unwrap_or_default()
    }

    pub(crate) fn next_request_id(&self) -> String {
        format!("perm_{}", self.asked.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(crate) fn access(&self) -> narrows_policy::Access {
        self.policy.access()
    }

    pub(crate) fn is_asking(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Denies all requests from now on, including those that wait for an answer.
    pub(crate) fn cancel(&self) {
        self.set_turn(|turn| turn.next_multiple_of(2));
        self.cancelled.notify_waiters();
    }

    pub(crate) fn begin_turn(&self) {
        self.set_turn(|turn| (turn + 1) | 1);
        self.allowed.end_turn();
    }

    pub(crate) fn turn(&self) -> TurnId {
        TurnId(self.turn.load(Ordering::Relaxed))
    }

    fn set_turn(&self, next: impl Fn(u64) -> u64) {
        // The update cannot fail, because the closure always returns `Some`.
        let _ = self.turn.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |turn| Some(next(turn)));
    }

    /// Returns `true` if requests of the turn `turn` are refused, because the turn has ended or never began.
    fn is_over(&self, turn: TurnId) -> bool {
        turn.0.is_multiple_of(2) || turn != self.turn()
    }

    /// Returns the directory in which relative paths start. `None` if the directory is on another machine,
    /// where links cannot be followed.
    pub(crate) fn local_root(&self) -> Option<&Path> {
        self.roots.first().map(PathBuf::as_path)
    }

    pub(crate) fn files(&self) -> &ProtectedFiles {
        &self.files
    }

    /// Returns the decision of the policy on `action`. Considers the client's sandbox only if `runs_here` is
    /// set, which means that the client performs the action.
    pub(crate) fn judge(&self, turn: TurnId, action: &Action, runs_here: bool) -> Decision {
        let confined = if runs_here { *self.confined() } else { Confined::default() };
        self.judge_in(turn, confined, action)
    }

    pub(crate) fn judge_in(&self, turn: TurnId, confined: Confined, action: &Action) -> Decision {
        let context =
            RequestContext { roots: &self.roots, confined, cancelling: self.is_over(turn), refused: None };
        self.policy.decide(action, &context)
    }

    /// Returns the reply to a request that no person needs to decide.
    pub(crate) fn reply_without_asking(&self, decision: &Decision) -> Option<(PermissionReply, DecidedBy)> {
        if decision.because == DecisionReason::Cancelling {
            return Some((PermissionReply::Cancel, DecidedBy::Cancelled));
        }
        match decision.verdict {
            Verdict::Allow => Some((PermissionReply::Allow, DecidedBy::Policy)),
            Verdict::Deny => Some((PermissionReply::Reject, DecidedBy::Policy)),
            Verdict::Ask => {
                self.decider.is_none().then_some((PermissionReply::Reject, DecidedBy::NoApprover))
            }
        }
    }

    fn confined(&self) -> MutexGuard<'_, Confined> {
        lock(&self.confined)
    }

    /// Decides a request by the decision of the policy, or by asking the handler.
    pub(crate) async fn settle(
        &self,
        turn: TurnId,
        permission_request: PermissionRequest,
    ) -> (PermissionReply, DecidedBy) {
        if let Some(settled) = self.reply_without_asking(&permission_request.decision) {
            return settled;
        }
        let Some(decider) = &self.decider else { return (PermissionReply::Reject, DecidedBy::NoApprover) };
        let cancelled = self.cancelled.notified();
        tokio::pin!(cancelled);
        cancelled.as_mut().enable();
        if self.is_over(turn) {
            return (PermissionReply::Cancel, DecidedBy::Cancelled);
        }
        let _waiting = WaitingGuard::new(&self.waiting);
        let subject = Action::read(
            Some(&permission_request.kind),
            None,
            &permission_request.input,
            &permission_request.locations,
        );
        let shown = self.follow(&subject).await;
        let permission_request = Arc::new(permission_request);
        let (reply, by) = tokio::select! {
            biased;
            () = cancelled => (PermissionReply::Cancel, DecidedBy::Cancelled),
            reply = timeout(self.answer_timeout, decider.decide(Arc::clone(&permission_request))) => match reply {
                Ok(PermissionReply::NoApprover) => (PermissionReply::Reject, DecidedBy::NoApprover),
                Ok(reply) => (reply, DecidedBy::Person),
                Err(_) => (PermissionReply::Reject, DecidedBy::Deadline),
            },
        };
        if permission_request.problem.is_some() && !permission_request.is_rejected_by(&reply) {
            return (PermissionReply::Reject, DecidedBy::Unreadable);
        }
        let may_allow = matches!(reply, PermissionReply::Allow | PermissionReply::Select(_));
        // If a link has changed meanwhile, the answer does not cover the action: the person was shown other
        // files.
        if may_allow && self.follow(&subject).await != shown {
            return (PermissionReply::Reject, DecidedBy::Changed);
        }
        (reply, by)
    }

    /// Adds the link targets of the paths to `action`. Returns `None` if a path cannot be followed.
    async fn follow(&self, action: &Action) -> Option<Action> {
        let (here, files) = (self.local_root()?.to_owned(), self.files.clone());
        let mut action = action.clone();
        let following = move || links::follow_links(&mut action, &here, &files).map(|()| action);
        self.files.look_up(following).await.ok()
    }

    /// Adds the link targets of the paths to `action`, if the paths are on this machine. If a path cannot be
    /// followed, the kind of the action counts as unknown too.
    pub(crate) async fn followed(&self, action: Action) -> Action {
        if self.local_root().is_none() {
            return action;
        }
        match self.follow(&action).await {
            Some(followed) => followed,
            None => Action { also: vec![Kind::Other], ..action },
        }
    }

    /// Decides about an action on this machine. Reports the request and the decision.
    pub(crate) async fn permit(
        &self,
        action: &Action,
        about: RequestSubject,
        client_action: Option<ClientActionAt<'_>>,
    ) -> Result<(), Denied> {
        self.decide_and_report(self.judge(about.turn, action, true), action, about, client_action).await
    }

    /// Like [`permit`](Self::permit), for a command whose sandbox enforces `confined`.
    pub(crate) async fn permit_in(
        &self,
        confined: Confined,
        action: &Action,
        about: RequestSubject,
        client_action: Option<ClientActionAt<'_>>,
    ) -> Result<(), Denied> {
        self.set_confined(confined);
        self.decide_and_report(self.judge_in(about.turn, confined, action), action, about, client_action)
            .await
    }

    async fn decide_and_report(
        &self,
        decision: Decision,
        action: &Action,
        about: RequestSubject,
        client_action: Option<ClientActionAt<'_>>,
    ) -> Result<(), Denied> {
        let open = OpenRequest::new(self, &about).await;
        let RequestSubject { turn, method: _, title, kind, tool, mcp: _, input, paths } = about;
        let permission_request = PermissionRequest {
            id: open.id.clone(),
            session_id: self.session(),
            run_id: None,
            title,
            description: None,
            tool_call_id: None,
            tool,
            kind: kind.to_owned(),
            input,
            locations: paths,
            subjects: vec![action.clone()],
            changes: client_action
                .and_then(|(client_action, _)| client_action.change())
                .into_iter()
                .collect(),
            options: Vec::new(),
            decision: decision.clone(),
            approval: None,
            problem: None,
        };
        // The user may already have allowed exactly this action.
        let is_allowed = decision.verdict == Verdict::Ask
            && client_action.is_some_and(|(client_action, real)| self.allowed.consume(client_action, real));
        let (reply, by) = match is_allowed {
            true => (PermissionReply::Allow, DecidedBy::Person),
            false => self.settle(turn, permission_request).await,
        };
        let allowed = reply == PermissionReply::Allow;
        let outcome = if allowed { "allowed" } else { "refused" };
        if !open.decide(outcome, explained(&decision, by)).await {
            return Err(denied(&decision, DecidedBy::Cancelled));
        }
        if allowed { Ok(()) } else { Err(denied(&decision, by)) }
    }

    /// Reports a request that is refused without asking the policy, because its path is outside of the roots.
    pub(crate) async fn refuse_unreachable(&self, about: &RequestSubject, words: &str) {
        let open = OpenRequest::new(self, about).await;
        let decision =
            serde_json::json!({"verdict": Verdict::Deny, "words": words, "by": DecidedBy::Policy.name()});
        open.decide("refused", Json::write(&decision)).await;
    }

    pub(crate) async fn send_notice(&self, notice: PermissionNotice) {
        // Fails before the session is open, when there is no stream of events yet.
        let _ = self.notices.send(notice).await;
    }
}

/// Returns the decision of the policy, and who decided, as JSON for events.
pub(crate) fn explained(decision: &Decision, by: DecidedBy) -> Json {
    Json::write(&serde_json::json!({
        "verdict": decision.verdict,
        "because": decision.because,
        "words": decision.to_string(),
        "by": by.name(),
    }))
}

pub(crate) fn denied(decision: &Decision, by: DecidedBy) -> Denied {
    Denied(match by {
        DecidedBy::Policy => decision.because.to_string(),
        DecidedBy::Person => "the user denied it".to_owned(),
        DecidedBy::NoApprover => {
            format!("it needs an approval, but no user can be asked: {}", decision.because)
        }
        DecidedBy::Deadline => "the permission request was not answered in time".to_owned(),
        DecidedBy::Changed => {
            "a link in its path changed while the user was asked; request it again".to_owned()
        }
        DecidedBy::Unreadable => "the request is ambiguous, so it cannot be allowed".to_owned(),
        DecidedBy::Cancelled => "no turn is active".to_owned(),
    })
}

/// A request that is being decided. If it is dropped before a decision is reported, an event reports that.
struct OpenRequest<'a> {
    permissions: &'a PermissionService,
    id: String,
    requested: bool,
    resolved: bool,
}

impl<'a> OpenRequest<'a> {
    /// Registers a request, and reports it as an event.
    async fn new(permissions: &'a PermissionService, about: &RequestSubject) -> Self {
        let id = permissions.next_request_id();
        permissions.pending_permissions.insert(&id);
        let mut open = Self { permissions, id, requested: false, resolved: false };
        permissions.send_notice(PermissionNotice::Requested(Box::new(about.requested(&open.id)))).await;
        open.requested = true;
        open
    }

    /// Reports the decision as an event. Returns `false` if the turn has ended before.
    async fn decide(mut self, outcome: &str, decision: Json) -> bool {
        let resolved = PermissionResolved {
            request_id: self.id.clone(),
            outcome: outcome.to_owned(),
            decision: Some(decision),
            ..PermissionResolved::default()
        };
        let stands = self.permissions.pending_permissions.decide(&resolved);
        if stands {
            self.permissions.send_notice(PermissionNotice::Resolved(resolved)).await;
        }
        self.resolved = true;
        stands
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        let id = std::mem::take(&mut self.id);
        if !self.requested {
            self.permissions.pending_permissions.mark_reported(&id);
        } else if !self.resolved {
            // If the queue is full, the session reports the request at the end of the turn.
            let _ = self.permissions.notices.try_send(PermissionNotice::GivenUp(id));
        }
    }
}

/// Counts a request as waiting until the guard is dropped.
struct WaitingGuard<'a>(&'a AtomicUsize);

impl<'a> WaitingGuard<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
