//! Requests: stable bytes of the body, and content in the forms that endpoints accept.

use std::time::Duration;

use narrows_model::{Assistant, Effort, Message, Part, Provider, Request, ToolResult};
use narrows_testkit::model::{ModelServer, Plan, Reply, preset};
use serde_json::{Value, json};

use crate::support::{
    ask, body_of, call, calls, client, client_of, client_with, request, result, tool, with_tools,
};

#[tokio::test]
async fn unset_fields_are_not_sent() {
    let sent = body_of(Provider::Other, &request()).await;
    let expected = json!({
        "model": "test-model",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    assert_eq!(sent, expected);
}

#[tokio::test]
async fn headers_and_query_are_sent() {
    let server = ModelServer::start(Reply::text("ok"));
    let client = client_with(&server, |endpoint| {
        endpoint.key = Some("sk-secret-key".into());
        endpoint.headers.push(("X-Title".to_owned(), "Narrows".into()));
        endpoint.query.push(("tenant".to_owned(), "a b&c".to_owned()));
    });
    ask(&client, &request()).await.whole();
    let seen = &server.seen()[0];
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/v1/chat/completions"));
    assert!(["tenant=a+b%26c", "tenant=a%20b%26c"].contains(&seen.query.as_str()), "{}", seen.query);
    assert_eq!(seen.header("authorization"), Some("Bearer sk-secret-key"));
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(seen.header("x-title"), Some("Narrows"));
    assert!(seen.header("accept").is_some_and(|accept| accept.contains("text/event-stream")), "{seen:?}");
    assert!(seen.header("user-agent").is_some_and(|agent| agent.starts_with("narrows")), "{seen:?}");
}

#[tokio::test]
async fn without_a_key_no_key_is_sent() {
    for key in [None, Some("".into())] {
        let server = ModelServer::start(Reply::text("ok"));
        ask(&client_with(&server, |endpoint| endpoint.key = key), &request()).await.whole();
        assert_eq!(server.seen()[0].header("authorization"), None);
        assert_eq!(server.seen()[0].header("api-key"), None);
    }
}

#[tokio::test]
async fn a_trailing_slash_makes_no_difference() {
    let server = ModelServer::start(Reply::text("ok"));
    for path in ["/v1", "/v1/", "/v1//", "/v1/chat/completions", "/v1/chat/completions/"] {
        let client = client_with(&server, |endpoint| endpoint.base_url = server.url(path));
        ask(&client, &request()).await.whole();
        assert_eq!(server.seen().last().expect("it was asked").path, "/v1/chat/completions", "{path}");
    }
    let client = client_with(&server, |endpoint| endpoint.base_url = server.url(""));
    ask(&client, &request()).await.whole();
    assert_eq!(server.seen().last().expect("it was asked").path, "/chat/completions");
}

#[tokio::test]
async fn settings_have_the_documented_field_names() {
    let asked = Request {
        system: Some("Be brief.".to_owned()),
        max_tokens: Some(100),
        temperature: Some(0.5),
        effort: Some(Effort::Low),
        ..request()
    };
    let sent = body_of(Provider::Other, &asked).await;
    assert_eq!(sent["messages"][0], json!({"role": "system", "content": "Be brief."}));
    assert_eq!((&sent["max_tokens"], &sent["temperature"]), (&json!(100), &json!(0.5)));
    assert_eq!(sent.get("max_completion_tokens"), None);
    assert_eq!(sent["reasoning_effort"], "low");
}

#[tokio::test]
async fn openrouter_gets_the_effort_in_its_own_form() {
    let asked = Request { effort: Some(Effort::High), ..request() };
    let sent = body_of(Provider::OpenRouter, &asked).await;
    assert_eq!((&sent["reasoning"], sent.get("reasoning_effort")), (&json!({"effort": "high"}), None));
}

#[tokio::test]
async fn newer_openai_models_use_the_newer_name_of_the_limit() {
    for (provider, model, name) in [
        (Provider::OpenAi, "o3-mini", "max_completion_tokens"),
        (Provider::OpenAi, "gpt-5-mini", "max_completion_tokens"),
        (Provider::AzureV1, "gpt-5", "max_completion_tokens"),
        (Provider::OpenAi, "gpt-4o", "max_tokens"),
        (Provider::Ollama, "gpt-5-clone", "max_tokens"),
    ] {
        let asked = Request { model: model.to_owned(), max_tokens: Some(9), ..request() };
        let sent = body_of(provider, &asked).await;
        let found: Vec<&String> =
            sent.as_object().expect("an object").keys().filter(|key| key.starts_with("max_")).collect();
        assert_eq!(found, [name], "{provider:?} {model}");
        assert_eq!(sent[name], 9);
    }
}

fn history() -> Vec<Message> {
    let said = Assistant { text: "Looking.".to_owned(), ..calls(&[call("c1", "read_file", "{}")]) };
    vec![Message::user("Hi"), Message::Assistant(said), result("c1", "found"), Message::user("And?")]
}

#[tokio::test]
async fn a_conversation_grows_only_at_its_end() {
    let server = ModelServer::start(Reply::text("ok"));
    let client = client(&server);
    let mut asked = Request {
        system: Some("Be brief.".to_owned()),
        tools: vec![tool("read_file"), tool("write_file")],
        ..request()
    };
    let whole = history();
    for length in [1, 3, 4] {
        asked.messages = whole[..length].to_vec();
        ask(&client, &asked).await.whole();
    }
    let bytes: Vec<String> =
        server.seen().into_iter().map(|seen| String::from_utf8(seen.bytes).expect("text")).collect();
    for ((shorter, longer), last) in bytes.iter().zip(&bytes[1..]).zip(["\"Hi\"", "\"found\""]) {
        let common = shorter.bytes().zip(longer.bytes()).take_while(|(one, other)| one == other).count();
        let end = shorter.rfind(last).expect("the last message") + last.len();
        assert!(common >= end, "only {common} of {end} bytes are the same:\n{shorter}\n{longer}");
    }
    ask(&client, &asked).await.whole();
    let seen = server.seen();
    assert_eq!(seen[2].bytes, seen[3].bytes, "the same request is the same bytes");
}

#[tokio::test]
async fn an_answer_is_sent_back_unchanged() {
    // The result does not depend on the tools that are offered now.
    for asked in [with_tools(history()), Request { messages: history(), ..request() }] {
        let mut messages = body_of(Provider::Other, &asked).await["messages"].clone();
        // Some endpoints require the tool's name, and all others accept it.
        if let Some(result) = messages[2].as_object_mut() {
            result.remove("name");
        }
        let function = json!({"name": "read_file", "arguments": "{}"});
        let expected = json!([
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": "Looking.",
                "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "found"},
            {"role": "user", "content": "And?"},
        ]);
        assert_eq!(messages, expected);
    }
}

fn image() -> Part {
    Part::Image { mime: "image/png".to_owned(), data: "aW1hZ2U=".to_owned() }
}

fn asking(content: Vec<Part>) -> Request {
    Request { messages: vec![Message::User { content }], ..request() }
}

#[tokio::test]
async fn content_has_the_documented_form() {
    let audio = |mime: &str| Part::Audio { mime: mime.to_owned(), data: "YXVkaW8=".to_owned() };
    let pdf = Part::File {
        name: Some("a.pdf".to_owned()),
        mime: "application/pdf".to_owned(),
        data: "cGRm".to_owned(),
    };
    let parts = vec![Part::text("See:"), image(), audio("audio/wav"), audio("audio/mpeg"), pdf];
    let sent = body_of(Provider::Other, &asking(parts)).await;
    let content = &sent["messages"][0]["content"];
    assert_eq!(content[0], json!({"type": "text", "text": "See:"}));
    assert_eq!(content[1]["type"], "image_url");
    assert_eq!(content[1]["image_url"]["url"], "data:image/png;base64,aW1hZ2U=");
    let recording =
        |format: &str| json!({"type": "input_audio", "input_audio": {"data": "YXVkaW8=", "format": format}});
    assert_eq!((&content[2], &content[3]), (&recording("wav"), &recording("mp3")));
    assert_eq!(content[4]["type"], "file");
    assert_eq!(content[4]["file"]["filename"], "a.pdf");
    assert_eq!(content[4]["file"]["file_data"], "data:application/pdf;base64,cGRm");
}

#[tokio::test]
async fn unsupported_content_is_named_in_the_first_request() {
    let server = ModelServer::start(Plan::from(Reply::text("ok")).models(preset::openrouter::models()));
    let client = client_of(&server, Provider::OpenRouter);
    client.learn("small/plain", Duration::from_secs(8)).await;
    let audio = Part::Audio { mime: "audio/wav".to_owned(), data: "YXVkaW8=".to_owned() };
    let asked =
        Request { model: "small/plain".to_owned(), ..asking(vec![Part::text("See:"), image(), audio]) };
    let outcome = ask(&client, &asked).await;
    assert!(outcome.notes().is_empty(), "{outcome:?}");
    let seen = server.seen();
    let sent = seen.last().expect("it was asked").messages()[0].to_string();
    assert!(sent.contains("[Image: image/png]") && sent.contains("[Audio: audio/wav]"), "{sent}");
    assert!(!sent.contains("aW1hZ2U=") && !sent.contains("YXVkaW8="), "{sent}");
}

#[tokio::test]
async fn text_parts_become_one_text() {
    let sent = body_of(Provider::Other, &asking(vec![Part::text("one"), Part::text("two")])).await;
    let content = sent["messages"][0]["content"].as_str().expect("a text");
    assert!(content.starts_with("one") && content.ends_with("two"), "{content}");
}

#[tokio::test]
async fn an_image_in_a_result_follows_it() {
    let seen = Message::Tool(ToolResult {
        call: "c1".to_owned(),
        name: "look".to_owned(),
        content: vec![Part::text("A picture:"), image()],
        failed: false,
    });
    let asked = calls(&[call("c1", "look", "{}"), call("c2", "read_file", "{}")]);
    let messages = vec![Message::user("Hi"), Message::Assistant(asked), seen, result("c2", "found")];
    let sent = body_of(Provider::OpenAi, &with_tools(messages)).await;
    let sent = sent["messages"].as_array().expect("messages");
    let roles: Vec<&str> = sent.iter().filter_map(|message| message["role"].as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "user"], "every result follows its call");
    assert!(sent[2]["content"].as_str().is_some_and(|text| text.contains("A picture:")), "{}", sent[2]);
    let picture = sent[4]["content"].as_array().expect("parts");
    assert!(picture.iter().any(|part| part["type"] == "image_url"), "{}", sent[4]);
}

#[tokio::test]
async fn openai_gets_the_cache_key() {
    let asked = Request { cache_key: Some("session-1".to_owned()), ..request() };
    assert_eq!(body_of(Provider::OpenAi, &asked).await["prompt_cache_key"], "session-1");
    for provider in [Provider::Other, Provider::Mistral, Provider::Ollama] {
        assert_eq!(body_of(provider, &asked).await.get("prompt_cache_key"), None, "{provider:?}");
    }
}

fn marks(value: &Value) -> usize {
    match value {
        Value::Array(values) => values.iter().map(marks).sum(),
        Value::Object(fields) => {
            usize::from(fields.contains_key("cache_control")) + fields.values().map(marks).sum::<usize>()
        }
        _ => 0,
    }
}

#[tokio::test]
async fn claude_gets_cache_marks() {
    let asked = Request {
        model: "anthropic/claude-sonnet-4".to_owned(),
        system: Some("Be brief.".to_owned()),
        messages: history(),
        tools: vec![tool("read_file")],
        ..request()
    };
    for provider in [Provider::OpenRouter, Provider::LiteLlm] {
        let sent = body_of(provider, &asked).await;
        // The service accepts at most four.
        assert!((1..=4).contains(&marks(&sent)), "{provider:?}: {sent}");
    }
    for (provider, model) in
        [(Provider::OpenRouter, "openai/gpt-4o"), (Provider::Other, "anthropic/claude-sonnet-4")]
    {
        let sent = body_of(provider, &Request { model: model.to_owned(), ..asked.clone() }).await;
        assert_eq!(marks(&sent), 0, "{provider:?} {model}");
    }
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let server = ModelServer::start(Reply::text("ok"));
    let client = client_of(&server, Provider::Other);
    // The connection of an answer may be released too late for the next request, but not every time.
    while server.seen().len() < server.connections() + 4 {
        assert!(server.seen().len() < 100, "{} connections", server.connections());
        ask(&client, &request()).await.whole();
    }
}

#[tokio::test]
async fn requests_run_side_by_side() {
    use narrows_testkit::model::Step;
    let server = ModelServer::start(Reply::text("ok").before(Step::gate("all")));
    let client = client(&server);
    let asked = request();
    let (one, two, ()) = tokio::join!(ask(&client, &asked), ask(&client, &asked), async {
        server.seen_count(2).await;
        server.release("all");
    });
    assert_eq!((one.text().as_str(), two.text().as_str()), ("ok", "ok"));
}
