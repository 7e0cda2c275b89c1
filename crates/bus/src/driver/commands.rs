//! Commands that handles of a bus send to its event loop.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use mio::Waker;
use narrows_base::sync::lock;
use narrows_link::WebSocketHandoff;
use narrows_wire::websocket::Violation;
use tokio::sync::oneshot;

use super::queue_stats::Queues;
use crate::config::Config;
use crate::core::ClientInfo;

const MAX_STATUS_REQUESTS: usize = 64;

/// Maximum number of connections that wait to be accepted. After a network outage, all clients reconnect at
/// once.
const MAX_HANDOVERS: usize = 32 << 10;

/// A client whose connection the caller has already accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingClient {
    pub listener: usize,
    pub identity: String,
    /// The scopes of the client's token, for pools with a gate. `None`: unrestricted.
    pub scopes: Option<Vec<String>>,
    /// `true` if the client has proved its identity, so that the limits of an identity apply.
    pub is_authenticated: bool,
    /// The pools to which the client's proof of identity restricts it. `None`: all pools.
    pub pools: Option<Vec<String>>,
    /// `true` if the client is the user that the bus runs as, by the credentials of a unix socket.
    pub is_owner: bool,
}

impl IncomingClient {
    /// Returns a client without scopes, without limits of an identity, and without a restriction to pools.
    #[must_use]
    pub fn new(listener: usize, identity: impl Into<String>) -> Self {
        Self {
            listener,
            identity: identity.into(),
            scopes: None,
            is_authenticated: false,
            pools: None,
            is_owner: false,
        }
    }

    pub(super) fn client_info(&self) -> ClientInfo<'_> {
        ClientInfo {
            scopes: self.scopes.as_deref(),
            is_authenticated: self.is_authenticated,
            pools: self.pools.as_deref(),
            is_owner: self.is_owner,
            ..ClientInfo::new(self.listener, &self.identity)
        }
    }
}

#[derive(Debug)]
pub(super) struct Upgrade {
    pub(super) upgraded: WebSocketHandoff,
    pub(super) from: IncomingClient,
    pub(super) number: u64,
    pub(super) ended: oneshot::Sender<Option<Violation>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CloseRequest {
    pub(super) number: u64,
    pub(super) code: u16,
    pub(super) reason: &'static str,
}

/// A client on a WebSocket that the bus serves.
#[derive(Debug)]
pub struct WebSocketHandle {
    number: u64,
    ended: oneshot::Receiver<Option<Violation>>,
}

impl WebSocketHandle {
    /// Waits until the client has disconnected. Returns its protocol violation if that was the reason.
    /// Cancel-safe.
    pub async fn ended(&mut self) -> Option<Violation> {
        // The sender is dropped without a message when the client disconnects without a protocol violation.
        (&mut self.ended).await.ok().flatten()
    }
}

#[derive(Debug)]
pub(super) struct LoopCommands<S> {
    pub(super) drain: bool,
    pub(super) reload: Option<Box<Config>>,
    pub(super) status: Vec<oneshot::Sender<(S, Queues)>>,
    pub(super) incoming: Vec<(OwnedFd, IncomingClient)>,
    pub(super) upgrades: Vec<Upgrade>,
    pub(super) close_requests: Vec<CloseRequest>,
    closed: bool,
}

impl<S> Default for LoopCommands<S> {
    fn default() -> Self {
        Self {
            drain: false,
            reload: None,
            status: Vec::new(),
            incoming: Vec::new(),
            upgrades: Vec::new(),
            close_requests: Vec::new(),
            closed: false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct CommandQueue<S> {
    commands: Mutex<LoopCommands<S>>,
    upgrades: AtomicU64,
    waker: Arc<Waker>,
}

impl<S> CommandQueue<S> {
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        Self { commands: Mutex::default(), upgrades: AtomicU64::new(0), waker }
    }

    pub(crate) fn drain(&self) {
        self.update(|commands| commands.drain = true);
    }

    /// Requests that another configuration is applied. Of several pending requests, the last one counts.
    pub(crate) fn reload(&self, config: Box<Config>) {
        self.update(|commands| commands.reload = Some(config));
    }

    /// Requests the status. Returns `None` if too many requests for it are pending.
    pub(crate) fn status(&self) -> Option<oneshot::Receiver<(S, Queues)>> {
        let (asker, answer) = oneshot::channel();
        self.update(|commands| {
            // Requests whose receiver was dropped do not count.
            commands.status.retain(|asker| !asker.is_closed());
            if commands.status.len() >= MAX_STATUS_REQUESTS {
                return None;
            }
            commands.status.push(asker);
            Some(answer)
        })
    }

    /// Queues a connection for the event loop. Returns `false` if too many are queued or the loop has ended.
    pub(crate) fn connect(&self, socket: OwnedFd, from: IncomingClient) -> bool {
        self.update(|commands| {
            let takes = !commands.closed && commands.incoming.len() < MAX_HANDOVERS;
            if takes {
                commands.incoming.push((socket, from));
            }
            takes
        })
    }

    /// Queues a WebSocket for the event loop. Returns the socket if the queue is full or closed.
    pub(crate) fn connect_upgraded(
        &self,
        upgraded: WebSocketHandoff,
        from: IncomingClient,
    ) -> Result<WebSocketHandle, WebSocketHandoff> {
        self.update(|commands| {
            if commands.closed || commands.upgrades.len() >= MAX_HANDOVERS {
                return Err(upgraded);
            }
            let number = self.upgrades.fetch_add(1, Ordering::Relaxed);
            let (sender, ended) = oneshot::channel();
            commands.upgrades.push(Upgrade { upgraded, from, number, ended: sender });
            Ok(WebSocketHandle { number, ended })
        })
    }

    pub(crate) fn close_websocket(&self, served: &WebSocketHandle, code: u16, reason: &'static str) {
        let request = CloseRequest { number: served.number, code, reason };
        self.update(|commands| {
            if !commands.closed {
                commands.close_requests.push(request);
            }
        });
    }

    pub(crate) fn close(&self) {
        let mut commands = lock(&self.commands);
        *commands = LoopCommands { closed: true, ..LoopCommands::default() };
    }

    pub(super) fn take(&self) -> LoopCommands<S> {
        std::mem::take(&mut *lock(&self.commands))
    }

    fn update<R>(&self, write: impl FnOnce(&mut LoopCommands<S>) -> R) -> R {
        let result = write(&mut lock(&self.commands));
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake the event loop");
        }
        result
    }
}
