//! Every variant of the official types, unknown variants, and invalid ones.

use std::sync::Mutex;

use narrows_acp::Version::{V1, V2};
use narrows_acp::union::Union;
use narrows_acp::{Raw, VariantReading, v1, v2};
use serde::de::value::MapDeserializer;

use super::*;

/// Returns the names of all variants of an official type, taken from the error message for an unknown
/// variant.
fn names<T: Union>() -> Vec<&'static str> {
    static LISTED: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    #[derive(Debug)]
    struct Listing;
    impl std::fmt::Display for Listing {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            Ok(())
        }
    }
    impl std::error::Error for Listing {}
    impl serde::de::Error for Listing {
        fn custom<M: std::fmt::Display>(_: M) -> Self {
            Self
        }

        fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
            *LISTED.lock().unwrap() = expected.to_vec();
            Self
        }
    }

    let _guard = ONE_AT_A_TIME.lock().unwrap();
    let nothing = MapDeserializer::<_, Listing>::new(std::iter::once((T::TAG, "no such variant")));
    let _ = T::deserialize(nothing).is_ok();
    std::mem::take(&mut LISTED.lock().unwrap())
}

fn sample(name: &str) -> Value {
    let block = json!({"type": "text", "text": "x"});
    let mut sample = match name {
        "user_message_chunk" | "agent_message_chunk" | "agent_thought_chunk" => {
            json!({"messageId": "m", "content": block})
        }
        "user_message" | "agent_message" | "agent_thought" => json!({"messageId": "m", "content": [block]}),
        "tool_call" => json!({"toolCallId": "c", "title": "t", "rawInput": 1}),
        "tool_call_update" => json!({"toolCallId": "c", "title": "t", "status": "completed"}),
        "tool_call_content_chunk" => {
            json!({"toolCallId": "c", "content": {"type": "content", "content": block}})
        }
        "state_update" => json!({"state": "idle", "stopReason": "end_turn"}),
        "terminal_update" => json!({"terminalId": "t", "command": "ls"}),
        "terminal_output_chunk" => json!({"terminalId": "t", "data": ""}),
        "plan" => json!({"entries": []}),
        "plan_update" => json!({"plan": {"type": "items", "planId": "p", "entries": []}}),
        "plan_removed" => json!({"planId": "p"}),
        "available_commands_update" => json!({"availableCommands": []}),
        "current_mode_update" => json!({"currentModeId": "m"}),
        "config_option_update" => json!({"configOptions": []}),
        "session_info_update" => json!({"title": "t"}),
        "usage_update" => json!({"used": 1, "size": 2}),
        "notice" => json!({"severity": "info", "title": "t"}),
        "compaction_update" => json!({"compactionId": "c", "status": "completed"}),
        "compaction_summary_chunk" => json!({"compactionId": "c", "content": block}),
        "subagent_update" => json!({"sessionId": "child"}),
        "session_message" => json!({"messageId": "m", "content": [block]}),
        "session_message_chunk" => json!({"messageId": "m", "content": block}),
        other => panic!("there is no sample of {other}"),
    };
    sample["sessionUpdate"] = json!(name);
    sample
}

fn expected(name: &str) -> &'static [&'static str] {
    match name {
        "agent_message_chunk" | "agent_message" => &["assistant.delta"],
        "agent_thought_chunk" | "agent_thought" => &["assistant.reasoning.delta"],
        "tool_call" => &["tool.call"],
        "tool_call_update" => &["tool.call", "tool.result"],
        _ => &["provider.event"],
    }
}

#[track_caller]
fn walk<T: Union + PartialEq + std::fmt::Debug>(version: Version) {
    let names = names::<T>();
    assert!(names.len() >= 14, "{names:?}");
    for name in names {
        let sample = sample(name);
        let raw = Raw::<T>::parse(&sample.to_string()).unwrap();
        assert!(
            matches!(raw.read_variant(), Ok(VariantReading::Known(_))),
            "{sample}: {:?}",
            raw.read_variant()
        );
        let mut stage = Stage::new(version);
        stage.update(&sample);
        let told: Vec<&str> = stage.events.iter().map(RuntimeEvent::name).collect();
        assert_eq!(told, expected(name), "{sample}");
        // Outside of a run and in a replay, the variant becomes a raw event.
        for replay in [false, true] {
            let mut stage = Stage::idle(version);
            stage.mapper.set_replay(replay);
            stage.update(&sample);
            let [RuntimeEvent { run_id: None, body: EventBody::Provider { payload, .. }, .. }] =
                &*stage.events
            else {
                panic!("{:?}", stage.events)
            };
            let update = Json::from(&sample);
            assert_eq!(payload, &Payload::Update { update, replay, problem: None });
        }
        // Breaks one member at a time.
        for (member, _) in sample.as_object().unwrap() {
            for broken in [json!(7), json!([[]]), json!({"type": []}), json!(null), json!("no")] {
                let mut sample = sample.clone();
                sample[member] = broken;
                let mut stage = Stage::new(version);
                stage.update(&sample);
                assert!(!stage.events.is_empty(), "{sample}");
            }
        }
    }
}

