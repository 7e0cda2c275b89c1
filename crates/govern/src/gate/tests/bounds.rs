//! Tests of attempts of an agent or a client to evade the gate.

use super::*;
use crate::config::Autonomy;
use crate::gate::MAX_OPEN;

fn gated() -> GateConfig {
    GateConfig { autonomy: Autonomy::Gated, ..config() }
}

/// The agent sends a line that is not valid JSON.
fn raw(fixture: &mut Fixture, line: &str) {
    fixture.gate.handle_agent_message(fixture.now, View::parse(line.as_bytes()), &mut fixture.output);
    fixture.settle_events();
}

fn call(update: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":{update}}}}}"#)
}

#[test]
fn no_session_opens_and_no_turn_starts_beyond_the_limits() {
    for config in [config(), gated()] {
        let mut fixture = Fixture::with_config(config, &[]);
        for number in 0..MAX_OPEN {
            if number == MAX_OPEN - 1 {
                fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
            }
            let name = format!("n{number}");
            fixture.client_requests(
                1_000,
                "session/resume",
                &json!({"sessionId": name, "cwd": "/w", "mcpServers": []}),
            );
            fixture.agent_answers(1_000, &json!({}));
        }
        fixture.take_seen();
        fixture.agent_answers(1, &json!({"sessionId": "s"}));
        let seen = fixture.take_seen();
        assert!(seen.contains("log session.refused deny code=\"too_many_sessions\""), "{seen}");
        assert!(seen.contains("\"method\":\"session/close\",\"params\":{\"sessionId\":\"s\"}"), "{seen}");
        assert!(seen.contains("c < ") && seen.contains("-32012") && !seen.contains("invoked"), "{seen}");
        fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
        fixture.client_requests(3, "session/set_mode", &json!({"sessionId": "s", "modeId": "x"}));
        fixture.client_requests(4, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        let seen = fixture.take_seen();
        assert_eq!((seen.matches("-32012").count(), seen.contains("a < ")), (3, false), "{seen}");
        fixture.gate.handle_client_lost(fixture.now, &mut fixture.output);
        assert_eq!(fixture.take_seen().matches("log session.closed").count(), MAX_OPEN);
    }
}

#[test]
fn a_session_that_was_not_opened_here_gets_no_turn() {
    for config in [config(), gated()] {
        let mut fixture = Fixture::with_config(config, &[]);
        fixture.client_requests(1, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
        fixture.agent_updates(&json!({"sessionUpdate": "plan", "entries": []}));
        fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
        let seen = fixture.take_seen();
        assert_eq!((seen.matches("-32002").count(), seen.contains("a < ")), (2, false), "{seen}");
    }
}

#[test]
fn a_session_that_opens_too_late_is_closed_again() {
    let mut fixture = Fixture::new();
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    fixture.advance_clock(3_600);
    fixture.take_seen();
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    let seen = fixture.take_seen();
    assert!(seen.contains("session/close") && seen.contains("log request.late"), "{seen}");
    fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    assert!(!fixture.take_seen().contains("a < "));
}

#[test]
fn ambiguous_messages_are_not_passed_on() {
    for input in [
        r#"{"command":"rm -rf /","n":1e999}"#,
        r#"{"command":"rm -rf /","path":"/w/a","path":"/w/b"}"#,
        r#"{"command":"rm -rf /","c\u006fmmand":"ls"}"#,
    ] {
        let mut fixture = Fixture::with_turn();
        raw(
            &mut fixture,
            &call(&format!(
                r#"{{"sessionUpdate":"tool_call","toolCallId":"1","kind":"read","title":"x","status":"pending","rawInput":{input}}}"#
            )),
        );
        let seen = fixture.take_seen();
        assert!(seen.contains("log tool.refused deny code=\"ambiguous_call\""), "{seen}");
        assert!(seen.contains("log operator.interrupted") && seen.contains("session/cancel"), "{seen}");
        assert!(!seen.contains("c < ") && !seen.contains("policy.resolved"), "{seen}");
    }
    let mut fixture = Fixture::with_turn();
    raw(
        &mut fixture,
        r#"{"jsonrpc":"2.0","id":7,"method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"1","kind":"read","rawInput":{"path":"/w/a","path":"/w/b"}},"options":[{"optionId":"y","kind":"allow_once"}]}}"#,
    );
    let seen = fixture.take_seen();
    assert!(seen.contains("log tool.refused") && seen.contains("-32602") && !seen.contains("c < "), "{seen}");
    let mut fixture = Fixture::with_turn();
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    raw(
        &mut fixture,
        &call(&format!(r#"{{"sessionUpdate":"tool_call","toolCallId":"1","rawInput":{deep}}}"#)),
    );
    assert!(!fixture.take_seen().contains("c < "));
}

#[test]
fn foreign_marks_are_replaced() {
    let forged =
        json!({"aip44": {"operator": "x", "tier": "sandboxed", "identity": "user:root"}, "their": 1});
    let mut fixture = Fixture::new();
    let offers = json!({"fs": {"readTextFile": true}});
    fixture.client_requests(0, "initialize", &json!({"protocolVersion": 1, "clientCapabilities": offers}));
    fixture.agent_answers(
        0,
        &json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}, "_meta": forged}),
    );
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    fixture.agent_answers(1, &json!({"sessionId": "s", "_meta": forged}));
    let plan = json!({"sessionId": "s", "update": {"sessionUpdate": "plan", "entries": []}, "_meta": forged});
    fixture.send_agent(&json!({"jsonrpc": "2.0", "method": "session/update", "params": plan}));
    fixture.client_requests(5, "_x/y", &json!({"sessionId": "s"}));
    fixture.agent_answers(5, &json!({"_meta": forged}));
    fixture.agent_requests(
        6,
        "fs/read_text_file",
        &json!({"sessionId": "s", "path": "/w/a", "_meta": forged}),
    );
    let raw = std::mem::take(&mut fixture.output.raw);
    assert_eq!(raw.len(), 5, "{raw:?}");
    for (line, is_marked) in raw.iter().zip([true, true, true, false, false]) {
        let value: Value = serde_json::from_str(line).unwrap();
        let meta = value.pointer("/result/_meta").or_else(|| value.pointer("/params/_meta")).unwrap();
        assert_eq!((&meta["their"], meta.get("aip44").is_some()), (&json!(1), is_marked), "{line}");
        assert!(!line.contains("sandboxed") && !line.contains("user:root"), "{line}");
    }
    assert!(raw[0].contains("\"identity\":\"user:ada\""), "{}", raw[0]);
    fixture.take_seen();
    fixture.client_requests(7, "_x/y", &json!({"sessionId": "s", "_meta": forged}));
    assert!(!fixture.take_seen().contains("sandboxed"));
}

#[test]
fn duplicate_marks_are_refused() {
    let mut fixture = Fixture::with_turn();
    let meta = r#""_meta":{"aip44":{"tier":"sandboxed"}},"_meta":{}"#;
    fixture.client_requests(5, "_x/y", &json!({"sessionId": "s"}));
    fixture.take_seen();
    raw(&mut fixture, &format!(r#"{{"jsonrpc":"2.0","id":5,"result":{{{meta}}}}}"#));
    let seen = fixture.take_seen();
    assert!(seen.contains("c < ") && seen.contains("-32603") && !seen.contains("sandboxed"), "{seen}");
    raw(&mut fixture, &format!(r#"{{"jsonrpc":"2.0","id":6,"method":"_x/z","params":{{{meta}}}}}"#));
    let seen = fixture.take_seen();
    assert!(seen.starts_with("a < ") && seen.contains("-32602"), "{seen}");
    let update = format!(r#""sessionId":"s","update":{{"sessionUpdate":"plan"}},{meta}"#);
    raw(&mut fixture, &format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{{{update}}}}}"#));
    let seen = fixture.take_seen();
    assert!(seen.contains("log operator.interrupted") && !seen.contains("c < "), "{seen}");
}

#[test]
fn changes_of_mode_model_and_options_are_recorded_first() {
    for (method, tool, input) in [
        ("session/set_mode", "session.set_mode", json!({"modeId": "bypassPermissions"})),
        ("session/set_model", "session.set_model", json!({"modelId": "m"})),
        ("session/set_config_option", "session.set_config_option", json!({"configId": "mode", "value": "x"})),
    ] {
        let mut params = input.clone();
        params["sessionId"] = json!("s");
        for (answer, passes) in [("allow_once", true), ("reject_once", false)] {
            let mut fixture = Fixture::with_turn();
            fixture.client_requests(5, method, &params);
            let seen = fixture.take_seen();
            assert!(
                seen.contains(&format!("log policy.resolved require-approval tool=\"{tool}\"")),
                "{seen}"
            );
            assert!(!seen.contains("a < "), "{seen}");
            assert_eq!(fixture.output.events[1].input, Some(input.clone()));
            fixture.client_requests(5, method, &params);
            assert!(fixture.take_seen().contains("-32014"));
            fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
                {"outcome": {"outcome": "selected", "optionId": answer}}}));
            let seen = fixture.take_seen();
            assert_eq!(
                seen.contains(&format!("a < {{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"{method}\"")),
                passes
            );
            assert_eq!(seen.contains("-32015"), !passes, "{seen}");
            fixture.agent_answers(5, &json!({}));
            assert_eq!(fixture.take_seen().contains("c < "), passes);
        }
        let mut fixture = Fixture::with_turn();
        fixture.send_client(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
        assert_eq!(fixture.take_seen(), "log method.refused deny code=\"wrong_form\"");
    }
}

#[test]
fn a_mode_is_changed_only_if_allowed_and_recorded() {
    for (class, passes) in [(Class::Allow, true), (Class::Deny, false)] {
        let mut fixture = Fixture::with_turn();
        let clause =
            GovernanceRule::new("modes", "tool.call", class).with_subject("session.set_mode").unwrap();
        let policy = Policy::new(Access::High, Narrowing::default())
            .with_ruleset(GovernanceRuleset::new(vec![clause]));
        fixture.gate.authorizer = crate::authorizer::Authorizer::new(policy, "n");
        fixture.client_requests(5, "session/set_mode", &json!({"sessionId": "s", "modeId": "x"}));
        let seen = fixture.take_seen();
        assert_eq!((seen.contains("a < "), seen.contains("-32015")), (passes, !passes), "{seen}");
        if passes {
            fixture.settles_at_once = false;
            fixture.client_requests(6, "session/set_mode", &json!({"sessionId": "s", "modeId": "y"}));
            for seq in std::mem::take(&mut fixture.output.unsettled) {
                fixture.gate.handle_audit_result(fixture.now, seq, false, &mut fixture.output);
            }
            let seen = fixture.take_seen();
            assert!(seen.contains("-32017") && !seen.contains("a < "), "{seen}");
        }
    }
}

#[test]
fn undeclared_content_does_not_reach_the_agent() {
    for kind in ["image", "audio", "resource"] {
        let mut fixture = Fixture::with_turn();
        let prompt = json!([{"type": "text", "text": "x"}, {"type": kind}]);
        fixture.client_requests(3, "session/prompt", &json!({"sessionId": "s", "prompt": prompt}));
        let seen = fixture.take_seen();
        assert!(seen.contains("log prompt.refused deny code=\"undeclared_capability\""), "{seen}");
        assert!(seen.contains("-32602") && !seen.contains("a < "), "{seen}");
    }
}

#[test]
fn permission_requests_during_a_replay_are_refused() {
    let mut fixture = Fixture::new();
    fixture.gate.config.agent_methods.push("elicitation/create".into());
    fixture.client_requests(1, "session/load", &json!({"sessionId": "s", "cwd": "/w", "mcpServers": []}));
    fixture.take_seen();
    for (id, method, params) in [
        (5, "elicitation/create", json!({"sessionId": "s", "message": "password?"})),
        (6, "elicitation/create", json!({"message": "password?"})),
        (7, "_x/y", json!({"sessionId": "s"})),
    ] {
        fixture.agent_requests(id, method, &params);
        let seen = fixture.take_seen();
        assert!(seen.contains("log tool.refused deny code=\"replay\"") && seen.contains("-32015"), "{seen}");
        assert!(!seen.contains("c < "), "{seen}");
    }
    fixture.agent_answers(1, &json!({}));
    fixture.take_seen();
    fixture.agent_requests(8, "elicitation/create", &json!({"sessionId": "s", "message": "name?"}));
    let seen = fixture.take_seen();
    assert!(seen.starts_with("log method.allowed allow\nc < "), "{seen}");
}

#[test]
fn approvers_of_a_turn_see_its_prompt() {
    let mut fixture = Fixture::with_config(gated(), &[]);
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    let prompt = json!([{"type": "text", "text": "delete it all"}]);
    fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": prompt}));
    let open = fixture.gate.pending_approvals();
    assert_eq!(open[0].input["prompt"], "delete it all");
    assert_eq!(open[0].input["sha256"].as_str().map(str::len), Some(64));
    assert!(fixture.take_seen().contains("\"rawInput\":{\"prompt\":\"delete it all\""));
    let other = json!([{"type": "text", "text": "something else"}]);
    fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": other}));
    assert!(fixture.take_seen().contains("-32014"));
    fixture.send_client(&json!({"jsonrpc": "2.0", "id": "aip44:n:1", "result":
        {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}));
    let seen = fixture.take_seen();
    assert!(seen.contains("a < ") && seen.contains("delete it all"), "{seen}");
    let logged = fixture.output.events.iter().find(|event| event.action == "policy.resolved").unwrap();
    assert_eq!(logged.input, Some(open[0].input.clone()));
}

#[test]
fn a_denied_call_that_failed_with_a_result_was_attempted() {
    let failed = |more: &Value| {
        let mut update = json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "failed"});
        update.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        update
    };
    let check = |told: bool, more: Value, halts: bool| {
        let mut fixture = Fixture::with_turn();
        fixture.agent_calls("1", "Rm", "pending", &json!({"path": "/w/a"}));
        if told {
            let call =
                json!({"toolCallId": "1", "name": "Rm", "kind": "delete", "rawInput": {"path": "/w/a"}});
            let options = json!([{"optionId": "n", "kind": "reject_once"}]);
            let params = json!({"sessionId": "s", "toolCall": call, "options": options});
            fixture.agent_requests(7, "session/request_permission", &params);
        }
        fixture.take_seen();
        fixture.agent_updates(&failed(&more));
        let seen = fixture.take_seen();
        assert_eq!(seen.contains("it tried `Rm`, which was refused"), halts, "{told} {more} {seen}");
        assert!(!seen.contains("c < "), "{seen}");
    };
    check(false, json!({}), false);
    check(false, json!({"content": []}), false);
    check(false, json!({"rawOutput": {"deleted": 3}}), true);
    check(
        false,
        json!({"content": [{"type": "content", "content": {"type": "text", "text": "gone"}}]}),
        true,
    );
    check(true, json!({"rawOutput": "the user said no"}), false);
    check(true, json!({"rawOutput": "x", "rawInput": {"path": "/w/b"}}), true);
}

#[test]
fn a_refused_client_request_excuses_one_failed_call() {
    let mut fixture = Fixture::with_turn();
    fixture.agent_requests(
        7,
        "fs/write_text_file",
        &json!({"sessionId": "s", "path": "/etc/x", "content": ""}),
    );
    for (id, halts) in [("1", false), ("2", true)] {
        fixture.agent_calls(id, "Rm", "pending", &json!({"path": "/w/a"}));
        fixture.take_seen();
        let update = json!({"sessionUpdate": "tool_call_update", "toolCallId": id, "status": "failed",
            "rawOutput": "refused"});
        fixture.agent_updates(&update);
        fixture.agent_updates(&update);
        assert_eq!(fixture.take_seen().contains("interrupted"), halts);
    }
    let mut fixture = Fixture::with_turn();
    fixture.gate.config.asks_first = true;
    fixture.agent_calls("1", "Rm", "failed", &json!({"path": "/w/a"}));
    fixture.agent_updates(
        &json!({"sessionUpdate": "tool_call_update", "toolCallId": "1", "rawOutput": "no such tool"}),
    );
    assert!(!fixture.take_seen().contains("interrupted"));
}

#[test]
fn a_message_with_too_many_values_is_refused_before_it_is_read() {
    let many = format!("[{}0]", "0,".repeat(100_000));
    let mut fixture = Fixture::with_turn();
    let line = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"session/prompt","params":{{"sessionId":"s","prompt":{many}}}}}"#
    );
    fixture.gate.handle_client_message(fixture.now, View::parse(line.as_bytes()), &mut fixture.output);
    let seen = fixture.take_seen();
    assert!(seen.starts_with("c < ") && seen.contains("too many JSON values"), "{seen}");
    let line = format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":{{"sessionUpdate":"tool_call","toolCallId":"1","title":"x","rawInput":{many}}}}}}}"#
    );
    fixture.gate.handle_agent_message(fixture.now, View::parse(line.as_bytes()), &mut fixture.output);
    fixture.settle_events();
    let seen = fixture.take_seen();
    assert!(seen.contains("log operator.interrupted") && !seen.contains("rawInput"), "{seen}");
}

