//! Finds the API key of an endpoint.

use std::path::Path;

use narrows_model::Provider;
use url::Url;

use super::endpoint_settings::{EndpointSettings, HiddenText, Key};
use super::variables::Variables;
use crate::environment as env;

/// Returns the API key of an endpoint. An empty key counts as none. The error is the reason why the
/// configured key cannot be read.
pub(super) fn find(settings: &EndpointSettings, variables: &Variables) -> Result<Option<HiddenText>, String> {
    let key = match &settings.key {
        Some(Key::Inline(key)) => Some(key.reveal().trim().to_owned().into()),
        Some(Key::Variable(name)) => Some(variable(name, variables)?),
        Some(Key::File(path)) => Some(file(path)?),
        None => default_variable(settings).map(|name| variable(name, variables)).and_then(Result::ok),
    };
    Ok(key.filter(|key| !key.reveal().is_empty()))
}

fn variable(name: &str, variables: &Variables) -> Result<HiddenText, String> {
    let key = variables
        .get(name)
        .ok_or_else(|| format!("the environment variable {name}, which holds the API key, is not set"))?;
    let key = key.to_str().ok_or_else(|| format!("the environment variable {name} is not UTF-8"))?;
    Ok(key.trim().to_owned().into())
}

fn file(path: &Path) -> Result<HiddenText, String> {
    let key = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read the key file {path:?}: {error}"))?;
    Ok(key.trim().to_owned().into())
}

/// Returns the name of the variable that holds the key of an endpoint, if there is one.
pub(super) fn key_variable(settings: &EndpointSettings) -> Option<&str> {
    match &settings.key {
        Some(Key::Variable(name)) => Some(name),
        Some(Key::Inline(_) | Key::File(_)) => None,
        None => default_variable(settings),
    }
}

/// Returns the variable that the documentation of the provider names for its key.
fn default_variable(settings: &EndpointSettings) -> Option<&'static str> {
    let of_url = || Url::parse(settings.base_url.as_deref()?).ok().map(|url| Provider::from_url(&url));
    match settings.provider.or_else(of_url)? {
        Provider::Bedrock => Some(env::BEDROCK_KEY),
        Provider::AzureV1 | Provider::AzureDated => Some(env::AZURE_KEY),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::variables::variables;

    #[track_caller]
    fn check(url: &str, key: Option<Key>, pairs: &[(&str, &str)], expected: Result<Option<&str>, &str>) {
        let settings =
            EndpointSettings { base_url: Some(url.to_owned()), key, ..EndpointSettings::default() };
        let found = find(&settings, &variables(pairs));
        let found = found.map(|key| key.map(|key| key.reveal().to_owned()));
        assert_eq!(found.as_ref().map(Option::as_deref).map_err(String::as_str), expected, "{url}");
    }

    #[test]
    fn a_key_is_read_from_its_configured_source() {
        let url = "https://api.groq.com/openai/v1";
        check(url, None, &[], Ok(None));
        check(url, Some(Key::Inline("k".to_owned().into())), &[], Ok(Some("k")));
        check(url, Some(Key::Inline(String::new().into())), &[], Ok(None));
        let variable = || Some(Key::Variable("GROQ_API_KEY".to_owned()));
        check(url, variable(), &[("GROQ_API_KEY", " k\n")], Ok(Some("k")));
        let unset = Err("the environment variable GROQ_API_KEY, which holds the API key, is not set");
        check(url, variable(), &[], unset);
        check(url, variable(), &[("GROQ_API_KEY", "")], unset);
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("key");
        std::fs::write(&path, "k\n").unwrap();
        check(url, Some(Key::File(path)), &[], Ok(Some("k")));
        let missing = Some(Key::File("/nowhere/key".into()));
        check(
            url,
            missing,
            &[],
            Err("cannot read the key file \"/nowhere/key\": No such file or directory (os error 2)"),
        );
    }

    #[test]
    fn cloud_providers_have_their_own_key_variables() {
        let vars = [("AWS_BEARER_TOKEN_BEDROCK", "b"), ("AZURE_OPENAI_API_KEY", "a")];
        check("https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1", None, &vars, Ok(Some("b")));
        check("https://eu-west-1.bedrock.amazonaws.com/openai/v1", None, &vars, Ok(Some("b")));
        check("https://r.openai.azure.com/openai/deployments/d", None, &vars, Ok(Some("a")));
        check("https://r.openai.azure.com/openai/v1", None, &vars, Ok(Some("a")));
        check("https://api.openai.com/v1", None, &vars, Ok(None));
        let own = Some(Key::Inline("k".to_owned().into()));
        check("https://r.openai.azure.com/openai/v1", own, &vars, Ok(Some("k")));
    }
}
