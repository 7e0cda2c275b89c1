//! Tests of methods without a rule of their own: refused unless the manifest lists them, and recorded either
//! way.

use narrows_acp::method::{Direction, Kind as Form, METHODS};

use super::*;

/// Methods of existing agents that start turns, change endpoints or trust code.
const UNLISTED: [&str; 7] = [
    "_narrows/ping",
    "_session/steering",
    "_session/goal",
    "_codex/hooks/trust",
    "providers/set",
    "session/set_title",
    "sampling/createMessage",
];

#[test]
fn a_client_request_that_is_not_listed_is_refused_and_recorded() {
    for is_v2 in [false, true] {
        for method in UNLISTED {
            let mut fixture = Fixture::with_turn();
            fixture.gate.is_v2 = is_v2;
            for params in [json!({"sessionId": "s", "prompt": []}), json!({})] {
                fixture.client_requests(7, method, &params);
                let seen = fixture.take_seen();
                assert!(seen.starts_with("log method.refused deny code=\"method_not_listed\""), "{seen}");
                assert!(seen.contains("c < ") && seen.contains("-32015"), "{seen}");
                assert!(!seen.contains("a < "), "{method} {seen}");
            }
        }
    }
}

#[test]
fn escapes_in_method_names_are_decoded() {
    let mut fixture = Fixture::with_turn();
    let line = br#"{"jsonrpc":"2.0","id":7,"method":"\u005fsession\/steering","params":{"sessionId":"s"}}"#;
    fixture.gate.handle_client_message(fixture.now, View::parse(line), &mut fixture.output);
    fixture.settle_events();
    let seen = fixture.take_seen();
    assert!(seen.contains("-32015") && !seen.contains("a < "), "{seen}");
    let event = fixture.output.events.last().unwrap();
    assert_eq!(event.input.as_ref().unwrap()["method"], "_session/steering");
}

#[test]
fn a_client_notification_that_is_not_listed_is_dropped_and_recorded() {
    for method in UNLISTED {
        let mut fixture = Fixture::with_turn();
        fixture.send_client(&json!({"jsonrpc": "2.0", "method": method, "params": {"sessionId": "s"}}));
        let is_known = matches!(method, "providers/set" | "session/set_title");
        let code = if is_known { "wrong_form" } else { "method_not_listed" };
        assert_eq!(fixture.take_seen(), format!("log method.refused deny code=\"{code}\""), "{method}");
    }
}

/// Sends every protocol method in a form or direction that the protocol does not have. Listing the method
/// makes no difference.
#[test]
fn a_method_in_another_form_or_direction_is_refused_and_recorded() {
    let mut names: Vec<&str> = METHODS.iter().map(|row| row.name).collect();
    names.extend(["proxy/initialize", "proxy/successor"]);
    let forms = |name: &str, direction| -> Vec<Form> {
        let rows = METHODS.iter().filter(|row| row.name == name);
        rows.filter(|row| [direction, Direction::Both].contains(&row.direction)).map(|row| row.kind).collect()
    };
    for (name, is_v2, is_listed, is_request, of_agent) in names.iter().flat_map(|name| {
        (0..16).map(move |bits: u8| (*name, bits & 1 > 0, bits & 2 > 0, bits & 4 > 0, bits & 8 > 0))
    }) {
        let direction = if of_agent { Direction::ToClient } else { Direction::ToAgent };
        let form = if is_request { Form::Request } else { Form::Notification };
        let is_tolerated = if of_agent { name == "mcp/message" } else { name == "session/cancel" };
        let forms = forms(name, direction);
        if forms.contains(&form) || is_tolerated {
            continue;
        }
        let mut fixture = Fixture::with_turn();
        fixture.gate.is_v2 = is_v2;
        if is_listed {
            fixture.gate.config.client_methods.push(name.into());
            fixture.gate.config.agent_methods.push(name.into());
        }
        let mut message = json!({"jsonrpc": "2.0", "method": name, "params": {"sessionId": "s"}});
        if is_request {
            message["id"] = json!(77);
        }
        let code = if forms.is_empty() { "wrong_direction" } else { "wrong_form" };
        match of_agent {
            true => fixture.send_agent(&message),
            false => fixture.send_client(&message),
        }
        let seen = fixture.take_seen();
        assert!(seen.starts_with(&format!("log method.refused deny code=\"{code}\"")), "{message} {seen}");
        assert!(!seen.contains(&format!("\"method\":\"{name}\"")), "{message} {seen}");
        let (sender, receiver) = if of_agent { ("a", "c") } else { ("c", "a") };
        let answer = format!("{sender} < {{\"jsonrpc\":\"2.0\",\"id\":77,\"error\":{{\"code\":-32600");
        assert_eq!(seen.contains(&answer), is_request, "{message} {seen}");
        assert!(!seen.contains(&format!("\n{receiver} < ")) || name == "session/update", "{message} {seen}");
    }
}

