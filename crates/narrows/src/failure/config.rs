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
    /// Reports model flags without a configured endpoint.
    pub(crate) fn no_endpoint() -> Self {
        Self::new(ExitStatus::Usage, "model options are set, but no endpoint is configured")
            .with_hint("add --base-url URL, OPENAI_BASE_URL, or an endpoint in narrows.toml")
    }

    /// Reports flags for the model of the built-in agent, while another agent is selected.
    pub(crate) fn model_flags_for_other_agent(flags: &ModelArgs) -> Self {
        let words = flags.words().unwrap_or_default();
        let first = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
        let flag = first.split('=').next().unwrap_or_default();
        Self::new(
            ExitStatus::Usage,
            format!("{flag} applies to the built-in agent, but --agent selects another"),
        )
        .with_hint("remove this flag or --agent; other agents have their own settings")
    }

    pub(crate) fn endpoint_settings(error: &EndpointError) -> Self {
        Self::new(ExitStatus::Usage, "invalid settings of an endpoint").with_cause(error)
    }
}
