//! The approval of a call of the built-in agent also covers, once, the client request that performs the call.

use std::path::{Path, PathBuf};

use narrows_acp::method;
use narrows_manifest::types::governance::Approver;
use narrows_policy::Class;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::GateCtx;
use super::api::{AuditSeq, GateOutput};
use super::approvers::satisfies_approvals;
use super::session::{CallRecord, Session};
use crate::audit_events::ApprovalOutcome;
use crate::authorizer::CallDecision;
use crate::call::{Call, Digest};
use crate::path_resolver::{PathResolver, resolve_in_roots};

impl<O: GateOutput> GateCtx<'_, O> {
    /// Approves a pending client request because the call that causes the request is approved. The request
    /// must do exactly what the call announced.
    pub(super) fn apply_derived_approval(&mut self, name: &str, key: &str) -> Option<AuditSeq> {
        let resolver = &*self.gate.resolver;
        let session = self.gate.sessions.get(name)?;
        let record = session.calls.get(key).filter(|record| record.outcome == ApprovalOutcome::Pending)?;
        let decision = record.decision.as_ref()?;
        let approvers = &self.gate.config.approvers;
        let is_it = |source: &CallRecord| {
            is_approval_sufficient(source, decision, approvers)
                && is_effect_of(source, &record.call, session, resolver)
        };
        let sources: Vec<_> =
            session.calls.iter().filter(|(_, source)| is_it(source)).map(|(id, _)| id.clone()).collect();
        let source = sources.into_iter().find(|id| !self.has_moved(name, id))?;
        let session = self.gate.sessions.get_mut(name)?;
        let source = session.calls.get_mut(&source)?;
        // Each approved call covers one client request only.
        source.covers_effects = false;
        let (outcome, signers) = (source.outcome.clone(), source.approvers.clone());
        let record = session.calls.get_mut(key)?;
        record.set_outcome(outcome);
        record.approvers = signers;
        let event = self.decision_event(name, key, None)?;
        Some(self.record(event))
    }

    /// Stores, for each pending edit, the digest of the file after the edit. The current text of the file is
    /// known now.
    pub(super) fn predict_edit_results(&mut self, name: &str, read: &CallRecord, output: &Value) {
        let (Some(content), (Some(method::FS_READ_TEXT_FILE), None)) =
            (output["content"].as_str(), read.call.name_and_server())
        else {
            return;
        };
        let Some(session) = self.gate.sessions.get(name) else { return };
        let is_edit = |source: &CallRecord| {
            source.covers_effects && source.call.name_and_server() == (Some("edit_file"), None)
        };
        if !session.calls.values().any(|record| is_edit(record))
            && !session.decided_calls.iter().any(|(_, record, _)| is_edit(record))
        {
            return;
        }
        let resolver = &*self.gate.resolver;
        let Some(file) = resolve_session_path(&read.call.input["path"], session, resolver) else { return };
        let makes = |source: &CallRecord| {
            let input = &source.call.input;
            if !is_edit(source)
                || resolve_session_path(&input["path"], session, resolver).as_ref() != Some(&file)
            {
                return None;
            }
            replace_once(content, input["old"].as_str()?, input["new"].as_str()?)
                .map(|text| text_digest(&text))
        };
        let told: Vec<_> =
            session.calls.iter().filter_map(|(id, record)| Some((id.clone(), makes(record)?))).collect();
        let decided: Vec<_> = session.decided_calls.iter().map(|(_, record, _)| makes(record)).collect();
        let Some(session) = self.gate.sessions.get_mut(name) else { return };
        for (id, made) in told {
            if let Some(record) = session.calls.get_mut(&id) {
                record.edit_result = Some(made);
            }
        }
        for ((_, record, _), made) in session.decided_calls.iter_mut().zip(decided) {
            record.edit_result = made.or(record.edit_result);
        }
    }
}

