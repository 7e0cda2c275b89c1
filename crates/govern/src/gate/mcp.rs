//! MCP over ACP: what the agent says to servers that live in the client.
//!
//! A message names its server, or in the older form a connection that was opened to one. Whatever names neither is nobody's.
//! Calls of tools are judged, and so is whatever has a server show something, or does nobody knows what; lists of what can be
//! shown are shortened to what may be. The rest passes as it is, and nothing is ever added to what a server itself would show.

use narrows_acp::method;
use narrows_policy::Class;
use narrows_wire::{Code, RpcError, View, message};
use serde_json::{Map, Value, json};

use super::Pass;
use super::api::Out;
use super::client_services::ambiguous;
use super::outbox::{Otherwise, Way};
use super::session::{Asked, Served};
use super::session_open::read;
use crate::call::Call;
use crate::unique_keys;

/// The method by which a tool is called.
const CALL: &str = "tools/call";

/// What begins or ends something, or tells what a server is, and shows nothing of what it has.
const PLAIN: [&str; 6] =
    ["initialize", "server/discover", "ping", "tools/list", "logging/setLevel", "resources/unsubscribe"];

/// Members of `_meta` that say who calls, who hears of a call, and which trace it is a part of. They change nothing about what
/// the call does, and the official client sends some of them with each request.
const OF_THE_CARRIER: [&str; 8] = [
    "progressToken",
    "traceparent",
    "tracestate",
    "baggage",
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/logLevel",
];

/// What has a server show something.
const READS: [&str; 4] = ["resources/read", "resources/subscribe", "prompts/get", "completion/complete"];

/// A list of what a server can show.
#[derive(Debug)]
pub(super) struct List {
    method: &'static str,
    /// Where its entries are.
    entries: &'static str,
    /// By which method an entry is shown, and what names it: in the entry, and in the request.
    by: &'static str,
    name: &'static str,
}

static LISTS: [List; 3] = [
    List { method: "resources/list", entries: "resources", by: "resources/read", name: "uri" },
    List {
        method: "resources/templates/list",
        entries: "resourceTemplates",
        by: "resources/read",
        name: "uriTemplate",
    },
    List { method: "prompts/list", entries: "prompts", by: "prompts/get", name: "name" },
];

/// An MCP server in the client.
struct Found {
    id: String,
    name: String,
    /// Nothing while the session is being created.
    session: Option<Box<str>>,
}

/// Returns the members of a call of a tool that may change what the server does, beside its name and arguments.
fn beside(params: &Value) -> Map<String, Value> {
    let mut members = params.as_object().cloned().unwrap_or_default();
    members.retain(|name, _| name != "name" && name != "arguments");
    let is_carried = |meta: &Value| {
        meta.as_object().is_some_and(|meta| meta.keys().all(|key| OF_THE_CARRIER.contains(&key.as_str())))
    };
    if members.get("_meta").is_some_and(is_carried) {
        members.remove("_meta");
    }
    members
}

