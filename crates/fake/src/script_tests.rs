//! Valid scripts, and the errors for invalid ones.

use std::time::Duration;

use proptest::prelude::*;

use super::action::all;
use super::step::{Fault, Speaker, Step};
use super::*;

const DOCUMENTATION: &str = include_str!("../../../docs/reference/fake-agent-scripts.md");

fn refused(text: &str) -> String {
    Script::parse(text).expect_err("this is no script").to_string()
}

fn step(text: &str) -> Result<Step, ScriptError> {
    let script = Script::parse(&format!("[[turn]]\nsteps = [\n{text}\n]"))?;
    Ok(script.turns[0].steps[0].clone())
}

#[test]
fn an_empty_script_is_valid() {
    let script = Script::parse("").unwrap();
    assert_eq!(script.name, "narrows-fake");
    assert_eq!(script.protocol, Versions::Both);
    assert_eq!(script.capabilities, Capabilities::default());
    assert_eq!(script.turn("hello", 0), None);
}

#[test]
fn steps_are_parsed() {
    #[track_caller]
    fn check(text: &str, expected: &Step) {
        assert_eq!(step(text).as_ref(), Ok(expected), "{text}");
    }
    let say = |words, every| Step::Speak { speaker: Speaker::Message, text: "a b".to_owned(), words, every };
    check("{ say = 'a b' }", &say(false, None));
    check("{ say = 'a b', words = true }", &say(true, None));
    check("{ say = 'a b', every = '5ms' }", &say(true, Some(Duration::from_millis(5))));
    check("{ say = 'a b', every = '5ms', words = false }", &say(false, Some(Duration::from_millis(5))));
    check("{ pause = '1m' }", &Step::Pause(Duration::from_secs(60)));
    check("{ stop = '_tired' }", &Step::Stop("_tired".to_owned()));
    check("{ exit = 3 }", &Step::Fault(Fault::Exit(3)));
    check("{ giant_line = '80MiB' }", &Step::Fault(Fault::GiantLine(80 << 20)));
    check("{ flood = { updates = 0x10 } }", &Step::Fault(Fault::Flood { updates: 16, bytes: 100 }));
    check("{ ignore_cancel = false }", &Step::Fault(Fault::IgnoreCancel(false)));
    check("{ read = '/a' }", &Step::Read { path: "/a".to_owned(), line: None, limit: None });
    let update = serde_json::json!({"sessionUpdate": "_x", "n": [1, 0.5, true, "2026-11-15"]});
    check("{ update = { sessionUpdate = '_x', n = [1, 0.5, true, 2026-11-15] } }", &Step::Update(update));
}

#[test]
fn an_invalid_step_is_refused_with_its_line_and_a_hint() {
    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(step(text).expect_err(text).to_string(), expected, "{text}");
    }
    check("'hello'", "line 3: a step must be a table, such as { say = \"hello\" }");
    check("{ say = 1 }", "line 3: `say` must be a text in quotes, not 1");
    check(
        "{ pause = '1s' },\n{ say = 'a', word = true }",
        "line 4: `word` cannot be combined with `say`: it takes only words, every",
    );
    check(
        "{ pause = '1s', words = true }",
        "line 3: `words` cannot be combined with `pause`: it takes no other keys",
    );
    check(
        "{ say = 'a', think = 'b' }",
        "line 3: a step has one action: split `say` and `think` into two steps",
    );
    check("{ pause = true }", "line 3: `pause` must be a duration such as \"30s\", not true");
    check(
        "{ giant_line = '80XB' }",
        "line 3: `giant_line` cannot be \"80XB\": the unit must be `B`, `KiB`, `MiB` or `GiB`, or `kB`, `MB` or `GB` by \
         thousands",
    );
    check("{ hang = false }", "line 3: `hang` must be true, or left out, not false");
    check("{ exit = 256 }", "line 3: `exit` must be a whole number from 0 to 255, not 256");
    check("{ tool = { id = 'a' } }", "line 3: `title` is missing in [tool]");
    check(
        "{ tool_update = { id = 'a', status = 'done' } }",
        "line 3: `status` must be one of \"pending\", \"in_progress\", \"completed\", \"failed\", not \"done\"",
    );
    check(
        "{ write = { path = 'a', contents = 'b' } }",
        "line 3: unknown setting `contents` in [write]; did you mean `content`?",
    );
    check(
        "{ stop = 'done' }",
        "line 3: `stop` must be one of end_turn, max_tokens, max_turn_requests, refusal, cancelled, or begin with _, \
         not \"done\"",
    );
    check("{ terminal = { command = [] } }", "line 3: `command` must not be empty");
    check("{ ask = { title = 'a', options = [] } }", "line 3: `ask` needs at least one of `options`");
    check("{ update = { a = 1 } }", "line 3: `sessionUpdate` is missing in [update]");
    check(
        "{ repeat = { times = -1, steps = [] } }",
        "line 3: `times` must be a whole number, 0 or more, not -1",
    );
}

