//! Broken or malicious endpoints: the client completes the answer or returns an error.

use std::time::Duration;

use narrows_model::{ErrorKind, Finish, Message, Part, Provider, ReplyEvent, Request};
use narrows_testkit::model::{ModelServer, Reply, Step, chunk, data, delta, finish, preset, usage};
use serde_json::{Value, json};

use crate::support::{ask, client, client_of, client_with, deltas, play, request};

#[tokio::test]
async fn values_of_the_wrong_kind_cost_one_chunk_at_most() {
    for odd in [
        json!({"choices": "none"}),
        json!({"choices": {"0": {}}}),
        json!({"choices": [7, null, "x"]}),
        json!({"choices": [{"index": "zero", "delta": {}}]}),
        json!({"choices": [{"index": 0, "delta": "x"}]}),
        json!({"choices": [{"index": 0, "delta": {"content": 7}}]}),
        json!({"choices": [{"index": 0, "delta": {"content": {"text": "x"}}}]}),
        json!({"choices": [{"index": 0, "delta": {"tool_calls": "x"}}]}),
        json!({"choices": [{"index": 0, "delta": {"tool_calls": [null]}}]}),
        json!({"choices": [{"index": 0, "delta": {"reasoning": {}}}]}),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": 7}]}),
        json!({"choices": [], "usage": "much"}),
        json!({"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 1e300, "cost": "dear"}}),
        json!([]),
        json!("text"),
        json!(7),
        Value::Null,
    ] {
        let chunks = [
            delta(&json!({"content": "Hel"})),
            odd.clone(),
            delta(&json!({"content": "lo"})),
            finish("stop"),
        ];
        let outcome = play(Reply::sse(chunks)).await;
        assert_eq!((outcome.error.as_ref(), outcome.text().as_str()), (None, "Hello"), "{odd}");
        assert_eq!(outcome.completion.finish, Finish::Stop, "{odd}");
        assert_eq!(outcome.completion.message.calls, [], "{odd}");
    }
}

#[tokio::test]
async fn endless_nesting_is_skipped() {
    let deep = format!("{{\"choices\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let outcome =
        play(Reply::stream([data(&deep), data(&delta(&json!({"content": "Hello"}))), data(&finish("stop"))]))
            .await;
    assert_eq!(outcome.whole().message.text, "Hello");
}

#[tokio::test]
async fn invalid_utf8_loses_at_most_its_chunk() {
    let half = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\ud83d\"}}]}\n\n";
    let outcome = play(Reply::stream([
        half.as_bytes().to_vec(),
        data(&delta(&json!({"content": "Hello"}))),
        data(&finish("stop")),
    ]))
    .await;
    assert!(outcome.text().ends_with("Hello"), "{outcome:?}");
    assert_eq!(outcome.error, None);
}

#[tokio::test]
async fn a_huge_index_allocates_no_memory() {
    let far = |index: Value| json!({"tool_calls": [{"index": index, "id": "a", "function": {"name": "f", "arguments": "{}"}}]});
    for index in [json!(4_000_000_000_u64), json!(u64::MAX)] {
        let completion = play(deltas(&[far(index)], "tool_calls")).await.whole();
        assert_eq!((completion.message.calls.len(), completion.finish), (1, Finish::Calls));
    }
    let outcome = play(deltas(&[json!({"content": "Hello"}), far(json!(-1))], "stop")).await;
    assert_eq!((outcome.error.as_ref(), outcome.text().as_str()), (None, "Hello"));
}

#[tokio::test]
async fn events_after_the_end_are_ignored() {
    let after =
        Reply::text("Hello").then(Step::Bytes(data(&delta(&json!({"content": "more"}))))).then(Step::Hang);
    assert_eq!(play(after.clone()).await.whole().message.text, "Hello");
    assert_eq!(play(after.at_once()).await.whole().message.text, "Hello");
}

#[tokio::test]
async fn a_call_cut_off_by_a_filter_is_not_to_be_run() {
    let begin =
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\": "}}]});
    let completion = play(deltas(&[begin], "content_filter")).await.whole();
    assert_eq!(completion.finish, Finish::Refusal);
    assert_eq!((completion.message.calls.len(), completion.broken_calls.len()), (0, 1));
}

