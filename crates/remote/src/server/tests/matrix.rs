//! Every row of the routing table, with every kind of client.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::route::{Access, ROUTES, Verb};
use super::super::{Backend, BindError, ClientAuth, HttpLimits, HttpListenerConfig, HttpServer};
use super::kit::{
    Agent, JSON, LONG, Reader, Running, ask, initialize, listener, short_timeouts, start, start_with_token,
    web,
};
use crate::server_tls::TlsFiles;
use crate::tokens;

const KEY: (&str, &str) = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");

/// Sends the request that a row is for, with `more` headers, and returns the status.
async fn request_status(running: &Running, row: &super::super::route::Route, more: &[(&str, &str)]) -> u16 {
    let mut headers = more.to_vec();
    let method = match row.method {
        Verb::Post => "POST",
        Verb::Get => "GET",
        Verb::Delete => "DELETE",
        Verb::Options => "OPTIONS",
    };
    if row.upgrade {
        headers.extend([
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            KEY,
        ]);
    }
    let body = if row.method == Verb::Post { &*initialize(1) } else { "" };
    if row.method == Verb::Post {
        headers.push(JSON);
    }
    ask(running.address, method, &headers, body).await.status
}

#[tokio::test]
async fn every_route_is_refused_without_a_valid_token() {
    let (running, _, token) = start_with_token(HttpLimits { max_failures: 1000, ..HttpLimits::default() });
    let known = format!("Bearer {token}");
    let page = ("origin", "https://app.example");
    let preflight = ("access-control-request-method", "POST");
    for row in ROUTES {
        let open = row.access == Access::Page;
        let wrong = ("authorization", "Bearer nrw_wrong");
        for headers in [
            &[][..],
            &[wrong],
            &[("authorization", "Basic eDp5")],
            &[("authorization", "")],
            &[("authorization", &known), ("authorization", &known)],
            &[page],
            &[preflight],
        ] {
            assert_eq!(request_status(&running, row, headers).await, 401, "{row:?} {headers:?}");
        }
        let of_page = request_status(&running, row, &[page, preflight]).await;
        assert_eq!(of_page, if open { 204 } else { 401 }, "{row:?}");
        // An authenticated client gets further; the remaining error is in the request.
        let status = request_status(&running, row, &[("authorization", &known)]).await;
        assert!(![401, 403, 405, 429].contains(&status), "{row:?}: {status}");
        for foreign in [
            ("host", "evil.example"),
            ("host", "127.0.0.1.evil.example"),
            ("host", ""),
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("origin", "http://app.example"),
            ("origin", "https://app.example:8443"),
            ("origin", "https://app.example/"),
        ] {
            assert_eq!(
                request_status(&running, row, &[foreign, ("authorization", &known)]).await,
                403,
                "{row:?} {foreign:?}"
            );
            assert_eq!(request_status(&running, row, &[foreign]).await, 403, "{row:?} {foreign:?}");
            assert_eq!(
                request_status(&running, row, &[foreign, preflight]).await,
                403,
                "{row:?} {foreign:?}"
            );
        }
    }
    // Only one POST of an authenticated client has reached the agent.
    assert_eq!(running.agent.opened.lock().unwrap().len(), 1);
    let identity = running.agent.opened.lock().unwrap()[0].clone();
    assert_eq!((&*identity.name, identity.scopes.as_deref()), ("one", Some(&["read".to_owned()][..])));
}

#[tokio::test]
async fn hosts() {
    let running = start(listener(), HttpLimits::default());
    let port = running.address.port();
    for host in ["localhost", "LOCALHOST", "127.0.0.1", "[::1]", "bus.example", "Bus.Example"] {
        for host in [host.to_owned(), format!("{host}:{port}")] {
            assert_eq!(
                ask(running.address, "POST", &[JSON, ("host", &host)], &initialize(1)).await.status,
                200,
                "{host}"
            );
        }
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.2",
        "0.0.0.0",
        "[::2]",
        "localhost:x",
        "localhost@evil.example",
        "bus.example.",
        "::1",
    ] {
        assert_eq!(
            ask(running.address, "POST", &[JSON, ("host", host)], &initialize(1)).await.status,
            403,
            "{host}"
        );
    }
    // A request with two `Host` headers is refused, and the host in the target is checked as well.
    let two =
        ask(running.address, "POST", &[JSON, ("host", "localhost"), ("host", "localhost")], &initialize(1))
            .await;
    assert_eq!(two.status, 403);
    let mut absolute = Reader::send(
        running.address,
        "POST",
        "http://evil.example/acp",
        &[JSON, ("host", "localhost")],
        &initialize(1),
    )
    .await;
    assert_eq!(absolute.head().await.status, 403);
}

