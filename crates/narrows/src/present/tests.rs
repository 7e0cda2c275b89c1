//! What is shown of which events.

use serde_json::json;

use super::*;

fn presenter() -> Presenter {
    // Whatever the tests run in, what they say must not depend on it.
    let presenter = Presenter::new(Output::Text, false);
    Presenter { on_terminal: true, watched: true, colour: Colour::off(), ..presenter }
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

fn shown(mut presenter: Presenter, events: impl IntoIterator<Item = RuntimeEvent>) -> String {
    let mut pieces = VecDeque::new();
    for event in events {
        presenter.show(&event, &mut pieces).expect("short enough");
    }
    presenter.end_thought(&mut pieces);
    let text = |piece| match piece {
        Piece::Text(text) => text,
        Piece::LineEnd => "\n".to_owned(),
        Piece::Note(note) => format!("[{note}]"),
        Piece::Status(status) | Piece::Alert(status) => format!("({status})"),
        Piece::Rest => String::new(),
    };
    pieces.into_iter().map(text).collect()
}

#[track_caller]
fn check(events: impl IntoIterator<Item = RuntimeEvent>, expected: &str) {
    assert_eq!(shown(presenter(), events), expected);
}

#[test]
fn chunks_run_on_and_messages_do_not() {
    check([text("a"), text("b")], "ab");
    check([text("a"), text("b"), message(), text("c")], "ab\nc");
    check([text("a"), tool("t"), text("b")], "a[tool: t {\"a\":1}]\nb");
    check([text("a\n"), tool("t"), text("b")], "a\n[tool: t {\"a\":1}]b");
    let replaced = json!({"type": "message.replaced", "role": "assistant", "messageId": "1", "text": "xy"});
    check([text("ab"), payload(&replaced), text("z")], "ab\nxy\nz");
}

#[test]
fn text_for_a_file_cannot_steer_the_terminal_that_shows_it_later() {
    let piped = || Presenter { on_terminal: false, ..presenter() };
    let said = |pieces: &[&str]| shown(piped(), pieces.iter().map(|piece| text(piece)));
    assert_eq!(said(&["\u{1b}]0;owned\u{7}", "\u{9b}2Jü\tb\n"]), "\\u{1b}]0;owned\\u{7}\\u{9b}2Jü\tb\n");
    // An end of a line may come in two pieces, and a carriage return alone goes back over what stands there.
    assert_eq!(said(&["a\r", "\nb\r\n"]), "a\r\nb\r\n");
    assert_eq!(said(&["good\r", "evil\r"]), "good\\u{d}evil");
}

#[test]
fn what_stands_beside_is_short_and_safe() {
    let thought = |text: &str| event(json!({"type": "assistant.reasoning.delta", "textDelta": text}));
    check([thought("I wonder\n"), thought(" why "), text("a")], "[thinking: I wonder why]a");
    check([thought(&"x".repeat(1000))], &format!("[thinking: {}…]", "x".repeat(THOUGHT)));
    check([tool("\u{1b}[2J\nx")], "[tool: \\u{1b}[2J x {\"a\":1}]");
    check([text("\u{7}a")], "\\u{7}a");
    let titled = json!({
        "type": "tool.call", "callId": "1", "toolName": "t", "input": {},
        "raw": {"update": {"title": "Do it"}},
    });
    check([event(titled)], "[tool: Do it]");
    let image = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "image"}});
    check(
        [payload(&json!({"type": "session.update", "update": image}))],
        "[(the answer has an image in it)]",
    );
}

#[test]
fn changes_are_shown_by_what_differs() {
    let change = json!({"type": "diff", "path": "/a", "oldText": "1\n2\n3", "newText": "1\ntwo\n3"});
    let result = json!({
        "type": "tool.result", "callId": "1", "output": {"status": "completed", "content": [change]},
    });
    check([event(result)], "[changed: /a][- 2][+ two]");
    let failed = json!({"type": "tool.result", "callId": "1", "output": {"status": "failed"}});
    check([event(failed)], "[tool: failed]");
}

#[test]
fn what_was_refused_is_told_and_remembered() {
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
        (refused.clone(), "policy", "[refused: Write /a (deny: no rule)]", 1),
        (refused.clone(), "nobody to ask", "[refused: Write /a (nobody can be asked; deny: no rule)]", 1),
        (refused, "answer", "[refused: Write /a (you said no)]", 1),
        (
            json!({"outcome": "selected", "optionKind": "reject_once"}),
            "answer",
            "[refused: Write /a (you said no)]",
            1,
        ),
        (json!({"outcome": "cancelled"}), "cancelled", "[refused: Write /a (cancelled)]", 0),
        (json!({"outcome": "selected", "optionKind": "allow_once"}), "policy", "", 0),
        (json!({"outcome": "allowed"}), "policy", "", 0),
    ] {
        let events = [payload(&asked.clone()), payload(&settled(outcome, by))];
        check(events.clone(), expected);
        let mut presenter = presenter();
        for event in &events {
            presenter.show(event, &mut VecDeque::new()).expect("short");
        }
        assert_eq!(presenter.denied().len(), denied, "{expected}");
    }
}

#[test]
fn what_goes_on_is_told_to_whoever_watches() {
    let status = |presenter: &Presenter| match presenter.status(3) {
        Some(Piece::Status(status)) => status,
        other => format!("{other:?}"),
    };
    let mut presenter = presenter();
    assert_eq!(status(&presenter), "… working, 3 s");
    presenter.thought.push_str("hm");
    assert_eq!(status(&presenter), "… thinking, 3 s");
    let asked = json!({"type": "permission.requested", "requestId": "1", "method": "m", "title": "May I?"});
    presenter.show(&payload(&asked), &mut VecDeque::new()).expect("short");
    presenter.thought.clear();
    assert_eq!(status(&presenter), "None");
    let presenter = Presenter { watched: false, ledger: Ledger::default(), ..presenter };
    assert_eq!(status(&presenter), "None");
}

#[test]
fn events_are_lines() {
    let presenter = Presenter { format: Output::Events, ..presenter() };
    let lines = shown(presenter, [text("a"), message()]);
    let types: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["type"].clone())
        .collect();
    assert_eq!(types, ["assistant.delta", "assistant.message"]);
}

#[test]
fn kept_text_is_bounded() {
    let mut presenter = Presenter { format: Output::Json, ..presenter() };
    let mut pieces = VecDeque::new();
    let half = "x".repeat(MOST_TEXT / 2);
    assert_eq!(presenter.show(&text(&half), &mut pieces), Ok(()));
    assert_eq!(presenter.show(&text(&half), &mut pieces), Ok(()));
    assert_eq!(presenter.show(&text("x"), &mut pieces), Err(TooLong));
    assert!(pieces.is_empty());
}

#[test]
fn a_plan_is_shown_to_whoever_watches() {
    let plan = json!({"sessionUpdate": "plan", "entries": [{"content": "look", "status": "pending"}]});
    let plan = payload(&json!({"type": "session.update", "update": plan}));
    check([text("a"), plan.clone(), plan.clone(), text("b")], "a[plan: 0 of 1 done][  [ ] look]\nb");
    assert_eq!(shown(Presenter { watched: false, ..presenter() }, [plan]), "");
}
