//! Limits of an identity over all listeners, and counts of refusals.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::SinkExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use super::super::{Backend, ClientAuth, HttpLimits, HttpListenerConfig, HttpServer};
use super::kit::{
    Agent, JSON, LONG, Reader, Running, ask, initialize, listener, receive, send, start, start_with,
    start_with_token, web,
};
use super::secure::{authority, files};
use crate::tokens;

/// Starts two listeners of one server, with separate files that contain the same token.
fn two(limits: HttpLimits) -> (Running, [std::net::SocketAddr; 2], String) {
    let directory = tempfile::tempdir().unwrap();
    let files = ["one.toml", "two.toml"].map(|name| directory.path().join(name));
    let token = tokens::add(&files[0], "one", None, SystemTime::UNIX_EPOCH).unwrap();
    std::fs::copy(&files[0], &files[1]).unwrap();
    let listeners = files.into_iter().enumerate().map(|(number, file)| HttpListenerConfig {
        number: 7 + number,
        auth: ClientAuth::Token(file),
        ..listener()
    });
    let agent = Arc::new(Agent::default());
    let front =
        HttpServer::bind(listeners.collect(), limits, Arc::clone(&agent) as Arc<dyn Backend>).unwrap();
    let (addresses, handle) = ([front.local_addrs()[0], front.local_addrs()[1]], front.handle());
    let served = tokio::spawn(front.serve());
    (Running { address: addresses[0], handle, agent, directory, served }, addresses, token)
}

