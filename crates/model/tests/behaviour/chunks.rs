//! Single chunks: missing fields, fields in other places, and finish reasons.

use narrows_model::{ErrorKind, Finish, ReplyEvent};
use narrows_testkit::model::{ModelServer, Reply, Step, chunk, delta, finish};
use serde_json::{Value, json};

use crate::support::{ask, client, deltas, play, request};

/// Checks the text and the finish reason of a stream of these chunks, then `[DONE]`.
async fn check(chunks: &[Value], text: &str, reason: Finish) {
    let outcome = play(Reply::sse(chunks.to_vec())).await;
    assert_eq!(outcome.error, None, "{chunks:#?}");
    assert_eq!((outcome.text().as_str(), outcome.completion.finish), (text, reason), "{chunks:#?}");
    outcome.whole();
}

#[tokio::test]
async fn every_field_is_optional() {
    for odd in [
        json!({}),
        json!({"choices": null}),
        json!({"choices": []}),
        json!({"choices": [{}]}),
        json!({"choices": [{"delta": {}}]}),
        json!({"choices": [{"delta": null}]}),
        json!({"choices": [{"index": 0, "delta": {"role": "assistant"}}]}),
        json!({"choices": [{"index": 0, "delta": {"content": null}, "finish_reason": null}]}),
        json!({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": null}]}),
        json!({"choices": [{"index": 0, "delta": {"content": null, "tool_calls": null, "reasoning": null}}]}),
        json!({"choices": [{"index": 0, "delta": {"tool_calls": []}}], "usage": null, "error": null}),
        json!({"id": null, "object": 7, "created": "now", "model": null, "choices": []}),
        json!({"unknown": {"deep": [1, 2, {"er": null}]}}),
    ] {
        let text = json!({"choices": [{"delta": {"content": "Hello"}}]});
        check(&[odd.clone(), text, odd, finish("stop")], "Hello", Finish::Stop).await;
    }
}

#[tokio::test]
async fn the_role_may_be_in_any_chunk() {
    let alone = |content: Value| delta(&json!({"role": "assistant", "content": content}));
    let word = |text: &str| delta(&json!({"content": text}));
    check(&[alone(json!("")), word("a"), word("b"), finish("stop")], "ab", Finish::Stop).await;
    check(&[alone(Value::Null), word("a"), word("b"), finish("stop")], "ab", Finish::Stop).await;
    check(&[alone(json!("a")), word("b"), finish("stop")], "ab", Finish::Stop).await;
    check(&[alone(json!("a")), alone(json!("b")), finish("stop")], "ab", Finish::Stop).await;
}

#[tokio::test]
async fn a_message_may_replace_a_delta() {
    let chunks = [
        chunk(&json!([{"index": 0, "message": {"role": "assistant", "content": "Hel"}}])),
        chunk(&json!([{"index": 0, "message": {"content": "lo"}, "finish_reason": "stop"}])),
    ];
    check(&chunks, "Hello", Finish::Stop).await;
}

#[tokio::test]
async fn content_may_be_a_list_of_parts() {
    let parts =
        json!([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}, {"type": "novelty", "x": 1}]);
    check(&[delta(&json!({"content": parts})), finish("stop")], "Hello", Finish::Stop).await;
    check(
        &[delta(&json!({"content": []})), delta(&json!({"content": "x"})), finish("stop")],
        "x",
        Finish::Stop,
    )
    .await;
}

#[tokio::test]
async fn only_the_first_choice_counts() {
    let other = |text: &str| json!({"index": 1, "delta": {"content": text}, "finish_reason": "length"});
    let first = |text: &str| json!({"index": 0, "delta": {"content": text}, "finish_reason": null});
    let chunks = [
        chunk(&json!([other("no")])),
        chunk(&json!([first("Hel"), other("no")])),
        chunk(&json!([other("no"), first("lo")])),
        finish("stop"),
    ];
    check(&chunks, "Hello", Finish::Stop).await;
}

#[tokio::test]
async fn finish_reasons_are_distinguished() {
    for (reason, expected) in [
        ("stop", Finish::Stop),
        ("eos", Finish::Stop),
        ("end_turn", Finish::Stop),
        ("", Finish::Stop),
        ("some_novelty", Finish::Stop),
        ("length", Finish::Length),
        ("max_tokens", Finish::Length),
        ("content_filter", Finish::Refusal),
    ] {
        check(&[delta(&json!({"content": "Hello"})), finish(reason)], "Hello", expected).await;
    }
    // The server reports calls but sends none, so nothing can run.
    let outcome = play(deltas(&[json!({"content": "Hello"})], "tool_calls")).await;
    assert_eq!(outcome.whole().finish, Finish::Stop);
}

#[tokio::test]
async fn an_empty_reason_in_every_chunk_ends_nothing() {
    let word = |text: &str| chunk(&json!([{"index": 0, "delta": {"content": text}, "finish_reason": ""}]));
    check(&[word("a"), word("b"), word("c"), finish("stop")], "abc", Finish::Stop).await;
}

#[tokio::test]
async fn text_after_the_finish_is_still_the_answer() {
    let chunks = [delta(&json!({"content": "a"})), finish("stop"), delta(&json!({"content": "b"}))];
    check(&chunks, "ab", Finish::Stop).await;
}

#[tokio::test]
async fn a_refusal_is_shown_and_is_the_finish() {
    let outcome = play(deltas(&[json!({"refusal": "I will"}), json!({"refusal": " not."})], "stop")).await;
    assert_eq!(outcome.text(), "I will not.");
    assert_eq!(outcome.whole().finish, Finish::Refusal);
}

#[tokio::test]
async fn error_events_are_reported() {
    let hello = || delta(&json!({"content": "Hello"}));
    let beside = |fields: Value| {
        let mut chunk = finish("error");
        chunk.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        chunk
    };
    let failed = |content: &str, reason: &str| {
        chunk(&json!([{"index": 0, "delta": {"content": content}, "finish_reason": reason}]))
    };
    for (event, said) in [
        (json!({"error": {"message": "broken pipe of the house", "code": 500}}), "broken pipe of the house"),
        (json!({"error": "plain words"}), "plain words"),
        (json!({"error": {"message": "typed"}, "choices": []}), "typed"),
        (beside(json!({"error": {"message": "beside", "code": "server_error"}})), "beside"),
        (finish("error"), ""),
        (failed("gateway says no", "error_finish"), "gateway says no"),
    ] {
        let outcome = play(Reply::sse([hello(), event.clone()]).then(Step::Hang)).await;
        let error = outcome.failed();
        assert_eq!(error.kind, ErrorKind::Provider, "{event}: {error:?}");
        assert!(error.message.contains(said), "{event}: {error:?}");
        assert!(error.shown, "{event}");
        assert_eq!(outcome.text(), "Hello", "{event}");
    }
}

#[tokio::test]
async fn an_error_does_not_wait_for_the_end() {
    let broken = json!({"error": {"message": "broken", "type": "invalid_request_error", "code": 400}});
    let server = ModelServer::start(Reply::sse([broken]).without_done().then(Step::Hang));
    let outcome = ask(&client(&server), &request()).await;
    let error = outcome.failed();
    assert!(!error.shown && error.message.contains("broken"), "{error:?}");
    server.hung_up().await;
}

#[tokio::test]
async fn a_whole_completion_is_an_answer_too() {
    let outcome = play(Reply::whole("Hello world")).await;
    assert_eq!(outcome.events, [ReplyEvent::Text("Hello world".to_owned())]);
    let completion = outcome.whole();
    assert_eq!(completion.finish, Finish::Stop);
    assert_eq!(completion.usage.expect("usage came").total, 12);

    let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}});
    let message =
        json!({"role": "assistant", "content": null, "reasoning_content": "Hm.", "tool_calls": [call]});
    let choices = json!([{"index": 0, "message": message, "finish_reason": "tool_calls"}]);
    let outcome = play(Reply::json(200, &json!({"object": "chat.completion", "choices": choices}))).await;
    assert_eq!((outcome.thought().as_str(), outcome.calling()), ("Hm.", vec!["f"]));
    let completion = outcome.whole();
    assert_eq!(completion.finish, Finish::Calls);
    assert_eq!(completion.message.calls[0].arguments, "{\"a\":1}");
}

