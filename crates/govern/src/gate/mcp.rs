//! MCP over ACP: messages of the agent to MCP servers in the client.
//!
//! A message names its server or, in the older form, a connection to a server. Any other message is refused.
//! Tool calls, reads and unknown methods are judged. A list of resources, prompts or tools is reduced to the
//! entries that may be read. All other messages pass unchanged.

use narrows_acp::method;
use narrows_policy::Class;
use narrows_wire::{Code, RpcError, View, message};
use serde_json::{Map, Value, json};

use super::GateCtx;
use super::api::GateOutput;
use super::client_services::ambiguous_params;
use super::outbox::{GateDirection, OnAuditFailure};
use super::session::{ClientRequestKind, PendingAtClient};
use super::session_open::parse_object;
use crate::call::Call;
use crate::unique_keys;

const TOOL_CALL_METHOD: &str = "tools/call";

/// MCP methods that manage a connection or describe a server. They show none of the server's data, so they
/// are not judged.
const UNJUDGED_METHODS: [&str; 6] =
    ["initialize", "server/discover", "ping", "tools/list", "logging/setLevel", "resources/unsubscribe"];

/// Members of `_meta` about the caller, progress and tracing, which do not affect a call. The official client
/// sends some of them with each request.
const CARRIER_META_KEYS: [&str; 8] = [
    "progressToken",
    "traceparent",
    "tracestate",
    "baggage",
    "io.modelcontextprotocol/protocolVersion",
    "io.modelcontextprotocol/clientInfo",
    "io.modelcontextprotocol/clientCapabilities",
    "io.modelcontextprotocol/logLevel",
];

/// MCP methods that only read from a server.
const READ_METHODS: [&str; 4] =
    ["resources/read", "resources/subscribe", "prompts/get", "completion/complete"];

/// A method that lists data of a server.
#[derive(Debug)]
pub(super) struct McpList {
    method: &'static str,
    /// Member of the result that contains the entries.
    entries: &'static str,
    /// Method that reads an entry, and the member that identifies the entry, in the list as well as in that
    /// method.
    by: &'static str,
    name: &'static str,
}

static LIST_METHODS: [McpList; 3] = [
    McpList { method: "resources/list", entries: "resources", by: "resources/read", name: "uri" },
    McpList {
        method: "resources/templates/list",
        entries: "resourceTemplates",
        by: "resources/read",
        name: "uriTemplate",
    },
    McpList { method: "prompts/list", entries: "prompts", by: "prompts/get", name: "name" },
];

struct McpServer {
    id: String,
    name: String,
    /// `None` while the session is being opened.
    session: Option<Box<str>>,
}

/// Returns the members of a tool call beside name and arguments. They may change what the server does.
fn extra_members(params: &Value) -> Map<String, Value> {
    let mut members = params.as_object().cloned().unwrap_or_default();
    members.retain(|name, _| name != "name" && name != "arguments");
    let is_carried = |meta: &Value| {
        meta.as_object().is_some_and(|meta| meta.keys().all(|key| CARRIER_META_KEYS.contains(&key.as_str())))
    };
    if members.get("_meta").is_some_and(is_carried) {
        members.remove("_meta");
    }
    members
}

