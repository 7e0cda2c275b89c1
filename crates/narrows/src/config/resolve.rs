//! From what the file, the variables and the flags say to what holds.

use std::path::PathBuf;
use std::time::Duration;

use narrows_base::suggest::nearest;
use narrows_model::DEMO_URL;

use super::error::{ConfigError, Origin};
use super::file::{ENV, Entry, FLAGS, File, Limits};
use super::layer::{Hidden, Layer, Proxy};
use super::variables::Variables;
use super::{key, place, proxy};
use crate::cli::{Errors, ModelArgs};
use crate::environment as env;

/// The endpoint of the variables, if they do not name one.
const OPENAI: &str = "https://api.openai.com/v1";

/// The model of the variables, if they do not name one.
const OPENAI_MODEL: &str = "gpt-4o";

/// The model behind [`DEMO_URL`].
const DEMO_MODEL: &str = "demo";

/// What the arguments say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    /// About the model.
    pub(crate) model: ModelArgs,
    /// How a client hears of a model that failed.
    pub(crate) errors: Option<Errors>,
    /// Where sessions are kept.
    pub(crate) data_dir: Option<PathBuf>,
    /// That they are not.
    pub(crate) no_store: bool,
}

/// An endpoint with all that is known about it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chosen {
    /// Its name.
    pub(crate) name: String,
    /// Where it is described.
    pub(crate) origin: Origin,
    /// What opens it.
    pub(crate) key: Option<Hidden>,
    /// The variable that names its proxy, if one does.
    pub(crate) proxy_from: Option<&'static str>,
    /// Everything else; there is a URL and a model.
    pub(crate) layer: Layer,
}

/// What holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Resolved {
    /// The endpoints, the one to begin with first. None: nothing is configured.
    pub(crate) routes: Vec<Chosen>,
    /// What every conversation begins with.
    pub(crate) system: Option<String>,
    /// How a client hears of a model that failed.
    pub(crate) errors: Errors,
    /// Where sessions are kept, if they are.
    pub(crate) data_dir: Option<PathBuf>,
    /// How fast the built-in model speaks.
    pub(crate) pace: Option<Duration>,
    /// The limits of a turn.
    pub(crate) limits: Limits,
    /// What somebody should know.
    pub(crate) warnings: Vec<String>,
    /// Which endpoints cannot be used, and why: a warning only where they could be chosen.
    pub(crate) left_out: Vec<String>,
}

/// Lays the sources over each other.
pub(crate) fn resolve(
    flags: &Flags,
    file: Option<File>,
    variables: &Variables,
) -> Result<Resolved, ConfigError> {
    let file = file.unwrap_or_default();
    let mut warnings = Vec::new();
    let mut entries = file.endpoints;
    let first = first(&flags.model, file.default.as_deref(), &mut entries, variables, &mut warnings)?;
    let (mut routes, mut left_out) = (Vec::new(), Vec::new());
    if let Some(first) = first {
        routes.push(chosen(first, variables)?);
    }
    for entry in entries {
        let name = entry.name.clone();
        match chosen(entry, variables) {
            Ok(route) => routes.push(route),
            // It may be for another day; whoever chooses it is told.
            Err(error) => left_out.push(format!("the endpoint {name:?} is not used: {error}")),
        }
    }
    let errors =
        variables.read(env::ERRORS, |name| Errors::from_name(name).ok_or("it must be `text` or `rpc`"))?;
    let system = flags.model.system.clone().or(variables.text(env::SYSTEM_PROMPT)?.map(str::to_owned));
    Ok(Resolved {
        routes,
        system: system.or(file.system),
        errors: flags.errors.or(errors).or(file.errors).unwrap_or(Errors::Text),
        data_dir: data_dir(flags, file.store, file.data_dir, variables, &mut warnings),
        pace: flags.model.pace.or(file.pace),
        limits: file.limits,
        warnings,
        left_out,
    })
}

