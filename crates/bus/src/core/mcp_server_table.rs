//! The MCP servers of clients that a worker knows, by the worker's id and by the client's own id.
//!
//! The table knows a server as long as a session, or a request that opens one, holds a [`ServerUse`]. An
//! unused server is not found, and is removed when the table grows. Each operation therefore costs the same,
//! however many servers there are.

use std::collections::HashMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde_json::Value;

use super::memory::Charge;
use super::table::ClientKey;

#[derive(Debug)]
pub(super) struct Server {
    pub(super) client: ClientKey,
    pub(super) id_at_client: Box<str>,
    pub(super) id_at_worker: Box<str>,
}

/// The servers named by a session or by a request that opens one. While this value exists, the ids of the
/// servers are given to no other server.
#[derive(Debug, Default)]
pub(super) struct ServerUse {
    servers: Vec<Arc<Server>>,
    charge: Option<Charge>,
}

/// Estimated bytes that the tables use for one server, without its ids.
const SERVER_BYTES: usize = 384;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnknownServer;

impl ServerUse {
    /// Returns the client in which the servers run. The client may have disconnected.
    pub(super) fn client(&self) -> Option<ClientKey> {
        self.servers.first().map(|server| server.client)
    }

    /// Returns `true` if one of the servers runs in this client.
    pub(super) fn has_of(&self, client: ClientKey) -> bool {
        self.servers.iter().any(|server| server.client == client)
    }

    /// Adds the servers of the session of which this session is a fork.
    pub(super) fn extend(&mut self, other: &Self) {
        self.servers.extend(other.servers.iter().map(Arc::clone));
    }

    /// Returns the bytes held for the servers: each id is stored twice in the worker's tables, and once in
    /// this value.
    pub(super) fn held_bytes(&self) -> usize {
        let of = |server: &Arc<Server>| {
            SERVER_BYTES + 2 * server.id_at_client.len() + 3 * server.id_at_worker.len()
        };
        self.servers.iter().map(of).sum()
    }

    pub(super) fn set_charge(&mut self, charge: Charge) {
        self.charge = Some(charge);
    }

    /// Replaces the client's ids of servers by the worker's ids, in the params of a request that opens a
    /// session. A client's own id could be the worker's id of another client's server. Returns `true` if any
    /// id differs.
    pub(super) fn rename_in(&self, params: &mut Value) -> Result<bool, UnknownServer> {
        let mut changed = false;
        let servers = params.get_mut("mcpServers").and_then(Value::as_array_mut);
        for server in servers.into_iter().flatten().filter(|server| server["type"] == "acp") {
            // An agent may read the id of a server from either key, so both are replaced.
            for key in ["serverId", "id"] {
                let Some(id_at_client) = server.get(key) else { continue };
                let id_at_client = id_at_client.as_str().ok_or(UnknownServer)?;
                let known = self
                    .servers
                    .iter()
                    .find(|known| *known.id_at_client == *id_at_client)
                    .ok_or(UnknownServer)?;
                if known.id_at_worker != known.id_at_client {
                    server[key] = Value::from(&*known.id_at_worker);
                    changed = true;
                }
            }
        }
        Ok(changed)
    }
}

#[derive(Debug, Default)]
pub(super) struct ServerTable {
    // Clients choose the ids, so the hashes of this map have a secret key.
    by_id_at_worker: HashMap<Box<str>, Arc<Server>>,
    /// The ids that the worker uses, per client and by the ids that the client uses.
    worker_ids: FxHashMap<ClientKey, HashMap<Box<str>, Box<str>>>,
    /// `true` once the worker uses another id for some server than its client.
    has_renamed: bool,
    /// The number of servers at which unused ones are removed next.
    sweep_at: usize,
}

/// Smallest number of servers at which unused ones are searched for and removed.
const MIN_SWEEP: usize = 64;

impl ServerTable {
    /// Adds a client's servers with these ids. For an id that is already in use, `rename` returns another
    /// one.
    pub(super) fn enter(
        &mut self,
        client: ClientKey,
        ids: Vec<Box<str>>,
        mut rename: impl FnMut(&str) -> Box<str>,
    ) -> ServerUse {
        let mut used = Vec::with_capacity(ids.len());
        for id_at_client in ids {
            if let Some(known) = self.find(client, &id_at_client) {
                used.push(Arc::clone(known));
                continue;
            }
            if self.by_id_at_worker.len() >= self.sweep_at.max(MIN_SWEEP) {
                self.sweep();
            }
            let mut id_at_worker = id_at_client.clone();
            while self.get(&id_at_worker).is_some() {
                id_at_worker = rename(&id_at_client);
            }
            self.has_renamed |= id_at_worker != id_at_client;
            let server = Arc::new(Server {
                client,
                id_at_client: id_at_client.clone(),
                id_at_worker: id_at_worker.clone(),
            });
            used.push(Arc::clone(&server));
            self.worker_ids.entry(client).or_default().insert(id_at_client, id_at_worker.clone());
            self.by_id_at_worker.insert(id_at_worker, server);
        }
        ServerUse { servers: used, charge: None }
    }

    pub(super) fn get(&self, id_at_worker: &str) -> Option<&Server> {
        self.by_id_at_worker.get(id_at_worker).filter(|server| is_used(server)).map(|server| &**server)
    }

    pub(super) fn id_at_worker(&self, client: ClientKey, id_at_client: &str) -> Option<&str> {
        self.find(client, id_at_client).map(|server| &*server.id_at_worker)
    }

    /// Returns `true` if the worker uses or has used another id for some server than its client.
    pub(super) fn has_renamed(&self) -> bool {
        self.has_renamed
    }

