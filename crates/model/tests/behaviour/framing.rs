//! From bytes to events: line ends, split reads, bodies of the wrong kind, and ends of all kinds.

use std::time::{Duration, Instant};

use narrows_model::{Assistant, ErrorKind, Finish};
use narrows_testkit::model::{Framing, ModelServer, Reply, Step, data, delta, finish, usage};
use proptest::prelude::{ProptestConfig, any, proptest};
use serde_json::json;

use crate::support::{SHOWN, ask, client_with, play, play_on, request};

fn word(text: &str) -> Vec<u8> {
    data(&delta(&json!({"content": text})))
}

fn stop() -> Vec<u8> {
    data(&finish("stop"))
}

#[track_caller]
fn check(reply: Reply, expected: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let shown = format!("{reply:?}");
    let outcome = runtime.block_on(play(reply));
    assert_eq!(outcome.error, None, "{shown}");
    assert_eq!(outcome.text(), expected, "{shown}");
    assert_eq!(outcome.completion.finish, Finish::Stop, "{shown}");
}

#[test]
fn all_line_ends_and_splits_are_accepted() {
    for end in ["\n", "\r\n", "\r"] {
        for split in [1, 2, 3, 7, 64] {
            check(Reply::text("Grüße, 世界 🌍!").line_ends(end).split_every(split), "Grüße, 世界 🌍!");
        }
        check(Reply::text("Hello world").line_ends(end).at_once(), "Hello world");
    }
}

#[test]
fn a_byte_order_mark_is_skipped() {
    // If the first event were dropped, its text would be missing.
    let marked = || Reply::stream([b"\xef\xbb\xbf".to_vec(), word("Hello"), stop()]);
    check(marked(), "Hello");
    check(marked().at_once(), "Hello");
    check(marked().split_every(1), "Hello");
}

#[test]
fn the_blank_after_the_colon_is_optional() {
    let tight = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text").replacen("data: ", "data:", 1);
    check(Reply::stream([tight(word("Hello")), tight(stop()), "data:[DONE]\n\n".to_owned()]), "Hello");
    check(Reply::stream([word("Hello"), stop(), b"data:   [DONE] \n\n".to_vec()]).then(Step::Hang), "Hello");
}

#[test]
fn several_lines_of_data_are_one_event() {
    let event = "data: {\"choices\":[{\"index\":0,\ndata: \"delta\":\ndata:{\"content\":\"Hello\"}}]}\n\n";
    check(Reply::stream([event.as_bytes().to_vec(), stop()]), "Hello");
    check(Reply::stream([event.as_bytes().to_vec(), stop()]).crlf().split_every(5), "Hello");
}

#[test]
fn fields_other_than_data_are_ignored() {
    let noise = [
        "event: message\n\n",
        "retry: 3000\n\n",
        "id: 7\n\n",
        ": comment\n\n",
        ":\n",
        "data:\n\n",
        "data\n\n",
        "\n\n\n",
        "unknown: field\n\n",
        "event: ping\ndata:\n\n",
    ];
    for noise in noise {
        let noise = noise.as_bytes().to_vec();
        check(Reply::stream([noise.clone(), word("Hel"), noise.clone(), word("lo"), stop(), noise]), "Hello");
    }
    let named = [b"event: chunk\nid: 1\n: c\n".to_vec(), word("Hello")].concat();
    check(Reply::stream([named, stop()]), "Hello");
}

#[test]
fn a_line_that_is_not_json_is_skipped() {
    check(Reply::stream([word("Hel"), data("oops"), data("{\"choices\":"), word("lo"), stop()]), "Hello");
}

#[test]
fn the_last_event_needs_no_end() {
    let open = |mut bytes: Vec<u8>, kept: usize| {
        bytes.truncate(bytes.len() - 2 + kept);
        bytes
    };
    for kept in [0, 1] {
        check(Reply::stream([word("Hello"), open(stop(), kept)]), "Hello");
        check(Reply::stream([word("Hello"), stop(), open(data("[DONE]"), kept)]), "Hello");
    }
    let last = data(&json!({"choices": [{"delta": {"content": "lo"}, "finish_reason": "stop"}]}));
    check(Reply::stream([word("Hel"), open(last, 0)]), "Hello");
}

#[test]
fn all_ends_of_a_body_are_accepted() {
    for framing in [Framing::Chunked, Framing::Length, Framing::UntilClose] {
        check(Reply::text("Hello world").framing(framing), "Hello world");
        check(Reply::text("Hello world").without_done().framing(framing), "Hello world");
    }
}

