//! Tests of whole configuration files, valid and invalid.

mod access;
mod client_capabilities;
mod web;

use std::path::Path;
use std::time::Duration;

use insta::assert_snapshot;
use narrows_process::Controller;
use proptest::prelude::*;
use serde_json::json;

use super::*;

const FULL_CONFIG: &str = r#"
[[listen]]
url = "tcp://127.0.0.1:9000"
auth = "user"

[[listen]]
url = "unix:bus.sock"
pool = "coder"

[[listen]]
url = "tcp://[::1]:0/coder"

[[pool]]
name = "default"
command = ["narrows", "acp"]
instances = 4
share = "all"
protocol = 2
env = { OPENAI_MODEL = "gpt-4o" }
pass_env = ["OPENAI_*"]
client_capabilities = { fs = { readTextFile = true } }
mix_identities = true
memory = "2GiB"
pids = 100

[[pool]]
name = "coder"
command = ["./agent", ""]
cwd = "work"
max_instances = 8
share = "session"

[limits]
max_line = "1MiB"
max_batch = 10
max_connections = 50
queue_bytes = 65536
stall_timeout = "1.5s"
disconnect_grace = "0s"
restart_budget = 2
memory = "0"

[admin]
socket = "/run/admin.sock"
port = 9090
"#;

/// Returns the errors of a configuration file, or its warnings if it has no error, one per line.
fn findings_of(text: &str, path: &str) -> String {
    let lines = |lines: Vec<String>| lines.join("\n");
    match read(text, Path::new(path), None) {
        Ok((_, warnings)) => lines(warnings.iter().map(|warning| format!("warning {warning}")).collect()),
        Err(errors) => lines(errors.iter().map(ToString::to_string).collect()),
    }
}

fn toml(text: &str) -> String {
    findings_of(text, "bus.toml")
}

#[test]
fn all_settings_are_read() {
    let (config, warnings) = read(FULL_CONFIG, Path::new("/etc/narrows/bus.toml"), None).unwrap();
    assert_eq!(warnings, []);
    let listen = |at: ListenAddr, pool: Option<&str>| ListenerSettings {
        pool: pool.map(str::to_owned),
        ..ListenerSettings::new(at)
    };
    assert_eq!(
        config.listen,
        [
            listen(ListenAddr::Tcp("127.0.0.1:9000".to_owned()), None),
            listen(ListenAddr::Unix("/etc/narrows/bus.sock".into()), Some("coder")),
            listen(ListenAddr::Tcp("[::1]:0".to_owned()), Some("coder")),
        ]
    );
    let command = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let first = Pool {
        instances: 4,
        share: ShareMode::All,
        protocol: PoolProtocol::V2,
        env: BTreeMap::from([("OPENAI_MODEL".to_owned(), "gpt-4o".to_owned())]),
        pass_env: vec!["OPENAI_*".to_owned()],
        client_capabilities: json!({"fs": {"readTextFile": true}}),
        mix_identities: true,
        memory: Some(2 << 30),
        pids: Some(100),
        ..Pool::new("default", command(&["narrows", "acp"]))
    };
    let second = Pool {
        cwd: Some("/etc/narrows/work".into()),
        max_instances: 8,
        share: ShareMode::Session,
        ..Pool::new("coder", command(&["./agent", ""]))
    };
    assert_eq!(config.pools, [first, second]);
    let limits = BusLimits {
        max_line: 1 << 20,
        max_batch: 10,
        max_connections: 50,
        queue_bytes: 1 << 16,
        stall_timeout: Duration::from_millis(1500),
        restart_budget: 2,
        ..BusLimits::default()
    };
    assert_eq!(config.limits, limits);
    let admin = AdminConfig {
        socket: Some("/run/admin.sock".into()),
        port: Some("127.0.0.1:9090".to_owned()),
        is_open: false,
    };
    assert_eq!(config.admin, admin);
}

