//! The HTTP server of a bus: HTTP and WebSocket listeners, and resumable connections of other listeners.
//!
//! There is one HTTP server, so that limits of an identity apply across listeners. It has a thread of its own,
//! started on first use.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use narrows_base::sync::lock;
use narrows_bus::admin::HttpCounters;
use narrows_bus::config::{self, Config, ListenAddr, ListenerSettings};
use narrows_bus::core::ANYONE;
use narrows_bus::{Handle, IncomingClient, ResumableConnection};
use narrows_link::WebSocketHandoff;
use narrows_remote::identity::{Identity, Proof};
use narrows_remote::server::{self, Adopted, Backend, ClientAuth, HttpServer, Opening, ServedEnd};
use tokio::sync::{mpsc, watch};

use crate::command::web;
use crate::failure::Failure;

const MAX_QUEUED_HANDOFFS: usize = 256;
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(4);

/// The bound HTTP and WebSocket listeners. The HTTP server behind them starts on first use.
pub(super) struct NetworkListeners {
    shared: Arc<HttpShared>,
    handoff_sender: mpsc::Sender<ResumableConnection>,
    /// The actual addresses, by listener number.
    addresses: HashMap<usize, SocketAddr>,
}

struct HttpShared {
    bus: Arc<OnceLock<Handle>>,
    listen: Vec<ListenerSettings>,
    /// The bound server. `None` once the server thread has started it.
    ready: Mutex<Option<BoundServer>>,
    http: server::HttpServerHandle,
    stop: watch::Sender<bool>,
    /// Becomes `true` when the server has ended.
    done: watch::Sender<bool>,
}

struct BoundServer {
    http: HttpServer,
    handoffs: mpsc::Receiver<ResumableConnection>,
}

impl NetworkListeners {
    /// Binds the HTTP and WebSocket listeners of the settings. Nothing is accepted yet.
    pub(super) fn bind(config: &Config) -> Result<Self, Failure> {
        let bus = Arc::new(OnceLock::new());
        let mut listeners = Vec::new();
        for (number, listen) in config.listen.iter().enumerate() {
            if let ListenAddr::Web(at) = &listen.addr {
                listeners.push(web::listener(at, number, fallback_auth(at.auth))?);
            }
        }
        let numbers: Vec<usize> = listeners.iter().map(|listener| listener.number).collect();
        let backend = Arc::new(BusBackend { bus: Arc::clone(&bus) });
        let http = HttpServer::bind(listeners, web::limits(&config.limits), backend)
            .map_err(|error| Failure::web_listener(&error))?;
        let addresses = numbers.into_iter().zip(http.local_addrs().iter().copied()).collect();
        let (handoff_sender, handoffs) = mpsc::channel(MAX_QUEUED_HANDOFFS);
        let shared = Arc::new(HttpShared {
            bus,
            listen: config.listen.clone(),
            http: http.handle(),
            ready: Mutex::new(Some(BoundServer { http, handoffs })),
            stop: watch::Sender::new(false),
            done: watch::Sender::new(false),
        });
        Ok(Self { shared, handoff_sender, addresses })
    }

    /// Returns the function with which the bus hands over resumable connections.
    pub(super) fn hand_over(&self) -> narrows_bus::ResumableConnectionHandler {
        let (shared, handoff_sender) = (Arc::clone(&self.shared), self.handoff_sender.clone());
        Box::new(move |connection| {
            shared.start_thread();
            if handoff_sender.try_send(connection).is_err() {
                tracing::warn!("resumable connection closed, too many are waiting");
            }
        })
    }

    pub(super) fn network(&self) -> narrows_bus::admin::ReadHttpCounters {
        let http = self.shared.http.clone();
        Box::new(move || HttpCounters { refused: http.refused(), connections: http.disconnects() })
    }

    pub(super) fn open(&self, bus: Handle) {
        _ = self.shared.bus.set(bus);
        if !self.addresses.is_empty() {
            self.shared.start_thread();
        }
    }

    /// Returns the actual address of a listener. Port 0 is replaced by the assigned port.
    pub(super) fn address(&self, number: usize, address: &ListenAddr) -> String {
        match (address, self.addresses.get(&number)) {
            (ListenAddr::Web(at), Some(address)) => web::with_address(at, *address).to_string(),
            _ => address.to_string(),
        }
    }

    /// Reloads certificates and tokens. On an error the previous ones stay in effect; tokens change after some
    /// seconds.
    pub(super) fn reload(&self) {
        if let Err(error) = self.shared.http.reload() {
            tracing::error!(%error, "cannot reload credentials, keeping the previous ones");
        }
    }

