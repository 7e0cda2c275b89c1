//! URLs and headers as documented by every provider, and invalid settings.

use proptest::prelude::*;

use super::*;

fn target(base_url: &str) -> Result<Target, EndpointError> {
    Target::new(&Endpoint { key: Some("sk-secret".into()), ..Endpoint::new("test", base_url) })
}

#[track_caller]
fn check(base_url: &str, provider: Provider, chat: &str) {
    let target = target(base_url).unwrap();
    assert_eq!((target.provider, target.chat().as_str()), (provider, chat), "{base_url}");
}

#[test]
fn documented_base_urls_work_unchanged() {
    check("https://api.openai.com/v1", Provider::OpenAi, "https://api.openai.com/v1/chat/completions");
    check(
        "https://eu-central-1.bedrock.amazonaws.com/openai/v1",
        Provider::Bedrock,
        "https://bedrock-runtime.eu-central-1.amazonaws.com/openai/v1/chat/completions",
    );
    check(
        "https://res.openai.azure.com/openai/deployments/dep",
        Provider::AzureDated,
        "https://res.openai.azure.com/openai/deployments/dep/chat/completions?api-version=2024-10-21",
    );
    check("http://localhost:11434/v1", Provider::Ollama, "http://localhost:11434/v1/chat/completions");
    check("http://localhost:8000/v1", Provider::Vllm, "http://localhost:8000/v1/chat/completions");
    check("http://localhost:4000/v1", Provider::LiteLlm, "http://localhost:4000/v1/chat/completions");
}

#[test]
fn pasted_url_variants_lead_to_the_same_url() {
    for base in [
        "http://localhost:9/v1",
        "http://localhost:9/v1/",
        "http://localhost:9/v1//",
        " http://localhost:9/v1 ",
        "http://localhost:9/v1/chat/completions",
        "http://localhost:9/v1/chat/completions/",
        "http://localhost:9/v1#top",
    ] {
        check(base, Provider::Other, "http://localhost:9/v1/chat/completions");
    }
    check("http://localhost:9", Provider::Other, "http://localhost:9/chat/completions");
}

#[test]
fn only_the_wrong_bedrock_host_adds_a_note() {
    let notes = |url: &str| target(url).unwrap().notes;
    assert_eq!(
        notes("https://us-east-1.bedrock.amazonaws.com/openai/v1"),
        ["base_url: there is no host us-east-1.bedrock.amazonaws.com; \
          bedrock-runtime.us-east-1.amazonaws.com is used"]
    );
    assert!(notes("https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1").is_empty());
}

#[test]
fn parameters_come_from_the_url_and_the_settings() {
    let check = |base: &str, query: &[(&str, &str)], expected: &str| {
        let mut endpoint = Endpoint::new("test", base);
        endpoint.query = query.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        assert_eq!(Target::new(&endpoint).unwrap().chat().query(), Some(expected), "{base}");
    };
    let azure = "https://res.openai.azure.com/openai/deployments/dep";
    check(azure, &[], "api-version=2024-10-21");
    check(azure, &[("api-version", "2025-01-01-preview")], "api-version=2025-01-01-preview");
    check(&format!("{azure}?api-version=2023-05-15"), &[], "api-version=2023-05-15");
    check("http://localhost:9/v1?a=1&b=2", &[("b", "3 4")], "a=1&b=3+4");
}

#[test]
fn a_key_is_sent_in_the_providers_header() {
    let check = |base: &str, key: &str, extra: &[(&str, &str)], expected: &[(&str, &str)]| {
        let mut endpoint = Endpoint { key: Some(key.into()), ..Endpoint::new("test", base) };
        endpoint.headers = extra.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let headers = Target::new(&endpoint).unwrap().headers;
        let mut found: Vec<_> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{base}");
        assert!(headers.values().all(HeaderValue::is_sensitive));
    };
    let bearer = [("authorization", "Bearer k-1")];
    check("https://api.openai.com/v1", "k-1", &[], &bearer);
    check("https://api.openai.com/v1", " k-1\n", &[], &bearer);
    check("https://api.openai.com/v1", "", &[], &[]);
    check("https://res.openai.azure.com/openai/v1", "k-1", &[], &[("api-key", "k-1")]);
    check("https://res.openai.azure.com/openai/deployments/d", "k-1", &[], &[("api-key", "k-1")]);
    check("https://res.openai.azure.com/openai/v1", "eyJ0", &[], &[("authorization", "Bearer eyJ0")]);
    check("http://localhost:4000/v1", "k-1", &[("X-Team", "a")], &[bearer[0], ("x-team", "a")]);
    check(
        "http://localhost:4000/v1",
        "k-1",
        &[("Authorization", "Basic b")],
        &[("authorization", "Basic b")],
    );
}

