//! The proxy server: one task per connection, with timeouts.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::head::{self, HeadError, ProxyRequest};
use crate::host::{Host, Target};
use crate::list::HostAllowList;

/// Pause after the system lacked resources to accept a connection.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Time to read the rest of a refused request, so that the client gets the answer.
const REFUSAL_DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// A resolver of host names.
pub trait Resolve: Send + Sync {
    /// Returns the addresses of a name.
    fn resolve<'a>(
        &'a self,
        name: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;
}

/// The resolver of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve<'a>(
        &'a self,
        name: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(async move {
            Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
        })
    }
}

/// Timeouts and limits of the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    pub connections: usize,
    pub head: Duration,
    /// Timeout to resolve and connect to a host, in total.
    pub connect: Duration,
}

impl Default for Options {
    /// Returns limits of 64 connections, ten seconds to read a head, and twenty to resolve and connect.
    fn default() -> Self {
        Self { connections: 64, head: Duration::from_secs(10), connect: Duration::from_secs(20) }
    }
}

/// A refused request, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The requested target. `None` if the request could not be parsed.
    pub target: Option<Target>,
    pub reason: Reason,
}

/// Reason why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    #[error("the host is not on the allow list")]
    Unlisted,
    /// The name resolves to an address of this machine or a private network.
    #[error("the host resolves to a local or private address")]
    Private,
    #[error("not a proxy request")]
    Malformed,
    #[error("the request head is too long")]
    TooLong,
    #[error("the request head timed out")]
    TooSlow,
}

impl Reason {
    /// Returns the name of the reason in logs and answers.
    pub fn code(self) -> &'static str {
        match self {
            Self::Unlisted => "egress_denied",
            Self::Private => "egress_private_address",
            Self::Malformed => "egress_malformed",
            Self::TooLong => "egress_head_too_long",
            Self::TooSlow => "egress_head_too_slow",
        }
    }
}

enum ConnectionError {
    Denied(Denial),
    Unreachable(Target, io::Error),
    Gone,
}

struct ConnectionHandler {
    list: HostAllowList,
    options: Options,
    resolver: Arc<dyn Resolve>,
    denials: mpsc::Sender<Denial>,
}

/// Serves the proxy until the future is dropped, which closes every connection. Denials are lost while
/// `denials` is full.
pub async fn serve(
    listener: TcpListener,
    list: HostAllowList,
    options: Options,
    resolver: Arc<dyn Resolve>,
    denials: mpsc::Sender<Denial>,
) {
    let slots = Arc::new(Semaphore::new(options.connections));
    let handler = Arc::new(ConnectionHandler { list, options, resolver, denials });
    let mut visitors = JoinSet::new();
    loop {
        // An error is impossible, because the semaphore is never closed.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        while visitors.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_RETRY_PAUSE).await;
            continue;
        };
        let handler = Arc::clone(&handler);
        visitors.spawn(async move {
            handler.handle_connection(stream).await;
            drop(slot);
        });
    }
}

impl ConnectionHandler {
    async fn handle_connection(&self, mut stream: TcpStream) {
        let (status, words) = match self.handle_request(&mut stream).await {
            Ok(()) | Err(ConnectionError::Gone) => return,
            Err(ConnectionError::Denied(denial)) => {
                let target = denial.target.as_ref().map(ToString::to_string).unwrap_or_default();
                tracing::warn!(target, reason = %denial.reason, "egress denied");
                let status = match denial.reason {
                    Reason::Unlisted | Reason::Private => "403 Forbidden",
                    Reason::Malformed => "400 Bad Request",
                    Reason::TooLong => "431 Request Header Fields Too Large",
                    Reason::TooSlow => "408 Request Timeout",
                };
                let words = format!("{target} cannot be reached from this sandbox: {}\n", denial.reason);
                // A full channel already holds enough denials for the log.
                let _ = self.denials.try_send(denial);
                (status, words)
            }
            Err(ConnectionError::Unreachable(target, error)) => {
                ("502 Bad Gateway", format!("{target} cannot be reached: {error}\n"))
            }
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            words.len()
        );
        let farewell = async {
            stream.write_all(format!("{head}{words}").as_bytes()).await?;
            stream.shutdown().await?;
            // Closing a socket with unread data would reset it, and the client would lose the answer.
            let mut rest = (&mut stream).take(head::MAX_HEAD_BYTES as u64);
            copy(&mut rest, &mut tokio::io::sink()).await
        };
        let _ = timeout(REFUSAL_DRAIN_TIMEOUT, farewell).await;
    }

