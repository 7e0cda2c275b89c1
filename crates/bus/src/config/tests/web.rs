//! Tests of HTTP and WebSocket listeners.

use super::*;

#[test]
fn a_web_listener_is_read_with_all_its_settings() {
    let text = r#"
[[listen]]
url = "wss://0.0.0.0:8787/acp"
auth = "token"
tokens = "tokens.toml"
origins = ["https://app.example"]
hosts = ["bus.example"]
tls = { cert = "c.pem", key = "/k.pem" }
[[listen]]
url = "http://127.0.0.1:8788"
[[pool]]
command = ["a"]
[limits]
replay_bytes = "8MiB"
replay_time = "60s"
header_timeout = "5s"
idle_timeout = "30s"
owner_expiry = "24h"
max_connections_per_identity = 7
max_sessions_per_identity = 8
max_rate_per_identity = 0
"#;
    let (config, warnings) = read(text, Path::new("/etc/narrows/bus.toml"), None).unwrap();
    assert_eq!(warnings, []);
    assert!(config.keeps_owners());
    let ListenAddr::Web(web) = &config.listen[0].addr else { panic!("not the web") };
    let tls = Tls { cert: "/etc/narrows/c.pem".into(), key: "/k.pem".into(), client_ca: None };
    let expected = Web {
        address: "0.0.0.0:8787".to_owned(),
        secure: true,
        is_socket: true,
        path: "/acp".to_owned(),
        auth: ListenerAuth::Token,
        tokens: Some("/etc/narrows/tokens.toml".into()),
        origins: vec!["https://app.example".to_owned()],
        hosts: vec!["bus.example".to_owned()],
        tls: Some(tls),
    };
    assert_eq!(**web, expected);
    let limits = BusLimits {
        replay_bytes: 8 << 20,
        replay_time: Duration::from_secs(60),
        header_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(30),
        owner_expiry: Duration::from_secs(24 * 3600),
        max_connections_per_identity: 7,
        max_sessions_per_identity: 8,
        max_rate_per_identity: 0,
        ..BusLimits::default()
    };
    assert_eq!(config.limits, limits);
    let shown = render::toml(&config);
    assert_eq!(read(&shown, Path::new("bus.toml"), None).unwrap().0, config, "{shown}");
}

#[test]
fn a_gate_without_identities_behind_tokens_is_a_warning() {
    let check = |auth: &str, identities: &str, pool: &str, expected: &[&str]| {
        let text = format!(
            "[[listen]]\nurl = \"http://127.0.0.1:1\"\n{auth}\n{pool}\n[[pool]]\nmanifest = \"/w/ACP.md\"\n{identities}\n\
             [[pool]]\nname = \"other\"\ncommand = [\"a\"]\n"
        );
        let (_, warnings) = read(&text, Path::new("bus.toml"), None).unwrap();
        let findings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(findings.len(), expected.len(), "{findings:?}");
        findings
            .iter()
            .zip(expected)
            .for_each(|(finding, words)| assert!(finding.contains(words), "{finding}"));
    };
    let token = "auth = \"token\"\ntokens = \"t\"";
    check(
        token,
        "",
        "",
        &["bus.toml:7:12: `manifest` knows whoever comes in by a token as \"bus:token:NAME\", and turns"],
    );
    check(token, "", "pool = \"default\"", &["\"bus:token:NAME\""]);
    check(token, "identities = \"who.toml\"", "", &[]);
    check(token, "", "pool = \"other\"", &[]);
    check("auth = \"user\"", "", "", &[]);
}

#[test]
fn a_listener_without_a_host_name_is_a_warning() {
    let check = |address: &str, hosts: &str, expected: &str| {
        let text = format!(
            "[[listen]]\nurl = \"https://{address}:1\"\nauth = \"token\"\ntokens = \"t\"\n\
             tls = {{ cert = \"c\", key = \"k\" }}\n{hosts}\n[[pool]]\ncommand = [\"a\"]\n"
        );
        let (_, warnings) = read(&text, Path::new("bus.toml"), None).unwrap();
        let findings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert!(
            findings.join("\n").starts_with(expected) && findings.is_empty() == expected.is_empty(),
            "{findings:?}"
        );
    };
    let nobody = "bus.toml:2:7: `url` cannot be reached from other machines";
    check("0.0.0.0", "", nobody);
    check("[::]", "", nobody);
    check("[0::0]", "hosts = []", nobody);
    check("0.0.0.0", "hosts = [\"bus.example\"]", "");
    check("192.0.2.7", "", "");
    check("127.0.0.1", "", "");
}

#[test]
fn errors_of_web_listeners_are_reported() {
    assert_snapshot!(toml(r#"
[[listen]]
url = "http://0.0.0.0:1/acp"

[[listen]]
url = "http://0.0.0.0:2/acp"
auth = "token"
tokens = "t"

[[listen]]
url = "https://127.0.0.1:3/acp"

[[listen]]
url = "http://127.0.0.1:4/acp"
auth = "token"

[[listen]]
url = "http://127.0.0.1:5/acp"
auth = "tokn"

[[listen]]
url = "https://127.0.0.1:6/acp"
auth = "mtls"
tls = { cert = "c", ca = "x" }
origins = ["*", "https://a.example/"]
hosts = ["a:80"]

[[listen]]
url = "tcp://127.0.0.1:6"
auth = "token"
tokens = "t"

[[listen]]
url = "http://127.0.0.1:7"
token = "secret"
tls = { cert = "c", key = "~/k" }

[[pool]]
command = ["a"]

[limits]
replay_bytes = "1KiB"
idle_timeout = "0s"
"#), @r#"
    bus.toml:3:7: `url` can be reached from other machines, which needs `auth` and https:// or wss://
    bus.toml:6:7: `url` can be reached from other machines, which needs https:// or wss:// and `tls`
    bus.toml:11:7: `url` needs a certificate: tls = { cert = "cert.pem", key = "key.pem" }
    bus.toml:15:8: `auth` needs a file of tokens: tokens = "tokens.toml"
    bus.toml:19:8: `auth` must be one of "user", "none", "token", "mtls"; did you mean "token"?
    bus.toml:23:8: `auth` needs the authority of its clients: tls = { …, client_ca = "ca.pem" }
    bus.toml:24:7: `key` is missing in `tls`; write tls = { cert = "cert.pem", key = "key.pem" }
    bus.toml:24:21: unknown setting `ca` in [tls]; did you mean `client_ca`?
    bus.toml:25:12: `origins` cannot be "*": `*` would let every web page use the agents; list the origins of the permitted pages
    bus.toml:25:17: `origins` cannot be "https://a.example/": an origin ends after the host and the port: https://app.example
    bus.toml:26:10: `hosts` cannot be "a:80": only a host name or an address without a port is accepted, such as bus.example
    bus.toml:29:7: `url` is already used by another listener
    bus.toml:30:8: `auth` must be "user" or "none": only http, https, ws and wss take tokens and certificates
    bus.toml:31:10: `tokens` has an effect only with http://, https://, ws:// or wss:// in the `url`
    bus.toml:35:1: unknown setting `token` in [listen]; tokens are kept in a file: auth = "token", tokens = "tokens.toml"
    bus.toml:36:7: `tls` has an effect only with https:// or wss:// in the `url`
    bus.toml:36:27: `key` cannot be "~/k": `~` needs the environment variable HOME
    bus.toml:42:16: `replay_bytes` must be from 1MiB to 1GiB
    bus.toml:43:16: `idle_timeout` must be greater than zero
    "#);
}