impl<O: GateOutput> GateCtx<'_, O> {
    pub(super) fn handle_mcp_request(&mut self, id: &[u8], method: &str, message: View<'_>) {
        let Some(params) = unique_keys::read(message.params()) else {
            return self.refuse_agent(id, &ambiguous_params());
        };
        let Some(found) = self.find_mcp_server(&params) else {
            let error = RpcError::new(Code::InvalidParams, "unknown MCP server")
                .with("code", json!("unknown_mcp_server"));
            return self.refuse_agent(id, &error);
        };
        let served = match method {
            method::MCP_CONNECT => PendingAtClient::McpConnect { server: found.id },
            method::MCP_DISCONNECT => {
                self.gate.mcp_connections.remove(params["connectionId"].as_str().unwrap_or_default());
                PendingAtClient::PassThrough { method: method.into() }
            }
            _ => {
                let inner = params["method"].as_str().unwrap_or_default();
                if UNJUDGED_METHODS.contains(&inner) {
                    PendingAtClient::PassThrough { method: method.into() }
                } else if let Some(list) = LIST_METHODS.iter().find(|list| list.method == inner) {
                    PendingAtClient::McpList { session: found.session, server: found.name, list }
                } else {
                    return self.mcp_call(id, found, &params, message);
                }
            }
        };
        self.forward_agent_request(id, served, message);
    }

    fn mcp_call(&mut self, id: &[u8], found: McpServer, params: &Value, message: View<'_>) {
        let Some(session) = found.session else {
            let error = RpcError::new(Code::InvalidRequest, "the session is not open yet");
            return self.refuse_agent(id, &error);
        };
        let method = params["method"].as_str().unwrap_or_default();
        let input = |value: Option<&Value>| value.cloned().unwrap_or_else(|| json!({}));
        let call = if method == TOOL_CALL_METHOD {
            let tool = params["params"]["name"].as_str().unwrap_or_default();
            let call = Call::new(Some(found.name), tool, "other", input(params["params"].get("arguments")));
            call.with_extra_members(extra_members(&params["params"]))
        } else if READ_METHODS.contains(&method) {
            Call::mcp_read(found.name, method, input(params.get("params")))
        } else {
            Call::new(Some(found.name), method, "other", input(params.get("params")))
        };
        self.request_service(id, &session, call, message);
    }

    /// Handles the answer to a list request: removes the entries that the agent may not read.
    pub(super) fn handle_mcp_list(
        &mut self,
        session: Option<&str>,
        server: &str,
        list: &McpList,
        message: View<'_>,
    ) {
        let (Some(id), Some(_)) = (message.id(), message.result()) else {
            return self.forward_to_agent(message);
        };
        let Some(mut result) = unique_keys::read(message.result()) else {
            return self.refuse_agent(id, &ambiguous_params());
        };
        let mut is_shorter = false;
        for place in [format!("/{}", list.entries), format!("/result/{}", list.entries)] {
            let Some(entries) = result.pointer_mut(&place).and_then(Value::as_array_mut) else { continue };
            let before = entries.len();
            entries.retain(|entry| self.may_list_entry(session, server, list, entry));
            is_shorter |= entries.len() < before;
        }
        if !is_shorter {
            return self.forward_to_agent(message);
        }
        if let Ok(line) = message::response(id, &result) {
            self.send(GateDirection::ToAgent, &[&line], None, OnAuditFailure::Drop);
        }
    }

    /// Returns `true` if the operator may read an entry, possibly after an approval.
    fn may_list_entry(&self, session: Option<&str>, server: &str, list: &McpList, entry: &Value) -> bool {
        let gate = &self.gate;
        let input = json!({list.name: entry.get(list.name).cloned().unwrap_or_default()});
        let call = Call::mcp_read(server.to_owned(), list.by, input);
        let session = session.and_then(|session| gate.sessions.get(session));
        let roots = session.map_or(&gate.config.roots, |session| &session.roots);
        let decision =
            gate.authorizer.decide(&call, &gate.config, &gate.principal, roots, self.unix_seconds());
        decision.class() != Class::Deny
    }

    /// Handles a notification of the agent to an MCP server. A request in the form of a notification is
    /// dropped, because its result could not be returned.
    pub(super) fn handle_mcp_notification(&mut self, message: View<'_>) {
        let params = unique_keys::read(message.params()).unwrap_or_default();
        let is_declared = self.gate.config.capabilities.mcp_acp;
        let is_news = params["method"].as_str().is_some_and(|method| method.starts_with("notifications/"));
        if is_declared && is_news && self.find_mcp_server(&params).is_some() {
            if !self.refuse_unknown_member_of_agent(method::MCP_MESSAGE, message) {
                self.forward_to_client(message);
            }
            return;
        }
        let code = if is_news { "unknown_mcp_server" } else { "not_a_notification" };
        self.record_name_once(method::MCP_MESSAGE, message, Some(code));
    }

    pub(super) fn handle_mcp_connected(&mut self, server: String, message: View<'_>) {
        let result = parse_object(message.result());
        if let Some(connection) = result["connectionId"].as_str()
            && self.gate.mcp_connections.len() < super::MAX_OPEN
            && self.has_room_for("", connection.len() + server.len())
        {
            let bytes = connection.len() + server.len();
            self.gate.mcp_connections.insert(&self.gate.retained, connection.to_owned(), server, bytes);
        }
        self.forward_to_agent(message);
    }

    /// Removes connections to MCP servers whose session is closed.
    pub(super) fn forget_connections(&mut self) {
        let mut connections = std::mem::take(&mut self.gate.mcp_connections);
        connections.retain(|_, server| self.mcp_server(server).is_some());
        self.gate.mcp_connections = connections;
    }

    /// Returns the MCP server that a message names. If several members name a server, all must name the same
    /// one.
    fn find_mcp_server(&self, params: &Value) -> Option<McpServer> {
        let named = ["serverId", "acpId"].iter().filter_map(|key| params.get(key)).map(Value::as_str);
        let by_connection = params.get("connectionId").map(|connection| {
            connection
                .as_str()
                .and_then(|connection| self.gate.mcp_connections.get(connection))
                .map(String::as_str)
        });
        let mut meant = named.chain(by_connection);
        let first = meant.next()??;
        meant.all(|other| other == Some(first)).then(|| self.mcp_server(first))?
    }

    /// Returns the MCP server with this id, in an open session or in one that is being opened.
    fn mcp_server(&self, id: &str) -> Option<McpServer> {
        let found = |name: &String, session| McpServer { id: id.to_owned(), name: name.clone(), session };
        let in_session = self.gate.sessions.iter().find_map(|(session, known)| {
            let (_, name) = known.servers.iter().find(|(server, _)| server == id)?;
            Some(found(name, Some(session.clone())))
        });
        in_session.or_else(|| {
            self.gate.pending_at_agent.values().find_map(|pending| {
                let ClientRequestKind::Create { setup } = &pending.kind else { return None };
                let (_, name) = setup.servers.iter().find(|(server, _)| server == id)?;
                Some(found(name, None))
            })
        })
    }

    /// Returns `true` if a session other than `but` has an MCP server with this id.
    pub(super) fn is_server_id_taken(&self, id: &str, but: Option<&str>) -> bool {
        self.mcp_server(id).is_some_and(|found| found.session.is_none() || found.session.as_deref() != but)
    }
}