#[test]
fn the_kind_of_a_body_is_detected() {
    check(Reply::text("Hello").content_type("application/json"), "Hello");
    check(Reply::text("Hello").content_type("text/html"), "Hello");
    check(Reply::whole("Hello").content_type("text/event-stream"), "Hello");
    check(Reply::whole("Hello").split_every(3), "Hello");
    check(Reply::whole("Hello").after(0, Step::Bytes(b"\r\n  ".to_vec())), "Hello");
}

#[tokio::test]
async fn the_end_of_the_stream_ends_the_answer_at_once() {
    for done in ["data: [DONE]\n\n", "data:[DONE]\n\n", "data:  [DONE] \r\n\r\n"] {
        let reply = Reply::text("Hello").without_done().then(Step::Bytes(done.into())).then(Step::Hang);
        let server = ModelServer::start(reply);
        let client = client_with(&server, |endpoint| endpoint.limits.grace = Duration::from_secs(8));
        let started = Instant::now();
        let outcome = ask(&client, &request()).await;
        assert!(started.elapsed() < Duration::from_secs(4), "{done:?}: the socket was waited for");
        assert_eq!(outcome.text(), "Hello");
        assert_eq!(outcome.whole().usage.expect("usage came").total, 11);
        server.hung_up().await;
    }
}

#[tokio::test]
async fn usage_is_waited_for_after_the_finish() {
    let late = Reply::sse([delta(&json!({"content": "Hello"})), finish("stop")])
        .without_done()
        .then(Step::Pause(Duration::from_millis(30)))
        .then(Step::Bytes(data(&usage(3, 4))))
        .then(Step::Bytes(data("[DONE]")));
    let server = ModelServer::start(late);
    let client = client_with(&server, |endpoint| endpoint.limits.grace = Duration::from_secs(8));
    let completion = ask(&client, &request()).await.whole();
    assert_eq!(completion.usage.expect("usage came within the grace").total, 7);

    let never = Reply::text("Hello").without_usage().without_done().then(Step::Hang);
    let server = ModelServer::start(never);
    let client = client_with(&server, |endpoint| endpoint.limits.grace = Duration::from_millis(40));
    let completion = ask(&client, &request()).await.whole();
    assert_eq!((completion.message.text.as_str(), completion.usage), ("Hello", None));
    server.hung_up().await;
}

#[tokio::test]
async fn the_grace_period_is_not_prolonged_by_comments() {
    for noise in [b": keep-alive\n\n".to_vec(), data(&delta(&json!({}))), data(&usage(1, 2))] {
        let noisy = Reply::text("Hello")
            .without_usage()
            .without_done()
            .then(Step::Forever(noise, Duration::from_millis(5)));
        let server = ModelServer::start(noisy);
        let client = client_with(&server, |endpoint| endpoint.limits.grace = Duration::from_millis(60));
        let started = Instant::now();
        assert_eq!(ask(&client, &request()).await.whole().message.text, "Hello");
        assert!(started.elapsed() < Duration::from_secs(4), "another limit ended it");
    }
}

#[tokio::test]
async fn an_answer_without_an_end_was_cut() {
    // A reset drops unread data, so the server waits until the client has read it.
    let gate = || Step::gate(SHOWN);
    for reply in [
        Reply::stream([word("Hel")]),
        Reply::stream([word("Hel")]).then(Step::Close),
        Reply::stream([word("Hel")]).then(gate()).then(Step::Cut),
        Reply::stream([word("Hel")]).no_content_length(),
        Reply::stream([word("Hel"), b"data: {\"choices\":[{\"delta\":{\"content\":\"lo".to_vec()]),
    ] {
        let shown = format!("{reply:?}");
        let server = ModelServer::start(reply);
        let outcome = play_on(&server).await;
        let error = outcome.failed();
        assert_eq!((error.kind, error.shown), (ErrorKind::Cut, true), "{shown}: {error:?}");
        assert_eq!(outcome.text(), "Hel", "{shown}");
        // Half an answer is not part of a conversation; the caller has what was shown.
        assert_eq!(outcome.completion.message, Assistant::default(), "{shown}");
        assert!(outcome.notes().is_empty(), "{shown}: nothing is asked again once something was shown");
    }
}

#[tokio::test]
async fn a_reset_after_the_finish_is_no_loss() {
    for end in [Step::Cut, Step::Close] {
        let both = [word("Hello"), stop()].concat();
        let server = ModelServer::start(Reply::raw(both).then(Step::gate(SHOWN)).then(end));
        assert_eq!(play_on(&server).await.whole().message.text, "Hello");
    }
}

