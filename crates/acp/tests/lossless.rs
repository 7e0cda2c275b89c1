//! Tests: unknown data survives reading, and known data is not mistaken for unknown data.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::fmt::Debug;

use narrows_acp::stop::StopReason;
use narrows_acp::union::Union;
use narrows_acp::update::Update;
use narrows_acp::{Raw, ReadError, VariantReading, v1, v2};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

#[derive(Clone, Copy)]
enum Is {
    Known,
    Unknown(&'static str),
    Malformed,
}
use Is::{Known, Malformed, Unknown};

/// A type that stores values without reading them.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
struct Stored<T> {
    before: u8,
    value: Raw<T>,
    after: Vec<Raw<T>>,
}

/// Checks the result of reading `text`, and that reading and storing it keeps every byte.
#[track_caller]
fn check<T: Union + Debug + Clone>(text: &str, expected: Is) {
    let raw = Raw::<T>::parse(text).unwrap();
    match (raw.read_variant(), expected) {
        (Ok(VariantReading::Known(_)), Known) | (Err(ReadError::Payload { .. }), Malformed) => {}
        (Ok(VariantReading::Unknown { tag, raw }), Unknown(expected)) => {
            assert_eq!(tag, expected);
            assert_eq!(raw.text(), text);
        }
        (reading, _) => panic!("{text}: {reading:?}"),
    }
    let stored = format!(r#"{{"before":1,"value":{text},"after":[{text}]}}"#);
    let read: Stored<T> = serde_json::from_str(&stored).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), stored);
}

