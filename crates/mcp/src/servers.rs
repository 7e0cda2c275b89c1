//! All servers of one session.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use narrows_base::sync::lock;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::entry::Entry;
use crate::{About, Answered, Bridge, CallError, Failure, News, Options, Outcome, Server, Tool, call, relay};

/// The MCP servers of one session. Dropping them ends them, in the background.
#[derive(Debug)]
pub struct Servers {
    entries: Vec<Arc<Entry>>,
    failures: Arc<Mutex<Vec<Failure>>>,
    options: Arc<Options>,
    tasks: Vec<JoinHandle<()>>,
    /// Dropping it stops the tasks too.
    stop: watch::Sender<bool>,
}

impl Servers {
    /// Starts them all and returns at once. Must be called inside a runtime.
    ///
    /// Of servers with the same name only the first is started: a call could not tell them apart.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "the servers keep it")]
    pub fn start(servers: Vec<Server>, options: Options, bridge: Option<Arc<dyn Bridge>>) -> Self {
        let (options, failures, stop) = (Arc::new(options), Arc::default(), watch::Sender::new(false));
        let mut names = HashSet::new();
        let mut entries = Vec::new();
        let mut tasks = Vec::new();
        for server in servers {
            let new = names.insert(server.name().to_owned());
            let entry = Arc::new(Entry::new(server, Arc::clone(&failures)));
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

    /// Waits until every server is ready or has failed, at most for `patience`.
    pub async fn settled(&self, patience: Duration) {
        let all = async {
            for entry in &self.entries {
                entry.settled().await;
            }
        };
        _ = timeout(patience, all).await;
    }

    /// The tools of the servers that are ready now: in the order of the servers, then in each server's own order.
    #[must_use]
    pub fn tools(&self) -> Vec<Tool> {
        self.entries.iter().flat_map(|entry| entry.tools().to_vec()).collect()
    }

    /// What has failed since this was last asked. Each server fails at most once.
    #[must_use]
    pub fn failures(&self) -> Vec<Failure> {
        std::mem::take(&mut *lock(&self.failures))
    }

    /// Passes on a notification `mcp/message` of the ACP client: `id` is the server's id there, `request` that of the
    /// request it belongs to. What belongs to no open request is dropped.
    pub fn notified(&self, id: &str, request: &str, method: &str, params: &Value) {
        for entry in &self.entries {
            if let Server::Acp { id: known, .. } = &entry.server
                && known == id
                && let Some(desk) = entry.desk()
            {
                desk.notified(request, method, params);
            }
        }
    }

    /// Returns `true` if the ACP client that has this server decides about each call of it itself.
    #[must_use]
    pub fn is_authorized_by_client(&self, server: &str) -> bool {
        let entry = self.entry(server);
        entry.is_ok_and(|entry| matches!(entry.server, Server::Acp { authorizes: true, .. }))
    }

    /// Calls a tool. `progress` gets what the server says on the way, a line at a time. A server that is still
    /// starting is waited for.
    ///
    /// Dropping the future cancels the call at the server.
    ///
    /// # Errors
    /// When there is no outcome. A tool that ran and failed has one.
    pub async fn call(
        &self,
        server: &str,
        tool: &str,
        arguments: Map<String, Value>,
        progress: impl FnMut(String) + Send,
    ) -> Result<Outcome, CallError> {
        call::call(self.entry(server)?, tool, arguments, &self.options, progress).await
    }

    /// Passes on a request of somebody else, whatever its method, and returns what the server answers without a change.
    /// Of the request's `_meta` only that is passed on which does not concern the connection it came over. For the rest
    /// it is as with [`call`](Self::call).
    ///
    /// # Errors
    /// When there is no answer. An error of the server's is one.
    pub async fn request(
        &self,
        server: &str,
        method: &str,
        params: Map<String, Value>,
        news: impl FnMut(News) + Send,
    ) -> Result<Answered, CallError> {
        relay::request(self.entry(server)?, method, params, &self.options, news).await
    }

    /// What a server says about itself. One that is still starting is waited for.
    ///
    /// # Errors
    /// When it is gone, or there is none of this name.
    pub async fn about(&self, server: &str) -> Result<About, CallError> {
        relay::about(self.entry(server)?).await
    }

    fn entry(&self, server: &str) -> Result<&Entry, CallError> {
        let entry = self.entries.iter().find(|entry| entry.server.name() == server);
        entry.map(|entry| &**entry).ok_or(CallError::NoServer)
    }

    /// Ends all servers at once and returns when every process of them is gone.
    pub async fn close(self) {
        self.stop.send_replace(true);
        for task in self.tasks {
            _ = task.await;
        }
    }
}