impl<O: Out> Pass<'_, O> {
    /// The agent wants something of an MCP server in the client.
    pub(super) fn mcp(&mut self, id: &[u8], method: &str, message: View<'_>) {
        let Some(params) = unique_keys::read(message.params()) else {
            return self.refuse_agent(id, &ambiguous());
        };
        let Some(found) = self.server_of(&params) else {
            let error = RpcError::new(Code::InvalidParams, "no session has such an MCP server")
                .with("code", json!("unknown_mcp_server"));
            return self.refuse_agent(id, &error);
        };
        let served = match method {
            method::MCP_CONNECT => Served::Connect { server: found.id },
            method::MCP_DISCONNECT => {
                self.gate.connections.remove(params["connectionId"].as_str().unwrap_or_default());
                Served::Shown { method: method.into() }
            }
            _ => {
                let inner = params["method"].as_str().unwrap_or_default();
                if PLAIN.contains(&inner) {
                    Served::Shown { method: method.into() }
                } else if let Some(list) = LISTS.iter().find(|list| list.method == inner) {
                    Served::Listed { session: found.session, server: found.name, list }
                } else {
                    return self.mcp_call(id, found, &params, message);
                }
            }
        };
        self.show_request(id, served, message);
    }

    fn mcp_call(&mut self, id: &[u8], found: Found, params: &Value, message: View<'_>) {
        let Some(session) = found.session else {
            let error = RpcError::new(Code::InvalidRequest, "the session is not open yet");
            return self.refuse_agent(id, &error);
        };
        let method = params["method"].as_str().unwrap_or_default();
        let input = |value: Option<&Value>| value.cloned().unwrap_or_else(|| json!({}));
        let call = if method == CALL {
            let tool = params["params"]["name"].as_str().unwrap_or_default();
            let call = Call::known(Some(found.name), tool, "other", input(params["params"].get("arguments")));
            call.beside(beside(&params["params"]))
        } else if READS.contains(&method) {
            Call::reading(found.name, method, input(params.get("params")))
        } else {
            Call::known(Some(found.name), method, "other", input(params.get("params")))
        };
        self.want(id, &session, call, message);
    }

    /// A server has listed what it can show: the agent hears of that which it may have shown.
    pub(super) fn mcp_listed(&mut self, session: Option<&str>, server: &str, list: &List, message: View<'_>) {
        let (Some(id), Some(_)) = (message.id(), message.result()) else { return self.forward(message) };
        let Some(mut result) = unique_keys::read(message.result()) else {
            return self.refuse_agent(id, &ambiguous());
        };
        let mut is_shorter = false;
        for place in [format!("/{}", list.entries), format!("/result/{}", list.entries)] {
            let Some(entries) = result.pointer_mut(&place).and_then(Value::as_array_mut) else { continue };
            let before = entries.len();
            entries.retain(|entry| self.may_show(session, server, list, entry));
            is_shorter |= entries.len() < before;
        }
        if !is_shorter {
            return self.forward(message);
        }
        if let Ok(line) = message::response(id, &result) {
            self.send(Way::ToAgent, &[&line], None, Otherwise::Nothing);
        }
    }

    /// Whether an entry of a list might be shown, now or once somebody has agreed.
    fn may_show(&self, session: Option<&str>, server: &str, list: &List, entry: &Value) -> bool {
        let gate = &self.gate;
        let input = json!({list.name: entry.get(list.name).cloned().unwrap_or_default()});
        let call = Call::reading(server.to_owned(), list.by, input);
        let session = session.and_then(|session| gate.sessions.get(session));
        let roots = session.map_or(&gate.mandate.roots, |session| &session.roots);
        let verdict = gate.desk.rule(&call, &gate.mandate, &gate.who, roots, self.unix());
        verdict.class() != Class::Deny
    }

    /// The agent tells such a server something. What asks for something is no news: nobody could be told what came of it.
    pub(super) fn mcp_news(&mut self, message: View<'_>) {
        let params = unique_keys::read(message.params()).unwrap_or_default();
        let is_declared = self.gate.mandate.capabilities.mcp_acp;
        let is_news = params["method"].as_str().is_some_and(|method| method.starts_with("notifications/"));
        if is_declared && is_news && self.server_of(&params).is_some() {
            if !self.is_unfit_of_agent(method::MCP_MESSAGE, message) {
                self.show(message);
            }
            return;
        }
        let code = if is_news { "unknown_mcp_server" } else { "not_a_notification" };
        self.record_name_once(method::MCP_MESSAGE, message, Some(code));
    }

    /// The client has opened a connection to a server, or not.
    pub(super) fn mcp_connected(&mut self, server: String, message: View<'_>) {
        let result = read(message.result());
        if let Some(connection) = result["connectionId"].as_str()
            && self.gate.connections.len() < super::MOST_OPEN
            && self.has_room_for("", connection.len() + server.len())
        {
            let bytes = connection.len() + server.len();
            self.gate.connections.insert(&self.gate.retained, connection.to_owned(), server, bytes);
        }
        self.forward(message);
    }

    /// Forgets the connections to servers that no session has any more.
    pub(super) fn forget_connections(&mut self) {
        let mut connections = std::mem::take(&mut self.gate.connections);
        connections.retain(|_, server| self.server(server).is_some());
        self.gate.connections = connections;
    }

    /// The server that a message means. Whatever it names, it must mean the same by all.
    fn server_of(&self, params: &Value) -> Option<Found> {
        let named = ["serverId", "acpId"].iter().filter_map(|key| params.get(key)).map(Value::as_str);
        let by_connection = params.get("connectionId").map(|connection| {
            connection
                .as_str()
                .and_then(|connection| self.gate.connections.get(connection))
                .map(String::as_str)
        });
        let mut meant = named.chain(by_connection);
        let first = meant.next()??;
        meant.all(|other| other == Some(first)).then(|| self.server(first))?
    }

    /// The server of this id in a session, or in one that is being opened.
    fn server(&self, id: &str) -> Option<Found> {
        let found = |name: &String, session| Found { id: id.to_owned(), name: name.clone(), session };
        let in_session = self.gate.sessions.iter().find_map(|(session, known)| {
            let (_, name) = known.servers.iter().find(|(server, _)| server == id)?;
            Some(found(name, Some(session.clone())))
        });
        in_session.or_else(|| {
            self.gate.asked.values().find_map(|owed| {
                let Asked::Create { place } = &owed.what else { return None };
                let (_, name) = place.servers.iter().find(|(server, _)| server == id)?;
                Some(found(name, None))
            })
        })
    }

    /// Whether a server of this id is there already, in a session of another name.
    pub(super) fn is_taken(&self, id: &str, but: Option<&str>) -> bool {
        self.server(id).is_some_and(|found| found.session.is_none() || found.session.as_deref() != but)
    }
}
