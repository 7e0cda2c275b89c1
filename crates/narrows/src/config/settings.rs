//! Converts the effective settings to those of the agent.

use narrows_agent::{FailureFormat, Limits as AgentLimits, ModelRoute, Settings};
use narrows_model::{Client, Endpoint, EndpointError, Limits, Secret};
use narrows_process::{AllowList, Environment};

use super::endpoint_settings::{EndpointSettings, Key, Proxy};
use super::error::{ConfigError, Origin};
use super::key;
use super::resolve::{Resolved, ResolvedEndpoint};
use crate::cli::{Errors, ModelArgs};
use crate::environment;

impl Resolved {
    /// Returns the checked settings of the agent. Notes about endpoints are added to the warnings.
    pub(crate) fn settings(&mut self, flags: &ModelArgs) -> Result<Settings, ConfigError> {
        let mut routes = Vec::with_capacity(self.endpoints.len());
        for chosen in &self.endpoints {
            let mut route = route(chosen);
            route.endpoint.pace = self.pace.unwrap_or_default();
            let client = match Client::new(route.endpoint.clone()) {
                Ok(client) => client,
                Err(error) if routes.is_empty() => return Err(endpoint_error(chosen, flags, &error)),
                // Only a warning, because another endpoint is selected. For a command that selects this one,
                // it is an error.
                Err(error) => {
                    let error = endpoint_error(chosen, &ModelArgs::default(), &error);
                    self.deferred_warnings
                        .push(format!("the endpoint {:?} is not used: {error}", chosen.name));
                    continue;
                }
            };
            let notes = client.notes().iter().map(|note| format!("the endpoint {:?}: {note}", chosen.name));
            if routes.is_empty() {
                self.warnings.extend(notes);
            } else {
                self.deferred_warnings.extend(notes);
            }
            routes.push(route);
        }
        let limits = AgentLimits::default();
        Ok(Settings {
            routes,
            system: self.system_prompt.clone(),
            errors: match self.errors {
                Errors::Text => FailureFormat::Text,
                Errors::Rpc => FailureFormat::Rpc,
            },
            data_dir: self.data_dir.clone(),
            // MCP servers inherit no API keys: the client passes a key to a server that needs one.
            server_env: Environment::filtered(environment::variables(), &AllowList::default()),
            limits: AgentLimits {
                requests_per_turn: self.limits.requests_per_turn.unwrap_or(limits.requests_per_turn),
                tool_timeout: self.limits.tool_timeout.unwrap_or(limits.tool_timeout),
                server_start_timeout: self.limits.server_start_timeout.unwrap_or(limits.server_start_timeout),
                ..limits
            },
            ..Settings::default()
        })
    }
}

fn route(chosen: &ResolvedEndpoint) -> ModelRoute {
    let ResolvedEndpoint { name, key, settings, .. } = chosen;
    let mut endpoint = Endpoint::new(name, settings.base_url.clone().unwrap_or_default());
    endpoint.key = key.as_ref().map(|key| Secret::from(key.reveal()));
    let header = |header: &super::Header| (header.name.clone(), Secret::from(header.value.reveal()));
    endpoint.headers = settings.headers.iter().map(header).collect();
    endpoint.query.clone_from(&settings.query);
    endpoint.provider = settings.provider;
    endpoint.context_window = settings.context_window;
    endpoint.ca_file.clone_from(&settings.ca_file);
    endpoint.proxy = match &settings.proxy {
        Some(Proxy::Through(url)) => Some(url.clone()),
        Some(Proxy::None) | None => None,
    };
    let Limits { connect, first_event, idle, total, .. } = endpoint.limits;
    endpoint.limits.connect = settings.connect_timeout.unwrap_or(connect);
    endpoint.limits.first_event = settings.first_timeout.unwrap_or(first_event);
    endpoint.limits.idle = settings.idle_timeout.unwrap_or(idle);
    endpoint.limits.total = settings.total_timeout.unwrap_or(total);
    ModelRoute {
        endpoint,
        model: settings.model.clone().unwrap_or_default(),
        max_tokens: settings.max_tokens,
        temperature: settings.temperature,
        effort: settings.effort,
    }
}

