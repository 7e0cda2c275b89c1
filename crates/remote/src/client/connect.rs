//! Opens and configures sockets to a server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use narrows_link::socket::Address;
use reqwest::header::{AUTHORIZATION, COOKIE, HeaderValue, USER_AGENT};
use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error as WsError, error::ProtocolError};
use url::Url;

use super::cookies::Cookies;
use super::ping_filter::PingFilter;
use super::socket::{Io, ServerSocket};
use super::{ClientOptions, DialError, Target, tls_roots};

pub(super) const USER_AGENT_VALUE: &str = concat!("narrows/", env!("CARGO_PKG_VERSION"));

/// Size of the kernel buffer for each direction. Bytes in flight must be fewer than those kept for replay.
const SOCKET_BUFFER_BYTES: u32 = 256 << 10;

/// Time after which sent data without an acknowledgment breaks the connection. The kernel sends no keepalive
/// probe while data is unacknowledged, so this time and [`KEEPALIVE_IDLE_TIME`] add up.
const UNCONFIRMED_TIMEOUT: Duration = Duration::from_secs(30);

/// Idle time before the kernel sends the first TCP keepalive probe.
const KEEPALIVE_IDLE_TIME: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

pub(super) struct Connector {
    target: Target,
    pub(super) options: ClientOptions,
    tls: Option<TlsConnector>,
    bearer: Option<HeaderValue>,
    cookies: Cookies,
}

impl Connector {
    pub(super) fn new(target: &Target, options: ClientOptions) -> Result<Self, DialError> {
        let bearer = bearer_header(target, &options)?;
        check_client_certificate(target, &options)?;
        let tls = match target {
            Target::WebSocket(url) if url.scheme() == "wss" => {
                Some(TlsConnector::from(Arc::new(tls_roots::config(&options, &["http/1.1"])?)))
            }
            _ => None,
        };
        Ok(Self { target: target.clone(), options, tls, bearer, cookies: Cookies::default() })
    }

    pub(super) async fn dial(&self) -> Result<ServerSocket, DialError> {
        let limit = self.options.connect_timeout;
        let is_accepted = AtomicBool::new(false);
        let opened = timeout(limit, self.open(&is_accepted)).await.unwrap_or_else(|_| {
            let stalled = is_accepted.load(Ordering::Relaxed);
            Err(if stalled { DialError::Unanswered(limit) } else { DialError::Timeout(limit) })
        });
        opened.map_err(|error| error.with_credentials(&self.options))
    }

    /// Opens a socket to the target. Sets `is_accepted` once the TCP connection is established, even if the
    /// server does not respond.
    async fn open(&self, is_accepted: &AtomicBool) -> Result<ServerSocket, DialError> {
        let max_line = self.options.link.max_line;
        match &self.target {
            Target::WebSocket(url) => self.upgrade(url, is_accepted).await,
            Target::Lines(Address::Tcp(place)) => {
                Ok(ServerSocket::lines(Box::new(tcp(place).await?), max_line))
            }
            Target::Lines(Address::Unix(path)) => {
                let opened = UnixStream::connect(path).await;
                let stream =
                    opened.map_err(|error| DialError::from_io(&error, &path.display().to_string()))?;
                Ok(ServerSocket::lines(Box::new(stream), max_line))
            }
            Target::Http(_) => Err(DialError::Protocol("an HTTP endpoint has no socket".to_owned())),
        }
    }

