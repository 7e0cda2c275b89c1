//! Properties of the events of a run, for any input.

use std::collections::HashSet;

use narrows_acp::Version::{V1, V2};
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Start,
    Finish(Option<&'static str>, bool),
    Replay(bool),
    Update(Value),
    Ask(Value),
    Bytes(Vec<u8>),
}

fn id() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "c"])
}

fn text() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "x", "xy", "z"])
}

fn fields() -> impl Strategy<Value = Value> {
    let status = prop::sample::select(vec![
        json!(null),
        json!("pending"),
        json!("in_progress"),
        json!("completed"),
        json!("failed"),
        json!("cancelled"),
        json!("_new"),
        json!(7),
    ]);
    let input = prop::sample::select(vec![json!(null), json!({}), json!({"a": 1})]);
    (prop::option::of(status), prop::option::of(input), any::<bool>()).prop_map(|(status, input, content)| {
        let mut fields = json!({"title": "t"});
        if let Some(status) = status {
            fields["status"] = status;
        }
        if let Some(input) = input {
            fields["rawInput"] = input;
        }
        if content {
            fields["content"] = json!([1]);
        }
        fields
    })
}

fn update() -> impl Strategy<Value = Value> {
    prop_oneof![
        (prop::option::of(id()), text()).prop_map(|(id, text)| said(id, text)),
        (prop::option::of(id()), text()).prop_map(|(id, text)| thought(id, text)),
        (id(), text()).prop_map(|(id, text)| whole(id, &[text])),
        (id(), fields()).prop_map(|(id, fields)| tool(id, fields)),
        (id(), fields()).prop_map(|(id, fields)| begun(id, fields)),
        id().prop_map(
            |id| json!({"sessionUpdate": "tool_call_content_chunk", "toolCallId": id, "content": 1})
        ),
        Just(json!({"sessionUpdate": "state_update", "state": "idle"})),
        Just(json!({"sessionUpdate": "_x"})),
        Just(json!([])),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let reason = prop::sample::select(vec!["end_turn", "cancelled", "refusal", "error"]);
    prop_oneof![
        1 => Just(Step::Start),
        1 => (prop::option::of(reason), any::<bool>()).prop_map(|(reason, cancelling)| Step::Finish(reason, cancelling)),
        1 => any::<bool>().prop_map(Step::Replay),
        20 => update().prop_map(Step::Update),
        2 => (id(), fields()).prop_map(|(id, mut call)| {
            call["toolCallId"] = json!(id);
            Step::Ask(json!({"toolCall": call, "options": []}))
        }),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Step::Bytes),
    ]
}

fn check_run(events: &[&RuntimeEvent]) {
    let names: Vec<&str> = events.iter().map(|event| event.name()).collect();
    assert_eq!(names.first(), Some(&"run.started"));
    assert_eq!(names.last(), Some(&"run.completed"));
    let count = |name| names.iter().filter(|other| **other == name).count();
    assert_eq!((count("run.started"), count("run.completed")), (1, 1), "{names:?}");
    let (mut called, mut ended) = (HashSet::new(), HashSet::new());
    for event in events {
        match &event.body {
            EventBody::ToolCall { call_id, .. } => {
                assert!(called.insert(call_id), "{call_id} is called twice");
            }
            EventBody::ToolResult { call_id, .. } => {
                assert!(called.contains(call_id), "{call_id} ends before it begins");
                assert!(ended.insert(call_id), "{call_id} ends twice");
            }
            EventBody::AssistantMessage { message } => assert!(!message.text.is_empty()),
            EventBody::RunCompleted(completed) => {
                assert_eq!(count("error"), usize::from(completed.status == Status::Error));
                let last = events.iter().rev().find_map(|event| match &event.body {
                    EventBody::AssistantMessage { message } => Some(&message.text),
                    _ => None,
                });
                assert_eq!(completed.final_text.as_ref(), last);
            }
            EventBody::Error { .. } => assert_eq!(event.at_ms, events.last().unwrap().at_ms),
            _ => {}
        }
    }
    assert_eq!(called, ended, "every call has a result");
}