#[tokio::test]
async fn a_body_that_is_not_an_answer_is_reported() {
    let page = "<!DOCTYPE html><html><head><title>Sign in here</title></head><body>…</body></html>";
    for (reply, said) in [
        (Reply::document(200, "text/html", page), "Sign in here"),
        (Reply::document(200, "text/event-stream", page), "Sign in here"),
        (Reply::raw(""), ""),
        (Reply::document(200, "text/plain", ""), ""),
        (Reply::stream([data("nothing"), data("of sense")]), ""),
        (Reply::document(200, "text/plain", "It works!"), ""),
        (Reply::json(200, &json!({"hello": "world"})), ""),
    ] {
        let shown = format!("{reply:?}");
        let server = ModelServer::start(reply);
        let client = client_with(&server, |endpoint| endpoint.limits.attempts = 1);
        let outcome = ask(&client, &request()).await;
        let error = outcome.failed();
        assert_eq!(error.kind, ErrorKind::Garbage, "{shown}: {error:?}");
        assert!(error.message.contains(said), "{shown}: {error:?}");
        assert!(!error.shown && outcome.events.is_empty(), "{shown}");
    }
}

#[tokio::test]
async fn lines_and_answers_are_bounded() {
    let endless = Reply::raw("data: ").then(Step::Forever(vec![b'a'; 4096], Duration::ZERO));
    let server = ModelServer::start(endless);
    let client = client_with(&server, |endpoint| {
        endpoint.limits.max_line = 64 << 10;
        endpoint.limits.attempts = 1;
    });
    let outcome = ask(&client, &request()).await;
    assert_eq!(outcome.failed().kind, ErrorKind::Garbage, "{outcome:?}");
    server.hung_up().await;

    let many = Reply::raw("").then(Step::Forever(word("word "), Duration::ZERO));
    let server = ModelServer::start(many);
    let client = client_with(&server, |endpoint| endpoint.limits.max_reply = 32 << 10);
    let outcome = ask(&client, &request()).await;
    let error = outcome.failed();
    assert_eq!((error.kind, error.shown, error.retryable), (ErrorKind::Garbage, true, false), "{error:?}");
    assert!(outcome.text().starts_with("word word "));
    server.hung_up().await;
}

#[tokio::test]
async fn a_whole_body_is_bounded_too() {
    let endless = Reply::raw("{\"choices\": [\"").then(Step::Forever(vec![b'a'; 4096], Duration::ZERO));
    let server = ModelServer::start(endless);
    let client = client_with(&server, |endpoint| {
        endpoint.limits.max_reply = 64 << 10;
        endpoint.limits.attempts = 1;
    });
    assert_eq!(ask(&client, &request()).await.failed().kind, ErrorKind::Garbage);
    server.hung_up().await;
}

#[test]
fn a_long_line_within_the_limit_is_taken() {
    let long = "long ".repeat(200_000);
    check(Reply::stream([word(&long), stop()]), &long);
}

#[tokio::test]
async fn invalid_utf8_is_tolerated() {
    let mut broken = word("Hel?");
    let at = broken.iter().position(|byte| *byte == b'?').expect("it is there");
    broken[at] = 0xff;
    let outcome = play(Reply::stream([broken, word("lo"), stop()])).await;
    assert_eq!(outcome.error, None);
    // The invalid line is skipped, or shown with a replacement character.
    assert!(["lo", "Hel\u{fffd}lo"].contains(&outcome.text().as_str()), "{:?}", outcome.text());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    /// The split of a stream into reads does not change the answer.
    #[test]
    fn the_split_into_reads_makes_no_difference(cuts in proptest::collection::vec(1_usize..120, 1..40), end in 0..3_usize, comments in any::<bool>()) {
        let noise: &[u8] = if comments { b": hi\n" } else { b"" };
        let parts = [noise, &word("Ünï"), noise, &word("cödé ✓"), &stop(), &data(&usage(1, 2)), &data("[DONE]")];
        let whole = String::from_utf8(parts.concat()).expect("text");
        let whole = whole.replace('\n', ["\n", "\r\n", "\r"][end]).into_bytes();
        let mut pieces = Vec::new();
        let mut rest = whole.as_slice();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece.to_vec());
            rest = after;
        }
        check(Reply::stream(pieces), "Ünïcödé ✓");
    }
}
