//! Rendered output of events.

use serde_json::json;

use super::*;

fn renderer() -> Renderer {
    // Independent of the terminal that runs the tests.
    let renderer = Renderer::new(Output::Text, false);
    Renderer { on_terminal: true, watched: true, color: Color::off(), ..renderer }
}

fn event(mut event: Value) -> RuntimeEvent {
    event["atMs"] = 0.into();
    event["runId"] = "r".into();
    serde_json::from_value(event).expect("an event")
}

fn text(text: &str) -> RuntimeEvent {
    event(json!({"type": "assistant.delta", "textDelta": text}))
}

fn message() -> RuntimeEvent {
    event(json!({"type": "assistant.message", "message": {"text": "whatever"}}))
}

fn tool(name: &str) -> RuntimeEvent {
    event(json!({"type": "tool.call", "callId": "1", "toolName": name, "input": {"a": 1}}))
}

fn payload(payload: &Value) -> RuntimeEvent {
    event(json!({"type": "provider.event", "provider": "p", "payload": payload}))
}

fn render_all(mut renderer: Renderer, events: impl IntoIterator<Item = RuntimeEvent>) -> String {
    let mut pieces = VecDeque::new();
    for event in events {
        renderer.show(&event, &mut pieces).expect("short enough");
    }
    renderer.end_thought(&mut pieces);
    let text = |piece| match piece {
        OutputPiece::Text(text) => text,
        OutputPiece::LineEnd => "\n".to_owned(),
        OutputPiece::Note(note) => format!("[{note}]"),
        OutputPiece::Status(status) | OutputPiece::Alert(status) => format!("({status})"),
        OutputPiece::Rest => String::new(),
    };
    pieces.into_iter().map(text).collect()
}

#[track_caller]
fn check(events: impl IntoIterator<Item = RuntimeEvent>, expected: &str) {
    assert_eq!(render_all(renderer(), events), expected);
}

#[test]
fn chunks_are_joined_and_messages_separated() {
    check([text("a"), text("b")], "ab");
    check([text("a"), text("b"), message(), text("c")], "ab\nc");
    check([text("a"), tool("t"), text("b")], "a[tool: t {\"a\":1}]\nb");
    check([text("a\n"), tool("t"), text("b")], "a\n[tool: t {\"a\":1}]b");
    let replaced = json!({"type": "message.replaced", "role": "assistant", "messageId": "1", "text": "xy"});
    check([text("ab"), payload(&replaced), text("z")], "ab\nxy\nz");
}

#[test]
fn text_for_a_file_cannot_steer_the_terminal_that_shows_it_later() {
    let piped = || Renderer { on_terminal: false, ..renderer() };
    let said = |pieces: &[&str]| render_all(piped(), pieces.iter().map(|piece| text(piece)));
    assert_eq!(said(&["\u{1b}]0;owned\u{7}", "\u{9b}2Jü\tb\n"]), "\\u{1b}]0;owned\\u{7}\\u{9b}2Jü\tb\n");
    // A line end may be split, and a lone carriage return would overwrite the line.
    assert_eq!(said(&["a\r", "\nb\r\n"]), "a\r\nb\r\n");
    assert_eq!(said(&["good\r", "evil\r"]), "good\\u{d}evil");
}

#[test]
fn notes_are_short_and_escaped() {
    let thought = |text: &str| event(json!({"type": "assistant.reasoning.delta", "textDelta": text}));
    check([thought("I wonder\n"), thought(" why "), text("a")], "[thinking: I wonder why]a");
    check([thought(&"x".repeat(1000))], &format!("[thinking: {}…]", "x".repeat(MAX_THOUGHT_CHARS)));
    check([tool("\u{1b}[2J\nx")], "[tool: \\u{1b}[2J x {\"a\":1}]");
    check([text("\u{7}a")], "\\u{7}a");
    let titled = json!({
        "type": "tool.call", "callId": "1", "toolName": "t", "input": {},
        "raw": {"update": {"title": "Do it"}},
    });
    check([event(titled)], "[tool: Do it]");
    let image = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "image"}});
    check([payload(&json!({"type": "session.update", "update": image}))], "[(the answer contains an image)]");
}

