//! The doors of the network: HTTP and WebSocket, and connections of other doors that can be taken up again.
//!
//! All of it is one front, so that what somebody may have is counted over all doors. It is on a thread of its own, which is there only
//! once somebody needs it.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use narrows_base::sync::lock;
use narrows_bus::admin::Network;
use narrows_bus::config::{self, Config, Door, Listen};
use narrows_bus::core::ANYONE;
use narrows_bus::{Handle, Handoff, IncomingClient};
use narrows_link::WebSocketHandoff;
use narrows_remote::identity::{Identity, Proof};
use narrows_remote::server::{self, Adopted, Auth, Backend, Ended, HttpServer, Opening};
use tokio::sync::{mpsc, watch};

use crate::command::web;
use crate::failure::Failure;

/// How many connections may be on their way from one thread to the other.
const HANDED: usize = 256;
/// How long the last words of connections may take.
const GOODBYE: Duration = Duration::from_secs(4);

/// The doors, bound and perhaps not served yet.
pub(super) struct Fronts {
    shared: Arc<Shared>,
    hand: mpsc::Sender<Handoff>,
    /// Where the doors of the network are, by the number of their listener.
    addresses: HashMap<usize, SocketAddr>,
}

/// What both threads have to do with.
struct Shared {
    bus: Arc<OnceLock<Handle>>,
    listen: Vec<Listen>,
    /// Taken by whoever begins.
    ready: Mutex<Option<Ready>>,
    front: server::Handle,
    stop: watch::Sender<bool>,
    /// Whether nothing is served any more.
    done: watch::Sender<bool>,
}

/// What is served once somebody begins.
struct Ready {
    front: HttpServer,
    handed: mpsc::Receiver<Handoff>,
}

impl Fronts {
    /// Binds the doors of the network that the settings name. Nobody is let in yet.
    pub(super) fn bind(config: &Config) -> Result<Self, Failure> {
        let bus = Arc::new(OnceLock::new());
        let mut listeners = Vec::new();
        for (number, listen) in config.listen.iter().enumerate() {
            if let Door::Web(at) = &listen.at {
                listeners.push(web::listener(at, number, admitted(at.auth))?);
            }
        }
        let numbers: Vec<usize> = listeners.iter().map(|listener| listener.number).collect();
        let way = Arc::new(Way { bus: Arc::clone(&bus) });
        let front = HttpServer::bind(listeners, web::limits(&config.limits), way)
            .map_err(|error| Failure::front(&error))?;
        let addresses = numbers.into_iter().zip(front.local_addrs().iter().copied()).collect();
        let (hand, handed) = mpsc::channel(HANDED);
        let shared = Arc::new(Shared {
            bus,
            listen: config.listen.clone(),
            front: front.handle(),
            ready: Mutex::new(Some(Ready { front, handed })),
            stop: watch::Sender::new(false),
            done: watch::Sender::new(false),
        });
        Ok(Self { shared, hand, addresses })
    }

    /// For the bus: takes connections that can be taken up again.
    pub(super) fn hand_over(&self) -> narrows_bus::HandOver {
        let (shared, hand) = (Arc::clone(&self.shared), self.hand.clone());
        Box::new(move |handed| {
            shared.begin();
            if hand.try_send(handed).is_err() {
                tracing::warn!("a connection that could be taken up again is hung up on: too many wait");
            }
        })
    }

    /// For operators: what the doors of the network have counted.
    pub(super) fn network(&self) -> narrows_bus::admin::AskNetwork {
        let front = self.shared.front.clone();
        Box::new(move || Network { refused: front.refused(), connections: front.disconnects() })
    }

    /// Lets everybody in that comes by the network.
    pub(super) fn open(&self, bus: Handle) {
        _ = self.shared.bus.set(bus);
        if !self.addresses.is_empty() {
            self.shared.begin();
        }
    }

    /// Where a door of the network is: a port 0 has become a real one.
    pub(super) fn address(&self, number: usize, door: &Door) -> String {
        match (door, self.addresses.get(&number)) {
            (Door::Web(at), Some(address)) => web::at(at, *address).to_string(),
            _ => door.to_string(),
        }
    }

    /// Reads certificates and tokens again. Whatever is wrong with them, what they said before still holds, of tokens for
    /// some seconds.
    pub(super) fn reload(&self) {
        if let Err(error) = self.shared.front.reload() {
            tracing::error!(%error, "a file cannot be used; what it said before still holds, tokens for some seconds");
        }
    }

    /// Ends everything, after a moment for last words.
    pub(super) async fn finish(&self) {
        let begun = lock(&self.shared.ready).is_none();
        self.shared.stop.send_replace(true);
        if begun {
            let mut done = self.shared.done.subscribe();
            // Late is as good as done.
            _ = tokio::time::timeout(GOODBYE, done.wait_for(|done| *done)).await;
        }
    }
}

