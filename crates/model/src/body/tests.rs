//! Request bodies, by provider and by refused part.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::{Call, Effort, Tool, ToolResult};

fn profile(provider: Provider) -> Profile {
    Profile { provider, refused: RequestParts::default(), images: None, audio: None }
}

fn without(provider: Provider, refused: &[RequestPart]) -> Profile {
    Profile { refused: RequestParts::from_parts(refused), ..profile(provider) }
}

fn built(request: &Request, profile: &Profile) -> Value {
    serde_json::from_slice(&build(request, profile).unwrap()).unwrap()
}

#[track_caller]
fn check_messages(messages: Vec<Message>, profile: &Profile, expected: &Value) {
    let request = Request { tools: vec![tool("ls")], messages, ..request() };
    assert_eq!(&built(&request, profile)["messages"], expected);
}

fn request() -> Request {
    Request { model: "m".to_owned(), ..Request::default() }
}

fn tool(name: &str) -> Tool {
    Tool { name: name.to_owned(), description: "Lists.".to_owned(), parameters: schema() }
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"path": {"type": "string"}}})
}

fn assistant_message(text: &str) -> Message {
    Message::Assistant(Assistant { text: text.to_owned(), ..Assistant::default() })
}

fn called(ids: &[&str]) -> Assistant {
    let call = |id: &&str| Call {
        id: (*id).to_owned(),
        name: "ls".to_owned(),
        arguments: "{}".to_owned(),
        extra: Map::new(),
    };
    Assistant { calls: ids.iter().map(call).collect(), ..Assistant::default() }
}

fn result(id: &str, text: &str) -> Message {
    Message::Tool(ToolResult {
        call: id.to_owned(),
        name: "ls".to_owned(),
        content: vec![Part::text(text)],
        failed: false,
    })
}

fn image() -> Part {
    Part::Image { mime: "image/png".to_owned(), data: "AAAA".to_owned() }
}

#[test]
fn unset_fields_are_not_sent() {
    let request = Request { messages: vec![Message::user("hi")], ..request() };
    let text = String::from_utf8(build(&request, &profile(Provider::Other)).unwrap()).unwrap();
    assert_eq!(
        text,
        r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}"#
    );
}

#[test]
fn all_set_fields_are_sent() {
    let request = Request {
        model: "gpt-4o".to_owned(),
        system: Some("Be brief.".to_owned()),
        messages: vec![Message::user("hi")],
        tools: vec![tool("ls"), Tool { description: String::new(), ..tool("cat") }],
        max_tokens: Some(10),
        temperature: Some(0.5),
        effort: Some(Effort::Low),
        cache_key: Some("s-1".to_owned()),
    };
    let expected = json!({
        "model": "gpt-4o",
        "tools": [
            {"type": "function", "function": {"name": "ls", "description": "Lists.", "parameters": schema()}},
            {"type": "function", "function": {"name": "cat", "parameters": schema()}},
        ],
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_tokens": 10,
        "temperature": 0.5,
        "reasoning_effort": "low",
        "prompt_cache_key": "s-1",
    });
    assert_eq!(built(&request, &profile(Provider::OpenAi)), expected);
}

#[test]
fn a_tool_schema_gets_its_required_members() {
    let check = |parameters: Value, expected: &Value| {
        let request = Request { tools: vec![Tool { parameters, ..tool("ls") }], ..request() };
        let body = built(&request, &profile(Provider::OpenAi));
        assert_eq!(&body["tools"][0]["function"]["parameters"], expected);
    };
    let empty = json!({"type": "object", "properties": {}});
    check(schema(), &schema());
    check(json!({"type": "object"}), &empty);
    check(json!({}), &empty);
    check(json!(null), &empty);
    check(json!({"required": []}), &json!({"type": "object", "properties": {}, "required": []}));
    check(json!({"anyOf": [{"type": "object"}]}), &json!({"anyOf": [{"type": "object"}]}));
}

