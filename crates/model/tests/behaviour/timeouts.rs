//! Timeouts: for connecting, before the first event, between two events, and for the whole answer.

use std::pin::pin;
use std::time::{Duration, Instant};

use narrows_model::{Client, Endpoint, ErrorKind, Limits, ReplyEvent, Request};
use narrows_testkit::model::{ModelServer, Reply, Step, data, delta};
use serde_json::json;
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{StillClock, ask, client_with, endpoint, request};

/// Checks that with this limit the reply times out after it has shown `text`.
async fn check(reply: Reply, set: impl FnOnce(&mut Limits), text: &str) {
    let clock = StillClock::new();
    let described = format!("{reply:?}");
    let server = ModelServer::start(reply);
    let mut endpoint = Endpoint::new("test", server.base_url());
    set(&mut endpoint.limits);
    let client = Client::new(endpoint).expect("the settings are good");
    let request = request();
    let mut reply = client.chat(&request);
    if !text.is_empty() {
        assert_eq!(reply.next().await, Ok(Some(ReplyEvent::Text(text.to_owned()))), "{described}");
    }
    let end = tokio::select! {
        biased;
        next = reply.next() => next,
        () = async {
            server.seen_count(1).await;
            clock.advance(LIMIT + Duration::from_secs(1)).await;
            std::future::pending::<()>().await;
        } => unreachable!("it pends"),
    };
    let error = end.expect_err("nothing came");
    assert_eq!((error.kind, error.status), (ErrorKind::Timeout, None), "{described}: {error:?}");
    assert_eq!(error.shown, !text.is_empty(), "{described}");
    server.hung_up().await;
    assert_eq!(server.seen().len(), 1, "{described}: whoever waited in vain does not want to wait again");
}

const LIMIT: Duration = Duration::from_secs(7);

const SHORT: Duration = Duration::from_millis(60);

fn comments() -> Step {
    Step::Forever(b": keep-alive\n\n".to_vec(), Duration::from_millis(5))
}

fn hel() -> Reply {
    Reply::stream([data(&delta(&json!({"content": "Hel"})))])
}

#[tokio::test]
async fn silence_before_the_first_event_times_out() {
    check(Reply::hang(), |limits| limits.first_event = LIMIT, "").await;
}

#[tokio::test]
async fn a_response_head_is_not_an_event() {
    check(Reply::raw("").then(Step::Hang), |limits| limits.first_event = LIMIT, "").await;
}

#[tokio::test]
async fn an_incomplete_event_does_not_stop_the_timeout() {
    check(Reply::raw("data: {").then(Step::Hang), |limits| limits.first_event = LIMIT, "").await;
}

#[tokio::test]
async fn comments_are_not_events() {
    check(Reply::raw("").then(comments()), |limits| limits.first_event = LIMIT, "").await;
}

#[tokio::test]
async fn an_incomplete_body_times_out() {
    check(Reply::raw("{\"choices\":").then(Step::Hang), |limits| limits.first_event = LIMIT, "").await;
}

#[tokio::test]
async fn silence_between_events_times_out() {
    check(hel().then(Step::Hang), |limits| limits.idle = LIMIT, "Hel").await;
}

#[tokio::test]
async fn a_slow_stream_ends_at_the_total_limit() {
    let empty = data(&delta(&json!({"content": ""})));
    let drip = Step::Forever(empty, Duration::from_millis(5));
    check(hel().then(drip), |limits| limits.total = LIMIT, "Hel").await;
}

#[tokio::test]
async fn comments_do_not_extend_the_total_limit() {
    check(hel().then(comments()), |limits| limits.total = LIMIT, "Hel").await;
}

/// Comments show that a gateway is connected, not that an answer follows.
#[tokio::test]
async fn comments_without_events_time_out() {
    check(hel().then(comments()), |limits| limits.first_event = LIMIT, "Hel").await;
}

#[tokio::test]
async fn the_total_limit_applies_before_the_first_event() {
    check(Reply::hang(), |limits| limits.total = LIMIT, "").await;
}

#[tokio::test]
async fn the_body_of_a_refusal_is_waited_for_briefly() {
    let server = ModelServer::start(Reply::raw("{\"error\":").status(400).then(Step::Hang));
    let client = client_with(&server, |endpoint| endpoint.limits.idle = SHORT);
    let started = Instant::now();
    let outcome = ask(&client, &request()).await;
    assert_eq!((outcome.failed().kind, outcome.failed().status), (ErrorKind::Http, Some(400)));
    assert!(started.elapsed() < Duration::from_secs(4), "another limit ended it");
    server.hung_up().await;
}