impl Shared {
    /// Starts the thread, if it does not run yet.
    fn begin(self: &Arc<Self>) {
        let ready = lock(&self.ready).take();
        let Some(ready) = ready else { return };
        let shared = Arc::clone(self);
        let started = std::thread::Builder::new().name("narrows-front".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let served = runtime.and_then(|runtime| runtime.block_on(shared.serve(ready)));
            if let Err(error) = served {
                tracing::error!(%error, "nobody can come in by the network");
            }
            shared.done.send_replace(true);
        });
        if let Err(error) = started {
            tracing::error!(%error, "nobody can come in by the network");
            self.done.send_replace(true);
        }
    }

    async fn serve(&self, ready: Ready) -> std::io::Result<()> {
        let Ready { front, mut handed } = ready;
        let mut stop = self.stop.subscribe();
        let mut serving = pin!(front.serve());
        loop {
            tokio::select! {
                ended = &mut serving => return ended,
                Some(connection) = handed.recv() => self.adopt(connection),
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        self.front.shutdown();
        serving.await
    }

    /// Goes on with a connection that the loop of the bus has let in.
    fn adopt(&self, connection: Handoff) {
        let Handoff { socket, read, listener, identity } = connection;
        let socket = match self.listen.get(listener).map(|listen| &listen.at) {
            Some(Door::Unix(_)) => Adopted::Unix(UnixStream::from(socket)),
            _ => Adopted::Tcp(TcpStream::from(socket)),
        };
        let identity = Identity::new(Proof::Handed, identity);
        if self.front.adopt(socket, Bytes::from(read), identity, listener).is_err() {
            tracing::warn!("a connection that could be taken up again is hung up on: too many wait");
        }
    }
}

/// The way from a door to the bus.
struct Way {
    bus: Arc<OnceLock<Handle>>,
}

impl Backend for Way {
    fn open(&self, identity: Identity, listener: usize) -> Opening<'_> {
        Box::pin(async move {
            let (ours, theirs) = UnixStream::pair()?;
            let bus = self.bus.get().ok_or(std::io::ErrorKind::NotConnected)?;
            bus.connect(theirs.into(), newcomer(identity, listener)).map_err(std::io::Error::other)?;
            Ok(ours)
        })
    }

    fn serve(
        &self,
        identity: Identity,
        listener: usize,
        socket: WebSocketHandoff,
    ) -> Result<Box<dyn server::Served>, WebSocketHandoff> {
        let Some(bus) = self.bus.get() else { return Err(socket) };
        let served = bus.connect_upgraded(socket, newcomer(identity, listener))?;
        Ok(Box::new(Served { bus: bus.clone(), served }))
    }
}

/// A WebSocket that the loop of the bus serves.
struct Served {
    bus: Handle,
    served: narrows_bus::WebSocketHandle,
}

impl server::Served for Served {
    fn ended(&mut self) -> Ended<'_> {
        Box::pin(self.served.ended())
    }

    fn hang_up(&self, code: u16, reason: &'static str) {
        self.bus.hang_up(&self.served, code, reason);
    }
}

/// Who is admitted where clients prove no name.
fn admitted(auth: config::Auth) -> Auth {
    match auth {
        config::Auth::None => Auth::None,
        _ => Auth::Owner(rustix::process::geteuid().as_raw()),
    }
}

/// A client as the bus is told of it.
fn newcomer(identity: Identity, listener: usize) -> IncomingClient {
    let name = known_as(&identity);
    // Only a unix socket gives a connection that is handed over the name of a user.
    let is_owner =
        identity.proof == Proof::Handed && name == format!("uid:{}", rustix::process::geteuid().as_raw());
    IncomingClient {
        metered: matches!(identity.proof, Proof::Token | Proof::Certificate),
        scopes: identity.scopes,
        pools: identity.pools,
        is_owner,
        ..IncomingClient::new(listener, name)
    }
}

/// The identity in the bus.
fn known_as(identity: &Identity) -> String {
    match identity.proof {
        Proof::Place => ANYONE.to_owned(),
        Proof::User | Proof::Token | Proof::Certificate | Proof::Handed => identity.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_anothers_name_by_another_proof() {
        let named = |proof| known_as(&Identity::new(proof, "uid:0"));
        assert_eq!(named(Proof::Token), "token:uid:0");
        assert_eq!(named(Proof::Certificate), "cert:uid:0");
        assert_eq!(named(Proof::Place), "anyone");
        assert_eq!(named(Proof::Handed), "uid:0");
    }
}
