//! Handles agent requests to the client: files, commands, and MCP tools in the client.

use std::path::{Path, PathBuf};

use narrows_acp::method;
use narrows_wire::{Code, Effects, RpcError, View, member, message};
use serde_json::{Value, json};

use super::api::{AuditSeq, GateOutput};
use super::outbox::{GateDirection, OnAuditFailure};
use super::session::{ApprovalOrigin, CallRecord, PendingAtClient, request_key};
use super::session_open::{AMBIGUOUS, audit_unavailable, missing_session_id};
use super::{GateCtx, REPLAYING};
use crate::audit_events::ApprovalOutcome;
use crate::call::{Call, CallStatus};
use crate::meta::refuse_links;
use crate::path_resolver::resolve_in_roots;
use crate::unique_keys;

/// Reason and code for refusing a request: a link has changed since the decision, so the path leads to
/// another file.
pub(super) const MOVED: &str = "the path now leads elsewhere";
const PATH_MOVED: &str = "path_moved";

impl<O: GateOutput> GateCtx<'_, O> {
    /// Handles a file or command request. The path with all links resolved is judged, approved and sent to
    /// the client, because the agent may change links at any time.
    pub(super) fn handle_service_request(&mut self, id: &[u8], method: &str, message: View<'_>) {
        let Some(mut params) = unique_keys::read(message.params()) else {
            return self.refuse_agent(id, &ambiguous_params());
        };
        let Some(name) = message.session() else { return self.refuse_agent(id, &missing_session_id()) };
        let (kind, place) = match method {
            method::FS_READ_TEXT_FILE => ("read", "path"),
            method::FS_WRITE_TEXT_FILE => ("edit", "path"),
            _ => ("execute", "cwd"),
        };
        let found = match self.resolve_named_path(&name, kind, params.get(place)) {
            Ok(found) => found,
            Err((code, words)) => {
                let input = json!({"method": method, place: params[place]});
                let event = self.parties(&name).refused("tool.refused", code, input);
                let seq = self.record(event);
                let error = RpcError::new(Code::InvalidParams, words).with("code", json!(code));
                return self.fail_service(id, &name, &error, Some(seq));
            }
        };
        // A path that is not a text was not resolved, so the message stays unchanged.
        let line = found.as_ref().and_then(|found| with_text_member(message, place, found.to_str()?));
        let line = line.as_deref().unwrap_or(message.bytes());
        let Some(line) = refuse_links(View::parse(line)) else {
            return self.refuse_agent(id, &ambiguous_params());
        };
        if let Some(members) = params.as_object_mut() {
            members.remove("sessionId");
            if kind == "execute" {
                // Arguments that are not a list of texts are judged and recorded unchanged.
                let args = members.get("args").unwrap_or(&Value::Null);
                if let Value::Array(_) | Value::Null = args {
                    let mut argv = vec![members.get("command").cloned().unwrap_or_default()];
                    argv.extend(args.as_array().into_iter().flatten().cloned());
                    members.remove("args");
                    members.insert("command".to_owned(), Value::Array(argv));
                }
            }
        }
        let mut call = Call::new(None, method, kind, params);
        if let Some(found) = found {
            call = call.with_resolved_path(found);
        }
        self.request_service(id, &name, call, View::parse(&line));
    }

    /// Resolves the file or directory that a client request names.
    ///
    /// # Errors
    ///
    /// A code and a reason.
    fn resolve_named_path(
        &self,
        session: &str,
        kind: &str,
        named: Option<&Value>,
    ) -> Result<Option<PathBuf>, (&'static str, String)> {
        let roots =
            self.gate.sessions.get(session).map(|session| session.roots.as_slice()).unwrap_or_default();
        let named = named.filter(|named| !named.is_null());
        // A command that names no directory runs in the first root.
        let usual = roots.first().filter(|_| kind == "execute").map(PathBuf::as_path);
        let path = match (named, usual) {
            (Some(named), _) => Path::new(named.as_str().unwrap_or_default()),
            (None, Some(usual)) => usual,
            (None, None) => return Ok(None),
        };
        let admitted = resolve_in_roots(path, roots, &*self.gate.resolver);
        if named.is_none() && admitted.as_deref() != Ok(path) {
            return Err((PATH_MOVED, MOVED.to_owned()));
        }
        let real = admitted.map_err(|outside| ("path_outside_root", outside.to_string()))?;
        if kind == "edit" && self.gate.config.is_read_only(&real) {
            return Err(("sandbox_read_only", "the sandbox mounts this path read-only".to_owned()));
        }
        // The path is sent to the client as text, so it must be valid UTF-8.
        if real.to_str().is_none() {
            return Err(("path_not_text", "the resolved path is not valid UTF-8".to_owned()));
        }
        Ok(Some(real))
    }

    /// Returns `true` if an allowed request may be sent to the client, now that the decision is recorded.
    /// Refuses the request if a link has changed, so that its path leads to another file.
    pub(super) fn admit_forwarding(&mut self, id: &[u8]) -> bool {
        match self.gate.pending_at_client.get(id) {
            Some(PendingAtClient::Service { session, call, .. }) if self.has_moved(session, call) => {
                self.refuse_moved(id);
                false
            }
            // Recording the decision took so long that the request has expired and was answered.
            Some(PendingAtClient::AlreadyAnswered { .. }) | None => {
                self.gate.pending_at_client.remove(id);
                false
            }
            Some(_) => true,
        }
    }

    /// Refuses a request because a link has changed since the decision.
    fn refuse_moved(&mut self, id: &[u8]) {
        let Some(PendingAtClient::Service { session: name, call, method, .. }) =
            self.gate.pending_at_client.remove(id)
        else {
            return;
        };
        self.restart_silence_timer(&name);
        let record = self.gate.sessions.get_mut(&*name).and_then(|session| session.calls.remove(&call));
        let input = record.map(|record| record.call.input);
        let input = json!({"method": method, "toolCallId": call, "input": input});
        let event = self.parties(&name).refused("tool.refused", PATH_MOVED, input);
        let seq = self.record(event);
        let error =
            RpcError::new(Code::PolicyDenied, MOVED).effects(Effects::None).with("code", json!(PATH_MOVED));
        self.fail_service(id, &name, &error, Some(seq));
    }

    pub(super) fn request_service(&mut self, id: &[u8], name: &str, call: Call, message: View<'_>) {
        let key = request_key(id);
        self.record_activity(name);
        let is_full = self.gate.pending_at_client.len() >= super::MAX_OPEN;
        let (is_stopping, is_replaying) = (self.gate.is_stopping(name), self.gate.is_replaying(name));
        if self.session(name).is_none() {
            return;
        }
        // The call is stored in two tables: with the session, and with the request.
        let bytes = call.retained_bytes() + 2 * id.len();
        if is_stopping || is_full || !self.has_room_for_call(name, &key, bytes) {
            let error = RpcError::new(Code::Cancelled, "the turn is being stopped");
            return self.refuse_agent(id, &error);
        }
        if is_replaying {
            let input = json!({"tool": call.tool(), "input": call.input});
            let event = self.parties(name).refused("tool.refused", "replay", input);
            let seq = self.record(event);
            let error = RpcError::new(Code::PolicyDenied, REPLAYING).with("code", json!("replay"));
            return self.fail_service(id, name, &error, Some(seq));
        }
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.add_call(&self.gate.retained, &key, CallRecord { call, ..CallRecord::default() });
        }
        let mut seq = self.decide_call(name, &key);
        seq = self.apply_derived_approval(name, &key).or(seq);
        let Some(record) = self.call_record(name, &key) else { return };
        match record.outcome.clone() {
            ApprovalOutcome::Auto | ApprovalOutcome::By { .. } => {
                self.forward_service(id, name, &key, message.bytes(), seq);
            }
            ApprovalOutcome::Refused(why) => self.deny_client_service(id, name, &key, &why, seq),
            ApprovalOutcome::Pending => {
                let origin = ApprovalOrigin::Service { line: message.bytes().to_vec().into(), id: id.into() };
                self.request_approval(name, &key, origin, seq);
            }
        }
    }

    pub(super) fn forward_service(
        &mut self,
        id: &[u8],
        name: &str,
        key: &str,
        line: &[u8],
        after: Option<AuditSeq>,
    ) {
        let due = self.now + self.gate.config.timeouts.service;
        self.gate.arm_timer(due);
        let method = View::parse(line).method().unwrap_or_default().as_ref().into();
        let served = PendingAtClient::Service { session: name.into(), call: key.into(), method, due };
        self.gate.track_agent_request(id, served);
        if let Some(record) = self.call_record(name, key) {
            record.call.progress = CallStatus::Running;
        }
        self.send(
            GateDirection::ToClient,
            &[line],
            after,
            OnAuditFailure::FailAgentRequest(audit_unavailable(id), id.into()),
        );
    }

    pub(super) fn deny_client_service(
        &mut self,
        id: &[u8],
        name: &str,
        key: &str,
        why: &str,
        after: Option<AuditSeq>,
    ) {
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.calls.remove(key);
        }
        let error = RpcError::new(Code::PolicyDenied, why.to_owned())
            .effects(Effects::None)
            .with("code", json!("policy-denied"));
        self.fail_service(id, name, &error, after);
    }

    fn fail_service(&mut self, id: &[u8], name: &str, error: &RpcError, after: Option<AuditSeq>) {
        let line = message::error(id, error);
        self.send(GateDirection::ToAgent, &[&line], after, OnAuditFailure::fail_unrecorded(id, name));
    }

    pub(super) fn handle_service_answer(&mut self, name: &str, key: &str, message: View<'_>) {
        let record = self.gate.sessions.get_mut(name).and_then(|session| session.calls.remove(key));
        let output = match message.error() {
            Some(error) => json!({"error": error}),
            None => serde_json::from_slice(message.result().unwrap_or(b"null")).unwrap_or_default(),
        };
        if let Some(record) = &record {
            self.predict_edit_results(name, record, &output);
        }
        let seq = record
            .and_then(|record| self.outcome_event(name, key, &record, output))
            .map(|event| self.record(event));
        let id = message.id().unwrap_or(b"null");
        self.send(GateDirection::ToAgent, &[message.bytes()], seq, OnAuditFailure::fail_outcome(id, name));
    }
}

/// Returns a request with `text` as the member `name` of its params. Returns `None` if that member is
/// missing.
pub(super) fn with_text_member(message: View<'_>, name: &str, text: &str) -> Option<Vec<u8>> {
    let place = member(message.params()?, name).ok()??;
    let start = message.envelope().params.range().start;
    let (bytes, text) = (message.bytes(), Value::from(text).to_string());
    Some([&bytes[..start + place.start], text.as_bytes(), &bytes[start + place.end..]].concat())
}

pub(super) fn ambiguous_params() -> RpcError {
    RpcError::new(Code::InvalidParams, AMBIGUOUS)
}
