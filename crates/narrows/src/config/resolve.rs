//! Merges the file, the variables and the flags into the effective settings.

use std::path::PathBuf;
use std::time::Duration;

use narrows_base::suggest::nearest;
use narrows_model::DEMO_URL;

use super::endpoint_settings::{EndpointSettings, HiddenText, Proxy};
use super::error::{ConfigError, Origin};
use super::file::{ENV_ENDPOINT, EndpointEntry, FLAGS_ENDPOINT, NarrowsToml, TurnLimits};
use super::variables::Variables;
use super::{key, locations, proxy};
use crate::cli::{Errors, ModelArgs};
use crate::environment as env;

/// The base URL of the endpoint `env`, if no variable sets it.
const DEFAULT_BASE_URL: &str = "https://api.openai.com/v1";

/// The model of the endpoint `env`, if no variable sets it.
const DEFAULT_MODEL: &str = "gpt-4o";

/// The model of the demo endpoint at [`DEMO_URL`].
const DEMO_MODEL: &str = "demo";

#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) model: ModelArgs,
    pub(crate) errors: Option<Errors>,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) no_store: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ResolvedEndpoint {
    pub(crate) name: String,
    pub(crate) origin: Origin,
    pub(crate) key: Option<HiddenText>,
    /// The environment variable that sets the proxy of this endpoint, if there is one.
    pub(crate) proxy_from: Option<&'static str>,
    /// All other settings. `base_url` and `model` are set.
    pub(crate) settings: EndpointSettings,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Resolved {
    /// The usable endpoints, the selected one first. Empty if none is configured.
    pub(crate) endpoints: Vec<ResolvedEndpoint>,
    pub(crate) system_prompt: Option<String>,
    pub(crate) errors: Errors,
    /// The directory of stored sessions. `None`: sessions are not stored.
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) pace: Option<Duration>,
    pub(crate) limits: TurnLimits,
    pub(crate) warnings: Vec<String>,
    /// Problems of the endpoints that are not selected. A command shows them as warnings if its user can
    /// select these endpoints.
    pub(crate) deferred_warnings: Vec<String>,
}

/// Merges the sources: flags override variables, and those override the file.
pub(crate) fn resolve(
    flags: &Flags,
    file: Option<NarrowsToml>,
    variables: &Variables,
) -> Result<Resolved, ConfigError> {
    let file = file.unwrap_or_default();
    let mut warnings = Vec::new();
    let mut entries = file.endpoints;
    let first =
        take_first(&flags.model, file.default_endpoint.as_deref(), &mut entries, variables, &mut warnings)?;
    let (mut endpoints, mut deferred_warnings) = (Vec::new(), Vec::new());
    if let Some(first) = first {
        endpoints.push(resolve_endpoint(first, variables)?);
    }
    for entry in entries {
        let name = entry.name.clone();
        match resolve_endpoint(entry, variables) {
            Ok(endpoint) => endpoints.push(endpoint),
            // Only a warning, because another endpoint is selected. For a command that selects this one, it
            // is an error.
            Err(error) => deferred_warnings.push(format!("the endpoint {name:?} is not used: {error}")),
        }
    }
    let errors =
        variables.read(env::ERRORS, |name| Errors::from_name(name).ok_or("expected `text` or `rpc`"))?;
    let system = flags.model.system.clone().or(variables.text(env::SYSTEM_PROMPT)?.map(str::to_owned));
    Ok(Resolved {
        endpoints,
        system_prompt: system.or(file.system_prompt),
        errors: flags.errors.or(errors).or(file.errors).unwrap_or(Errors::Text),
        data_dir: data_dir(flags, file.store, file.data_dir, variables, &mut warnings),
        pace: flags.model.pace.or(file.pace),
        limits: file.limits,
        warnings,
        deferred_warnings,
    })
}

