//! Commands that handles of a bus send to its loop.

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

/// How many may wait for a status at once.
const MAX_STATUS_REQUESTS: usize = 64;

/// How many may wait to be let in: after a network was down all clients come back at once.
const MAX_HANDOVERS: usize = 32 << 10;

/// A client that comes in through a descriptor of the caller's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingClient {
    /// Which of the configured listeners it came through.
    pub listener: usize,
    /// Who it is.
    pub identity: String,
    /// What its proof of that narrows it to, where something is served that has scopes. `None`: nothing.
    pub scopes: Option<Vec<String>>,
    /// Whether the limits of an identity hold for it.
    pub metered: bool,
    /// The only pools that its proof of identity permits. `None`: all.
    pub pools: Option<Vec<String>>,
    /// Whether it is the user that the bus runs as, by the credentials of a unix socket.
    pub is_owner: bool,
}

impl IncomingClient {
    /// A client without scopes, limits of an identity, or a restriction to pools.
    #[must_use]
    pub fn new(listener: usize, identity: impl Into<String>) -> Self {
        Self {
            listener,
            identity: identity.into(),
            scopes: None,
            metered: false,
            pools: None,
            is_owner: false,
        }
    }

    /// The same for the core.
    pub(super) fn arrival(&self) -> ClientInfo<'_> {
        ClientInfo {
            scopes: self.scopes.as_deref(),
            metered: self.metered,
            pools: self.pools.as_deref(),
            is_owner: self.is_owner,
            ..ClientInfo::new(self.listener, &self.identity)
        }
    }
}

/// A client that comes in over a WebSocket.
#[derive(Debug)]
pub(super) struct Upgrade {
    pub(super) upgraded: WebSocketHandoff,
    pub(super) from: IncomingClient,
    pub(super) number: u64,
    pub(super) ended: oneshot::Sender<Option<Violation>>,
}

/// The end of such a client, as whoever let it in wants it.
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
    /// Ends when the client is gone, with what it did if that was why.
    pub async fn ended(&mut self) -> Option<Violation> {
        // It is gone as well when there is nobody to say so.
        (&mut self.ended).await.ok().flatten()
    }
}

/// What is asked for.
#[derive(Debug)]
pub(super) struct LoopCommands<S> {
    pub(super) drain: bool,
    pub(super) reload: Option<Box<Config>>,
    pub(super) status: Vec<oneshot::Sender<(S, Queues)>>,
    pub(super) newcomers: Vec<(OwnedFd, IncomingClient)>,
    pub(super) upgrades: Vec<Upgrade>,
    pub(super) farewells: Vec<CloseRequest>,
    /// Nobody reads it any more.
    closed: bool,
}

impl<S> Default for LoopCommands<S> {
    fn default() -> Self {
        Self {
            drain: false,
            reload: None,
            status: Vec::new(),
            newcomers: Vec::new(),
            upgrades: Vec::new(),
            farewells: Vec::new(),
            closed: false,
        }
    }
}

/// Where it is asked.
#[derive(Debug)]
pub(crate) struct CommandQueue<S> {
    mail: Mutex<LoopCommands<S>>,
    /// How many came in over a WebSocket.
    upgrades: AtomicU64,
    waker: Arc<Waker>,
}

impl<S> CommandQueue<S> {
    pub(crate) fn new(waker: Arc<Waker>) -> Self {
        Self { mail: Mutex::default(), upgrades: AtomicU64::new(0), waker }
    }

    /// Asks for a gentle end.
    pub(crate) fn drain(&self) {
        self.put(|mail| mail.drain = true);
    }

    /// Asks for other settings. Of several at once the last counts.
    pub(crate) fn reload(&self, config: Box<Config>) {
        self.put(|mail| mail.reload = Some(config));
    }

    /// Asks how things stand; `None` if too many ask.
    pub(crate) fn status(&self) -> Option<oneshot::Receiver<(S, Queues)>> {
        let (asker, answer) = oneshot::channel();
        self.put(|mail| {
            // Who no longer waits must not keep others from asking.
            mail.status.retain(|asker| !asker.is_closed());
            if mail.status.len() >= MAX_STATUS_REQUESTS {
                return None;
            }
            mail.status.push(asker);
            Some(answer)
        })
    }

    /// Asks to let somebody in. Tells whether that was taken.
    pub(crate) fn connect(&self, socket: OwnedFd, from: IncomingClient) -> bool {
        self.put(|mail| {
            let takes = !mail.closed && mail.newcomers.len() < MAX_HANDOVERS;
            if takes {
                mail.newcomers.push((socket, from));
            }
            takes
        })
    }

    /// Asks to let somebody in over a WebSocket, which comes back if that is not taken.
    pub(crate) fn connect_upgraded(
        &self,
        upgraded: WebSocketHandoff,
        from: IncomingClient,
    ) -> Result<WebSocketHandle, WebSocketHandoff> {
        self.put(|mail| {
            if mail.closed || mail.upgrades.len() >= MAX_HANDOVERS {
                return Err(upgraded);
            }
            let number = self.upgrades.fetch_add(1, Ordering::Relaxed);
            let (sender, ended) = oneshot::channel();
            mail.upgrades.push(Upgrade { upgraded, from, number, ended: sender });
            Ok(WebSocketHandle { number, ended })
        })
    }

    /// Asks to hang up on somebody who came in so.
    pub(crate) fn hang_up(&self, served: &WebSocketHandle, code: u16, reason: &'static str) {
        let farewell = CloseRequest { number: served.number, code, reason };
        self.put(|mail| {
            if !mail.closed {
                mail.farewells.push(farewell);
            }
        });
    }

    /// Nobody will be answered any more.
    pub(crate) fn close(&self) {
        let mut mail = lock(&self.mail);
        *mail = LoopCommands { closed: true, ..LoopCommands::default() };
    }

    pub(super) fn empty(&self) -> LoopCommands<S> {
        std::mem::take(&mut *lock(&self.mail))
    }

    fn put<R>(&self, write: impl FnOnce(&mut LoopCommands<S>) -> R) -> R {
        let result = write(&mut lock(&self.mail));
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the loop of the bus cannot be woken");
        }
        result
    }
}
