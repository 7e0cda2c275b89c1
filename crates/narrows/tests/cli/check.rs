//! `narrows check` of bus configurations.

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::test_dir::TestDir;

const GOOD: &str = r#"
[[listen]]
url = "tcp://127.0.0.1:0"

[[pool]]
command = ["sh", "-c", "cat"]
mix_identities = true
env = { KEY = "hunter2" }
"#;

const BAD: &str = r#"
[[listen]]
url = "tcp://0.0.0.0:9000"

[[pool]]
command = ["sh"]
instancse = 2

[limits]
max_line = "64Mib"
stall_timeout = 30
"#;

fn check(dir: &TestDir, args: &[&str]) -> String {
    dir.output_of(dir.narrows(["check"].iter().chain(args)))
}

#[test]
fn every_file_is_reported() {
    let dir = TestDir::new();
    dir.file("good.toml", GOOD);
    dir.file("bad.toml", BAD);
    dir.file("bus.json", r#"{"pools": [{"id": "a", "command": "/nowhere/agent", "instances": 2}]}"#);
    assert_snapshot!(check(&dir, &["good.toml"]), @r#"
    good.toml: 1 pool, 1 listener
    --- stderr ---
    warning: good.toml:7:18: `mix_identities` has an effect only with share = "all"
    --- exit 0 ---
    "#);
    assert_snapshot!(check(&dir, &["bad.toml", "bus.json", "missing.toml", "good.toml"]), @r#"
    good.toml: 1 pool, 1 listener
    --- stderr ---
    error: bad.toml:3:7: `url` cannot be "tcp://0.0.0.0:9000": only 127.0.0.1, [::1] and localhost are allowed, because every client may use the agents; for other machines use https:// or wss:// with `auth`
    error: bad.toml:7:1: unknown setting `instancse` in [pool]
    hint: did you mean `instances`?
    error: bus.json:1:35: `command` cannot be started: program "/nowhere/agent" not found
    hint: install it, or write its path; a relative path starts from `cwd`, or from the current directory
    error: check: cannot read "missing.toml"
      because: No such file or directory (os error 2)
    hint: use an existing file, or a directory with manifests
    warning: good.toml:7:18: `mix_identities` has an effect only with share = "all"
    --- exit 2 ---
    "#);
}

#[test]
fn json_output_has_one_object_per_file() {
    let dir = TestDir::new();
    dir.file("good.toml", GOOD);
    dir.file("bad.toml", BAD);
    let told = check(&dir, &["--json", "--verbose", "good.toml", "bad.toml", "missing.toml"]);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!((lines.len(), lines[3]), (4, "--- exit 2 ---"), "{told}");
    let objects: Vec<Value> = lines[..3].iter().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(objects[0]["warnings"][0]["line"], 7);
    assert_eq!(objects[0]["settings"]["limits"]["max_connections"], 20_000);
    assert_eq!(objects[0]["settings"]["pool"][0]["env"], json!({"KEY": "(hidden)"}));
    assert_eq!(objects[1]["mistakes"][1]["hint"], "did you mean `instances`?");
    assert_eq!(objects[1]["mistakes"][1]["column"], 1);
    assert_eq!((&objects[1]["ok"], &objects[2]["ok"]), (&json!(false), &json!(false)));
    let missing = &objects[2]["mistakes"][0];
    assert!(missing["message"].as_str().is_some_and(|error| error.contains("missing.toml")), "{told}");
    assert_eq!((&missing["line"], &objects[2]["warnings"]), (&json!(1), &json!([])), "{told}");
}

#[test]
fn the_effective_settings_are_a_valid_file() {
    let dir = TestDir::new();
    dir.file("good.toml", &GOOD.replace("mix_identities = true", ""));
    let told = check(&dir, &["-v", "good.toml"]);
    let file = told.strip_suffix("--- exit 0 ---\n").expect(&told);
    assert!(file.contains("queue_bytes = \"8MiB\"") && !file.contains("hunter2"), "{file}");
    // The values of environment variables are hidden, so users have to fill them in.
    let hidden = "# KEY = \"(hidden)\"\n";
    assert!(file.contains(hidden), "{file}");
    dir.file("again.toml", file);
    let again = check(&dir, &["-v", "again.toml"]);
    assert_eq!(again.replace("again.toml", "good.toml"), told.replace(hidden, ""));
}

#[test]
fn the_settings_of_the_page_are_valid() {
    const PAGE: &str = include_str!("../../../../docs/reference/bus-toml.md");
    let dir = TestDir::new();
    let blocks: Vec<&str> =
        PAGE.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let whole: Vec<&&str> = blocks.iter().filter(|block| block.contains("[[pool]]")).collect();
    assert!(!whole.is_empty());
    for block in whole {
        // The programs of the example need not exist here.
        let block = block.replace("\"narrows\", \"acp\"", "\"sh\"").replace("mcp-server-files", "sh");
        dir.file("page.toml", &block);
        let told = check(&dir, &["page.toml"]);
        assert!(told.ends_with("--- exit 0 ---\n"), "{told}");
        assert!(!told.contains("warning"), "{told}");
    }
    // Every setting has a line.
    let minimal = "[[listen]]\nurl = \"stdio:\"\n[[pool]]\ncommand = [\"sh\"]\ncwd = \".\"\nmemory = \"1GiB\"\npids = 9\n[admin]\nsocket = \"a\"\nport = 1\n";
    dir.file("all.toml", minimal);
    let told = check(&dir, &["--json", "--verbose", "all.toml"]);
    let object: Value = serde_json::from_str(told.lines().next().expect(&told)).expect(&told);
    for table in ["limits", "admin"]
        .map(|name| &object["settings"][name])
        .into_iter()
        .chain([&object["settings"]["pool"][0], &object["settings"]["listen"][0]])
    {
        for key in table.as_object().expect("a table").keys() {
            assert!(PAGE.contains(&format!("| `{key}` |")), "`{key}` is not on the page");
        }
    }
}

#[test]
fn other_files_are_recognized_by_their_content() {
    let dir = TestDir::new();
    dir.file("mine.toml", "[endpoint.a]\nbase-url = \"http://localhost/v1\"\nmodle = \"m\"\n[agents.b]\ncommand = \"b\"\nmodes = 1\n");
    dir.file("old.toml", "[agents.a]\ncommand = \"narrows acp\"\npass-env = [\"A\"]\n");
    dir.file("rules.txt", "[[rule]]\neffect = \"deny\"\ncomand = \"git push\"\n");
    dir.file("other.toml", "[package]\nname = \"a\"\n");
    assert_snapshot!(check(&dir, &["mine.toml", "old.toml", "rules.txt", "other.toml"]), @r"
    old.toml: valid
    --- stderr ---
    error: mine.toml:3:1: unknown setting `modle` in [endpoint.a]
    hint: did you mean `model`?
    error: mine.toml:6:1: unknown setting `modes` in [agents.b]
    hint: did you mean `model`?
    warning: mine.toml:2:1: `base-url` is deprecated: write `base_url`
    warning: old.toml:3:1: `pass-env` is deprecated: write `pass_env`
    error: rules.txt:3:1: unknown setting `comand` in [rule]
    hint: did you mean `command`?
    error: other.toml:1:1: unknown kind of file
    hint: a bus.toml has [[pool]], a narrows.toml [endpoint.NAME] or [agents.NAME], a file of rules [[rule]]
    --- exit 2 ---
    ");
    assert_snapshot!(check(&dir, &["--json", "old.toml"]), @r#"
    {"file":"old.toml","ok":true,"mistakes":[],"warnings":[{"line":3,"column":1,"message":"`pass-env` is deprecated: write `pass_env`"}]}
    --- exit 0 ---
    "#);
}
