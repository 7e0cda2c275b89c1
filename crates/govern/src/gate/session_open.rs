//! Opens connections and sessions, and checks their capabilities, directories and MCP servers.

use std::borrow::Cow;
use std::path::Path;

use narrows_acp::capability::AUTHORIZES;
use narrows_acp::method;
use narrows_manifest::Capabilities;
use narrows_wire::{Code, Effects, RpcError, View, message};
use serde_json::{Value, json};

use super::api::{GateOutput, SessionSlot};
use super::outbox::{GateDirection, OnAuditFailure};
use super::session::{ClientRequestKind, PendingAtAgent, Session, SessionSetup};
use super::{Gate, GateCtx};
use crate::path_resolver::resolve_in_roots;
use crate::unique_keys;

pub(super) const UNDECLARED: &str = "the manifest does not declare this capability";

pub(super) const AMBIGUOUS: &str = "ambiguous parameters";

/// Maximum number of directories of a session, and of its MCP servers. All directories are resolved before
/// the next message is read.
const MAX_ENTRIES: usize = 64;

const MAX_PATH_BYTES: usize = 4096;

/// Members that the description of an MCP server in the client may have.
const CLIENT_SERVER_MEMBERS: [&str; 5] = ["type", "name", "id", "serverId", "_meta"];

#[derive(Clone, Copy, Debug)]
pub(super) struct ClientOffer {
    read: bool,
    write: bool,
    terminal: bool,
    /// `true` if the client supports child sessions, as every client of version 2 does.
    pub(super) subagents: bool,
}

impl Gate {
    pub(super) fn client_capabilities(&self) -> Capabilities {
        let declared = self.config.capabilities;
        let Some(ClientOffer { read, write, terminal, .. }) = self.client_offer else { return declared };
        Capabilities {
            read_text_file: declared.read_text_file && read,
            write_text_file: declared.write_text_file && write,
            terminal: declared.terminal && terminal,
            ..declared
        }
    }
}

struct OpeningRefusal {
    /// Error code for programs. The audit log contains it, too.
    code: &'static str,
    error: RpcError,
}

impl OpeningRefusal {
    fn new(kind: Code, words: impl Into<Cow<'static, str>>, code: &'static str) -> Self {
        Self { code, error: RpcError::new(kind, words).with("code", json!(code)) }
    }
}

