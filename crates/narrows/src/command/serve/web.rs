//! `narrows serve` over HTTP and WebSocket: one front for all such places, and clients that have shown who they are.

use std::io;
use std::os::unix::net::UnixStream as Pair;
use std::sync::Arc;

use narrows_bus::config::{self, Door, Listen};
use narrows_govern::{Method, Principal};
use narrows_remote::identity::{Identity, Proof};
use narrows_remote::server::{Auth, Backend, Handle, HttpServer, Limits, Opening};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::guests::Guests;
use super::leaving::Leaving;
use super::slots::{Full, Slot, Slots};
use crate::command::web;
use crate::failure::Failure;

/// How many may be on their way from the front to a gate.
const COMING: usize = 16;

/// How many sockets there are at least for each client that there may be: over HTTP one client has several.
const SOCKETS: usize = 16;

/// Somebody whom the front has let in.
pub(super) struct Newcomer {
    pub(super) stream: UnixStream,
    identity: Identity,
    /// Their place among all clients.
    pub(super) slot: Option<Slot>,
}

impl Newcomer {
    /// Who that is to the gate. `Err`: nobody who may come in.
    pub(super) fn admit(&self, guests: &Guests) -> Result<Principal, Principal> {
        let Identity { proof, name, scopes, .. } = &self.identity;
        match proof {
            Proof::Token => guests.admit_shown(self.identity.to_string(), Method::Token, scopes.clone()),
            Proof::Certificate => {
                guests.admit_shown(self.identity.to_string(), Method::Certificate, scopes.clone())
            }
            Proof::User => guests.admit(name.parse().ok(), Method::SocketOwner),
            Proof::Place | Proof::Handed => guests.admit(None, Method::Unauthenticated),
        }
    }
}

/// The way from the front to the gates.
struct Desk {
    slots: Arc<Slots>,
    coming: mpsc::Sender<Newcomer>,
}

impl Backend for Desk {
    fn open(&self, identity: Identity, _: usize) -> Opening<'_> {
        Box::pin(async move {
            let slot = self.slots.take_for(&identity.to_string()).map_err(full)?;
            self.connect(identity, slot).await
        })
    }

    fn open_later(&self, identity: Identity, _: usize) -> Opening<'_> {
        Box::pin(async move {
            let slot = self.slots.take_later(&identity.to_string()).await.map_err(full)?;
            self.connect(identity, slot).await
        })
    }
}

fn full(full: Full) -> io::Error {
    match full {
        Full::All => io::ErrorKind::WouldBlock.into(),
        Full::Identity => io::ErrorKind::QuotaExceeded.into(),
    }
}

impl Desk {
    async fn connect(&self, identity: Identity, slot: Slot) -> io::Result<Pair> {
        let (theirs, ours) = Pair::pair()?;
        ours.set_nonblocking(true)?;
        let newcomer = Newcomer { stream: UnixStream::from_std(ours)?, identity, slot: Some(slot) };
        self.coming.send(newcomer).await.map_err(|_| io::ErrorKind::NotConnected)?;
        Ok(theirs)
    }
}

/// All places for HTTP and WebSocket, being served.
pub(super) struct Web {
    coming: mpsc::Receiver<Newcomer>,
    front: Serving,
}

/// The front itself.
pub(super) struct Serving {
    handle: Handle,
    task: JoinHandle<io::Result<()>>,
}

impl Web {
    /// Opens those that are among `places`. Also tells where they are, in their order. `None`: there are none.
    pub(super) fn open(
        places: &[Listen],
        limits: &config::Limits,
        slots: &Arc<Slots>,
    ) -> Result<Option<(Self, Vec<Door>)>, Failure> {
        let webs = places.iter().filter_map(|place| match &place.at {
            Door::Web(at) => Some(&**at),
            _ => None,
        });
        let webs: Vec<&config::Web> = webs.collect();
        if webs.is_empty() {
            return Ok(None);
        }
        let listeners = webs.iter().enumerate().map(|(number, at)| web::listener(at, number, Auth::User));
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        let (sender, coming) = mpsc::channel(COMING);
        let desk = Arc::new(Desk { slots: Arc::clone(slots), coming: sender });
        let limits = web::limits(limits);
        let sockets = limits.max_sockets.max(SOCKETS * slots.max());
        let front = HttpServer::bind(listeners, Limits { max_sockets: sockets, ..limits }, desk)
            .map_err(|error| Failure::serve_front(&error))?;
        let at = |(at, address): (&&config::Web, _)| Door::Web(Box::new(web::at(at, address)));
        let doors = webs.iter().zip(front.local_addrs().iter().copied()).map(at).collect();
        let handle = front.handle();
        let front = Serving { handle, task: tokio::spawn(front.serve()) };
        Ok(Some((Self { coming, front }, doors)))
    }

    /// The next who comes in. Safe to cancel.
    pub(super) async fn accept(&mut self) -> io::Result<Newcomer> {
        match self.coming.recv().await {
            Some(newcomer) => Ok(newcomer),
            None => std::future::pending().await,
        }
    }

    /// Lets nobody in any more; whoever is there stays.
    pub(super) fn close(self) -> Serving {
        self.front
    }
}

impl Serving {
    /// Ends it, after a moment for last words.
    pub(super) async fn finish(self, leaving: &Leaving) {
        let Self { handle, task } = self;
        handle.shutdown();
        tokio::select! {
            biased;
            () = leaving.urgent() => {}
            served = task => if let Ok(Err(error)) = served {
                tracing::error!(%error, "nobody could come in by HTTP and WebSocket");
            },
        }
    }
}
