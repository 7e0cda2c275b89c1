//! Tests of single mapping rules.

use narrows_acp::Version::{V1, V2};

use super::*;
use crate::event::PermissionResolved;

#[test]
fn chunks_become_messages_by_their_ids() {
    let ids = [said(Some("a"), "1"), said(Some("a"), "2"), said(Some("b"), "3"), said(None, "4")];
    check(
        V1,
        &ids,
        &[
            "assistant.delta 1",
            "assistant.delta 2",
            "assistant.message 12",
            "assistant.delta 3",
            "assistant.delta 4",
        ],
    );
    // Without ids, all chunks belong to one message.
    let mut stage = Stage::new(V1);
    for update in [said(None, "1"), begun("c", json!({"rawInput": 1})), said(None, "2")] {
        stage.update(&update);
    }
    stage.end("end_turn");
    let events = stage.short();
    assert!(events.contains(&"assistant.message 12".to_owned()), "{events:?}");
    assert_eq!(events.last().unwrap(), "run.completed success 12");
}

#[test]
fn messages_may_interleave() {
    check(
        V2,
        &[said(Some("a"), "1"), said(Some("b"), "2"), said(Some("a"), "3"), said(Some("b"), "4")],
        &[
            "assistant.delta 1",
            "assistant.message 1",
            "assistant.delta 2",
            "assistant.message 2",
            "assistant.delta 3",
            "assistant.message 13",
            "assistant.delta 4",
        ],
    );
}

#[test]
fn thoughts_end_when_something_else_begins() {
    check(
        V1,
        &[thought(None, "h"), thought(None, "m"), said(None, "x"), thought(None, "y")],
        &[
            "assistant.reasoning.delta h",
            "assistant.reasoning.delta m",
            "assistant.reasoning.message hm",
            "assistant.delta x",
            "assistant.reasoning.delta y",
        ],
    );
    check(
        V2,
        &[thought(Some("a"), "h"), thought(Some("b"), "m"), tool("c", json!({"status": "in_progress"}))],
        &[
            "assistant.reasoning.delta h",
            "assistant.reasoning.message h",
            "assistant.reasoning.delta m",
            "assistant.reasoning.message m",
            "tool.call c Tool {}",
        ],
    );
}

#[test]
fn a_complete_message_emits_only_new_text() {
    check(
        V2,
        &[
            said(Some("a"), "he"),
            whole("a", &["he"]),
            whole("a", &["hel", "lo"]),
            whole("b", &["new"]),
            whole("a", &["hello"]),
            whole("b", &["other"]),
            json!({"sessionUpdate": "agent_message", "messageId": "b"}),
            json!({"sessionUpdate": "agent_message", "messageId": "b", "content": null}),
            said(Some("b"), "again"),
        ],
        &[
            "assistant.delta he",
            "- agent_message",
            "assistant.delta llo",
            "assistant.message hello",
            "assistant.delta new",
            "- agent_message",
            r#"- {"type":"message.replaced","role":"assistant","messageId":"b","text":"other"}"#,
            "- agent_message",
            r#"- {"type":"message.replaced","role":"assistant","messageId":"b","text":""}"#,
            "assistant.delta again",
        ],
    );
    let thoughts = json!({"sessionUpdate": "agent_thought", "messageId": "t", "content": [{"type": "text", "text": "hm"}]});
    check(
        V2,
        &[thoughts.clone(), thoughts.clone(), said(Some("a"), "x"), thoughts],
        &[
            "assistant.reasoning.delta hm",
            "- agent_thought",
            "assistant.reasoning.message hm",
            "assistant.delta x",
            "- agent_thought",
        ],
    );
}

#[test]
fn non_text_content_becomes_a_raw_event() {
    let image = json!({"type": "image", "data": "", "mimeType": "image/png"});
    check(
        V1,
        &[
            json!({"sessionUpdate": "agent_message_chunk", "content": image}),
            json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "_new"}}),
            said(None, ""),
        ],
        &["- agent_message_chunk", "- agent_thought_chunk", "- agent_message_chunk"],
    );
    let mixed = json!({"sessionUpdate": "agent_message", "messageId": "a", "content": [{"type": "text", "text": "x"}, image]});
    check(V2, &[mixed], &["assistant.delta x", "- agent_message"]);
}

