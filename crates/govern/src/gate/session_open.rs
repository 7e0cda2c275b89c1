//! Connections and sessions as they are opened: what may be offered, and where a session may live.

use std::borrow::Cow;
use std::path::Path;

use narrows_acp::capability::AUTHORIZES;
use narrows_acp::method;
use narrows_manifest::Capabilities;
use narrows_wire::{Code, Effects, RpcError, View, message};
use serde_json::{Value, json};

use super::api::{Out, SessionSlot};
use super::outbox::{Otherwise, Way};
use super::session::{Asked, Owed, Place, Session};
use super::{Gate, Pass};
use crate::path_resolver::admit;
use crate::unique_keys;

/// What is said to whoever uses what is not declared.
pub(super) const UNDECLARED: &str = "the manifest does not declare this capability";

/// What is said of parameters in which a key stands twice.
pub(super) const AMBIGUOUS: &str = "the parameters can be read in two ways";

/// How many directories and MCP servers a session may have: each is looked up before the next message is read.
const MAX_ENTRIES: usize = 64;

/// The longest path of a directory, which is that of the system.
const MAX_PATH_BYTES: usize = 4096;

/// What the description of an MCP server in the client consists of.
const OF_ACP: [&str; 5] = ["type", "name", "id", "serverId", "_meta"];

/// What the client said it does for the agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offered {
    read: bool,
    write: bool,
    terminal: bool,
    /// It understands child sessions (version 1; in version 2 every client does).
    pub(super) subagents: bool,
}

impl Gate {
    /// What the client does for the agent: what is declared, and what it said itself.
    pub(super) fn offers(&self) -> Capabilities {
        let declared = self.mandate.capabilities;
        let Some(Offered { read, write, terminal, .. }) = self.offered else { return declared };
        Capabilities {
            read_text_file: declared.read_text_file && read,
            write_text_file: declared.write_text_file && write,
            terminal: declared.terminal && terminal,
            ..declared
        }
    }
}

/// Why a session is not opened.
struct Refusal {
    /// For programs.
    code: &'static str,
    error: RpcError,
}

impl Refusal {
    fn new(kind: Code, words: impl Into<Cow<'static, str>>, code: &'static str) -> Self {
        Self { code, error: RpcError::new(kind, words).with("code", json!(code)) }
    }
}

