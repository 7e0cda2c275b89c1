//! Refusals that another form of the request avoids: the dropped part, its report, and its use in later
//! requests.

use narrows_model::{Client, Effort, ErrorKind, Message, Part, Provider, ReplyNote, Request, RequestPart};
use narrows_testkit::model::{ModelServer, Plan, Reply, Seen, preset};
use serde_json::{Value, json};

use crate::support::{Outcome, ask, call, calls, client, client_of, request, result, tool, with_tools};

/// Starts a server that responds with `refusal` while `refused` returns `true`.
fn picky(refused: impl Fn(&Seen) -> bool + Send + 'static, refusal: Reply) -> Plan {
    Plan::from(Reply::text("Hello")).unless(move |seen| refused(seen).then(|| refusal.clone()))
}

fn dropped(outcome: &Outcome) -> Vec<RequestPart> {
    let what =
        |note: &&ReplyNote| if let ReplyNote::Without { what, .. } = note { Some(*what) } else { None };
    outcome.notes().iter().filter_map(what).collect()
}

/// Checks that the request succeeds once `what` has been dropped, after `tries` requests, and that the next
/// request succeeds at once.
async fn check(plan: Plan, provider: Provider, asked: &Request, what: &[RequestPart]) -> Vec<Seen> {
    let server = ModelServer::start(plan);
    let client = client_of(&server, provider);
    let outcome = ask(&client, asked).await;
    assert_eq!(outcome.text(), "Hello", "{outcome:?}");
    assert_eq!(dropped(&outcome), what, "{outcome:?}");
    assert_eq!(server.seen().len(), what.len() + 1);

    let again = ask(&client.clone(), asked).await;
    assert_eq!((again.text().as_str(), again.notes().len()), ("Hello", 0), "it is remembered: {again:?}");
    assert_eq!(server.seen().len(), what.len() + 2);
    let seen = server.seen();
    assert_eq!(seen[what.len()].bytes, seen[what.len() + 1].bytes);
    seen
}

fn full() -> Request {
    Request {
        system: Some("Be brief.".to_owned()),
        tools: vec![tool("read_file")],
        max_tokens: Some(100),
        temperature: Some(0.5),
        effort: Some(Effort::Low),
        ..request()
    }
}

#[tokio::test]
async fn the_request_for_usage_is_dropped() {
    for refusal in [preset::azure::no_stream_options(), preset::mistral::extra_forbidden("stream_options")] {
        let plan = picky(|seen| seen.has("stream_options"), refusal);
        let seen = check(plan, Provider::Other, &full(), &[RequestPart::StreamOptions]).await;
        assert_eq!(seen[1].body["stream"], true, "only that is dropped");
        assert!(seen[1].has("tools") && seen[1].has("temperature") && seen[1].has("max_tokens"));
    }
}

#[tokio::test]
async fn the_token_limit_is_sent_under_its_other_name() {
    let plan = picky(|seen| seen.has("max_tokens"), preset::openai::max_tokens_refused());
    let seen = check(plan, Provider::Other, &full(), &[RequestPart::MaxTokensName]).await;
    assert_eq!(seen[1].body["max_completion_tokens"], 100);

    let refusal = preset::openai::unknown_field("max_completion_tokens");
    let plan = picky(|seen| seen.has("max_completion_tokens"), refusal);
    let asked = Request { model: "o3".to_owned(), max_tokens: Some(100), ..request() };
    let seen = check(plan, Provider::OpenAi, &asked, &[RequestPart::MaxTokensName]).await;
    assert_eq!(seen[1].body["max_tokens"], 100);
}

#[tokio::test]
async fn fields_are_dropped_one_by_one() {
    let plan = Plan::from(Reply::text("Hello")).unless(|seen| {
        if seen.has("temperature") {
            return Some(preset::openai::temperature_refused());
        }
        seen.has("reasoning_effort").then(|| preset::openai::unknown_field("reasoning_effort"))
    });
    let seen = check(plan, Provider::Other, &full(), &[RequestPart::Temperature, RequestPart::Effort]).await;
    assert!(seen[2].has("max_tokens") && seen[2].has("tools") && seen[2].has("stream_options"));
}

#[tokio::test]
async fn tools_are_dropped_with_a_notice() {
    for refusal in [preset::ollama::no_tools(), preset::vllm::no_tools()] {
        let server = ModelServer::start(picky(|seen| seen.has("tools"), refusal));
        let client = client(&server);
        let outcome = ask(&client, &full()).await;
        let [ReplyNote::Without { what: RequestPart::Tools, error }] = outcome.notes()[..] else {
            panic!("{outcome:?}")
        };
        assert_eq!(error.status, Some(400));
        assert!(error.message.contains("tool"), "{error:?}");
        assert_eq!(outcome.text(), "Hello");
        assert!(!server.seen()[1].has("tool_choice"));
        assert_eq!(client.traits_of("test-model").tools, Some(false));
        assert_ne!(client.traits_of("other-model").tools, Some(false), "other models are not affected");
    }
}