#[test]
fn parameters_depend_on_provider_model_and_refusals() {
    use RequestPart as D;
    let check = |profile: &Profile, model: &str, expected: &Value| {
        let request = Request {
            model: model.to_owned(),
            max_tokens: Some(10),
            temperature: Some(0.5),
            effort: Some(Effort::High),
            cache_key: Some("s".to_owned()),
            ..Request::default()
        };
        let mut body = built(&request, profile);
        let body = body.as_object_mut().unwrap();
        body.retain(|name, _| !["model", "messages", "stream"].contains(&name.as_str()));
        assert_eq!(&Value::Object(body.clone()), expected, "{model} {profile:?}");
    };
    let usage = json!({"include_usage": true});
    let others =
        json!({"stream_options": usage, "max_tokens": 10, "temperature": 0.5, "reasoning_effort": "high"});
    let newer = |cached: bool| {
        let mut body = others.clone();
        let fields = body.as_object_mut().unwrap();
        fields.remove("max_tokens");
        fields.insert("max_completion_tokens".to_owned(), 10.into());
        if cached {
            fields.insert("prompt_cache_key".to_owned(), "s".into());
        }
        body
    };
    check(&profile(Provider::Other), "o3", &others);
    check(&profile(Provider::OpenAi), "o3", &newer(true));
    check(&profile(Provider::AzureV1), "gpt-5-mini", &newer(false));
    check(&without(Provider::OpenAi, &[D::MaxTokensName, D::CacheKey]), "o3", &others);
    check(&without(Provider::Other, &[D::MaxTokensName]), "o3", &newer(false));
    check(
        &profile(Provider::OpenRouter),
        "m",
        &json!({"stream_options": usage, "max_tokens": 10, "temperature": 0.5, "reasoning": {"effort": "high"}}),
    );
    check(
        &profile(Provider::Mistral),
        "m",
        &json!({"max_tokens": 10, "temperature": 0.5, "reasoning_effort": "high"}),
    );
    check(
        &without(Provider::Other, &[D::StreamOptions, D::MaxTokens, D::Temperature, D::Effort]),
        "m",
        &json!({}),
    );
    let whole = built(&request(), &without(Provider::Other, &[D::Streaming]));
    assert_eq!(whole, json!({"model": "m", "messages": []}));
}

#[test]
fn content_has_a_form_that_the_model_accepts() {
    let check = |part: Part, profile: &Profile, expected: &Value| {
        let messages = vec![Message::User { content: vec![Part::text("see"), part] }];
        check_messages(messages, profile, &json!([{"role": "user", "content": expected}]));
    };
    let see = json!({"type": "text", "text": "see"});
    let other = profile(Provider::Other);
    check(Part::text("this"), &other, &json!("see\nthis"));
    check(
        image(),
        &other,
        &json!([see, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]),
    );
    check(image(), &Profile { images: Some(false), ..other }, &json!("see\n[Image: image/png]"));
    check(image(), &without(Provider::Other, &[RequestPart::Images]), &json!("see\n[Image: image/png]"));
    check(
        image(),
        &without(Provider::Other, &[RequestPart::ContentParts]),
        &json!("see\n[Image: image/png]"),
    );
    let audio = |mime: &str| Part::Audio { mime: mime.to_owned(), data: "AAAA".to_owned() };
    for (mime, format) in [("audio/wav", "wav"), ("audio/x-wav", "wav"), ("audio/mpeg", "mp3")] {
        let expected =
            json!([see, {"type": "input_audio", "input_audio": {"data": "AAAA", "format": format}}]);
        check(audio(mime), &other, &expected);
    }
    check(audio("audio/ogg"), &other, &json!("see\n[Audio: audio/ogg]"));
    check(audio("audio/wav"), &Profile { audio: Some(false), ..other }, &json!("see\n[Audio: audio/wav]"));
    let file = |name: Option<&str>, mime: &str| Part::File {
        name: name.map(str::to_owned),
        mime: mime.to_owned(),
        data: "AAAA".to_owned(),
    };
    let document = json!({"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"});
    check(file(Some("a.pdf"), PDF_MIME), &other, &json!([see, {"type": "file", "file": document}]));
    check(file(Some("a.zip"), "application/zip"), &other, &json!("see\n[File: a.zip]"));
    check(
        file(None, PDF_MIME),
        &without(Provider::Other, &[RequestPart::Files]),
        &json!("see\n[File: application/pdf]"),
    );
}

