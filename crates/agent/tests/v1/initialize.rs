//! `initialize`, `authenticate`, and the requests that are allowed before and after them.

use narrows_acp::{v1, v2};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::{Client, demo};

fn introduction(version: u16) -> Value {
    json!({"protocolVersion": version, "clientInfo": {"name": "test", "version": "1"}})
}

#[tokio::test]
async fn initialize_returns_name_and_capabilities() {
    let mut client = Client::start(demo());
    let answer = client.ask("initialize", introduction(1)).await.unwrap();
    let expected = json!({
        "protocolVersion": 1,
        "agentInfo": {"name": "narrows", "title": "Narrows", "version": env!("CARGO_PKG_VERSION")},
        "agentCapabilities": {
            "loadSession": true,
            "promptCapabilities": {"image": true, "audio": true, "embeddedContext": true},
            "mcpCapabilities": {"http": true, "sse": false, "acp": true},
            "sessionCapabilities": {
                "list": {}, "resume": {}, "close": {}, "delete": {}, "additionalDirectories": {},
                "fork": {"_meta": {"narrows/unstable": true}},
            },
        },
        "authMethods": [],
    });
    assert_eq!(answer, expected);
    let read: v1::InitializeResponse = serde_json::from_value(answer).unwrap();
    assert!(read.agent_capabilities.load_session);
    client.leave().await;
}

#[tokio::test]
async fn requests_before_initialize_are_refused() {
    let mut client = Client::start(demo());
    for method in ["session/new", "session/prompt", "session/list", "authenticate"] {
        let error =
            client.ask(method, json!({"cwd": "/project", "sessionId": "s", "prompt": []})).await.unwrap_err();
        assert_eq!(error["code"], -32602, "{method}: {error}");
        assert!(error["message"].as_str().unwrap().contains("initialize"), "{error}");
    }
    // Notifications get no response and have no effect.
    client.notify("session/cancel", json!({"sessionId": "s"})).await;
    client.ask("initialize", introduction(1)).await.unwrap();
    client.session().await;
    client.leave().await;
}

#[tokio::test]
async fn a_missing_field_of_initialize_is_named() {
    let mut client = Client::start(demo());
    let error = client.ask("initialize", json!({"protocolVersion": 2})).await.unwrap_err();
    assert_eq!((&error["code"], &error["data"]["condition"]), (&json!(-32602), &json!("invalid_params")));
    assert!(error["message"].as_str().unwrap().contains("missing field `info`"), "{error}");
    client.leave().await;
}

#[tokio::test]
async fn initialize_may_be_repeated() {
    let mut client = Client::start(demo());
    client.ask("initialize", introduction(1)).await.unwrap();
    let session = client.session().await;
    let again = client.ask("initialize", introduction(2)).await.unwrap();
    assert_eq!(again["protocolVersion"], 1, "a conversation in version 1 keeps its version");
    assert_eq!(client.prompt(&session, "hello").await.unwrap()["stopReason"], "end_turn");
    client.leave().await;
}

#[tokio::test]
async fn every_authentication_succeeds() {
    let mut client = Client::v1(demo(), json!({})).await;
    for params in [json!({"methodId": "any"}), json!({}), json!({"methodId": 7})] {
        assert_eq!(client.ask("authenticate", params).await.unwrap(), json!({}));
    }
    client.leave().await;
}

#[tokio::test]
async fn unknown_methods_are_refused() {
    let mut client = Client::v1(demo(), json!({})).await;
    for method in [
        "session/set_mode",
        "session/nothing",
        "_own/thing",
        "auth/login",
        "tool_call/cancel",
        "fs/read_text_file",
    ] {
        let error = client.ask(method, json!({"sessionId": "s"})).await.unwrap_err();
        assert_eq!(error["code"], -32601, "{method}: {error}");
    }
    client.notify("session/nothing", json!({})).await;
    client.notify("$/unknown", json!({})).await;
    client.session().await;
    client.leave().await;
}

