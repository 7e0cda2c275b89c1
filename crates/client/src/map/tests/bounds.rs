//! Tests that kept data is bounded, and that dropped data is reported.

use narrows_acp::Version::{V1, V2};
use narrows_base::json::MAX_PEER_VALUES;

use super::*;

const MIB: usize = 1 << 20;

#[test]
fn a_long_message_is_emitted_whole_and_kept_in_part() {
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
fn nothing_is_kept_after_a_gap() {
    let mut stage = Stage::new(V1);
    for text in ["x".repeat(4 * MIB - 1), "ä".to_owned(), "y".to_owned()] {
        stage.update(&said(None, &text));
    }
    let kept = stage.mapper.final_text().unwrap();
    assert_eq!((kept.len(), kept.ends_with('x')), (4 * MIB - 1, true));
}

#[test]
fn a_long_complete_message_emits_only_new_text() {
    let mut stage = Stage::new(V2);
    let long = "x".repeat(5 * MIB);
    stage.update(&whole("m", &[&long]));
    stage.update(&whole("m", &[&long]));
    stage.update(&whole("m", &[&long, "more"]));
    assert_eq!(stage.short()[1..], ["- agent_message", "assistant.delta more"]);
}

#[test]
fn ended_messages_are_forgotten_eventually() {
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
fn a_new_list_replaces_lost_content() {
    let mut stage = Stage::new(V2);
    stage.update(&tool("c", json!({"content": ["x".repeat(5 * MIB)]})));
    stage.update(&tool("c", json!({"content": [1], "status": "completed"})));
    let result = stage.short().pop().unwrap();
    assert_eq!(result, r#"tool.result c {"status":"completed","content":[1]}"#);
}

#[test]
fn all_calls_together_are_bounded() {
    let mut stage = Stage::new(V1);
    stage.mapper.calls.max_bytes = 64 << 10;
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
    // A completed call makes room.
    stage.update(&tool("0", json!({"status": "completed"})));
    stage.update(&tool("7", json!({"rawInput": input})));
    assert!(!stage.mapper.call("7").unwrap().is_partial());
}

#[test]
fn excess_calls_and_long_ids_become_raw_events() {
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
fn calls_outside_runs_leave_room_for_those_of_a_run() {
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

#[test]
fn a_child_session_with_a_long_id_is_ignored() {
    let mut stage = Stage::new(V2);
    let mut announce = |bytes: usize| {
        let id = "x".repeat(bytes);
        let effects = stage.update(&json!({"sessionUpdate": "subagent_update", "sessionId": id}));
        (effects.child == Some(id), stage.short())
    };
    assert_eq!(announce(512), (true, vec!["- subagent_update".to_owned()]));
    let too_long = "- subagent_update (an id has more than 512 bytes)".to_owned();
    assert_eq!(announce(513), (false, vec![too_long]));
}

/// Two bytes of JSON can become a hundred bytes of parsed values.
#[test]
fn a_request_with_too_many_values_is_not_judged_by_them() {
    let too_many = Value::Array(vec![json!(0); MAX_PEER_VALUES]);
    let request = |call: Value, beside: &Value| json!({"sessionId": "s", "toolCall": call, "options": [], "beside": beside});
    let call = json!({"toolCallId": "c", "kind": "read", "rawInput": {"path": "a"}});
    let asked = Stage::new(V1).ask(&request(call.clone(), &json!([0])));
    assert_eq!((asked.problem, asked.unknown.len()), (None, 1));
    let reason = Some("more than 20000 JSON values".to_owned());
    let asked = Stage::new(V1).ask(&request(call, &too_many));
    assert_eq!((asked.problem, asked.unknown.len()), (reason.clone(), 0));
    for call in [
        json!({"toolCallId": "c", "rawInput": {"paths": too_many}}),
        json!({"toolCallId": "c", "locations": too_many}),
        json!({"toolCallId": "c", "content": [too_many]}),
    ] {
        let asked = Stage::new(V1).ask(&request(call, &json!(null)));
        assert_eq!(asked.problem, reason);
    }
}

/// The parts of the call were reported before the request, which does not repeat them.
#[test]
fn a_call_with_too_many_values_cannot_be_judged() {
    let block = Value::Array(vec![json!(0); MAX_PEER_VALUES / 2]);
    for (blocks, expected) in [(1, None), (2, Some("more than 20000 JSON values".to_owned()))] {
        let mut stage = Stage::new(V1);
        let content = vec![block.clone(); blocks];
        stage.update(
            &json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "t", "content": content}),
        );
        let asked = stage.ask(&json!({"sessionId": "s", "toolCall": {"toolCallId": "c"}, "options": []}));
        assert_eq!(asked.problem, expected);
        assert_eq!(asked.call.content_values().len(), 1);
    }
}

#[test]
fn text_with_too_many_values_stays_text() {
    let text = format!("[{}0]", "0,".repeat(MAX_PEER_VALUES - 2));
    let json = Json::from_bytes_lossy(text.as_bytes());
    assert!(json.value().is_array() && json.bounded_value().is_some() && !json.is_ambiguous());
    let text = format!("[0,{}", &text[1..]);
    let json = Json::from_bytes_lossy(text.as_bytes());
    assert_eq!(json.value(), Value::String(text));
    assert!(json.bounded_value().is_none() && json.is_ambiguous());
}

#[test]
fn a_list_with_too_many_items_is_not_read() {
    let mut stage = Stage::new(V1);
    let content = vec![json!(0); MAX_PEER_VALUES + 1];
    stage.update(&json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "t", "content": content}));
    let told = stage.short();
    assert!(told[0].contains("(more than 20000 JSON values"), "{told:?}");
}
