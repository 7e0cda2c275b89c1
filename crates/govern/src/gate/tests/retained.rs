//! Tests of the bytes that one gate retains, and of the entries that one connection adds to the log.

use std::fmt::{self, Write};
use std::sync::Arc;

use super::*;
use crate::config::Autonomy;
use crate::gate::retained::RetainedBytes;
use crate::gate::{SessionSlot, SessionSlots};

const MAX_BYTES: usize = 1 << 20;
/// Maximum length of a gate's debug text beyond the charged bytes, for field names, escapes and messages on
/// their way.
const SLACK_BYTES: usize = 1 << 18;

/// A formatter target that counts the bytes of a text and drops the text.
struct Count(usize);

impl Write for Count {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

/// Returns the bytes in all tables of a gate, without using the gate's own charges.
fn bytes_in(gate: &Gate) -> usize {
    let mut count = Count(0);
    write!(count, "{gate:?}").unwrap();
    count.0
}

fn fixture_with(config: GateConfig) -> Fixture {
    let mut fixture = Fixture::with_config(config, &["lead"]);
    fixture.gate.retained = RetainedBytes::new(MAX_BYTES);
    fixture
}

fn turn_with_config(config: GateConfig) -> Fixture {
    let mut fixture = fixture_with(config);
    fixture.open_turn();
    fixture
}

fn text() -> String {
    "x".repeat(16 << 10)
}

/// Runs `flood` 200 times with 16 KiB each, and checks that the gate keeps only a part of the data.
#[track_caller]
fn check(mut fixture: Fixture, flood: impl Fn(&mut Fixture, u64)) -> String {
    let mut seen = String::new();
    for number in 100..300 {
        flood(&mut fixture, number);
        fixture.output.raw.clear();
        seen.push_str(&fixture.take_seen());
    }
    let bytes = bytes_in(&fixture.gate);
    assert!(bytes <= MAX_BYTES + SLACK_BYTES, "{bytes}");
    assert!(fixture.gate.retained.used() <= MAX_BYTES + SLACK_BYTES, "{}", fixture.gate.retained.used());
    fixture.gate.handle_client_lost(fixture.now, &mut fixture.output);
    fixture.gate.pending_at_agent.drain();
    fixture.gate.pending_at_client.drain();
    fixture.gate.closed_sessions.clear();
    assert_eq!(fixture.gate.retained.used(), 0, "each charge is released");
    seen
}

#[test]
fn finished_calls_are_forgotten_to_make_room() {
    let seen = check(turn_with_config(config()), |fixture, number| {
        fixture.agent_calls(
            &number.to_string(),
            "Read",
            "completed",
            &json!({"path": "/w/a", "note": text()}),
        );
    });
    assert_eq!(seen.matches("log tool.call").count(), 200);
    assert!(!seen.contains("interrupted"), "no call is open");
}

#[test]
fn a_turn_is_stopped_whose_open_calls_take_too_much_memory() {
    let seen = check(turn_with_config(config()), |fixture, number| {
        fixture.agent_calls(
            &number.to_string(),
            "Read",
            "in_progress",
            &json!({"path": "/w/a", "note": text()}),
        );
    });
    assert!(seen.contains("log request.refused deny code=\"too_much_retained\""), "{}", seen.len());
    assert!(seen.contains("log operator.interrupted") && seen.contains("session/cancel"));
    let shown = seen.matches("c < {").count();
    assert!((30..70).contains(&shown), "what does not fit is not shown: {shown}");
}

#[test]
fn ids_and_held_lines_are_charged() {
    check(turn_with_config(config()), |fixture, number| {
        let id = format!("{number}{}", text());
        fixture.agent_updates(&json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": "x"}));
    });
    check(turn_with_config(config()), |fixture, number| {
        let terminal = json!([{"type": "terminal", "terminalId": format!("{number}{}", text())}]);
        fixture.agent_updates(
            &json!({"sessionUpdate": "tool_call", "toolCallId": number.to_string(), "title": "x",
            "kind": "read", "rawInput": {"path": "/w/a"}, "content": terminal}),
        );
    });
}

#[test]
fn pending_approvals_are_charged_and_refused_beyond_the_budget() {
    let seen = check(turn_with_config(config()), |fixture, number| {
        let params = json!({"sessionId": "s", "path": "/w/a", "content": text()});
        fixture.agent_requests(number, "fs/write_text_file", &params);
    });
    let asked = seen.matches("session/request_permission").count();
    assert!((5..30).contains(&asked), "{asked}");
    assert!(seen.contains("too_much_retained"));
    assert!(!seen.contains("\"method\":\"fs/write_text_file\""), "nothing is granted");
    let options = json!([{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]);
    let seen = check(turn_with_config(config()), |fixture, number| {
        let call = json!({"toolCallId": number.to_string(), "kind": "edit", "rawInput": {"path": "/w/a", "n": text()}});
        let params = json!({"sessionId": "s", "toolCall": call, "options": options});
        fixture.agent_requests(number, "session/request_permission", &params);
    });
    assert!(seen.contains("too_much_retained") && !seen.contains("\"optionId\":\"y\""));
}

#[test]
fn prompts_that_wait_for_an_approval_are_counted() {
    let gated = GateConfig { autonomy: Autonomy::Gated, ..config() };
    let mut fixture = fixture_with(gated);
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    fixture.take_seen();
    let seen = check(fixture, |fixture, number| {
        let prompt = json!([{"type": "text", "text": text()}]);
        fixture.client_requests(number, "session/prompt", &json!({"sessionId": "s", "prompt": prompt}));
    });
    assert!(seen.contains("too_much_retained") && !seen.contains("a < "));
}

#[test]
fn ids_of_unanswered_requests_are_counted() {
    let fixture = || {
        let mut fixture = Fixture::with_turn();
        // Each byte of a raw id takes five bytes in the debug text of a gate.
        fixture.gate.retained = RetainedBytes::new(MAX_BYTES / 8);
        fixture
    };
    let long = "x".repeat(4_000);
    let seen = check(fixture(), |fixture, number| {
        let id = format!("{number}{long}");
        fixture.send_client(
            &json!({"jsonrpc": "2.0", "id": id, "method": "_x/y", "params": {"sessionId": "s"}}),
        );
    });
    assert!(seen.contains("-32012"), "the client gets an error");
    let seen = check(fixture(), |fixture, number| {
        let id = format!("{number}{long}");
        fixture
            .send_agent(&json!({"jsonrpc": "2.0", "id": id, "method": "_ask", "params": {"sessionId": "s"}}));
    });
    assert!(seen.contains("-32012"), "the agent gets an error");
}

#[test]
fn names_and_directories_of_sessions_are_counted() {
    let seen = check(fixture_with(config()), |fixture, number| {
        let name = format!("{number}{}", text());
        fixture.client_requests(
            number,
            "session/resume",
            &json!({"sessionId": name, "cwd": "/w", "mcpServers": []}),
        );
        fixture.agent_answers(number, &json!({}));
    });
    assert!(seen.contains("too many sessions are open"));
    check(fixture_with(config()), |fixture, number| {
        let more = vec![format!("/w/{}", "d".repeat(1_000)); 16];
        let params = json!({"cwd": "/w", "additionalDirectories": more, "mcpServers": []});
        fixture.client_requests(number, "session/new", &params);
        fixture.agent_answers(number, &json!({"sessionId": number.to_string()}));
    });
}

#[test]
fn a_forgotten_call_is_decided_again() {
    let mut fixture = turn_with_config(config());
    fixture.agent_calls("denied", "Rm", "pending", &json!({"path": "/w/a"}));
    for number in 0..100 {
        fixture.agent_calls(
            &number.to_string(),
            "Read",
            "completed",
            &json!({"path": "/w/a", "note": text()}),
        );
    }
    assert!(!fixture.gate.sessions["s"].calls.contains_key("denied"));
    fixture.take_seen();
    fixture.agent_calls("denied", "Rm", "in_progress", &json!({"path": "/w/a"}));
    let seen = fixture.take_seen();
    assert!(seen.contains("log policy.resolved deny tool=\"Rm\""), "{seen}");
    assert!(seen.contains("it ran `Rm`, which was refused") && !seen.contains("c < "), "{seen}");
}

#[test]
fn a_session_can_be_closed_when_the_budget_is_used_up() {
    let mut fixture = turn_with_config(config());
    for number in 100..300 {
        let id = format!("{number}{}", "x".repeat(4_000));
        fixture.send_client(
            &json!({"jsonrpc": "2.0", "id": id, "method": "_x/y", "params": {"sessionId": "s"}}),
        );
    }
    assert!(fixture.take_seen().contains("-32012"));
    fixture.client_requests(7, "session/close", &json!({"sessionId": "s"}));
    assert!(fixture.take_seen().contains("a < {\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"session/close\""));
}

/// A limit of two sessions. Each session holds a clone of the `Arc`.
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
    let open = |fixture: &mut Fixture, number: u64| {
        fixture.client_requests(number, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        fixture.agent_answers(number, &json!({"sessionId": number.to_string()}));
        fixture.take_seen()
    };
    let slots = Arc::new(TwoSessions::default());
    let scene_of = || {
        let mut fixture = Fixture::new();
        fixture.gate = fixture.gate.with_session_slots(slots.clone());
        fixture
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
    one.client_requests(3, "session/resume", &again);
    one.agent_answers(3, &json!({}));
    assert!(!one.take_seen().contains("session_limit"), "an open session has its slot");
    one.client_requests(4, "session/close", &json!({"sessionId": "1"}));
    one.agent_answers(4, &json!({}));
    assert!(open(&mut other, 5).contains("operator.invoked"), "a closed session has none");
    drop((one, other));
    assert_eq!(Arc::strong_count(&slots.0), 1);
}

#[test]
fn the_number_of_recorded_denied_calls_is_bounded() {
    let mut fixture = Fixture::with_turn();
    let before = fixture.output.events.len();
    let decisions = |fixture: &Fixture| {
        fixture.output.events[before..].iter().filter(|event| event.action == "policy.resolved").count()
    };
    for number in 0..900 {
        fixture.agent_calls(&number.to_string(), "Rm", "pending", &json!({"path": format!("/w/{number}")}));
    }
    assert_eq!((decisions(&fixture), fixture.take_seen().contains("interrupted")), (100, false));
    fixture.agent_calls("r", "Read", "pending", &json!({"path": "/w/a"}));
    assert_eq!(decisions(&fixture), 101, "an allowed call is recorded");
    for number in 1_000..2_000 {
        fixture.agent_calls(&number.to_string(), "Rm", "pending", &json!({"path": format!("/w/{number}")}));
    }
    let seen = fixture.take_seen();
    assert!(
        seen.contains("log operator.interrupted reason=\"too many of its tool calls were not allowed\""),
        "{seen}"
    );
    assert!(seen.contains("session/cancel"), "{seen}");
    assert!(decisions(&fixture) <= 101, "{}", decisions(&fixture));
    fixture.advance_clock(60);
    let counted = fixture.output.events.iter().rev().find_map(|event| event.metadata.get("count"));
    assert_eq!(counted, Some(&json!(901)), "until the turn is stopped");
}

#[test]
fn a_denied_request_is_answered_when_it_is_only_counted() {
    let mut fixture = Fixture::with_turn();
    for number in 0..300 {
        let call = json!({"toolCallId": number.to_string(), "name": "Rm", "kind": "delete", "rawInput": {"path": "/w/a"}});
        let options = json!([{"optionId": "n", "kind": "reject_once"}]);
        let params = json!({"sessionId": "s", "toolCall": call, "options": options});
        fixture.agent_requests(number + 10, "session/request_permission", &params);
    }
    assert_eq!(fixture.take_seen().matches("\"optionId\":\"n\"").count(), 300);
    let mut fixture = Fixture::with_turn();
    for number in 0..300 {
        let request = ToolCheck {
            session: "s".into(),
            call: number.to_string(),
            server: None,
            tool: "Rm".into(),
            name: "Rm".into(),
            arguments: json!({"path": "/w/a"}),
        };
        fixture.gate.check_tool(fixture.now, number, request, &mut fixture.output);
        fixture.settle_events();
    }
    assert_eq!(fixture.take_seen().matches("advice ").count(), 300);
}
