//! Sessions that the agent may use: those that the client opened, and child sessions announced in one of
//! them.
//!
//! A child belongs to the client of its parent and has the same limits. The name of any other session may
//! belong to another client. So a message in such a session is not shown, granted, or recorded under that
//! name, and the turn is stopped.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use narrows_acp::method;
use narrows_wire::{Code, Kind, RpcError, View};
use serde_json::{Value, json};

use super::api::{AuditSeq, GateOutput};
use super::outbox::OnAuditFailure;
use super::retained::ByteCharge;
use super::session::{ClientRequestKind, Session};
use super::{Gate, GateCtx};
use crate::call::{CallStatus, CallUpdate};
use crate::lifecycle::OperatorState;
use crate::path_resolver::resolve_in_roots;
use crate::unique_keys;

/// Maximum number of child sessions of one connection. Idle children are closed to make room.
const MAX_CHILDREN: usize = 1_024;
/// Maximum number of remembered names of closed sessions. After a session is closed, its agent may still
/// report the end of a call.
const MAX_CLOSED: usize = 4_096;
/// Maximum size of the updates that are held for sessions that are not open yet.
const MAX_EARLY_BYTES: usize = 16 << 20;

/// Reason for stopping a turn: the agent used a session that does not belong to the client.
const FOREIGN_SESSION: &str = "it used a session that the client did not open";

#[derive(Clone, Debug)]
pub(super) struct Lineage {
    /// Session in which the agent announced the child.
    pub(super) parent: Arc<str>,
    /// The topmost ancestor, which the client opened.
    pub(super) root: Arc<str>,
}

#[derive(Debug)]
pub(super) struct ClosedSession {
    name: Box<str>,
    is_child: bool,
    _charge: ByteCharge,
}

#[derive(Debug, Default)]
pub(super) struct EarlyMessages {
    pub(super) lines: Vec<(Bytes, ByteCharge)>,
    /// Sum of the sizes of all held lines. Updated with each line, because there may be very many lines.
    bytes: usize,
}

impl Gate {
    /// Returns the session that has the turn which `name` works for: `name` itself, or its topmost ancestor.
    pub(super) fn root_session<'a>(&'a self, name: &'a str) -> &'a str {
        let lineage = self.sessions.get(name).and_then(|session| session.lineage.as_ref());
        lineage.map_or(name, |lineage| &lineage.root)
    }

    pub(super) fn is_in_subtree(&self, name: &str, above: &str) -> bool {
        let mut at = name;
        loop {
            if at == above {
                return true;
            }
            let Some(lineage) = self.sessions.get(at).and_then(|session| session.lineage.as_ref()) else {
                return false;
            };
            at = &lineage.parent;
        }
    }

    /// Returns `true` if the history of a session, or of its topmost ancestor, is being replayed.
    pub(super) fn is_replaying(&self, name: &str) -> bool {
        self.is_any_of_turn(name, |session| session.replays > 0)
    }

    /// Returns `true` if a session or one of its children has a turn, an open call or a pending approval.
    /// During a replay, updates of this work could not be distinguished from history.
    pub(super) fn is_busy(&self, name: &str) -> bool {
        let waits = |name: &str| self.approvals.values().any(|approval| approval.is_in_session(name));
        let is_child_busy = |child: &str| self.sessions.get(child).is_some_and(|session| !session.is_idle());
        self.sessions.get(name).is_some_and(Session::is_working)
            || waits(name)
            || self.descendants(name).iter().any(|child| is_child_busy(child) || waits(child))
    }

    pub(super) fn is_stopping(&self, name: &str) -> bool {
        self.is_any_of_turn(name, |session| session.halted.is_some())
    }

    /// Returns `true` if the condition holds for a session or for its topmost ancestor.
    fn is_any_of_turn(&self, name: &str, is_so: impl Fn(&Session) -> bool) -> bool {
        let Some(session) = self.sessions.get(name) else { return false };
        let root = || session.lineage.as_ref().and_then(|lineage| self.sessions.get(&*lineage.root));
        is_so(session) || root().is_some_and(&is_so)
    }

    /// Returns `true` for child sessions. The client may only cancel work in a child session.
    pub(super) fn is_child(&self, name: &str) -> bool {
        self.sessions.get(name).is_some_and(|session| session.lineage.is_some())
    }

