//! TLS with a private authority, proxies, redirects, and invalid settings.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread::{JoinHandle, spawn};

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;
use crate::{Client, Completion, Message, Request};

const ANSWER: &str = r#"{"choices":[{"message":{"content":"Hello"},"finish_reason":"stop"}]}"#;

fn request() -> Request {
    Request { model: "m".to_owned(), messages: vec![Message::user("Hi")], ..Request::default() }
}

async fn ask(client: &Client) -> Result<Completion, ModelError> {
    let request = request();
    let mut reply = client.chat(&request);
    while reply.next().await?.is_some() {}
    Ok(reply.into_completion())
}

fn serve(stream: impl Read + Write, response: &str) -> Option<String> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    stream.read_exact(&mut vec![0; length.unwrap_or(0)]).ok()?;
    stream.get_mut().write_all(response.as_bytes()).ok()?;
    stream.get_mut().flush().ok()?;
    Some(head)
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

/// Starts a server that answers each connection with the next response. Returns the heads of the requests at
/// its end.
fn server(responses: Vec<String>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("127.0.0.1:{}", listener.local_addr().unwrap().port());
    let heads = spawn(move || {
        let answered = responses.iter().map(|response| serve(listener.accept().ok()?.0, response));
        answered.map_while(|head| head).collect()
    });
    (address, heads)
}

fn beside(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/http").join(name)
}

fn tls_server() -> (String, JoinHandle<()>) {
    let pem = fs::read(beside("test_localhost.pem")).unwrap();
    let chain = CertificateDer::pem_slice_iter(&pem).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(&pem).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}/v1", listener.local_addr().unwrap().port());
    let done = spawn(move || {
        let Ok((stream, _)) = listener.accept() else { return };
        let connection = ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream: StreamOwned<ServerConnection, TcpStream> = StreamOwned::new(connection, stream);
        serve(&mut stream, &ok(ANSWER));
        stream.conn.send_close_notify();
        let _ = stream.flush();
    });
    (url, done)
}

#[tokio::test]
async fn an_authority_from_a_file_is_trusted() {
    let (url, done) = tls_server();
    let endpoint = Endpoint { ca_file: Some(beside("test_authority.pem")), ..Endpoint::new("test", url) };
    let answer = ask(&Client::new(endpoint).unwrap()).await.unwrap();
    assert_eq!(answer.message.text, "Hello");
    done.join().unwrap();
}

#[tokio::test]
async fn an_untrusted_certificate_is_refused_without_a_retry() {
    let (url, done) = tls_server();
    // A server certificate is no authority for itself, even if it is trusted as one.
    let endpoint = Endpoint { ca_file: Some(beside("test_localhost.pem")), ..Endpoint::new("test", url) };
    let error = ask(&Client::new(endpoint).unwrap()).await.unwrap_err();
    assert_eq!((error.kind, error.retryable), (ErrorKind::Network, false), "{error}");
    assert!(error.message.contains("certificate"), "{error}");
    done.join().unwrap();
}

#[tokio::test]
async fn a_missing_tls_handshake_is_not_retried() {
    // The system accepts the connection, but no response follows.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://127.0.0.1:{}/v1", silent.local_addr().unwrap().port());
    let mut endpoint = Endpoint { ca_file: Some(beside("test_authority.pem")), ..Endpoint::new("test", url) };
    endpoint.limits.connect = Duration::from_millis(100);
    let error = ask(&Client::new(endpoint).unwrap()).await.unwrap_err();
    assert_eq!((error.kind, error.retryable), (ErrorKind::Network, false), "{error}");
    assert_eq!(error.message, "no connection in time");
    silent.set_nonblocking(true).unwrap();
    assert!(silent.accept().is_ok(), "it was tried");
    assert!(silent.accept().is_err(), "once");
}

