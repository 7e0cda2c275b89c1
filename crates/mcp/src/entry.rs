//! One server of a session, as its task sees it and as callers do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use narrows_base::sync::lock;
use rmcp::{Peer, RoleClient};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::connection::{Connection, StartError, connect, connect_directly, hung_up, refused, spec};
use crate::courier::{Courier, Desk};
use crate::guard::Hub;
use crate::slot::Slot;
use crate::{Bridge, CallError, Failure, Options, Server, Tool, http};

/// The shortest time between two listings: a server that changes all the time is not asked all the time.
const LIST_EVERY: Duration = Duration::from_secs(1);

/// What callers can know of a server.
#[derive(Debug, Clone)]
pub(crate) enum State {
    Starting,
    Ready { peer: Peer<RoleClient>, tools: Arc<[Tool]> },
    Gone(String),
}

/// A server and its state.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) server: Server,
    state: watch::Sender<State>,
    desk: Mutex<Option<Desk>>,
    failures: Arc<Mutex<Vec<Failure>>>,
}

impl Entry {
    pub(crate) fn new(server: Server, failures: Arc<Mutex<Vec<Failure>>>) -> Self {
        Self { server, state: watch::Sender::new(State::Starting), desk: Mutex::default(), failures }
    }

    pub(crate) fn tools(&self) -> Arc<[Tool]> {
        match &*self.state.borrow() {
            State::Ready { tools, .. } => tools.clone(),
            _ => Arc::default(),
        }
    }

    /// Where notifications for a server behind a bridge go.
    pub(crate) fn desk(&self) -> Option<Desk> {
        lock(&self.desk).clone()
    }

    /// Waits until it is ready or gone.
    pub(crate) async fn settled(&self) {
        // It cannot fail: we have the sender.
        _ = self.state.subscribe().wait_for(|state| !matches!(state, State::Starting)).await;
    }

    /// Who to call, once it is ready.
    pub(crate) async fn peer(&self) -> Result<Peer<RoleClient>, CallError> {
        self.settled().await;
        match &*self.state.borrow() {
            State::Ready { peer, .. } => Ok(peer.clone()),
            State::Gone(reason) => Err(CallError::Gone(reason.clone())),
            State::Starting => Err(CallError::Gone("it is starting".to_owned())),
        }
    }

    /// Why it is gone, if that becomes known within `patience`.
    pub(crate) async fn gone(&self, patience: Duration) -> Option<String> {
        let mut state = self.state.subscribe();
        let state =
            timeout(patience, state.wait_for(|state| matches!(state, State::Gone(_)))).await.ok()?.ok()?;
        match &*state {
            State::Gone(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    /// It is gone, and everybody is told.
    pub(crate) fn fail(&self, reason: &str) {
        let reason = reason.to_owned();
        tracing::warn!(server = ?self.server.name(), reason, "an MCP server is gone");
        let failure = Failure { server: self.server.name().to_owned(), reason: reason.clone() };
        lock(&self.failures).push(failure);
        self.state.send_replace(State::Gone(reason));
    }

    /// Starts the server, looks after it, and ends it when `stop` says so or its sender is gone.
    pub(crate) async fn run(
        self: Arc<Self>,
        options: Arc<Options>,
        bridge: Option<Arc<dyn Bridge>>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut slot = Slot::default();
        let deadline = Instant::now() + options.start_limit;
        let started = tokio::select! {
            () = stopped(&mut stop) => None,
            started = timeout_at(deadline, self.start(&options, bridge, &mut slot)) => Some(started),
        };
        let connection = match started {
            None => None,
            Some(Ok(Ok(connection))) => Some(connection),
            Some(failed) => {
                let (reason, hung_up) = match failed {
                    Ok(Err(error)) => (error.to_string(), hung_up(&error)),
                    _ => (format!("it was not ready within {:?}", options.start_limit), false),
                };
                self.fail(&slot.explain(&reason, hung_up).await);
                None
            }
        };
        if let Some(connection) = connection {
            tokio::select! {
                () = stopped(&mut stop) => {}
                () = self.look_after(&connection, &options) => {
                    self.fail(&slot.explain("it hung up", true).await);
                }
            }
            // The process learns of the end from its own input, so there is no need to wait for rmcp first.
            tokio::join!(connection.leave(), slot.stop(options.ladder));
        } else {
            slot.stop(options.ladder).await;
        }
        self.state.send_if_modified(|state| {
            let open = !matches!(state, State::Gone(_));
            if open {
                *state = State::Gone("it was ended with its session".to_owned());
            }
            open
        });
    }

    /// Connects and lists. A process that was started is in `slot`, whatever becomes of it.
    async fn start(
        &self,
        options: &Options,
        bridge: Option<Arc<dyn Bridge>>,
        slot: &mut Slot,
    ) -> Result<Connection, StartError> {
        let mut connection = match &self.server {
            Server::Stdio { command, args, env, .. } => {
                let spec = spec(options, command, args, env);
                let hub = Arc::new(Hub::default());
                let pipe = slot
                    .start(spec.clone(), options.ladder, hub.verbatim.clone(), options.confinement.as_ref())
                    .await?;
                match connect(options, pipe, hub, false).await {
                    Err(error) if refused(&error) => {
                        let hub = Arc::new(Hub::default());
                        let pipe = slot
                            .start(spec, options.ladder, hub.verbatim.clone(), options.confinement.as_ref())
                            .await?;
                        connect(options, pipe, hub, true).await.map_err(|_| error)?
                    }
                    result => result?,
                }
            }
            Server::Http { url, headers, .. } => {
                let transport = |hub: &Hub| {
                    let verbatim = hub.verbatim.clone();
                    http::transport(url, headers, &options.env, options.start_limit, verbatim)
                };
                let hub = Arc::new(Hub::default());
                match connect(options, transport(&hub)?, hub, false).await {
                    Err(error) if refused(&error) => {
                        let hub = Arc::new(Hub::default());
                        connect(options, transport(&hub)?, hub, true).await.map_err(|_| error)?
                    }
                    result => result?,
                }
            }
            Server::Acp { id, .. } => {
                let Some(bridge) = bridge else { return Err(StartError::NoBridge) };
                let courier = Courier::new(bridge, id.clone());
                *lock(&self.desk) = Some(courier.desk());
                connect_directly(options, courier)
            }
        };
        connection.listen().await;
        let tools = connection.list(&self.server, options).await?;
        self.ready(&connection, tools);
        Ok(connection)
    }

    fn ready(&self, connection: &Connection, tools: Vec<Tool>) {
        self.state.send_replace(State::Ready { peer: connection.peer.clone(), tools: tools.into() });
    }

    /// Lists again after changes, until the connection ends.
    async fn look_after(&self, connection: &Connection, options: &Options) {
        let mut next = Instant::now() + LIST_EVERY;
        let changes = async {
            loop {
                connection.hub.changed.notified().await;
                sleep_until(next).await;
                next = Instant::now() + LIST_EVERY;
                match timeout(options.start_limit, connection.list(&self.server, options)).await {
                    Ok(Ok(tools)) => self.ready(connection, tools),
                    Ok(Err(error)) => {
                        tracing::warn!(server = ?self.server.name(), %error, "the tools of an MCP server are old");
                    }
                    Err(_) => {
                        tracing::warn!(server = ?self.server.name(), "the tools of an MCP server are old");
                    }
                }
            }
        };
        tokio::select! {
            () = connection.hub.over() => {}
            () = changes => {}
        }
    }
}

/// Waits for the order to stop, or for the loss of whoever could give it.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    _ = stop.wait_for(|stop| *stop).await;
}