    async fn handle_request(&self, stream: &mut TcpStream) -> Result<(), ConnectionError> {
        let denied = |target, reason| Err(ConnectionError::Denied(Denial { target, reason }));
        let (bytes, end) = match timeout(self.options.head, read_head(stream)).await {
            Ok(Ok(Some(read))) => read,
            Ok(Ok(None)) => return denied(None, Reason::TooLong),
            Ok(Err(_)) => return Err(ConnectionError::Gone),
            Err(_) => return denied(None, Reason::TooSlow),
        };
        let (head, rest) = bytes.split_at(end);
        let ask = match head::read(head) {
            Ok(ask) => ask,
            Err(HeadError::Malformed | HeadError::Target | HeadError::Scheme | HeadError::Length) => {
                return denied(None, Reason::Malformed);
            }
        };
        let (ProxyRequest::Tunnel(target) | ProxyRequest::Request { target, .. }) = &ask;
        if !self.list.permits(target) {
            return denied(Some(target.clone()), Reason::Unlisted);
        }
        let mut server = match timeout(self.options.connect, self.connect_to(target)).await {
            Ok(Ok(server)) => server,
            Ok(Err(ConnectError::Private)) => return denied(Some(target.clone()), Reason::Private),
            Ok(Err(ConnectError::Io(error))) => {
                return Err(ConnectionError::Unreachable(target.clone(), error));
            }
            Err(_) => {
                return Err(ConnectionError::Unreachable(target.clone(), io::ErrorKind::TimedOut.into()));
            }
        };
        tracing::debug!(%target, "egress allowed");
        let gone = |_| ConnectionError::Gone;
        match &ask {
            ProxyRequest::Tunnel(_) => {
                stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.map_err(gone)?;
                server.write_all(rest).await.map_err(gone)?;
                copy_bidirectional(stream, &mut server).await.map_err(gone)?;
            }
            ProxyRequest::Request { head, body, .. } => {
                forward_request(stream, &mut server, head, rest, *body).await.map_err(gone)?;
            }
        }
        Ok(())
    }

    async fn connect_to(&self, target: &Target) -> Result<TcpStream, ConnectError> {
        let found = match &target.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self.resolver.resolve(name).await?,
        };
        if found.is_empty() {
            return Err(ConnectError::Io(io::ErrorKind::NotFound.into()));
        }
        let mut missed = ConnectError::Private;
        for address in
            found.into_iter().filter(|address| HostAllowList::permits_address(&target.host, *address))
        {
            match TcpStream::connect(SocketAddr::new(address, target.port)).await {
                Ok(stream) => return Ok(stream),
                Err(error) => missed = ConnectError::Io(error),
            }
        }
        Err(missed)
    }
}

/// Reason why no connection to a host was established.
enum ConnectError {
    Private,
    Io(io::Error),
}

impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Reads until the head is complete. Returns the data and the length of the head, or `None` if it is too
/// long.
async fn read_head(stream: &mut TcpStream) -> io::Result<Option<(Vec<u8>, usize)>> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        if let Some(end) = head::end(&bytes) {
            return Ok(Some((bytes, end)));
        }
        if bytes.len() >= head::MAX_HEAD_BYTES {
            return Ok(None);
        }
        let room = head::MAX_HEAD_BYTES - bytes.len();
        if (&mut *stream).take(room as u64).read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Forwards one request and its response. Does not read what the client sends after the request.
async fn forward_request(
    stream: &mut TcpStream,
    server: &mut TcpStream,
    head: &[u8],
    rest: &[u8],
    body: u64,
) -> io::Result<()> {
    let (mut from_client, mut to_client) = stream.split();
    let (mut from_server, mut to_server) = server.split();
    let sending = async {
        to_server.write_all(head).await?;
        let mut whole = AsyncReadExt::chain(rest, &mut from_client).take(body);
        copy(&mut whole, &mut to_server).await
    };
    let answering = forward_response(&mut from_server, &mut to_client);
    tokio::pin!(sending);
    tokio::pin!(answering);
    tokio::select! {
        sent = &mut sending => {
            sent?;
            answering.await
        }
        // A server may answer before it has read the whole body.
        answered = &mut answering => answered,
    }
}

async fn forward_response(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
) -> io::Result<()> {
    copy(from, to).await?;
    to.shutdown().await
}