#[tokio::test]
async fn only_pages_of_allowed_origins_may_read_responses() {
    let running = start(listener(), HttpLimits::default());
    let page = ("origin", "https://app.example");
    let answer = ask(running.address, "POST", &[JSON, page], &initialize(1)).await;
    assert_eq!(
        (answer.status, answer.header("access-control-allow-origin")),
        (200, Some("https://app.example"))
    );
    assert!(answer.header("access-control-expose-headers").unwrap().contains("acp-connection-id"));
    assert_eq!(
        (answer.header("vary"), answer.header("access-control-allow-credentials")),
        (Some("Origin"), None)
    );
    let answer = ask(running.address, "POST", &[JSON], &initialize(1)).await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, None));
    let answer =
        ask(running.address, "OPTIONS", &[page, ("access-control-request-method", "POST")], "").await;
    assert_eq!(answer.status, 204);
    assert!(answer.header("access-control-allow-methods").unwrap().contains("DELETE"));
    assert!(answer.header("access-control-allow-headers").unwrap().contains("authorization"));
    let answer = ask(
        running.address,
        "OPTIONS",
        &[("origin", "https://evil.example"), ("access-control-request-method", "POST")],
        "",
    )
    .await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (403, None));
    // A WebSocket has no preflight, so its origin is checked directly.
    assert_eq!(web(running.address, &[("origin", "https://evil.example")]).await.err(), Some(403));
    assert!(web(running.address, &[page]).await.is_ok());
}

#[tokio::test]
async fn other_paths_and_methods() {
    let (running, _, token) = start_with_token(HttpLimits::default());
    let known = format!("Bearer {token}");
    for (method, path, expected) in [
        ("PUT", "/acp", 405),
        ("HEAD", "/acp", 405),
        ("POST", "/", 404),
        ("GET", "/health", 404),
        ("GET", "/acp/", 404),
        ("GET", "/acp2", 404),
    ] {
        let mut reader = Reader::send(running.address, method, path, &[], "").await;
        assert_eq!(reader.head().await.status, 401, "{method} {path}");
        let mut reader = Reader::send(running.address, method, path, &[("authorization", &known)], "").await;
        let head = reader.head().await;
        assert_eq!(head.status, expected, "{method} {path}");
        assert_eq!(head.header("allow").is_some(), expected == 405);
    }
    // A token in the URL is not accepted.
    for path in [format!("/acp?token={token}"), format!("/acp?access_token={token}")] {
        let mut reader = Reader::send(running.address, "GET", &path, &[], "").await;
        assert_eq!(reader.head().await.status, 401);
    }
}

#[tokio::test]
async fn a_browser_sends_its_token_as_a_subprotocol() {
    let (running, _, token) = start_with_token(HttpLimits::default());
    let (_, response) =
        web(running.address, &[("sec-websocket-protocol", &format!("acp, narrows.bearer.{token}"))])
            .await
            .unwrap();
    assert_eq!(response.headers()["sec-websocket-protocol"], "acp");
    assert!(response.headers().contains_key("acp-connection-id"));
    assert!(!format!("{response:?}").contains(&token));
    assert_eq!(
        web(running.address, &[("sec-websocket-protocol", "acp, narrows.bearer.nrw_x")]).await.err(),
        Some(401)
    );
    assert_eq!(web(running.address, &[("sec-websocket-protocol", "acp")]).await.err(), Some(401));
}

#[tokio::test]
async fn wrong_tokens_are_locked_out_and_a_valid_one_never_is() {
    let (running, file, token) = start_with_token(HttpLimits { max_failures: 3, ..HttpLimits::default() });
    let second = tokens::add(&file, "two", None, std::time::SystemTime::UNIX_EPOCH).unwrap();
    running.handle.reload().unwrap();
    let post = async |token: &str| {
        let known = format!("Bearer {token}");
        ask(running.address, "POST", &[JSON, ("authorization", &known)], &initialize(1)).await
    };
    assert_eq!(post(&token).await.status, 200);
    for _ in 0..3 {
        assert_eq!(post("nrw_guess").await.status, 401);
    }
    let locked = post("nrw_guess").await;
    assert_eq!(locked.status, 429);
    assert!(locked.header("retry-after").is_some());
    assert_eq!(post(&second).await.status, 200, "it is valid, though it was never used");
    assert_eq!(post("nrw_other").await.status, 429, "wrong tokens are still refused");
    assert_eq!(post(&token).await.status, 200);
    assert_eq!(ask(running.address, "POST", &[JSON], &initialize(1)).await.status, 401, "no token was sent");
}

