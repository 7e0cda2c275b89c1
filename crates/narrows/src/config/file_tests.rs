//! Tests of `narrows.toml`: valid files, errors, and properties.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use toml::{Table as Toml, Value};

use super::*;

fn parse(text: &str) -> Result<NarrowsToml, ConfigError> {
    let mut file = NarrowsToml::parse(Path::new("/c/narrows.toml"), text, Some(Path::new("/home/me")))?;
    let wrong = file.endpoints.iter_mut().find_map(|entry| entry.error.take());
    wrong.map_or(Ok(file), Err)
}

#[track_caller]
fn check(text: &str, expected: &str, hint: Option<&str>) {
    let error = parse(text).expect_err(text);
    assert_eq!((error.to_string().as_str(), error.hint.as_deref()), (expected, hint), "{text}");
}

#[test]
fn a_file_is_read() {
    let file = parse(
        r#"
default = "work"
system = "Be brief."
errors = "rpc"
data_dir = "~/sessions"
store = true
pace = "0"

[endpoint.local]
base_url = "http://localhost:11434/v1"
model = "llama3.2"

[endpoint.work]
base_url = "https://gateway.example.org/v1"
key_env = "WORK_KEY"
model = "big"
headers = { X-Team = "blue" }
query = { api-version = "1" }
provider = "litellm"
context_window = 32_768
ca_file = "ca.pem"
proxy = "none"
max_tokens = 1000
temperature = 1
effort = "high"
idle_timeout = "30s"

[deadlines]
silence = '20m'
new = '7s'

[limits]
requests_per_turn = 5
tool_timeout = "1m"
"#,
    )
    .unwrap();
    let origin = |line| Origin::File { path: "/c/narrows.toml".into(), line };
    let local = EndpointSettings {
        base_url: Some("http://localhost:11434/v1".to_owned()),
        model: Some("llama3.2".to_owned()),
        ..EndpointSettings::default()
    };
    let work = EndpointSettings {
        base_url: Some("https://gateway.example.org/v1".to_owned()),
        key: Some(Key::Variable("WORK_KEY".to_owned())),
        model: Some("big".to_owned()),
        headers: vec![Header { name: "X-Team".to_owned(), value: "blue".to_owned().into() }],
        query: vec![("api-version".to_owned(), "1".to_owned())],
        provider: Some(Provider::LiteLlm),
        context_window: Some(32_768),
        ca_file: Some("/c/ca.pem".into()),
        proxy: Some(Proxy::None),
        max_tokens: Some(1000),
        temperature: Some(1.0),
        effort: Some(Effort::High),
        idle_timeout: Some(Duration::from_secs(30)),
        ..EndpointSettings::default()
    };
    let expected = NarrowsToml {
        default_endpoint: Some("work".to_owned()),
        system_prompt: Some("Be brief.".to_owned()),
        errors: Some(Errors::Rpc),
        data_dir: Some("/home/me/sessions".into()),
        store: Some(true),
        pace: Some(Duration::ZERO),
        endpoints: vec![
            EndpointEntry { name: "local".to_owned(), origin: origin(9), settings: local, error: None },
            EndpointEntry { name: "work".to_owned(), origin: origin(13), settings: work, error: None },
        ],
        deadlines: vec![("new", Duration::from_secs(7)), ("silence", Duration::from_secs(1200))],
        limits: TurnLimits {
            requests_per_turn: Some(5),
            tool_timeout: Some(Duration::from_secs(60)),
            server_start_timeout: None,
        },
        agents: Vec::new(),
        invalid_agents: Vec::new(),
        acp: Acp::default(),
        warnings: Vec::new(),
    };
    assert_eq!(file, expected);
    assert_eq!(file.key_variables().collect::<Vec<_>>(), ["WORK_KEY"]);
    assert_eq!(parse(""), Ok(NarrowsToml::default()));
}

#[test]
fn a_remote_agent_is_read() {
    let text = "[acp]\nconnect = \"wss://bus.example/acp\"\ntoken_file = \"~/token\"\nca = \"ca.pem\"\ncert = \"me.pem\"\nkey = \"~/me.key\"\ngrace = \"10s\"";
    let remote = RemoteArgs {
        token_file: Some("/home/me/token".into()),
        token_by: NamedBy::Setting,
        ca: Some("/c/ca.pem".into()),
        cert: Some("/c/me.pem".into()),
        key: Some("/home/me/me.key".into()),
        grace: Some(Duration::from_secs(10)),
    };
    let connect = Some("wss://bus.example/acp".parse().unwrap());
    assert_eq!(parse(text).unwrap().acp, Acp { connect, remote });
    let wrong = "/c/narrows.toml:2: `acp.connect` is not the URL of an agent";
    let schemes = "unknown scheme: expected ws://, wss://, http://, https://, tcp:// or unix:";
    check("[acp]\nconnect = 'narrows acp'", wrong, Some(schemes));
}