#[test]
fn a_call_is_announced_with_its_input() {
    let announced = || begun("c", json!({"title": "Run", "kind": "execute", "rawInput": {}}));
    // Late input, and then another update.
    check(
        V1,
        &[
            announced(),
            tool("c", json!({"rawInput": {"command": "ls"}})),
            tool("c", json!({"status": "in_progress"})),
            tool("c", json!({"status": "completed", "rawOutput": "x"})),
            tool("c", json!({"status": "failed"})),
        ],
        &[
            "- tool_call",
            r#"tool.call c Bash {"command":"ls"}"#,
            "- tool_call_update",
            r#"tool.result c {"status":"completed","rawOutput":"x"}"#,
            "- tool_call_update",
        ],
    );
    // The call runs without input.
    check(
        V1,
        &[announced(), tool("c", json!({"status": "in_progress"})), tool("c", json!({"rawInput": {"a": 1}}))],
        &["- tool_call", "tool.call c Bash {}", "- tool_call_update"],
    );
    // The call completes before it was announced.
    check(
        V2,
        &[tool("c", json!({"status": "cancelled"}))],
        &["tool.call c Tool {}", r#"tool.result c {"status":"cancelled"}"#],
    );
    check(
        V1,
        &[begun("c", json!({"title": "t", "status": "failed", "rawInput": [1]}))],
        &["tool.call c t [1]", r#"tool.result c {"status":"failed"}"#],
    );
    // Version 1 has no status `cancelled`.
    check(V1, &[tool("c", json!({"status": "cancelled"}))], &["tool.call c Tool {}"]);
}

#[test]
fn a_command_is_announced_once_its_input_is_more_than_its_context() {
    let announced = |input: Value| {
        begun("c", json!({"title": "bash", "kind": "execute", "status": "pending", "rawInput": input}))
    };
    // The updates were recorded from opencode.
    check(
        V1,
        &[
            announced(json!({"cwd": "/a"})),
            tool("c", json!({"rawInput": {"cwd": "/a", "command": "ls"}})),
            tool("c", json!({"status": "in_progress"})),
        ],
        &["- tool_call", r#"tool.call c Bash {"cwd":"/a","command":"ls"}"#, "- tool_call_update"],
    );
    // The call continues without more data.
    check(
        V1,
        &[announced(json!({"cwd": "/a", "timeout": 5})), tool("c", json!({"status": "in_progress"}))],
        &["- tool_call", r#"tool.call c Bash {"cwd":"/a","timeout":5}"#],
    );
    for input in [json!({"argv": ["ls"], "cwd": "/a"}), json!({"code": 1}), json!("ls"), json!(["ls"])] {
        check(V1, &[announced(input.clone())], &[&format!("tool.call c Bash {input}")]);
    }
    // A call that is not a command may be about a directory.
    let listing = begun("c", json!({"title": "ls", "kind": "read", "rawInput": {"cwd": "/a"}}));
    check(V1, &[listing], &[r#"tool.call c Read {"cwd":"/a"}"#]);
}

#[test]
fn updates_of_a_call_are_merged() {
    let fields = json!({
        "title": "Read it", "kind": "read", "rawInput": {"path": "/a"}, "rawOutput": 1,
        "locations": [{"path": "/a"}], "content": [{"n": 1}],
    });
    let nulls = json!({
        "title": null, "kind": null, "rawInput": null, "rawOutput": null, "locations": null, "content": null, "status": null,
    });
    let full = |mut stage: Stage, first: &Value| {
        stage.update(first);
        stage.update(&tool("c", nulls.clone()));
        stage.update(&tool("c", json!({"title": ""})));
        let call = stage.mapper.call("c").unwrap().clone();
        stage.update(&tool("c", json!({"status": "completed"})));
        (call, stage.short().pop().unwrap())
    };
    let (call, result) = full(Stage::new(V1), &begun("c", fields.clone()));
    assert_eq!((call.title.as_deref(), call.kind.as_deref()), (Some("Read it"), Some("read")));
    assert_eq!(call.paths(), ["/a"]);
    assert_eq!(
        result,
        r#"tool.result c {"status":"completed","rawOutput":1,"content":[{"n":1}],"locations":[{"path":"/a"}]}"#
    );
    let (call, result) = full(Stage::new(V2), &tool("c", fields));
    assert_eq!((call.title, call.kind, call.raw_input), (None, None, None));
    assert_eq!(result, r#"tool.result c {"status":"completed"}"#);
}

#[test]
fn content_is_replaced_as_a_list_and_grows_by_chunks() {
    let item =
        |n| json!({"sessionUpdate": "tool_call_content_chunk", "toolCallId": "c", "content": {"n": n}});
    check(
        V2,
        &[
            item(0),
            tool("c", json!({"content": [{"n": 1}], "rawInput": 1})),
            item(2),
            tool("c", json!({"status": "failed"})),
            item(3),
        ],
        &[
            "- tool_call_content_chunk",
            "tool.call c Tool 1",
            "- tool_call_content_chunk",
            r#"tool.result c {"status":"failed","content":[{"n":1},{"n":2}]}"#,
            "- tool_call_content_chunk",
        ],
    );
}

#[test]
fn a_tool_has_the_best_available_name() {
    #[track_caller]
    fn check(fields: Value, expected: &str) {
        let mut stage = Stage::new(V2);
        stage.update(&tool("c", fields));
        assert_eq!(stage.mapper.call("c").unwrap().tool_name(), expected);
    }
    let claude = json!({"claudeCode": {"toolName": "Grep"}});
    check(json!({"name": "grep", "_meta": claude, "kind": "search", "title": "t"}), "grep");
    check(json!({"name": "", "_meta": claude, "kind": "search", "title": "t"}), "Grep");
    check(json!({"_meta": {"tool_name": "find"}, "title": "t"}), "find");
    check(json!({"_meta": {"toolName": "find", "claudeCode": 7}, "title": "t"}), "find");
    check(json!({"_meta": [1], "kind": "search", "title": "t"}), "Search");
    check(json!({"kind": "fetch"}), "WebFetch");
    check(json!({"kind": "other", "title": "Do it"}), "Do it");
    check(json!({"kind": "_new"}), "Tool");
}

#[test]
fn a_reused_id_is_a_new_call_in_another_run() {
    let call = || begun("c", json!({"title": "t", "rawInput": 1, "status": "completed"}));
    let mut stage = Stage::new(V1);
    stage.update(&call());
    stage.update(&call());
    stage.end("end_turn");
    stage.start("r2");
    stage.events.clear();
    stage.update(&tool("c", json!({"status": "failed"})));
    stage.update(&call());
    assert_eq!(
        stage.short(),
        ["- tool_call_update", "tool.call c t 1", r#"tool.result c {"status":"completed"}"#]
    );
    // In v2, the second announcement updates the old call.
    let call = || tool("c", json!({"title": "t", "rawInput": 1, "status": "completed"}));
    let mut stage = Stage::new(V2);
    stage.update(&call());
    stage.end("end_turn");
    stage.start("r2");
    stage.events.clear();
    stage.update(&call());
    assert_eq!(stage.short(), ["- tool_call_update"]);
}

#[test]
fn a_failure_instead_of_an_answer_is_an_error() {
    for (version, update) in [(V1, said(None, "HTTP 401")), (V2, whole("m", &["HTTP 401"]))] {
        let mut stage = Stage::new(version);
        let mut update = update;
        update["_meta"] = json!({"narrows/error": {"kind": "auth", "message": "bad key"}});
        let fault = stage.update(&update).fault.unwrap();
        assert_eq!((&*fault.kind, &*fault.message), ("auth", "bad key"));
        stage.end("end_turn");
        let events = stage.short();
        assert_eq!(events[1..], ["error auth bad key", "run.completed error"]);
    }
    // A message of the failure is better than none. A cancelled run has no error.
    let mut stage = Stage::new(V1);
    let mut update = said(None, "HTTP 401");
    update["_meta"] = json!({"narrows/error": 7});
    stage.update(&update);
    let outcome = RunOutcome::new(RunEnd::Stopped(Some(StopReason::EndTurn)));
    assert_eq!(stage.finish(outcome), Some(Status::Error));
    assert_eq!(stage.short()[1], "error agent_error HTTP 401");
    stage.start("r2");
    stage.update(&update);
    let outcome =
        RunOutcome { cancelling: true, ..RunOutcome::new(RunEnd::Stopped(Some(StopReason::EndTurn))) };
    assert_eq!(stage.finish(outcome), Some(Status::Cancelled));
}

#[test]
fn separators_are_not_part_of_the_text() {
    let mut separator = said(Some("m"), "\n\n");
    separator["_meta"] = json!({"narrows/separator": true});
    check(V1, &[separator], &["- agent_message_chunk"]);
    let mut other = said(Some("m"), "x");
    other["_meta"] = json!({"other": true});
    check(V1, &[other], &["assistant.delta x"]);
}

#[test]
fn lone_surrogates_are_read() {
    #[track_caller]
    fn check(update: &str, expected: &[&str]) {
        let mut stage = Stage::new(V1);
        stage.params(format!(r#"{{"sessionId":"s","update":{update}}}"#).as_bytes());
        assert_eq!(stage.short(), expected);
    }
    check(
        r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a\ud800"}}"#,
        &["assistant.delta a\u{fffd}"],
    );
    // Members that the mapper does not read are passed on raw.
    check(
        r#"{"sessionUpdate":"tool_call","toolCallId":"c","title":"t","rawInput":"\ud800"}"#,
        &[r#"tool.call c t "\ud800""#],
    );
    check(
        r#"{"sessionUpdate":"tool_call","toolCallId":"c","title":"\udfff","rawInput":1}"#,
        &["tool.call c \u{fffd} 1"],
    );
}

#[test]
fn a_permission_request_announces_its_call_with_all_that_is_known() {
    let mut stage = Stage::new(V1);
    stage.update(&begun(
        "c",
        json!({"title": "Edit", "kind": "edit", "rawInput": {}, "locations": [{"path": "/a"}, 7]}),
    ));
    let asked = stage.ask(&json!({
        "sessionId": "s",
        "toolCall": {"toolCallId": "c", "rawInput": {"path": "/b"}},
        "options": [{"kind": "allow_once", "name": "Yes", "optionId": "y"}, {"optionId": 7}],
    }));
    assert_eq!(asked.call.paths(), ["/a"]);
    assert_eq!(asked.call.kind.as_deref(), Some("edit"));
    assert_eq!(asked.call.raw_input.unwrap().text(), r#"{"path":"/b"}"#);
    let yes =
        OfferedOption { option_id: "y".to_owned(), kind: "allow_once".to_owned(), name: "Yes".to_owned() };
    let problem = "in the tool call a key appears twice, or a location has no path".to_owned();
    assert_eq!((asked.options, asked.problem), (vec![yes], Some(problem)));
    let resolved = PermissionResolved {
        request_id: "q1".to_owned(),
        outcome: "cancelled".to_owned(),
        ..PermissionResolved::default()
    };
    stage.mapper.permission_resolved(resolved, 9, &mut stage.events);
    assert_eq!(
        stage.short(),
        [
            "- tool_call",
            r#"tool.call c Edit {"path":"/b"}"#,
            r#"- {"type":"permission.requested","requestId":"q1","method":"session/request_permission","callId":"c","toolName":"Edit","title":"Edit","kind":"edit","input":{"path":"/b"},"locations":["/a"],"options":[{"kind":"allow_once","name":"Yes","optionId":"y"},{"optionId":7}],"problem":"in the tool call a key appears twice, or a location has no path"}"#,
            r#"- {"type":"permission.resolved","requestId":"q1","outcome":"cancelled"}"#,
        ]
    );
}

#[test]
fn a_permission_request_announces_its_call_even_without_input() {
    let mut stage = Stage::new(V1);
    stage.update(&begun("c", json!({"title": "Run", "kind": "execute"})));
    stage.events.clear();
    stage.ask(&json!({"toolCall": {"toolCallId": "c"}, "options": []}));
    assert_eq!(stage.short()[0], "tool.call c Bash {}");
    // The call is announced only once.
    stage.update(&tool("c", json!({"rawInput": {"command": "ls"}})));
    assert_eq!(stage.short(), ["- tool_call_update"]);
}

#[test]
fn requests_of_v2_have_subjects() {
    let mut stage = Stage::new(V2);
    let asked = stage.ask(&json!({
        "title": "Run it?", "description": "It lists", "options": [],
        "subject": {"type": "command", "command": "ls", "cwd": "/a", "toolCallId": "c"},
    }));
    assert_eq!((asked.title.as_deref(), asked.description.as_deref()), (Some("Run it?"), Some("It lists")));
    assert_eq!(
        (asked.command.as_deref(), asked.cwd.as_deref(), &*asked.call.id),
        (Some("ls"), Some("/a"), "c")
    );
    let call = json!({"toolCallId": "d", "kind": "edit", "rawInput": {"a": 1}});
    let asked = stage
        .ask(&json!({"title": "Edit?", "options": [], "subject": {"type": "tool_call", "toolCall": call}}));
    assert_eq!(asked.call.kind.as_deref(), Some("edit"));
    assert_eq!(stage.short()[1], r#"tool.call d Edit {"a":1}"#);
}

#[test]
fn only_members_outside_the_protocol_are_unknown() {
    let mut stage = Stage::new(V2);
    for (capabilities, is_known) in [
        (json!(null), true),
        (json!({}), true),
        (json!({"cancel": {}, "_meta": {"a": 1}}), true),
        (json!({"cancel": {"command": "rm a"}}), false),
        (json!({"argv": ["rm", "a"]}), false),
        (json!("rm a"), false),
    ] {
        let call = json!({"toolCallId": "d", "title": "It", "name": "n", "kind": "read", "status": "pending",
            "content": [], "locations": [], "rawInput": {}, "rawOutput": {}, "capabilities": capabilities, "_meta": {}});
        let asked = stage.ask(&json!({
            "sessionId": "s", "title": "May I?", "description": "Well", "options": [], "_meta": {},
            "subject": {"type": "tool_call", "toolCall": call, "_meta": {}},
        }));
        assert_eq!(asked.unknown.is_empty(), is_known, "{capabilities}: {:?}", asked.unknown);
    }
}

#[test]
fn unreadable_requests_are_reported_with_the_reason() {
    for params in [
        json!(null),
        json!([]),
        json!({"toolCall": 7}),
        json!({"toolCall": {"toolCallId": ""}}),
        json!({"toolCall": {"toolCallId": "c", "kind": 7}}),
        json!({"subject": []}),
        json!({}),
        json!({"toolCallId": "c"}),
        json!({"subject": null}),
        json!({"subject": {}}),
        json!({"subject": {"type": "weird", "toolCall": {"toolCallId": "c", "kind": "read"}}}),
        json!({"subject": {"type": "tool_call"}}),
        json!({"subject": {"type": "command", "toolCallId": "c"}}),
    ] {
        let mut stage = Stage::new(V1);
        let asked = stage.ask(&params);
        assert!(asked.problem.is_some() && asked.options.is_empty(), "{params}");
        let told: Vec<_> = stage
            .events
            .iter()
            .filter_map(|event| match &event.body {
                EventBody::Provider { payload: Payload::PermissionRequested(told), .. } => Some(told),
                _ => None,
            })
            .collect();
        assert_eq!(told.len(), 1, "{:?}", stage.events);
        assert_eq!(told[0].problem, asked.problem);
    }
}

#[test]
fn the_reason_decides_how_a_run_ended() {
    #[track_caller]
    fn check(version: Version, end: &RunEnd, cancelling: bool, expected: (Status, Option<&str>)) {
        let mut stage = Stage::new(version);
        stage.update(&said(Some("m"), "kept"));
        stage.events.clear();
        let status = stage.finish(RunOutcome { cancelling, ..RunOutcome::new(end.clone()) }).unwrap();
        let code = stage.events.iter().find_map(|event| match &event.body {
            EventBody::Error { code, .. } => Some(code.as_deref().unwrap_or("-")),
            _ => None,
        });
        assert_eq!((status, code), expected, "{end:?}");
        assert_eq!(stage.short().last().unwrap(), &format!("run.completed {} kept", status.name()));
    }
    use Status::{Cancelled, Error, Success};
    let stopped = |name: &str| RunEnd::Stopped(Some(StopReason::from_name(name)));
    check(V1, &stopped("end_turn"), false, (Success, None));
    check(V1, &stopped("end_turn"), true, (Success, None));
    check(V1, &stopped("cancelled"), false, (Cancelled, None));
    check(V1, &stopped("refusal"), false, (Error, Some("refusal")));
    check(V1, &stopped("max_tokens"), false, (Error, Some("max_tokens")));
    check(V1, &stopped("max_turn_requests"), false, (Error, Some("max_turn_requests")));
    check(V1, &stopped("snack"), false, (Error, Some("snack")));
    check(V2, &stopped("error"), false, (Error, Some("error")));
    check(V1, &RunEnd::Stopped(None), false, (Error, Some("no_stop_reason")));
    check(V2, &RunEnd::Stopped(None), false, (Success, None));
    check(V2, &RunEnd::Stopped(None), true, (Cancelled, None));
    check(V1, &RunEnd::Cancelled, false, (Cancelled, None));
    let failed = || RunEnd::Failed { message: "gone".to_owned(), code: Some("agent_exited".to_owned()) };
    check(V1, &failed(), false, (Error, Some("agent_exited")));
    check(V1, &failed(), true, (Error, Some("agent_exited")));
}

#[test]
fn unfinished_calls_are_closed_in_starting_order() {
    let mut stage = Stage::new(V2);
    for id in ["b", "a", "c"] {
        stage.update(&tool(id, json!({"rawInput": 1})));
    }
    stage.update(&tool("d", json!({"title": "never begun"})));
    stage.update(&tool("a", json!({"content": [1]})));
    stage.events.clear();
    stage.finish(RunOutcome::new(RunEnd::Cancelled));
    assert_eq!(
        stage.short(),
        [
            r#"tool.result b {"status":"interrupted"}"#,
            r#"tool.result a {"status":"interrupted","content":[1]}"#,
            r#"tool.result c {"status":"interrupted"}"#,
            "tool.call d never begun {}",
            r#"tool.result d {"status":"interrupted"}"#,
            "run.completed cancelled",
        ]
    );
}

#[test]
fn a_token_limit_can_count_as_success() {
    let settings = Settings { limits_fail: false, ..Settings::default() };
    let mut mapper = Mapper::new(V1, "acp", settings);
    let mut events = Vec::new();
    mapper.start("r", 0, &mut events);
    let end = RunOutcome::new(RunEnd::Stopped(Some(StopReason::MaxTokens)));
    assert_eq!(mapper.finish(end, 1, &mut events), Some(Status::Success));
}

#[test]
fn gate_messages_are_not_thoughts() {
    let check = |meta: Value, expected: &str, why: Option<&str>| {
        let mut stage = Stage::new(V1);
        let params = json!({"sessionId": "s", "update": thought(None, "hm"), "_meta": meta});
        let effects = stage.mapper.update(params.to_string().as_bytes(), 0, &mut stage.events);
        assert_eq!(
            (stage.short(), effects.interrupted.as_deref()),
            (vec![expected.to_owned()], why),
            "{params}"
        );
    };
    let told = json!({"aip44": {"approval": "n-1", "state": "waiting"}});
    check(told, r#"- {"type":"other","name":"approval","data":{"approval":"n-1","state":"waiting"}}"#, None);
    for meta in
        [json!(null), json!({}), json!({"aip44": {"tier": "approval"}}), json!({"aip44": {"approval": 7}})]
    {
        check(meta, "assistant.reasoning.delta hm", None);
    }
    check(json!({"x": {"approval": "n-1"}}), "assistant.reasoning.delta hm", None);
    let mut stage = Stage::new(V2);
    let idle = json!({"sessionUpdate": "state_update", "state": "idle", "stopReason": "refusal"});
    let params = json!({"sessionId": "s", "update": idle, "_meta": {"aip44": {"interrupted": "so"}}});
    let effects = stage.mapper.update(params.to_string().as_bytes(), 0, &mut stage.events);
    assert_eq!(effects.interrupted.as_deref(), Some("so"));
}
