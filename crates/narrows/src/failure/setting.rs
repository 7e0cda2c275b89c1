//! What to say when a setting cannot be used.

use narrows_agent::EndpointError;

use super::{Code, Failure};
use crate::cli::ModelArgs;
use crate::config::ConfigError;
use crate::terminal::line;

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let failure = Self::new(Code::Usage, line(&error.to_string()));
        match error.hint {
            Some(hint) => failure.hint(line(&hint)),
            None => failure,
        }
    }
}

impl Failure {
    /// There are flags about a model, but no endpoint to ask for it.
    pub(crate) fn no_endpoint() -> Self {
        Self::new(Code::Usage, "there are flags about a model, but no endpoint is configured that has it")
            .hint("say where it is: --base-url URL, or OPENAI_BASE_URL, or an endpoint in narrows.toml")
    }

    /// There are flags about the model of the built-in agent, but another is to be started.
    pub(crate) fn model_of_another(flags: &ModelArgs) -> Self {
        let words = flags.words().unwrap_or_default();
        let first = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
        let flag = first.split('=').next().unwrap_or_default();
        Self::new(Code::Usage, format!("{flag} is about the built-in agent, and --agent names another"))
            .hint("leave one of them out; other agents have their own settings")
    }

    /// The agent refuses an endpoint.
    pub(crate) fn endpoint_setting(error: &EndpointError) -> Self {
        Self::new(Code::Usage, "the settings of an endpoint cannot be used").because(error)
    }
}