#[test]
fn every_call_has_one_result_in_the_order_of_the_calls() {
    let call =
        |id: &str| json!({"id": id, "type": "function", "function": {"name": "ls", "arguments": "{}"}});
    check_messages(
        vec![
            Message::user("go"),
            Message::Assistant(called(&["a", "b"])),
            result("b", "2"),
            result("a", "1"),
        ],
        &profile(Provider::Other),
        &json!([
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": null, "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "content": "1", "tool_call_id": "a"},
            {"role": "tool", "content": "2", "tool_call_id": "b"},
        ]),
    );
    check_messages(
        vec![Message::Assistant(called(&["a"])), Message::user("go on")],
        &profile(Provider::Other),
        &json!([
            {"role": "assistant", "content": null, "tool_calls": [call("a")]},
            {"role": "tool", "content": "(no result: the call did not finish)", "tool_call_id": "a"},
            {"role": "user", "content": "go on"},
        ]),
    );
    check_messages(
        vec![Message::Assistant(called(&["a"])), result("a", ""), result("z", "lost")],
        &profile(Provider::Other),
        &json!([
            {"role": "assistant", "content": null, "tool_calls": [call("a")]},
            {"role": "tool", "content": "(no output)", "tool_call_id": "a"},
            {"role": "user", "content": "[Result of ls]\nlost"},
        ]),
    );
}

#[test]
fn images_of_a_result_follow_all_results() {
    let picture = Message::Tool(ToolResult {
        call: "a".to_owned(),
        name: "ls".to_owned(),
        content: vec![Part::text("seen"), image()],
        failed: false,
    });
    let messages = vec![Message::Assistant(called(&["a", "b"])), picture, result("b", "2")];
    let tools = |pictures: bool| {
        let mut tools = vec![
            json!({"role": "tool", "content": "seen\n[Image: image/png]", "tool_call_id": "a"}),
            json!({"role": "tool", "content": "2", "tool_call_id": "b"}),
        ];
        if pictures {
            tools.push(json!({"role": "user", "content": [
                {"type": "text", "text": "[Images from ls]"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ]}));
        }
        tools
    };
    let check = |profile: &Profile, pictures: bool| {
        let request = Request { tools: vec![tool("ls")], messages: messages.clone(), ..request() };
        let body = built(&request, profile);
        assert_eq!(body["messages"].as_array().unwrap()[1..], tools(pictures));
    };
    check(&profile(Provider::Other), true);
    check(&without(Provider::Other, &[RequestPart::Images]), false);
}

#[test]
fn without_tools_calls_and_results_become_text() {
    let messages =
        vec![Message::Assistant(Assistant { text: "Wait.".to_owned(), ..called(&["a"]) }), result("a", "1")];
    let expected = json!([
        {"role": "assistant", "content": "Wait.\n\n[Called ls with {}]"},
        {"role": "user", "content": "[Result of ls]\n1"},
    ]);
    check_messages(messages, &without(Provider::Other, &[RequestPart::Tools]), &expected);
}

#[test]
fn ids_have_a_length_that_the_endpoint_accepts() {
    let check = |id: &str, profile: &Profile, expected: &str| {
        let request = Request {
            tools: vec![tool("ls")],
            messages: vec![Message::Assistant(called(&[id])), result(id, "1")],
            ..request()
        };
        let body = built(&request, profile);
        assert_eq!(body["messages"][0]["tool_calls"][0]["id"], expected);
        assert_eq!(body["messages"][1]["tool_call_id"], expected);
    };
    check("call_1", &profile(Provider::Other), "call_1");
    check("abcDEF123", &profile(Provider::Mistral), "abcDEF123");
    check("call_1", &profile(Provider::Mistral), "9gD2Dimct");
    check("call_1", &without(Provider::Vllm, &[RequestPart::CallIds]), "9gD2Dimct");
    let long = "x".repeat(41);
    check(&long, &profile(Provider::Other), &long);
    check(&long, &profile(Provider::OpenAi), "call_vriTb802m");
}

#[test]
fn extra_fields_are_returned_only_where_they_are_accepted() {
    let mut answer = called(&["a"]);
    answer.reasoning = "hm".to_owned();
    answer.extra.insert("reasoning_details".to_owned(), json!([1]));
    answer.calls[0].extra.insert("extra_content".to_owned(), json!({"google": 1}));
    answer.calls[0].arguments = "{\"a\":".to_owned();
    let check = |profile: &Profile, expected: &Value| {
        let request = Request {
            tools: vec![tool("ls")],
            messages: vec![Message::Assistant(answer.clone()), result("a", "1")],
            ..request()
        };
        assert_eq!(&built(&request, profile)["messages"][0], expected, "{profile:?}");
    };
    let function = json!({"name": "ls", "arguments": "{\"invalid\":\"{\\\"a\\\":\"}"});
    let bare = json!({
        "role": "assistant", "content": null,
        "tool_calls": [{"id": "a", "type": "function", "function": function}],
    });
    let full = json!({
        "role": "assistant", "content": null, "reasoning_details": [1],
        "tool_calls": [{"id": "a", "type": "function", "function": function, "extra_content": {"google": 1}}],
    });
    let mut thoughtful = full.clone();
    thoughtful["content"] = "".into();
    thoughtful["reasoning_content"] = "hm".into();
    check(&profile(Provider::OpenAi), &bare);
    check(&profile(Provider::OpenRouter), &full);
    check(&profile(Provider::Gemini), &full);
    check(&without(Provider::OpenRouter, &[RequestPart::Extra]), &bare);
    check(&profile(Provider::DeepSeek), &thoughtful);
    check(&without(Provider::Other, &[RequestPart::MissingReasoning]), &thoughtful);
    check(&without(Provider::DeepSeek, &[RequestPart::Extra]), &bare);
}

#[test]
fn instructions_have_a_role_that_the_endpoint_accepts() {
    use RequestPart as D;
    let check = |refused: &[RequestPart], messages: Vec<Message>, expected: &Value| {
        let request = Request { system: Some("Be brief.".to_owned()), messages, ..request() };
        assert_eq!(&built(&request, &without(Provider::Other, refused))["messages"], expected);
    };
    let hi = || vec![Message::user("hi")];
    check(
        &[D::SystemRole],
        hi(),
        &json!([
            {"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"},
        ]),
    );
    let both = [D::SystemRole, D::DeveloperRole];
    check(&both, hi(), &json!([{"role": "user", "content": "Be brief.\n\nhi"}]));
    check(
        &both,
        vec![assistant_message("hello")],
        &json!([
            {"role": "user", "content": "Be brief."}, {"role": "assistant", "content": "hello"},
        ]),
    );
    check(
        &both,
        vec![Message::User { content: vec![image()] }],
        &json!([{"role": "user", "content": [
            {"type": "text", "text": "Be brief."},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ]}]),
    );
    check(
        &[D::AdjacentRoles],
        vec![Message::user("a"), Message::user("b"), assistant_message("c"), assistant_message("d")],
        &json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a\n\nb"},
            {"role": "assistant", "content": "c\n\nd"},
        ]),
    );
}

