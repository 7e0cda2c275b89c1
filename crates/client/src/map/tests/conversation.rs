//! Whole conversations.

use narrows_acp::Version::{V1, V2};

use super::*;
use crate::event::PermissionResolved;
use crate::usage::Usage;

fn lines(stage: &Stage) -> String {
    let lines: Vec<String> = stage.events.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
    lines.join("\n")
}

fn play(stage: &mut Stage, updates: &str) {
    for update in updates.lines().map(str::trim).filter(|line| !line.is_empty()) {
        stage.params(format!(r#"{{"sessionId":"s","update":{update}}}"#).as_bytes());
    }
}

#[test]
fn a_turn_of_v1() {
    let mut stage = Stage::idle(V1);
    stage.start("r");
    play(
        &mut stage,
        r#"
        {"sessionUpdate":"available_commands_update","availableCommands":[]}
        {"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"Let me "}}
        {"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"look."}}
        {"sessionUpdate":"agent_message_chunk","messageId":"1","content":{"type":"text","text":"I edit it."}}
        {"sessionUpdate":"tool_call","toolCallId":"c","title":"Edit","kind":"edit","status":"pending","rawInput":{}}
        {"sessionUpdate":"tool_call_update","toolCallId":"c","rawInput":{"path":"/a"},"locations":[{"path":"/a"}]}
    "#,
    );
    let asked = br#"{"sessionId":"s","toolCall":{"toolCallId":"c"},"options":[{"optionId":"y","name":"Yes","kind":"allow_once"}]}"#;
    let now = stage.now();
    let Stage { mapper, events, .. } = &mut stage;
    mapper.permission_requested("q1", "session/request_permission", asked, now, events);
    let resolved = PermissionResolved {
        request_id: "q1".to_owned(),
        call_id: Some("c".into()),
        outcome: "selected".to_owned(),
        option_id: Some("y".to_owned()),
        option_kind: Some("allow_once".to_owned()),
        decision: None,
    };
    mapper.permission_resolved(resolved, now, events);
    play(
        &mut stage,
        r#"
        {"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed","rawOutput":"ok"}
        {"sessionUpdate":"tool_call","toolCallId":"d","title":"Build","kind":"execute","status":"pending"}
        {"sessionUpdate":"agent_message_chunk","messageId":"2","content":{"type":"text","text":"Done."}}
        {"sessionUpdate":"usage_update","used":10,"size":100}
    "#,
    );
    let usage = Usage { input_tokens: Some(10), ..Usage::default() };
    stage.finish(RunOutcome {
        usage: Some(usage),
        structured: Some(json!({"ok": true})),
        ..RunOutcome::new(RunEnd::Stopped(Some(StopReason::EndTurn)))
    });
    insta::assert_snapshot!(lines(&stage), @r#"
    {"type":"run.started","atMs":1,"runId":"r","sessionId":"s","provider":"acp"}
    {"type":"provider.event","atMs":2,"runId":"r","sessionId":"s","provider":"acp","payload":{"type":"session.update","update":{"sessionUpdate":"available_commands_update","availableCommands":[]}}}
    {"type":"assistant.reasoning.delta","atMs":3,"runId":"r","sessionId":"s","textDelta":"Let me "}
    {"type":"assistant.reasoning.delta","atMs":4,"runId":"r","sessionId":"s","textDelta":"look."}
    {"type":"assistant.reasoning.message","atMs":5,"runId":"r","sessionId":"s","message":{"text":"Let me look."}}
    {"type":"assistant.delta","atMs":5,"runId":"r","sessionId":"s","textDelta":"I edit it."}
    {"type":"provider.event","atMs":6,"runId":"r","sessionId":"s","provider":"acp","payload":{"type":"session.update","update":{"sessionUpdate":"tool_call","toolCallId":"c","title":"Edit","kind":"edit","status":"pending","rawInput":{}}}}
    {"type":"tool.call","atMs":7,"runId":"r","sessionId":"s","callId":"c","toolName":"Edit","input":{"path":"/a"}}
    {"type":"provider.event","atMs":8,"runId":"r","sessionId":"s","provider":"acp","payload":{"type":"permission.requested","requestId":"q1","method":"session/request_permission","callId":"c","toolName":"Edit","title":"Edit","kind":"edit","input":{"path":"/a"},"locations":["/a"],"options":[{"optionId":"y","name":"Yes","kind":"allow_once"}]}}
    {"type":"provider.event","atMs":8,"runId":"r","sessionId":"s","provider":"acp","payload":{"type":"permission.resolved","requestId":"q1","callId":"c","outcome":"selected","optionId":"y","optionKind":"allow_once"}}
    {"type":"tool.result","atMs":9,"runId":"r","sessionId":"s","callId":"c","output":{"status":"completed","rawOutput":"ok","locations":[{"path":"/a"}]}}
    {"type":"provider.event","atMs":10,"runId":"r","sessionId":"s","provider":"acp","payload":{"type":"session.update","update":{"sessionUpdate":"tool_call","toolCallId":"d","title":"Build","kind":"execute","status":"pending"}}}
    {"type":"assistant.message","atMs":11,"runId":"r","sessionId":"s","message":{"text":"I edit it."}}
    {"type":"assistant.delta","atMs":11,"runId":"r","sessionId":"s","textDelta":"Done."}
    {"type":"provider.event","atMs":12,"runId":"r","sessionId":"s","provider":"acp","payload":{"type":"session.update","update":{"sessionUpdate":"usage_update","used":10,"size":100}}}
    {"type":"assistant.message","atMs":13,"runId":"r","sessionId":"s","message":{"text":"Done.","structuredOutput":{"ok":true}}}
    {"type":"tool.call","atMs":13,"runId":"r","sessionId":"s","callId":"d","toolName":"Bash","input":{}}
    {"type":"tool.result","atMs":13,"runId":"r","sessionId":"s","callId":"d","output":{"status":"interrupted"}}
    {"type":"run.completed","atMs":13,"runId":"r","sessionId":"s","status":"success","finalText":"Done.","structuredOutput":{"ok":true},"usage":{"input_tokens":10}}
    "#);
}

#[test]
fn a_turn_of_v2_that_fails() {
    let mut stage = Stage::idle(V2);
    play(&mut stage, r#"{"sessionUpdate":"state_update","state":"idle"}"#);
    stage.start("r");
    play(
        &mut stage,
        r#"
        {"sessionUpdate":"user_message","messageId":"u","content":[{"type":"text","text":"Go"}]}
        {"sessionUpdate":"state_update","state":"running"}
        {"sessionUpdate":"agent_message","messageId":"m","content":[]}
        {"sessionUpdate":"agent_message_chunk","messageId":"m","content":{"type":"text","text":"Wor"}}
        {"sessionUpdate":"agent_message","messageId":"m","content":[{"type":"text","text":"Work"}]}
        {"sessionUpdate":"tool_call_update","toolCallId":"c","title":"Run","name":"shell","status":"in_progress"}
        {"sessionUpdate":"tool_call_content_chunk","toolCallId":"c","content":{"type":"content","content":{"type":"text","text":"out"}}}
        {"sessionUpdate":"terminal_output_chunk","terminalId":"t","data":"b3V0"}
        {"sessionUpdate":"agent_message","messageId":"m","content":[{"type":"text","text":"Sorry"}]}
        {"sessionUpdate":"_surprise","n":1.50}
        {"sessionUpdate":"state_update","state":"idle","stopReason":"error","error":{"code":1,"message":"upstream"}}
    "#,
    );
    let error = narrows_acp::v2::Error::new(1, "upstream");
    stage.finish(RunOutcome::new(RunEnd::Stopped(Some(StopReason::Error(Some(Box::new(error)))))));
    play(&mut stage, r#"{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed"}"#);
    insta::assert_snapshot!(lines(&stage), @r#"
    {"type":"provider.event","atMs":1,"sessionId":"s","provider":"acp","payload":{"type":"session.update","update":{"sessionUpdate":"state_update","state":"idle"}}}
    {"type":"run.started","atMs":2,"runId":"r","sessionId":"s","provider":"acp"}
    {"type":"provider.event","atMs":3,"runId":"r","sessionId":"s","provider":"acp","payload":{"type":"session.update","update":{"sessionUpdate":"user_message","messageId":"u","content":[{"type":"text","text":"Go"}]}}}
    {"type":"provider.event","atMs":4,"runId":"r","sessionId":"s","provider":"acp","payload":{"type":"session.update","update":{"sessionUpdate":"state_update","state":"running"}}}
    {"type":"provider.event","atMs":5,"runId":"r","sessionId":"s","provider":"acp","payload":{"type":"session.update","update":{"sessionUpdate":"agent_message","messageId":"m","content":[]}}}
    {"type":"assistant.delta","atMs":6,"runId":"r","sessionId":"s","textDelta":"Wor"}
    {"type":"assistant.delta","atMs":7,"runId":"r","sessionId":"s","textDelta":"k"}
    {"type":"tool.call","atMs":8,"runId":"r","sessionId":"s","callId":"c","toolName":"shell","input":{}}
    {"type":"provider.event","atMs":9,"runId":"r","sessionId":"s","provider":"acp","payload":{"type":"session.update","update":{"sessionUpdate":"tool_call_content_chunk","toolCallId":"c","content":{"type":"content","content":{"type":"text","text":"out"}}}}}
    {"type":"provider.event","atMs":10,"runId":"r","sessionId":"s","provider":"acp","payload":{"type":"session.update","update":{"sessionUpdate":"terminal_output_chunk","terminalId":"t","data":"b3V0"}}}
    {"type":"provider.event","atMs":11,"runId":"r","sessionId":"s","provider":"acp","payload":{"type":"message.replaced","role":"assistant","messageId":"m","text":"Sorry"}}
    {"type":"provider.event","atMs":12,"runId":"r","sessionId":"s","provider":"acp","payload":{"type":"session.update","update":{"sessionUpdate":"_surprise","n":1.50}}}
    {"type":"provider.event","atMs":13,"runId":"r","sessionId":"s","provider":"acp","payload":{"type":"session.update","update":{"sessionUpdate":"state_update","state":"idle","stopReason":"error","error":{"code":1,"message":"upstream"}}}}
    {"type":"assistant.message","atMs":14,"runId":"r","sessionId":"s","message":{"text":"Sorry"}}
    {"type":"tool.result","atMs":14,"runId":"r","sessionId":"s","callId":"c","output":{"status":"interrupted","content":[{"type":"content","content":{"type":"text","text":"out"}}]}}
    {"type":"error","atMs":14,"runId":"r","sessionId":"s","message":"upstream","code":"error"}
    {"type":"run.completed","atMs":14,"runId":"r","sessionId":"s","status":"error","finalText":"Sorry"}
    {"type":"provider.event","atMs":15,"sessionId":"s","provider":"acp","payload":{"type":"session.update","update":{"sessionUpdate":"tool_call_update","toolCallId":"c","status":"completed"}}}
    "#);
}

#[test]
fn a_repair_is_another_turn_of_the_same_run() {
    let mut stage = Stage::new(V1);
    stage.update(&said(None, "not it"));
    assert_eq!(stage.mapper.final_text(), Some("not it"));
    let now = stage.now();
    stage.mapper.end_messages(now, &mut stage.events);
    assert_eq!(stage.mapper.final_text(), Some("not it"));
    stage.update(&said(None, "7"));
    assert_eq!(stage.mapper.final_text(), Some("7"));
    let structured = Some(json!(7));
    stage.finish(RunOutcome { structured, ..RunOutcome::new(RunEnd::Stopped(Some(StopReason::EndTurn))) });
    assert_eq!(
        stage.short(),
        [
            "assistant.delta not it",
            "assistant.message not it",
            "assistant.delta 7",
            "assistant.message 7 = 7",
            "run.completed success 7",
        ]
    );
    assert_eq!(stage.end("end_turn"), None);
    assert_eq!(stage.events, []);
}

#[test]
fn events_have_what_they_were_read_from() {
    let mut mapper = Mapper::new(V1, "acp", Settings::default());
    let mut events = Vec::new();
    mapper.start("r", 0, &mut events);
    let params = r#"{ "sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"x"}}}"#;
    mapper.update(params.as_bytes(), 1, &mut events);
    let call = r#"{"sessionId":"s","update":{"sessionUpdate":"tool_call","toolCallId":"c","title":"t","status":"failed"}}"#;
    mapper.update(call.as_bytes(), 2, &mut events);
    mapper.update(br#"{"sessionId":"s","update":{"sessionUpdate":"_x"}}"#, 3, &mut events);
    mapper.finish(RunOutcome::new(RunEnd::Cancelled), 4, &mut events);
    let raw: Vec<_> = events.iter().map(|event| (event.name(), event.raw.as_ref().map(Json::text))).collect();
    assert_eq!(
        raw,
        [
            ("run.started", None),
            ("assistant.delta", Some(params)),
            ("tool.call", Some(call)),
            ("tool.result", Some(call)),
            ("provider.event", None),
            ("assistant.message", None),
            ("run.completed", None),
        ]
    );
}
