//! What the agent wants of the client: files, commands, and tools that live there.

use std::path::Path;

use narrows_acp::method;
use narrows_wire::{Code, Effects, RpcError, View, message};
use serde_json::{Value, json};

use super::api::{Out, Ticket};
use super::lane::{Otherwise, Way};
use super::opening::{AMBIGUOUS, unnamed, unrecorded};
use super::session::{Case, Origin, Served, request_key};
use super::{Pass, REPLAYING};
use crate::call::{Call, Progress};
use crate::once;
use crate::record::Approved;
use crate::roots::admit;

impl<O: Out> Pass<'_, O> {
    /// The agent wants a file or a command.
    pub(super) fn service(&mut self, id: &[u8], method: &str, message: View<'_>) {
        let Some(mut params) = once::read(message.params()) else {
            return self.refuse_agent(id, &ambiguous());
        };
        let Some(name) = message.session() else { return self.refuse_agent(id, &unnamed()) };
        let (kind, place) = match method {
            method::FS_READ_TEXT_FILE => ("read", "path"),
            method::FS_WRITE_TEXT_FILE => ("edit", "path"),
            _ => ("execute", "cwd"),
        };
        let roots = self.session(&name).map(|session| session.roots.clone()).unwrap_or_default();
        if let Some(path) = params.get(place).filter(|path| !path.is_null()) {
            let path = Path::new(path.as_str().unwrap_or_default());
            let refused = match admit(path, &roots, &*self.gate.ground) {
                Err(outside) => Some(("path_outside_root", outside.to_string())),
                Ok(real) if kind == "edit" && self.gate.mandate.is_read_only(&real) => {
                    Some(("sandbox_read_only", "the sandbox shows this path read-only".to_owned()))
                }
                Ok(_) => None,
            };
            if let Some((code, words)) = refused {
                let input = json!({"method": method, place: params[place]});
                let event = self.parties(&name).refused("tool.refused", code, input);
                let ticket = self.record(event);
                let error = RpcError::new(Code::InvalidParams, words).with("code", json!(code));
                return self.fail_service(id, &name, &error, Some(ticket));
            }
        }
        if let Some(members) = params.as_object_mut() {
            members.remove("sessionId");
            if kind == "execute" {
                // Arguments of any other form stay as they are, to be judged and recorded as such.
                let args = members.get("args").unwrap_or(&Value::Null);
                if let Value::Array(_) | Value::Null = args {
                    let mut argv = vec![members.get("command").cloned().unwrap_or_default()];
                    argv.extend(args.as_array().into_iter().flatten().cloned());
                    members.remove("args");
                    members.insert("command".to_owned(), Value::Array(argv));
                }
            }
        }
        self.want(id, &name, Call::known(None, method, kind, params), message);
    }

    /// Decides about something that the agent wants of the client.
    pub(super) fn want(&mut self, id: &[u8], name: &str, call: Call, message: View<'_>) {
        let key = request_key(id);
        self.heard(name);
        let is_full = self.gate.served.len() >= super::MOST_OPEN;
        let (is_stopping, is_replaying) = (self.gate.is_stopping(name), self.gate.is_replaying(name));
        let Some(session) = self.session(name) else { return };
        if is_stopping || !session.has_room_for(&key) || is_full {
            let error = RpcError::new(Code::Cancelled, "the turn is to end");
            return self.refuse_agent(id, &error);
        }
        if is_replaying {
            let input = json!({"tool": call.tool(), "input": call.input});
            let event = self.parties(name).refused("tool.refused", "replay", input);
            let ticket = self.record(event);
            let error = RpcError::new(Code::PolicyDenied, REPLAYING).with("code", json!("replay"));
            return self.fail_service(id, name, &error, Some(ticket));
        }
        session.calls.insert(key.clone(), Case { call, ..Case::default() }.into());
        let mut ticket = self.judge(name, &key);
        ticket = self.cover(name, &key).or(ticket);
        let Some(case) = self.case(name, &key) else { return };
        match case.approved.clone() {
            Approved::Auto | Approved::By { .. } => self.serve(id, name, &key, message.bytes(), ticket),
            Approved::Refused(why) => self.deny_service(id, name, &key, &why, ticket),
            Approved::Pending => {
                let origin = Origin::Service { line: message.bytes().to_vec().into(), id: id.into() };
                self.hear(name, &key, origin, ticket);
            }
        }
    }

    /// Lets the client do it.
    pub(super) fn serve(&mut self, id: &[u8], name: &str, key: &str, line: &[u8], after: Option<Ticket>) {
        let due = self.now + self.gate.mandate.patience.service;
        self.gate.arm(due);
        let method = View::parse(line).method().unwrap_or_default().as_ref().into();
        let served = Served::Service { session: name.into(), call: key.into(), method, due };
        self.gate.served.insert(id.into(), served);
        if let Some(case) = self.case(name, key) {
            case.call.progress = Progress::Running;
        }
        self.send(Way::ToClient, &[line], after, Otherwise::Unserved(unrecorded(id), id.into()));
    }

    /// Tells the agent that it is not done.
    pub(super) fn deny_service(
        &mut self,
        id: &[u8],
        name: &str,
        key: &str,
        why: &str,
        after: Option<Ticket>,
    ) {
        if let Some(session) = self.gate.sessions.get_mut(name) {
            session.calls.remove(key);
        }
        let error = RpcError::new(Code::PolicyDenied, why.to_owned())
            .effects(Effects::None)
            .with("code", json!("policy-denied"));
        self.fail_service(id, name, &error, after);
    }

    fn fail_service(&mut self, id: &[u8], name: &str, error: &RpcError, after: Option<Ticket>) {
        let line = message::error(id, error);
        self.send(Way::ToAgent, &[&line], after, Otherwise::fail(id, name));
    }

    /// The client has done it, or could not.
    pub(super) fn service_done(&mut self, name: &str, key: &str, message: View<'_>) {
        let case = self.gate.sessions.get_mut(name).and_then(|session| session.calls.remove(key));
        let output = match message.error() {
            Some(error) => json!({"error": error}),
            None => serde_json::from_slice(message.result().unwrap_or(b"null")).unwrap_or_default(),
        };
        if let Some(case) = &case {
            self.foresee(name, case, &output);
        }
        let ticket =
            case.and_then(|case| self.called(name, key, &case, output)).map(|event| self.record(event));
        let id = message.id().unwrap_or(b"null");
        self.send(Way::ToAgent, &[message.bytes()], ticket, Otherwise::fail_outcome(id, name));
    }
}

/// The error of whoever says something that two readers may take for different things.
pub(super) fn ambiguous() -> RpcError {
    RpcError::new(Code::InvalidParams, AMBIGUOUS)
}
