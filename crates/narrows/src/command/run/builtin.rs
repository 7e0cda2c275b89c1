//! The built-in agent, for those who name no other: this program once more, as a child like any agent.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use narrows_model::DEMO_URL;
use narrows_process::{AllowList, Environment, Spec};

use crate::cli::{ModelArgs, Output, Variable};
use crate::config::{self, Flags, Layer, Variables};
use crate::drive::Launch;
use crate::environment;
use crate::failure::Failure;
use crate::{local, output};

use super::settings::set_variables;

/// How long the demo model waits before each word when somebody reads along.
const PACE: Duration = Duration::from_millis(25);

/// How to start it.
pub(super) struct Builtin {
    pub(super) launch: Launch,
    /// Nothing is configured.
    pub(super) demo: bool,
}

/// What `narrows run` was told about the agent's environment.
pub(super) struct Given<'a> {
    pub(super) set: &'a [Variable],
    pub(super) pass: &'a [String],
}

/// Reads the settings, so that what is wrong with them is told before anything is started.
pub(super) fn prepare(
    args: &ModelArgs,
    given: &Given<'_>,
    cwd: &Path,
    format: Output,
) -> Result<Builtin, Failure> {
    let mut allowed = AllowList::default().and(environment::AGENT.iter().copied()).and(given.pass);
    let env = agent_environment(&allowed, given)?;
    let loaded = config::load(args.config.as_deref(), &seen(&env))?;
    // Keys are in the variables that the configuration names.
    allowed = allowed.and(args.key_env.iter().cloned());
    if let Some(file) = &loaded.file {
        allowed = allowed.and(file.key_variables());
    }
    let mut env = agent_environment(&allowed, given)?;
    let flags = Flags { model: args.clone(), no_store: true, ..Flags::default() };
    let mut resolved = config::resolve(&flags, loaded.file, &seen(&env))?;
    resolved.settings(args)?;
    for warning in loaded.warnings.iter().chain(&resolved.warnings) {
        tracing::warn!("{warning}");
    }
    let demo = resolved.routes.is_empty();
    if demo {
        if args.layer() != Layer::default() {
            return Err(Failure::no_endpoint());
        }
        env.set(environment::BASE_URL, DEMO_URL);
    }
    let mut words = args.words().map_err(|error| Failure::setup("find the current directory", &error))?;
    if let Some(pace) = pace(resolved.pace, format, std::io::stdout().is_terminal()) {
        words.push(format!("--pace={}ms", pace.as_millis()).into());
    }
    let program = std::env::current_exe().map_err(|error| Failure::setup("find this program", &error))?;
    let mut spec = Spec::new(program);
    // A turn that cannot be continued leaves nothing behind.
    spec.args = ["acp", "--no-store"].into_iter().map(OsString::from).chain(words).collect();
    spec.cwd = Some(cwd.to_owned());
    spec.env = env;
    Ok(Builtin { launch: Launch { program: "narrows acp".to_owned(), spec }, demo })
}

/// How fast the demo model is to speak, if nobody has said so.
fn pace(said: Option<Duration>, format: Output, is_watched: bool) -> Option<Duration> {
    (said.is_none() && format == Output::Text && is_watched).then_some(PACE)
}

fn agent_environment(allowed: &AllowList, given: &Given<'_>) -> Result<Environment, Failure> {
    let mut env = Environment::filtered(environment::variables(), allowed);
    set_variables(&mut env, given.set)?;
    Ok(env)
}

/// The variables as the agent will see them.
fn seen(env: &Environment) -> Variables {
    env.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Says that it is the demo model, and how to have a real one.
pub(super) async fn introduce_demo() {
    let how = match local::find().await {
        Some(server) => format!("{} answers on this machine, use it with {}", server.name, server.flags()),
        None => {
            "for a real one set OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, or see `narrows acp --help`"
                .to_owned()
        }
    };
    output::complain(&format!("no model is configured, so the built-in demo model answers; {how}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_reads_along_is_given_time() {
        assert_eq!(pace(None, Output::Text, true), Some(PACE));
        assert_eq!(pace(None, Output::Text, false), None);
        assert_eq!(pace(None, Output::Json, true), None);
        assert_eq!(pace(Some(Duration::ZERO), Output::Text, true), None);
    }
}
