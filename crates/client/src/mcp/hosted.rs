//! Hosts the MCP servers of all sessions, and handles the agent's messages to them.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use narrows_acp::method::{MCP_CONNECT, MCP_DISCONNECT, MCP_MESSAGE};
use narrows_base::sync::lock;
use narrows_mcp::{CallProgress, Options, Server, ServerFailure, Servers};
use narrows_rpc::{Peer, Request};
use narrows_wire::{Code, Effects, Frame, RpcError};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, RwLock, Semaphore, mpsc, watch};
use uuid::Uuid;

use super::message::{Incoming, Inner, Message, To, failure, invalid, limit, read, unavailable};
use super::{Gate, HostServer, HostedServer, HostedServerKind, ServerConfig, Transport, relay};
use crate::services::RequestBudget;

/// Maximum number of progress messages queued for an agent that reads slowly.
const MAX_QUEUED_PROGRESS: usize = 32;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Maximum number of open requests, to all servers together.
    pub(crate) requests: usize,
    /// Maximum number of open connections (older form of MCP over ACP).
    pub(crate) connections: usize,
    /// Maximum total size in bytes of open requests that belong to no session.
    pub(crate) request_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { requests: 64, connections: 64, request_bytes: RequestBudget::MAX_REQUEST_BYTES }
    }
}

/// The hosted servers of one agent, for all of its sessions. Clones share them.
#[derive(Clone)]
pub(crate) struct Hosted {
    shared: Arc<Shared>,
}

struct Shared {
    limits: Limits,
    requests: Arc<Semaphore>,
    budget: RequestBudget,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// Hosted servers, by the id that the agent knows.
    servers_by_id: HashMap<String, Arc<ServerEntry>>,
    /// Open connections by id (older form of MCP over ACP).
    connections: HashMap<String, Connection>,
    /// Open requests (current form of MCP over ACP), each as server and request id.
    open: HashSet<(String, String)>,
}

struct Connection {
    server: String,
    /// Becomes `true` when the connection ends, so that its open requests fail.
    closed: watch::Sender<bool>,
}

struct ServerEntry {
    name: String,
    kind: Kind,
    /// Becomes `true` when the session ends.
    ended: watch::Receiver<bool>,
}

enum Kind {
    Relayed { servers: SharedServers, gate: Arc<dyn Gate> },
    Host(HostServer),
}

/// The MCP servers of one session. Each request holds a read lock. Closing takes the write lock, and so waits
/// for the requests.
type SharedServers = Arc<RwLock<Option<Servers>>>;

/// The MCP servers that the client hosts for one session. Dropping this ends the servers in the background.
pub(crate) struct Hosting {
    shared: Arc<Shared>,
    ids: Vec<String>,
    servers: SharedServers,
    end: watch::Sender<bool>,
}

impl Hosted {
    pub(crate) fn new(limits: Limits) -> Self {
        let requests = Arc::new(Semaphore::new(limits.requests));
        let budget = RequestBudget::with_request_bytes(limits.request_bytes);
        Self { shared: Arc::new(Shared { limits, requests, budget, table: Mutex::default() }) }
    }

    /// Returns `true` for methods that [`serve`](Self::serve) handles.
    pub(crate) fn takes(method: &str) -> bool {
        matches!(method, MCP_MESSAGE | MCP_CONNECT | MCP_DISCONNECT)
    }

    /// Starts the servers of a session and returns at once. A message to a server waits until the server has
    /// started. Must be called inside a runtime, and before the agent gets the descriptors.
    pub(crate) fn host(&self, hosted: Vec<HostedServer>, options: Options, gate: &Arc<dyn Gate>) -> Hosting {
        let end = watch::Sender::new(false);
        let servers: SharedServers = Arc::default();
        let mut configs = Vec::new();
        let mut servers_by_id = Vec::new();
        for HostedServer { id, kind } in hosted {
            let (name, kind) = match kind {
                HostedServerKind::Host(host) => (super::host_server::NAME.to_owned(), Kind::Host(host)),
                HostedServerKind::Server(config) => {
                    let name = config.name.clone();
                    configs.extend(server(config));
                    (name, Kind::Relayed { servers: servers.clone(), gate: Arc::clone(gate) })
                }
            };
            servers_by_id.push((id, Arc::new(ServerEntry { name, kind, ended: end.subscribe() })));
        }
        let started = Servers::start(configs, options, None);
        // Nothing else holds this new lock, so `try_write` always succeeds.
        if let Ok(mut servers) = servers.try_write() {
            *servers = Some(started);
        }
        let ids = servers_by_id.iter().map(|(id, _)| id.clone()).collect();
        self.shared.table().servers_by_id.extend(servers_by_id);
        Hosting { shared: self.shared.clone(), ids, servers, end }
    }

