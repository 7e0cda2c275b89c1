//! Agents named in narrows.toml, and unknown names.

use insta::assert_snapshot;

use crate::test_dir::TestDir;

/// Creates a directory with two named agents, one with session settings.
fn dir() -> TestDir {
    let dir = TestDir::new();
    dir.file(
        "c.toml",
        "[agents.echo]\ncommand = 'narrows fake-agent echo'\n[agents.strict]\ncommand = 'narrows fake-agent ask'\npolicy = 'strict.toml'\n",
    );
    dir.file("strict.toml", "access = 'high'\n[[rule]]\neffect = 'deny'\nkind = 'delete'\n");
    dir
}

/// Runs `narrows run` with this agent of the file above.
fn run(dir: &TestDir, agent: &str, args: &[&str]) -> String {
    let first = ["run", "--config", "c.toml", "--agent", agent];
    let mut command = dir.narrows(first.iter().chain(args));
    command.env("HOME", dir.path());
    dir.output_of(command)
}

#[test]
fn an_agent_has_a_name() {
    let dir = dir();
    assert_eq!(run(&dir, "echo", &["Hi"]), "Hi\n--- exit 0 ---\n");
}

#[test]
fn the_built_in_agent_has_a_name() {
    let dir = dir();
    let told = run(&dir, "built-in", &["--base-url", "builtin:demo", "Hello, who are you?"]);
    assert!(
        told.starts_with("I am the demo model of Narrows") && told.ends_with("--- exit 0 ---\n"),
        "{told}"
    );
}

