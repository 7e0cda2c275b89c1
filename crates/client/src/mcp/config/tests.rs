//! Tests of valid and invalid files.

use proptest::prelude::*;

use super::*;

fn stdio(name: &str, command: &str, args: &[&str], env: &[(&str, &str)]) -> ServerConfig {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let transport = Transport::Stdio { command: command.into(), args, env: owned(env) };
    ServerConfig { name: name.into(), transport }
}

fn http(name: &str, url: &str, headers: &[(&str, &str)]) -> ServerConfig {
    ServerConfig {
        name: name.into(),
        transport: Transport::Http { url: url.into(), headers: owned(headers) },
    }
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[track_caller]
fn check(text: &str, expected: &[ServerConfig]) {
    assert_eq!(ServerConfig::read(text).as_deref(), Ok(expected), "{text}");
}

#[track_caller]
fn check_error(text: &str, expected: &str) {
    assert_eq!(ServerConfig::read(text).expect_err("it is wrong").to_string(), expected, "{text}");
}

#[track_caller]
fn check_field(server: &str, expected: &str) {
    check_error(&format!(r#"{{"mcpServers":{{"s":{server}}}}}"#), &format!("MCP server \"s\": {expected}"));
}

#[test]
fn every_form_of_server_is_read() {
    check(r#"{"mcpServers":{}}"#, &[]);
    check("[]", &[]);
    check(
        r#"{"mcpServers":{"z":{"command":"npx","args":["-y","x"],"env":{"B":"1","A":""}},"a":{"command":"./run"}}}"#,
        &[stdio("z", "npx", &["-y", "x"], &[("B", "1"), ("A", "")]), stdio("a", "./run", &[], &[])],
    );
    check(
        r#"{"inputs":[],"servers":{"h":{"type":"http","url":"https://h/mcp","headers":{"X-Key":"k"}}}}"#,
        &[http("h", "https://h/mcp", &[("X-Key", "k")])],
    );
    check(r#"{"mcpServers":{"h":{"url":"http://[::1]:8/"}}}"#, &[http("h", "http://[::1]:8/", &[])]);
    check(
        r#"{"mcpServers":{"h":{"type":"streamable-http","url":"HTTP://h"}}}"#,
        &[http("h", "HTTP://h", &[])],
    );
    check(
        r#"{"mcpServers":{"e":{"type":"sse","url":"http://h/sse"}}}"#,
        &[ServerConfig {
            name: "e".into(),
            transport: Transport::Sse { url: "http://h/sse".into(), headers: vec![] },
        }],
    );
    let list = r#"[{"name":"a","command":"c","env":[{"name":"A","value":"1"}],"args":null}]"#;
    check(list, &[stdio("a", "c", &[], &[("A", "1")])]);
    check(&format!("\u{feff}{{\"mcpServers\":{list}}}"), &[stdio("a", "c", &[], &[("A", "1")])]);
    check(
        r#"{"mcpServers":{"a":{"type":"stdio","command":"c","autoApprove":["x"]}}}"#,
        &[stdio("a", "c", &[], &[])],
    );
    check(
        r#"{"mcpServers":{"a":{"command":"c","disabled":true},"b":{"command":"c","disabled":false},
            "c":{"enabled":false}}}"#,
        &[stdio("b", "c", &[], &[])],
    );
}

#[test]
fn invalid_files_are_refused() {
    check_error("", "line 1, column 0: EOF while parsing a value");
    check_error("{\n  \"mcpServers\": {,}\n}", "line 2, column 18: key must be a string");
    check_error("{}", "\"mcpServers\" is missing");
    check_error("7", "it is not an object with \"mcpServers\"");
    check_error(r#"{"mcpServers":7}"#, "\"mcpServers\" is neither an object nor a list");
    check_error(r#"{"mcpServers":{},"servers":{}}"#, "it has both \"mcpServers\" and \"servers\"");
    check_error(
        "{\"mcpServers\":{\n\"a\":{\"command\":\"x\"},\n\"a\":{}}}",
        "line 3, column 3: duplicate key \"a\"",
    );
    let twice = r#"[{"name":"a","command":"x"},{"name":"a","command":"y"}]"#;
    check_error(twice, "MCP server \"a\": name: is used by another server");
    check_error(r#"[{"command":"x"}]"#, "MCP server \"number 1\": name: is missing");
    check_error(r#"[{"name":1}]"#, "MCP server \"number 1\": name: is not a string");
    check_error(r#"[7]"#, "MCP server \"number 1\": it: is not an object");
    check_error(r#"{"mcpServers":{" ":{}}}"#, "MCP server \" \": name: must have 1 to 128 bytes");
    check_error(r#"{"mcpServers":{"a\n":{}}}"#, "MCP server \"a\\n\": name: has a control character");
}

#[test]
fn invalid_fields_are_refused() {
    check_field("7", "it: is not an object");
    check_field("{}", "command: is missing, and so is url");
    check_field(r#"{"command":7}"#, "command: is not a string");
    check_field(r#"{"command":" "}"#, "command: is empty");
    check_field(r#"{"command":"a\u0000b"}"#, "command: has a NUL character");
    check_field(r#"{"command":"c","url":"http://h"}"#, "url: cannot be combined with command");
    check_field(r#"{"type":"stdio","url":"http://h"}"#, "command: is missing");
    check_field(r#"{"type":"http","command":"c"}"#, "url: is missing");
    check_field(
        r#"{"type":"ws","url":"http://h"}"#,
        "type: is \"ws\", but must be one of \"stdio\", \"http\" and \"sse\"",
    );
    check_field(r#"{"command":"c","args":"-x"}"#, "args: is not a list");
    check_field(r#"{"command":"c","args":["a",1]}"#, "args[1]: is not a string");
    check_field(r#"{"command":"c","env":["A=1"]}"#, "env: has an entry without name or value");
    check_field(r#"{"command":"c","env":"A=1"}"#, "env: is neither an object nor a list");
    check_field(r#"{"command":"c","env":{"A":1}}"#, "env.A: is not a string");
    check_field(r#"{"command":"c","env":{"A=":"1"}}"#, "env.A=: is not a valid variable");
    let twice = r#"{"command":"c","env":[{"name":"A","value":"1"},{"name":"A","value":"2"}]}"#;
    check_field(twice, "env.A: is duplicated");
    check_field(
        r#"{"command":"c","cwd":"/x"}"#,
        "cwd: is not supported, because it cannot be passed to an agent",
    );
    check_field(r#"{"command":"c","disabled":"no"}"#, "disabled: is not a boolean");
    check_field(r#"{"url":"http://h","headers":{"A B":"1"}}"#, "headers.A B: is not a valid header");
    check_field(r#"{"url":"http://h","headers":{"A":"1\r\nB: 2"}}"#, "headers.A: is not a valid header");
    for url in ["", "h/mcp", "file:///etc/passwd", "http://", "http:///x", "http://h /", "https://?x"] {
        check_field(&format!(r#"{{"url":"{url}"}}"#), "url: is not an HTTP URL");
    }
}

#[test]
fn debug_shows_no_values() {
    let text = r#"{"mcpServers":{
        "a":{"command":"od","args":["--token=hunter2"],"env":{"KEY":"hunter2"}},
        "b":{"url":"https://host/mcp?token=hunter2","headers":{"KEY":"hunter2"}}}}"#;
    let shown = format!("{:?}", ServerConfig::read(text));
    assert!(!shown.contains("hunter2") && shown.contains("https://host/mcp"), "{shown}");
}

fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        any::<i16>().prop_map(|number| number.to_string()),
        prop_oneof![
            Just("http://h"),
            Just("http"),
            Just("sse"),
            Just("stdio"),
            Just("c"),
            Just("\\u0000"),
            Just(""),
        ]
        .prop_map(|text| format!("\"{text}\"")),
    ];
    let key = prop_oneof![
        Just("mcpServers"),
        Just("command"),
        Just("args"),
        Just("env"),
        Just("url"),
        Just("type"),
        Just("headers"),
        Just("name"),
        Just("value"),
        Just("a"),
    ];
    leaf.prop_recursive(5, 40, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::vec((key.clone(), inner), 0..5).prop_map(|pairs| {
                let pairs: Vec<_> = pairs.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
                format!("{{{}}}", pairs.join(","))
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Accepted servers have unique names, no NUL, and HTTP URLs.
    #[test]
    fn every_accepted_server_can_be_planned(server in json(), more in json(), text in ".{0,60}") {
        _ = ServerConfig::read(&text);
        for text in [
            format!(r#"{{"mcpServers":{{"s":{server},"t":{more}}}}}"#),
            format!(r#"{{"servers":[{server},{more}]}}"#),
            server.clone(),
        ] {
            let Ok(servers) = ServerConfig::read(&text) else { continue };
            let names: HashSet<_> = servers.iter().map(|server| server.name.clone()).collect();
            prop_assert_eq!(names.len(), servers.len());
            for server in servers {
                match server.transport {
                    Transport::Stdio { command, args, env } => {
                        let all = [command].into_iter().chain(args).chain(env.into_iter().map(|(name, value)| name + &value));
                        for text in all {
                            prop_assert!(!text.contains('\0'));
                        }
                    }
                    Transport::Http { url, .. } | Transport::Sse { url, .. } => prop_assert!(url.starts_with("http://")),
                }
            }
        }
    }
}
