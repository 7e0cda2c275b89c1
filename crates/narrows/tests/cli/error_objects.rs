//! Failures as JSON on stdout, even if nothing was started.

use serde_json::Value;

use crate::test_dir::TestDir;

/// Returns the last line that `args` print to stdout, and the exit code.
#[track_caller]
fn printed(args: &[&str]) -> (Value, Option<i32>) {
    let dir = TestDir::new();
    dir.file("prompt.json", "{}");
    let output = dir.narrows(args).output().expect("narrows starts");
    dir.assert_no_process_left();
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1, "{args:?} print {text:?}");
    assert!(!output.stderr.is_empty(), "{args:?} say nothing to people");
    (serde_json::from_str(lines[0]).expect("an object"), output.status.code())
}

const WRONG_RUNS: [&[&str]; 14] = [
    &["--policy", "nofile.toml", "hi"],
    &["--cwd", "nowhere", "hi"],
    &["--image", "nofile.png", "hi"],
    &["--image", "prompt.json", "hi"],
    &["--image", ".", "hi"],
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
fn an_invalid_image_is_refused_before_the_agent_starts() {
    let dir = TestDir::new();
    dir.file("shot.png", "no image");
    let told = dir.output_of(dir.run("touch started", &["--image", "shot.png", "hi"]));
    assert!(told.contains("it is not a PNG, JPEG, GIF or WebP image"), "{told}");
    assert!(told.ends_with("--- exit 2 ---\n") || told.contains("exit 2"), "{told}");
    assert!(!dir.path().join("started").exists(), "{told}");
}

/// Text of a peer must not control the terminal of a user who looks at the output.
#[test]
fn json_output_has_no_terminal_control_characters() {
    const HOSTILE: &str = "a\u{9b}2J\u{202e}\u{200b}\u{7f}\u{2066}b\u{e4}";
    let dir = TestDir::new();
    // TOML does not accept control characters.
    let written = HOSTILE.replace('\u{7f}', "\\u007f");
    dir.file("hostile.toml", &format!("[[turn]]\nsteps = [{{ say = \"{written}\" }}]\n"));
    for format in ["json", "events"] {
        let output = dir.run("narrows fake-agent hostile.toml", &["--output", format, "hi"]).output();
        let text = String::from_utf8(output.expect("narrows starts").stdout).expect("UTF-8");
        let found: Vec<char> =
            text.chars().filter(|c| HOSTILE.contains(*c) && !"2Jab\u{e4}".contains(*c)).collect();
        assert!(found.is_empty(), "{format}: {found:?} in {text:?}");
        let values: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let said = |value: &Value| {
            ["text", "finalText"]
                .iter()
                .any(|key| value[key].as_str().is_some_and(|text| text.contains(HOSTILE)))
        };
        assert!(values.iter().any(said), "{format}: {text}");
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
fn text_output_has_no_error_object() {
    let dir = TestDir::new();
    for args in
        [&["run", "--policy", "nofile.toml", "hi"][..], &["run", "--bogus"], &["acp", "--json=x", "--bogus"]]
    {
        let output = dir.narrows(args).output().expect("narrows starts");
        assert!(output.stdout.is_empty(), "{args:?} print {output:?}");
    }
}
