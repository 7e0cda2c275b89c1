//! All servers of one session.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use narrows_base::sync::lock;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::server_entry::ServerEntry;
use crate::{
    Bridge, CallError, CallOutcome, CallProgress, Options, RawAnswer, Server, ServerFailure, ServerInfo,
    Tool, call, relay,
};

/// The MCP servers of one session. Dropping this ends them in the background.
#[derive(Debug)]
pub struct Servers {
    entries: Vec<Arc<ServerEntry>>,
    failures: Arc<Mutex<Vec<ServerFailure>>>,
    options: Arc<Options>,
    tasks: Vec<JoinHandle<()>>,
    /// Signal to stop the servers' tasks. Dropping the sender stops the tasks too.
    stop: watch::Sender<bool>,
}

impl Servers {
    /// Starts all servers and returns at once. Must be called inside a runtime.
    ///
    /// If several servers have the same name, only the first is started: calls could not distinguish them.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "the servers keep it")]
    pub fn start(servers: Vec<Server>, options: Options, bridge: Option<Arc<dyn Bridge>>) -> Self {
        let (options, failures, stop) = (Arc::new(options), Arc::default(), watch::Sender::new(false));
        let mut names = HashSet::new();
        let mut entries = Vec::new();
        let mut tasks = Vec::new();
        for server in servers {
            let new = names.insert(server.name().to_owned());
            let entry = Arc::new(ServerEntry::new(server, Arc::clone(&failures)));
            if new {
                let run = entry.clone().run(options.clone(), bridge.clone(), stop.subscribe());
                tasks.push(tokio::spawn(run));
            } else {
                entry.fail("the session has another server of this name");
            }
            entries.push(entry);
        }
        Self { entries, failures, options, tasks, stop }
    }

    /// Waits until every server is ready or has failed, at most for `limit`.
    pub async fn wait_until_settled(&self, limit: Duration) {
        let all = async {
            for entry in &self.entries {
                entry.wait_until_settled().await;
            }
        };
        _ = timeout(limit, all).await;
    }

    /// Returns the tools of the servers that are ready, in the order of the servers. Tools of one server keep
    /// that server's order.
    #[must_use]
    pub fn tools(&self) -> Vec<Tool> {
        self.entries.iter().flat_map(|entry| entry.tools().to_vec()).collect()
    }

    /// Returns the failures since the last call. Each server fails at most once.
    #[must_use]
    pub fn failures(&self) -> Vec<ServerFailure> {
        std::mem::take(&mut *lock(&self.failures))
    }

    /// Forwards a notification `mcp/message` of the ACP client. `id` is the server's id at the client,
    /// `request` the id of the request that the notification belongs to. Ignores notifications of unknown
    /// requests.
    pub fn handle_notification(&self, id: &str, request: &str, method: &str, params: &Value) {
        for entry in &self.entries {
            if let Server::Acp { id: known, .. } = &entry.server
                && known == id
                && let Some(pending) = entry.pending()
            {
                pending.handle_notification(request, method, params);
            }
        }
    }

    /// Returns `true` if the server is provided by the ACP client, and that client authorizes each call
    /// itself.
    #[must_use]
    pub fn is_authorized_by_client(&self, server: &str) -> bool {
        let entry = self.entry(server);
        entry.is_ok_and(|entry| matches!(entry.server, Server::Acp { authorizes: true, .. }))
    }

    /// Calls a tool. Waits for a server that is still starting. `progress` is called with each progress line
    /// of the server.
    ///
    /// Dropping the future cancels the call at the server.
    ///
    /// # Errors
    /// Returns an error if the call has no outcome. A tool that ran and failed has an outcome.
    pub async fn call(
        &self,
        server: &str,
        tool: &str,
        arguments: Map<String, Value>,
        progress: impl FnMut(String) + Send,
    ) -> Result<CallOutcome, CallError> {
        call::call(self.entry(server)?, tool, arguments, &self.options, progress).await
    }

    /// Forwards a request of another client with any method, and returns the server's answer unchanged.
    /// Removes `_meta` members about the connection to that client. Otherwise like [`call`](Self::call).
    ///
    /// # Errors
    /// Returns an error if there is no answer. An error response of the server is an answer.
    pub async fn request(
        &self,
        server: &str,
        method: &str,
        params: Map<String, Value>,
        progress: impl FnMut(CallProgress) + Send,
    ) -> Result<RawAnswer, CallError> {
        relay::request(self.entry(server)?, method, params, &self.options, progress).await
    }

    /// Returns a server's description of itself. Waits for a server that is still starting.
    ///
    /// # Errors
    /// Returns an error if the server has ended or is unknown.
    pub async fn server_info(&self, server: &str) -> Result<ServerInfo, CallError> {
        relay::server_info(self.entry(server)?).await
    }

    fn entry(&self, server: &str) -> Result<&ServerEntry, CallError> {
        let entry = self.entries.iter().find(|entry| entry.server.name() == server);
        entry.map(|entry| &**entry).ok_or(CallError::NoServer)
    }

    /// Ends all servers at once and returns when all their processes have exited.
    pub async fn close(self) {
        self.stop.send_replace(true);
        for task in self.tasks {
            _ = task.await;
        }
    }
}
