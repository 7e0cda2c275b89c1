//! The default agent: this program, started as a child like any other agent.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use narrows_agent::ModelRoute;
use narrows_client::{Agent, UsageScope};
use narrows_model::{Client, DEMO_URL};
use narrows_process::Spec;

use super::{SelectedAgent, environment as agent_environment, visible_variables};
use crate::cli::{AgentArgs, Output};
use crate::config::{self, EndpointSettings, Flags};
use crate::environment;
use crate::failure::Failure;
use crate::{local_models, output};

const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// The delay of the demo model before each word if a user watches the output.
const DEMO_DELAY: Duration = Duration::from_millis(25);

/// Prepares the built-in agent. Settings are read here, so that errors are reported before anything is
/// started.
pub(super) fn prepare(args: &AgentArgs, cwd: PathBuf, format: Output) -> Result<SelectedAgent, Failure> {
    let model = &args.model;
    let mut needed = environment::AGENT.to_vec();
    let env = agent_environment::build(args, None, &needed)?;
    let loaded = config::load(model.config.as_deref(), &visible_variables(&env))?;
    // The agent process also gets the variables that hold API keys. The configuration names them.
    needed.extend(model.key_env.as_deref());
    needed.extend(loaded.file.iter().flat_map(config::NarrowsToml::key_variables));
    let mut env = agent_environment::build(args, None, &needed)?;
    // This process stores no sessions: the agent process finds the session directory itself.
    let flags = Flags { model: model.clone(), no_store: true, ..Flags::default() };
    let mut resolved = config::resolve(&flags, loaded.file, &visible_variables(&env))?;
    let mut route = resolved.settings(model)?.routes.into_iter().next();
    // The demo model accepts any name, so `--require-model` checks the name that the user requested.
    if let (Some(route), Some(wished)) = (&mut route, &model.model) {
        route.model.clone_from(wished);
    }
    for warning in &resolved.deferred_warnings {
        tracing::info!("{warning}");
    }
    for warning in loaded.warnings.iter().chain(&resolved.warnings) {
        output::warn(warning);
    }
    let demo = resolved.endpoints.is_empty();
    if demo {
        if model.endpoint_settings() != EndpointSettings::default() {
            return Err(Failure::no_endpoint());
        }
        env.set(environment::BASE_URL, DEMO_URL);
    }
    let mut words = model.words().map_err(|error| Failure::setup("find the current directory", &error))?;
    if let Some(pace) = demo_delay(resolved.pace, format, std::io::stdout().is_terminal()) {
        words.push(format!("--pace={}ms", pace.as_millis()).into());
    }
    let program = std::env::current_exe().map_err(|error| Failure::setup("find this program", &error))?;
    let mut spec = Spec::new(program);
    // Without `--local`, NARROWS_CONNECT or narrows.toml could turn this command into a bridge to a remote
    // agent.
    spec.args = ["acp", "--local"].into_iter().map(OsString::from).chain(words).collect();
    spec.cwd = Some(cwd.clone());
    spec.env = env;
    let mut agent = Agent::new("narrows acp", spec);
    agent.usage_scope = UsageScope::Session;
    agent.acts_through_client = true;
    // The model is not set here, because the arguments of the agent process select it.
    Ok(SelectedAgent { demo, route: route.map(Box::new), ..SelectedAgent::from_agent(agent, cwd) })
}

pub(super) async fn require_model(route: &ModelRoute) -> Result<(), Failure> {
    let ModelRoute { endpoint, model, .. } = route;
    let listed = match Client::new(endpoint.clone()) {
        Ok(client) => client.models(LIST_TIMEOUT).await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let listed = listed.map_err(|reason| Failure::no_model_list(&endpoint.name, model, &reason))?;
    let names: Vec<&str> = listed.iter().map(|listed| listed.id.as_str()).collect();
    // Ollama lists a model without a tag under the tag `latest`.
    let is_meant = |name: &&str| *name == model || name.strip_suffix(":latest") == Some(model);
    if names.iter().any(is_meant) {
        Ok(())
    } else {
        Err(Failure::no_such_model(&endpoint.name, model, &names))
    }
}

/// Returns the default delay of the demo model. `None` if a delay is configured, or no user watches the
/// output.
fn demo_delay(said: Option<Duration>, format: Output, is_watched: bool) -> Option<Duration> {
    (said.is_none() && format == Output::Text && is_watched).then_some(DEMO_DELAY)
}

/// Prints that the demo model is used, and how to configure a real one.
pub(crate) async fn print_demo_notice() {
    let how = match local_models::find().await {
        Some(server) => format!("to use {} on this machine, add {}", server.name, server.flags()),
        None => {
            "to configure one, set OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL, or see `narrows acp --help`"
                .to_owned()
        }
    };
    output::write_stderr(&format!("no model is configured, using the built-in demo model; {how}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_is_slowed_down_only_for_a_terminal() {
        assert_eq!(demo_delay(None, Output::Text, true), Some(DEMO_DELAY));
        assert_eq!(demo_delay(None, Output::Text, false), None);
        assert_eq!(demo_delay(None, Output::Json, true), None);
        assert_eq!(demo_delay(Some(Duration::ZERO), Output::Text, true), None);
    }
}