#[test]
fn unknown_names_are_refused_with_a_suggestion() {
    let here = |line: u32, message: &str| format!("/c/narrows.toml:{line}: {message}");
    check(
        "[endpoint.a]\nmodle = \"x\"",
        &here(2, "unknown setting `modle` in [endpoint.a]"),
        Some("did you mean `model`?"),
    );
    check(
        "[endpoint.a]\nbas_url = \"x\"",
        &here(2, "unknown setting `bas_url` in [endpoint.a]"),
        Some("did you mean `base_url`?"),
    );
    check(
        "\n[limits]\nspeed = 1",
        &here(3, "unknown setting `speed` in [limits]"),
        Some("valid settings are: requests_per_turn, tool_timeout, server_start_timeout"),
    );
    check(
        "[deadlines]\nslience = '1m'",
        &here(2, "unknown setting `slience` in [deadlines]"),
        Some("did you mean `silence`?"),
    );
    check("sytem = 'x'", &here(1, "unknown setting `sytem`"), Some("did you mean `system`?"));
    check(
        "errors = 'txt'",
        &here(1, "`errors` must be one of \"text\", \"rpc\""),
        Some("did you mean \"text\"?"),
    );
    check(
        "[endpoint.a]\neffort = 'hihg'",
        &here(2, "`endpoint.a.effort` must be one of \"minimal\", \"low\", \"medium\", \"high\""),
        Some("did you mean \"high\"?"),
    );
    check(
        "default = 'wrok'\n[endpoint.work]",
        &here(1, "`default` is not an endpoint of this file"),
        Some("did you mean \"work\"?"),
    );
    check(
        "default = 'a'",
        &here(1, "`default` is not an endpoint of this file"),
        Some("an endpoint is a table: [endpoint.a]"),
    );
    check(
        "[endpoint.env]",
        &here(1, "`endpoint.env` is a reserved name"),
        Some("`env` is the endpoint of the OPENAI_ variables, `flags` that of --base-url"),
    );
}

#[test]
fn values_of_another_type_are_refused_and_not_shown() {
    let in_a = |line: &str| format!("[endpoint.a]\n{line}");
    let at_line_2 = |message: &str| format!("/c/narrows.toml:2: `endpoint.a.{message}");
    for (line, message) in [
        ("model = 7", "model` must be a text in quotes"),
        ("model = ' '", "model` must be a text that is not empty"),
        (
            "model = 'default'",
            "model` cannot be \"default\": `default` is reserved: clients send it if no model is chosen; use the id of a model of the endpoint",
        ),
        ("key = 12345", "key` must be a text in quotes"),
        ("max_tokens = 0", "max_tokens` must be a whole number, 1 or more"),
        ("max_tokens = -5", "max_tokens` must be a whole number, 1 or more"),
        ("max_tokens = 1.5", "max_tokens` must be a whole number, 1 or more"),
        ("max_tokens = '5'", "max_tokens` must be a whole number, 1 or more"),
        ("temperature = nan", "temperature` must be a number"),
        ("temperature = inf", "temperature` must be a number"),
        ("temperature = -1", "temperature` must be a number, 0 or above"),
        ("idle_timeout = '5d'", "idle_timeout` cannot be \"5d\": the unit must be `ms`, `s`, `m` or `h`"),
        ("headers = 'a'", "headers` must be a table"),
        ("headers = { a = 1 }", "headers.a` must be a text in quotes"),
        ("key_env = 'A=b'", "key_env` cannot be \"A=b\": invalid name of an environment variable"),
        (
            "key_env = 'A'\nkey = 'b'",
            "key_env` is a second key: an endpoint has one of `key_env`, `key_file` and `key`",
        ),
    ] {
        check(&in_a(line), &at_line_2(message), None);
    }
    check("endpoint = 1", "/c/narrows.toml:1: `endpoint` must be a table", None);
    check("store = 'no'", "/c/narrows.toml:1: `store` must be true or false", None);
    let error = parse("a = \n").unwrap_err().to_string();
    assert!(error.starts_with("/c/narrows.toml:1: invalid TOML: "), "{error}");
}

