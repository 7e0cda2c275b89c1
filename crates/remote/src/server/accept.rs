//! Accepts TCP connections: limits their number, does the TLS handshake, and times out sockets that send no request.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::certificate::ClientCertificate;
use super::http_connection::{HttpConnection, MAX_CONCURRENT_READ_OUTS};
use super::io::{Io, tune};
use super::listener::{Admits, HttpListener};
use super::refusal_stats::RefusalReason;
use super::shared::HttpServerState;
use super::unfinished::FreeAllowance;
use crate::identity::{Identity, Proof};

const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

const MAX_HEAD_BYTES: usize = 32 << 10;

/// The longest head of a request whose client is not authenticated yet, in bytes. The memory of this head
/// counts towards no limit.
const MAX_UNPROVEN_HEAD_BYTES: usize = 8 << 10;

const MAX_STREAMS: u32 = 100;

/// The longest list of headers of one HTTP/2 stream, in bytes. The headers of running requests count towards
/// no limit.
const MAX_HEADER_LIST_BYTES: u32 = 8 << 10;

/// Bytes of bodies that one HTTP/2 socket may receive before the server reads them. These bytes count towards
/// no limit. The protocol allows no smaller value.
const BODY_WINDOW_BYTES: u32 = (64 << 10) - 1;

/// Time for a client to read the alert after a failed TLS handshake.
const TLS_FAILURE_LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Time to send the remaining responses on a socket that is closed to make room.
const EVICTION_TIMEOUT: Duration = Duration::from_millis(500);

