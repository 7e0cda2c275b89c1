use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::chat::Call;

struct Run {
    out: Vec<Piece>,
    taken: Vec<ChunkOutcome>,
    result: Result<Completion, ErrorResponse>,
}

impl Run {
    fn completion(&self) -> &Completion {
        self.result.as_ref().expect("an answer")
    }

    fn problem(&self) -> &ErrorResponse {
        self.result.as_ref().expect_err("a problem")
    }

    fn shown(&self) -> (String, String, Vec<&str>) {
        let (mut text, mut thought, mut calling) = (String::new(), String::new(), Vec::new());
        for piece in &self.out {
            match piece {
                Piece::Text(piece) => text.push_str(piece),
                Piece::Thought(piece) => thought.push_str(piece),
                Piece::Calling { name } => calling.push(&**name),
            }
        }
        (text, thought, calling)
    }
}

fn run(events: &[impl AsRef<[u8]>]) -> Run {
    let mut assembly = Assembly::new();
    let (mut out, mut taken) = (Vec::new(), Vec::new());
    for event in events {
        match assembly.read_event(event.as_ref(), &mut out) {
            Ok(state) => taken.push(state),
            Err(problem) => return Run { out, taken, result: Err(problem) },
        }
    }
    let result = assembly.finish(&mut out);
    Run { out, taken, result }
}

fn delta(delta: &Value) -> String {
    json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "system_fingerprint": null,
        "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": null}]})
    .to_string()
}

fn end(reason: &str) -> String {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}).to_string()
}

/// Parses deltas up to the end and compares the shown pieces with the message.
#[track_caller]
fn check(deltas: &[Value], text: &str, thought: &str) {
    let mut events: Vec<String> = deltas.iter().map(delta).collect();
    events.push(end("stop"));
    let run = run(&events);
    assert_eq!(run.shown(), (text.to_owned(), thought.to_owned(), Vec::new()));
    let message = Assistant { text: text.to_owned(), reasoning: thought.to_owned(), ..Assistant::default() };
    assert_eq!(run.completion().message, message);
    assert_eq!(run.completion().finish, Finish::Stop);
}

#[test]
fn text_in_every_form() {
    check(
        &[json!({"role": "assistant", "content": ""}), json!({"content": "a"}), json!({"content": "b"})],
        "ab",
        "",
    );
    check(&[json!({"role": "assistant", "content": null}), json!({"content": "a\n\"é"})], "a\n\"é", "");
    check(&[json!({"role": "assistant", "content": "a"})], "a", "");
    check(&[json!({"content": [{"type": "text", "text": "a"}]}), json!({"content": "b"})], "ab", "");
    check(&[json!({"content": "a", "function_call": null, "tool_calls": null, "refusal": null})], "a", "");
}

#[test]
fn thoughts_in_every_form() {
    check(&[json!({"reasoning_content": "t", "content": null}), json!({"content": "a"})], "a", "t");
    check(&[json!({"reasoning": "t"}), json!({"content": "a", "reasoning": null})], "a", "t");
    check(&[json!({"reasoning": "t", "reasoning_content": "t"}), json!({"content": "a"})], "a", "t");
    check(
        &[json!({"content": "<thi"}), json!({"content": "nk>\nt</think>"}), json!({"content": "\n\na"})],
        "a",
        "t",
    );
    check(&[json!({"reasoning": "t"}), json!({"content": "<think>u</think>a"})], "a", "tu");
    check(
        &[json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}]})],
        "",
        "t",
    );
    check(&[json!({"content": "<"})], "<", "");
}

#[test]
fn the_state_of_a_stream() {
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#.to_owned();
    let run = run(&[
        r#"{"choices":[],"prompt_filter_results":[]}"#.to_owned(),
        delta(&json!({"content": "a"})),
        "nonsense".to_owned(),
        r#"{"type":"ping"}"#.to_owned(),
        end("stop"),
        usage,
        " [DONE]\n".to_owned(),
    ]);
    use ChunkOutcome::{Done, Finished, Going, Skipped};
    assert_eq!(run.taken, [Going, Going, Skipped, Skipped, Finished, Finished, Done]);
    assert_eq!(run.completion().usage, Some(Usage { input: 1, output: 2, total: 3, ..Usage::default() }));
}