#[test]
fn the_documentation_has_every_setting() {
    let page = include_str!("../../../../docs/reference/narrows-toml.md");
    for setting in TOP_LEVEL_KEYS
        .iter()
        .chain(ENDPOINT_KEYS)
        .chain(LIMITS_KEYS)
        .chain(ACP_KEYS)
        .filter(|name| !["endpoint", "limits", "deadlines", "agents", "acp"].contains(name))
    {
        assert!(page.contains(&format!("\n| `{setting}` |")), "`{setting}` is not in narrows-toml.md");
    }
}

#[test]
fn the_documented_deadlines_are_accepted() {
    let page = include_str!("../../../../docs/reference/narrows-toml.md");
    let section = page.split("\n## `[deadlines]`\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows = section.expect("a section on deadlines").lines().filter_map(|line| line.strip_prefix("| `"));
    let names: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    let lines = names.iter().map(|name| format!("{name} = '1s'\n")).collect::<String>();
    let file = parse(&format!("[deadlines]\n{lines}")).expect("names of deadlines");
    assert_eq!(file.deadlines.len(), names.len());
    assert!(names.len() > 10, "{names:?}");
}

#[test]
fn the_example_in_the_documentation_is_valid() {
    let page = include_str!("../../../../docs/reference/narrows-toml.md");
    let mut examples = page.split("```toml\n").skip(1).peekable();
    assert!(examples.peek().is_some(), "there is an example");
    for example in examples {
        let example = example.split("```").next().expect("a part before the end mark");
        parse(example).unwrap_or_else(|error| panic!("{error}\n{example}"));
    }
}

/// A duration of whole milliseconds.
fn time() -> impl Strategy<Value = Option<Duration>> {
    of((1..1_000_000u64).prop_map(Duration::from_millis))
}

fn text() -> impl Strategy<Value = Option<String>> {
    of("[!-~]\\PC{0,20}")
}

prop_compose! {
    fn settings()(
        (base_url, model) in (text(), text()),
        key in of(prop_oneof![
            "[!-~]{1,20}".prop_map(|key| Key::Inline(key.into())),
            "[A-Z_]{1,9}".prop_map(Key::Variable),
            "/[a-z]{1,9}".prop_map(|path| Key::File(path.into())),
        ]),
        headers in proptest::collection::btree_map("[A-Za-z-]{1,9}", "\\PC{0,9}", 0..3),
        query in proptest::collection::btree_map("\\PC{1,9}", "\\PC{0,9}", 0..3),
        provider in of(select(Provider::all().collect::<Vec<_>>())),
        effort in of(select(Effort::ALL.to_vec())),
        tokens in (of(1..i64::MAX as u64), of(1..i64::MAX as u64)),
        temperature in of(0.0..1e6f64),
        ca_file in of("/[a-z]{1,9}"),
        proxy in of("[!-~]{1,9}"),
        times in (time(), time(), time(), time()),
    ) -> EndpointSettings {
        EndpointSettings {
            base_url,
            key,
            model,
            headers: headers.into_iter().map(|(name, value)| Header { name, value: value.into() }).collect(),
            query: query.into_iter().collect(),
            provider,
            context_window: tokens.0,
            ca_file: ca_file.map(Into::into),
            proxy: proxy.map(Proxy::from),
            max_tokens: tokens.1,
            temperature,
            effort,
            connect_timeout: times.0,
            first_timeout: times.1,
            idle_timeout: times.2,
            total_timeout: times.3,
        }
    }
}

fn strings(pairs: impl IntoIterator<Item = (String, String)>) -> Value {
    Value::Table(pairs.into_iter().map(|(name, value)| (name, Value::String(value))).collect())
}

fn written(time: Duration) -> Value {
    Value::String(format!("{}ms", time.as_millis()))
}

fn toml_of(settings: &EndpointSettings) -> Toml {
    let mut table = Toml::new();
    let mut put = |name: &str, value: Option<Value>| {
        table.extend(value.map(|value| (name.to_owned(), value)));
    };
    put("base_url", settings.base_url.clone().map(Value::String));
    put("model", settings.model.clone().map(Value::String));
    match settings.key.clone() {
        Some(Key::Inline(key)) => put("key", Some(Value::String(key.reveal().to_owned()))),
        Some(Key::Variable(name)) => put("key_env", Some(Value::String(name))),
        Some(Key::File(path)) => put("key_file", Some(Value::String(path.to_str().unwrap().to_owned()))),
        None => {}
    }
    let headers =
        settings.headers.iter().map(|header| (header.name.clone(), header.value.reveal().to_owned()));
    put("headers", Some(strings(headers)));
    put("query", Some(strings(settings.query.clone())));
    put("provider", settings.provider.map(|provider| Value::String(provider.name().to_owned())));
    put("effort", settings.effort.map(|effort| Value::String(effort.name().to_owned())));
    put("context_window", settings.context_window.map(|tokens| Value::Integer(tokens.try_into().unwrap())));
    put("max_tokens", settings.max_tokens.map(|tokens| Value::Integer(tokens.try_into().unwrap())));
    put("temperature", settings.temperature.map(Value::Float));
    put("ca_file", settings.ca_file.as_ref().map(|path| Value::String(path.to_str().unwrap().to_owned())));
    let proxy = settings.proxy.clone().map(|proxy| match proxy {
        Proxy::None => "none".to_owned(),
        Proxy::Through(url) => url,
    });
    put("proxy", proxy.map(Value::String));
    put("connect_timeout", settings.connect_timeout.map(written));
    put("first_timeout", settings.first_timeout.map(written));
    put("idle_timeout", settings.idle_timeout.map(written));
    put("total_timeout", settings.total_timeout.map(written));
    table
}

proptest! {
    #[test]
    fn any_settings_are_read_unchanged(
        layers in proptest::collection::btree_map("[a-z]{1,3}[0-9]", settings(), 0..4),
        system in text(),
        pace in of(0..1000u64),
    ) {
        let mut document = Toml::new();
        document.extend(system.clone().map(|system| ("system".to_owned(), Value::String(system))));
        document.extend(pace.map(|pace| ("pace".to_owned(), written(Duration::from_millis(pace)))));
        let endpoints: Toml =
            layers.iter().map(|(name, settings)| (name.clone(), Value::Table(toml_of(settings)))).collect();
        document.insert("endpoint".to_owned(), Value::Table(endpoints));
        let text = toml::to_string(&document).unwrap();
        let file = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let sorted = |mut settings: EndpointSettings| {
            settings.headers.sort_by(|a, b| a.name.cmp(&b.name));
            settings.query.sort();
            settings
        };
        let read: HashMap<String, EndpointSettings> =
            file.endpoints.into_iter().map(|entry| (entry.name, sorted(entry.settings))).collect();
        let meant: HashMap<String, EndpointSettings> =
            layers.into_iter().map(|(name, settings)| (name, sorted(settings))).collect();
        prop_assert_eq!(read, meant);
        prop_assert_eq!(file.system_prompt, system);
        prop_assert_eq!(file.pace, pace.map(Duration::from_millis));
    }

    #[test]
    fn any_text_is_read_or_refused_with_a_line(
        lines in vec("(\\[?(endpoint|limits|default)[.a-z-]{0,12}\\]?|[a-z-]{1,12}) ?=? ?['\"0-9a-z{}\\[\\],.=-]{0,20}", 0..8),
    ) {
        let text = lines.join("\n");
        if let Err(error) = parse(&text) {
            let Origin::File { line, .. } = error.origin else { panic!("{error}") };
            prop_assert!(line <= text.lines().count() + 1, "{}", error);
        }
    }

    #[test]
    fn numbers_are_read_exactly_or_refused(number in any::<i64>(), fraction in any::<f64>()) {
        let tokens = parse(&format!("[endpoint.a]\nmax_tokens = {number}"));
        let tokens = tokens.map(|file| file.endpoints[0].settings.max_tokens);
        prop_assert_eq!(tokens.ok(), u64::try_from(number).ok().filter(|number| *number > 0).map(Some));
        let written = toml::to_string(&fraction_of(fraction)).unwrap();
        let heat = parse(&written).map(|file| file.endpoints[0].settings.temperature);
        let expected = (fraction.is_finite() && fraction >= 0.0).then_some(Some(fraction));
        prop_assert_eq!(heat.ok(), expected);
    }
}

fn fraction_of(fraction: f64) -> Toml {
    let settings: Toml = [("temperature".to_owned(), Value::Float(fraction))].into_iter().collect();
    let endpoints: Toml = [("a".to_owned(), Value::Table(settings))].into_iter().collect();
    [("endpoint".to_owned(), Value::Table(endpoints))].into_iter().collect()
}