#[test]
fn a_session_has_a_bounded_number_of_directories_and_servers() {
    let directory = json!("/w/a");
    let server = json!({"type": "acp", "name": "x", "serverId": "y"});
    for (key, entry) in [("additionalDirectories", directory), ("mcpServers", server)] {
        let mut fixture = Fixture::new();
        let mut params = json!({"cwd": "/w/a", "mcpServers": []});
        params[key] = vec![entry; 65].into();
        fixture.client_requests(1, "session/new", &params);
        let seen = fixture.take_seen();
        assert!(seen.contains("has more than 64 entries") && !seen.contains("a < "), "{key}: {seen}");
    }
}

/// Writes the recorded events to a log. Returns the entries, whose number must be that of the events.
fn logged(fixture: &mut Fixture) -> Vec<narrows_audit::Entry> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.jsonl");
    let log = narrows_audit::Log::open(&path, narrows_audit::LogOptions::default()).unwrap();
    for event in std::mem::take(&mut fixture.output.events) {
        log.append(event).wait().unwrap();
    }
    let mut reader = narrows_audit::LogReader::open(&path, narrows_audit::Filter::default()).unwrap();
    std::iter::from_fn(|| reader.next_entry().unwrap()).collect()
}

#[test]
fn long_texts_of_a_peer_do_not_keep_entries_out_of_the_log() {
    let long = "X".repeat(5_000_000);
    let count = |entries: &[narrows_audit::Entry], action: &str| {
        entries.iter().filter(|entry| entry.action == action).count()
    };

    for (id, name) in [(&*long, "Bash"), ("1", &*long)] {
        let mut fixture = Fixture::with_turn();
        fixture.agent_calls(id, name, "in_progress", &json!({"command": "rm -rf /"}));
        assert_eq!(count(&logged(&mut fixture), "policy.resolved"), 1);
    }

    let mut fixture = Fixture::with_turn();
    let error = json!({"code": -32000, "message": long});
    fixture.send_agent(&json!({"jsonrpc": "2.0", "id": 2, "error": error}));
    assert_eq!(count(&logged(&mut fixture), "operator.interrupted"), 1);

    let mut fixture = Fixture::with_turn();
    fixture.client_requests(9, "session/prompt", &json!({"sessionId": long, "prompt": []}));
    let entries = logged(&mut fixture);
    assert_eq!(count(&entries, "session.refused"), 1);
    let session = entries.last().unwrap().session().unwrap();
    assert!(session.len() < 5000 && session.starts_with("(5000000 bytes, SHA-256 "), "{session}");
}

/// An agent names the facts of the gate as its secrets.
#[test]
fn an_agent_cannot_erase_facts_of_the_gate() {
    let mut fixture = Fixture::with_turn();
    let input = json!({"command": "ls", "password": "policy.resolved", "token": "Bash", "secret": "call-one",
        "api_key": "local", "passwd": "operator:notes", "pin": "notes", "auth_token": "governance-aware"});
    fixture.agent_calls("call-one", "Bash", "in_progress", &input);
    let expected = fixture.output.events.clone();
    let entries = logged(&mut fixture);
    assert!(entries.iter().any(|entry| entry.action == "policy.resolved"));
    for (event, entry) in expected.iter().zip(&entries) {
        assert_eq!(
            (&event.action, &event.actor, &event.subject),
            (&entry.action, &entry.actor, &entry.subject)
        );
        for (name, fact) in event.facts.iter().filter(|(name, _)| !matches!(*name, "reason" | "approval")) {
            assert_eq!(entry.aip44(name), Some(&fact.clone().into_value()), "{name}");
        }
    }
}
