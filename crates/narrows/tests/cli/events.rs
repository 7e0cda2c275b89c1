//! `narrows run` for programs: events on stdout, answers on stdin.

use serde_json::{Value, json};

use crate::test_dir::TestDir;

/// Returns the events, and the rest of the output.
fn events(told: &str) -> (Vec<Value>, &str) {
    let end = told.find("---").unwrap_or(told.len());
    let lines = told[..end].lines().map(|line| serde_json::from_str(line).expect("JSON"));
    (lines.collect(), &told[end..])
}

#[test]
fn all_events_of_a_turn_are_printed() {
    for protocol in ["1", "2"] {
        let dir = TestDir::new();
        let args = ["--protocol", protocol, "--output", "events", "Hi"];
        let told = dir.output_of(dir.run("narrows fake-agent hello", &args));
        let (events, rest) = events(&told);
        assert_eq!(rest, "--- exit 0 ---\n");
        let types: Vec<&Value> = events.iter().map(|event| &event["type"]).collect();
        let count = |name: &str| types.iter().filter(|kind| **kind == name).count();
        assert_eq!((types[0], types[types.len() - 1]), (&json!("run.started"), &json!("run.completed")));
        for (name, expected) in
            [("run.started", 1), ("run.completed", 1), ("tool.call", 1), ("tool.result", 1)]
        {
            assert_eq!(count(name), expected, "{protocol}: {name} in {types:?}");
        }
        let said: String =
            events.iter().filter_map(|event| Some(event["textDelta"].as_str()?.to_owned())).collect();
        let last = &events[events.len() - 1];
        assert_eq!(last["status"], "success");
        assert!(said.ends_with(last["finalText"].as_str().expect("a text")), "{protocol}: {said}");
        assert!(events.iter().all(|event| event["atMs"].is_u64() && event["runId"] == events[0]["runId"]));
    }
}

#[test]
fn output_before_the_prompt_is_shown_with_the_run_but_is_not_the_answer() {
    let dir = TestDir::new();
    let script = "name = 'welcome'\n[on]\nsession_new = [{ say = 'BEFORE' }, { reorder = true }, { say = 'AFTER' }]\n\
                  [[turn]]\nsteps = [{ say = 'the answer' }]\n";
    dir.file("welcome.toml", script);
    for protocol in ["1", "2"] {
        let output = |args: &[&str]| {
            let args = [&["--protocol", protocol, "--log", "off", "--model", "none"], args, &["Hi"]].concat();
            dir.output_of(dir.run("narrows fake-agent welcome.toml", &args))
        };
        let text = output(&[]);
        assert!(text.starts_with("the answer\n"), "{protocol}: {text}");
        let told = output(&["--output", "events"]);
        let (events, rest) = events(&told);
        assert_eq!(rest, "--- exit 0 ---\n");
        let (first, last) = (&events[0], &events[events.len() - 1]);
        assert_eq!((&first["type"], &last["finalText"]), (&json!("run.started"), &json!("the answer")));
        for kind in ["session.update", "config.rejected"] {
            assert!(events.iter().any(|event| event["payload"]["type"] == kind), "{protocol}: {told}");
        }
        for event in &events {
            assert_eq!(event["runId"], first["runId"], "{protocol}: {event}");
            assert!(event["atMs"].as_u64() >= first["atMs"].as_u64(), "{protocol}: {event}");
        }
    }
}