#[test]
fn reasons_become_the_finish() {
    #[track_caller]
    fn check(reasons: &[&str], expected: Finish) {
        let mut events = vec![delta(&json!({"content": "a"}))];
        events.extend(reasons.iter().map(|reason| end(reason)));
        assert_eq!(run(&events).completion().finish, expected, "{reasons:?}");
    }
    check(&["stop"], Finish::Stop);
    check(&["length"], Finish::Length);
    check(&["content_filter"], Finish::Refusal);
    check(&["length", "stop"], Finish::Length);
    check(&["stop", "length"], Finish::Length);
    check(&["something_new"], Finish::Stop);
    check(&["tool_calls"], Finish::Stop);
    check(&[""], Finish::Stop);
}

#[test]
fn an_answer_without_an_end_was_cut() {
    let text = delta(&json!({"content": "a"}));
    let cut = run(&[&*text]);
    assert_eq!((cut.problem().kind, cut.problem().retryable), (ErrorKind::Cut, true));
    assert_eq!(cut.shown().0, "a");
    let done = run(&[&*text, "[DONE]"]);
    assert_eq!(done.completion().finish, Finish::Stop);
    // An empty reason with every chunk does not end the answer.
    let blank = json!({"choices": [{"delta": {"content": "a"}, "finish_reason": ""}]}).to_string();
    assert_eq!(run(&[&*blank, &*blank]).problem().kind, ErrorKind::Cut);
    assert_eq!(run(&[&*blank, &*text]).problem().kind, ErrorKind::Cut);
    // Text that was held back as a possible tag is shown at the end.
    let held = run(&[delta(&json!({"content": "<th"}))]);
    assert_eq!((held.shown().0.as_str(), held.problem().kind), ("<th", ErrorKind::Cut));
}

#[test]
fn a_stream_without_an_answer_is_garbage() {
    #[track_caller]
    fn check(events: &[&str], retryable: bool) {
        let run = run(events);
        assert_eq!(
            (run.problem().kind, run.problem().retryable),
            (ErrorKind::Garbage, retryable),
            "{events:?}"
        );
    }
    check(&[], true);
    check(&["[DONE]"], true);
    check(&["{\"choices\":[]}", "[DONE]"], false);
    check(&["{\"choices\":[{\"index\":1,\"delta\":{\"content\":\"x\"}}]}", "[DONE]"], false);
    check(&["{\"choices\":[{\"delta\":{}}]}", "[DONE]"], false);
    check(&["{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}", "[DONE]"], false);
    check(&["nonsense", "[]", "7", "{\"choices\":7}", "{\"a\":1}"], false);
}

#[test]
fn a_minimal_answer_is_accepted() {
    #[track_caller]
    fn check(events: &[&str]) {
        assert!(run(events).result.is_ok(), "{events:?}");
    }
    check(&[&end("stop")]);
    check(&[&end("length"), "[DONE]"]);
    check(&[&delta(&json!({"reasoning": "t"})), "[DONE]"]);
    check(&[&delta(&json!({"refusal": "no"})), "[DONE]"]);
    check(&[&call_chunk(""), "[DONE]"]);
    // Reasoning that is kept but not shown.
    let hidden = json!({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]});
    check(&[&delta(&hidden), "[DONE]"]);
}

