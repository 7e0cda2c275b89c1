//! One MCP server of a session: its task, and its state for callers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use narrows_base::sync::lock;
use rmcp::{Peer, RoleClient};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::acp_transport::{AcpTransport, PendingRequests};
use crate::bounded_transport::ServerEvents;
use crate::connection::{
    Connection, StartError, connect, connect_directly, is_disconnect, is_handshake_refusal, process_spec,
};
use crate::process_slot::ProcessSlot;
use crate::{Bridge, CallError, Options, Server, ServerFailure, Tool, http};

/// Minimum time between two requests for the list of tools. A server may report changes all the time.
const LIST_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(crate) enum ServerState {
    Starting,
    Ready { peer: Peer<RoleClient>, tools: Arc<[Tool]> },
    Ended(String),
}

#[derive(Debug)]
pub(crate) struct ServerEntry {
    pub(crate) server: Server,
    state: watch::Sender<ServerState>,
    pending: Mutex<Option<PendingRequests>>,
    failures: Arc<Mutex<Vec<ServerFailure>>>,
}

impl ServerEntry {
    pub(crate) fn new(server: Server, failures: Arc<Mutex<Vec<ServerFailure>>>) -> Self {
        Self { server, state: watch::Sender::new(ServerState::Starting), pending: Mutex::default(), failures }
    }

    pub(crate) fn tools(&self) -> Arc<[Tool]> {
        match &*self.state.borrow() {
            ServerState::Ready { tools, .. } => tools.clone(),
            _ => Arc::default(),
        }
    }

    pub(crate) fn pending(&self) -> Option<PendingRequests> {
        lock(&self.pending).clone()
    }

    /// Waits until the server is ready or has ended.
    pub(crate) async fn wait_until_settled(&self) {
        // Waiting cannot fail, because `self` holds the sender.
        _ = self.state.subscribe().wait_for(|state| !matches!(state, ServerState::Starting)).await;
    }

    /// Returns the peer to call, once the server is ready.
    pub(crate) async fn peer(&self) -> Result<Peer<RoleClient>, CallError> {
        self.wait_until_settled().await;
        match &*self.state.borrow() {
            ServerState::Ready { peer, .. } => Ok(peer.clone()),
            ServerState::Ended(reason) => Err(CallError::NotRunning(reason.clone())),
            ServerState::Starting => Err(CallError::NotRunning("the server is starting".to_owned())),
        }
    }

