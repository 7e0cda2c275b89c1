//! MCP servers that live in clients: a worker that many share names them by an id that only its session's client knows.

use narrows_wire::{Code, RpcError, View};
use serde_json::Value;

use super::Pass;
use super::api::{Client, Outlet, Worker};
use super::state::Asker;

impl<O: Outlet> Pass<'_, O> {
    /// Remembers whose the servers are that a session is opened with.
    pub(super) fn enter_servers(
        &mut self,
        worker: Worker,
        client: Client,
        params: &[u8],
    ) -> Result<(), RpcError> {
        let names = declared(params);
        if names.is_empty() {
            return Ok(());
        }
        let Some(state) = self.core.worker(worker) else { return Ok(()) };
        if names.iter().any(|name| state.servers.get(&**name).is_some_and(|owner| *owner != client)) {
            let words =
                "another client of this agent has an MCP server of this id; use ids that nobody else has";
            return Err(RpcError::new(Code::InvalidParams, words));
        }
        state.servers.extend(names.into_iter().map(|name| (name, client)));
        Ok(())
    }

    /// Forgets the servers that a session was or was to be opened with, unless their client has another that uses them.
    pub(super) fn leave_servers(&mut self, worker: Worker, params: &[u8]) {
        for name in declared(params) {
            if !self.is_used(worker, &name)
                && let Some(state) = self.core.worker(worker)
            {
                state.servers.remove(&name);
            }
        }
    }

    fn is_used(&self, worker: Worker, name: &str) -> bool {
        let Some(state) = self.core.workers.get(worker.0 as usize) else { return false };
        let Some(client) = state.servers.get(name) else { return false };
        let names = |params: &[u8]| declared(params).iter().any(|other| **other == *name);
        let mut sessions = state.sessions.iter().filter_map(|key| self.core.sessions.get(*key));
        let mut openings = state.pending.values().filter_map(|pending| match &pending.asker {
            Asker::Client { client: other, .. } if other == client => pending.opening.as_ref(),
            _ => None,
        });
        sessions.any(|session| session.owner == Some(*client) && names(&session.params))
            || openings.any(|opening| names(View::parse(&opening.line).params().unwrap_or_default()))
    }

    /// The client whose server a worker means.
    pub(super) fn owner_of_server(&self, worker: Worker, message: View<'_>) -> Option<Client> {
        self.core.workers.get(worker.0 as usize)?.servers.get(&*meant(message)?).copied()
    }

    /// The worker that a client's server speaks to.
    pub(super) fn home_of_server(&self, client: Client, message: View<'_>) -> Option<Worker> {
        let name = meant(message)?;
        let mut workers = self.core.workers.iter();
        workers
            .find(|(_, state)| state.servers.get(&*name) == Some(&client))
            .map(|(key, _)| Worker(key as u32))
    }
}

/// The ids of the servers in these params that live in the client.
fn declared(params: &[u8]) -> Vec<Box<str>> {
    if memchr::memmem::find(params, b"\"acp\"").is_none() {
        return Vec::new();
    }
    let Ok(params) = serde_json::from_slice::<Value>(params) else { return Vec::new() };
    let servers = params["mcpServers"].as_array().into_iter().flatten();
    servers
        .filter(|server| server["type"] == "acp")
        .filter_map(|server| server.get("serverId").or_else(|| server.get("id"))?.as_str())
        .map(Box::from)
        .collect()
}

/// The server that a message means: by its id now, by that of its connection in an older form.
fn meant(message: View<'_>) -> Option<String> {
    let params: Value = serde_json::from_slice(message.params()?).ok()?;
    let name = ["serverId", "acpId", "connectionId"].iter().find_map(|key| params.get(key))?;
    Some(name.as_str()?.to_owned())
}
