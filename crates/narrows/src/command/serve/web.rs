//! `narrows serve` over HTTP and WebSocket: one HTTP server for all such listeners, with authenticated clients.

use std::io;
use std::os::unix::net::UnixStream as Pair;
use std::sync::Arc;

use narrows_bus::config::{self, ListenAddr, ListenerSettings};
use narrows_govern::{IdentityMethod, Principal};
use narrows_remote::identity::{Identity, Proof};
use narrows_remote::server::{Backend, ClientAuth, HttpLimits, HttpServer, HttpServerHandle, Opening};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::identities::Identities;
use super::shutdown::Shutdown;
use super::slots::{NoSlot, Slot, Slots};
use crate::command::web;
use crate::failure::Failure;

/// Maximum number of authenticated clients that wait to be accepted.
const MAX_QUEUED_CLIENTS: usize = 16;

/// The minimum number of sockets for each client. A client over HTTP uses several sockets.
const MIN_SOCKETS_PER_CLIENT: usize = 16;

pub(super) struct WebClient {
    pub(super) stream: UnixStream,
    identity: Identity,
    pub(super) slot: Option<Slot>,
}

impl WebClient {
    /// Identifies the client for the gate. Returns `Err` if the client is not admitted.
    pub(super) fn admit(&self, identities: &Identities) -> Result<Principal, Principal> {
        let Identity { proof, name, scopes, .. } = &self.identity;
        match proof {
            Proof::Token => {
                identities.admit_proven(self.identity.to_string(), IdentityMethod::Token, scopes.clone())
            }
            Proof::Certificate => identities.admit_proven(
                self.identity.to_string(),
                IdentityMethod::Certificate,
                scopes.clone(),
            ),
            Proof::User => identities.admit(name.parse().ok(), IdentityMethod::SocketOwner),
            Proof::Place | Proof::Handed => identities.admit(None, IdentityMethod::Unauthenticated),
        }
    }
}

struct GateBackend {
    slots: Arc<Slots>,
    clients: mpsc::Sender<WebClient>,
}

impl Backend for GateBackend {
    fn open(&self, identity: Identity, _: usize) -> Opening<'_> {
        Box::pin(async move {
            let slot = self.slots.acquire(&identity.to_string()).map_err(slot_error)?;
            self.connect(identity, slot).await
        })
    }

    fn open_later(&self, identity: Identity, _: usize) -> Opening<'_> {
        Box::pin(async move {
            let slot = self.slots.wait_for_slot(&identity.to_string()).await.map_err(slot_error)?;
            self.connect(identity, slot).await
        })
    }
}

fn slot_error(slot_error: NoSlot) -> io::Error {
    match slot_error {
        NoSlot::All => io::ErrorKind::WouldBlock.into(),
        NoSlot::Identity => io::ErrorKind::QuotaExceeded.into(),
    }
}

impl GateBackend {
    async fn connect(&self, identity: Identity, slot: Slot) -> io::Result<Pair> {
        let (theirs, ours) = Pair::pair()?;
        ours.set_nonblocking(true)?;
        let client = WebClient { stream: UnixStream::from_std(ours)?, identity, slot: Some(slot) };
        self.clients.send(client).await.map_err(|_| io::ErrorKind::NotConnected)?;
        Ok(theirs)
    }
}

pub(super) struct WebListeners {
    clients: mpsc::Receiver<WebClient>,
    server: WebServer,
}

pub(super) struct WebServer {
    handle: HttpServerHandle,
    task: JoinHandle<io::Result<()>>,
}

impl WebListeners {
    /// Opens the HTTP and WebSocket listeners among `places` and returns their addresses in order. `None` if there
    /// are none.
    pub(super) fn open(
        places: &[ListenerSettings],
        limits: &config::BusLimits,
        slots: &Arc<Slots>,
    ) -> Result<Option<(Self, Vec<ListenAddr>)>, Failure> {
        let webs = places.iter().filter_map(|place| match &place.addr {
            ListenAddr::Web(at) => Some(&**at),
            _ => None,
        });
        let webs: Vec<&config::Web> = webs.collect();
        if webs.is_empty() {
            return Ok(None);
        }
        let listeners =
            webs.iter().enumerate().map(|(number, at)| web::listener(at, number, ClientAuth::User));
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        let (sender, clients) = mpsc::channel(MAX_QUEUED_CLIENTS);
        let backend = Arc::new(GateBackend { slots: Arc::clone(slots), clients: sender });
        let limits = web::limits(limits);
        let sockets = limits.max_sockets.max(MIN_SOCKETS_PER_CLIENT * slots.max());
        let server = HttpServer::bind(listeners, HttpLimits { max_sockets: sockets, ..limits }, backend)
            .map_err(|error| Failure::serve_web_listener(&error))?;
        let at =
            |(at, address): (&&config::Web, _)| ListenAddr::Web(Box::new(web::with_address(at, address)));
        let addresses = webs.iter().zip(server.local_addrs().iter().copied()).map(at).collect();
        let handle = server.handle();
        let server = WebServer { handle, task: tokio::spawn(server.serve()) };
        Ok(Some((Self { clients, server }, addresses)))
    }

    pub(super) async fn accept(&mut self) -> io::Result<WebClient> {
        match self.clients.recv().await {
            Some(client) => Ok(client),
            None => std::future::pending().await,
        }
    }

    /// Stops accepting. Open connections stay.
    pub(super) fn close(self) -> WebServer {
        self.server
    }
}

impl WebServer {
    /// Shuts down the server, waiting for its connections to close.
    pub(super) async fn finish(self, shutdown: &Shutdown) {
        let Self { handle, task } = self;
        handle.shutdown();
        tokio::select! {
            biased;
            () = shutdown.forced() => {}
            served = task => if let Ok(Err(error)) = served {
                tracing::error!(%error, "HTTP server failed");
            },
        }
    }
}