#[test]
fn an_empty_answer_is_left_out() {
    check_messages(
        vec![Message::user("a"), assistant_message(""), Message::user("b")],
        &profile(Provider::Other),
        &json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]),
    );
}

#[test]
fn claude_gets_cache_marks() {
    let marked = |text: &str| json!([{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]);
    let check = |profile: &Profile, model: &str, expected: bool| {
        let request = Request {
            model: model.to_owned(),
            system: Some("Be brief.".to_owned()),
            messages: vec![Message::user("a"), assistant_message("b"), Message::user("c")],
            ..Request::default()
        };
        let messages = &built(&request, profile)["messages"];
        let (first, last) =
            if expected { (marked("Be brief."), marked("c")) } else { ("Be brief.".into(), "c".into()) };
        assert_eq!((&messages[0]["content"], &messages[3]["content"]), (&first, &last), "{model}");
        assert_eq!((&messages[1]["content"], &messages[2]["content"]), (&"a".into(), &"b".into()), "{model}");
    };
    check(&profile(Provider::OpenRouter), "anthropic/claude-sonnet-4.5", true);
    check(&profile(Provider::LiteLlm), "claude-3", true);
    check(&profile(Provider::OpenRouter), "openai/gpt-4o", false);
    check(&profile(Provider::Other), "claude-3", false);
    check(&without(Provider::OpenRouter, &[RequestPart::CacheControl]), "anthropic/claude", false);
}

#[test]
fn the_sent_parts_are_listed() {
    let everything = Request {
        system: Some("s".to_owned()),
        messages: vec![Message::User { content: vec![image()] }, Message::Assistant(called(&["a"]))],
        tools: vec![tool("ls")],
        max_tokens: Some(1),
        temperature: Some(1.0),
        effort: Some(Effort::Low),
        ..request()
    };
    let parts = sent(&everything, &profile(Provider::Other)).parts;
    for part in [
        RequestPart::Images,
        RequestPart::ContentParts,
        RequestPart::Tools,
        RequestPart::SystemRole,
        RequestPart::CallIds,
    ] {
        assert!(parts.has(part), "{part}");
    }
    for part in [
        RequestPart::Audio,
        RequestPart::Files,
        RequestPart::DeveloperRole,
        RequestPart::Extra,
        RequestPart::CacheKey,
    ] {
        assert!(!parts.has(part), "{part}");
    }
    let refused =
        without(Provider::Other, &[RequestPart::Images, RequestPart::SystemRole, RequestPart::Temperature]);
    let parts = sent(&everything, &refused).parts;
    assert!(parts.has(RequestPart::DeveloperRole));
    for part in
        [RequestPart::Images, RequestPart::ContentParts, RequestPart::SystemRole, RequestPart::Temperature]
    {
        assert!(!parts.has(part), "{part}");
    }
}

fn any_part() -> impl Strategy<Value = Part> {
    prop_oneof![
        ".{0,12}".prop_map(Part::text),
        Just(image()),
        "[a-z]{0,3}".prop_map(|name| Part::File {
            name: Some(name),
            mime: PDF_MIME.to_owned(),
            data: String::new()
        }),
    ]
}

fn any_message() -> impl Strategy<Value = Message> {
    let parts = || proptest::collection::vec(any_part(), 0..3);
    prop_oneof![
        parts().prop_map(|content| Message::User { content }),
        (".{0,8}", proptest::collection::vec("[a-c]", 0..3)).prop_map(|(text, ids)| {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            Message::Assistant(Assistant { text, ..called(&ids) })
        }),
        ("[a-c]", parts()).prop_map(|(call, content)| {
            Message::Tool(ToolResult { call, name: "ls".to_owned(), content, failed: false })
        }),
    ]
}

fn any_profile() -> impl Strategy<Value = Profile> {
    let all: Vec<Provider> = Provider::all().collect();
    (proptest::sample::select(all), any::<[bool; 6]>()).prop_map(|(provider, flags)| {
        use RequestPart as D;
        let some = [D::Tools, D::Images, D::ContentParts, D::SystemRole, D::DeveloperRole, D::AdjacentRoles];
        let refused: Vec<_> = some.iter().zip(flags).filter(|(_, on)| *on).map(|(part, _)| *part).collect();
        without(provider, &refused)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// For any conversation, every call in the request has one result after it.
    #[test]
    fn results_always_follow_their_calls(
        messages in proptest::collection::vec(any_message(), 0..8),
        profile in any_profile(),
        with_tools: bool,
    ) {
        let tools = if with_tools { vec![tool("ls")] } else { Vec::new() };
        let request = Request { system: Some("s".to_owned()), messages, tools, ..request() };
        let body = built(&request, &profile);
        let mut open: Vec<&str> = Vec::new();
        for message in body["messages"].as_array().unwrap() {
            if message["role"] == "tool" {
                prop_assert_eq!(Some(open.remove(0)), message["tool_call_id"].as_str());
                prop_assert_ne!(&message["content"], "");
                continue;
            }
            prop_assert!(open.is_empty(), "a call without result");
            let calls = message["tool_calls"].as_array();
            open = calls.into_iter().flatten().map(|call| call["id"].as_str().unwrap()).collect();
            prop_assert!(calls.is_none() || !profile.refused.has(RequestPart::Tools));
        }
        prop_assert!(open.is_empty(), "a call without result at the end");
    }

    /// A longer conversation starts with the bytes of the shorter one.
    #[test]
    fn the_prefix_is_stable(text in ".{0,20}", provider in proptest::sample::select(Provider::all().collect::<Vec<_>>())) {
        let mut request = Request { system: Some("s".to_owned()), tools: vec![tool("ls")], ..request() };
        request.messages = vec![Message::user(text), Message::Assistant(called(&["a"])), result("a", "1")];
        let short = build(&request, &profile(provider)).unwrap();
        request.messages.push(assistant_message("done"));
        request.messages.push(Message::user("more"));
        let long = build(&request, &profile(provider)).unwrap();
        let end = short.windows(10).rposition(|text| text == br#"],"stream""#).unwrap();
        prop_assert_eq!(&short[..end], &long[..end]);
    }
}