#[test]
fn an_update_with_an_id_is_not_shown_and_stops_the_turn() {
    for (is_v2, session) in [(false, "s"), (false, "kid"), (true, "s"), (true, "kid")] {
        for update in [
            json!({"sessionUpdate": "tool_call", "toolCallId": "1", "kind": "execute",
                "status": "in_progress", "rawInput": {"command": "rm x"}}),
            json!({"sessionUpdate": "subagent_update", "sessionId": "other"}),
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "done"}}),
        ] {
            let mut fixture = child_sessions::new_fixture(is_v2);
            fixture.send_agent(&child_sessions::announce("s", "kid"));
            fixture.take_seen();
            fixture.agent_requests(9, "session/update", &json!({"sessionId": session, "update": update}));
            let seen = fixture.take_seen();
            assert!(!seen.contains("c < "), "{seen}");
            assert!(seen.starts_with("log method.refused deny code=\"wrong_form\"\n"), "{seen}");
            assert!(seen.contains("log operator.interrupted") && seen.contains("-32600"), "{seen}");
            assert!(seen.contains(r#""method":"session/cancel","params":{"sessionId":"s"}"#), "{seen}");
        }
    }
}

#[test]
fn an_update_with_an_id_in_a_session_that_is_not_open_stops_the_agent() {
    let begun = json!({"sessionUpdate": "tool_call", "toolCallId": "1", "status": "in_progress"});
    for opening in [false, true] {
        let mut fixture = Fixture::with_turn();
        if opening {
            fixture.client_requests(8, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        } else {
            fixture.client_requests(8, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
            fixture.agent_answers(8, &json!({"sessionId": "t"}));
            fixture.client_requests(9, "session/close", &json!({"sessionId": "t"}));
            fixture.agent_answers(9, &json!({}));
        }
        fixture.take_seen();
        fixture.agent_requests(9, "session/update", &json!({"sessionId": "t", "update": begun}));
        let seen = fixture.take_seen();
        assert!(seen.starts_with("log agent.violation deny code=\"unknown_session\""), "{seen}");
        assert!(seen.contains("session/cancel") && !seen.contains("c < "), "{seen}");
    }
}

#[test]
fn extension_methods_of_narrows_need_a_listing_too() {
    let mut fixture = Fixture::with_turn();
    fixture.agent_requests(9, "_narrows/cursor_gap", &json!({"sessionId": "s"}));
    fixture.send_agent(&json!({"jsonrpc": "2.0", "method": "_narrows/cursor_gap", "params": {"missing": 1}}));
    let seen = fixture.take_seen();
    assert!(!seen.contains("c < ") && seen.matches("method_not_listed").count() == 3, "{seen}");
}

#[test]
fn an_undeclared_form_is_refused_and_recorded() {
    for params in [json!({"sessionId": "s", "message": "password?"}), json!({"message": "password?"})] {
        let mut fixture = Fixture::with_turn();
        fixture.agent_requests(9, "elicitation/create", &params);
        let seen = fixture.take_seen();
        assert!(seen.starts_with("log method.refused deny code=\"method_not_listed\""), "{seen}");
        assert!(seen.contains("a < ") && seen.contains("-32601") && !seen.contains("c < "), "{seen}");
    }
}

#[test]
fn an_agent_method_that_is_not_listed_is_refused_and_recorded() {
    let mut fixture = Fixture::with_turn();
    fixture.agent_requests(9, "_x/ask", &json!({"sessionId": "s"}));
    let seen = fixture.take_seen();
    assert!(
        seen.contains("log method.refused") && seen.contains("-32601") && !seen.contains("c < "),
        "{seen}"
    );
    let news = json!({"jsonrpc": "2.0", "method": "_x/news", "params": {"sessionId": "s"}});
    fixture.send_agent(&news);
    assert_eq!(fixture.take_seen(), "log method.refused deny code=\"method_not_listed\"");
    // The log contains each name once, however often the agent repeats it.
    fixture.send_agent(&news);
    assert_eq!(fixture.take_seen(), "");
}

#[test]
fn a_listed_method_is_recorded_before_it_is_passed_on() {
    for is_v2 in [false, true] {
        let mut fixture = Fixture::with_turn();
        fixture.gate.is_v2 = is_v2;
        fixture.settles_at_once = false;
        fixture.client_requests(7, "_x/y", &json!({"sessionId": "s", "text": "go on"}));
        fixture.send_client(&json!({"jsonrpc": "2.0", "method": "_x/y", "params": {"sessionId": "s"}}));
        assert_eq!(fixture.take_seen(), "log method.allowed allow\nlog method.allowed allow");
        fixture.settles_at_once = true;
        fixture.settle_events();
        let seen = fixture.take_seen();
        assert_eq!((seen.matches("a < ").count(), seen.matches("_x/y").count()), (2, 2), "{seen}");
        let event = fixture.output.events.last().unwrap();
        assert_eq!(event.facts.get("session").unwrap().clone().into_value(), "s");
        assert_eq!(event.facts.get("sender").unwrap().clone().into_value(), "client");
        fixture.agent_answers(7, &json!({"outcome": "injected"}));
        assert!(fixture.take_seen().starts_with("c < "));
    }
}

#[test]
fn a_listed_method_needs_an_open_session_if_it_names_one() {
    let mut fixture = Fixture::with_turn();
    fixture.client_requests(7, "_x/y", &json!({"sessionId": "other"}));
    assert!(fixture.take_seen().contains("-32002"));
    fixture.send_client(&json!({"jsonrpc": "2.0", "method": "_x/y", "params": {"sessionId": "other"}}));
    assert_eq!(fixture.take_seen(), "log method.refused deny code=\"unknown_session\"");
    // Undeclared content is refused in a listed method, too.
    fixture.client_requests(
        8,
        "_x/y",
        &json!({"sessionId": "s", "prompt": [{"type": "image", "data": "AA=="}]}),
    );
    assert!(fixture.take_seen().contains("log prompt.refused deny code=\"undeclared_capability\""));
    let params = json!({"sessionId": "s", "prompt": [{"type": "image", "data": "AA=="}]});
    fixture.send_client(&json!({"jsonrpc": "2.0", "method": "_x/y", "params": params}));
    assert_eq!(fixture.take_seen(), "log method.refused deny code=\"undeclared_capability\"");
}

#[test]
fn a_listed_method_of_a_gated_operator_is_approved_like_a_turn() {
    let gated = GateConfig { autonomy: crate::config::Autonomy::Gated, ..config() };
    for (answer, passes) in [("allow_once", true), ("reject_once", false)] {
        let mut fixture = Fixture::with_config(gated.clone(), &[]);
        fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        fixture.agent_answers(1, &json!({"sessionId": "s"}));
        fixture.take_seen();
        fixture.client_requests(
            7,
            "_x/y",
            &json!({"sessionId": "s", "prompt": [{"type": "text", "text": "steer"}]}),
        );
        let seen = fixture.take_seen();
        assert!(seen.contains("session/request_permission") && !seen.contains("a < "), "{seen}");
        fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
            {"outcome": {"outcome": "selected", "optionId": answer}}}));
        let seen = fixture.take_seen();
        assert_eq!(seen.contains("\"method\":\"_x/y\""), passes, "{seen}");
        assert_eq!(seen.contains("-32015"), !passes, "{seen}");
        // A listed request without a session cannot wait for an approval, and a notification cannot be
        // answered.
        fixture.client_requests(8, "_x/y", &json!({}));
        fixture.send_client(&json!({"jsonrpc": "2.0", "method": "_x/y", "params": {"sessionId": "s"}}));
        let seen = fixture.take_seen();
        assert!(seen.contains("code=\"no_session\"") && seen.contains("code=\"needs_approval\""), "{seen}");
        assert!(!seen.contains("a < "), "{seen}");
    }
}