    /// Answers `mcp/message`, `mcp/connect` and `mcp/disconnect` in a separate task. Sends the server's
    /// progress to the agent through `peer`. `bytes` is the request's share of its session's budget, held
    /// until the answer; `None` uses the budget that all requests without a session share.
    pub(crate) fn serve(&self, request: Request, peer: &Peer, bytes: Option<OwnedSemaphorePermit>) {
        let Request { frame, responder } = request;
        let Ok(permit) = self.shared.requests.clone().try_acquire_owned() else {
            responder.fail(&limit("too many requests to MCP servers are open"));
            return;
        };
        let Some(bytes) = bytes.or_else(|| self.shared.budget.admit(frame.bytes().len())) else {
            responder.fail(&limit("too many bytes of open requests to MCP servers"));
            return;
        };
        let shared = self.shared.clone();
        let peer = peer.with_tag(frame.tag());
        tokio::spawn(async move {
            let _held = (permit, bytes);
            let gave_up = responder.cancelled();
            let answer = tokio::select! {
                biased;
                () = gave_up => Err(cancelled("request cancelled")),
                answer = shared.answer(&frame, &peer) => answer,
            };
            match answer {
                Ok(result) => {
                    responder.room().await;
                    responder.respond(&result);
                }
                Err(error) => responder.fail(&error),
            }
        });
    }
}

impl Shared {
    async fn answer(&self, frame: &Frame, peer: &Peer) -> Result<Box<RawValue>, RpcError> {
        let method = frame.method().unwrap_or_default();
        match read(&method, frame.params())? {
            Incoming::Connect(server) => self.connect(server).await,
            Incoming::Disconnect(id) => self.disconnect(&id),
            Incoming::Message(message) => self.message(message, peer).await,
        }
    }

    async fn connect(&self, server: String) -> Result<Box<RawValue>, RpcError> {
        let server_entry = self.server_entry(&server)?;
        server_entry.until_end(server_entry.ready()).await?;
        let id = Uuid::now_v7().to_string();
        let mut table = self.table();
        if !table.servers_by_id.contains_key(&server) {
            return Err(ended());
        }
        if table.connections.len() >= self.limits.connections {
            return Err(limit("too many connections to MCP servers are open"));
        }
        let connection = Connection { server, closed: watch::Sender::new(false) };
        table.connections.insert(id.clone(), connection);
        drop(table);
        raw(&json!({"connectionId": id}))
    }

    fn disconnect(&self, id: &str) -> Result<Box<RawValue>, RpcError> {
        let connection = self.table().connections.remove(id).ok_or_else(no_connection)?;
        connection.closed.send_replace(true);
        raw(&json!({}))
    }

    async fn message(&self, message: Message, peer: &Peer) -> Result<Box<RawValue>, RpcError> {
        let Message { to, method, params } = message;
        let (server_entry, mut closed, _open) = match &to {
            To::Server { id, request } => {
                let server_entry = self.server_entry(id)?;
                (server_entry, None, Some(Open::new(self, id, request)?))
            }
            To::Connection(id) => {
                let (server, closed) = {
                    let table = self.table();
                    let connection = table.connections.get(id).ok_or_else(no_connection)?;
                    (connection.server.clone(), connection.closed.subscribe())
                };
                (self.server_entry(&server)?, Some(closed), None)
            }
        };
        let token = params.get("_meta").and_then(|meta| meta.get("progressToken")).cloned();
        let (tell, mut news) = mpsc::channel(MAX_QUEUED_PROGRESS);
        let work = server_entry.until_end(server_entry.answer(&method, params, tell));
        let hung_up = async {
            // An error here means that the session has ended too. The end of the session is reported instead.
            let closed = match &mut closed {
                Some(closed) => closed.wait_for(|closed| *closed).await.is_ok(),
                None => false,
            };
            if !closed {
                std::future::pending::<()>().await;
            }
        };
        let inner = tokio::select! {
            biased;
            () = hung_up => Err(cancelled("the connection was closed")),
            inner = work => inner,
            never = forward(&to, token.as_ref(), &mut news, peer) => match never {},
        };
        // Progress that arrived together with the answer is sent before the answer.
        while let (Some(token), Ok(news)) = (&token, news.try_recv()) {
            _ = peer.notify_now(MCP_MESSAGE, &progress(&to, token, news));
        }
        to.answer(inner?)
    }

