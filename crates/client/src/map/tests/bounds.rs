//! What is kept has a bound, and what is not kept is said.

use narrows_acp::Version::{V1, V2};

use super::*;

const MIB: usize = 1 << 20;

#[test]
fn a_long_message_is_told_whole_and_kept_in_part() {
    let mut stage = Stage::new(V1);
    let piece = "ä".repeat(MIB / 2 + 1);
    for _ in 0..6 {
        stage.update(&said(None, &piece));
    }
    let told: usize = stage.events.iter().map(|event| event.weight() - size_of::<RuntimeEvent>()).sum();
    assert_eq!(told, 6 * piece.len());
    stage.events.clear();
    stage.end("end_turn");
    let [
        RuntimeEvent { body: EventBody::Provider { payload: Payload::Other { name, data }, .. }, .. },
        RuntimeEvent { body: EventBody::AssistantMessage { message }, .. },
        RuntimeEvent { body: EventBody::RunCompleted(completed), .. },
    ] = &*stage.events
    else {
        panic!()
    };
    let (kept, bytes) = (message.text.len(), 6 * piece.len());
    assert_eq!(name, "message.truncated");
    assert_eq!(data.value(), json!({"role": "assistant", "bytes": bytes, "kept": kept}));
    assert!((4 * MIB - 1..=4 * MIB).contains(&message.text.len()), "{}", message.text.len());
    assert_eq!(completed.final_text.as_ref(), Some(&message.text));
}

#[test]
fn nothing_is_kept_behind_a_gap() {
    let mut stage = Stage::new(V1);
    for text in ["x".repeat(4 * MIB - 1), "ä".to_owned(), "y".to_owned()] {
        stage.update(&said(None, &text));
    }
    let kept = stage.mapper.final_text().unwrap();
    assert_eq!((kept.len(), kept.ends_with('x')), (4 * MIB - 1, true));
}

#[test]
fn a_long_message_that_is_sent_whole_tells_what_is_new() {
    let mut stage = Stage::new(V2);
    let long = "x".repeat(5 * MIB);
    stage.update(&whole("m", &[&long]));
    stage.update(&whole("m", &[&long]));
    stage.update(&whole("m", &[&long, "more"]));
    assert_eq!(stage.short()[1..], ["- agent_message", "assistant.delta more"]);
}

#[test]
fn messages_that_are_over_are_forgotten_in_time() {
    let mut stage = Stage::new(V2);
    for n in 0..100 {
        stage.update(&said(Some(&n.to_string()), "x"));
    }
    stage.events.clear();
    stage.update(&whole("90", &["x"]));
    stage.update(&whole("1", &["x"]));
    assert_eq!(stage.short(), ["- agent_message", "assistant.message x", "assistant.delta x"]);
}

#[test]
fn much_output_is_kept_in_part() {
    let item =
        json!({"sessionUpdate": "tool_call_content_chunk", "toolCallId": "c", "content": "x".repeat(MIB)});
    let mut stage = Stage::new(V2);
    for _ in 0..6 {
        stage.update(&item);
    }
    stage.events.clear();
    stage.update(&tool("c", json!({"status": "completed", "rawOutput": "x".repeat(5 * MIB)})));
    let Some(RuntimeEvent { body: EventBody::ToolResult { output, .. }, .. }) = stage.events.pop() else {
        panic!()
    };
    assert!(output.truncated);
    assert_eq!((output.content.len(), output.raw_output), (3, None));
}

#[test]
fn a_list_in_place_of_what_was_lost_is_whole_again() {
    let mut stage = Stage::new(V2);
    stage.update(&tool("c", json!({"content": ["x".repeat(5 * MIB)]})));
    stage.update(&tool("c", json!({"content": [1], "status": "completed"})));
    let result = stage.short().pop().unwrap();
    assert_eq!(result, r#"tool.result c {"status":"completed","content":[1]}"#);
}

#[test]
fn all_calls_together_have_a_bound() {
    let mut stage = Stage::new(V1);
    stage.mapper.calls.room = 64 << 10;
    let input = "x".repeat(10 << 10);
    for n in 0..8 {
        stage.update(&begun(&n.to_string(), json!({"title": "t", "rawInput": input})));
        stage.events.clear();
    }
    let partial: Vec<bool> =
        (0..8).map(|n| stage.mapper.call(&n.to_string()).unwrap().is_partial()).collect();
    assert_eq!(partial, [false, false, false, false, false, false, true, true]);
    let asked = stage.ask(&json!({"toolCall": {"toolCallId": "7"}, "options": []}));
    assert!(asked.call.is_partial());
    // There is room again when one is over.
    stage.update(&tool("0", json!({"status": "completed"})));
    stage.update(&tool("7", json!({"rawInput": input})));
    assert!(!stage.mapper.call("7").unwrap().is_partial());
}

#[test]
fn too_many_calls_and_too_long_ids_are_told_as_they_came() {
    let mut stage = Stage::new(V2);
    for n in 0..4096 {
        stage.update(&tool(&n.to_string(), json!({"rawInput": 1})));
    }
    stage.events.clear();
    stage.update(&tool("one more", json!({"rawInput": 1})));
    stage.update(&tool(&"x".repeat(513), json!({"rawInput": 1})));
    stage.update(&said(Some(&"x".repeat(513)), "x"));
    stage.update(&whole(&"x".repeat(513), &["x"]));
    stage.update(&tool("7", json!({"status": "failed"})));
    let names: Vec<&str> = stage.events.iter().map(RuntimeEvent::name).collect();
    assert_eq!(
        names,
        ["provider.event", "provider.event", "provider.event", "provider.event", "tool.result"]
    );
    stage.events.clear();
    stage.end("end_turn");
    assert_eq!(stage.events.len(), 4095 + 1);
}

#[test]
fn calls_from_outside_leave_room_for_those_of_a_run() {
    let mut stage = Stage::idle(V2);
    for n in 0..4097 {
        stage.update(&tool(&n.to_string(), json!({"rawInput": 1})));
    }
    stage.start("r");
    assert_eq!(stage.mapper.call("3839"), None);
    assert!(stage.mapper.call("3840").is_some() && stage.mapper.call("4095").is_some());
    assert_eq!(stage.mapper.call("4096"), None);
    stage.events.clear();
    stage.update(&tool("c", json!({"rawInput": 1})));
    assert_eq!(stage.short(), ["tool.call c Tool 1"]);
}
