//! Tests of access settings: MCP servers, pools of listeners, `auth`, and the admin port.

use std::path::Path;

use super::super::{ListenAddr, ListenerAuth, McpAccess, McpTarget, PoolMcpServer, inspect, read, render};

/// Returns the findings of a configuration file with these settings of a listener and a pool, and with
/// `rest`.
fn findings_of(listen: &str, pool: &str, rest: &str) -> String {
    let text = format!("[[listen]]\n{listen}\n[[pool]]\ncommand = [\"a\"]\n{pool}\n{rest}\n");
    let inspected = inspect(&text, Path::new("bus.toml"), None, None);
    let errors = inspected.errors.iter().map(ToString::to_string);
    let warnings = inspected.warnings.iter().map(|warning| format!("warning {warning}"));
    errors.chain(warnings).collect::<Vec<_>>().join("\n")
}

const TCP: &str = "url = \"tcp://127.0.0.1:1\"";

#[test]
fn mcp_servers_are_read_and_rendered_without_secrets() {
    let text = "[[listen]]\nurl = \"stdio:\"\n[[pool]]\ncommand = [\"a\"]\nmcp = \"listed\"\n\
        [[pool.mcp_server]]\nname = \"files\"\ncommand = [\"f\", \"/srv\"]\nenv = { KEY = \"s3cret\" }\n\
        [[pool.mcp_server]]\nname = \"web\"\nurl = \"https://web.example/mcp\"\n";
    let (mut config, warnings) = read(text, Path::new("bus.toml"), None).unwrap();
    assert_eq!(warnings, []);
    let words = vec!["f".to_owned(), "/srv".to_owned()];
    let env = [("KEY".to_owned(), "s3cret".to_owned())].into();
    let files = PoolMcpServer { name: "files".into(), target: McpTarget::Command { words, env } };
    let web = PoolMcpServer { name: "web".into(), target: McpTarget::Url("https://web.example/mcp".into()) };
    assert_eq!(config.pools[0].mcp, Some(McpAccess::Listed));
    assert_eq!(config.pools[0].mcp_servers, [files, web]);
    let (toml, json) = (render::toml(&config), render::json(&config).to_string());
    assert!(toml.contains("# KEY = \"(hidden)\"") && json.contains("KEY"), "{toml} {json}");
    assert!(!toml.contains("s3cret") && !json.contains("s3cret"), "{toml} {json}");
    assert!(!format!("{config:?}").contains("s3cret"));
    // Apart from the hidden values of variables, the rendered settings equal the configuration.
    if let McpTarget::Command { env, .. } = &mut config.pools[0].mcp_servers[0].target {
        env.clear();
    }
    assert_eq!(read(&toml, Path::new("bus.toml"), None).unwrap().0, config, "{toml}");
}

#[test]
fn errors_about_mcp_servers_quote_no_values() {
    #[track_caller]
    fn check(pool: &str, expected: &str) {
        let findings = findings_of(TCP, pool, "");
        assert!(findings.contains(expected) && findings.lines().count() == 1, "{pool}: {findings}");
        assert!(!findings.contains("s3cret"), "{findings}");
    }
    let listed = |servers: &str| format!("mcp = \"listed\"\n{servers}");
    let server = |rest: &str| listed(&format!("[[pool.mcp_server]]\n{rest}"));
    check("mcp = \"lisetd\"", "must be one of \"none\", \"listed\", \"any\"; did you mean \"listed\"?");
    check("mcp = \"listed\"", "`mcp` needs at least one [[pool.mcp_server]]");
    check("mcp = \"any\"", "warning bus.toml:5:7: `mcp` allows every client of this pool to run commands");
    check(&format!("client_meta = [\"{}\"]", "x".repeat(300)), "must have 1 to 256 bytes");
    check("client_meta = \"x\"", "write client_meta = [\"claudeCode\"]");
    check("mcp_servers = []", "write [[pool.mcp_server]] for each");
    check("[[pool.mcp_server]]\nname = \"a\"\ncommand = [\"b\"]", "only with mcp = \"listed\"");
    check(&server("command = [\"b\"]"), "`name` is missing");
    check(&server("name = \"a\""), "`command` is missing");
    check(&server("name = \"a\"\ncommand = [\"b\"]\nurl = \"https://s3cret\""), "exclude each other");
    check(&server("name = \"a\"\nurl = \"s3cret\""), "must be a URL");
    check(&server("name = \"a\"\nurl = \"https://b\"\nenv = { K = \"s3cret\" }"), "only with `command`");
    check(&server("name = \"a\"\ncommand = [\"b\"]\nenv = { K = 1 }"), "must be a text in quotes");
    let one = "[[pool.mcp_server]]\nname = \"a\"\ncommand = [\"b\"]\n";
    check(&listed(&one.repeat(2)), "duplicate server name \"a\" in this pool");
    let governed = "[[listen]]\nurl = \"stdio:\"\n[[pool]]\nmanifest = \"/w/ACP.md\"\nmcp = \"none\"\n";
    let errors = read(governed, Path::new("bus.toml"), None).unwrap_err();
    assert!(errors[0].to_string().contains("the manifest lists the servers"), "{errors:?}");
}