#[test]
fn invalid_settings_are_named() {
    let check = |endpoint: &Endpoint, expected: &str| {
        assert_eq!(Target::new(endpoint).unwrap_err().to_string(), expected);
    };
    check(&Endpoint::new("test", ""), "base_url: is not set");
    check(&Endpoint::new("test", "api.openai.com/v1"), "base_url: is not a URL: relative URL without a base");
    check(&Endpoint::new("test", "ftp://localhost/v1"), "base_url: must begin with http:// or https://");
    check(&Endpoint::new("test", "builtin:other"), "base_url: must begin with http:// or https://");
    check(
        &Endpoint::new("test", "https://me:pw@localhost/v1"),
        "base_url: contains a user or password: set the key as `key`",
    );
    let local = Endpoint::new("test", "http://localhost:9/v1");
    check(
        &Endpoint { key: Some("a\nb".into()), ..local.clone() },
        "key: has characters that a header cannot carry",
    );
    check(
        &Endpoint { headers: vec![("X Y".into(), "z".into())], ..local.clone() },
        "headers.X Y: is not a valid header name",
    );
    check(
        &Endpoint { headers: vec![("X-Y".into(), "a\rb".into())], ..local.clone() },
        "headers.X-Y: has characters that a header cannot carry",
    );
    check(
        &Endpoint { provider: Some(Provider::Demo), ..local },
        "provider: is the demo provider, which needs the URL builtin:demo",
    );
}

#[test]
fn urls_of_other_apis_are_built_from_the_base() {
    let check = |base: &str, expected: [&str; 2]| {
        let target = target(base).unwrap();
        assert_eq!([target.models().as_str(), target.beside("/api/show").as_str()], expected);
    };
    check(
        "http://localhost:11434/v1",
        ["http://localhost:11434/v1/models", "http://localhost:11434/api/show"],
    );
    check("https://host/ollama/v1/", ["https://host/ollama/v1/models", "https://host/ollama/api/show"]);
    check("http://localhost:9", ["http://localhost:9/models", "http://localhost:9/api/show"]);
    let azure = target("https://res.openai.azure.com/openai/deployments/dep/").unwrap();
    assert_eq!(azure.deployment(), Some("dep"));
}

#[test]
fn secrets_are_removed_from_errors() {
    let mut endpoint =
        Endpoint { key: Some("sk-secret".into()), ..Endpoint::new("test", "http://localhost/") };
    endpoint.headers.push(("X-Key".into(), "other-secret".into()));
    endpoint.headers.push(("X-Flag".into(), "on".into()));
    let mut error = crate::ModelError::new(
        crate::ErrorKind::Auth,
        "",
        "key sk-secret and other-secret are not on the list",
    );
    Target::hide_secrets(&endpoint, &mut error);
    assert_eq!(error.message, "key [secret] and [secret] are not on the list");
    let placeholder =
        Endpoint { key: Some("ollama".into()), ..Endpoint::new("test", "http://ollama:11434/v1") };
    let mut error = crate::ModelError::new(crate::ErrorKind::Http, "http://ollama:11434/v1", "no such model");
    Target::hide_secrets(&placeholder, &mut error);
    assert_eq!(error.url, "http://ollama:11434/v1");
}

proptest! {
    #[test]
    fn any_url_is_accepted_or_refused_without_panic(url in "(https?://)?[a-z0-9.:/@?#%\\[\\] -]{0,40}") {
        if let Ok(target) = target(&url) {
            prop_assert!(target.chat().path().ends_with("/chat/completions"));
            prop_assert!(target.chat().username().is_empty());
        }
    }

    #[test]
    fn trailing_slashes_change_nothing(path in "(/[a-z0-9]{1,8}){0,4}", slashes in "/{0,3}") {
        let plain = target(&format!("http://localhost{path}")).unwrap().chat();
        let slashed = target(&format!("http://localhost{path}{slashes}")).unwrap().chat();
        prop_assert_eq!(plain, slashed);
    }
}
