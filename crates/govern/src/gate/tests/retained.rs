//! Bytes that one gate retains, and entries that one connection adds to the log.

use std::fmt::{self, Write};
use std::sync::Arc;

use super::*;
use crate::config::Autonomy;
use crate::gate::retained::RetainedBytes;
use crate::gate::{SessionSlot, SessionSlots};

/// The budget in these tests.
const MAX_BYTES: usize = 1 << 20;
/// What the text of a gate has beside the bytes that are charged: field names, escapes, messages on their way.
const SLACK_BYTES: usize = 1 << 18;

/// Counts the bytes of a text without keeping it.
struct Count(usize);

impl Write for Count {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

/// The bytes of all that a gate has in its tables, found independently of what it has charged.
fn bytes_in(gate: &Gate) -> usize {
    let mut count = Count(0);
    write!(count, "{gate:?}").unwrap();
    count.0
}

fn scene_with(config: GateConfig) -> Scene {
    let mut scene = Scene::with(config, &["lead"]);
    scene.gate.retained = RetainedBytes::new(MAX_BYTES);
    scene
}

fn at_work(config: GateConfig) -> Scene {
    let mut scene = scene_with(config);
    scene.opened();
    scene
}

fn text() -> String {
    "x".repeat(16 << 10)
}

/// Runs `flood` 200 times, of 16 KiB each, and checks that the gate does not keep all of that.
#[track_caller]
fn check(mut scene: Scene, flood: impl Fn(&mut Scene, u64)) -> String {
    let mut seen = String::new();
    for number in 100..300 {
        flood(&mut scene, number);
        scene.sight.raw.clear();
        seen.push_str(&scene.seen());
    }
    let bytes = bytes_in(&scene.gate);
    assert!(bytes <= MAX_BYTES + SLACK_BYTES, "{bytes}");
    assert!(scene.gate.retained.used() <= MAX_BYTES + SLACK_BYTES, "{}", scene.gate.retained.used());
    scene.gate.handle_client_lost(scene.now, &mut scene.sight);
    scene.gate.pending_at_agent.drain();
    scene.gate.pending_at_client.drain();
    scene.gate.closed_sessions.clear();
    assert_eq!(scene.gate.retained.used(), 0, "each charge is released");
    seen
}

#[test]
fn calls_that_are_over_give_way_to_others() {
    let seen = check(at_work(config()), |scene, number| {
        scene.tool(&number.to_string(), "Read", "completed", &json!({"path": "/w/a", "note": text()}));
    });
    assert_eq!(seen.matches("log tool.call").count(), 200);
    assert!(!seen.contains("interrupted"), "no call is open");
}

#[test]
fn a_turn_is_stopped_whose_open_calls_take_too_much_memory() {
    let seen = check(at_work(config()), |scene, number| {
        scene.tool(&number.to_string(), "Read", "in_progress", &json!({"path": "/w/a", "note": text()}));
    });
    assert!(seen.contains("log request.refused deny code=\"too_much_retained\""), "{}", seen.len());
    assert!(seen.contains("log operator.interrupted") && seen.contains("session/cancel"));
    let shown = seen.matches("c < {").count();
    assert!((30..70).contains(&shown), "what does not fit is not shown: {shown}");
}

#[test]
fn ids_of_calls_and_terminals_and_lines_about_bare_calls_are_counted() {
    check(at_work(config()), |scene, number| {
        let id = format!("{number}{}", text());
        scene.update(&json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": "x"}));
    });
    check(at_work(config()), |scene, number| {
        let terminal = json!([{"type": "terminal", "terminalId": format!("{number}{}", text())}]);
        scene.update(&json!({"sessionUpdate": "tool_call", "toolCallId": number.to_string(), "title": "x",
            "kind": "read", "rawInput": {"path": "/w/a"}, "content": terminal}));
    });
}

#[test]
fn what_waits_for_an_approval_is_counted_and_refused_beyond_the_budget() {
    let seen = check(at_work(config()), |scene, number| {
        let params = json!({"sessionId": "s", "path": "/w/a", "content": text()});
        scene.wants(number, "fs/write_text_file", &params);
    });
    let asked = seen.matches("session/request_permission").count();
    assert!((5..30).contains(&asked), "{asked}");
    assert!(seen.contains("too_much_retained"));
    assert!(!seen.contains("\"method\":\"fs/write_text_file\""), "nothing is granted");
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    let seen = check(at_work(config()), |scene, number| {
        let call = json!({"toolCallId": number.to_string(), "kind": "edit", "rawInput": {"path": "/w/a", "n": text()}});
        let params = json!({"sessionId": "s", "toolCall": call, "options": options});
        scene.wants(number, "session/request_permission", &params);
    });
    assert!(seen.contains("too_much_retained") && !seen.contains("\"optionId\":\"y\""));
}

#[test]
fn prompts_that_wait_for_an_approval_are_counted() {
    let gated = GateConfig { autonomy: Autonomy::Gated, ..config() };
    let mut scene = scene_with(gated);
    scene.ask(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    scene.answer(1, &json!({"sessionId": "s"}));
    scene.seen();
    let seen = check(scene, |scene, number| {
        let prompt = json!([{"type": "text", "text": text()}]);
        scene.ask(number, "session/prompt", &json!({"sessionId": "s", "prompt": prompt}));
    });
    assert!(seen.contains("too_much_retained") && !seen.contains("a < "));
}

#[test]
fn ids_of_unanswered_requests_are_counted() {
    let scene = || {
        let mut scene = Scene::at_work();
        // The text of a gate has five bytes for each of a raw id.
        scene.gate.retained = RetainedBytes::new(MAX_BYTES / 8);
        scene
    };
    // Longer ones are no ids.
    let long = "x".repeat(4_000);
    let seen = check(scene(), |scene, number| {
        let id = format!("{number}{long}");
        scene.client(&json!({"jsonrpc": "2.0", "id": id, "method": "_x/y", "params": {"sessionId": "s"}}));
    });
    assert!(seen.contains("-32012"), "the client is told");
    let seen = check(scene(), |scene, number| {
        let id = format!("{number}{long}");
        scene.agent(&json!({"jsonrpc": "2.0", "id": id, "method": "_ask", "params": {"sessionId": "s"}}));
    });
    assert!(seen.contains("-32012"), "the agent is told");
}

#[test]
fn names_and_directories_of_sessions_are_counted() {
    let seen = check(scene_with(config()), |scene, number| {
        let name = format!("{number}{}", text());
        scene.ask(number, "session/resume", &json!({"sessionId": name, "cwd": "/w", "mcpServers": []}));
        scene.answer(number, &json!({}));
    });
    assert!(seen.contains("too many sessions are open"));
    check(scene_with(config()), |scene, number| {
        let more = vec![format!("/w/{}", "d".repeat(1_000)); 16];
        let params = json!({"cwd": "/w", "additionalDirectories": more, "mcpServers": []});
        scene.ask(number, "session/new", &params);
        scene.answer(number, &json!({"sessionId": number.to_string()}));
    });
}

#[test]
fn a_forgotten_call_is_decided_again() {
    let mut scene = at_work(config());
    scene.tool("denied", "Rm", "pending", &json!({"path": "/w/a"}));
    for number in 0..100 {
        scene.tool(&number.to_string(), "Read", "completed", &json!({"path": "/w/a", "note": text()}));
    }
    assert!(!scene.gate.sessions["s"].calls.contains_key("denied"));
    scene.seen();
    scene.tool("denied", "Rm", "in_progress", &json!({"path": "/w/a"}));
    let seen = scene.seen();
    assert!(seen.contains("log policy.resolved deny tool=\"Rm\""), "{seen}");
    assert!(seen.contains("it ran `Rm`, which was refused") && !seen.contains("c < "), "{seen}");
}

#[test]
fn a_session_can_be_closed_when_the_budget_is_used_up() {
    let mut scene = at_work(config());
    for number in 100..300 {
        let id = format!("{number}{}", "x".repeat(4_000));
        scene.client(&json!({"jsonrpc": "2.0", "id": id, "method": "_x/y", "params": {"sessionId": "s"}}));
    }
    assert!(scene.seen().contains("-32012"));
    scene.ask(7, "session/close", &json!({"sessionId": "s"}));
    assert!(scene.seen().contains("a < {\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"session/close\""));
}

/// Two sessions in all. Each has a clone of this.
#[derive(Debug, Default)]
struct TwoSessions(Arc<()>);

impl SessionSlots for TwoSessions {
    fn take(&self, _identity: &str) -> Option<SessionSlot> {
        let slot = Arc::clone(&self.0);
        (Arc::strong_count(&self.0) <= 3).then(|| Box::new(slot) as SessionSlot)
    }
}

#[test]
fn sessions_of_all_gates_together_are_limited() {
    let open = |scene: &mut Scene, number: u64| {
        scene.ask(number, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        scene.answer(number, &json!({"sessionId": number.to_string()}));
        scene.seen()
    };
    let slots = Arc::new(TwoSessions::default());
    let scene_of = || {
        let mut scene = Scene::new();
        scene.gate = scene.gate.with_session_slots(slots.clone());
        scene
    };
    let (mut one, mut other) = (scene_of(), scene_of());
    assert!(
        open(&mut one, 1).contains("operator.invoked") && open(&mut other, 1).contains("operator.invoked")
    );
    let seen = open(&mut other, 2);
    assert!(
        seen.contains("log session.refused deny code=\"session_limit\"") && !seen.contains("a < "),
        "{seen}"
    );
    assert!(seen.contains("-32012") && seen.contains("session limit of this identity reached"), "{seen}");
    let again = json!({"sessionId": "1", "cwd": "/w", "mcpServers": []});
    one.ask(3, "session/resume", &again);
    one.answer(3, &json!({}));
    assert!(!one.seen().contains("session_limit"), "an open session has its slot");
    one.ask(4, "session/close", &json!({"sessionId": "1"}));
    one.answer(4, &json!({}));
    assert!(open(&mut other, 5).contains("operator.invoked"), "a closed session has none");
    drop((one, other));
    assert_eq!(Arc::strong_count(&slots.0), 1);
}

#[test]
fn denied_calls_without_end_are_a_bounded_number_of_entries() {
    let mut scene = Scene::at_work();
    let before = scene.sight.events.len();
    let decisions = |scene: &Scene| {
        scene.sight.events[before..].iter().filter(|event| event.action == "policy.resolved").count()
    };
    for number in 0..900 {
        scene.tool(&number.to_string(), "Rm", "pending", &json!({"path": format!("/w/{number}")}));
    }
    assert_eq!((decisions(&scene), scene.seen().contains("interrupted")), (100, false));
    scene.tool("r", "Read", "pending", &json!({"path": "/w/a"}));
    assert_eq!(decisions(&scene), 101, "what is allowed is recorded");
    for number in 1_000..2_000 {
        scene.tool(&number.to_string(), "Rm", "pending", &json!({"path": format!("/w/{number}")}));
    }
    let seen = scene.seen();
    assert!(
        seen.contains("log operator.interrupted reason=\"too many of its tool calls were not allowed\""),
        "{seen}"
    );
    assert!(seen.contains("session/cancel"), "{seen}");
    assert!(decisions(&scene) <= 101, "{}", decisions(&scene));
    scene.pass(60);
    let counted = scene.sight.events.iter().rev().find_map(|event| event.metadata.get("count"));
    assert_eq!(counted, Some(&json!(901)), "until the turn is stopped");
}

#[test]
fn a_denied_request_is_answered_when_it_is_only_counted() {
    let mut scene = Scene::at_work();
    for number in 0..300 {
        let call = json!({"toolCallId": number.to_string(), "name": "Rm", "kind": "delete", "rawInput": {"path": "/w/a"}});
        let options = json!([{"optionId": "n", "kind": "reject_once"}]);
        let params = json!({"sessionId": "s", "toolCall": call, "options": options});
        scene.wants(number + 10, "session/request_permission", &params);
    }
    assert_eq!(scene.seen().matches("\"optionId\":\"n\"").count(), 300);
    let mut scene = Scene::at_work();
    for number in 0..300 {
        let request = ToolCheck {
            session: "s".into(),
            call: number.to_string(),
            server: None,
            tool: "Rm".into(),
            name: "Rm".into(),
            arguments: json!({"path": "/w/a"}),
        };
        scene.gate.check_tool(scene.now, number, request, &mut scene.sight);
        scene.commit();
    }
    assert_eq!(scene.seen().matches("advice ").count(), 300);
}