#[test]
fn changes_show_only_differing_lines() {
    let change = json!({"type": "diff", "path": "/a", "oldText": "1\n2\n3", "newText": "1\ntwo\n3"});
    let result = json!({
        "type": "tool.result", "callId": "1", "output": {"status": "completed", "content": [&change]},
    });
    check([event(result)], "[changed: /a][- 2][+ two]");
    let failed = json!({"type": "tool.result", "callId": "1", "output": {"status": "failed"}});
    check([event(failed)], "[tool: failed]");
    for (status, expected) in [("interrupted", ""), ("failed", "[tool: failed]")] {
        let denied = json!({
            "type": "tool.result", "callId": "1", "output": {"status": status, "content": [change]},
        });
        check([event(denied)], expected);
    }
}

#[test]
fn refusals_are_shown_and_collected() {
    let asked = json!({"type": "permission.requested", "requestId": "1", "method": "m", "title": "Write /a"});
    let settled = |outcome: Value, by: &str| {
        let mut settled = json!({
            "type": "permission.resolved", "requestId": "1",
            "decision": {"by": by, "words": "deny: no rule"},
        });
        settled.as_object_mut().expect("an object").extend(outcome.as_object().cloned().unwrap_or_default());
        settled
    };
    let refused = json!({"outcome": "refused"});
    for (outcome, by, expected, denied) in [
        (refused.clone(), "policy", "[denied: Write /a (deny: no rule)]", 1),
        (
            refused.clone(),
            "nobody to ask",
            "[denied: Write /a (cannot ask for permission; deny: no rule)]",
            1,
        ),
        (refused, "answer", "[denied: Write /a (by you)]", 1),
        (
            json!({"outcome": "selected", "optionKind": "reject_once"}),
            "answer",
            "[denied: Write /a (by you)]",
            1,
        ),
        (json!({"outcome": "cancelled"}), "cancelled", "[denied: Write /a (cancelled)]", 0),
        (json!({"outcome": "selected", "optionKind": "allow_once"}), "policy", "", 0),
        (json!({"outcome": "allowed"}), "policy", "", 0),
    ] {
        let events = [payload(&asked.clone()), payload(&settled(outcome, by))];
        check(events.clone(), expected);
        let mut renderer = renderer();
        for event in &events {
            renderer.show(event, &mut VecDeque::new()).expect("short");
        }
        assert_eq!(renderer.denied().len(), denied, "{expected}");
    }
}

#[test]
fn progress_is_shown_on_a_terminal() {
    let status = |renderer: &Renderer| match renderer.status(3) {
        Some(OutputPiece::Status(status)) => status,
        other => format!("{other:?}"),
    };
    let mut renderer = renderer();
    assert_eq!(status(&renderer), "… working, 3 s");
    renderer.thought.push_str("hm");
    assert_eq!(status(&renderer), "… thinking, 3 s");
    let asked = json!({"type": "permission.requested", "requestId": "1", "method": "m", "title": "May I?"});
    renderer.show(&payload(&asked), &mut VecDeque::new()).expect("short");
    renderer.thought.clear();
    assert_eq!(status(&renderer), "None");
    let renderer = Renderer { watched: false, refusals: RefusalTracker::default(), ..renderer };
    assert_eq!(status(&renderer), "None");
}

#[test]
fn events_are_json_lines() {
    let renderer = Renderer { format: Output::Events, ..renderer() };
    let lines = render_all(renderer, [text("a"), message()]);
    let types: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["type"].clone())
        .collect();
    assert_eq!(types, ["assistant.delta", "assistant.message"]);
}

#[test]
fn kept_text_is_bounded() {
    let mut renderer = Renderer { format: Output::Json, ..renderer() };
    let mut pieces = VecDeque::new();
    let half = "x".repeat(MAX_TEXT_BYTES / 2);
    assert_eq!(renderer.show(&text(&half), &mut pieces), Ok(()));
    assert_eq!(renderer.show(&text(&half), &mut pieces), Ok(()));
    assert_eq!(renderer.show(&text("x"), &mut pieces), Err(TooLong));
    assert!(pieces.is_empty());
}

#[test]
fn plans_are_shown_on_a_terminal() {
    let plan = json!({"sessionUpdate": "plan", "entries": [{"content": "look", "status": "pending"}]});
    let plan = payload(&json!({"type": "session.update", "update": plan}));
    check([text("a"), plan.clone(), plan.clone(), text("b")], "a[plan: 0 of 1 done][  [ ] look]\nb");
    assert_eq!(render_all(Renderer { watched: false, ..renderer() }, [plan]), "");
}
