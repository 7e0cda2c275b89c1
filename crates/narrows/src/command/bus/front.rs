//! The doors of the network: HTTP and WebSocket, and connections of other doors that can be taken up again.
//!
//! All of it is on a thread of its own, which is there only once somebody needs it.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use narrows_bus::config::{self, Config, Door, Listen, Web};
use narrows_bus::core::ANYONE;
use narrows_bus::{Handed, Handle, Newcomer};
use narrows_remote::identity::Identity;
use narrows_remote::server::{self, Adopted, Auth, Backend, Front, Limits, Listener, Opening};
use narrows_remote::tls::TlsFiles;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::failure::Failure;

/// How many connections may be on their way from one thread to the other.
const HANDED: usize = 256;
/// How long the last words of connections may take.
const GOODBYE: Duration = Duration::from_secs(4);

/// The doors, bound and perhaps not served yet.
pub(super) struct Fronts {
    shared: Arc<Shared>,
    hand: mpsc::Sender<Handed>,
    /// Where the doors of the network are, by the number of their listener.
    addresses: HashMap<usize, SocketAddr>,
}

/// What both threads have to do with.
struct Shared {
    bus: Arc<OnceLock<Handle>>,
    listen: Vec<Listen>,
    limits: Limits,
    /// Taken by whoever begins.
    ready: Mutex<Option<Ready>>,
    handles: Mutex<HashMap<usize, server::Handle>>,
    stop: watch::Sender<bool>,
    /// Whether nothing is served any more.
    done: watch::Sender<bool>,
}

/// What is served once somebody begins.
struct Ready {
    fronts: Vec<Front>,
    handed: mpsc::Receiver<Handed>,
}

impl Fronts {
    /// Binds the doors of the network that the settings name. Nobody is let in yet.
    pub(super) fn bind(config: &Config) -> Result<Self, Failure> {
        let bus = Arc::new(OnceLock::new());
        let limits = limits(&config.limits);
        let (mut fronts, mut handles, mut addresses) = (Vec::new(), HashMap::new(), HashMap::new());
        for (number, listen) in config.listen.iter().enumerate() {
            let Door::Web(web) = &listen.at else { continue };
            let backend = Arc::new(Way { bus: Arc::clone(&bus), listener: number, auth: Some(web.auth) });
            let listener = listener(web).map_err(|error| Failure::web_address(web, &error))?;
            let front = Front::bind(vec![listener], limits.clone(), backend)
                .map_err(|error| Failure::front(&error))?;
            addresses.extend(front.local_addrs().first().map(|address| (number, *address)));
            handles.insert(number, front.handle());
            fronts.push(front);
        }
        let (hand, handed) = mpsc::channel(HANDED);
        let shared = Arc::new(Shared {
            bus,
            listen: config.listen.clone(),
            limits,
            ready: Mutex::new(Some(Ready { fronts, handed })),
            handles: Mutex::new(handles),
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
            (Door::Web(web), Some(address)) => {
                Web { address: address.to_string(), ..(**web).clone() }.to_string()
            }
            _ => door.to_string(),
        }
    }

    /// Reads certificates and tokens again. Whatever is wrong with them, what they said before still holds.
    pub(super) fn reload(&self) {
        for front in self.shared.handles().values() {
            if let Err(error) = front.reload() {
                tracing::error!(%error, "a file cannot be used; what it said before still holds");
            }
        }
    }

    /// Ends everything, after a moment for last words.
    pub(super) async fn finish(&self) {
        let begun = self.shared.ready.lock().unwrap_or_else(PoisonError::into_inner).is_none();
        self.shared.stop.send_replace(true);
        if begun {
            let mut done = self.shared.done.subscribe();
            // Late is as good as done.
            _ = tokio::time::timeout(GOODBYE, done.wait_for(|done| *done)).await;
        }
    }
}

impl Shared {
    fn handles(&self) -> std::sync::MutexGuard<'_, HashMap<usize, server::Handle>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread, if it does not run yet.
    fn begin(self: &Arc<Self>) {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(ready) = ready else { return };
        let shared = Arc::clone(self);
        let started = std::thread::Builder::new().name("narrows-front".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(shared.serve(ready)),
                Err(error) => tracing::error!(%error, "nobody can come in by the network"),
            }
            shared.done.send_replace(true);
        });
        if let Err(error) = started {
            tracing::error!(%error, "nobody can come in by the network");
            self.done.send_replace(true);
        }
    }

    async fn serve(&self, ready: Ready) {
        let Ready { fronts, mut handed } = ready;
        let mut stop = self.stop.subscribe();
        let mut serving: JoinSet<_> = fronts.into_iter().map(Front::serve).collect();
        loop {
            tokio::select! {
                Some(ended) = serving.join_next() => match ended {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::error!(%error, "a door of the network is closed"),
                    Err(error) => tracing::error!(%error, "a door of the network has failed"),
                },
                Some(connection) = handed.recv() => self.adopt(connection, &mut serving),
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        self.handles().values().for_each(server::Handle::shutdown);
        while serving.join_next().await.is_some() {}
    }

    /// Goes on with a connection that the loop of the bus has let in.
    fn adopt(&self, connection: Handed, serving: &mut JoinSet<std::io::Result<()>>) {
        let Handed { socket, read, listener, identity } = connection;
        let mut handles = self.handles();
        let handle = match handles.get(&listener) {
            Some(handle) => handle.clone(),
            None => {
                let backend = Arc::new(Way { bus: Arc::clone(&self.bus), listener, auth: None });
                let front = match Front::bind(Vec::new(), self.limits.clone(), backend) {
                    Ok(front) => front,
                    Err(error) => return tracing::error!(%error, "nothing can be taken up again"),
                };
                let handle = front.handle();
                serving.spawn(front.serve());
                handles.insert(listener, handle.clone());
                handle
            }
        };
        let socket = match self.listen.get(listener).map(|listen| &listen.at) {
            Some(Door::Unix(_)) => Adopted::Unix(UnixStream::from(socket)),
            _ => Adopted::Tcp(TcpStream::from(socket)),
        };
        if handle.adopt(socket, Bytes::from(read), Identity { name: identity, scopes: None }).is_err() {
            tracing::warn!("a connection that could be taken up again is hung up on: too many wait");
        }
    }
}

/// The way from a door to the bus.
struct Way {
    bus: Arc<OnceLock<Handle>>,
    listener: usize,
    /// How clients prove who they are; `None` for those that the bus has let in itself.
    auth: Option<config::Auth>,
}

impl Backend for Way {
    fn open(&self, identity: Identity) -> Opening<'_> {
        Box::pin(async move {
            let (ours, theirs) = UnixStream::pair()?;
            let from = Newcomer {
                listener: self.listener,
                identity: known_as(self.auth, identity.name),
                scopes: identity.scopes,
                metered: matches!(self.auth, Some(config::Auth::Token | config::Auth::Mtls)),
            };
            let bus = self.bus.get().ok_or(std::io::ErrorKind::NotConnected)?;
            bus.connect(theirs.into(), from).map_err(std::io::Error::other)?;
            Ok(ours)
        })
    }
}