impl<O: GateOutput> GateCtx<'_, O> {
    /// Handles `initialize`. Client capabilities that the manifest does not declare are removed.
    pub(super) fn handle_initialize(&mut self, id: &[u8], message: View<'_>) {
        // Another `initialize` would change capabilities that the agent already relies on.
        let is_open = |pending: &PendingAtAgent| {
            matches!(pending.kind, ClientRequestKind::Initialize) && !pending.is_late
        };
        if self.gate.is_initialized || self.gate.pending_at_agent.values().any(is_open) {
            let error = RpcError::new(Code::InvalidRequest, "`initialize` was already sent");
            return self.refuse_client(id, &error);
        }
        let Some(params) = self.strip_initialize(message) else { return };
        if !self.track_client_request(id, message, ClientRequestKind::Initialize) {
            return;
        }
        let mut params = parse_object(Some(&params));
        let declared = self.gate.config.capabilities;
        let says = |place: &str| params.pointer(place) == Some(&Value::Bool(true));
        self.gate.client_offer = Some(ClientOffer {
            read: says("/clientCapabilities/fs/readTextFile"),
            write: says("/clientCapabilities/fs/writeTextFile"),
            terminal: says("/clientCapabilities/terminal"),
            subagents: params.pointer("/clientCapabilities/subagents").is_some_and(Value::is_object),
        });
        if let Some(offers) = params.get_mut("clientCapabilities").and_then(Value::as_object_mut) {
            if let Some(files) = offers.get_mut("fs").and_then(Value::as_object_mut) {
                withhold_undeclared(files, "readTextFile", declared.read_text_file);
                withhold_undeclared(files, "writeTextFile", declared.write_text_file);
            }
            withhold_undeclared(offers, "terminal", declared.terminal);
        }
        // The gate must decide before a tool runs. So the agent must ask before each call, whatever the
        // client offers.
        for place in ["/clientCapabilities/_meta", "/capabilities/_meta"] {
            if let Some(meta) = params.pointer_mut(place).and_then(Value::as_object_mut) {
                meta.remove(AUTHORIZES);
            }
        }
        if !self.gate.config.agent_methods.iter().any(|listed| listed == method::ELICITATION_CREATE) {
            for offers in ["clientCapabilities", "capabilities"] {
                if let Some(offers) = params.get_mut(offers).and_then(Value::as_object_mut) {
                    offers.remove("elicitation");
                }
            }
        }
        let Ok(line) = message::request(id, method::INITIALIZE, &params) else { return };
        let Some(line) = self.gate.mark.insert(View::parse(&line)).map(|marked| marked.concat()) else {
            return;
        };
        self.send(GateDirection::ToAgent, &[&line], None, OnAuditFailure::Drop);
    }

    pub(super) fn create_session(&mut self, id: &[u8], message: View<'_>) {
        let is_one = |pending: &&PendingAtAgent| matches!(pending.kind, ClientRequestKind::Create { .. });
        let coming = self.gate.pending_at_agent.values().filter(is_one).count();
        if self.gate.sessions.len() + coming >= super::MAX_OPEN {
            return self.refuse_client(id, &too_many_sessions());
        }
        match self.admit_opening(message, None) {
            Ok(setup) => {
                if self.track_client_request(id, message, ClientRequestKind::Create { setup }) {
                    self.forward_opening(id, message);
                }
            }
            Err(refusal) => self.refuse_opening(id, message, &refusal),
        }
    }

    pub(super) fn open_existing_session(&mut self, id: &[u8], message: View<'_>) {
        let Some(name) = message.session() else { return self.refuse_client(id, &missing_session_id()) };
        let is_load = message.method().is_some_and(|method| method == method::SESSION_LOAD);
        if is_load && !self.gate.config.capabilities.load_session {
            return self.refuse_client(id, &RpcError::new(Code::MethodNotFound, UNDECLARED));
        }
        let is_busy = self.gate.is_busy(&name);
        let is_replay_asked = is_load || !parse_object(message.params())["replayFrom"].is_null();
        if is_busy && is_replay_asked {
            // During a turn, replayed history could not be distinguished from the updates of the turn.
            let error = RpcError::new(Code::InvalidRequest, "a turn is active in this session");
            return self.refuse_client(id, &error);
        }
        match self.admit_opening(message, Some(&name)) {
            Ok(setup) => {
                if self.gate.sessions.len() >= super::MAX_OPEN && !self.gate.sessions.contains_key(&*name) {
                    return self.refuse_client(id, &too_many_sessions());
                }
                // Version 2 replays history only if the client asks for it.
                let replays = !is_busy && (is_replay_asked || !self.gate.is_v2);
                if !self.has_room_for(&name, name.len() + setup.retained_bytes()) {
                    return self.refuse_client(id, &too_many_sessions());
                }
                if self.track_client_request(
                    id,
                    message,
                    ClientRequestKind::Open { session: (&*name).into(), replays },
                ) {
                    self.gate.forget_closed(&name);
                    let session = self.gate.sessions.entry((&*name).into()).or_default();
                    session.replays += u32::from(replays);
                    session.is_admitted = true;
                    session.set_up(setup);
                    self.gate.charge_session(&name);
                    self.forward_opening(id, message);
                }
            }
            Err(refusal) => self.refuse_opening(id, message, &refusal),
        }
    }

    /// Passes a request to open a session to the agent, with the MCP servers of the manifest.
    fn forward_opening(&mut self, id: &[u8], message: View<'_>) {
        let method = message.method().unwrap_or_default();
        let name = message.session().unwrap_or_default();
        let params = message.params().unwrap_or_default();
        let event = self.parties(&name).request_accepted("session.requested", &method, params);
        let seq = Some(self.record(event));
        let on_failure = OnAuditFailure::FailClientRequest(audit_unavailable(id), id.into());
        let gate = &self.gate;
        if gate.config.provided_servers.is_empty() {
            return self.send(GateDirection::ToAgent, &[message.bytes()], seq, on_failure);
        }
        let mut params = parse_object(message.params());
        let mut servers = params["mcpServers"].as_array().cloned().unwrap_or_default();
        for provided in &gate.config.provided_servers {
            servers.retain(|server| server["name"] != provided["name"]);
            let mut provided = provided.clone();
            if gate.is_v2 && provided.get("type").is_none() {
                provided["type"] = json!("stdio");
            }
            servers.push(provided);
        }
        params["mcpServers"] = Value::Array(servers);
        let Ok(line) = message::request(id, &method, &params) else { return };
        self.send(GateDirection::ToAgent, &[&line], seq, on_failure);
    }

    /// Handles the failure of a request to open a session. Removes the session if it is unused.
    pub(super) fn handle_open_failure(&mut self, name: &str, replays: bool) {
        let Some(session) = self.gate.sessions.get_mut(name) else { return };
        session.replays = session.replays.saturating_sub(u32::from(replays));
        if session.is_unused() {
            self.gate.sessions.remove(name);
            self.gate.remember_closed(name, false);
        }
    }

    /// Checks a request to open a session. Returns the directories, MCP servers and slot of the session.
    fn admit_opening(&self, message: View<'_>, name: Option<&str>) -> Result<SessionSetup, OpeningRefusal> {
        let params = unique_keys::read(message.params())
            .ok_or_else(|| OpeningRefusal::new(Code::InvalidParams, AMBIGUOUS, "ambiguous_params"))?;
        let config = &self.gate.config;
        let more = optional_list(&params, "additionalDirectories")?;
        let named = params.get("cwd").into_iter().chain(more);
        let mut roots = Vec::new();
        for value in named {
            let path = Path::new(value.as_str().unwrap_or_default());
            if path.as_os_str().len() > MAX_PATH_BYTES {
                return Err(OpeningRefusal::new(
                    Code::InvalidParams,
                    "directory path too long",
                    "invalid_params",
                ));
            }
            let real = resolve_in_roots(path, &config.roots, &*self.gate.resolver).map_err(|outside| {
                let is_local = self.gate.principal.is_local();
                let words =
                    if is_local { outside.describe(path, &config.roots) } else { outside.to_string() };
                OpeningRefusal::new(Code::InvalidParams, words, "cwd_outside_root")
            })?;
            roots.push(real);
        }
        let servers = optional_list(&params, "mcpServers")?;
        for server in servers {
            self.admit_server(server)?;
        }
        if roots.is_empty() {
            roots.clone_from(&config.roots);
        }
        let servers = self.client_mcp_servers(servers, name)?;
        Ok(SessionSetup { roots, servers, slot: self.take_slot(name)? })
    }

    /// Takes a slot for a session that has none. Called after all other checks, so that no refused session
    /// takes a slot.
    fn take_slot(&self, name: Option<&str>) -> Result<Option<SessionSlot>, OpeningRefusal> {
        let Some(slots) = &self.gate.session_slots else { return Ok(None) };
        let session = name.and_then(|name| self.gate.sessions.get(name));
        if session.is_some_and(|session| session.slot.is_some()) {
            return Ok(None);
        }
        let slot = slots.take(&self.gate.principal.id);
        let words = "session limit of this identity reached";
        slot.map(Some).ok_or_else(|| OpeningRefusal::new(Code::Backpressure, words, "session_limit"))
    }

    fn admit_server(&self, server: &Value) -> Result<(), OpeningRefusal> {
        let config = &self.gate.config;
        let declared = config.capabilities;
        let is_declared = match server["type"].as_str() {
            Some("acp") => declared.mcp_acp,
            Some("http") => declared.mcp_http,
            Some("sse") => declared.mcp_sse,
            _ => true,
        };
        // An agent that does not know a server type may ignore the type and read the other members.
        let members = server.as_object().into_iter().flatten();
        if server["type"] == "acp"
            && members.map(|(key, _)| key).any(|key| !CLIENT_SERVER_MEMBERS.contains(&key.as_str()))
        {
            let words = "an MCP server in the client takes only a name and an id";
            return Err(OpeningRefusal::new(Code::InvalidParams, words, "unknown_member"));
        }
        if !is_declared {
            let words = "the manifest does not declare this MCP transport";
            return Err(OpeningRefusal::new(Code::InvalidParams, words, "undeclared_capability"));
        }
        let Some(listed) = &config.servers else { return Ok(()) };
        let name = server["name"].as_str().unwrap_or_default();
        // A server in the client needs no description. Any other server must be described by the manifest,
        // because a client could give the listed name to any program.
        let is_known = match server["type"] == "acp" {
            true => listed.iter().any(|listed| listed == name),
            false => config.provided_servers.iter().any(|provided| provided["name"] == name),
        };
        if is_known {
            return Ok(());
        }
        let words = format!("the operator has no MCP server `{}`", narrows_base::text::quoted(name, 64));
        Err(OpeningRefusal::new(Code::PolicyDenied, words, "server_not_listed"))
    }

    /// Returns the ids and names of the MCP servers in the client. Fails if two servers have the same id.
    fn client_mcp_servers(
        &self,
        servers: &[Value],
        session: Option<&str>,
    ) -> Result<Vec<(String, String)>, OpeningRefusal> {
        let mut found: Vec<(String, String)> = Vec::new();
        for server in servers.iter().filter(|server| server["type"] == "acp") {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let id = server.get("serverId").or_else(|| server.get("id")).map(text).unwrap_or_default();
            if id.is_empty()
                || found.iter().any(|(other, _)| *other == id)
                || self.is_server_id_taken(&id, session)
            {
                let words = "missing or duplicate MCP server id";
                return Err(OpeningRefusal::new(Code::InvalidParams, words, "server_id_taken"));
            }
            found.push((id, text(&server["name"])));
        }
        Ok(found)
    }

    fn refuse_opening(&mut self, id: &[u8], message: View<'_>, refusal: &OpeningRefusal) {
        let params = parse_object(message.params());
        let session = message.session().unwrap_or_default().into_owned();
        let input = json!({
            "method": message.method().unwrap_or_default(),
            "cwd": params["cwd"],
            "additionalDirectories": params["additionalDirectories"],
        });
        let event = self.parties(&session).refused("session.refused", refusal.code, input);
        let seq = self.record(event);
        let line = message::error(id, &refusal.error);
        let on_failure = OnAuditFailure::SendInstead(GateDirection::ToClient, audit_unavailable(id));
        self.send(GateDirection::ToClient, &[&line], Some(seq), on_failure);
    }

    pub(super) fn session(&mut self, name: &str) -> Option<&mut Session> {
        self.gate.sessions.get_mut(name)
    }

    /// Returns a session, and creates it if it does not exist. Returns `None` if there is no room.
    pub(super) fn ensure_session(&mut self, name: &str) -> Option<&mut Session> {
        if !self.gate.sessions.contains_key(name) {
            if self.gate.sessions.len() >= super::MAX_OPEN {
                return None;
            }
            let session = Session { roots: self.gate.config.roots.clone(), ..Session::default() };
            if !self.gate.make_room(name.len() + session.retained_bytes()) {
                return None;
            }
            self.gate.forget_closed(name);
            self.gate.sessions.insert(name.into(), session);
            self.gate.charge_session(name);
        }
        self.gate.sessions.get_mut(name)
    }
}