#[tokio::test]
async fn after_the_end_next_returns_none() {
    let server = ModelServer::start(Reply::text("Hello"));
    let client_ = client(&server);
    let asked = request();
    let mut reply = client_.chat(&asked);
    while reply.next().await.expect("it is answered").is_some() {}
    for _ in 0..3 {
        assert_eq!(reply.next().await, Ok(None));
    }
    assert_eq!(reply.into_completion().message.text, "Hello");

    let server = ModelServer::start(Reply::refused(400, "no"));
    let client = client(&server);
    let mut reply = client.chat(&asked);
    let error = reply.next().await.expect_err("it is refused");
    assert_eq!(reply.next().await, Err(error));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn dropping_next_before_the_response_sends_nothing_twice() {
    let server = ModelServer::start(Reply::text("Hello").before(Step::gate("begin")));
    let client = client(&server);
    let asked = request();
    let mut reply = client.chat(&asked);
    for _ in 0..3 {
        assert!(tokio::time::timeout(Duration::from_millis(20), reply.next()).await.is_err());
    }
    server.release("begin");
    assert_eq!(reply.next().await, Ok(Some(ReplyEvent::Text("Hello".to_owned()))));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn nothing_is_sent_before_the_first_poll() {
    let server = ModelServer::start(Reply::text("Hello"));
    let client = client(&server);
    let asked = request();
    drop(client.chat(&asked));
    assert_eq!(server.connections(), 0);
}

/// Returns a complete response with its length, after which the server closes the connection without notice.
fn closing(text: &str) -> Reply {
    let events = [data(&delta(&json!({"content": text}))), data(&finish("stop")), data("[DONE]")].concat();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n",
        events.len()
    );
    Reply::raw("").before(Step::Bytes([head.into_bytes(), events].concat())).before(Step::Close)
}

#[tokio::test]
async fn a_connection_that_was_closed_meanwhile_is_not_used() {
    let server = ModelServer::start(closing("Hello"));
    let client = client(&server);
    for _ in 0..3 {
        let outcome = ask(&client, &request()).await;
        assert!(outcome.notes().is_empty(), "{outcome:?}");
        assert_eq!(outcome.whole().message.text, "Hello");
        // sleep: nothing reports when a socket in the client's pool has seen the end
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn a_redirect_within_the_origin_is_followed() {
    let moved = Reply::document(308, "text/plain", "").header("location", "/v2/chat/completions");
    let server = ModelServer::start(
        narrows_testkit::model::Plan::from(Reply::text("Hello")).at("/v1/chat/completions", moved),
    );
    let client = client_with(&server, |endpoint| endpoint.key = Some("sk-secret-key".into()));
    assert_eq!(ask(&client, &request()).await.whole().message.text, "Hello");
    let seen = server.seen();
    assert_eq!((seen[1].method.as_str(), seen[1].path.as_str()), ("POST", "/v2/chat/completions"));
    assert_eq!(seen[0].bytes, seen[1].bytes);
    assert_eq!(seen[1].header("authorization"), Some("Bearer sk-secret-key"));
}

#[tokio::test]
async fn redirect_loops_end() {
    let round = Reply::document(307, "text/plain", "").header("location", "/v1/chat/completions");
    let server = ModelServer::start(round);
    let outcome = ask(&client(&server), &request()).await;
    assert_eq!(outcome.failed().status, Some(307), "{:?}", outcome.failed());
    assert!(server.seen().len() < 12, "{}", server.seen().len());
}

#[tokio::test]
async fn invalid_waits_are_ignored() {
    for (name, value) in [
        ("retry-after", "-5"),
        ("retry-after", "soon"),
        ("retry-after", ""),
        ("retry-after", "NaN"),
        ("retry-after-ms", "-1"),
        ("retry-after-ms", "inf"),
        ("x-ratelimit-reset-requests", "whenever"),
    ] {
        let server = ModelServer::start(Reply::refused(503, "busy").header(name, value));
        let client = client(&server);
        let asked = request();
        let mut reply = client.chat(&asked);
        let next = reply.next().await;
        let Ok(Some(ReplyEvent::Note(narrows_model::ReplyNote::Retrying { wait, .. }))) = next else {
            panic!("{name}: {value}: {next:?}")
        };
        assert!(
            (Duration::from_millis(800)..=Duration::from_millis(1200)).contains(&wait),
            "{name}: {value}: {wait:?}"
        );
    }
    for value in ["1e99", "99999999999999999999999"] {
        let server = ModelServer::start(Reply::refused(503, "busy").header("retry-after", value));
        let client = client_with(&server, |endpoint| endpoint.limits.attempts = 1);
        assert_eq!(ask(&client, &request()).await.failed().status, Some(503), "{value}");
    }
}

#[tokio::test]
async fn a_success_without_a_body_is_no_answer() {
    let server = ModelServer::start(Reply::document(204, "text/plain", ""));
    let client = client_with(&server, |endpoint| endpoint.limits.attempts = 1);
    assert_eq!(ask(&client, &request()).await.failed().kind, ErrorKind::Garbage);
}

#[tokio::test]
async fn secrets_in_headers_are_not_repeated() {
    let server = ModelServer::start(Reply::refused(400, "header hidden-header-value is wrong"));
    let client = client_with(&server, |endpoint| {
        endpoint.headers.push(("x-proxy-key".to_owned(), "hidden-header-value".into()));
    });
    let outcome = ask(&client, &request()).await;
    assert!(!outcome.failed().to_string().contains("hidden"), "{}", outcome.failed());
    assert!(!format!("{client:?}{outcome:?}").contains("hidden"));
}

#[tokio::test]
async fn an_overflow_can_be_reported_by_an_event() {
    let event = json!({"error": {
        "message": "the prompt is too long", "code": "context_length_exceeded", "type": "invalid_request_error"
    }});
    let server = ModelServer::start(Reply::sse([event]));
    let outcome = ask(&client(&server), &request()).await;
    assert_eq!(outcome.failed().kind, ErrorKind::Overflow, "{:?}", outcome.failed());
    assert_eq!(server.seen().len(), 1, "the same request would not fit again");
}

#[tokio::test]
async fn a_large_image_is_sent() {
    let server = ModelServer::start(Reply::text("Seen."));
    let data = "QUJD".repeat(512 << 10);
    let image = Part::Image { mime: "image/png".to_owned(), data: data.clone() };
    let asked = Request { messages: vec![Message::User { content: vec![image] }], ..request() };
    assert_eq!(ask(&client(&server), &asked).await.whole().message.text, "Seen.");
    let url = server.seen()[0].messages()[0]["content"][0]["image_url"]["url"].as_str().map(str::len);
    assert_eq!(url, Some("data:image/png;base64,".len() + data.len()));
}

#[tokio::test]
async fn many_pieces_are_all_returned() {
    let many: Vec<Vec<u8>> =
        (0..5_000).map(|at| data(&delta(&json!({"content": format!("{at} ")})))).collect();
    let reply = Reply::stream([many.concat()])
        .then(Step::Bytes(data(&finish("stop"))))
        .then(Step::Bytes(data(&usage(1, 2))));
    let outcome = play(reply).await;
    assert!(outcome.text().ends_with("4998 4999 "));
    assert_eq!(outcome.whole().usage.expect("usage came").total, 3);
}

#[tokio::test]
async fn control_characters_of_an_answer_are_kept() {
    let text = "a\u{0}b\u{1b}[31m\r\n\u{2028}c";
    assert_eq!(play(deltas(&[json!({"content": text})], "stop")).await.whole().message.text, text);
}

#[tokio::test]
async fn two_choices_with_one_index_are_one_answer() {
    let both = chunk(&json!([
        {"index": 0, "delta": {"content": "one"}, "finish_reason": "stop"},
        {"index": 0, "delta": {"content": " more"}, "finish_reason": "stop"},
    ]));
    let outcome = play(Reply::sse([both])).await;
    assert_eq!(outcome.error, None);
    assert!(outcome.text().starts_with("one"), "{outcome:?}");
}

#[tokio::test]
async fn streams_are_parsed_for_any_configured_provider() {
    // Every stream is parsed with any settings.
    for provider in Provider::all().filter(|provider| *provider != Provider::Demo) {
        for reply in [preset::openrouter::call(), preset::mistral::call(), preset::deepseek::call()] {
            let server = ModelServer::start(reply);
            let completion = ask(&client_of(&server, provider), &request()).await.whole();
            assert_eq!(completion.message.calls[0].arguments, preset::ARGUMENTS, "{provider:?}");
        }
    }
}

/// The client requested no compression, so it has no decoder.
#[tokio::test]
async fn a_compressed_answer_is_reported() {
    let server = ModelServer::start(Reply::text("Hello").header("Content-Encoding", "gzip"));
    let outcome = ask(&client(&server), &request()).await;
    let error = outcome.failed();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Garbage, "the answer is compressed (gzip)"));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn an_identity_encoding_is_accepted() {
    for coding in ["identity", "Identity", ""] {
        let outcome = play(Reply::text("Hello").header("Content-Encoding", coding)).await;
        assert_eq!(outcome.whole().message.text, "Hello", "{coding:?}");
    }
}