#[test]
fn failures_in_every_form() {
    #[track_caller]
    fn check(event: &Value, kind: ErrorKind, message: &str) {
        let run = run(&[delta(&json!({"content": "a"})), event.to_string()]);
        assert_eq!((run.problem().kind, &*run.problem().message), (kind, message), "{event}");
        assert_eq!(run.shown().0, "a", "earlier text is kept");
    }
    check(&json!({"error": {"message": "m", "code": 500}}), ErrorKind::Provider, "m");
    check(&json!({"error": "m"}), ErrorKind::Provider, "m");
    check(&json!({"error": "m", "code": 429}), ErrorKind::RateLimit, "m");
    check(&json!([{"error": {"message": "m", "status": "INTERNAL"}}]), ErrorKind::Provider, "m");
    check(
        &json!({"error": {"message": "m", "code": 502},
            "choices": [{"delta": {"content": ""}, "finish_reason": "error"}]}),
        ErrorKind::Provider,
        "m",
    );
    check(
        &json!({"choices": [{"error": {"message": "m"}, "finish_reason": "error"}]}),
        ErrorKind::Provider,
        "m",
    );
    check(
        &json!({"choices": [{"delta": {"content": "m"}, "finish_reason": "error_finish"}]}),
        ErrorKind::Provider,
        "m",
    );
    let silent = "the provider aborted the answer";
    check(&json!({"choices": [{"delta": {}, "finish_reason": "error"}]}), ErrorKind::Provider, silent);
    check(&json!({"object": "error", "message": "m", "code": 400}), ErrorKind::Provider, "m");
    check(&json!({"detail": "m"}), ErrorKind::Provider, "m");
    check(
        &json!({"x_groq": {"id": "1", "error": {"message": "m"}}, "choices": []}),
        ErrorKind::Provider,
        "m",
    );
    check(&json!({"error": {"message": "m", "code": "context_length_exceeded"}}), ErrorKind::Overflow, "m");
}

