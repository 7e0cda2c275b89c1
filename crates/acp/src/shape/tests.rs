//! Tests of messages that fit and messages that do not.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::method;

fn shape(version: Version, receiver: Side, name: &str) -> &'static Shape {
    params(version, receiver, name).unwrap_or_else(|| panic!("{name} has no shape"))
}

#[track_caller]
fn check(shape: &Shape, text: &str, expected: (&str, &[&str])) {
    let (kept, names) = match shape.fit(text.as_bytes()) {
        Fit::Whole => (text.to_owned(), Vec::new()),
        Fit::Part { text, names } => (String::from_utf8(text).unwrap(), names),
        Fit::Nothing => (String::new(), Vec::new()),
    };
    assert_eq!((&*kept, names), (expected.0, expected.1.iter().map(|name| (*name).to_owned()).collect()));
    if !kept.is_empty() {
        assert_eq!(shape.fit(kept.as_bytes()), Fit::Whole, "{kept}");
    }
}

#[test]
fn every_method_has_a_shape_in_its_versions() {
    for row in method::METHODS {
        for side in [Side::Agent, Side::Client].into_iter().filter(|side| row.is_received_by(*side)) {
            for version in [Version::V1, Version::V2] {
                assert!(params(version, side, row.name).is_some(), "{} {side:?} {version:?}", row.name);
                assert!(result(version, side, row.name).is_some(), "{} {side:?} {version:?}", row.name);
            }
        }
    }
    for table in [v1::METHODS, v2::METHODS] {
        for (name, side, ..) in table {
            assert!(
                method::METHODS.iter().any(|row| row.name == *name && row.is_received_by(*side)),
                "{name} {side:?}"
            );
        }
    }
    assert!(params(Version::V1, Side::Agent, "_x/y").is_none());
    assert!(params(Version::V1, Side::Client, method::SESSION_NEW).is_none());
}

#[test]
fn protocol_messages_fit_unchanged() {
    let new = shape(Version::V1, Side::Agent, method::SESSION_NEW);
    for text in [
        "{}",
        "null",
        r#"{ "cwd" : "/w", "mcpServers": [ {"name":"a","command":"b","args":[],"env":[{"name":"A","value":"B"}]} ] }"#,
        r#"{"cwd":"/w","mcpServers":[{"type":"http","name":"a","url":"u","headers":[]}],"_meta":{"any":[{}]}}"#,
        r#"{"c\u0077d":"/w","other":null,"additionalDirectories":null}"#,
    ] {
        check(new, text, (text, &[]));
    }
    let update = shape(Version::V1, Side::Client, method::SESSION_UPDATE);
    for text in [
        r#"{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"{\"x\":1}"}}}"#,
        r#"{"sessionId":"s","update":{"sessionUpdate":"tool_call","toolCallId":"c","rawInput":{"a":{"b":1}},"locations":[{"path":"/w","line":3}]}}"#,
        r#"{"sessionId":"s","update":{"sessionUpdate":"state_update","state":"idle"}}"#,
        r#"{"sessionId":"s","update":{"toolCallId":"c","sessionUpdate":"nobody_knows","kind":"edit"}}"#,
    ] {
        check(update, text, (text, &[]));
    }
}