impl<O: Out> Pass<'_, O> {
    /// The client introduces itself: what the manifest does not declare it does not offer.
    pub(super) fn initialize(&mut self, id: &[u8], message: View<'_>) {
        // What the client offers would change under an agent that works by what it was told.
        let is_open = |owed: &Owed| matches!(owed.what, Asked::Initialize) && !owed.is_late;
        if self.gate.is_introduced || self.gate.asked.values().any(is_open) {
            let error = RpcError::new(Code::InvalidRequest, "`initialize` was sent before");
            return self.refuse_client(id, &error);
        }
        let Some(params) = self.fitting_initialize(message) else { return };
        if !self.await_answer(id, message, Asked::Initialize) {
            return;
        }
        let mut params = read(Some(&params));
        let declared = self.gate.mandate.capabilities;
        let says = |place: &str| params.pointer(place) == Some(&Value::Bool(true));
        self.gate.offered = Some(Offered {
            read: says("/clientCapabilities/fs/readTextFile"),
            write: says("/clientCapabilities/fs/writeTextFile"),
            terminal: says("/clientCapabilities/terminal"),
            subagents: params.pointer("/clientCapabilities/subagents").is_some_and(Value::is_object),
        });
        if let Some(offers) = params.get_mut("clientCapabilities").and_then(Value::as_object_mut) {
            if let Some(files) = offers.get_mut("fs").and_then(Value::as_object_mut) {
                keep(files, "readTextFile", declared.read_text_file);
                keep(files, "writeTextFile", declared.write_text_file);
            }
            keep(offers, "terminal", declared.terminal);
        }
        // The gate decides before anything runs, so an agent behind it always asks.
        for place in ["/clientCapabilities/_meta", "/capabilities/_meta"] {
            if let Some(meta) = params.pointer_mut(place).and_then(Value::as_object_mut) {
                meta.remove(AUTHORIZES);
            }
        }
        if !self.gate.mandate.agent_methods.iter().any(|listed| listed == method::ELICITATION_CREATE) {
            for offers in ["clientCapabilities", "capabilities"] {
                if let Some(offers) = params.get_mut(offers).and_then(Value::as_object_mut) {
                    offers.remove("elicitation");
                }
            }
        }
        let Ok(line) = message::request(id, method::INITIALIZE, &params) else { return };
        let Some(line) = self.gate.mark.put(View::parse(&line)).map(|marked| marked.concat()) else { return };
        self.send(Way::ToAgent, &[&line], None, Otherwise::Nothing);
    }

    /// A session is to be created.
    pub(super) fn create(&mut self, id: &[u8], message: View<'_>) {
        let is_one = |owed: &&Owed| matches!(owed.what, Asked::Create { .. });
        let coming = self.gate.asked.values().filter(is_one).count();
        if self.gate.sessions.len() + coming >= super::MOST_OPEN {
            return self.refuse_client(id, &crowded());
        }
        match self.admit_opening(message, None) {
            Ok(place) => {
                if self.await_answer(id, message, Asked::Create { place }) {
                    self.forward_opening(id, message);
                }
            }
            Err(refusal) => self.refuse_opening(id, message, &refusal),
        }
    }

    /// A stored session is to be opened.
    pub(super) fn reopen(&mut self, id: &[u8], message: View<'_>) {
        let Some(name) = message.session() else { return self.refuse_client(id, &unnamed()) };
        let is_load = message.method().is_some_and(|method| method == method::SESSION_LOAD);
        if is_load && !self.gate.mandate.capabilities.load_session {
            return self.refuse_client(id, &RpcError::new(Code::MethodNotFound, UNDECLARED));
        }
        let is_busy = self.gate.is_busy(&name);
        let is_replay_asked = is_load || !read(message.params())["replayFrom"].is_null();
        if is_busy && is_replay_asked {
            // What the turn does could not be told from what was done before.
            let error = RpcError::new(Code::InvalidRequest, "a turn is under way in this session");
            return self.refuse_client(id, &error);
        }
        match self.admit_opening(message, Some(&name)) {
            Ok(place) => {
                if self.gate.sessions.len() >= super::MOST_OPEN && !self.gate.sessions.contains_key(&*name) {
                    return self.refuse_client(id, &crowded());
                }
                // Version 2 has no history unless it is asked for.
                let replays = !is_busy && (is_replay_asked || !self.gate.is_v2);
                if !self.has_room_for(&name, name.len() + place.retained_bytes()) {
                    return self.refuse_client(id, &crowded());
                }
                if self.await_answer(id, message, Asked::Open { session: (&*name).into(), replays }) {
                    self.gate.forget_closed(&name);
                    let session = self.gate.sessions.entry((&*name).into()).or_default();
                    session.replays += u32::from(replays);
                    session.is_admitted = true;
                    session.settle(place);
                    self.gate.charge_session(&name);
                    self.forward_opening(id, message);
                }
            }
            Err(refusal) => self.refuse_opening(id, message, &refusal),
        }
    }

    /// Sends on that a session is to be opened, with the MCP servers that it gets from us.
    fn forward_opening(&mut self, id: &[u8], message: View<'_>) {
        let method = message.method().unwrap_or_default();
        let name = message.session().unwrap_or_default();
        let params = message.params().unwrap_or_default();
        let event = self.parties(&name).accepted("session.requested", &method, params);
        let ticket = Some(self.record(event));
        let otherwise = Otherwise::Unbegun(unrecorded(id), id.into());
        let gate = &self.gate;
        if gate.mandate.provides.is_empty() {
            return self.send(Way::ToAgent, &[message.bytes()], ticket, otherwise);
        }
        let mut params = read(message.params());
        let mut servers = params["mcpServers"].as_array().cloned().unwrap_or_default();
        for provided in &gate.mandate.provides {
            servers.retain(|server| server["name"] != provided["name"]);
            let mut provided = provided.clone();
            if gate.is_v2 && provided.get("type").is_none() {
                provided["type"] = json!("stdio");
            }
            servers.push(provided);
        }
        params["mcpServers"] = Value::Array(servers);
        let Ok(line) = message::request(id, &method, &params) else { return };
        self.send(Way::ToAgent, &[&line], ticket, otherwise);
    }

    /// A stored session was not opened: it is forgotten if nothing is going on in it.
    pub(super) fn unopened(&mut self, name: &str, replays: bool) {
        let Some(session) = self.gate.sessions.get_mut(name) else { return };
        session.replays = session.replays.saturating_sub(u32::from(replays));
        if session.is_fresh() {
            self.gate.sessions.remove(name);
            self.gate.note_closed(name, false);
        }
    }

    /// Where a session would live, if it may.
    fn admit_opening(&self, message: View<'_>, name: Option<&str>) -> Result<Place, Refusal> {
        let params = unique_keys::read(message.params())
            .ok_or_else(|| Refusal::new(Code::InvalidParams, AMBIGUOUS, "ambiguous_params"))?;
        let mandate = &self.gate.mandate;
        let more = list(&params, "additionalDirectories")?;
        let named = params.get("cwd").into_iter().chain(more);
        let mut roots = Vec::new();
        for value in named {
            let path = Path::new(value.as_str().unwrap_or_default());
            if path.as_os_str().len() > MAX_PATH_BYTES {
                return Err(Refusal::new(
                    Code::InvalidParams,
                    "path of a directory too long",
                    "invalid_params",
                ));
            }
            let real = admit(path, &mandate.roots, &*self.gate.ground).map_err(|outside| {
                let is_local = self.gate.who.is_local();
                let words = if is_local { outside.told(path, &mandate.roots) } else { outside.to_string() };
                Refusal::new(Code::InvalidParams, words, "cwd_outside_root")
            })?;
            roots.push(real);
        }
        let servers = list(&params, "mcpServers")?;
        for server in servers {
            self.admit_server(server)?;
        }
        if roots.is_empty() {
            roots.clone_from(&mandate.roots);
        }
        let servers = self.in_client(servers, name)?;
        Ok(Place { roots, servers, slot: self.take_slot(name)? })
    }

    /// Takes a slot for a session that is not open, or is a child and has none. The last of the checks.
    fn take_slot(&self, name: Option<&str>) -> Result<Option<SessionSlot>, Refusal> {
        let Some(slots) = &self.gate.session_slots else { return Ok(None) };
        let session = name.and_then(|name| self.gate.sessions.get(name));
        if session.is_some_and(|session| session.slot.is_some()) {
            return Ok(None);
        }
        let slot = slots.take(&self.gate.who.id);
        let words = "session limit of this identity reached";
        slot.map(Some).ok_or_else(|| Refusal::new(Code::Backpressure, words, "session_limit"))
    }

    /// Whether a client may name this MCP server.
    fn admit_server(&self, server: &Value) -> Result<(), Refusal> {
        let mandate = &self.gate.mandate;
        let declared = mandate.capabilities;
        let is_declared = match server["type"].as_str() {
            Some("acp") => declared.mcp_acp,
            Some("http") => declared.mcp_http,
            Some("sse") => declared.mcp_sse,
            _ => true,
        };
        // An agent that does not know the type could take it for a server of another type.
        let members = server.as_object().into_iter().flatten();
        if server["type"] == "acp" && members.map(|(key, _)| key).any(|key| !OF_ACP.contains(&key.as_str())) {
            let words = "an MCP server in the client has a name and an id only";
            return Err(Refusal::new(Code::InvalidParams, words, "unknown_member"));
        }
        if !is_declared {
            let words = "the manifest does not declare this kind of MCP servers";
            return Err(Refusal::new(Code::InvalidParams, words, "undeclared_capability"));
        }
        let Some(listed) = &mandate.servers else { return Ok(()) };
        let name = server["name"].as_str().unwrap_or_default();
        // One in the client is the client's; any other is ours to describe, or a name would be enough to run anything.
        let is_known = match server["type"] == "acp" {
            true => listed.iter().any(|listed| listed == name),
            false => mandate.provides.iter().any(|provided| provided["name"] == name),
        };
        if is_known {
            return Ok(());
        }
        let words = format!("the operator has no MCP server `{}`", narrows_base::text::quoted(name, 64));
        Err(Refusal::new(Code::PolicyDenied, words, "server_not_listed"))
    }

    /// The MCP servers that live in the client: their ids, each of which means one of them, and their names.
    fn in_client(&self, servers: &[Value], session: Option<&str>) -> Result<Vec<(String, String)>, Refusal> {
        let mut found: Vec<(String, String)> = Vec::new();
        for server in servers.iter().filter(|server| server["type"] == "acp") {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let id = server.get("serverId").or_else(|| server.get("id")).map(text).unwrap_or_default();
            if id.is_empty() || found.iter().any(|(other, _)| *other == id) || self.is_taken(&id, session) {
                let words = "the id of an MCP server is missing, or that of another";
                return Err(Refusal::new(Code::InvalidParams, words, "server_id_taken"));
            }
            found.push((id, text(&server["name"])));
        }
        Ok(found)
    }

    fn refuse_opening(&mut self, id: &[u8], message: View<'_>, refusal: &Refusal) {
        let params = read(message.params());
        let session = message.session().unwrap_or_default().into_owned();
        let input = json!({
            "method": message.method().unwrap_or_default(),
            "cwd": params["cwd"],
            "additionalDirectories": params["additionalDirectories"],
        });
        let event = self.parties(&session).refused("session.refused", refusal.code, input);
        let ticket = self.record(event);
        let line = message::error(id, &refusal.error);
        let otherwise = Otherwise::Say(Way::ToClient, unrecorded(id));
        self.send(Way::ToClient, &[&line], Some(ticket), otherwise);
    }

    /// The session of this name, if it is open.
    pub(super) fn session(&mut self, name: &str) -> Option<&mut Session> {
        self.gate.sessions.get_mut(name)
    }

    /// The session of this name, which the client has opened. Nothing if there is no room for it.
    pub(super) fn open_session(&mut self, name: &str) -> Option<&mut Session> {
        if !self.gate.sessions.contains_key(name) {
            if self.gate.sessions.len() >= super::MOST_OPEN {
                return None;
            }
            let session = Session { roots: self.gate.mandate.roots.clone(), ..Session::default() };
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

/// The error of whoever wanted something that could not be recorded.
pub(super) fn unrecorded(id: &[u8]) -> bytes::Bytes {
    message::error(
        id,
        &RpcError::new(Code::AuditUnavailable, "the audit log could not be written, so nothing was done"),
    )
}

/// The error of a request that reached its addressee and whose outcome could not be recorded.
pub(super) fn unrecorded_outcome(id: &[u8]) -> bytes::Bytes {
    let words = "it was carried out, but the audit log could not be written";
    let error = RpcError::new(Code::AuditUnavailable, words).effects(Effects::Possible);
    message::error(id, &error.with("retryable", json!(false)))
}

/// The error of whoever wants a session for which there is no room.
pub(super) fn crowded() -> RpcError {
    RpcError::new(Code::Backpressure, "too many sessions are open")
}

/// The error of whoever does not say which session is meant.
pub(super) fn unnamed() -> RpcError {
    RpcError::new(Code::InvalidParams, "`sessionId` must be a string")
}

/// An object, or an empty one.
pub(super) fn read(params: Option<&[u8]>) -> Value {
    params.and_then(|params| serde_json::from_slice(params).ok()).unwrap_or_else(|| json!({}))
}

/// Takes back what is offered and not declared.
fn keep(offers: &mut serde_json::Map<String, Value>, name: &str, declared: bool) {
    if let Some(offer) = offers.get_mut(name).filter(|_| !declared) {
        *offer = json!(false);
    }
}

/// Returns the entries of a list that may be missing.
fn list<'a>(params: &'a Value, key: &str) -> Result<&'a [Value], Refusal> {
    match &params[key] {
        Value::Null => Ok(&[]),
        Value::Array(entries) if entries.len() <= MAX_ENTRIES => Ok(entries),
        Value::Array(_) => {
            let words = format!("{key} has more than {MAX_ENTRIES} entries");
            Err(Refusal::new(Code::InvalidParams, words, "invalid_params"))
        }
        _ => Err(Refusal::new(Code::InvalidParams, format!("{key} is not an array"), "invalid_params")),
    }
}