    fn server_entry(&self, id: &str) -> Result<Arc<ServerEntry>, RpcError> {
        self.table()
            .servers_by_id
            .get(id)
            .cloned()
            .ok_or_else(|| unavailable("unknown MCP server", Effects::None))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl ServerEntry {
    /// Waits for `work`. Returns an error if the session ends before `work` completes.
    async fn until_end<T>(&self, work: impl Future<Output = Result<T, RpcError>>) -> Result<T, RpcError> {
        let mut end = self.ended.clone();
        tokio::select! {
            biased;
            // The session has ended if the sender was dropped.
            _ = end.wait_for(|end| *end) => Err(ended()),
            result = work => result,
        }
    }

    async fn ready(&self) -> Result<(), RpcError> {
        let Kind::Relayed { servers, .. } = &self.kind else { return Ok(()) };
        let servers = servers.read().await;
        relay::server_info(servers.as_ref().ok_or_else(ended)?, &self.name).await.map(|_| ())
    }

    async fn answer(
        &self,
        method: &str,
        params: serde_json::Map<String, Value>,
        tell: mpsc::Sender<CallProgress>,
    ) -> Result<Inner, RpcError> {
        if method.starts_with("notifications/") {
            // A notification that the agent sent as a request gets an empty result.
            return Inner::result(&json!({}));
        }
        match &self.kind {
            Kind::Host(host) => match host.answer(method, params).await {
                Ok(result) => Inner::result(&result),
                Err(error) => Ok(Inner::Error(error)),
            },
            Kind::Relayed { servers, gate } => {
                let servers = servers.read().await;
                let servers = servers.as_ref().ok_or_else(ended)?;
                let tell = |news| _ = tell.try_send(news);
                relay::answer(servers, &self.name, &**gate, method, params, tell).await
            }
        }
    }
}

async fn forward(
    to: &To,
    token: Option<&Value>,
    news: &mut mpsc::Receiver<CallProgress>,
    peer: &Peer,
) -> Infallible {
    while let (Some(token), Some(news)) = (token, news.recv().await) {
        // A failed notification needs no handling: the request ends when the agent is lost.
        _ = peer.notify(MCP_MESSAGE, &progress(to, token, news)).await;
    }
    std::future::pending().await
}

fn progress(to: &To, token: &Value, news: CallProgress) -> Value {
    let mut params = json!({"progressToken": token, "progress": news.progress});
    if let Some(total) = news.total {
        params["total"] = total.into();
    }
    if let Some(message) = news.message {
        params["message"] = message.into();
    }
    to.notification("notifications/progress", &params)
}

/// An open request (current form of MCP over ACP). Its id cannot be used again until the guard is dropped.
struct Open<'a> {
    shared: &'a Shared,
    key: (String, String),
}

impl<'a> Open<'a> {
    fn new(shared: &'a Shared, server: &str, request: &str) -> Result<Self, RpcError> {
        let key = (server.to_owned(), request.to_owned());
        if !shared.table().open.insert(key.clone()) {
            return Err(invalid("another request with this requestId is open"));
        }
        Ok(Self { shared, key })
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.shared.table().open.remove(&self.key);
    }
}

impl Hosting {
    /// Returns the servers that have failed since the last call. No server is returned twice.
    pub(crate) fn failures(&self) -> Vec<ServerFailure> {
        let Ok(servers) = self.servers.try_read() else { return Vec::new() };
        servers.as_ref().map(Servers::failures).unwrap_or_default()
    }

    /// Ends the servers, and waits until all their processes have exited. Open requests are answered first.
    pub(crate) async fn close(mut self) {
        self.leave();
        let servers = self.servers.write().await.take();
        if let Some(servers) = servers {
            servers.close().await;
        }
    }

    /// Removes the session's servers from the table, and ends their connections.
    fn leave(&mut self) {
        let mut table = self.shared.table();
        for id in self.ids.drain(..) {
            table.servers_by_id.remove(&id);
            table.connections.retain(|_, connection| connection.server != id);
        }
        drop(table);
        self.end.send_replace(true);
    }
}

impl Drop for Hosting {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Hosting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosting").field("ids", &self.ids).finish_non_exhaustive()
    }
}

impl fmt::Debug for Hosted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosted").field("limits", &self.shared.limits).finish_non_exhaustive()
    }
}

/// Converts the configuration for `narrows_mcp`. Returns `None` for a transport that `narrows_mcp` does not
/// support.
fn server(config: ServerConfig) -> Option<Server> {
    let name = config.name;
    match config.transport {
        Transport::Stdio { command, args, env } => Some(Server::Stdio { name, command, args, env }),
        Transport::Http { url, headers } => Some(Server::Http { name, url, headers }),
        Transport::Sse { .. } => None,
    }
}

fn ended() -> RpcError {
    unavailable("the MCP server has ended with its session", Effects::Possible)
}

fn cancelled(words: &'static str) -> RpcError {
    RpcError::new(Code::Cancelled, words).effects(Effects::Possible)
}

fn no_connection() -> RpcError {
    invalid("unknown connection")
}

fn raw(value: &Value) -> Result<Box<RawValue>, RpcError> {
    to_raw_value(value).map_err(|error| failure(error.to_string()))
}

#[cfg(test)]
mod tests;
