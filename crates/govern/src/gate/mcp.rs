//! MCP over ACP: what the agent says to servers that live in the client.
//!
//! A message names its server, or in the older form a connection that was opened to one. Whatever names neither is nobody's,
//! calls of tools are judged, and all else passes as it is: more than the server itself would show is never added.

use narrows_acp::method;
use narrows_wire::{Code, RpcError, View};
use serde_json::{Value, json};

use super::Pass;
use super::api::Out;
use super::opening::read;
use super::service::ambiguous;
use super::session::{Asked, Served};
use crate::call::Call;
use crate::once;

/// The method by which a tool is called.
const CALL: &str = "tools/call";

/// An MCP server in the client.
struct Found {
    id: String,
    name: String,
    /// Nothing while the session is being created.
    session: Option<Box<str>>,
}

impl<O: Out> Pass<'_, O> {
    /// The agent wants something of an MCP server in the client.
    pub(super) fn mcp(&mut self, id: &[u8], method: &str, message: View<'_>) {
        let Some(params) = once::read(message.params()) else {
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
                Served::Shown
            }
            _ if params["method"] == CALL => return self.mcp_call(id, found, &params, message),
            _ => Served::Shown,
        };
        self.show_request(id, served, message);
    }

    fn mcp_call(&mut self, id: &[u8], found: Found, params: &Value, message: View<'_>) {
        let Some(session) = found.session else {
            let error = RpcError::new(Code::InvalidRequest, "the session is not open yet");
            return self.refuse_agent(id, &error);
        };
        let tool = params["params"]["name"].as_str().unwrap_or_default();
        let input = params["params"].get("arguments").cloned().unwrap_or_else(|| json!({}));
        self.want(id, &session, Call::known(Some(found.name), tool, "other", input), message);
    }

    /// The agent tells such a server something. A call is no news: nobody could be told what came of it.
    pub(super) fn mcp_news(&mut self, message: View<'_>) {
        let Some(params) = once::read(message.params()) else { return };
        let is_declared = self.gate.mandate.capabilities.mcp_acp;
        if is_declared && params["method"] != CALL && self.server_of(&params).is_some() {
            self.show(message);
        }
    }

    /// The client has opened a connection to a server, or not.
    pub(super) fn mcp_connected(&mut self, server: String, message: View<'_>) {
        let result = read(message.result());
        if let Some(connection) = result["connectionId"].as_str()
            && self.gate.connections.len() < super::MOST_OPEN
        {
            self.gate.connections.insert(connection.to_owned(), server);
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