    pub(super) fn remember_closed(&mut self, name: &str, is_child: bool) {
        if self.closed_sessions.len() >= MAX_CLOSED {
            self.closed_sessions.pop_front();
        }
        let bytes = size_of::<ClosedSession>() + name.len();
        // If there is no room, the name of the closed session is not remembered, and the session counts as
        // never opened.
        if self.make_room(bytes) {
            let charge = self.retained.charge(bytes);
            self.closed_sessions.push_back(ClosedSession { name: name.into(), is_child, _charge: charge });
        }
    }

    pub(super) fn forget_closed(&mut self, name: &str) {
        self.closed_sessions.retain(|closed| *closed.name != *name);
    }

    /// Returns all sessions below `name`, sorted by name.
    pub(super) fn descendants(&self, name: &str) -> Vec<Box<str>> {
        let mut by_parent: HashMap<&str, Vec<&str>> = HashMap::new();
        for (child, session) in &self.sessions {
            if let Some(lineage) = &session.lineage {
                by_parent.entry(&lineage.parent).or_default().push(child);
            }
        }
        let mut names: Vec<Box<str>> = Vec::new();
        let mut parents = vec![name];
        // Each session is visited once, so the loop ends even if the lineages form a cycle.
        while let Some(parent) = parents.pop() {
            let children = by_parent.remove(parent).unwrap_or_default();
            names.extend(children.iter().map(|child| Box::from(*child)));
            parents.extend(children);
        }
        names.sort_unstable();
        names
    }
}

