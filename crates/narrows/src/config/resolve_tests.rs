//! Tests of the precedence of the sources.

use std::path::Path;

use super::*;
use crate::cli::value;
use crate::config::variables::variables;

const FILE: &str = r#"
system = "of the file"
[endpoint.local]
base_url = "http://localhost:11434/v1"
model = "llama3.2"
[endpoint.work]
base_url = "https://gateway.example.org/v1"
key_env = "WORK_KEY"
model = "big"
max_tokens = 10
"#;

fn flags(model: ModelArgs) -> Flags {
    Flags { model, no_store: true, ..Flags::default() }
}

fn read(file: &str, model: ModelArgs, pairs: &[(&str, &str)]) -> Result<Resolved, ConfigError> {
    let file = (!file.is_empty()).then(|| NarrowsToml::parse(Path::new("narrows.toml"), file, None).unwrap());
    resolve(&flags(model), file, &variables(pairs))
}

/// Returns each endpoint as `NAME URL MODEL KEY`.
fn routes(resolved: &Resolved) -> Vec<String> {
    let shown = |chosen: &ResolvedEndpoint| {
        let (url, model) = (chosen.settings.base_url.as_deref(), chosen.settings.model.as_deref());
        let key = chosen.key.as_ref().map_or("-", |key| key.reveal());
        format!("{} {} {} {key}", chosen.name, url.unwrap_or("-"), model.unwrap_or("-"))
    };
    resolved.endpoints.iter().map(shown).collect()
}

#[track_caller]
fn check(file: &str, model: ModelArgs, pairs: &[(&str, &str)], expected: &[&str]) {
    let resolved = read(file, model, pairs).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(routes(&resolved), expected, "{pairs:?}");
}

#[track_caller]
fn fails(file: &str, model: ModelArgs, pairs: &[(&str, &str)], expected: &str, hint: Option<&str>) {
    let error = read(file, model, pairs).expect_err(expected);
    assert_eq!((error.to_string().as_str(), error.hint.as_deref()), (expected, hint));
}

fn none() -> ModelArgs {
    ModelArgs::default()
}

#[test]
fn with_nothing_set_there_is_no_endpoint() {
    check("", none(), &[], &[]);
    check("", none(), &[("OPENAI_MODEL", "m"), ("OPENAI_TEMPERATURE", "1")], &[]);
    check("", none(), &[("OPENAI_BASE_URL", ""), ("OPENAI_API_KEY", "")], &[]);
    check("system = 'x'", none(), &[], &[]);
}

#[test]
fn the_variables_form_an_endpoint() {
    check("", none(), &[("OPENAI_API_KEY", "k")], &["env https://api.openai.com/v1 gpt-4o k"]);
    check("", none(), &[("OPENAI_BASE_URL", "http://h/v1")], &["env http://h/v1 gpt-4o -"]);
    let all = [("OPENAI_BASE_URL", "http://h"), ("OPENAI_API_KEY", "k"), ("OPENAI_MODEL", "m")];
    check("", none(), &all, &["env http://h m k"]);
    check("", none(), &[("OPENAI_BASE_URL", "builtin:demo")], &["env builtin:demo demo -"]);
    check(
        "",
        none(),
        &[("OPENAI_BASE_URL", "builtin:demo"), ("OPENAI_MODEL", "m")],
        &["env builtin:demo demo -"],
    );
}

#[test]
fn flags_override_variables_and_those_override_the_file() {
    let (local, work) =
        ("local http://localhost:11434/v1 llama3.2 -", "work https://gateway.example.org/v1 big w");
    let key = ("WORK_KEY", "w");
    check(FILE, none(), &[key], &[local, work]);
    check(&format!("default = 'work'\n{FILE}"), none(), &[key], &[work, local]);
    // A model alone applies to the selected endpoint.
    let renamed = "local http://localhost:11434/v1 m -";
    check(FILE, none(), &[key, ("OPENAI_MODEL", "m")], &[renamed, work]);
    let flag = |name: &str| ModelArgs { model: Some(name.to_owned()), ..none() };
    check(FILE, flag("n"), &[key, ("OPENAI_MODEL", "m")], &["local http://localhost:11434/v1 n -", work]);
    // The endpoint of the variables has its own model.
    let env = "env https://api.openai.com/v1 m k";
    check(FILE, none(), &[key, ("OPENAI_API_KEY", "k"), ("OPENAI_MODEL", "m")], &[local, work, env]);
    let url = ("OPENAI_BASE_URL", "https://api.openai.com/v1");
    check(FILE, none(), &[key, url, ("OPENAI_API_KEY", "k"), ("OPENAI_MODEL", "m")], &[env, local, work]);
    let chosen = |name: &str| ModelArgs { endpoint: Some(name.to_owned()), ..none() };
    check(FILE, chosen("work"), &[key, ("OPENAI_API_KEY", "k"), ("OPENAI_MODEL", "m")], &[work, env, local]);
    check(FILE, chosen("env"), &[key, ("OPENAI_API_KEY", "k"), ("OPENAI_MODEL", "m")], &[env, local, work]);
    check(FILE, none(), &[key, ("NARROWS_ENDPOINT", "work")], &[work, local]);
    check(FILE, chosen("local"), &[key, ("NARROWS_ENDPOINT", "work")], &[local, work]);
}