#[tokio::test]
async fn without_tools_a_history_of_calls_is_still_understood() {
    let messages = vec![
        Message::user("Hi"),
        Message::Assistant(calls(&[call("c1", "read_file", "{}")])),
        result("c1", "found"),
        Message::user("And?"),
    ];
    let plan = picky(|seen| seen.has("tools"), preset::ollama::no_tools());
    let asked = Request { messages, ..full() };
    let seen = check(plan, Provider::Other, &asked, &[RequestPart::Tools]).await;
    let text = Value::from(seen[1].messages().to_vec()).to_string();
    assert!(text.contains("found") && text.contains("And?"), "{text}");
}

#[tokio::test]
async fn instructions_are_sent_in_another_role() {
    let no_role = |seen: &Seen| {
        let role = seen.messages()[0]["role"].clone();
        (role == "system").then(|| Reply::refused(400, "the role 'system' is not supported"))
    };
    let plan = Plan::from(Reply::text("Hello")).unless(no_role);
    let asked = Request { system: Some("Be brief.".to_owned()), ..request() };
    let seen = check(plan, Provider::Other, &asked, &[RequestPart::SystemRole]).await;
    assert_eq!(seen[1].messages()[0], json!({"role": "developer", "content": "Be brief."}));

    let neither = |seen: &Seen| {
        let role = seen.messages()[0]["role"].as_str().unwrap_or_default().to_owned();
        (role != "user").then(|| Reply::refused(400, &format!("the role '{role}' is not supported")))
    };
    let plan = Plan::from(Reply::text("Hello")).unless(neither);
    let seen =
        check(plan, Provider::Other, &asked, &[RequestPart::SystemRole, RequestPart::DeveloperRole]).await;
    assert_eq!(seen[2].messages().len(), 1);
    let content = seen[2].messages()[0]["content"].as_str().expect("a text");
    assert!(content.starts_with("Be brief.") && content.ends_with("Hi"), "{content}");
}

fn picture() -> Message {
    let image = Part::Image { mime: "image/png".to_owned(), data: "aW1hZ2U=".to_owned() };
    Message::User { content: vec![Part::text("See:"), image] }
}

#[tokio::test]
async fn content_parts_become_one_text() {
    let in_parts = |seen: &Seen| seen.messages().iter().any(|message| message["content"].is_array());
    let plan = picky(in_parts, Reply::refused(400, "messages.0.content: the content must be a string"));
    let asked = Request { messages: vec![picture()], ..request() };
    let seen = check(plan, Provider::Other, &asked, &[RequestPart::ContentParts]).await;
    let content = seen[1].messages()[0]["content"].as_str().expect("a text");
    assert!(content.contains("See:") && content.contains("[Image: image/png]"), "{content}");
}

#[tokio::test]
async fn adjacent_messages_of_one_role_are_merged() {
    let twice = |seen: &Seen| {
        let roles: Vec<&str> =
            seen.messages().iter().filter_map(|message| message["role"].as_str()).collect();
        roles.windows(2).any(|pair| pair[0] == pair[1])
    };
    let asked = Request { messages: vec![Message::user("One."), Message::user("Two.")], ..request() };
    let seen = check(
        picky(twice, preset::vllm::alternate()),
        Provider::Other,
        &asked,
        &[RequestPart::AdjacentRoles],
    )
    .await;
    let content = seen[1].messages()[0]["content"].as_str().expect("a text");
    assert!(content.contains("One.") && content.contains("Two."), "{content}");
}

#[tokio::test]
async fn an_unsupported_image_is_replaced_by_a_note() {
    let pictured = |seen: &Seen| Value::from(seen.messages().to_vec()).to_string().contains("image_url");
    let asked = Request { messages: vec![picture()], ..request() };
    for refusal in [preset::llamacpp::no_images(), Reply::refused(400, "this model does not support images")]
    {
        let server = ModelServer::start(picky(pictured, refusal));
        let client = client(&server);
        let outcome = ask(&client, &asked).await;
        assert_eq!(
            dropped(&outcome),
            [RequestPart::Images],
            "a 500 of that sort is not tried again: {outcome:?}"
        );
        assert_eq!(outcome.text(), "Hello");
        let sent = server.seen()[1].messages().to_vec();
        assert!(Value::from(sent.clone()).to_string().contains("[Image: image/png]"), "{sent:?}");
        assert_eq!(client.traits_of("test-model").images, Some(false));
    }
}

#[tokio::test]
async fn unsupported_audio_and_documents_are_replaced_by_a_note() {
    let audio = Part::Audio { mime: "audio/wav".to_owned(), data: "YXVkaW8=".to_owned() };
    let (name, mime) = (Some("a.pdf".to_owned()), "application/pdf".to_owned());
    let file = Part::File { name, mime, data: "cGRm".to_owned() };
    for (part, kind, words, what, named) in [
        (
            audio,
            "input_audio",
            "this model does not support audio input",
            RequestPart::Audio,
            "[Audio: audio/wav]",
        ),
        (file, "\"file\"", "PDF files are not supported by this model", RequestPart::Files, "[File: a.pdf]"),
    ] {
        let has = move |seen: &Seen| Value::from(seen.messages().to_vec()).to_string().contains(kind);
        let asked = Request {
            messages: vec![Message::User { content: vec![Part::text("See:"), part] }],
            ..request()
        };
        let seen = check(picky(has, Reply::refused(400, words)), Provider::Other, &asked, &[what]).await;
        let sent = seen[1].messages()[0].to_string();
        assert!(sent.contains(named) && sent.contains("See:"), "{sent}");
    }
}

