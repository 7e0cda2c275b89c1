//! The demo's answers, cancellation of `next`, and requests without a model.

use futures_util::FutureExt;
use narrows_testkit::model::{ModelServer, Reply as Served};

use super::*;
use crate::{Endpoint, Message};

fn request(model: &str, words: &str) -> Request {
    Request { model: model.to_owned(), messages: vec![Message::user(words)], ..Request::default() }
}

fn text(events: &[ReplyEvent]) -> String {
    let text =
        |event: &ReplyEvent| if let ReplyEvent::Text(text) = event { Some(text.clone()) } else { None };
    events.iter().filter_map(text).collect()
}

#[test]
fn replies_can_move_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    let client = Client::new(Endpoint::demo()).unwrap();
    let request = request("demo", "hello");
    let mut reply = client.chat(&request);
    is_send(&reply);
    is_send(&reply.next());
}

#[tokio::test(start_paused = true)]
async fn the_demo_keeps_its_pace() {
    let check = async |pace: Duration, expected: &dyn Fn(u32) -> Duration| {
        let client = Client::new(Endpoint { pace, ..Endpoint::demo() }).unwrap();
        let request = request("demo", "think");
        let mut reply = client.chat(&request);
        let started = Instant::now();
        let mut events = Vec::new();
        while let Some(event) = reply.next().await.unwrap() {
            events.push(event);
        }
        let completion = reply.into_completion();
        assert_eq!(text(&events), completion.message.text);
        let pieces = u32::try_from(events.len()).unwrap();
        assert_eq!(started.elapsed(), expected(pieces));
    };
    check(Duration::ZERO, &|_| Duration::ZERO).await;
    // Each piece is followed by one pause, including the last.
    check(Duration::from_millis(30), &|pieces| Duration::from_millis(30) * pieces).await;
}

#[tokio::test]
async fn dropping_a_call_of_next_loses_nothing() {
    let served = Served::text("one two three four").split_every(5);
    let server = ModelServer::start([Served::refused(503, "later").header("retry-after-ms", "1"), served]);
    let client = Client::new(Endpoint::new("test", server.base_url())).unwrap();
    let request = request("m", "Hi");
    let mut reply = client.chat(&request);
    let mut events = Vec::new();
    loop {
        // Every call is polled once and dropped.
        match reply.next().now_or_never() {
            None => tokio::task::yield_now().await,
            Some(Ok(Some(event))) => events.push(event),
            Some(Ok(None)) => break,
            Some(Err(error)) => panic!("{error}"),
        }
    }
    assert!(matches!(events[0], ReplyEvent::Note(ReplyNote::Retrying { attempt: 2, .. })), "{:?}", events[0]);
    assert_eq!(text(&events), "one two three four");
    assert_eq!(reply.into_completion().message.text, "one two three four");
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn next_now_returns_events_that_have_arrived() {
    let server = ModelServer::start([Served::text("one two three four").split_every(5)]);
    let client = Client::new(Endpoint::new("test", server.base_url())).unwrap();
    let request = request("m", "Hi");
    let mut reply = client.chat(&request);
    assert_eq!(reply.next_now(), None, "no request is sent");
    let mut events = Vec::new();
    while let Some(event) = reply.next().await.unwrap() {
        events.push(event);
        while let Some(event) = reply.next_now() {
            assert!(reply.shown);
            events.push(event);
        }
    }
    assert_eq!(text(&events), "one two three four");
    assert_eq!(reply.next_now(), None);
    // `next` and `next_now` take from the same queue, in order.
    reply.ready.extend(["a", "b", "c"].map(|text| ReplyEvent::Text(text.to_owned())));
    let (first, second) = (reply.next().await.unwrap(), reply.next_now());
    assert_eq!(
        (first, second),
        (Some(ReplyEvent::Text("a".to_owned())), Some(ReplyEvent::Text("b".to_owned())))
    );
}

#[tokio::test]
async fn without_a_model_no_request_is_sent() {
    let client = Client::new(Endpoint::new("test", "http://localhost:9/v1")).unwrap();
    let request = request("", "Hi");
    let mut reply = client.chat(&request);
    let error = reply.next().await.unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Unconfigured, "no model is set"));
    assert_eq!(reply.next().await.unwrap_err(), error, "the same error again");
}

/// Returns the delays between failing connection attempts that take `took` seconds each.
async fn waits(took: u64) -> Vec<Duration> {
    let mut endpoint = Endpoint::new("test", "http://localhost:9/v1");
    endpoint.limits.attempts = 9;
    let client = Client::new(endpoint).unwrap();
    let request = request("m", "Hi");
    let mut reply = client.chat(&request);
    reply.attempt = 1;
    let mut waits = Vec::new();
    loop {
        let started = Instant::now();
        tokio::time::advance(Duration::from_secs(took)).await;
        let error = ModelError {
            retryable: true,
            ..ModelError::new(ErrorKind::Network, "", "no connection: refused")
        };
        reply.handle_send_error(SendError { error, is_unconnected: true }, started);
        match reply.ready.pop_front() {
            Some(ReplyEvent::Note(ReplyNote::Retrying { wait, .. })) => {
                tokio::time::advance(wait).await;
                waits.push(wait);
            }
            other => {
                assert_eq!(other, None);
                assert!(matches!(reply.state, State::Failed(_)));
                return waits;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn connection_attempts_end_after_ten_seconds() {
    // For these durations, the jitter does not change the number of attempts.
    for (took, tries) in [(0, 3), (2, 2), (3, 1), (5, 0), (9, 0)] {
        let started = Instant::now();
        assert_eq!(waits(took).await.len(), tries, "{took} s each");
        assert!(started.elapsed() < retry::CONNECT_RETRY_TIMEOUT, "{took} s each: {:?}", started.elapsed());
    }
}

#[tokio::test]
async fn leading_white_space_is_ignored() {
    let whole = r#"{"choices":[{"message":{"content":"Hello"},"finish_reason":"stop"}]}"#;
    let blank = " \r\n".repeat(1000);
    for body in
        [format!("{blank}{whole}"), format!("\u{feff}{blank}{whole}"), format!("{blank}data: {whole}\n\n")]
    {
        let server = ModelServer::start(Served::raw(body).split_every(2));
        let client = Client::new(Endpoint::new("test", server.base_url())).unwrap();
        let request = request("m", "Hi");
        let mut reply = client.chat(&request);
        while reply.next().await.unwrap().is_some() {}
        assert_eq!(reply.into_completion().message.text, "Hello");
    }
}
