//! What holds, in the words of the agent.

use narrows_agent::{Errors as AgentErrors, Limits as AgentLimits, Route, Settings};
use narrows_model::{Client, Endpoint, EndpointError, Limits, Secret};
use narrows_process::{AllowList, Environment};

use super::error::{ConfigError, Origin};
use super::layer::{Layer, Proxy};
use super::resolve::{Chosen, Resolved};
use crate::cli::{Errors, ModelArgs};
use crate::environment;

impl Resolved {
    /// The agent's settings, checked. What an endpoint has to say about its own goes to the warnings.
    pub(crate) fn settings(&mut self, flags: &ModelArgs) -> Result<Settings, ConfigError> {
        let mut routes = Vec::with_capacity(self.routes.len());
        for chosen in &self.routes {
            let mut route = route(chosen);
            route.endpoint.pace = self.pace.unwrap_or_default();
            let client =
                Client::new(route.endpoint.clone()).map_err(|error| unusable(chosen, flags, &error))?;
            let notes = client.notes().iter();
            self.warnings.extend(notes.map(|note| format!("the endpoint {:?}: {note}", chosen.name)));
            routes.push(route);
        }
        let limits = AgentLimits::default();
        Ok(Settings {
            routes,
            system: self.system.clone(),
            errors: match self.errors {
                Errors::Text => AgentErrors::Text,
                Errors::Rpc => AgentErrors::Rpc,
            },
            data_dir: self.data_dir.clone(),
            // No keys: a server that needs one is given it by the client.
            server_env: Environment::filtered(environment::variables(), &AllowList::default()),
            limits: AgentLimits {
                requests_per_turn: self.limits.requests_per_turn.unwrap_or(limits.requests_per_turn),
                tool: self.limits.tool.unwrap_or(limits.tool),
                server_start: self.limits.server_start.unwrap_or(limits.server_start),
            },
            ..Settings::default()
        })
    }
}

fn route(chosen: &Chosen) -> Route {
    let Chosen { name, key, layer, .. } = chosen;
    let mut endpoint = Endpoint::new(name, layer.base_url.clone().unwrap_or_default());
    endpoint.key = key.as_ref().map(|key| Secret::from(key.reveal()));
    let header = |header: &super::Header| (header.name.clone(), Secret::from(header.value.reveal()));
    endpoint.headers = layer.headers.iter().map(header).collect();
    endpoint.query.clone_from(&layer.query);
    endpoint.provider = layer.provider;
    endpoint.context_window = layer.context_window;
    endpoint.ca_file.clone_from(&layer.ca_file);
    endpoint.proxy = match &layer.proxy {
        Some(Proxy::Through(url)) => Some(url.clone()),
        Some(Proxy::None) | None => None,
    };
    let Limits { connect, first_event, idle, total, .. } = endpoint.limits;
    endpoint.limits.connect = layer.connect_timeout.unwrap_or(connect);
    endpoint.limits.first_event = layer.first_timeout.unwrap_or(first_event);
    endpoint.limits.idle = layer.idle_timeout.unwrap_or(idle);
    endpoint.limits.total = layer.total_timeout.unwrap_or(total);
    Route {
        endpoint,
        model: layer.model.clone().unwrap_or_default(),
        max_tokens: layer.max_tokens,
        temperature: layer.temperature,
        effort: layer.effort,
    }
}

/// An endpoint that the model's client refuses, told where the setting stands.
fn unusable(chosen: &Chosen, flags: &ModelArgs, error: &EndpointError) -> ConfigError {
    let setting = error.setting.replace('_', "-");
    let flags: Layer = flags.layer();
    let by_flag = match setting.as_str() {
        "base-url" => flags.base_url.is_some().then_some("--base-url"),
        "ca-file" => flags.ca_file.is_some().then_some("--ca-file"),
        "proxy" => flags.proxy.is_some().then_some("--proxy"),
        other if other.starts_with("headers") => (!flags.headers.is_empty()).then_some("--header"),
        _ => None,
    };
    let origin = match (by_flag, chosen.proxy_from) {
        (Some(flag), _) => Origin::Flag(flag),
        (None, Some(variable)) if setting == "proxy" => Origin::Variable(variable),
        _ => chosen.origin.clone(),
    };
    ConfigError::new(
        origin,
        format!("the endpoint {:?} cannot be used: `{setting}`: {}", chosen.name, error.problem),
    )
}