#[tokio::test]
async fn call_ids_become_short() {
    let long =
        |seen: &Seen| seen.messages()[1]["tool_calls"][0]["id"].as_str().is_none_or(|id| id.len() != 9);
    let messages = vec![
        Message::user("Hi"),
        Message::Assistant(calls(&[call("call_1", "read_file", "{}")])),
        result("call_1", "found"),
    ];
    let asked = with_tools(messages);
    let seen =
        check(picky(long, preset::mistral::bad_call_id()), Provider::Other, &asked, &[RequestPart::CallIds])
            .await;
    let sent = seen[1].messages();
    assert_eq!(sent[1]["tool_calls"][0]["id"], sent[2]["tool_call_id"]);
}

#[tokio::test]
async fn without_streaming_the_answer_comes_whole() {
    let plan = Plan::from(Reply::whole("Hello")).unless(|seen| {
        (seen.body["stream"] == true)
            .then(|| Reply::refused(400, "streaming is not supported for this model"))
    });
    let seen = check(plan, Provider::Other, &request(), &[RequestPart::Streaming]).await;
    assert!(seen[1].body["stream"] != true && !seen[1].has("stream_options"), "{}", seen[1].body);
}

#[tokio::test]
async fn a_refusal_in_the_first_event_counts_too() {
    let refusal =
        Reply::sse([json!({"error": {"message": "this model does not support tools", "code": 400}})]);
    check(picky(|seen| seen.has("tools"), refusal), Provider::Other, &full(), &[RequestPart::Tools]).await;
}

#[tokio::test]
async fn repairs_end() {
    // Every form of the request is refused with the same message.
    for words in
        ["temperature is not supported", "this model does not support tools", "unknown field: stream_options"]
    {
        let server = ModelServer::start(Reply::refused(400, words));
        let outcome = ask(&client(&server), &full()).await;
        assert_eq!(outcome.failed().status, Some(400));
        assert!(server.seen().len() <= 3, "{words}: {} requests", server.seen().len());
        let what = dropped(&outcome);
        assert!((1..what.len()).all(|at| !what[at..].contains(&what[at - 1])), "{what:?}");
    }
}

#[tokio::test]
async fn other_failures_are_not_repaired() {
    for refusal in [
        Reply::refused(400, "the request makes no sense"),
        Reply::refused(401, "the temperature of this key is not supported"),
        Reply::refused(404, "unknown model"),
        preset::openai::overflow(),
    ] {
        let server = ModelServer::start(refusal);
        let outcome = ask(&client(&server), &full()).await;
        assert!(outcome.error.is_some() && outcome.events.is_empty(), "{outcome:?}");
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn repairs_do_not_count_as_retries() {
    let busy = Reply::refused(503, "busy").header("retry-after-ms", "1");
    let server = ModelServer::start([preset::azure::no_stream_options(), busy, Reply::text("Hello")]);
    let outcome = ask(&client(&server), &request()).await;
    assert_eq!(outcome.notes().len(), 2, "{outcome:?}");
    assert!(matches!(outcome.notes()[1], ReplyNote::Retrying { attempt: 2, .. }), "{outcome:?}");
    assert!(!server.seen()[2].has("stream_options"));
    assert_eq!(outcome.text(), "Hello");
}

#[tokio::test]
async fn a_too_large_token_limit_is_not_remembered() {
    let words = "the prompt and max_tokens exceed it: the maximum context length is 4096 tokens";
    let server = ModelServer::start(picky(|seen| seen.has("max_tokens"), Reply::refused(400, words)));
    let client = client(&server);
    for _ in 0..2 {
        let outcome = ask(&client, &full()).await;
        assert_eq!(dropped(&outcome), [RequestPart::MaxTokens], "{outcome:?}");
        assert_eq!(outcome.text(), "Hello");
    }
}

#[tokio::test]
async fn refusals_are_remembered_per_model() {
    let server =
        ModelServer::start(picky(|seen| seen.has("temperature"), preset::openai::temperature_refused()));
    let client: Client = client(&server);
    assert_eq!(dropped(&ask(&client, &full()).await), [RequestPart::Temperature]);
    let other = Request { model: "other".to_owned(), ..full() };
    assert_eq!(dropped(&ask(&client, &other).await), [RequestPart::Temperature], "the model may accept it");
}

#[tokio::test]
async fn a_refusal_that_no_repair_changes_is_reported() {
    let server = ModelServer::start(Reply::refused(400, "temperature is not supported"));
    let outcome = ask(&client(&server), &full()).await;
    let error = outcome.failed();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Http, "temperature is not supported"));
}