#[test]
fn unknown_members_are_removed() {
    let new = shape(Version::V1, Side::Agent, method::SESSION_NEW);
    check(new, r#"{"x":1,"cwd":"/w"}"#, (r#"{"cwd":"/w"}"#, &["x"]));
    check(new, r#"{"cwd":"/w" , "x":1 , "mcpServers":[]}"#, (r#"{"cwd":"/w","mcpServers":[]}"#, &["x"]));
    check(new, r#"{"x":{"cwd":1}}"#, ("{}", &["x"]));
    // Types.
    check(new, r#"{"cwd":["/w"],"mcpServers":{}}"#, ("{}", &["cwd", "mcpServers"]));
    check(new, r#"{"additionalDirectories":["/a",1,"/b"]}"#, {
        (r#"{"additionalDirectories":["/a","/b"]}"#, &["additionalDirectories.1"])
    });
    // Repeated, in any spelling.
    check(new, r#"{"cwd":"/w","c\u0077d":"/"}"#, (r#"{"cwd":"/w"}"#, &["cwd"]));
    check(new, r#"{"cwd":"/w","cwd":null}"#, (r#"{"cwd":"/w"}"#, &["cwd"]));
    check(new, r#"{"_meta":{},"_meta":{"x":1}}"#, (r#"{"_meta":{}}"#, &["_meta"]));
    // Nested.
    check(new, r#"{"mcpServers":[{"type":"http","name":"a","command":"sh"}],"cwd":"/w"}"#, {
        (r#"{"mcpServers":[{"type":"http","name":"a"}],"cwd":"/w"}"#, &["mcpServers.0.command"])
    });
    // Variants.
    check(new, r#"{"mcpServers":[{"type":"exec","name":"a"}]}"#, {
        (r#"{"mcpServers":[]}"#, &["mcpServers.0"])
    });
    check(new, r#"{"mcpServers":[{"type":"acp","type":"http"}]}"#, {
        (r#"{"mcpServers":[]}"#, &["mcpServers.0"])
    });
    for text in ["[]", "1", "\"x\"", "true"] {
        assert_eq!(new.fit(text.as_bytes()), Fit::Nothing, "{text}");
    }
}

#[test]
fn versions_have_different_members() {
    let resume = |version| shape(version, Side::Agent, method::SESSION_RESUME);
    let text = r#"{"sessionId":"s","replayFrom":{"type":"start"}}"#;
    check(resume(Version::V1), text, (r#"{"sessionId":"s"}"#, &["replayFrom"]));
    check(resume(Version::V2), text, (text, &[]));
    let ask = |version| shape(version, Side::Client, method::SESSION_REQUEST_PERMISSION);
    let text = r#"{"toolCall":{},"subject":{"anything":1}}"#;
    check(ask(Version::V1), text, (r#"{"toolCall":{}}"#, &["subject"]));
    check(ask(Version::V2), text, (r#"{"subject":{"anything":1}}"#, &["toolCall"]));
}

#[test]
fn numbers_must_have_the_form_of_the_protocol() {
    let initialize = shape(Version::V1, Side::Agent, method::INITIALIZE);
    for good in ["1", "2", "0", "null"] {
        let text = format!(r#"{{"protocolVersion":{good}}}"#);
        check(initialize, &text, (&text, &[]));
    }
    for bad in ["2.0", "2e0", "-1", "\"2\"", "true", "[2]"] {
        check(initialize, &format!(r#"{{"protocolVersion":{bad}}}"#), ("{}", &["protocolVersion"]));
    }
}

#[test]
fn reported_names_are_few_and_short() {
    let long = "x".repeat(1_000);
    let members: Vec<String> = (0..1_000).map(|number| format!("\"{number}{long}\":1")).collect();
    let text = format!("{{{}}}", members.join(","));
    let Fit::Part { text, names } = EMPTY.fit(text.as_bytes()) else { panic!("it does not fit") };
    assert_eq!((&text[..], names.len()), (&b"{}"[..], MAX_NAMES));
    assert!(names.iter().all(|name| name.len() <= MAX_NAME_CHARS));
}

/// Serializes the types of the schema crate with every member that this build has.
#[test]
fn messages_of_the_schema_crate_fit() {
    use crate::v1::*;
    let block = || ContentBlock::from("text");
    let cases: Vec<(Side, &str, Value)> = vec![
        (Side::Agent, method::SESSION_PROMPT, json!(PromptRequest::new("s", vec![block()]))),
        (Side::Agent, method::SESSION_NEW, json!(NewSessionRequest::new("/w"))),
        (Side::Agent, method::SESSION_LOAD, json!(LoadSessionRequest::new("s", "/w"))),
        (Side::Agent, method::SESSION_CANCEL, json!(CancelNotification::new("s"))),
        (
            Side::Client,
            method::FS_READ_TEXT_FILE,
            json!(ReadTextFileRequest::new("s", "/w/a").line(1).limit(2)),
        ),
        (Side::Client, method::FS_WRITE_TEXT_FILE, json!(WriteTextFileRequest::new("s", "/w/a", "x"))),
        (Side::Client, method::TERMINAL_CREATE, json!(CreateTerminalRequest::new("s", "ls").cwd("/w"))),
    ];
    for (side, name, value) in cases {
        let text = value.to_string();
        assert_eq!(shape(Version::V1, side, name).fit(text.as_bytes()), Fit::Whole, "{name} {text}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let known = prop::sample::select(vec![
        "sessionId",
        "update",
        "sessionUpdate",
        "content",
        "type",
        "text",
        "toolCallId",
        "locations",
        "path",
        "_meta",
        "x",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(vec!["text", "tool_call", "agent_message_chunk", "a\"b\\"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(known.clone(), inner, 0..6).prop_map(
                |members: BTreeMap<&str, Value>| {
                    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
                }
            ),
        ]
    })
}

proptest! {
    #[test]
    fn the_remaining_text_is_json_that_fits(value in any_json(), is_pretty: bool) {
        let update = shape(Version::V1, Side::Client, method::SESSION_UPDATE);
        let text = if is_pretty { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
        if let Fit::Part { text, names } = update.fit(text.as_bytes()) {
            prop_assert!(!names.is_empty());
            prop_assert!(serde_json::from_slice::<Value>(&text).is_ok());
            prop_assert_eq!(update.fit(&text), Fit::Whole);
        }
    }
}