/// The endpoint to begin with, taken out of those of the file if it is one of them.
fn first(
    flags: &ModelArgs,
    default: Option<&str>,
    entries: &mut Vec<Entry>,
    variables: &Variables,
    warnings: &mut Vec<String>,
) -> Result<Option<Entry>, ConfigError> {
    let (of_flags, of_variables) = (flags.layer(), variables.layer()?);
    let has_env = of_variables.base_url.is_some() || of_variables.key.is_some();
    let by_variable = || {
        Ok::<_, ConfigError>(
            variables.text(env::ENDPOINT)?.map(|name| (name, Origin::variable(env::ENDPOINT))),
        )
    };
    let wanted = match flags.endpoint.as_deref() {
        Some(name) => Some((name, Origin::Flag("--endpoint"))),
        // A URL on the command line is meant more than a name in the environment.
        None if of_flags.base_url.is_some() => None,
        None => by_variable()?,
    };
    let env = has_env.then(|| Entry {
        name: ENV.to_owned(),
        origin: Origin::variable(env::BASE_URL),
        layer: of_variables.clone().over(defaults()),
        wrong: None,
    });
    let below = match (wanted, env) {
        (Some((ENV, _)), Some(env)) => env,
        (Some((name, origin)), env) => {
            let entry = named(entries, name, has_env, origin)?;
            entries.splice(0..0, env);
            entry
        }
        (None, _) if of_flags.base_url.is_some() => Entry {
            name: FLAGS.to_owned(),
            origin: Origin::Flag("--base-url"),
            layer: of_variables.clone().over(defaults()),
            wrong: None,
        },
        // A key alone is set on many a machine for other programs: it must not take conversations away from the
        // endpoint that somebody has described.
        (None, Some(env)) if of_variables.base_url.is_none() && !entries.is_empty() => {
            let entry = entries.remove(default_of(default, entries));
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
        (None, None) => entries.remove(default_of(default, entries)),
    };
    // The variables of an endpoint that there is not are about the one there is.
    let between = if has_env { Layer::default() } else { of_variables };
    Ok(Some(Entry { layer: of_flags.over(between).over(below.layer), ..below }))
}

/// The place of the endpoint to begin with among those of the file.
fn default_of(default: Option<&str>, entries: &[Entry]) -> usize {
    default.and_then(|name| entries.iter().position(|entry| entry.name == name)).unwrap_or(0)
}

/// What the variables mean where they say nothing.
fn defaults() -> Layer {
    Layer { base_url: Some(OPENAI.to_owned()), model: Some(OPENAI_MODEL.to_owned()), ..Layer::default() }
}

/// The endpoint of this name, taken out.
fn named(entries: &mut Vec<Entry>, name: &str, has_env: bool, origin: Origin) -> Result<Entry, ConfigError> {
    if let Some(at) = entries.iter().position(|entry| entry.name == name) {
        return Ok(entries.remove(at));
    }
    let mut names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    if has_env {
        names.push(ENV);
    }
    let error = ConfigError::new(origin, format!("unknown endpoint {name:?}"));
    Err(match nearest(name, names.iter().copied()) {
        Some(near) => error.hint(format!("did you mean {near:?}?")),
        None if name == ENV => error.hint(format!("set {} and {} to use it", env::BASE_URL, env::API_KEY)),
        None if names.is_empty() => {
            error.hint(format!("an endpoint is a table in narrows.toml: [endpoint.{name}]"))
        }
        None => error.hint(format!("configured endpoints: {}", names.join(", "))),
    })
}

/// An endpoint that can be used.
fn chosen(entry: Entry, variables: &Variables) -> Result<Chosen, ConfigError> {
    let Entry { name, origin, mut layer, wrong } = entry;
    if let Some(error) = wrong {
        return Err(error);
    }
    let lacks =
        |what: &str| ConfigError::new(origin.clone(), format!("the endpoint {name:?} has no `{what}`"));
    let url = layer.base_url.as_deref().ok_or_else(|| lacks("base_url"))?;
    let proxy_from = match &layer.proxy {
        Some(_) => None,
        None => proxy::of(url, variables).map(|(url, name)| {
            layer.proxy = Some(Proxy::Through(url));
            name
        }),
    };
    if layer.base_url.as_deref() == Some(DEMO_URL) {
        layer.model = Some(DEMO_MODEL.to_owned());
    } else if layer.model.is_none() {
        return Err(lacks("model").hint("set it there, with --model, or in OPENAI_MODEL"));
    }
    let key = key::find(&layer, variables).map_err(|reason| {
        ConfigError::new(origin.clone(), format!("the endpoint {name:?} cannot be used: {reason}"))
    })?;
    Ok(Chosen { name, origin, key, proxy_from, layer })
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
    let directory = of_file.or_else(|| place::data_dir(variables));
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
