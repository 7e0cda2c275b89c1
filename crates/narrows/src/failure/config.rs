//! Failures of settings.

use narrows_agent::EndpointError;

use super::{ExitStatus, Failure};
use crate::cli::ModelArgs;
use crate::config::ConfigError;
use crate::terminal::line;

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let failure = Self::new(ExitStatus::Usage, line(&error.to_string()));
        match error.hint {
            Some(hint) => failure.with_hint(line(&hint)),
            None => failure,
        }
    }
}

impl Failure {
    /// Model flags without a configured endpoint.
    pub(crate) fn no_endpoint() -> Self {
        Self::new(
            ExitStatus::Usage,
            "there are flags about a model, but no endpoint is configured that has it",
        )
        .with_hint("say where it is: --base-url URL, or OPENAI_BASE_URL, or an endpoint in narrows.toml")
    }

    /// Flags for the model of the built-in agent, while another agent is selected.
    pub(crate) fn model_flags_for_other_agent(flags: &ModelArgs) -> Self {
        let words = flags.words().unwrap_or_default();
        let first = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
        let flag = first.split('=').next().unwrap_or_default();
        Self::new(ExitStatus::Usage, format!("{flag} is about the built-in agent, and --agent names another"))
            .with_hint("leave one of them out; other agents have their own settings")
    }

    pub(crate) fn endpoint_settings(error: &EndpointError) -> Self {
        Self::new(ExitStatus::Usage, "the settings of an endpoint cannot be used").with_cause(error)
    }
}