#[tokio::test]
async fn events_come_in_the_order_of_the_stream() {
    let outcome = play(deltas(
        &[
            json!({"reasoning_content": "Hm."}),
            json!({"content": "Hello"}),
            json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}),
        ],
        "tool_calls",
    ))
    .await;
    let expected = [
        ReplyEvent::Thought("Hm.".to_owned()),
        ReplyEvent::Text("Hello".to_owned()),
        ReplyEvent::Calling { name: "f".to_owned() },
    ];
    assert_eq!(outcome.events, expected);
}

#[tokio::test]
async fn pieces_are_returned_as_they_arrive() {
    let server = ModelServer::start(Reply::text("one two three").after(2, Step::gate("more")));
    let client = client(&server);
    let request = request();
    let mut reply = client.chat(&request);
    assert_eq!(reply.next().await, Ok(Some(ReplyEvent::Text("one ".to_owned()))));
    server.release("more");
    assert_eq!(reply.next().await, Ok(Some(ReplyEvent::Text("two ".to_owned()))));
    assert_eq!(reply.next().await, Ok(Some(ReplyEvent::Text("three".to_owned()))));
    assert_eq!(reply.next().await, Ok(None));
    assert_eq!(reply.into_completion().message.text, "one two three");
}

#[tokio::test]
async fn dropping_a_reply_closes_its_connection() {
    for reply in [Reply::hang(), Reply::text("one two").after(2, Step::Hang)] {
        let server = ModelServer::start(reply);
        let client = client(&server);
        let request = request();
        let mut reply = client.chat(&request);
        tokio::select! {
            () = async { while let Ok(Some(_)) = reply.next().await {} } => panic!("the server says nothing more"),
            () = server.seen_count(1) => {}
        }
        drop(reply);
        server.hung_up().await;
    }
}