    /// Forgets the servers of a disconnected client. Ids that a session still holds stay reserved, because
    /// the agent continues to use them.
    pub(super) fn forget(&mut self, client: ClientKey) {
        for id_at_worker in
            self.worker_ids.remove(&client).into_iter().flatten().map(|(_, id_at_worker)| id_at_worker)
        {
            // If this client no longer uses an id, the id may already belong to another client.
            if self
                .by_id_at_worker
                .get(&id_at_worker)
                .is_some_and(|server| server.client == client && !is_used(server))
            {
                self.by_id_at_worker.remove(&id_at_worker);
            }
        }
    }

    fn find(&self, client: ClientKey, id_at_client: &str) -> Option<&Arc<Server>> {
        let server = self.by_id_at_worker.get(self.worker_ids.get(&client)?.get(id_at_client)?)?;
        (is_used(server) && server.client == client && *server.id_at_client == *id_at_client)
            .then_some(server)
    }

    fn sweep(&mut self) {
        self.by_id_at_worker.retain(|_, server| is_used(server));
        let by_id_at_worker = &self.by_id_at_worker;
        self.worker_ids.retain(|client, ids| {
            let is_own = |id_at_client: &str, id_at_worker: &str| {
                by_id_at_worker
                    .get(id_at_worker)
                    .is_some_and(|server| server.client == *client && *server.id_at_client == *id_at_client)
            };
            ids.retain(|id_at_client, id_at_worker| is_own(id_at_client, id_at_worker));
            !ids.is_empty()
        });
        self.sweep_at = self.by_id_at_worker.len() * 2;
    }
}

/// Returns `true` if anything but the table itself holds a reference to a server.
fn is_used(server: &Arc<Server>) -> bool {
    Arc::strong_count(server) > 1
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn enter(table: &mut ServerTable, client: u64, id_at_client: &str) -> ServerUse {
        let mut count = 0;
        let rename = |id_at_client: &str| {
            count += 1;
            format!("{id_at_client}~{count}").into()
        };
        table.enter(ClientKey::numbered(client), vec![id_at_client.into()], rename)
    }

    fn id_at_worker(table: &ServerTable, client: u64, id_at_client: &str) -> Option<String> {
        table.id_at_worker(ClientKey::numbered(client), id_at_client).map(str::to_owned)
    }

    #[test]
    fn equal_ids_of_two_clients_are_two_servers() {
        let mut table = ServerTable::default();
        let _first = enter(&mut table, 1, "files");
        assert!(!table.has_renamed());
        let _second = enter(&mut table, 2, "files");
        assert!(table.has_renamed());
        assert_eq!(id_at_worker(&table, 1, "files").as_deref(), Some("files"));
        assert_eq!(id_at_worker(&table, 2, "files").as_deref(), Some("files~1"));
        assert_eq!(table.get("files~1").map(|server| server.client), Some(ClientKey::numbered(2)));
    }

    #[test]
    fn a_server_is_known_until_its_last_use_ends() {
        let mut table = ServerTable::default();
        let first = enter(&mut table, 1, "files");
        let second = enter(&mut table, 1, "files");
        drop(first);
        assert!(table.get("files").is_some());
        drop(second);
        assert!(table.get("files").is_none());
        assert_eq!(id_at_worker(&table, 1, "files"), None);
        // The id is free, also for another client. The second client's server stays when the first client
        // disconnects.
        let third = enter(&mut table, 2, "files");
        table.forget(ClientKey::numbered(1));
        assert_eq!(id_at_worker(&table, 2, "files").as_deref(), Some("files"));
        // While a session holds the ids of a disconnected client, no other server gets them.
        table.forget(ClientKey::numbered(2));
        assert_eq!(id_at_worker(&table, 2, "files"), None);
        assert!(table.get("files").is_some());
        let fourth = enter(&mut table, 3, "files");
        assert_eq!(id_at_worker(&table, 3, "files").as_deref(), Some("files~1"));
        drop(third);
        assert!(table.get("files").is_none());
        drop(fourth);
        let _fifth = enter(&mut table, 3, "files");
        assert_eq!(id_at_worker(&table, 3, "files").as_deref(), Some("files"));
    }

    #[test]
    fn a_session_has_the_ids_of_its_own_servers_and_no_others() {
        let mut table = ServerTable::default();
        let _first = enter(&mut table, 1, "files");
        let second = enter(&mut table, 2, "files");
        let mut params =
            json!({"mcpServers": [{"type": "acp", "serverId": "files", "id": "files"}, {"name": "x"}]});
        assert_eq!(second.rename_in(&mut params), Ok(true));
        assert_eq!(
            params,
            json!({"mcpServers": [{"type": "acp", "serverId": "files~1", "id": "files~1"}, {"name": "x"}]})
        );
        for unknown in
            [json!({"type": "acp", "id": "other"}), json!({"type": "acp", "serverId": "files", "id": 1})]
        {
            assert_eq!(second.rename_in(&mut json!({"mcpServers": [unknown]})), Err(UnknownServer));
        }
        assert_eq!(ServerUse::default().rename_in(&mut json!({})), Ok(false));
    }

    #[test]
    fn unused_servers_are_removed_when_the_table_grows() {
        let mut table = ServerTable::default();
        let _kept = enter(&mut table, 1, "kept");
        for number in 0..10_000 {
            drop(enter(&mut table, number % 7, &number.to_string()));
        }
        assert!(table.by_id_at_worker.len() <= 2 * MIN_SWEEP, "{}", table.by_id_at_worker.len());
        assert!(table.worker_ids.values().map(HashMap::len).sum::<usize>() <= 2 * MIN_SWEEP);
        assert!(table.get("kept").is_some());
    }
}