const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) async fn accept(
    shared: Arc<HttpServerState>,
    http_listener: Arc<HttpListener>,
    listener: TcpListener,
) {
    let mut stopping = pin!(shared.stopping());
    loop {
        let accepted = async {
            // A permit is taken after the accept, so that room is made only for a client that exists.
            let (stream, peer) = listener.accept().await?;
            // An error is impossible, because the semaphore is never closed.
            let permit = shared.sockets.acquire(&shared.refusals).await;
            let permit = permit.map_err(io::Error::other)?;
            io::Result::Ok((permit, stream, peer))
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            () = &mut stopping => return,
        };
        match accepted {
            Ok((permit, stream, peer)) => {
                tokio::spawn(serve(Arc::clone(&shared), Arc::clone(&http_listener), stream, peer, permit));
            }
            Err(error) => {
                tracing::debug!(%error, "accept failed");
                sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

async fn serve(
    shared: Arc<HttpServerState>,
    http_listener: Arc<HttpListener>,
    stream: TcpStream,
    peer: SocketAddr,
    permit: OwnedSemaphorePermit,
) {
    let limits = &shared.limits;
    if let Err(error) = tune(&stream, limits.idle_timeout) {
        tracing::debug!(%error, "socket options not set");
    }
    let began = tokio::time::Instant::now();
    let socket = shared.sockets.add();
    let handshake = async {
        let user = match http_listener.admits {
            Admits::Users | Admits::Owner(_) => peer_user(&stream).await,
            _ => None,
        };
        (user, timeout(limits.header_timeout, secure(&http_listener, stream)).await)
    };
    let (user, secured) = tokio::select! {
        () = socket.close_requested() => return,
        arrived = handshake => arrived,
    };
    let Secured { io, certificate, identity } =
        match secured.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(secured) => secured,
            Err(error) => {
                shared.refusals.add(RefusalReason::Tls);
                return tracing::info!(peer = %peer.ip(), %error, "TLS handshake failed");
            }
        };
    let socket_identity = identity.or(user);
    let max_head = match http_listener.is_proven_by(socket_identity.as_ref()) {
        true => MAX_HEAD_BYTES,
        false => MAX_UNPROVEN_HEAD_BYTES,
    };
    let http_connection = Arc::new(HttpConnection {
        shared: Arc::clone(&shared),
        http_listener,
        peer: peer.ip(),
        socket_identity,
        certificate: certificate.clone().map(Mutex::new),
        socket,
        refused: Notify::new(),
        read_out: Semaphore::new(MAX_CONCURRENT_READ_OUTS),
        permit: Arc::new(permit),
        allowance: FreeAllowance::default(),
    });
    let service = service_fn({
        let http_connection = Arc::clone(&http_connection);
        move |request| Arc::clone(&http_connection).respond(request)
    });
    let builder = builder(limits.idle_timeout.max(limits.header_timeout), limits.idle_timeout, max_head);
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(io), service));
    let mut deadline = pin!(tokio::time::sleep_until(began + limits.header_timeout));
    let mut end = pin!(async {
        let revoked = async {
            match certificate {
                Some(mut certificate) => certificate.revoked().await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = shared.stopping() => {}
            () = revoked => tracing::info!(peer = %peer.ip(), "client certificate no longer accepted, closing socket"),
        }
    });
    let mut has_deadline = true;
    let mut ending = false;
    loop {
        tokio::select! {
            ended = &mut connection => {
                if let Err(error) = ended {
                    if is_invalid_request(&*error, http_connection.socket.is_known()) {
                        shared.refusals.add(RefusalReason::Headers);
                    }
                    tracing::debug!(%error, "HTTP socket failed");
                }
                break;
            }
            () = &mut deadline, if has_deadline => {
                has_deadline = false;
                if !ending && !http_connection.socket.is_known() {
                    shared.refusals.add(RefusalReason::Headers);
                    break;
                }
                if ending {
                    break;
                }
            }
            () = http_connection.socket.close_requested() => {
                if ending || !http_connection.socket.is_known() {
                    break;
                }
                // The socket accepts no more requests, but running ones may complete.
                ending = true;
                has_deadline = true;
                deadline.set(tokio::time::sleep_until(tokio::time::Instant::now() + EVICTION_TIMEOUT));
                connection.as_mut().graceful_shutdown();
            }
            () = http_connection.refused.notified(), if !ending => connection.as_mut().graceful_shutdown(),
            () = &mut end, if !ending => {
                ending = true;
                has_deadline = true;
                deadline.set(tokio::time::sleep_until(tokio::time::Instant::now() + CLOSE_TIMEOUT));
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

struct Secured {
    io: Io,
    certificate: Option<ClientCertificate>,
    identity: Option<Identity>,
}

async fn secure(http_listener: &HttpListener, stream: TcpStream) -> io::Result<Secured> {
    // The changes are subscribed to before the handshake, so that a reload during the handshake is noticed.
    let Some(mut tls) = http_listener.tls() else {
        return Ok(Secured { io: Io::Tcp(stream), certificate: None, identity: None });
    };
    let verified_by = Arc::clone(&tls.borrow_and_update());
    let stream = match TlsAcceptor::from(Arc::clone(&verified_by.config)).accept(stream).into_fallible().await
    {
        Ok(stream) => stream,
        Err((error, stream)) => {
            // The alert is sent on a best-effort basis.
            _ = timeout(TLS_FAILURE_LINGER_TIMEOUT, drain_after_alert(stream)).await;
            return Err(error);
        }
    };
    let chain = stream.get_ref().1.peer_certificates();
    let named = chain.and_then(|chain| chain.first()).map(|leaf| crate::server_tls::identity(leaf));
    let certificate = chain.map(|chain| ClientCertificate::new(chain, tls, verified_by));
    let identity = match named.transpose() {
        Ok(identity) => identity,
        Err(reason) => {
            if matches!(http_listener.admits, Admits::Certificates) {
                let peer =
                    stream.get_ref().0.peer_addr().map(|peer| peer.ip().to_string()).unwrap_or_default();
                tracing::warn!(peer, %reason, "client certificate without identity refused");
            }
            None
        }
    };
    Ok(Secured { io: Io::Tls(Box::new(stream)), certificate, identity })
}

/// Lets the client read the TLS alert: closing a socket with unread input would reset it and discard the alert.
async fn drain_after_alert(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = [0; 512];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// Returns the user that owns the peer socket. Runs on a blocking thread: the system's table may be long.
async fn peer_user(stream: &TcpStream) -> Option<Identity> {
    let socket = stream.as_fd().try_clone_to_owned().ok()?;
    let uid =
        tokio::task::spawn_blocking(move || narrows_link::peer::user_of(socket.as_fd())).await.ok()??;
    Some(Identity::new(Proof::User, uid.to_string()))
}

/// Returns `true` if an HTTP connection ended because the client sent an invalid request head, or no head in
/// time.
fn is_invalid_request(error: &(dyn std::error::Error + 'static), known: bool) -> bool {
    let error = error.downcast_ref::<hyper::Error>();
    error.is_some_and(|error| error.is_parse() || (error.is_timeout() && !known))
}

fn builder(between: Duration, idle: Duration, max_head: usize) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(between).max_buf_size(max_head);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .initial_connection_window_size(BODY_WINDOW_BYTES)
        .initial_stream_window_size(BODY_WINDOW_BYTES)
        .keep_alive_interval(idle / 3)
        .keep_alive_timeout(idle / 3);
    builder
}
