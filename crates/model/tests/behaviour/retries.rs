//! Retries: their reasons, delays and number, and no retry after a part was shown.

use std::pin::pin;
use std::time::{Duration, SystemTime};

use narrows_model::{Client, ErrorKind, ModelError, ReplyEvent, ReplyNote};
use narrows_testkit::model::{ModelServer, Plan, Reply, Step, data, delta, nobody, preset};
use serde_json::json;

use crate::support::{SHOWN, StillClock, ask, client, client_with, endpoint, play, play_on, request};

const TICK: Duration = Duration::from_millis(2);

async fn first_note(client: &Client) -> Result<ReplyNote, ModelError> {
    let request = request();
    let mut reply = client.chat(&request);
    loop {
        match reply.next().await? {
            Some(ReplyEvent::Note(note)) => return Ok(note),
            Some(_) => {}
            None => unreachable!("it was answered"),
        }
    }
}

async fn wait_after(reply: Reply) -> Duration {
    let server = ModelServer::start(reply);
    let client = client_with(&server, |endpoint| endpoint.limits.total = Duration::from_secs(300));
    match first_note(&client).await {
        Ok(ReplyNote::Retrying { wait, .. }) => wait,
        other => unreachable!("{other:?}"),
    }
}

fn soon(reply: Reply) -> Reply {
    reply.header("retry-after-ms", "1")
}

#[tokio::test]
async fn temporary_failures_are_retried() {
    for status in [408, 409, 425, 429, 500, 502, 503, 504, 529] {
        let server = ModelServer::start([soon(Reply::refused(status, "later")), Reply::text("Hello")]);
        let outcome = ask(&client(&server), &request()).await;
        let [ReplyNote::Retrying { attempt: 2, wait, error }] = outcome.notes()[..] else {
            panic!("{outcome:?}")
        };
        assert_eq!((*wait, error.status), (Duration::from_millis(1), Some(status)));
        assert!(error.message.contains("later"));
        assert_eq!(outcome.whole().message.text, "Hello");
        let seen = server.seen();
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[0].bytes, seen[1].bytes, "the same request is sent");
    }
}

