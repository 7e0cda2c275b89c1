//! Connections that break before `initialize` is answered.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use narrows_remote::client::{ClientOptions, Connected, ConnectionLost, DialError, connect};
use narrows_remote::server::HttpLimits;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::breaker::Breaker;
use crate::{Running, STEP_TIMEOUT, lines, recv, send, start};

/// Connects to `url`, sends one request, and closes.
async fn converse(url: &str) {
    converse_with(url, ClientOptions::default()).await;
}

async fn converse_with(url: &str, options: ClientOptions) {
    let connected = timeout(STEP_TIMEOUT, connect(&url.parse().unwrap(), options)).await.unwrap();
    let Connected { mut link, outcome } = connected.expect(url);
    send(&link, "1", "initialize", &json!({"protocolVersion": 1})).await;
    let answer = recv(&mut link).await;
    assert!(answer.id() == Some(b"1") && answer.error().is_none(), "{url}: {:?}", answer.bytes());
    send(&link, "2", "session/new", &json!({"cwd": "/", "mcpServers": []})).await;
    assert_eq!(recv(&mut link).await.id(), Some(&b"2"[..]), "{url}");
    drop(link);
    timeout(STEP_TIMEOUT, outcome.wait()).await.unwrap().unwrap();
}

/// Starts the server and returns its address for each transport.
async fn served(limits: HttpLimits, scheme: &str) -> (Running, SocketAddr) {
    let running = start(limits);
    let address = match scheme {
        "tcp" | "unix" => lines(running.handle.clone()).await,
        _ => running.address,
    };
    (running, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_before_initialize_is_answered_is_retried() {
    let directory = tempfile::tempdir().unwrap();
    for scheme in ["http", "ws", "tcp", "unix"] {
        // Before any byte, within the head of a response, and within its body if there is one.
        for most in [0, 10, 60, 450] {
            let (_running, server) = served(HttpLimits::default(), scheme).await;
            let path = directory.path().join(format!("{most}.sock"));
            let breaker = match scheme {
                "unix" => Breaker::start_at(&path, server, 3, most),
                _ => Breaker::start(server, 3, most).await,
            };
            let url = match scheme {
                "unix" => format!("unix:{}", path.display()),
                "tcp" => format!("tcp://{}", breaker.address),
                _ => format!("{scheme}://{}/acp", breaker.address),
            };
            converse(&url).await;
            assert!(breaker.connections() > 3 || most > 60, "{scheme} {most}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_accepted_and_not_answered_is_retried() {
    // Long enough for the attempt that succeeds; one that fails is repeated.
    let limit = Duration::from_millis(500);
    for scheme in ["http", "ws"] {
        let (_running, server) = served(HttpLimits::default(), scheme).await;
        let breaker = Breaker::start_stalling(server, 2).await;
        let options =
            ClientOptions { connect_timeout: limit, initialize_timeout: limit, ..ClientOptions::default() };
        converse_with(&format!("{scheme}://{}/acp", breaker.address), options).await;
        assert!(breaker.connections() > 2, "{scheme}");
    }
}

/// Such a connection ends as any other that no client reads: after the grace period.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_name_was_lost_expires() {
    let limits = HttpLimits { grace: Duration::from_millis(200), ..HttpLimits::default() };
    let (running, server) = served(limits, "http").await;
    let breaker = Breaker::start(server, 2, 0).await;
    converse(&format!("http://{}/acp", breaker.address)).await;
    let agent = &running.agent;
    let ended = async {
        while agent.ended.load(Ordering::SeqCst) < agent.opened.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    };
    timeout(STEP_TIMEOUT, ended).await.expect("all connections end");
    assert!(agent.opened.load(Ordering::SeqCst) >= 2, "the response of one connection was lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_response_was_cut_after_its_name_is_ended() {
    // Otherwise the connection would be kept for five minutes.
    let (running, server) = served(HttpLimits::default(), "http").await;
    let length = {
        let answer = raw_answer(server).await;
        answer.find("\r\n\r\n").unwrap() + 6
    };
    let breaker = Breaker::start(server, 1, length).await;
    converse(&format!("http://{}/acp", breaker.address)).await;
    let agent = &running.agent;
    // The connection of the reference response stays.
    let ended = async {
        while agent.ended.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
    };
    timeout(STEP_TIMEOUT, ended).await.expect("both connections end");
    assert_eq!(agent.opened.load(Ordering::SeqCst), 3);
}

/// Returns the response to `initialize` verbatim.
async fn raw_answer(server: SocketAddr) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}"#;
    let mut stream = tokio::net::TcpStream::connect(server).await.unwrap();
    let head = format!(
        "POST /acp HTTP/1.1\r\nhost: {server}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut answer = String::new();
    while !answer.contains("\r\n\r\n") {
        let mut read = [0; 4096];
        let count = stream.read(&mut read).await.unwrap();
        answer.push_str(std::str::from_utf8(&read[..count]).unwrap());
    }
    answer
}

#[tokio::test]
async fn a_missing_server_is_reported_immediately() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    for url in [format!("ws://{address}/acp"), format!("tcp://{address}")] {
        let refused = connect(&url.parse().unwrap(), ClientOptions::default()).await;
        assert!(matches!(refused, Err(DialError::Refused(_))), "{url}");
    }
    let url = format!("http://{address}/acp");
    let Connected { mut link, outcome } =
        connect(&url.parse().unwrap(), ClientOptions::default()).await.unwrap();
    send(&link, "1", "initialize", &json!({"protocolVersion": 1})).await;
    assert!(recv(&mut link).await.error().is_some());
    let lost = outcome.wait().await;
    assert!(matches!(lost, Err(ConnectionLost::Dial(DialError::Refused(_)))), "{lost:?}");
}