#[test]
fn an_empty_error_field_is_ignored() {
    for error in [json!(null), json!({}), json!(""), json!(false)] {
        let event =
            json!({"error": error, "choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]});
        assert_eq!(run(&[event.to_string()]).completion().message.text, "a", "{error}");
    }
}

#[test]
fn only_the_first_choice_counts() {
    let events = [
        json!({"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "length"},
            {"index": 0, "delta": {"content": "a"}}]}),
        json!({"choices": [{"delta": {"content": "c"}, "finish_reason": "stop"}]}),
    ];
    let run = run(&events.map(|event| event.to_string()));
    assert_eq!(run.taken, [ChunkOutcome::Going, ChunkOutcome::Finished]);
    assert_eq!((run.shown().0.as_str(), run.completion().finish), ("ac", Finish::Stop));
}

#[test]
fn a_message_replaces_missing_deltas_but_does_not_repeat_them() {
    let message = |text: &str| json!({"choices": [{"message": {"content": text}}]}).to_string();
    let events = [message("a"), message("b"), end("stop")];
    assert_eq!(run(&events).completion().message.text, "ab");
    let events = [delta(&json!({"content": "a"})), message("a"), end("stop")];
    assert_eq!(run(&events).completion().message.text, "a");
    // Together sends the same text twice in one choice; older servers send only `text`.
    let both =
        json!({"choices": [{"text": "a", "delta": {"content": "a"}, "finish_reason": "eos"}]}).to_string();
    assert_eq!(run(&[both]).completion().message.text, "a");
    let old = json!({"choices": [{"text": "a", "finish_reason": "stop"}]}).to_string();
    assert_eq!(run(&[old]).completion().message.text, "a");
}

#[test]
fn a_whole_answer() {
    let body = json!({"id": "x", "object": "chat.completion", "choices": [{"index": 0, "message": {
        "role": "assistant", "content": "<think>t</think>a", "refusal": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
    let mut out = Vec::new();
    let mut assembly = Assembly::new();
    assembly.take_whole(format!("\u{feff}\n{body}\n").as_bytes(), &mut out).expect("an answer");
    let completion = assembly.finish(&mut out).expect("an answer");
    let call = Call { id: "c".into(), name: "f".into(), arguments: "{}".into(), ..Call::default() };
    let message =
        Assistant { text: "a".into(), reasoning: "t".into(), calls: vec![call], ..Assistant::default() };
    let usage = Some(Usage { input: 1, output: 1, total: 2, ..Usage::default() });
    assert_eq!(completion, Completion { message, finish: Finish::Calls, usage, broken_calls: Vec::new() });
    let pieces = [
        Piece::Thought("t".to_owned()),
        Piece::Text("a".to_owned()),
        Piece::Calling { name: "f".to_owned() },
    ];
    assert_eq!(out, pieces);
}

#[test]
fn a_whole_body_that_is_not_an_answer() {
    #[track_caller]
    fn check(body: &str, kind: ErrorKind) {
        let mut out = Vec::new();
        let mut assembly = Assembly::new();
        let taken = assembly.take_whole(body.as_bytes(), &mut out);
        let problem = taken.map_or_else(Err, |()| assembly.finish(&mut out)).expect_err("a problem");
        assert_eq!(problem.kind, kind, "{body}");
    }
    check(r#"{"error":{"message":"m"}}"#, ErrorKind::Provider);
    check(r#"[{"error":{"message":"m","code":401}}]"#, ErrorKind::Auth);
    check(r#"{"choices":[{"message":{"content":"a"#, ErrorKind::Garbage);
    check(r#"{"status":"ok"}"#, ErrorKind::Garbage);
}

fn call_chunk(arguments: &str) -> String {
    delta(&json!({"role": "assistant", "content": null, "tool_calls": [
        {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]}))
}

#[test]
fn calls_decide_the_finish() {
    #[track_caller]
    fn check(arguments: &str, reason: &str, finish: Finish, calls: usize, broken: usize) {
        let run = run(&[call_chunk(arguments), end(reason)]);
        let completion = run.completion();
        let found = (completion.finish, completion.message.calls.len(), completion.broken_calls.len());
        assert_eq!(found, (finish, calls, broken), "{arguments} {reason}");
        assert_eq!(run.shown().2, ["f"]);
    }
    check("{}", "tool_calls", Finish::Calls, 1, 0);
    check("{}", "stop", Finish::Calls, 1, 0);
    check("{}", "length", Finish::Calls, 1, 0);
    check("{\"a", "length", Finish::Length, 0, 1);
    check("", "length", Finish::Length, 0, 1);
    check("", "tool_calls", Finish::Calls, 1, 0);
    check("{\"a", "tool_calls", Finish::Calls, 1, 0);
    check("{}", "content_filter", Finish::Refusal, 0, 1);
}

#[test]
fn the_old_form_of_a_call() {
    let run = run(&[
        delta(&json!({"function_call": {"name": "f", "arguments": ""}})),
        delta(&json!({"function_call": {"arguments": "{\"a\""}})),
        delta(&json!({"function_call": {"arguments": ":1}"}})),
        end("function_call"),
    ]);
    let call = &run.completion().message.calls[0];
    assert_eq!((&*call.name, &*call.arguments, run.completion().finish), ("f", "{\"a\":1}", Finish::Calls));
    assert_eq!(run.shown().2, ["f"]);
}

#[test]
fn a_refusal_is_shown() {
    let run = run(&[delta(&json!({"refusal": "I "})), delta(&json!({"refusal": "will not."})), end("stop")]);
    assert_eq!((run.shown().0.as_str(), run.completion().finish), ("I will not.", Finish::Refusal));
}

#[test]
fn the_last_usage_counts() {
    let usage = |output: u64| json!({"prompt_tokens": 1, "completion_tokens": output});
    let with = |usage: &Value| json!({"choices": [{"delta": {"content": "a"}}], "usage": usage}).to_string();
    let groq = json!({"choices": [{"delta": {}, "finish_reason": "stop"}], "x_groq": {"usage": usage(3)}})
        .to_string();
    let outputs = |events: &[String]| run(events).completion().usage.as_ref().map(|usage| usage.output);
    assert_eq!(outputs(&[with(&usage(1)), with(&usage(2)), end("stop")]), Some(2));
    assert_eq!(outputs(&[with(&usage(1)), with(&Value::Null), end("stop")]), Some(1));
    assert_eq!(outputs(&[with(&usage(1)), groq]), Some(3));
    assert_eq!(outputs(&[end("stop"), json!({"usage": usage(4)}).to_string()]), Some(4));
}

#[test]
fn fields_to_send_back_are_kept() {
    let run = run(&[
        delta(
            &json!({"reasoning": "t", "reasoning_details": [{"type": "reasoning.text", "text": "t", "index": 0}]}),
        ),
        delta(
            &json!({"reasoning": "u", "reasoning_details": [{"type": "reasoning.text", "text": "u", "index": 0}]}),
        ),
        delta(&json!({"content": "a", "extra_content": {"google": {"thought_signature": "s"}}})),
        end("stop"),
    ]);
    let expected = json!({
        "reasoning_details": [{"type": "reasoning.text", "text": "tu", "index": 0}],
        "extra_content": {"google": {"thought_signature": "s"}},
    });
    assert_eq!(Value::Object(run.completion().message.extra.clone()), expected);
}

#[test]
fn nearly_valid_json_is_accepted() {
    let twice = r#"{"choices":[{"delta":{"content":"x","content":"a"},"delta":{"content":"a"}}]}"#;
    assert_eq!(run(&[twice, &*end("stop")]).completion().message.text, "a");
    let half = r#"{"choices":[{"delta":{"content":"a\ud83d"}}]}"#;
    assert_eq!(run(&[half, &*end("stop")]).completion().message.text, "a\u{fffd}");
    let wrong: &[u8] = b"{\"choices\":[{\"delta\":{\"content\":\"a\xff\"}}]}";
    assert_eq!(run(&[wrong, end("stop").as_bytes()]).completion().message.text, "a\u{fffd}");
}

fn pieces(text: &str, size: usize) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    letters.chunks(size).map(|piece| piece.iter().collect()).collect()
}

proptest! {
    #[test]
    fn an_answer_is_joined_for_any_split(
        thought in "\\PC{0,40}",
        text in "[^<\\s]\\PC{0,60}",
        arguments in proptest::option::of("\\PC{0,30}"),
        sizes in (1..9usize, 1..9usize, 1..9usize),
        mark in any::<bool>(),
    ) {
        let thought = if mark { thought.replace('<', "").trim().to_owned() } else { thought };
        let mut events = Vec::new();
        if mark {
            let answer = format!("<think>{thought}</think>\n{text}");
            events.extend(pieces(&answer, sizes.0).iter().map(|piece| delta(&json!({"content": piece}))));
        } else {
            events.extend(pieces(&thought, sizes.0).iter().map(|piece| delta(&json!({"reasoning": piece}))));
            events.extend(pieces(&text, sizes.1).iter().map(|piece| delta(&json!({"content": piece}))));
        }
        let arguments = arguments.map(|text| json!({"text": text}).to_string());
        if let Some(arguments) = &arguments {
            events.push(call_chunk(""));
            events.extend(pieces(arguments, sizes.2).iter().map(|piece| {
                delta(&json!({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}))
            }));
        }
        events.push(end("stop"));
        let run = run(&events);
        let message = &run.completion().message;
        let text = if mark { text.trim_start().to_owned() } else { text };
        prop_assert_eq!(&message.text, &text);
        prop_assert_eq!(&message.reasoning, &thought);
        prop_assert_eq!(message.calls.first().map(|call| &call.arguments), arguments.as_ref());
        let (shown_text, shown_thought, calling) = run.shown();
        prop_assert_eq!((shown_text, shown_thought), (text, thought));
        prop_assert_eq!(calling.len(), usize::from(arguments.is_some()));
    }

    #[test]
    fn any_data_is_handled_without_panic(events in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..8)) {
        drop(run(&events).result);
    }

    #[test]
    fn any_json_is_handled_without_panic(
        events in proptest::collection::vec(
            "(\\{\"(choices|delta|error|usage|tool_calls)\":|\\[|\\{\\}|\\]|\\}|null|\"a\"|1|,){0,16}", 0..6,
        ),
    ) {
        drop(run(&events).result);
    }
}
