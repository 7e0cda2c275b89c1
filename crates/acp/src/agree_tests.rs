//! Tests of version negotiation: tables of cases, and properties over any input.

use proptest::prelude::*;

use super::*;

const INFO: &str = r#""info":{"name":"editor","version":"1"}"#;

fn raw(text: &str) -> &RawValue {
    serde_json::from_str(text).unwrap()
}

#[track_caller]
fn check(supported: Versions, params: &str, expected: Result<Version, (i32, &str)>) {
    let agreed = agree(Some(raw(params)), supported);
    let told = agreed.as_ref().map(Agreed::version).map_err(|refusal| (refusal.code(), refusal.to_string()));
    match (&told, expected) {
        (Ok(version), Ok(expected)) => assert_eq!(*version, expected, "{params}"),
        (Err((code, words)), Err((expected, part))) => {
            assert_eq!(*code, expected, "{params}: {words}");
            assert!(words.contains(part), "{params}: {words}");
        }
        _ => panic!("{params}: {told:?}"),
    }
}

#[test]
fn initialize_negotiates_the_version() {
    use Version::{V1, V2};
    use Versions::{Both, OnlyV1, OnlyV2};
    let two = format!(r#"{{"protocolVersion":2,{INFO}}}"#);
    check(Both, r#"{"protocolVersion":1}"#, Ok(V1));
    check(Both, &format!(r#"{{"protocolVersion":1,{INFO},"capabilities":{{}}}}"#), Ok(V1));
    check(Both, &two, Ok(V2));
    check(OnlyV2, &two, Ok(V2));
    check(OnlyV1, &two, Ok(V1));
    check(Both, r#"{"protocolVersion":65535}"#, Ok(V2));
    check(OnlyV1, r#"{"protocolVersion":65535}"#, Ok(V1));
    check(OnlyV1, r#"{"protocolVersion":0}"#, Ok(V1));
    check(Both, r#"{"protocolVersion":0}"#, Err((-32022, "version 0 is not supported, only 1 and 2")));
    check(OnlyV2, r#"{"protocolVersion":1}"#, Err((-32022, "version 1 is not supported, only 2")));
}

#[test]
fn a_version_number_has_sixteen_bits() {
    for params in [
        r#"{"protocolVersion":100000}"#,
        r#"{"protocolVersion":65536}"#,
        r#"{"protocolVersion":-1}"#,
        r#"{"protocolVersion":1.0}"#,
        r#"{"protocolVersion":"1"}"#,
        r#"{"protocolVersion":null}"#,
        r#"{"protocolVersion":1,"protocolVersion":2}"#,
        "{}",
        "[1]",
        "1",
        "null",
    ] {
        check(Versions::Both, params, Err((-32602, "initialize: unexpected form")));
        check(Versions::OnlyV1, params, Err((-32602, "initialize: unexpected form")));
    }
    assert_eq!(agree(None, Versions::Both).map_err(|refusal| refusal.code()), Err(-32602));
}

#[test]
fn a_v2_request_is_read_strictly() {
    for params in [
        r#"{"protocolVersion":2}"#,
        r#"{"protocolVersion":2,"info":null}"#,
        r#"{"protocolVersion":2,"info":{"name":"editor"}}"#,
        r#"{"protocolVersion":2,"info":{"version":"1"}}"#,
        r#"{"protocolVersion":2,"clientInfo":{"name":"editor","version":"1"}}"#,
    ] {
        check(Versions::Both, params, Err((-32602, "initialize: unexpected form")));
        check(Versions::OnlyV2, params, Err((-32602, "initialize: unexpected form")));
    }
}

#[test]
fn a_newer_request_loses_only_invalid_members() {
    #[track_caller]
    fn check(params: &str, name: &str, form: bool, url: bool) {
        let params = format!(r#"{{"protocolVersion":3,{params}}}"#);
        let Ok(Agreed::V2(request)) = agree(Some(raw(&params)), Versions::Both) else { panic!("{params}") };
        let elicitation = request.capabilities.elicitation.unwrap_or_default();
        assert_eq!(request.info.name, name, "{params}");
        assert_eq!((elicitation.form.is_some(), elicitation.url.is_some()), (form, url), "{params}");
    }
    let both = r#""capabilities":{"elicitation":{"form":{},"url":{}},"hologram":{}}"#;
    let nested = format!(r#""deep":{}1{}"#, "[".repeat(500), "]".repeat(500));
    check(&format!("{INFO},{both}"), "editor", true, true);
    check(both, UNKNOWN, true, true);
    check(
        &format!(r#"{INFO},"capabilities":{{"elicitation":{{"form":true,"url":{{}}}}}}"#),
        "editor",
        false,
        true,
    );
    check(&format!(r#"{INFO},"capabilities":{{"elicitation":7,"auth":[]}}"#), "editor", false, false);
    check(&format!(r#"{INFO},"capabilities":"all","_meta":4"#), "editor", false, false);
    check(&format!(r#""info":["editor"],{both},{nested}"#), UNKNOWN, true, true);
    check(&format!(r#""info":1,{INFO},{both}"#), "editor", true, true);
}

#[test]
fn a_newer_request_grants_a_v1_agent_no_files_or_terminals() {
    let params = format!(
        r#"{{"protocolVersion":2,{INFO},"_meta":{{"k":1}},
            "capabilities":{{"auth":{{"terminal":{{}}}},"elicitation":{{"url":{{}}}},"fs":{{"readTextFile":true}}}},
            "clientCapabilities":{{"fs":{{"readTextFile":true}},"terminal":true}}}}"#
    );
    let Ok(Agreed::V1(request)) = agree(Some(raw(&params)), Versions::OnlyV1) else { panic!() };
    assert_eq!(request.protocol_version.as_u16(), 2);
    assert_eq!(request.client_info.unwrap().name, "editor");
    assert_eq!(request.meta.unwrap()["k"], 1);
    let capabilities = request.client_capabilities;
    assert!(capabilities.auth.terminal);
    assert!(capabilities.elicitation.unwrap().url.is_some());
    assert!(!capabilities.terminal && !capabilities.fs.read_text_file);
}

#[test]
fn a_real_v1_request_is_read_whole() {
    let params = r#"{"protocolVersion":1,"clientInfo":{"name":"editor","version":"1"},
        "clientCapabilities":{"fs":{"readTextFile":true,"writeTextFile":false},"terminal":true}}"#;
    let Ok(Agreed::V1(request)) = agree(Some(raw(params)), Versions::Both) else { panic!() };
    assert_eq!(request.client_info.unwrap().name, "editor");
    assert!(request.client_capabilities.terminal && request.client_capabilities.fs.read_text_file);
}

#[test]
fn a_refusal_lists_the_supported_versions() {
    let refusal = agree(Some(raw(r#"{"protocolVersion":0}"#)), Versions::Both).unwrap_err();
    let data = refusal.data().unwrap();
    assert_eq!(data, json!({"requested": 0, "supported": [1, 2]}));
    assert!(serde_json::from_value::<v2::UnsupportedProtocolVersionErrorData>(data).is_ok());
    assert_eq!(Refusal::Late.data(), None);
}

/// Handles the events `i1`, `i2` (`initialize` with that version), `bad` (an invalid `initialize`) and
/// `other`. Checks the version or the error code that each event gets.
#[track_caller]
fn play(supported: Versions, events: &[(&str, i32)]) {
    let two = format!(r#"{{"protocolVersion":2,{INFO}}}"#);
    let mut handshake = Handshake::new(supported);
    for (step, (event, expected)) in events.iter().enumerate() {
        let got = match *event {
            "i1" => handshake.initialize(Some(raw(r#"{"protocolVersion":1}"#))).map(|a| a.version()),
            "i2" => handshake.initialize(Some(raw(&two))).map(|a| a.version()),
            "bad" => handshake.initialize(None).map(|a| a.version()),
            _ => handshake.other_request(),
        };
        let got = got.map_or_else(|refusal| refusal.code(), |version| version.number().into());
        assert_eq!(got, *expected, "step {step}: {event}");
    }
}

#[test]
fn initialize_may_be_repeated_until_the_first_other_request() {
    use Versions::{Both, OnlyV1, OnlyV2};
    play(Both, &[("other", -32600), ("i2", 2), ("other", 2), ("i2", -32600), ("i1", -32600), ("other", 2)]);
    play(Both, &[("i2", 2), ("i1", 1), ("i2", 2), ("bad", -32602), ("other", 2)]);
    play(Both, &[("i1", 1), ("i2", 2), ("other", 2)]);
    play(Both, &[("bad", -32602), ("other", -32600), ("i1", 1), ("other", 1)]);
    // Version 1 does not forbid a late initialize, but a connection never changes its version.
    play(Both, &[("i1", 1), ("other", 1), ("i1", 1), ("i2", 1), ("bad", -32602), ("other", 1)]);
    play(OnlyV2, &[("i2", 2), ("i1", -32022), ("other", 2), ("bad", -32600)]);
    play(OnlyV1, &[("i2", 1), ("other", 1), ("i1", 1)]);
}

fn any_versions() -> impl Strategy<Value = Versions> {
    prop_oneof![Just(Versions::OnlyV1), Just(Versions::OnlyV2), Just(Versions::Both)]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("name".to_owned()),
        Just("version".to_owned()),
        Just("elicitation".to_owned()),
        Just("auth".to_owned()),
        Just("terminal".to_owned()),
        Just("form".to_owned()),
        ".{0,4}",
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_params_get_a_version_or_a_refusal(text in ".{0,64}", json in any_json(), supported in any_versions()) {
        for text in [text, json.to_string()] {
            if let Ok(params) = serde_json::from_str::<&RawValue>(&text)
                && let Ok(agreed) = agree(Some(params), supported)
            {
                prop_assert!(supported.contains(agreed.version()));
            }
        }
    }

    #[test]
    fn a_newer_request_is_never_refused(
        requested in 3u16..,
        info in any_json(),
        capabilities in any_json(),
        meta in any_json(),
        extra in any_json(),
        supported in any_versions(),
    ) {
        let params = json!({
            "protocolVersion": requested, "info": info, "capabilities": capabilities, "_meta": meta,
            "extra": extra,
        }).to_string();
        let agreed = agree(Some(raw(&params)), supported).unwrap();
        prop_assert_eq!(agreed.version(), supported.highest());
        prop_assert_eq!(agreed.requested(), requested);
    }
}
