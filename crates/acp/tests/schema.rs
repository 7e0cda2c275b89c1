//! Tests of properties of the pinned schema crate that other crates rely on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use narrows_acp::{MaybeUndefined, Raw, v1, v2};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

/// Checks that `null` is read as an empty result, and that an empty result is written as `{}`.
#[track_caller]
fn check_empty<T: DeserializeOwned + Serialize>() {
    for text in ["null", "{}"] {
        let result = Raw::<T>::parse(text).unwrap().read().unwrap();
        assert_eq!(serde_json::to_value(result).unwrap(), json!({}), "{}", std::any::type_name::<T>());
    }
}

#[test]
fn an_empty_result_may_come_as_null() {
    check_empty::<v1::AuthenticateResponse>();
    check_empty::<v1::LogoutResponse>();
    check_empty::<v1::LoadSessionResponse>();
    check_empty::<v1::ResumeSessionResponse>();
    check_empty::<v1::CloseSessionResponse>();
    check_empty::<v1::DeleteSessionResponse>();
    check_empty::<v1::SetSessionModeResponse>();
    check_empty::<v1::WriteTextFileResponse>();
    check_empty::<v1::KillTerminalResponse>();
    check_empty::<v1::ReleaseTerminalResponse>();
    check_empty::<v2::LoginAuthResponse>();
    check_empty::<v2::LogoutAuthResponse>();
    check_empty::<v2::ResumeSessionResponse>();
    check_empty::<v2::CloseSessionResponse>();
    check_empty::<v2::DeleteSessionResponse>();
    check_empty::<v2::CancelToolCallResponse>();
    check_empty::<v2::CancelTerminalResponse>();
}

#[test]
fn a_result_with_content_may_not() {
    assert!(Raw::<v1::NewSessionResponse>::parse("null").unwrap().read().is_err());
    assert!(Raw::<v1::PromptResponse>::parse("null").unwrap().read().is_err());
    assert!(Raw::<v2::PromptResponse>::parse("{}").unwrap().read().is_err());
}

#[test]
fn meta_of_an_upsert_is_merged_by_top_level_key() {
    #[track_caller]
    fn check(stored: &str, update: &str, expected: &str) {
        let read = |text| serde_json::from_str::<MaybeUndefined<v2::Meta>>(text).unwrap();
        let mut merged = read(stored);
        v2::apply_meta_update(&mut merged, read(update));
        assert_eq!(merged, read(expected), "{stored} with {update}");
    }
    check(r#"{"a":1,"b":{"c":1}}"#, r#"{"b":{"d":2},"e":3}"#, r#"{"a":1,"b":{"d":2},"e":3}"#);
    check(r#"{"a":1}"#, r#"{"a":null}"#, "{}");
    check(r#"{"a":1}"#, "{}", r#"{"a":1}"#);
    check(r#"{"a":1}"#, "null", "null");
}

#[test]
fn a_patch_distinguishes_absence_from_null() {
    #[track_caller]
    fn check(text: &str, expected: &MaybeUndefined<v2::ToolCallStatus>) {
        let update = Raw::<v2::ToolCallUpdate>::parse(text).unwrap().read().unwrap();
        assert_eq!(&update.status, expected, "{text}");
    }
    check(r#"{"toolCallId":"1"}"#, &MaybeUndefined::Undefined);
    check(r#"{"toolCallId":"1","status":null}"#, &MaybeUndefined::Null);
    check(
        r#"{"toolCallId":"1","status":"completed"}"#,
        &MaybeUndefined::Value(v2::ToolCallStatus::Completed),
    );
}