#[test]
fn a_program_answers_permission_requests() {
    let dir = TestDir::new();
    dir.file("ask.toml", "[[rule]]\neffect = \"ask\"\nkind = \"delete\"\n");
    let answer = |fields: Value| {
        let mut line = json!({"type": "permission.answer", "requestId": "perm_1"});
        line.as_object_mut().expect("an object").extend(fields.as_object().cloned().unwrap_or_default());
        format!("{line}\n")
    };
    for (input, outcome, by, exit) in [
        (answer(json!({"allow": true})), json!("allow_once"), "answer", 0),
        (answer(json!({"allow": false})), json!("reject_once"), "answer", 9),
        (answer(json!({"optionId": "allow_always"})), json!("allow_always"), "answer", 0),
        (answer(json!({"optionId": "invented"})), json!("reject_once"), "answer", 9),
        // At end of input the program cannot be asked, but it has denied nothing either.
        ("nonsense\n".to_owned(), json!("reject_once"), "nobody to ask", 9),
    ] {
        let args = ["--policy", "ask.toml", "--output", "events", "--input", "events", "--log", "off", "Go"];
        let told = dir.output_with_input(dir.run("narrows fake-agent ask", &args), input.as_bytes());
        let (events, rest) = events(&told);
        assert!(rest.ends_with(&format!("--- exit {exit} ---\n")), "{input}: {rest}");
        let resolved = events.iter().find(|event| event["payload"]["type"] == "permission.resolved");
        let resolved = &resolved.expect("an answer")["payload"];
        assert_eq!((&resolved["optionKind"], &resolved["decision"]["by"]), (&outcome, &json!(by)), "{input}");
    }
}

#[test]
fn a_program_cancels_the_turn() {
    let dir = TestDir::new();
    let args = ["--output", "events", "--input", "events", "Go"];
    let told =
        dir.output_with_input(dir.run("narrows fake-agent slow", &args), b"{\"type\":\"run.cancel\"}\n");
    let (events, rest) = events(&told);
    assert_eq!(rest, "--- stderr ---\nerror: cancelled\n--- exit 130 ---\n");
    assert_eq!(events[events.len() - 1]["status"], "cancelled");
}

#[test]
fn an_unavailable_setting_is_reported() {
    let dir = TestDir::new();
    let told =
        dir.output_of(dir.run("narrows fake-agent echo", &["--model", "best", "--mode", "fast", "Hi"]));
    assert!(told.contains("model \"best\" not set: "), "{told}");
    assert!(told.contains("mode \"fast\" not set: "), "{told}");
    assert!(told.starts_with("Hi\n") && told.ends_with("--- exit 0 ---\n"), "{told}");
    let told =
        dir.output_of(dir.run("narrows fake-agent echo", &["--model", "best", "--require-model", "Hi"]));
    assert!(told.ends_with("--- exit 1 ---\n"), "{told}");
}

#[test]
fn an_answer_matches_the_schema_or_is_an_error() {
    let dir = TestDir::new();
    dir.file("form.json", r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#);
    dir.file("good.toml", "[[turn]]\nsteps = [{ say = 'Here: {\"n\": 7}' }]\n");
    let output = |agent: &str| dir.output_of(dir.run(agent, &["--schema", "form.json", "Hi"]));
    assert_eq!(output("narrows fake-agent good.toml"), "{\n  \"n\": 7\n}\n--- exit 0 ---\n");
    dir.file("bad.toml", "[[turn]]\nsteps = [{ say = 'Seven.' }]\n");
    let formless = output("narrows fake-agent bad.toml");
    assert!(
        formless.starts_with("--- stderr ---\nerror: the answer does not match the schema after 1 retry: "),
        "{formless}"
    );
    assert!(formless.ends_with("--- exit 4 ---\n"), "{formless}");
}

/// All events of a run have the same ids, also an error after its end.
#[test]
fn an_answer_that_misses_the_schema_ends_with_an_error_event() {
    let dir = TestDir::new();
    dir.file("form.json", r#"{"type":"object","required":["n"]}"#);
    for (agent, args, message) in [
        ("hello", &["--schema", "form.json"][..], "the answer does not match the schema"),
        ("noisy", &[], "the answer is incomplete"),
    ] {
        let args = [args, &["--log", "off", "--output", "events", "Hi"]].concat();
        let told = dir.output_of(dir.run(&format!("narrows fake-agent {agent}"), &args));
        let (events, rest) = events(&told);
        assert!(rest.ends_with("--- exit 4 ---\n"), "{rest}");
        let [.., completed, error] = &events[..] else { panic!("{told}") };
        assert_eq!((&completed["type"], &completed["status"]), (&json!("run.completed"), &json!("success")));
        assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("limit")));
        assert!(error["message"].as_str().is_some_and(|text| text.starts_with(message)), "{error}");
        for id in ["runId", "sessionId"] {
            assert!(error[id].is_string() && error[id] == events[0][id], "{told}");
        }
    }
}