#[tokio::test]
async fn params_that_are_not_an_object_are_refused() {
    let mut client = Client::v1(demo(), json!({})).await;
    for params in [json!([]), json!("x"), json!(7), Value::Null] {
        for method in ["session/new", "session/prompt", "session/load", "session/set_model"] {
            let error = client.ask(method, params.clone()).await.unwrap_err();
            let code = error["code"].as_i64().unwrap();
            assert!([-32602, -32600].contains(&code), "{method} {params}: {error}");
        }
    }
    client.session().await;
    client.leave().await;
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    let names = prop_oneof![
        Just("name"),
        Just("version"),
        Just("title"),
        Just("fs"),
        Just("readTextFile"),
        Just("writeTextFile"),
        Just("terminal"),
        Just("session"),
        Just("notices"),
        Just("_meta"),
        Just("odd"),
    ];
    leaf.prop_recursive(3, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..4).prop_map(|members| {
                members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Value>()
            }),
        ]
    })
}

fn version() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => Just(json!(1)),
        2 => Just(json!(2)),
        1 => Just(json!(0)),
        2 => (3u16..).prop_map(Value::from),
        2 => anything(),
    ]
}

fn params() -> impl Strategy<Value = Value> {
    let names = prop_oneof![
        Just("clientCapabilities"),
        Just("clientInfo"),
        Just("capabilities"),
        Just("info"),
        Just("_meta"),
        Just("x"),
    ];
    let members = prop::collection::vec((names, anything()), 0..4);
    (prop::option::weighted(0.9, version()), members).prop_map(|(version, members)| {
        let mut params: Value = members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        if let Some(version) = version {
            params["protocolVersion"] = version;
        }
        params
    })
}

async fn check(params: Value) -> Result<(), TestCaseError> {
    let asked = params["protocolVersion"].as_u64().and_then(|version| u16::try_from(version).ok());
    let mut client = Client::start(demo());
    let outcome = client.ask("initialize", params.clone()).await;
    match (asked, outcome) {
        (Some(1), Ok(answer)) => {
            prop_assert_eq!(&answer["protocolVersion"], 1);
            prop_assert_eq!(&answer["authMethods"], &json!([]));
            prop_assert_eq!(&answer["agentInfo"]["name"], "narrows");
            prop_assert_eq!(&answer["agentCapabilities"]["promptCapabilities"]["embeddedContext"], true);
            let read = serde_json::from_value::<v1::InitializeResponse>(answer);
            prop_assert!(read.is_ok(), "{:?}", read);
            // The agent still works.
            client.session().await;
        }
        (Some(2..), Ok(answer)) => {
            prop_assert_eq!(&answer["protocolVersion"], 2);
            prop_assert_eq!(&answer["info"]["name"], "narrows");
            let read = serde_json::from_value::<v2::InitializeResponse>(answer);
            prop_assert!(read.is_ok(), "{:?}", read);
            client.session().await;
        }
        (Some(1 | 2) | None, Err(error)) => prop_assert_eq!(&error["code"], -32602, "{}", error),
        (Some(0), Err(error)) => {
            prop_assert_eq!(&error["code"], -32022);
            prop_assert_eq!(&error["data"]["supported"], &json!([1, 2]));
        }
        (_, outcome) => prop_assert!(false, "{:?} was answered with {:?}", asked, outcome),
    }
    // After any params, a valid `initialize` still works, unless the two agree on different versions.
    let again = client.ask("initialize", introduction(1)).await;
    let spoke_v2 = asked.is_some_and(|version| version >= 2);
    prop_assert!(again.is_ok() || spoke_v2, "{:?}", again);
    client.leave().await;
    Ok(())
}

#[test]
fn invalid_initialize_requests_are_answered_or_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(120));
    runner.run(&params(), |params| runtime.block_on(check(params))).unwrap();
}