#[test]
fn a_minimal_file_gets_defaults() {
    let text = "[[listen]]\nurl = \"stdio:\"\n[[pool]]\ncommand = [\"a\"]\n";
    let (config, warnings) = read(text, Path::new("bus.toml"), None).unwrap();
    assert_eq!(warnings, []);
    let expected = Config {
        listen: vec![ListenerSettings::new(ListenAddr::Stdio)],
        pools: vec![Pool::new("default", vec!["a".to_owned()])],
        limits: BusLimits::default(),
        admin: AdminConfig::default(),
    };
    assert_eq!(config, expected);
}

#[test]
fn all_errors_are_reported_at_once() {
    assert_snapshot!(toml(r#"
[[listen]]
url = "tcp://0.0.0.0:9000"
auth = "token"

[[listen]]
url = "unix:/a.sock"
pool = "codr"

[[listen]]
url = "unix:/a.sock"

[[listen]]
auth = "user"

[[pool]]
name = "coder"
command = "narrows acp --log debug"
instances = 0
share = "al"
protocol = "1"

[[pool]]
name = "coder"
comand = ["a"]
args = ["b"]
instances = 300
env = { PORT = 80, "A=B" = "x" }
pass_env = ["A*B"]
cwd = "~/work"

[limits]
max-line = "64MiB"
max_batch = 0
queue_bytes = "8M"
stall_timeout = 30
initialize_timeout = "0s"
session_grace = "1d"
max_line = "4GiB"

[admin]
socket = "/a.sock"
port = "0.0.0.0:9090"

[amdin]
"#), @r#"
    bus.toml:3:7: `url` cannot be "tcp://0.0.0.0:9000": only 127.0.0.1, [::1] and localhost are allowed, because every client may use the agents; for other machines use https:// or wss:// with `auth`
    bus.toml:8:8: `pool` names an unknown pool: "codr"; did you mean "coder"?
    bus.toml:11:7: `url` is already used by another listener
    bus.toml:13:1: `url` is missing; write url = "tcp://127.0.0.1:9000", "unix:/path" or "stdio:"
    bus.toml:19:13: `instances` must be a whole number from 1 to 10000
    bus.toml:20:9: `share` must be one of "connection", "session", "all"; did you mean "all"?
    bus.toml:21:12: `protocol` must be 1, 2 or "jsonrpc"; write the number without quotes
    bus.toml:23:1: `command` is missing; write command = ["narrows", "acp"], or manifest = "DIR/ACP.md"
    bus.toml:24:8: duplicate pool name "coder"; give each pool a `name` of its own
    bus.toml:25:1: unknown setting `comand` in [pool]; did you mean `command`?
    bus.toml:26:1: unknown setting `args` in [pool]; write the arguments in `command`, after the program
    bus.toml:27:13: `instances` must be at most `max_instances`, which is 256; or write max_instances = 300
    bus.toml:28:16: `PORT` must be a text in quotes
    bus.toml:28:28: `A=B` is not the name of a variable
    bus.toml:29:13: `pass_env` cannot be "A*B": `*` is only allowed at the end
    bus.toml:30:7: `cwd` cannot be "~/work": `~` needs the environment variable HOME
    bus.toml:33:1: `max-line` is the old spelling of `max_line`, which is set too
    bus.toml:34:13: `max_batch` must be a whole number from 1 to 100000
    bus.toml:35:15: `queue_bytes` cannot be "8M": the unit must be `B`, `KiB`, `MiB` or `GiB`, or `kB`, `MB` or `GB` by thousands
    bus.toml:37:22: `initialize_timeout` must be greater than zero
    bus.toml:38:17: `session_grace` cannot be "1d": the unit must be `ms`, `s`, `m` or `h`
    bus.toml:39:12: `max_line` must be from 1KiB to 1GiB
    bus.toml:42:10: `socket` is already used by a listener
    bus.toml:43:8: `port` cannot be "0.0.0.0:9090": only 127.0.0.1, [::1] and localhost are allowed, because every client can read the status of the bus
    bus.toml:45:2: unknown setting `amdin`; did you mean `admin`?
    "#);
}

#[test]
fn values_of_the_wrong_type_are_errors() {
    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(toml(text), expected, "{text}");
    }
    check("", "bus.toml:1:1: no [[pool]] is defined; write [[pool]] and command = [\"narrows\", \"acp\"]");
    assert_eq!(toml("pool = []"), toml(""));
    check("\n[pool]\n", "bus.toml:2:1: `pool` must be a list of tables; write [[pool]], with two brackets");
    check("pool = [1]\n", "bus.toml:1:9: `pool` must be a table");
    check(
        "[[pool]]\ncommand = []\n",
        "bus.toml:2:11: `command` must be a program and its arguments; write command = [\"narrows\", \"acp\"], or command = \"narrows acp\"",
    );
    assert_eq!(toml("[[pool]]\ncommand = [\"\"]\n"), toml("[[pool]]\ncommand = []\n"));
    check("[[pool]]\ncommand = [\"a\\u0000\"]\n", "bus.toml:2:11: `command` must be a command without NUL");
    check(
        "[[pool]]\ncommand = [\"a\"]\nname = \"a b\"\n",
        "bus.toml:3:8: `name` cannot be \"a b\": a name has at most 64 letters, digits, `.`, `_` and `-`",
    );
    assert!(toml("[[pool]]\nname = \"a").starts_with("bus.toml:2:"));
}

#[test]
fn values_of_variables_are_never_shown() {
    let text = "[[pool]]\ncommand = [\"a\"]\nenv = { KEY = [\"hunter2\"], B = \"hunter2\" }\n";
    assert!(!toml(text).contains("hunter2"));
    let (config, _) = read(&text.replace("[\"hunter2\"]", "\"hunter2\""), Path::new("b"), None).unwrap();
    assert!(!render::toml(&config).contains("hunter2"));
    assert!(!render::json(&config).to_string().contains("hunter2"));
}

#[test]
fn settings_without_effect_are_warnings() {
    assert_snapshot!(toml(r#"
[[pool]]
command = ["a"]
protocol = 2
client_capabilities = { fs = {} }
mix_identities = true

[[pool]]
name = "b"
command = ["b"]
share = "all"
protocol = "jsonrpc"
client_capabilities = { fs = {} }

[[pool]]
name = "c"
command = ["c"]
protocol = "jsonrpc"
client_capabilities = {}
mix_identities = false
"#), @r#"
    warning bus.toml:1:1: no [[listen]] is defined: clients cannot connect unless --listen names an address
    warning bus.toml:4:12: `protocol` has an effect only with share = "all"
    warning bus.toml:5:23: `client_capabilities` has an effect only with share = "all"
    warning bus.toml:6:18: `mix_identities` has an effect only with share = "all"
    warning bus.toml:13:23: `client_capabilities` has no effect with protocol = "jsonrpc"
    "#);
}

const STDIO_BUS_CONFIG: &str = r#"{
  "pools": [
    {"id": "echo worker", "command": "/usr/bin/node", "args": ["worker.js", ""], "instances": 300, "env": {}},
    {"id": "b", "command": "b", "instances": 1}
  ],
  "limits": {
    "max_input_buffer": 1048576, "max_output_queue": 4194304,
    "max_restarts": 7, "restart_window_sec": 61,
    "drain_timeout_sec": 31, "backpressure_timeout_sec": 0, "max_restart": 5,
  },
  "transport": {"mode": "stdio", "framing": "ndjson", "protocol": "json", "options": {}}
}
"#;

#[test]
fn a_stdio_bus_file_is_read() {
    let (config, warnings) = read(STDIO_BUS_CONFIG, Path::new("stdio_bus_config"), None).unwrap();
    let pool = |id: &str, command: &[&str], instances| Pool {
        instances,
        max_instances: u32::max(instances, 256),
        share: ShareMode::All,
        protocol: PoolProtocol::JsonRpc,
        pass_env: vec!["*".to_owned()],
        ..Pool::new(id, command.iter().map(|word| (*word).to_owned()).collect())
    };
    let expected = Config {
        listen: vec![ListenerSettings::new(ListenAddr::Stdio)],
        pools: vec![pool("echo worker", &["/usr/bin/node", "worker.js", ""], 300), pool("b", &["b"], 1)],
        limits: BusLimits {
            max_line: 1 << 20,
            queue_bytes: 4 << 20,
            restart_budget: 7,
            restart_window: Duration::from_secs(61),
            drain_timeout: Duration::from_secs(31),
            ..BusLimits::default()
        },
        admin: AdminConfig::default(),
    };
    assert_eq!(config, expected);
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_snapshot!(warnings.join("\n"), @r"
    stdio_bus_config:3:100: `env` is unknown and ignored
    stdio_bus_config:9:26: `drain_timeout_sec` lets a shutdown take 41s: give the service manager at least that timeout
    stdio_bus_config:9:58: `backpressure_timeout_sec` cannot be 0 here; the default is used
    stdio_bus_config:9:61: `max_restart` is unknown and ignored; did you mean `max_restarts`?
    stdio_bus_config:9:77: trailing comma
    stdio_bus_config:11:86: `options` is ignored
    ");
}

#[test]
fn errors_in_stdio_bus_files_are_reported() {
    assert_snapshot!(findings_of(r#"{
  "pools": [
    {"id": "a", "command": "a", "instances": 0},
    {"id": "b", "command": "b", "instances": 1},
    {"id": "b", "command": "c", "args": [1], "instances": 1},
    {"command": ["d"]}
  ],
  "limits": {"max_input_buffer": 1, "drain_timeout_sec": "30s"},
  "transport": {"mode": "shm", "framing": "length", "protocol": "binary"}
}"#, "c.json"), @r#"
    c.json:3:46: `instances` must be a whole number from 1 to 10000
    c.json:5:5: duplicate pool id "b"; give each pool an `id` of its own
    c.json:5:42: `args` must be a list of texts
    c.json:6:5: `id` is missing; a pool has an id, a command and a number of instances
    c.json:6:5: `instances` is missing; a pool has an id, a command and a number of instances
    c.json:6:17: `command` must be a text in quotes
    c.json:8:34: `max_input_buffer` must be a whole number from 1024 to 1073741824
    c.json:8:58: `drain_timeout_sec` must be a whole number from 1 to 31536000
    c.json:9:25: `mode` can only be "stdio", "unix" or "tcp" here
    c.json:9:43: `framing` can only be "ndjson" here
    c.json:9:65: `protocol` can only be "json" here
    "#);
    assert_eq!(
        findings_of("{}", "bus.toml"),
        "bus.toml:1:1: `pools` is missing; JSON is read as a configuration of stdio Bus; a bus.toml is TOML"
    );
    assert_eq!(findings_of(r#"{"pools": []}"#, "c"), "c:1:11: `pools` must have at least one pool");
    assert_eq!(
        findings_of("pools", "c.json"),
        "c.json:1:1: invalid JSON: a value is expected here; a text needs double quotes"
    );
    let tcp = r#"{"pools": [{"id": "a", "command": "a", "instances": 1}], "transport": {"mode": "tcp"}}"#;
    assert_eq!(
        findings_of(tcp, "c"),
        "warning c:1:80: `mode` names no address: the bus does not listen unless --tcp HOST:PORT or --unix PATH is given"
    );
}

#[test]
fn missing_programs_are_reported_at_their_command() {
    let lines = |text: &str, path| {
        let nowhere = [("PATH".into(), "/nowhere".into())];
        let machine = Machine { environment: &nowhere, own_program: "narrows" };
        let InspectedConfig { errors, .. } = inspect(text, Path::new(path), None, Some(machine));
        errors.iter().map(|error| error.pos.line).collect::<Vec<_>>()
    };
    // The program of the first pool is this test, which exists. The second one is not checked, because the
    // `cwd` to which its path is relative is missing.
    assert_eq!(lines(FULL_CONFIG, "bus.toml"), [29]);
    let searched = FULL_CONFIG.replace("./agent", "agent");
    assert_eq!(lines(&searched, "bus.toml"), [28, 29]);
    assert_eq!(lines(&STDIO_BUS_CONFIG.replace("/usr", "/no/such"), "c.json"), [3, 4]);
}

#[test]
fn what_the_machine_lacks_is_reported_with_all_other_findings() {
    let text = r#"
[[pool]]
command = ["/no/such/program"]
cwd = "/no/such/place"
instancse = 2
memory = "1GiB"
pids = 7
"#;
    let machine = Machine { environment: &[], own_program: "narrows" };
    let InspectedConfig { config, errors, mut warnings, .. } =
        inspect(text, Path::new("bus.toml"), None, Some(machine));
    assert_eq!(config, None);
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_snapshot!(lines.join("\n"), @r#"
    bus.toml:3:11: `command` cannot be started: program "/no/such/program" not found; install it, or write its path; a relative path starts from `cwd`, or from the current directory
    bus.toml:4:7: `cwd` cannot be used: "/no/such/place": No such file or directory (os error 2)
    bus.toml:5:1: unknown setting `instancse` in [pool]; did you mean `instances`?
    "#);
    assert!(warnings.remove(0).message.contains("no [[listen]]"));
    let cannot: Vec<usize> = [(Controller::Memory, 6), (Controller::Pids, 7)]
        .into_iter()
        .filter_map(|(controller, line)| narrows_process::Limits::check(controller).err().map(|_| line))
        .collect();
    assert_eq!(warnings.iter().map(|warning| warning.pos.line).collect::<Vec<_>>(), cannot);
}

#[test]
fn a_blocked_socket_path_and_too_few_descriptors_are_reported() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("file"), "").unwrap();
    let pool = |name: &str| {
        format!(
            "[[pool]]\nname = \"{name}\"\ncommand = [\"narrows\"]\ninstances = 10000\nmax_instances = 10000\n"
        )
    };
    let pools: String = (0..30).map(|number| pool(&number.to_string())).collect();
    let text = format!("[[listen]]\nurl = \"unix:file\"\n{pools}[admin]\nsocket = \"new\"\n");
    let machine = Machine { environment: &[], own_program: "narrows" };
    let InspectedConfig { errors, warnings, .. } =
        inspect(&text, &place.path().join("bus.toml"), None, Some(machine));
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].pos.line, 2);
    assert!(errors[0].message.ends_with("exists and is not a socket"), "{errors:?}");
    let needed = 30 * 10_000 * 8;
    match rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum {
        Some(most) if most < needed => assert!(warnings[0].message.contains("descriptors"), "{warnings:?}"),
        _ => assert_eq!(warnings, []),
    }
}

#[test]
fn a_long_drain_timeout_is_a_warning() {
    let pool = "[[listen]]\nurl = \"stdio:\"\n[[pool]]\ncommand = [\"a\"]\n[limits]\ndrain_timeout = ";
    assert_eq!(toml(&format!("{pool}\"30s\"")), "");
    assert_eq!(
        toml(&format!("{pool}\"50s\"")),
        "warning bus.toml:6:17: `drain_timeout` lets a shutdown take 60s: give the service manager at least that timeout"
    );
}

#[test]
fn rendered_settings_read_back_as_the_same_configuration() {
    for (text, path) in [(FULL_CONFIG, "/etc/bus.toml"), ("[[pool]]\ncommand = [\"a\"]\n", "bus.toml")] {
        let (mut config, _) = read(text, Path::new(path), None).unwrap();
        let shown = render::toml(&config);
        // The rendered settings hide the values of variables, so the values are filled in again.
        let variables: Vec<String> = config.pools.iter().flat_map(|pool| pool.env.keys().cloned()).collect();
        for name in &variables {
            assert!(shown.contains(&format!("\n# {name} = ")), "{shown}");
        }
        config.pools.iter_mut().for_each(|pool| pool.env.clear());
        let (again, warnings) = read(&shown, Path::new("other.toml"), None).expect(&shown);
        assert_eq!(again, config, "{shown}");
        // The only possible warning is that no listener is configured.
        assert_eq!(warnings.is_empty(), !config.listen.is_empty(), "{warnings:?}");
    }
    let (config, _) =
        read("[[listen]]\nurl = \"stdio:\"\n[[pool]]\ncommand = [\"a\"]\n", Path::new("b"), None).unwrap();
    assert_eq!(render::json(&config)["limits"]["queue_bytes"], "8MiB");
    assert_snapshot!(render::toml(&config), @r#"
    [[listen]]
    url = "stdio:"
    auth = "user"

    [[pool]]
    name = "default"
    command = ["a"]
    instances = 1
    max_instances = 256
    share = "connection"
    protocol = 1
    pass_env = []
    mix_identities = false

    [pool.client_capabilities]

    [pool.env]

    [limits]
    max_line = "64MiB"
    max_batch = 100
    max_connections = 20000
    max_connections_per_identity = 1000
    max_anonymous_connections = 18000
    max_sessions_per_identity = 10000
    max_sessions_per_worker = 256
    max_rate_per_identity = 100000
    queue_bytes = "8MiB"
    unfinished_input = "256MiB"
    unfinished_input_per_identity = "64MiB"
    stall_timeout = "30s"
    initialize_timeout = "30s"
    open_timeout = "300s"
    cancel_grace = "30s"
    drain_timeout = "30s"
    session_grace = "300s"
    disconnect_grace = "0s"
    restart_budget = 5
    restart_window = "60s"
    memory = "0"
    replay_bytes = "4MiB"
    replay_time = "300s"
    header_timeout = "10s"
    idle_timeout = "45s"
    owner_expiry = "7776000s"

    [admin]
    "#);
}

fn broken(of: &'static str) -> impl Strategy<Value = String> {
    let whole: Vec<char> = of.chars().collect();
    let length = whole.len();
    let edit = (0..length, 0..40usize, "[\\[\\]{}\"'=,.:#\n 0a-é]{0,6}");
    proptest::collection::vec(edit, 1..4).prop_map(move |edits| {
        let mut text = whole.clone();
        for (at, length, new) in edits {
            let at = at.min(text.len());
            let end = (at + length).min(text.len());
            text.splice(at..end, new.chars());
        }
        text.into_iter().collect()
    })
}

fn value() -> impl Strategy<Value = String> {
    let word = prop_oneof!["[a-z_]{1,8}", Just("tcp://127.0.0.1:1".to_owned()), Just("64MiB".to_owned())];
    let leaf = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<bool>().prop_map(|flag| flag.to_string()),
        word.prop_map(|word| format!("{word:?}")),
        Just("1.5".to_owned()),
        Just("[]".to_owned()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(|list| format!("[{}]", list.join(", "))),
            inner.prop_map(|value| format!("{{ a = {value} }}")),
        ]
    })
}

fn check_any_text(text: &str, path: &str) -> Result<(), TestCaseError> {
    let lines = text.lines().count().max(1);
    let machine = Machine { environment: &[], own_program: "narrows" };
    let InspectedConfig { config, errors, warnings, .. } =
        inspect(text, Path::new(path), None, Some(machine));
    prop_assert_eq!(config.is_none(), !errors.is_empty(), "refused without a reason: {}", text);
    if let Some(config) = config {
        prop_assert!(!render::toml(&config).is_empty());
    }
    let places = errors.into_iter().map(|error| error.pos);
    for place in places.chain(warnings.into_iter().map(|warning| warning.pos)) {
        prop_assert!((1..=lines).contains(&place.line), "{} of {}: {:?}", place, lines, text);
        let width = text.lines().nth(place.line - 1).unwrap_or_default().chars().count();
        prop_assert!((1..=width + 1).contains(&place.column), "{} of {}: {:?}", place, width, text);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_finding_has_a_position_in_the_file(text in broken(FULL_CONFIG), other in broken(STDIO_BUS_CONFIG), noise in ".{0,60}") {
        check_any_text(&text, "bus.toml")?;
        check_any_text(&other, "bus.json")?;
        check_any_text(&noise, "bus.toml")?;
        check_any_text(&noise, "bus.json")?;
    }

    #[test]
    fn any_value_is_read_or_refused(line in 1..50usize, value in value()) {
        let line = FULL_CONFIG.lines().enumerate().filter(|(_, line)| line.contains(" = ")).nth(line % 30).unwrap().0;
        let text: Vec<String> = FULL_CONFIG
            .lines()
            .enumerate()
            .map(|(at, text)| match text.split_once(" = ") {
                Some((key, _)) if at == line => format!("{key} = {value}"),
                _ => text.to_owned(),
            })
            .collect();
        check_any_text(&text.join("\n"), "bus.toml")?;
    }
}
