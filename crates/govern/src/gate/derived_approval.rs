//! What an approved call of our own agent leads to: what it then wants of the client, asked for once.

use std::path::{Path, PathBuf};

use narrows_acp::method;
use narrows_manifest::types::governance::Approver;
use narrows_policy::Class;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::Pass;
use super::api::{Out, Ticket};
use super::approval::suffice;
use super::session::{Case, Session};
use crate::audit_events::Approved;
use crate::authorizer::Verdict;
use crate::call::{Call, Digest};
use crate::path_resolver::{Ground, admit};

impl<O: Out> Pass<'_, O> {
    /// Lets a request that needs an approval have that of the call which leads to it, if it is exactly what that said.
    pub(super) fn cover(&mut self, name: &str, key: &str) -> Option<Ticket> {
        let ground = &*self.gate.ground;
        let session = self.gate.sessions.get(name)?;
        let case = session.calls.get(key).filter(|case| case.approved == Approved::Pending)?;
        let verdict = case.verdict.as_ref()?;
        let approvers = &self.gate.mandate.approvers;
        let is_it = |source: &Case| {
            holds(source, verdict, approvers) && leads_to(source, &case.call, session, ground)
        };
        let sources: Vec<_> =
            session.calls.iter().filter(|(_, source)| is_it(source)).map(|(id, _)| id.clone()).collect();
        let source = sources.into_iter().find(|id| !self.leads_elsewhere(name, id))?;
        let session = self.gate.sessions.get_mut(name)?;
        let source = session.calls.get_mut(&source)?;
        // Once: whoever wants it again asks again.
        source.leads_on = false;
        let (approved, signers) = (source.approved.clone(), source.signers.clone());
        let case = session.calls.get_mut(key)?;
        case.settle(approved);
        case.signers = signers;
        let event = self.resolved(name, key, None)?;
        Some(self.record(event))
    }

    /// A file was read: what a change of a stretch of it makes of it is known now.
    pub(super) fn foresee(&mut self, name: &str, read: &Case, output: &Value) {
        let (Some(content), (Some(method::FS_READ_TEXT_FILE), None)) =
            (output["content"].as_str(), read.call.parts())
        else {
            return;
        };
        let Some(session) = self.gate.sessions.get(name) else { return };
        let is_edit = |source: &Case| source.leads_on && source.call.parts() == (Some("edit_file"), None);
        if !session.calls.values().any(|case| is_edit(case))
            && !session.decided.iter().any(|(_, case, _)| is_edit(case))
        {
            return;
        }
        let ground = &*self.gate.ground;
        let Some(file) = file_of(&read.call.input["path"], session, ground) else { return };
        let makes = |source: &Case| {
            let input = &source.call.input;
            if !is_edit(source) || file_of(&input["path"], session, ground).as_ref() != Some(&file) {
                return None;
            }
            changed(content, input["old"].as_str()?, input["new"].as_str()?).map(|text| digest(&text))
        };
        let told: Vec<_> =
            session.calls.iter().filter_map(|(id, case)| Some((id.clone(), makes(case)?))).collect();
        let decided: Vec<_> = session.decided.iter().map(|(_, case, _)| makes(case)).collect();
        let Some(session) = self.gate.sessions.get_mut(name) else { return };
        for (id, made) in told {
            if let Some(case) = session.calls.get_mut(&id) {
                case.makes = Some(made);
            }
        }
        for ((_, case, _), made) in session.decided.iter_mut().zip(decided) {
            case.makes = made.or(case.makes);
        }
    }
}

/// Whether what was agreed to about one call is enough for another.
fn holds(source: &Case, verdict: &Verdict, approvers: &[Approver]) -> bool {
    if !source.leads_on || source.is_closed {
        return false;
    }
    match &source.approved {
        Approved::By { .. } => suffice(&verdict.ruling, approvers, &source.signers),
        // Where a policy allows the one, only a policy can want an approval of the other.
        Approved::Auto => verdict.class() == Class::RequireApproval && verdict.ruling.clauses.is_empty(),
        Approved::Pending | Approved::Refused(_) => false,
    }
}

/// Whether a call of our own agent is done by this request of it: the same file and content, the same words in the same
/// place, or the same tool with the same input.
fn leads_to(source: &Case, wanted: &Call, session: &Session, ground: &dyn Ground) -> bool {
    let (tool, method) = match (source.call.parts(), wanted.parts()) {
        ((Some(tool), None), (Some(method), None)) => (tool, method),
        // A tool of a server in the client is called through it.
        ((Some(_), Some(_)), _) => {
            let is_same = source.call.parts() == wanted.parts() && source.call.input == wanted.input;
            return is_same && wanted.is_whole_input();
        }
        _ => return false,
    };
    let (said, real, wanted) = (&source.call.input, wanted.real(), &wanted.input);
    let same_file = || {
        let file = file_of(&said["path"], session, ground);
        file.is_some() && file.as_deref() == real
    };
    match (tool, method) {
        ("read_file", method::FS_READ_TEXT_FILE) => same_file(),
        ("write_file", method::FS_WRITE_TEXT_FILE) => {
            wanted["content"].is_string() && said["content"] == wanted["content"] && same_file()
        }
        ("edit_file", method::FS_WRITE_TEXT_FILE) => {
            let content = wanted["content"].as_str().map(digest);
            content.is_some() && content == source.makes && same_file()
        }
        ("run_command", method::TERMINAL_CREATE) => {
            let place = |cwd: &Value| match cwd {
                Value::Null => session.roots.first().cloned(),
                cwd => file_of(cwd, session, ground),
            };
            wanted.get("env").is_none()
                && words_of(said).is_some_and(|words| Some(&words) == wanted["command"].as_array())
                && place(&said["cwd"]).is_some_and(|said| real == Some(&said))
        }
        _ => false,
    }
}

/// Where a path of a session really is.
fn file_of(path: &Value, session: &Session, ground: &dyn Ground) -> Option<PathBuf> {
    let path = Path::new(path.as_str()?);
    let absolute = session.roots.first()?.join(path);
    admit(&absolute, &session.roots, ground).ok()
}

/// The words of a command, if there is only one way to read them.
fn words_of(said: &Value) -> Option<Vec<Value>> {
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

/// `text` with the one occurrence of `old` replaced.
fn changed(text: &str, old: &str, new: &str) -> Option<String> {
    let mut places = text.match_indices(old).filter(|_| !old.is_empty());
    let (at, _) = places.next()?;
    places.next().is_none().then(|| [&text[..at], new, &text[at + old.len()..]].concat())
}

fn digest(text: &str) -> Digest {
    Sha256::digest(text).into()
}