#[test]
fn a_misspelled_name_is_reported_with_the_known_ones() {
    let dir = dir();
    assert_snapshot!(run(&dir, "ecko", &["Hi"]), @r#"
    --- stderr ---
    error: unknown agent "ecko"
      because: neither an agent in narrows.toml nor a program in PATH has this name
    hint: did you mean "echo"?
    hint: configured agents: echo, strict, built-in
    --- exit 5 ---
    "#);
    let told = run(&dir, "built-im", &["Hi"]);
    assert!(told.contains("did you mean \"built-in\"?"), "{told}");
}

#[test]
fn invalid_agent_settings_affect_only_that_agent() {
    let dir = dir();
    let config = std::fs::read_to_string(dir.path().join("c.toml")).unwrap();
    dir.file("c.toml", &format!("{config}[agents.wrong]\ncomand = 'x'\n"));
    assert_eq!(run(&dir, "echo", &["Hi"]), "Hi\n--- exit 0 ---\n");
    assert_eq!(run(&dir, "narrows fake-agent echo", &["Hi"]), "Hi\n--- exit 0 ---\n");
    let told = run(&dir, "built-in", &["--base-url", "builtin:demo", "Hello, who are you?"]);
    assert!(told.starts_with("I am the demo model") && told.ends_with("--- exit 0 ---\n"), "{told}");
    assert_snapshot!(run(&dir, "wrong", &["Hi"]), @"
    --- stderr ---
    error: [DIR]/c.toml:7: unknown setting `comand` in [agents.wrong]
    hint: did you mean `command`?
    --- exit 2 ---
    ");
    let mut command = dir.narrows(["agents", "--config", "c.toml"]);
    command.env("HOME", dir.path());
    let told = dir.output_of(command);
    assert!(told.contains("c.toml:7: unknown setting `comand` in [agents.wrong]"), "{told}");
    assert!(told.ends_with("--- exit 0 ---\n"), "{told}");
}

#[test]
fn invalid_endpoint_settings_affect_only_that_endpoint() {
    let dir = dir();
    let config = std::fs::read_to_string(dir.path().join("c.toml")).unwrap();
    dir.file("c.toml", &format!("{config}[endpoint.a]\nbase-ulr = 'http://h'\n"));
    assert_eq!(run(&dir, "echo", &["Hi"]), "Hi\n--- exit 0 ---\n");
    assert_eq!(run(&dir, "narrows fake-agent echo", &["Hi"]), "Hi\n--- exit 0 ---\n");
    let wrong = "c.toml:7: unknown setting `base-ulr` in [endpoint.a]";
    let told = run(&dir, "built-in", &["Hi"]);
    assert!(told.contains(wrong) && told.ends_with("--- exit 2 ---\n"), "{told}");
    let [ok, bad] = ["[endpoint.ok]\nbase_url = 'builtin:demo'\n", "[endpoint.a]\nbase-ulr = 'http://h'\n"];
    #[track_caller]
    fn check(dir: &TestDir, config: &str, args: &[&str], expected: Option<&str>) {
        dir.file("c.toml", config);
        let told = run(dir, "built-in", &[args, &["Hello, who are you?"]].concat());
        match expected {
            Some(wrong) => assert!(told.contains(wrong) && told.ends_with("--- exit 2 ---\n"), "{told}"),
            None => {
                assert!(told.starts_with("I am the demo model") && told.ends_with("exit 0 ---\n"), "{told}");
            }
        }
    }
    let wrong = "unknown setting `base-ulr` in [endpoint.a]";
    for config in [format!("{bad}{ok}"), format!("{ok}{bad}")] {
        check(&dir, &config, &["--endpoint", "ok"], None);
        check(&dir, &config, &["--base-url", "builtin:demo"], None);
        check(&dir, &config, &["--endpoint", "a"], Some(wrong));
        check(&dir, &format!("default = 'ok'\n{config}"), &[], None);
        check(&dir, &format!("default = 'a'\n{config}"), &[], Some(wrong));
        check(&dir, &format!("default = 'a'\n{config}"), &["--endpoint", "ok"], None);
    }
    check(&dir, &format!("{ok}{bad}"), &[], None);
    // The first endpoint is the default, even if it is invalid.
    check(&dir, &format!("{bad}{ok}"), &[], Some(wrong));
}

#[test]
fn a_file_named_by_narrows_toml_is_reported_with_its_line() {
    let dir = TestDir::new();
    dir.file("c.toml", "[agents.careful]\ncommand = 'narrows fake-agent echo'\npolicy = 'careful.toml'\n");
    assert_snapshot!(run(&dir, "careful", &["Hi"]), @r#"
    --- stderr ---
    error: [DIR]/c.toml:1: `policy`: cannot read "[DIR]/careful.toml"
      because: No such file or directory (os error 2)
    --- exit 2 ---
    "#);
    dir.file("c.toml", "[agents.careful]\ncommand = 'narrows fake-agent echo'\nmcp = 'mcp.json'\n");
    let told = run(&dir, "careful", &["Hi"]);
    assert!(told.contains("c.toml:1: `mcp`: ") && told.ends_with("--- exit 2 ---\n"), "{told}");
    let told = run(&dir, "careful", &["--mcp", "other.json", "Hi"]);
    assert!(told.contains("error: --mcp: cannot read \"other.json\""), "{told}");
}

#[test]
fn only_agents_are_suggested_and_not_every_program() {
    let dir = dir();
    for (wanted, suggested) in
        [("opencde", Some("opencode")), ("nosuch", None), ("toch", None), ("gitt", None)]
    {
        let told = run(&dir, wanted, &["Hi"]);
        assert!(told.ends_with("--- exit 5 ---\n"), "{told}");
        let hint = suggested.map(|name| format!("did you mean {name:?}?"));
        assert_eq!(told.contains("did you mean"), hint.is_some(), "{told}");
        assert!(hint.is_none_or(|hint| told.contains(&hint)), "{told}");
    }
}

#[test]
fn a_name_taken_as_a_program_is_reported() {
    let dir = dir();
    let told = run(&dir, "true", &["Hi"]);
    let line = "--- stderr ---\n\"true\" is not an agent in narrows.toml, running the program /";
    assert!(told.starts_with(line) && told.ends_with("--- exit 5 ---\n"), "{told}");
    // A value with arguments is a command.
    assert_eq!(run(&dir, "narrows fake-agent echo", &["Hi"]), "Hi\n--- exit 0 ---\n");
}

#[test]
fn rules_of_an_agent_apply_unless_a_flag_replaces_them() {
    let dir = dir();
    dir.file("none.toml", "");
    let told = run(&dir, "strict", &["Hi"]);
    assert!(told.contains("rule 1 ([DIR]/strict.toml:2)"), "{told}");
    assert!(told.ends_with("--- exit 9 ---\n"), "{told}");
    let told = run(&dir, "strict", &["--policy", "none.toml", "Hi"]);
    assert!(told.ends_with("--- exit 0 ---\n"), "{told}");
}

#[test]
fn the_nearest_access_setting_applies() {
    #[track_caller]
    fn check(of_agent: &str, args: &[&str], code: u8) {
        let dir = dir();
        dir.file("low.toml", "access = 'low'\n");
        dir.file("c.toml", &format!("[agents.a]\ncommand = 'narrows fake-agent ask'\n{of_agent}"));
        let told = run(&dir, "a", &[args, &["Hi"]].concat());
        assert!(told.ends_with(&format!("--- exit {code} ---\n")), "{of_agent} {args:?}: {told}");
    }
    check("", &[], 0);
    check("access = 'low'", &[], 9);
    check("access = 'low'", &["--access", "medium"], 0);
    check("access = 'high'", &["--access", "low"], 9);
    check("access = 'high'", &["--policy", "low.toml"], 9);
    check("access = 'high'\npolicy = 'low.toml'", &[], 0);
    check("policy = 'low.toml'", &[], 9);
}

#[test]
fn models_and_modes_of_an_agent_are_set() {
    let dir = TestDir::new();
    dir.file("m.toml", "name = 'm'\nmodes = ['code', 'plan']\n[[turn]]\nsteps = [{ say = 'So' }]\n");
    let config = "[agents.m]\ncommand = 'narrows fake-agent m.toml'\nmode = 'plam'\nmodel = 'none'\n";
    dir.file("c.toml", config);
    let told = run(&dir, "m", &["Hi"]);
    assert!(told.contains("mode \"plam\" not set"), "{told}");
    assert!(told.contains("model \"none\" not set"), "{told}");
    let told = run(&dir, "m", &["--mode", "plan", "Hi"]);
    assert!(!told.contains("mode "), "{told}");
}

#[test]
fn mcp_servers_of_an_agent_are_passed_to_it() {
    let dir = TestDir::new();
    let mcp = |text: &str| {
        dir.file("mcp.json", text);
        dir.file("c.toml", "[agents.e]\ncommand = 'narrows fake-agent echo'\nmcp = 'mcp.json'\n");
        run(&dir, "e", &["Hi"])
    };
    let told = mcp(r#"{"nothing": {}}"#);
    assert!(told.contains("mcp.json: \"mcpServers\" is missing"), "{told}");
    assert!(told.ends_with("--- exit 2 ---\n"), "{told}");
    let told = mcp(r#"{"servers": {"a": {"command": "a", "disabled": true}}}"#);
    assert!(told.contains("mcp.json has no enabled MCP server"), "{told}");
    assert!(told.ends_with("--- exit 0 ---\n"), "{told}");
    assert_eq!(mcp(r#"{"servers": {"a": {"command": "true"}}}"#), "Hi\n--- exit 0 ---\n");
}