#[tokio::test]
async fn connections_are_counted_over_all_listeners() {
    let (running, [one, other], token) =
        two(HttpLimits { max_connections_per_identity: 1, ..HttpLimits::default() });
    let known = format!("Bearer {token}");
    let proof = [("authorization", &*known)];
    let (mut first, _) = web(one, &proof).await.unwrap();
    assert_eq!(web(other, &proof).await.err(), Some(429));
    let post = ask(other, "POST", &[JSON, ("authorization", &known)], &initialize(1)).await;
    assert_eq!(post.status, 429);
    send(&mut first, &serde_json::from_str(&initialize(0)).unwrap()).await;
    receive(&mut first).await.unwrap();
    drop(first);
    running.agent.ended(1).await;
    let again = async {
        loop {
            match web(other, &proof).await {
                Ok((socket, _)) => return socket,
                // The slot is released a moment after the connection has ended.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let mut second = tokio::time::timeout(LONG, again).await.unwrap();
    send(&mut second, &serde_json::from_str(&initialize(0)).unwrap()).await;
    receive(&mut second).await.unwrap();
    assert_eq!(
        *running.agent.listeners.lock().unwrap(),
        [7, 8],
        "the backend receives the listener of each client"
    );
}

#[tokio::test]
async fn a_connection_continues_only_on_its_listener() {
    let (_running, [one, other], token) = two(HttpLimits::default());
    let known = format!("Bearer {token}");
    let proof = [("authorization", &*known)];
    let (mut socket, _) = web(one, &proof).await.unwrap();
    let mut first: Value = serde_json::from_str(&initialize(0)).unwrap();
    first["params"]["_meta"] = json!({"narrows": {"resume": 1}});
    send(&mut socket, &first).await;
    let answer = receive(&mut socket).await.unwrap();
    let connection = &answer["result"]["_meta"]["narrows"]["resume"]["connection"];
    let ask_resume = json!({"jsonrpc": "2.0", "id": 1, "method": "_narrows/resume", "params": {"connection": connection, "received": 1}});
    for (address, expected) in [(other, json!(-32002)), (one, Value::Null)] {
        let (mut socket, _) = web(address, &proof).await.unwrap();
        send(&mut socket, &ask_resume).await;
        assert_eq!(receive(&mut socket).await.unwrap()["error"]["code"], expected);
    }
    let made = ask(one, "POST", &[JSON, proof[0]], &initialize(1)).await;
    let name = ("acp-connection-id", made.header("acp-connection-id").unwrap());
    assert_eq!(ask(other, "DELETE", &[proof[0], name], "").await.status, 404);
    assert_eq!(ask(one, "DELETE", &[proof[0], name], "").await.status, 202);
}

#[tokio::test]
async fn requests_are_counted_over_all_listeners() {
    let (_running, [one, other], token) =
        two(HttpLimits { max_requests_per_second: 2, ..HttpLimits::default() });
    let known = format!("Bearer {token}");
    let mut seen = Vec::new();
    for address in [one, other, one, other] {
        seen.push(ask(address, "DELETE", &[("authorization", &known)], "").await.status);
    }
    assert!(seen.contains(&429), "{seen:?}");
}

fn nonzero_counts(running: &Running) -> BTreeMap<&'static str, u64> {
    running.handle.refused().into_iter().filter(|(_, count)| *count > 0).collect()
}

async fn expect_counts(running: &Running, expected: &[(&'static str, u64)]) {
    let expected = expected.iter().copied().collect();
    let waiting = async {
        while nonzero_counts(running) != expected {
            tokio::task::yield_now().await;
        }
    };
    let found = tokio::time::timeout(LONG, waiting).await;
    assert!(found.is_ok(), "{:?} is not {expected:?}", nonzero_counts(running));
}

#[tokio::test]
async fn refusals_are_counted_by_reason() {
    let (running, _, token) = start_with_token(HttpLimits {
        max_failures: 2,
        max_connections_per_identity: 1,
        max_message: 1000,
        header_timeout: Duration::from_secs(1),
        ..HttpLimits::default()
    });
    let at = running.address;
    let known = format!("Bearer {token}");
    let proof = ("authorization", &*known);
    assert!(running.handle.refused().len() > 10 && nonzero_counts(&running).is_empty());
    ask(at, "POST", &[JSON, ("host", "evil.example")], &initialize(1)).await;
    expect_counts(&running, &[("host", 1)]).await;
    assert_eq!(web(at, &[("origin", "https://evil.example")]).await.err(), Some(403));
    expect_counts(&running, &[("host", 1), ("origin", 1)]).await;
    let (mut socket, _) = web(at, &[proof]).await.unwrap();
    ask(at, "POST", &[JSON], &initialize(1)).await;
    for _ in 0..3 {
        ask(at, "POST", &[JSON, ("authorization", "Bearer nrw_wrong")], &initialize(1)).await;
    }
    let mut expected = vec![("host", 1), ("origin", 1), ("token", 3), ("lockout", 1)];
    expect_counts(&running, &expected).await;
    ask(at, "POST", &[JSON, proof], &initialize(1)).await;
    expected.push(("limit", 1));
    expect_counts(&running, &expected).await;
    socket.send(Message::binary(b"{}".to_vec())).await.unwrap();
    assert_eq!(receive(&mut socket).await, Err(1003));
    expected.push(("frame", 1));
    expect_counts(&running, &expected).await;
    ask(at, "PUT", &[proof], "").await;
    expected.push(("path", 1));
    expect_counts(&running, &expected).await;
    ask(at, "POST", &[("content-type", "text/plain"), proof], "{}").await;
    ask(at, "POST", &[JSON, proof], &"x".repeat(1001)).await;
    expected.push(("body", 2));
    expect_counts(&running, &expected).await;
    ask(at, "POST", &[JSON, proof], "{}").await;
    expected.push(("request", 1));
    expect_counts(&running, &expected).await;
    for bytes in ["GARBAGE\r\n\r\n", "GET /acp HT"] {
        let mut raw = TcpStream::connect(at).await.unwrap();
        raw.write_all(bytes.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        _ = tokio::time::timeout(LONG, raw.read_to_end(&mut rest)).await.unwrap();
    }
    expected.push(("headers", 2));
    expect_counts(&running, &expected).await;
    let again = async {
        while web(at, &[proof]).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, again).await.unwrap();
}

#[tokio::test]
async fn unavailable_agents_missing_connections_and_rate_limits_are_counted() {
    let running = start_with(listener(), HttpLimits::default(), Agent { refuses: true, ..Agent::default() });
    assert_eq!(ask(running.address, "POST", &[JSON], &initialize(1)).await.status, 503);
    let (mut socket, _) = web(running.address, &[]).await.unwrap();
    send(&mut socket, &serde_json::from_str(&initialize(0)).unwrap()).await;
    while receive(&mut socket).await.is_ok() {}
    expect_counts(&running, &[("agent", 2)]).await;
    let running = start(listener(), HttpLimits { max_requests_per_second: 1, ..HttpLimits::default() });
    let (mut socket, _) = web(running.address, &[]).await.unwrap();
    let unknown = serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "_narrows/resume",
        "params": {"connection": "AAAAAAAAAAAAAAAAAAAAAA", "received": 0}});
    send(&mut socket, &unknown).await;
    while receive(&mut socket).await.is_ok() {}
    expect_counts(&running, &[("resume", 1)]).await;
    while ask(running.address, "DELETE", &[], "").await.status != 429 {}
    assert!(nonzero_counts(&running)["rate"] >= 1);
}

#[tokio::test]
async fn failed_tls_handshakes_are_counted() {
    let Some(directory) = authority() else { return };
    let tls = files(directory.path(), false);
    let running = start(HttpListenerConfig { tls: Some(tls), ..listener() }, HttpLimits::default());
    let mut raw = TcpStream::connect(running.address).await.unwrap();
    raw.write_all(b"GET /acp HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    _ = tokio::time::timeout(LONG, raw.read_to_end(&mut rest)).await.unwrap();
    expect_counts(&running, &[("tls", 1)]).await;
}

/// Waits until a socket is closed without a response.
async fn closed(socket: &mut TcpStream) {
    let mut rest = Vec::new();
    let read = tokio::time::timeout(LONG, socket.read_to_end(&mut rest)).await.expect("closed in time");
    // An HTTP/2 server sends its preface unasked.
    assert!(read.is_err() || !rest.starts_with(b"HTTP"), "{}", rest.escape_ascii());
}

/// Opens a socket that sends only `says`, and waits until the server has accepted it.
async fn silent(at: std::net::SocketAddr, says: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(at).await.unwrap();
    socket.write_all(says).await.unwrap();
    socket
}

#[tokio::test]
async fn unauthenticated_sockets_make_room_for_authenticated_ones() {
    let limits = HttpLimits { max_sockets: 4, header_timeout: LONG * 10, ..HttpLimits::default() };
    let (running, _, token) = start_with_token(limits);
    let at = running.address;
    let known = format!("Bearer {token}");
    let proof = [("authorization", &*known)];
    let opening: Value = serde_json::from_str(&initialize(0)).unwrap();
    let mut first = web(at, &proof).await.unwrap().0;
    send(&mut first, &opening).await;
    receive(&mut first).await.unwrap();
    let mut others = Vec::new();
    for says in [&b""[..], b"GET /acp HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"", b"GET"] {
        others.push(silent(at, says).await);
    }
    // Five sockets for three permits, and each authenticated client needs another one.
    let mut second = web(at, &proof).await.unwrap().0;
    let mut third = web(at, &proof).await.unwrap().0;
    for gone in &mut others[..4] {
        closed(gone).await;
    }
    for socket in [&mut second, &mut third] {
        send(socket, &opening).await;
        receive(socket).await.unwrap();
    }
    expect_counts(&running, &[("crowd", 4)]).await;
    let mut fourth = web(at, &proof).await.unwrap().0;
    closed(&mut others[4]).await;
    // All sockets are authenticated, so none is closed for another one, which waits without limit.
    let mut waiting = std::pin::pin!(web(at, &proof));
    let early = tokio::time::timeout(Duration::from_millis(200), &mut waiting).await;
    assert!(early.is_err(), "no permit for a fifth");
    for socket in [&mut second, &mut third, &mut fourth] {
        send(socket, &opening).await;
        receive(socket).await.unwrap();
    }
    drop(first);
    let mut fifth = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap().0;
    send(&mut fifth, &opening).await;
    receive(&mut fifth).await.unwrap();
    expect_counts(&running, &[("crowd", 5)]).await;
}

#[tokio::test]
async fn sockets_without_a_request_make_room() {
    let limits = HttpLimits { max_sockets: 4, ..HttpLimits::default() };
    let (running, _, token) = start_with_token(limits);
    let at = running.address;
    let known = format!("Bearer {token}");
    let request = format!("GET /acp HTTP/1.1\r\nhost: {at}\r\nauthorization: {known}\r\n\r\n");
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut socket = silent(at, request.as_bytes()).await;
        let mut response = [0; 12];
        socket.read_exact(&mut response).await.unwrap();
        held.push(socket);
    }
    let asking = async { ask(at, "POST", &[JSON, ("authorization", &known)], &initialize(1)).await.status };
    assert_eq!(tokio::time::timeout(LONG, asking).await, Ok(200));
    closed(&mut held[0]).await;
    assert_eq!(nonzero_counts(&running).get("crowd"), Some(&1));
}

#[tokio::test]
async fn sockets_without_a_tls_handshake_make_room() {
    let Some(directory) = authority() else { return };
    let tls = files(directory.path(), false);
    let limits = HttpLimits { max_sockets: 1, header_timeout: LONG * 10, ..HttpLimits::default() };
    let running = start(HttpListenerConfig { tls: Some(tls), ..listener() }, limits);
    let mut first = silent(running.address, b"").await;
    let mut second = silent(running.address, b"\x16\x03\x01").await;
    closed(&mut first).await;
    let _third = silent(running.address, b"").await;
    closed(&mut second).await;
    expect_counts(&running, &[("crowd", 2)]).await;
}

#[tokio::test]
async fn an_identity_has_a_limited_number_of_http_sockets() {
    let (running, _, token) =
        start_with_token(HttpLimits { max_connections_per_identity: 1, ..HttpLimits::default() });
    let at = running.address;
    let known = format!("Bearer {token}");
    let proof = ("authorization", &*known);
    // The request is answered with 406, which leaves the socket open for another request.
    let request = async || {
        let mut reader = Reader::send(at, "GET", "/acp", &[proof], "").await;
        let status = reader.head().await.status;
        (reader, status)
    };
    let mut held = Vec::new();
    for _ in 0..64 {
        let (reader, status) = request().await;
        assert_eq!(status, 406);
        held.push(reader);
    }
    let mut refused = Reader::send(at, "POST", "/acp", &[JSON, proof], &initialize(1)).await;
    let answer = refused.head().await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("10")));
    let mut rest = Vec::new();
    tokio::time::timeout(LONG, refused.stream.read_to_end(&mut rest)).await.expect("closed in time").unwrap();
    expect_counts(&running, &[("request", 64), ("limit", 1)]).await;
    assert_eq!(web(at, &[proof]).await.err(), Some(429), "an upgrade counts as a request");
    // The open sockets remain usable, and a permit is free when one of them is closed.
    held.pop();
    let again = async { while request().await.1 != 406 {} };
    tokio::time::timeout(LONG, again).await.expect("a permit in time");
}
