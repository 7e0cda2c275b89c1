//! Tests of `[agents.NAME]`.

use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::file::NarrowsToml;
use super::*;

fn parse(text: &str) -> Result<Vec<AgentEntry>, ConfigError> {
    let file = NarrowsToml::parse(Path::new("/c/narrows.toml"), text, Some(Path::new("/home/me")))?;
    match file.invalid_agents.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(file.agents),
    }
}

#[track_caller]
fn only_agent(text: &str) -> AgentEntry {
    let [entry] = <[AgentEntry; 1]>::try_from(parse(text).expect(text)).expect("one agent");
    entry
}

fn texts(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

const COMMAND_HINT: &str = "write command = [\"narrows\", \"acp\"], or command = \"narrows acp\"";

#[test]
fn an_agent_is_read() {
    let file = r#"
[agents.simple]
command = "opencode acp"

[agents."with everything"]
command = ["my agent", "--acp", ""]
env = { MODE = "quiet", EMPTY = "" }
clean_env = false
pass_env = ["MY_*", "KEY"]
access = "low"
commands_run_by = "client"
policy = "rules.toml"
model = "big"
mode = "plan"
mcp = "~/mcp.json"
protocol = 2
usage = "turn"
initialize_timeout = "2m"
session_timeout = "90s"
cancel_grace = "500ms"
silence_timeout = "0"
"#;
    let origin = |line| Some(Origin::File { path: "/c/narrows.toml".into(), line });
    let simple = AgentEntry {
        name: "simple".to_owned(),
        origin: origin(2),
        command: texts(&["opencode", "acp"]),
        ..AgentEntry::default()
    };
    let everything = AgentEntry {
        name: "with everything".to_owned(),
        origin: origin(5),
        command: texts(&["my agent", "--acp", ""]),
        env: vec![("MODE".to_owned(), "quiet".to_owned()), ("EMPTY".to_owned(), String::new())],
        clean_env: false,
        pass_env: texts(&["MY_*", "KEY"]),
        access: Some(Access::Low),
        commands_run_by: CommandRunner::Client,
        policy: Some("/c/rules.toml".into()),
        model: Some("big".to_owned()),
        mode: Some("plan".to_owned()),
        mcp: Some("/home/me/mcp.json".into()),
        protocol: Some(Protocol::Two),
        usage_scope: UsageScope::Turn,
        initialize_timeout: Some(Duration::from_secs(120)),
        session_timeout: Some(Duration::from_secs(90)),
        cancel_grace: Some(Duration::from_millis(500)),
        silence_timeout: Some(Duration::ZERO),
    };
    assert_eq!(parse(file), Ok(vec![simple, everything]));
    assert_eq!(parse("[agents]"), Ok(Vec::new()));
}

#[test]
fn a_command_is_a_list_or_a_text_with_shell_quotes() {
    #[track_caller]
    fn check(command: &str, expected: &[&str]) {
        let entry = only_agent(&format!("[agents.a]\ncommand = {command}"));
        assert_eq!(entry.command, texts(expected), "{command}");
    }
    check("'a'", &["a"]);
    check("'a --b \"c d\" e'", &["a", "--b", "c d", "e"]);
    check("'a $HOME; rm *'", &["a", "$HOME;", "rm", "*"]);
    check("['a']", &["a"]);
    check("['a b', '$c', '']", &["a b", "$c", ""]);
}

#[test]
fn pass_env_implies_a_clean_environment() {
    for (settings, clean) in [
        ("", false),
        ("pass_env = []", true),
        ("pass_env = ['A']", true),
        ("pass_env = ['A']", true),
        ("clean_env = true", true),
        ("clean_env = false\npass-env = ['A']", false),
    ] {
        let entry = only_agent(&format!("[agents.a]\ncommand = 'a'\n{settings}"));
        assert_eq!(entry.clean_env, clean, "{settings}");
    }
}

#[test]
fn invalid_agents_are_refused_with_a_suggestion() {
    #[track_caller]
    fn check(text: &str, line: u32, message: &str, hint: Option<&str>) {
        let error = parse(text).expect_err(text);
        let found = (error.to_string(), error.hint.as_deref());
        assert_eq!(found, (format!("/c/narrows.toml:{line}: {message}"), hint), "{text}");
    }
    let command = Some("write command = [\"opencode\", \"acp\"]");
    check("[agents.a]", 1, "`agents.a` has no `command`", command);
    check("[agents.a]\nprotocol = 1", 1, "`agents.a` has no `command`", command);
    check("agents = 1", 1, "`agents` must be a table", None);
    check("[agents]\na = 'b'", 2, "`agents.a` must be a table", None);
    check("[agent.a]", 1, "unknown setting `agent`", Some("did you mean `agents`?"));
    for (key, near) in [
        ("comand", "did you mean `command`?"),
        ("session-timeot", "did you mean `session_timeout`?"),
        ("clean_evn", "did you mean `clean_env`?"),
    ] {
        let message = format!("unknown setting `{key}` in [agents.a]");
        check(&format!("[agents.a]\ncommand = 'a'\n{key} = 1"), 3, &message, Some(near));
    }
    let all = format!("valid settings are: {}", AGENT_KEYS.join(", "));
    check("[agents.a]\nspeed = 1", 2, "unknown setting `speed` in [agents.a]", Some(&all));
    for (setting, message) in [
        ("command = 7", "command` must be a text or a list of texts"),
        ("command = { a = 'b' }", "command` must be a text or a list of texts"),
        ("command = ''", "command` must be a program and its arguments"),
        ("command = []", "command` must be a program and its arguments"),
        ("command = ['', 'a']", "command` must be a program and its arguments"),
    ] {
        check(&format!("[agents.a]\n{setting}"), 2, &format!("`agents.a.{message}"), Some(COMMAND_HINT));
    }
    for (setting, message) in [
        ("env = 'A=b'", "env` must be a table"),
        ("env = { A = 1 }", "env.A` must be a text in quotes"),
        ("env = { 'A=B' = 'c' }", "env` has an invalid variable name"),
        ("env = { '' = 'c' }", "env` has an invalid variable name"),
        ("clean_env = 'yes'", "clean_env` must be true or false"),
        ("pass_env = 'A'", "pass_env` must be a list"),
        ("pass_env = ['A*B']", "pass_env` cannot be \"A*B\": `*` is only allowed at the end"),
        ("pass_env = ['A=b']", "pass_env` cannot be \"A=b\": invalid name of an environment variable"),
        ("protocol = 3", "protocol` must be 1 or 2, without quotes"),
        ("protocol = '1'", "protocol` must be 1 or 2, without quotes"),
        (
            "session_timeout = '5d'",
            "session_timeout` cannot be \"5d\": the unit must be `ms`, `s`, `m` or `h`",
        ),
        ("cancel_grace = '0s'", "cancel_grace` must be greater than zero"),
    ] {
        check(&format!("[agents.a]\ncommand = 'a'\n{setting}"), 3, &format!("`agents.a.{message}"), None);
    }
    for command in ["'ws://h:1/acp'", "['ws://h:1/acp']"] {
        let hint = "write command = [\"narrows\", \"connect\", \"ws://h:1/acp\"], or pass the URL: --agent ws://h:1/acp";
        let message = "`agents.a.command` is a URL, but must be a program and its arguments";
        check(&format!("[agents.a]\ncommand = {command}"), 2, message, Some(hint));
    }
    let twice = "`pass-env` is the old spelling of `pass_env`, which is set too";
    check("[agents.a]\ncommand = 'a'\npass-env = []\npass_env = []", 3, twice, None);
    check(
        "[agents.built-in]\ncommand = 'a'",
        1,
        "`agents.built-in` is a reserved name",
        Some("`built-in` is the built-in agent"),
    );
    check(
        "[agents.a]\ncommand = 'a'\naccess = 'hihg'",
        3,
        "`agents.a.access` must be one of \"low\", \"medium\", \"high\"",
        Some("did you mean \"high\"?"),
    );
    check(
        "[agents.a]\ncommand = 'a'\ncommands_run_by = 'cleint'",
        3,
        "`agents.a.commands_run_by` must be one of \"agent\", \"client\"",
        Some("did you mean \"client\"?"),
    );
    check(
        "[agents.a]\ncommand = 'a'\nusage = 'sesion'",
        3,
        "`agents.a.usage` must be one of \"session\", \"turn\"",
        Some("did you mean \"session\"?"),
    );
}

#[test]
fn an_invalid_agent_leaves_the_others_usable() {
    let text = "[agents.a]\ncommand = 'a'\n[agents.b]\ncomand = 'b'\n[agents.c]\ncommand = 'c'\n";
    let file =
        NarrowsToml::parse(Path::new("/c/narrows.toml"), text, None).expect("the rest of the file is valid");
    let names: Vec<&str> = file.agents.iter().map(|agent| agent.name.as_str()).collect();
    assert_eq!(names, ["a", "c"]);
    let wrong: Vec<String> =
        file.invalid_agents.iter().map(|(name, error)| format!("{name} {error}")).collect();
    assert_eq!(wrong, ["b /c/narrows.toml:4: unknown setting `comand` in [agents.b]"]);
}

#[test]
fn the_documentation_has_every_setting_and_valid_examples() {
    let page = include_str!("../../../../docs/reference/narrows-toml.md");
    for setting in AGENT_KEYS {
        assert!(page.contains(&format!("\n| `{setting}` |")), "`{setting}` is not in narrows-toml.md");
    }
    let mut examples = page.split("```toml\n").skip(1).peekable();
    assert!(examples.peek().is_some(), "there is an example");
    for example in examples {
        let example = example.split("```").next().expect("a part before the end mark");
        assert!(!parse(example).unwrap_or_else(|error| panic!("{error}\n{example}")).is_empty());
    }
}

proptest! {
    #[test]
    fn any_command_is_read_unchanged(words in vec("\\PC{0,12}", 1..6), name in "\\PC{1,12}") {
        let list: toml::Value = words.clone().into();
        let line: toml::Value = shlex::try_join(words.iter().map(String::as_str)).expect("no NUL").into();
        for command in [list, line] {
            let agent: toml::Table = [("command".to_owned(), command)].into_iter().collect();
            let agents: toml::Table = [(name.clone(), agent.into())].into_iter().collect();
            let file: toml::Table = [("agents".to_owned(), agents.into())].into_iter().collect();
            let read = parse(&toml::to_string(&file).unwrap());
            if words[0].is_empty() {
                prop_assert!(read.is_err());
            } else {
                let read = read.expect("an agent").remove(0);
                prop_assert_eq!((&read.name, &read.command), (&name, &words));
            }
        }
    }

    #[test]
    fn any_text_is_read_or_refused_with_a_line(
        lines in vec("(command|env|pass_env|clean_env|protocol|usage|access|policy|mcp|model|[a-z-]{1,12}) ?=? ?['\"0-9a-z{}\\[\\],.= -]{0,20}", 0..6),
    ) {
        let text = format!("[agents.a]\n{}", lines.join("\n"));
        match parse(&text) {
            Ok(agents) => prop_assert!(agents.iter().all(|agent| !agent.command[0].is_empty())),
            Err(error) => {
                let Origin::File { line, .. } = error.origin else { panic!("{error}") };
                prop_assert!(line <= text.lines().count() + 1, "{}", error);
            }
        }
    }
}
