//! Events as JSON, both ways.

use serde_json::json;

use super::*;

fn event(body: EventBody) -> RuntimeEvent {
    RuntimeEvent { at_ms: 7, run_id: Some("r".into()), session_id: Some("s".into()), body, raw: None }
}

fn text(text: &str) -> Message {
    Message { text: text.into(), structured_output: None }
}

#[track_caller]
fn check(event: &RuntimeEvent, expected: &str) {
    let written = serde_json::to_string(event).unwrap();
    assert_eq!(written, expected);
    assert_eq!(&serde_json::from_str::<RuntimeEvent>(&written).unwrap(), event);
}

#[test]
fn events_are_flat_objects() {
    let provider: Arc<str> = "acp".into();
    check(
        &event(EventBody::RunStarted { provider }),
        r#"{"type":"run.started","atMs":7,"runId":"r","sessionId":"s","provider":"acp"}"#,
    );
    check(
        &event(EventBody::AssistantDelta { text_delta: "a\"b".to_owned() }),
        r#"{"type":"assistant.delta","atMs":7,"runId":"r","sessionId":"s","textDelta":"a\"b"}"#,
    );
    check(
        &event(EventBody::ReasoningDelta { text_delta: "hm".to_owned() }),
        r#"{"type":"assistant.reasoning.delta","atMs":7,"runId":"r","sessionId":"s","textDelta":"hm"}"#,
    );
    let message = Message { structured_output: Some(json!({"a": 1})), ..text("x") };
    check(
        &event(EventBody::AssistantMessage { message }),
        r#"{"type":"assistant.message","atMs":7,"runId":"r","sessionId":"s","message":{"text":"x","structuredOutput":{"a":1}}}"#,
    );
    let message = text("x");
    check(
        &event(EventBody::ReasoningMessage { message }),
        r#"{"type":"assistant.reasoning.message","atMs":7,"runId":"r","sessionId":"s","message":{"text":"x"}}"#,
    );
    let input = serde_json::from_str(r#"{ "b":1e3 }"#).unwrap();
    check(
        &event(EventBody::ToolCall { call_id: "c".into(), tool_name: "Bash".to_owned(), input }),
        r#"{"type":"tool.call","atMs":7,"runId":"r","sessionId":"s","callId":"c","toolName":"Bash","input":{ "b":1e3 }}"#,
    );
    check(
        &RuntimeEvent {
            run_id: None,
            session_id: None,
            ..event(EventBody::Error { message: "no".to_owned(), code: Some("refusal".to_owned()) })
        },
        r#"{"type":"error","atMs":7,"message":"no","code":"refusal"}"#,
    );
}

#[test]
fn results_contain_the_known_members() {
    let output = ToolOutput {
        status: "completed".to_owned(),
        raw_output: Some(Json::from(&json!("out"))),
        content: vec![Json::from(&json!({"type": "terminal"}))],
        locations: Some(Json::from(&json!([{"path": "/a"}]))),
        truncated: true,
    };
    check(
        &event(EventBody::ToolResult { call_id: "c".into(), output }),
        r#"{"type":"tool.result","atMs":7,"runId":"r","sessionId":"s","callId":"c","output":{"status":"completed","rawOutput":"out","content":[{"type":"terminal"}],"locations":[{"path":"/a"}],"truncated":true}}"#,
    );
    let output = ToolOutput {
        status: "interrupted".to_owned(),
        raw_output: None,
        content: Vec::new(),
        locations: None,
        truncated: false,
    };
    check(
        &event(EventBody::ToolResult { call_id: "c".into(), output }),
        r#"{"type":"tool.result","atMs":7,"runId":"r","sessionId":"s","callId":"c","output":{"status":"interrupted"}}"#,
    );
}

#[test]
fn run_completed_contains_the_known_members() {
    let usage = Usage { input_tokens: Some(3), ..Usage::default() };
    let completed = Completed {
        status: Status::Success,
        final_text: Some("done".into()),
        structured_output: Some(json!([1])),
        usage: Some(usage),
    };
    check(
        &event(EventBody::RunCompleted(Box::new(completed))),
        r#"{"type":"run.completed","atMs":7,"runId":"r","sessionId":"s","status":"success","finalText":"done","structuredOutput":[1],"usage":{"input_tokens":3}}"#,
    );
    let completed =
        Completed { status: Status::Cancelled, final_text: None, structured_output: None, usage: None };
    check(
        &RuntimeEvent {
            raw: Some(Json::from(&json!({"x": null}))),
            ..event(EventBody::RunCompleted(Box::new(completed)))
        },
        r#"{"type":"run.completed","atMs":7,"runId":"r","sessionId":"s","status":"cancelled","raw":{"x":null}}"#,
    );
}

#[test]
fn payloads_have_names() {
    #[track_caller]
    fn payload(payload: Payload, expected: &str) {
        let event = event(EventBody::Provider { provider: "acp".into(), payload });
        let frame =
            r#"{"type":"provider.event","atMs":7,"runId":"r","sessionId":"s","provider":"acp","payload":"#;
        check(&event, &format!("{frame}{expected}}}"));
    }
    let json = |text| serde_json::from_str::<Json>(text).unwrap();
    payload(
        Payload::update(json(r#"{"sessionUpdate":"_x", "n":1.50}"#)),
        r#"{"type":"session.update","update":{"sessionUpdate":"_x", "n":1.50}}"#,
    );
    payload(
        Payload::Update { update: json("null"), replay: true, problem: Some("no".to_owned()) },
        r#"{"type":"session.update","update":null,"replay":true,"problem":"no"}"#,
    );
    payload(
        Payload::MessageReplaced { role: Role::Reasoning, message_id: "m".into(), text: "t".into() },
        r#"{"type":"message.replaced","role":"reasoning","messageId":"m","text":"t"}"#,
    );
    payload(
        Payload::PermissionRequested(Box::new(PermissionRequested {
            request_id: "1".to_owned(),
            method: "session/request_permission".to_owned(),
            call_id: Some("c".into()),
            kind: Some("edit".to_owned()),
            input: Some(json(r#"{"path":"/a"}"#)),
            locations: vec!["/a".to_owned()],
            ..PermissionRequested::default()
        })),
        r#"{"type":"permission.requested","requestId":"1","method":"session/request_permission","callId":"c","kind":"edit","input":{"path":"/a"},"locations":["/a"]}"#,
    );
    payload(
        Payload::PermissionResolved(Box::new(PermissionResolved {
            request_id: "1".to_owned(),
            outcome: "selected".to_owned(),
            option_id: Some("y".to_owned()),
            option_kind: Some("allow_once".to_owned()),
            decision: Some(json(r#"{"verdict":"allow"}"#)),
            ..PermissionResolved::default()
        })),
        r#"{"type":"permission.resolved","requestId":"1","outcome":"selected","optionId":"y","optionKind":"allow_once","decision":{"verdict":"allow"}}"#,
    );
    payload(
        Payload::ConfigRejected {
            option: "model".to_owned(),
            value: "x".to_owned(),
            reason: "no".to_owned(),
        },
        r#"{"type":"config.rejected","option":"model","value":"x","reason":"no"}"#,
    );
    payload(
        Payload::Notification { method: "_x/y".to_owned(), params: json("[1]") },
        r#"{"type":"notification","method":"_x/y","params":[1]}"#,
    );
    payload(
        Payload::Other { name: "events.dropped".to_owned(), data: json("3") },
        r#"{"type":"other","name":"events.dropped","data":3}"#,
    );
}

#[test]
fn invalid_events_are_not_read() {
    for text in [
        "null",
        "{}",
        r#"{"type":"run.started","provider":"acp"}"#,
        r#"{"type":"run.started","atMs":1}"#,
        r#"{"type":"run.paused","atMs":1}"#,
        r#"{"type":"assistant.message","atMs":1,"message":"text"}"#,
        r#"{"type":"error","atMs":1,"message":{"text":""}}"#,
        r#"{"type":"provider.event","atMs":1,"provider":"acp","payload":{"type":"new"}}"#,
        r#"{"type":"run.completed","atMs":1,"status":"done"}"#,
    ] {
        assert!(serde_json::from_str::<RuntimeEvent>(text).is_err(), "{text}");
    }
}

#[test]
fn the_weight_of_an_event_is_its_content() {
    let empty = event(EventBody::AssistantDelta { text_delta: String::new() }).weight();
    let full = event(EventBody::AssistantDelta { text_delta: "x".repeat(1000) });
    assert_eq!(full.weight() - empty, 1000);
    let update = Payload::update(Json::from(&json!("x".repeat(1000))));
    let payload = event(EventBody::Provider { provider: "acp".into(), payload: update });
    assert_eq!(payload.weight() - empty, 1002);
    assert_eq!(RuntimeEvent { raw: Some(Json::nothing()), ..full.clone() }.weight() - full.weight(), 2);
}