#[test]
fn every_variant_of_v1_is_mapped() {
    walk::<v1::SessionUpdate>(V1);
}

#[test]
fn every_variant_of_v2_is_mapped() {
    walk::<v2::SessionUpdate>(V2);
}

#[test]
fn unknown_updates_become_raw_events() {
    for version in [V1, V2] {
        for update in [
            r#"{"sessionUpdate":"_mine", "n":1.50}"#,
            r#"{"sessionUpdate":"plan_removed","planId":"p"}"#,
            r#"{"sessionUpdate":"subagent_update","sessionId":"x"}"#,
            r#"{"sessionUpdate":"async_task_started","x":{"y":"\ud800"}}"#,
        ] {
            let mut stage = Stage::new(version);
            let effects = stage.params(format!(r#"{{"sessionId":"s","update":{update}}}"#).as_bytes());
            // A child session is known even if its updates are dropped.
            assert_eq!(Effects { child: None, ..effects }, Effects::default());
            let [RuntimeEvent { body: EventBody::Provider { payload, .. }, .. }] = &*stage.events else {
                panic!("{:?}", stage.events)
            };
            assert_eq!(payload, &Payload::update(serde_json::from_str(update).unwrap()));
        }
    }
}

#[test]
fn broken_updates_become_raw_events_with_the_reason() {
    #[track_caller]
    fn check(params: &[u8], update: &str) {
        let mut stage = Stage::new(V2);
        assert_eq!(stage.params(params), Effects::default());
        let [RuntimeEvent { body: EventBody::Provider { payload, .. }, .. }] = &*stage.events else {
            panic!("{:?}", stage.events)
        };
        let Payload::Update { update: told, problem: Some(problem), replay: false } = payload else {
            panic!("{payload:?}")
        };
        assert_eq!((told.text(), problem.is_empty()), (update, false));
    }
    check(b"", r#""""#);
    check(b"{\"update\":\xff}", r#""{\"update\":�}""#);
    check(b"null", "null");
    check(b"[{}]", "[{}]");
    check(br#"{"sessionId":"s"}"#, r#"{"sessionId":"s"}"#);
    for update in [
        "null",
        "[]",
        "{}",
        r#"{"sessionUpdate":7}"#,
        r#"{"sessionUpdate":"agent_message_chunk"}"#,
        r#"{"sessionUpdate":"agent_message_chunk","content":["text","x"]}"#,
        r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text"}}"#,
        r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":7}}"#,
        r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a"},"content":{}}"#,
        r#"{"sessionUpdate":"agent_message","content":[]}"#,
        r#"{"sessionUpdate":"agent_message","messageId":"m","content":[7]}"#,
        r#"{"sessionUpdate":"tool_call_update"}"#,
        r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","status":7}"#,
        r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","content":{}}"#,
        r#"{"sessionUpdate":"tool_call_content_chunk","toolCallId":"c"}"#,
        r#"{"sessionUpdate":"state_update"}"#,
    ] {
        check(format!(r#"{{"sessionId":"s","update":{update}}}"#).as_bytes(), update);
    }
}

#[test]
fn effects_contain_what_the_session_needs() {
    #[track_caller]
    fn check(version: Version, update: &Value, expected: impl FnOnce(Json) -> Effects) {
        let mut stage = Stage::new(version);
        let expected = expected(Json::from(update));
        assert_eq!(stage.update(update), expected, "{update}");
    }
    let state = |state| move |_| Effects { state: Some(state), ..Effects::default() };
    let accepted = |id: &str| AgentState::Accepted { message_id: Some(id.into()) };
    check(V2, &sample("user_message"), state(accepted("m")));
    check(V2, &sample("user_message_chunk"), state(accepted("m")));
    check(V1, &sample("user_message_chunk"), |_| Effects::default());
    let said = |word: &str| json!({"sessionUpdate": "state_update", "state": word, "background": []});
    check(V2, &said("running"), state(AgentState::Running));
    check(V2, &said("requires_action"), state(AgentState::RequiresAction));
    check(V2, &said("_resting"), state(AgentState::Other("_resting".to_owned())));
    check(V2, &said("idle"), state(AgentState::Idle(None)));
    check(V1, &said("idle"), |_| Effects::default());
    let idle =
        |reason: Value| json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": reason});
    check(V2, &idle(json!("refusal")), state(AgentState::Idle(Some(StopReason::Refusal))));
    check(V2, &idle(json!(7)), state(AgentState::Idle(None)));
    let mut failed = idle(json!("error"));
    failed["error"] = json!({"code": -32018, "message": "upstream"});
    let error = v2::Error::new(-32018, "upstream");
    check(V2, &failed, state(AgentState::Idle(Some(StopReason::Error(Some(Box::new(error)))))));
    let mut used = idle(json!("end_turn"));
    used["usage"] = json!({"totalTokens": 3});
    check(V2, &used, |_| Effects {
        state: Some(AgentState::Idle(Some(StopReason::EndTurn))),
        usage: Some(UsageReport::End(Json::from(&json!({"totalTokens": 3})))),
        ..Effects::default()
    });
    check(V1, &sample("usage_update"), |json| Effects {
        usage: Some(UsageReport::Update(json)),
        ..Effects::default()
    });
    let session = |change: fn(Json) -> SessionChange| {
        move |json| Effects { session: Some(change(json)), ..Effects::default() }
    };
    check(V1, &sample("available_commands_update"), session(SessionChange::Commands));
    check(V1, &sample("current_mode_update"), session(SessionChange::Mode));
    check(V2, &sample("config_option_update"), session(SessionChange::Options));
    check(V2, &sample("session_info_update"), session(SessionChange::Info));
    check(V2, &sample("tool_call_update"), |_| Effects { call: Some("c".into()), ..Effects::default() });
}

#[test]
fn replayed_updates_have_no_failures_and_calls() {
    let mut stage = Stage::idle(V1);
    stage.mapper.set_replay(true);
    let mut failure = said(None, "x");
    failure["_meta"] = json!({"narrows/error": {}});
    assert_eq!(stage.update(&failure).fault, None);
    stage.update(&begun("c", json!({"title": "t", "rawInput": 1})));
    assert_eq!(stage.mapper.call("c"), None);
    assert_eq!(stage.short(), ["- agent_message_chunk (replay)", "- tool_call (replay)"]);
}

#[test]
fn a_call_from_before_the_run_is_not_part_of_it() {
    let mut stage = Stage::idle(V2);
    stage.update(&tool("c", json!({"rawInput": 1, "kind": "edit"})));
    assert_eq!(stage.mapper.call("c").unwrap().kind.as_deref(), Some("edit"));
    stage.start("r");
    stage.update(&tool("c", json!({"status": "in_progress"})));
    stage.end("end_turn");
    stage.update(&tool("c", json!({"status": "completed"})));
    assert_eq!(
        stage.short(),
        [
            "- tool_call_update",
            "run.started",
            "- tool_call_update",
            "run.completed success",
            "- tool_call_update"
        ]
    );
    assert_eq!(stage.mapper.call("c"), None);
}

/// qwen-code sends such messages with and without a text.
#[test]
fn usage_of_a_model_call_accompanies_a_message() {
    let beside = |text: &str, usage: Value| {
        let mut update = said(None, text);
        update["_meta"] = json!({"usage": usage, "durationMs": 5});
        update
    };
    let usage = json!({"inputTokens": 3});
    let report = Some(UsageReport::Call(Json::from(&usage)));
    let mut stage = Stage::new(V1);
    assert_eq!(stage.update(&beside("", usage.clone())).usage, report);
    assert_eq!(stage.update(&beside("x", usage.clone())).usage, report);
    assert_eq!(stage.update(&beside("y", json!(7))).usage, None);
    assert_eq!(stage.short(), ["- agent_message_chunk", "assistant.delta x", "assistant.delta y"]);
    stage.end("end_turn");
    assert_eq!(stage.update(&beside("late", usage)).usage, None);
}