    /// Returns the reason why the server has ended, if the reason becomes known within `limit`.
    pub(crate) async fn exit_reason(&self, limit: Duration) -> Option<String> {
        let mut state = self.state.subscribe();
        let state = timeout(limit, state.wait_for(|state| matches!(state, ServerState::Ended(_))))
            .await
            .ok()?
            .ok()?;
        match &*state {
            ServerState::Ended(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    pub(crate) fn fail(&self, reason: &str) {
        let reason = reason.to_owned();
        tracing::warn!(server = ?self.server.name(), reason, "MCP server lost");
        let failure = ServerFailure { server: self.server.name().to_owned(), reason: reason.clone() };
        lock(&self.failures).push(failure);
        self.state.send_replace(ServerState::Ended(reason));
    }

    /// Starts the server and keeps its list of tools up to date. Ends the server when `stop` is set or its
    /// sender is dropped.
    pub(crate) async fn run(
        self: Arc<Self>,
        options: Arc<Options>,
        bridge: Option<Arc<dyn Bridge>>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut slot = ProcessSlot::default();
        let deadline = Instant::now() + options.start_timeout;
        let started = tokio::select! {
            () = wait_for_stop(&mut stop) => None,
            started = timeout_at(deadline, self.start(&options, bridge, &mut slot)) => Some(started),
        };
        let connection = match started {
            None => None,
            Some(Ok(Ok(connection))) => Some(connection),
            Some(failed) => {
                let (reason, disconnected) = match failed {
                    Ok(Err(error)) => (error.to_string(), is_disconnect(&error)),
                    _ => (format!("it was not ready within {:?}", options.start_timeout), false),
                };
                self.fail(&slot.explain(&reason, disconnected).await);
                None
            }
        };
        if let Some(connection) = connection {
            tokio::select! {
                () = wait_for_stop(&mut stop) => {}
                () = self.refresh_tools(&connection, &options) => {
                    self.fail(&slot.explain("the server closed the connection", true).await);
                }
            }
            // The process sees the end of its input at once, so both can be closed at the same time.
            tokio::join!(connection.close(), slot.stop(options.ladder));
        } else {
            slot.stop(options.ladder).await;
        }
        self.state.send_if_modified(|state| {
            let open = !matches!(state, ServerState::Ended(_));
            if open {
                *state = ServerState::Ended("it was ended with its session".to_owned());
            }
            open
        });
    }

    /// Connects to the server and lists its tools. The started process stays in `slot`, even after an error.
    async fn start(
        &self,
        options: &Options,
        bridge: Option<Arc<dyn Bridge>>,
        slot: &mut ProcessSlot,
    ) -> Result<Connection, StartError> {
        let mut connection = match &self.server {
            Server::Stdio { command, args, env, .. } => {
                let spec = process_spec(options, command, args, env);
                let events = Arc::new(ServerEvents::default());
                let pipe = slot
                    .start(
                        spec.clone(),
                        options.ladder,
                        events.verbatim.clone(),
                        options.confinement.as_ref(),
                    )
                    .await?;
                match connect(options, pipe, events, false).await {
                    Err(error) if is_handshake_refusal(&error) => {
                        let events = Arc::new(ServerEvents::default());
                        let pipe = slot
                            .start(
                                spec,
                                options.ladder,
                                events.verbatim.clone(),
                                options.confinement.as_ref(),
                            )
                            .await?;
                        connect(options, pipe, events, true).await.map_err(|_| error)?
                    }
                    result => result?,
                }
            }
            Server::Http { url, headers, .. } => {
                let transport = |events: &ServerEvents| {
                    let verbatim = events.verbatim.clone();
                    http::transport(url, headers, &options.env, options.start_timeout, verbatim)
                };
                let events = Arc::new(ServerEvents::default());
                match connect(options, transport(&events)?, events, false).await {
                    Err(error) if is_handshake_refusal(&error) => {
                        let events = Arc::new(ServerEvents::default());
                        connect(options, transport(&events)?, events, true).await.map_err(|_| error)?
                    }
                    result => result?,
                }
            }
            Server::Acp { id, .. } => {
                let Some(bridge) = bridge else { return Err(StartError::NoBridge) };
                let transport = AcpTransport::new(bridge, id.clone());
                *lock(&self.pending) = Some(transport.pending());
                connect_directly(options, transport)
            }
        };
        connection.subscribe_to_changes().await;
        let tools = connection.list(&self.server, options).await?;
        self.set_ready(&connection, tools);
        Ok(connection)
    }

    fn set_ready(&self, connection: &Connection, tools: Vec<Tool>) {
        self.state.send_replace(ServerState::Ready { peer: connection.peer.clone(), tools: tools.into() });
    }

    async fn refresh_tools(&self, connection: &Connection, options: &Options) {
        let mut next = Instant::now() + LIST_INTERVAL;
        let changes = async {
            loop {
                connection.events.changed.notified().await;
                sleep_until(next).await;
                next = Instant::now() + LIST_INTERVAL;
                match timeout(options.start_timeout, connection.list(&self.server, options)).await {
                    Ok(Ok(tools)) => self.set_ready(connection, tools),
                    Ok(Err(error)) => {
                        tracing::warn!(server = ?self.server.name(), %error, "tool list not refreshed");
                    }
                    Err(_) => {
                        tracing::warn!(server = ?self.server.name(), "tool list not refreshed");
                    }
                }
            }
        };
        tokio::select! {
            () = connection.events.closed() => {}
            () = changes => {}
        }
    }
}

async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    _ = stop.wait_for(|stop| *stop).await;
}