#[test]
fn a_declared_form_is_recorded_and_only_then_offered_to_the_agent() {
    for (is_listed, offers) in [
        (true, json!({"protocolVersion": 1, "clientCapabilities": {"elicitation": {"form": {}}}})),
        (false, json!({"protocolVersion": 1, "clientCapabilities": {"elicitation": {"form": {}}}})),
        (false, json!({"protocolVersion": 2, "capabilities": {"elicitation": {"form": {}}}})),
    ] {
        let mut fixture = Fixture::new();
        if is_listed {
            fixture.gate.config.agent_methods.push("elicitation/create".into());
        }
        fixture.client_requests(0, "initialize", &offers);
        assert_eq!(fixture.take_seen().contains("elicitation"), is_listed);
    }
    let mut fixture = Fixture::with_turn();
    fixture.gate.config.agent_methods.push("elicitation/create".into());
    fixture.agent_requests(9, "elicitation/create", &json!({"sessionId": "s", "message": "name?"}));
    let seen = fixture.take_seen();
    assert!(seen.starts_with("log method.allowed allow\nc < "), "{seen}");
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 9, "result": {"action": "accept"}}));
    assert!(fixture.take_seen().starts_with("a < "));
    fixture.send_agent(
        &json!({"jsonrpc": "2.0", "method": "elicitation/complete", "params": {"elicitationId": "e"}}),
    );
    assert!(fixture.take_seen().contains("c < "));
}

