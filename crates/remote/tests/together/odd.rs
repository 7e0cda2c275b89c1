//! Posts and streams over HTTP that a proxy answers in place of the server, or that are not answered at all.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use narrows_link::Link;
use narrows_remote::client::{ClientOptions, Connected, ConnectionLost, DialError, connect};
use narrows_remote::server::HttpLimits;
use narrows_wire::Kind;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::between::Between;
use crate::cutter::Cutter;
use crate::{Running, STEP_TIMEOUT, lines, recv, send, start};

/// A web page as sent by captive portals.
const PAGE: &str = "<html>Log in to this network</html>";

/// Begins a conversation in the session `s`.
async fn begin(url: &str, options: ClientOptions) -> Connected {
    let mut connected = connect(&url.parse().unwrap(), options).await.unwrap();
    send(&connected.link, "\"init\"", "initialize", &json!({"protocolVersion": 1})).await;
    recv(&mut connected.link).await;
    send(&connected.link, "\"new\"", "session/new", &json!({"cwd": "/", "mcpServers": []})).await;
    recv(&mut connected.link).await;
    connected
}

/// One turn: an update and the response after it.
async fn turn(link: &mut Link, id: &str) {
    send(link, id, "session/prompt", &json!({"sessionId": "s"})).await;
    assert_eq!(recv(link).await.kind(), Kind::Notification);
    let answer = recv(link).await;
    assert_eq!((answer.id(), answer.error().is_none()), (Some(id.as_bytes()), true), "{:?}", answer.bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_post_answered_by_a_proxy_is_repeated() {
    let running = start(HttpLimits::default());
    let between = Between::start(running.address).await;
    let url = format!("http://{}/acp", between.address);
    let Connected { mut link, outcome } = begin(&url, ClientOptions::default()).await;
    let odd = [
        ("200 OK", PAGE),
        ("204 No Content", ""),
        ("302 Found\r\nlocation: http://127.0.0.1:1/", ""),
        ("400 Bad Request", PAGE),
        ("404 Not Found", PAGE),
        ("407 Proxy Authentication Required", ""),
        ("429 Too Many Requests", ""),
        ("502 Bad Gateway", PAGE),
    ];
    for (number, (status, body)) in (1_u64..).zip(odd) {
        between.respond("session/prompt", status, body);
        timeout(STEP_TIMEOUT, turn(&mut link, &number.to_string())).await.expect(status);
        assert_eq!((between.left(), running.agent.asked.load(Ordering::Relaxed)), (0, number), "{status}");
    }
    // Refusals of the server itself are final.
    send(&link, "99", "session/prompt", &json!({})).await;
    assert_eq!(recv(&mut link).await.error().unwrap().code, -32600);
    drop(link);
    timeout(STEP_TIMEOUT, outcome.wait()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_opened_before_the_first_request_of_its_session() {
    for status in ["200 OK", "302 Found", "408 x", "409 x", "425 x", "429 x\r\nretry-after: 0", "503 x"] {
        let running = start(HttpLimits::default());
        let between = Between::start(running.address).await;
        between.respond("acp-session-id", status, PAGE);
        let url = format!("http://{}/acp", between.address);
        let Connected { mut link, outcome } = begin(&url, ClientOptions::default()).await;
        timeout(STEP_TIMEOUT, turn(&mut link, "1")).await.expect(status);
        assert_eq!(between.left(), 0);
        drop(link);
        timeout(STEP_TIMEOUT, outcome.wait()).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_answered_by_a_proxy_is_reopened() {
    let running = start(HttpLimits::default());
    let between = Between::start(running.address).await;
    let cutter = Cutter::start(between.address, u64::MAX).await;
    let url = format!("http://{}/acp", cutter.address);
    let Connected { mut link, outcome } = begin(&url, ClientOptions::default()).await;
    turn(&mut link, "1").await;
    for status in ["200 OK", "302 Found", "400 x", "404 Not Found"] {
        // The streams of the connection and of the session.
        between.respond("GET", status, PAGE);
        between.respond("GET", status, PAGE);
    }
    cutter.close(true);
    cutter.close(false);
    turn(&mut link, "2").await;
    assert_eq!(running.agent.opened.load(Ordering::Relaxed), 1);
    drop(link);
    timeout(STEP_TIMEOUT, outcome.wait()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversized_response_becomes_an_error() {
    let limits = || HttpLimits { max_message: 1000, ..HttpLimits::default() };
    let running = start(limits());
    answer_at_length(&running, &format!("http://{}/acp", running.address)).await;
    let running = start(limits());
    let address = lines(running.handle.clone()).await;
    answer_at_length(&running, &format!("tcp://{address}")).await;
    let running = start(limits());
    answer_at_length(&running, &format!("ws://{}/acp", running.address)).await;
}

async fn answer_at_length(running: &Running, url: &str) {
    let Connected { mut link, outcome } = begin(url, ClientOptions::default()).await;
    send(&link, "1", "session/prompt", &json!({"sessionId": "s", "ask": true})).await;
    let asked = loop {
        let frame = recv(&mut link).await;
        if frame.kind() == Kind::Request {
            break frame;
        }
    };
    let long = json!({"jsonrpc": "2.0", "id": "q", "result": "x".repeat(2000)});
    assert_eq!(asked.id(), Some(&b"\"q\""[..]));
    link.sender.send(long.to_string().into()).await.unwrap();
    let received = async {
        loop {
            if let Some(received) = running.agent.received.lock().unwrap().first() {
                return received.clone();
            }
            tokio::task::yield_now().await;
        }
    };
    let received: Value = timeout(STEP_TIMEOUT, received).await.unwrap();
    assert_eq!((&received["id"], &received["error"]["code"]), (&json!("q"), &json!(-32013)));
    drop(link);
    timeout(STEP_TIMEOUT, outcome.wait()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_messages_are_sent_after_an_outage() {
    let running = start(HttpLimits::default());
    let cutter = Cutter::start(running.address, u64::MAX).await;
    let url = format!("http://{}/acp", cutter.address);
    let Connected { mut link, outcome } = begin(&url, ClientOptions::default()).await;
    turn(&mut link, "1").await;
    cutter.close(true);
    send(&link, "2", "session/prompt", &json!({"sessionId": "s"})).await;
    link.sender.close();
    // Longer than the client waits for responses.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2500) {
        cutter.refused().await;
    }
    cutter.close(false);
    timeout(STEP_TIMEOUT, outcome.wait()).await.unwrap().unwrap();
    assert_eq!(running.agent.asked.load(Ordering::Relaxed), 2);
}

/// Returns the effects of a failure and the id of its request.
fn effects(frame: &narrows_wire::Frame) -> (String, Value) {
    let error = frame.error().expect("an error");
    let id = String::from_utf8(frame.id().unwrap().to_vec()).unwrap();
    (id, error.data.unwrap()["effects"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undelivered_requests_are_reported_without_effects() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://{}/acp", listener.local_addr().unwrap());
    drop(listener);
    let Connected { mut link, .. } =
        connect(&nobody.parse().unwrap(), ClientOptions::default()).await.unwrap();
    send(&link, "1", "initialize", &json!({"protocolVersion": 1})).await;
    assert_eq!(effects(&recv(&mut link).await), ("1".to_owned(), json!("none")));

    let running = start(HttpLimits::default());
    let between = Between::start(running.address).await;
    let url = format!("http://{}/acp", between.address);
    let options = ClientOptions { grace_period: Duration::from_millis(300), ..ClientOptions::default() };
    let Connected { mut link, outcome } = begin(&url, options).await;
    turn(&mut link, "2").await;
    for _ in 0..100 {
        between.respond("session/prompt", "429 x", "");
    }
    send(&link, "3", "session/prompt", &json!({"sessionId": "s"})).await;
    assert_eq!(effects(&recv(&mut link).await), ("3".to_owned(), json!("none")));
    assert!(matches!(outcome.wait().await, Err(ConnectionLost::Grace { .. })));
}

#[tokio::test]
async fn an_unanswered_post_is_given_up_after_the_grace_period() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/acp", listener.local_addr().unwrap());
    let grace_period = Duration::from_millis(500);
    let options = ClientOptions {
        initialize_timeout: Duration::from_millis(200),
        grace_period,
        ..ClientOptions::default()
    };
    let Connected { mut link, outcome } = connect(&url.parse().unwrap(), options).await.unwrap();
    send(&link, "1", "initialize", &json!({"protocolVersion": 1})).await;
    assert_eq!(effects(&recv(&mut link).await), ("1".to_owned(), json!("possible")));
    let lost = outcome.wait().await;
    assert!(matches!(lost, Err(ConnectionLost::Grace { last: DialError::Unanswered(_), .. })), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversized_request_fails_alone() {
    let running = start(HttpLimits { max_message: 1000, ..HttpLimits::default() });
    let url = format!("ws://{}/acp", running.address);
    let Connected { mut link, outcome } = begin(&url, ClientOptions::default()).await;
    turn(&mut link, "1").await;
    for id in ["2", "3"] {
        send(&link, id, "session/prompt", &json!({"sessionId": "s", "text": "x".repeat(2000)})).await;
        let received = recv(&mut link).await;
        assert_eq!(effects(&received), (id.to_owned(), json!("none")));
        let error = received.error().unwrap();
        assert_eq!((error.code, &error.data.unwrap()["retryable"]), (-32013, &json!(false)));
    }
    turn(&mut link, "4").await;
    assert_eq!(running.agent.asked.load(Ordering::Relaxed), 2);
    assert_eq!(running.agent.opened.load(Ordering::Relaxed), 1);
    drop(link);
    timeout(STEP_TIMEOUT, outcome.wait()).await.unwrap().unwrap();
}