#[tokio::test]
async fn the_first_event_may_take_minutes() {
    let clock = StillClock::new();
    let server = ModelServer::start(Reply::text("Hello").before(Step::gate("read")));
    let client = Client::new(Endpoint::new("test", server.base_url())).expect("the settings are good");
    let request = request();
    let mut reply = client.chat(&request);
    let mut next = pin!(reply.next());
    tokio::select! {
        biased;
        next = &mut next => panic!("too early: {next:?}"),
        () = async {
            server.seen_count(1).await;
            clock.advance(Duration::from_secs(290)).await;
        } => {}
    }
    server.release("read");
    assert_eq!(next.await, Ok(Some(ReplyEvent::Text("Hello".to_owned()))));
}

#[tokio::test]
async fn the_idle_timeout_applies_after_the_first_event() {
    let clock = StillClock::new();
    let gates = ["one", "two", "three", "four"];
    // The first read already contains the first event.
    let slow = Reply::text("one two three four")
        .before(Step::gate("one"))
        .after(4, Step::gate("four"))
        .after(3, Step::gate("three"))
        .after(2, Step::gate("two"))
        .at_once();
    let server = ModelServer::start(slow);
    let client = Client::new(Endpoint::new("test", server.base_url())).expect("the settings are good");
    let request = request();
    let mut reply = client.chat(&request);
    for (gate, pause) in gates.into_iter().zip([290, 110, 110, 110]) {
        let mut next = pin!(reply.next());
        tokio::select! {
            biased;
            next = &mut next => panic!("too early: {next:?}"),
            () = async {
                server.seen_count(1).await;
                clock.advance(Duration::from_secs(pause)).await;
            } => {}
        }
        server.release(gate);
        let next = next.await;
        let Ok(Some(ReplyEvent::Text(word))) = &next else { panic!("after {pause} s: {next:?}") };
        assert_eq!(word.trim(), gate, "after {pause} s");
    }
    assert_eq!(reply.next().await, Ok(None));
}

#[tokio::test]
async fn a_silent_endpoint_times_out_by_default() {
    let clock = StillClock::new();
    let server = ModelServer::start(Reply::hang());
    let client = Client::new(Endpoint::new("test", server.base_url())).expect("the settings are good");
    let request = request();
    let mut reply = client.chat(&request);
    let end = tokio::select! {
        biased;
        next = reply.next() => next,
        () = async {
            server.seen_count(1).await;
            clock.advance(Duration::from_secs(301)).await;
            std::future::pending::<()>().await;
        } => unreachable!("it pends"),
    };
    assert_eq!(end.expect_err("nothing came").kind, ErrorKind::Timeout);
}

/// Returns an address whose listener has a full queue: a connection attempt gets no answer.
async fn unresponsive_address() -> (TcpSocketKept, String) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let listener = socket.listen(1).expect("it listens");
    let address = listener.local_addr().expect("an address");
    let mut waiting = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(Duration::from_millis(100), TcpStream::connect(address)).await
    {
        waiting.push(stream);
    }
    (TcpSocketKept { _listener: listener, _waiting: waiting }, format!("http://{address}/v1"))
}

struct TcpSocketKept {
    _listener: tokio::net::TcpListener,
    _waiting: Vec<TcpStream>,
}

#[tokio::test]
async fn a_connection_attempt_times_out() {
    let (_kept, base_url) = unresponsive_address().await;
    let mut endpoint = endpoint(&base_url);
    endpoint.limits.connect = SHORT;
    endpoint.limits.attempts = 4;
    let client = Client::new(endpoint).expect("the settings are good");
    let started = Instant::now();
    let outcome = ask(&client, &request()).await;
    assert!(started.elapsed() < Duration::from_secs(4), "another limit ended it");
    let error = outcome.failed();
    assert!(matches!(error.kind, ErrorKind::Timeout | ErrorKind::Network), "{error:?}");
    assert!(!error.message.is_empty() && !error.shown, "{error:?}");
    assert!(!error.retryable, "a connection timeout must not be retried");
}

#[tokio::test]
async fn next_can_be_dropped_and_called_again() {
    let server = ModelServer::start(Reply::text("one two").after(2, Step::gate("more")));
    let client = client_with(&server, |_| {});
    let request: Request = request();
    let mut reply = client.chat(&request);
    assert_eq!(reply.next().await, Ok(Some(ReplyEvent::Text("one ".to_owned()))));
    for _ in 0..3 {
        let given_up = tokio::time::timeout(Duration::from_millis(10), reply.next()).await;
        assert!(given_up.is_err());
    }
    server.release("more");
    assert_eq!(reply.next().await, Ok(Some(ReplyEvent::Text("two".to_owned()))));
    assert_eq!(reply.next().await, Ok(None));
    assert_eq!(server.seen().len(), 1);
}