impl<O: GateOutput> GateCtx<'_, O> {
    /// Records activity in the session of an agent message. Returns `false` if the agent may not use that
    /// session; the message is then already handled.
    pub(super) fn admit_agent_message(&mut self, message: View<'_>) -> bool {
        let Some(name) = message.session() else { return true };
        if self.record_activity(&name) || !matches!(message.kind(), Kind::Notification | Kind::Request) {
            return true;
        }
        let is_request = message.kind() == Kind::Request;
        let method = message.method().unwrap_or_default();
        let is_update = method == method::SESSION_UPDATE;
        let closed = self.gate.closed_sessions.iter().any(|closed| *closed.name == *name);
        let is_opening = || {
            self.gate
                .pending_at_agent
                .values()
                .any(|pending| matches!(pending.kind, ClientRequestKind::Create { .. }))
        };
        let error = if closed {
            if (!is_request || is_update) && begins_call(message) {
                self.stop_stray_agent(&name, &method);
            }
            RpcError::new(Code::Cancelled, "the session is closed")
        } else if is_opening() {
            // A new session has no known name until the agent answers `session/new`, so its early messages
            // are held.
            let is_held = !is_request && self.hold_early(message);
            if !is_held && (!is_request || is_update) {
                self.stop_stray_agent(&name, &method);
            }
            RpcError::new(Code::InvalidRequest, "the session is not open yet")
        } else {
            self.stop_stray_agent(&name, &method);
            RpcError::new(Code::NotFound, "session not found")
        };
        if let Some(id) = message.id().filter(|_| is_request) {
            self.refuse_agent(id, &error);
        }
        false
    }

    fn hold_early(&mut self, message: View<'_>) -> bool {
        let bytes = size_of::<Bytes>() + message.bytes().len();
        let has_room =
            self.gate.early_messages.bytes + bytes <= MAX_EARLY_BYTES && self.gate.make_room(bytes);
        if has_room {
            let charge = self.gate.retained.charge(bytes);
            let early = &mut self.gate.early_messages;
            early.bytes += bytes;
            early.lines.push((Bytes::copy_from_slice(message.bytes()), charge));
        }
        has_room
    }

    pub(super) fn release_early(&mut self) {
        for (line, _) in std::mem::take(&mut self.gate.early_messages).lines {
            self.dispatch_agent_message(View::parse(&line));
        }
    }

    /// Drops the messages that were held for a session which could not be opened, unless another session is
    /// being opened.
    pub(super) fn drop_early(&mut self) {
        if !self
            .gate
            .pending_at_agent
            .values()
            .any(|pending| matches!(pending.kind, ClientRequestKind::Create { .. }))
        {
            self.gate.early_messages = EarlyMessages::default();
        }
    }

    /// Stops an agent that uses a foreign session. The log contains the session name only as a claim of the
    /// agent.
    pub(super) fn stop_stray_agent(&mut self, claimed: &str, method: &str) {
        if self.gate.is_ending {
            return;
        }
        let is_turn = |session: &Session| {
            session.lineage.is_none() && (session.last_activity.is_some() || session.is_working())
        };
        let turns = self.gate.sessions.iter().filter(|(_, session)| is_turn(session));
        let mut turns: Vec<Box<str>> = turns.map(|(name, _)| name.clone()).collect();
        turns.sort_unstable();
        let is_idle = turns.is_empty();
        turns.retain(|name| !self.gate.is_stopping(name));
        if turns.is_empty() && !is_idle {
            return;
        }
        let claimed: String = claimed.chars().take(256).collect();
        let method: String = method.chars().take(128).collect();
        let input = json!({"method": method, "claimedSession": claimed});
        let event = self.parties("").refused("agent.violation", "unknown_session", input);
        self.record(event);
        if is_idle {
            self.gate.is_ending = true;
            return self.out.end_agent(FOREIGN_SESSION);
        }
        for name in turns {
            self.halt_turn(&name, FOREIGN_SESSION);
        }
    }

    pub(super) fn handle_subagent_update(&mut self, parent: &str, update: &[u8], message: View<'_>) {
        // A client of version 1 supports child sessions only if it offers that capability.
        if !self.gate.is_v2 && !self.gate.client_offer.is_some_and(|offered| offered.subagents) {
            return;
        }
        let params = unique_keys::read(Some(update)).unwrap_or_default();
        let Some(child) = params["sessionId"].as_str().filter(|child| !child.is_empty()) else {
            return self.halt_turn(parent, "it announced a child session that cannot be read");
        };
        let mut seq = None;
        match self.gate.sessions.get(child).map(|session| session.lineage.as_ref()) {
            Some(Some(lineage)) if *lineage.parent == *parent => {}
            // A child cannot have the name of a session of the client, or of a child of another parent.
            Some(_) => return self.stop_stray_agent(child, "subagent_update"),
            None if self.belongs_to_client(child) => return self.stop_stray_agent(child, "subagent_update"),
            None => {
                if !self.add_child(parent, child) {
                    return self.halt_turn(parent, "it has too many child sessions");
                }
                if !self.gate.is_replaying(child) {
                    let event = self.parties(child).state_changed(OperatorState::Invoked, None);
                    seq = Some(self.record(event));
                }
            }
        }
        if let Err(reason) = self.set_child_roots(parent, child, &params) {
            return self.halt_turn(parent, &reason);
        }
        seq = self.apply_child_state(child, &params["state"]).or(seq);
        if self.gate.is_stopping(parent) {
            return;
        }
        match self.gate.is_replaying(parent) {
            true => self.show_replayed(message),
            false => self.send_marked(message, seq, OnAuditFailure::HaltTurn(parent.into())),
        }
    }

    /// Returns `true` if this name belongs to a client: it is a closed session, or has an owner.
    fn belongs_to_client(&self, name: &str) -> bool {
        self.gate.owners.as_ref().is_some_and(|owners| owners.has_owner(name))
            || self.gate.closed_sessions.iter().any(|closed| *closed.name == *name && !closed.is_child)
    }

    /// Opens a child below its parent. Returns `false` if there is no room.
    fn add_child(&mut self, parent: &str, child: &str) -> bool {
        let children = || self.gate.sessions.values().filter(|session| session.lineage.is_some()).count();
        if children() >= MAX_CHILDREN {
            self.close_idle_children();
        }
        let children = self.gate.sessions.values().filter(|session| session.lineage.is_some()).count();
        if children >= MAX_CHILDREN || self.gate.sessions.len() >= super::MAX_OPEN {
            return false;
        }
        let root = self.gate.root_session(parent).into();
        let Some(above) = self.gate.sessions.get(parent) else { return false };
        let lineage = Some(Lineage { parent: parent.into(), root });
        let session = Session { lineage, roots: above.roots.clone(), ..Session::default() };
        if !self.has_room_for(parent, child.len() + session.retained_bytes()) {
            return false;
        }
        self.gate.forget_closed(child);
        self.gate.sessions.insert(child.into(), session);
        self.gate.charge_session(child);
        true
    }

    /// Closes idle child sessions that have no children. The agent must announce a closed child again before
    /// it uses the child.
    fn close_idle_children(&mut self) {
        let parents: std::collections::HashSet<Arc<str>> = self
            .gate
            .sessions
            .values()
            .filter_map(|session| Some(Arc::clone(&session.lineage.as_ref()?.parent)))
            .collect();
        let is_idle = |name: &str, session: &Session| {
            session.lineage.is_some()
                && session.is_idle()
                && !parents.contains(name)
                && !self.gate.approvals.values().any(|approval| approval.is_in_session(name))
        };
        let idle = self.gate.sessions.iter().filter(|(name, session)| is_idle(name, session));
        let mut idle: Vec<Box<str>> = idle.map(|(name, _)| name.clone()).collect();
        idle.sort_unstable();
        for name in idle {
            self.close_session(&name, "closed to make room for other child sessions");
        }
    }

    /// Sets the directories of a child session, which must be within those of its parent. Relative paths
    /// start in the child's own directory.
    fn set_child_roots(&mut self, parent: &str, child: &str, params: &Value) -> Result<(), String> {
        let Some(above) = self.gate.sessions.get(parent).map(|session| session.roots.clone()) else {
            return Ok(());
        };
        let more = params["additionalDirectories"].as_array().into_iter().flatten();
        for named in params.get("cwd").into_iter().chain(more).filter(|path| !path.is_null()) {
            let path = Path::new(named.as_str().unwrap_or_default());
            if resolve_in_roots(path, &above, &*self.gate.resolver).is_err() {
                let input = json!({"method": "subagent_update", "cwd": named});
                let event = self.parties(child).refused("session.refused", "cwd_outside_root", input);
                self.record(event);
                return Err("it placed a child session outside of its own directories".to_owned());
            }
        }
        let Some(cwd) = params.get("cwd") else { return Ok(()) };
        let cwd =
            cwd.as_str().and_then(|cwd| resolve_in_roots(Path::new(cwd), &above, &*self.gate.resolver).ok());
        if let Some(session) = self.gate.sessions.get_mut(child) {
            session.roots = cwd.into_iter().chain(above).collect();
        }
        self.gate.charge_session(child);
        Ok(())
    }

    fn apply_child_state(&mut self, child: &str, state: &Value) -> Option<AuditSeq> {
        if self.gate.is_replaying(child) {
            return None;
        }
        match state["state"].as_str()? {
            "running" => {
                self.gate.sessions.get_mut(child)?.is_running = true;
                self.set_operator_state(child, OperatorState::Running, None)
            }
            "idle" => self.end_child_turn(child, state["stopReason"].as_str()),
            _ => None,
        }
    }

    pub(super) fn end_child_turn(&mut self, child: &str, stop_reason: Option<&str>) -> Option<AuditSeq> {
        let session = self.gate.sessions.get_mut(child)?;
        let was_working = session.is_running
            || matches!(session.operator_state, OperatorState::Running | OperatorState::Resumed);
        session.is_running = false;
        self.take_halt(child);
        match stop_reason {
            _ if !was_working => None,
            Some(reason @ ("cancelled" | "refusal" | "error")) => {
                self.set_operator_state(child, OperatorState::Interrupted, Some(reason))
            }
            _ => self.set_operator_state(child, OperatorState::Completed, None),
        }
    }
}

/// Returns `true` if an update starts or continues a call. Only updates about the end of a call may arrive
/// after the session was closed.
fn begins_call(message: View<'_>) -> bool {
    let Some(params) = unique_keys::read(message.params()) else { return true };
    let update = &params["update"];
    let text = update.to_string();
    let status = serde_json::from_str::<CallUpdate<'_>>(&text).ok().and_then(|said| said.status);
    match (update["sessionUpdate"].as_str(), status) {
        (Some("tool_call"), status) => !matches!(status, Some(CallStatus::Completed | CallStatus::Failed)),
        (Some("tool_call_update"), status) => {
            matches!(status, Some(CallStatus::Pending | CallStatus::Running | CallStatus::Unknown))
        }
        _ => false,
    }
}
