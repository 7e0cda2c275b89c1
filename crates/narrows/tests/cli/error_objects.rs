//! Programs that read stdout find every failure there, also when nothing was started.

use serde_json::Value;

use crate::support::Place;

/// The last line of what `args` print to stdout, and the exit code.
#[track_caller]
fn printed(args: &[&str]) -> (Value, Option<i32>) {
    let place = Place::new();
    place.file("prompt.json", "{}");
    let output = place.narrows(args).output().expect("narrows starts");
    place.nothing_is_left();
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1, "{args:?} print {text:?}");
    assert!(!output.stderr.is_empty(), "{args:?} say nothing to people");
    (serde_json::from_str(lines[0]).expect("an object"), output.status.code())
}

const WRONG_RUNS: [&[&str]; 12] = [
    &["--policy", "nofile.toml", "hi"],
    &["--cwd", "nowhere", "hi"],
    &["--image", "nofile.png", "hi"],
    &["--mcp", "nofile.json", "hi"],
    &["--schema", "nofile.json", "hi"],
    &["--config", "nofile.toml", "hi"],
    &["--env", "NOT_SET_HERE", "hi"],
    &["--agent", "a 'b", "hi"],
    &["--log", "a=b=c", "hi"],
    &["@nofile"],
    &[],
    &["--no-such-flag", "hi"],
];

#[test]
fn a_run_with_wrong_arguments_prints_an_error_object() {
    for args in WRONG_RUNS {
        let (object, code) = printed(&[&["run", "--output", "json"], args].concat());
        assert_eq!(object["error"]["kind"], "usage", "{args:?} {object}");
        assert_eq!(object["error"]["exitCode"], 2, "{args:?} {object}");
        assert_ne!(object["error"]["message"], "", "{args:?} {object}");
        assert_eq!(object["text"], "", "{args:?} {object}");
        assert_eq!(code, Some(2));
    }
}

#[test]
fn a_run_with_wrong_arguments_prints_an_error_event() {
    for args in WRONG_RUNS {
        let (event, code) = printed(&[&["run", "--output", "events"], args].concat());
        assert_eq!(event["type"], "error", "{args:?} {event}");
        assert_eq!(event["code"], "usage", "{args:?} {event}");
        assert_eq!(code, Some(2));
    }
}

#[test]
fn every_command_with_json_output_prints_its_failures() {
    for (args, exit) in [
        (&["agents", "--json", "--config", "nofile.toml"][..], 2),
        (&["agents", "--json", "--probe", "no-such-program"], 5),
        (&["agents", "--json", "--bogus"], 2),
        (&["sessions", "--json", "--agent", "no-such-program"], 5),
        (&["sessions", "--json", "--config", "nofile.toml"], 2),
        (&["policy", "explain", "nofile.toml", "--json", "--kind", "read"], 2),
        (&["policy", "check", "--json", "nofile.toml"], 2),
        (&["policy", "test", "nofile.toml", "--json", "--events", "nofile.jsonl"], 2),
        (&["token", "list", "--json", "--file", "nofile.toml"], 2),
        (&["bus", "status", "--json", "--socket", "nowhere.sock"], 1),
        (&["audit", "verify", "--json", "nofile.jsonl"], 2),
        (&["audit", "show", "--format", "json", "nofile.jsonl"], 2),
        (&["check", "--json", "--no-such-flag"], 2),
        (&["serve", "--self-test", "--format", "json", "--no-such-flag"], 2),
    ] {
        let (object, code) = printed(args);
        assert!(object["error"]["message"].is_string(), "{args:?} {object}");
        assert_eq!(object["error"]["exitCode"], exit, "{args:?} {object}");
        assert_eq!(code, Some(exit), "{args:?}");
    }
}

#[test]
fn people_who_ask_for_text_get_no_object() {
    let place = Place::new();
    for args in
        [&["run", "--policy", "nofile.toml", "hi"][..], &["run", "--bogus"], &["acp", "--json=x", "--bogus"]]
    {
        let output = place.narrows(args).output().expect("narrows starts");
        assert!(output.stdout.is_empty(), "{args:?} print {output:?}");
    }
}