/// Returns the error for an action that was not performed, because the action could not be recorded.
pub(super) fn audit_unavailable(id: &[u8]) -> bytes::Bytes {
    message::error(id, &RpcError::new(Code::AuditUnavailable, "audit log unavailable, nothing was done"))
}

/// Returns the error for an action that was performed, but whose outcome could not be recorded.
pub(super) fn outcome_unrecorded(id: &[u8]) -> bytes::Bytes {
    let words = "done, but the audit log could not be written";
    let error = RpcError::new(Code::AuditUnavailable, words).effects(Effects::Possible);
    message::error(id, &error.with("retryable", json!(false)))
}

pub(super) fn too_many_sessions() -> RpcError {
    RpcError::new(Code::Backpressure, "too many sessions are open")
}

pub(super) fn missing_session_id() -> RpcError {
    RpcError::new(Code::InvalidParams, "`sessionId` must be a string")
}

pub(super) fn parse_object(params: Option<&[u8]>) -> Value {
    params.and_then(|params| serde_json::from_slice(params).ok()).unwrap_or_else(|| json!({}))
}

/// Sets a capability of the client to `false` if the manifest does not declare the capability.
fn withhold_undeclared(offers: &mut serde_json::Map<String, Value>, name: &str, declared: bool) {
    if let Some(offer) = offers.get_mut(name).filter(|_| !declared) {
        *offer = json!(false);
    }
}

fn optional_list<'a>(params: &'a Value, key: &str) -> Result<&'a [Value], OpeningRefusal> {
    match &params[key] {
        Value::Null => Ok(&[]),
        Value::Array(entries) if entries.len() <= MAX_ENTRIES => Ok(entries),
        Value::Array(_) => {
            let words = format!("{key} has more than {MAX_ENTRIES} entries");
            Err(OpeningRefusal::new(Code::InvalidParams, words, "invalid_params"))
        }
        _ => {
            Err(OpeningRefusal::new(Code::InvalidParams, format!("{key} is not an array"), "invalid_params"))
        }
    }
}
