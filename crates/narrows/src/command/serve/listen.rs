//! `narrows serve --listen`: accepts clients on all listeners and serves each.

use std::fs::Permissions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use narrows_bus::config::{BusLimits, ListenAddr, ListenerSettings};
use narrows_bus::listen::{Listener, bind};
use narrows_govern::{IdentityMethod, Principal};
use narrows_link::{InputBudget, InputShare, Link, Options};
use narrows_wire::{Code as Problem, DEFAULT_MAX_LINE_BYTES, Frame, Kind, RpcError, message};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::approval_server;
use super::identities::{Identities, UNAUTHENTICATED_OPTIONS};
use super::manifest_server::{ChainSupport, ManifestServer};
use super::parent_process;
use super::run_gate;
use super::shutdown::Shutdown;
use super::slots::{Slot, Slots};
use super::web::{WebClient, WebListeners, WebServer};
use crate::failure::{ExitStatus, Failure};
use crate::output;
use crate::terminal::line;

/// The time for a client to send its first valid message.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The time for a refused client to send a request, which gets the refusal as its answer.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of refused clients whose first request is awaited at once.
const MAX_REFUSALS: usize = 64;

/// Maximum number of unauthenticated clients at once. They take no slots, and only learn how to authenticate.
const MAX_UNAUTHENTICATED: usize = 64;

/// Maximum number of clients that are being identified at once. Slots are assigned later.
const MAX_LOOKUPS: usize = 16;

/// The delay after a failed accept, such as one for lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// A listener. A new transport needs a variant here and in [`ClientStream`].
enum ClientListener {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Removes the socket file when dropped.
        _file: Listener,
    },
    /// The only client, on stdio. `true` once this client was accepted.
    Stdio(bool),
    /// All HTTP and WebSocket listeners.
    Web(Box<WebListeners>),
}

enum ClientStream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Stdio,
    Web(WebClient),
}

struct ClientAcceptor {
    server: ManifestServer,
    slots: Arc<Slots>,
    /// The memory budget for incomplete messages of admitted clients on unix sockets, TCP and stdio.
    input: Arc<InputBudget>,
    lookups: Arc<Semaphore>,
    unauthenticated: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    shutdown: Shutdown,
}

/// Serves clients of all listeners, within the limits, until a signal asks to stop.
pub(super) async fn serve(
    server: ManifestServer,
    places: &[ListenerSettings],
    limits: &BusLimits,
    shutdown: Shutdown,
) -> Result<ExitCode, Failure> {
    let Some(ready) = shutdown.unless_requested(server.prepare_agent()).await else {
        return Err(shutdown.failure());
    };
    ready?;
    let has_web = places.iter().any(|place| matches!(place.addr, ListenAddr::Web(_)));
    let slots = Slots::new(limits.max_connections, has_web || server.identities.has_file());
    let (web, webs) = WebListeners::open(places, limits, &slots)?.unzip();
    let mut open: Vec<ClientListener> =
        web.map(|web| ClientListener::Web(Box::new(web))).into_iter().collect();
    let (mut addrs, mut webs) = (Vec::new(), webs.into_iter().flatten());
    for place in places {
        if let ListenAddr::Web(_) = &place.addr {
            addrs.extend(webs.next());
        } else {
            let (place, at) = ClientListener::open(&place.addr, &server)?;
            open.push(place);
            addrs.push(at);
        }
    }
    let admin_socket = approval_server::open(&server.manifest, server.gates.clone())?;
    let id = &server.manifest.bundle.acp.front.id;
    for at in addrs {
        print_notice(&format!("listening on {at}, manifest {id}"));
    }
    if let Some(admin_socket) = &admin_socket {
        print_notice(&format!("approvals listening on unix:{}", admin_socket.path.display()));
    }
    let [lookups, unauthenticated, refusals] =
        [MAX_LOOKUPS, MAX_UNAUTHENTICATED, MAX_REFUSALS].map(|count| Arc::new(Semaphore::new(count)));
    let input = InputBudget::new(
        limits.unfinished_input,
        limits.unfinished_input_per_identity.max(DEFAULT_MAX_LINE_BYTES),
    );
    let acceptor =
        Arc::new(ClientAcceptor { server, slots, input, lookups, unauthenticated, refusals, shutdown });
    let mut receiving = JoinSet::new();
    for place in open {
        receiving.spawn(Arc::clone(&acceptor).receive(place));
    }
    while receiving.join_next().await.is_some() {}
    drop(admin_socket);
    acceptor.server.close().await;
    Ok(ExitStatus::Success.exit_code())
}

