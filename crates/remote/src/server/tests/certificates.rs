//! Client certificates whose authority is removed while their clients are connected, and TLS session resumption.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use futures_util::{SinkExt, StreamExt};
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{HandshakeKind, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::super::{ClientAuth, HttpLimits, HttpListenerConfig};
use super::kit::{LONG, Running, initialize, listener, start};
use super::secure::{authority, client_config, client_config_of, files, tls};
use crate::server_tls::TlsFiles;
use crate::tokens;

/// A server that admits clients of two authorities. The first has signed the certificates of the server and of the
/// client.
struct Setup {
    running: Running,
    first: TempDir,
    second: TempDir,
}

impl Setup {
    /// Returns `None` without openssl.
    fn new(auth: ClientAuth) -> Option<Self> {
        let (first, second) = (authority()?, authority()?);
        let accepted = first.path().join("accepted.pem");
        let tls = TlsFiles { client_ca: Some(accepted), ..files(first.path(), false) };
        accept(first.path(), &[first.path(), second.path()]);
        let running = start(HttpListenerConfig { auth, tls: Some(tls), ..listener() }, HttpLimits::default());
        Some(Self { running, first, second })
    }

    /// Reloads with these authorities in `client_ca`.
    fn reload(&self, authorities: &[&Path]) {
        accept(self.first.path(), authorities);
        self.running.handle.reload().unwrap();
    }

    /// Opens a socket with the client certificate of the first authority.
    async fn connect(&self, alpn: &[&str]) -> TlsStream<TcpStream> {
        let at = self.first.path();
        tls(self.running.address, at.join("ca.pem"), Some(at), alpn).await.unwrap()
    }

    async fn web(&self) -> WebSocketStream<TlsStream<TcpStream>> {
        let stream = self.connect(&[]).await;
        let (mut socket, _) = tokio_tungstenite::client_async("wss://localhost/acp", stream).await.unwrap();
        socket.send(Message::text(initialize(0))).await.unwrap();
        assert!(socket.next().await.unwrap().unwrap().is_text());
        socket
    }
}

fn accept(at: &Path, authorities: &[&Path]) {
    let all: Vec<String> =
        authorities.iter().map(|authority| fs::read_to_string(authority.join("ca.pem")).unwrap()).collect();
    fs::write(at.join("accepted.pem"), all.concat()).unwrap();
}

/// Sends `initialize` over an open socket. Returns the status, or `None` if the socket was closed.
async fn post(stream: &mut BufReader<TlsStream<TcpStream>>, header: &str) -> Option<u16> {
    let body = initialize(0);
    let request = format!(
        "POST /acp HTTP/1.1\r\nhost: localhost\r\n{header}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let (mut status, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        if timeout(LONG, stream.read_line(&mut line)).await.expect("a line in time").ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        status = status.or_else(|| line.split(' ').nth(1)?.parse().ok());
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
    }
    stream.read_exact(&mut vec![0; length]).await.ok()?;
    status
}

#[tokio::test]
async fn a_request_on_an_open_connection_is_refused_once_its_authority_is_removed() {
    let Some(setup) = Setup::new(ClientAuth::Mtls) else { return };
    let mut stream = BufReader::new(setup.connect(&["http/1.1"]).await);
    assert_eq!(post(&mut stream, "").await, Some(200));
    setup.reload(&[setup.first.path()]);
    assert_eq!(post(&mut stream, "").await, Some(200), "its authority is still accepted");
    setup.reload(&[setup.second.path()]);
    assert!(matches!(post(&mut stream, "").await, None | Some(401)));
    assert_eq!(post(&mut stream, "").await, None, "the connection is closed");
}

#[tokio::test]
async fn an_http2_request_is_refused_once_its_authority_is_removed() {
    let Some(setup) = Setup::new(ClientAuth::Mtls) else { return };
    let at = setup.first.path();
    let config = client_config(&at.join("ca.pem"), Some(at), &["h2"]);
    let client = reqwest::Client::builder().tls_backend_preconfigured(config).no_proxy().build().unwrap();
    let url = format!("https://localhost:{}/acp", setup.running.address.port());
    let post = async || {
        let request = client.post(&url).header("content-type", "application/json").body(initialize(0));
        request.send().await.map(|answer| (answer.version(), answer.status().as_u16())).ok()
    };
    assert_eq!(post().await, Some((reqwest::Version::HTTP_2, 200)));
    setup.reload(&[setup.first.path()]);
    assert_eq!(post().await, Some((reqwest::Version::HTTP_2, 200)));
    setup.reload(&[setup.second.path()]);
    for _ in 0..3 {
        assert!(matches!(post().await, None | Some((_, 401))));
    }
}

#[tokio::test]
async fn a_web_socket_is_closed_once_its_authority_is_removed() {
    let Some(setup) = Setup::new(ClientAuth::Mtls) else { return };
    let mut socket = setup.web().await;
    setup.reload(&[setup.first.path()]);
    socket.send(Message::text(initialize(1))).await.unwrap();
    assert!(socket.next().await.unwrap().unwrap().is_text(), "its authority is still accepted");
    setup.reload(&[setup.second.path()]);
    match timeout(LONG, socket.next()).await.expect("closed in time").unwrap().unwrap() {
        Message::Close(Some(frame)) => assert_eq!(u16::from(frame.code), 4401),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_token_does_not_replace_a_certificate_whose_authority_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens.toml");
    let token = tokens::add(&file, "one", None, std::time::SystemTime::UNIX_EPOCH).unwrap();
    let Some(setup) = Setup::new(ClientAuth::Token(file)) else { return };
    let header = format!("authorization: Bearer {token}\r\n");
    let mut stream = BufReader::new(setup.connect(&["http/1.1"]).await);
    assert_eq!(post(&mut stream, &header).await, Some(200));
    setup.reload(&[setup.second.path()]);
    assert!(matches!(post(&mut stream, &header).await, None | Some(401)));
}

#[tokio::test]
async fn an_idle_connection_is_closed_once_its_authority_is_removed() {
    let Some(setup) = Setup::new(ClientAuth::Mtls) else { return };
    let mut stream = BufReader::new(setup.connect(&["http/1.1"]).await);
    assert_eq!(post(&mut stream, "").await, Some(200));
    setup.reload(&[setup.second.path()]);
    let read = timeout(LONG, stream.read(&mut [0; 16])).await.expect("closed in time");
    assert_eq!(read.unwrap_or(0), 0);
}

/// Returns the kinds of two handshakes of one client, which resumes a session if the server permits it.
async fn handshakes(
    version: &'static SupportedProtocolVersion,
    auth: ClientAuth,
    client_ca: bool,
) -> Option<[HandshakeKind; 2]> {
    let directory = authority()?;
    let at = directory.path();
    let running = start(
        HttpListenerConfig { auth, tls: Some(files(at, client_ca)), ..listener() },
        HttpLimits::default(),
    );
    let client = client_ca.then_some(at);
    let config = client_config_of(&[version], &at.join("ca.pem"), client, &["http/1.1"]);
    let connector = TlsConnector::from(Arc::new(config));
    let mut kinds = [HandshakeKind::Full; 2];
    for kind in &mut kinds {
        let stream = TcpStream::connect(running.address).await.unwrap();
        let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
        // Tickets arrive with the response.
        let mut stream = BufReader::new(stream);
        assert_eq!(post(&mut stream, "").await, Some(200));
        *kind = stream.get_ref().get_ref().1.handshake_kind().unwrap();
    }
    Some(kinds)
}

#[tokio::test]
async fn a_client_with_a_certificate_cannot_resume_a_session_of_tls() {
    for version in [&TLS12, &TLS13] {
        let Some(kinds) = handshakes(version, ClientAuth::Mtls, true).await else { return };
        assert_eq!(kinds, [HandshakeKind::Full; 2], "{version:?}");
        let kinds = handshakes(version, ClientAuth::None, false).await.unwrap();
        assert_eq!(kinds, [HandshakeKind::Full, HandshakeKind::Resumed], "{version:?}");
    }
}