/// Returns the error about an endpoint that the model client rejects, with the origin of the wrong setting.
fn endpoint_error(chosen: &ResolvedEndpoint, flags: &ModelArgs, error: &EndpointError) -> ConfigError {
    let setting = match (error.setting.as_ref(), &chosen.settings.key) {
        ("key", Some(Key::File(_))) => "key_file".to_owned(),
        (setting, _) => setting.to_owned(),
    };
    let flags: EndpointSettings = flags.endpoint_settings();
    let by_flag = match setting.as_str() {
        "base_url" => flags.base_url.is_some().then_some("--base-url"),
        "ca_file" => flags.ca_file.is_some().then_some("--ca-file"),
        "proxy" => flags.proxy.is_some().then_some("--proxy"),
        "provider" => flags.provider.is_some().then_some("--provider"),
        other if other.starts_with("headers") => (!flags.headers.is_empty()).then_some("--header"),
        _ => None,
    };
    let by_variable = match setting.as_str() {
        "proxy" => chosen.proxy_from.map(Origin::variable),
        "key" => key::key_variable(&chosen.settings).map(|name| Origin::variable(name.to_owned())),
        _ => None,
    };
    let origin = by_flag.map(Origin::Flag).or(by_variable).unwrap_or_else(|| chosen.origin.clone());
    let message = format!("the endpoint {:?} cannot be used: `{setting}`: {}", chosen.name, error.problem);
    let error = ConfigError::new(origin, message);
    if setting == "proxy" {
        error.hint("to use no proxy, write --proxy none or proxy = \"none\"")
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::config::file::NarrowsToml;
    use crate::config::resolve::{Flags, resolve};
    use crate::config::variables::variables;

    fn read(
        text: &str,
        model: ModelArgs,
        pairs: &[(&str, &str)],
    ) -> (Result<Settings, ConfigError>, Vec<String>) {
        let file = NarrowsToml::parse(Path::new("/c/narrows.toml"), text, None).unwrap();
        let flags = Flags { model, no_store: true, ..Flags::default() };
        let mut resolved = resolve(&flags, Some(file), &variables(pairs)).unwrap();
        let settings = resolved.settings(&flags.model);
        resolved.warnings.extend(resolved.deferred_warnings);
        (settings, resolved.warnings)
    }

    #[test]
    fn all_settings_reach_the_agent() {
        let text = r#"
            system = "s"
            errors = "rpc"
            pace = "5ms"
            [endpoint.a]
            base_url = "http://a/v1"
            model = "m"
            key = "k"
            headers = { X = "h" }
            query = { v = "1" }
            provider = "ollama"
            context_window = 1
            max_tokens = 2
            temperature = 0.5
            effort = "low"
            proxy = "http://p"
            connect_timeout = "1s"
            first_timeout = "2s"
            idle_timeout = "3s"
            total_timeout = "4s"
            [limits]
            requests_per_turn = 3
            tool_timeout = "5s"
            server_start_timeout = "6s"
        "#;
        let settings = read(text, ModelArgs::default(), &[]).0.unwrap();
        let limits = AgentLimits {
            requests_per_turn: 3,
            tool_timeout: Duration::from_secs(5),
            server_start_timeout: Duration::from_secs(6),
            ..AgentLimits::default()
        };
        assert_eq!((settings.errors, settings.limits), (FailureFormat::Rpc, limits));
        assert_eq!((settings.system.as_deref(), settings.data_dir), (Some("s"), None));
        let [ModelRoute { endpoint, model, max_tokens, temperature, effort }] = settings.routes.as_slice()
        else {
            panic!("one route");
        };
        assert_eq!(
            (endpoint.name.as_str(), endpoint.base_url.as_str(), model.as_str()),
            ("a", "http://a/v1", "m")
        );
        assert_eq!(
            (*max_tokens, *temperature, effort.map(narrows_model::Effort::name)),
            (Some(2), Some(0.5), Some("low"))
        );
        assert!(endpoint.key.as_ref().is_some_and(|key| !key.is_empty()));
        assert_eq!(endpoint.headers.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["X"]);
        assert_eq!(endpoint.query, [("v".to_owned(), "1".to_owned())]);
        assert_eq!(endpoint.provider.map(narrows_model::Provider::name), Some("ollama"));
        assert_eq!((endpoint.context_window, endpoint.proxy.as_deref()), (Some(1), Some("http://p")));
        assert_eq!(endpoint.pace, Duration::from_millis(5));
        let times = [1, 2, 3, 4].map(Duration::from_secs);
        let Limits { connect, first_event, idle, total, .. } = endpoint.limits;
        assert_eq!([connect, first_event, idle, total], times);
    }

    #[test]
    fn an_unusable_setting_is_reported_with_its_origin() {
        #[track_caller]
        fn check(text: &str, model: ModelArgs, pairs: &[(&str, &str)], expected: &str) {
            let error = read(text, model, pairs).0.expect_err(expected);
            assert_eq!(error.to_string(), expected);
        }
        let good = "[endpoint.a]\nbase_url = 'https://a'\nmodel = 'm'\n";
        check(
            &good.replace("https", "ftp"),
            ModelArgs::default(),
            &[],
            "/c/narrows.toml:1: the endpoint \"a\" cannot be used: `base_url`: must begin with http:// or https://",
        );
        check(
            good,
            ModelArgs::default(),
            &[("HTTPS_PROXY", "socks5://p")],
            "HTTPS_PROXY: the endpoint \"a\" cannot be used: `proxy`: must begin with http:// or https://",
        );
        let proxy = Some(Proxy::Through("socks5://p".to_owned()));
        check(
            good,
            ModelArgs { proxy, ..ModelArgs::default() },
            &[("HTTPS_PROXY", "http://p")],
            "--proxy: the endpoint \"a\" cannot be used: `proxy`: must begin with http:// or https://",
        );
        let provider = narrows_model::Provider::from_name("demo");
        check(
            good,
            ModelArgs { provider, ..ModelArgs::default() },
            &[],
            "--provider: the endpoint \"a\" cannot be used: `provider`: is the demo provider, which needs the URL builtin:demo",
        );
    }

    #[test]
    fn an_unusable_key_is_reported_with_its_origin() {
        #[track_caller]
        fn check(text: &str, model: ModelArgs, pairs: &[(&str, &str)], origin: &str, setting: &str) {
            let error = read(text, model, pairs).0.expect_err(origin);
            let problem = "has characters that a header cannot carry";
            let start = format!("{origin}: the endpoint ");
            let end = format!(" cannot be used: `{setting}`: {problem}");
            let text = error.to_string();
            assert!(text.starts_with(&start) && text.ends_with(&end), "{text}");
        }
        let none = ModelArgs::default;
        let key = ("OPENAI_API_KEY", "a\nb");
        check("", none(), &[key], "OPENAI_API_KEY", "key");
        check("", none(), &[key, ("OPENAI_BASE_URL", "http://h")], "OPENAI_API_KEY", "key");
        let url = ModelArgs { base_url: Some("http://h".to_owned()), ..none() };
        check("", url.clone(), &[key], "OPENAI_API_KEY", "key");
        let named = ModelArgs { key_env: Some("MINE".to_owned()), ..url };
        check("", named, &[("MINE", "a\nb"), ("OPENAI_API_KEY", "k")], "MINE", "key");
        let azure = ("OPENAI_BASE_URL", "https://r.openai.azure.com/openai/v1");
        check("", none(), &[azure, ("AZURE_OPENAI_API_KEY", "a\nb")], "AZURE_OPENAI_API_KEY", "key");
        let good = "[endpoint.a]\nbase_url = 'https://a'\nmodel = 'm'\n";
        check(&format!("{good}key_env = 'MINE'"), none(), &[("MINE", "a\nb")], "MINE", "key");
        check(&format!("{good}key = \"a\\nb\""), none(), &[], "/c/narrows.toml:1", "key");
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("key");
        std::fs::write(&path, "a\nb\n").unwrap();
        let file = format!("{good}key_file = '{}'", path.display());
        check(&file, none(), &[], "/c/narrows.toml:1", "key_file");
    }

    #[test]
    fn an_unusable_endpoint_that_is_not_selected_is_no_error() {
        let text =
            "[endpoint.a]\nbase_url = 'https://a'\nmodel = 'm'\n[endpoint.b]\nbase_url = 'b'\nmodel = 'm'\n";
        let (settings, warnings) = read(text, ModelArgs::default(), &[]);
        assert_eq!(settings.unwrap().routes.len(), 1);
        assert_eq!(warnings.len(), 1);
        assert!(
            warnings[0].starts_with("the endpoint \"b\" is not used: /c/narrows.toml:4: "),
            "{warnings:?}"
        );
    }
}