#[test]
fn known_methods_pass_and_changes_are_recorded() {
    for (method, params, is_recorded) in [
        ("authenticate", json!({"methodId": "m"}), true),
        ("logout", json!({}), true),
        ("auth/login", json!({"methodId": "m"}), true),
        ("auth/logout", json!({}), true),
        ("tool_call/cancel", json!({"sessionId": "s", "toolCallId": "1"}), true),
        ("session/delete", json!({"sessionId": "s"}), true),
        ("session/delete", json!({"sessionId": "stored"}), true),
        ("session/close", json!({"sessionId": "stored"}), true),
        ("session/list", json!({}), false),
        ("session/cancel", json!({"sessionId": "s"}), false),
    ] {
        let mut fixture = Fixture::with_turn();
        fixture.client_requests(7, method, &params);
        let seen = fixture.take_seen();
        assert_eq!(seen.contains("log method.allowed allow"), is_recorded, "{method} {seen}");
        assert!(
            seen.contains(&format!("a < {{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"{method}\"")),
            "{seen}"
        );
    }
    for (method, params) in [
        ("session/cancel", json!({"sessionId": "s"})),
        ("$/cancel_request", json!({"requestId": 2})),
        ("mcp/message", json!({"serverId": "db", "method": "notifications/progress"})),
    ] {
        let mut fixture = Fixture::with_turn();
        fixture.send_client(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
        assert!(fixture.take_seen().contains(&format!("\"method\":\"{method}\"")), "{method}");
    }
}

#[test]
fn a_listed_name_does_not_replace_a_rule_of_the_gate() {
    let mut fixture = Fixture::with_turn();
    for method in ["session/prompt", "session/delete"] {
        fixture.gate.config.client_methods.push(method.into());
        fixture.send_client(&json!({"jsonrpc": "2.0", "method": method, "params": {"sessionId": "s"}}));
        assert_eq!(fixture.take_seen(), "log method.refused deny code=\"wrong_form\"");
    }
    fixture.gate.config.agent_methods.push("fs/write_text_file".into());
    fixture.agent_requests(
        9,
        "fs/write_text_file",
        &json!({"sessionId": "s", "path": "/etc/x", "content": ""}),
    );
    assert!(fixture.take_seen().contains("path_outside_root"));
}

#[test]
fn an_answer_with_a_member_named_method_passes() {
    let mut fixture = Fixture::with_turn();
    fixture.agent_requests(9, "_ask", &json!({"sessionId": "s"}));
    fixture.take_seen();
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": 9, "result": {"method": "_session/steering"}}));
    assert!(fixture.take_seen().starts_with("a < "));
}

/// If only some readers find a session in the params, the message must not count as a message without a
/// session.
#[test]
fn a_listed_method_must_name_its_session_unambiguously() {
    let raw =
        |id: &str, params: &str| format!(r#"{{"jsonrpc":"2.0",{id}"method":"_x/y","params":{params}}}"#);
    for params in [
        r#"{"sessionId":7}"#,
        r#"{"sessionId":["s"]}"#,
        r#"{"sessionId":{"id":"s"}}"#,
        r#"["s"]"#,
        "[]",
        r#"{"sessionId":"s","sessionId":"t"}"#,
    ] {
        for (id, of_agent) in [("\"id\":7,", false), ("", false), ("\"id\":7,", true), ("", true)] {
            let mut fixture = Fixture::with_turn();
            let line = raw(id, params);
            match of_agent {
                true => fixture.gate.handle_agent_message(
                    fixture.now,
                    View::parse(line.as_bytes()),
                    &mut fixture.output,
                ),
                false => fixture.gate.handle_client_message(
                    fixture.now,
                    View::parse(line.as_bytes()),
                    &mut fixture.output,
                ),
            }
            fixture.settle_events();
            let seen = fixture.take_seen();
            assert!(!seen.contains("_x/y"), "{line} {seen}");
            assert!(
                seen.contains("log method.refused deny code=\"ambiguous_params\"") || seen.contains("-32"),
                "{line} {seen}"
            );
        }
    }
    for params in [r#"{"sessionId":"s"}"#, "{}", r#"{"sessionId":null}"#] {
        let mut fixture = Fixture::with_turn();
        fixture.gate.handle_client_message(
            fixture.now,
            View::parse(raw("", params).as_bytes()),
            &mut fixture.output,
        );
        fixture.settle_events();
        assert!(fixture.take_seen().contains("log method.allowed"), "{params}");
    }
}

/// `narrows check` warns about exactly the protocol methods for which listing has no effect.
#[test]
fn names_without_effect_are_those_that_the_manifest_check_knows() {
    for row in METHODS {
        for (of_agent, key) in [(false, "client_methods"), (true, "agent_methods")] {
            let seen = |is_listed: bool| {
                ["\"id\":77,", ""].map(|id| {
                    let mut fixture = Fixture::with_turn();
                    if is_listed && of_agent {
                        fixture.gate.config.agent_methods.push(row.name.into());
                    } else if is_listed {
                        fixture.gate.config.client_methods.push(row.name.into());
                    }
                    let line = format!(
                        r#"{{"jsonrpc":"2.0",{id}"method":"{}","params":{{"sessionId":"s"}}}}"#,
                        row.name
                    );
                    match of_agent {
                        true => fixture.gate.handle_agent_message(
                            fixture.now,
                            View::parse(line.as_bytes()),
                            &mut fixture.output,
                        ),
                        false => fixture.gate.handle_client_message(
                            fixture.now,
                            View::parse(line.as_bytes()),
                            &mut fixture.output,
                        ),
                    }
                    fixture.settle_events();
                    fixture.take_seen()
                })
            };
            let has_effect = seen(true) != seen(false);
            assert_eq!(narrows_manifest::is_listable(key, row.name), has_effect, "{key} {}", row.name);
        }
    }
}

#[test]
fn a_message_of_the_client_with_a_key_in_another_case_reaches_no_agent() {
    for (method, params) in [
        ("session/new", json!({"cwd": "/work", "Cwd": "/", "mcpServers": []})),
        (
            "session/new",
            json!({"cwd": "/work", "mcpServers": [], "McpServers": [{"name": "x", "command": "id"}]}),
        ),
        ("session/set_mode", json!({"sessionId": "s", "modeId": "a", "ModeId": "b"})),
        ("session/prompt", json!({"sessionId": "s", "prompt": [], "Prompt": []})),
    ] {
        let mut fixture = Fixture::with_turn();
        fixture.client_requests(7, method, &params);
        let seen = fixture.take_seen();
        assert!(seen.contains("-32602") && seen.contains("ambiguous_params"), "{seen}");
        assert!(!seen.contains("a < "), "{method} {seen}");
    }
    let mut fixture = Fixture::with_turn();
    fixture.send_client(&json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s", "SessionId": "t"}}));
    assert_eq!(fixture.take_seen(), "log method.refused deny code=\"ambiguous_params\"");
    for key in ["Method", "Params", "ID"] {
        let line = json!({"jsonrpc": "2.0", "id": 7, "method": "_narrows/x", "params": {"sessionId": "s"}, key: "session/prompt"});
        fixture.send_client(&line);
        let seen = fixture.take_seen();
        assert!(seen.contains("-32600") && !seen.contains("a < "), "{key} {seen}");
    }
}

#[test]
fn a_message_of_the_agent_with_a_key_in_another_case_reaches_no_client() {
    let update = json!({"sessionUpdate": "agent_message_chunk", "SessionUpdate": "tool_call", "toolCallId": "z",
        "content": {"type": "text", "text": "x"}, "kind": "execute", "status": "completed"});
    let mut fixture = Fixture::with_turn();
    fixture.send_agent(&json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}));
    let seen = fixture.take_seen();
    assert!(seen.contains("ambiguous_params") && seen.contains("interrupted"), "{seen}");
    assert!(!seen.contains("tool_call"), "{seen}");
    let mut fixture = Fixture::with_turn();
    let call = json!({"toolCallId": "q", "kind": "read", "Kind": "execute", "rawInput": {"Path": "x"}});
    fixture.send_agent(&json!({"jsonrpc": "2.0", "id": 7, "method": "session/request_permission",
        "params": {"sessionId": "s", "toolCall": call, "options": []}}));
    let seen = fixture.take_seen();
    assert!(seen.contains("a < ") && seen.contains("-32602") && !seen.contains("c < "), "{seen}");
}

#[test]
fn members_of_meta_that_are_not_listed_do_not_reach_the_agent() {
    let claude =
        json!({"claudeCode": {"options": {"permissionMode": "bypassPermissions"}}, "traceparent": "00"});
    let mut fixture = Fixture::new();
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w/a", "mcpServers": [], "_meta": claude}));
    let seen = fixture.take_seen();
    assert!(seen.contains("log meta.refused") && seen.contains("traceparent"), "{seen}");
    assert!(!seen.contains("bypassPermissions"), "{seen}");
    let refused = fixture.output.events.iter().find(|event| event.action == "meta.refused").unwrap();
    assert_eq!(refused.input, Some(json!({"method": "session/new", "keys": ["claudeCode"]})));

    let mut fixture = Fixture::with_turn();
    fixture.client_requests(
        3,
        "_x/y",
        &json!({"sessionId": "s", "deep": {"_meta": {"x": "bypassPermissions"}}}),
    );
    let seen = fixture.take_seen();
    assert!(seen.contains("a < ") && !seen.contains("bypassPermissions"), "{seen}");

    let mut fixture = Fixture::new();
    fixture.gate.config.client_meta = vec!["claudeCode".into()];
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w/a", "mcpServers": [], "_meta": claude}));
    let seen = fixture.take_seen();
    assert!(seen.contains("bypassPermissions") && !seen.contains("meta.refused"), "{seen}");
    // Some readers ignore the case of keys.
    fixture.client_requests(2, "session/new", &json!({"cwd": "/w/a", "mcpServers": [], "_Meta": claude}));
    let seen = fixture.take_seen();
    assert!(seen.contains("-32602") && !seen.contains("a < "), "{seen}");
}