#[tokio::test]
async fn permanent_failures_are_not_retried() {
    for reply in [
        Reply::refused(400, "no"),
        Reply::refused(401, "no"),
        Reply::refused(402, "no"),
        Reply::refused(403, "no"),
        Reply::refused(404, "no"),
        Reply::refused(422, "no"),
        preset::openai::quota(),
        preset::openai::overflow(),
    ] {
        let server = ModelServer::start([soon(reply), Reply::text("Hello")]);
        let outcome = ask(&client(&server), &request()).await;
        assert!(!outcome.failed().retryable, "{outcome:?}");
        assert!(outcome.events.is_empty(), "{outcome:?}");
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn connections_that_end_before_the_first_event_are_tried_again() {
    let clock = StillClock::new();
    for reply in [
        Reply::cut(),
        Reply::close(),
        Reply::stream::<Vec<u8>>([]).then(Step::Close),
        Reply::stream::<Vec<u8>>([]).then(Step::Cut),
        Reply::raw(": OPENROUTER PROCESSING\n\n").then(Step::Close),
        Reply::raw("data: {\"choi").then(Step::Close),
    ] {
        let shown = format!("{reply:?}");
        let server = ModelServer::start([reply, Reply::text("Hello")]);
        let outcome = ask_ahead(&clock, &client(&server)).await;
        assert_eq!(outcome.1, Ok("Hello".to_owned()), "{shown}");
        assert_eq!(outcome.0.len(), 1, "{shown}: {:?}", outcome.0);
        assert_eq!(server.seen().len(), 2, "{shown}");
    }
}

/// Requests an answer, and advances the clock past every delay. Returns the notes, and the text or the error.
async fn ask_ahead(clock: &StillClock, client: &Client) -> (Vec<ReplyNote>, Result<String, ModelError>) {
    let request = request();
    let mut reply = client.chat(&request);
    let (mut notes, mut text) = (Vec::new(), String::new());
    let mut wait = Duration::ZERO;
    loop {
        let next = {
            let mut next = pin!(reply.next());
            // The delay starts when the next event is polled.
            tokio::select! {
                biased;
                next = &mut next => next,
                () = async { clock.advance(wait + TICK).await; std::future::pending().await } => unreachable!("it pends"),
            }
        };
        wait = Duration::ZERO;
        match next {
            Ok(Some(ReplyEvent::Note(note))) => {
                if let ReplyNote::Retrying { wait: asked, .. } = &note {
                    wait = *asked;
                }
                notes.push(note);
            }
            Ok(Some(ReplyEvent::Text(piece))) => text.push_str(&piece),
            Ok(Some(_)) => {}
            Ok(None) => return (notes, Ok(text)),
            Err(error) => return (notes, Err(error)),
        }
    }
}

#[tokio::test]
async fn a_refused_connection_is_retried() {
    let clock = StillClock::new();
    let (base_url, address) = nobody();
    let client = Client::new(endpoint(&base_url)).expect("the settings are good");
    let request = request();
    let mut reply = client.chat(&request);
    let Ok(Some(ReplyEvent::Note(ReplyNote::Retrying { wait, error, .. }))) = reply.next().await else {
        panic!("it is tried again")
    };
    assert_eq!(error.kind, ErrorKind::Network);
    let server = ModelServer::start_at(address, Reply::text("Hello"));
    let next = {
        let mut next = pin!(reply.next());
        tokio::select! {
            biased;
            next = &mut next => next,
            () = async { clock.advance(wait + TICK).await; std::future::pending().await } => unreachable!("it pends"),
        }
    };
    assert_eq!(next, Ok(Some(ReplyEvent::Text("Hello".to_owned()))));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn an_error_as_the_first_event_is_tried_again() {
    let busy = json!({"error": {"message": "busy, try again in 2ms", "code": 503}});
    let server = ModelServer::start([Reply::sse([busy]), Reply::text("Hello")]);
    let outcome = ask(&client(&server), &request()).await;
    assert_eq!((outcome.notes().len(), outcome.text().as_str()), (1, "Hello"), "{outcome:?}");
    assert_eq!(server.seen().len(), 2);

    let wrong = json!({"error": {"message": "wrong", "type": "invalid_request_error", "code": 400}});
    let server = ModelServer::start([Reply::sse([wrong]), Reply::text("Hello")]);
    let outcome = ask(&client(&server), &request()).await;
    assert!(!outcome.failed().retryable, "{outcome:?}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn no_request_is_repeated_after_something_was_shown() {
    let busy = data(&json!({"error": {"message": "busy", "code": 503}}));
    for shown in [json!({"content": "Hel"}), json!({"reasoning_content": "Hm"})] {
        for end in [Step::Bytes(busy.clone()), Step::Cut, Step::Close] {
            let reply = Reply::stream([data(&delta(&shown))]).then(Step::gate(SHOWN)).then(end);
            let server = ModelServer::start([reply, Reply::text("again")]);
            let outcome = play_on(&server).await;
            assert!(outcome.failed().shown, "{outcome:?}");
            assert!(outcome.notes().is_empty(), "{outcome:?}");
            assert_eq!(server.seen().len(), 1);
        }
    }
}

#[tokio::test]
async fn the_server_decides_how_long_to_wait() {
    let busy = || Reply::refused(429, "busy");
    let milliseconds = Duration::from_millis;
    assert_eq!(wait_after(busy().header("retry-after-ms", "1500")).await, milliseconds(1500));
    assert_eq!(wait_after(busy().header("retry-after", "7")).await, milliseconds(7000));
    let both = busy().header("retry-after", "7").header("retry-after-ms", "40");
    assert_eq!(wait_after(both).await, milliseconds(40), "the finer one");
    assert_eq!(wait_after(busy().header("x-ratelimit-reset-requests", "1s")).await, milliseconds(1000));
    assert_eq!(wait_after(busy().header("x-ratelimit-reset-tokens", "120ms")).await, milliseconds(120));
    assert_eq!(wait_after(Reply::refused(429, "Please try again in 300ms.")).await, milliseconds(300));
    assert_eq!(wait_after(Reply::refused(429, "Please try again in 1.5s.")).await, milliseconds(1500));
    assert_eq!(wait_after(preset::openai::rate_limit()).await, milliseconds(20));
    assert_eq!(wait_after(preset::groq::rate_limit()).await, milliseconds(30));

    let date = SystemTime::now() + Duration::from_secs(30);
    let wait =
        wait_after(Reply::refused(503, "busy").header("retry-after", &httpdate::fmt_http_date(date))).await;
    assert!(wait > Duration::from_secs(25) && wait <= Duration::from_secs(31), "{wait:?}");
}

#[tokio::test]
async fn without_a_requested_wait_delays_double_from_one_second() {
    let clock = StillClock::new();
    let server = ModelServer::start(Reply::refused(503, "busy"));
    let (notes, end) = ask_ahead(&clock, &client(&server)).await;
    let error = end.expect_err("it is always busy");
    assert_eq!((error.kind, error.status, error.shown), (ErrorKind::Server, Some(503), false));
    assert_eq!(server.seen().len(), 4, "four attempts");
    assert_eq!(notes.len(), 3);
    for (at, note) in notes.iter().enumerate() {
        let ReplyNote::Retrying { attempt, wait, .. } = note else { panic!("{note:?}") };
        assert_eq!(*attempt as usize, at + 2);
        let usual = f64::from(1_u32 << at);
        let off = (wait.as_secs_f64() - usual).abs() / usual;
        assert!(off <= 0.2 + 1e-9, "{notes:?}");
    }
}

#[tokio::test]
async fn the_requested_wait_is_kept() {
    let clock = StillClock::new();
    let busy = Reply::refused(429, "busy").header("retry-after", "30");
    let server = ModelServer::start([busy, Reply::text("Hello")]);
    let client = client_with(&server, |endpoint| endpoint.limits.total = Duration::from_secs(300));
    let request = request();
    let mut reply = client.chat(&request);
    assert!(matches!(reply.next().await, Ok(Some(ReplyEvent::Note(_)))));
    let mut next = pin!(reply.next());
    tokio::select! {
        biased;
        next = &mut next => panic!("too early: {next:?}"),
        () = clock.advance(Duration::from_secs(29)) => {}
    }
    assert_eq!(server.seen().len(), 1);
    tokio::select! {
        biased;
        next = &mut next => panic!("too early: {next:?}"),
        () = clock.advance(Duration::from_secs(2)) => {}
    }
    assert_eq!(next.await, Ok(Some(ReplyEvent::Text("Hello".to_owned()))));
}

#[tokio::test]
async fn a_wait_over_the_limit_is_an_error() {
    // The demanded delay exceeds first the limit for one delay, then the limit for the whole answer.
    for (asked, total) in [(61, 300), (9, 5)] {
        let busy = Reply::refused(429, "busy").header("retry-after", &asked.to_string());
        let server = ModelServer::start(busy);
        let client = client_with(&server, |endpoint| endpoint.limits.total = Duration::from_secs(total));
        let outcome = ask(&client, &request()).await;
        let error = outcome.failed();
        let wanted = Some(Duration::from_secs(asked));
        assert_eq!((error.kind, error.retry_after), (ErrorKind::RateLimit, wanted), "{error:?}");
        assert!(outcome.events.is_empty(), "{outcome:?}");
    }
}

#[tokio::test]
async fn the_number_of_attempts_is_configurable() {
    for attempts in [1_u32, 2, 6] {
        let server = ModelServer::start(soon(Reply::refused(503, "busy")));
        let client = client_with(&server, |endpoint| endpoint.limits.attempts = attempts);
        let outcome = ask(&client, &request()).await;
        assert_eq!(outcome.failed().status, Some(503));
        assert_eq!(server.seen().len(), attempts as usize);
        assert_eq!(outcome.notes().len(), attempts as usize - 1);
    }
}

#[tokio::test]
async fn dropping_a_reply_during_a_delay_sends_nothing_more() {
    let server =
        ModelServer::start([Reply::refused(503, "busy").header("retry-after-ms", "20"), Reply::text("x")]);
    assert!(first_note(&client(&server)).await.is_ok());
    // sleep: only waiting can show that nothing happens
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_server_that_is_loading_its_model_is_retried() {
    let clock = StillClock::new();
    let loading = preset::llamacpp::loading;
    let server = ModelServer::start(Plan::new([loading(), loading(), preset::llamacpp::text()]));
    let (notes, end) = ask_ahead(&clock, &client(&server)).await;
    assert_eq!((notes.len(), end), (2, Ok(preset::TEXT.to_owned())));
}

#[tokio::test]
async fn an_empty_answer_is_accepted() {
    let outcome = play(Reply::sse([narrows_testkit::model::finish("stop")])).await;
    assert_eq!(outcome.whole().message.text, "");
}
