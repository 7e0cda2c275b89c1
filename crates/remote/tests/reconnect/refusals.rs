//! Errors of connections that cannot continue.

use std::time::{Duration, Instant};

use narrows_link::CloseReason;
use narrows_remote::client::{ClientOptions, Connected, ConnectionLost, DialError, connect};
use narrows_wire::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::cuts::{ask, initialize, open, pass, recv};
use crate::cutter::Cutter;
use crate::server::{Carrier, Server};

fn error_summary(frame: &Frame) -> (String, String) {
    let error = frame.error().expect("an error");
    assert_eq!(error.code, -32010);
    (String::from_utf8(frame.id().unwrap().to_vec()).unwrap(), error.data.unwrap()["effects"].to_string())
}

#[tokio::test]
async fn the_loss_of_a_plain_server_fails_pending_requests() {
    for carrier in [Carrier::Web, Carrier::Lines] {
        let server = Server::start(carrier, false, false).await;
        let cutter = Cutter::start(server.address, u64::MAX).await;
        let Connected { mut link, outcome } = open(&server.url(cutter.address)).await;
        initialize(&mut link).await;
        ask(&link, "never", 1).await;
        ask(&link, "echo", 2).await;
        assert_eq!(recv(&mut link).await.id(), Some(b"2".as_slice()));
        cutter.close(true);
        assert_eq!(error_summary(&recv(&mut link).await), ("1".to_owned(), "\"possible\"".to_owned()));
        assert!(link.receiver.recv().await.is_none());
        assert!(matches!(link.receiver.reason(), CloseReason::Io { .. }));
        assert!(link.sender.send("{}".into()).await.is_err());
        assert!(matches!(outcome.wait().await, Err(ConnectionLost::Plain(_))));
    }
}

#[tokio::test]
async fn a_refused_client_receives_the_reason() {
    const WHY: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32016,\"message\":\"the bus is stopping\"}}\n";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("tcp://{}", listener.local_addr().unwrap());
    for has_begun in [false, true] {
        let Connected { mut link, outcome } = open(&url).await;
        let (mut stream, _) = listener.accept().await.unwrap();
        link.sender
            .send(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#.into())
            .await
            .unwrap();
        if has_begun {
            assert!(stream.read(&mut [0; 2048]).await.unwrap() > 0);
            stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}\n").await.unwrap();
            assert_eq!(recv(&mut link).await.id(), Some(b"0".as_slice()));
        }
        stream.write_all(WHY).await.unwrap();
        drop(stream);
        let lost = outcome.wait().await.unwrap_err();
        match has_begun {
            false => assert!(
                matches!(&lost, ConnectionLost::Dial(DialError::TurnedAway(why)) if why == "the bus is stopping"),
                "{lost:?}"
            ),
            true => assert!(
                matches!(&lost, ConnectionLost::Refused(why) if why == "the bus is stopping"),
                "{lost:?}"
            ),
        }
    }
}

#[tokio::test]
async fn a_restarted_server_does_not_know_the_connection() {
    let server = Server::start(Carrier::Web, true, false).await;
    let cutter = Cutter::start(server.address, u64::MAX).await;
    let Connected { mut link, outcome } = open(&server.url(cutter.address)).await;
    initialize(&mut link).await;
    ask(&link, "never", 1).await;
    ask(&link, "echo", 2).await;
    recv(&mut link).await;
    server.forget();
    cutter.close(true);
    cutter.close(false);
    assert_eq!(error_summary(&recv(&mut link).await), ("1".to_owned(), "\"possible\"".to_owned()));
    assert!(link.receiver.recv().await.is_none());
    assert!(matches!(outcome.wait().await, Err(ConnectionLost::Forgotten)));
}

