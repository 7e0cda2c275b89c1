//! History that is replayed: shown as such, and nothing else.

use super::*;

/// A session that is being opened with its history.
fn opening(is_v2: bool) -> Scene {
    let mut scene = Scene::new();
    scene.gate.is_v2 = is_v2;
    replay(&mut scene, 1);
    scene.seen();
    scene
}

/// Asks for the history of a session as either version does.
fn replay(scene: &mut Scene, id: u64) {
    let mut params = json!({"sessionId": "s", "cwd": "/w", "mcpServers": []});
    if scene.gate.is_v2 {
        params["replayFrom"] = json!({"type": "start"});
    }
    scene.ask(id, if scene.gate.is_v2 { "session/resume" } else { "session/load" }, &params);
}

/// A call as either version tells of it.
fn tell(scene: &mut Scene, name: &str, kind: &str, status: &str) {
    let update = if scene.gate.is_v2 { "tool_call_update" } else { "tool_call" };
    scene.update(
        &json!({"sessionUpdate": update, "toolCallId": "1", "name": name, "kind": kind, "status": status,
        "title": "x", "rawInput": {"path": "/w/a"}}),
    );
}

fn permission(is_v2: bool) -> Value {
    let call = json!({"toolCallId": "1", "name": "Bash", "kind": "execute", "rawInput": {"command": "make"}});
    let mut params = json!({"sessionId": "s", "options": [{"optionId": "y", "kind": "allow_once"}]});
    if is_v2 {
        params["title"] = json!("x");
        params["subject"] = json!({"type": "tool_call", "toolCall": call});
    } else {
        params["toolCall"] = call;
    }
    params
}

#[test]
fn history_is_flagged_and_never_acted_on() {
    for is_v2 in [false, true] {
        let mut scene = opening(is_v2);
        tell(&mut scene, "Rm", "delete", "completed");
        scene.update(
            &json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}}),
        );
        let shown = std::mem::take(&mut scene.sight.seen);
        assert!(shown.iter().all(|line| line.starts_with("c < ")) && shown.len() == 2, "{shown:?}");
        assert!(scene.sight.events.is_empty());
        let raw = std::mem::take(&mut scene.sight.raw);
        let flags = raw.iter().filter(|line| line.contains("session/update"));
        assert!(flags.clone().all(|line| line.contains("\"replay\":true")) && flags.count() == 2, "{raw:?}");
        scene.answer(1, &json!({}));
        scene.seen();
        // What comes now is no history.
        scene.sight.raw.clear();
        scene.update(
            &json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}}),
        );
        assert!(!scene.sight.raw.concat().contains("replay"));
        tell(&mut scene, "Rm", "delete", "completed");
        assert!(scene.seen().contains("log policy.resolved deny"));
    }
}

#[test]
fn nothing_that_history_wants_is_done() {
    for is_v2 in [false, true] {
        let mut scene = opening(is_v2);
        scene.wants(5, "session/request_permission", &permission(is_v2));
        let seen = scene.seen();
        assert!(
            seen.starts_with("a < ") && seen.contains("cancelled") && scene.sight.events.is_empty(),
            "{seen}"
        );
        scene.wants(6, "fs/write_text_file", &json!({"sessionId": "s", "path": "/w/a", "content": "x"}));
        let seen = scene.seen();
        assert!(seen.contains("log tool.refused deny code=\"replay\"") && !seen.contains("c < "), "{seen}");
        let request = ToolCheck {
            session: "s".into(),
            call: "c".into(),
            server: None,
            tool: "Read".into(),
            name: "Read".into(),
            arguments: json!({}),
        };
        scene.gate.check_tool(scene.now, 1, request, &mut scene.sight);
        assert_eq!(scene.seen(), "advice 1: nothing is done while history is replayed");
        let calls = scene
            .sight
            .events
            .iter()
            .filter(|event| event.action == "tool.call" || event.action == "policy.resolved");
        assert_eq!(calls.count(), 0);
    }
}

#[test]
fn a_turn_cannot_pass_for_history() {
    for is_v2 in [false, true] {
        let mut scene = opening(is_v2);
        scene.ask(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
        let seen = scene.seen();
        assert!(seen.starts_with("c < ") && seen.contains("-32600"), "{seen}");
        scene.answer(1, &json!({}));
        scene.ask(3, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
        scene.seen();
        replay(&mut scene, 4);
        let seen = scene.seen();
        assert!(seen.starts_with("c < ") && seen.contains("a turn is under way"), "{seen}");
        // Without history it may be opened again, and is judged all the same.
        scene.ask(5, "session/resume", &json!({"sessionId": "s", "cwd": "/w", "mcpServers": []}));
        assert!(scene.seen().starts_with("a < "));
        tell(&mut scene, "Rm", "delete", "in_progress");
        assert!(scene.seen().contains("operator.interrupted"));
    }
}

#[test]
fn a_session_that_could_not_be_opened_is_none() {
    let mut scene = opening(false);
    tell(&mut scene, "Rm", "delete", "completed");
    scene.agent(&json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32002, "message": "no such session"}}));
    scene.seen();
    scene.gate.handle_client_lost(scene.now, &mut scene.sight);
    assert_eq!(scene.seen(), "");
}

#[test]
fn version_2_has_no_history_that_was_not_asked_for() {
    let mut scene = Scene::new();
    scene.gate.is_v2 = true;
    scene.ask(1, "session/resume", &json!({"sessionId": "s", "cwd": "/w", "mcpServers": []}));
    scene.seen();
    tell(&mut scene, "Rm", "delete", "in_progress");
    let raw = std::mem::take(&mut scene.sight.raw);
    assert!(raw.iter().all(|line| !line.contains("\"replay\":true")), "{raw:?}");
    assert!(!scene.sight.events.is_empty());
}

#[test]
fn an_agent_of_version_1_cannot_end_its_stop_by_an_update() {
    let mut scene = Scene::at_work();
    scene.update(
        &json!({"sessionUpdate": "tool_call", "toolCallId": "1", "name": "Rm", "kind": "delete", "title": "x",
        "status": "in_progress", "rawInput": {"path": "/w/a"}}),
    );
    let is_stopped =
        |scene: &Scene| scene.gate.sessions.get("s").is_some_and(|session| session.halted.is_some());
    assert!(is_stopped(&scene), "{}", scene.seen());
    scene.update(&json!({"sessionUpdate": "state_update", "state": "idle"}));
    assert!(is_stopped(&scene));
}
