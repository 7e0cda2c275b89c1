//! Silence: until the connection stands, before the first event, between two, and in all.

use std::pin::pin;
use std::time::{Duration, Instant};

use narrows_model::{Client, Endpoint, Event, Kind, Limits, Request};
use narrows_testkit::model::{ModelServer, Reply, Step, data, delta};
use serde_json::json;
use tokio::net::{TcpSocket, TcpStream};

use crate::stage::{StillClock, ask, client_with, endpoint, request};

/// Under these limits the reply comes too late.
async fn check(reply: Reply, limits: impl FnOnce(&mut Limits), text: &str) {
    let described = format!("{reply:?}");
    let server = ModelServer::start(reply);
    let client = client_with(&server, |endpoint| limits(&mut endpoint.limits));
    let started = Instant::now();
    let outcome = ask(&client, &request()).await;
    let error = outcome.failed();
    assert_eq!((error.kind, error.status), (Kind::Timeout, None), "{described}: {error:?}");
    assert!(started.elapsed() < Duration::from_secs(4), "{described}: another limit ended it");
    assert_eq!(error.shown, !text.is_empty(), "{described}");
    assert_eq!(outcome.text(), text, "{described}");
    server.hung_up().await;
    assert_eq!(server.seen().len(), 1, "{described}: whoever waited in vain does not want to wait again");
}

const SHORT: Duration = Duration::from_millis(60);

fn comments() -> Step {
    Step::Forever(b": keep-alive\n\n".to_vec(), Duration::from_millis(5))
}

#[tokio::test]
async fn silence_before_the_first_event_ends() {
    check(Reply::hang(), |limits| limits.first_event = SHORT, "").await;
    check(Reply::raw("").then(Step::Hang), |limits| limits.first_event = SHORT, "").await;
    check(Reply::raw("data: {").then(Step::Hang), |limits| limits.first_event = SHORT, "").await;
}

#[tokio::test]
async fn comments_are_no_events() {
    check(Reply::raw("").then(comments()), |limits| limits.first_event = SHORT, "").await;
}

#[tokio::test]
async fn silence_between_events_ends() {
    let one = || Reply::stream([data(&delta(&json!({"content": "Hel"})))]);
    check(one().then(Step::Hang), |limits| limits.idle = SHORT, "Hel").await;
    check(
        one().then(Step::Bytes(b"data: {\"".to_vec())).then(Step::Hang),
        |limits| limits.idle = SHORT,
        "Hel",
    )
    .await;
}

#[tokio::test]
async fn no_stream_drips_forever() {
    let word = data(&delta(&json!({"content": ""})));
    let drip = Step::Forever(word, Duration::from_millis(5));
    let one = || Reply::stream([data(&delta(&json!({"content": "Hel"})))]);
    check(one().then(drip), |limits| limits.total = SHORT * 2, "Hel").await;
    check(one().then(comments()), |limits| limits.total = SHORT * 2, "Hel").await;
    check(Reply::hang(), |limits| limits.total = SHORT, "").await;
}

#[tokio::test]
async fn whole_bodies_are_waited_for_no_longer() {
    check(
        Reply::raw("{\"choices\":").then(Step::Hang),
        |limits| {
            limits.first_event = SHORT;
            limits.idle = SHORT;
        },
        "",
    )
    .await;
}

#[tokio::test]
async fn the_words_of_a_refusal_are_waited_for_a_moment() {
    let server = ModelServer::start(Reply::raw("{\"error\":").status(400).then(Step::Hang));
    let client = client_with(&server, |endpoint| endpoint.limits.idle = SHORT);
    let started = Instant::now();
    let outcome = ask(&client, &request()).await;
    assert_eq!((outcome.failed().kind, outcome.failed().status), (Kind::Http, Some(400)));
    assert!(started.elapsed() < Duration::from_secs(4), "another limit ended it");
    server.hung_up().await;
}

#[tokio::test]
async fn a_slow_stream_is_no_silent_one() {
    let slow = Reply::text("one two three").after_each(&Step::Pause(Duration::from_millis(30)));
    let server = ModelServer::start(slow);
    let client = client_with(&server, |endpoint| {
        endpoint.limits.idle = Duration::from_millis(400);
        endpoint.limits.first_event = Duration::from_millis(400);
    });
    assert_eq!(ask(&client, &request()).await.whole().message.text, "one two three");
}

#[tokio::test]
async fn a_model_may_read_for_minutes() {
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
    assert_eq!(next.await, Ok(Some(Event::Text("Hello".to_owned()))));
}

#[tokio::test]
async fn after_the_first_event_the_time_between_two_counts() {
    let clock = StillClock::new();
    let late = Reply::text("one two").before(Step::gate("begin")).after(2, Step::gate("go on")).at_once();
    let server = ModelServer::start(late);
    let client = Client::new(Endpoint::new("test", server.base_url())).expect("the settings are good");
    let request = request();
    let mut reply = client.chat(&request);
    for (gate, pause, word) in [("begin", 290, "one "), ("go on", 110, "two")] {
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
        assert_eq!(next.await, Ok(Some(Event::Text(word.to_owned()))), "after {pause} s");
    }
}

#[tokio::test]
async fn but_not_for_ever() {
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
    assert_eq!(end.expect_err("nothing came").kind, Kind::Timeout);
}

/// A socket whose queue is full: connecting to it gets no answer.
async fn deaf() -> (TcpSocketKept, String) {
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
async fn a_connection_that_does_not_come_about_ends() {
    let (_kept, base_url) = deaf().await;
    let mut endpoint = endpoint(&base_url);
    endpoint.limits.connect = SHORT;
    endpoint.limits.attempts = 1;
    let client = Client::new(endpoint).expect("the settings are good");
    let started = Instant::now();
    let outcome = ask(&client, &request()).await;
    assert!(started.elapsed() < Duration::from_secs(4), "another limit ended it");
    let error = outcome.failed();
    assert!(matches!(error.kind, Kind::Timeout | Kind::Network), "{error:?}");
    assert!(!error.message.is_empty() && !error.shown, "{error:?}");
}

#[tokio::test]
async fn next_can_be_given_up_and_called_again() {
    let server = ModelServer::start(Reply::text("one two").after(2, Step::gate("more")));
    let client = client_with(&server, |_| {});
    let request: Request = request();
    let mut reply = client.chat(&request);
    assert_eq!(reply.next().await, Ok(Some(Event::Text("one ".to_owned()))));
    for _ in 0..3 {
        let given_up = tokio::time::timeout(Duration::from_millis(10), reply.next()).await;
        assert!(given_up.is_err());
    }
    server.release("more");
    assert_eq!(reply.next().await, Ok(Some(Event::Text("two".to_owned()))));
    assert_eq!(reply.next().await, Ok(None));
    assert_eq!(server.seen().len(), 1);
}
