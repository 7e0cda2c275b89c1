//! MCP servers that run in clients.
//!
//! A worker names such a server by an id. Clients choose the ids, so two clients of a shared worker may use
//! the same id. In that case, the worker gets another id for the second server.

use narrows_acp::method;
use narrows_wire::{Code, RpcError, View, member};
use serde_json::Value;

use super::Ctx;
use super::api::{CoreOutput, PoolId};
use super::errors::unknown_server;
use super::identity::Identity;
use super::mcp_server_table::ServerUse;
use super::progress::with_range_replaced;
use super::session::SessionKey;
use super::session_keys::decoded;
use super::state::Asked;
use super::table::{ClientKey, WorkerKey};

#[derive(Debug)]
pub(super) struct AskedServer {
    id_at_client: String,
    request: String,
}

impl AskedServer {
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.id_at_client.len() + self.request.len()
    }
}

const MAX_ID_BYTES: usize = 256;

/// Maximum size of an MCP request id that is kept.
const MAX_REQUEST_BYTES: usize = 1024;

const KEYS: [&str; 2] = ["serverId", "acpId"];

/// The key by which an older form of message names a connection to a server. The client chooses that name, so
/// it is not looked up among the ids of servers: it could be the id of another client's server.
const CONNECTION: &str = "connectionId";

impl<O: CoreOutput> Ctx<'_, O> {
    /// Adds the servers that a request to open a session names. They stay for as long as the result is kept.
    ///
    /// # Errors
    /// If the id of a server is too long.
    pub(super) fn enter_servers(
        &mut self,
        worker: WorkerKey,
        client: ClientKey,
        params: &[u8],
    ) -> Result<ServerUse, RpcError> {
        let ids = declared_server_ids(params);
        if ids.iter().any(|id| id.len() > MAX_ID_BYTES) {
            return Err(RpcError::new(Code::InvalidParams, "MCP server id too long"));
        }
        let mut made = self.core.servers_made;
        let Some(state) = self.core.worker(worker).filter(|_| !ids.is_empty()) else {
            return Ok(ServerUse::default());
        };
        let used = state.servers.enter(client, ids, |id_at_client| {
            made += 1;
            format!("{id_at_client}~{}", made + 1).into()
        });
        self.core.servers_made = made;
        Ok(used)
    }

    /// Charges the identity of a client for the servers of a request that opens a session, for as long as the
    /// servers are kept.
    ///
    /// # Errors
    /// If the identity already uses too much memory. The servers can be used nevertheless.
    pub(super) fn charge_servers(
        &mut self,
        client: ClientKey,
        servers: &mut ServerUse,
    ) -> Result<(), RpcError> {
        let bytes = servers.held_bytes();
        if bytes == 0 {
            return Ok(());
        }
        let identity = self.core.clients.get(client).map_or(Identity::ANYONE, |state| state.identity);
        let charge = self.core.sessions.charge_kept(identity, bytes, self.core.limits.session_params());
        let error = || RpcError::new(Code::Backpressure, "MCP server limit of this identity reached");
        servers.set_charge(charge.ok_or_else(error)?);
        Ok(())
    }

    /// Returns the client of the MCP server that a worker's message is about. The client may have
    /// disconnected while a session still has the server.
    pub(super) fn owner_of_server(&self, worker: WorkerKey, message: View<'_>) -> Option<ClientKey> {
        let state = self.core.workers.get(worker)?;
        state.servers.get(&server_id(message)?).map(|server| server.client)
    }

    /// Returns the worker whose session uses the server that a client's message is about, and the message
    /// with the worker's id of that server if the id differs. `None`: the message is not about a server of
    /// this client.
    pub(super) fn home_of_server(
        &self,
        client: ClientKey,
        message: View<'_>,
    ) -> Option<(WorkerKey, Option<Vec<u8>>)> {
        // A message that also names a session is handled as a message about that session.
        if !is_about_server(message) || message.session().is_some() {
            return None;
        }
        let (id_at_client, request) = server_and_request(message)?;
        let workers = || {
            let workers = self.core.workers.iter();
            workers.filter_map(|(worker, state)| {
                Some((worker, state.servers.id_at_worker(client, &id_at_client)?))
            })
        };
        // If several workers have sessions with this server, the message goes to the worker whose request it
        // answers or names.
        let asked = self.core.clients.get(client)?.asked.values();
        let asker = request.and_then(|request| {
            let is_it = |asked: &&Asked| {
                asked
                    .server
                    .as_deref()
                    .is_some_and(|server| server.id_at_client == id_at_client && server.request == request)
            };
            asked.filter(is_it).map(|asked| asked.worker).next()
        });
        let (worker, id_at_worker) =
            workers().find(|(worker, _)| asker == Some(*worker)).or_else(|| workers().next())?;
        Some((
            worker,
            (id_at_worker != id_at_client).then(|| with_server_id(message, id_at_worker)).flatten(),
        ))
    }

    /// Refuses a client's message about a server in a shared pool. Messages about the client's own servers
    /// were routed before, so the worker would take this one to be about another client's server.
    pub(super) fn refuse_server(&self, pool: PoolId, message: View<'_>) -> Option<RpcError> {
        let state = self.core.pool_of(pool);
        let refused = state.is_shared() && state.is_acp() && is_about_server(message);
        refused.then(|| RpcError::new(Code::InvalidParams, "not an MCP server of this connection"))
    }

    /// Returns the server, and the MCP request to it, that a request of a worker names. Both have the
    /// client's ids.
    pub(super) fn asked_server(&self, worker: WorkerKey, message: View<'_>) -> Option<Box<AskedServer>> {
        if !is_about_server(message) {
            return None;
        }
        let (id_at_worker, request) = server_and_request(message)?;
        let id_at_client =
            self.core.workers.get(worker)?.servers.get(&id_at_worker)?.id_at_client.to_string();
        Some(Box::new(AskedServer { id_at_client, request: request? }))
    }

    /// Returns a worker's message with the id that the client uses for the server. `None`: the worker uses
    /// the same id.
    pub(super) fn with_client_server_id(
        &self,
        worker: WorkerKey,
        client: ClientKey,
        message: View<'_>,
    ) -> Option<Vec<u8>> {
        let state = self.core.workers.get(worker).filter(|state| state.servers.has_renamed())?;
        let id_at_worker = is_about_server(message).then(|| server_id(message)).flatten()?;
        let server = state.servers.get(&id_at_worker).filter(|server| server.client == client)?;
        (*server.id_at_client != *id_at_worker)
            .then(|| with_server_id(message, &server.id_at_client))
            .flatten()
    }

    /// Returns a request that opens a session, with the worker's ids in place of the client's ids of servers.
    /// `None`: no id differs.
    ///
    /// # Errors
    /// If the request names a server that is not in `servers`.
    pub(super) fn opening_with_servers(
        &self,
        servers: &ServerUse,
        message: View<'_>,
    ) -> Result<Option<Vec<u8>>, RpcError> {
        let Some(params) = message.params().filter(|params| may_declare(params)) else { return Ok(None) };
        let Ok(mut params) = serde_json::from_slice::<Value>(params) else { return Ok(None) };
        if !servers.rename_in(&mut params).map_err(|_| unknown_server())? {
            return Ok(None);
        }
        let Ok(mut line) = serde_json::from_slice::<Value>(message.bytes()) else { return Ok(None) };
        line["params"] = params;
        Ok(Some(line.to_string().into_bytes()))
    }

    /// Returns the client of a session's servers: the one that named them, or, if that has disconnected, the
    /// session's present client.
    pub(super) fn client_of_servers(&self, key: SessionKey) -> Option<ClientKey> {
        let session = self.core.sessions.get(key)?;
        let named = session.servers.client().filter(|client| self.core.clients.get(*client).is_some());
        named.or(session.owner).or_else(|| session.waiting.first().map(|waiting| waiting.client))
    }
}

