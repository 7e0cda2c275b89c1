//! Dispatches requests of the agent.

use std::sync::Arc;

use narrows_acp::method::{
    ELICITATION_CREATE, FS_READ_TEXT_FILE, FS_WRITE_TEXT_FILE, SESSION_REQUEST_PERMISSION, TERMINAL_CREATE,
    TERMINAL_KILL, TERMINAL_OUTPUT, TERMINAL_RELEASE, TERMINAL_WAIT_FOR_EXIT,
};
use narrows_policy::Verdict;
use narrows_rpc::Request;
use narrows_wire::{Code, Frame, RpcError};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::actor::{Actor, now_ms};
use crate::early_requests::{unknown_method, unknown_session};
use crate::event::{Json, Payload, PermissionRequested, PermissionResolved};
use crate::host::files::PathLinks;
use crate::host::terminal::{Exit, TerminalError};
use crate::mcp::Hosted;
use crate::peer_json;
use crate::permissions::{DecidedBy, TurnId};
use crate::services::{ServiceFailure, Services, WantedCommand};

#[derive(Deserialize)]
struct Read {
    path: std::path::PathBuf,
    line: Option<u32>,
    limit: Option<u32>,
    #[serde(rename = "_meta")]
    meta: Option<Value>,
}

#[derive(Deserialize)]
struct Write {
    path: std::path::PathBuf,
    content: String,
    #[serde(rename = "_meta")]
    meta: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Create {
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<Variable>,
    cwd: Option<std::path::PathBuf>,
    output_byte_limit: Option<u64>,
    #[serde(rename = "_meta")]
    meta: Option<Value>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Terminal {
    terminal_id: String,
}

impl Actor {
    /// Handles a request of the agent. A slow request is handled in a separate task.
    pub(super) fn request(&mut self, request: Request) {
        let method = request.frame.method().unwrap_or_default().into_owned();
        let named = request.frame.session().map(std::borrow::Cow::into_owned);
        if let Some(other) = named.filter(|named| **named != *self.id) {
            return self.refuse_other(request, &method, &other);
        }
        let Some(permit) = self.services.budget.admit(request.frame.bytes().len()) else {
            let words = "too many bytes of open requests in this session";
            return self.refuse(request, &RpcError::new(Code::Backpressure, words));
        };
        match method.as_str() {
            SESSION_REQUEST_PERMISSION => self.permission(request, &method, permit),
            ELICITATION_CREATE => self.decline(request, &method),
            method if Hosted::takes(method) => {
                self.shared.mcp.serve(request, &self.shared.peer, Some(permit));
            }
            FS_READ_TEXT_FILE
            | FS_WRITE_TEXT_FILE
            | TERMINAL_CREATE
            | TERMINAL_OUTPUT
            | TERMINAL_WAIT_FOR_EXIT
            | TERMINAL_KILL
            | TERMINAL_RELEASE => {
                if !self.offers(&method) {
                    return self.refuse(
                        request,
                        &RpcError::new(Code::MethodNotFound, "the client does not offer this method"),
                    );
                }
                let services = Arc::clone(&self.services);
                // The turn is recorded now, because the task may run in a later turn.
                let turn = services.permissions.turn();
                let Request { frame, responder } = request;
                self.tasks.spawn(async move {
                    let _permit = permit;
                    let given_up = responder.cancelled();
                    let outcome = tokio::select! {
                        outcome = serve(&services, turn, &method, &frame) => outcome,
                        () = given_up => Err(RpcError::new(Code::Cancelled, "cancelled")),
                    };
                    match outcome {
                        Ok((result, slot)) => {
                            responder.room().await;
                            responder.respond(&result);
                            drop(slot);
                        }
                        Err(error) => responder.fail(&error),
                    }
                    None
                });
            }
            _ => self.refuse(request, &unknown_method()),
        }
    }

    /// Refuses a request for another session. If the other session is a child of this one, an event reports
    /// the refusal.
    fn refuse_other(&mut self, request: Request, method: &str, other: &str) {
        // The announcement of the child session may still be in another queue, so that queue is read first.
        for _ in 0..super::open::MAX_HELD_MESSAGES {
            let Some(item) = self.inbox.try_recv() else { break };
            self.handle_item(item);
        }
        if !self.children.contains(other) {
            return self.shared.early_requests.refuse_unknown_session(other, request);
        }
        let request_id = self.services.permissions.next_request_id();
        let params: Value = peer_json::read(request.frame.params().unwrap_or(b"{}")).unwrap_or_default();
        let places = ["/title", "/toolCall/title", "/subject/toolCall/title", "/path", "/command"];
        let wanted = places.iter().find_map(|place| params.pointer(place)?.as_str()).unwrap_or(method);
        let requested = PermissionRequested {
            request_id: request_id.clone(),
            method: method.to_owned(),
            title: Some(format!("{wanted} (in the child session {other})")),
            ..PermissionRequested::default()
        };
        let words = "requests of child sessions are not served";
        let decision = json!({"verdict": Verdict::Deny, "words": words, "by": DecidedBy::Policy.name()});
        let resolved = PermissionResolved {
            request_id,
            outcome: "refused".to_owned(),
            decision: Some(Json::write(&decision)),
            ..PermissionResolved::default()
        };
        request.responder.fail(&unknown_session(other));
        let payload = Payload::PermissionRequested(Box::new(requested));
        self.mapper.provider_event(payload, now_ms(), &mut self.events);
        self.mapper.permission_resolved(resolved, now_ms(), &mut self.events);
    }

    fn refuse(&mut self, request: Request, error: &RpcError) {
        let data = Json::from_bytes_lossy(request.frame.bytes());
        let payload = Payload::Other { name: "request.refused".to_owned(), data };
        self.mapper.provider_event(payload, now_ms(), &mut self.events);
        request.responder.fail(error);
    }

    fn offers(&self, method: &str) -> bool {
        let offer = self.shared.offer;
        self.shared.known.version == narrows_acp::Version::V1
            && match method {
                FS_READ_TEXT_FILE => offer.read_files,
                FS_WRITE_TEXT_FILE => offer.write_files,
                _ => offer.run_commands,
            }
    }

    /// Refuses a request for user input, which is not supported.
    fn decline(&mut self, request: Request, method: &str) {
        let params = request.frame.params().unwrap_or(b"{}");
        let id = self.services.permissions.next_request_id();
        let now = now_ms();
        self.mapper.permission_requested(&id, method, params, now, &mut self.events);
        request.responder.respond(&json!({"action": "decline"}));
        let resolved = PermissionResolved {
            request_id: id,
            outcome: "declined".to_owned(),
            ..PermissionResolved::default()
        };
        self.mapper.permission_resolved(resolved, now, &mut self.events);
    }
}

/// Serves a request. Returns the result, and the memory slot of a large answer.
async fn serve(
    services: &Arc<Services>,
    turn: TurnId,
    method: &str,
    frame: &Frame,
) -> Result<(Value, Option<OwnedSemaphorePermit>), RpcError> {
    let unserved = |error: ServiceFailure| error.to_rpc();
    let terminal = |error: TerminalError| RpcError::new(Code::NotFound, error.to_string());
    match method {
        FS_READ_TEXT_FILE => {
            let Read { path, line, limit, meta } = params(frame)?;
            let path = (path, path_links(meta.as_ref()));
            let (content, slot) =
                services.read(turn, path, line, limit).await.map_err(unserved)?.into_parts();
            Ok((json!({"content": content}), slot))
        }
        FS_WRITE_TEXT_FILE => {
            let Write { path, content, meta } = params(frame)?;
            services.write(turn, (path, path_links(meta.as_ref())), content).await.map_err(unserved)?;
            Ok((json!({}), None))
        }
        TERMINAL_CREATE => {
            let Create { command, args, env, cwd, output_byte_limit, meta } = params(frame)?;
            let wanted = WantedCommand {
                program: command,
                args,
                env: env.into_iter().map(|Variable { name, value }| (name, value)).collect(),
                cwd,
                links: path_links(meta.as_ref()),
                output_limit: output_byte_limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
            };
            let id = services.start(turn, wanted).await.map_err(unserved)?;
            Ok((json!({"terminalId": id}), None))
        }
        TERMINAL_OUTPUT => {
            let Terminal { terminal_id } = params(frame)?;
            let slot = services.budget.large_answer().await;
            let output = services.terminals.output(&terminal_id).map_err(terminal)?;
            let mut result = json!({"output": output.text, "truncated": output.truncated});
            if let Some(exit) = output.exit {
                result["exitStatus"] = status(&exit);
            }
            Ok((result, slot))
        }
        TERMINAL_WAIT_FOR_EXIT => {
            let Terminal { terminal_id } = params(frame)?;
            let exit = services.terminals.wait(&terminal_id).await.map_err(terminal)?;
            Ok((status(&exit), None))
        }
        TERMINAL_KILL => {
            let Terminal { terminal_id } = params(frame)?;
            services.terminals.kill(&terminal_id).await.map_err(terminal)?;
            Ok((json!({}), None))
        }
        _ => {
            let Terminal { terminal_id } = params(frame)?;
            services.terminals.release(&terminal_id).await.map_err(terminal)?;
            Ok((json!({}), None))
        }
    }
}

/// Returns how to treat links in the request's path. A gate marks a request if it has judged the path without
/// links.
fn path_links(meta: Option<&Value>) -> PathLinks {
    match meta.is_some_and(|meta| meta["narrows"]["noLinks"] == true) {
        true => PathLinks::Refuse,
        false => PathLinks::Follow,
    }
}

fn status(exit: &Exit) -> Value {
    json!({"exitCode": exit.code, "signal": exit.signal})
}

fn params<T: DeserializeOwned>(frame: &Frame) -> Result<T, RpcError> {
    peer_json::read(frame.params().unwrap_or(b"{}"))
        .map_err(|error| RpcError::new(Code::InvalidParams, format!("the params cannot be read: {error}")))
}