fn print_notice(text: &str) {
    output::write_stderr_bounded(format!("{}\n", line(text)));
}

impl ClientListener {
    /// Opens a listener and returns its actual address. Port 0 is replaced by the assigned port.
    fn open(admin_socket: &ListenAddr, server: &ManifestServer) -> Result<(Self, ListenAddr), Failure> {
        if *admin_socket == ListenAddr::Stdio {
            return Ok((Self::Stdio(false), ListenAddr::Stdio));
        }
        let (listener, at) = bind(admin_socket).map_err(|error| Failure::serve_listener(&error))?;
        let ready = |error: io::Error| Failure::setup("listen", &error);
        let fd = listener.socket().map_err(ready)?;
        let place = match &at {
            ListenAddr::Unix(path) => {
                if server.identities.has_others() {
                    // Every user may connect to the socket, because the system reports the user of each
                    // connection.
                    std::fs::set_permissions(path, Permissions::from_mode(0o666)).map_err(ready)?;
                }
                Self::Unix { listener: UnixListener::from_std(fd.into()).map_err(ready)?, _file: listener }
            }
            _ => Self::Tcp(TcpListener::from_std(fd.into()).map_err(ready)?),
        };
        Ok((place, at))
    }

    /// Accepts the next connection. Cancel-safe.
    async fn accept(&mut self) -> io::Result<ClientStream> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| ClientStream::Tcp(stream)),
            Self::Unix { listener, .. } => {
                listener.accept().await.map(|(stream, _)| ClientStream::Unix(stream))
            }
            Self::Stdio(is_taken) if !*is_taken => {
                *is_taken = true;
                Ok(ClientStream::Stdio)
            }
            Self::Stdio(_) => std::future::pending().await,
            Self::Web(web) => web.accept().await.map(ClientStream::Web),
        }
    }

    /// Stops accepting and removes the file. Returns the server that still serves open connections.
    fn stop_accepting(self) -> Option<WebServer> {
        match self {
            Self::Web(web) => Some(web.close()),
            Self::Tcp(_) | Self::Unix { .. } | Self::Stdio(_) => None,
        }
    }
}

impl ClientStream {
    /// Writes a refusal, if that is possible without blocking.
    fn refuse(&self) {
        let mut line = message::error(b"null", &too_many_connections()).to_vec();
        line.push(b'\n');
        let _ = match self {
            Self::Tcp(stream) => stream.try_write(&line),
            Self::Unix(stream) => stream.try_write(&line),
            // The HTTP server has already refused its clients.
            Self::Stdio | Self::Web(_) => Ok(0),
        };
    }

    fn take_slot(&mut self) -> Option<Slot> {
        match self {
            Self::Web(client) => client.slot.take(),
            Self::Tcp(_) | Self::Unix(_) | Self::Stdio => None,
        }
    }

    /// Identifies the client. Returns `Err` if the client is not admitted.
    async fn admit(&self, identities: &Identities) -> Result<Principal, Principal> {
        let (user, method) = match self {
            Self::Tcp(stream) => {
                let socket = stream.as_fd().try_clone_to_owned().ok();
                let lookup = move || narrows_link::peer::user_of(socket?.as_fd());
                (tokio::task::spawn_blocking(lookup).await.unwrap_or_default(), IdentityMethod::SocketOwner)
            }
            Self::Unix(stream) => (stream.peer_cred().ok().map(|peer| peer.uid()), IdentityMethod::UnixPeer),
            Self::Stdio => (Some(parent_process::parent_user()), IdentityMethod::Process),
            Self::Web(client) => return client.admit(identities),
        };
        identities.admit(user, method)
    }

    fn into_link(self, options: &Options) -> io::Result<Link> {
        Ok(match self {
            Self::Tcp(stream) => {
                let (reader, writer) = stream.into_split();
                narrows_link::stream(reader, writer, &Options { guard_first_line: true, ..*options })
            }
            Self::Unix(stream) | Self::Web(WebClient { stream, .. }) => {
                narrows_link::socket::unix(stream, options)
            }
            Self::Stdio => narrows_link::stdio::take(options)?,
        })
    }
}