    pub(super) async fn finish(&self) {
        let begun = lock(&self.shared.ready).is_none();
        self.shared.stop.send_replace(true);
        if begun {
            let mut done = self.shared.done.subscribe();
            // The result does not matter: either the server has ended, or the time is over.
            _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, done.wait_for(|done| *done)).await;
        }
    }
}

impl HttpShared {
    fn start_thread(self: &Arc<Self>) {
        let ready = lock(&self.ready).take();
        let Some(ready) = ready else { return };
        let shared = Arc::clone(self);
        let started = std::thread::Builder::new().name("narrows-front".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let served = runtime.and_then(|runtime| runtime.block_on(shared.serve(ready)));
            if let Err(error) = served {
                tracing::error!(%error, "HTTP server failed");
            }
            shared.done.send_replace(true);
        });
        if let Err(error) = started {
            tracing::error!(%error, "cannot start the HTTP server");
            self.done.send_replace(true);
        }
    }

    async fn serve(&self, ready: BoundServer) -> std::io::Result<()> {
        let BoundServer { http, mut handoffs } = ready;
        let mut stop = self.stop.subscribe();
        let mut serving = pin!(http.serve());
        loop {
            tokio::select! {
                ended = &mut serving => return ended,
                Some(connection) = handoffs.recv() => self.adopt(connection),
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        self.http.shutdown();
        serving.await
    }

    fn adopt(&self, connection: ResumableConnection) {
        let ResumableConnection { socket, read, listener, identity } = connection;
        let socket = match self.listen.get(listener).map(|listen| &listen.addr) {
            Some(ListenAddr::Unix(_)) => Adopted::Unix(UnixStream::from(socket)),
            _ => Adopted::Tcp(TcpStream::from(socket)),
        };
        let identity = Identity::new(Proof::Handed, identity);
        if self.http.adopt(socket, Bytes::from(read), identity, listener).is_err() {
            tracing::warn!("resumable connection closed, too many are waiting");
        }
    }
}

struct BusBackend {
    bus: Arc<OnceLock<Handle>>,
}

impl Backend for BusBackend {
    fn open(&self, identity: Identity, listener: usize) -> Opening<'_> {
        Box::pin(async move {
            let (ours, theirs) = UnixStream::pair()?;
            let bus = self.bus.get().ok_or(std::io::ErrorKind::NotConnected)?;
            bus.connect(theirs.into(), incoming_client(identity, listener)).map_err(std::io::Error::other)?;
            Ok(ours)
        })
    }

    fn may_continue(&self, from: usize, to: usize) -> bool {
        self.bus.get().is_some_and(|bus| bus.listeners_have_equal_rights(from, to))
    }

    fn serve(
        &self,
        identity: Identity,
        listener: usize,
        socket: WebSocketHandoff,
    ) -> Result<Box<dyn server::Served>, WebSocketHandoff> {
        let Some(bus) = self.bus.get() else { return Err(socket) };
        let served = bus.connect_upgraded(socket, incoming_client(identity, listener))?;
        Ok(Box::new(HandedOffSocket { bus: bus.clone(), served }))
    }
}

struct HandedOffSocket {
    bus: Handle,
    served: narrows_bus::WebSocketHandle,
}

impl server::Served for HandedOffSocket {
    fn ended(&mut self) -> ServedEnd<'_> {
        Box::pin(self.served.ended())
    }

    fn hang_up(&self, code: u16, reason: &'static str) {
        self.bus.close_websocket(&self.served, code, reason);
    }
}

/// Returns the authentication for clients without credentials.
fn fallback_auth(auth: config::ListenerAuth) -> ClientAuth {
    match auth {
        config::ListenerAuth::None => ClientAuth::None,
        _ => ClientAuth::Owner(rustix::process::geteuid().as_raw()),
    }
}

fn incoming_client(identity: Identity, listener: usize) -> IncomingClient {
    let name = identity_name(&identity);
    // The system user of a client is known only on a unix socket.
    let is_owner =
        identity.proof == Proof::Handed && name == format!("uid:{}", rustix::process::geteuid().as_raw());
    IncomingClient {
        is_authenticated: matches!(identity.proof, Proof::Token | Proof::Certificate),
        scopes: identity.scopes,
        pools: identity.pools,
        is_owner,
        ..IncomingClient::new(listener, name)
    }
}

fn identity_name(identity: &Identity) -> String {
    match identity.proof {
        Proof::Place => ANYONE.to_owned(),
        Proof::User | Proof::Token | Proof::Certificate | Proof::Handed => identity.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_with_different_proofs_have_different_names() {
        let named = |proof| identity_name(&Identity::new(proof, "uid:0"));
        assert_eq!(named(Proof::Token), "token:uid:0");
        assert_eq!(named(Proof::Certificate), "cert:uid:0");
        assert_eq!(named(Proof::Place), "anyone");
        assert_eq!(named(Proof::Handed), "uid:0");
    }
}