pub(super) fn is_about_server(message: View<'_>) -> bool {
    [method::MCP_MESSAGE, method::MCP_CONNECT, method::MCP_DISCONNECT]
        .iter()
        .any(|name| message.is_method(name))
}

/// Returns the ids of the client's servers that the params of a request declare.
fn declared_server_ids(params: &[u8]) -> Vec<Box<str>> {
    if !may_declare(params) {
        return Vec::new();
    }
    let Ok(params) = serde_json::from_slice::<Value>(params) else { return Vec::new() };
    let servers = params["mcpServers"].as_array().into_iter().flatten();
    servers
        .filter(|server| server["type"] == "acp")
        .flat_map(|server| ["serverId", "id"].into_iter().filter_map(|key| server.get(key)?.as_str()))
        .map(Box::from)
        .collect()
}

/// Returns `false` if the params certainly declare no server in the client.
fn may_declare(params: &[u8]) -> bool {
    // If the params contain a backslash, the text `acp` may be written with escapes.
    memchr::memmem::find(params, b"\"acp\"").is_some() || memchr::memchr(b'\\', params).is_some()
}

fn server_id(message: View<'_>) -> Option<String> {
    let params = message.params()?;
    let name = KEYS.iter().find_map(|key| member(params, key).ok().flatten())?;
    decoded(params.get(name)?)
}

/// Returns the server that a message names, and its MCP request. `None`: the message names no server, or two.
fn server_and_request(message: View<'_>) -> Option<(String, Option<String>)> {
    let params = message.params()?;
    let found = KEYS.iter().map(|key| member(params, key)).collect::<Result<Vec<_>, _>>().ok()?;
    let mut names = found.into_iter().flatten();
    let name = decoded(params.get(names.next()?)?)?;
    if names.next().is_some() || member(params, CONNECTION).ok()?.is_some() {
        return None;
    }
    let request = member(params, "requestId").ok()?.and_then(|request| params.get(request));
    let request = request.filter(|request| request.len() <= MAX_REQUEST_BYTES);
    let request = request.and_then(|request| serde_json::from_slice::<Value>(request).ok());
    Some((name, request.map(|request| request.to_string())))
}

fn with_server_id(message: View<'_>, name: &str) -> Option<Vec<u8>> {
    let params = message.params()?;
    let place = KEYS.iter().find_map(|key| member(params, key).ok().flatten())?;
    let start = message.envelope().params.range().start;
    let name = Value::from(name).to_string();
    Some(with_range_replaced(message.bytes(), start + place.start..start + place.end, name.as_bytes()))
}