impl ClientAcceptor {
    /// Accepts clients of one listener until the shutdown, then waits for their connections to end.
    async fn receive(self: Arc<Self>, mut place: ClientListener) {
        let mut clients = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = self.shutdown.requested() => break,
                Some(_) = clients.join_next() => {}
                stream = place.accept() => match stream {
                    Ok(stream) => {
                        // The wait is short, because identifying a client does not wait for the client. The
                        // semaphore is never closed.
                        let lookup = Arc::clone(&self.lookups).acquire_owned().await.ok();
                        clients.spawn(Arc::clone(&self).handle_client(stream, lookup));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept connections, retrying");
                        sleep(ACCEPT_RETRY_DELAY).await;
                    }
                },
            }
        }
        let web_server = place.stop_accepting();
        while clients.join_next().await.is_some() {}
        if let Some(web_server) = web_server {
            web_server.finish(&self.shutdown).await;
        }
    }

    async fn handle_client(self: Arc<Self>, mut stream: ClientStream, lookup: Option<OwnedSemaphorePermit>) {
        let is_stdio = matches!(stream, ClientStream::Stdio);
        // Identification comes first: a client that has disconnected can no longer be identified.
        let admitted = stream.admit(&self.server.identities).await;
        drop(lookup);
        let own_slot = stream.take_slot();
        let served = match admitted {
            Ok(who) => match own_slot.map_or_else(|| self.slots.acquire(&who.id), Ok) {
                Ok(slot) => {
                    let served = self.serve_client(stream, who).await;
                    drop(slot);
                    served
                }
                Err(_) => {
                    self.refuse(stream).await;
                    Ok(())
                }
            },
            Err(who) => self.serve_unauthenticated(stream, &who).await,
        };
        if let Err(failure) = served {
            tracing::error!("{}", failure.message());
        }
        if is_stdio {
            // On stdio the process ends with the client that started it, like a bus.
            self.shutdown.request();
        }
    }

    /// Serves one client, from its first message to its end.
    async fn serve_client(&self, stream: ClientStream, who: Principal) -> Result<(), Failure> {
        // Connections over HTTP and WebSocket are counted by the HTTP server.
        let share = (!matches!(stream, ClientStream::Web(_))).then(|| self.input.share(&who.id));
        match self.first_message(stream, &Options::default(), share).await? {
            Some(client) => {
                self.server.serve_until_revoked(client, who, ChainSupport::Impossible, &self.shutdown).await
            }
            None => Ok(()),
        }
    }

    /// Explains to a client that is not admitted how to authenticate.
    async fn serve_unauthenticated(&self, stream: ClientStream, who: &Principal) -> Result<(), Failure> {
        let Ok(_place) = self.unauthenticated.try_acquire() else {
            stream.refuse();
            return Ok(());
        };
        if let Some(client) = self.first_message(stream, &UNAUTHENTICATED_OPTIONS, None).await? {
            self.server.serve_unauthenticated(who, client, &self.shutdown).await;
        }
        Ok(())
    }

    /// Waits for the first message of a client and leaves it in the queue. Returns `None` if none arrives in
    /// time.
    async fn first_message(
        &self,
        stream: ClientStream,
        options: &Options,
        share: Option<InputShare>,
    ) -> Result<Option<Link>, Failure> {
        let mut client =
            stream.into_link(options).map_err(|error| Failure::setup("accept a client", &error))?;
        if let Some(share) = share {
            client.limit_input(share);
        }
        let first =
            self.shutdown.unless_requested(timeout(FIRST_MESSAGE_TIMEOUT, first_message(&mut client))).await;
        Ok(matches!(first, Some(Ok(true))).then_some(client))
    }

    /// Refuses a client for lack of slots. The refusal answers its first request, unless too many clients are
    /// being refused.
    async fn refuse(&self, stream: ClientStream) {
        match self.refusals.try_acquire() {
            Ok(_place) => refuse(stream).await,
            Err(_) => stream.refuse(),
        }
    }
}

async fn refuse(stream: ClientStream) {
    if let Ok(mut client) = stream.into_link(&UNAUTHENTICATED_OPTIONS) {
        let first = timeout(REFUSAL_TIMEOUT, client.receiver.peek()).await.ok().flatten();
        let id = first.filter(|first| first.kind() == Kind::Request).and_then(Frame::id).unwrap_or(b"null");
        let _ = client.sender.push(message::error(id, &too_many_connections()));
        client.sender.close();
        run_gate::drain_output(&client.sender).await;
    }
}

fn too_many_connections() -> RpcError {
    RpcError::new(Problem::Backpressure, "too many connections")
}

/// Waits for a valid message and leaves it in the queue. Answers invalid ones. Returns `false` at the end of input.
async fn first_message(client: &mut Link) -> bool {
    loop {
        match client.receiver.peek().await {
            None => return false,
            Some(frame) if !matches!(frame.kind(), Kind::Invalid(_)) => return true,
            Some(_) => {}
        }
        let refusal = client.receiver.recv().await.and_then(|frame| frame.refusal());
        if let Some(answer) = refusal
            && client.sender.send(answer).await.is_err()
        {
            return false;
        }
    }
}