fn play(version: Version, steps: &[Step]) -> Vec<RuntimeEvent> {
    let mut stage = Stage::idle(version);
    let mut run = 0;
    for step in steps {
        let before = stage.events.len();
        match step {
            Step::Start => {
                run += 1;
                stage.start(&format!("r{run}"));
            }
            Step::Finish(reason, cancelling) => {
                let reason = reason.map(StopReason::from_name);
                stage.finish(RunOutcome {
                    cancelling: *cancelling,
                    ..RunOutcome::new(RunEnd::Stopped(reason))
                });
                continue;
            }
            Step::Replay(on) => {
                stage.mapper.set_replay(*on);
                continue;
            }
            Step::Update(update) => drop(stage.update(update)),
            Step::Ask(params) => drop(stage.ask(params)),
            Step::Bytes(bytes) => drop(stage.params(bytes)),
        }
        assert!(stage.events.len() > before, "nothing was told of {step:?}");
    }
    stage.finish(RunOutcome::new(RunEnd::Cancelled));
    stage.events
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn events_of_runs_are_in_order(steps in prop::collection::vec(step(), 0..60), v2 in any::<bool>()) {
        let events = play(if v2 { V2 } else { V1 }, &steps);
        let mut runs: Vec<_> = events.iter().filter_map(|event| event.run_id.clone()).collect();
        runs.dedup();
        let distinct: HashSet<_> = runs.iter().collect();
        prop_assert_eq!(distinct.len(), runs.len(), "the events of each run are consecutive");
        for run in &runs {
            check_run(&events.iter().filter(|event| event.run_id.as_ref() == Some(run)).collect::<Vec<_>>());
        }
        for event in &events {
            let outside = event.run_id.is_none();
            prop_assert!(!outside || event.name() == "provider.event", "{:?}", event);
            let written = serde_json::to_string(event).unwrap();
            prop_assert_eq!(&serde_json::from_str::<RuntimeEvent>(&written).unwrap(), event);
        }
    }

    #[test]
    fn any_update_is_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), tail in ".*") {
        for params in [bytes.clone(), tail.clone().into_bytes(), format!(r#"{{"sessionId":"s","update":{tail}}}"#).into_bytes()] {
            let mut stage = Stage::new(V2);
            stage.params(&params);
            prop_assert_eq!(stage.events.len(), 1);
            stage.mapper.permission_requested("q", "session/request_permission", &params, 1, &mut stage.events);
            stage.mapper.notification("_x", &params, 1, &mut stage.events);
            prop_assert_eq!(stage.events.len(), 3);
        }
    }

    #[test]
    fn fast_and_full_readers_agree_on_plain_text(text in ".{0,9}", id in prop::option::of(".{0,3}"), thinks in any::<bool>()) {
        let update = if thinks { thought(id.as_deref(), &text) } else { said(id.as_deref(), &text) };
        let quick = json!({"sessionId": "s", "update": update}).to_string();
        // The fast path does not search this far.
        let slow = format!("{}{}", " ".repeat(300), quick);
        let play = |params: &str| {
            let mut stage = Stage::new(V2);
            stage.params(params.as_bytes());
            stage.end("end_turn");
            stage.events
        };
        prop_assert_eq!(play(&quick), play(&slow));
    }

    #[test]
    fn deltas_add_up_to_the_text(texts in prop::collection::vec(".{0,9}", 0..9)) {
        let mut stage = Stage::new(V1);
        for text in &texts {
            stage.update(&said(None, text));
        }
        stage.end("end_turn");
        let mut told = String::new();
        for event in &stage.events {
            if let EventBody::AssistantDelta { text_delta } = &event.body {
                told.push_str(text_delta);
            }
        }
        prop_assert_eq!(&told, &texts.concat());
        let Some(RuntimeEvent { body: EventBody::RunCompleted(completed), .. }) = stage.events.last() else { panic!() };
        prop_assert_eq!(completed.final_text.as_deref().unwrap_or_default(), &told);
    }
}