/// Returns `true` if the approval of the call `source` satisfies the decision about a client request.
fn is_approval_sufficient(source: &CallRecord, decision: &CallDecision, approvers: &[Approver]) -> bool {
    if !source.covers_effects || source.is_recorded {
        return false;
    }
    match &source.outcome {
        ApprovalOutcome::By { .. } => satisfies_approvals(&decision.ruling, approvers, &source.approvers),
        // The policy allowed the call without an approver. The client request is then allowed, too, unless a
        // policy requires an approval of the request itself.
        ApprovalOutcome::Auto => {
            decision.class() == Class::RequireApproval && decision.ruling.clauses.is_empty()
        }
        ApprovalOutcome::Pending | ApprovalOutcome::Refused(_) => false,
    }
}

/// Returns `true` if the request `wanted` performs the call `source`: the same file and content, the same
/// command in the same directory, or the same tool with the same input.
fn is_effect_of(source: &CallRecord, wanted: &Call, session: &Session, resolver: &dyn PathResolver) -> bool {
    let (tool, method) = match (source.call.name_and_server(), wanted.name_and_server()) {
        ((Some(tool), None), (Some(method), None)) => (tool, method),
        // The client runs the MCP server, so the call of its tool is a client request.
        ((Some(_), Some(_)), _) => {
            let is_same = source.call.name_and_server() == wanted.name_and_server()
                && source.call.input == wanted.input;
            return is_same && wanted.is_whole_input();
        }
        _ => return false,
    };
    let (said, real, wanted) = (&source.call.input, wanted.resolved_path(), &wanted.input);
    let same_file = || {
        let file = resolve_session_path(&said["path"], session, resolver);
        file.is_some() && file.as_deref() == real
    };
    match (tool, method) {
        ("read_file", method::FS_READ_TEXT_FILE) => same_file(),
        ("write_file", method::FS_WRITE_TEXT_FILE) => {
            wanted["content"].is_string() && said["content"] == wanted["content"] && same_file()
        }
        ("edit_file", method::FS_WRITE_TEXT_FILE) => {
            let content = wanted["content"].as_str().map(text_digest);
            content.is_some() && content == source.edit_result && same_file()
        }
        ("run_command", method::TERMINAL_CREATE) => {
            let place = |cwd: &Value| match cwd {
                Value::Null => session.roots.first().cloned(),
                cwd => resolve_session_path(cwd, session, resolver),
            };
            wanted.get("env").is_none()
                && command_words(said).is_some_and(|words| Some(&words) == wanted["command"].as_array())
                && place(&said["cwd"]).is_some_and(|said| real == Some(&said))
        }
        _ => false,
    }
}

fn resolve_session_path(path: &Value, session: &Session, resolver: &dyn PathResolver) -> Option<PathBuf> {
    let path = Path::new(path.as_str()?);
    let absolute = session.roots.first()?.join(path);
    resolve_in_roots(&absolute, &session.roots, resolver).ok()
}

/// Returns the words of a command. Returns `None` if it is uncertain how the command is split into words.
fn command_words(said: &Value) -> Option<Vec<Value>> {
    let command = said["command"].as_str()?.trim();
    match said["args"].as_array().filter(|args| !args.is_empty()) {
        Some(args) => Some(std::iter::once(Value::from(command)).chain(args.iter().cloned()).collect()),
        None => {
            let is_plain = |letter: char| letter.is_ascii_alphanumeric() || " -_./:=,@%+".contains(letter);
            command
                .chars()
                .all(is_plain)
                .then(|| command.split(' ').filter(|it| !it.is_empty()).map(Value::from).collect())
        }
    }
}

/// Replaces the only occurrence of `old` in `text`. Returns `None` if there is not exactly one.
fn replace_once(text: &str, old: &str, new: &str) -> Option<String> {
    let mut places = text.match_indices(old).filter(|_| !old.is_empty());
    let (at, _) = places.next()?;
    places.next().is_none().then(|| [&text[..at], new, &text[at + old.len()..]].concat())
}

fn text_digest(text: &str) -> Digest {
    Sha256::digest(text).into()
}