#[test]
fn all_users_are_admitted_only_on_request_and_with_a_warning() {
    #[track_caller]
    fn check(url: &str, auth: &str, expected: ListenerAuth, warning: &str) {
        let text = format!("[[listen]]\nurl = \"{url}\"\n{auth}\n[[pool]]\ncommand = [\"a\"]\n");
        let (config, warnings) = read(&text, Path::new("bus.toml"), None).unwrap();
        let found = match &config.listen[0].addr {
            ListenAddr::Web(web) => web.auth,
            _ => config.listen[0].auth,
        };
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{url} {auth}");
        assert_eq!(warnings.is_empty(), warning.is_empty(), "{url} {auth}: {warnings:?}");
        assert!(warnings.iter().all(|finding| finding.contains(warning)), "{url} {auth}: {warnings:?}");
    }
    for url in ["tcp://127.0.0.1:1", "ws://localhost:1/acp", "http://[::1]:1/acp"] {
        check(url, "", ListenerAuth::User, "");
        check(url, "auth = \"user\"", ListenerAuth::User, "");
        check(url, "auth = \"none\"", ListenerAuth::None, "admits every user of this machine");
    }
    check("unix:/s", "auth = \"user\"", ListenerAuth::User, "");
    check("unix:/s", "auth = \"none\"", ListenerAuth::None, "has no effect here");
    let far = "[[listen]]\nurl = \"http://0.0.0.0:1/acp\"\nauth = \"user\"\n[[pool]]\ncommand = [\"a\"]\n";
    assert!(read(far, Path::new("bus.toml"), None).is_err());
}

#[test]
fn a_listener_names_only_existing_pools() {
    let two = "name = \"echo\"\n[[pool]]\nname = \"coder\"\ncommand = [\"b\"]";
    let check = |more: &str, expected: &str| {
        let findings = findings_of(&format!("{TCP}\n{more}"), two, "");
        assert!(
            findings.contains(expected) && findings.is_empty() == expected.is_empty(),
            "{more}: {findings}"
        );
    };
    check("pools = [\"echo\", \"coder\"]", "");
    check("pool = \"coder\"\npools = [\"echo\", \"coder\"]", "");
    check("pools = [\"codr\"]", "names an unknown pool: \"codr\"; did you mean \"coder\"?");
    check("pools = []", "must be a list with at least one pool");
    check("pools = \"echo\"", "`pools` must be a list");
    check("pool = \"coder\"\npools = [\"echo\"]", "must contain the `pool` of this listener, \"coder\"");
}

#[test]
fn the_admin_port_admits_only_the_user_of_the_bus_by_default() {
    assert_eq!(findings_of(TCP, "", "[admin]\nport = 9\nauth = \"user\""), "");
    assert!(findings_of(TCP, "", "[admin]\nport = 9\nauth = \"none\"").contains("warning"));
    assert!(findings_of(TCP, "", "[admin]\nport = 9\nauth = \"nobody\"").contains("must be one of"));
    assert!(findings_of(TCP, "", "[admin]\nsocket = \"/s\"\nauth = \"none\"").contains("only with `port`"));
}