/// Returns the endpoint to start with, and removes it from `entries` if it is one of them.
fn take_first(
    flags: &ModelArgs,
    default: Option<&str>,
    entries: &mut Vec<EndpointEntry>,
    variables: &Variables,
    warnings: &mut Vec<String>,
) -> Result<Option<EndpointEntry>, ConfigError> {
    let (of_flags, of_variables) = (flags.endpoint_settings(), variables.endpoint_settings()?);
    let has_env = of_variables.base_url.is_some() || of_variables.key.is_some();
    let by_variable = || {
        Ok::<_, ConfigError>(
            variables.text(env::ENDPOINT)?.map(|name| (name, Origin::variable(env::ENDPOINT))),
        )
    };
    let wanted = match flags.endpoint.as_deref() {
        Some(name) => Some((name, Origin::Flag("--endpoint"))),
        // A URL on the command line has precedence over a name in the environment.
        None if of_flags.base_url.is_some() => None,
        None => by_variable()?,
    };
    let env = has_env.then(|| EndpointEntry {
        name: ENV_ENDPOINT.to_owned(),
        origin: Origin::variable(env::BASE_URL),
        settings: of_variables.clone().over(defaults()),
        error: None,
    });
    let below = match (wanted, env) {
        (Some((ENV_ENDPOINT, _)), Some(env)) => env,
        (Some((name, origin)), env) => {
            let entry = take_named(entries, name, has_env, origin)?;
            entries.splice(0..0, env);
            entry
        }
        (None, _) if of_flags.base_url.is_some() => EndpointEntry {
            name: FLAGS_ENDPOINT.to_owned(),
            origin: Origin::Flag("--base-url"),
            settings: of_variables.clone().over(defaults()),
            error: None,
        },
        // Many users have an API key in the environment for other programs. A key alone must not move
        // conversations away from the endpoint of the file.
        (None, Some(env)) if of_variables.base_url.is_none() && !entries.is_empty() => {
            let entry = entries.remove(default_index(default, entries));
            entries.push(env);
            entry
        }
        (None, Some(env)) => {
            if let Some(default) = default {
                warnings.push(format!(
                    "{} is set, so it selects the endpoint instead of `default = {default:?}`; choose with \
                     --endpoint or {}",
                    env::BASE_URL,
                    env::ENDPOINT
                ));
            }
            env
        }
        (None, None) if entries.is_empty() => return Ok(None),
        (None, None) => entries.remove(default_index(default, entries)),
    };
    // Variables that do not describe an endpoint of their own apply to the selected endpoint.
    let between = if has_env { EndpointSettings::default() } else { of_variables };
    Ok(Some(EndpointEntry { settings: of_flags.over(between).over(below.settings), ..below }))
}

/// Returns the index of the default endpoint of the file: the one with this name, otherwise the first.
fn default_index(default: Option<&str>, entries: &[EndpointEntry]) -> usize {
    default.and_then(|name| entries.iter().position(|entry| entry.name == name)).unwrap_or(0)
}

/// Returns the default settings of an endpoint that variables or `--base-url` describe.
fn defaults() -> EndpointSettings {
    EndpointSettings {
        base_url: Some(DEFAULT_BASE_URL.to_owned()),
        model: Some(DEFAULT_MODEL.to_owned()),
        ..EndpointSettings::default()
    }
}

fn take_named(
    entries: &mut Vec<EndpointEntry>,
    name: &str,
    has_env: bool,
    origin: Origin,
) -> Result<EndpointEntry, ConfigError> {
    if let Some(at) = entries.iter().position(|entry| entry.name == name) {
        return Ok(entries.remove(at));
    }
    let mut names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    if has_env {
        names.push(ENV_ENDPOINT);
    }
    let error = ConfigError::new(origin, format!("unknown endpoint {name:?}"));
    Err(match nearest(name, names.iter().copied()) {
        Some(near) => error.hint(format!("did you mean {near:?}?")),
        None if name == ENV_ENDPOINT => {
            error.hint(format!("set {} and {} to use it", env::BASE_URL, env::API_KEY))
        }
        None if names.is_empty() => {
            error.hint(format!("an endpoint is a table in narrows.toml: [endpoint.{name}]"))
        }
        None => error.hint(format!("configured endpoints: {}", names.join(", "))),
    })
}

/// Returns the effective settings of an endpoint. The error is the reason why it cannot be used.
fn resolve_endpoint(entry: EndpointEntry, variables: &Variables) -> Result<ResolvedEndpoint, ConfigError> {
    let EndpointEntry { name, origin, mut settings, error } = entry;
    if let Some(error) = error {
        return Err(error);
    }
    let lacks =
        |what: &str| ConfigError::new(origin.clone(), format!("the endpoint {name:?} has no `{what}`"));
    let url = settings.base_url.as_deref().ok_or_else(|| lacks("base_url"))?;
    let proxy_from = match &settings.proxy {
        Some(_) => None,
        None => proxy::select(url, variables).map(|(url, name)| {
            settings.proxy = Some(Proxy::Through(url));
            name
        }),
    };
    if settings.base_url.as_deref() == Some(DEMO_URL) {
        settings.model = Some(DEMO_MODEL.to_owned());
    } else if settings.model.is_none() {
        return Err(lacks("model").hint("set `model` there, use --model, or set OPENAI_MODEL"));
    }
    let key = key::find(&settings, variables).map_err(|reason| {
        ConfigError::new(origin.clone(), format!("the endpoint {name:?} cannot be used: {reason}"))
    })?;
    Ok(ResolvedEndpoint { name, origin, key, proxy_from, settings })
}

fn data_dir(
    flags: &Flags,
    store: Option<bool>,
    of_file: Option<PathBuf>,
    variables: &Variables,
    warnings: &mut Vec<String>,
) -> Option<PathBuf> {
    if flags.no_store {
        return None;
    }
    let named = flags.data_dir.clone().or_else(|| variables.get(env::DATA_DIR).map(PathBuf::from));
    if named.is_some() {
        return named;
    }
    if store == Some(false) {
        return None;
    }
    let directory = of_file.or_else(|| locations::data_dir(variables));
    if directory.is_none() {
        warnings.push(format!(
            "sessions are not stored: neither {} nor {} is set; use --data-dir or --no-store",
            env::DATA_HOME,
            env::HOME
        ));
    }
    directory
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