#[tokio::test]
async fn the_connections_of_an_identity_are_limited() {
    let running = start(listener(), HttpLimits { max_connections_per_identity: 2, ..HttpLimits::default() });
    let first = web(running.address, &[]).await.unwrap();
    let _second = super::kit::connect(running.address).await;
    assert_eq!(web(running.address, &[]).await.err(), Some(429));
    assert_eq!(ask(running.address, "POST", &[JSON], &initialize(1)).await.status, 429);
    drop(first);
    // The server needs a moment to notice that the first client is gone.
    let again = async {
        while web(running.address, &[]).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, again).await.unwrap();
    let running = start(listener(), HttpLimits { max_requests_per_second: 3, ..HttpLimits::default() });
    let mut last = 0;
    for _ in 0..4 {
        last = ask(running.address, "DELETE", &[], "").await.status;
    }
    assert_eq!(last, 429);
}

#[tokio::test]
async fn a_slow_request_head_times_out() {
    let running = start(listener(), HttpLimits { max_sockets: 1, ..short_timeouts() });
    for part in ["", "P", "POST /acp HTTP/1.1\r\nhost: localhost\r\nx:", "PRI * HTTP/2.0\r\n\r\nSM\r\n"] {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(part.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        // The server closes the socket, either without a response or with 408.
        tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await.expect("closed in time").unwrap_or(0);
    }
    // The only permit is free again.
    super::kit::connect(running.address).await;
}

#[tokio::test]
async fn a_missing_body_times_out() {
    let running = start(listener(), short_timeouts());
    let head = [JSON, ("content-length", "100")];
    let mut reader = Reader::send(running.address, "POST", "/acp", &head, "").await;
    assert_eq!(reader.head().await.status, 408);
    let mut idle = Reader::send(running.address, "DELETE", "/acp", &[], "").await;
    assert_eq!(idle.head().await.status, 400);
    let mut rest = Vec::new();
    tokio::time::timeout(LONG, idle.stream.read_to_end(&mut rest)).await.expect("closed in time").unwrap();
}

#[tokio::test]
async fn an_unreadable_file_does_not_block_the_reload_of_others() {
    let directory = tempfile::tempdir().unwrap();
    let files = ["one.toml", "two.toml"].map(|name| directory.path().join(name));
    let listeners = files.iter().zip(["one", "other"]).map(|(file, name)| {
        tokens::add(file, name, None, std::time::SystemTime::UNIX_EPOCH).unwrap();
        HttpListenerConfig { auth: ClientAuth::Token(file.clone()), ..listener() }
    });
    let front =
        HttpServer::bind(listeners.collect(), HttpLimits::default(), Arc::new(Agent::default())).unwrap();
    let (addresses, handle) = (front.local_addrs().to_vec(), front.handle());
    tokio::spawn(front.serve());
    let new = tokens::add(&files[1], "two", None, std::time::SystemTime::UNIX_EPOCH).unwrap();
    std::fs::write(&files[0], "broken").unwrap();
    assert!(handle.reload().is_err());
    assert!(web(addresses[1], &[("authorization", &format!("Bearer {new}"))]).await.is_ok());
    assert_eq!(web(addresses[0], &[("authorization", &format!("Bearer {new}"))]).await.err(), Some(401));
    handle.shutdown();
}

#[track_caller]
fn check_bind(listener: HttpListenerConfig, expected: &str) {
    let bound = HttpServer::bind(
        vec![listener],
        HttpLimits::default(),
        Arc::new(Agent::default()) as Arc<dyn Backend>,
    );
    let error = bound.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains(expected), "{error:?} is not {expected:?}");
}

