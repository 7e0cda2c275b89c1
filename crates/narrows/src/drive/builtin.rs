//! The built-in agent, for those who name no other: this program once more, as a child like any agent.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use narrows_agent::ModelRoute;
use narrows_client::{Agent, Counted};
use narrows_model::{Client, DEMO_URL};
use narrows_process::Spec;

use super::{Chosen, environment as agent_environment, seen};
use crate::cli::{AgentArgs, Output};
use crate::config::{self, Flags, Layer};
use crate::environment;
use crate::failure::Failure;
use crate::{local, output};

/// How long the endpoint may take to list its models.
const LIST: Duration = Duration::from_secs(10);

/// How long the demo model waits before each word when somebody reads along.
const PACE: Duration = Duration::from_millis(25);

/// Reads the settings, so that what is wrong with them is told before anything is started.
pub(super) fn prepare(args: &AgentArgs, cwd: PathBuf, format: Output) -> Result<Chosen, Failure> {
    let model = &args.model;
    let mut needed = environment::AGENT.to_vec();
    let env = agent_environment::of(args, None, &needed)?;
    let loaded = config::load(model.config.as_deref(), &seen(&env))?;
    // Keys are in the variables that the configuration names.
    needed.extend(model.key_env.as_deref());
    needed.extend(loaded.file.iter().flat_map(config::File::key_variables));
    let mut env = agent_environment::of(args, None, &needed)?;
    // Where its sessions are kept is its own concern.
    let flags = Flags { model: model.clone(), no_store: true, ..Flags::default() };
    let mut resolved = config::resolve(&flags, loaded.file, &seen(&env))?;
    let mut route = resolved.settings(model)?.routes.into_iter().next();
    // The demo model answers whatever is asked for; `--require-model` is about what was.
    if let (Some(route), Some(wished)) = (&mut route, &model.model) {
        route.model.clone_from(wished);
    }
    for left_out in &resolved.left_out {
        tracing::info!("{left_out}");
    }
    for warning in loaded.warnings.iter().chain(&resolved.warnings) {
        tracing::warn!("{warning}");
    }
    let demo = resolved.routes.is_empty();
    if demo {
        if model.layer() != Layer::default() {
            return Err(Failure::no_endpoint());
        }
        env.set(environment::BASE_URL, DEMO_URL);
    }
    let mut words = model.words().map_err(|error| Failure::setup("find the current directory", &error))?;
    if let Some(pace) = pace(resolved.pace, format, std::io::stdout().is_terminal()) {
        words.push(format!("--pace={}ms", pace.as_millis()).into());
    }
    let program = std::env::current_exe().map_err(|error| Failure::setup("find this program", &error))?;
    let mut spec = Spec::new(program);
    // Built in is what is meant, whatever a bare `narrows acp` is made to be.
    spec.args = ["acp", "--local"].into_iter().map(OsString::from).chain(words).collect();
    spec.cwd = Some(cwd.clone());
    spec.env = env;
    let mut agent = Agent::new("narrows acp", spec);
    agent.counted = Counted::Session;
    agent.acts_through_client = true;
    // Its model is set by the flags with which it is started.
    Ok(Chosen { demo, route: route.map(Box::new), ..Chosen::of(agent, cwd) })
}

/// Fails if the endpoint of `route` does not list the model to be used.
pub(super) async fn require_model(route: &ModelRoute) -> Result<(), Failure> {
    let ModelRoute { endpoint, model, .. } = route;
    let listed = match Client::new(endpoint.clone()) {
        Ok(client) => client.models(LIST).await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let listed = listed.map_err(|reason| Failure::no_model_list(&endpoint.name, model, &reason))?;
    let names: Vec<&str> = listed.iter().map(|listed| listed.id.as_str()).collect();
    // Ollama lists a model without a tag as the one with the tag `latest`.
    let is_meant = |name: &&str| *name == model || name.strip_suffix(":latest") == Some(model);
    if names.iter().any(is_meant) {
        Ok(())
    } else {
        Err(Failure::no_such_model(&endpoint.name, model, &names))
    }
}

/// How fast the demo model is to speak, if nobody has said so.
fn pace(said: Option<Duration>, format: Output, is_watched: bool) -> Option<Duration> {
    (said.is_none() && format == Output::Text && is_watched).then_some(PACE)
}

/// Says that it is the demo model, and how to have a real one.
pub(crate) async fn introduce_demo() {
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