#[test]
fn updates_of_v1_are_read() {
    fn check(text: &str, expected: Is) {
        self::check::<v1::SessionUpdate>(text, expected);
    }
    check(
        r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"hi","mood":"fine"},"new":[1]}"#,
        Known,
    );
    check(r#"{ "title":"t", "toolCallId":"1", "sessionUpdate":"tool_call", "kind":"_brew" }"#, Known);
    check(r#"{"sessionUpdate":"plan_removed","planId":"p"}"#, Known);
    check(r#"{"sessionUpdate":"turn_end","n":1.00,"n":2}"#, Unknown("turn_end"));
    check(r#"{"sessionUpdate":"_vendor/x","deep":{"a":[null,{}]}}"#, Unknown("_vendor/x"));
    check(r#"{"sessionUpdate":"agent_message_chunk"}"#, Malformed);
    check(r#"{"sessionUpdate":"tool_call","title":"no id"}"#, Malformed);
    check(r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"video","url":"x"}}"#, Malformed);
}

#[test]
fn updates_of_v2_are_read() {
    fn check(text: &str, expected: Is) {
        self::check::<v2::SessionUpdate>(text, expected);
    }
    check(
        r#"{"sessionUpdate":"agent_message_chunk","messageId":"m","content":{"type":"video","url":"x"},"new":1}"#,
        Known,
    );
    check(r#"{"sessionUpdate":"state_update","state":"_dreaming","since":1e2}"#, Known);
    check(r#"{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"_brewing"}"#, Known);
    check(r#"{"sessionUpdate":"tool_call","toolCallId":"1","title":"of v1"}"#, Unknown("tool_call"));
    check(r#"{"x":"\u00e9","sessionUpdate":"_vendor/x"}"#, Unknown("_vendor/x"));
    check(r#"{"sessionUpdate":"agent_message_chunk","messageId":"m"}"#, Malformed);
    check(r#"{"sessionUpdate":"tool_call_update","toolCallId":1}"#, Malformed);
}

#[test]
fn content_blocks_are_read_in_both_versions() {
    #[track_caller]
    fn both(text: &str, expected: Is) {
        check::<v1::ContentBlock>(text, expected);
        check::<v2::ContentBlock>(text, expected);
    }
    both(r#"{"type":"text","text":"hi","lang":"en"}"#, Known);
    both(r#"{"type":"resource_link","uri":"file:///a","name":"a","icons2":[]}"#, Known);
    both(r#"{"type":"video","data":"AAAA"}"#, Unknown("video"));
    both(r#"{"type":"_x"}"#, Unknown("_x"));
    both(r#"{"type":"text"}"#, Malformed);
    both(r#"{"type":"image","data":1,"mimeType":"image/png"}"#, Malformed);
}

#[test]
fn tool_call_contents_are_read_in_both_versions() {
    #[track_caller]
    fn both(text: &str, expected: Is) {
        check::<v1::ToolCallContent>(text, expected);
        check::<v2::ToolCallContent>(text, expected);
    }
    both(r#"{"type":"content","content":{"type":"text","text":"hi"},"x":1}"#, Known);
    both(r#"{"type":"chart","points":[1,2]}"#, Unknown("chart"));
    both(r#"{"type":"terminal"}"#, Malformed);
}

#[test]
fn permission_outcomes_are_read_in_both_versions() {
    #[track_caller]
    fn both(text: &str, expected: Is) {
        check::<v1::RequestPermissionOutcome>(text, expected);
        check::<v2::RequestPermissionOutcome>(text, expected);
    }
    both(r#"{"outcome":"selected","optionId":"a","note":"x"}"#, Known);
    both(r#"{"outcome":"cancelled","why":"bored"}"#, Known);
    both(r#"{"outcome":"_deferred","until":"noon"}"#, Unknown("_deferred"));
    both(r#"{"outcome":"selected"}"#, Malformed);
}

#[test]
fn a_value_without_a_variant_name_is_a_tag_error() {
    for text in ["null", "7", "[]", "{}", r#"{"type":5}"#, r#"{"type":"text","type":"text","text":"a"}"#] {
        let v1 = Raw::<v1::ContentBlock>::parse(text).unwrap().read_variant();
        let v2 = Raw::<v2::ContentBlock>::parse(text).unwrap().read_variant();
        assert!(matches!(v1, Err(ReadError::Tag { field: "type", .. })), "{text}: {v1:?}");
        assert!(matches!(v2, Err(ReadError::Tag { field: "type", .. })), "{text}: {v2:?}");
    }
}

#[test]
fn an_array_of_members_is_no_variant() {
    let raw = Raw::<v1::RequestPermissionOutcome>::parse(r#"["selected","a"]"#).unwrap();
    assert!(matches!(raw.read_variant(), Err(ReadError::Tag { .. })));
}

#[test]
fn errors_quote_the_peer_in_one_line() {
    let text = r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"a\nb\u001b[2J"}}"#;
    let error = Raw::<v1::SessionUpdate>::parse(text).unwrap().read_variant().unwrap_err().to_string();
    assert!(
        error.starts_with("`sessionUpdate` is `agent_message_chunk`, but other members are invalid"),
        "{error}"
    );
    assert!(error.contains(r"a b\u{1b}[2J") && !error.contains(char::is_control), "{error}");
}

#[test]
fn stop_reasons_are_read_in_both_versions() {
    let text = r#"{"stopReason":"_paused","resumeAt":"noon","_meta":{}}"#;
    let result: &RawValue = serde_json::from_str(text).unwrap();
    assert_eq!(StopReason::from_v1_result(result), Ok(StopReason::Other("_paused".into())));
    assert_eq!(Raw::<v1::PromptResponse>::from(result).text(), text);

    let idle = format!(r#"{{"sessionUpdate":"state_update","state":"idle",{}"#, &text[1..]);
    let raw = Raw::<v2::SessionUpdate>::parse(&idle).unwrap();
    let Ok(VariantReading::Known(v2::SessionUpdate::StateUpdate(v2::StateUpdate::Idle(state)))) =
        raw.read_variant()
    else {
        panic!("{raw:?}")
    };
    let reason = StopReason::from(&state.stop_reason.unwrap());
    assert_eq!(reason, StopReason::Other("_paused".into()));
    assert_eq!(raw.text(), idle);
}

#[test]
fn an_envelope_with_any_update_is_readable() {
    let params = r#"{"sessionId":"s","update":{"sessionUpdate":"turn_end"},"_meta":{"k":1}}"#;
    assert!(Raw::<v1::SessionNotification>::parse(params).unwrap().read().is_err());
    let update = Update::<v1::SessionUpdate>::from_params(serde_json::from_str(params).unwrap()).unwrap();
    assert_eq!(&*update.session_id, "s");
    assert!(
        matches!(update.update.read_variant(), Ok(VariantReading::Unknown { tag, .. }) if tag == "turn_end")
    );
}

/// Generates JSON text in any form that a peer may send: spaces, escapes, repeated members, numbers of any
/// spelling.
fn any_text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just(r#""type""#.to_owned()),
        Just(r#""t\u0079pe""#.to_owned()),
        Just(r#""sessionUpdate""#.to_owned()),
        Just(r#""text""#.to_owned()),
        Just(r#""notice""#.to_owned()),
        Just(r#""content""#.to_owned()),
        "[a-zé]{0,3}".prop_map(|word| format!("{word:?}")),
    ];
    let number = prop_oneof![Just("1.00"), Just("-0"), Just("1e2"), Just("18446744073709551616")];
    let leaf =
        prop_oneof![word.clone(), number.prop_map(str::to_owned), Just("null".into()), Just("true".into())];
    leaf.prop_recursive(4, 32, 5, move |inner| {
        let members = prop::collection::vec((word.clone(), inner.clone()), 0..5).prop_map(|members| {
            let members: Vec<_> = members.iter().map(|(key, value)| format!("{key} :{value}")).collect();
            format!("{{ {} }}", members.join(" ,"))
        });
        let items = prop::collection::vec(inner, 0..4).prop_map(|items| format!("[{}]", items.join(", ")));
        prop_oneof![3 => members, 1 => items]
    })
}

#[track_caller]
fn survives<T: Union + Debug + Clone>(text: &str) {
    let raw = Raw::<T>::parse(text).unwrap();
    if let Ok(VariantReading::Unknown { tag, raw }) = raw.read_variant() {
        assert_eq!(raw.tag().unwrap(), tag);
        assert_eq!(raw.text(), text);
    }
    assert_eq!(serde_json::to_string(&raw).unwrap(), text);
}

proptest! {
    #[test]
    fn any_value_survives_any_view(text in any_text()) {
        survives::<v1::SessionUpdate>(&text);
        survives::<v2::SessionUpdate>(&text);
        survives::<v1::ContentBlock>(&text);
        survives::<v2::ContentBlock>(&text);
        survives::<v1::RequestPermissionOutcome>(&text);
        survives::<v2::RequestPermissionOutcome>(&text);
    }

    #[test]
    fn an_unknown_variant_is_never_an_error(tag in "_[a-z/]{1,12}", rest in any_text()) {
        let text = format!(r#"{{"rest":{rest},"sessionUpdate":"{tag}"}}"#);
        for reading in [
            Raw::<v1::SessionUpdate>::parse(&text).unwrap().read_variant().map(|r| matches!(r, VariantReading::Unknown { .. })),
            Raw::<v2::SessionUpdate>::parse(&text).unwrap().read_variant().map(|r| matches!(r, VariantReading::Unknown { .. })),
        ] {
            prop_assert_eq!(reading, Ok(true));
        }
    }
}