#[tokio::test]
async fn unsafe_listeners_are_not_bound() {
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens.toml");
    let nowhere = directory.path().join("nowhere");
    tokens::add(&file, "one", None, std::time::SystemTime::UNIX_EPOCH).unwrap();
    let files = TlsFiles { cert: nowhere.clone(), key: nowhere.clone(), client_ca: None };
    check_bind(
        HttpListenerConfig { address: everywhere, ..listener() },
        "without authentication only a loopback",
    );
    check_bind(
        HttpListenerConfig { address: "[::]:0".parse().unwrap(), tls: Some(files.clone()), ..listener() },
        "without authentication",
    );
    check_bind(
        HttpListenerConfig { address: everywhere, auth: ClientAuth::Token(file.clone()), ..listener() },
        "without TLS only a loopback",
    );
    check_bind(HttpListenerConfig { auth: ClientAuth::Mtls, ..listener() }, "needs TLS with a client_ca");
    check_bind(
        HttpListenerConfig { auth: ClientAuth::Mtls, tls: Some(files.clone()), ..listener() },
        "needs TLS with a client_ca",
    );
    check_bind(
        HttpListenerConfig {
            address: everywhere,
            auth: ClientAuth::Token(file),
            tls: Some(files),
            ..listener()
        },
        "nowhere",
    );
    check_bind(HttpListenerConfig { auth: ClientAuth::Token(nowhere), ..listener() }, "nowhere");
    check_bind(HttpListenerConfig { path: "acp".to_owned(), ..listener() }, "invalid path");
    check_bind(listener(), "");
    let taken = start(listener(), HttpLimits::default());
    let again = HttpServer::bind(
        vec![HttpListenerConfig { address: taken.address, ..listener() }],
        HttpLimits::default(),
        Arc::new(Agent::default()),
    );
    assert!(matches!(again.err(), Some(BindError::Address { .. })));
}

#[tokio::test]
async fn a_revoked_token_ends_its_connections() {
    // The client retries with the new token until it is accepted.
    let (running, file, token) = start_with_token(HttpLimits { max_failures: 1000, ..HttpLimits::default() });
    let known = format!("Bearer {token}");
    let (mut socket, _) = web(running.address, &[("authorization", &known)]).await.unwrap();
    let answer = ask(running.address, "POST", &[JSON, ("authorization", &known)], &initialize(1)).await;
    let connection = answer.header("acp-connection-id").unwrap();
    let other = tokens::add(&file, "two", None, std::time::SystemTime::UNIX_EPOCH).unwrap();
    let other = format!("Bearer {other}");
    let text = std::fs::read_to_string(&file).unwrap();
    // The file is re-read without a reload, and other clients are not affected.
    let noticed = async {
        while web(running.address, &[("authorization", &other)]).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await; // sleep: the file is looked at by the clock
        }
    };
    tokio::time::timeout(LONG, noticed).await.unwrap();
    let foreign =
        ask(running.address, "DELETE", &[("acp-connection-id", connection), ("authorization", &other)], "")
            .await;
    assert_eq!(foreign.status, 404, "the connection belongs to another identity");
    // An invalid file changes nothing.
    std::fs::write(&file, "broken").unwrap();
    assert!(running.handle.reload().is_err());
    assert!(web(running.address, &[("authorization", &known)]).await.is_ok());
    std::fs::write(&file, &text[text.rfind("\n[[token]]").unwrap()..]).unwrap();
    running.handle.reload().unwrap();
    assert_eq!(super::kit::receive(&mut socket).await, Err(4401));
    assert_eq!(web(running.address, &[("authorization", &known)]).await.err(), Some(401));
    let gone =
        ask(running.address, "DELETE", &[("acp-connection-id", connection), ("authorization", &other)], "")
            .await;
    assert_eq!(gone.status, 404);
}

#[tokio::test]
async fn a_head_that_does_not_end_is_refused() {
    let running = start(listener(), HttpLimits::default());
    let long = "x".repeat(64 << 10);
    let mut reader = Reader::send(running.address, "POST", "/acp", &[("x-long", &long)], "").await;
    assert_eq!(reader.head().await.status, 431);
    let (with_token, _, _) = start_with_token(HttpLimits::default());
    let long = "x".repeat(9 << 10);
    for (address, expected) in [(running.address, 415), (with_token.address, 431)] {
        let mut reader = Reader::send(address, "POST", "/acp", &[("x-long", &long)], "").await;
        assert_eq!(reader.head().await.status, expected, "unauthenticated clients have a lower limit");
    }
    let many: Vec<(String, &str)> = (0..200).map(|number| (format!("x-{number}"), "y")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (&**name, *value)).collect();
    let mut reader = Reader::send(running.address, "POST", "/acp", &many, "").await;
    assert_eq!(reader.head().await.status, 431);
}