    async fn upgrade(&self, url: &Url, is_accepted: &AtomicBool) -> Result<ServerSocket, DialError> {
        let host = url.host_str().unwrap_or_default();
        let place = format!("{host}:{}", url.port_or_known_default().unwrap_or(80));
        let stream = tcp(&place).await?;
        is_accepted.store(true, Ordering::Relaxed);
        let stream: Io = match &self.tls {
            Some(tls) => {
                let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name =
                    ServerName::try_from(bare).map_err(|error| DialError::Certificate(error.to_string()))?;
                let encrypted = tls.connect(name, stream).await;
                Box::new(encrypted.map_err(|error| DialError::from_io(&error, &place))?)
            }
            None => Box::new(stream),
        };
        let mut request =
            url.as_str().into_client_request().map_err(|error| handshake_error(error, &place))?;
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE));
        headers.extend(self.bearer.clone().map(|bearer| (AUTHORIZATION, bearer)));
        headers.extend(self.cookies.header().map(|cookies| (COOKIE, cookies)));
        let most = self.options.link.max_line;
        let config = WebSocketConfig::default().max_message_size(Some(most)).max_frame_size(Some(most));
        let stream = PingFilter::new(stream);
        let pings = stream.pings();
        let (stream, response) = tokio_tungstenite::client_async_with_config(request, stream, Some(config))
            .await
            .map_err(|error| handshake_error(error, &place))?;
        self.cookies.store(response.headers());
        Ok(ServerSocket::websocket(stream, pings))
    }
}

/// Returns the `Authorization` header. Fails if the target has no headers or no encryption, or the token is
/// invalid.
pub(super) fn bearer_header(
    target: &Target,
    options: &ClientOptions,
) -> Result<Option<HeaderValue>, DialError> {
    let Some(token) = &options.token else { return Ok(None) };
    if matches!(target, Target::Lines(_)) {
        return Err(DialError::TokenNotSupported);
    }
    if target.is_exposed() {
        return Err(DialError::Exposed);
    }
    super::secret::bearer(token).map(Some).ok_or(DialError::Token)
}

/// Fails if there is a client certificate and the target does not use TLS.
pub(super) fn check_client_certificate(target: &Target, options: &ClientOptions) -> Result<(), DialError> {
    if options.client_certificate.is_some() && !target.speaks_tls() {
        Err(DialError::CertificateWithoutTls)
    } else {
        Ok(())
    }
}

async fn tcp(place: &str) -> Result<TcpStream, DialError> {
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
    let unknown = |why: String| DialError::Name(host.to_owned(), why);
    let addresses = tokio::net::lookup_host(place).await.map_err(|error| unknown(error.to_string()))?;
    let mut failed = unknown("no address".to_owned());
    for address in addresses {
        match connect_tcp(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = DialError::from_io(&error, place),
        }
    }
    Err(failed)
}

async fn connect_tcp(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
    let stream = socket.connect(address).await?;
    // Nagle's algorithm would only add latency, because messages are batched before they are written.
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE_TIME)?;
    sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(
        &stream,
        u32::try_from(UNCONFIRMED_TIMEOUT.as_millis()).unwrap_or(u32::MAX),
    )?;
    Ok(stream)
}

fn handshake_error(error: WsError, place: &str) -> DialError {
    match error {
        WsError::Http(response) => {
            let body = response.body().as_deref().unwrap_or_default();
            DialError::from_status(response.status().as_u16(), response.headers(), body)
        }
        WsError::Io(error) => DialError::from_io(&error, place),
        // A server that shuts down may close during the handshake.
        WsError::Protocol(ProtocolError::HandshakeIncomplete) => {
            DialError::ConnectionCut("closed during the handshake".to_owned())
        }
        WsError::Protocol(ProtocolError::HttparseError(_)) => DialError::NotHttp,
        error => DialError::Protocol(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dead_host_is_detected_within_45_seconds() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = connect_tcp(listener.local_addr().unwrap()).await.unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        let unconfirmed = Duration::from_millis(sockopt::tcp_user_timeout(&stream).unwrap().into());
        let asked = sockopt::tcp_keepidle(&stream).unwrap();
        // In the worst case, the last data was sent just before the first keepalive probe was due.
        assert_eq!(asked + unconfirmed, Duration::from_secs(45));
        let probes = sockopt::tcp_keepintvl(&stream).unwrap() * sockopt::tcp_keepcnt(&stream).unwrap();
        assert!(asked + probes <= Duration::from_secs(45));
    }
}