#[tokio::test]
async fn pending_requests_fail_after_the_grace_period() {
    let server = Server::start(Carrier::Lines, true, false).await;
    let cutter = Cutter::start(server.address, u64::MAX).await;
    let options = ClientOptions { grace_period: Duration::from_millis(500), ..ClientOptions::default() };
    let url = server.url(cutter.address);
    let Connected { mut link, outcome } = connect(&url.parse().unwrap(), options).await.unwrap();
    initialize(&mut link).await;
    ask(&link, "never", 1).await;
    ask(&link, "echo", 2).await;
    recv(&mut link).await;
    cutter.close(true);
    cutter.refused().await;
    // There was no socket, so it certainly had no effect.
    ask(&link, "echo", 3).await;
    assert_eq!(error_summary(&recv(&mut link).await), ("1".to_owned(), "\"possible\"".to_owned()));
    assert_eq!(error_summary(&recv(&mut link).await), ("3".to_owned(), "\"none\"".to_owned()));
    assert!(link.receiver.recv().await.is_none());
    assert!(matches!(outcome.wait().await, Err(ConnectionLost::Grace { .. })));
    assert_eq!(server.counts().0, 2);
}

#[tokio::test]
async fn retry_after_delays_a_reconnect() {
    let server = Server::start(Carrier::Web, true, false).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = server.url(listener.local_addr().unwrap());
    let (connected, first) = tokio::join!(open(&url), pass(&listener, server.address));
    let Connected { mut link, outcome } = connected;
    initialize(&mut link).await;
    first.abort();
    ask(&link, "echo", 1).await;
    let (mut refused, _) = listener.accept().await.unwrap();
    refused.write_all(b"HTTP/1.1 429 Later\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    let began = Instant::now();
    let _second = pass(&listener, server.address).await;
    assert!(began.elapsed() >= Duration::from_secs(1), "the delay was honored: {:?}", began.elapsed());
    assert_eq!(recv(&mut link).await.id(), Some(b"1".as_slice()));
    drop(link);
    outcome.wait().await.unwrap();
}

#[tokio::test]
async fn a_network_outage_is_not_noticed() {
    let server = Server::start(Carrier::Web, true, false).await;
    let cutter = Cutter::start(server.address, u64::MAX).await;
    let Connected { mut link, outcome } = open(&server.url(cutter.address)).await;
    initialize(&mut link).await;
    for number in 1..=10 {
        cutter.close(true);
        ask(&link, "echo", number).await;
        cutter.close(false);
        assert_eq!(recv(&mut link).await.id(), Some(number.to_string().as_bytes()));
    }
    drop(link);
    outcome.wait().await.unwrap();
    assert_eq!(server.counts().0, 10);
}

#[tokio::test]
async fn dropping_the_link_during_an_outage_does_not_block() {
    let server = Server::start(Carrier::Lines, true, false).await;
    let cutter = Cutter::start(server.address, u64::MAX).await;
    let Connected { mut link, outcome } = open(&server.url(cutter.address)).await;
    initialize(&mut link).await;
    cutter.close(true);
    drop(link);
    tokio::time::timeout(Duration::from_secs(9), outcome.wait()).await.unwrap().unwrap();
}

#[tokio::test]
async fn dropping_the_link_sends_a_farewell() {
    for carrier in [Carrier::Web, Carrier::Lines] {
        let server = Server::start(carrier, true, false).await;
        let Connected { mut link, outcome } = open(&server.url(server.address)).await;
        initialize(&mut link).await;
        drop(link);
        outcome.wait().await.unwrap();
        let said = async {
            while server.farewells() == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), said).await.unwrap();
    }
}

#[track_caller]
fn check(error: Result<Connected, DialError>, expected: &str) {
    assert_eq!(error.unwrap_err().to_string(), expected);
}