#[test]
fn a_url_on_the_command_line_is_an_endpoint_without_the_keys_of_others() {
    let url = |url: &str| ModelArgs { base_url: Some(url.to_owned()), ..none() };
    let (local, work) =
        ("local http://localhost:11434/v1 llama3.2 -", "work https://gateway.example.org/v1 big w");
    let vars = [("WORK_KEY", "w"), ("NARROWS_ENDPOINT", "work")];
    check(FILE, url("http://h/v1"), &vars, &["flags http://h/v1 gpt-4o -", local, work]);
    check("", url("http://h/v1"), &[("OPENAI_API_KEY", "k")], &["flags http://h/v1 gpt-4o k"]);
    let both = ModelArgs { endpoint: Some("work".to_owned()), ..url("http://h/v1") };
    check(FILE, both, &vars, &["work http://h/v1 big w", local]);
    let key = ModelArgs { key_env: Some("MY_KEY".to_owned()), ..url("http://h/v1") };
    check("", key, &[("MY_KEY", "m"), ("OPENAI_API_KEY", "k")], &["flags http://h/v1 gpt-4o m"]);
}

#[test]
fn numbers_and_prompts_follow_the_same_order() {
    let tokens = |model: ModelArgs, pairs: &[(&str, &str)]| {
        let resolved = read(&FILE.replace("[endpoint.local]", "[endpoint.other]"), model, pairs).unwrap();
        (resolved.endpoints[0].settings.max_tokens, resolved.system_prompt)
    };
    let work = || ModelArgs { endpoint: Some("work".to_owned()), ..none() };
    let key = ("WORK_KEY", "w");
    let of_file = Some("of the file".to_owned());
    assert_eq!(tokens(work(), &[key]), (Some(10), of_file.clone()));
    assert_eq!(tokens(work(), &[key, ("OPENAI_MAX_TOKENS", "20")]), (Some(20), of_file));
    let flag = ModelArgs { max_tokens: Some(30), system: Some("flag".to_owned()), ..work() };
    let vars = [key, ("OPENAI_MAX_TOKENS", "20"), ("OPENAI_SYSTEM_PROMPT", "variable")];
    assert_eq!(tokens(work(), &vars), (Some(20), Some("variable".to_owned())));
    assert_eq!(tokens(flag, &vars), (Some(30), Some("flag".to_owned())));
}

#[test]
fn unknown_and_incomplete_endpoints_are_errors() {
    let chosen = |name: &str| ModelArgs { endpoint: Some(name.to_owned()), ..none() };
    let key = [("WORK_KEY", "w")];
    fails(
        FILE,
        chosen("wrok"),
        &key,
        "--endpoint: unknown endpoint \"wrok\"",
        Some("did you mean \"work\"?"),
    );
    fails(
        FILE,
        chosen("zzz"),
        &key,
        "--endpoint: unknown endpoint \"zzz\"",
        Some("configured endpoints: local, work"),
    );
    fails(
        "",
        none(),
        &[("NARROWS_ENDPOINT", "a")],
        "NARROWS_ENDPOINT: unknown endpoint \"a\"",
        Some("an endpoint is a table in narrows.toml: [endpoint.a]"),
    );
    fails(
        "",
        chosen("env"),
        &[],
        "--endpoint: unknown endpoint \"env\"",
        Some("set OPENAI_BASE_URL and OPENAI_API_KEY to use it"),
    );
    fails(
        "[endpoint.a]\nmodel = 'm'",
        none(),
        &[],
        "narrows.toml:1: the endpoint \"a\" has no `base_url`",
        None,
    );
    fails(
        "\n[endpoint.a]\nbase_url = 'http://a'",
        none(),
        &[],
        "narrows.toml:2: the endpoint \"a\" has no `model`",
        Some("set `model` there, use --model, or set OPENAI_MODEL"),
    );
    fails(
        FILE,
        chosen("work"),
        &[],
        "narrows.toml:6: the endpoint \"work\" cannot be used: the environment variable WORK_KEY, which holds the API key, is not set",
        None,
    );
    fails(
        "",
        none(),
        &[("NARROWS_ERRORS", "loud")],
        "NARROWS_ERRORS: \"loud\" cannot be used: expected `text` or `rpc`",
        Some("correct or unset NARROWS_ERRORS"),
    );
}