/// The identity in the bus: what one proof calls somebody is another than what another proof does.
fn known_as(auth: Option<config::Auth>, name: String) -> String {
    match auth {
        Some(config::Auth::Token) => format!("token:{name}"),
        Some(config::Auth::Mtls) => format!("cert:{name}"),
        Some(config::Auth::None) => ANYONE.to_owned(),
        None => name,
    }
}

fn listener(web: &Web) -> std::io::Result<Listener> {
    let address = web.address.to_socket_addrs()?.next().ok_or(std::io::ErrorKind::AddrNotAvailable)?;
    Ok(Listener {
        address,
        path: web.path.clone(),
        auth: match (web.auth, &web.tokens) {
            (config::Auth::Token, Some(tokens)) => Auth::Token(tokens.clone()),
            (config::Auth::Mtls, _) => Auth::Mtls,
            _ => Auth::None,
        },
        origins: web.origins.clone(),
        hosts: web.hosts.clone(),
        tls: web.tls.as_ref().map(|tls| TlsFiles {
            cert: tls.cert.clone(),
            key: tls.key.clone(),
            client_ca: tls.client_ca.clone(),
        }),
    })
}

fn limits(limits: &config::Limits) -> Limits {
    let rate = match limits.max_rate_per_identity {
        0 => u32::MAX,
        rate => u32::try_from(rate).unwrap_or(u32::MAX),
    };
    Limits {
        max_message: limits.max_line,
        header_timeout: limits.header_timeout,
        idle_timeout: limits.idle_timeout,
        max_sockets: limits.max_connections,
        max_connections_per_identity: limits.max_connections_per_identity,
        max_requests_per_second: rate,
        replay_bytes: limits.replay_bytes,
        replay_time: limits.replay_time,
        grace: limits.replay_time,
        ..Limits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_anothers_name_by_another_proof() {
        let named = |auth| known_as(auth, "uid:0".to_owned());
        assert_eq!(named(Some(config::Auth::Token)), "token:uid:0");
        assert_eq!(named(Some(config::Auth::Mtls)), "cert:uid:0");
        assert_eq!(named(Some(config::Auth::None)), "anyone");
        assert_eq!(named(None), "uid:0");
    }
}
