//! TLS with an authority that is created for the test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use futures_util::{SinkExt, StreamExt};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, DEFAULT_VERSIONS, RootCertStore, SupportedProtocolVersion};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::Message;

use super::super::{ClientAuth, HttpLimits, HttpListenerConfig};
use super::kit::{initialize, listener, start};
use crate::server_tls::{TlsFiles, certificates};

/// Runs openssl in `directory`. Returns `false` if it is not installed.
fn openssl(directory: &Path, arguments: &str) -> bool {
    let done = Command::new("openssl").current_dir(directory).args(arguments.split(' ')).output();
    match done {
        Err(_) => false,
        Ok(done) => {
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            true
        }
    }
}

/// Creates an authority, a server certificate for localhost and a client certificate. Returns `None` without openssl.
pub(in super::super) fn authority() -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
    if !openssl(
        at,
        &format!("{new} -keyout ca.key -out ca.pem -subj /CN=test -addext basicConstraints=critical,CA:TRUE"),
    ) {
        println!("skipped: there is no openssl");
        return None;
    }
    for (name, subject, other) in
        [("server", "/CN=bus", "DNS:localhost,IP:127.0.0.1"), ("client", "/O=us/CN=laptop", "DNS:x")]
    {
        openssl(
            at,
            &format!(
                "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key -out {name}.csr -subj {subject} -addext subjectAltName={other}"
            ),
        );
        openssl(
            at,
            &format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -copy_extensions copyall -out {name}.pem"
            ),
        );
    }
    Some(directory)
}

pub(in super::super) fn files(at: &Path, client_ca: bool) -> TlsFiles {
    TlsFiles {
        cert: at.join("server.pem"),
        key: at.join("server.key"),
        client_ca: client_ca.then(|| at.join("ca.pem")),
    }
}

/// Returns the TLS configuration of a client that trusts `ca`, with a certificate if `client` is given.
pub(super) fn client_config(ca: &Path, client: Option<&Path>, alpn: &[&str]) -> ClientConfig {
    client_config_of(DEFAULT_VERSIONS, ca, client, alpn)
}

/// [`client_config`] with these TLS versions.
pub(super) fn client_config_of(
    versions: &[&'static SupportedProtocolVersion],
    ca: &Path,
    client: Option<&Path>,
    alpn: &[&str],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca).unwrap() {
        roots.add(certificate).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let builder = builder.with_root_certificates(roots);
    let mut config = match client {
        None => builder.with_no_client_auth(),
        Some(at) => {
            let key = PrivateKeyDer::from_pem_file(at.join("client.key")).unwrap();
            builder.with_client_auth_cert(certificates(&at.join("client.pem")).unwrap(), key).unwrap()
        }
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    config
}

pub(super) async fn tls(
    address: std::net::SocketAddr,
    ca: PathBuf,
    client: Option<&Path>,
    alpn: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let config = client_config(&ca, client, alpn);
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

#[tokio::test]
async fn everything_works_over_tls() {
    let Some(directory) = authority() else { return };
    let at = directory.path();
    let running =
        start(HttpListenerConfig { tls: Some(files(at, false)), ..listener() }, HttpLimits::default());
    let mut stream = tls(running.address, at.join("ca.pem"), None, &["http/1.1"]).await.unwrap();
    let body = initialize(0);
    let head = format!(
        "POST /acp HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("acp-connection-id: "), "{answer}");
    let both = tls(running.address, at.join("ca.pem"), None, &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(both.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let stream = tls(running.address, at.join("ca.pem"), None, &[]).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async("wss://localhost/acp", stream).await.unwrap();
    // This is enough data to fill every buffer, so that nothing is held back.
    let prompt = json!({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": {"count": 5000, "text": "x".repeat(500)}});
    socket.send(Message::text(prompt.to_string())).await.unwrap();
    for number in 1..=5000 {
        let message = socket.next().await.unwrap().unwrap();
        let value: serde_json::Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
        assert_eq!(value["params"]["update"]["number"], number);
    }
    let url = format!("https://localhost:{}/acp", running.address.port());
    let mut curl = Command::new("curl");
    curl.args(["-q", "--noproxy", "*", "-sS", "-i", "--max-time", "20", "--http2", "--cacert"])
        .arg(at.join("ca.pem"));
    curl.args(["-H", "content-type: application/json", "--data-binary", &body, &url]);
    match tokio::task::spawn_blocking(move || curl.output()).await.unwrap() {
        Err(_) => println!("skipped: there is no curl"),
        // Without HTTP/2 support, curl uses HTTP/1.1.
        Ok(done) => {
            let answer = String::from_utf8_lossy(&done.stdout);
            assert!(answer.starts_with("HTTP/2 200") || answer.starts_with("HTTP/1.1 200"), "{done:?}");
        }
    }
    // Cleartext is refused without harm to other clients.
    let mut clear = TcpStream::connect(running.address).await.unwrap();
    clear.write_all(b"GET /acp HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    _ = clear.read_to_end(&mut rest).await;
    assert!(!rest.starts_with(b"HTTP"));
}

#[tokio::test]
async fn a_client_certificate_proves_the_identity() {
    let Some(directory) = authority() else { return };
    let at = directory.path();
    let running = start(
        HttpListenerConfig { auth: ClientAuth::Mtls, tls: Some(files(at, true)), ..listener() },
        HttpLimits::default(),
    );
    let stream = tls(running.address, at.join("ca.pem"), Some(at), &[]).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async("wss://localhost/acp", stream).await.unwrap();
    socket.send(Message::text(initialize(0))).await.unwrap();
    assert!(socket.next().await.unwrap().unwrap().is_text());
    assert_eq!(running.agent.opened.lock().unwrap()[0].name, "laptop");
    // In TLS 1.3 the refusal arrives with the first read.
    let refused = async {
        let mut stream = tls(running.address, at.join("ca.pem"), None, &[]).await?;
        stream.write_all(b"GET /acp HTTP/1.1\r\nhost: localhost\r\n\r\n").await?;
        stream.read_u8().await
    };
    assert!(refused.await.is_err());
    let Some(other) = authority() else { return };
    let foreign = async {
        let mut stream = tls(running.address, at.join("ca.pem"), Some(other.path()), &[]).await?;
        stream.write_all(b"GET /acp HTTP/1.1\r\nhost: localhost\r\n\r\n").await?;
        stream.read_u8().await
    };
    assert!(foreign.await.is_err());
}

#[tokio::test]
async fn a_new_certificate_is_used_without_dropping_clients() {
    let (Some(old), Some(new)) = (authority(), authority()) else { return };
    let at = old.path();
    let running =
        start(HttpListenerConfig { tls: Some(files(at, false)), ..listener() }, HttpLimits::default());
    let stream = tls(running.address, at.join("ca.pem"), None, &[]).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async("wss://localhost/acp", stream).await.unwrap();
    let trusted = new.path().join("ca.pem");
    assert!(tls(running.address, trusted.clone(), None, &[]).await.is_err());
    // A key without its certificate changes nothing.
    std::fs::copy(new.path().join("server.key"), at.join("server.key")).unwrap();
    assert!(running.handle.reload().is_err());
    assert!(tls(running.address, at.join("ca.pem"), None, &[]).await.is_ok());
    std::fs::copy(new.path().join("server.pem"), at.join("server.pem")).unwrap();
    running.handle.reload().unwrap();
    assert!(tls(running.address, trusted, None, &[]).await.is_ok());
    socket.send(Message::text(initialize(0))).await.unwrap();
    assert!(socket.next().await.unwrap().unwrap().is_text());
}