#[test]
fn an_unusable_endpoint_that_is_not_selected_is_no_error() {
    let resolved = read(FILE, none(), &[]).unwrap();
    assert_eq!(routes(&resolved), ["local http://localhost:11434/v1 llama3.2 -"]);
    // There is no warning, because nothing of this endpoint is used.
    assert_eq!(resolved.warnings, [] as [String; 0]);
    assert_eq!(
        resolved.deferred_warnings,
        [
            "the endpoint \"work\" is not used: narrows.toml:6: the endpoint \"work\" cannot be used: the environment variable WORK_KEY, which holds the API key, is not set"
        ]
    );
}

#[test]
fn a_variable_that_overrides_the_default_of_the_file_is_a_warning() {
    let file = format!("default = 'local'\n{FILE}");
    let url = ("OPENAI_BASE_URL", "http://h/v1");
    let resolved = read(&file, none(), &[("WORK_KEY", "w"), url]).unwrap();
    assert_eq!(
        resolved.warnings,
        [
            "OPENAI_BASE_URL is set, so it selects the endpoint instead of `default = \"local\"`; choose with --endpoint or NARROWS_ENDPOINT"
        ]
    );
    let chosen = ModelArgs { endpoint: Some("local".to_owned()), ..none() };
    let resolved = read(&file, chosen, &[("WORK_KEY", "w"), url]).unwrap();
    assert_eq!(resolved.warnings, [""; 0]);
}

#[test]
fn the_data_directory_follows_the_same_precedence() {
    #[track_caller]
    fn check(flags: &Flags, file: &str, pairs: &[(&str, &str)], expected: Option<&str>, warns: bool) {
        let file = NarrowsToml::parse(Path::new("/c/narrows.toml"), file, None).unwrap();
        let resolved = resolve(flags, Some(file), &variables(pairs)).unwrap();
        assert_eq!(resolved.data_dir.as_deref(), expected.map(Path::new));
        assert_eq!(!resolved.warnings.is_empty(), warns, "{:?}", resolved.warnings);
    }
    let home = ("HOME", "/home/me");
    let (plain, no_store) = (Flags::default(), flags(none()));
    let named = Flags { data_dir: Some("/flag".into()), ..Flags::default() };
    check(&plain, "", &[home], Some("/home/me/.local/share/narrows"), false);
    check(&plain, "", &[], None, true);
    check(&plain, "data_dir = 'd'", &[], Some("/c/d"), false);
    check(&plain, "data_dir = '/d'", &[home, ("NARROWS_DATA_DIR", "/v")], Some("/v"), false);
    check(&named, "", &[home, ("NARROWS_DATA_DIR", "/v")], Some("/flag"), false);
    check(&no_store, "", &[home, ("NARROWS_DATA_DIR", "/v")], None, false);
    check(&plain, "store = false", &[home], None, false);
    check(&named, "store = false", &[home], Some("/flag"), false);
}

#[test]
fn the_proxy_is_selected_per_endpoint() {
    let proxy = |model: ModelArgs, url: &str, pairs: &[(&str, &str)]| {
        let model = ModelArgs { base_url: Some(url.to_owned()), ..model };
        let chosen = read("", model, pairs).unwrap().endpoints.remove(0);
        (chosen.settings.proxy, chosen.proxy_from)
    };
    let through = |url: &str| Some(Proxy::Through(url.to_owned()));
    let vars = [("HTTPS_PROXY", "http://p")];
    assert_eq!(proxy(none(), "https://h", &vars), (through("http://p"), Some("HTTPS_PROXY")));
    assert_eq!(proxy(none(), "http://localhost:1/v1", &[("ALL_PROXY", "http://p")]), (None, None));
    let direct = ModelArgs { proxy: value::proxy("none").ok(), ..none() };
    assert_eq!(proxy(direct, "https://h", &vars), (Some(Proxy::None), None));
    let other = ModelArgs { proxy: value::proxy("http://q").ok(), ..none() };
    assert_eq!(proxy(other, "https://h", &vars), (through("http://q"), None));
}