#[test]
fn an_unknown_step_is_refused_with_a_list_of_steps() {
    let message = step("{ says = 'hello' }").expect_err("no step").to_string();
    assert!(
        message.starts_with(
            "line 3: there is no step `says` (did you mean `say`?); a step is one of say, think"
        )
    );
    assert!(message.ends_with("stderr, orphan"), "{message}");
    assert!(
        step("{}")
            .expect_err("no step")
            .to_string()
            .starts_with("line 3: an empty step; a step is one of say")
    );
}

#[test]
fn an_invalid_script_is_refused_with_its_line_and_a_hint() {
    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(refused(text), expected, "{text}");
    }
    check("\nnames = 'x'", "line 2: unknown setting `names`; did you mean `name`?");
    check("[turn]\nsteps = []", "line 1: write [[turn]] with two brackets: it is a list");
    check("[[turn]]\nwhen = 'x'", "line 1: `steps` is missing in [turn]");
    check("[[turn]]\nsteps = 'x'", "line 2: `steps` must be a list, not \"x\"");
    check("protocol = [3]", "line 1: `protocol` must be a whole number from 1 to 2, not 3");
    check("protocol = []", "line 1: `protocol` must be [1], [2] or [1, 2]");
    check("session_id = 'x'", "line 1: `session_id` must contain {n}, so that ids are unique");
    check("[capabilities]\nload = 'yes'", "line 2: `load` must be true or false, not \"yes\"");
    check("auth = { name = 'x' }", "line 1: `id` is missing in [auth]");
    check("on.start = [\n{ say = 'x' }]", "line 2: `say` needs a session, but none exists here");
    check(
        "on.start = [{ error = { message = 'x' } }]",
        "line 1: `error` changes a response, and `start` has none",
    );
    check("on.session_new = [{ stop = 'refusal' }]", "line 1: `stop` is only allowed in a turn");
    check(
        "on.start = [{ repeat = { times = 1, steps = [\n{ say = 'x' }] } }]",
        "line 2: `say` needs a session, but none exists here",
    );
    assert!(
        refused("on.session_now = []")
            .starts_with("line 1: `on` has no `session_now` (did you mean `session_new`?)")
    );
    assert!(refused("name = 'a\n").starts_with("line 1: "));
    assert!(refused("a = 1\na = 2").starts_with("line 2: invalid TOML: duplicate key"));
}

#[test]
fn every_built_in_script_is_valid() {
    for (name, description) in Script::builtins() {
        let text = Script::builtin_source(name).unwrap();
        let script = Script::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(script.name, *name);
        assert!(Script::builtin(name).is_some());
        assert!(DOCUMENTATION.contains(&format!("| `{name}` | {description} |")), "{name} is not documented");
    }
    assert_eq!(Script::builtin("nothing"), None);
    assert_eq!(Script::builtin_source("nothing"), None);
}

#[test]
fn every_example_in_the_documentation_is_valid() {
    let mut examples = 0;
    let mut lines = DOCUMENTATION.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(kind) = line.strip_prefix("```toml") else { continue };
        let block: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
        let text = match kind {
            " steps" => format!("[[turn]]\nsteps = [\n{}\n]", block.join("\n")),
            _ => block.join("\n"),
        };
        if let Err(error) = Script::parse(&text) {
            panic!("the example on line {}: {error}\n{text}", number + 1);
        }
        examples += 1;
    }
    assert!(examples > 10);
}

#[test]
fn every_word_of_a_script_is_documented() {
    for action in all() {
        let key = format!("{} = ", action.name);
        assert!(
            DOCUMENTATION.contains(&format!("{{ {key}")),
            "there is no example of the step `{}`",
            action.name
        );
        for other_keys in action.other_keys {
            assert!(
                DOCUMENTATION.contains(&format!(", {other_keys} = ")),
                "there is no example of `{other_keys}`"
            );
        }
    }
    for (event, _) in Event::ALL {
        assert!(DOCUMENTATION.contains(&format!("`{event}`")), "`{event}` is not documented");
    }
}

proptest! {
    #[test]
    fn any_text_is_parsed_without_panic(text in ".{0,300}") {
        // Parsing must not panic.
        let _ = Script::parse(&text);
    }

    #[test]
    fn any_script_is_parsed_without_panic(
        key in "[a-z_]{1,12}",
        value in r#"(-?[0-9]{1,20}|"[a-z{}0-9]{0,9}"|true|\[[0-9, ]{0,5}\]|\{ [a-z]{1,5} = [0-9] \}|1e999|nan)"#,
        action in (0..all().count()).prop_map(|at| all().nth(at).map_or("", |action| action.name)),
    ) {
        for text in [
            format!("{key} = {value}"),
            format!("on.{key} = {value}"),
            format!("[[turn]]\nsteps = [{{ {action} = {value} }}]"),
            format!("[[turn]]\nsteps = [{{ {action} = {{ {key} = {value} }} }}]"),
            format!("[on]\nsession_new = [{{ repeat = {{ times = 1, steps = [{{ {action} = {value} }}] }} }}]"),
        ] {
            let _ = Script::parse(&text);
        }
    }
}
