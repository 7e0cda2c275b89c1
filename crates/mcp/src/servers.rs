//! All servers of one session.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::{Bridge, CallError, Failure, Options, Outcome, Server, Tool};

/// The MCP servers of one session.
#[derive(Debug)]
pub struct Servers {
    names: Vec<String>,
}

impl Servers {
    /// Starts them all and returns at once. Must be called inside a runtime.
    #[must_use]
    pub fn start(servers: Vec<Server>, _options: Options, _bridge: Option<Arc<dyn Bridge>>) -> Self {
        Self { names: servers.iter().map(|server| server.name().to_owned()).collect() }
    }

    /// Waits until every server is ready or has failed, at most for `patience`.
    pub async fn settled(&self, patience: Duration) {
        _ = patience;
    }

    /// The tools of the servers that are ready now: in the order of the servers, then in each server's own order.
    #[must_use]
    pub fn tools(&self) -> Vec<Tool> {
        Vec::new()
    }

    /// What has failed since this was last asked.
    #[must_use]
    pub fn failures(&self) -> Vec<Failure> {
        Vec::new()
    }

    /// Passes on a notification that the ACP client has sent for an open request of a [`Bridge`].
    pub fn notified(&self, server: &str, request: &str, method: &str, params: Value) {
        _ = (server, request, method, params);
    }

    /// Calls a tool. `progress` gets what the server says on the way.
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
        _ = (tool, arguments, progress);
        if self.names.iter().any(|name| name == server) {
            return Err(CallError::Gone("it was not started".to_owned()));
        }
        Err(CallError::NoServer)
    }

    /// Ends all servers and returns when every process of them is gone.
    pub async fn close(self) {
        drop(self);
    }
}