#[tokio::test]
async fn final_connect_errors_are_reported_immediately() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let dial = async |url: String| connect(&url.parse().unwrap(), ClientOptions::default()).await;
    let answer = async |answer: &str| {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 2048];
        let length = stream.read(&mut request).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8_lossy(&request[..length]).into_owned()
    };
    for (status, expected) in [
        ("401 Unauthorized", "the server requires a token (401)"),
        ("403 Forbidden", "the server refused access (403)"),
        ("404 Not Found", "the server responded with status 404"),
        ("302 Found\r\nLocation: http://127.0.0.1:1/", "the server responded with status 302"),
    ] {
        let answer_text = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        let (dialled, _) = tokio::join!(dial(format!("ws://{address}/acp")), answer(&answer_text));
        check(dialled, expected);
    }
    let answer_text = "HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\nno!\n";
    let (dialled, _) = tokio::join!(dial(format!("ws://{address}/acp")), answer(answer_text));
    check(dialled, "the server refused access (403): no!");
    drop(listener);
    check(dial(format!("ws://{address}/acp")).await, &format!("no process listens at {address}"));
    check(
        dial("unix:/nowhere/at/all".to_owned()).await,
        "no process listens at /nowhere/at/all: no such file",
    );
    let options = ClientOptions { token: Some("t".to_owned().into()), ..ClientOptions::default() };
    check(
        connect(&"ws://bus.example/acp".parse().unwrap(), options.clone()).await,
        "refusing to send the token over an unencrypted connection",
    );
    check(
        connect(&"unix:/x".parse().unwrap(), options).await,
        "tokens require ws://, wss://, http:// or https://",
    );
}

/// Returns the connect error for a server that sends only `said` on every socket.
async fn connect_error(scheme: &str, said: &[u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("{scheme}://{}", listener.local_addr().unwrap());
    let served = async {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            _ = stream.read(&mut [0; 2048]).await;
            _ = stream.write_all(said).await;
        }
    };
    let asked = async {
        let Connected { mut link, outcome } =
            match connect(&url.parse().unwrap(), ClientOptions::default()).await {
                Ok(connected) => connected,
                Err(error) => return error.to_string(),
            };
        let question = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;
        link.sender.send(question.into()).await.unwrap();
        assert_eq!(error_summary(&recv(&mut link).await).0, "0");
        match outcome.wait().await {
            Err(ConnectionLost::Dial(error)) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    tokio::select! {
        words = asked => words,
        () = served => unreachable!(),
    }
}

#[tokio::test]
async fn other_protocols_are_recognized() {
    let line: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"no\"}}\n";
    let mute = "closed the connection without responding";
    let cases = [
        ("tcp", b"\x15\x03\x03\x00\x02\x022".as_slice(), "speaks TLS"),
        ("tcp", b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP"),
        ("ws", line, "does not speak HTTP"),
        ("http", line, "does not speak HTTP"),
        ("tcp", b"", mute),
        ("ws", b"", mute),
        ("http", b"", mute),
        ("wss", b"", mute),
        ("https", b"", mute),
    ];
    // Concurrently: a server that closes the connection is retried a few times.
    let found = cases.map(|(scheme, said, expected)| async move {
        assert_eq!(connect_error(scheme, said).await, format!("the server {expected}"), "{scheme}");
    });
    futures_util::future::join_all(found).await;
}

#[tokio::test]
async fn the_token_is_sent_in_its_header() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let options = ClientOptions { token: Some("t0k3n".to_owned().into()), ..ClientOptions::default() };
    let target = format!("ws://{address}/acp").parse().unwrap();
    let answer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 2048];
        let length = stream.read(&mut request).await.unwrap();
        stream.write_all(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        String::from_utf8_lossy(&request[..length]).into_owned()
    };
    let (dialled, request) = tokio::join!(connect(&target, options), answer);
    check(dialled, "the server rejected the token (401)");
    assert!(request.to_ascii_lowercase().contains("\r\nauthorization: bearer t0k3n\r\n"), "{request}");
}

#[tokio::test]
async fn a_silent_server_is_given_up_after_the_grace_period() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("ws://{}/acp", listener.local_addr().unwrap()).parse().unwrap();
    let (limit, grace_period) = (Duration::from_millis(200), Duration::from_millis(500));
    let options = ClientOptions { connect_timeout: limit, grace_period, ..ClientOptions::default() };
    let Connected { link: _link, outcome } = connect(&target, options).await.unwrap();
    let lost = outcome.wait().await;
    assert!(matches!(lost, Err(ConnectionLost::Grace { .. })), "{lost:?}");
}