#[tokio::test]
async fn redirects_keep_the_method_and_the_host() {
    let elsewhere = |status: &str, to: &str| {
        format!("HTTP/1.1 {status}\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    };
    let (address, heads) =
        server(vec![elsewhere("308 Permanent Redirect", "/v2/chat/completions"), ok(ANSWER)]);
    let endpoint =
        Endpoint { key: Some("sk-secret".into()), ..Endpoint::new("test", format!("http://{address}/v1")) };
    let client = Client::new(endpoint.clone()).unwrap();
    assert_eq!(ask(&client).await.unwrap().message.text, "Hello");
    let heads = heads.join().unwrap();
    assert!(heads[1].starts_with("POST /v2/chat/completions"), "{heads:?}");
    assert!(heads[1].contains("authorization: Bearer sk-secret"), "{heads:?}");

    let (other, untouched) = (TcpListener::bind("127.0.0.1:0").unwrap(), "http://localhost");
    let port = other.local_addr().unwrap().port();
    for (status, to) in [
        ("307 Temporary Redirect", format!("{untouched}:{port}/v1/chat/completions?sig=1")),
        ("308 Permanent Redirect", format!("http://127.0.0.1:{port}/v1/chat/completions")),
        ("302 Found", "/v2/chat/completions".to_owned()),
        ("301 Moved Permanently", "/login".to_owned()),
    ] {
        let (address, heads) = server(vec![elsewhere(status, &to)]);
        let endpoint = Endpoint { base_url: format!("http://{address}/v1"), ..endpoint.clone() };
        let error = ask(&Client::new(endpoint).unwrap()).await.unwrap_err();
        assert_eq!((error.kind, error.status), (ErrorKind::Http, status[..3].parse().ok()), "{error}");
        let to = to.split('?').next().unwrap();
        assert_eq!(error.message, format!("redirects to {to}: set base_url to where it is"));
        assert_eq!(heads.join().unwrap().len(), 1);
    }
    other.set_nonblocking(true).unwrap();
    assert!(other.accept().is_err(), "no connection was made");
}

#[tokio::test]
async fn a_proxy_is_not_used_for_loopback() {
    let (proxy, heads) = server(vec![ok(ANSWER)]);
    let mut endpoint = Endpoint::new("test", "http://models.example:81/v1");
    endpoint.proxy = Some(format!("http://me:word@{proxy}"));
    assert_eq!(ask(&Client::new(endpoint).unwrap()).await.unwrap().message.text, "Hello");
    let heads = heads.join().unwrap();
    assert!(heads[0].starts_with("POST http://models.example:81/v1/chat/completions"), "{heads:?}");
    assert!(heads[0].contains("proxy-authorization: Basic bWU6d29yZA=="), "{heads:?}");

    let (address, heads) = server(vec![ok(ANSWER)]);
    let mut endpoint = Endpoint::new("test", format!("http://{address}/v1"));
    endpoint.proxy = Some("http://proxy.example:3128".to_owned());
    assert_eq!(ask(&Client::new(endpoint).unwrap()).await.unwrap().message.text, "Hello");
    assert!(heads.join().unwrap()[0].starts_with("POST /v1/chat/completions"));
}

#[test]
fn invalid_settings_are_named() {
    let check = |endpoint: &Endpoint, expected: &str| {
        let error = Client::new(endpoint.clone()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    };
    let local = Endpoint::new("test", "http://localhost:9/v1");
    let with_file = |name: &str| Endpoint { ca_file: Some(beside(name)), ..local.clone() };
    check(&with_file("absent.pem"), "ca_file: ");
    let file = beside("tests.rs");
    check(&with_file("tests.rs"), &format!("ca_file: {}: contains no certificate", file.display()));
    let with_proxy = |proxy: &str| Endpoint { proxy: Some(proxy.to_owned()), ..local.clone() };
    check(&with_proxy("proxy:3128"), "proxy: must begin with http:// or https://");
    check(&with_proxy("socks5://proxy:1080"), "proxy: must begin with http:// or https://");
    check(&with_proxy("::"), "proxy: is not a URL");
    assert!(Client::new(with_proxy(" ")).is_ok(), "an empty setting counts as unset");
}

#[test]
fn causes_are_not_repeated() {
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Layer(&'static str, #[source] Option<Box<Layer>>);
    let error =
        Layer("sending: refused", Some(Box::new(Layer("refused", Some(Box::new(Layer("os error", None)))))));
    assert_eq!(error_chain(&error), "sending: refused: os error");
}
